"""The checks of the table: each makes a value of the right type from Python, TOML or text.

A check raises ValueError with what it expects; UsageError where the value may be a key, which is
not repeated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from keyword import iskeyword
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.secrets import register_secret

Tools = str | tuple[str, ...]
"""`none`, `all`, or names: of functions, of single tools, or words that stand for a whole host."""
REASONING = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ADDRESS = re.compile(
    # Without a scheme (`localhost:8000/v1`) the provider puts one before it.
    r"(?:https?://)?(?:\w[\w.-]*|\[[0-9a-f:.]+\])(?::\d{1,5})?(?:/[^\s?#]*)?"
    # The one query that it may have: Azure's, which can hold no key.
    r"(?:\?api-version=(?:\d{4}-\d{2}-\d{2}(?:-preview)?|preview|latest))?",
    re.IGNORECASE,
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY_START = re.compile(r"(?:sk|gsk|pk|hf|ghp|github_pat|xai|nvapi|csk|r8)[-_](?=.*[a-z])|AIza")
_SHORTEST_KEY = 12
"""Of a word with letters and digits in a header or in extra fields."""
_PLAIN_HEADERS = (
    *("accept", "content-type", "user-agent", "referer", "http-referer", "x-title"),
    *("anthropic-version", "anthropic-beta", "openai-beta"),
)
"""Headers whose value is no secret."""
_OWN_HEADERS = ("connection", "content-length", "host", "transfer-encoding")
"""Set to what is true of a request: another value would let its end be misread."""


def matching(pattern: str, what: str) -> Callable[[Any], str]:
    """A check for texts of a form; `what` is said of others."""
    form = re.compile(pattern, re.DOTALL)

    def check(value: Any) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValueError(what)
        return value

    return check


any_text = matching(".*", "a text")
text = matching(".+", "a text")
# Nothing stands before its provider, by whose name a project's `local:` is refused.
model = matching(r"\S(?:.*\S)?", "a text such as provider:model, without blanks around it")
header_text = matching("[ -~]+", "a text of one line in ASCII")


def variable_name(value: Any) -> str:
    """A name that Python takes for a variable."""
    if not isinstance(value, str) or not value.isidentifier() or iskeyword(value):
        raise ValueError("the name of a variable: letters, digits and _")
    return value


def base_url(value: Any) -> str:
    """The address of a server. What is none may hold a key, and is not shown."""
    given = text(value)
    if not _ADDRESS.fullmatch(given) or not given.isprintable():
        raise UsageError(
            "base_url must be an address like http://HOST:PORT/v1, without a name, a password or "
            "a part after '?' or '#', which would be kept and shown; give the key in LLM_API_KEY"
        )
    return given


def output_type(value: Any) -> Any:
    """A type, or on a line the words that say one: `City`, `models.City`, `list[City]`."""
    if isinstance(value, str) and not re.fullmatch(r"\w[\w.]*(?:\[[\w., |\[\]]+\])?", value):
        raise ValueError("the name of a type, or list[NAME]")
    return value


def number(
    low: float, high: float = math.inf, *, whole: bool = False, of: str = ""
) -> Callable[[Any], Any]:
    """A check for finite numbers in a range, of a unit."""
    what = f"a {'whole ' * whole}number{of} from {low:,}"
    what += f" to {high:,}" if high < math.inf else ""

    def check(value: Any) -> int | float:
        with suppress(ValueError, TypeError, OverflowError):
            given = int(value) if whole else float(value)
            # Python would take True for 1, and cut 1.5 to 1.
            if not isinstance(value, bool) and low <= given == float(value) <= high:
                return given
        raise ValueError(what)

    return check


seconds = number(0.001, 1_000_000, of=" of seconds")
usd = number(0, 1_000_000_000, of=" of US dollars")


def switch(value: Any) -> bool:
    """True or false, also as a word."""
    word = str(value).lower()
    if word in ("false", "0", "off", "no"):
        return False
    if word not in ("true", "1", "on", "yes"):
        raise ValueError("true or false")
    return True


def one_of(*words: str) -> Callable[[Any], str]:
    """A check for one of some words."""
    return matching("|".join(map(re.escape, words)), " or ".join(map(repr, words)))


def several(split: Callable[[str], list[str]]) -> Callable[[Any], tuple[str, ...]]:
    """A check for texts: a list, or one text that is split."""

    def check(value: Any) -> tuple[str, ...]:
        given: Any = split(value) if isinstance(value, str) else value
        texts = cast("list[str]", given) if isinstance(given, list | tuple) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("names, separated by commas")
        return tuple(map(str, texts))

    return check


names = several(lambda text: text.replace(",", " ").split())
sequences = several(lambda text: [text])
lines = several(lambda text: [line.strip() for line in text.splitlines() if line.strip()])
# `fs.write(path=a, content=b)` has blanks and commas inside its parentheses only.
_patterns = several(lambda text: re.split(r"[\s,]+(?![^(]*\))", text.strip(" \t\r\n,")))


def tools(value: Any) -> Tools:
    """Names of tools, or `none` or `all`, which stand alone."""
    chosen = tuple(dict.fromkeys(names(value)))
    if chosen in (("none",), ("all",)):
        return chosen[0]
    if {"none", "all"} & set(chosen) or (isinstance(value, str) and not chosen):
        raise ValueError("names as in a,b or 'none' or 'all' alone")
    return chosen


def path(value: Any) -> str:
    """A path, or what has one: a package that was loaded."""
    given: Any = getattr(value, "path", value)
    return text(str(given) if isinstance(given, Path) else given)


def variables(value: Any) -> tuple[str, ...]:
    """Texts `NAME=VALUE`; in Python also a dict."""
    given: Any = value
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = load_json(given)
    if isinstance(given, dict):
        given = [f"{name}={one}" for name, one in cast("dict[Any, Any]", given).items()]
    pairs = lines(given)
    if not all(re.fullmatch(r"\s*[A-Za-z_][\w-]*\s*=.*", pair) for pair in pairs):
        raise ValueError("NAME=VALUE, or a dict of names and values")
    return pairs


def patterns(value: Any) -> tuple[str, ...]:
    """Patterns of calls: a list, or one text with blanks or commas between them."""
    rules = _patterns(value)
    for rule in rules:
        call_pattern(rule)
    return rules


def reasoning(value: Any) -> str:
    """A word for how much to think, or a number of tokens as a text."""
    word = str(value).strip().lower()
    if word in REASONING or re.fullmatch("[1-9][0-9]{0,8}", word):
        return word
    if word == "off":
        return "none"
    raise ValueError("low, medium, high, off (also minimal, xhigh, max), or a number of tokens")


def key_variable(value: Any) -> str:
    """The name of an environment variable; what may be the key itself is refused, not shown."""
    name = value.strip() if isinstance(value, str) else ""
    # Real keys are long and mix cases and digits; names of variables do not.
    mixed = len(name) >= 20 and re.search("[0-9]", name) and re.search("[a-z]", name)
    if not _VARIABLE.fullmatch(name) or _KEY_START.match(name) or mixed:
        raise UsageError(
            "key_variable is no name of an environment variable (its value is not shown, it may "
            "be a key); put the key in a variable and give the variable's name: "
            "key_variable=MY_API_KEY"
        )
    return name


def extra_body(value: Any) -> dict[str, Any]:
    """Further fields of the request's JSON, also as text; their values may be secrets."""
    try:
        # A copy that nobody else changes.
        whole = load_json(value if isinstance(value, str) else json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        whole = None
    held = json_object(whole)
    if held is None:
        raise ValueError('a JSON object such as {"name": "value"}')
    for word in json.dumps(list(held.values()), ensure_ascii=False).split():
        word = word.strip('[]{}",:')
        if len(word) >= _SHORTEST_KEY and re.search(r"\d", word) and re.search("[A-Za-z]", word):
            register_secret(word)
    return held


def headers(value: Any) -> dict[str, str]:
    """Names and texts that are sent with each request; the texts may be secrets.

    A text of eight characters or more is hidden wherever it turns up; a shorter one would garble
    ordinary words, and is only not shown with its name.
    """
    given = extra_body(value)
    for name, held in given.items():
        plain = isinstance(held, str) and held.isprintable() and held.isascii()
        if not plain or not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise ValueError(
                'names and texts of one line such as {"X-Tenant": "a"}, and none of '
                f"{', '.join(_OWN_HEADERS)}, which are set for each request"
            )
        if name.lower() not in _PLAIN_HEADERS:
            register_secret(held.removeprefix("Bearer "))
    return given


def cassette(value: Any) -> str:
    """The path of a file of recorded answers."""
    path = str(value) if isinstance(value, Path) else text(value)
    if not path.isprintable() or not path.endswith(".jsonl"):
        raise ValueError("the path of a file that ends in .jsonl")
    return path


def policy(value: Any) -> ToolPolicy:
    """A policy, also from the JSON that a record keeps of one."""
    if isinstance(value, ToolPolicy):
        return value
    try:
        limits: Any = ToolLimits(**value.get("limits", {}))
        return ToolPolicy(**{**value, "limits": limits})
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"policy={value!r} does not fit ({error}); give an nbagent.ToolPolicy(deny=[…])"
        ) from None
