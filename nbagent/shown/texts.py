"""Makes text safe to show: within a budget, encodable, without memory addresses and host folders.

Owns cutting, a `repr` that cannot fail, and bytes as text. Characters that people would not see are
in `contracts.hidden_characters`, containers in `values`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from nbagent.contracts.hidden_characters import readable as readable
from nbagent.contracts.hidden_characters import visible as visible
from nbagent.contracts.hidden_characters import without_codes as without_codes
from nbagent.contracts.secrets import redact, redact_truncated

BUDGET_CHARS = 4_000
"""Default budget for the text of one value."""
OMITTED = " left out; ask for a smaller part"
"""Part of every mark at an omission; tells the model how to get the rest."""
VALUE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""Errors that a value's own code may raise while it is shown. Not KeyboardInterrupt: it is the
person's."""
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{4,16}\b| id='\d{6,20}'")
"""An address in a `repr`, or the id in that of a mock. It differs in each process, and with it the
request, so caches and cassettes would miss."""
_MARGIN_CHARS = 10_000
"""Text read around a cut, so that a secret or address that crosses the cut is recognised. No key is
longer."""
_BINARY = re.compile(r"[^\t\n\r\f\x1b -~\x80-\U0010ffff]")
_SNIFFED_BYTES = 4_096
_SHOWN_BYTES = 7
"""Bytes shown in hexadecimal: fewer than a secret has, as this form is not in the filter."""


def count_of(number: int, word: str) -> str:
    """Write `1 row`, `3 rows`."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def cut_middle(text: str, budget_chars: int) -> str:
    """Cut a text to a budget: replace its middle by a mark with the number of missing characters.

    The text is redacted first: no filter recognises half a key.
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
        # The middle of a huge text (100 MB) is dropped unread: redacting it would take minutes.
        start, end = redact_truncated(text[:window]), redact_truncated(text[-window:])
    mark = f"… [{size:,} of {size:,} characters{OMITTED}] …"
    room = budget_chars - len(mark)
    if room < 2:
        return start[: max(budget_chars, 0)]
    head, tail = start[: room - room // 2], end[len(end) - room // 2 :]
    mark = f"… [{size - len(head) - len(tail):,} of {size:,} characters{OMITTED}] …"
    return head + mark + tail


def clean(text: str) -> str:
    """Make a text encodable: replace lone surrogates, join pairs of them."""
    plain = str.__str__(text)  # a subclass may override any method
    if plain.isascii():
        return plain
    try:
        plain.encode()
    except UnicodeEncodeError:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return plain


def without_folders(text: str) -> str:
    """Replace the working folder and the home folder at the start of paths by `.` and `~`."""
    if os.sep not in text:
        return text
    folders = {os.path.expanduser("~"): "~"}
    with suppress(OSError):  # The working folder may be deleted.
        # First, because it is usually inside the home folder.
        folders = {os.getcwd(): ".", **folders}
    for folder, replacement in folders.items():
        if len(folder) > 1:  # every path starts with `/`, the home of some containers
            pattern = rf"(?<![\w.~/\\-]){re.escape(folder)}(?=[\\/'\"\s:,)\]>]|$)"
            text = re.sub(pattern, replacement, text)
    return text


def safe_repr(value: object, budget_chars: int = BUDGET_CHARS) -> str:
    """Return a `repr` that cannot fail, without memory addresses and host folders."""
    name = class_name(value)
    try:
        text = repr(value)
    except VALUE_ERRORS as error:
        text = f"<{name} object, its repr failed with {type(error).__name__}>"
    # Cut first with a margin, so that the patterns do not scan a huge repr.
    text = redact_truncated(clean(cut_middle(text, budget_chars + _MARGIN_CHARS)))
    return cut_middle(without_folders(_ADDRESS.sub("", text)), budget_chars)


def class_name(value: object) -> str:
    """Return the name of the value's class, even if its metaclass overrides `__name__`."""
    try:
        return clean(str(type.__dict__["__name__"].__get__(type(value))))[:100]
    except VALUE_ERRORS:
        return "unknown"


def error_line(error: BaseException) -> str:
    """Format an exception that is a value as `Type: message`."""
    try:
        text = str(error)
    except VALUE_ERRORS:
        text = "(its message cannot be shown)"
    return f"{class_name(error)}: {text}" if text else class_name(error)


def bytes_text(value: bytes | bytearray | memoryview) -> str:
    """Decode bytes that are text; else return `bytes, 1,024: 89504e47…`."""
    data = bytes(value)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not _BINARY.search(text, 0, _SNIFFED_BYTES):
        return text
    rest = "…" if len(data) > _SHOWN_BYTES else ""
    return f"bytes, {len(data):,}: {data[:_SHOWN_BYTES].hex()}{rest}"
