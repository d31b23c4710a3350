"""How a stop reaches synchronous work in a thread, and never anything else.

A thread that serves a run enters a `Watch`. In the main thread it takes SIGINT: the first one
asks the run to stop and is raised only inside an interruptible job, a second one gets out.
Owns signals and asynchronous exceptions; knows jobs only as something that can be struck.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.runtime.loop import engine_loop

T = TypeVar("T")


class Strikable(Protocol):
    """A piece of work that a stop may interrupt."""

    interruptible: bool
    stop_wanted: bool


class _Signals:
    """State of the process. The SIGINT handler reads it and must never take the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stacks: dict[int, list[Watch]] = {}
        self.main_stack: list[Watch] = []
        self.own: deque[None] = deque()
        """One entry for each SIGINT that we sent to ourselves and have not seen yet."""
        self.late = False
        """A SIGINT of the user came while the handler was ours and no watch was on."""
        self.forked = False


_signals = _Signals()


class Watch:
    """One thread's readiness to be interrupted while it serves one run.

    Waits may nest: a tool that itself runs an agent. A stop of the outer run stops the inner
    ones first; the outer job is interrupted when the inner wait returns.
    """

    def __init__(self, cancel: CancelToken, *, ring: Callable[[], None] = lambda: None) -> None:
        self.cancel = cancel
        self.abandoned = False
        """A second interrupt came: whoever waits leaves with KeyboardInterrupt."""
        self.interrupted = False
        """The person interrupted, as opposed to a stop from elsewhere."""
        self.ring = ring
        self._main = threading.current_thread() is threading.main_thread()
        self._thread = threading.get_ident()
        self._previous: Any = None
        self._on = False
        self._asked = False
        self._job: Strikable | None = None
        # The handler raises the first interrupt only where _armed, the second one where inside.
        self._armed = False
        self.inside = False
        self.wanted = False
        """Another thread asked for an interrupt of the job; its signal is on the way."""
        self._struck = False
        self._due = False

    @property
    def stopping(self) -> bool:
        """Whether a stop of this run was asked for."""
        return self._asked or self.cancel.is_set

    @property
    def is_on_here(self) -> bool:
        """Whether this thread has put it on."""
        return self._on and self._thread == threading.get_ident()

    def __enter__(self) -> Watch:
        if self._on:  # a guard has put it on before
            return self
        try:
            self._put_on()
        except BaseException:
            self.leave()
            raise
        # From here on the handler regards this watch, which is not armed: nothing is torn.
        if self._previous is not None and _signals.late:
            _signals.late = False
            _user_interrupt(_signals.main_stack)
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Put it off, once. An interrupt that nothing heeds any more is raised from here."""
        if not self._on and self._previous is None:
            return
        self.inside = False
        self._leave()
        stack = self._stack()
        with _signals.lock:
            if self in stack:
                stack.remove(self)
            if not stack:
                _signals.stacks.pop(self._thread, None)
            self._on = False
        self._give_sigint_back()
        if stack and stack[-1].take_due():
            raise KeyboardInterrupt

    def run(self, job: Strikable, work: Callable[[], T]) -> T:
        """Run `work`. KeyboardInterrupt may come out of it, but not after this has returned."""
        try:
            try:
                self._job = job
                self.inside = True
                self._armed = job.interruptible
                if job.interruptible and job.stop_wanted:
                    # The stop came after the job was taken and before a strike could reach it.
                    raise KeyboardInterrupt
                return work()
            finally:
                self._leave()
        except BaseException as error:
            self._leave()
            stopped = self.stopping or job.stop_wanted
            if isinstance(error, KeyboardInterrupt) and not stopped:
                self.ask()
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
        if threading.get_ident() == self._thread:
            return  # The job stops its own run: it may end by itself.
        above: list[Watch] = []
        with _signals.lock:
            stack = self._stack()
            if again and self._job is job and job.interruptible:
                self._armed = True
            if self._job is not job or not self._armed or self._due or self not in stack:
                return
            if self._main and signal.getsignal(signal.SIGINT) is _on_sigint:
                self.wanted = True
                _signals.own.append(None)
                _send_sigint(self._thread)
            elif stack[-1] is self:
                self._armed = False
                self._struck = True
                _raise_in(self._thread, KeyboardInterrupt)
            else:
                self._due = True
                above = stack[stack.index(self) + 1 :]
        for watch in above:
            watch.ask()

    def ask(self) -> None:
        """Ask the run to stop. Safe in a signal handler: the token is set on the engine thread."""
        self._asked = True
        try:
            self._loop.call_soon_threadsafe(self.cancel.set)
        except RuntimeError:
            self.cancel.set()

    def disarm(self) -> bool:
        """Whether the job may be interrupted now; it may not be a second time."""
        armed, self._armed = self._armed, False
        self.wanted = False
        return armed

    def make_due(self) -> None:
        """Interrupt the job as soon as the inner wait that it sits in returns."""
        self.wanted = False
        self._due = self._armed

    def take_due(self) -> bool:
        """Whether the job must be interrupted now that what it waited for has ended."""
        if self._due and self._armed:
            self._due = self._armed = False
            return True
        return False

    def user_interrupt(self) -> None:
        """Handle a KeyboardInterrupt that came although the handler was not ours."""
        self.interrupted = True
        if self.stopping:
            self.abandoned = True
        self.ask()

    def _stack(self) -> list[Watch]:
        if self._main:
            return _signals.main_stack
        return _signals.stacks.get(self._thread, [])

    def _leave(self) -> None:
        """Disarm, and swallow an interrupt that was sent for the job and is still on its way."""
        struck = False
        while True:
            try:
                with _signals.lock:
                    self._armed = self.inside = self.wanted = self._due = False
                    self._job = None
                    struck = struck or self._struck
                if struck:
                    _raise_in(self._thread, None)
                    self._struck = False
                if self._main and _signals.own:
                    # A signal to this thread is delivered at the latest when a system call ends.
                    time.sleep(0)
                    _signals.own.clear()
            except KeyboardInterrupt:
                continue
            return

    def _put_on(self) -> None:
        if self._main and not _signals.main_stack:
            self._take_sigint()
        # After SIGINT is ours: it may have to start a thread, which must not break off half-way.
        self._loop = engine_loop()
        with _signals.lock:
            if not self._main:
                _signals.stacks.setdefault(self._thread, [])
            self._on = True
            self._stack().append(self)

    def _take_sigint(self) -> None:
        # getsignal is None when the handler was not installed from Python: leave it alone then.
        if signal.getsignal(signal.SIGINT) is None:
            return
        _signals.late = False
        try:
            self._previous = signal.signal(signal.SIGINT, _on_sigint)
        except ValueError:  # a subinterpreter
            self._previous = None

    def _give_sigint_back(self) -> None:
        previous, self._previous = self._previous, None
        if previous is None:
            return
        signal.signal(signal.SIGINT, previous)
        if _signals.late:
            _signals.late = False
            signal.raise_signal(signal.SIGINT)


def _on_sigint(signum: int, frame: FrameType | None) -> None:
    # Runs in the main thread between any two of its instructions: takes no lock, and raises only
    # where a watch says so.
    own = bool(_signals.own)
    if own:
        _signals.own.popleft()
    stack = _signals.main_stack
    if not stack:
        if _signals.forked:  # a child has left its parent's watches behind, not the handler
            signal.default_int_handler(signum, frame)
        _signals.late = _signals.late or not own
        return
    for index, watch in enumerate(stack):
        if watch.wanted:
            # Its own run is stopped already, or only this job is: by its time limit.
            _interrupt(stack, index, ask_from=index + 1)
            return
    if not own:
        _user_interrupt(stack)


def _user_interrupt(stack: list[Watch]) -> None:
    for watch in stack:
        watch.interrupted = True
    if not all(watch.stopping for watch in stack):
        _interrupt(stack, 0, ask_from=0)
        return
    for watch in stack:
        watch.abandoned = True
        watch.ask()
        watch.ring()
    if stack[-1].inside:
        raise KeyboardInterrupt


def _interrupt(stack: list[Watch], index: int, *, ask_from: int) -> None:
    for watch in stack[ask_from:]:
        watch.ask()
    for watch in stack[index:-1]:
        watch.make_due()
    if stack[-1].disarm():
        raise KeyboardInterrupt


def _send_sigint(thread: int) -> None:
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
    else:
        # To the thread itself, so that a blocking call in it (time.sleep) ends at once.
        signal.pthread_kill(thread, signal.SIGINT)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    # None takes back what was not raised yet.
    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)


def _after_fork() -> None:
    _signals.lock = threading.Lock()
    _signals.stacks.clear()
    _signals.main_stack.clear()
    _signals.own.clear()
    _signals.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
