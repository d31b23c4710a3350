"""Who holds keys, which names say that something is a secret, and the filter of every border.

A `SecretKey` shows itself as `***`, cannot be pickled, and registers its literal and encoded
forms with the filter; `redact` replaces each of them. It is asked where something leaves: at the
end of a call, in deltas, in what is kept, printed, logged or exported, not on the way there.
Redact first, then cut: half a key that is cut off matches nothing any more (`redact_cut` is for
what others have cut).
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
_SHORTEST = 8
"""Shorter values (`none`, `ollama`) are placeholders; hiding them would garble ordinary text."""
_LONGEST = 10_000
_CUT = re.compile(r"([\s\[\]('\"]{0,2}(?:…|\.{2,})[\s\[\]('\"]{0,2})")
"""What stands where a text was cut."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ANYWHERE = (
    *("secret", "passw", "passphrase", "passcode", "credential", "apikey", "accesskey"),
    *("privatekey", "signingkey", "keyring", "keystore", "keychain", "keypair", "keyfile"),
    *("authorization", "bearer"),
)
_WHOLE = frozenset({"pwd", "jwt", "cookie", "cookies", "otp"})
_ENDINGS = ("key", "keys", "token", "tokens")
_NO_KEYS = re.compile(r"(?:mon|tur|don|joc|hoc|whis|hot)keys?")
_COUNTED = frozenset(
    (
        *("max", "min", "num", "n", "total", "prompt", "completion", "cached", "reasoning"),
        *("input", "output", "count", "counts", "limit", "budget", "usage", "per"),
    )
)
"""With one of these words, tokens are those of a language model."""
_IN_ADDRESS = re.compile(r"\w://[^\s/:@'\"]{0,200}:([^\s/@'\"]{1,500})@")
_URL_SAFE = str.maketrans("+/", "-_")
_HTTP_LOGS = ("httpcore2", "httpx2")


class SecretKey:
    """A credential that does not leak by being printed, compared, pickled or walked over."""

    __slots__ = ("__reveal",)

    def __init__(self, text: str) -> None:
        self.__reveal = lambda: text
        register(text)

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


class _Starts:
    """Finds the first characters of a form at the end of a text."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms: defaultdict[str, list[str]] = defaultdict(list)
        for form in forms:
            for size in range(1, _SHORTEST + 1):
                self._forms[form[:size]].append(form)
        self._longest = max(map(len, forms))

    def at_end(self, text: str) -> int:
        """How many characters at the end of a text may be the start of a form."""
        for start in range(max(len(text) - self._longest, 0), len(text)):
            forms = self._forms.get(text[start : start + _SHORTEST], ())
            if any(form.startswith(text[start:]) for form in forms):
                return len(text) - start
        return 0


class _Finder:
    """Finds whole forms, their starts and, read backwards, their ends."""

    def __init__(self, forms: frozenset[str]) -> None:
        self.whole = _any_of(forms)
        self.starts = _Starts(forms)
        self.ends = _Starts({form[::-1] for form in forms})

    def without_rest(self, piece: str) -> str:
        """A piece of a text that was cut at both ends, without what is left there of a form."""
        if (size := self.starts.at_end(piece)) >= _SHORTEST:
            piece = piece[:-size] + MASK
        if (size := self.ends.at_end(piece[::-1])) >= _SHORTEST:
            piece = MASK + piece[size:]
        return piece


_finder = lru_cache(maxsize=1)(_Finder)
_lock = threading.Lock()
_forms: frozenset[str] = frozenset()
"""Of every secret."""
_environment: Mapping[Any, Any] = {}
"""As it was read last."""


def _any_of(forms: Iterable[str]) -> re.Pattern[str]:
    """One pattern, the longest form first. Grouped, it looks at few branches a character."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for form in sorted(forms, key=len, reverse=True):
        groups[form[0]].append(re.escape(form[1:]))
    return re.compile("|".join(f"{re.escape(c)}(?:{'|'.join(g)})" for c, g in groups.items()))


def register(text: str) -> None:
    """Make `redact` hide this text: literal, as URL, JSON, hexadecimal, base64 and base32."""
    global _forms
    text = text.strip()
    if len(text) < _SHORTEST or text in _forms:
        return
    raw = text.encode("utf-8", "surrogatepass")
    forms = {text, quote(text, safe=""), quote_plus(text), json.dumps(text)[1:-1], *_escaped(text)}
    forms |= {raw.hex(), raw.hex().upper()}
    for encode, bits, alignments in ((base64.b64encode, 6, 3), (base64.b32encode, 5, 5)):
        for shift in range(alignments):
            # Of a longer text that holds the key: without what its neighbours blur.
            coded = encode(b"\0" * shift + raw).decode()
            coded = coded[-(-shift * 8 // bits) : (shift + len(raw)) * 8 // bits]
            forms |= {coded, coded.translate(_URL_SAFE) if bits == 6 else coded.lower()}
    with _lock:
        _forms |= forms


def _escaped(text: str) -> set[str]:
    """Every character as the escape of JSON and Python; beyond the first plane they differ."""
    in_json = "\\u" + text.encode("utf-16-be", "surrogatepass").hex("-", 2).replace("-", "\\u")
    in_python = (f"\\u{ord(c):04x}" if c < "\U00010000" else f"\\U{ord(c):08x}" for c in text)
    return {in_json, in_json.upper().replace("U", "u"), "".join(in_python)}


def register_environment() -> None:
    """Make `redact` hide every secret of the environment, whoever set it and whenever.

    Called before anything of a run is read, and where it is written: the environment changes.
    """
    # The dict inside is compared in no time, os.environ itself decodes every text of it.
    global _environment
    now = dict(getattr(os.environ, "_data", os.environ))
    if now == _environment:
        return
    _environment = now
    named = dict(os.environ)
    register_named(named)
    for variable, text in named.items():
        if variable.upper().endswith("_API_KEY"):
            register(text)
        for password in _IN_ADDRESS.findall(text):
            register_named({"password": unquote(password)})
    for name in _HTTP_LOGS:
        # Their lines hold addresses and headers as they are. Who sets a level of his own has them.
        if (log := logging.getLogger(name)).level == logging.NOTSET:
            log.setLevel(logging.WARNING)


def register_named(names: Mapping[str, Any]) -> None:
    """Make `redact` hide texts that are secrets by their name and by their look."""
    for name, text in list(names.items()):
        if type(text) is str and len(text) <= _LONGEST and is_secret_name(name):
            for word in text.split():
                if _looks_secret(name, word):
                    register(word)


def is_secret_name(name: object) -> bool:
    """Whether a variable, key or column of this name is likely to hold a secret."""
    if isinstance(name, tuple):
        return any(map(is_secret_name, cast("tuple[object, ...]", name)))
    return issubclass(type(name), str) and _is_secret_name(str.__str__(cast("str", name))[:200])


@lru_cache(maxsize=4_096)
def _is_secret_name(name: str) -> bool:
    if name.endswith("Error"):
        return False
    if shortest_secret(name) == _SHORTEST:
        return True
    words = _words_of(name)
    ending = [w for w in words if w.endswith(_ENDINGS) and not _NO_KEYS.fullmatch(w)]
    counts = all(word in ("token", "tokens") for word in ending)
    return bool(ending) and not (counts and not _COUNTED.isdisjoint(words))


def shortest_secret(name: str) -> int:
    """How long a secret under such a name is at least.

    A shorter text under a name like `sort_key` is a word of everyday use.
    """
    words = _words_of(name)
    joined = "".join(words)
    certain = any(part in joined for part in _ANYWHERE) or not _WHOLE.isdisjoint(words)
    return _SHORTEST if certain or "PAT" in name.split("_") else _SHORTEST * 2


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name[:200])]


def _looks_secret(name: str, text: str) -> bool:
    """Whether a text under the name of a secret looks like one: long and mixed, and no path."""
    mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
    is_path = text[:1] in "/~." and os.path.exists(os.path.expanduser(text))
    return len(text) >= shortest_secret(name) and mixed and not is_path


def any_secret_known() -> bool:
    """Whether there is anything to hide; False lets hot paths skip the filter."""
    return bool(_forms)


def redact(text: str) -> str:
    """The text with every known secret replaced by `[redacted]`."""
    return _finder(_forms).whole.sub(MASK, text) if _forms else text


def redact_cut(text: str) -> str:
    """`redact` for a text that others may have cut: hides also what a cut left of a secret.

    That is its start before a `…`, `...` or the end of the text, or its end behind one of them or
    at the start. Less than eight characters stay: so many are in ordinary words too.
    """
    if not _forms:
        return text
    return "".join(map(_finder(_forms).without_rest, _CUT.split(redact(text))))


def redact_json(value: Any) -> Any:
    """A JSON value with every string in it (keys too) passed through `redact`."""
    if not _forms:
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {redact_json(key): redact_json(item) for key, item in items}
    if isinstance(value, list | tuple):
        made = [redact_json(item) for item in cast("list[Any]", value)]
        return made if isinstance(value, list) else tuple(made)
    return value


class StreamFilter:
    """`redact` for a text that arrives in pieces: holds back what may be the start of a secret."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may be shown now."""
        if not _forms:
            return piece
        text = redact(self._held + piece)
        keep = _finder(_forms).starts.at_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was still held back."""
        held, self._held = self._held, ""
        return redact(held)
