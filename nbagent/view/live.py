"""Events → changes → ops: small messages that change the picture of a running run.

The state is the record so far, the streaming texts and the open questions. `run_picture` draws
every part from it, so the last live picture equals the picture of the stored record. An event only
marks parts; they are drawn when the message is made, at most 20 times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from nbagent.contracts import events
from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatResponse
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.view import run_facts, run_status, timing
from nbagent.view.graph import run_graph_node
from nbagent.view.live_changes import Changes, Op
from nbagent.view.live_state import LiveState
from nbagent.view.live_text import TurnDraft, progress_node
from nbagent.view.node import Node
from nbagent.view.question import open_questions_node
from nbagent.view.run_picture import head, notices_node, picture, prompt_node
from nbagent.view.text_format import one_line, sanitize_value
from nbagent.view.turn_picture import card, card_key, turn_line_node, turn_node


class LivePicture:
    """Picture of one running run. Call `update` from one thread; the rest from any."""

    def __init__(self, run: RunRecord, clock: Callable[[], float] = monotonic_ms) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: `update` reads the open questions too
        self._run = run
        self._state, self._start_ms = LiveState(), clock()
        self._asked: dict[str, Question] = {}
        self._changes = Changes()
        self._has_ended = False

    def update(self, event: events.Event) -> None:
        """Apply one event: mark the parts that it changes, without drawing them."""
        with self._lock:
            self._update(event)

    def draw_changes(self, unfolded: frozenset[str] = frozenset(), kernel: str = "") -> list[Op]:
        """Draw everything that changed since the last call: each part once.

        Send these ops before a whole picture: it shows the same changes.
        """
        with self._lock:
            if self._has_ended:
                self._has_ended = False
                self._changes.clear()
                return [["done", self.picture(unfolded, kernel)]]
            ops = self._changes.take()
            for draft in self._state.drafts.values():
                draft.close_group()
            return ops

    def picture(self, unfolded: frozenset[str] = frozenset(), kernel: str = "") -> Node:
        """Draw the whole run as it is now."""
        with self._lock:
            live = self._state_with_time() if self._run.phase == "Running" else None
            return picture(self._run, live=live, unfolded=unfolded, kernel=kernel)

    def record(self) -> RunRecord:
        """Return the record so far, including the text that is still streaming."""
        with self._lock:
            if self._run.phase != "Running":
                return self._run
            turns = tuple(map(self._with_text, self._run.turns))
            elapsed = self._state_with_time().elapsed_ms
            return self._run.model_copy(update={"turns": turns, "duration_ms": elapsed})

    def open_question(self, question_id: str) -> Question | None:
        """Return the open question with that id; None if it is not open."""
        return dict(self.open_questions()).get(question_id)

    def asked_question(self, question_id: str) -> Question | None:
        """Return the question with that id, also if it was answered since."""
        with self._lock:
            return self._asked.get(question_id)

    def open_questions(self) -> list[tuple[str, Question]]:
        """Return the open questions with their ids, oldest first."""
        with self._lock:
            return [*self._state.open_questions.values()]

    def show_stopping(self, text: str) -> None:
        """Show in the head that the person stops or pauses the run."""
        with self._lock:
            self._state.stopping = text
            self._mark_head()

    # Marks

    def _state_with_time(self) -> LiveState:
        self._state.elapsed_ms = self._clock() - self._start_ms
        return self._state

    def _mark_head(self) -> None:
        self._changes.mark("head", lambda: head(self._run, self._state_with_time()))

    def _mark_questions(self) -> None:
        self._changes.mark("asks", lambda: open_questions_node(self.open_questions()))

    def _mark_turn(self, turn_id: str) -> None:
        self._changes.mark(turn_id, partial(self._turn_node, turn_id), "turns")

    def _mark_call(self, turn_id: str, call_id: str) -> None:
        """Mark the card of a call and the line of its turn."""
        card_of = partial(self._card_node, turn_id, call_id)
        self._changes.mark(card_key(turn_id, call_id), card_of, f"{turn_id}/tools")
        self._changes.mark(f"{turn_id}/line", partial(self._line_node, turn_id))

    def _turn_node(self, turn_id: str) -> Node | None:
        turn = self._turn(turn_id)
        return turn and turn_node(self._run, turn, live=self._state)

    def _line_node(self, turn_id: str) -> Node | None:
        turn = self._turn(turn_id)
        return turn and turn_line_node(self._run, turn, self._state)

    def _card_node(self, turn_id: str, call_id: str) -> Node | None:
        turn = self._turn(turn_id)
        calls = [run.tool_call_id for run in turn.tool_runs] if turn else []
        if turn is None or call_id not in calls:
            return None
        return card(self._run, turn, calls.index(call_id), live=self._state)

    def _clear_activity(self) -> None:
        """The wait is over: remove its text from the head."""
        if self._state.activity:
            self._set_activity("model")
            self._mark_head()

    def _set_activity(self, doing: timing.Kind, activity: str = "", again_ms: float = 0.0) -> None:
        self._state.time_kind, self._state.activity, self._state.retry_at_ms = (
            doing,
            activity,
            again_ms,
        )

    # Events

    def _update(self, event: events.Event) -> None:
        match event:
            case events.TextDelta(turn_id=turn_id, text=text):
                self._clear_activity()
                self._draft(turn_id).add_text(text)
            case events.ReasoningDelta(turn_id=turn_id, text=text):
                self._clear_activity()
                self._draft(turn_id).add_reasoning(text)
            case events.ToolCallDelta(turn_id=turn_id, call_index=index, name=name):
                self._clear_activity()
                shown_name = sanitize_value(name or "")
                self._draft(turn_id).add_call(index, shown_name, event.arguments)
            case events.TurnCorrected():
                self._turn_corrected(event)
            case events.RunStarted(run=run):
                self._run, self._state, self._start_ms = run, LiveState(), self._clock()
                self._mark_head()
                self._changes.mark("prompt", lambda: prompt_node(self._run))
            case events.TurnStarted():
                self._turn_started(event)
            case events.ResponseReceived(turn=turn):
                self._turn_changed(turn, "tool")
            case events.TurnFinished(turn=turn, messages=messages):
                self._set(messages=(*self._run.messages, *messages))
                self._turn_changed(turn, "model")
            case events.MessagesAdded(messages=messages):
                self._set(messages=(*self._run.messages, *messages))
            case events.ApprovalRequested():
                self._question_asked(event)
            case events.ToolCallStarted():
                self._call_started(event)
            case events.ToolProgress():
                self._progress(event)
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                self._call_changed(turn_id, run, "tool" if event.pending else "model")
            case events.Retrying(error=error):
                why = one_line(run_status.error_text(error) or sanitize_value(event.text), 200)
                again_ms = self._state_with_time().elapsed_ms + event.wait_s * 1000
                self._set_activity("bad", f"attempt {event.attempt} failed · {why}", again_ms)
                self._mark_head()
            case events.Waiting(text=text):
                self._set_activity("wait" if text else "model", run_facts.note_text(text))
                self._mark_head()
            case events.Notice(turn_id=turn_id, text=text):
                self._notice_added(turn_id, text)
            case events.RunFinished(run=run):
                self._run, self._has_ended = run, True
                self._state.open_questions.clear()
            case _:
                assert_never(event)

    def _set(self, **fields: Any) -> None:
        self._run = self._run.model_copy(update=fields)

    def _turn(self, turn_id: str) -> EngineTurn | None:
        return next((turn for turn in reversed(self._run.turns) if turn.id == turn_id), None)

    def _store_turn(self, turn: EngineTurn) -> None:
        """Insert or replace a turn in the record and update the totals."""
        turns = {known.id: known for known in self._run.turns} | {turn.id: turn}
        self._set(turns=tuple(turns.values()))
        totals = self._run.totals()
        self._set(usage=totals.usage, cost_usd=totals.cost_usd)

    def _draft(self, turn_id: str) -> TurnDraft:
        return self._state.drafts.setdefault(turn_id, TurnDraft(turn_id, self._changes))

    def _with_text(self, turn: EngineTurn) -> EngineTurn:
        writing = self._state.drafts.get(turn.id)
        if writing is None or turn.response is not None:
            return turn
        message = Message.of("assistant", writing.text.text)
        message = message.model_copy(update={"reasoning": writing.reasoning.text or None})
        return turn.model_copy(update={"response": ChatResponse(message=message)})

    def _turn_corrected(self, event: events.TurnCorrected) -> None:
        """Replace parts of a draft; mark its turn, or only the call that changed."""
        self._clear_activity()
        if event.restarted:
            self._begin_draft(event.turn_id)
        draft = self._draft(event.turn_id)
        if event.text is not None:
            draft.replace_text(event.text)
        if event.reasoning is not None:
            draft.replace_reasoning(event.reasoning)
        if event.call is not None:
            name = sanitize_value(event.call.name or "")
            draft.replace_call(event.call.call_index, name, event.call.arguments)
        if event.restarted or event.text is not None or event.reasoning is not None:
            self._mark_turn(event.turn_id)

    def _begin_draft(self, turn_id: str) -> None:
        self._state.drafts[turn_id] = TurnDraft(turn_id, self._changes)

    def _turn_started(self, event: events.TurnStarted) -> None:
        run, request = self._run, event.request
        # Placed by number, not appended: the event is repeated if the request is sent again, and
        # messages of the parent are not in this record.
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
            started_at=run.started_at,  # until the turn's own record arrives with its end
        )
        self._begin_draft(turn.id)
        self._set_activity("model")
        self._store_turn(turn)
        # The previous turn is over, so its picture folds.
        for shown in self._run.turns[-2:]:
            self._mark_turn(shown.id)
        self._mark_head()

    def _turn_changed(self, turn: EngineTurn, doing: timing.Kind) -> None:
        self._state.drafts.pop(turn.id, None)
        self._set_activity(doing)
        self._store_turn(turn)
        self._mark_turn(turn.id)
        self._mark_head()
        self._changes.mark("graph", lambda: run_graph_node(self._run))
        self._close_questions(*self._state.open_questions)

    def _close_questions(self, *keys: str) -> None:
        """Remove answered questions."""
        closed = [self._state.open_questions.pop(key, None) for key in keys]
        if any(closed):
            self._mark_questions()

    def _question_asked(self, event: events.ApprovalRequested) -> None:
        turn_id, question = event.turn_id, event.question
        # The same call may be asked about again; a late answer must not answer the new question.
        question_id = f"{turn_id}/{event.tool_call_id}/{len(self._asked) + 1}"
        self._asked[question_id] = question
        self._state.open_questions[card_key(turn_id, event.tool_call_id)] = (question_id, question)
        known = self._tool_run(turn_id, event.tool_call_id, event.tool_name)
        fields = {"args": event.args, "display_name": question.display_name}
        self._put_call(turn_id, known.model_copy(update=fields))
        self._mark_head()
        self._mark_questions()

    def _progress(self, event: events.ToolProgress) -> None:
        part = "" if event.fraction is None else f"{event.fraction:.0%} "
        key = card_key(event.turn_id, event.tool_call_id)
        self._state.progress[key] = one_line(f"{part}{sanitize_value(event.text)}", 300)
        self._changes.mark(f"{key}/progress", partial(self._progress_node, key), key)

    def _progress_node(self, key: str) -> Node | None:
        text = self._state.progress.get(key)
        return text and progress_node(key, text)

    def _call_started(self, event: events.ToolCallStarted) -> None:
        known = self._tool_run(event.turn_id, event.tool_call_id, event.tool_name)
        # Any time says "it runs"; the event of its end brings the real one.
        started = known.started_at or self._run.started_at
        fields = {"args": event.args, "display_name": event.display_name, "started_at": started}
        self._call_changed(event.turn_id, known.model_copy(update=fields), "tool")

    def _call_changed(self, turn_id: str, run: ToolRun, doing: timing.Kind) -> None:
        key = card_key(turn_id, run.tool_call_id)
        if run.result is not None:
            self._state.progress.pop(key, None)
        self._state.time_kind = doing
        self._put_call(turn_id, run)
        self._mark_head()
        self._close_questions(key)

    def _tool_run(self, turn_id: str, call: str, name: str = "") -> ToolRun:
        """Return the tool run of a call; a new one if there is none yet."""
        turn = self._turn(turn_id)
        runs = {run.tool_call_id: run for run in turn.tool_runs} if turn else {}
        return runs.get(call) or ToolRun(tool_call_id=call, tool_name=name)

    def _put_call(self, turn_id: str, run: ToolRun) -> None:
        """Insert or replace a call in its turn; mark its card and the turn's line."""
        turn = self._turn(turn_id)
        if turn is None:
            return
        runs = {known.tool_call_id: known for known in turn.tool_runs} | {run.tool_call_id: run}
        self._store_turn(turn.model_copy(update={"tool_runs": tuple(runs.values())}))
        self._mark_call(turn_id, run.tool_call_id)

    def _notice_added(self, turn_id: str | None, text: str) -> None:
        turn = self._turn(turn_id) if turn_id else None
        if turn:
            turn = turn.model_copy(update={"notices": (*turn.notices, text)})
            self._store_turn(turn)
            self._mark_turn(turn.id)
        elif not turn_id:
            self._set(notices=(*self._run.notices, text))
            self._changes.mark("notices", lambda: notices_node(self._run))
