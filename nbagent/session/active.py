"""A run at work: starts the engine on its thread and hands each event to its sinks in order.

The store comes first: what is committed is on disk before anybody sees it. A sink that raises is
detached and named; nothing that a sink does ends a run. A dry run takes the very same path up to
its first request; nothing is sent, kept or changed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbagent.contracts.approval import PersonAnswer
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import ErrorInfo, NbagentError, UsageError, describe_error
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
from nbagent.contracts.ports import ShowPieces, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact
from nbagent.engine import run_engine
from nbagent.runtime import RunTask
from nbagent.session.approval import SessionApprover
from nbagent.session.frontend import Frontend, frontend
from nbagent.session.plan import prepare
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store
from nbagent.store.audit import AuditSink, is_audited
from nbagent.store.writer import Store

if TYPE_CHECKING:
    pass

OnEvent = Callable[[Event], object]

_BEAT_S = 10.0
_LOCKED = (
    "another process is writing to the store of runs; this run goes on, or stops, when it is "
    "done, or in half a minute"
)
_log = logging.getLogger("nbagent")


@dataclass(frozen=True, slots=True)
class CallbackSink:
    """Hands events to a function of the person's (`on_event=`), on the engine thread."""

    callback: OnEvent
    name: str = "on_event"

    def handle(self, event: Event) -> None:
        self.callback(event)

    def close(self) -> None:
        pass


class ActiveRun:
    """One run from its start on: the engine's EventPort, and what stops it.

    UsageError where it cannot be done as asked.
    """

    def __init__(
        self, ask: RunRequest, *, store: Store | None = None, here: Frontend | None = None
    ) -> None:
        self.store = store or current_store()
        self._here = here or frontend()
        # Its words are in the record, without what is secret in them.
        self.ask = replace(ask, prompt=None, parts=(), template=None, messages=(), edits={})
        self.courier = RunTask()
        self.prepared = prepare(ask, self.store, self._here, self.courier, self._wait_for_host)
        self.plan = self.prepared.plan
        self.record: RunRecord = self.plan.run
        """What is committed of the run; after its end, the final record."""
        self._sinks: list[Sink] = []
        self._unsaid: list[Notice] = []
        self._waits: list[str] = []
        """What hosts said that the run waits for."""
        self._begun = False
        self._approver = self.plan.approver = SessionApprover(
            host=self.prepared.host,
            rules=self.prepared.rules,
            session=self.record.session,
            callback=ask.on_approval,
            buttons=self._buttons,
            by_input=self._here.input_prompt(),
            audit=self._audit(),
            pauses=ask.case is not None,
        )
        self.store.database.on_warning = self._warn_all

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the running turn. Any thread."""
        if after_turn:
            self.plan.cancel.after_turn = True
        else:
            self.courier.stop()

    def answer(self, tool_call_id: str, answer: PersonAnswer) -> bool:
        """Answer the question about a call; False when it is not asked (any more). Any thread."""
        return self._approver.answer(tool_call_id, answer)

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        """Show what a call that is asked about would do with other arguments. Any thread."""
        return self._approver.preview(tool_call_id, arguments, show)

    def start(self, on_event: OnEvent | None = None) -> None:
        """Open its views and begin; returns at once."""
        if inspect.iscoroutinefunction(on_event):
            raise UsageError("on_event takes a plain function; to await, follow agent.stream(…)")
        flow = self.prepared.flow
        if flow is not None:
            flow.begin()
        try:
            self._start(on_event)
        except BaseException:
            _at_work.discard(self)
            if flow is not None:
                flow.document.release()
            raise

    def _start(self, on_event: OnEvent | None) -> None:
        try:
            if view := self._here.open(self.record, self, self.ask.options):
                self._sinks.append(view)
        except Exception as error:
            self.warn(f"the run is not shown: {describe_error(error)}")
        if on_event is not None:
            self._sinks.append(CallbackSink(on_event))
        self._here.serve_when_idle(self.courier)
        self.courier.on_unserved = self._wait_for_thread
        _at_work.add(self)
        self.courier.start(self._drive)

    async def _drive(self) -> RunRecord:
        self._beat_in(_BEAT_S)
        try:
            await run_engine(self.plan, self)
        except BaseException as error:
            self._break(error)
            if not self._begun or not isinstance(error, Exception):
                raise
        finally:
            self._heartbeat.cancel()
            _at_work.discard(self)
            if self.prepared.flow is not None:
                self.prepared.flow.document.release()
            for sink in self._sinks:
                with suppress(Exception):
                    sink.close()
        return self.record

    def _beat_in(self, wait_s: float) -> None:
        """Keep the store's lease alive; soon again where another process is writing."""

        def beat() -> None:
            self._beat_in(_BEAT_S if self.store.heartbeat() else 1.0)

        self._heartbeat = asyncio.get_running_loop().call_later(wait_s, beat)

    def _break(self, error: BaseException) -> None:
        """The store failed for good, or nbagent did: end with what is committed, and say so."""
        info = ErrorInfo("E_INTERNAL", describe_error(error))
        end = {
            "phase": "Failed",
            "stop_reason": "error",
            "error": error.info if isinstance(error, NbagentError) else info,
            "ended_at": utc_now(),
            "notices": tuple(self.plan.notices),
        }
        self.record = self.record.model_copy(update=end)
        if self._begun:
            with suppress(Exception):
                self.store.abandon(self.record.id)
            self._hand_on(RunFinished(self.record))

    def emit(self, event: Event) -> None:
        """Tell the sinks of something that is not kept. On the engine's loop."""
        if isinstance(event, TurnStarted):
            self.look_at_tools()
        elif isinstance(event, RunFinished):
            self._wait_for_host("")
        self._hand_on(event)
        while self._unsaid:
            self._hand_on(self._unsaid.pop(0))

    async def commit(self, event: Event) -> None:
        """Keep an event; nothing is seen before it is on disk. On the engine's loop."""
        await self.store.commit(event, lambda: self._hand_on(Waiting(None, _LOCKED)))
        if isinstance(event, RunStarted):
            self._begun = True
        elif isinstance(event, RunFinished):
            self.record = event.run
        elif isinstance(event, TurnFinished | MessagesAdded):
            added = (event.turn,) if isinstance(event, TurnFinished) else ()
            turns = (*self.record.turns, *added)
            messages = (*self.record.messages, *event.messages)
            self.record = self.record.model_copy(update={"turns": turns, "messages": messages})
        self.emit(event)

    def _hand_on(self, event: Event) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.handle(event)
            except BaseException as error:  # also SystemExit: a view never ends a run
                self._sinks.remove(sink)
                self.warn(f"{sink.name} was detached: {describe_error(error)}")
                with suppress(Exception):
                    sink.close()

    def warn(self, text: str) -> None:
        """Tell the person, and keep it in the record."""
        text = redact(text)
        _log.warning("run %s: %s", self.record.id[:8], text)
        self.plan.notices.append(text)
        self._unsaid.append(Notice("warning", text))

    def _warn_all(self, text: str) -> None:
        for run in at_work():
            if run.store is self.store:
                run.warn(text)

    def look_at_tools(self) -> None:
        """Say what hosts warn of (a skill that is not as it should be), once in each process."""
        self._wait_for_host("")
        for text in self.prepared.host.warnings:
            if text not in _said_warnings:
                _said_warnings.add(text)
                self.warn(text)

    def _wait_for_thread(self, tool: str) -> None:
        self._hand_on(Waiting(None, f"{tool or 'a tool'} waits for {self._here.wait_reason}"))

    def _wait_for_host(self, text: str) -> None:
        """Say what the run waits for before its tools can be listed; no text: no longer."""
        if text or self._waits:
            self._waits = [*self._waits, text] if text else []
            self._hand_on(Waiting(None, "; ".join(self._waits)))

    def _audit(self) -> AuditSink | None:
        """The sink for the audit log of a workflow, and of a run whose tools touch the world."""
        if not (self.record.workflow or is_audited(self.prepared.host.host_names)):
            return None
        if self.store.path is None:
            self.warn("this run is not audited: its store is in memory only")
            return None
        audit = AuditSink(self.store.path.parent)
        self._sinks.append(audit)
        return audit

    def _buttons(self) -> bool | None:
        """Whether a view with buttons is ready; None where there is none."""
        ready = [getattr(sink, "can_answer", None) for sink in self._sinks]
        return True if True in ready else False if False in ready else None


_at_work: set[ActiveRun] = set()
_said_warnings: set[str] = set()


def at_work() -> list[ActiveRun]:
    """The runs of this process that are not over."""
    return list(_at_work)


# What a run would send
