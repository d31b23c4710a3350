"""Walks the tree of a mount level by level, without hidden and ignored names.

No link is followed. Patterns of .gitignore and of `globs` are read by pathspec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pathspec

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import MountedPath
from nbagent.files.names import Parts, is_nameable, looks_secret
from nbagent.files.opening import Folder
from nbagent.files.writing import TEMPORARY, read_bytes

Kind = Literal["file", "folder", "link", "other"]
Hides = Callable[[Parts, str], bool]
"""Takes a folder (path parts below the mount) and a name in it; True leaves the name out."""
_NOT_ENTERED = frozenset(
    (
        *(".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints"),
        *(".venv", "venv", "site-packages"),
    )
)
"""Folders that programs generate; a walk enters them only if it starts there."""
_MAX_IGNORE_FILE_BYTES = 500_000
_MAX_DEPTH = 60


class Entry(NamedTuple):
    """One entry of a folder."""

    name: str
    kind: Kind
    ignored: bool
    """True if a .gitignore matches, programs generated it, it holds secrets, or its name is not
    allowed in a path."""


@dataclass(frozen=True, slots=True)
class Level:
    """One folder of a walk. Its `folder` is open only until the next level is read."""

    folder: Folder
    parts: Parts
    """Below the mount."""
    entries: list[Entry]


class Globs:
    """Patterns like those of .gitignore, separated by commas: `*.py,*.md`, `src/**/*.txt`,
    `!tests/`."""

    def __init__(self, pattern: str) -> None:
        lines = [line.strip() for line in pattern.split(",")]
        spec = None if "{" in pattern else _compile_patterns(lines)
        if spec is None:
            raise ToolError(
                f"{pattern[:200]!r} is no glob; use one such as 'src/**/*.md', or several with "
                "commas, such as '*.py,*.md'; there are no braces",
                code="E_INVALID_ARGUMENTS",
            )
        self._spec = spec
        self._only_negative = all(line.startswith("!") for line in lines)

    def matches(self, path: str) -> bool:
        """True if the patterns match a path below the folder."""
        included = self._spec.check_file(path).include
        return self._only_negative if included is None else bool(included)


def _compile_patterns(lines: list[str]) -> Any:
    """Compile patterns together; None if none is valid."""
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines) if lines else None
    except ValueError:
        # Skip invalid patterns one by one, as git does.
        return (
            _compile_patterns([line for line in lines if _compile_patterns([line])])
            if len(lines) > 1
            else None
        )


def walk(
    path: MountedPath, *, depth: int = _MAX_DEPTH, hides: Hides = lambda parts, name: False
) -> Iterator[Level]:
    """Folders from a path down, each with its names in order; ignored ones are not entered.

    Folders that cannot be opened are left out, except for the first.

    Raises:
        OSError: the first folder cannot be opened.
    """
    rules = _rules_of_parents(path)
    waiting = [path.parts]
    while waiting:
        parts = waiting.pop()
        try:
            with closing(path.root.folder(parts)) as folder:
                entries = _entries(folder, parts, rules, hides)
                yield Level(folder, parts, entries)
        except OSError:
            if parts == path.parts:
                raise
            continue
        if len(parts) - len(path.parts) + 1 < min(depth, _MAX_DEPTH):
            below = [(*parts, e.name) for e in entries if e.kind == "folder" and not e.ignored]
            # A stack: reversed, so that folders come in the order of their names.
            waiting += reversed(below)


def _entries(folder: Folder, parts: Parts, rules: _Rules, hides: Hides) -> list[Entry]:
    _load_gitignore(rules, folder, parts)
    entries: list[Entry] = []
    for entry in folder.scan():
        name = entry.name
        if name.startswith(TEMPORARY) or hides(parts, name):
            continue
        kind: Kind = "other"
        if entry.is_symlink():
            kind = "link"
        elif entry.is_dir(follow_symlinks=False):
            kind = "folder"
        elif entry.is_file(follow_symlinks=False):
            kind = "file"
        shut = kind == "folder" and (name in _NOT_ENTERED or looks_secret(f"{name}/"))
        shown = f"{name}/" if kind == "folder" else name
        ignored = shut or not is_nameable(name) or _is_ignored(rules, parts, shown)
        entries.append(Entry(name, kind, ignored))
    return entries


_Rules = dict[Parts, Any]
"""Patterns of the .gitignore files by their folders."""


def _load_gitignore(rules: _Rules, folder: Folder, parts: Parts) -> None:
    try:
        descriptor = folder.open_file((".gitignore",))
    except OSError:
        return
    try:
        data = read_bytes(descriptor, max_bytes=_MAX_IGNORE_FILE_BYTES)
    finally:
        os.close(descriptor)
    lines = data.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    if (spec := _compile_patterns(lines)) is not None:
        rules[parts] = spec


def _is_ignored(rules: _Rules, parts: Parts, name: str) -> bool:
    """True if a name in a folder is ignored: the deepest .gitignore that matches decides."""
    for size in range(len(parts), -1, -1):
        if (spec := rules.get(parts[:size])) is not None:
            included = spec.check_file("/".join((*parts[size:], name))).include
            if included is not None:
                return bool(included)
    return False


def _rules_of_parents(path: MountedPath) -> _Rules:
    rules: _Rules = {}
    for size, name in enumerate(path.parts):
        above = path.parts[:size]
        with closing(path.root.folder(above)) as folder:
            _load_gitignore(rules, folder, above)
        if _is_ignored(rules, above, f"{name}/"):
            # A caller that names an ignored folder wants to see its files.
            return {}
    return rules
