"""Checks that the imported package `nbagent` is the one that `nbagent-jupyter` installed.

The package index has another project called `nbagent`, and this project had that name once. Both
write a folder `nbagent`, so the one that was installed last wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nbagent.contracts.canonical import json_object

DISTRIBUTION = "nbagent-jupyter"
_FORMER_NAME = "nbagent"
_OWN_GROUP = "nbagent.frontends"
"""Group of entry points that only this project declares."""


def installation_problems(package: Path = Path(__file__).parents[1]) -> Iterator[str]:
    """Say which distribution is in the way, or that none brought this package; and what to do.

    Args:
        package: the folder of the imported package.
    """
    for other in distributions(name=_FORMER_NAME):
        is_former = any(entry.group == _OWN_GROUP for entry in other.entry_points)
        owner = "the former name of nbagent-jupyter" if is_former else "of another project"
        yield (
            f"the distribution {_FORMER_NAME} {other.version} is {owner} and writes the same "
            f"folder: run `%pip uninstall -y {_FORMER_NAME}`, then `%pip install -e .` in the "
            "checkout of nbagent, and restart the kernel"
        )
    folders = [_package_folder(found) for found in distributions(name=DISTRIBUTION)]
    if package.resolve() not in folders:
        state = "belongs to another folder" if folders else "is not installed"
        yield (
            f"nbagent is imported from {package}, but the distribution {DISTRIBUTION} {state}: run "
            "`%pip install -e .` in the checkout of nbagent, and restart the kernel"
        )


def _package_folder(distribution: Distribution) -> Path:
    """Folder of the package that a distribution brings; for an editable one in its checkout."""
    origin: dict[str, object] = {}
    with suppress(ValueError):
        origin = json_object(json.loads(distribution.read_text("direct_url.json") or "{}")) or {}
    is_editable = (json_object(origin.get("dir_info")) or {}).get("editable") is True
    if is_editable and isinstance(url := origin.get("url"), str):
        return Path(url2pathname(urlsplit(url).path), "nbagent").resolve()
    return Path(str(distribution.locate_file("nbagent"))).resolve()
