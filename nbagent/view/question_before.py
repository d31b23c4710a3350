"""The question as `view_types` and `live_view` have it; goes with them. See `question`.

Owns the words and the answers of a question, in the view and by `input()`. When somebody is
asked, and what an answer is worth, belongs to the session. Knows neither IPython nor widgets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.chat import MAX_DEPTH, is_keepable
from nbagent.contracts.policy import PersonAnswer, Question
from nbagent.contracts.secrets import redact
from nbagent.view.view_types import PieceView, QuestionView
from nbagent.view.words import visible

Choice = Literal["once", "session", "deny"]
CHOICES: Final[tuple[Choice, ...]] = ("once", "session", "deny")
REASON_CHARS = 2_000
_COMPACT_CHARS = 76
_LONG_LINES = 14
"""More lines than this have to be scrolled to; the label then says how many there are."""
_LONG_CHARS = 1_400
_MOST_LINES = 24
"""More than this in all pieces pushes what stands below them out of sight."""


def whole(text: str) -> str:
    """All of a text, with everything visible that hides, reorders or draws.

    Unlike `visible`, which drops escapes and what they hold (a colour, a title, an address),
    nothing that is written or run is missing from it.
    """
    return visible(text.replace("\x1b", "⟦U+001B⟧"))


def whole_json(value: Mapping[str, Any]) -> str:
    """Arguments to read, never cut: short ones on one line, others indented."""
    flat = _dumped(value)
    return whole(flat if len(flat) <= _COMPACT_CHARS else _dumped(value, indent=2))


def editable_json(value: Mapping[str, Any], *, one_line: bool = False) -> str:
    """Arguments to edit: JSON that means the same, hidden characters as its own escapes."""
    text = _dumped(value)
    text = text if one_line or len(text) <= _COMPACT_CHARS else _dumped(value, indent=2)
    hidden = {c for c in set(text) if c > "~" and visible(c) != c}
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden}) if hidden else text


def _dumped(value: Mapping[str, Any], *, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str, indent=indent)
    except (RecursionError, ValueError, TypeError):
        return f"(a {type(value).__name__} that cannot be shown as JSON)"


def question_view(question: Question, nth: int) -> QuestionView:
    """What a view shows of a question.

    Args:
        question: what is asked.
        nth: tells this question from an earlier one about the same call.
    """
    shown, edited = whole_json(question.arguments), editable_json(question.arguments)
    pieces = [
        _piece_view("arguments", shown, "text"),
        *(
            _piece_view(whole(p.label), whole(p.text), p.kind)
            for p in question.pieces
            if not _says_again(p.text, shown)
        ),
    ]
    n_lines = sum(piece["text"].count("\n") + 1 for piece in pieces)
    return {
        "nth": nth,
        "host": whole(question.host),
        "why": whole(question.why),
        "editable": "" if edited == shown else edited,
        "pieces": pieces,
        "long": n_lines > _MOST_LINES or any(piece["long"] for piece in pieces),
        "scope": whole(question.scope),
    }


def _says_again(text: str, shown: str) -> bool:
    """Whether a piece is the arguments once more, alone or as those of a named tool."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = json_object(load_json(text))
    except (ValueError, RecursionError):
        return False
    if value is not None and value.keys() == {"tool", "arguments"}:
        inner = json_object(value["arguments"])
        if inner is not None and whole_json(inner) == shown:
            return True
    return value is not None and whole_json(value) == shown


def _piece_view(label: str, text: str, kind: Literal["text", "diff", "code"]) -> PieceView:
    lines = text.count("\n") + 1
    long = lines > _LONG_LINES or len(text) > _LONG_CHARS
    if long:
        label += f" · {lines:,} line{'s' * (lines != 1)}, {len(text):,} characters"
    return {"label": label, "text": text, "kind": kind, "long": long}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that a view has open."""

    question: Question
    nth: int


@dataclass(frozen=True, slots=True)
class Unclear:
    """An answer that cannot be taken; the words say why."""

    call: str
    nth: int
    words: str


def read_answer(action: Mapping[str, Any], asked: Asked | None) -> PersonAnswer | Unclear | None:
    """What a front end's `answer` message says.

    Args:
        action: `{"kind": "answer", "call": id, "nth": 1, "choice": …, "reason"?, "arguments"?}`,
            where `arguments` is JSON text.
        asked: the question about that call, if it is asked at all.

    Returns:
        The answer, what is wrong with its arguments, or None for whatever answers nothing.
    """
    choice, nth = action.get("choice"), action.get("nth")
    if asked is None or type(nth) is not int or nth != asked.nth or choice not in CHOICES:
        return None
    reason, text = action.get("reason", ""), action.get("arguments")
    if not isinstance(reason, str) or not (text is None or isinstance(text, str)):
        return None
    if choice == "deny":
        return PersonAnswer(choice="deny", reason=said_reason(reason))
    if text is None:
        return PersonAnswer(choice=choice)
    given = read_arguments(text)
    if isinstance(given, str):
        return Unclear(asked.question.tool_call_id, nth, given)
    # Other arguments are another call, which an answer for the session does not cover.
    return PersonAnswer(choice="once", arguments=given)


def said_reason(text: str) -> str:
    """A reason as the model gets it."""
    return redact(text).strip()[:REASON_CHARS]


def read_arguments(text: str) -> dict[str, Any] | str:
    """Arguments that a person typed, or what is wrong with them."""
    try:
        value = load_json(text)
    except RecursionError:
        return f"there are more than {MAX_DEPTH} levels in it"
    except ValueError as error:
        return f"this is not JSON: {whole(str(error))}"
    found = json_object(value)
    if found is None:
        return "the arguments have to be one JSON object: { … }"
    if not is_keepable(found):
        return f"a number is too large, or there are more than {MAX_DEPTH} levels in it"
    return found


def call_of(action: Mapping[str, Any]) -> str:
    """The id of the call that a message is about."""
    call = cast("object", action.get("call"))
    return call if isinstance(call, str) else ""
