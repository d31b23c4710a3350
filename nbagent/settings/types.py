"""Checks of option values: each converts a value from Python, TOML or a line to its type.

A check raises ValueError with the expected form, or UsageError if the value may be a key, which the
message must not repeat.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.secrets import register_secret, register_value

Tools = str | tuple[str, ...]
"""`none`, `all`, or names: of functions, single tools, or whole hosts."""
REASONING = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
REASONING_WORDS = ("off", *REASONING[1:])
"""The same efforts as a person writes them."""
_ADDRESS = re.compile(
    # Without a scheme (`localhost:8000/v1`) the provider adds one.
    r"(?:https?://)?(?:\w[\w.-]*|\[[0-9a-f:.]+\])(?::\d{1,5})?(?:/[^\s?#]*)?"
    # The only permitted query is Azure's api-version; any other could contain a key.
    r"(?:\?api-version=(?:\d{4}-\d{2}-\d{2}(?:-preview)?|preview|latest))?",
    re.IGNORECASE,
)
_BLANK_ENDS = re.compile(r"\A[\s\u200b\ufeff]+|[\s\u200b\ufeff]+\Z")
"""Blanks that are copied along with an address, also those that nobody sees."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Beginnings that vendors give their keys: `sk-` OpenAI and Anthropic, `gsk_` Groq, `hf_` Hugging
# Face, `ghp_` GitHub, `AIza` Google, … Names of variables may begin so, but in capitals only.
_KEY_START = re.compile(r"(?:sk|gsk|pk|hf|ghp|github_pat|xai|nvapi|csk|r8)[-_](?=.*[a-z])|AIza")
_MIN_KEY_CHARS = 12
"""Words of this length with letters and digits, in a header or in extra fields, may be a key."""
_MIN_HEADER_CHARS = 8
_PLAIN_HEADERS = (
    *("accept", "content-type", "user-agent", "referer", "http-referer", "x-title"),
    *("anthropic-version", "anthropic-beta", "openai-beta"),
)
"""Headers whose value is not a secret."""
_RESERVED_HEADERS = ("connection", "content-length", "host", "transfer-encoding")
"""Headers that the transport sets. Another value would let the server misread where a request
ends (request smuggling)."""


def matching(pattern: str, expected: str) -> Callable[[Any], str]:
    """Make a check for texts that match a pattern; `expected` describes the form."""
    form = re.compile(pattern, re.DOTALL)

    def check(value: Any) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValueError(expected)
        return value

    return check


any_text = matching(".*", "a text")
text = matching(".+", "a text")
# No leading blanks: the provider's name decides whether a project's file may name the model.
model = matching(r"\S(?:.*\S)?", "a text such as provider:model, without blanks around it")
header_text = matching("[ -~]+", "a text of one line in ASCII")


def variable_name(value: Any) -> str:
    """Check the name of a Python variable."""
    if not isinstance(value, str) or not value.isidentifier() or iskeyword(value):
        raise ValueError("the name of a variable: letters, digits and _")
    return value


def base_url(value: Any) -> str:
    """Check the URL of a server. An invalid value may contain a key, so it is not shown."""
    address = _BLANK_ENDS.sub("", text(value))
    if not _ADDRESS.fullmatch(address) or not address.isprintable():
        raise UsageError(
            "base_url must be an address like http://HOST:PORT/v1, without a name, a password or "
            "a part after '?' or '#', which would be kept and shown; give the key in LLM_API_KEY"
        )
    return address


def output_type(value: Any) -> Any:
    """Check a type or, on a line, its name: `City`, `models.City`, `list[City]`."""
    if isinstance(value, str) and not re.fullmatch(r"\w[\w.]*(?:\[[\w., |\[\]]+\])?", value):
        raise ValueError("the name of a type, or list[NAME]")
    return value


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """Check for finite numbers in a range. A form shows the range before a number is typed."""

    low: float
    high: float = math.inf
    whole: bool = False
    of: str = ""
    """Unit, as in ` of seconds`."""

    def __call__(self, value: Any) -> int | float:
        """Convert a number, or a text of one."""
        with suppress(ValueError, TypeError, OverflowError):
            result = int(value) if self.whole else float(value)
            # Python converts True to 1, and int() cuts 1.5 to 1: both are mistakes here.
            if not isinstance(value, bool) and self.low <= result == float(value) <= self.high:
                return result
        expected = f"a {'whole ' * self.whole}number{self.of} from {self.low:,}"
        raise ValueError(expected + (f" to {self.high:,}" if self.high < math.inf else ""))


def number(low: float, high: float = math.inf, *, whole: bool = False, of: str = "") -> NumberCheck:
    """Make a check for finite numbers in a range; `of` names the unit."""
    return NumberCheck(low, high, whole, of)


seconds = number(0.001, 1_000_000, of=" of seconds")
usd = number(0, 1_000_000_000, of=" of US dollars")


_count = number(1, 10_000, whole=True)


def count(value: Any) -> int:
    """Check a number of runs. 2.0 is refused as its text is: somebody may have meant a share."""
    return int(_count(str(value) if isinstance(value, float) else value))


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


MAX_CASES = 1_000_000
"""Most cases of a batch."""


def failed_cases(value: Any) -> int | float:
    """Check how many cases of a batch may fail: a number of them, or a share of all as a float."""
    # As Python reads them, on a line too: 1 is one case, 1.0 all of them.
    is_share = isinstance(value, float) or (isinstance(value, str) and not _is_integer(value))
    with suppress(ValueError, TypeError, OverflowError):
        result = float(value)
        if not isinstance(value, bool):
            if is_share and 0 < result <= 1:
                return result
            if 0 <= result == int(result) <= MAX_CASES:
                return int(result)
    raise ValueError(f"a number of cases from 0 to {MAX_CASES:,}, or a share of all such as 0.2")


def switch(value: Any) -> bool:
    """Convert a boolean or a word such as `on` or `no`."""
    word = str(value).lower()
    if word in ("false", "0", "off", "no"):
        return False
    if word not in ("true", "1", "on", "yes"):
        raise ValueError("true or false")
    return True


def one_of(*words: str) -> Callable[[Any], str]:
    """Make a check for one of these words."""
    return matching("|".join(map(re.escape, words)), " or ".join(map(repr, words)))


def text_list(split: Callable[[str], list[str]]) -> Callable[[Any], tuple[str, ...]]:
    """Make a check for a list of texts, or one text that `split` divides."""

    def check(value: Any) -> tuple[str, ...]:
        items: Any = split(value) if isinstance(value, str) else value
        texts = cast("list[str]", items) if isinstance(items, list | tuple) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("names, separated by commas")
        return tuple(map(str, texts))

    return check


names = text_list(lambda text: text.replace(",", " ").split())
sequences = text_list(lambda text: [text])
lines = text_list(lambda text: [line.strip() for line in text.splitlines() if line.strip()])
# `fs.write(path=a, content=b)` has blanks and commas inside its parentheses only.
_patterns = text_list(lambda text: re.split(r"[\s,]+(?![^(]*\))", text.strip(" \t\r\n,")))


def tools(value: Any) -> Tools:
    """Check names of tools, or `none` or `all` alone."""
    chosen = tuple(dict.fromkeys(names(value)))
    if chosen in (("none",), ("all",)):
        return chosen[0]
    if {"none", "all"} & set(chosen) or (isinstance(value, str) and not chosen):
        raise ValueError("names as in a,b or 'none' or 'all' alone")
    return chosen


def path(value: Any) -> str:
    """Check a path, or an object with a `path`: a loaded package."""
    raw_path: Any = getattr(value, "path", value)
    return text(str(raw_path) if isinstance(raw_path, Path) else raw_path)


def variables(value: Any) -> tuple[str, ...]:
    """Check texts `NAME=VALUE`; in Python also a dict."""
    raw: Any = value
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        raw = load_json(raw)
    if isinstance(raw, dict):
        raw = [f"{name}={item}" for name, item in cast("dict[Any, Any]", raw).items()]
    pairs = lines(raw)
    if not all(re.fullmatch(r"\s*[A-Za-z_][\w-]*\s*=.*", pair) for pair in pairs):
        raise ValueError("NAME=VALUE, or a dict of names and values")
    return pairs


def patterns(value: Any) -> tuple[str, ...]:
    """Check patterns of calls: a list, or one text with blanks or commas between them."""
    rules = _patterns(value)
    for rule in rules:
        call_pattern(rule)
    return rules


def reasoning(value: Any) -> str:
    """Check a reasoning effort: a word, or a number of tokens."""
    word = str(value).strip().lower()
    if word in REASONING or re.fullmatch("[1-9][0-9]{0,8}", word):
        return word
    if word == "off":
        return "none"
    raise ValueError("low, medium, high, off (also minimal, xhigh, max), or a number of tokens")


def key_variable(value: Any) -> str:
    """Check the name of an environment variable. A possible key is refused and not shown."""
    name = value.strip() if isinstance(value, str) else ""
    # Real keys are long and mix cases and digits; names of variables do not.
    mixed = len(name) >= 20 and re.search("[0-9]", name) and re.search("[a-z]", name)
    if not _VARIABLE.fullmatch(name) or _KEY_START.match(name) or mixed:
        raise UsageError(
            "key_variable is not the name of an environment variable (the value is not shown, it "
            "may be a key); put the key into a variable and give the variable's name: "
            "key_variable=MY_API_KEY"
        )
    return name


def extra_body(value: Any) -> dict[str, Any]:
    """Check additional fields of the request's JSON, also as text. Their values may be secrets."""
    try:
        # A copy: the person may change the dict later.
        decoded = load_json(value if isinstance(value, str) else json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        decoded = None
    fields = json_object(decoded)
    if fields is None:
        raise ValueError('a JSON object such as {"name": "value"}')
    register_value("fields", json.dumps(fields))
    for word in json.dumps(list(fields.values()), ensure_ascii=False).split():
        word = word.strip('[]{}",:')
        if len(word) >= _MIN_KEY_CHARS and re.search(r"\d", word) and re.search("[A-Za-z]", word):
            register_secret(word)
    return fields


def headers(value: Any) -> dict[str, str]:
    """Check headers for each request. Their texts may be secrets.

    A text of eight characters or more is redacted everywhere; of a header whose name says secret,
    of six. Redacting shorter ones would garble ordinary words; they are only hidden beside their
    name.
    """
    fields = extra_body(value)
    for name, content in fields.items():
        plain = isinstance(content, str) and content.isprintable() and content.isascii()
        if not plain or not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
            raise ValueError(
                'names and texts of one line such as {"X-Tenant": "a"}, and none of '
                f"{', '.join(_RESERVED_HEADERS)}, which are set for each request"
            )
        if is_secret_name(name):
            # The key alone, too: an error of the server may quote it without the word before it.
            register_value(name, content)
        elif name.lower() not in _PLAIN_HEADERS and len(content) >= _MIN_HEADER_CHARS:
            register_secret(content, name)
    return fields


def cassette(value: Any) -> str:
    """Check the path of a file of recorded answers."""
    path = str(value) if isinstance(value, Path) else text(value)
    if not path.isprintable() or not path.endswith(".jsonl"):
        raise ValueError("the path of a file that ends in .jsonl")
    return path


def policy(value: Any) -> ToolPolicy:
    """Check a policy; also convert one from a record's JSON."""
    if isinstance(value, ToolPolicy):
        return value
    try:
        limits: Any = ToolLimits(**value.get("limits", {}))
        return ToolPolicy(**{**value, "limits": limits})
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"policy={value!r} is not valid ({error}); give an nbagent.ToolPolicy(deny=[…])"
        ) from None
