"""A run at work: starts the engine on its thread and hands each event to its sinks in order.

The store comes first: an event is on disk before a view shows it. A sink that raises is detached
and named; no sink can end a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakMethod

from nbagent.contracts.approval import PersonAnswer, Question
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import ErrorInfo, NbagentError, describe_error
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    Notice,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
    Waiting,
)
from nbagent.contracts.ports import RunStore, ShowPieces, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact
from nbagent.engine import run_engine
from nbagent.runtime import RunTask, inside_a_tool
from nbagent.session.approval import SessionApprover
from nbagent.session.callbacks import OnEvent, OnToolCall, OnToolResult, callback_sinks
from nbagent.session.frontend import Frontend, frontend
from nbagent.session.plan import prepare_run
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store
from nbagent.store.audit import AuditSink, acts_outside

# `store/leases` takes a process on another machine for dead after 30 s without one.
_HEARTBEAT_S = 10.0
_LOCKED_NOTICE = (
    "another process is writing to the store of runs; this run continues (or stops) when it is "
    "done, or in half a minute"
)
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("nbagent")


class ActiveRun:
    """One run, from its start to its end: the engine's EventPort, and the controls that stop it.

    Raises UsageError if the request cannot be carried out.
    """

    def __init__(
        self, ask: RunRequest, *, store: RunStore | None = None, here: Frontend | None = None
    ) -> None:
        self.store: RunStore = store or current_store()
        self._frontend = here or frontend()
        # Prompt and messages are in the record, there without secrets: no second copy is kept.
        self.ask = replace(ask, prompt=None, parts=(), template=None, messages=(), edits={})
        self.run_task = RunTask()
        self.prepared = prepare_run(
            ask, self.store, self._frontend, self.run_task, _weakly(self._show_host_wait)
        )
        self.plan = self.prepared.plan
        self.record: RunRecord = self.plan.run
        """Record as far as it is committed; after the end, the final record."""
        self._sinks: list[Sink] = []
        self._view: Sink | None = None
        self._pending_notices: list[Notice] = []
        self._early_warnings: list[str] | None = []
        """Warnings before it is known if a view shows them; None afterwards."""
        self._wait_texts: list[str] = []
        """Reasons that tool hosts gave for waiting."""
        self._is_started = False
        self._approver = self.plan.approver = SessionApprover(
            host=self.prepared.host,
            rules=self.prepared.rules,
            session=self.record.session,
            callback=ask.on_approval,
            buttons_ready=_weakly(self._buttons_ready),
            input_prompt=self._frontend.input_prompt(),
            # Before `start` opens a view: the audit log gets each event first.
            audit=self._audit(),
            pause_if_unanswered=ask.case is not None,
            on_contradiction=_weakly(self._warn_now),
        )
        self.store.on_warning(partial(_warn_runs_of, self.store))

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the running turn. Any thread."""
        if after_turn:
            self.plan.cancel.after_turn = True
        else:
            self.run_task.stop()

    def answer(
        self, tool_call_id: str, answer: PersonAnswer, *, question: Question | None = None
    ) -> bool:
        """Answer the question about a call; False if it takes no answer, or a tool answers itself.

        Any thread.
        """
        return not inside_a_tool() and self._approver.answer(
            tool_call_id, answer, question=question
        )

    def answered(self, tool_call_id: str) -> str:
        """Say why the question about a call takes no answer; empty if it takes one. Any thread."""
        return self._approver.questions.answered(tool_call_id)

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        """Show the effect of the call in question with other arguments. Any thread."""
        return self._approver.preview(tool_call_id, arguments, show)

    def start(
        self,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
    ) -> None:
        """Open the views and start; return at once."""
        callbacks = callback_sinks(on_event, on_tool_call, on_tool_result)
        workflow_run = self.prepared.workflow_run
        if workflow_run is not None:
            workflow_run.begin()
        try:
            self._start(callbacks)
        except BaseException:
            _active_runs.discard(self)
            if workflow_run is not None:
                workflow_run.document.release()
            raise

    def _start(self, callbacks: Sequence[Sink]) -> None:
        try:
            if view := self._frontend.open(self.record, self, self.ask.options):
                self._sinks.append(view)
                self._view = view
        except Exception as error:  # a view is no reason not to run
            self.warn(f"the run is not shown: {describe_error(error)}")
        early, self._early_warnings = self._early_warnings or [], None
        for text in early:
            self._log(text)
        self._sinks += callbacks
        self._frontend.serve_when_idle(self.run_task)
        self.run_task.on_unserved = self._show_thread_wait
        _active_runs.add(self)
        self.run_task.start(self._run_to_end)

    async def _run_to_end(self) -> RunRecord:
        self._schedule_heartbeat(_HEARTBEAT_S)
        try:
            await run_engine(self.plan, self)
        except BaseException as error:
            self._end_with_error(error)
            # Before RunStarted is on disk there is no stored run that could hold the error.
            if not self._is_started or not isinstance(error, Exception):
                raise
        finally:
            self._heartbeat.cancel()
            _active_runs.discard(self)
            if self.prepared.workflow_run is not None:
                self.prepared.workflow_run.document.release()
            for sink in self._sinks:
                with suppress(Exception):
                    sink.close()
            # A handle may live long; the person's functions and what they refer to need not.
            self._sinks.clear()
        return self.record

    def _schedule_heartbeat(self, wait_s: float) -> None:
        """Renew the store's lease; try again soon if another process is writing."""

        def beat() -> None:
            self._schedule_heartbeat(_HEARTBEAT_S if self.store.heartbeat() else 1.0)

        self._heartbeat = asyncio.get_running_loop().call_later(wait_s, beat)

    def _end_with_error(self, error: BaseException) -> None:
        """End the run with the committed part: the store failed for good, or nbagent did."""
        info = ErrorInfo("E_INTERNAL", describe_error(error))
        updated = self.record.model_copy(update={"notices": tuple(self.plan.notices)})
        self.record = updated.ended(
            phase="Failed",
            stop_reason="error",
            error=error.info if isinstance(error, NbagentError) else info,
            ended_at=utc_now(),
        )
        if self._is_started:
            with suppress(Exception):
                self.store.abandon(self.record.id)
            self._dispatch(RunFinished(self.record))

    def emit(self, event: Event) -> None:
        """Pass an event to the sinks without storing it. On the engine's loop."""
        if isinstance(event, TurnStarted):
            # The tools were listed a moment ago, so hosts know their problems now.
            self.warn_about_tools()
        elif isinstance(event, RunFinished):
            self._show_host_wait("")
        self._dispatch(event)
        # Not sent by `warn` itself: a sink that is detached warns in the middle of an event.
        self._send_notices()

    def _send_notices(self) -> None:
        while self._pending_notices:
            self._dispatch(self._pending_notices.pop(0))

    def _warn_now(self, text: str) -> None:
        """Warn between two events, on the engine's loop; nothing after the end."""
        if self in _active_runs:
            self.warn(text)
            self._send_notices()

    async def commit(self, event: Event) -> None:
        """Store an event, then pass it to the views: nothing is shown before it is on disk. On the
        engine's loop."""
        await self.store.commit(event, lambda: self._dispatch(Waiting(None, _LOCKED_NOTICE)))
        if isinstance(event, RunStarted):
            self._is_started = True
        elif isinstance(event, RunFinished):
            self.record = event.run
        elif isinstance(event, TurnFinished | MessagesAdded):
            added = (event.turn,) if isinstance(event, TurnFinished) else ()
            turns = (*self.record.turns, *added)
            messages = (*self.record.messages, *event.messages)
            self.record = self.record.model_copy(update={"turns": turns, "messages": messages})
        self.emit(event)

    def _dispatch(self, event: Event) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.handle(event)
            except BaseException as error:  # also SystemExit: a view must not end a run
                self._sinks.remove(sink)
                self.warn(f"{sink.name} was detached: {describe_error(error)}")
                with suppress(Exception):
                    sink.close()

    def warn(self, text: str) -> None:
        """Show a warning and keep it in the record."""
        text = redact(text)
        if self._early_warnings is None:
            self._log(text)
        else:
            self._early_warnings.append(text)
        self.plan.notices.append(text)
        self._pending_notices.append(Notice("warning", text))

    def _log(self, text: str) -> None:
        # A view shows the notice; logging prints a warning that nobody configured on stderr, too.
        level = logging.INFO if self._view in self._sinks else logging.WARNING
        _log.log(level, "run %s: %s", self.record.id[:8], text)

    def warn_about_tools(self) -> None:
        """Show the warnings of tool hosts (a broken skill), each once per process."""
        self._show_host_wait("")
        for text in self.prepared.host.warnings:
            if text not in _reported_warnings:
                _reported_warnings.add(text)
                self.warn(text)

    def _show_thread_wait(self, tool: str) -> None:
        self._dispatch(Waiting(None, f"{tool or 'a tool'} waits for {self._frontend.wait_reason}"))

    def _show_host_wait(self, text: str) -> None:
        """Show why listing the tools takes time; an empty text ends the wait."""
        if text or self._wait_texts:
            self._wait_texts = [*self._wait_texts, text] if text else []
            self._dispatch(Waiting(None, "; ".join(self._wait_texts)))

    def _audit(self) -> AuditSink | None:
        """Sink of the audit log for runs that the setting `audit` names; None for others."""
        hosts, scope = self.prepared.host.host_names, self.prepared.audit
        is_outside = bool(self.record.workflow) or acts_outside(hosts)
        if scope == "none" or not (is_outside or (scope == "all" and hosts)):
            return None
        if self.store.path is None:
            if is_outside:
                self.warn("this run is not audited: its store is in memory only")
            return None
        audit = AuditSink(self.store.path.parent, starts_log=is_outside)
        self._sinks.append(audit)
        return audit

    def _buttons_ready(self) -> bool | None:
        """True if a view with buttons is ready, False if not yet; None without such a view."""
        ready = [getattr(sink, "can_answer", None) for sink in self._sinks]
        return True if True in ready else False if False in ready else None


_active_runs: set[ActiveRun] = set()
_reported_warnings: set[str] = set()


def forget_reported_warnings() -> None:
    """Show each warning of a tool host again. For tests."""
    _reported_warnings.clear()


def _weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a method that does not keep its run alive; it does nothing after the run's end.

    A run whose parts refer back to it is garbage that only a collection finds, and a batch makes
    thousands: its collections would stop the person's threads for long.
    """
    reference = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        alive = reference()
        return None if alive is None else alive(*args, **kwargs)

    return call


def _warn_runs_of(store: RunStore, text: str) -> None:
    # The store can no longer save, which concerns every run in it. Not a method: the store would
    # keep the last run alive.
    for run in active_runs():
        if run.store is store:
            run.warn(text)


def active_runs() -> list[ActiveRun]:
    """Runs of this process that have not ended."""
    return list(_active_runs)
