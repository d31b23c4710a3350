"""What each setting and option may be: the checks that make a value of the right type of it.

From Python, TOML or text. Where values come from and which one wins is the package's own affair.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Isolation, ToolLimits, ToolPolicy, call_pattern
from nbagent.contracts.secrets import redact, register_environment

Tools = str | tuple[str, ...]
"""`none`, `all`, or names: of functions, of single tools, or words that stand for a whole host."""
TRIMS = ("tool-results", "none")
CACHES = ("off", "auto", "replay", "refresh")
AFTER_RUN = ("static", "live")
ISOLATIONS: tuple[Isolation, ...] = ("auto", "landlock", "bubblewrap", "process")
_ONE_PATTERN = r"(?:[^\s,()]|\([^)]*\))+"
_KEY_LIKE = re.compile(r"(?:^|_|api)(?:key|secret|password)s?$", re.IGNORECASE)
_HOST = re.compile(r"[\w.-]*\w[\w.-]*|[0-9a-f]*:[0-9a-f:.]*(?:%\w+)?")
_API_VERSION = re.compile(r"api-version=(?:\d{4}-\d{2}-\d{2}(?:-preview)?|preview|latest)")
"""The one query that a base URL may have: Azure's, which can hold no key."""


def checked_value(name: str, value: Any, *, where: str = "") -> Any:
    """The value in its right type, from Python, TOML or text. Raises UsageError."""
    check = CHECKS.get(name)
    if check is None:
        if _KEY_LIKE.search(name):
            raise UsageError(
                f"{name!r} is no setting: keys are read from the environment only (LLM_API_KEY, "
                "or the provider's own variable), set before the kernel starts"
            )
        near = difflib.get_close_matches(name, CHECKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(CHECKS)}"
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


def sequences(value: Any) -> tuple[str, ...]:
    """One text, or several. Raises ValueError."""
    return (value,) if isinstance(value, str) else _names(value)


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(map(repr, words)))
        return value

    return check


def _texts(value: Any) -> tuple[str, ...]:
    """Texts that may hold spaces: a list, or one text with a text on each line."""
    if isinstance(value, str):
        return tuple(line.strip() for line in value.splitlines() if line.strip())
    return _names(value)


def _split_patterns(text: str) -> list[str]:
    if re.sub(_ONE_PATTERN, "", text).strip(" \t\r\n,"):
        return [text]  # something is left over: the whole is shown as what it is not
    return re.findall(_ONE_PATTERN, text)


def _patterns(value: Any) -> tuple[str, ...]:
    # `fs.write(path=a, content=b)` has blanks and commas inside its parentheses only.
    given = _split_patterns(value) if isinstance(value, str) else value
    texts = _names(given if isinstance(given, list | tuple) else [given])
    for text in texts:
        call_pattern(text)
    return texts


CHECKS: dict[str, Callable[[Any], Any]] = {
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
    "stop_sequences": sequences,
    "reasoning": _text,
    "timeout_s": _number(0.001, 1e6, "seconds"),
    "trim": _one_of(TRIMS),
    "cache": _one_of(CACHES),
    "cassette": _text,
    "mounts": _texts,
    "skills": _texts,
    **dict.fromkeys(("allow", "ask", "deny", "hide"), _patterns),
    **dict.fromkeys(("max_read_bytes", "max_write_bytes"), _positive_int),
    **dict.fromkeys(("script_memory_bytes", "script_output_bytes"), _positive_int),
    **dict.fromkeys(("search_timeout_s", "script_timeout_s"), _number(0.001, 1e6, "seconds")),
    "isolation": _one_of(ISOLATIONS),
    "session": _text,
    "stream": _switch,
    "after_run": _one_of(AFTER_RUN),
}


def checked_policy(value: Any) -> ToolPolicy:
    """A policy, also from the JSON that a record keeps of one. Raises UsageError."""
    if isinstance(value, ToolPolicy):
        return value
    given: Any = json_object(value)
    try:
        if given is not None:
            limits: Any = ToolLimits(**given.get("limits", {}))
            return ToolPolicy(**{**given, "limits": limits})
    except TypeError as error:
        raise UsageError(f"policy={value!r} does not fit ({error}); give a ToolPolicy") from None
    raise UsageError(f"policy={value!r} does not fit; give an nbagent.ToolPolicy(deny=[…])")
