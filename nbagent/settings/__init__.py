"""Settings and run options: plain data, and where each value came from.

Order: options of the call, then `configure`, then the environment, then files, then defaults.
Which options there are is in `table`. Keys are not among them: providers take them from the
environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact_json, register_environment
from nbagent.settings.checks import Tools
from nbagent.settings.table import (
    HIDDEN,
    Option,
    RunOptions,
    Settings,
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


def _no_overrides() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class _Configured:
    values: dict[str, Any] = field(default_factory=_no_overrides)


_configured = _Configured()


def configure(**values: Any) -> None:
    """Set values for this process; None takes one back. The twin of `%agent config`.

    Raises:
        UsageError: an unknown name, or a value out of range. Nothing is changed then.
    """
    checked = {name: checked_value(name, value) for name, value in values.items()}
    before = _configured.values
    joined = {**before, **checked}
    _configured.values = {name: value for name, value in joined.items() if value is not None}
    try:
        effective()  # two values may not go together; say so now
    except UsageError:
        _configured.values = before
        raise


def effective(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """The settings that hold now."""
    found = {origin.name: origin for origin in origins(environ, folder)}
    values = {name: origin.value for name, origin in found.items()}
    if found["max_turns"].source == "default":
        # Who lowers only the ceiling means both.
        values["max_turns"] = min(values["max_turns"], values["ceiling"])
    settings = Settings(**values)
    check_limits(settings.max_turns, settings.ceiling)
    return settings


def origins(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> list[Origin]:
    """Every setting with its value and where it came from."""
    environ = os.environ if environ is None else environ
    layers = [
        ("configure", dict(_configured.values)),
        ("environment", _from_environment(environ)),
        *_from_files(environ, folder or Path.cwd()),
    ]
    found: list[Origin] = []
    for name, row in Settings.rows().items():
        held = Origin(name, row.default, "default")
        project: Any = None
        for source, values in layers:
            if name in values and source == _PROJECT and row.project == "tighten":
                project = values[name]
            elif name in values:
                held = Origin(name, values[name], source)
                break
        found.append(held if project is None else _tightened(held, project))
    return _each_with_its_server(found, layers)


def _each_with_its_server(
    found: list[Origin], layers: list[tuple[str, dict[str, Any]]]
) -> list[Origin]:
    """What was said for one provider's server goes to no other that a stronger layer names."""
    model = next(origin for origin in found if origin.name == "model")
    sources = [source for source, _ in layers]
    kept: list[Origin] = []
    for origin in found:
        if model.value and Settings.row(origin.name).server and origin.source in sources:
            # Whom it was meant for: the model of its own layer or of a weaker one of the person's.
            own = layers[sources.index(origin.source) :]
            meant = [v["model"] for source, v in own if source != _PROJECT and v.get("model")]
            if not meant and model.source == _PROJECT:
                meant = ["openai:"]
            if meant and provider_of(meant[0]) != provider_of(model.value):
                origin = Origin(origin.name, Settings.row(origin.name).default, "default")
        kept.append(origin)
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
    return Path(chosen).expanduser() if chosen else _first_folder() / ".nbagent"


def project_folder() -> Path:
    """The folder that `@project` is: where the process began, a kernel's beside its notebook."""
    return _first_folder()


@cache
def _first_folder() -> Path:
    # A kernel starts beside its notebook; a later os.chdir must not split the history in two.
    return Path.cwd()


def check_limits(max_turns: int, ceiling: int) -> None:
    """Raise UsageError when the ceiling would end a run before its limit pauses it."""
    if max_turns > ceiling:
        raise UsageError(
            f"max_turns={max_turns} is larger than the ceiling of {ceiling} requests; "
            f"lower it, or raise the ceiling with nbagent.configure(ceiling={max_turns})"
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


def _from_files(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            table = _table(file, "tool", "nbagent")
            for name, value in table.items():
                _check_may_set(name, value)
            yield _PROJECT, _checked_table(table, _PROJECT)
            break
    base = environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else Path.home() / ".config"
    user_file = config / "nbagent" / "settings.toml"
    if user_file.is_file():
        yield "settings.toml", _checked_table(_table(user_file), "settings.toml")


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


def _table(file: Path, *keys: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}; mend or remove it") from None
    for key in keys:
        found: Any = table.get(key, {})
        if not isinstance(found, dict):
            raise UsageError(f"{file.name}: [{'.'.join(keys)}] is no table; mend or remove it")
        table = cast("dict[str, Any]", found)
    return table


def _checked_table(table: dict[str, Any], where: str) -> dict[str, Any]:
    return {name: checked_value(name, value, where=where) for name, value in table.items()}


def without_secrets(options: RunOptions) -> RunOptions:
    """The options with every key that is known hidden, but in what is for the server alone."""
    register_environment()
    rows = RunOptions.rows()
    given = {name: value for name, value in options.given.items() if not rows[name].server}
    return options.changed(**redact_json(given))
