"""The table `[tool.nbagent]` of a project's `pyproject.toml`, which is a stranger's in any folder.

Limits and rules that tighten apply. A value that chooses (model, tools, system prompt, session, …)
applies only if the person allowed exactly this value; otherwise it is left out. Everything that
could reach another server, key or file, start a program or loosen a rule is ignored, and named: a
stranger's file must not stop a person's kernel. Only a limit or rule that cannot be understood, and
a file that cannot be read, are errors: one's own `deny` must not vanish by a typing error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.built_in_hosts import built_in_host
from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_name
from nbagent.settings.options import Option, Settings, checked_value
from nbagent.settings.project_items import readable
from nbagent.settings.trust import TrustItem, entry_of

PROJECT_FILE = "pyproject.toml"
_MAX_FILE_BYTES = 1_000_000
_MAX_DOTS = 400
_MAX_REASON_CHARS = 160


@dataclass(frozen=True, slots=True)
class IgnoredLine:
    """A line of a project's file that is never used, and cannot be allowed."""

    shown: str
    """The option, and its value if that is the reason."""
    why: str
    """The end of "it sets …, which"."""


@dataclass(frozen=True, slots=True)
class ProjectTable:
    """The checked values of a project's file."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that apply: they tighten, or the person allowed them."""
    items: Mapping[str, TrustItem] = field(default_factory=dict[str, TrustItem])
    """Values that need to be allowed, by option name."""
    ignored: tuple[IgnoredLine, ...] = ()
    """Lines that are never used."""

    @property
    def not_allowed(self) -> dict[str, TrustItem]:
        """Items that are left out, by option name."""
        return {name: item for name, item in self.items.items() if name not in self.values}


_tables: ContextVar[dict[Path, ProjectTable] | None] = ContextVar("_tables", default=None)
"""Tables that were read in the present `one_project_reading`, by the folder of the search."""


@contextmanager
def one_project_reading() -> Generator[None]:
    """Read the file at most once inside: a run then has one version of it."""
    token = _tables.set({})
    try:
        yield
    finally:
        _tables.reset(token)


def read_project_table(start: Path) -> ProjectTable:
    """Return the table of the nearest pyproject.toml; see `one_project_reading`.

    Raises:
        UsageError: the file cannot be read, or a limit or rule in it is not valid.
    """
    tables = _tables.get()
    if tables is None:
        return _read_project_table(start)
    if start not in tables:
        tables[start] = _read_project_table(start)
    return tables[start]


def _read_project_table(start: Path) -> ProjectTable:
    """Read the nearest pyproject.toml.

    The nearest file counts even without a table of ours: the folders above are other projects.

    Raises:
        UsageError: the file cannot be read, or a limit or rule in it is not valid.
    """
    files = (folder / PROJECT_FILE for folder in (start, *start.parents))
    file = next((file for file in files if file.is_file()), None)
    table = _table_of(file) if file else {}
    if file is None or not table:
        return ProjectTable()
    values, ignored = dict[str, Any](), list[IgnoredLine]()
    for name, value in table.items():
        checked = _checked_line(name, value)
        if isinstance(checked, IgnoredLine):
            ignored.append(checked)
        else:
            values[name] = checked
    items = {
        name: TrustItem(f"{PROJECT_FILE}: {name}", readable(value), file.parent)
        for name, value in values.items()
        if Settings.rows()[name].project == "ask"
    }
    entry = entry_of(file.parent) if items else None
    applied = {
        name: value
        for name, value in values.items()
        if name not in items or (entry and entry.allows(items[name]))
    }
    return ProjectTable(applied, items, tuple(ignored))


def _checked_line(name: str, value: Any) -> Any:
    """The value that a line sets, or why the line is ignored.

    Raises UsageError for a limit or rule that is not valid.
    """
    row = Settings.rows().get(name)
    if row is None:
        return _unknown_line(name)
    if row.project == "no":
        return IgnoredLine(name, "a project may not set")
    try:
        checked = row.checked(value, PROJECT_FILE)
    except UsageError as error:
        if row.project == "tighten":
            reason = error.message.removeprefix(f"{PROJECT_FILE}: {name}")
            reason = f"{name}{'' if reason.startswith('=') else ': '}{reason}"
            raise UsageError(f"{PROJECT_FILE}: {reason}; correct or remove the line") from None
        return IgnoredLine(name, f"is not valid ({_without_location(error, row)})")
    if word := _started_program(name, checked):
        return IgnoredLine(f"{name} {_short(word)}", "would start a program without your consent")
    return checked


def _unknown_line(name: str) -> IgnoredLine:
    """Ignore an unknown name. Raises UsageError if it may be a misspelt limit or rule."""
    nearest = nearest_name(name, Settings.rows())
    if nearest and Settings.rows()[nearest].project == "tighten":
        raise UsageError(
            f"{PROJECT_FILE}: unknown option {_short(name)}; did you mean {nearest!r}? Correct "
            "or remove the line"
        )
    hint = f" (did you mean {nearest!r}?)" if nearest else ""
    return IgnoredLine(_short(name), f"is no option{hint}")


def _without_location(error: UsageError, row: Option[Any]) -> str:
    text = " ".join(error.message.removeprefix(f"{PROJECT_FILE}: {row.name}").split())
    text = text.partition(" is not valid; ")[2] or text
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"


def _short(text: str) -> str:
    """A text of the file as a person reads it: nothing invisible, and not long."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _table_of(file: Path) -> dict[str, Any]:
    table: dict[str, Any] | None = read_toml(file)
    for key in ("tool", "nbagent"):
        table = json_object(table.get(key, {}))
        if table is None:
            raise UsageError(f"{PROJECT_FILE}: [tool.nbagent] is not a table; correct or remove it")
    return table


def _started_program(name: str, value: Any) -> str:
    """The word of a value that starts a program, as nobody is asked before a run uses it; or ""."""
    starts = {"tools": _names_server, "model": _is_local_model}.get(name)
    if starts is None:
        return ""
    words = cast("tuple[str, ...]", (value,) if isinstance(value, str) else value)
    # In any case of letters: nobody should have to know which spellings are resolved.
    return next((word for word in words if starts(word.casefold())), "")


def _names_server(word: str) -> bool:
    # `all` includes the configured servers; their tools are called `server__tool`.
    return word == "all" or built_in_host(word) == "mcp" or "__" in word.strip("_")


def _is_local_model(model: str) -> bool:
    return model.partition(":")[0] == "local"


def checked_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the values of a table. Raises UsageError that names `where` they are."""
    return {name: checked_value(name, value, where=where) for name, value in table.items()}


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file. Raises UsageError if it is not valid."""
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES:,} bytes")
        text = file.read_text("utf-8")
        # The parser takes seconds for a name of 10,000 parts.
        if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {_MAX_DOTS} dots")
        return _parse_toml(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}; correct or remove it") from None


@lru_cache(maxsize=8)
def _parse_toml(text: str) -> dict[str, Any]:
    # Cached: every run reads it, and parsing takes longer than the rest of a run's start.
    return tomllib.loads(text)
