"""Runs as plain text, and events as lines while they happen: terminals, scripts, `text/plain`.

Each kind of number or id that changes from run to run has one pattern, so `notebook/nbval.cfg` can
replace it:

    run id   `run 1a2b3c4d`, `%agent show 1a2b3c4d`   8 hex digits
    time     `<1 ms`, `12 ms`, `2.8 s`, `125 s`, `12 min 5 s`
    cost     `$0.0004`, `<$0.0001`
    bar      `flex-grow:12` in the style of a piece of the time bar (HTML only)
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar, assert_never, cast

from nbagent.contracts import events
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.contracts.secrets import StreamFilter, redact_json
from nbagent.view import run_facts, run_status
from nbagent.view.batch import BatchProgress, batch_line, batch_text, end_text
from nbagent.view.images import image_line
from nbagent.view.node import Node, first_class, text_of
from nbagent.view.printers import plain_text
from nbagent.view.question import question_text
from nbagent.view.run_picture import picture
from nbagent.view.text_format import sanitize_prose, sanitize_value
from nbagent.view.turn_picture import call_node

_ADVISING = frozenset({"nba-end", "nba-error", "nba-foot", "nba-below"})
"""Classes of the parts of a picture with advice."""
_VOLATILE = frozenset({"nba-time", "nba-foot"})
"""Classes of the parts that differ in each run: times, ids."""


def run_text(run: RunRecord, *, advise: Callable[[str], str] = str) -> str:
    """Print a run as text: head, prompt, a line for each turn, the answer, the end.

    `advise` changes advice to what can be done where it is printed.
    """
    node = picture(run, actions=False, next_step=next_step(run))
    return plain_text(node if advise is str else _with_advice(node, advise))


def saved_text(run: RunRecord) -> str:
    """Print a run as a file has it: without the times and ids that are in its HTML and record.

    Two runs of a cell then differ in this text only where their models or tools did.
    """
    shown = plain_text(picture(run, actions=False), omitted=_VOLATILE)
    return "\n\n".join(filter(None, (shown, next_step(run))))


def _with_advice(node: Node, advise: Callable[[str], str], *, is_ours: bool = False) -> Node:
    """Change the advice in the parts of a picture whose words are nbagent's."""
    if isinstance(node, str):
        return advise(node) if is_ours else node
    is_ours = is_ours or first_class(node) in _ADVISING
    return [*node[:2], *(_with_advice(child, advise, is_ours=is_ours) for child in node[2:])]


def _state(run: RunRecord, model: str = "") -> str:
    status = run_status.status_of(run)
    facts = run_facts.facts_line(run_facts.placed_summary(run))
    return f"{status.mark} {status.word} · {model}{facts}"


def _end(run: RunRecord) -> list[str]:
    """Lines on the end of a run: the reason, its identity and the next step."""
    ending = run_status.ending_text(run)
    identity = " · ".join(filter(None, (run_facts.run_identity(run), next_step(run))))
    return [*filter(None, [ending]), identity]


def next_step(run: RunRecord) -> str:
    """Command that continues a run, unless its end names one."""
    ending = run_status.ending_text(run)
    return "" if "%agent resume" in ending else run_status.next_step(run)


class CallPrinter:
    """Prints the calls of a run while it runs: a line when a call begins, one when it ends.

    Also what makes a person wait: progress, questions, retries.
    """

    name = "calls"

    def __init__(self, write: Callable[[str], object], *, asked_by_input: bool = False) -> None:
        """Print by `write`, which gets lines or pieces of lines, `\\n` included.

        Args:
            write: for example `sys.stdout.write`.
            asked_by_input: True if `ask_by_input` prints the questions, in another thread. Printed
                here too, a question could appear between its prompt and the typed answer.
        """
        self._write = write
        self._asked_by_input = asked_by_input

    def handle(self, event: events.Event) -> None:
        """Print an event of a call or a wait; leave out all others."""
        match event:
            case events.ToolCallStarted():
                self._line(f"{event.turn_id}  ▸ {_started_text(event)}")
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                self._call(turn_id, run)
            case events.ToolProgress() if event.text:
                self._line(f"     {sanitize_value(event.text)}")
            case events.ApprovalRequested(question=question) if not self._asked_by_input:
                self._line(f"{event.turn_id}  {question_text(question)}")
            case events.Retrying():
                why = run_status.error_text(event.error) or sanitize_value(event.text)
                self._line(f"     again in {event.wait_s:.1f} s: {why}")
            case events.Waiting(text=text) if text:
                self._line(f"     {sanitize_value(text)}")
            case _:
                pass

    def close(self) -> None:
        """Every line is complete."""

    def _line(self, text: str) -> None:
        self._write(f"{text}\n")

    def _call(self, turn_id: str, run: ToolRun) -> None:
        clock = (run.started_at or utc_now()).astimezone().strftime("%H:%M:%S")
        where = run_facts.execution_text(run)
        text = text_of(call_node(run))
        self._line(f"{turn_id}  {clock} {text}{f'  ({where})' if where else ''}")
        if run.approval:
            self._line(f"     {run_facts.decision_text(run, with_reason=True)}")
        for detail in sanitize_value(run.error_detail or "").splitlines():
            self._line(f"     {detail}")


def _started_text(event: events.ToolCallStarted) -> str:
    """`population(city="Oslo") …`."""
    name = event.display_name or event.tool_name
    run = ToolRun(tool_call_id=event.tool_call_id, tool_name=name, args=redact_json(event.args))
    return text_of(call_node(run))


class TakenTurns:
    """An output whose texts wait until the outputs that queued up before it have ended.

    Used on the engine's loop only.
    """

    _queue: ClassVar[list[TakenTurns]] = []

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write_now = write
        self._waiting: list[str] = []
        self._is_open = True

    def queue_up(self) -> None:
        self._queue.append(self)

    def write(self, text: str) -> None:
        """Write a text, or keep it until the turn of this output comes."""
        if self in self._queue[1:]:
            self._waiting.append(text)
        else:
            self._write_now(text)

    def end(self) -> None:
        """Give the turn to the next output, and write what it has so far."""
        self._is_open = False
        while self._queue and not self._queue[0]._is_open:
            del self._queue[0]
            for output in self._queue[:1]:
                output._write_now("".join(output._waiting))


class PlainPrinter(CallPrinter):
    """Prints a run while it runs: its calls, streaming text, and the end of each turn.

    If `rich` is installed and the terminal shows colours, a complete answer is rendered instead.
    """

    name = "terminal"

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        asked_by_input: bool = False,
        renders: bool = False,
        advise: Callable[[str], str] = str,
    ) -> None:
        """Print by `write`; see `CallPrinter`. `renders` renders Markdown by `rich` if it can.

        `advise` changes advice to what can be done where it is printed.
        """
        self._output = TakenTurns(write)
        super().__init__(self._output.write, asked_by_input=asked_by_input)
        self._advise = advise
        self._renders = renders and find_spec("rich") is not None
        self._open = ""
        """Kind of the unfinished last line: `text`, `reasoning`, or empty if there is none."""
        self._filter = StreamFilter()
        self._streamed: set[str] = set()
        self._ended: set[tuple[str, str]] = set()
        """Turn and call ids of the calls that were printed."""

    def handle(self, event: events.Event) -> None:
        """Print one event."""
        match event:
            case events.RunStarted(run=run):
                self._begin(run)
            case events.TextDelta(turn_id=turn_id, text=text):
                self._stream_piece("text", turn_id, text)
            case events.ReasoningDelta(turn_id=turn_id, text=text):
                self._stream_piece("reasoning", turn_id, text)
            case events.TurnCorrected():
                self._correct(event)
            case events.Notice(level=level, text=text):
                text = self._advise(sanitize_value(text))
                self._line(f"     {'note' if level == 'info' else level}: {text}")
            case events.TurnFinished(turn=turn):
                self._turn(turn)
            case events.RunFinished(run=run):
                self._end(run)
            case (
                events.ToolCallStarted()
                | events.ToolProgress()
                | events.ToolCallFinished()
                | events.ApprovalRequested()
                | events.Retrying()
                | events.Waiting()
            ):
                super().handle(event)
            case (
                events.TurnStarted()
                | events.ToolCallDelta()
                | events.ResponseReceived()
                | events.MessagesAdded()
            ):
                pass  # a turn is printed once, when it ends
            case _:
                assert_never(event)

    def close(self) -> None:
        """End the line that is still open."""
        self._break()
        self._output.end()

    def _begin(self, run: RunRecord) -> None:
        if run.forked_from and run.forked_from.defer_calls:  # several may answer side by side
            self._output.queue_up()
        position = run_facts.workflow_position(run_facts.placed_summary(run))
        self._line(f"… Running · {sanitize_value(run.model)}{f' · {position}' if position else ''}")
        if notice := run_facts.offline_notice(run):
            self._line(self._advise(notice))
        for note in run_facts.run_notes(run):
            self._line(f"     note: {self._advise(note)}")

    def _line(self, text: str) -> None:
        self._break()
        self._write(f"{text}\n")

    def _break(self) -> None:
        if self._open:
            self._write(f"{sanitize_prose(self._filter.flush())}\n")
            self._open = ""

    def _stream_piece(self, kind: str, turn_id: str, text: str) -> None:
        if self._renders:
            return
        if self._open != kind:
            self._break()
            self._write(f"{turn_id}  {'(thinking) ' if kind == 'reasoning' else ''}")
            self._open = kind
        if kind == "text":
            self._streamed.add(turn_id)
        self._write(sanitize_prose(self._filter.feed(text)))

    def _correct(self, event: events.TurnCorrected) -> None:
        """Say that text on the screen is void, and print what replaces it."""
        replaced = {"text": event.text, "reasoning": event.reasoning}
        if self._renders or not (event.restarted or any(t is not None for t in replaced.values())):
            return
        self._line("     note: the server corrects its answer; it begins again")
        if event.restarted or event.text is not None:
            self._streamed.discard(event.turn_id)
        for kind, text in replaced.items():
            if text:
                self._stream_piece(kind, event.turn_id, text)

    def _call(self, turn_id: str, run: ToolRun) -> None:
        self._ended.add((turn_id, run.tool_call_id))
        super()._call(turn_id, run)

    def _turn(self, turn: EngineTurn) -> None:
        self._break()
        if turn.text and turn.id not in self._streamed:
            self._text(turn)
        for image in turn.images:
            self._line(f"{turn.id}  {image_line(image)}")
        for run in turn.tool_runs:
            if (turn.id, run.tool_call_id) not in self._ended:
                self._call(turn.id, run)  # the response was cut off, so its calls never started
        if failure := run_facts.turn_failure(turn):
            self._line(f"{turn.id}  ✕ {failure}")
        for note in run_facts.turn_notes(turn):  # notices were printed when they arrived
            self._line(f"     note: {note}")
        self._line(f"     {run_facts.turn_numbers(turn)}")

    def _text(self, turn: EngineTurn) -> None:
        if not self._renders:
            self._line(f"{turn.id}  {sanitize_prose(turn.text)}")
            return
        # Late: rich may be missing, and only a terminal needs it.
        from rich.console import Console  # pyright: ignore
        from rich.markdown import Markdown  # pyright: ignore

        console, render = cast("Any", Console)(), cast("Any", Markdown)
        with console.capture() as captured:
            # Without hyperlinks rich prints the address of a link, so a person can check it.
            rendered = render(sanitize_prose(turn.text), hyperlinks=False)
            console.print(rendered)
        self._line(f"{turn.id}\n{captured.get().rstrip()}")

    def _end(self, run: RunRecord) -> None:
        for text in (_state(run), *map(self._advise, _end(run))):
            self._line(text)


class BatchPrinter:
    """Prints the progress of a batch: one line of a terminal that is overwritten, and its end.

    Without a terminal it prints only the end of a batch with missing or failed cases.
    """

    only_while_waited = True  # else it would overwrite what the person types meanwhile
    saves_record = False

    def __init__(self, write: Callable[[str], object], *, is_terminal: bool) -> None:
        """Print by `write`, for example `sys.stderr.write`."""
        self._write, self._is_terminal = write, is_terminal

    def update(self, progress: BatchProgress) -> None:
        """Overwrite the line."""
        if self._is_terminal:
            # One less: some terminals wrap as soon as the last column is written.
            columns = shutil.get_terminal_size().columns - 1
            self._write(f"\r{_fit_columns(batch_line(progress), columns)}\x1b[K")

    def close(self, progress: BatchProgress) -> None:
        """Print the final line, or the problems if this is no terminal."""
        if self._is_terminal:
            self.update(progress)
            end = end_text(progress)
            self._write(f"\n{end}\n" if end else "\n")
        elif progress.failed or end_text(progress):
            self._write(f"nbagent: {batch_text(progress)}\n")


def _fit_columns(text: str, columns: int) -> str:
    """Cut a text to a width in columns: a line that wraps cannot be overwritten."""
    for index, letter in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if columns < 0:
            return text[:index]
    return text
