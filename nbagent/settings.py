"""Settings and run options: plain data, and where each value came from.

Order: options of the call, then `configure`, then the environment, then files, then defaults.
Keys are not settings: providers take them from the environment.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact, redact_json, register_environment

Tools = str | tuple[str, ...]
"""`none`, `all`, or names."""


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
    session: str = "default"
    stream: bool = True
    after_run: str = "static"
    """`static`: the output becomes a saved picture. `live`: the widget stays."""


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
_KEY_LIKE = re.compile(r"(?:^|_|api)(?:key|secret|password)s?$", re.IGNORECASE)
_HOST = re.compile(r"[\w.-]*\w[\w.-]*|[0-9a-f]*:[0-9a-f:.]*(?:%\w+)?")
_API_VERSION = re.compile(r"api-version=(?:\d{4}-\d{2}-\d{2}(?:-preview)?|preview|latest)")
"""The one query that a base URL may have: Azure's, which can hold no key."""
_NOT_IN_PROJECT = ("base_url",)
"""A project's file could send the person's key to a stranger's server."""


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
        for source, values in layers:
            if f.name in values:
                found.append(Origin(f.name, values[f.name], source))
                break
        else:
            found.append(Origin(f.name, f.default, "default"))
    return found


def store_home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the store: `NBAGENT_HOME`, else `.nbagent` beside the notebook."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("NBAGENT_HOME")
    return Path(chosen).expanduser() if chosen else _first_folder() / ".nbagent"


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
            for name in _NOT_IN_PROJECT:
                if name in table:
                    raise UsageError(
                        f"{file.name}: {name!r} may not be set in a project's file, because your "
                        f"key would go there; use nbagent.configure({name}=…) or LLM_BASE_URL"
                    )
            yield "pyproject.toml", _checked_table(table, "pyproject.toml")
            break
    base = environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else Path.home() / ".config"
    user_file = config / "nbagent" / "settings.toml"
    if user_file.is_file():
        yield "settings.toml", _checked_table(_table(user_file), "settings.toml")


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


def checked_value(name: str, value: Any, *, where: str = "") -> Any:
    """The value in its right type, from Python, TOML or text. Raises UsageError."""
    check = _CHECKS.get(name)
    if check is None:
        if _KEY_LIKE.search(name):
            raise UsageError(
                f"{name!r} is no setting: keys are read from the environment only (LLM_API_KEY, "
                "or the provider's own variable), set before the kernel starts"
            )
        near = difflib.get_close_matches(name, _CHECKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_CHECKS)}"
        raise UsageError(f"unknown setting {name!r}{f' in {where}' if where else ''}; {hint}")
    if value is None:
        return None
    try:
        return check(value)
    except (ValueError, TypeError) as error:
        place = where or name
        register_environment()  # what does not fit may be a key that was put in the wrong place
        said = redact(f"{place}: {name}={value!r} does not fit; expected {error}")
        raise UsageError(said) from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def _base_url(value: Any) -> str:
    text = _text(value)
    # Without a scheme a host is meant (`localhost:8000/v1`); the provider puts one before it.
    bare = "://" not in text
    try:
        parts = urlsplit(f"//{text}" if bare else text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    # A name and a password may stand in what is no address, too; it would be shown below.
    if "@" in parts.netloc or (not host and "@" in text):
        raise UsageError(
            "base_url holds a name or a password, which would be kept and shown; "
            "give the key in LLM_API_KEY instead"
        )
    if (parts.query and not _API_VERSION.fullmatch(parts.query)) or parts.fragment:
        raise UsageError(
            "base_url has a part after '?' or '#', which would be kept and shown; remove it, keys "
            "belong in the environment: LLM_API_KEY"
        )
    known = parts.scheme in (("",) if bare else ("http", "https")) and _HOST.fullmatch(host)
    named = not bare or port is not None or "." in host or host == "localhost"
    if not known or not named or not text.isprintable() or " " in text:
        raise ValueError("an address: http://HOST:PORT/v1 or https://HOST/v1")
    return text


def _any_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _number(low: float, high: float, what: str) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        try:
            number = float(value)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(what) from None
        if isinstance(value, bool) or not math.isfinite(number) or not low <= number <= high:
            raise ValueError(what)
        return number

    return check


def _positive_int(value: Any) -> int:
    try:
        number = int(value)
        whole = not isinstance(value, bool) and number == float(value)
    except (ValueError, TypeError, OverflowError):
        whole, number = False, 0
    if not whole or number < 1:
        raise ValueError("a whole number from 1")
    return number


def _switch(value: Any) -> bool:
    words = {"true": True, "1": True, "on": True, "yes": True}
    words |= {"false": False, "0": False, "off": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise ValueError("true or false")
    return words[str(value).lower()]


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in value.replace(",", " ").split() if part)
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if all(isinstance(item, str) for item in items):
            return tuple(items)
    raise ValueError("names, separated by commas")


def _tools(value: Any) -> Tools:
    names = _names(value)
    return names[0] if names in (("none",), ("all",)) else names


def _sequences(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _names(value)


def _after_run(value: Any) -> str:
    if value not in ("static", "live"):
        raise ValueError("'static' or 'live'")
    return value


def _trim(value: Any) -> str:
    if value not in ("tool-results", "none"):
        raise ValueError("'tool-results' or 'none'")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "model": _text,
    "base_url": _base_url,
    "system": _any_text,
    "tools": _tools,
    "max_turns": _positive_int,
    "ceiling": _positive_int,
    "loop_limit": _positive_int,
    "max_total_tokens": _positive_int,
    "max_cost_usd": _number(0, 1e9, "an amount in USD"),
    "temperature": _number(0, 2, "a number from 0 to 2"),
    "top_p": _number(0, 1, "a number from 0 to 1"),
    "max_tokens": _positive_int,
    "stop_sequences": _sequences,
    "reasoning": _text,
    "timeout_s": _number(0.001, 1e6, "seconds"),
    "trim": _trim,
    "session": _text,
    "stream": _switch,
    "after_run": _after_run,
}


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
        if f.name in _CHECKS and (value := getattr(options, f.name)) is not None
    }
    name: Any = options.name
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name={name!r} does not fit; expected a text")
    try:
        return replace(options, **changes, tags=_sequences(options.tags))
    except ValueError:
        raise UsageError(f"tags={options.tags!r} does not fit; expected texts") from None
