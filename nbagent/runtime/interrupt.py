"""How a stop reaches synchronous work in a thread, and never anything else.

A thread that starts or serves a run enters a `Watch`. In the main thread it takes SIGINT: the
first one asks the run to stop and is raised only inside an interruptible job, a second one gets
out. Owns signals; knows jobs only as something that can be struck.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.runtime.threads import PerProcess, engine_loop, raise_in

T = TypeVar("T")


class Strikable(Protocol):
    """A piece of work that a stop may interrupt."""

    interruptible: bool
    stop_wanted: bool


class _Signals:
    """What the SIGINT handler reads, which must never take the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stacks: dict[int, list[Watch]] = {}
        """By thread: its watches, the innermost one last."""
        self.ours = False
        """SIGINT comes to us."""
        self.late = False
        """A SIGINT of the person came while the handler was ours and no watch was on."""


_signals = PerProcess(_Signals)


class Watch:
    """One thread's readiness to be interrupted while it starts or serves one run.

    Watches nest: a tool that itself runs an agent. A stop of the outer run stops the inner ones
    first; the outer job is interrupted when the inner watch is left.
    """

    def __init__(self, cancel: CancelToken) -> None:
        self.cancel = cancel
        self.interrupted = False
        """The person interrupted, as opposed to a stop from elsewhere."""
        self.abandoned = False
        """A second interrupt came: whoever waits leaves with KeyboardInterrupt."""
        self.heeded = False
        """Somebody looks at `interrupted`: leaving need not raise it."""
        self.ring: Callable[[], object] = lambda: None
        """Called at an interrupt that gets out, also in a signal handler."""
        self._thread = threading.get_ident()
        self._main = threading.current_thread() is threading.main_thread()
        self._signals = _signals()
        self._stack: list[Watch] = []
        self._previous: Any = None
        self._asked = False
        self._job: Strikable | None = None
        # The handler raises the first interrupt only where armed, the second one where inside.
        self.armed = False
        self.inside = False
        self.wanted = False
        """Another thread asked for an interrupt of the job; its signal is on the way."""
        self._struck = False
        """The same, where it is an exception."""
        self.due = False
        """The job is interrupted as soon as the inner watch that it sits in is left."""

    @property
    def stopping(self) -> bool:
        """Whether a stop of this run was asked for."""
        return self._asked or self.cancel.is_set

    @staticmethod
    def of(cancel: CancelToken) -> Watch:
        """The one that this thread has on for this run, for a wait that takes over; else new."""
        stack = _signals().stacks.get(threading.get_ident())
        if stack and stack[-1].cancel is cancel and stack[-1]._job is None:
            return stack[-1]
        return Watch(cancel)

    def __enter__(self) -> Watch:
        if self in self._stack:
            return self
        try:
            if self._main and not self._signals.stacks.get(self._thread):
                self._take_sigint()
            # After SIGINT is ours: it may start a thread, which must not break off half-way.
            self._loop = engine_loop()
            with self._signals.lock:
                self._stack = self._signals.stacks.setdefault(self._thread, [])
                self._stack.append(self)
        except BaseException:
            self._leave()
            raise
        # From here on the handler regards this watch, which is not armed: nothing is torn.
        if self._previous is not None and self._signals.late:
            self._signals.late = False
            _pressed(self._stack)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self._leave()
            if self.interrupted and not self.heeded and kind is None:
                raise KeyboardInterrupt("interrupted while a run was started; the run is stopped")
        except KeyboardInterrupt:
            self.cancel.set()
            raise

    def run(self, job: Strikable, work: Callable[[], T]) -> T:
        """Run `work`. KeyboardInterrupt may come out of it, but not after this has returned."""
        try:
            try:
                self._job = job
                self.inside = True
                self.armed = job.interruptible
                if job.interruptible and job.stop_wanted:
                    # The stop came after the job was taken and before a strike could reach it.
                    raise KeyboardInterrupt
                return work()
            finally:
                self._disarm()
        except BaseException as error:
            self._disarm()
            stopped = self.stopping or job.stop_wanted
            if isinstance(error, KeyboardInterrupt) and self._main and not stopped:
                self.noted()  # of the person, while the job had replaced our handler
            raise

    def run_foreign(self, work: Callable[[], None]) -> None:
        """Run code that is not a job's (a pump): only a second interrupt breaks it."""
        try:
            self.inside = True
            work()
        finally:
            self.inside = False

    def strike(self, job: Strikable, *, again: bool = False) -> None:
        """Interrupt this job, once unless `again`, if the thread runs it now. Any thread."""
        above: list[Watch] = []
        with self._signals.lock:
            if self._job is not job or self not in self._stack:
                return
            self.armed = self.armed or (again and job.interruptible)
            if not self.armed or self.wanted or self.due:
                return
            if self._stack[-1] is not self:
                self.due = True
                above = self._stack[self._stack.index(self) + 1 :]
            elif self._main and signal.getsignal(signal.SIGINT) is _on_sigint:
                self.wanted = True
                _send_sigint(self._thread)
            else:
                self._struck, self.armed = True, False
                raise_in(self._thread, KeyboardInterrupt)
        for watch in above:
            watch.ask()

    def ask(self) -> None:
        """Ask the run to stop. Safe in a signal handler: the token is set on the engine thread."""
        self._asked = True
        try:
            self._loop.call_soon_threadsafe(self.cancel.set)
        except RuntimeError:
            self.cancel.set()

    def noted(self) -> None:
        """Heed a KeyboardInterrupt of the person that came although the handler was not ours."""
        self.interrupted = True
        self.abandoned = self.abandoned or self.stopping
        self.ask()

    def _disarm(self) -> None:
        """End a job, and swallow an interrupt that was sent for it and is still on its way."""
        while True:
            try:
                with self._signals.lock:
                    self.armed = self.inside = self.due = False
                    self._job = None
                if self._struck:
                    raise_in(self._thread, None)
                    self._struck = False
                if self.wanted:
                    # A signal to this thread is delivered at the latest when a system call ends.
                    time.sleep(0)
                    self.wanted = False
            except KeyboardInterrupt:
                continue
            return

    def _leave(self) -> None:
        """Put it off. An interrupt that nothing heeds any more is raised from here."""
        if self not in self._stack and self._previous is None:
            return
        self._disarm()
        with self._signals.lock:
            if self in self._stack:
                self._stack.remove(self)
            if not self._stack:
                self._signals.stacks.pop(self._thread, None)
        if self._previous is not None:
            previous, self._previous = self._previous, None
            signal.signal(signal.SIGINT, previous)
            self._signals.ours = False
            if self._signals.late:
                self._signals.late = False
                signal.raise_signal(signal.SIGINT)
        elif self._stack and self._stack[-1].due and self._stack[-1].armed:
            self._stack[-1].due = self._stack[-1].armed = False
            raise KeyboardInterrupt

    def _take_sigint(self) -> None:
        # getsignal is None when the handler was not installed from Python: leave it alone then.
        if signal.getsignal(signal.SIGINT) is not None:
            self._signals.late, self._signals.ours = False, True
            self._previous = signal.signal(signal.SIGINT, _on_sigint)


def _on_sigint(signum: int, frame: FrameType | None) -> None:
    # Runs in the main thread between any two of its instructions: takes no lock, and raises only
    # where a watch says so.
    signals = _signals()
    if not signals.ours:  # a forked child has left its parent's watches behind, not the handler
        signal.default_int_handler(signum, frame)
    stack = signals.stacks.get(threading.get_ident(), [])
    for index, watch in enumerate(stack):
        if watch.wanted:
            # Its own run is stopped already, or only this job is: by its time limit.
            watch.wanted = False
            _strike(stack, index, ask_from=index + 1)
            return
    if stack:
        _pressed(stack)
    else:
        signals.late = True


def _pressed(stack: list[Watch]) -> None:
    """The person interrupted."""
    for watch in stack:
        watch.interrupted = True
    if not all(watch.stopping for watch in stack):
        _strike(stack, 0, ask_from=0)
        return
    for watch in stack:
        watch.abandoned = True
        watch.ask()
        watch.ring()
    if stack[-1].inside:
        raise KeyboardInterrupt


def _strike(stack: list[Watch], index: int, *, ask_from: int) -> None:
    for watch in stack[ask_from:]:
        watch.ask()
    for watch in stack[index:-1]:
        watch.due = watch.armed
    innermost = stack[-1]
    armed, innermost.armed = innermost.armed, False
    if armed:
        raise KeyboardInterrupt


def _send_sigint(thread: int) -> None:
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
    else:
        # To the thread itself, so that a blocking call in it (time.sleep) ends at once.
        signal.pthread_kill(thread, signal.SIGINT)
