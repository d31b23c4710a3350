"""`response.raw` keeps a server's further fields on every wire; none of them is sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wires import anthropic_cases, chat_cases, google_cases, ollama_cases, responses_cases
from wires.harness import JSON, KEY, AnswerCase, WireSetup, World, ask, asked_next

from nbagent.contracts.model import ChatResponse

MARK = "vendor-mark"
HUGE = "x" * 70_000
FURTHER = {"note_of_server": f"{MARK} {KEY}", "huge_field": HUGE}


def sse(*events: JSON, named: bool = False) -> bytes:
    lines = (
        (f"event: {it['type']}\n" if named else "") + f"data: {json.dumps(it)}" for it in events
    )
    return ("\n\n".join(lines) + "\n\n").encode()


def chat() -> tuple[bytes, bytes]:
    head: JSON = {"id": MARK, "system_fingerprint": "fp_1", "model": "m", **FURTHER}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, "queue_time": 0.5}
    whole = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    first = {"index": 0, "delta": {"content": "H"}}
    second = {"index": 0, "delta": {"content": "i"}, "finish_reason": "stop"}
    pieces = sse(
        {**head, "choices": [first]},
        {**head, "choices": [second]},
        {**head, "choices": [], "usage": usage},
    )
    body = {**head, "choices": [whole], "usage": usage}
    return json.dumps(body).encode(), pieces + b"data: [DONE]\n\n"


def anthropic() -> tuple[bytes, bytes]:
    usage = {"input_tokens": 3, "output_tokens": 1, "service_tier": "standard"}
    head: JSON = {"id": MARK, "type": "message", "role": "assistant", "model": "m", **FURTHER}
    head |= {"usage": usage, "system_fingerprint": "fp_1"}
    text = {"type": "text", "text": "Hi"}
    body = {**head, "content": [text], "stop_reason": "end_turn", "stop_sequence": None}
    pieces = sse(
        {"type": "message_start", "message": {**head, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
        named=True,
    )
    return json.dumps(body).encode(), pieces


def google() -> tuple[bytes, bytes]:
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 1, "trafficType": "ON_DEMAND"}
    candidate = {"content": {"parts": [{"text": "Hi"}], "role": "model"}, "finishReason": "STOP"}
    body: JSON = {"id": MARK, "system_fingerprint": "fp_1", "modelVersion": "m", **FURTHER}
    body |= {"candidates": [candidate], "usageMetadata": usage}
    return json.dumps(body).encode(), sse(body)


def ollama() -> tuple[bytes, bytes]:
    head: JSON = {"id": MARK, "system_fingerprint": "fp_1", "model": "m", **FURTHER}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 1}
    message = {"role": "assistant", "content": "Hi"}
    body = json.dumps({**head, "message": message, **end}).encode()
    return body, body + b"\n"


def responses() -> tuple[bytes, bytes]:
    part = {"type": "output_text", "text": "Hi"}
    item = {"type": "message", "id": "i1", "status": "completed", "content": [part]}
    body: JSON = {"id": MARK, "system_fingerprint": "fp_1", "model": "m", "status": "completed"}
    body |= {"output": [item], "instructions": MARK, **FURTHER}
    body |= {"usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}}
    return json.dumps(body).encode(), sse(
        {"type": "response.completed", "response": body}, named=True
    )


WIRES: dict[str, tuple[WireSetup, tuple[bytes, bytes]]] = {
    "chat": (chat_cases.WIRE, chat()),
    "anthropic": (anthropic_cases.WIRE, anthropic()),
    "google": (google_cases.WIRE, google()),
    "ollama": (ollama_cases.WIRE, ollama()),
    "responses": (responses_cases.WIRE, responses()),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", WIRES)
def test_raw_has_id_and_fingerprint_within_its_limit_and_no_secret(
    world: World, name: str, stream: bool
) -> None:
    wire, (body, pieces) = WIRES[name]
    case = AnswerCase(name, body=body, stream=pieces)
    _, response = world.answer(wire, case, stream=stream)
    assert isinstance(response, ChatResponse), response
    raw: dict[str, Any] = response.raw or {}
    assert (raw["id"], raw["system_fingerprint"], response.message.text) == (MARK, "fp_1", "Hi")
    assert raw["note_of_server"].startswith(MARK)
    assert KEY not in response.model_dump_json()
    assert raw["omitted"] == ["huge_field"]
    assert len(json.dumps(raw)) < 64_000
    assert "instructions" not in raw
    _, sent = world.wire_request(wire, asked_next(ask(), response))
    assert MARK not in json.dumps(sent)
