"""Settings and run options: plain data, and where each value came from.

Order: options of the call, `configure`, the environment, the person's settings.toml, the
project's pyproject.toml, defaults. A project's file may be a stranger's: of the limits it only
tightens what holds without it. Which options there are is in `table`. Keys are not among them:
providers take them from the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact_json, register_environment
from nbagent.settings.checks import Tools
from nbagent.settings.table import (
    HIDDEN,
    Option,
    RunOptions,
    Settings,
    Values,
    checked_value,
    hide_keys,
    refuse_key,
)

__all__ = [
    "HIDDEN",
    "Option",
    "Origin",
    "RunOptions",
    "Settings",
    "Tools",
    "begun_anew",
    "check_limits",
    "checked_value",
    "configure",
    "effective",
    "hide_keys",
    "origins",
    "project_folder",
    "provider_of",
    "refuse_key",
    "store_home",
    "without_secrets",
]

V = TypeVar("V", bound=Values)
_PROJECT = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Origin:
    """One effective value and where it came from."""

    name: str
    value: Any = field(repr=False)
    source: str

    @property
    def shown(self) -> Any:
        """The value without what is secret in it."""
        return Settings.row(self.name).shown(self.value)


_Layers = list[tuple[str, dict[str, Any]]]
"""Where values came from, and the values; the strongest first."""
_configured: dict[str, Any] = {}
_start: list[Path] = []
"""The folder where this process began."""


def configure(**values: Any) -> None:
    """Set values for this process; None takes one back. The twin of `%agent config`.

    Raises:
        UsageError: an unknown name, or a value out of range. Nothing is changed then.
    """
    checked = {name: checked_value(name, value) for name, value in values.items()}
    before = _configured.copy()
    _configured.update(checked)
    for name in [name for name, value in _configured.items() if value is None]:
        del _configured[name]
    try:
        effective()  # two values may not go together; say so now
    except UsageError:
        _configured.clear()
        _configured.update(before)
        raise


def effective(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """The settings that hold now."""
    held = {origin.name: origin for origin in origins(environ, folder)}
    values = {name: origin.value for name, origin in held.items()}
    if held["max_turns"].source == "default" or _PROJECT in held["ceiling"].source:
        # Who lowers only the ceiling means both.
        values["max_turns"] = min(values["max_turns"], values["ceiling"])
    check_limits(values["max_turns"], values["ceiling"])
    return Settings(**values)


def origins(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> list[Origin]:
    """Every setting with its value and where it came from."""
    environ = os.environ if environ is None else environ
    layers = _for_one_server(
        [
            ("configure", dict(_configured)),
            ("environment", _from_environment(environ)),
            ("settings.toml", _from_person(environ)),
            (_PROJECT, _from_project(folder or Path.cwd())),
        ]
    )
    *own, (_, project) = layers
    held: list[Origin] = []
    for name, row in Settings.rows().items():
        tightens = row.project == "tighten"
        values = own if tightens else layers
        given = (Origin(name, layer[name], source) for source, layer in values if name in layer)
        origin = next(given, Origin(name, row.default, "default"))
        held.append(_tightened(origin, project[name]) if tightens and name in project else origin)
    return held


def _for_one_server(layers: _Layers) -> _Layers:
    """The layers without what was said for another provider's server than the model's."""
    named = [(source, values["model"]) for source, values in layers if values.get("model")]
    if not named:
        return layers
    chosen_by, model = named[0]
    kept: _Layers = []
    for place, (source, values) in enumerate(layers):
        # Whom it was meant for: the model of its own layer or of a weaker one of the person's.
        persons = [below for where, below in layers[place:] if where != _PROJECT]
        weaker = [below["model"] for below in persons if below.get("model")]
        meant = weaker[0] if weaker else "openai:" if chosen_by == _PROJECT else model
        if provider_of(meant) != provider_of(model):
            values = {name: it for name, it in values.items() if not Settings.row(name).server}
        kept.append((source, values))
    return kept


def provider_of(model: str) -> str:
    """The provider in a model id; a bare name means an OpenAI-compatible server."""
    name, colon, _ = model.partition(":")
    return name if colon else "openai"


def _tightened(held: Origin, project: Any) -> Origin:
    """What holds for the person, and what a project's file adds to it."""
    if isinstance(project, tuple):
        rules = cast("tuple[str, ...]", project)
        value: Any = (*held.value, *(text for text in rules if text not in held.value))
    else:
        value = project if held.value is None else min(held.value, project)
    if value == held.value:
        return held
    source = _PROJECT if held.source == "default" else f"{held.source} and {_PROJECT}"
    return Origin(held.name, value, source)


def store_home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the store: `NBAGENT_HOME`, else `.nbagent` beside the notebook."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("NBAGENT_HOME")
    return Path(chosen).expanduser() if chosen else project_folder() / ".nbagent"


def project_folder() -> Path:
    """The folder that `@project` is: where the process began, a kernel's beside its notebook."""
    # A kernel starts beside its notebook; a later os.chdir must not split the history in two.
    if not _start:
        _start.append(Path.cwd())
    return _start[0]


@contextmanager
def begun_anew() -> Generator[None]:
    """Within: nothing is configured, and the process began in the present folder. For tests."""
    before, start = _configured.copy(), _start.copy()
    _configured.clear()
    _start.clear()
    try:
        yield
    finally:
        _configured.clear()
        _configured.update(before)
        _start[:] = start


def check_limits(max_turns: int, ceiling: int) -> None:
    """Raise UsageError when the ceiling would end a run before its limit pauses it."""
    if max_turns > ceiling:
        by_project = any(_PROJECT in it.source for it in origins() if it.name == "ceiling")
        own = f"with nbagent.configure(ceiling={max_turns})"
        raise UsageError(
            f"max_turns={max_turns} is larger than the ceiling of {ceiling} requests; lower it, or "
            f"raise the ceiling {f'in {_PROJECT}, which sets it' if by_project else own}"
        )


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, row in Settings.rows().items():
        for variable in row.variables:
            text = environ.get(variable, "").strip()
            if text:
                values[name] = row.checked(text, variable)
                break
    return values


def _from_person(environ: Mapping[str, str]) -> dict[str, Any]:
    base = environ.get("XDG_CONFIG_HOME")
    file = (Path(base) if base else Path.home() / ".config") / "nbagent" / "settings.toml"
    return _checked_table(_table(file), file.name) if file.is_file() else {}


def _from_project(folder: Path) -> dict[str, Any]:
    for file in (parent / _PROJECT for parent in (folder, *folder.parents)):
        if file.is_file():
            table = _table(file, "tool", "nbagent")
            for name, value in table.items():
                _check_may_set(name, value)
            return _checked_table(table, _PROJECT)
    return {}


def _check_may_set(name: str, value: Any) -> None:
    """Raise UsageError for what a project's file may not say: it may be a stranger's project."""
    row = Settings.row(name, _PROJECT)
    if row.project == "no":
        why = (
            "your key and your words could go elsewhere"
            if row.server
            else "who wrote the project would decide about your machine and your runs"
        )
        raise UsageError(
            f"{_PROJECT}: {name!r} may not be set in a project's file, because {why}; use "
            f"nbagent.configure({name}=…), {row.variables[-1]} or your own settings.toml"
        )
    texts: Any = value.replace(",", " ").split() if isinstance(value, str) else value
    for text in cast("list[Any]", texts) if isinstance(texts, list) else ():
        starts = isinstance(text, str) and text.partition(":")[0]
        if (name == "tools" and (starts == "mcp" or "__" in str(text))) or (
            name == "model" and starts == "local"
        ):
            raise UsageError(
                f"{_PROJECT}: {name} may not name {text!r}, because a program would be started "
                f"without your saying so; name it on the line or with nbagent.configure({name}=…)"
            )


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, Any]:
    # Asked for by every run; parsing a project's file takes longer than the rest of its start.
    return tomllib.loads(text)


def _table(file: Path, *keys: str) -> dict[str, Any]:
    try:
        table = _parsed(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}; mend or remove it") from None
    for key in keys:
        below: Any = table.get(key, {})
        if not isinstance(below, dict):
            raise UsageError(f"{file.name}: [{'.'.join(keys)}] is no table; mend or remove it")
        table = cast("dict[str, Any]", below)
    return table


def _checked_table(table: dict[str, Any], where: str) -> dict[str, Any]:
    return {name: checked_value(name, value, where=where) for name, value in table.items()}


def without_secrets(values: V) -> V:
    """The values with every key that is known hidden, but in what is for the server alone."""
    register_environment()
    rows = values.rows()
    given = {name: value for name, value in values.given.items() if not rows[name].server}
    return values.changed(**redact_json(given))
