"""Events → ops: small messages that change the picture of a run that is at work.

The state is the record as far as it goes, the texts that stream, and the open questions; every
picture is drawn from it by `picture`, so that the last one is the picture of the stored record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbagent.contracts import events
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import ChatResponse, Message, Usage
from nbagent.contracts.policy import Question
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import labels, timing
from nbagent.view.graph import graph_of
from nbagent.view.node import Node, h
from nbagent.view.picture import (
    Now,
    card_node,
    head,
    line_node,
    notices_node,
    picture,
    prompt_node,
    turn_node,
)
from nbagent.view.question import asks_node, question_node
from nbagent.view.streams import Op, Writing
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


@dataclass(slots=True)
class _State:
    """What is known beside the record."""

    start_ms: float
    activity: str = ""
    doing: timing.Kind = "model"
    stopping: str = ""
    writing: dict[str, Writing] = field(default_factory=dict[str, Writing])
    progress: dict[str, str] = field(default_factory=dict[str, str])
    open: dict[str, tuple[str, Question]] = field(default_factory=dict[str, tuple[str, Question]])
    """By the key of the card: the open questions with their ids."""
    n_asked: int = 0


class LivePicture:
    """The picture of one run at work. `fold` on one thread; all else on any."""

    def __init__(self, run: RunRecord, clock: Callable[[], float] = monotonic_ms) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._run = run
        self._state = _State(clock())

    def fold(self, event: events.Event) -> list[Op]:
        """Take one event; gives what a page has to be told."""
        with self._lock:
            return self._fold(event)

    def picture(self, unfolded: frozenset[str] = frozenset(), kernel: str = "") -> Node:
        """The picture as it is now."""
        with self._lock:
            run = self._run
            now = self._now() if run.phase == "Running" else None
        return picture(run, now=now, unfolded=unfolded, kernel=kernel)

    def record(self) -> RunRecord:
        """The record as far as it goes, with what has streamed so far."""
        with self._lock:
            turns = [self._with_text(turn) for turn in self._run.turns]
            elapsed = self._clock() - self._state.start_ms
            if self._run.phase != "Running":
                return self._run
            return self._run.model_copy(update={"turns": tuple(turns), "duration_ms": elapsed})

    def asked(self, question_id: str) -> Question | None:
        """The open question of that id."""
        return dict(self.open_questions()).get(question_id)

    def open_questions(self) -> list[tuple[str, Question]]:
        """The questions that wait for an answer, the first asked first."""
        with self._lock:
            return [*self._state.open.values()]

    def stopping(self, words: str) -> list[Op]:
        """Say in the head that the person stops or pauses the run."""
        with self._lock:
            self._state.stopping = words
            return [self._head()]

    # What the page shows

    def _now(self) -> Now:
        return replace(
            self._head_now(),
            streams={key: writing.parts() for key, writing in self._state.writing.items()},
            cards=self._cards(),
            asks=self._asks_node(),
        )

    def _cards(self) -> dict[str, Node]:
        cards = {key: question_node(it, at) for key, (at, it) in self._state.open.items()}
        for turn in self._run.turns:
            for place, run in enumerate(turn.tool_runs):
                key = f"{turn.id}/tool/{run.tool_call_id}"
                if key in self._state.progress and key not in cards:
                    cards[key] = self._card(turn, place, run)
        return cards

    def _card(self, turn: EngineTurn, place: int, run: ToolRun) -> Node:
        key = f"{turn.id}/tool/{run.tool_call_id}"
        if asked := self._state.open.get(key):
            return question_node(asked[1], asked[0])
        path = f"run.turns[{self._index(turn.id)}].tool_runs[{place}]"
        progress = self._state.progress.get(key, "")
        return card_node(key, turn, run, path, progress=progress)

    def _head(self) -> Op:
        return ["put", "head", head(self._run, self._head_now()), ""]

    def _head_now(self) -> Now:
        """Of it what the head shows."""
        state = self._state
        return Now(
            elapsed_ms=self._clock() - state.start_ms,
            doing="wait" if state.open else state.doing,
            activity=state.activity,
            stopping=state.stopping,
            is_asking=bool(state.open),
        )

    def _turn_op(self, turn: EngineTurn) -> Op:
        return ["put", turn.id, turn_node(self._run, turn, now=self._now()), "turns"]

    def _asks(self) -> Op:
        return ["put", "asks", self._asks_node(), ""]

    def _asks_node(self) -> Node:
        # Always there, so that it has its place above the turns.
        return asks_node(self.open_questions()) or h("div", "nba-asks", data_key="asks")

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
                self._run, self._state = run, _State(self._clock())
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
            case events.ApprovalRequested() | events.ToolCallStarted():
                return self._call_moves(event)
            case events.ToolProgress():
                return self._progress(event)
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                return self._call_changed(turn_id, run, "tool" if event.pending else "model")
            case events.Retrying() | events.Waiting() | events.Notice():
                return self._told(event)
            case events.RunFinished(run=run):
                self._run, self._state.open = run, {}
                return [["done", picture(run)]]
            case _:
                pass
        return []

    def _set(self, **fields: Any) -> None:
        self._run = self._run.model_copy(update=fields)

    def _index(self, turn_id: str) -> int:
        ids = [turn.id for turn in self._run.turns]
        return ids.index(turn_id) if turn_id in ids else len(ids)

    def _turn(self, turn_id: str) -> EngineTurn | None:
        return next((turn for turn in reversed(self._run.turns) if turn.id == turn_id), None)

    def _keep(self, turn: EngineTurn) -> None:
        """Put a turn into the record, and its numbers into the sums."""
        turns = list(self._run.turns)
        turns[self._index(turn.id) :] = [turn]
        spent = [t.response.usage for t in turns if t.response and t.response.usage]
        costs = [t.cost_usd for t in turns if t.cost_usd is not None]
        self._set(
            turns=tuple(turns),
            usage=sum(spent, Usage()),
            cost_usd=sum(costs) if costs else None,
        )

    def _writing(self, turn_id: str) -> Writing:
        writing = self._state.writing
        return writing.setdefault(turn_id, Writing(turn_id))

    def _with_text(self, turn: EngineTurn) -> EngineTurn:
        writing = self._state.writing.get(turn.id)
        if writing is None or turn.response is not None:
            return turn
        message = Message.of("assistant", writing.text.text)
        message = message.model_copy(update={"reasoning": writing.reasoning.text or None})
        return turn.model_copy(update={"response": ChatResponse(message=message)})

    def _awake(self) -> list[Op]:
        """What waited goes on: take its words from the head."""
        if not self._state.activity:
            return []
        self._state.activity, self._state.doing = "", "model"
        return [self._head()]

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
        index = int(event.turn_id.lstrip("C") or 0) if event.turn_id[1:].isdigit() else 0
        turn = EngineTurn(
            id=event.turn_id,
            run_id=run.id,
            index=index,
            request=request,
            started_at=run.started_at,
        )
        self._state.writing.pop(turn.id, None)
        self._state.activity, self._state.doing = "", "model"
        self._keep(turn)
        # The turn before is over, and folds.
        return [*map(self._turn_op, self._run.turns[-2:]), self._head()]

    def _turn_known(self, turn: EngineTurn, doing: timing.Kind) -> list[Op]:
        self._state.writing.pop(turn.id, None)
        self._state.activity, self._state.doing = "", doing
        self._keep(turn)
        closed = self._close(*self._state.open)
        graph = graph_of(self._run)
        moved: list[Op] = [["put", "graph", graph, ""]] if graph else []
        return [self._turn_op(turn), self._head(), *moved, *closed]

    def _close(self, *keys: str) -> list[Op]:
        """Questions that are answered: take them out of the list."""
        closed = [self._state.open.pop(key, None) for key in keys]
        return [self._asks()] if any(closed) else []

    def _call_moves(self, event: events.ApprovalRequested | events.ToolCallStarted) -> list[Op]:
        call, key = event.tool_call_id, f"{event.turn_id}/tool/{event.tool_call_id}"
        run = self._call(event.turn_id, call, event.tool_name)
        if isinstance(event, events.ToolCallStarted):
            given = {"args": event.args, "display_name": event.display_name}
            started = run.started_at or self._run.started_at
            run = run.model_copy(update={**given, "started_at": started})
            return self._call_changed(event.turn_id, run, "tool")
        state = self._state
        state.n_asked += 1
        question_id = f"{event.turn_id}/{call}/{state.n_asked}"
        state.open[key] = (question_id, event.question)
        given = {"args": event.args, "display_name": event.question.display_name}
        self._put_call(event.turn_id, run.model_copy(update=given))
        return [*self._card_ops(event.turn_id, call), self._head(), self._asks()]

    def _progress(self, event: events.ToolProgress) -> list[Op]:
        run = self._call(event.turn_id, event.tool_call_id, "")
        part = "" if event.fraction is None else f"{event.fraction:.0%} "
        key = f"{event.turn_id}/tool/{event.tool_call_id}"
        self._state.progress[key] = one_line(f"{part}{visible(event.text)}", 300)
        self._put_call(event.turn_id, run)
        return self._card_ops(event.turn_id, event.tool_call_id)[:1]

    def _call_changed(self, turn_id: str, run: ToolRun, doing: timing.Kind) -> list[Op]:
        key = f"{turn_id}/tool/{run.tool_call_id}"
        self._put_call(turn_id, run)
        if run.result is not None:
            self._state.progress.pop(key, None)
        self._state.doing = doing
        closed = self._close(key)
        return [*self._card_ops(turn_id, run.tool_call_id), self._head(), *closed]

    def _call(self, turn_id: str, call: str, name: str) -> ToolRun:
        turn = self._turn(turn_id)
        runs: Sequence[ToolRun] = turn.tool_runs if turn else ()
        known = next((run for run in runs if run.tool_call_id == call), None)
        return known or ToolRun(tool_call_id=call, tool_name=name)

    def _put_call(self, turn_id: str, run: ToolRun) -> None:
        turn = self._turn(turn_id)
        if turn is None:
            return
        runs = list(turn.tool_runs)
        places = [i for i, it in enumerate(runs) if it.tool_call_id == run.tool_call_id]
        place = places[0] if places else len(runs)
        runs[place : place + 1] = [run]
        self._keep(turn.model_copy(update={"tool_runs": tuple(runs)}))

    def _card_ops(self, turn_id: str, call: str) -> list[Op]:
        turn = self._turn(turn_id)
        if turn is None:
            return []
        places = [i for i, it in enumerate(turn.tool_runs) if it.tool_call_id == call]
        place = places[0] if places else 0
        key = f"{turn_id}/tool/{call}"
        node = self._card(turn, place, turn.tool_runs[place])
        line = line_node(turn, at_work=True)
        return [["put", key, node, f"{turn_id}/tools"], ["put", f"{turn_id}/line", line, ""]]

    def _told(self, event: events.Retrying | events.Waiting | events.Notice) -> list[Op]:
        state = self._state
        match event:
            case events.Retrying():
                why = one_line(labels.error_words(event.error) or visible(event.text), 200)
                state.activity = (
                    f"attempt {event.attempt} failed, again in {event.wait_s:.1f} s · {why}"
                )
                state.doing = "bad"
            case events.Waiting():
                state.activity = labels.note_of(event.text)
                state.doing = "wait" if event.text else "model"
            case events.Notice(turn_id=str() as turn_id):
                if turn := self._turn(turn_id):
                    notices = (*turn.notices, event.text)
                    turn = turn.model_copy(update={"notices": notices})
                    self._keep(turn)
                    return [self._turn_op(turn)]
            case events.Notice():
                self._set(notices=(*self._run.notices, event.text))
                return [["put", "notices", notices_node(self._run), ""]]
        return [self._head()]
