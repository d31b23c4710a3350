"""View of a batch: one widget while it runs, one saved picture at its end.

`view.batch` draws it. A click opens one of its runs below it, as in a list of runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from IPython.display import display

from nbagent.contracts.canonical import json_object, monotonic_ms
from nbagent.notebook.outputs import ListOutput
from nbagent.notebook.page_proof import FinalDisplay
from nbagent.notebook.run_widget import (
    OpBatcher,
    RunWidget,
    comm_id,
    is_page,
    listen,
    retire,
    tab_of,
)
from nbagent.session.frontend import BatchControls
from nbagent.view.batch import (
    BATCH_KEY,
    PAUSING,
    STOPPING,
    BatchProgress,
    batch_line,
    batch_node,
    batch_parts,
    batch_text,
)
from nbagent.view.live import Op
from nbagent.view.node import Node
from nbagent.view.run_picture import page

INTERVAL_S = 0.25
_SAVE_MS = 10_000
"""Interval between saved pictures of a running batch. Redrawing an output moves the page."""


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A batch at one moment, in the form of a list of runs."""

    progress: BatchProgress

    def node(self, kernel: str = "") -> Node:
        """Draw it; `kernel` names the output that answers its buttons."""
        return batch_node(self.progress, kernel=kernel)

    def __str__(self) -> str:
        return batch_text(self.progress)


class LiveBatch:
    """Shows a running batch in a front end and handles clicks on Stop and Pause."""

    only_while_waited = False

    def __init__(self, progress: BatchProgress, controls: BatchControls) -> None:
        """Show it in the cell that runs now; the batch starts at once."""
        self._progress, self._controls = replace(progress, state="Running"), controls
        self._stopping, self._is_over = "", False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown: dict[str, Node] = {}
        """The parts as the pages have them."""
        self._batcher = OpBatcher(self._send, interval_s=INTERVAL_S)
        self._output = ListOutput()
        self._display = FinalDisplay(self._output)
        self.widget = RunWidget(lambda: [self._picture()])
        listen(self.widget, self.on_message)
        self._save()
        self._output.show_empty_below()

    def update(self, progress: BatchProgress) -> None:
        """Show the progress. On the engine's loop."""
        if self._is_over:
            return
        self._loop = self._loop or asyncio.get_running_loop()
        self._display.begin()
        self._progress = progress
        parts = self._parts()
        changed = [key for key, node in parts.items() if self._shown.get(key) != node]
        self._shown = parts
        self._batcher.add([["put", key, parts[key], ""] for key in changed])
        if monotonic_ms() - self._saved_ms > _SAVE_MS:
            self._save()

    def close(self, progress: BatchProgress) -> None:
        """Show the end of the batch as a saved picture. On the engine's loop."""
        self._progress, self._stopping, self._is_over = progress, "", True
        self._batcher.drop()
        self._send([self._full_picture_op()])
        self._display.end(self._show_end)

    def _show_end(self) -> None:
        if self._display.is_below:
            with suppress(Exception):
                self.widget.send({"below": self._output.id})
        self._output.show(BatchSnapshot(self._progress))
        retire(self._output, self.widget)

    def on_message(self, message: object) -> None:
        """Handle an untrusted message of a page: a click, or a page that is ready. Any thread."""
        content = json_object(message) or {}
        match content:
            case {"kind": "ready", "page": page} if is_page(page):
                self._display.page_ready(page)
                self._call_soon(lambda: self._send([self._full_picture_op()], page=page))
            case {"kind": "closed", "page": page} if is_page(page):
                self._display.page_closed(page, tab_of(content))
            case {"kind": "stop" | "pause" as kind, "run": "batch"} if not self._is_over:
                self._controls.stop(after_rows=kind == "pause")
                self._stopping = PAUSING if kind == "pause" else STOPPING
                if self._loop is not None:
                    self._call_soon(lambda: self.update(self._progress))
            case _:
                pass

    def _call_soon(self, work: Callable[[], object]) -> None:
        """Call `work` between two updates of the batch. Any thread."""
        # A picture that is drawn beside an update could be sent after the last one.
        if self._loop is None or self._is_over:
            work()
        else:
            with suppress(RuntimeError):  # the kernel is going down
                self._loop.call_soon_threadsafe(work)

    def _parts(self) -> dict[str, Node]:
        return batch_parts(self._progress, self._output.id, True, self._stopping)

    def _picture(self) -> Node:
        kernel, stopping = self._output.id, self._stopping
        return batch_node(self._progress, kernel=kernel, buttons=True, stopping=stopping)

    def _full_picture_op(self) -> Op:
        return ["done", self._picture()[2]]  # the child with `data-run`, which the page replaces

    def _send(self, ops: list[Op], **to: Any) -> None:
        # The batch continues even if no page can show it.
        with suppress(Exception):
            self.widget.send({"run": BATCH_KEY, "ops": ops, **to})

    def _save(self) -> None:
        """Write the present picture into the output, for a file that is saved now."""
        self._saved_ms = monotonic_ms()
        if self._display.is_unseen and not self._display.has_page:
            self._display_in_cell(lambda: print(batch_line(self._progress), flush=True))
            return
        note = (
            "Saved while the batch was running; batch.progress has its present state. "
            "Trust this notebook to watch it"
        )
        saved = page(batch_node(replace(self._progress, why=note)))
        model, text = comm_id(self.widget), batch_line(self._progress)
        self._display_in_cell(lambda: self._output.show_live(model, html=saved, text=text))

    def _display_in_cell(self, work: Callable[[], object]) -> None:
        """Display in the cell that started the batch, from any thread."""
        self._output.context.copy().run(work)


class FinalBatch:
    """View without a person at a front end (nbclient, papermill, nbval).

    It displays once, at the end: nbval ignores updates and compares the first display.
    """

    only_while_waited = False

    def __init__(self) -> None:
        """Show nothing yet, in the cell that runs now."""
        self._context = contextvars.copy_context()

    def update(self, progress: BatchProgress) -> None:
        """Do nothing: only the end is shown."""

    def close(self, progress: BatchProgress) -> None:
        """Show the end."""
        made = {"text/html": page(batch_node(progress)), "text/plain": batch_text(progress)}
        self._context.copy().run(display, made, raw=True)
