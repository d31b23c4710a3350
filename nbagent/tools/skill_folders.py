"""Agent Skills on disk: find their folders, read SKILL.md leniently, open further files.

Owns the `Skill` value and the folders that are searched. The tools for models are in `skills`.
The format: https://agentskills.io/specification
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbagent.contracts.errors import ToolError, UsageError, describe_error
from nbagent.files.frontmatter import read_frontmatter
from nbagent.files.mounts import Mount, Mounts, chosen_folder
from nbagent.files.names import is_nameable, looks_secret, visible
from nbagent.files.writing import read_state
from nbagent.settings.sources import private_folders
from nbagent.shown.texts import without_folders

FOLDERS = (".agents/skills", ".claude/skills", ".nbagent/skills")
"""The folders that clients of Agent Skills share, Claude Code's, and nbagent's own."""
SKILL_FILE = "SKILL.md"
"""As the format writes it; other capital letters (`skill.md`) are read, too."""
# Other clients of Agent Skills search 4 to 6 levels and at most 2,000 folders.
_MAX_DEPTH = 6
_MAX_FOLDERS = 2_000
_MISNAMED = re.compile(r"\s*skills?\s*(?:\.(?:md|mdx|mkd|markdown|txt|rst))*\s*", re.IGNORECASE)
_MAX_LISTED_FILES = 500
_MAX_SKILL_BYTES = 2_000_000
# The format allows 64 and 1,024; some published skills have a longer description.
_NAME_CHARS, _DESCRIPTION_CHARS = 64, 2_000
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill as it was found."""

    name: str
    description: str
    mount: Mount
    """Its folder, links resolved. If it is replaced by a link later, the link is not followed."""
    body: str
    """SKILL.md without its front matter."""
    file: str = SKILL_FILE
    """Name of its SKILL.md."""

    @property
    def root(self) -> Path:
        """Its folder, absolute, links resolved."""
        return self.mount.root

    def read(self, file: str, *, max_bytes: int, limit: str = "") -> bytes:
        """Read a file; raise ToolError if it is missing, too large or its name looks secret.

        `limit` is the option that sets `max_bytes`, if one does.
        """
        data = _read_file(self.mount, file, max_bytes=max_bytes, limit=limit)
        if looks_secret(file):
            why = f"{visible(file)} looks like it holds a secret and is not read; ask the person"
            raise ToolError(why, code="E_DENIED")
        return data

    def files(self) -> list[str]:
        """List its files without SKILL.md by relative path, at most 500."""
        regular = (
            name
            for name, path in _files_below(self.root)
            if path.is_file() and not path.is_symlink() and name != self.file and _is_listed(name)
        )
        return sorted(islice(regular, _MAX_LISTED_FILES))


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """Result of a search."""

    skills: tuple[Skill, ...] = ()
    """Sorted by name."""
    warnings: tuple[str, ...] = ()
    """For the person: skipped and hidden skills, and violations of the format."""


def find_skills(project: Path, extra_folders: Sequence[str] = ()) -> FoundSkills:
    """Find all skills. Of two with one name, extra folders win, then the project, then the user.

    Each of `extra_folders` is a skill or a folder of skills; a missing one raises UsageError.
    """
    warnings: list[str] = []
    visited: set[Path] = set()
    skills_by_name: dict[str, Skill] = {}
    private = [chosen_folder(folder) for folder in private_folders()]
    for base, limit in _search_roots(project, extra_folders):
        for folder in _skill_folders(base, limit, visited, warnings):
            # A script reads its whole skill.
            if any(p.is_relative_to(folder) or folder.is_relative_to(p) for p in private):
                warnings.append(
                    f"the skill in {visible(without_folders(str(folder)))} is skipped: nbagent "
                    "keeps your trust or your runs there; move the skill to a folder of its own"
                )
                continue
            skill = _load_skill(folder, warnings)
            if skill is None:
                continue
            first = skills_by_name.setdefault(skill.name, skill)
            if first is not skill:
                paths = [
                    visible(without_folders(str(duplicate.root))) for duplicate in (skill, first)
                ]
                hidden = f"the skill {skill.name!r} in {paths[0]}"
                warnings.append(f"{hidden} is hidden by the one in {paths[1]}")
    return FoundSkills(
        tuple(skills_by_name[name] for name in sorted(skills_by_name)), tuple(warnings)
    )


def _search_roots(project: Path, extra_folders: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Yield folders to search, each with the folder that links must stay inside."""
    for text in extra_folders:
        folder = Path(os.path.realpath(project / Path(text).expanduser()))
        if not folder.is_dir():
            raise UsageError(f"the skills folder {text!r} does not exist; correct --skills")
        yield folder, folder
    for base in (project, Path.home()):
        resolved = Path(os.path.realpath(base))
        for name in FOLDERS:
            yield resolved / name, resolved


def _skill_folders(
    base: Path, limit: Path, visited: set[Path], warnings: list[str]
) -> Iterator[Path]:
    """Yield folders with a SKILL.md. Links are followed only if they stay within `limit`."""
    for number, (here, folders, names) in enumerate(os.walk(base, followlinks=True)):
        real = Path(os.path.realpath(here))
        depth = len(Path(here).relative_to(base).parts)
        below = sorted(filter(_is_entered, folders)) if depth < _MAX_DEPTH else []
        folders.clear()
        if number >= _MAX_FOLDERS:
            warnings.append(f"only the first {_MAX_FOLDERS:,} folders of skills were searched")
            return
        if not real.is_relative_to(limit):
            warnings.append(
                f"{os.path.basename(here)!r} links out of the folder that it was found in and is "
                "skipped; name its target with --skills"
            )
        # `visited` also ends loops of links.
        elif real not in visited:
            visited.add(real)
            if skill_file_in(names):
                yield real
            else:
                warnings += _misnamed_files(real, names)
                # `os.walk` enters the folders in this list; a skill in a skill is not searched for.
                folders += below


def skill_file_in(names: Iterable[str]) -> str:
    """Return the name of a folder's SKILL.md; empty if it has none.

    Some people write `skill.md`. On a file system that ignores case both are one file.
    """
    files = sorted(name for name in names if name.casefold() == SKILL_FILE.casefold())
    return files[0] if files else ""  # capital letters come first


def _misnamed_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Name the files that were probably meant as a SKILL.md, such as `SKILLS.md`."""
    return [
        f"the folder {visible(folder.name)!r} has no skill: rename {visible(name)} to {SKILL_FILE}"
        for name in sorted(names)
        if _MISNAMED.fullmatch(name)
    ]


def _is_entered(folder: str) -> bool:
    return not folder.startswith(".") and folder not in _SKIPPED_FOLDERS


def _is_listed(name: str) -> bool:
    """True if the model may know of a file, by its path below the skill."""
    parts = name.split("/")
    shown = (_is_entered(part) and is_nameable(part) and not looks_secret(part) for part in parts)
    return len(parts) <= _MAX_DEPTH + 1 and all(shown)


def _files_below(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield everything except folders, by relative path; links are not followed."""
    for here, folders, names in os.walk(root):
        folders.sort()
        folder = Path(here)
        for name in sorted([*names, *(name for name in folders if (folder / name).is_symlink())]):
            yield (folder / name).relative_to(root).as_posix(), folder / name


def _load_skill(folder: Path, warnings: list[str]) -> Skill | None:
    mount = Mount("@skill", folder)
    try:
        file = skill_file_in(os.listdir(folder)) or SKILL_FILE
        raw = _read_file(mount, file, max_bytes=_MAX_SKILL_BYTES)
        matter = read_frontmatter(raw.decode("utf-8", "replace"))
        fields = matter.mapping
        description = _single_line(fields.get("description"))
        if not description:
            raise ToolError("it has no description")
    except ToolError as error:
        warnings.append(f"the skill {visible(folder.name)!r} is skipped: {error.message}")
        return None
    except OSError as error:
        warnings.append(f"the skill {visible(folder.name)!r} is skipped: {describe_error(error)}")
        return None
    name = visible(_single_line(fields.get("name"))[:_NAME_CHARS]) or folder.name
    warnings += [f"the skill {name!r}: {warning}" for warning in matter.warnings]
    if file != SKILL_FILE:
        warnings.append(f"the skill {name!r}: rename {file} to {SKILL_FILE}; others do not find it")
    return Skill(
        name=name,
        description=description[:_DESCRIPTION_CHARS],
        mount=mount,
        body=matter.body.lstrip("\r\n"),
        file=file,
    )


def _single_line(value: object) -> str:
    return " ".join(str(value).split()) if value is not None else ""


def _read_file(mount: Mount, file: str, *, max_bytes: int, limit: str = "") -> bytes:
    data = read_state(Mounts([mount]).locate(f"{mount.name}/{file}")).data
    if data is None:
        raise ToolError(f"there is no file {visible(file)}", code="ENOENT")
    if len(data) > max_bytes:
        how = f"ask the person to raise it with nbagent.configure({limit}=…)"
        what = f"the limit ({limit}); {how}" if limit else "the fixed limit; make it smaller"
        why = f"{visible(file)} has more than {max_bytes:,} bytes, {what}"
        raise ToolError(why, code="E_READ_LIMIT")
    return data
