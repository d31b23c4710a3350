"""The view of a batch: one widget while it is at work, one saved picture at its end.

What it looks like is in `view.batch`; which run is opened below it a click decides, as in a list.
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
from nbagent.notebook.run_widget import Batcher, RunWidget, comm_id, listen, retire
from nbagent.session.frontend import BatchControls
from nbagent.view.batch import (
    KEY,
    PAUSING,
    STOPPING,
    BatchProgress,
    batch_node,
    batch_parts,
    batch_text,
)
from nbagent.view.live import Op
from nbagent.view.node import Node
from nbagent.view.picture import page

INTERVAL_S = 0.25
_SAVE_MS = 10_000
"""How often the output is written anew with what a file keeps: drawing it moves the page."""
_PAGE_CHARS = 200


@dataclass(frozen=True, slots=True)
class BatchShown:
    """A batch at one moment, as a list of runs."""

    progress: BatchProgress

    def node(self, kernel: str = "") -> Node:
        """Its picture; `kernel` names the output that its buttons belong to."""
        return batch_node(self.progress, kernel=kernel)

    def __str__(self) -> str:
        return batch_text(self.progress)


class LiveBatch:
    """Shows a batch in a front end: says what changed, and takes the clicks on Stop and Pause."""

    only_while_waited = False

    def __init__(self, progress: BatchProgress, controls: BatchControls) -> None:
        """Show it in the cell that runs now; it begins at once."""
        self._progress, self._controls = replace(progress, state="Running"), controls
        self._stopping, self._is_over = "", False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown: dict[str, Node] = {}
        """The parts that the pages have."""
        self._batcher = Batcher(self._send, interval_s=INTERVAL_S)
        self._output = ListOutput()
        self.widget = RunWidget(lambda: [self._picture()])
        listen(self.widget, self.heard)
        self._save()
        self._output.make_place_below()

    def update(self, progress: BatchProgress) -> None:
        """Show how far it is. On the engine's loop."""
        if self._is_over:
            return
        self._loop = self._loop or asyncio.get_running_loop()
        self._progress = progress
        parts = self._parts()
        changed = [key for key, node in parts.items() if self._shown.get(key) != node]
        self._shown = parts
        self._batcher.add([["put", key, parts[key], ""] for key in changed])
        if monotonic_ms() - self._saved_ms > _SAVE_MS:
            self._save()

    def close(self, progress: BatchProgress) -> None:
        """Show its end, as it is saved. On the engine's loop."""
        self._progress, self._stopping, self._is_over = progress, "", True
        self._batcher.drop()
        self._send([self._whole()])
        self._in_cell(lambda: self._output.show(BatchShown(progress)))
        retire(self._output, self.widget)

    def heard(self, message: object) -> None:
        """Do what a person clicked, or greet a page. Any thread; hostile until it was checked."""
        told = json_object(message) or {}
        match told:
            case {"kind": "ready", "page": int(place) | str(place)}:
                if len(str(place)) <= _PAGE_CHARS:
                    self._send([self._whole()], page=place)
            case {"kind": "stop" | "pause" as kind, "run": "batch"} if not self._is_over:
                self._controls.stop(after_rows=kind == "pause")
                self._stopping = PAUSING if kind == "pause" else STOPPING
                if self._loop is not None:
                    with suppress(RuntimeError):  # the kernel is going down
                        self._loop.call_soon_threadsafe(lambda: self.update(self._progress))
            case _:
                pass

    def _parts(self) -> dict[str, Node]:
        return batch_parts(self._progress, self._output.id, True, self._stopping)

    def _picture(self) -> Node:
        kernel, stopping = self._output.id, self._stopping
        return batch_node(self._progress, kernel=kernel, buttons=True, stopping=stopping)

    def _whole(self) -> Op:
        return ["done", self._picture()[2]]

    def _send(self, ops: list[Op], **to: Any) -> None:
        # The batch goes on without a page that could show it.
        with suppress(Exception):
            self.widget.send({"run": KEY, "ops": ops, **to})

    def _save(self) -> None:
        """Write what a file keeps that is saved now: how far the batch is."""
        self._saved_ms = monotonic_ms()
        note = "Saved while the batch was at work; batch.progress says how far it is now."
        saved = page(batch_node(replace(self._progress, why=note)))
        self._in_cell(lambda: self._output.show_live(comm_id(self.widget), saved))

    def _in_cell(self, work: Callable[[], object]) -> None:
        """Display in the cell that began the batch, from any thread."""
        self._output.context.copy().run(work)


class FinalBatch:
    """No person at a front end (nbclient, papermill, nbval): exactly one, final display."""

    only_while_waited = False

    def __init__(self) -> None:
        """Show nothing yet, in the cell that runs now."""
        self._context = contextvars.copy_context()

    def update(self, progress: BatchProgress) -> None:
        """Nothing: the end is shown."""

    def close(self, progress: BatchProgress) -> None:
        """Show the end."""
        made = {"text/html": page(batch_node(progress)), "text/plain": batch_text(progress)}
        self._context.copy().run(display, made, raw=True)
