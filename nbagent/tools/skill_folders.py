"""Agent Skills on disk: finding their folders, reading SKILL.md leniently, opening further files.

Owns what a skill is and where it is looked for. What a model may do with one is `skills`'.
The format: https://agentskills.io/specification
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.frontmatter import read_frontmatter
from nbagent.files.mounts import Mount, Mounts
from nbagent.files.names import is_nameable, looks_secret, visible
from nbagent.files.writing import read_state
from nbagent.shown.texts import without_folders

FOLDERS = (".agents/skills", ".claude/skills", ".nbagent/skills")
_FILE = "SKILL.md"
_DEEPEST = 6
_MOST_FOLDERS = 2_000
_MOST_FILES = 500
_MOST_STATES = 1_000
_MOST_BYTES = 2_000_000
_NAME_CHARS, _DESCRIPTION_CHARS = 64, 2_000
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill as it was found."""

    name: str
    description: str
    mount: Mount
    """Its folder as it was found: one that is swapped for a link later is not followed."""
    body: str
    """SKILL.md without its front matter."""

    @property
    def root(self) -> Path:
        """Its folder, absolute, links resolved."""
        return self.mount.root

    def read(self, file: str, *, most_bytes: int) -> bytes:
        """A file of the skill; ToolError where it is not there, too large or kept from models."""
        data = _read(self.mount, file, most_bytes=most_bytes)
        if looks_secret(file):
            why = f"{visible(file)} looks like it holds a secret and is not read; ask the person"
            raise ToolError(why, code="E_DENIED")
        return data

    def files(self) -> list[str]:
        """Its files but SKILL.md, by relative path: of very many the first ones."""
        regular = (
            name
            for name, path in _below(self.root)
            if path.is_file() and not path.is_symlink() and name != _FILE and _is_shown(name)
        )
        return sorted(islice(regular, _MOST_FILES))

    def fingerprint(self) -> list[list[object]]:
        """Names, sizes and times of its files, hidden ones too: of the first so many."""
        found = islice(_below(self.root), _MOST_STATES)
        return [[os.fsencode(name).hex(), *_state(path)] for name, path in found]


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """What a search found."""

    skills: tuple[Skill, ...] = ()
    """By name."""
    warnings: tuple[str, ...] = ()
    """For the person: what was skipped or is hidden, and what is not as the format wants it."""


def find_skills(project: Path, given: Sequence[str] = ()) -> FoundSkills:
    """All skills. Of one name the given wins, then the project's, then the user's.

    What is `given` is a skill or a folder of skills; UsageError where it is not there.
    """
    warnings: list[str] = []
    seen: set[Path] = set()
    kept: dict[str, Skill] = {}
    for base, limit in _places(project, given):
        for folder in _skill_folders(base, limit, seen, warnings):
            skill = _load(folder, warnings)
            if skill is None:
                continue
            first = kept.setdefault(skill.name, skill)
            if first is not skill:
                places = [visible(without_folders(str(one.root))) for one in (skill, first)]
                hidden = f"the skill {skill.name!r} in {places[0]}"
                warnings.append(f"{hidden} is hidden by the one in {places[1]}")
    return FoundSkills(tuple(kept[name] for name in sorted(kept)), tuple(warnings))


def _places(project: Path, given: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Folders to search, and the folder that links must stay in."""
    for text in given:
        folder = Path(os.path.realpath(project / Path(text).expanduser()))
        if not folder.is_dir():
            raise UsageError(f"there is no folder {text!r} of skills; name one that is there")
        yield folder, folder
    for base in (project, Path.home()):
        resolved = Path(os.path.realpath(base))
        for name in FOLDERS:
            yield resolved / name, resolved


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
            if _FILE in names:
                yield real
            else:
                folders += below


def _is_entered(folder: str) -> bool:
    return not folder.startswith(".") and folder not in _NOT_ENTERED


def _is_shown(name: str) -> bool:
    """Whether the model may know of a file, by its path below the skill."""
    parts = name.split("/")
    shown = (_is_entered(part) and is_nameable(part) and not looks_secret(part) for part in parts)
    return len(parts) <= _DEEPEST + 1 and all(shown)


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    """All but folders, by relative path; follows no link."""
    for here, folders, names in os.walk(root):
        folders.sort()
        at = Path(here)
        for name in sorted([*names, *(name for name in folders if (at / name).is_symlink())]):
            yield (at / name).relative_to(root).as_posix(), at / name


def _state(path: Path) -> tuple[object, ...]:
    try:
        # Of a link, what it leads to: that is what would be imported.
        state = path.stat()
    except OSError:
        return ("not there",)
    return (state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _load(folder: Path, warnings: list[str]) -> Skill | None:
    mount = Mount("@skill", folder)
    try:
        raw = _read(mount, _FILE, most_bytes=_MOST_BYTES)
        matter = read_frontmatter(raw.decode("utf-8", "replace"))
        fields = matter.mapping
        description = _line(fields.get("description"))
        if not description:
            raise ToolError("it has no description")
    except ToolError as error:
        warnings.append(f"the skill {visible(folder.name)!r} is skipped: {error.message}")
        return None
    name = visible(_line(fields.get("name"))[:_NAME_CHARS]) or folder.name
    warnings += [f"the skill {name!r}: {warning}" for warning in matter.warnings]
    return Skill(
        name=name,
        description=description[:_DESCRIPTION_CHARS],
        mount=mount,
        body=matter.body.lstrip("\r\n"),
    )


def _line(value: object) -> str:
    return " ".join(str(value).split()) if value is not None else ""


def _read(mount: Mount, file: str, *, most_bytes: int) -> bytes:
    data = read_state(Mounts([mount]).place(f"{mount.name}/{file}")).data
    if data is None:
        raise ToolError(f"there is no file {visible(file)}", code="ENOENT")
    if len(data) > most_bytes:
        raise ToolError(f"{visible(file)} has more than {most_bytes:,} bytes", code="E_READ_LIMIT")
    return data
