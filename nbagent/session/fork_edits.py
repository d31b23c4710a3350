"""What a fork changes in the conversation before its turn: other results, other words, less of it.

Pure: the store keeps the changed messages as the fork's own, from the first change on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from nbagent.contracts.errors import UsageError, describe_error
from nbagent.contracts.messages import Message, Part
from nbagent.tools.functions.outcome import failure_of, result_of

ConversationItem = tuple[Message, str]
"""A message, and the id of the turn that added it; empty where it is of no turn."""
_Place = tuple[str, str]
"""A turn and a call of it, by their ids; without a call the turn itself."""


def changed_conversation(
    items: Sequence[ConversationItem], edits: Mapping[str, object], drop: Collection[str], before: str
) -> tuple[ConversationItem, ...]:
    """The conversation with other results and answers, and without what is dropped.

    Each call that stays keeps its one result. What is not changed is the same object as before.

    Args:
        items: all before the turn.
        edits: by the id of a call its result (a value as a tool returns it, an exception, a
            `ToolResult`), by the id of a turn the text of its answer.
        drop: ids of turns, of which answer and results go, and of calls.
        before: the turn, for messages.

    Raises:
        UsageError: an id that is not there or stands for several calls, or a value of no use.
    """
    known = _items_by_key(items)
    dropped = {_place(key, known, before) for key in drop}
    new = {_place(key, known, before): value for key, value in edits.items()}
    for turn, call in new:
        if {(turn, call), (turn, "")} & dropped:
            raise UsageError(f"{call or turn} cannot be both changed and left out; do one of it")
    remaining: list[ConversationItem] = []
    for message, turn in items:
        changed: Message | None = message
        if message.role == "assistant":
            changed = None if (turn, "") in dropped else _answer(message, turn, new, dropped)
        elif message.role == "tool":
            position = turn, message.tool_call_id or ""
            changed = None if {position, (turn, "")} & dropped else message
            if position in new:
                changed = message.model_copy(update={"content": _result(new[position])})
        if changed is not None:
            remaining.append((changed, turn))
    return tuple(remaining)


def describe_edits(edits: Collection[str], drop: Collection[str], before: str) -> str:
    """The changes, for the person."""
    named = {"changed": edits, "left out": drop}
    parts = [f"{label}: {', '.join(ids)}" for label, ids in named.items() if ids]
    return f"Of the conversation before {before}, {'; '.join(parts)}."


def _items_by_key(items: Sequence[ConversationItem]) -> dict[str, list[_Place]]:
    """What each id stands for; a call has `C02/ID` beside its own."""
    known: dict[str, list[_Place]] = defaultdict(list)
    for message, turn in items:
        if turn and message.role == "assistant":
            known[turn].append((turn, ""))
        for call in message.tool_calls:
            for key in (call.id, f"{turn}/{call.id}"):
                known[key].append((turn, call.id))
    return known


def _place(key: str, known: Mapping[str, list[_Place]], before: str) -> _Place:
    places = known.get(key, [])
    if len(places) > 1:
        which = " or ".join(repr(f"{turn}/{call}") for turn, call in places)
        raise UsageError(f"several calls before {before} have the id {key!r}; write {which}")
    if not places:
        there = ", ".join(key for key in known if "/" not in key) or "none"
        raise UsageError(f"no turn and no call before {before} is {key!r}; there are: {there}")
    return places[0]


def _answer(
    message: Message, turn: str, new: Mapping[_Place, object], dropped: Collection[_Place]
) -> Message | None:
    """An answer with other words or fewer calls; None where nothing is left of it."""
    calls = tuple(call for call in message.tool_calls if (turn, call.id) not in dropped)
    text = new.get((turn, ""))
    if text is None and len(calls) == len(message.tool_calls):
        return message
    # What the provider wanted back is of the message as it was.
    changes: dict[str, object] = {"tool_calls": calls, "raw": None}
    if text is not None:
        if not isinstance(text, str):
            raise UsageError(f"edits: {turn} is a turn, so give the text of its answer")
        # What the model thought led to its own words.
        changes |= {"content": Message.of("assistant", text).content, "reasoning": None}
    changed = message.model_copy(update=changes)
    return changed if changed.content or changed.tool_calls else None


def _result(value: object) -> tuple[Part, ...]:
    try:
        made = failure_of(value) if isinstance(value, BaseException) else result_of(value)
        return made.result.as_content()
    except Exception as error:  # of an iterator of the person's, or of what is no JSON
        raise UsageError(f"edits: a result cannot be used: {describe_error(error)}") from None
