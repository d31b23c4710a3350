"""What a front end has proved: that its pages show views, and that they apply updates of displays.

A front end is one client session of the kernel: a notebook's tab, a console, a server that executes
cells. Nothing is assumed of a new one. `FinalDisplay` brings the end of a live view to it: as an
update of the display where that was proved, else as a display of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbagent.notebook import comms, kernel
from nbagent.notebook.outputs import Output, has_tabs
from nbagent.session.approval import BUTTONS_READY_S

PAGE_WAIT_S = BUTTONS_READY_S
"""Seconds in which the first view of a front end has to appear. JupyterLab needs 0.1 s."""
KNOWN_WAIT_S = 0.2
"""The same for a front end that has shown no view before."""
APPLY_WAIT_S = 2.0
"""Seconds in which a page has to replace its view after an update of the display."""
_LATE_S = 10.0
"""A view that is closed later than this after an update was closed by a person."""
_POLL_S = 0.02
_MAX_SESSIONS = 100


@dataclass(slots=True)
class PageProof:
    """What the pages of one front end can do; None means not known yet."""

    shows_views: bool | None = None
    applies_updates: bool | None = None

    @property
    def page_wait_s(self) -> float:
        """Seconds to wait for a page."""
        return KNOWN_WAIT_S if self.shows_views is False else PAGE_WAIT_S


_proofs: dict[str, PageProof] = {}
_open: list[FinalDisplay] = []
"""Views whose end has not reached the front end yet."""


def proof_here() -> PageProof:
    """Return the proof of the front end whose cell runs now."""
    if kernel.is_voila():
        # The cells run before the page is there, and the server applies updates meanwhile.
        return PageProof(shows_views=True, applies_updates=True)
    session = kernel.client_session()
    while len(_proofs) >= _MAX_SESSIONS:
        del _proofs[next(iter(_proofs))]
    return _proofs.setdefault(session, PageProof())


class FinalDisplay:
    """Brings the end of one live view to the front end that ran its cell.

    Pages report in any thread; all else is on one event loop.
    """

    def __init__(self, output: Output) -> None:
        """Prepare for the view that is shown now in an output."""
        # A click came from a page that shows this output already.
        self._proof = PageProof(True, True) if output.is_shown else proof_here()
        self._output, self._execution = output, kernel.execution_id()
        self.has_page = False
        """True once a page has shown the view."""
        self.is_unseen = False
        """True if no page has shown the view in time."""
        self.is_below = False
        """True if the end is shown in a display of its own."""
        self.settled = threading.Event()
        """Set when the end has reached the front end, or nothing more can be done."""
        self._pages: set[int | str] = set()
        self._is_redrawn = False
        """True if a page showed the view a second time: after a reload, in another tab, or anew."""
        self._show: Callable[[], object] | None = None
        self._on_unseen: Callable[[], object] | None = None
        self._updated_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        _open.append(self)

    @property
    def may_be_unseen(self) -> bool:
        """True if it is not proved that the front end shows views and applies updates."""
        return self._proof.applies_updates is not True

    @property
    def may_update(self) -> bool:
        """True if an update of the display does no harm: it ends euporie's reading of outputs."""
        return self.has_page or self._proof.applies_updates is True or has_tabs()

    @property
    def shows_no_widgets(self) -> bool:
        """True if an earlier view was not shown, and no page has loaded our module at all."""
        return self._proof.shows_views is False and not has_tabs()

    @property
    def is_ended(self) -> bool:
        """True if the view has ended."""
        return self._show is not None

    @property
    def belongs_here(self) -> bool:
        """True if the cell that runs now made the view."""
        return self._execution is not None and self._execution == kernel.execution_id()

    @property
    def has_open_page(self) -> bool:
        """True while a page shows the view, as far as is known."""
        return bool(self._pages)

    def begin(self, on_unseen: Callable[[], object] = lambda: None) -> None:
        """Wait for a page; call `on_unseen` if none comes in time. On the loop."""
        if self._loop is None:
            self._loop, self._on_unseen = asyncio.get_running_loop(), on_unseen
            if self.may_be_unseen:
                self._loop.call_later(self._proof.page_wait_s, self._no_page)

    def end(self, show: Callable[[], object]) -> None:
        """Show the end by `show`, now or as soon as it is known how. On the loop."""
        self._show = show
        with suppress(RuntimeError):  # the view was never begun: there is no loop to wait on
            self.begin()
        if self._loop is None:
            self._update()
        else:
            self._decide()

    def page_ready(self, page: int | str) -> None:
        """Note that a page shows the view. Any thread."""
        self._is_redrawn = self.has_page
        self._pages.add(page)
        self.has_page = self._proof.shows_views = True
        self._call_soon(self._decide)

    def page_closed(self, page: int | str, tab: str = "") -> None:
        """Note that a page in a tab shows the view no more. Any thread."""
        self._pages.discard(page)
        if self._updated_at is not None and time.monotonic() - self._updated_at < _LATE_S:
            self._proof.applies_updates = True
            if tab:
                self._output.updated_tabs.add(tab)
            self.settle()

    def settle(self) -> None:
        """Note that nothing more is to be done. Any thread."""
        self.settled.set()
        with suppress(ValueError):
            _open.remove(self)

    def _call_soon(self, work: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the kernel is going down
                self._loop.call_soon_threadsafe(work)

    def _in_cell(self, work: Callable[[], object]) -> None:
        """Display or print in the cell of the output."""
        self._output.context.copy().run(work)

    def _no_page(self) -> None:
        if self.has_page or self.settled.is_set():
            return
        self._proof.shows_views, self.is_unseen = False, True
        if self._on_unseen and not self.is_ended:
            self._in_cell(self._on_unseen)
        self._decide()

    def _decide(self) -> None:
        """Show the end if it is known how."""
        if not self.is_ended or self._updated_at is not None or self.settled.is_set():
            return
        applies = self._proof.applies_updates
        if applies is False or (self.is_unseen and not self.has_page):
            self._show_below()
        elif applies or self.has_page:
            self._update()

    @property
    def _will_apply(self) -> bool:
        """True if the page applies the update, perhaps late: it may be busy for long.

        A page that has drawn its outputs anew, such as when another tab trusts a shared notebook,
        may apply no more updates.
        """
        return self._proof.applies_updates is True and not self._is_redrawn

    def _update(self) -> None:
        """Replace the view by the end, and watch if a page does so."""
        self._show_now()
        if self._loop is None or not self.has_page or self._output.is_boxed or self._will_apply:
            self.settle()
        else:
            self._loop.call_later(APPLY_WAIT_S, self._not_applied)

    def _not_applied(self) -> None:
        if self not in _open:
            return
        if self._will_apply:  # it has applied the update of another view meanwhile
            self.settle()
        else:
            self._proof.applies_updates = False
            self._show_below()

    def _show_below(self) -> None:
        """Show the end in a display of its own, for a front end that applies no updates."""
        self.is_below = True
        self._in_cell(partial(self._output.move_below, may_update=self.may_update))
        self._show_now()
        self.settle()

    def _show_now(self) -> None:
        self._updated_at = time.monotonic()
        try:
            if self._show is not None:
                self._in_cell(self._show)
        except BaseException:
            self.settle()  # a cell must not wait for it
            raise


def wait_for_page(display: FinalDisplay) -> bool:
    """Wait in the cell's thread until a page shows a view; False if none comes in time."""
    proof = proof_here()
    _poll_until(lambda: display.has_page, proof.page_wait_s)
    if not display.has_page:
        proof.shows_views = False
    return display.has_page


def finish_displays(_result: object = None) -> None:
    """Wait until the ends of this cell's views have reached the front end, for a moment at most.

    Some front ends listen only while the cell runs.
    """
    ended = [view for view in [*_open] if view.is_ended and view.belongs_here]
    with suppress(KeyboardInterrupt):
        _poll_until(
            lambda: all(view.settled.is_set() for view in ended), PAGE_WAIT_S + 2 * APPLY_WAIT_S
        )


def finish_after_cells(shell: Any) -> None:
    """Call `finish_displays` at the end of each cell."""
    if finish_displays not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", finish_displays)


def _poll_until(is_done: Callable[[], bool], within_s: float) -> None:
    """Wait for a condition, and deliver the pages' messages meanwhile."""
    if is_done():
        return
    end, pump = time.monotonic() + within_s, comms.pump()
    if pump is not None:
        pump.__enter__()
    try:
        while not is_done() and time.monotonic() < end:
            if pump is not None:
                pump.poll()
            time.sleep(_POLL_S)
    finally:
        if pump is not None:
            pump.__exit__(None, None, None)
