"""One notebook, unchanged, on every wire: tools, parallel calls, streaming, reasoning, an image,
and a second turn that gives back what the provider needs."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pytest
from magic_shell import MagicShell
from PIL import Image
from servers.model_server import ModelServer, Reply

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
"""What only the provider can read."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What a wire's server streams: first the calls, then texts; and what has to come back."""

    model: str
    calls: bytes
    back: str
    """Stands in every later request, as JSON; empty: nothing has to go back."""
    image: str
    """Stands before the image's data in the request."""
    kind: str = "text/event-stream"
    home: str = ""

    def text(self, said: str) -> bytes:
        """The stream of an answer that is text alone."""
        return TEXTS[self.model.partition(":")[0]](said)


def sse(*events: Any, end: bytes = b"") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


DONE = b"data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: Any) -> Json:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def chat(field: str) -> bytes:
    calls = [
        {
            "index": n,
            "id": id,
            "type": "function",
            "function": {"name": "population", "arguments": json.dumps({"city": city})},
        }
        for n, (city, id) in enumerate(CALLS)
    ]
    parts = [delta(tool_calls=[call]) for call in calls]
    return sse(delta(**{field: "Hm, two cities."}), *parts, delta("tool_calls"), end=DONE)


def chat_text(said: str) -> bytes:
    return sse(*[delta(content=word) for word in said.partition(" ")], delta("stop"), end=DONE)


def responses() -> bytes:
    summary = [{"type": "summary_text", "text": "Hm, two cities."}]
    thought = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": OPAQUE}
    items: list[Json] = [thought]
    for city, id in CALLS:
        named = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "population"}
        items.append({**named, "arguments": json.dumps({"city": city})})
    shown = {"type": "response.reasoning_summary_text.delta", "output_index": 0}
    events: list[Json] = [{**shown, "delta": "Hm, two cities."}]
    for n, item in enumerate(items):
        events.append({"type": "response.output_item.done", "output_index": n, "item": item})
    ended = {"id": "resp_1", "status": "completed", "output": items}
    return sse(*events, {"type": "response.completed", "response": ended})


def responses_text(said: str) -> bytes:
    part = {"type": "output_text", "text": said, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    ended = {"id": "resp_2", "status": "completed", "output": [item]}
    shown = {"type": "response.output_text.delta", "output_index": 0, "delta": said}
    return sse(shown, {"type": "response.completed", "response": ended})


def message(stop: str, *blocks: tuple[Json, *tuple[Json, ...]]) -> bytes:
    usage = {"input_tokens": 9, "output_tokens": 1}
    head = {"id": "msg_1", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events: list[Json] = [{"type": "message_start", "message": head}]
    for n, (block, *pieces) in enumerate(blocks):
        at = {"index": n}
        events.append({"type": "content_block_start", **at, "content_block": block})
        events += [{"type": "content_block_delta", **at, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", **at})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}})
    return sse(*events, {"type": "message_stop"})


def anthropic() -> bytes:
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    said = {"type": "thinking_delta", "thinking": "Hm, two cities."}
    signed = {"type": "signature_delta", "signature": OPAQUE}
    calls: list[tuple[Json, Json]] = []
    for city, id in CALLS:
        block = {"type": "tool_use", "id": id, "name": "population", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": json.dumps({"city": city})}
        calls.append((block, piece))
    return message("tool_use", (thought, said, signed), *calls)


def anthropic_text(said: str) -> bytes:
    return message("end_turn", ({"type": "text", "text": ""}, {"type": "text_delta", "text": said}))


def candidate(*parts: Json, finish: str = "") -> Json:
    found: Json = {"content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [{**found, "finishReason": finish} if finish else found]}


def google() -> bytes:
    parts: list[Json] = [
        {"functionCall": {"name": "population", "args": {"city": city}}} for city, _ in CALLS
    ]
    parts[0]["thoughtSignature"] = OPAQUE
    thought = {"text": "Hm, two cities.", "thought": True}
    return sse(candidate(thought), candidate(*parts, finish="STOP"))


def google_text(said: str) -> bytes:
    return sse(candidate({"text": said}, finish="STOP"))


def line(**fields: Any) -> Json:
    return {"model": "m", "message": {"role": "assistant", "content": "", **fields}, "done": False}


END = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 3}


def ollama() -> bytes:
    calls = [
        {"id": id, "function": {"name": "population", "arguments": {"city": city}}}
        for city, id in CALLS
    ]
    return lines(line(thinking="Hm, two cities."), line(tool_calls=calls), {**line(), **END})


def ollama_text(said: str) -> bytes:
    return lines(line(content=said), {**line(), **END})


TEXTS = {
    **dict.fromkeys(("openai", "azure", "deepseek", "openrouter", "vllm"), chat_text),
    "openai-responses": responses_text,
    "anthropic": anthropic_text,
    "google": google_text,
    "ollama": ollama_text,
}
NDJSON = "application/x-ndjson"
THOUGHT = '"Hm, two cities."'
WIRES = (
    Told("openai:m", chat("reasoning_content"), "", "data:image/png;base64,"),
    Told("azure:m", chat("reasoning_content"), "", "data:image/png;base64,"),
    Told("deepseek:m", chat("reasoning_content"), THOUGHT, "data:image/png;base64,"),
    Told("openrouter:m", chat("reasoning"), THOUGHT, "data:image/png;base64,"),
    Told("vllm:m", chat("reasoning"), THOUGHT, "data:image/png;base64,"),
    Told("openai-responses:m", responses(), f'"{OPAQUE}"', "data:image/png;base64,"),
    Told("anthropic:claude-sonnet-5", anthropic(), f'"{OPAQUE}"', '"data":"', home="/v1"),
    Told("google:gemini-3.8-flash", google(), f'"{OPAQUE}"', '"data":"', home="/v1"),
    Told("ollama:m", ollama(), THOUGHT, '["', kind=NDJSON, home="/"),
)


@pytest.fixture(params=WIRES, ids=lambda told: told.model.partition(":")[0])
def told(request: pytest.FixtureRequest) -> Told:
    return request.param


def test_the_same_notebook_runs_unchanged_on_every_wire(
    told: Told, shell: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = (told.calls, told.text("Oslo is larger."), told.text("A red square."))
    script = [Reply(raw=answer, raw_type=told.kind, raw_pieces=50) for answer in answers]
    with ModelServer(script) as server:
        url = server.url.removesuffix("/v1") + told.home if told.home else server.url
        monkeypatch.setenv("NBAGENT_MODEL", told.model)
        monkeypatch.setenv("NBAGENT_BASE_URL", url.rstrip("/"))
        for cell in CELLS:
            shell.cell(*_dedented(cell))
    first, second = shell.user_ns["first"], shell.user_ns["second"]
    assert (first.text, second.text) == ("Oslo is larger.", "A red square.")
    assert first.turns[0].response.reasoning == "Hm, two cities."
    runs = first.turns[0].tool_runs
    assert [run.args for run in runs] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert [run.result.data for run in runs] == [717_710, 291_940]
    bodies = [request.body for request in server.requests]
    assert len(bodies) == 3
    texts = [json.dumps(body, separators=(",", ":"), ensure_ascii=False) for body in bodies]
    assert all("717710" in text and "291940" in text for text in texts[1:])
    if told.back:
        assert all(told.back in text for text in texts[1:]), "what the provider needs back"
    assert told.image + _start_of_png() in texts[2]
    assert not second.turns[0].response.meta.dropped_params


def _dedented(cell: str) -> list[str]:
    found = cell.strip("\n").splitlines()
    indent = len(found[0]) - len(found[0].lstrip())
    return [row[indent:] for row in found]


def _start_of_png() -> str:
    made = BytesIO()
    Image.new("RGB", (4, 4), "red").save(made, "PNG")
    return base64.b64encode(made.getvalue()[:15]).decode()
