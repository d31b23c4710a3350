"""Secrets: the type that holds a key, the list of known secrets, and the filter for output.

A `SecretKey` is printed as `***`, cannot be pickled, and registers its literal and encoded forms
with the filter; `redact` replaces each of them. The filter is applied where data leaves the
process or is stored: at the end of a call, in deltas, records, output, logs and exports; not on
the way there. Redact first, then cut: a half key matches nothing any more (`redact_truncated` is
for texts that others have cut). `secret_names` says which names hold a secret, `secret_values`
what of a value is hidden.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, cast
from urllib.parse import quote, quote_plus

from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.secret_values import (
    can_hide,
    is_ordinary_word,
    program_secrets,
    value_secrets,
)

MASK = "[redacted]"
_PREFIX_CHARS = 8
"""Shortest part of a secret that is hidden at a cut; shorter ones occur in ordinary words."""
_CUT_MARK = re.compile(r"([\s\[\]('\"]{0,2}(?:…|\.{2,})[\s\[\]('\"]{0,2})")
"""Ellipsis that marks where a text was cut."""
_OPEN_END = "\ua9e6"
"""A letter of no key. It stands for the neighbours that a piece of a stream has, or will have."""
_ESCAPED_BREAK = re.compile(r"\\[nrt]")
"""A line break that was escaped: a word behind it stands alone, although it ends in a letter."""
_URL_SAFE = str.maketrans("+/", "-_")
_HTTP_LOGGERS = ("httpcore2", "httpx2")


class SecretKey:
    """A credential that printing, comparing, pickling or reading attributes does not reveal."""

    __slots__ = ("__reveal",)

    def __init__(self, text: str) -> None:
        # In a closure, not in an attribute: code that walks over attributes does not find it.
        self.__reveal = lambda: text
        register_secret(text)

    def reveal(self) -> str:
        """The text itself. Only the transport calls this."""
        return self.__reveal()

    def __bool__(self) -> bool:
        return bool(self.__reveal())

    def __repr__(self) -> str:
        return "SecretKey(***)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretKey is never pickled or copied")


class KeySource:
    """A function that returns a key, for keys that expire. Two of one function are equal."""

    __slots__ = ("__function",)

    def __init__(self, function: KeyFunction) -> None:
        self.__function = function

    def __call__(self) -> str | SecretKey | Awaitable[str | SecretKey]:
        """Call the function. Only `providers.keys` does this."""
        return self.__function()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySource) and self.__function == other.__function

    def __hash__(self) -> int:
        return hash(KeySource)  # A function object may have no hash, and few are compared.

    def __repr__(self) -> str:
        return "KeySource(***)"  # A partial function's repr shows its arguments.

    def __reduce__(self) -> NoReturn:
        raise TypeError("a function that returns a key is never pickled or copied")


KeyFunction = Callable[[], "str | SecretKey | Awaitable[str | SecretKey]"]
"""Returns the key for the next request. It may block, and may be a coroutine function."""


class _PrefixFinder:
    """Finds the first characters of a secret's form at the end of a text."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms: defaultdict[str, list[str]] = defaultdict(list)
        for form in forms:
            for size in range(1, _PREFIX_CHARS + 1):
                self._forms[form[:size]].append(form)
        self._max_length = max(map(len, forms))

    def partial_length(self, text: str) -> int:
        """Count the characters at the end of a text that may be the start of a form."""
        for start in range(max(len(text) - self._max_length, 0), len(text)):
            forms = self._forms.get(text[start : start + _PREFIX_CHARS], ())
            if any(form.startswith(text[start:]) for form in forms):
                return len(text) - start
        return 0


class _SecretFinder:
    """Finds complete forms of secrets, their starts and, on the reversed text, their ends."""

    def __init__(self, forms: frozenset[str], ordinary: frozenset[str]) -> None:
        self.complete = _pattern_of(forms, ordinary)
        self.starts = _PrefixFinder(forms)
        # Half an ordinary word is no secret, so words are not looked for at a cut.
        self._cut_starts = _PrefixFinder(forms - ordinary)
        self._cut_ends = _PrefixFinder({form[::-1] for form in forms - ordinary})

    def mask_partial(self, piece: str) -> str:
        """Mask partial forms at both ends of a piece of a text that was cut."""
        if (size := self._cut_starts.partial_length(piece)) >= _PREFIX_CHARS:
            piece = piece[:-size] + MASK
        if (size := self._cut_ends.partial_length(piece[::-1])) >= _PREFIX_CHARS:
            piece = MASK + piece[size:]
        return piece


# Built again only after a secret was added: the sets are others then.
_finder = lru_cache(maxsize=1)(_SecretFinder)
_lock = threading.Lock()
_forms: frozenset[str] = frozenset()
"""Forms of all secrets."""
_words: frozenset[str] = frozenset()
"""Those of them that are ordinary words: hidden only where they stand alone."""
_word_names: dict[str, bool] = {}
"""Variables that hold such a word, and whether the person was informed."""
_environment: Mapping[Any, Any] = {}
"""Copy of the environment when it was last read."""


def _pattern_of(forms: Iterable[str], ordinary: frozenset[str]) -> re.Pattern[str]:
    """Make one pattern, longest form first: a key may contain another one.

    Forms are grouped by their first character, so that the regex tries few branches at each
    position; a flat alternation of thousands of forms is slow on long texts.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for form in sorted(forms, key=len, reverse=True):
        rest = re.escape(form[1:])
        if form in ordinary:
            # Behind the first character: a branch that begins with a look-behind is slow.
            alone = rf"(?:(?<!\w{form[0]})|(?<={_ESCAPED_BREAK.pattern}{form[0]}))"
            rest = rf"{alone}{rest}(?!\w)"
        groups[form[0]].append(rest)
    return re.compile("|".join(f"{re.escape(c)}(?:{'|'.join(g)})" for c, g in groups.items()))


def register_secret(text: str, name: str = "") -> None:
    """Make `redact` hide a text: literal, as URL, JSON, hexadecimal, base64 and base32.

    An ordinary word is hidden only where it stands alone, and `name` is noted for the person.
    """
    global _forms, _words
    text = text.strip()
    if text in _forms or not can_hide(text):
        return
    forms = _forms_of(text)
    # For writers only: the sets are replaced, never changed, so readers need no lock.
    with _lock:
        if is_ordinary_word(text):
            # First: a reader in between must not hide it inside of words.
            _words |= {text}
            if name:
                _word_names.setdefault(name, False)
        _forms |= forms


def _forms_of(text: str) -> set[str]:
    """Every form of a text; of bytes that are not UTF-8 (`\\udcdf`) as others may decode them."""
    raw = _bytes_of(text)
    # As `texts.clean` and `errors="replace"` replace them, and as another encoding reads them.
    plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    forms = {text, plain, plain.replace("\ufffd", "?"), raw.decode("utf-8", "replace")}
    if plain != text:
        forms.add(raw.decode("latin-1"))
    forms |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    forms |= {repr(text)[1:-1], ascii(text)[1:-1], repr(raw)[2:-1]}
    forms |= {html.escape(text), html.escape(text, quote=False), *_escape_forms(text)}
    forms |= {quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper()}
    for encode, bits, alignments in ((base64.b64encode, 6, 3), (base64.b32encode, 5, 5)):
        for shift in range(alignments):
            # If the key is inside a longer encoded text (`user:key`), its first and last digits
            # depend on its neighbours, and the rest on its offset. So each offset is encoded, and
            # the digits at the borders are dropped.
            coded = encode(b"\0" * shift + raw).decode()
            coded = coded[-(-shift * 8 // bits) : (shift + len(raw)) * 8 // bits]
            forms |= {coded, coded.translate(_URL_SAFE) if bits == 6 else coded.lower()}
    return forms


def _bytes_of(text: str) -> bytes:
    """The bytes of a text: those of the environment, if it has some that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate of another origin
        return text.encode("utf-8", "surrogatepass")


def _escape_forms(text: str) -> set[str]:
    """Escape every character as JSON and Python do; they differ beyond the first plane."""
    in_json = "\\u" + text.encode("utf-16-be", "surrogatepass").hex("-", 2).replace("-", "\\u")
    in_python = (f"\\u{ord(c):04x}" if c < "\U00010000" else f"\\U{ord(c):08x}" for c in text)
    return {in_json, in_json.upper().replace("U", "u"), "".join(in_python)}


def register_environment() -> None:
    """Make `redact` hide every secret in the environment.

    Called before data of a run is read and when it is written, because the environment may change
    at any time (`%env`, `os.environ`).
    """
    # Comparing the inner dict is fast; os.environ decodes each of its texts.
    global _environment
    now = dict(getattr(os.environ, "_data", os.environ))
    if now == _environment:
        return
    for variable, text in dict(os.environ).items():
        register_value(variable, text)
    # Last: another thread that finds nothing new must find the secrets too.
    _environment = now
    for name in _HTTP_LOGGERS:
        # Their debug lines contain URLs and headers, unredacted. A level that the user set stays.
        if (log := logging.getLogger(name)).level == logging.NOTSET:
            log.setLevel(logging.WARNING)


def register_value(name: str, text: str) -> None:
    """Make `redact` hide a value that is a secret by its name, or the secrets inside of it."""
    for secret in value_secrets(name, text):
        register_secret(secret, name)


def register_named_secrets(names: Mapping[str, Any]) -> None:
    """Make `redact` hide the secrets among the variables of a program."""
    for name, text in list(names.items()):
        if type(text) is str and is_secret_name(name):
            for secret in program_secrets(name, text):
                register_secret(secret, name)


def ordinary_secret_names() -> list[str]:
    """Variables that hold an ordinary word as their secret, each returned once."""
    with _lock:
        names = [name for name, is_known in _word_names.items() if not is_known]
        _word_names.update(dict.fromkeys(names, True))
    return names


def any_secret_known() -> bool:
    """True if there is anything to redact; lets hot paths skip the filter."""
    return bool(_forms)


def redact(text: str) -> str:
    """Replace every known secret in a text by `[redacted]`."""
    return _finder(_forms, _words).complete.sub(MASK, text) if _forms else text


def redact_truncated(text: str) -> str:
    """Redact a text that others may have cut: also hides the rest of a secret at a cut.

    A rest is the start of a secret before `…`, `...` or the end of the text, or the end of one
    after `…`, `...` or the start of the text. Rests under eight characters stay: they also occur
    in ordinary words.
    """
    if not _forms:
        return text
    return "".join(map(_finder(_forms, _words).mask_partial, _CUT_MARK.split(redact(text))))


def redact_json(value: Any) -> Any:
    """Apply `redact` to every string in a JSON value, keys too."""
    if not _forms:
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {redact_json(key): redact_json(item) for key, item in items}
    if isinstance(value, list | tuple):
        items_redacted = [redact_json(item) for item in cast("list[Any]", value)]
        return items_redacted if isinstance(value, list) else tuple(items_redacted)
    return value


class StreamFilter:
    """Redacts a text that arrives in pieces: keeps back a possible start of a secret."""

    def __init__(self) -> None:
        self._shown_end = ""
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now."""
        if not _forms:
            self._shown_end = (self._shown_end + piece)[-2:]
            return piece
        text = self._pending + piece
        # A word at the end is not hidden yet: the next piece may continue it.
        hidden = self._redact(text, _OPEN_END)
        n_kept = _finder(_forms, _words).starts.partial_length(hidden)
        self._shown_end = (self._shown_end + text[: max(len(text) - n_kept, 0)])[-2:]
        self._pending = hidden[len(hidden) - n_kept :]
        return hidden[: len(hidden) - n_kept]

    def flush(self) -> str:
        """Return the text that was kept back."""
        pending, self._pending = self._pending, ""
        return self._redact(pending, "")

    def _redact(self, text: str, end: str) -> str:
        """Redact a piece; a word that continues the text before it is not alone."""
        joined = re.match(r"\w", self._shown_end[-1:]) is not None
        start = _OPEN_END if joined and not _ESCAPED_BREAK.fullmatch(self._shown_end) else ""
        hidden = redact(start + text + end)
        return hidden[len(start) : len(hidden) - len(end)]
