"""Entry points of installed packages. A folder that a person works in installs nothing."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint, distributions

from nbagent.settings.sources import project_folder


def installed_entry_points(group: str) -> list[EntryPoint]:
    """List the entry points of a group, without those of the working and the project's folder.

    A kernel has its working folder on `sys.path`, so metadata in a clone would look like those of
    an installed package, and its code would be loaded without a question.
    """
    opened = {os.path.realpath(folder) for folder in (os.curdir, project_folder())}
    path = [p for p in sys.path if p and os.path.realpath(p) not in opened]
    entries: dict[str, EntryPoint] = {}
    names: set[str] = set()
    for package in distributions(path=path):
        name = (package.name or "").casefold()
        if name in names:  # the first one on the path is the one that is imported
            continue
        names.add(name)
        for entry in package.entry_points.select(group=group):
            entries.setdefault(entry.name, entry)
    return [*entries.values()]
