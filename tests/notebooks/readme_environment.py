"""The environment that the README's first command makes: its extras, and what they install.

`hide_other_packages` lets a kernel of the test environment, which has far more packages, import
only these.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"^    (python3 -m venv \.venv && .*)$", re.M)
_BLOCKER = """\
import sys

class HiddenPackages:
    names = frozenset({names!r})

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(
                f"No module named {{name!r}} (the README's first command does not install it)",
                name=name,
            )

if not any("pytest" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, HiddenPackages())
"""


def readme_commands() -> list[str]:
    """Return the commands of the README that make an environment: to run, and to test."""
    return _COMMAND.findall((ROOT / "README.md").read_text("utf-8"))


def readme_extras() -> set[str]:
    """Return the extras that the README's first command installs."""
    match = re.search(r"pip install -q -e '\.\[([\w,]+)\]'", readme_commands()[0])
    assert match is not None, readme_commands()
    return set(match[1].split(","))


def _project_requirements() -> Iterator[Requirement]:
    """Requirements of nbagent and of the README's extras; read from the file, not as installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [project["optional-dependencies"][extra] for extra in sorted(readme_extras())]
    for lines in (project["dependencies"], *optional):
        yield from map(Requirement, lines)


def installed_distributions() -> set[str]:
    """Return the canonical names of all distributions that the README's first command installs."""
    waiting, seen = list(_project_requirements()), set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            lines = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:  # needed on another system only
            continue
        for needed in map(Requirement, lines):
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return {name for name, _ in seen} | {"pip", "nbagent", "nbagent-jupyter"}


def hidden_modules() -> set[str]:
    """Return the top-level modules that are installed here and not by the README's command."""
    wanted = installed_distributions()
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not wanted.intersection(map(canonicalize_name, owners))
    }


def hide_other_packages(folder: Path) -> dict[str, str]:
    """Write a `sitecustomize` into a folder; return the variable that makes kernels use it.

    Pytest itself, which starts the kernels, is left alone.
    """
    text = _BLOCKER.format(names=sorted(hidden_modules()))
    (folder / "sitecustomize.py").write_text(text, "utf-8")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
