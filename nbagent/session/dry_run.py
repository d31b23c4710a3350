"""Dry run: prepares a run up to its first request. Nothing is sent, stored or changed.

It takes the same path as a real run, so that it shows the same request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import redacted
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import turn_id
from nbagent.contracts.secrets import redact_json
from nbagent.engine import first_request
from nbagent.providers.catalogue import find_provider
from nbagent.runtime import engine_loop, on_engine_thread
from nbagent.session.active_run import ActiveRun
from nbagent.session.frontend import Frontend
from nbagent.session.request import RunRequest
from nbagent.settings.options import HIDDEN

if TYPE_CHECKING:
    from nbagent.providers.client import WireRequest
    from nbagent.view.dry_run import DryRun

_INTERNAL = {"tools": {"__all__": {"traits"}}}


def plan_first_request(
    ask: RunRequest, *, store: RunStore | None = None, here: Frontend | None = None
) -> tuple[ActiveRun, ChatRequest, WireRequest]:
    """Prepare a run without starting it; return its first request, also as on the wire."""
    if on_engine_thread():
        raise UsageError("an async tool cannot wait for a dry run; do it before the run")
    active = ActiveRun(ask, store=store, here=here)
    future = asyncio.run_coroutine_threadsafe(first_wire_request(active), engine_loop())
    try:
        return active, *future.result()
    finally:
        future.cancel()


def dry_run(ask: RunRequest) -> DryRun:
    """Build the first request of the run. A missing key is no error; all others are raised."""
    active, request, wire = plan_first_request(ask)
    # Late: it imports all of the drawing code.
    from nbagent.view.dry_run import DryRun

    plan, chosen = active.plan, active.prepared.resolved
    body = json_object(load_json(wire.body)) or {}
    # Extra fields may hold a secret that nobody knows as one: only their names are shown.
    body |= dict.fromkeys(body.keys() & chosen.extra_body.keys(), HIDDEN)
    body, url = redact_json((body, wire.url))
    return DryRun(
        run=plan.run.model_copy(update={"notices": tuple(plan.notices)}),
        request=redacted(request),
        body=body,
        body_bytes=len(wire.body),
        url=url or None,
        key=chosen.key,
        key_variables=find_provider(plan.run.model.partition(":")[0]).key_variables,
        withheld_key=chosen.withheld_key,
        dropped_params=wire.dropped_params,
        stream=plan.stream,
        turn_id=turn_id(plan.first_index),
    )


async def first_wire_request(active: ActiveRun) -> tuple[ChatRequest, WireRequest]:
    """Return the first request of a prepared run, also as on the wire. On the engine's loop."""
    plan = active.plan
    # Late: it imports the HTTP client, which offline models do not need.
    from nbagent.providers.client import WireClient, WireRequest

    request = await first_request(plan, active)
    active.warn_about_tools()
    if isinstance(plan.client, WireClient):
        return request, plan.client.wire_request(request, stream=plan.stream)
    body = request.model_dump_json(exclude_none=True, exclude=_INTERNAL)
    return request, WireRequest("", body.encode())
