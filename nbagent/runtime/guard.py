"""No interrupt comes between the start of a run and the wait for it: it is a stop of the run.

Owns the moments before a wait has taken over; what an interrupt does while a thread waits is the
watch's affair.
"""

from __future__ import annotations

from nbagent.contracts.cancel import CancelToken
from nbagent.runtime.watch import Watch


class Guard:
    """Around the start of one run, and around the wait for it if there is one.

    Until `begin`, an interrupt is raised as ever: there is nothing yet that could be left behind.
    From then on it stops the run. A `wait` in this thread takes over, with what was noted; where
    none does, leaving raises the KeyboardInterrupt, and the run ends by itself.
    """

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._waited_for = False

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        watch = self._watch
        if watch is None:
            return
        if self._waited_for:
            watch.leave()
            return
        try:
            watch.leave()
            if watch.interrupted and kind is None:
                raise KeyboardInterrupt("interrupted while a run was started; the run is stopped")
        except KeyboardInterrupt:
            watch.cancel.set()
            raise

    def begin(self, cancel: CancelToken) -> None:
        """The run with this token begins now: the last moment for an interrupt that starts none."""
        self._watch = Watch(cancel)
        self._watch.__enter__()

    def take_over(self) -> Watch | None:
        """The watch, still on, for a wait in the same thread, which puts it off."""
        watch = self._watch
        if watch is None or self._waited_for or not watch.is_on_here:
            return None
        self._waited_for = True
        return watch
