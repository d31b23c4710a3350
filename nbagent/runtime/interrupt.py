"""Interrupts synchronous work in a thread, and nothing else in that thread.

A thread that starts or serves a run enters an `InterruptGuard`. In the main thread the guard
handles SIGINT: the first one requests a stop and is raised only inside an interruptible job, a
second one ends the wait with KeyboardInterrupt. Owns signals; knows of a job only if it may be
interrupted.

The order of statements here matters: a signal may arrive between any two instructions. The tests
in `tests/faults` send one at every line.
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
from nbagent.runtime.threads import PerProcess, engine_loop, raise_in_thread

T = TypeVar("T")


class Interruptible(Protocol):
    """Work that a stop may interrupt."""

    interruptible: bool
    stop_wanted: bool


class _Signals:
    """State of the SIGINT handler. The handler runs inside arbitrary code of its thread, which may
    hold the lock, so it must never take the lock itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stacks: dict[int, list[InterruptGuard]] = {}
        """Guards of each thread, by thread id, innermost last."""
        self.installed = False
        """True while our SIGINT handler is installed."""
        self.missed = False
        """True if the person's SIGINT came while our handler was installed and no guard was on."""


_signals = PerProcess(_Signals)


class InterruptGuard:
    """Makes one thread interruptible while it starts or serves one run.

    Guards nest if a tool itself runs an agent. A stop of the outer run stops the inner runs first;
    the outer job is interrupted when the inner guard is left.
    """

    def __init__(self, cancel: CancelToken) -> None:
        self.cancel = cancel
        self.interrupted = False
        """True if the person interrupted (not if the stop came from elsewhere)."""
        self.force_exit = False
        """True after a second interrupt: the wait ends with KeyboardInterrupt."""
        self.handled = False
        """True if the caller checks `interrupted` itself, so `__exit__` does not raise."""
        self.wake: Callable[[], object] = lambda: None
        """Called at a second interrupt, possibly in a signal handler."""
        self._thread = threading.get_ident()
        self._main = threading.current_thread() is threading.main_thread()
        self._signals = _signals()
        self._stack: list[InterruptGuard] = []
        self._previous: Any = None
        self._stop_requested = False
        self._job: Interruptible | None = None
        # The handler raises a first interrupt only if `may_raise`, a second one also if `in_job`.
        self.may_raise = False
        self.in_job = False
        self.signal_pending = False
        """True if another thread sent a signal that interrupts the job and did not arrive yet."""
        self._exception_pending = False
        """True if another thread set an exception that interrupts the job."""
        self.deferred = False
        """True if the job is to be interrupted when the guard inside it is left."""

    @property
    def stopping(self) -> bool:
        """True if a stop of this run was requested."""
        return self._stop_requested or self.cancel.is_set

    @staticmethod
    def for_thread(cancel: CancelToken) -> InterruptGuard:
        """Return this thread's guard of this run, if a wait follows its start; else a new one."""
        stack = _signals().stacks.get(threading.get_ident())
        if stack and stack[-1].cancel is cancel and stack[-1]._job is None:
            return stack[-1]
        return InterruptGuard(cancel)

    def __enter__(self) -> InterruptGuard:
        if self in self._stack:
            return self
        try:
            if self._main and not self._signals.stacks.get(self._thread):
                self._install_handler()
            # After the handler is installed: this may start a thread, and an interrupt in the
            # middle of that would leave a thread without a loop.
            self._loop = engine_loop()
            with self._signals.lock:
                self._stack = self._signals.stacks.setdefault(self._thread, [])
                self._stack.append(self)
        except BaseException:
            self._exit()
            raise
        # From here on the handler sees this guard, which does not raise yet: nothing is torn.
        if self._previous is not None and self._signals.missed:
            self._signals.missed = False
            _on_person_interrupt(self._stack)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self._exit()
            if self.interrupted and not self.handled and kind is None:
                raise KeyboardInterrupt("interrupted while a run was started; the run is stopped")
        except KeyboardInterrupt:
            self.cancel.set()
            raise

    def run(self, job: Interruptible, work: Callable[[], T]) -> T:
        """Run `work`. KeyboardInterrupt may come out of it, but not after this has returned."""
        try:
            try:
                self._job = job
                self.in_job = True
                self.may_raise = job.interruptible
                if job.interruptible and job.stop_wanted:
                    # The stop came after the job was taken and before it could be interrupted.
                    raise KeyboardInterrupt
                return work()
            finally:
                self._finish_job()
        except BaseException as error:
            self._finish_job()
            stopped = self.stopping or job.stop_wanted
            if isinstance(error, KeyboardInterrupt) and self._main and not stopped:
                # From the person, while the job had replaced our handler.
                self.on_foreign_interrupt()
            raise

    def run_guarded(self, work: Callable[[], None]) -> None:
        """Run code that is not a job (a pump): only a second interrupt breaks it."""
        try:
            self.in_job = True
            work()
        finally:
            self.in_job = False

    def interrupt(self, job: Interruptible, *, again: bool = False) -> None:
        """Interrupt `job` if the thread runs it now; only once, unless `again`. Any thread."""
        inner_guards: list[InterruptGuard] = []
        with self._signals.lock:
            if self._job is not job or self not in self._stack:
                return
            self.may_raise = self.may_raise or (again and job.interruptible)
            if not self.may_raise or self.signal_pending or self.deferred:
                return
            if self._stack[-1] is not self:
                self.deferred = True
                inner_guards = self._stack[self._stack.index(self) + 1 :]
            elif self._main and signal.getsignal(signal.SIGINT) is _on_sigint:
                self.signal_pending = True
                _send_sigint(self._thread)
            else:
                self._exception_pending, self.may_raise = True, False
                raise_in_thread(self._thread, KeyboardInterrupt)
        for guard in inner_guards:
            guard.request_stop()

    def request_stop(self) -> None:
        """Request a stop of the run. Safe in a signal handler: the token, whose lock the
        interrupted code may hold, is set on the engine thread."""
        self._stop_requested = True
        try:
            self._loop.call_soon_threadsafe(self.cancel.set)
        except RuntimeError:
            self.cancel.set()

    def on_foreign_interrupt(self) -> None:
        """Handle a person's KeyboardInterrupt that another handler raised."""
        self.interrupted = True
        self.force_exit = self.force_exit or self.stopping
        self.request_stop()

    def _finish_job(self) -> None:
        """End a job, and discard an interrupt that was sent for it and did not arrive yet."""
        while True:
            try:
                with self._signals.lock:
                    self.may_raise = self.in_job = self.deferred = False
                    self._job = None
                if self._exception_pending:
                    raise_in_thread(self._thread, None)
                    self._exception_pending = False
                if self.signal_pending:
                    # A signal to this thread is delivered at the latest when a system call ends.
                    time.sleep(0)
                    self.signal_pending = False
            except KeyboardInterrupt:
                continue
            return

    def _exit(self) -> None:
        """Remove the guard. An interrupt that no guard handles any more is raised from here."""
        if self not in self._stack and self._previous is None:
            return
        self._finish_job()
        with self._signals.lock:
            if self in self._stack:
                self._stack.remove(self)
            if not self._stack:
                self._signals.stacks.pop(self._thread, None)
        if self._previous is not None:
            previous, self._previous = self._previous, None
            signal.signal(signal.SIGINT, previous)
            self._signals.installed = False
            if self._signals.missed:
                self._signals.missed = False
                signal.raise_signal(signal.SIGINT)
        elif self._stack and self._stack[-1].deferred and self._stack[-1].may_raise:
            self._stack[-1].deferred = self._stack[-1].may_raise = False
            raise KeyboardInterrupt

    def _install_handler(self) -> None:
        # getsignal is None when the handler was not installed from Python: leave it alone then.
        if signal.getsignal(signal.SIGINT) is not None:
            self._signals.missed, self._signals.installed = False, True
            self._previous = signal.signal(signal.SIGINT, _on_sigint)


def _on_sigint(signum: int, frame: FrameType | None) -> None:
    # Runs in the main thread between any two of its instructions: takes no lock, and raises only
    # if a guard allows it.
    signals = _signals()
    if not signals.installed:  # a forked child inherits the handler, but not its parent's guards
        signal.default_int_handler(signum, frame)
    stack = signals.stacks.get(threading.get_ident(), [])
    for index, guard in enumerate(stack):
        if guard.signal_pending:
            # Its own run is stopped already, or only this job was stopped, by its time limit.
            guard.signal_pending = False
            _interrupt_innermost(stack, index, stop_from=index + 1)
            return
    if stack:
        _on_person_interrupt(stack)
    else:
        signals.missed = True


def _on_person_interrupt(stack: list[InterruptGuard]) -> None:
    """Handle an interrupt of the person: the first stops the runs, the second ends the wait."""
    for guard in stack:
        guard.interrupted = True
    if not all(guard.stopping for guard in stack):
        _interrupt_innermost(stack, 0, stop_from=0)
        return
    for guard in stack:
        guard.force_exit = True
        guard.request_stop()
        guard.wake()
    if stack[-1].in_job:
        raise KeyboardInterrupt


def _interrupt_innermost(stack: list[InterruptGuard], index: int, *, stop_from: int) -> None:
    for guard in stack[stop_from:]:
        guard.request_stop()
    for guard in stack[index:-1]:
        guard.deferred = guard.may_raise
    innermost = stack[-1]
    may_raise, innermost.may_raise = innermost.may_raise, False
    if may_raise:
        raise KeyboardInterrupt


def _send_sigint(thread: int) -> None:
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
    else:
        # Sent to the thread itself, so that a blocking call in it (time.sleep) ends at once.
        signal.pthread_kill(thread, signal.SIGINT)
