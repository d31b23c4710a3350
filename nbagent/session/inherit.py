"""The inheritance of a run: options, conversation and a deferred turn of its parent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import Message
from nbagent.contracts.nearest import name_list
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import EngineTurn, RunRecord, as_turn_id
from nbagent.session.fork_edits import ConversationItem, edit_conversation
from nbagent.session.models import same_server
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions, Settings


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation that a run starts with."""

    history: tuple[Message, ...] = ()
    """Messages shared with the parent run."""
    copies: tuple[ConversationItem, ...] = ()
    """Messages from a fork's first change on. They are stored with the fork itself, since those of
    the parent stay as they are."""
    first_index: int = 1
    requests: int = 0
    """Model requests since the last user message."""
    turn: EngineTurn | None = None
    """Last turn before this run; in a fork, the turn that is repeated."""


def conversation_of(parent: RunRecord | None, ask: RunRequest, store: RunStore) -> Conversation:
    """Conversation before a run; for a fork, only the part before its turn, with its edits."""
    if parent is None:
        return Conversation()
    if parent.phase == "Running":
        raise UsageError(
            f"run {parent.id[:8]} is still at work; wait for it, or stop it where it was started"
        )
    items = store.conversation_with_turns(parent.id)
    requests = store.requests_since_user_message(parent.id)
    if ask.fork_turn is None:
        run, ancestors = parent, {parent.id}
        # A run that was stopped before its first request has no turn; its parent's is the last.
        while not run.turns and run.parent_id is not None and run.parent_id not in ancestors:
            run = store.load(run.parent_id)
            ancestors.add(run.id)
        last = run.turns[-1] if run.turns else None
        index = last.index + 1 if last else 1
        return Conversation(
            tuple(m for m, _ in items), first_index=index, requests=requests, turn=last
        )
    turn = turn_of(parent, ask.fork_turn)
    # The turns that the fork leaves out do not use up its limit.
    requests -= sum(t.index >= turn.index for t in parent.turns)
    items = items[: turn.request.n_messages]
    changed = edit_conversation(items, ask.edits, ask.drop, turn.id)
    pairs = enumerate(zip(items, changed, strict=False))
    n = next((i for i, (old, new) in pairs if old[0] is not new[0]), len(changed))
    return Conversation(
        tuple(message for message, _ in items[:n]),
        changed[n:],
        first_index=turn.index,
        requests=max(0, requests),
        turn=turn,
    )


def turn_of(run: RunRecord, turn: str | int | None) -> EngineTurn:
    """Turn of the run itself, by its id or number; without one, the last.

    Raises:
        UsageError: there is none.
    """
    wanted = None if turn is None else as_turn_id(turn)
    matching_turn = next((own for own in reversed(run.turns) if wanted in (None, own.id)), None)
    if matching_turn is None:
        known = name_list(own.id for own in run.turns) or "none"
        named = "turn" if turn is None else f"turn {turn!r}"
        raise UsageError(f"run {run.id[:8]} has no {named}; its own turns: {known}")
    return matching_turn


def deferred_turn(ask: RunRequest, parent: RunRecord | None) -> EngineTurn | None:
    """The last turn of the parent if its calls were deferred until the answer was chosen."""
    if parent is None or ask.kind != "resume" or ask.prompt or ask.messages:
        return None
    paused = (parent.phase, parent.stop_reason) == ("WaitingUser", "stopped")
    is_deferred = paused and parent.forked_from is not None and parent.forked_from.defer_calls
    return parent.turns[-1] if is_deferred else None


def check_tool_results(messages: Sequence[Message]) -> None:
    """Raise UsageError if a tool call has no result: no provider accepts such a conversation."""
    pending: list[str] = []
    for message in messages:
        answered = [message.tool_call_id] if message.role == "tool" else []
        if answered != pending[:1]:
            break
        pending = pending[1:] or [call.id for call in message.tool_calls]
    else:
        if not pending:
            return
    raise UsageError(
        "messages: each tool call needs one tool message after it, in the order of the calls"
    )


unrecorded_options: dict[str, dict[str, Any]] = {}
"""Answer type and secret values by run id, for runs of this process: no record has them."""


def output_type_of(run_id: str) -> Any:
    """Declared type of a run's answer; None without one, or in another process."""
    return unrecorded_options.get(run_id, {}).get("output")


_OF_ANY_OWNER = frozenset(
    ("session", "tags", "temperature", "top_p", "max_tokens", "stop_sequences")
)
"""Options that a run takes from another owner's run, too: they choose no server, model, tool, file,
prompt, rule or limit of the person's."""


def foreign_options(parent: RunRecord) -> tuple[str, ...]:
    """Names of the options of another owner's run that a run does not take from it."""
    values = _recorded_values(parent)
    inherited = (name for name, row in RunOptions.rows().items() if row.inherited)
    return tuple(name for name in inherited if name in values and name not in _OF_ANY_OWNER)


def without_foreign_options(run: RunRecord) -> RunRecord:
    """The record of another owner's run, with only the options that a run takes from it."""
    options = {name: value for name, value in run.options.items() if name in _OF_ANY_OWNER}
    changes = {"options": options, "workflow": None, "agent": None, "model": "", "base_url": None}
    return run.model_copy(update=changes)


def inherited_options(
    options: RunOptions, parent: RunRecord | None, dropped: Collection[str], settings: Settings
) -> RunOptions:
    """The options, completed with those of the parent's run."""
    if parent is None:
        return options
    parent_values = _recorded_values(parent)
    stays = same_server(
        options, parent_values.get("model") or parent.model, parent_values.get("base_url")
    )
    parent_values["output"] = output_type_of(parent.id)  # the record holds only its name
    changes: dict[str, Any] = {}
    for name, row in RunOptions.rows().items():
        is_given = name in options.explicit or name in dropped
        goes_on = (row.inherited or name == "output") and (stays or not row.server_specific)
        if name in parent_values and goes_on and not is_given:
            changes[name] = _secret(parent, name, settings) if row.secret else parent_values[name]
    return RunOptions(**changes).with_changes(**options.explicit)


def _recorded_values(parent: RunRecord) -> dict[str, Any]:
    """The options of a run, as its record has them."""
    values: dict[str, Any] = {"session": parent.session, **parent.options}
    if parent.workflow is not None and parent.workflow.document:
        values["document"] = parent.workflow.document
    return values


def _secret(parent: RunRecord, name: str, settings: Settings) -> dict[str, Any] | None:
    """The secret values of a parent's option; None if the settings have them."""
    values = unrecorded_options.get(parent.id, {}).get(name)
    names: dict[str, Any] = parent.options[name]
    if values is None and not (getattr(settings, name) or {}).keys() >= names.keys():
        raise UsageError(
            f"that run had {name} ({', '.join(names)}), whose values are never stored; "
            f"give them again: {name}={{…}}"
        )
    return values
