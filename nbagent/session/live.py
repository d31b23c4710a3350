"""A run at work: starts the engine on its thread and hands each event to its sinks in order.

The store comes first; when the engine is resumed after a yield, that event is committed.
A sink that raises is detached and named; nothing that a sink does ends a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from nbagent.archive.audit_records import AuditSink, is_audited
from nbagent.archive.store import Store
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.chat import Message
from nbagent.contracts.errors import ErrorInfo, NbagentError
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    Notice,
    RunFinished,
    RunStarted,
    TurnFinished,
    Waiting,
)
from nbagent.contracts.policy import PersonAnswer
from nbagent.contracts.ports import AnsweringSink, ChatClient, Sink, ToolContext
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.contracts.secrets import redact
from nbagent.engine import EnginePlan, run_engine
from nbagent.runtime import Courier, EventChannel
from nbagent.session.approval import SessionApprover, Ways
from nbagent.session.front import Front, front, plain_printer
from nbagent.session.prepare import Ask, Prepared, prepare
from nbagent.session.recorded import cassette_of
from nbagent.session.sinks import CallbackSink, ChannelSink, StderrSink
from nbagent.session.stores import alive, current_store

_LOCKED = (
    "another process is writing to the store of runs; this run goes on, or stops, when it is "
    "done, or in half a minute"
)


class LiveRun:
    """One run from its start on: what views and handles look at, and what stops it."""

    def __init__(self, ask: Ask, *, store: Store, here: Front) -> None:
        self.here = here
        # Its words are in the record, without what is secret in them.
        self.ask = replace(ask, prompt=None, parts=(), template=None, messages=())
        self.store = store
        self.cancel = CancelToken()
        self.courier = Courier(self.cancel)
        self.prepared: Prepared = prepare(ask, store=store, front=here)
        self.history: tuple[Message, ...] = self.prepared.history
        self.record: RunRecord = self.prepared.record
        """The initial record while the run is at work, the final one after it ended."""
        self._turns: list[EngineTurn] = []
        self._messages: list[Message] = list(self.record.messages)
        self._begun = False
        self.warnings: list[str] = list(self.prepared.notices)
        self.channel: EventChannel | None = None
        self._sinks: list[Sink] = []
        self._late: list[Notice] = []
        self._waits_for = here.waits_for
        self.context = ToolContext(
            run_id=self.record.id,
            session=self.record.session,
            runner=self.courier,
            namespace=here.namespace,
            mounts=self.prepared.tools.mounts,
            policy=self.prepared.tools.policies.effective,
            waiting=self._wait_for_host,
        )
        self._hosts: list[str] = []
        """What hosts said that the run waits for."""
        self.host = self.prepared.tools.host
        self._audit = self._open_audit()
        self._approver = self._make_approver(here)

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.record.phase != "Running"

    def so_far(self) -> RunRecord:
        """The record with what is committed; after the end, the final one."""
        if self.done:
            return self.record
        turns, messages = tuple(self._turns), tuple(self._messages)
        return self.record.model_copy(update={"turns": turns, "messages": messages})

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the running turn. Any thread."""
        if after_turn:
            self.cancel.after_turn = True
        else:
            self.courier.stop()

    def start(self, on_event: Callable[[Event], object] | None = None) -> None:
        """Open its views and begin; returns at once."""
        audit = [self._audit] if self._audit else []
        callback = [] if on_event is None else [CallbackSink(on_event)]
        self._sinks = [*audit, *_views(self, self.here), *callback]
        if self.channel is not None:
            self._sinks.append(ChannelSink(self.channel))
        self.here.adopt(self.courier)
        self.courier.on_stranded = self._wait_for_thread
        self.courier.on_slow = self._hold_up
        _at_work.add(self)
        self.courier.start(self._drive)

    def _wait_for_thread(self, tool: str) -> None:
        text = f"{tool or 'a tool'} waits for {self._waits_for}"
        self._to_sinks(Waiting(None, text))

    def _wait_for_host(self, text: str) -> None:
        self._hosts.append(text)
        self._to_sinks(Waiting(None, "; ".join(self._hosts)))

    def _hold_up(self, tool: str) -> None:
        text = f"{tool or 'a tool'} runs in the kernel; cells wait until it is done (■ stops it)"
        self._to_sinks(Waiting(None, text))

    def _make_approver(self, here: Front) -> SessionApprover:
        ways = Ways(
            callback=self.ask.on_approval,
            has_buttons=lambda: any(sink.can_answer for sink in self._answering()),
            may_have_buttons=lambda: bool(self._answering()),
            by_input=here.ask(),
        )
        tools = self.prepared.tools
        session, audit = self.record.session, self._audit
        if audit is None:
            return SessionApprover(tools.host, tools.policies, ways, session=session)
        return SessionApprover(
            tools.host, tools.policies, ways, session=session, record=audit.decided
        )

    def _answering(self) -> list[AnsweringSink]:
        return [sink for sink in self._sinks if isinstance(sink, AnsweringSink)]

    def _open_audit(self) -> AuditSink | None:
        """The audit log, for a run with tools that touch the world."""
        if not is_audited(self.host.host_names):
            return None
        if self.store.path is None:
            self.warn("this run is not audited: its store is in memory only")
            return None
        return AuditSink(self.store.path.parent, on_warning=self.warn)

    def answer(self, tool_call_id: str, answer: PersonAnswer) -> bool:
        """Answer the question about a call; False when it is not asked (any more). Any thread."""
        return self._approver.answer(tool_call_id, answer)

    async def _look_at_tools(self) -> None:
        """List the tools once before the run begins, for what there is to say about them."""
        listing = asyncio.ensure_future(self.host.tools(self.context))
        ended = await self.cancel.finished(listing, 0.0)
        if self._hosts:
            self._hosts.clear()
            self._to_sinks(Waiting(None, ""))
        if not ended or listing.cancelled() or listing.exception() is not None:
            return  # the engine lists them again, and the run ends with it
        tools = self.prepared.tools
        told = (text for text in self.host.warnings if text not in tools.warnings)
        for text in (*told, *tools.policies.doubts(self.host.offered)):
            self.warn(redact(text))

    async def _drive(self) -> RunRecord:
        with alive(self.store):
            try:
                await self._look_at_tools()
                await run_engine(self.plan(), self)
            except BaseException as error:
                self._break(error)
                if not self._begun or not isinstance(error, Exception):
                    raise
            finally:
                _at_work.discard(self)
                for sink in self._sinks:
                    with suppress(Exception):
                        sink.close()
                if self.channel is not None:
                    self.channel.close()
        return self.record

    def _break(self, error: BaseException) -> None:
        """The store failed for good, or nbagent did: end with what is committed, and say so."""
        if isinstance(error, NbagentError):
            info = ErrorInfo(error.code, redact(error.message))
        else:
            info = ErrorInfo("E_INTERNAL", redact(f"{type(error).__name__}: {error}"))
        end = {"phase": "Failed", "stop_reason": "error", "error": info, "ended_at": utc_now()}
        self.record = self.so_far().model_copy(update={**end, "notices": tuple(self.warnings)})
        if self._begun:
            with suppress(Exception):
                self.store.release(self.record.id)
            self._to_sinks(RunFinished(self.record))

    def plan(self) -> EnginePlan:
        """What the engine is given."""
        made = self.prepared
        return EnginePlan(
            run=made.record,
            history=self.history,
            client=made.chosen.client if self.ask.dry_run else self._client(),
            model=made.chosen.model,
            host=self.host,
            approver=self._approver,
            composer=made.composer,
            context=self.context,
            cancel=self.cancel,
            params=made.params,
            stream=made.asked.stream,
            first_index=made.first_index,
            phase_before=made.phase_before,
            requests_before=made.requests_before,
            price=made.chosen.price,
            trim=made.asked.trim == "tool-results",
            before=made.before,
            context_tokens=made.chosen.context_tokens,
            turn_places=self._turn_places,
            notices=self.warnings,
        )

    def _client(self) -> ChatClient:
        made = self.prepared
        return made.chosen.recorded(*cassette_of(made.asked, self.store, self.record.id))

    def _turn_places(self) -> dict[int, str]:
        """The turns of the conversation before, for what is told of a request that is too long."""
        if self.record.parent_id is None:
            return {}
        with suppress(NbagentError):  # a forgotten ancestor takes only the names away
            return self.store.turn_places(self.record.parent_id)
        return {}

    def emit(self, event: Event) -> None:
        """Tell the sinks of something that is not kept. On the engine's loop."""
        self._to_sinks(event)
        while self._late:
            self._to_sinks(self._late.pop(0))

    async def commit(self, event: Event) -> None:
        """Keep an event; nothing is seen before it is on disk. On the engine's loop."""
        await self.store.commit(event, lambda: self._to_sinks(Waiting(None, _LOCKED)))
        if isinstance(event, RunStarted):
            self._begun = True
        elif isinstance(event, RunFinished):
            self.record = event.run
        elif isinstance(event, TurnFinished):
            self._turns.append(event.turn)
            self._messages.extend(event.messages)
        elif isinstance(event, MessagesAdded):
            self._messages.extend(event.messages)
        self.emit(event)

    def _to_sinks(self, event: Event) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.handle(event)
            except BaseException as error:  # also SystemExit: a view never ends a run
                self._sinks.remove(sink)
                text = redact(f"{sink.name} was detached: {type(error).__name__}: {error}")
                self.warn(text)
                with suppress(Exception):
                    sink.close()

    def warn(self, text: str) -> None:
        """Tell the person, and keep it in the record."""
        _log.warning("run %s: %s", self.record.id[:8], text)
        self.warnings.append(text)
        self._late.append(Notice("warning", text))


_log = logging.getLogger("nbagent")
_at_work: set[LiveRun] = set()


def at_work() -> list[LiveRun]:
    """The runs of this process that are not over."""
    return list(_at_work)


def _tell_all(store: Store, text: str) -> None:
    for run in at_work():
        if run.store is store:
            run.warn(text)


def prepare_run(ask: Ask, *, store: Store | None = None, here: Front | None = None) -> LiveRun:
    """Make a run ready to start. The one call behind all three doors.

    Args:
        ask: what is to be done.
        store: where the run is kept; the current one by default.
        here: where it is shown and served; the front of this process by default.

    Raises:
        UsageError: it cannot be done as asked.
        StoreError: the store belongs to a newer nbagent.
    """
    kept = store or current_store()
    run = LiveRun(ask, store=kept, here=here or front())
    kept.database.on_warning = lambda text: _tell_all(kept, text)
    return run


def _views(run: LiveRun, here: Front) -> list[Sink]:
    options = run.ask.options
    if here.surface is None:
        if options.quiet:
            return []
        return [plain_printer()] if options.echo else [StderrSink()]
    try:
        view = here.surface.open(run.record, run, quiet=bool(options.quiet), raw=bool(options.raw))
    except Exception as error:
        run.warn(redact(f"the run is not shown: {type(error).__name__}: {error}"))
        view = None
    return [] if view is None else [view]
