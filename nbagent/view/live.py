"""Events → ops: small messages that change the picture of a run that is at work.

The state is the record as far as it goes, the texts that stream, and the open questions; every
picture is drawn from it by `picture`, so that the last one is the picture of the stored record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nbagent.contracts import events
from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatResponse, Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import labels, timing
from nbagent.view.graph import graph_of
from nbagent.view.live_text import Op, Writing, progress_node
from nbagent.view.node import Node
from nbagent.view.picture import (
    Now,
    card,
    card_key,
    head,
    line_node,
    notices_node,
    picture,
    prompt_node,
    turn_node,
)
from nbagent.view.question import asks_node
from nbagent.view.words import one_line, visible


def merge(pending: list[Op], op: Op) -> None:
    """Put an op to those that wait for the next message; what it makes needless goes.

    A key's parts have keys that begin with it and a slash.
    """
    kind, key = op[0], op[1]
    if kind == "done":
        pending[:] = [op]
        return
    if kind == "add":
        last = next((p for p in reversed(pending) if p[1] == key), None)
        if last and last[0] == "add":
            last[2] += op[2]
        else:
            pending.append(list(op))
        return
    under = f"{key}/"
    place = next((i for i, it in enumerate(pending) if it[1] == key), None)
    if place is not None:
        # In the place of the first one: its parent was there by then.
        pending[place] = op
    kept = [it for it in pending if it is op or not (it[1] == key or it[1].startswith(under))]
    pending[:] = kept if place is not None else [*kept, op]


class LivePicture:
    """The picture of one run at work. `fold` on one thread; all else on any."""

    def __init__(self, run: RunRecord, clock: Callable[[], float] = monotonic_ms) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._run = run
        self._now, self._start_ms, self._n_asked = Now(), clock(), 0

    def fold(self, event: events.Event) -> list[Op]:
        """Take one event; gives what a page has to be told."""
        with self._lock:
            return self._fold(event)

    def picture(self, unfolded: frozenset[str] = frozenset(), kernel: str = "") -> Node:
        """The picture as it is now."""
        with self._lock:
            now = self._timed() if self._run.phase == "Running" else None
            return picture(self._run, now=now, unfolded=unfolded, kernel=kernel)

    def record(self) -> RunRecord:
        """The record as far as it goes, with what has streamed so far."""
        with self._lock:
            if self._run.phase != "Running":
                return self._run
            turns = tuple(map(self._with_text, self._run.turns))
            elapsed = self._timed().elapsed_ms
            return self._run.model_copy(update={"turns": turns, "duration_ms": elapsed})

    def asked(self, question_id: str) -> Question | None:
        """The open question of that id."""
        return dict(self.open_questions()).get(question_id)

    def open_questions(self) -> list[tuple[str, Question]]:
        """The questions that wait for an answer, the first asked first."""
        with self._lock:
            return [*self._now.asked.values()]

    def stopping(self, words: str) -> list[Op]:
        """Say in the head that the person stops or pauses the run."""
        with self._lock:
            self._now.stopping = words
            return [self._head()]

    # What the page is told

    def _timed(self) -> Now:
        self._now.elapsed_ms = self._clock() - self._start_ms
        return self._now

    def _head(self) -> Op:
        return ["put", "head", head(self._run, self._timed()), ""]

    def _turn_op(self, turn: EngineTurn) -> Op:
        return ["put", turn.id, turn_node(self._run, turn, now=self._now), "turns"]

    def _asks(self) -> Op:
        return ["put", "asks", asks_node(self.open_questions()), ""]

    def _awake(self) -> list[Op]:
        """What waited goes on: take its words from the head."""
        if not self._now.activity:
            return []
        self._doing("model")
        return [self._head()]

    def _doing(self, doing: timing.Kind, activity: str = "", again_ms: float = 0.0) -> None:
        self._now.doing, self._now.activity, self._now.again_ms = doing, activity, again_ms

    # What happens

    def _fold(self, event: events.Event) -> list[Op]:
        match event:
            case events.TextDelta(turn_id=turn_id, text=text):
                return [*self._awake(), *self._writing(turn_id).more_text(text)]
            case events.ReasoningDelta(turn_id=turn_id, text=text):
                return [*self._awake(), *self._writing(turn_id).more_reasoning(text)]
            case events.ToolCallDelta(turn_id=turn_id, call_index=index, name=name):
                more = self._writing(turn_id).more_call(index, visible(name or ""), event.arguments)
                return [*self._awake(), *more]
            case events.RunStarted(run=run):
                self._run, self._now, self._start_ms = run, Now(), self._clock()
                prompt = prompt_node(run)
                return [self._head(), *([["put", "prompt", prompt, ""]] if prompt else [])]
            case events.TurnStarted():
                return self._turn_started(event)
            case events.ResponseReceived(turn=turn):
                return self._turn_known(turn, "tool")
            case events.TurnFinished(turn=turn, messages=messages):
                self._set(messages=(*self._run.messages, *messages))
                return self._turn_known(turn, "model")
            case events.MessagesAdded(messages=messages):
                self._set(messages=(*self._run.messages, *messages))
            case events.ApprovalRequested():
                return self._question_asked(event)
            case events.ToolCallStarted(turn_id=turn_id):
                known = self._known(turn_id, event.tool_call_id, event.tool_name)
                started = known.started_at or self._run.started_at
                given = {"args": event.args, "display_name": event.display_name}
                known = known.model_copy(update={"started_at": started})
                return self._call_changed(turn_id, known.model_copy(update=given), "tool")
            case events.ToolProgress():
                return self._progress(event)
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                return self._call_changed(turn_id, run, "tool" if event.pending else "model")
            case events.Retrying(error=error):
                why = one_line(labels.error_words(error) or visible(event.text), 200)
                again_ms = self._timed().elapsed_ms + event.wait_s * 1000
                self._doing("bad", f"attempt {event.attempt} failed · {why}", again_ms)
                return [self._head()]
            case events.Waiting(text=text):
                self._doing("wait" if text else "model", labels.note_of(text))
                return [self._head()]
            case events.Notice(turn_id=turn_id, text=text):
                return self._noticed(turn_id, text)
            case events.RunFinished(run=run):
                self._run = run
                self._now.asked.clear()
                return [["done", picture(run)]]
            case _:
                pass
        return []

    def _set(self, **fields: Any) -> None:
        self._run = self._run.model_copy(update=fields)

    def _turn(self, turn_id: str) -> EngineTurn | None:
        return next((turn for turn in reversed(self._run.turns) if turn.id == turn_id), None)

    def _keep(self, turn: EngineTurn) -> None:
        """Put a turn into the record, and its numbers into the sums."""
        turns = {known.id: known for known in self._run.turns} | {turn.id: turn}
        spent = [t.response.usage for t in turns.values() if t.response and t.response.usage]
        costs = [t.cost_usd for t in turns.values() if t.cost_usd is not None]
        self._set(
            turns=tuple(turns.values()),
            usage=sum(spent, Usage()),
            cost_usd=sum(costs) if costs else None,
        )

    def _writing(self, turn_id: str) -> Writing:
        return self._now.writing.setdefault(turn_id, Writing(turn_id))

    def _with_text(self, turn: EngineTurn) -> EngineTurn:
        writing = self._now.writing.get(turn.id)
        if writing is None or turn.response is not None:
            return turn
        message = Message.of("assistant", writing.text.text)
        message = message.model_copy(update={"reasoning": writing.reasoning.text or None})
        return turn.model_copy(update={"response": ChatResponse(message=message)})

    def _turn_started(self, event: events.TurnStarted) -> list[Op]:
        run, request = self._run, event.request
        end = request.n_messages - run.shared_messages
        own = min(request.n_new, end, len(event.messages))
        if own > 0:
            self._set(messages=(*run.messages[: end - own], *event.messages[-own:]))
        self._set(
            system_prompts={**run.system_prompts, request.system_sha: event.system_prompt},
            toolsets={**run.toolsets, request.toolset_sha: event.tools},
        )
        turn = EngineTurn(
            id=event.turn_id,
            run_id=run.id,
            index=int(event.turn_id[1:]) if event.turn_id[1:].isdecimal() else 0,
            request=request,
            started_at=run.started_at,
        )
        self._now.writing[turn.id] = Writing(turn.id)
        self._doing("model")
        self._keep(turn)
        # The turn before is over, and folds.
        return [*map(self._turn_op, self._run.turns[-2:]), self._head()]

    def _turn_known(self, turn: EngineTurn, doing: timing.Kind) -> list[Op]:
        self._now.writing.pop(turn.id, None)
        self._doing(doing)
        self._keep(turn)
        closed = self._close(*self._now.asked)
        graph = graph_of(self._run)
        moved: list[Op] = [["put", "graph", graph, ""]] if graph else []
        return [self._turn_op(turn), self._head(), *moved, *closed]

    def _close(self, *keys: str) -> list[Op]:
        """Questions that are answered: take them out of the list."""
        closed = [self._now.asked.pop(key, None) for key in keys]
        return [self._asks()] if any(closed) else []

    def _question_asked(self, event: events.ApprovalRequested) -> list[Op]:
        turn_id, question = event.turn_id, event.question
        self._n_asked += 1
        question_id = f"{turn_id}/{event.tool_call_id}/{self._n_asked}"
        self._now.asked[card_key(turn_id, event.tool_call_id)] = (question_id, question)
        known = self._known(turn_id, event.tool_call_id, event.tool_name)
        given = {"args": event.args, "display_name": question.display_name}
        changed = self._put_call(turn_id, known.model_copy(update=given))
        return [*changed, self._head(), self._asks()]

    def _progress(self, event: events.ToolProgress) -> list[Op]:
        part = "" if event.fraction is None else f"{event.fraction:.0%} "
        key = card_key(event.turn_id, event.tool_call_id)
        words = one_line(f"{part}{visible(event.text)}", 300)
        self._now.progress[key] = words
        return [["put", f"{key}/progress", progress_node(key, words), key]]

    def _call_changed(self, turn_id: str, run: ToolRun, doing: timing.Kind) -> list[Op]:
        key = card_key(turn_id, run.tool_call_id)
        if run.result is not None:
            self._now.progress.pop(key, None)
        self._now.doing = doing
        closed = self._close(key)
        return [*self._put_call(turn_id, run), self._head(), *closed]

    def _known(self, turn_id: str, call: str, name: str = "") -> ToolRun:
        """What is known of a call."""
        turn = self._turn(turn_id)
        runs = {run.tool_call_id: run for run in turn.tool_runs} if turn else {}
        return runs.get(call) or ToolRun(tool_call_id=call, tool_name=name)

    def _put_call(self, turn_id: str, run: ToolRun) -> list[Op]:
        """Put a call into its turn; gives its card and the turn's line."""
        turn = self._turn(turn_id)
        if turn is None:
            return []
        runs = {known.tool_call_id: known for known in turn.tool_runs} | {run.tool_call_id: run}
        turn = turn.model_copy(update={"tool_runs": tuple(runs.values())})
        self._keep(turn)
        node = card(self._run, turn, [*runs].index(run.tool_call_id), now=self._now)
        line = line_node(self._run, turn, self._now)
        key = card_key(turn_id, run.tool_call_id)
        return [["put", key, node, f"{turn_id}/tools"], ["put", f"{turn_id}/line", line, ""]]

    def _noticed(self, turn_id: str | None, text: str) -> list[Op]:
        turn = self._turn(turn_id) if turn_id else None
        if turn:
            turn = turn.model_copy(update={"notices": (*turn.notices, text)})
            self._keep(turn)
            return [self._turn_op(turn)]
        if turn_id:
            return []
        self._set(notices=(*self._run.notices, text))
        return [["put", "notices", notices_node(self._run), ""]]
