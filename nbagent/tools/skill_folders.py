"""Agent Skills on disk: finding their folders, reading SKILL.md leniently, opening further files.

Owns what a skill is and where it is looked for. What a model may do with one is `skills`'.
The format: https://agentskills.io/specification
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.frontmatter import read_frontmatter
from nbagent.files.mounts import Mount
from nbagent.files.names import is_nameable, looks_secret, path_parts, visible
from nbagent.files.opening import open_root

FOLDERS = (".agents/skills", ".claude/skills", ".nbagent/skills")
_OWNERS = ("given", "project", "user")
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
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill as it was found."""

    name: str
    description: str
    root: Path
    """Absolute, links resolved."""
    owner: str
    """`given`, `project` or `user`."""
    place: str
    """Its folder as the owner writes it: `~/.agents/skills/report`."""
    body: str
    """SKILL.md without its front matter."""
    compatibility: str = ""
    warnings: tuple[str, ...] = ()

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

    def files(self) -> tuple[tuple[str, ...], bool]:
        """Its files but SKILL.md, by relative path; and whether there are more."""
        regular = (
            name
            for name, path in _below(self.root, hidden=False)
            if path.is_file() and not path.is_symlink() and name.casefold() != _FILE.casefold()
        )
        found = list(islice(regular, _MOST_FILES + 1))
        return tuple(sorted(found[:_MOST_FILES])), len(found) > _MOST_FILES

    def fingerprint(self) -> list[list[object]]:
        """Names, sizes and times of its files, hidden ones too: of the first so many."""
        found = islice(_below(self.root, hidden=True), _MOST_STATES)
        return [[os.fsencode(name).hex(), *_state(path)] for name, path in found]


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """What a search found."""

    skills: tuple[Skill, ...] = ()
    """By name."""
    warnings: tuple[str, ...] = ()
    """For the person: what was skipped, and what is not as the format wants it."""

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Their folders as mounts for the file tools, read only: `@skill-NAME`."""
        made: dict[str, Mount] = {}
        for skill in self.skills:
            name = f"@skill-{re.sub(r'[^A-Za-z0-9_-]', '-', skill.name)}"[:33]
            made.setdefault(name, Mount(name, skill.root, "ro"))
        return tuple(made.values())


def find_skills(project: Path, given: Sequence[str] = ()) -> FoundSkills:
    """All skills. Of one name the given wins, then the project's, then the user's.

    Of two of the same owner the one whose folder bears the name wins, then the one found first.

    Args:
        project: the project's folder.
        given: further folders: skills, or folders of skills.

    Raises:
        UsageError: a folder that was given is not there.
    """
    warnings: list[str] = []
    seen: set[Path] = set()
    found: list[Skill] = []
    for base, limit, owner in _places(project, given):
        for folder in _skill_folders(base, limit, seen, warnings):
            place = folder.name if folder == limit else folder.relative_to(limit).as_posix()
            place = ("~/" if owner == "user" else "") + visible(place)
            skill = _load(folder, owner, place, warnings)
            found += [skill] if skill is not None else []
    found.sort(key=lambda it: (_OWNERS.index(it.owner), it.name != it.root.name))
    kept: dict[str, Skill] = {}
    for skill in found:
        first = kept.setdefault(skill.name, skill)
        if first is not skill:
            warnings.append(
                f"the skill {skill.name!r} of the {skill.owner} ({skill.place}) is hidden by the "
                f"one of the {first.owner} ({first.place})"
            )
    skills = tuple(kept[name] for name in sorted(kept))
    notes = [f"{skill.name}: {warning}" for skill in skills for warning in skill.warnings]
    return FoundSkills(skills, (*warnings, *notes))


def _places(project: Path, given: Sequence[str]) -> Iterator[tuple[Path, Path, str]]:
    """Folders to search, the folder that links must stay in, and whose they are."""
    for text in given:
        folder = Path(os.path.realpath(project / Path(text).expanduser()))
        if not folder.is_dir():
            raise UsageError(f"there is no folder {text!r} of skills; name one that is there")
        yield folder, folder, "given"
    for base, owner in ((project, "project"), (Path.home(), "user")):
        resolved = Path(os.path.realpath(base))
        for name in FOLDERS:
            yield resolved / name, resolved, owner


def _skill_folders(base: Path, limit: Path, seen: set[Path], warnings: list[str]) -> Iterator[Path]:
    """Folders with a SKILL.md. Links are followed where they stay within `limit`."""
    for number, (here, folders, names) in enumerate(os.walk(base, followlinks=True)):
        real = Path(os.path.realpath(here))
        depth = len(Path(here).relative_to(base).parts)
        below = sorted(filter(_is_entered, folders)) if depth < _DEEPEST else []
        folders.clear()
        if number >= _MOST_FOLDERS:
            warnings.append(f"only the first {_MOST_FOLDERS:,} folders of skills were searched")
            return
        if not real.is_relative_to(limit):
            warnings.append(
                f"{os.path.basename(here)!r} links out of the folder that it was found in and is "
                "skipped; name its target with --skills"
            )
        elif real not in seen:
            seen.add(real)
            if any(name.casefold() == _FILE.casefold() for name in names):
                yield real
            else:
                folders += below


def _is_entered(folder: str) -> bool:
    return not folder.startswith(".") and folder not in _NOT_ENTERED


def _below(root: Path, *, hidden: bool) -> Iterator[tuple[str, Path]]:
    """All but folders, by relative path; follows no link."""
    for here, folders, names in os.walk(root):
        at = Path(here)
        names += [name for name in folders if (at / name).is_symlink()]
        if not hidden:
            depth = len(at.relative_to(root).parts)
            folders[:] = filter(_is_shown, folders) if depth < _DEEPEST else []
            names = list(filter(_is_shown, names))
        folders.sort()
        for name in sorted(names):
            yield (at / name).relative_to(root).as_posix(), at / name


def _state(path: Path) -> tuple[object, ...]:
    try:
        # Of a link, what it leads to: that is what would be imported.
        state = path.stat()
    except OSError:
        return ("not there",)
    return (state.st_size, state.st_mtime_ns)


def _is_shown(name: str) -> bool:
    return _is_entered(name) and is_nameable(name) and not looks_secret(name)


def _load(folder: Path, owner: str, place: str, warnings: list[str]) -> Skill | None:
    where, notes = visible(folder.name), list[str]()
    try:
        name = next(n for n in os.listdir(folder) if n.casefold() == _FILE.casefold())
        raw = _read(folder, (name,), most_bytes=_MOST_BYTES)
        matter = read_frontmatter(raw.decode("utf-8", "replace"), lenient=True)
    except (ToolError, OSError, StopIteration) as error:
        why = error.message if isinstance(error, ToolError) else type(error).__name__
        warnings.append(f"the skill {where!r} is skipped: {why}")
        return None
    fields = matter.mapping
    description = _line(fields.get("description"))
    if not description:
        warnings.append(f"the skill {where!r} is skipped: it has no description")
        return None
    if name != _FILE:
        notes.append(f"its file should be named {_FILE}")
    if len(description) > _DESCRIPTION_CHARS:
        notes.append(f"its description has more than {_DESCRIPTION_CHARS:,} characters")
    unknown = sorted(visible(key) for key in fields if key not in _KEYS)
    if unknown:
        notes.append(f"the format does not know its keys {', '.join(unknown[:10])}")
    return Skill(
        name=_name(fields.get("name"), folder, notes),
        description=description[:_SHOWN_CHARS],
        root=folder,
        owner=owner,
        place=place,
        body=matter.body.lstrip("\r\n"),
        compatibility=_line(fields.get("compatibility"))[:_COMPATIBILITY_CHARS],
        warnings=(*matter.warnings, *notes),
    )


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
    except (FileNotFoundError, NotADirectoryError):
        raise ToolError(f"there is no file {shown}", code="ENOENT") from None
    except OSError as error:
        raise ToolError(
            f"{shown} is not read: it is a link or closed ({error.strerror})",
            code="E_SANDBOX_VIOLATION",
        ) from None
    with open(fd, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ToolError(f"{shown} has more than {most_bytes:,} bytes", code="E_READ_LIMIT")
    return data
