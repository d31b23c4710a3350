"""Text that is safe to show: within a budget, encodable, without addresses and host folders.

Owns cutting, `repr` that cannot fail, and bytes as text. Knows no containers.
"""

from __future__ import annotations

import os
import re

from nbagent.contracts.secrets import any_secret_known, redact, redact_cut
from nbagent.shown.budgets import BUDGET_CHARS, BYTES_SHOWN

LEFT_OUT = " left out; ask for a smaller part"
"""In every mark that stands for what is missing."""
BROKEN = (Exception, SystemExit, GeneratorExit)
"""What a value's own code may raise while it is shown; a person's interrupt is not among it."""
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{4,16}\b| id='\d{6,20}'")
_MARGIN_CHARS = 10_000
"""Around a cut, so that a secret or an address which lies across it is found. No key is longer."""
_TEXT_CONTROLS = "\t\n\r\f\x1b"
_BYTES_READ = 4_096


def cut_middle(text: str, budget_chars: int) -> str:
    """The text within a budget: its middle is replaced by a mark that says how much is gone.

    What is cut is redacted first: no filter would know half a key again.
    """
    if len(text) <= budget_chars:
        return text
    size = len(text)
    window = max(budget_chars, 0) + _MARGIN_CHARS
    if size <= 2 * window:
        text = redact(text)
        if len(text) <= budget_chars:
            return text
        size, start, end = len(text), text, text
    else:
        # Nobody reads the middle of 100 MB, not even the filter.
        start, end = redact_cut(text[:window]), redact_cut(text[-window:])
    mark = f"… [{size:,} of {size:,} characters{LEFT_OUT}] …"
    room = budget_chars - len(mark)
    if room < 2:
        return start[: max(budget_chars, 0)]
    head, tail = start[: room - room // 2], end[len(end) - room // 2 :]
    mark = f"… [{size - len(head) - len(tail):,} of {size:,} characters{LEFT_OUT}] …"
    return head + mark + tail


def clean(text: str) -> str:
    """The text as encodable Unicode: lone surrogates replaced, pairs of them joined."""
    plain = str.__str__(text)
    if plain.isascii():
        return plain
    try:
        plain.encode()
    except UnicodeEncodeError:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return plain


def without_folders(text: str) -> str:
    """The text with this process's working folder and home taken off the front of paths."""
    if os.sep not in text:
        return text
    for folder, instead in ((_working_folder(), "."), (os.path.expanduser("~"), "~")):
        if len(folder) > 1:
            whole = rf"(?<![\w.~/\\-]){re.escape(folder)}(?=[\\/'\"\s:,)\]>]|$)"
            text = re.sub(whole, lambda _: instead, text)  # noqa: B023
    return text


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # It was deleted.


def plain_repr(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """`repr` that cannot fail, without memory addresses and host folders, within a budget."""
    name = kind_name(value)
    try:
        text = repr(value)
    except BROKEN as error:
        text = f"<{name} object, its repr failed with {type(error).__name__}>"
    # The middle of a huge repr is dropped before the patterns read all of it.
    text = redact_cut(cut_middle(clean(cut_middle(text, budget_chars + _MARGIN_CHARS)), 2**31))
    return cut_middle(without_folders(_ADDRESS.sub("", text)), budget_chars)


def kind_name(value: object) -> str:
    """The name of its class, whatever that class does."""
    try:
        return clean(str(type.__dict__["__name__"].__get__(type(value))))[:100]
    except BROKEN:
        return "unknown"


def said(error: BaseException) -> str:
    """`Type: message` of an exception that is a value."""
    try:
        text = str(error)
    except BROKEN:
        text = "(its message cannot be shown)"
    return f"{kind_name(error)}: {text}" if text else kind_name(error)


def bytes_text(value: bytes | bytearray | memoryview) -> str:
    """Bytes as their text when they are text, else `bytes, 1,024: 89504e47…`.

    Only the start and the end of many bytes are read.
    """
    view = memoryview(value)
    size = view.nbytes
    if view.contiguous and size:
        view = view.cast("B")
    start = bytes(view[:_BYTES_READ])
    text = _text_of(start, whole=size == len(start))
    if text is not None and size > len(start):
        text = _text_of(bytes(view), whole=True)
    return _hexadecimal(start, size) if text is None else redact(text)


def _text_of(data: bytes, *, whole: bool) -> str | None:
    """The text of bytes; None when they are none. A part may end in the middle of a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    if any(c < " " and c not in _TEXT_CONTROLS for c in text[:_BYTES_READ]):
        return None
    return text if text and "\x7f" not in text[:_BYTES_READ] else None


def _hexadecimal(start: bytes, size: int) -> str:
    seen = start[:BYTES_SHOWN]
    if any_secret_known():
        # In hexadecimal no filter knows a key again.
        seen = redact_cut(start.decode("latin-1")).encode("latin-1")[:BYTES_SHOWN]
    return f"bytes, {size:,}: {seen.hex()}{'…' if size > BYTES_SHOWN else ''}"
