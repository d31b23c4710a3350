"""The page over all cases of a batch in a front end: live while the batch works.

`view.case_table` draws it; the folder `page` filters and sorts it. Cases are read in a thread of
the page, so that the batch's loop never waits for it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from IPython.display import display

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import NbagentError
from nbagent.notebook import kernel
from nbagent.notebook.clicks import reason, run_in_thread
from nbagent.notebook.live_output import LiveOutput, LiveWidget
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message
from nbagent.notebook.outputs import Output
from nbagent.notebook.page_module import script, stylesheet
from nbagent.notebook.page_proof import wait_for_page
from nbagent.session.frontend import BatchControls, CaseSource
from nbagent.view.case_columns import CaseColumns, columns_of_cases
from nbagent.view.case_table import (
    CASES_KEY,
    DETAIL_PREFIX,
    ROWS_KEY,
    case_node,
    cases_text,
    head_part,
    page_node,
    row_node,
    saved_node,
    score_text,
)
from nbagent.view.live_changes import Op
from nbagent.view.node import Node, h
from nbagent.view.review import REASON_CHARS
from nbagent.view.run_picture import page, picture
from nbagent.view.theme import cases_stylesheet

MAX_LIVE_CASES = 10_000
_SLICE_ROWS = 200
"""Rows in one message."""
_SAVED_ROWS = 10
"""Rows in a saved notebook, where the table stands between other cells."""
_SHORTEST_WAIT_S = 0.25
_WAIT_FACTOR = 10
"""A page waits this many times as long as reading its cases took: at most a tenth of a core."""
SAVED_NOTE = "Run batch.page() again to filter, unfold and label the cases"
_RUNNING_NOTE = "Saved while the batch was running."
CASE_CODE = ("page/cases.js", "page/live_cases.js")
"""Code of the page, besides that of all views."""


class CaseWidget(LiveWidget):
    """Widget of the page over all cases."""

    _esm = script(*CASE_CODE)
    _css = f"{stylesheet()}\n{cases_stylesheet()}"


class LiveCases(Shown):
    """The cases of a batch as pages show them."""

    def __init__(self, source: CaseSource) -> None:
        """Read the cases."""
        super().__init__(CASES_KEY)
        self._source = source
        self._results: Sequence[CaseResult] = ()
        self._columns = CaseColumns(name=source.name)
        self._state, self._n_cases = "", 0
        self._lock = threading.RLock()
        self._has_page = False
        self._follower: threading.Thread | None = None
        self._is_dirty = threading.Event()
        self._read()
        source.watch(self._is_dirty.set)

    def _read(self) -> None:
        """Read the cases and choose the columns."""
        results, source = self._source.results(), self._source
        self._n_cases, self._state = len(results), source.state
        self._results = results[:MAX_LIVE_CASES]
        self._columns = columns_of_cases(results, source.name, source.score_names, **source.options)

    # Drawing

    def parts(self) -> dict[str, Node]:
        """Draw the parts; only `changes` sends them, row by row."""
        return {"head": self._head()}

    def _head(self) -> Node:
        return head_part(self._columns, self._results, self._state)

    def whole(self) -> Node:
        """Draw the page without its rows, which follow in slices."""
        with self._lock:
            more = self._n_cases - len(self._results)
            notes = [f"{more:,} more cases; batch.frame() has all"] if more > 0 else []
            return page_node(self._columns, self._results, notes=notes, state=self._state)

    def rest(self) -> Iterator[list[Op]]:
        """Draw the rows, in slices."""
        with self._lock:
            columns, results = self._columns, self._results
        for start in range(0, len(results), _SLICE_ROWS):
            rows = enumerate(results[start : start + _SLICE_ROWS], start)
            yield [_row_op(columns, number, result) for number, result in rows]

    def changes(self) -> list[Op]:
        """Read the cases again and draw the rows that changed."""
        with self._lock:
            before, columns, state = self._results, self._columns, self._state
            try:
                self._read()
            except NbagentError as error:  # such as a store that was deleted
                self.say(reason(error))
                return []
            judged_before = columns.deciding
            columns = replace(columns, deciding=self._columns.deciding)
            if columns != self._columns or len(before) != len(self._results):
                self.updates.send_whole()
                return []
            # Another rule of the verdicts changes every row with scores.
            is_judged_anew = judged_before != columns.deciding
            pairs = enumerate(zip(before, self._results, strict=True))
            numbers = [
                number
                for number, (old, new) in pairs
                if _shown(old) != _shown(new) or (is_judged_anew and new.scores)
            ]
            ops = [_row_op(columns, number, self._results[number]) for number in numbers]
            if ops or state != self._state:
                ops.append(["put", "head", self._head(), ""])
            return ops

    def bundle(self) -> dict[str, str]:
        """Return the plain table that a page without this widget shows, and its text."""
        with self._lock:
            columns, results = self._columns, self._results
            note = f"{_RUNNING_NOTE} {SAVED_NOTE}" if self._state else SAVED_NOTE
        return {
            "text/html": page(saved_node(columns, results, note, _SAVED_ROWS)),
            "text/plain": cases_text(columns, results, note),
        }

    # Messages

    def on_pages(self, is_shown: bool) -> None:
        """Watch the batch while a page shows its cases."""
        with self._lock:
            self._has_page = is_shown
            if is_shown and self._follower is None:
                self._follower = threading.Thread(
                    target=self._follow, daemon=True, name="nbagent cases"
                )
                self._follower.start()
        self._is_dirty.set()

    def _follow(self) -> None:
        """Send changes until no page shows the cases any more."""
        while True:
            self._is_dirty.wait()
            with self._lock:
                if not self._has_page:
                    self._follower = None
                    return
            self._is_dirty.clear()
            started = time.monotonic()
            self.updates.flush()
            took = time.monotonic() - started
            time.sleep(max(_SHORTEST_WAIT_S, _WAIT_FACTOR * took))

    def on_message(self, message: Message) -> None:
        """Handle a click or a key. Any thread."""

    def act(self, message: Message) -> None:
        """Unfold or label a case. In a thread of its own: runs are read and labels written."""
        if message.kind == "open":
            self._open(message.value)
        elif message.kind == "label":
            self._label(message.case_number, message)

    def _case(self, key: str) -> tuple[int, CaseResult] | None:
        """Return the case of a row; None for a key that no row has."""
        with self._lock:
            number = int(key) if key.isascii() and key.isdigit() and len(key) < 9 else -1
            known = 0 <= number < len(self._results)
            return (number, self._results[number]) if known else None

    def _open(self, key: str) -> None:
        """Send the unfolded case of a row."""
        if (case := self._case(key)) is None:
            return
        number, result = case
        node = case_node(self._columns, result, run=self._run_picture(result))
        self._put(f"{DETAIL_PREFIX}{number}", node)

    def _run_picture(self, result: CaseResult) -> Node | None:
        """Draw the run of a case; None if it has none, was deleted, or would name its variant."""
        if not result.run_id or self._columns.is_blind:
            return None
        try:
            return picture(self._source.record(result.run_id), actions=False)
        except NbagentError:
            return None

    def _label(self, key: str, message: Message) -> None:
        """Store a label, and send the row with it."""
        case = self._case(key)
        value = label_value(message.value, self._columns.scale)
        if case is None or value is None:
            return
        number, result = case
        if not result.run_id:
            self.say("This case has no run to label")
            return
        why = message.fields.get("reason", "")[:REASON_CHARS].strip() or None
        score = self._source.label(result.run_id, value, why)
        others = tuple(
            s for s in result.scores if (s.scorer, s.by, s.version) != (score.scorer, score.by, 1)
        )
        labelled = replace(result, scores=(*others, score))
        with self._lock:
            results = [*self._results]
            results[number] = labelled
            self._results = results
        self._put(str(number), row_node(self._columns, number, labelled))
        variant = "" if self._columns.is_blind else result.variant[:60]
        row = " · ".join(filter(None, [result.row_key[:40], variant]))
        self.say(f"Stored: {self._columns.label} = {score_text(score)} for row {row}")
        self._is_dirty.set()

    def say(self, text: str) -> None:
        """Show a line beside the labels."""
        self._put("said", h("span", "nba-said", text, role="status", data_key="said"))

    def _put(self, key: str, node: Node) -> None:
        # The parent "none" is in no page: one that has no such part leaves it out.
        self.updates.send({"run": self.key, "ops": [["put", key, node, "none"]]})


class CasePage(LiveCases):
    """The page over all cases in an output of a cell."""

    def __init__(self, source: CaseSource, output: Output | None = None) -> None:
        """Show it in this output, or in the cell that runs now."""
        super().__init__(source)
        self._output = output or Output()
        self.view = LiveOutput(self._output, self, widget=CaseWidget)
        saved = self.bundle()
        self.view.show(saved["text/html"], saved["text/plain"])
        self.view.display.settle()  # the widget stays: nothing replaces it at the end

    def on_message(self, message: Message) -> None:
        """Handle a click or a key. Any thread."""
        if message.run == CASES_KEY and message.kind in ("open", "label"):
            context = self._output.context
            run_in_thread(partial(self.act, message), on_error=self._failed, context=context)

    def _failed(self, error: Exception) -> None:
        self.say(reason(error))


def batch_cases(name: str) -> CaseSource:
    """Return the cases of a batch that works in this process, else of the stored one."""
    # Late: most notebooks show no batch.
    from nbagent.lab.batch import active_batches
    from nbagent.lab.stored_batch import batch

    active = (running for running in active_batches() if running.name == name)
    return (next(active, None) or batch(name)).case_source()


def cases_opener(name: str, controls: BatchControls) -> Callable[[Output], object]:
    """Return the action of a batch's button: show its cases in an output.

    It does not keep the batch alive: without it the stored one is shown.
    """
    alive = weakref.ref(controls)

    def show(output: Output) -> None:
        batch = alive()
        CasePage(batch.case_source() if batch else batch_cases(name), output)

    return show


def label_value(text: str, scale: int) -> float | bool | None:
    """Read a label of a page: 1 to `scale`, or 1 and 0 for yes and no; None if it is no label."""
    if not scale:
        return {"1": True, "0": False}.get(text)
    return float(text) if text in map(str, range(1, scale + 1)) else None


def _shown(result: CaseResult) -> tuple[object, ...]:
    """Return the fields of a case that change; its cells, which may be anything, do not."""
    return (
        *(result.status, result.run_id, result.text, result.why, result.tools, result.scores),
        *(result.cost_usd, result.duration_ms),
    )


def _row_op(columns: CaseColumns, number: int, result: CaseResult) -> Op:
    return ["put", str(number), row_node(columns, number, result), ROWS_KEY]


def show_cases(source: CaseSource) -> None:
    """Show the page in the cell that runs now; a plain table where no page can show it."""
    if kernel.page_may_come():
        shown = CasePage(source)
        if wait_for_page(shown.view.display):
            return
        display(shown.bundle(), raw=True)
    else:
        display(LiveCases(source).bundle(), raw=True)
