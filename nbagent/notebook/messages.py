"""Messages of pages: the one place where they are checked. Anybody may have written a page.

A message is a JSON object with a `kind`. An unknown kind, a field of a wrong type, or one that is
too long makes it invalid; unknown fields are left out. What a message may do is up to its receiver:
it looks up runs, questions and buttons by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from nbagent.contracts.canonical import json_object

KINDS = frozenset({
    # a view appears in a page, or leaves it
    *("ready", "closed"),
    # in a live view
    *("fold", "stop", "pause", "answer", "answer_all", "preview"),
    # in a review
    *("label", "skip", "back"),
    # below a finished run
    "act",
    # in the panel
    *("draft", "field", "attach", "detach", "send", "continue", "open", "new", "more", "list"),
    *("export", "below"),
})  # fmt: skip
ID_CHARS = 200
_TEXT_CHARS = 4_000_000
"""Characters of a prompt or of an edited argument."""
_FILE_CHARS = 40_000_000
"""Characters of a file in base64. The panel refuses smaller ones in words."""
_BUTTON_FIELD_CHARS = 100_000
"""Characters of a field in a form below a run."""
_MAX_ITEMS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a page with valid types and sizes. Missing texts are empty."""

    kind: str
    run: str = ""
    """Id of the run, or the key of a batch or review."""
    page: int | str = ""
    """Id of one view in a page; empty for a model that no page shows."""
    tab: str = ""
    """Id of the page, for all views in it."""
    key: str = ""
    """Key of a fold."""
    open: bool = False
    question: str = ""
    questions: tuple[str, ...] = ()
    choice: str = ""
    reason: str = ""
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of a form by name."""
    has_form: bool = False
    """True if `fields` was in the message."""
    do: str = ""
    """Action of a button."""
    at: str = ""
    """Id of the output of a button."""
    turn: str = ""
    case_number: str = ""
    """Position of the case of a review; `place` in the page."""
    value: str = ""
    name: str = ""
    id: str = ""
    prompt: str = ""
    text: str = ""
    data: str = ""


def _is_id(value: object) -> bool:
    return isinstance(value, str) and len(value) <= ID_CHARS


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT_CHARS


def _is_page(value: object) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return is_number or _is_id(value)


def _is_file(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _FILE_CHARS


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_id_list(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else None
    return items is not None and len(items) <= _MAX_ITEMS and all(map(_is_id, items))


def _is_form(value: object) -> bool:
    form = json_object(value)
    return form is not None and len(form) <= _MAX_ITEMS and all(map(_is_text, form.values()))


_CHECKS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(
        ("run", "tab", "key", "question", "choice", "do", "at", "turn", "place"), _is_id
    ),
    **dict.fromkeys(("name", "id"), _is_id),
    **dict.fromkeys(("reason", "value", "prompt", "text"), _is_text),
    "page": _is_page,
    "open": _is_flag,
    "questions": _is_id_list,
    "fields": _is_form,
    "data": _is_file,
}


def read_message(content: object) -> Message | None:
    """Check a message of a page; None if it is not valid."""
    message = json_object(content)
    kind = message.get("kind") if message else None
    if message is None or not isinstance(kind, str) or kind not in KINDS:
        return None
    sent: dict[str, Any] = {name: message[name] for name in _CHECKS if name in message}
    if not all(_CHECKS[name](value) for name, value in sent.items()):
        return None
    form: dict[str, str] = sent.get("fields", {})
    if kind == "act" and not all(_is_button_field(*item) for item in form.items()):
        return None
    sent["questions"] = tuple(sent.get("questions", ()))
    sent["case_number"] = sent.pop("place", "")
    return Message(kind=kind, has_form="fields" in sent, **sent)


def _is_button_field(name: str, text: str) -> bool:
    return len(name) <= ID_CHARS and len(text) <= _BUTTON_FIELD_CHARS
