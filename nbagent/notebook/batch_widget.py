"""View of a batch: one widget while it runs, one saved picture at its end.

`view.batch` draws it. A click opens one of its runs below it, as in a list of runs.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from IPython.display import display

from nbagent.contracts.canonical import monotonic_ms
from nbagent.notebook.case_page import cases_opener
from nbagent.notebook.live_output import LiveOutput
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message
from nbagent.notebook.outputs import ListOutput
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


class LiveBatch(Shown):
    """Shows a running batch in a front end and handles clicks on Stop and Pause."""

    only_while_waited = False
    saves_record = True

    def __init__(self, progress: BatchProgress, controls: BatchControls) -> None:
        """Show it in the cell that runs now; the batch starts at once."""
        super().__init__(BATCH_KEY, interval_s=INTERVAL_S)
        self._progress, self._controls = replace(progress, state="Running"), controls
        self._stopping, self._is_over = "", False
        self._list = ListOutput()
        self._list.show_cases = cases_opener(progress.name, controls)
        self.view = LiveOutput(self._list, self)
        self._save()
        self._list.show_empty_below()

    def update(self, progress: BatchProgress) -> None:
        """Show the progress. On the engine's loop."""
        if self._is_over:
            return
        self._progress = progress
        self.updates.begin()
        self.view.display.begin()
        self.updates.changed()
        if monotonic_ms() - self._saved_ms > _SAVE_MS:
            self._save()

    def close(self, progress: BatchProgress) -> None:
        """Show the end of the batch as a saved picture. On the engine's loop."""
        self._progress, self._stopping, self._is_over = progress, "", True
        self.updates.end()
        record = batch_metadata(self._controls)
        self.view.end(lambda: self._list.show(BatchSnapshot(progress), record))

    def parts(self) -> dict[str, Node]:
        """Draw the head, the failures, the variants and the end."""
        return batch_parts(self._progress, self._list.id, True, self._stopping)

    def whole(self) -> Node:
        """Draw the element with all parts."""
        return self.picture()[2]  # the child with `data-run`, which the page replaces

    def picture(self) -> Node:
        """Draw it as it is displayed."""
        kernel, stopping = self._list.id, self._stopping
        return batch_node(self._progress, kernel=kernel, buttons=True, stopping=stopping)

    def on_message(self, message: Message) -> None:
        """Handle a click. Any thread."""
        is_ours = message.run == BATCH_KEY and not self._is_over
        if is_ours and message.kind in ("stop", "pause"):
            self._controls.stop(after_rows=message.kind == "pause")
            self._stopping = PAUSING if message.kind == "pause" else STOPPING
            self.updates.changed_elsewhere()

    def _save(self) -> None:
        """Write the present picture into the output, for a file that is saved now."""
        self._saved_ms = monotonic_ms()
        if self.view.display.is_unseen and not self.view.display.has_page:
            show_line = partial(print, batch_line(self._progress), flush=True)
            self._list.context.copy().run(show_line)
            return
        note = (
            "Saved while the batch was running; batch.progress has its present state. "
            "Trust this notebook to watch it"
        )
        saved = page(batch_node(replace(self._progress, why=note)))
        self.view.show(saved, batch_line(self._progress), batch_metadata(self._controls))


class FinalBatch:
    """View without a person at a front end (nbclient, papermill, nbval).

    It displays once, at the end: nbval ignores updates and compares the first display.
    """

    only_while_waited = False
    saves_record = True

    def __init__(self, controls: BatchControls) -> None:
        """Show nothing yet, in the cell that runs now."""
        self._controls = controls
        self._context = contextvars.copy_context()

    def update(self, progress: BatchProgress) -> None:
        """Do nothing: only the end is shown."""

    def close(self, progress: BatchProgress) -> None:
        """Show the end."""
        made = {"text/html": page(batch_node(progress)), "text/plain": batch_text(progress)}
        metadata = batch_metadata(self._controls)
        self._context.copy().run(display, made, raw=True, metadata=metadata)


def batch_metadata(controls: BatchControls) -> dict[str, Any]:
    """Return the output's metadata, so that a saved notebook holds the batch."""
    return {"nbagent": dict(controls.notebook_record())}
