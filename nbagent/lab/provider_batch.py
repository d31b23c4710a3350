"""Executor that sends all cases at once to the provider's batch API, and collects the answers.

The provider's batch goes on when the wait is left or the process dies: its id is in the store, and
the same call collects its answers. What is sent is in `provider_target`, the wire of each vendor in
`providers/batches`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from nbagent.contracts.canonical import new_id, sha_of
from nbagent.contracts.errors import ModelError, NbagentError, StoreError, UsageError
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.records import Case, EngineTurn, RunRecord
from nbagent.lab.local import Local, NoMoreRuns, Unattended
from nbagent.lab.provider_target import (
    AnsweringClient,
    ProviderTarget,
    refuse_options,
    refuse_tools,
    set_batch_price,
    target_of,
)
from nbagent.providers.batches.batch_api import (
    BatchAnswer,
    BatchApi,
    BatchLine,
    BatchStatus,
    Submission,
    no_state_error,
    unanswered_fault,
)
from nbagent.providers.client import WireClient
from nbagent.session.active_run import ActiveRun
from nbagent.session.callbacks import OnEvent
from nbagent.session.dry_run import first_wire_request, plan_first_request
from nbagent.session.request import RunRequest
from nbagent.store.provider_batches import (
    ProviderBatch,
    provider_batches_of,
    save_provider_batches,
)
from nbagent.store.writer import Store
from nbagent.view.text_format import pluralize

FIRST_POLL_S, MAX_POLL_S = 1.0, 60.0
"""Wait before the second question about a batch; it grows by half each time, up to the other."""
_GROWTH = 1.5
_READ_ATTEMPTS = 5
_MAX_SILENT = 5
"""Replies in a row without a state after which the wait ends."""
_LINE_BYTES = 250
"""Bytes around the body of a request in a provider's batch, at most."""
_PREPARED_TOGETHER, _READ_TOGETHER = 50, 50
_GONE, _NO_API = (404, 410), (404, 405, 501)
_IN_MEMORY = "the store is in memory, so the ids of provider batches are lost with this kernel"
_sending: dict[tuple[Store, str], set[asyncio.Future[Any]]] = {}
"""Creations of provider batches that are not done, by store and batch; also of earlier waits."""
T = TypeVar("T")
_CaseName = tuple[str, tuple[tuple[str, str], ...], int]


@dataclass(slots=True)
class _Part:
    """Requests for one provider batch, before they are sent."""

    target: ProviderTarget
    lines: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Bodies by key of the case."""
    n_bytes: int = 0

    def has_room(self, size: int) -> bool:
        """True if a request of this size can be added."""
        api = self.target.api
        return self.n_bytes + size <= api.max_bytes and len(self.lines) < api.max_requests


class ProviderBatchExecutor(Local):
    """Executor for `Agent.map(…, executor="provider-batch")`."""

    def __init__(self, store: Store, here: Unattended) -> None:
        super().__init__(store, here)
        self._targets: dict[str, ProviderTarget] = {}
        """Servers of the variants, by `ProviderTarget.server`."""
        self._target_by_client: dict[tuple[ChatClient, str, str], ProviderTarget | None] = {}
        """The same by client, model and path; None for offline models."""
        self._left = asyncio.Event()
        self._keys: dict[_CaseName, str] = {}
        self._given: dict[_CaseName, EngineTurn] = {}
        """Turns of cut runs that had the answer, or a part of it, by case."""
        self._refusals: dict[str, NbagentError] = {}
        """Errors of requests that cannot be planned, such as one of an empty prompt, by key."""
        self._answers: dict[str, tuple[BatchAnswer, ProviderBatch]] = {}
        """Answers that no run has taken, by key of the case."""
        self._batches: list[ProviderBatch] = []
        self._saving = asyncio.Lock()
        self._problems: dict[str, str] = {}
        """Sentences about faults in results, by mark."""
        self._states: dict[str, str] = {}
        """Sentences about the provider batches at work, by mark."""
        self._n_done: dict[str, int] = {}
        """Requests that are done at the provider, of the batches at work, by mark."""
        self._on_change: Callable[[], None] = lambda: None

    # Before anything is sent

    def check(self, request: RunRequest) -> None:
        """Refuse a variant that a provider batch cannot answer.

        Raises:
            UsageError: it has tools, takes several turns, or its server has no batch API.
        """
        refuse_options(request)
        active, chat_request, _ = plan_first_request(
            replace(request, dry_run=True), store=self._store, here=self._shared_frontend
        )
        if target := self._target_for(active, chat_request):
            self._targets[target.server] = target

    def _target_for(self, active: ActiveRun, chat_request: ChatRequest) -> ProviderTarget | None:
        refuse_tools(chat_request)
        client = active.plan.client
        path = client.endpoint(chat_request)[0] if isinstance(client, WireClient) else ""
        known = client, chat_request.model, path
        if known not in self._target_by_client:
            self._target_by_client[known] = target_of(active, chat_request)
        return self._target_by_client[known]

    def set_price(self, active: ActiveRun) -> None:
        """Price the answers of a prepared run as those of a batch; offline models stay free."""
        resolved = active.prepared.resolved
        start = f"{resolved.model_id} at {resolved.base_url}, "
        if target := next((t for s, t in self._targets.items() if s.startswith(start)), None):
            set_batch_price(active, target)

    async def arrivals(
        self, requests: Mapping[int, RunRequest], on_change: Callable[[], None]
    ) -> AsyncGenerator[list[int]]:
        """Send what was not sent before; yield the cases of each provider batch as it ends."""
        self._on_change, self._states, self._problems = on_change, {}, {}
        name = next(case.batch for ask in requests.values() if (case := ask.case))
        try:
            if earlier := [*_sending.get((self._store, name), ())]:
                await self._unless_left(asyncio.wait(earlier))
            by_key = await asyncio.to_thread(self._read_keys, name, requests)
            waiting = await self._unless_left(self._find_sent(name, by_key))
            sent = {key for batch in waiting for key in batch.keys}
            unsent = {key: requests[index] for key, index in by_key.items() if key not in sent}
            parts, offline = await self._unless_left(self._plan(unsent))
            for part in parts:
                waiting.append(await self._unless_left(self._send_to_end(name, part)))
            if offline:
                yield [by_key[key] for key in offline]
            async for batch in self._as_they_end(name, waiting, by_key):
                yield [by_key[key] for key in batch.keys if key in by_key]
                await self._forget_collected(name, batch)
        finally:
            self._say_where_they_are(name)

    def _read_keys(self, name: str, requests: Mapping[int, RunRequest]) -> dict[str, int]:
        """Read the provider batches of a batch; return the cases by their keys. Any thread."""
        self._batches = provider_batches_of(self._store, name)
        by_key: dict[str, int] = {}
        for index, ask in requests.items():
            assert ask.case is not None
            key = self._keys[_case_name(ask.case)] = self._key_of(ask)
            by_key[key] = index
        return by_key

    def _key_of(self, ask: RunRequest) -> str:
        """Return the key of a request: the case, and the run that it repeats.

        A run that was cut while its answer was given to it is no further request: the answer is
        given again.
        """
        case, parent_id = ask.case, ask.parent_id
        assert case is not None
        while parent_id and _was_cut(run := self._store.load(parent_id)):
            if run.turns and run.turns[-1].response is not None:
                self._given[_case_name(case)] = run.turns[-1]
            parent_id = run.parent_id
        return sha_of([*_case_name(case), case.sha, parent_id or ""])[:24]

    async def _find_sent(self, name: str, by_key: Mapping[str, int]) -> list[ProviderBatch]:
        """Return the provider batches that were sent earlier and have some of these cases."""
        sent: list[ProviderBatch] = []
        for batch in tuple(self._batches):
            if by_key.keys().isdisjoint(batch.keys):
                continue
            target = self._target_of(batch)
            if not batch.batch_id:
                # The process died while it was sent, or the connection broke.
                self._say(batch, "looking whether it was sent before the wait ended")
                found_id = await target.api.find(self._submission(batch))
                await self._save(name, batch, replace(batch, batch_id=found_id))
                batch = replace(batch, batch_id=found_id)
            if batch.batch_id:
                sent.append(batch)
            else:
                await self._save(name, batch, None)
        return sent

    def _target_of(self, batch: ProviderBatch) -> ProviderTarget:
        if target := self._targets.get(batch.server):
            return target
        raise UsageError(
            f"{pluralize(batch.n_requests, 'request')} of this batch are at {batch.server}; use "
            "the same server and account to collect the answers, or give the batch another name=…"
        )

    async def _plan(self, asks: Mapping[str, RunRequest]) -> tuple[list[_Part], list[str]]:
        """Build all requests, in parts of one provider batch each; the others' keys are of offline
        models, or of requests that cannot be planned, whose cases fail.

        Raises:
            UsageError: a request is too large, or cannot be sent in a batch.
        """
        parts: list[_Part] = []
        open_parts: dict[tuple[str, str], _Part] = {}
        offline: list[str] = []
        self._refusals = {}
        async for key, active in self._prepared(asks):
            if isinstance(active, NbagentError):
                self._refusals[key] = active
                offline.append(key)
                continue
            chat_request, wire = await first_wire_request(active)
            target = self._target_for(active, chat_request)
            if target is None:
                offline.append(key)
                continue
            size = len(wire.body) + _LINE_BYTES
            _refuse_too_large(asks[key], size, target)
            group = target.server, target.path
            part = open_parts.get(group)
            if part is None or not part.has_room(size):
                part = open_parts[group] = _Part(target)
                parts.append(part)
            part.lines[key] = wire.body
            part.n_bytes += size
        return parts, offline

    async def _prepared(
        self, asks: Mapping[str, RunRequest]
    ) -> AsyncGenerator[tuple[str, ActiveRun | NbagentError]]:
        """Yield each request as a run that is not started, or the error for which it cannot be."""

        def planned(ask: RunRequest) -> ActiveRun | NbagentError:
            try:
                return Local._prepare(self, replace(ask, dry_run=True))
            except StoreError:
                raise
            except NbagentError as error:
                return error

        def prepare(some: Sequence[tuple[str, RunRequest]]) -> list[Any]:
            return [(key, planned(ask)) for key, ask in some]

        listed = [*asks.items()]
        for start in range(0, len(listed), _PREPARED_TOGETHER):
            # In a thread: it takes some milliseconds each, in which the engine serves other runs.
            some = listed[start : start + _PREPARED_TOGETHER]
            for key, active in await asyncio.to_thread(prepare, some):
                yield key, active
                await asyncio.sleep(0)

    async def _send_to_end(self, name: str, part: _Part) -> ProviderBatch:
        """Send one part. If the wait is left meanwhile, it is sent to its end, and its id kept.

        A creation that is cut may have been carried out and not be listed yet.
        """
        task = asyncio.ensure_future(self._send(name, part))
        running = _sending.setdefault((self._store, name), set())
        running.add(task)
        task.add_done_callback(running.discard)
        # Read, so that asyncio does not report it: the next wait looks for what was sent.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _send(self, name: str, part: _Part) -> ProviderBatch:
        """Send one part as a provider batch. It is noted before and after."""
        target = part.target
        self._targets.setdefault(target.server, target)
        batch = ProviderBatch(
            mark=new_id().replace("-", "")[-12:],
            server=target.server,
            sent_at=time.time(),
            keys=tuple(part.lines),
            n_requests=len(part.lines),
        )
        await self._save(name, None, batch)
        self._say(batch, f"sending {pluralize(batch.n_requests, 'request')}")
        ids = zip(batch.custom_ids, part.lines.values(), strict=True)
        lines = [BatchLine(custom_id, body) for custom_id, body in ids]
        try:
            batch_id = await target.api.submit(self._submission(batch), lines)
        except ModelError as error:
            # A refusal: nothing was created, so that nothing need be looked for later.
            if error.status is not None and 400 <= error.status < 500:
                await self._save(name, batch, None)
            if error.status in _NO_API:
                raise ModelError(
                    f"{target.provider} has no batch API at this address, or not for this model "
                    f"({error.message}); choose another, or leave out executor='provider-batch'",
                    code="LLM_HTTP_ERROR",
                ) from None
            raise
        finally:
            part.lines.clear()
        sent = replace(batch, batch_id=batch_id)
        await self._save(name, batch, sent)
        return sent

    def _submission(self, batch: ProviderBatch) -> Submission:
        known = (other.batch_id for other in self._batches if other.mark != batch.mark)
        return Submission(
            mark=batch.mark,
            since=batch.sent_at,
            n_requests=batch.n_requests,
            known_ids=frozenset(known),
        )

    async def _save(
        self, name: str, before: ProviderBatch | None, after: ProviderBatch | None
    ) -> None:
        """Replace, add or remove a provider batch, here and in the store."""
        mark = before.mark if before else ""
        if before is None or not any(batch.mark == mark for batch in self._batches):
            self._batches += [after] if after else []
        else:
            listed = (after if batch.mark == mark else batch for batch in self._batches)
            self._batches = [batch for batch in listed if batch is not None]
        async with self._saving:  # a later list must not be overwritten by an earlier one
            await asyncio.to_thread(save_provider_batches, self._store, name, self._batches)

    # Waiting and reading

    async def _as_they_end(
        self, name: str, batches: Sequence[ProviderBatch], by_key: Mapping[str, int]
    ) -> AsyncGenerator[ProviderBatch]:
        """Yield each provider batch when its answers are here."""
        tasks: dict[asyncio.Future[Any], ProviderBatch] = {
            asyncio.ensure_future(self._collect(name, batch, by_key)): batch for batch in batches
        }
        left: asyncio.Future[Any] = asyncio.ensure_future(self._left.wait())
        try:
            while tasks:
                done, _ = await asyncio.wait((*tasks, left), return_when=asyncio.FIRST_COMPLETED)
                if left in done:
                    raise NoMoreRuns("the wait for the provider was left")
                for task in done:
                    task.result()
                for task in done:
                    yield tasks.pop(task)
        finally:
            for task in (*tasks, left):
                task.cancel()
            await asyncio.gather(*tasks, left, return_exceptions=True)

    async def _collect(self, name: str, batch: ProviderBatch, by_key: Mapping[str, int]) -> None:
        """Wait for the end of a provider batch, and keep the answers of these cases."""
        target = self._target_of(batch)
        try:
            status = await self._wait_for_end(batch, target.api)
            if status.refusal:
                await self._save(name, batch, None)
                raise ModelError(
                    f"{target.provider} refused the batch {batch.batch_id}: {status.refusal}; "
                    "nothing was answered. Correct that, then start the same cell again",
                    code="LLM_HTTP_ERROR",
                )
            self._say(batch, "reading its answers")
            answers = await self._read(batch, target)
            missing = status.unanswered
        except ModelError as error:
            if error.status not in _GONE:
                raise
            answers, missing = {}, "gone"
        for key in batch.keys:
            if key in by_key:
                answer = answers.get(key) or BatchAnswer(
                    custom_id=key, fault=unanswered_fault(missing)
                )
                self._answers[key] = answer, batch
        self._states.pop(batch.mark, None)
        self._n_done.pop(batch.mark, None)

    async def _wait_for_end(self, batch: ProviderBatch, api: BatchApi) -> BatchStatus:
        wait_s, n_silent = FIRST_POLL_S, 0
        while True:
            try:
                status = await api.status(batch.batch_id)
            except ModelError as error:
                # The network may be away for hours: the answers stay where they are.
                if not error.retryable and error.code != "LLM_TIMEOUT":
                    raise
                self._say(batch, f"not reached ({error.message})")
            else:
                done = "" if status.done is None else f"{status.done:,} of "
                n = pluralize(batch.n_requests, "request")
                self._n_done[batch.mark] = min(status.done or 0, batch.n_requests)
                state = status.state or "unknown"
                self._say(batch, f"{state}, {done}{n}; the same call resumes it")
                if status.is_ended:
                    return status
                n_silent = 0 if status.state else n_silent + 1
                if n_silent == _MAX_SILENT:
                    raise no_state_error(batch.batch_id)
            # The random part spreads batches that were sent together.
            await asyncio.sleep(wait_s * (0.75 + 0.25 * random.random()))
            wait_s = min(wait_s * _GROWTH, MAX_POLL_S)

    async def _read(self, batch: ProviderBatch, target: ProviderTarget) -> dict[str, BatchAnswer]:
        """Read the results of an ended batch; repeat it if the connection breaks."""
        attempt = 1
        while True:
            results = _Results(batch)
            try:
                coming = target.api.answers(batch.batch_id, batch.custom_ids)
                async with aclosing(coming) as answers:
                    async for answer in answers:
                        results.add(answer)
                        if not results.n_lines % _READ_TOGETHER:
                            await asyncio.sleep(0)
                break
            except ModelError as error:
                can_repeat = error.retryable or error.code == "LLM_TIMEOUT"
                if not can_repeat or attempt == _READ_ATTEMPTS:
                    raise
            await asyncio.sleep(FIRST_POLL_S * 2**attempt)
            attempt += 1
        if problems := results.problems():
            self._problems[batch.mark] = f"{target.provider} batch {batch.batch_id}: {problems}"
        return results.answers

    # Runs

    def _prepare(self, ask: RunRequest) -> ActiveRun:
        """Prepare a run that gets its answer from here instead of from the server."""
        assert ask.case is not None
        case = _case_name(ask.case)
        key, earlier_turn = self._keys[case], self._given.get(case)
        if error := self._refusals.get(key):
            raise error
        if key not in self._answers:
            return super()._prepare(ask)  # of an offline model
        if earlier_turn is not None:  # resumed, the model would be asked to continue its answer
            ask = replace(ask, kind="fork", fork_turn=earlier_turn.id)
        active = super()._prepare(ask)
        answer, batch = self._answers[key]
        target = self._target_of(batch)
        share = f"{target.offer.price_factor:.0%} of the price"
        source = f"Answered in the batch {batch.batch_id} at {target.provider}, at {share}."
        response = earlier_turn and earlier_turn.response
        is_paid = response is not None and response.usage is not None
        client = AnsweringClient(active.plan.client, answer, source, is_paid=is_paid)
        active.plan.client = cast("Any", client)
        set_batch_price(active, target)
        return active

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        record = await super().run(ask, on_event)
        assert ask.case is not None
        if record.stop_reason != "stopped":
            self._answers.pop(self._keys[_case_name(ask.case)], None)
        return record

    async def _forget_collected(self, name: str, batch: ProviderBatch) -> None:
        """Forget the cases of a provider batch if runs have taken all of its answers."""
        if set(batch.keys) <= set(self._keys.values()) - self._answers.keys():
            await self._save(name, batch, replace(batch, keys=()))

    # Ending

    def stop(self, *, after_turn: bool = False) -> None:
        super().stop(after_turn=after_turn)
        if not after_turn:
            self.leave()

    def leave(self) -> None:
        """End the wait. The provider's batch goes on, and the same call collects its answers."""
        self._left.set()

    async def close(self) -> None:
        await super().close()
        self._left = asyncio.Event()
        self._answers, self._keys, self._given = {}, {}, {}

    async def cancel(self, name: str) -> int:
        """Cancel the provider batches of a batch that have not ended; return their number."""
        n_cancelled = 0
        for batch in await asyncio.to_thread(provider_batches_of, self._store, name):
            if batch.batch_id and batch.keys:
                api = self._target_of(batch).api
                if not (await api.status(batch.batch_id)).is_ended:
                    await api.cancel(batch.batch_id)
                    n_cancelled += 1
        return n_cancelled

    # For the person

    @property
    def n_arriving(self) -> int:
        """Requests that are done at the provider, and whose answers are not here yet."""
        return sum(self._n_done.values())

    def notes(self) -> tuple[str, ...]:
        """Return the states of the provider batches at work, and faults in their results."""
        in_memory = (_IN_MEMORY,) if self._states and self._store.path is None else ()
        return (*self._states.values(), *self._problems.values(), *in_memory)

    def _say(self, batch: ProviderBatch, text: str) -> None:
        label = f"{batch.server.partition(':')[0]} batch {batch.batch_id}".rstrip()
        self._states[batch.mark] = f"{label}: {text}"
        self._on_change()

    def _say_where_they_are(self, name: str) -> None:
        """Say what happens to the provider batches whose end was not awaited."""
        self._n_done = {}
        for batch in self._batches:
            if batch.mark in self._states:
                state = "it goes on there" if batch.batch_id else "it is being sent"
                text = "the same call collects its answers, batch.cancel() cancels it"
                self._say(batch, f"{state}; {text}")

    async def _unless_left(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work, unless the wait is left before it is done."""
        task = asyncio.ensure_future(work)
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise NoMoreRuns("the wait for the provider was left")
            return task.result()
        finally:
            task.cancel()
            left.cancel()
            await asyncio.gather(task, left, return_exceptions=True)


class _Results:
    """The answers of one provider batch by key of their case, and what is wrong with them."""

    def __init__(self, batch: ProviderBatch) -> None:
        self._keys = dict(zip(batch.custom_ids, batch.keys, strict=True))
        self.answers: dict[str, BatchAnswer] = {}
        self._faults: Counter[str] = Counter()
        self.n_lines = 0

    def add(self, answer: BatchAnswer) -> None:
        """Add an answer. The first of several counts, but an answer more than an error."""
        self.n_lines += 1
        key = self._keys.get(answer.custom_id)
        if key is None:
            self._faults["of no request" if answer.custom_id else "not readable"] += 1
            return
        before = self.answers.get(key)
        if before is not None:
            self._faults["repeated"] += 1
        if before is None or (before.fault is not None and answer.fault is None):
            self.answers[key] = answer

    def problems(self) -> str:
        """Describe the faults; empty if there is none."""
        lost = len(self._keys) - len(self.answers)
        faults = {**self._faults, **({"missing": lost} if lost else {})}
        listed = ", ".join(f"{n:,} {fault}" for fault, n in faults.items())
        return listed and f"results {listed}"


def _was_cut(run: RunRecord) -> bool:
    """True if a run was stopped or killed while it had its one answer, or before."""
    is_killed = run.error is not None and run.error.code == "ENGINE_INTERRUPTED"
    last = run.turns[-1] if run.turns else None
    needs_another = last is not None and last.response is not None and last.phase_after == "Running"
    return (is_killed or run.stop_reason == "stopped") and not needs_another


def _case_name(case: Case) -> _CaseName:
    return case.row_key, tuple(case.variant.items()), case.attempt


def _refuse_too_large(ask: RunRequest, size: int, target: ProviderTarget) -> None:
    if size > target.api.max_bytes:
        row = ask.case.row_key if ask.case else ""
        raise UsageError(
            f"the request of row {row!r} has {size / 1e6:,.0f} MB; a batch at {target.provider} "
            f"takes at most {target.api.max_bytes / 1e6:,.0f} MB, so nothing was sent"
        )
