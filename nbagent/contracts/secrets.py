"""Who holds keys, and the filter that every sink passes its texts through.

A `SecretKey` shows itself as `***`, cannot be pickled, and registers its literal and encoded
forms with the filter; `redact` replaces each of them. Redact first, then cut: half a key that is
cut off matches nothing any more (`redact_cut` is for what others have cut).
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NoReturn, cast
from urllib.parse import quote, quote_plus

MASK = "[redacted]"
_SHORTEST = 8
"""Shorter values (`none`, `ollama`) are placeholders; hiding them would garble ordinary text."""
_AT_CUT = re.compile(r"[\s\[\]('\"]{0,2}(?:…|\.{2,3})|\Z")
"""What stands where a text was cut; the same read backwards."""


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
        raise TypeError("a SecretKey is never pickled")

    def __copy__(self) -> SecretKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SecretKey:
        return self


class _Filter:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.forms: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.longest = 0
        self.starts = _Starts(frozenset())
        self.ends = _Starts(frozenset())

    def add(self, forms: set[str]) -> None:
        with self.lock:
            if forms <= self.forms:
                return
            self.forms = self.forms | forms
            ordered = sorted(self.forms, key=len, reverse=True)
            self.longest = len(ordered[0])
            self.pattern = re.compile("|".join(map(re.escape, ordered)))
            self.starts = _Starts(self.forms)
            self.ends = _Starts(frozenset(form[::-1] for form in self.forms))


class _Starts:
    """Finds the first characters of a form where the rest of it was cut off."""

    def __init__(self, forms: frozenset[str]) -> None:
        self._forms: defaultdict[str, list[str]] = defaultdict(list)
        for form in forms:
            self._forms[form[:_SHORTEST]].append(form)
        any_of = "|".join(map(re.escape, self._forms)) or r"(?!)"
        self._pattern = re.compile(any_of)
        self._places = re.compile(f"(?=({any_of}))")
        """Each place that one begins at, also within another."""
        self._short = frozenset(form[:n] for form in forms for n in range(1, _SHORTEST))

    def hidden(self, text: str, mask: str) -> str:
        pieces: list[str] = []
        after = 0
        for match in self._pattern.finditer(text):
            start = match.start()
            end = start + max(_shared(text, start, form) for form in self._forms[match[0]])
            if start >= after and _AT_CUT.match(text, end):
                pieces += [text[after:start], mask]
                after = end
        return "".join([*pieces, text[after:]])

    def at_end(self, text: str) -> int:
        """How many characters at the end of a text may be the start of a form."""
        for match in self._places.finditer(text):
            tail = text[match.start() :]
            if any(form.startswith(tail) for form in self._forms[match[1]]):
                return len(tail)
        sizes = range(min(len(text), _SHORTEST - 1), 0, -1)
        return next((size for size in sizes if text[-size:] in self._short), 0)


def _shared(text: str, start: int, form: str) -> int:
    """How many characters of the form stand there; the first ones are known to."""
    size = _SHORTEST
    while size < len(form) and text[start + size : start + size + 1] == form[size]:
        size += 1
    return size


_filter = _Filter()


def register(text: str) -> None:
    """Make `redact` hide this text: literal, as URL, JSON, hexadecimal, base64 and base32."""
    text = text.strip()
    if len(text) < _SHORTEST or text in _filter.forms:
        return
    forms = {text, quote(text, safe=""), quote_plus(text), json.dumps(text)[1:-1]}
    raw = text.encode("utf-8", "surrogatepass")
    forms |= {raw.hex(), raw.hex().upper(), *_escaped(text)}
    for shift in range(5):
        # As below: five alignments of a longer text, and only what no neighbour blurs.
        coded = base64.b32encode(b"\0" * shift + raw).decode()
        middle = coded[-(shift * -8 // 5) : (shift + len(raw)) * 8 // 5]
        forms |= {middle, middle.lower()}
    for shift in range(3):
        # Base64 of a longer text that holds the key: three alignments, the blurred ends cut off.
        coded = base64.b64encode(b"\0" * shift + raw).decode()
        start = (0, 2, 3)[shift]
        middle = coded[start : len(coded) - (4 if coded.endswith("=") else 0)]
        if len(middle) >= _SHORTEST:
            forms |= {middle, middle.replace("+", "-").replace("/", "_")}
    _filter.add(forms)


def _escaped(text: str) -> set[str]:
    """Every character as the escape of JSON and Python; beyond the first plane they differ."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    json_form = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    python_form = "".join(
        f"\\u{ord(c):04x}" if c < "\U00010000" else f"\\U{ord(c):08x}" for c in text
    )
    lower = {json_form, python_form}
    return lower | {re.sub(r"(?<=\\[uU])[0-9a-f]+", lambda m: m[0].upper(), one) for one in lower}


def register_environment(environ: Mapping[str, str] | None = None) -> None:
    """Make `redact` hide every key of the environment, also one that no provider uses.

    Called before anything of a run is read, and for each run: the environment changes.
    """
    for variable, text in (os.environ if environ is None else environ).items():
        if variable.upper().endswith("_API_KEY"):
            register(text)


def any_secret_known() -> bool:
    """Whether there is anything to hide; False lets hot paths skip the filter."""
    return _filter.pattern is not None


def redact(text: str) -> str:
    """The text with every known secret replaced by `[redacted]`."""
    pattern = _filter.pattern
    return text if pattern is None else pattern.sub(MASK, text)


def redact_cut(text: str) -> str:
    """`redact` for a text that others may have cut: hides also what a cut left of a secret.

    That is its start before a `…`, `...` or the end of the text, or its end behind one of them or
    at the start. Less than eight characters stay: so many are in ordinary words too.
    """
    if _filter.pattern is None:
        return text
    text = _filter.starts.hidden(redact(text), MASK)
    return _filter.ends.hidden(text[::-1], MASK[::-1])[::-1]


def redact_json(value: Any) -> Any:
    """A JSON value with every string in it (keys too) passed through `redact`."""
    if _filter.pattern is None:
        return value
    return _walk(value)


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return {(redact(k) if isinstance(k, str) else k): _walk(v) for k, v in items.items()}
    if isinstance(value, list):
        return [_walk(v) for v in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(_walk(v) for v in cast("tuple[Any, ...]", value))
    return value


class StreamFilter:
    """`redact` for a text that arrives in pieces: holds back what may be the start of a secret."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may be shown now."""
        pattern = _filter.pattern
        if pattern is None and not self._held:
            return piece
        text = redact(self._held + piece)
        keep = _filter.starts.at_end(text[-_filter.longest :])
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was still held back."""
        held, self._held = self._held, ""
        return redact(held)
