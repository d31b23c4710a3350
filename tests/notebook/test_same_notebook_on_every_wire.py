"""One notebook, unchanged, with every provider: tools, parallel calls, streaming, reasoning,
an image, and a second turn that gives back what the provider needs.

`offline:` and `local:`, whose models cannot be told what to say here, have tests of their own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from textwrap import dedent
from typing import Any

import pytest
from magic_shell import MagicShell
from PIL import Image
from servers.dialects import DIALECTS, Called, delta
from servers.model_server import ModelServer, Reply

from nbagent.providers.catalogue import provider_names

CELLS = (
    """
    @nbagent.tool
    def population(city: str) -> int:
        "People living in a city."
        return {"Oslo": 717_710, "Bergen": 291_940}[city]
    """,
    """
    from PIL import Image
    picture = Image.new("RGB", (4, 4), "red")
    """,
    "%%agent --tools population --reasoning low --into first\nWhich is larger, Oslo or Bergen?",
    "%%agent --continue --into second\nAnd what is this? {{ picture }}",
)
CALLS = (("Oslo", "call_1"), ("Bergen", "call_2"))
OPAQUE = "T1BBUVVF"
"""Reasoning that only the provider can read."""
CANARY = "sk-canary-0123456789abcdef"
FIRST, SECOND = "Oslo is larger.", "A red square."


THOUGHT = "Hm, two cities."
WIRE = {dialect.name: dialect for dialect in DIALECTS}
Events = list[Any]


def chat(field: str) -> Callable[[Events], Events]:
    """Servers differ in where the reasoning is."""
    return lambda events: [delta(**{field: THOUGHT}), *events]


def responses(events: Events) -> Events:
    summary = [{"type": "summary_text", "text": THOUGHT}]
    item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": OPAQUE}
    events[-1]["response"]["output"].insert(0, item)
    shown = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": THOUGHT}
    return [shown, {"type": "response.output_item.done", "output_index": 0, "item": item}, *events]


def anthropic(events: Events) -> Events:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    said = {"type": "thinking_delta", "thinking": THOUGHT}
    signed = {"type": "signature_delta", "signature": OPAQUE}
    return [
        events[0],
        {"type": "content_block_start", "index": 0, "content_block": block},
        *[{"type": "content_block_delta", "index": 0, "delta": one} for one in (said, signed)],
        {"type": "content_block_stop", "index": 0},
        *events[1:],
    ]


def google(events: Events) -> Events:
    events[0]["candidates"][0]["content"]["parts"][0]["thoughtSignature"] = OPAQUE
    return thinks("google")(events)


def thinks(wire: str) -> Callable[[Events], Events]:
    """As the wire's own dialect says it."""
    return lambda events: [WIRE[wire].reasoning(THOUGHT), *events]


IN_CONTENT = chat("reasoning_content")


@dataclass(frozen=True)
class Told:
    """Streams of a wire's server: first the calls, then texts; and the data it needs back."""

    model: str
    wire: str = "chat"
    think: Callable[[Events], Events] = IN_CONTENT
    """Puts reasoning before the calls."""
    back: str = ""
    """Stands in every later request, as JSON; empty: nothing has to go back."""
    image: str = "data:image/png;base64,"
    """Stands before the image's data in the request."""
    home: str = ""

    def replies(self) -> list[Reply]:
        """The calls, and the answers to both cells."""
        wire = WIRE[self.wire]
        calls = [Called(id, "population", {"city": city}) for city, id in CALLS]
        answers = [self.think(wire.said("", *calls)), wire.said(FIRST), wire.said(SECOND)]
        return [Reply(raw=wire.stream(*it), raw_type=wire.kind, raw_pieces=50) for it in answers]


QUOTED, SEALED = f'"{THOUGHT}"', f'"{OPAQUE}"'
WIRES = (
    Told("azure:m", "azure"),
    Told("deepseek:m", back=QUOTED),
    Told("openrouter:m", "chat", chat("reasoning"), QUOTED),
    Told("vllm:m", "chat", chat("reasoning"), QUOTED),
    Told("openai-responses:m", "responses", responses, SEALED),
    Told("anthropic:claude-sonnet-5", "anthropic", anthropic, SEALED, '"data":"', "/v1"),
    Told("google:gemini-3.8-flash", "google", google, SEALED, '"data":"', "/v1"),
    Told("ollama:m", "ollama", thinks("ollama"), QUOTED, '["', "/"),
)
OTHERS = {*provider_names()} - {"offline", "local"} - {told.model.split(":")[0] for told in WIRES}


@pytest.mark.parametrize(
    "told",
    [*WIRES, *(Told(f"{name}:m") for name in sorted(OTHERS))],
    ids=lambda told: told.model.partition(":")[0],
)
def test_the_same_notebook_runs_unchanged_with_every_provider(
    told: Told, shell: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("NBAGENT_KEY_VARIABLE", "CANARY_KEY")
    little = {"id": "little", "name": "models/little"}
    with ModelServer(told.replies(), models=[little]) as server:
        url = server.url.removesuffix("/v1") + told.home if told.home else server.url
        monkeypatch.setenv("NBAGENT_MODEL", told.model)
        monkeypatch.setenv("NBAGENT_BASE_URL", url.rstrip("/"))
        for cell in CELLS:
            shell.cell(dedent(cell).strip("\n"))
        listed = shell.said(f"%agent models {told.model.partition(':')[0]}")
    assert listed.endswith("little\n")
    assert all(CANARY in repr(request.headers) for request in server.requests)
    first, second = shell.user_ns["first"], shell.user_ns["second"]
    assert (first.text, second.text) == (FIRST, SECOND)
    assert CANARY not in f"{first.record!r} {second.record!r} {server.bodies}"
    assert first.turns[0].response.reasoning == THOUGHT
    runs = first.turns[0].tool_runs
    assert [run.args for run in runs] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert [run.result.data for run in runs] == [717_710, 291_940]
    assert len(server.bodies) == 3
    texts = [json.dumps(body, separators=(",", ":"), ensure_ascii=False) for body in server.bodies]
    assert all("717710" in text and "291940" in text for text in texts[1:])
    if told.back:
        assert all(told.back in text for text in texts[1:]), "what the provider needs back"
    assert told.image + _start_of_png() in texts[2]
    assert not second.turns[0].response.meta.dropped_params


def _start_of_png() -> str:
    made = BytesIO()
    Image.new("RGB", (4, 4), "red").save(made, "PNG")
    return base64.b64encode(made.getvalue()[:15]).decode()
