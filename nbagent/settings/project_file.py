"""The table `[tool.nbagent]` of a project's `pyproject.toml`, which is a stranger's in any folder.

Limits and rules that tighten apply. A value that chooses (model, tools, system prompt, session, …)
applies only if the person allowed exactly this value; otherwise it is left out. Everything that
could reach another server, key or file, start a program or loosen a rule is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.built_in_hosts import built_in_host
from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.settings.options import Settings, checked_value
from nbagent.settings.project_items import readable
from nbagent.settings.trust import TrustItem, entry_of

PROJECT_FILE = "pyproject.toml"
_MAX_FILE_BYTES = 5_000_000


@dataclass(frozen=True, slots=True)
class ProjectTable:
    """The checked values of a project's file."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that apply: they tighten, or the person allowed them."""
    items: Mapping[str, TrustItem] = field(default_factory=dict[str, TrustItem])
    """Values that need to be allowed, by option name."""

    @property
    def not_allowed(self) -> dict[str, TrustItem]:
        """Items that are left out, by option name."""
        return {name: item for name, item in self.items.items() if name not in self.values}


def read_project_table(start: Path) -> ProjectTable:
    """Read the nearest pyproject.toml. Raises UsageError if it sets what a project may not set.

    The nearest file counts even without a table of ours: the folders above are other projects.
    """
    files = (folder / PROJECT_FILE for folder in (start, *start.parents))
    file = next((file for file in files if file.is_file()), None)
    table = _table_of(file) if file else {}
    if file is None or not table:
        return ProjectTable()
    rows = {name: Settings.row(name, PROJECT_FILE) for name in table}
    for name, row in rows.items():
        if row.project == "no":
            raise UsageError(
                f"{PROJECT_FILE}: {name!r} may not be set in a project's file, because the author "
                "of the project would decide about your machine, your key and your prompts; use "
                f"nbagent.configure({name}=…), {row.variables[-1]} or your own settings.toml"
            )
    values = checked_table(table, PROJECT_FILE)
    _refuse_programs(values)
    items = {
        name: TrustItem(f"{PROJECT_FILE}: {name}", readable(value), file.parent)
        for name, value in values.items()
        if rows[name].project == "ask" and value is not None
    }
    entry = entry_of(file.parent) if items else None
    applied = {
        name: value
        for name, value in values.items()
        if name not in items or (entry and entry.allows(items[name]))
    }
    return ProjectTable(applied, items)


def _table_of(file: Path) -> dict[str, Any]:
    table: dict[str, Any] | None = read_toml(file)
    for key in ("tool", "nbagent"):
        table = json_object(table.get(key, {}))
        if table is None:
            raise UsageError(f"{PROJECT_FILE}: [tool.nbagent] is not a table; correct or remove it")
    return table


def _refuse_programs(values: Mapping[str, Any]) -> None:
    """Raise UsageError for values that start a program: nobody is asked before a run uses them."""
    for name, starts in (("tools", _names_server), ("model", _is_local_model)):
        value: Any = values.get(name, ())
        for word in cast("tuple[str, ...]", (value,) if isinstance(value, str) else value):
            # In any case of letters: nobody should have to know which spellings are resolved.
            if starts(word.casefold()):
                raise UsageError(
                    f"{PROJECT_FILE}: {name} may not name {word!r}, because it would start a "
                    f"program without your consent; use the line or nbagent.configure({name}=…)"
                )


def _names_server(word: str) -> bool:
    # `all` includes the configured servers.
    return word == "all" or built_in_host(word) == "mcp"


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
        return _parse_toml(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}; correct or remove it") from None


@lru_cache(maxsize=8)
def _parse_toml(text: str) -> dict[str, Any]:
    # Cached: every run reads it, and parsing takes longer than the rest of a run's start.
    return tomllib.loads(text)
