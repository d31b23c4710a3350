"""Secrets: the type that holds a key, names that suggest a secret, and the filter for output.

A `SecretKey` is printed as `***`, cannot be pickled, and registers its literal and encoded forms
with the filter; `redact` replaces each of them. The filter is applied where data leaves the
process or is stored: at the end of a call, in deltas, records, output, logs and exports; not on
the way there. Redact first, then cut: a half key matches nothing any more (`redact_truncated` is
for texts that others have cut).
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, cast
from urllib.parse import quote, quote_plus, unquote

MASK = "[redacted]"
_MIN_SECRET_CHARS = 8
"""Shorter values (`none`, `ollama`) are placeholders; redacting them would garble ordinary text."""
_MAX_SECRET_CHARS = 10_000
_CUT_MARK = re.compile(r"([\s\[\]('\"]{0,2}(?:…|\.{2,})[\s\[\]('\"]{0,2})")
"""Ellipsis that marks where a text was cut."""
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_PARTS = (
    *("secret", "passw", "passphrase", "passcode", "credential", "apikey", "accesskey"),
    *("privatekey", "signingkey", "keyring", "keystore", "keychain", "keypair", "keyfile"),
    *("authorization", "bearer"),
)
# Whole words only: `otp` is also a part of `footprint`.
_SECRET_WORDS = frozenset({"pwd", "jwt", "cookie", "cookies", "otp"})
_KEY_ENDINGS = ("key", "keys", "token", "tokens")
_ORDINARY_WORDS = re.compile(r"(?:mon|tur|don|joc|hoc|whis|hot)keys?")
_COUNT_WORDS = frozenset(
    (
        *("max", "min", "num", "n", "total", "prompt", "completion", "cached", "reasoning"),
        *("input", "output", "count", "counts", "limit", "budget", "usage", "per"),
    )
)
"""If one of these words is in the name, `token` means tokens of a language model."""
_URL_PASSWORD = re.compile(r"\w://[^\s/:@'\"]{0,200}:([^\s/@'\"]{1,500})@")
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


class _PrefixFinder:
    """Finds the first characters of a secret's form at the end of a text."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms: defaultdict[str, list[str]] = defaultdict(list)
        for form in forms:
            for size in range(1, _MIN_SECRET_CHARS + 1):
                self._forms[form[:size]].append(form)
        self._max_length = max(map(len, forms))

    def partial_length(self, text: str) -> int:
        """Count the characters at the end of a text that may be the start of a form."""
        for start in range(max(len(text) - self._max_length, 0), len(text)):
            forms = self._forms.get(text[start : start + _MIN_SECRET_CHARS], ())
            if any(form.startswith(text[start:]) for form in forms):
                return len(text) - start
        return 0


class _SecretFinder:
    """Finds complete forms of secrets, their starts and, on the reversed text, their ends."""

    def __init__(self, forms: frozenset[str]) -> None:
        self.complete = _pattern_of(forms)
        self.starts = _PrefixFinder(forms)
        self.ends = _PrefixFinder({form[::-1] for form in forms})

    def mask_partial(self, piece: str) -> str:
        """Mask partial forms at both ends of a piece of a text that was cut."""
        if (size := self.starts.partial_length(piece)) >= _MIN_SECRET_CHARS:
            piece = piece[:-size] + MASK
        if (size := self.ends.partial_length(piece[::-1])) >= _MIN_SECRET_CHARS:
            piece = MASK + piece[size:]
        return piece


# Built again only after a secret was added: `_forms` is another set then.
_finder = lru_cache(maxsize=1)(_SecretFinder)
_lock = threading.Lock()
_forms: frozenset[str] = frozenset()
"""Forms of all secrets."""
_environment: Mapping[Any, Any] = {}
"""Copy of the environment when it was last read."""


def _pattern_of(forms: Iterable[str]) -> re.Pattern[str]:
    """Make one pattern, longest form first: a key may contain another one.

    Forms are grouped by their first character, so that the regex tries few branches at each
    position; a flat alternation of thousands of forms is slow on long texts.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for form in sorted(forms, key=len, reverse=True):
        groups[form[0]].append(re.escape(form[1:]))
    return re.compile("|".join(f"{re.escape(c)}(?:{'|'.join(g)})" for c, g in groups.items()))


def register_secret(text: str) -> None:
    """Make `redact` hide a text: literal, as URL, JSON, hexadecimal, base64 and base32."""
    global _forms
    text = text.strip()
    if len(text) < _MIN_SECRET_CHARS or text in _forms:
        return
    raw = text.encode("utf-8", "surrogatepass")
    forms = {
        text,
        quote(text, safe=""),
        quote_plus(text),
        json.dumps(text)[1:-1],
        *_escape_forms(text),
    }
    forms |= {raw.hex(), raw.hex().upper()}
    for encode, bits, alignments in ((base64.b64encode, 6, 3), (base64.b32encode, 5, 5)):
        for shift in range(alignments):
            # If the key is inside a longer encoded text (`user:key`), its first and last digits
            # depend on its neighbours, and the rest on its offset. So each offset is encoded, and
            # the digits at the borders are dropped.
            coded = encode(b"\0" * shift + raw).decode()
            coded = coded[-(-shift * 8 // bits) : (shift + len(raw)) * 8 // bits]
            forms |= {coded, coded.translate(_URL_SAFE) if bits == 6 else coded.lower()}
    # For writers only: the set is replaced, never changed, so readers need no lock.
    with _lock:
        _forms |= forms


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
    _environment = now
    named = dict(os.environ)
    register_named_secrets(named)
    for variable, text in named.items():
        # Whatever it looks like: this name is certain, and some keys have no digits.
        if variable.upper().endswith("_API_KEY"):
            register_secret(text)
        for password in _URL_PASSWORD.findall(text):
            register_named_secrets({"password": unquote(password)})
    for name in _HTTP_LOGGERS:
        # Their debug lines contain URLs and headers, unredacted. A level that the user set stays.
        if (log := logging.getLogger(name)).level == logging.NOTSET:
            log.setLevel(logging.WARNING)


def register_named_secrets(names: Mapping[str, Any]) -> None:
    """Make `redact` hide texts whose name and form suggest a secret."""
    for name, text in list(names.items()):
        if type(text) is str and len(text) <= _MAX_SECRET_CHARS and is_secret_name(name):
            # A value may have several words (`Bearer KEY`); only those that look like keys count.
            for word in text.split():
                if _looks_secret(name, word):
                    register_secret(word)


def is_secret_name(name: object) -> bool:
    """True if a variable, key or column of this name probably holds a secret."""
    if isinstance(name, tuple):
        return any(map(is_secret_name, cast("tuple[object, ...]", name)))
    # By type, not isinstance(): names may be any object, whose `__class__` or `__str__` may raise.
    return issubclass(type(name), str) and _is_secret_name(str.__str__(cast("str", name))[:200])


@lru_cache(maxsize=4_096)
def _is_secret_name(name: str) -> bool:
    if name.endswith("Error"):  # an exception class, such as KeyError
        return False
    if min_secret_chars(name) == _MIN_SECRET_CHARS:
        return True
    name_words = _words_of(name)
    ending = [
        w for w in name_words if w.endswith(_KEY_ENDINGS) and not _ORDINARY_WORDS.fullmatch(w)
    ]
    counts = all(word in ("token", "tokens") for word in ending)
    return bool(ending) and not (counts and not _COUNT_WORDS.isdisjoint(name_words))


def min_secret_chars(name: str) -> int:
    """Return the minimum length of a secret under this name.

    Names such as `sort_key` are ambiguous: short texts under them are ordinary words.
    """
    name_words = _words_of(name)
    joined = "".join(name_words)
    certain = any(part in joined for part in _SECRET_PARTS) or not _SECRET_WORDS.isdisjoint(
        name_words
    )
    # PAT is a personal access token, as variables of the environment name it (GITHUB_PAT).
    return _MIN_SECRET_CHARS if certain or "PAT" in name.split("_") else _MIN_SECRET_CHARS * 2


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _NAME_WORD.findall(name[:200])]


def _looks_secret(name: str, text: str) -> bool:
    """True if a text under the name of a secret looks like one: long, mixed, and not a path."""
    mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
    is_path = text[:1] in "/~." and os.path.exists(os.path.expanduser(text))
    return len(text) >= min_secret_chars(name) and mixed and not is_path


def any_secret_known() -> bool:
    """True if there is anything to redact; lets hot paths skip the filter."""
    return bool(_forms)


def redact(text: str) -> str:
    """Replace every known secret in a text by `[redacted]`."""
    return _finder(_forms).complete.sub(MASK, text) if _forms else text


def redact_truncated(text: str) -> str:
    """Redact a text that others may have cut: also hides the rest of a secret at a cut.

    A rest is the start of a secret before `…`, `...` or the end of the text, or the end of one
    after `…`, `...` or the start of the text. Rests under eight characters stay: they also occur
    in ordinary words.
    """
    if not _forms:
        return text
    return "".join(map(_finder(_forms).mask_partial, _CUT_MARK.split(redact(text))))


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
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now."""
        if not _forms:
            return piece
        text = redact(self._pending + piece)
        n_kept = _finder(_forms).starts.partial_length(text)
        self._pending = text[len(text) - n_kept :]
        return text[: len(text) - n_kept]

    def flush(self) -> str:
        """Return the text that was kept back."""
        pending, self._pending = self._pending, ""
        return redact(pending)
