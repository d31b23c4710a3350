"""What holds for every provider that is discovered, whatever its wire looks like.

`offline:` and `local:`, whose models cannot be told what to say here, have tests of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from engine.laws import column
from servers.dialects import CHAT, DIALECTS, Called
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.providers.registry import provider_names

CANARY = "sk-canary-0123456789abcdef"
PROVIDERS = sorted({*provider_names()} - {"offline", "local"})
WIRES = {wire.model[:-2]: wire for wire in DIALECTS}


def says(provider: str, text: str, *calls: Called, slow: bool = False) -> Callable[[Visit], Reply]:
    """An answer in the events of the provider's wire, or the list of its models."""
    wire = WIRES.get(provider, CHAT)
    body = wire.stream(*wire.said(text, *calls))

    def reply(request: Visit) -> Reply:
        if request.method == "GET":
            listed = [{"id": "little", "name": "models/little"}]
            return Reply(raw=json.dumps({"data": listed, "models": listed}).encode())
        return Reply(raw=body, raw_pieces=40, between_s=30.0) if slow else Reply(raw=body)

    return reply


@nbagent.tool
def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_runs_tools_answers_and_lists_its_models(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    calls = [Called(f"c{n}", "population", {"city": it}) for n, it in enumerate(("Oslo", "Bergen"))]
    steps = [says(provider, "One moment.", *calls), says(provider, "Oslo."), says(provider, "")]
    with ModelServer(steps) as server:
        asked: dict[str, Any] = {"base_url": server.url, "key_variable": "CANARY_KEY"}
        agent = nbagent.Agent(f"{provider}:little", tools=[population], **asked)
        run = agent.run("Which is larger?").raise_for_error()
        listed = nbagent.models(provider, **asked)
    runs = run.turns[0].tool_runs
    assert [it.result and it.result.data for it in runs] == [717_710, 291_940]
    assert len({it.tool_call_id for it in runs}) == 2
    assert (run.turns[0].text, run.text, run.stop_reason) == ("One moment.", "Oslo.", "answered")
    (model,) = column(listed, "id")
    assert model.endswith("little")
    assert CANARY not in f"{agent!r} {agent.options!r} {run.record!r}"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stop_ends_a_slow_answer_at_once(provider: str) -> None:
    with ModelServer([says(provider, "many words in a row here", slow=True)]) as server:
        run = nbagent.Agent(f"{provider}:little", base_url=server.url).start("Go.")
        time.sleep(0.3)
        began = time.monotonic()
        run.stop()
        run.wait()
        took = time.monotonic() - began
    assert (run.stop_reason, took < 5) == ("stopped", True)
