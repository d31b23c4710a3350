"""Walking a tree of a mount, folder by folder, without following a link.

Owns what is gone into and what .gitignore says; `globs` and patterns of .gitignore are read by
pathspec, which asks RE2. Reading files is the caller's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pathspec

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import Keeper
from nbagent.files.names import Parts, is_nameable
from nbagent.files.opening import AnyFolder
from nbagent.files.writing import TEMPORARY, read_bytes

Kind = Literal["file", "folder", "link", "other"]

_NEVER_ENTERED = frozenset({".git", ".hg", ".svn"})
_SELDOM_ENTERED = frozenset({"__pycache__", "node_modules", ".ipynb_checkpoints"})
"""Made by programs; gone into only when they are named."""
_VENV_MARK = "pyvenv.cfg"
_LARGEST_IGNORE_FILE_BYTES = 500_000
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST_GLOBS = 64
_DEEPEST = 60


class Entry(NamedTuple):
    """One name in a folder."""

    name: str
    kind: Kind
    ignored: bool
    """By a .gitignore, or made by programs."""


@dataclass(frozen=True, slots=True)
class Level:
    """One folder of a walk. Its `folder` is open only until the next level is asked for."""

    folder: AnyFolder
    parts: Parts
    """Below the mount."""
    entries: list[Entry]


class Globs:
    """Patterns as in .gitignore: `*.py` at any depth, `src/**/*.md`, `{a,b}`, `!tests/`."""

    def __init__(self, pattern: str) -> None:
        lines = _expanded(pattern.strip())
        self._spec = _spec(lines)
        if self._spec is None:
            raise ToolError(
                f"{pattern[:200]!r} is no glob; use one such as '*.py' or 'src/**/*.md'",
                code="E_INVALID_ARGUMENTS",
            )
        self._only_negative = all(line.startswith("!") for line in lines)

    def fit(self, path: str) -> bool:
        """Whether a path below the folder that was named is meant."""
        found = self._spec.check_file(_encodable(path)).include
        return self._only_negative if found is None else bool(found)


def _encodable(path: str) -> str:
    """A path that RE2 takes: names of a disk need not be text in any encoding."""
    return path if path.isascii() else path.encode("utf-8", "replace").decode("utf-8")


def _expanded(pattern: str) -> list[str]:
    """A pattern with braces as several without."""
    done: list[str] = []
    waiting = [pattern]
    while waiting and len(waiting) + len(done) <= _MOST_GLOBS:
        one = waiting.pop()
        match = _BRACES.search(one)
        if match is None:
            done.append(one)
        else:
            waiting += [one[: match.start()] + x + one[match.end() :] for x in match[1].split(",")]
    if waiting:
        raise ToolError(
            f"the glob means more than {_MOST_GLOBS} patterns; use fewer braces",
            code="E_INVALID_ARGUMENTS",
        )
    return done


def _spec(lines: list[str]) -> Any:
    """Patterns read together; None when there is none that can be read."""
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        return None
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError:
        if len(lines) == 1:
            return None
        # One that is wrong does not undo the others; git leaves it out, too.
        return _spec([line for line in lines if _spec([line]) is not None])


class _Ignoring:
    """The .gitignore files from the mount down to a folder; the deepest that speaks decides."""

    def __init__(self) -> None:
        self._specs: dict[Parts, Any] = {}

    def read(self, folder: AnyFolder, parts: Parts, name: Parts = (".gitignore",)) -> None:
        """Take the rules of a folder, if it has a file of them."""
        try:
            descriptor = folder.open_file(name)
        except OSError:
            return
        try:
            data = read_bytes(descriptor, most=_LARGEST_IGNORE_FILE_BYTES)
        except OSError:
            return
        finally:
            os.close(descriptor)
        lines = data.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
        old = self._specs.get(parts)
        spec = _spec(lines)
        if spec is not None:
            self._specs[parts] = spec if old is None else old + spec

    def above(self, parts: Parts) -> list[tuple[str, Any]]:
        """What speaks of names in a folder, deepest first: the path from there, and the rules."""
        return [
            ("".join(f"{piece}/" for piece in parts[size:]), self._specs[parts[:size]])
            for size in range(len(parts), -1, -1)
            if parts[:size] in self._specs
        ]

    def forget_above(self, parts: Parts) -> None:
        """Leave out all rules but those of a folder itself and below."""
        self._specs = {at: spec for at, spec in self._specs.items() if at == parts}


def _is_ignored(above: list[tuple[str, Any]], name: str) -> bool:
    for prefix, spec in above:
        said = spec.check_file(prefix + name).include
        if said is not None:
            return bool(said)
    return False


def walk(
    root: AnyFolder,
    start: Parts,
    *,
    depth: int = _DEEPEST,
    skip: frozenset[Parts] = frozenset(),
    keeper: Keeper | None = None,
) -> Iterator[Level]:
    """The folders from `start` down, each with its names in order; ignored ones are not entered.

    What is in `skip`, and what the `keeper` does not keep, is not there for the walk.

    Folders that cannot be opened any more are left out, but for the first.

    Raises:
        OSError: the first folder cannot be opened.
    """
    rules = _rules_above(root, start)
    waiting = [start]
    while waiting:
        parts = waiting.pop()
        try:
            folder = root.folder(parts)
        except OSError:
            if parts == start:
                raise
            continue
        try:
            entries = _entries(folder, parts, rules, skip)
            if keeper is not None:
                keeps = keeper.keeps
                entries = [e for e in entries if keeps(parts, e.name, folder=e.kind == "folder")]
            if parts != start and any(entry.name == _VENV_MARK for entry in entries):
                continue
            yield Level(folder, parts, entries)
        except OSError:
            if parts == start:
                raise
            continue
        finally:
            folder.close()
        if len(parts) - len(start) + 1 < min(depth, _DEEPEST):
            below = [(*parts, e.name) for e in entries if e.kind == "folder" and not e.ignored]
            waiting += reversed(below)


def _rules_above(root: AnyFolder, start: Parts) -> _Ignoring:
    rules = _Ignoring()
    rules.read(root, (), (".git", "info", "exclude"))
    for size in range(len(start)):
        with_rules = root.folder(start[:size])
        try:
            rules.read(with_rules, start[:size])
        finally:
            with_rules.close()
        if _is_ignored(rules.above(start[:size]), f"{start[size]}/"):
            # Who names an ignored folder wants to see what is in it.
            rules.forget_above(start)
            break
    return rules


def _entries(
    folder: AnyFolder, parts: Parts, rules: _Ignoring, skip: frozenset[Parts]
) -> list[Entry]:
    found = folder.scan()
    folded = tuple(map(str.casefold, parts)) if skip else ()
    hidden = {s[-1].casefold() for s in skip if tuple(map(str.casefold, s[:-1])) == folded}
    if any(entry.name == ".gitignore" for entry in found):
        rules.read(folder, parts)
    above = rules.above(parts)
    entries: list[Entry] = []
    for entry in found:
        name = entry.name
        if name.startswith(TEMPORARY) or (hidden and name.casefold() in hidden):
            continue
        if entry.is_symlink():
            kind = "link"
        elif entry.is_dir(follow_symlinks=False):
            made = name in _NEVER_ENTERED or name in _SELDOM_ENTERED
            ignored = made or not is_nameable(name) or _is_ignored(above, f"{name}/")
            entries.append(Entry(name, "folder", ignored))
            continue
        elif entry.is_file(follow_symlinks=False):
            kind = "file"
        else:
            kind = "other"
        ignored = not is_nameable(name) or (bool(above) and _is_ignored(above, name))
        entries.append(Entry(name, kind, ignored))
    return entries
