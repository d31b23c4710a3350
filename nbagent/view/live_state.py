"""Folds the engine's events into the picture of a run that is under way, and into ops.

Pure but for the clock it is given. The picture at the end is `view_of` of the record.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from nbagent.contracts import events
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import Message, Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.contracts.secrets import StreamFilter
from nbagent.view.old_markdown import MAX_CHARS
from nbagent.view.question_before import Asked, question_view
from nbagent.view.view_state import bar_words, facts_of, view_of
from nbagent.view.view_turn import (
    ARGUMENTS_CHARS,
    REASONING_CHARS,
    empty_turn,
    error_words,
    note_of,
    request_view,
    segments_of,
    summary_of,
    tool_view,
    turn_view,
    written_by_model,
)
from nbagent.view.view_types import (
    Block,
    Doing,
    Head,
    HeadOp,
    Op,
    QuestionView,
    Segment,
    Status,
    TextOp,
    ToolOp,
    ToolPhase,
    TurnOp,
    TurnView,
    ViewState,
)
from nbagent.view.words import clean, one_line, visible

_RUNNING: Status = {"word": "Running", "tone": "live", "mark": "…"}
_ASKING: Status = {"word": "Waiting for you", "tone": "waits", "mark": "?"}


class _Stream:
    """A text that arrives in pieces: filtered, bounded, joined only when somebody looks."""

    def __init__(self, limit: int) -> None:
        self._filter = StreamFilter()
        self._left = limit
        self._pieces: list[str] = []

    def feed(self, piece: str, show: Callable[[str], str]) -> str:
        """What may be shown of it now."""
        if self._left <= 0:
            return ""
        shown = show(self._filter.feed(piece))[: self._left]
        self._left -= len(shown)
        if self._left <= 0:
            shown += "\n… (more than is shown while it streams)"
        self._pieces.append(shown)
        return shown

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


@dataclass(slots=True)
class _Turn:
    """What is known of a turn beside its view."""

    view: TurnView
    place: int
    record: EngineTurn | None = None
    runs: dict[str, ToolRun] = field(default_factory=dict[str, ToolRun])
    text: _Stream = field(default_factory=lambda: _Stream(MAX_CHARS))
    reasoning: _Stream = field(default_factory=lambda: _Stream(REASONING_CHARS))
    drafts: dict[int, _Stream] = field(default_factory=dict[int, _Stream])
    sums: tuple[str, str] = ("", "")
    """Hashes of system prompt and tool set."""

    def look(self) -> TurnView:
        """The view, with what has streamed so far."""
        if self.record is None:
            self.view["text"]["text"] = self.text.text
            self.view["reasoning"]["text"] = self.reasoning.text
            for index, stream in self.drafts.items():
                self.view["drafts"][index]["arguments"] = stream.text
        return self.view


class LiveState:
    """The live picture of one run. `fold` on one thread; `snapshot` on any."""

    def __init__(self, run: RunRecord, *, clock: Callable[[], float] = monotonic_ms) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begin(run)

    def _begin(self, run: RunRecord) -> None:
        self._start_ms = self._clock()
        self._run = run
        self._state: ViewState = view_of(run)
        self._turns: dict[str, _Turn] = {}
        self._segments: dict[str, list[Segment]] = {}
        self._asking: dict[str, Asked] = {}
        self._asked_since_ms = 0.0
        self._n_asked = 0
        self._wait_until_ms = 0.0

    def snapshot(self) -> ViewState:
        """A copy of the picture as it is now."""
        with self._lock:
            if self._state["running"]:
                self._tell_time()
                for turn in self._turns.values():
                    turn.look()
            return copy.deepcopy(self._state)

    def asked(self, call: str) -> Asked | None:
        """The question that is open about a call."""
        with self._lock:
            return self._asking.get(call)

    def fold(self, event: events.Event) -> list[Op]:
        """Take one event; gives what a front end has to be told."""
        with self._lock:
            return self._fold(event)

    def _fold(self, event: events.Event) -> list[Op]:
        match event:
            case events.TextDelta() | events.ReasoningDelta():
                return self._streamed(event)
            case events.ToolCallDelta():
                return self._drafted(event)
            case events.RunStarted(run=run):
                self._begin(run)
                return [self._head_op()]
            case events.TurnStarted():
                return self._turn_started(event)
            case events.ResponseReceived(turn=record):
                return self._turn_known(record, finished=False)
            case events.TurnFinished(turn=record):
                return self._turn_known(record, finished=True)
            case events.ApprovalRequested() | events.ToolCallStarted() | events.ToolProgress():
                return self._tool_moves(event)
            case events.ToolCallFinished():
                return self._tool_finished(event)
            case events.Retrying() | events.Waiting() | events.Notice():
                return self._told(event)
            case events.RunFinished(run=run):
                self._state = view_of(run)
            case _:
                pass
        return []

    def _head_op(self) -> HeadOp:
        state = self._state
        state["bar"] = [piece for pieces in self._segments.values() for piece in pieces]
        state["bar_words"] = bar_words(state["bar"])
        self._tell_time()
        known = [turn.record for turn in self._turns.values() if turn.record]
        spent = [turn.response.usage for turn in known if turn.response and turn.response.usage]
        costs = [turn.cost_usd for turn in known]
        cost = sum(c for c in costs if c is not None) if costs and None not in costs else None
        state["facts"] = facts_of(self._run, known, sum(spent, Usage()), cost, state["elapsed_ms"])
        for fact in state["facts"]:
            if fact["key"] == "turns":
                fact["value"] = str(len(self._turns))
                fact["word"] = "turn" if len(self._turns) == 1 else "turns"
        state["status"] = _ASKING if self._asking else _RUNNING
        head: Head = {
            "status": state["status"],
            "activity": state["activity"],
            "wait_ms": state["wait_ms"],
            "running": state["running"],
            "doing": state["doing"],
            "facts": state["facts"],
            "elapsed_ms": state["elapsed_ms"],
            "bar": state["bar"],
            "bar_words": state["bar_words"],
            "notices": list(state["notices"]),
        }
        return {"op": "head", "head": head}

    def _tell_time(self) -> None:
        now = self._clock()
        self._state["elapsed_ms"] = round(now - self._start_ms, 1)
        self._state["wait_ms"] = round(max(0.0, self._wait_until_ms - now), 1)

    def _turn(self, turn_id: str) -> _Turn:
        turn = self._turns.get(turn_id)
        if turn is None:
            turn = _Turn(empty_turn(turn_id), len(self._turns))
            self._turns[turn_id] = turn
            self._state["turns"].append(turn.view)
        return turn

    def _replace(self, turn: _Turn, view: TurnView) -> TurnOp:
        turn.view = view
        self._state["turns"][turn.place] = view
        return {"op": "turn", "turn": for_front_end(view)}

    def _turn_started(self, event: events.TurnStarted) -> list[Op]:
        turn = self._turn(event.turn_id)
        request = event.request
        turn.sums = (request.system_sha, request.toolset_sha)
        before = list(self._turns.values())[turn.place - 1] if turn.place else None
        same = before.view["id"] if before and before.sums == turn.sums else ""
        own = min(request.n_new, request.n_messages - self._run.shared_messages)
        new: tuple[Message, ...] = event.messages[-own:] if own > 0 else ()
        turn.view["request"] = request_view(
            request,
            new,
            tools=event.tools,
            system_prompt=event.system_prompt,
            same_as=same,
        )
        self._now("model")
        return [self._replace(turn, turn.view), self._head_op()]

    def _now(self, doing: Doing, activity: str = "", wait_s: float = 0.0) -> None:
        self._state["doing"] = doing
        self._state["activity"] = activity
        self._wait_until_ms = self._clock() + 1000 * wait_s if wait_s > 0 else 0.0

    def _awake(self) -> list[Op]:
        """What waited goes on: take its words from the head."""
        if not self._state["activity"]:
            return []
        self._now("model")
        return [self._head_op()]

    def _streamed(self, event: events.TextDelta | events.ReasoningDelta) -> list[Op]:
        turn = self._turn(event.turn_id)
        is_text = isinstance(event, events.TextDelta)
        shown = (turn.text if is_text else turn.reasoning).feed(event.text, clean)
        ops = self._awake()
        if shown:
            op: TextOp = {
                "op": "text" if is_text else "reasoning",
                "turn": event.turn_id,
                "text": shown,
            }
            ops.append(op)
        return ops

    def _drafted(self, event: events.ToolCallDelta) -> list[Op]:
        turn = self._turn(event.turn_id)
        index = event.call_index
        while len(turn.drafts) <= index < 200:
            turn.view["drafts"].append({"name": "", "arguments": ""})
            turn.drafts[len(turn.drafts)] = _Stream(ARGUMENTS_CHARS)
        if index >= len(turn.drafts) or index < 0:
            return []
        name = visible(event.name or "")
        shown = turn.drafts[index].feed(event.arguments, visible)
        turn.view["drafts"][index]["name"] = name or turn.view["drafts"][index]["name"]
        ops = self._awake()
        if name or shown:
            turn_id = event.turn_id
            ops.append(
                {"op": "draft", "turn": turn_id, "index": index, "name": name, "text": shown}
            )
        return ops

    def _turn_known(self, record: EngineTurn, *, finished: bool) -> list[Op]:
        turn = self._turn(record.id)
        turn.record = record
        turn.runs = {run.tool_call_id: run for run in record.tool_runs}
        view = turn_view(record, turn.place, turn.view["request"])
        if not finished:
            view["phase"] = "running"
            view["numbers"] = ""
        self._close_questions(record.id, *self._asking)
        self._segments[record.id] = segments_of(record)
        self._now("model" if finished else "tool")
        return [self._replace(turn, view), self._head_op()]

    def _path(self, turn: _Turn, key: str) -> str:
        place = list(turn.runs).index(key) if key in turn.runs else len(turn.runs)
        return f"run.turns[{turn.place}].tool_runs[{place}]"

    def _tool_op(self, turn: _Turn, run: ToolRun, phase: ToolPhase | None = None) -> ToolOp:
        """Put a run's card in its place, and take its turn's line anew."""
        path = self._path(turn, run.tool_call_id)
        card = tool_view(run, path, written=written_by_model(turn.record, run))
        if phase is not None:
            card["phase"] = phase
            card["word"] = "waiting for you" if phase == "asking" else phase
        turn.runs[run.tool_call_id] = run
        cards = turn.view["tools"]
        places = [i for i, old in enumerate(cards) if old["key"] == card["key"]]
        if places:
            cards[places[0]] = card
        else:
            cards.append(card)
        summary = summary_of(list(turn.runs.values()), turn.view["tree"])
        for words, shown in zip(summary["calls"], cards, strict=False):
            words["phase"] = shown["phase"]
        turn.view["summary"] = summary
        return {"op": "tool", "turn": turn.view["id"], "tool": card, "summary": summary}

    def _tool_moves(
        self, event: events.ApprovalRequested | events.ToolCallStarted | events.ToolProgress
    ) -> list[Op]:
        turn = self._turn(event.turn_id)
        key = event.tool_call_id
        asks = isinstance(event, events.ApprovalRequested)
        if isinstance(event, events.ToolProgress):
            run = turn.runs.get(key) or ToolRun(tool_call_id=key, tool_name="")
            op = self._tool_op(turn, run, "running")
            part = "" if event.fraction is None else f"{event.fraction:.0%} "
            op["tool"]["progress"] = one_line(f"{part}{visible(event.text)}", 300)
            return [op]
        run = turn.runs.get(key) or ToolRun(tool_call_id=key, tool_name=event.tool_name)
        title = (event.question if asks else event).display_name
        run = run.model_copy(update={"args": event.args, "display_name": title})
        op = self._tool_op(turn, run, "asking" if asks else "running")
        if isinstance(event, events.ApprovalRequested):
            op["tool"]["question"] = self._open_question(event)
        else:
            self._close_questions(event.turn_id, key)
        self._now("wait" if self._asking else "tool")
        return [op, self._head_op()]

    def _open_question(self, event: events.ApprovalRequested) -> QuestionView:
        if not self._asking:
            self._asked_since_ms = self._clock()
        self._n_asked += 1
        self._asking[event.tool_call_id] = Asked(event.question, self._n_asked)
        return question_view(event.question, self._n_asked)

    def _close_questions(self, turn_id: str, *calls: str) -> None:
        """These are answered; with the last of them the waiting becomes a piece of the bar."""
        if not self._asking:
            return
        for call in calls:
            self._asking.pop(call, None)
        ms = round(self._clock() - self._asked_since_ms, 1)
        if not self._asking and ms > 0:
            waited: Segment = {"kind": "wait", "ms": ms, "turn": turn_id}
            self._segments.setdefault(turn_id, []).append(waited)

    def _tool_finished(self, event: events.ToolCallFinished) -> list[Op]:
        turn = self._turn(event.turn_id)
        op = self._tool_op(turn, event.tool_run)
        self._close_questions(event.turn_id, event.tool_run.tool_call_id)
        self._now("wait" if self._asking else "tool" if event.pending else "model")
        return [op, self._head_op()]

    def _told(self, event: events.Retrying | events.Waiting | events.Notice) -> list[Op]:
        match event:
            case events.Retrying():
                why = one_line(error_words(event.error) or visible(event.text), 200)
                words = f"attempt {event.attempt} failed, again in {event.wait_s:.1f} s · {why}"
                self._now("bad", words, event.wait_s)
            case events.Waiting():
                self._now("wait" if event.text else "model", note_of(event.text), event.wait_s)
            case events.Notice(turn_id=str() as turn_id):
                turn = self._turn(turn_id)
                turn.view["notices"].append(note_of(event.text))
                return [self._replace(turn, turn.look())]
            case events.Notice():
                self._state["notices"].append(note_of(event.text))
        return [self._head_op()]


def for_front_end(turn: TurnView) -> TurnView:
    """A copy without what the front end does not draw: the source of a text that has its tree."""
    slim = turn.copy()
    if turn["tree"]:
        text: Block = {"text": "", "note": turn["text"]["note"]}
        slim["text"] = text
    return copy.deepcopy(slim)


def state_for_front_end(state: ViewState) -> ViewState:
    """The whole picture as `for_front_end` makes its turns."""
    slim = state.copy()
    slim["turns"] = [for_front_end(turn) for turn in state["turns"]]
    return slim
