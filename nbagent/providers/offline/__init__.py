"""The `offline` provider: models without network, key or server, and `nbagent.offline`.

`offline:demo` follows visible rules (`demo`); `script([...])` plays what it was given
(`scripted`). This module only joins them to the client's interface.
"""

from __future__ import annotations

import os
from dataclasses import replace

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.chat import ChatRequest, ModelInfo, ProviderConfig
from nbagent.contracts.errors import ModelError
from nbagent.providers.offline.demo import decide
from nbagent.providers.offline.scripted import (
    Script,
    Step,
    call,
    calls,
    cut,
    delay,
    error,
    reasoning,
    replay,
    script,
    scripts,
    step,
    text,
)
from nbagent.providers.offline.stream import OfflineModel
from nbagent.providers.registry import Provider

__all__ = [
    "PROVIDER",
    "OfflineClient",
    "Script",
    "Step",
    "call",
    "calls",
    "cut",
    "delay",
    "error",
    "reasoning",
    "replay",
    "script",
    "step",
    "text",
]

DEMO = "demo"
DELAY_VARIABLE = "NBAGENT_OFFLINE_DELAY_MS"
"""Environment variable: whole milliseconds before each piece that `offline:demo` streams."""
_DELAY_MS = 15.0


class OfflineClient(OfflineModel):
    """Answers for `offline:` models. Keeps no state: what it says depends on the request."""

    def __init__(self, config: ProviderConfig) -> None:
        self.timeout_s = config.timeout_s

    async def list_models(self) -> list[ModelInfo]:
        """The demo and the scripts that were made in this process."""
        named = (DEMO, *scripts())
        return [ModelInfo(id=name, capabilities=("tools", "reasoning")) for name in named]

    def answer(self, request: ChatRequest) -> Step:
        """What the demo or the named script says."""
        known = scripts()
        if request.model in known:
            return known[request.model].answer(request)
        if request.model != DEMO:
            raise ModelError(
                f"there is no model offline:{request.model}; there are"
                f" {', '.join(f'offline:{name}' for name in (DEMO, *known))}, and a script is there"
                " once nbagent.offline.script([...]) has run.",
                code="LLM_HTTP_ERROR",
                status=404,
            )
        # The place in the conversation makes ids unique in it, and the same when asked again.
        said = "".join(one.text for one in request.messages if one.role == "user")
        place = sha256_hex(f"{len(request.messages)}/{said}")[:12]
        given = os.environ.get(DELAY_VARIABLE, "")
        delay_ms = float(given) if given.isdecimal() else _DELAY_MS
        return replace(decide(request), place=place, delay_ms=delay_ms)


PROVIDER = Provider(name="offline", open=OfflineClient, default_model=DEMO, needs_key=False)
