"""Old tool results that a request sends shortened: which ones, by which rule, and the short form.

Pure: the engine sends what this makes, and the store rebuilds it from the same references. What
is shortened, and when, is the engine's to decide. The history itself never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.chat import Message, Part, TextPart, Value

KEEP_CHARS = 200
_WORTH_CHARS = 500
"""A shorter result would hardly become smaller."""


class Trimmed(Value):
    """The tool messages of a request that were sent shortened, and the rule."""

    places: tuple[int, ...]
    """Their places in the conversation, from 0, ascending."""
    keep_chars: int = KEEP_CHARS
    """So many characters of each result were kept."""

    def applied(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages as they were sent."""
        sent = list(messages)
        for place in self.places:
            if place < len(sent):
                sent[place] = shortened(sent[place], self.keep_chars)
        return tuple(sent)


def is_worth_it(message: Message) -> bool:
    """Whether a message is a tool result that becomes much smaller when it is shortened."""
    if message.role != "tool":
        return False
    return len(message.content) > 1 or len(message.text) >= _WORTH_CHARS


def shortened(message: Message, keep_chars: int = KEEP_CHARS) -> Message:
    """A tool message with the start of its result, as JSON that says what is missing.

    `{"ok": true, "data": "<the first characters>…", "trimmed": "from 48,213 to 200 characters"}`;
    of an error the code stays whole and its message is cut; images and files are left out.
    """
    text = message.text
    body = _object(text)
    extra = [part for part in message.content if not isinstance(part, TextPart)]
    kept: dict[str, Any] = {}
    error = json_object(body.get("error"))
    if body.get("ok") is False and error is not None:
        whole = str(error.get("message", ""))
        kept = {"ok": False, "error": {"code": error.get("code"), "message": whole}}
        whole += _as_text(error["details"]) if "details" in error else ""
        kept["error"]["message"] = start = _start(whole, keep_chars)
    else:
        whole = _as_text(body["data"]) if "data" in body else text
        kept = {"ok": True} if body.get("ok") is True else {}
        kept["data"] = start = _start(whole, keep_chars)
    kept["trimmed"] = _said(len(whole), min(len(start), keep_chars), extra)
    part = TextPart(text=dump_json(kept).decode("utf-8", "replace"))
    return message.model_copy(update={"content": (part,)})


def _object(text: str) -> dict[str, Any]:
    try:
        return json_object(load_json(text)) or {}
    except (ValueError, RecursionError):
        return {}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value).decode("utf-8", "replace")


def _start(text: str, keep_chars: int) -> str:
    return text if len(text) <= keep_chars else f"{text[:keep_chars]}…"


def _said(before: int, after: int, extra: Sequence[Part]) -> str:
    words = f"from {before:,} to {after:,} characters" if before > after else "its text is whole"
    if extra:
        kinds = [cast("str", part.type) for part in extra]
        left = [f"{kinds.count(k)} {k}{'s' * (kinds.count(k) > 1)}" for k in dict.fromkeys(kinds)]
        words += f"; {' and '.join(left)} left out"
    return words
