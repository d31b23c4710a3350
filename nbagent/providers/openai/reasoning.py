"""What a model thought aloud, from each of the places where Chat Completions servers put it.

Remembers the field's name and the opaque details for the way back (`request`).
"""

from __future__ import annotations

from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.providers.frames import objects_in

_FIELDS = ("reasoning", "reasoning_content")
_JOINED = ("text", "summary", "signature", "data")


class ReasoningFold:
    """The reasoning of one answer."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.field: str | None = None
        """The name under which it came, and goes back."""
        self.details: list[dict[str, Any]] = []
        """OpenRouter's `reasoning_details`, deltas joined."""

    def take(self, delta: dict[str, Any], *, whole: bool) -> str:
        """Fold a delta; returns the piece that can be shown."""
        piece = ""
        for field in _FIELDS:
            value = delta.get(field)
            if isinstance(value, str) and value:
                # Some servers send both names with the same text: the first one counts.
                self.field = self.field or field
                piece = value
                break
        details = objects_in(delta.get("reasoning_details"))
        for item in details:
            self._take_detail(item, whole=whole)
        if self.field is None:
            piece = "".join(map(_text_of, details))
        if piece:
            self.pieces.append(piece)
        return piece

    def _take_detail(self, item: dict[str, Any], *, whole: bool) -> None:
        known = None if whole else self._begun(item)
        if known is None:
            self.details.append(dict(item))
            return
        for name, value in item.items():
            before = known.get(name)
            if name in _JOINED and isinstance(before, str):
                known[name] = before + (value if isinstance(value, str) else "")
            elif value is not None:
                known[name] = value

    def _begun(self, item: dict[str, Any]) -> dict[str, Any] | None:
        """The detail that a fragment goes on with."""
        index = item.get("index")
        # Without an index only the last one can be meant.
        for known in reversed(self.details) if index is not None else self.details[-1:]:
            other_id = known.get("id") and item.get("id") and known["id"] != item["id"]
            same = known.get("index") == index and known.get("type") == item.get("type")
            if same and not other_id:
                return known
        return None


def thoughts_of(part: dict[str, Any]) -> str:
    """The text of a Mistral `thinking` chunk: a list of text chunks, or one text."""
    thinking = part.get("thinking")
    if isinstance(thinking, str):
        return thinking
    texts = [(json_object(item) or {}).get("text") for item in objects_in(thinking)]
    return "".join(text for text in texts if isinstance(text, str))


def _text_of(detail: dict[str, Any]) -> str:
    value = detail.get("text") or detail.get("summary")
    return value if isinstance(value, str) else ""
