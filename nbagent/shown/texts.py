"""Text that is safe to show: within a budget, encodable, without addresses and host folders.

Owns cutting, `repr` that cannot fail, bytes as text, and which characters are hidden from people.
Knows no containers.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from nbagent.contracts.secrets import redact, redact_truncated

BUDGET_CHARS = 4_000
"""Of one value as text, where the caller names no budget of its own."""
LEFT_OUT = " left out; ask for a smaller part"
"""In every mark that stands for what is missing."""
BROKEN = (Exception, SystemExit, GeneratorExit)
"""What a value's own code may raise while it is shown; a person's interrupt is not among it."""
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{4,16}\b| id='\d{6,20}'")
_MARGIN_CHARS = 10_000
"""Around a cut, so that a secret or an address which lies across it is seen. No key is longer."""
_BINARY = re.compile(r"[^\t\n\r\f\x1b -~\x80-\U0010ffff]")
_BYTES_READ = 4_096
_BYTES_SHOWN = 7
"""In hexadecimal: fewer than any secret has, which no filter would know so."""
_CODES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -~])?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Controls, soft hyphens, fillers, zero-width, bidi, variation selectors (but U+FE0F, which ordinary
# emoji have), tags, lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
# Of these, what a text in any language can do without: orders to turn the reading direction
# (whole lines may read as something else) and tags (words that only a model sees).
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")


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
        start, end = redact_truncated(text[:window]), redact_truncated(text[-window:])
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
    folders = {os.path.expanduser("~"): "~"}
    with suppress(OSError):  # The working folder may be gone.
        folders = {os.getcwd(): ".", **folders}
    for folder, instead in folders.items():
        if len(folder) > 1:
            whole = rf"(?<![\w.~/\\-]){re.escape(folder)}(?=[\\/'\"\s:,)\]>]|$)"
            text = re.sub(whole, instead, text)
    return text


def plain_repr(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """`repr` that cannot fail, without memory addresses and host folders, within a budget."""
    name = kind_name(value)
    try:
        text = repr(value)
    except BROKEN as error:
        text = f"<{name} object, its repr failed with {type(error).__name__}>"
    # The middle of a huge repr is dropped before the patterns read all of it.
    text = redact_truncated(clean(cut_middle(text, budget_chars + _MARGIN_CHARS)))
    return cut_middle(without_folders(_ADDRESS.sub("", text)), budget_chars)


def kind_name(value: object) -> str:
    """The name of its class, whatever that class does."""
    try:
        return clean(str(type.__dict__["__name__"].__get__(type(value))))[:100]
    except BROKEN:
        return "unknown"


def error_line(error: BaseException) -> str:
    """`Type: message` of an exception that is a value."""
    try:
        text = str(error)
    except BROKEN:
        text = "(its message cannot be shown)"
    return f"{kind_name(error)}: {text}" if text else kind_name(error)


def bytes_text(value: bytes | bytearray | memoryview) -> str:
    """Bytes as their text when they are text, else `bytes, 1,024: 89504e47…`."""
    data = bytes(value)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not _BINARY.search(text, 0, _BYTES_READ):
        return text
    rest = "…" if len(data) > _BYTES_SHOWN else ""
    return f"bytes, {len(data):,}: {data[:_BYTES_SHOWN].hex()}{rest}"


def visible(text: str) -> str:
    """What a tool took or gave, for a person: no terminal codes, hidden characters as `⟦U+202E⟧`.

    Characters are hidden that are not seen, reorder others or carry text unseen.
    """
    return _HIDDEN.sub(_code_point, without_codes(text))


def readable(text: str) -> str:
    """What a model wrote, for a person: as `visible`, but what scripts and emoji need stays."""
    return _TURNING.sub(_code_point, _CONTROLS.sub("\ufffd", without_codes(text)))


def without_codes(text: str) -> str:
    """The text without the codes that colour a terminal, with the line ends of Unix."""
    return _CODES.sub("", text).replace("\r\n", "\n")


def _code_point(match: re.Match[str]) -> str:
    return f"⟦U+{ord(match[0]):04X}⟧"
