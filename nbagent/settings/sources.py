"""Where option values come from: the call, `configure`, environment, files, defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact_json, register_environment
from nbagent.settings.options import Option, RunOptions, Settings, checked_value

V = TypeVar("V", RunOptions, Settings)


_PROJECT = "pyproject.toml"


_STARTS_A_PROGRAM = {
    "tools": re.compile(r"all$|mcp(:|$)|.*__", re.DOTALL),
    "model": re.compile(r"local(:|$)"),
}
"""What a project's file may not name."""


_configured: dict[str, Any] = {}


_held: ContextVar[Settings | None] = ContextVar("nbagent_settings", default=None)


_start: Path | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The value of a setting, and where it came from."""

    value: Any = field(repr=False)  # it may be secret
    source: str = "default"


def configure(**values: Any) -> None:
    """Set values for this process; None takes one back. The twin of `%agent config`.

    UsageError for an unknown name or a value out of range; nothing is changed then.
    """
    global _configured
    before = _configured
    now = before | {name: checked_value(name, value) for name, value in values.items()}
    _configured = {name: value for name, value in now.items() if value is not None}
    try:
        effective()  # two values may not go together; say so now
    except UsageError:
        _configured = before
        raise


def effective() -> Settings:
    """The settings that hold now."""
    elsewhere = _held.get()
    if elsewhere is not None:
        return elsewhere
    held = origins()
    values = {name: origin.value for name, origin in held.items()}
    if held["max_turns"].source == "default" or _PROJECT in held["ceiling"].source:
        # Who lowers only the ceiling means both.
        values["max_turns"] = min(values["max_turns"], values["ceiling"])
    check_limits(values["max_turns"], values["ceiling"])
    return Settings(**values)


@contextmanager
def holding(settings: Settings) -> Generator[None]:
    """Within, and in the runs that begin within, these hold: those of another process."""
    token = _held.set(settings)
    try:
        yield
    finally:
        _held.reset(token)


def origins() -> dict[str, Origin]:
    """Every setting by its name."""
    project = _from_project()
    held: dict[str, Origin] = {}
    for source, values in (
        ("settings.toml", _from_person()),
        ("environment", _from_environment()),
        ("configure", _configured),
    ):
        if "model" in values and "model" in held:
            held = _for_server_of(values["model"], held, meant=held["model"].value)
        held |= {name: Origin(value, source) for name, value in values.items()}
    if "model" in project and "model" not in held:
        held = _for_server_of(project["model"], held, meant="openai:")
    return {
        name: _with_project(held.get(name) or Origin(row.default), row, project)
        for name, row in Settings.rows().items()
    }


def _for_server_of(model: str, held: dict[str, Origin], meant: str) -> dict[str, Origin]:
    """What is held, without what was meant for the server of another provider."""
    if provider_of(model) == provider_of(meant):
        return held
    rows = Settings.rows()
    return {name: origin for name, origin in held.items() if not rows[name].server}


def provider_of(model: str) -> str:
    """The provider in a model id; a bare name means an OpenAI-compatible server."""
    name, colon, _ = model.partition(":")
    return name if colon else "openai"


def _with_project(held: Origin, row: Option[Any], project: Mapping[str, Any]) -> Origin:
    """What holds for the person, and what a project's file says: below it, or tighter."""
    if row.name not in project:
        return held
    value: Any = project[row.name]
    if row.project != "tighten":
        return Origin(value, _PROJECT) if held.source == "default" else held
    if isinstance(value, tuple):
        value = tuple(dict.fromkeys((*held.value, *cast("tuple[str, ...]", value))))
    elif held.value is not None:
        value = min(held.value, value)
    if value == held.value:
        return held
    source = _PROJECT if held.source == "default" else f"{held.source} and {_PROJECT}"
    return Origin(value, source)


def check_limits(max_turns: int, ceiling: int) -> None:
    """Raise UsageError when the ceiling would end a run before its limit pauses it."""
    if max_turns > ceiling:
        raise UsageError(
            f"max_turns={max_turns} is larger than the ceiling of {ceiling} requests; lower it, or "
            f"raise the ceiling with nbagent.configure(ceiling={max_turns}), and in {_PROJECT} "
            "where that sets one"
        )


def store_home() -> Path:
    """The folder of the store: `NBAGENT_HOME`, else `.nbagent` beside the notebook."""
    chosen = os.environ.get("NBAGENT_HOME")
    return path_of(chosen, "NBAGENT_HOME") if chosen else project_folder() / ".nbagent"


def path_of(given: Any, name: str) -> Path:
    """The path that somebody gave. Raises UsageError where it can be none."""
    try:
        return Path(given).expanduser()
    except (TypeError, RuntimeError) as error:  # a number; the home of nobody
        raise UsageError(f"{name}={given!r} is no path ({error}); give a folder or file") from None


def project_folder() -> Path:
    """The folder that `@project` is: where the process began, a kernel's beside its notebook."""
    global _start
    # A kernel starts beside its notebook; a later os.chdir must not split the history in two.
    if _start is None:
        _start = _working_folder()
    return _start


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working folder was deleted; os.chdir to another one") from None


@contextmanager
def begun_anew() -> Generator[None]:
    """Within: nothing is configured, and the process began in the present folder. For tests."""
    global _configured, _start
    before = _configured, _start
    _configured, _start = {}, None
    try:
        yield
    finally:
        _configured, _start = before


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, row in Settings.rows().items():
        for variable in row.variables:
            if text := os.environ.get(variable, "").strip():
                values[name] = row.checked(text, variable)
                break
    return values


def _from_person() -> dict[str, Any]:
    base = os.environ.get("XDG_CONFIG_HOME")
    file = (Path(base) if base else Path.home() / ".config") / "nbagent" / "settings.toml"
    return _checked(_parsed(file), file.name) if file.is_file() else {}


def _from_project() -> dict[str, Any]:
    """What the nearest project's file says, as far as a stranger's may say it."""
    here = _working_folder()
    files = (folder / _PROJECT for folder in (here, *here.parents))
    file = next((file for file in files if file.is_file()), None)
    table: dict[str, Any] | None = _parsed(file) if file else {}
    for key in ("tool", "nbagent"):
        table = json_object(table.get(key, {}))
        if table is None:
            raise UsageError(f"{_PROJECT}: [tool.nbagent] is no table; mend or remove it")
    for name in table:
        row = Settings.row(name, _PROJECT)
        if row.project == "no":
            raise UsageError(
                f"{_PROJECT}: {name!r} may not be set in a project's file, because who wrote the "
                "project would decide about your machine, your key and your words; use "
                f"nbagent.configure({name}=…), {row.variables[-1]} or your own settings.toml"
            )
    values = _checked(table, _PROJECT)
    for name, forbidden in _STARTS_A_PROGRAM.items():
        given: Any = values.get(name, ())
        for word in cast("tuple[str, ...]", (given,) if isinstance(given, str) else given):
            if forbidden.match(word):
                raise UsageError(
                    f"{_PROJECT}: {name} may not name {word!r}, because a program would be started "
                    f"without your saying so; use the line or nbagent.configure({name}=…)"
                )
    return values


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return _parsed_text(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}; mend or remove it") from None


@lru_cache(maxsize=8)
def _parsed_text(text: str) -> dict[str, Any]:
    # Asked for by every run; parsing a project's file takes longer than the rest of its start.
    return tomllib.loads(text)


def _checked(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: checked_value(name, value, where=where) for name, value in table.items()}


def without_secrets(values: V) -> V:
    """The values with every key that is known hidden, but in what is for the server alone."""
    register_environment()
    rows = values.rows()
    given = {name: value for name, value in values.given.items() if not rows[name].server}
    return values.changed(**redact_json(given))
