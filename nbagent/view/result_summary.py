"""The result of a call in a few words, by the shape of its JSON and not by the tool's name.

Files are named by the end of their path, lists by their length and first entry, scripts by the last
line that they printed, failures by code and message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nbagent.contracts.errors import ErrorInfo
from nbagent.view.text_format import (
    format_size,
    one_line,
    pluralize,
    sanitize_value,
    short_json,
    summarize_value,
    table_shape,
)

_PATH_CHARS = 44
_ENTRY_CHARS = 40
_LINE_CHARS = 60
_FIELDS_CHARS = 72
_MESSAGE_CHARS = 90
_SIZES = ("bytes", "bytesWritten", "size")
"""Fields that hold the size of the file in `path`."""
_NAMES = ("path", "name", "title", "id")
"""Fields by which an entry of a list is named."""


def summarize_result(data: Any) -> str:
    """Summarize a result: `717,710`, `…/notes.md · 2.1 kB`, `3 matches: a.py:12`."""
    if isinstance(data, list | tuple):
        items = cast("Sequence[Any]", data)
        return short_json(items) or table_shape(items) or _list_text("items", items)
    if not isinstance(data, dict):
        return summarize_value(data)
    fields = cast("dict[str, Any]", data)
    shown = _script_text(fields) or _file_text(fields) or _variable_text(fields)
    return shown or _empty_text(fields) or short_json(fields) or _fields_text(fields)


def summarize_error(error: ErrorInfo) -> str:
    """Summarize an error: its code and the start of its message."""
    message = one_line(sanitize_value(error.message), _MESSAGE_CHARS)
    return f"{error.code}: {message}" if message else error.code


def path_end(path: str) -> str:
    """Shorten a path to its last folders and its name: `…/reports/notes.md`."""
    shown = one_line(sanitize_value(path[-4_000:]), 4_000)
    if len(shown) <= _PATH_CHARS:
        return shown
    parts = shown.split("/")
    end = parts.pop()
    while parts and len(parts[-1]) + len(end) + 3 <= _PATH_CHARS:
        end = f"{parts.pop()}/{end}"
    return f"…/{end}" if len(end) < _PATH_CHARS else f"…{end[1 - _PATH_CHARS :]}"


def _script_text(fields: dict[str, Any]) -> str:
    """Text of a script's or a cell's result: how it ended, and the last line that it printed."""
    if not isinstance(fields.get("stdout"), str):
        return ""
    code = fields.get("returncode")
    failed = isinstance(code, int) and code != 0
    ends = ["timed out"] if fields.get("timed_out") is True else []
    ends += [f"exit {code}"] if failed and not ends else []
    streams: list[Any] = [fields.get("stderr"), fields["stdout"]]
    streams = streams if failed or ends else streams[::-1]
    printed = next((line for line in map(_last_line, streams) if line), "")
    value = fields.get("result", fields.get("value"))
    texts = [*ends, *([f'"{printed}"'] if printed else [])]
    if value is not None and not printed:
        texts.append(summarize_value(value))
    return " · ".join(texts) or "nothing printed"


def _variable_text(fields: dict[str, Any]) -> str:
    """Text of a variable that was set: `total = 41`, or its type if the value is long."""
    now = fields.get("now")
    if not isinstance(now, dict) or fields.keys() != {"name", "before", "now"}:
        return ""
    facts = cast("dict[str, Any]", now)
    value = facts.get("value", facts.get("type"))
    name, shown = (one_line(sanitize_value(str(text)), 40) for text in (fields["name"], value))
    return f"{name} = {shown}" if "value" in facts else f"{name}: {shown}"


def _last_line(text: Any) -> str:
    lines = text[-4_000:].strip().splitlines() if isinstance(text, str) else []
    return one_line(sanitize_value(lines[-1]), _LINE_CHARS) if lines else ""


def _file_text(fields: dict[str, Any]) -> str:
    """Text of a result with a path: the path's end, its size or its entries."""
    path = fields.get("path")
    if not isinstance(path, str) or not path:
        return ""
    texts = [path_end(path)]
    size = next((fields[name] for name in _SIZES if isinstance(fields.get(name), int)), None)
    if size is not None:
        texts.append(format_size(size))
    texts += [_list_text(name, items) for name, items in _lists(fields)[:1]]
    if fields.get("truncated") is True:
        texts.append("cut")
    return " · ".join(texts)


def _lists(fields: dict[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    return [(name, value) for name, value in fields.items() if isinstance(value, list | tuple)]


def _empty_text(fields: dict[str, Any]) -> str:
    """`no matches`: text of a result whose lists are empty; empty if it has a value, too."""
    if any(map(_says_something, fields.values())):
        return ""
    return ", ".join(_list_text(name, items) for name, items in _lists(fields))


def _says_something(value: Any) -> bool:
    """True for a value that is worth a summary; an object of numbers only counts something."""
    if isinstance(value, dict):
        counts = cast("dict[Any, Any]", value).values()
        return not all(isinstance(count, int | float) for count in counts)
    return bool(value)


def _list_text(name: str, items: Sequence[Any]) -> str:
    """`3 matches: notes.md:12, …`: the length of a list and its first entry."""
    name = one_line(sanitize_value(name), 24)
    if not items:
        return f"no {name}"
    first = _entry_text(items[0])
    if len(items) == 1:
        return f"{name}: {first}"
    count = pluralize(len(items), "item") if name == "items" else f"{len(items):,} {name}"
    return f"{count}: {first}, …"


def _entry_text(item: Any) -> str:
    """Name an entry of a list by its path, its name, or its start."""
    if isinstance(item, str):
        return path_end(item) if "/" in item and " " not in item else summarize_value(item)
    if not isinstance(item, dict):
        return one_line(summarize_value(item), _ENTRY_CHARS)
    fields = cast("dict[str, Any]", item)
    label = next((fields[name] for name in _NAMES if isinstance(fields.get(name), str)), None)
    if label is None:
        return one_line(_fields_text(fields), _ENTRY_CHARS)
    number = fields.get("line")
    return path_end(label) + (f":{number}" if isinstance(number, int) else "")


def _fields_text(fields: dict[str, Any]) -> str:
    """`city="Oslo", population=717,710, …`: the first fields, or the only list."""
    lists = _lists(fields)
    scalars = [name for name, value in fields.items() if isinstance(value, str | int | float)]
    if len(lists) == 1 and not any(isinstance(fields[name], str) for name in scalars):
        return _list_text(*lists[0])
    texts: list[str] = []
    for name, value in fields.items():
        text = f"{one_line(sanitize_value(str(name)), 24)}={one_line(summarize_value(value), 40)}"
        if texts and sum(map(len, texts)) + len(text) > _FIELDS_CHARS:
            return f"{', '.join(texts)}, … ({pluralize(len(fields), 'key')})"
        texts.append(text)
    return ", ".join(texts) or "{}"
