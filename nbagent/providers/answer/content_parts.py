"""Read the content of a message, in any form: a text, parts, an object. It becomes the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.providers.answer.images import find_file
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.answer.wire_deltas import Facts, Picture, WireDelta
from nbagent.providers.transport.sse import bad_response, safe_line

MAX_UNREAD_NAMES = 8
"""Named in an error."""
_THOUGHTS = re.compile(r"think|thought|reason|summary", re.I)
_TEXTS = re.compile(r"(?:\w*_)?text|markdown|message", re.I)
_TEXT_FIELDS = ("text", "content", "summary")
"""Fields of a part that hold its text, beside one with the name of its kind."""
_LISTS = ("parts", "content")
"""Fields of an object that hold a list of parts."""


def read_content(content: Any) -> Iterator[WireDelta]:
    """Read any content: a text, a list (Mistral), an object (gateways in JSON mode)."""
    if content is None:
        return
    if isinstance(content, str):
        yield TextPiece(content)
        return
    for part in _parts(content):
        yield from [TextPiece(part)] if isinstance(part, str) else _read_part(part)


def joined_text(content: Any) -> str:
    """Return all texts of a content, of any kind."""
    return "".join(
        piece.text
        for piece in read_content(content)
        if isinstance(piece, TextPiece | ReasoningPiece)
    )


def unread_names(fields: dict[str, Any], known: frozenset[str]) -> Facts | None:
    """Return the names of fields that may hold an answer in a form that no wire reads."""
    if fields.keys() <= known:  # Fast: asked for each piece of an answer.
        return None
    names = [
        name
        for name, value in fields.items()
        if value and isinstance(value, str | list | dict) and name not in known
        # Reasons and filters' results are beside an answer, in vendor fields.
        if not name.endswith("_reason") and "filter" not in name
    ]
    return Facts(unread=names, begun=False) if names else None


def nothing_readable(names: Sequence[str], tokens: int = 0) -> ModelError:
    """Build the error of an answer without a text, a call or anything else that can be read.

    It is paid, so it is asked for once more at most, and not at all if its form is the reason.
    """
    parts = [safe_line(name, 40) for name in names[:MAX_UNREAD_NAMES]]
    parts += [f"{tokens:,} tokens"] if tokens else []
    contents = f" (it has: {', '.join(parts)})" if parts else ""
    fault = bad_response(f"it holds no text and no call{contents}", retry=not names)
    fault.kind = "" if names else "nothing_readable"
    return fault


def _parts(content: Any) -> list[str | dict[str, Any]]:
    whole = json_object(content)
    if whole is not None:
        inner = next((whole[name] for name in _LISTS if _are_parts(whole.get(name))), None)
        if inner is None:
            # A form that a part can have, or the model's own JSON.
            has_form = "type" in whole or whole.keys() == {"text"}
            is_part = has_form and _part_text(whole) is not None
            return [whole if is_part else dump_json(whole).decode()]
        content = inner
    if not isinstance(content, list):
        return [dump_json(content).decode()]  # The model's own JSON: a number, true.
    items = cast("list[Any]", content)
    if items and not any(isinstance(item, str) or _is_part(item) for item in items):
        return [dump_json(items).decode()]
    return [item if isinstance(item, str) else json_object(item) or {} for item in items]


def _are_parts(items: Any) -> bool:
    return bool(objects_in(items)) and all(map(_is_part, objects_in(items)))


def _is_part(item: Any) -> bool:
    """True for a part of a content; other objects are the model's own JSON."""
    part = json_object(item) or {}
    return "type" in part or _part_text(part, ("text",)) is not None or find_file(part) is not None


def _read_part(part: dict[str, Any]) -> Iterator[WireDelta]:
    kind, text = _kind(part), _part_text(part)
    if kind == "refusal" and text:
        yield Facts(refused=True)
        yield TextPiece(text)
    elif text is not None and _THOUGHTS.search(kind):
        yield ReasoningPiece(text)
    elif text is not None and _TEXTS.fullmatch(kind):
        yield TextPiece(text)
    elif (sent := find_file(part)) is not None:
        yield Picture(sent)
    elif part:
        yield Facts(unread=[kind], begun=False)


def _kind(part: dict[str, Any]) -> str:
    return str(part.get("type") or "text")


def _part_text(part: dict[str, Any], further: Sequence[str] = _TEXT_FIELDS) -> str | None:
    """Return the text of a part; None if it has none."""
    for name in (_kind(part), *further):
        value = part.get(name)
        if isinstance(value, list):  # Mistral: thoughts are parts of their own.
            texts = [inner.get("text") for inner in objects_in(cast("Any", value))]
            value = "".join(text for text in texts if isinstance(text, str))
        holder = json_object(value)
        value = value if holder is None else holder.get("value")  # OpenAI's Assistants API.
        if isinstance(value, str):
            return value
    return None
