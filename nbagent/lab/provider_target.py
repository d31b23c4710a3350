"""The server that a provider batch is sent to, and what such a batch cannot do.

Everything that cannot go is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat_doors import ChatDoors
from nbagent.contracts.deltas import AnswerEnd, Delta
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.messages import FINAL_ANSWER
from nbagent.contracts.model import ChatRequest, ClientNotice, Usage
from nbagent.contracts.ports import ChatClient, Cost
from nbagent.providers.batches.batch_api import BatchAnswer, BatchApi
from nbagent.providers.batches.offer import BatchOffer
from nbagent.providers.catalogue import find_provider
from nbagent.providers.client import WireClient
from nbagent.providers.server_row import Server
from nbagent.providers.servers import SERVERS
from nbagent.session.active_run import ActiveRun
from nbagent.session.models import resolve_settings
from nbagent.session.request import RunRequest
from nbagent.settings.sources import current_settings

_NO_BATCH = "or leave out executor='provider-batch'"


@dataclass(frozen=True, slots=True)
class ProviderTarget:
    """A server with a batch API, for one model and account."""

    provider: str
    server: str
    """Provider, model, address and account, by which a stored provider batch is known."""
    client: WireClient
    offer: BatchOffer
    path: str
    """Path of the requests; all of one provider batch have the same."""
    api: BatchApi


def refuse_options(request: RunRequest) -> None:
    """Raise UsageError for options that a provider batch cannot keep."""
    options = request.options
    settings = resolve_settings(options, current_settings())
    refusals = {
        "workflow": options.workflow or options.document,
        "stream": options.explicit.get("stream"),
        "on_approval": request.on_approval,
        "cassette": settings.cassette,
        "cache": settings.cache not in (None, "off"),
    }
    for name, is_set in refusals.items():
        if is_set:
            raise UsageError(
                f"{name} does not go with a provider batch, which answers one request for each "
                f"case, hours later; leave out {name}, {_NO_BATCH}"
            )


def target_of(active: ActiveRun, chat_request: ChatRequest) -> ProviderTarget | None:
    """Return the server of a prepared run; None for an offline model, which is asked here.

    Raises:
        UsageError: the server has no batch API.
    """
    resolved, client = active.prepared.resolved, active.plan.client
    if resolved.provider == "offline":
        return None
    row = find_provider(resolved.provider)
    offer = row.batches_at(resolved.base_url) if isinstance(row, Server) else None
    if offer is None or not isinstance(client, WireClient):
        others = ", ".join(row.name for row in SERVERS if row.batches is not None)
        raise UsageError(
            f"nbagent knows no batch API of {resolved.provider} at {resolved.base_url}; choose a "
            f"model of {others}, {_NO_BATCH}"
        )
    settings = resolve_settings(active.ask.options, current_settings())
    account = sha_of(
        [
            *(settings.organization_id, settings.project_id),
            *(settings.key_variable, sorted((settings.headers or {}).items())),
        ]
    )
    server = f"{resolved.model_id} at {resolved.base_url}, account {account[:8]}"
    path, _ = client.endpoint(chat_request)
    api = offer.open(client, chat_request)
    return ProviderTarget(resolved.provider, server, client, offer, path, api)


def refuse_tools(chat_request: ChatRequest) -> None:
    """Raise UsageError for a request with tools: their results would need further requests."""
    names = [tool.name for tool in chat_request.tools]
    if FINAL_ANSWER in names:
        raise UsageError(
            "this model gives an answer of the type output=… by a tool, and tools do not go with a "
            f"provider batch; ask for JSON in the prompt, {_NO_BATCH}"
        )
    if names:
        raise UsageError(
            f"tools do not go with a provider batch ({', '.join(names[:5])}): it answers one "
            f"request for each case; pass tools='none', {_NO_BATCH}"
        )


def set_batch_price(active: ActiveRun, target: ProviderTarget) -> None:
    """Price the run's answer as one of a batch."""
    factor, price = target.offer.price_factor, active.plan.price

    def batch_price(usage: Usage, model: str) -> Cost | None:
        cost = price(usage, model)
        return cost and Cost(
            input_usd=cost.input_usd * factor,
            cached_usd=cost.cached_usd * factor,
            output_usd=cost.output_usd * factor,
            saved_usd=cost.saved_usd * factor,
        )

    active.plan.price = batch_price


class AnsweringClient(ChatDoors):
    """Client of one run that gives the answer from a provider batch, and no further one."""

    def __init__(
        self, inner: ChatClient, answer: BatchAnswer, source: str, *, is_paid: bool
    ) -> None:
        """Take the answer.

        Args:
            source: sentence that says where it comes from.
            is_paid: True if a run that was cut had it, and counts its cost.
        """
        self._inner: Any = inner
        self._answers, self._source, self._is_paid = [answer], source, is_paid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Yield the answer. Raises ModelError if it is an error, or if there was one already."""
        if not self._answers:
            raise ModelError(
                "a provider batch answers one request, and this run needs another; "
                "batch.resume() sends it in a new provider batch",
                code="LLM_BAD_RESPONSE",
            )
        answer = self._answers.pop()
        client: WireClient = self._inner
        deltas_coming = client.read_answer(
            request, answer.body, fault=answer.fault, request_id=answer.request_id
        )
        yield ClientNotice("note", self._source)
        async with aclosing(deltas_coming) as deltas:
            async for delta in deltas:
                if self._is_paid and isinstance(delta, AnswerEnd):
                    meta = delta.meta.model_copy(update={"source": "replay"})
                    delta = replace(delta, meta=meta)
                yield delta
