"""Events → plain lines while they happen: for terminal IPython, scripts and `echo=True`.

A sink that writes to a callable. Knows no notebook.
"""

from __future__ import annotations

from collections.abc import Callable

from nbagent.contracts import events
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.contracts.secrets import StreamFilter
from nbagent.view.question import question_text
from nbagent.view.static_text import call_line, facts_line, foot_line
from nbagent.view.view_state import offline_words, place_of, view_of
from nbagent.view.view_turn import (
    decision_words,
    error_words,
    escapes_seen,
    left_out,
    moves_of,
    recorded_words,
    summary_of,
    waits_of,
)
from nbagent.view.words import arguments_in_short, clean, seconds, visible


class PlainPrinter:
    """Prints turns, calls with their results, and the text as it streams."""

    name = "plain lines"

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        stream: bool = True,
        asked_by_input: bool = False,
    ) -> None:
        """Print by `write`, which gets whole lines or pieces of them, `\\n` included.

        Args:
            write: for example `sys.stdout.write`.
            stream: False prints each turn's text when it is whole.
            asked_by_input: a question is printed where it is asked, in another thread: its words
                here could come between it and what the person types.
        """
        self._write = write
        self._stream = stream
        self._asked_by_input = asked_by_input
        self._open = ""
        """What the unfinished line at the end belongs to: `text`, `reasoning` or nothing."""
        self._filter = StreamFilter()
        self._streamed: set[str] = set()
        """Turns whose text came in pieces."""
        self._ended: set[tuple[str, str]] = set()
        """Calls whose end was printed."""

    def handle(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.RunStarted(run=run):
                self._begin(run)
            case events.TextDelta(turn_id=turn_id, text=text):
                self._piece("text", turn_id, text)
            case events.ReasoningDelta(turn_id=turn_id, text=text):
                self._piece("reasoning", turn_id, text)
            case events.ToolCallStarted():
                call = f"{visible(event.tool_name)}({arguments_in_short(escapes_seen(event.args))})"
                self._line(f"{event.turn_id}  {call} …")
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                self._result(turn_id, run)
            case events.ToolProgress() if event.text:
                self._line(f"     {visible(event.text)}")
            case events.ApprovalRequested(question=question) if not self._asked_by_input:
                self._line(f"{event.turn_id}  {question_text(question)}")
            case events.Retrying():
                why = error_words(event.error) or visible(event.text)
                self._line(f"     again in {event.wait_s:.1f} s: {why}")
            case events.Waiting(text=text) if text:
                self._line(f"     {visible(text)}")
            case events.Notice(level=level, text=text):
                self._line(f"     {'note' if level == 'info' else level}: {visible(text)}")
            case events.TurnFinished(turn=turn):
                self._turn(turn)
            case events.RunFinished(run=run):
                self._end(run)
            case _:
                pass

    def close(self) -> None:
        """End the line that is still open."""
        self._break()

    def _begin(self, run: RunRecord) -> None:
        place = place_of(run, None)
        self._line(f"… Running · {visible(run.model)}{f' · {place}' if place else ''}")
        if words := offline_words(run.model):
            self._line(words)
        for text in run.notices:
            self._line(f"     note: {visible(text)}")

    def _line(self, text: str) -> None:
        self._break()
        self._write(f"{text}\n")

    def _break(self) -> None:
        if self._open:
            self._write(f"{clean(self._filter.flush())}\n")
            self._open = ""

    def _piece(self, kind: str, turn_id: str, text: str) -> None:
        if not self._stream:
            return
        if self._open != kind:
            self._break()
            self._write(f"{turn_id}  {'(thinking) ' if kind == 'reasoning' else ''}")
            self._open = kind
        if kind == "text":
            self._streamed.add(turn_id)
        self._write(clean(self._filter.feed(text)))

    def _result(self, turn_id: str, run: ToolRun) -> None:
        self._ended.add((turn_id, run.tool_call_id))
        words = summary_of([run], [])["calls"][0]
        where = f"  ({run.ran_in})" if run.ran_in else ""
        self._line(f"{turn_id}  {call_line(words)}{where}")
        if decision := decision_words(run):
            self._line(f"     {decision}")
        if run.error_detail:
            for line in visible(run.error_detail).splitlines():
                self._line(f"     {line}")

    def _turn(self, turn: EngineTurn) -> None:
        self._break()
        if turn.text and turn.id not in self._streamed:
            self._line(f"{turn.id}  {clean(turn.text)}")
        for run in turn.tool_runs:
            if (turn.id, run.tool_call_id) not in self._ended:
                self._result(turn.id, run)  # the response was cut, and no call of it began
        if turn.error and not turn.error.code.startswith("ENGINE_"):
            self._line(f"{turn.id}  ✕ {error_words(turn.error)}")
        for words in filter(None, (waits_of(turn), left_out(turn), *moves_of(turn))):
            self._line(f"     note: {words}")
        usage = turn.response.usage if turn.response else None
        tokens = f"{usage.total_tokens:,} tok · " if usage and usage.total_tokens else ""
        words = recorded_words(turn)
        self._line(f"     {tokens}{seconds(turn.duration_ms)}{f' · {words}' if words else ''}")

    def _end(self, run: RunRecord) -> None:
        state = view_of(run)
        status = state["status"]
        self._line(f"{status['mark']} {status['word']} · {facts_line(state)}")
        if state["error"]:
            self._line(f"{state['error_mark']} {state['error']}")
        if state["error_help"]:
            self._line(state["error_help"])
        self._line(foot_line(state))
