"""A run as plain text, and events as lines while they happen: terminals, scripts, `text/plain`.

Numbers and ids that change from run to run have one pattern each, so that `tests/nbval.cfg` can
replace them:

    run id   `run 1a2b3c4d`, `%agent show 1a2b3c4d`   8 hex digits
    time     `<1 ms`, `12 ms`, `2.8 s`, `125 s`, `12 min 5 s`
    cost     `$0.0004`, `<$0.0001`
    bar      `flex-grow:12` in the style of a piece of the time bar (HTML only)
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec

from nbagent.contracts import events
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.contracts.secrets import StreamFilter
from nbagent.view import labels
from nbagent.view.batch import BatchProgress, batch_line, batch_text, end_of
from nbagent.view.node import text_of
from nbagent.view.picture import call_node, said_nodes
from nbagent.view.question import question_text
from nbagent.view.words import as_text, clean, one_line, visible

_REASON_CHARS = 300
_PROMPT_CHARS = 200


def plain(run: RunRecord) -> str:
    """A run as text: head, prompt, a line for each turn, the answer, the end."""
    lines = [_state(run, f"{visible(run.model)} · "), labels.offline_words(run)]
    prompt = one_line(clean(run.prompt), _PROMPT_CHARS)
    lines.append(prompt and f"> {prompt}")
    for turn in run.turns:
        said = "".join(map(text_of, said_nodes(run, turn))).strip()
        numbers = f"  ({labels.numbers(turn)})" if turn.duration_ms else ""
        lines.append(f"{turn.id}  {said or 'no text'}{numbers}")
        lines += [f"     {note}" for note in _turn_notes(turn)]
    lines += [f"note: {note}" for note in labels.run_notes(run)]
    lines = [text for text in lines if text]
    if answer := labels.answering_turn(run):
        note = labels.answer_note(run)
        lines += ["", *([f"({note})"] if note else []), clean(answer.text).rstrip(), ""]
    return "\n".join([*lines, *_end(run)])


def _state(run: RunRecord, model: str = "") -> str:
    status = labels.status_of(run)
    return f"{status.mark} {status.word} · {model}{labels.facts_line(run)}"


def _end(run: RunRecord) -> list[str]:
    """Why it ended, what run it is, and what to do next."""
    ending = labels.ending(run)
    step = "" if "%agent resume" in ending else labels.next_step(run)
    return [*filter(None, [ending]), " · ".join(filter(None, (labels.about(run), step)))]


def _turn_notes(turn: EngineTurn) -> Iterator[str]:
    for run in turn.tool_runs:
        if run.approval:
            words = f"{visible(run.tool_name)}: {_decided(run)}"
            if run.asked_args is not None:
                written = one_line(as_text(run.asked_args, enough=600), _REASON_CHARS)
                words += f"; the model had written {written}"
            yield words
        if run.printed:
            yield f"printed: {one_line(visible(run.printed), _REASON_CHARS)}"
    yield from (f"note: {note}" for note in labels.notes_of(turn))


def _decided(run: ToolRun) -> str:
    said = run.reason if run.approval == "denied" else ""
    why = f": {one_line(visible(said), _REASON_CHARS)}" if said else ""
    return labels.decision_words(run) + why


class PlainPrinter:
    """Prints a run as it happens: each call once, with the time of day, and the text as it streams.

    Where `rich` is installed and the terminal shows colours, an answer is rendered when it is
    whole instead.
    """

    name = "terminal"

    def __init__(
        self, write: Callable[[str], object], *, asked_by_input: bool = False, renders: bool = False
    ) -> None:
        """Print by `write`, which gets whole lines or pieces of them, `\\n` included.

        Args:
            write: for example `sys.stdout.write`.
            asked_by_input: a question is printed where it is asked, in another thread: its words
                here could come between it and what the person types.
            renders: whether Markdown is rendered by `rich` where it is installed.
        """
        self._write = write
        self._renders = renders and find_spec("rich") is not None
        self._asked_by_input = asked_by_input
        self._open = ""
        """What the unfinished line at the end belongs to: `text`, `reasoning` or nothing."""
        self._filter = StreamFilter()
        self._streamed: set[str] = set()
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
            case events.ToolCallFinished(turn_id=turn_id, tool_run=run):
                self._call(turn_id, run)
            case events.ToolProgress() if event.text:
                self._line(f"     {visible(event.text)}")
            case events.ApprovalRequested(question=question) if not self._asked_by_input:
                self._line(f"{event.turn_id}  {question_text(question)}")
            case events.Retrying():
                why = labels.error_words(event.error) or visible(event.text)
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
        place = labels.place_of(run, None)
        self._line(f"… Running · {visible(run.model)}{f' · {place}' if place else ''}")
        if words := labels.offline_words(run):
            self._line(words)
        for note in labels.run_notes(run):
            self._line(f"     note: {note}")

    def _line(self, text: str) -> None:
        self._break()
        self._write(f"{text}\n")

    def _break(self) -> None:
        if self._open:
            self._write(f"{clean(self._filter.flush())}\n")
            self._open = ""

    def _piece(self, kind: str, turn_id: str, text: str) -> None:
        if self._renders:
            return
        if self._open != kind:
            self._break()
            self._write(f"{turn_id}  {'(thinking) ' if kind == 'reasoning' else ''}")
            self._open = kind
        if kind == "text":
            self._streamed.add(turn_id)
        self._write(clean(self._filter.feed(text)))

    def _call(self, turn_id: str, run: ToolRun) -> None:
        self._ended.add((turn_id, run.tool_call_id))
        clock = (run.started_at or utc_now()).astimezone().strftime("%H:%M:%S")
        where = labels.where(run)
        said = text_of(call_node(run))
        self._line(f"{turn_id}  {clock} {said}{f'  ({where})' if where else ''}")
        if run.approval:
            self._line(f"     {_decided(run)}")
        for detail in visible(run.error_detail or "").splitlines():
            self._line(f"     {detail}")

    def _turn(self, turn: EngineTurn) -> None:
        self._break()
        if turn.text and turn.id not in self._streamed:
            self._text(turn)
        for run in turn.tool_runs:
            if (turn.id, run.tool_call_id) not in self._ended:
                self._call(turn.id, run)  # the response was cut, and no call of it began
        if failure := labels.failure_of(turn):
            self._line(f"{turn.id}  ✕ {failure}")
        for note in labels.notes_of(turn):
            if note not in map(labels.note_of, turn.notices):  # those were said when they came
                self._line(f"     note: {note}")
        self._line(f"     {labels.numbers(turn)}")

    def _text(self, turn: EngineTurn) -> None:
        if not self._renders:
            self._line(f"{turn.id}  {clean(turn.text)}")
            return
        console = import_module("rich.console").Console()
        with console.capture() as captured:
            rendered = import_module("rich.markdown").Markdown(clean(turn.text), hyperlinks=False)
            console.print(rendered)
        self._line(f"{turn.id}\n{captured.get().rstrip()}")

    def _end(self, run: RunRecord) -> None:
        for text in (_state(run), *_end(run)):
            self._line(text)


class BatchPrinter:
    """How far a batch is: one line of a terminal that is written again and again, and its end.

    Where no terminal is, only a batch that did not do all that it should has something to say.
    """

    only_while_waited = True

    def __init__(self, write: Callable[[str], object], *, is_terminal: bool) -> None:
        """Print by `write`, for example `sys.stderr.write`."""
        self._write, self._is_terminal = write, is_terminal

    def update(self, progress: BatchProgress) -> None:
        """Write the line anew."""
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns - 1
            self._write(f"\r{_as_wide(batch_line(progress), columns)}\x1b[K")

    def close(self, progress: BatchProgress) -> None:
        """Leave the line as it is at the end, or say what is not well."""
        if self._is_terminal:
            self.update(progress)
            end = end_of(progress)
            self._write(f"\n{end}\n" if end else "\n")
        elif progress.failed or end_of(progress):
            self._write(f"nbagent: {batch_text(progress)}\n")


def _as_wide(text: str, columns: int) -> str:
    """The start of a text that takes so many columns: what wraps cannot be written again."""
    for place, letter in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if columns < 0:
            return text[:place]
    return text
