"""Settings and run options: plain data, and where each value came from.

Order: options of the call, then `configure`, then the environment, then files, then defaults.
Keys are not settings: providers take them from the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Isolation, ToolLimits, ToolPolicy
from nbagent.contracts.secrets import redact_json, register_environment
from nbagent.settings.checks import (
    CHECKS,
    Tools,
    checked_policy,
    checked_value,
    sequences,
)

__all__ = [
    "Origin",
    "RunOptions",
    "Settings",
    "Tools",
    "check_limits",
    "checked_options",
    "checked_value",
    "configure",
    "effective",
    "origins",
    "project_folder",
    "store_home",
    "without_secrets",
]


_LIMITS = ToolLimits()


class _Shown:
    """Shows itself without the keys that are known."""

    __slots__ = ()

    def __repr__(self) -> str:
        given = cast("Any", self)
        texts = (f"{f.name}={redact_json(getattr(self, f.name))!r}" for f in fields(given))
        return f"{type(self).__name__}({', '.join(texts)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunOptions(_Shown):
    """What a person asks for one run. None means: as the settings say.

    The magic, the panel and Python all end in these and in the same call.
    """

    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: Tools | None = None
    tool_choice: str | None = None
    max_turns: int | None = None
    ceiling: int | None = None
    loop_limit: int | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    reasoning: str | None = None
    timeout_s: float | None = None
    trim: str | None = None
    """`tool-results`: shorten old ones when a request is too large. `none`: never."""
    mounts: tuple[str, ...] | None = None
    """Folders that file tools may use beside the project's: `data=path:ro`, `out=path:rw`."""
    skills: tuple[str, ...] | None = None
    """Folders of skills beside the project's and the person's own."""
    policy: ToolPolicy | None = None
    """What this agent may do; it can only tighten what the settings say."""
    cache: str | None = None
    """`auto`, `replay`, `refresh`: answer from a record. `off`: ask, and record nothing."""
    cassette: str | None = None
    """The JSON Lines file to record in and answer from."""
    session: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    stream: bool | None = None
    quiet: bool = False
    raw: bool = False
    echo: bool | None = None
    """Print events as plain lines where there is no front end."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings(_Shown):
    """The values that hold when a call says nothing."""

    model: str | None = None
    """None: the first of the environment's providers that can work, else `offline:demo`."""
    base_url: str | None = None
    system: str | None = None
    tools: Tools | None = None
    """None: the notebook's own `@nbagent.tool` functions."""
    max_turns: int = 20
    ceiling: int = 50
    loop_limit: int = 3
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    reasoning: str | None = None
    timeout_s: float = 600.0
    trim: str = "none"
    """`tool-results`: old ones are sent shortened once a request was too large for the model."""
    mounts: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """Calls that nobody is asked about: patterns such as `fs.write(path=@project/out/*)`."""
    ask: tuple[str, ...] = ()
    """Calls that somebody has to approve."""
    deny: tuple[str, ...] = ()
    """Calls that are refused."""
    hide: tuple[str, ...] = ()
    """Tools that a model is not shown."""
    max_read_bytes: int = _LIMITS.max_read_bytes
    max_write_bytes: int = _LIMITS.max_write_bytes
    search_timeout_s: float = _LIMITS.search_timeout_s
    script_timeout_s: float = _LIMITS.script_timeout_s
    script_memory_bytes: int = _LIMITS.script_memory_bytes
    script_output_bytes: int = _LIMITS.script_output_bytes
    isolation: Isolation = "auto"
    """How scripts are kept apart: `auto` is the strongest that works here."""
    cache: str | None = None
    """None: `auto` where a cassette is named, else `off`."""
    cassette: str | None = None
    """None: the cache in the folder of the store."""
    session: str = "default"
    stream: bool = True
    after_run: str = "static"
    """`static`: the output becomes a saved picture. `live`: the widget stays."""

    @property
    def policy(self) -> ToolPolicy:
        """What holds for every run."""
        limits = ToolLimits(**{f.name: getattr(self, f.name) for f in fields(ToolLimits)})
        rules = {name: getattr(self, name) for name in ("allow", "ask", "deny", "hide")}
        return ToolPolicy(**rules, limits=limits, isolation=self.isolation)


@dataclass(frozen=True, slots=True, repr=False)
class Origin(_Shown):
    """One effective value and where it came from."""

    name: str
    value: Any
    source: str


def _no_overrides() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class _Configured:
    values: dict[str, Any] = field(default_factory=_no_overrides)


_configured = _Configured()

_ENVIRONMENT = {"model": "LLM_MODEL", "base_url": "LLM_BASE_URL"}
_PROJECT = "pyproject.toml"
_ONLY_TIGHTENED = frozenset(("ask", "deny", "hide", *(f.name for f in fields(ToolLimits))))
"""What a project's file may make stricter than the person has it, and not looser."""
_NOT_IN_PROJECT = {
    "base_url": "your key would go there; use nbagent.configure(base_url=…) or LLM_BASE_URL",
    "cassette": "a stranger's answers would be taken for the model's; use --cassette",
    **dict.fromkeys(
        ("allow", "mounts", "skills", "isolation"),
        "who wrote the project would decide what its agents may do on your machine; use "
        "nbagent.configure(…) or your own settings.toml",
    ),
}
"""What a project's file may not say, for it may be a stranger's project."""


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
    for f in fields(Settings):
        held = Origin(f.name, f.default, "default")
        project: Any = None
        for source, values in layers:
            if f.name in values and source == _PROJECT and f.name in _ONLY_TIGHTENED:
                project = values[f.name]
            elif f.name in values:
                held = Origin(f.name, values[f.name], source)
                break
        found.append(held if project is None else _tightened(held, project))
    return found


def _tightened(held: Origin, project: Any) -> Origin:
    """What holds for the person, and what a project's file adds to it."""
    if isinstance(project, tuple):
        rules = cast("tuple[str, ...]", project)
        value: Any = (*held.value, *(text for text in rules if text not in held.value))
    else:
        value = min(held.value, project)
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
    for f in fields(Settings):
        for variable in (f"NBAGENT_{f.name.upper()}", _ENVIRONMENT.get(f.name, "")):
            text = environ.get(variable, "").strip()
            if text:
                values[f.name] = checked_value(f.name, text, where=variable)
                break
    return values


def _from_files(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            table = _table(file, "tool", "nbagent")
            _refuse_servers(table.get("tools"))
            for name, why in _NOT_IN_PROJECT.items():
                if name in table:
                    raise UsageError(
                        f"{file.name}: {name!r} may not be set in a project's file, because {why}"
                    )
            yield _PROJECT, _checked_table(table, _PROJECT)
            break
    base = environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else Path.home() / ".config"
    user_file = config / "nbagent" / "settings.toml"
    if user_file.is_file():
        yield "settings.toml", _checked_table(_table(user_file), "settings.toml")


def _refuse_servers(tools: Any) -> None:
    """A project that names its own MCP server would start a program in the first run."""
    texts: Any = tools.replace(",", " ").split() if isinstance(tools, str) else tools
    for name in cast("list[Any]", texts) if isinstance(texts, list) else ():
        if isinstance(name, str) and (name.partition(":")[0] == "mcp" or "__" in name):
            raise UsageError(
                f"{_PROJECT}: tools may not name the MCP server {name!r}, because it would be "
                "started without your saying so; name it with --tools or nbagent.configure(tools=…)"
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
    """The options with every key that is known hidden, but in the address that is asked."""
    register_environment()
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "base_url"}
    return replace(options, **redact_json(given))


def checked_options(options: RunOptions) -> RunOptions:
    """The options with every set value checked as a setting would be. Raises UsageError."""
    changes = {
        f.name: checked_value(f.name, value)
        for f in fields(RunOptions)
        if f.name in CHECKS and (value := getattr(options, f.name)) is not None
    }
    if options.policy is not None:
        changes["policy"] = checked_policy(options.policy)
    name: Any = options.name
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name={name!r} does not fit; expected a text")
    try:
        return replace(options, **changes, tags=sequences(options.tags))
    except ValueError:
        raise UsageError(f"tags={options.tags!r} does not fit; expected texts") from None
