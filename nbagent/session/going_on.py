"""The conversation that a run goes on with: where it stands, what is said next, what may not be.

Owns the rules for resume, continue and fork. The options that go on are `prepare`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbagent.archive.store import Store
from nbagent.contracts.chat import Message
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import EngineTurn, RunRecord

CONTINUE = "Your last answer was cut off. Go on exactly where it stopped."
"""Enters the history when a run goes on after an unfinished answer and nobody said anything."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where a run begins."""

    parent: RunRecord | None = None
    history: tuple[Message, ...] = ()
    first_index: int = 1
    requests: int = 0
    """Since the person's last words."""
    asked_by: RunRecord | None = None
    """The run that made the last turn before, and this turn (in a fork, the one asked anew)."""
    turn: EngineTurn | None = None

    def turn_before(self, record: RunRecord) -> EngineTurn | None:
        """The turn before, when the same model on the same server was asked."""
        asked = self.asked_by
        if asked is None or (asked.model, asked.base_url) != (record.model, record.base_url):
            return None
        return self.turn


def conversation_of(parent: RunRecord | None, fork_turn: str | None, store: Store) -> Conversation:
    """What a run goes on with; with `fork_turn`, only what came before that turn.

    Raises:
        UsageError: it is still at work, or has no such turn.
    """
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
        asked = _last_that_asked(parent, store)
        last = asked.turns[-1] if asked else None
        first_index = last.index + 1 if last else 1
        return Conversation(parent, history, first_index, requests, asked, last)
    turn = next((t for t in parent.turns if t.id == fork_turn), None)
    if turn is None:
        known = ", ".join(t.id for t in parent.turns) or "none"
        raise UsageError(f"run {parent.id[:8]} has no turn {fork_turn!r}; its own turns: {known}")
    later = sum(t.index >= turn.index for t in parent.turns)
    kept = history[: turn.request.n_messages]
    return Conversation(parent, kept, turn.index, max(0, requests - later), parent, turn)


def _last_that_asked(run: RunRecord, store: Store) -> RunRecord | None:
    """The run itself or the nearest one before it that has turns."""
    while not run.turns and run.parent_id is not None:
        run = store.load(run.parent_id)
    return run if run.turns else None


def opening(words: Sequence[Message], history: Sequence[Message]) -> tuple[Message, ...]:
    """A directive where an answer was cut off and the person said nothing more."""
    if words or not history or history[-1].role != "assistant":
        return ()
    return (Message.of("user", CONTINUE),)


def check_answered(messages: Sequence[Message]) -> None:
    """Raise UsageError for a conversation that no provider takes: calls without their results."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or message.tool_call_id != waiting.pop(0):
                raise UsageError(
                    f"messages: the result {message.tool_call_id!r} answers no call in its place; "
                    "put one tool message for each call after the calls, in their order"
                )
            continue
        if waiting:
            break
        waiting = [call.id for call in message.tool_calls]
    if waiting:
        raise UsageError(
            f"messages: the call {waiting[0]!r} has no result; add a tool message with that id"
        )


def check_resumable(parent: RunRecord, base: Conversation, ceiling: int) -> None:
    """Raise UsageError where a run cannot go on without the person's next words."""
    if parent.phase == "Completed" or parent.stop_reason in ("answered", "content_filter"):
        raise UsageError(
            f"run {parent.id[:8]} has ended ({parent.stop_reason}); to go on, say something: "
            "%%agent --continue with your next words, or run.resume('…')"
        )
    if base.requests >= ceiling:
        raise UsageError(
            f"run {parent.id[:8]} reached the ceiling of {ceiling} requests; say what to do next "
            "(run.resume('…') or %%agent --continue), or raise it: run.resume(ceiling=…)"
        )
    if not base.history:
        raise UsageError(f"run {parent.id[:8]} has no conversation to go on with")
