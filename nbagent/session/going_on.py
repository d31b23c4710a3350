"""What a run has from the one before: where the conversation stands, and the options that go on.

Owns the rules for resume, continue and fork, and what this process remembers for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.archive.store import Store
from nbagent.contracts.chat import Message
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.contracts.secrets import MASK
from nbagent.session.clients import same_server
from nbagent.settings import RunOptions, Settings

CONTINUE = "Your last answer was cut off. Go on exactly where it stopped."
"""Enters the history when a run goes on after an unfinished answer and nobody said anything."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where a run begins."""

    history: tuple[Message, ...] = ()
    first_index: int = 1
    requests: int = 0
    """Since the person's last words."""
    turn: EngineTurn | None = None
    """The last turn before; in a fork, the one asked anew."""
    asked: tuple[str, str | None] = ("", None)
    """Of that turn: the model and its server."""


def conversation_of(parent: RunRecord | None, fork_turn: str | None, store: Store) -> Conversation:
    """What a run goes on with; with `fork_turn`, only what came before that turn."""
    if parent is None:
        return Conversation()
    if parent.phase == "Running":
        raise UsageError(
            f"run {parent.id[:8]} is still at work; wait for it, or stop it where it was "
            "started (■, or %agent stop in that notebook)"
        )
    history = store.conversation(parent.id)
    requests = store.requests_since_words(parent.id)
    if fork_turn is None:
        run = parent
        while not run.turns and run.parent_id is not None:
            run = store.load(run.parent_id)
        last = run.turns[-1] if run.turns else None
        first_index = last.index + 1 if last else 1
        return Conversation(history, first_index, requests, last, (run.model, run.base_url))
    turn = next((t for t in parent.turns if t.id == fork_turn), None)
    if turn is None:
        known = ", ".join(t.id for t in parent.turns) or "none"
        raise UsageError(f"run {parent.id[:8]} has no turn {fork_turn!r}; its own turns: {known}")
    requests -= sum(t.index >= turn.index for t in parent.turns)
    kept, asked = history[: turn.request.n_messages], (parent.model, parent.base_url)
    return Conversation(kept, turn.index, max(0, requests), turn, asked)


def opening(words: Sequence[Message], history: Sequence[Message]) -> tuple[Message, ...]:
    """A directive where an answer was cut off and the person said nothing more."""
    if words or not history or history[-1].role != "assistant":
        return ()
    return (Message.of("user", CONTINUE),)


def check_answered(messages: Sequence[Message]) -> None:
    """Raise UsageError for a conversation that no provider takes: calls without their results."""
    waiting: list[str] = []
    for message in messages:
        expected = waiting.pop(0) if waiting else None
        given = (message.tool_call_id or "") if message.role == "tool" else None
        if given != expected:
            raise UsageError(
                f"messages: call {expected!r} is followed by result {given!r}; put one tool "
                "message for each call after the calls, in their order"
            )
        waiting = waiting or [call.id for call in message.tool_calls]
    if waiting:
        raise UsageError(
            f"messages: the call {waiting[0]!r} has no result; add a tool message with that id"
        )


def check_resumable(parent: RunRecord, requests: int, ceiling: int) -> None:
    """Raise UsageError where a run cannot go on without the person's next words."""
    if parent.phase == "Completed" or parent.stop_reason in ("answered", "content_filter"):
        raise UsageError(
            f"run {parent.id[:8]} has ended ({parent.stop_reason}); to go on, say something: "
            "%%agent --continue with your next words, or run.resume('…')"
        )
    if requests >= ceiling:
        raise UsageError(
            f"run {parent.id[:8]} reached the ceiling of {ceiling} requests; say what to do next "
            "(run.resume('…') or %%agent --continue), or raise it: run.resume(ceiling=…)"
        )


# What no record keeps

_remembered: dict[str, dict[str, Any]] = {}
"""By run of this process: the type of its answer, and the values that are never shown."""


def remember(run_id: str, options: RunOptions) -> None:
    """Keep what the record of a run does not, for the runs that go on and for `run.output`."""
    rows = RunOptions.rows()
    values = {n: v for n, v in options.given.items() if rows[n].secret or n == "output"}
    if values:
        _remembered[run_id] = values


def forget_remembered() -> None:
    """Forget it of all runs."""
    _remembered.clear()


def type_of(run_id: str) -> Any:
    """The type of a run's answer; None where none was asked for, or in another process."""
    return _remembered.get(run_id, {}).get("output")


def joined(
    options: RunOptions, parent: RunRecord | None, dropped: Collection[str], settings: Settings
) -> RunOptions:
    """The options, with what the parent's run had where they say nothing."""
    if parent is None:
        return options
    kept: dict[str, Any] = {"session": parent.session, **parent.options}
    stays = same_server(options, kept.get("model") or parent.model, kept.get("base_url"))
    kept["output"] = type_of(parent.id)  # of which the record has the name
    changes: dict[str, Any] = {}
    for name, row in RunOptions.rows().items():
        said = name in options.given or name in dropped
        goes_on = (row.goes_on or name == "output") and (stays or not row.server)
        if name in kept and goes_on and not said:
            changes[name] = _secret(parent, name, settings) if row.secret else kept[name]
    if MASK in (changes.get("base_url") or ""):
        raise UsageError(
            "the base URL of that run held a key, which is never kept; give it again: base_url=…"
        )
    return RunOptions(**changes).changed(**options.given)


def _secret(parent: RunRecord, name: str, settings: Settings) -> dict[str, Any] | None:
    """Values of which a record has the names; None where the settings have them."""
    values = _remembered.get(parent.id, {}).get(name)
    names: dict[str, Any] = parent.options[name]
    if values is None and not (getattr(settings, name) or {}).keys() >= names.keys():
        raise UsageError(
            f"that run had {name} ({', '.join(names)}), whose values are never kept; "
            f"give them again: {name}={{…}}"
        )
    return values
