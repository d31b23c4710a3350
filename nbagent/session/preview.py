"""What a run would send, by the very path that a run takes; nothing is sent, kept or changed.

Plan and request are the session's and the engine's own, the body is the client's. How it looks
belongs to `notebook.dry_run`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.chat import ChatRequest, redacted
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord, turn_id
from nbagent.contracts.secrets import redact_json
from nbagent.engine import first_request
from nbagent.runtime import engine_loop, on_engine_thread
from nbagent.session.active import ActiveRun
from nbagent.session.clients import Key
from nbagent.session.frontend import frontend
from nbagent.session.prepare import Ask
from nbagent.settings import HIDDEN

if TYPE_CHECKING:
    from nbagent.providers.exchange import WireRequest

_INTERNAL = {"tools": {"__all__": {"traits"}}}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """What would be sent first, but for keys and the values of `extra_body`, which are hidden."""

    run: RunRecord
    """As it would begin: its model, session, limits, parent and notices."""
    request: ChatRequest
    """System prompt, messages, tools and parameters as the client is given them."""
    body: dict[str, Any]
    """The JSON of the request on the wire; for a model without one, the request itself."""
    body_bytes: int
    url: str | None
    """Where it would go; None for a model without a wire."""
    key: Key
    """Whether a key goes along; `missing` where the server answers only with one."""
    dropped_params: tuple[str, ...]
    """What is left out because the server refused it before."""
    stream: bool
    turn_id: str

    def __repr__(self) -> str:
        counts = f"{len(self.request.messages)} messages, {len(self.request.tools)} tools"
        return f"<DryRun {self.run.model}, {counts}, {self.body_bytes:,} bytes>"

    def __str__(self) -> str:
        return frontend().bundle(self)["text/plain"]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return frontend().bundle(self)


def dry_run(ask: Ask) -> DryRun:
    """What the run would send first; a missing key alone is no error."""
    if on_engine_thread():
        raise UsageError("an async tool cannot wait for a dry run; do it before the run")
    active = ActiveRun(ask)
    future = asyncio.run_coroutine_threadsafe(_first(active), engine_loop())
    try:
        request, wire = future.result()
    finally:
        future.cancel()
    plan, chosen = active.plan, active.prepared.chosen
    body = json_object(load_json(wire.body)) or {}
    body |= dict.fromkeys(body.keys() & chosen.extra_body.keys(), HIDDEN)
    body, url = redact_json((body, wire.url))
    return DryRun(
        run=plan.run.model_copy(update={"notices": tuple(plan.notices)}),
        request=redacted(request),
        body=body,
        body_bytes=len(wire.body),
        url=url or None,
        key=chosen.key,
        dropped_params=wire.dropped_params,
        stream=plan.stream,
        turn_id=turn_id(plan.first_index),
    )


async def _first(active: ActiveRun) -> tuple[ChatRequest, WireRequest]:
    plan = active.plan
    # With it comes the HTTP client, which offline models do without.
    from nbagent.providers.exchange import WireClient, WireRequest

    request, notices = await first_request(plan, active)
    active.look_at_tools()
    plan.notices.extend(notices)
    if isinstance(plan.client, WireClient):
        return request, plan.client.wire_request(request, stream=plan.stream)
    body = request.model_dump_json(exclude_none=True, exclude=_INTERNAL)
    return request, WireRequest("", body.encode())
