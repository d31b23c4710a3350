"""Agent Skills on disk: finding their folders, reading SKILL.md leniently, opening further files.

Owns what a skill is and where it is looked for. What a model may do with one is `skills`'.
The format: https://agentskills.io/specification
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.frontmatter import read_frontmatter
from nbagent.files.mounts import Mount
from nbagent.files.names import is_nameable, looks_secret, path_parts, visible
from nbagent.files.opening import open_root

FOLDERS = (".agents/skills", ".claude/skills", ".nbagent/skills")
_FILE = "SKILL.md"
_DEEPEST = 6
_MOST_FOLDERS = 2_000
_MOST_FILES = 500
_MOST_STATES = 1_000
_MOST_BYTES = 2_000_000
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME_CHARS, _DESCRIPTION_CHARS, _COMPATIBILITY_CHARS = 64, 1_024, 500
_SHOWN_CHARS = 2_000
"""Of a description that is too long."""
_KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill as it was found."""

    name: str
    description: str
    root: Path
    """Absolute, links resolved."""
    origin: str
    """`given`, `project` or `user`."""
    body: str
    """SKILL.md without its front matter."""
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_named_alike(self) -> bool:
        """Whether its folder bears its name, as the format wants it."""
        return self.name == self.root.name

    def read(self, file: str, *, most_bytes: int) -> bytes:
        """A file of the skill.

        Raises:
            ToolError: it is not there, not in the skill, too large, or kept from models.
        """
        parts = path_parts(file)
        if not parts:
            raise ToolError(f"{file!r} is no file of {self.name}", code="ENOENT")
        if any(looks_secret(part) for part in parts):
            raise ToolError(
                f"{visible(file)} looks like it holds a secret and is not read; ask the person",
                code="E_DENIED",
            )
        return _read(self.root, parts, most_bytes=most_bytes)

    def has(self, file: str) -> bool:
        """Whether it is a regular file of the skill."""
        try:
            with closing(open_root(self.root)) as root:
                os.close(root.open_file(path_parts(file)))
        except (OSError, ToolError):
            return False
        return True

    def fingerprint(self) -> list[list[object]]:
        """Names, sizes and times of its files, hidden ones too: of the first so many."""
        return list(islice(_states_below(self.root), _MOST_STATES))

    def files(self) -> tuple[tuple[str, ...], bool]:
        """Its files but SKILL.md, by relative path; and whether there are more."""
        found = list(_files_below(self.root))
        return tuple(sorted(found[:_MOST_FILES])), len(found) > _MOST_FILES


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """What a search found."""

    skills: tuple[Skill, ...] = ()
    warnings: tuple[str, ...] = ()
    """For the person: what was skipped, and what is not as the format wants it."""


def find_skills(
    project: Path, given: Sequence[str] = (), *, home: Path | None = None
) -> FoundSkills:
    """All skills, by name. Of one name the given wins, then the project's, then the user's.

    Of two of the same owner the one whose folder bears the name wins, then the one found first.

    Args:
        project: the project's folder.
        given: further folders: skills, or folders of skills.
        home: the user's; found by itself by default.

    Raises:
        UsageError: a folder that was given is not there.
    """
    warnings: list[str] = []
    found: dict[str, Skill] = {}
    seen: set[Path] = set()
    for base, limit, origin in _places(project, given, home):
        for folder in _skill_folders(base, limit, warnings):
            if folder in seen:
                continue
            seen.add(folder)
            skill = _load(folder, origin, warnings)
            if skill is None:
                continue
            first = found.setdefault(skill.name, skill)
            if first is skill:
                continue
            if first.origin == origin and not first.is_named_alike and skill.is_named_alike:
                found[skill.name], first, skill = skill, skill, first
            warnings.append(
                f"the skill {_whose(skill, project, home)} is hidden by the one "
                f"{_whose(first, project, home).partition(' ')[2]}"
            )
    skills = tuple(found[name] for name in sorted(found))
    told = [f"{skill.name}: {warning}" for skill in skills for warning in skill.warnings]
    return FoundSkills(skills, (*warnings, *told))


def _whose(skill: Skill, project: Path, home: Path | None) -> str:
    """Its name, its owner and its folder: `'report' of the project (.agents/skills/report)`."""
    folder = visible(skill.root.name)
    for base, before in ((project, ""), (home or Path.home(), "~/")):
        real = Path(os.path.realpath(base))
        if skill.root.is_relative_to(real):
            folder = before + visible(skill.root.relative_to(real).as_posix())
            break
    return f"{skill.name!r} of the {skill.origin} ({folder})"


def skill_mounts(skills: Iterable[Skill]) -> tuple[Mount, ...]:
    """The folders of skills as mounts for the file tools, read only: `@skill-NAME`."""
    made: dict[str, Mount] = {}
    for skill in skills:
        name = f"@skill-{re.sub(r'[^A-Za-z0-9_-]', '-', skill.name)}"[:33]
        made.setdefault(name, Mount(name, skill.root, "ro"))
    return tuple(made.values())


def _places(
    project: Path, given: Sequence[str], home: Path | None
) -> Iterator[tuple[Path, Path, str]]:
    """Folders to search, the folder that links must stay in, and whose they are."""
    for text in given:
        folder = Path(os.path.realpath(project / Path(text).expanduser()))
        if not folder.is_dir():
            raise UsageError(f"there is no folder {text!r} of skills; name one that is there")
        yield folder, folder, "given"
    for base, origin in ((project, "project"), (home or Path.home(), "user")):
        resolved = Path(os.path.realpath(base))
        for name in FOLDERS:
            yield resolved / name, resolved, origin


def _skill_folders(base: Path, limit: Path, warnings: list[str]) -> Iterator[Path]:
    """Folders with a SKILL.md, nearest first. Links are followed where they stay within `limit`."""
    waiting = [(base, 0)]
    seen: set[Path] = set()
    while waiting:
        folder, depth = waiting.pop(0)
        real = Path(os.path.realpath(folder))
        if real in seen:
            continue
        if not real.is_relative_to(limit):
            warnings.append(
                f"{folder.name!r} links out of the folder that it was found in and is skipped; "
                "name its target with --skills"
            )
            continue
        seen.add(real)
        if len(seen) > _MOST_FOLDERS:
            warnings.append(f"only the first {_MOST_FOLDERS:,} folders of skills were searched")
            return
        try:
            with os.scandir(real) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name.casefold() == _FILE.casefold() for entry in inside):
            yield real
        elif depth < _DEEPEST:
            waiting += [(real / e.name, depth + 1) for e in inside if _may_hold_skills(e)]


def _may_hold_skills(entry: os.DirEntry[str]) -> bool:
    try:
        hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
        return not hidden and entry.is_dir()
    except OSError:
        return False


def _load(folder: Path, origin: str, warnings: list[str]) -> Skill | None:
    where = visible(folder.name)
    try:
        name = next(n for n in os.listdir(folder) if n.casefold() == _FILE.casefold())
        raw = _read(folder, (name,), most_bytes=_MOST_BYTES)
        matter = read_frontmatter(raw.decode("utf-8", "replace"), lenient=True)
    except (ToolError, OSError, StopIteration) as error:
        why = error.message if isinstance(error, ToolError) else type(error).__name__
        warnings.append(f"the skill {where!r} is skipped: {why}")
        return None
    notes = list(matter.warnings)
    if name != _FILE:
        notes.append(f"its file should be named {_FILE}")
    if b"\xef\xbf\xbd" not in raw and "\ufffd" in matter.body:
        notes.append("it is not UTF-8 throughout")
    fields = matter.mapping
    description = _line(fields.get("description"))
    if not description:
        warnings.append(f"the skill {where!r} is skipped: it has no description")
        return None
    if len(description) > _DESCRIPTION_CHARS:
        notes.append(f"its description has more than {_DESCRIPTION_CHARS:,} characters")
    return Skill(
        name=_name(fields.get("name"), folder, notes),
        description=description[:_SHOWN_CHARS],
        root=folder,
        origin=origin,
        body=matter.body.lstrip("\r\n"),
        **_further(fields, notes),
        warnings=tuple(notes),
    )


def _further(fields: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    compatibility = _line(fields.get("compatibility"))
    if len(compatibility) > _COMPATIBILITY_CHARS:
        notes.append(f"its compatibility has more than {_COMPATIBILITY_CHARS} characters")
    tools: Any = fields.get("allowed-tools") or ()
    metadata = json_object(fields.get("metadata"))
    if fields.get("metadata") is not None and metadata is None:
        notes.append("its metadata is no mapping")
    unknown = sorted(visible(key) for key in fields if key not in _KEYS)
    if unknown:
        notes.append(f"the format does not know its keys {', '.join(unknown[:10])}")
    return {
        "license": _line(fields.get("license")),
        "compatibility": compatibility[: 2 * _COMPATIBILITY_CHARS],
        "allowed_tools": tuple(tools.split() if isinstance(tools, str) else map(str, tools)),
        "metadata": tuple((k, _line(v)) for k, v in (metadata or {}).items()),
    }


def _line(value: object) -> str:
    return " ".join(str(value).split()) if value is not None else ""


def _name(given: object, folder: Path, notes: list[str]) -> str:
    name = _line(given)
    if not name:
        notes.append("it has no name; its folder's is used")
        name = folder.name
    elif name != folder.name:
        notes.append(f"its name {visible(name[:80])!r} is not its folder's, {folder.name!r}")
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARS:
        notes.append(
            f"a name has at most {_NAME_CHARS} lowercase letters, digits and single hyphens"
        )
    return visible(name[:_NAME_CHARS])


def _read(root: Path, parts: tuple[str, ...], *, most_bytes: int) -> bytes:
    shown = visible("/".join(parts))
    try:
        with closing(open_root(root)) as folder:
            fd = folder.open_file(parts)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ToolError(f"there is no file {shown}", code="ENOENT") from None
        raise ToolError(
            f"{shown} is not read: it is a link or closed ({error.strerror})",
            code="E_SANDBOX_VIOLATION",
        ) from None
    with open(fd, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ToolError(f"{shown} has more than {most_bytes:,} bytes", code="E_READ_LIMIT")
    return data


def _states_below(root: Path) -> Iterator[list[object]]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in inside:
            path = os.path.relpath(entry.path, root)
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    continue
                # Of a link, what it leads to: that is what would be imported.
                state = os.stat(entry.path)
            except OSError:
                yield [os.fsencode(path).hex(), "not there"]
                continue
            yield [os.fsencode(path).hex(), state.st_size, state.st_mtime_ns]


def _files_below(root: Path) -> Iterator[str]:
    waiting = [(root, "", 0)]
    count = 0
    while waiting:
        folder, shown, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in inside:
            hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
            if hidden or not is_nameable(entry.name) or looks_secret(entry.name):
                continue
            path = shown + entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST:
                    waiting.append((folder / entry.name, path + "/", depth + 1))
            elif entry.is_file(follow_symlinks=False) and path.casefold() != _FILE.casefold():
                count += 1
                yield path
                if count > _MOST_FILES:
                    return
