"""Requests of the Gemini wire by the official SDK's own types, and what two turns send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel, ConfigDict, ValidationError
from wires.chat_requests import EMPTY, RED, user
from wires.google_cases import WIRE, chunk, sse
from wires.google_requests import EVERYTHING, answered, label, text
from wires.harness import JSON, RequestCase, World, answer_case

from nbagent.contracts.chat import ChatResponse, Message, TextPart


class Body(BaseModel):
    """The body of `generateContent`; the SDK's types refuse extra keys themselves."""

    model_config = ConfigDict(extra="forbid")
    contents: list[types.Content]
    systemInstruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    toolConfig: types.ToolConfig | None = None
    generationConfig: types.GenerationConfig | None = None
    safetySettings: list[types.SafetySetting] | None = None
    cachedContent: str | None = None
    continuationToken: str | None = None


def check(body: Any) -> Body:
    """Raise ValidationError for a body that the SDK would not write."""
    return Body.model_validate_json(json.dumps(body))


@pytest.mark.parametrize("case", WIRE.requests, ids=lambda case: case.id)
def test_requests_are_of_the_official_types(world: World, case: RequestCase) -> None:
    server = WIRE.servers.get(case.server, case.server)
    check(world.wire_request(WIRE, case.request, server, **case.config)[1])


WRONG: dict[str, JSON] = {
    "a field of another wire": {"contents": [], "messages": []},
    "a key too many in a part": {"contents": [{"parts": [{"text": "x", "type": "text"}]}]},
    "arguments as a text": {"contents": [{"parts": [{"functionCall": {"args": "{}"}}]}]},
    "a result that is no object": {
        "contents": [{"parts": [{"functionResponse": {"name": "b", "response": "x"}}]}]
    },
    "a signature that is no base64": {
        "contents": [{"parts": [{"text": "x", "thoughtSignature": "skip it"}]}]
    },
    "a text within a result's parts": {
        "contents": [{"parts": [{"functionResponse": {"parts": [{"text": "x"}]}}]}]
    },
    "tools without a list of declarations": {"contents": [], "tools": [{"name": "b"}]},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_wrong_requests_are_refused_by_the_official_types(body: JSON) -> None:
    with pytest.raises(ValidationError):
        check(body)


def test_two_turns_with_reasoning_and_an_image_send_this(world: World) -> None:
    call = {"id": "fc1", "name": "fs__read", "args": {"at": "a"}}
    signed = {"functionCall": call, "thoughtSignature": "QUJD"}
    case = answer_case(
        "the first turn",
        stream=sse(chunk(text("Hm", thought=True), text("I look."), signed, end="STOP")),
        request=EVERYTHING,
    )
    _, found = world.answer(WIRE, case, stream=True)
    assert isinstance(found, ChatResponse)
    messages = (
        user(TextPart(text="Look."), RED),
        found.message,
        answered("fc1", RED, said='{"ok":true,"data":1}'),
        Message.of("user", "And?"),
    )
    request = EVERYTHING.model_copy(update={"messages": messages})
    _, body = world.wire_request(WIRE, request)
    check(body)
    red = {"inlineData": {"mimeType": "image/png", "data": "UkVE"}}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Look."}, red]},
        {"role": "model", "parts": [{"text": "Hm", "thought": True}, {"text": "I look."}, signed]},
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "fs__read",
                        "response": {"output": '{"ok":true,"data":1}'},
                        "id": "fc1",
                    }
                }
            ],
        },
        {"role": "user", "parts": [label("fc1"), red]},
        {"role": "user", "parts": [{"text": "And?"}]},
    ]
    assert body | {"contents": ...} == {
        "contents": ...,
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "fs__read", "description": "Read.", "parametersJsonSchema": EMPTY},
                    {"name": "b", "parametersJsonSchema": EMPTY},
                ]
            }
        ],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["fs__read"]}
        },
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 7,
            "stopSequences": ["X"],
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
            "responseMimeType": "application/json",
            "responseJsonSchema": EMPTY,
        },
    }
