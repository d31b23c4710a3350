"""Edits of a fork before its turn: other results, other answers, messages left out.

Pure: the store keeps the changed messages as the fork's own, from the first change on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from nbagent.contracts.errors import UsageError, describe_error
from nbagent.contracts.messages import Message, Part
from nbagent.tools.functions.outcome import failure_outcome, value_outcome

ConversationItem = tuple[Message, str]
"""A message and the id of the turn that added it; empty if no turn did."""
_EditTarget = tuple[str, str]
"""Turn id and call id; an empty call id means the turn itself."""


def edit_conversation(
    items: Sequence[ConversationItem],
    edits: Mapping[str, object],
    drop: Collection[str],
    before: str,
) -> tuple[ConversationItem, ...]:
    """Conversation with other results and answers, and without the dropped parts.

    Each remaining call keeps its one result. Unchanged messages are the same objects as before.

    Args:
        items: the conversation before the turn.
        edits: by the id of a call its result (a value as a tool returns it, an exception, a
            `ToolResult`), by the id of a turn the text of its answer.
        drop: ids of turns (answer and results are left out) and of calls.
        before: the turn, for messages.

    Raises:
        UsageError: an id is unknown or names several calls, or a value cannot be used.
    """
    known = _targets_by_id(items)
    dropped = {_resolve_target(key, known, before) for key in drop}
    new = {_resolve_target(key, known, before): value for key, value in edits.items()}
    for turn, call in new:
        if {(turn, call), (turn, "")} & dropped:
            raise UsageError(f"{call or turn} cannot be both changed and left out; choose one")
    remaining: list[ConversationItem] = []
    for message, turn in items:
        changed: Message | None = message
        if message.role == "assistant":
            changed = None if (turn, "") in dropped else _edited_answer(message, turn, new, dropped)
        elif message.role == "tool":
            position = turn, message.tool_call_id or ""
            changed = None if {position, (turn, "")} & dropped else message
            if position in new:
                changed = message.model_copy(update={"content": _result_parts(new[position])})
        if changed is not None:
            remaining.append((changed, turn))
    return tuple(remaining)


def describe_edits(edits: Collection[str], drop: Collection[str], before: str) -> str:
    """Describe the edits for the user."""
    named = {"changed": edits, "left out": drop}
    parts = [f"{label}: {', '.join(ids)}" for label, ids in named.items() if ids]
    return f"Of the conversation before {before}, {'; '.join(parts)}."


def _targets_by_id(items: Sequence[ConversationItem]) -> dict[str, list[_EditTarget]]:
    """Turns and calls by id; a call has the longer id `C02/ID`, too."""
    known: dict[str, list[_EditTarget]] = defaultdict(list)
    for message, turn in items:
        if turn and message.role == "assistant":
            known[turn].append((turn, ""))
        for call in message.tool_calls:
            for key in (call.id, f"{turn}/{call.id}"):
                known[key].append((turn, call.id))
    return known


def _resolve_target(key: str, known: Mapping[str, list[_EditTarget]], before: str) -> _EditTarget:
    places = known.get(key, [])
    if len(places) > 1:
        which = " or ".join(repr(f"{turn}/{call}") for turn, call in places)
        raise UsageError(f"several calls before {before} have the id {key!r}; write {which}")
    if not places:
        there = ", ".join(key for key in known if "/" not in key) or "none"
        raise UsageError(f"no turn and no call before {before} is {key!r}; there are: {there}")
    return places[0]


def _edited_answer(
    message: Message, turn: str, new: Mapping[_EditTarget, object], dropped: Collection[_EditTarget]
) -> Message | None:
    """The answer with another text or fewer calls; None if nothing is left of it."""
    calls = tuple(call for call in message.tool_calls if (turn, call.id) not in dropped)
    text = new.get((turn, ""))
    if text is None and len(calls) == len(message.tool_calls):
        return message
    # `raw` is the provider's own copy of the original message, so it would undo the edit.
    changes: dict[str, object] = {"tool_calls": calls, "raw": None}
    if text is not None:
        if not isinstance(text, str):
            raise UsageError(f"edits: {turn} is a turn, so give the text of its answer")
        # Its reasoning led to the original text and would contradict the new one.
        changes |= {"content": Message.of("assistant", text).content, "reasoning": None}
    changed = message.model_copy(update=changes)
    return changed if changed.content or changed.tool_calls else None


def _result_parts(value: object) -> tuple[Part, ...]:
    try:
        made = failure_outcome(value) if isinstance(value, BaseException) else value_outcome(value)
        return made.result.as_content()
    except Exception as error:  # from the person's own iterator, or the value is not JSON
        raise UsageError(f"edits: a result cannot be used: {describe_error(error)}") from None
