"""History and streams that a server refuses: sent another way from then on, within three tries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply, Step
from servers.player import Play
from wires import anthropic_cases
from wires.harness import World, ask

import nbagent
from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import ProviderConfig, ToolSpec
from nbagent.providers.catalogue import find_provider
from nbagent.view.terminal import run_text

ANTHROPIC = anthropic_cases.WIRE
JSON = dict[str, Any]
THOUGHT = "I look first."
ANSWER = Reply(text="Let me look.", reasoning=THOUGHT, calls=[("look", {})])
BARE = Reply(calls=[("look", {})])
"""A call without reasoning and text."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def look() -> str:
    """Look."""
    return "a tree"


def agent(server: ModelServer, model: str = "openai:m", **options: Any) -> nbagent.Agent:
    return nbagent.Agent(model, base_url=server.url, tools=[look], **options)


def answers(messages: Sequence[JSON]) -> list[JSON]:
    return [message for message in messages if message["role"] == "assistant"]


def body_of(visit: Visit) -> JSON:
    return cast("JSON", visit.body)


def unless(
    accepts: Callable[[JSON], bool], status: int, error: Any, then: Step = "A tree."
) -> Callable[[Visit], Reply | str]:
    """A server that refuses requests in its words, unless it accepts them."""

    def step(visit: Visit) -> Reply | str:
        if not accepts(body_of(visit)):
            return Reply(status=status, error=error)
        return then(visit) if callable(then) else then

    return step


def without(name: str, role: str = "assistant") -> Callable[[JSON], bool]:
    return lambda body: (
        not any(name in message for message in body["messages"] if message["role"] == role)
    )


def with_each(name: str) -> Callable[[JSON], bool]:
    """Each answer with calls has the field."""
    return lambda body: all(
        isinstance(message.get(name), str)
        for message in answers(body["messages"])
        if "tool_calls" in message
    )


def not_both(body: JSON) -> bool:
    return not any(
        message.get("content") and message.get("reasoning_content") and message.get("tool_calls")
        for message in body["messages"]
    )


def message(text: str, **more: Any) -> JSON:
    return {"error": {"message": text, **more}}


def fastapi(*loc: Any, msg: str, kind: str) -> JSON:
    return {"detail": [{"loc": ["body", "messages", *loc], "msg": msg, "type": kind}]}


BOTH = (
    "Cannot pass both content and thinking in an assistant message with tool calls! Put the "
    "analysis message in one or the other, but not both."
)
GROQ = (
    "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
    "'reasoning_content' is unsupported)]"
)
CEREBRAS = (
    "messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is "
    "unsupported"
)
PYDANTIC_1 = (
    "1 validation error for Request\nbody -> messages -> 1 -> reasoning_content\n  extra fields "
    "not permitted (type=value_error.extra)"
)
UNEXPECTED = "Additional properties are not allowed ('reasoning_content' was unexpected)"
KIMI = (
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
)
DEEPSEEK = "The `reasoning_content` in the thinking mode must be passed back to the API."
LITELLM = f"litellm.BadRequestError: OpenAIException - Error code: 400 - {{'message': '{KIMI}'}}"
SERDE = "messages[1]: unknown field `reasoning_content`, expected one of `role`, `content`, `name`"
FIELD_TYPES = "messages.1.reasoning_content.str: Extra inputs are not permitted"


@dataclass(frozen=True)
class History:
    """A history that a server refuses, its words, and its condition."""

    status: int
    error: Any
    accepts: Callable[[JSON], bool]
    said: str
    """In the notice."""
    dropped: tuple[str, ...] = ()
    first: Reply = field(default_factory=lambda: ANSWER)
    model: str = "openai:m"


OMITTED = ("messages.reasoning_content",)
NO_REASONING = without("reasoning_content")


def omitted(status: int, error: Any) -> History:
    said = "messages.reasoning_content was left out: "
    return History(status, error, NO_REASONING, said, OMITTED)


def added(status: int, error: Any, first: Reply = BARE) -> History:
    said = "reasoning_content was added to earlier answers that call tools"
    return History(status, error, with_each("reasoning_content"), said, (), first)


HISTORIES = {
    "gpt-oss on llama.cpp": History(
        500, message(BOTH, code=500, type="server_error"), not_both,
        "messages.content was left out beside tool calls", ("messages.content",)),
    "the same in a template's error": History(
        500, {"error": f"Error rendering prompt with jinja template: {BOTH}"}, not_both,
        "messages.content was left out beside tool calls", ("messages.content",)),
    "one must be empty": History(
        400, message("content must be empty when reasoning_content and tool_calls are present"),
        not_both, "messages.content was left out beside tool calls", ("messages.content",)),
    "the same as 400": History(
        400, message("content and reasoning_content are mutually exclusive"), not_both,
        "messages.content was left out beside tool calls", ("messages.content",)),
    "Mistral's validation": History(
        400, message("Assistant message must have either content or tool_calls, but not both."),
        lambda body: not any(m.get("content") and m.get("tool_calls") for m in body["messages"]),
        "messages.content was left out beside tool calls", ("messages.content",)),
    "content must be null": History(
        400, message("content must be null when tool_calls are present"),
        lambda body: not any(m.get("content") and m.get("tool_calls") for m in body["messages"]),
        "messages.content was left out beside tool calls", ("messages.content",)),
    "no content beside calls": History(
        400, message("Assistant messages with tool_calls should not have content"),
        lambda body: not any(m.get("content") and m.get("tool_calls") for m in body["messages"]),
        "messages.content was left out beside tool calls", ("messages.content",)),
    "Groq": omitted(400, message(GROQ, type="invalid_request_error")),
    "Cerebras": omitted(400, {
        "message": CEREBRAS, "type": "invalid_request_error", "param": "validation_error",
        "code": "wrong_api_format"}),
    "FastAPI": omitted(422, fastapi(
        1, "reasoning_content", msg="extra fields not permitted", kind="value_error.extra")),
    "FastAPI, pydantic 2": omitted(422, fastapi(
        1, "assistant", "reasoning_content", msg="Extra inputs are not permitted",
        kind="extra_forbidden")),
    "pydantic 1 as text": omitted(400, {"error": PYDANTIC_1}),
    "pydantic 2 with a type behind the name": omitted(400, message(FIELD_TYPES)),
    "OpenAI": omitted(400, message(
        "Unrecognized request argument supplied: reasoning_content",
        type="invalid_request_error")),
    "OpenAI with a path": omitted(400, message(
        "Unknown parameter: 'messages[1].reasoning_content'.", code="unknown_parameter",
        param="messages[1].reasoning_content")),
    "JSON Schema": omitted(400, message(f"{UNEXPECTED} - 'messages.1'")),
    "a JSON pointer": omitted(400, message(
        "Validation error at #/messages/1/reasoning_content: Extra inputs are not permitted")),
    "Gemini": omitted(400, [{"error": {
        "code": 400, "status": "INVALID_ARGUMENT", "message": "Invalid JSON payload received. "
        "Unknown name \"reasoning_content\" at 'contents[1].parts[0]': Cannot find field."}}]),
    "Gemini's Chat": omitted(400, message(
        "Invalid JSON payload received. Unknown name \"reasoning_content\" at 'messages[1]'")),
    "serde": omitted(422, message(SERDE)),
    "RFC 9457": omitted(422, {
        "title": "Unprocessable Entity", "status": 422, "detail": "validation failed",
        "errors": [{"message": "unexpected property",
                    "location": "body.messages[1].reasoning_content", "value": {}}]}),
    "a path at the end": omitted(400, message(
        "Error from provider: Extra inputs are not permitted, field: "
        "'messages[1].reasoning_content'")),
    "a keyword of Python": omitted(500, message(
        "Message.__init__() got an unexpected keyword argument 'reasoning_content'")),
    "in plain words": omitted(400, message("Reasoning content in the history is not supported")),
    "an invalid key": omitted(400, message("Message contains invalid key: reasoning_content")),
    "a gateway's 500": omitted(500, message(f"Upstream request failed: {CEREBRAS}")),
    "a rule in words": omitted(400, message(
        "The reasoning_content field must not be included in the input messages.")),
    "a list as Python prints it": omitted(400, message(
        "[{'type': 'extra_forbidden', 'loc': ('body', 'messages', 1, 'reasoning_content'), "
        "'msg': 'Extra inputs are not permitted'}]")),
    "in Chinese": omitted(400, message("messages[1] 包含不支持的字段 reasoning_content")),
    "must not have": History(
        400, message("Invalid value: tool messages must not have 'name'"), without("name", "tool"),
        "messages.name was left out: ", ("messages.name",), model="vllm:m"),
    "a tool's name": History(
        400, message("'messages.2' : property 'name' is unsupported"), without("name", "tool"),
        "messages.name was left out: ", ("messages.name",), model="vllm:m"),
    "a tool's name by path": History(
        422, fastapi(2, "tool", "name", msg="Extra inputs are not permitted",
                     kind="extra_forbidden"),
        without("name", "tool"), "messages.name was left out: ", ("messages.name",),
        model="vllm:m"),
    "Kimi": added(400, message(KIMI, type="invalid_request_error")),
    "Kimi at SiliconFlow": added(400, {"code": 20015, "message": KIMI, "data": None}),
    "Kimi behind LiteLLM": added(500, message(LITELLM)),
    "DeepSeek": added(400, message(DEEPSEEK, param=None, code="invalid_request_error")),
    "DeepSeek's words in param": added(400, message("Param Incorrect", param=DEEPSEEK, code="400")),
    "DeepSeek's first words": added(400, message(
        "Missing `reasoning_content` field in the assistant message at message index 1")),
    "in other words": added(400, message(
        "Tool call messages without reasoning_content are not allowed in thinking mode")),
    "none was found": added(400, message(
        "expected reasoning_content in assistant message, but found none")),
    "Python": added(500, message("KeyError: 'reasoning_content'")),
    "a template": added(500, message("'dict object' has no attribute 'reasoning_content'")),
    "it needs": added(400, message("thinking mode needs reasoning_content beside tool calls")),
    "mandatory": added(400, message("Field reasoning_content is mandatory for tool calls")),
    "missing, in Chinese": added(400, message("缺少 reasoning_content 字段")),
    "FastAPI: missing": added(422, fastapi(
        1, "assistant", "reasoning_content", msg="Field required", kind="missing")),
    "content that is null": History(
        400, message("Invalid value for 'content': expected a string, got null."),
        lambda body: all(m.get("content") is not None for m in body["messages"]),
        "content was added to earlier answers", (), BARE, "openrouter:m"),
    "content that is null, FastAPI": History(
        422, fastapi(1, "content", "str", msg="Input should be a valid string",
                     kind="string_type"),
        lambda body: all(m.get("content") is not None for m in body["messages"]),
        "content was added to earlier answers", (), BARE, "openrouter:m"),
    "content that is empty": History(
        400, message("messages: text content blocks must be non-empty"),
        lambda body: all(m.get("content") != "" for m in body["messages"]),
        "empty content beside tool calls is sent as null", (), BARE),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_refused_history_is_sent_another_way_said_once_and_remembered(
    server: ModelServer, name: str
) -> None:
    row = HISTORIES[name]
    server.then(row.first, *[unless(row.accepts, row.status, row.error)] * 9)
    run = agent(server, row.model).run("What is there?")
    assert run.ok, run.error
    assert run.text == "A tree."
    assert len(server.bodies) == 3
    notices = [notice for turn in run.turns for notice in turn.notices]
    assert len(notices) == 1
    assert row.said in notices[0]
    response = run.turns[1].response
    assert response
    assert response.meta.dropped_params == row.dropped
    assert response.meta.attempts == 1
    shown = run_text(run.record)
    assert all(shown.count(dropped) == 1 for dropped in row.dropped), "said once in the run's view"
    # A new conversation with the same history: nothing is refused, and it extends the one before.
    again = agent(server, row.model).run("And?", messages=run.messages)
    assert again.ok
    assert len(server.bodies) == 4
    sent = server.bodies[2]["messages"]
    assert server.bodies[3]["messages"][: len(sent)] == sent
    assert not [notice for turn in again.turns for notice in turn.notices]


def test_reasoning_that_a_server_demands_is_sent_where_the_model_wrote_some(
    server: ModelServer,
) -> None:
    refuses = unless(with_each("reasoning_content"), 400, message(KIMI))
    server.then(ANSWER, BARE, *[refuses] * 3)
    assert agent(server).run("What is there?").ok
    sent = [one["reasoning_content"] for one in answers(server.bodies[-1]["messages"])]
    assert sent == [THOUGHT, ""]


@pytest.mark.parametrize("options", [{}, {"reasoning": "none"}, {"stream": False}], ids=str)
def test_a_dead_run_is_resumed(server: ModelServer, options: JSON) -> None:
    server.then(ANSWER, Reply(status=400, error=message("no")))
    run = agent(server).run("What is there?")
    assert not run.ok
    server.then(*[unless(NO_REASONING, 400, message(GROQ))] * 3)
    resumed = run.resume(**options)
    assert resumed.ok, resumed.error
    assert len(server.bodies) == 4
    assert "reasoning_content" not in json.dumps(server.bodies[-1])


# Words of other errors: the request is not changed, so it is not asked again.
NO_WORKAROUND: dict[str, tuple[int, Any]] = {
    "a name that was not sent": (400, message("'messages.1': property 'audio' is unsupported")),
    "what a message is about": (400, message("'messages.1': property 'content' is unsupported")),
    "tool calls": (400, message("messages.1.tool_calls: Extra inputs are not permitted")),
    "an id": (400, message("messages.1.tool_calls.0.id: unknown id")),
    "a field that is there": (400, message("messages.0.content: Field required")),
    "a role": (400, message("messages.1.role: unknown role 'assistant'")),
    "an ordinary word": (400, message("The name of the model is unknown; reasoning is required")),
    "a value": (400, message("messages.1.reasoning_content: String should have at most 9 letters")),
    "a model": (400, message("Unknown model 'reasoning_content'")),
    "a feature": (400, message("reasoning is required for this model")),
    "a tool": (400, message("Invalid schema for function 'look': 'name' is a required property")),
    "pairs": (400, message("messages with role 'tool' must be a response to 'tool_calls'.")),
    "an empty prompt": (400, message("messages.0: user messages must have non-empty content")),
    "unknown words": (400, message("Bad request.")),
    "no words": (400, {}),
    "a key": (401, message(GROQ)),
    "a form of permission": (403, message(CEREBRAS)),
    "another key": (400, message("KeyError: 'choices'")),
    "another attribute": (400, message("'dict object' has no attribute 'foo'")),
    "a region": (400, message("User location is not supported for the API use.")),
    "the system's words": (400, message("Your system prompt is not allowed to name others")),
    "personal data": (400, message("The prompt must not include personal data")),
    "a template's parameter": (400, message("Pass content or use thinking; see the guide")),
}


@pytest.mark.parametrize("name", NO_WORKAROUND)
def test_other_refusals_end_the_run_with_the_words_of_the_server(
    server: ModelServer, name: str
) -> None:
    status, error = NO_WORKAROUND[name]
    server.then(ANSWER, *[Reply(status=status, error=error)] * 9)
    run = agent(server).run("What is there?")
    assert not run.ok
    assert len(server.bodies) == 2
    assert not [notice for turn in run.turns for notice in turn.notices]
    words = error.get("error", {}).get("message", "")
    assert run.error
    assert words in run.error.message


NO_STREAM = {
    "Bedrock": (400, "This model doesn't support tool use in streaming mode."),
    "Bedrock behind a gateway": (
        500, "ValidationException: This model doesn't support tool use in streaming mode."),
    "llama.cpp": (500, "Cannot use tools with stream"),
    "llama.cpp as 400": (400, "Cannot use tools with stream"),
    "no stream at all": (400, "Streaming is not supported for this model"),
    "no stream at all, 501": (501, "streaming not supported"),
    "stream must be false": (400, "stream must be false when tools are used"),
    "set stream to false": (400, "Tool calling needs a whole answer: please set `stream` to false"),
    "in this order": (400, "Tools are not supported in streaming mode"),
    "with a comma": (422, "tool_choice cannot be used with streaming, use a non-streaming request"),
    "function calls": (400, "Function calling with streaming isn't supported yet"),
    "a value": (400, "Unsupported value: 'stream' does not support true with this model."),
    "a model": (400, "Model m does not support streaming."),
    "a word": (405, "Streaming is currently unavailable for m; use stream=false"),
    "NVIDIA": (400, "Tool calling is not supported in streaming mode!"),
    "not available when": (400, "tool calling is not available when streaming"),
    "must not be true": (400, "stream must not be true when tools are present"),
    "exclusive": (400, "tools and stream are mutually exclusive"),
    "requires": (400, "`tools` requires `stream` to be false"),
    "Converse": (400, "Tool use is not supported with ConverseStream; use Converse"),
    "only": (400, "This model is only available in non-streaming mode"),
    "together": (400, "Invalid request: stream and tools cannot be used together"),
    "stream=True": (400, "The `tools` parameter is incompatible with `stream=True`"),
    "SSE": (400, "SSE is not supported"),
    "a verb": (400, "This endpoint does not stream."),
    "in Chinese": (400, "该模型不支持流式输出"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_STREAM)
def test_a_refused_stream_is_asked_for_whole_said_once_and_remembered(
    server: ModelServer, name: str
) -> None:
    status, words = NO_STREAM[name]
    refuses = unless(lambda body: not body.get("stream"), status, message(words))
    # The first answer calls the tool: the next request is whole at once.
    server.then(refuses, BARE, *[refuses] * 5)
    run = agent(server).run("What is there?")
    assert run.ok, run.error
    assert run.text == "A tree."
    assert ["stream" in body for body in server.bodies] == [True, False, False]
    assert all("tools" in body for body in server.bodies)
    notices = [notice for turn in run.turns for notice in turn.notices]
    assert len(notices) == 1
    assert "stream=true was left out" in notices[0]
    response = run.turns[0].response
    assert response
    assert response.meta.dropped_params == ("stream",)


def test_a_stream_that_is_refused_only_with_tools_is_used_without_them(server: ModelServer) -> None:
    refuses = unless(
        lambda body: not (body.get("stream") and body.get("tools")),
        400,
        message("This model doesn't support tool use in streaming mode."),
    )
    server.then(*[refuses] * 9)
    assert agent(server).run("Go.").ok
    assert nbagent.Agent("openai:m", base_url=server.url, tools=[]).run("Go.").ok
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False, True]


STREAM_GOES_ON = {
    "no tools": (400, "registry.ollama.ai/library/m does not support tools"),
    "cut": (400, "The streaming response was interrupted and is not available"),
    "options": (400, "stream_options is only allowed when stream is true: unexpected value"),
    "not now": (500, "The stream is not available, try again later"),
    "a failure": (500, "Error streaming response: model is not available"),
    "upstream": (500, "upstream connect error, not available"),
    "sound": (400, "The audio stream is not supported"),
    "a prompt": (400, "The stream of consciousness in your prompt is too odd"),
    "a key": (401, "Streaming is not supported for this key"),
    "logs": (400, "The region does not stream logs; not supported"),
    "two kinds of tools": (400, "Tools and functions cannot be used together"),
    "a rate": (429, "Streaming is not available: too many requests"),
}


@pytest.mark.parametrize("name", STREAM_GOES_ON)
def test_other_words_about_streams_and_tools_leave_the_stream(
    server: ModelServer, name: str
) -> None:
    status, words = STREAM_GOES_ON[name]
    server.then(*[Reply(status=status, error=message(words))] * 9)
    agent(server, retries=0).run("Go.")
    assert all(body.get("stream") for body in server.bodies)


@pytest.mark.parametrize(
    "words",
    [
        "This model only support stream mode, please enable the stream parameter.",
        "Non-streaming requests are not supported for this model",
        "stream must be set to true",
        "This model does not support http call. Only stream=True is supported",
        "parameter.enable_thinking must be set to false for non-streaming calls",
    ],
)
def test_a_model_that_only_streams_is_asked_for_a_stream(server: ModelServer, words: str) -> None:
    server.then(*[unless(lambda body: bool(body.get("stream")), 400, message(words))] * 5)
    whole = agent(server, stream=False)
    for _ in range(2):
        run = whole.run("Go.")
        assert run.ok, run.error
        assert run.text == "A tree."
    assert [bool(body.get("stream")) for body in server.bodies] == [False, True, True]


NO_SYSTEM = {
    "Gemma": (500, "Jinja Exception: System role not supported"),
    "Gemini's Gemma": (400, "Developer instruction is not enabled for models/gemma-3-27b-it"),
    "OpenAI": (400, "'messages[0].role' does not support 'system' with this model."),
    "a verb": (400, "m does not support the system role"),
    "an instruction": (400, "System instruction is not supported by this model"),
    "a developer": (400, "developer role is not supported"),
    "messages": (400, "Developer messages are not allowed"),
    "roles": (400, "Only user and assistant roles are supported!"),
    "turns": (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SYSTEM)
def test_a_model_without_a_system_role_gets_the_text_before_the_first_words(
    server: ModelServer, name: str
) -> None:
    status, words = NO_SYSTEM[name]
    refuses = unless(
        lambda body: all(sent["role"] != "system" for sent in body["messages"]),
        status,
        message(words),
    )
    server.then(*[refuses] * 9)
    run = agent(server, system="Be brief.").run("What is there?")
    assert run.ok, run.error
    assert any("has no system role" in notice for notice in run.turns[0].notices)
    (first,) = server.bodies[-1]["messages"]
    assert first["role"] == "user"
    assert first["content"].startswith("Be brief.")
    assert first["content"].endswith("What is there?")
    again = agent(server, system="Be brief.").run("And?", messages=run.messages)
    assert again.ok
    assert len(again.turns[0].notices) == 0
    assert server.bodies[-1]["messages"][0] == first


BODIES_WITHOUT_ERROR: dict[str, tuple[JSON, str]] = {
    "MiniMax": ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"},
                 "choices": None}, "insufficient balance"),
    "Baidu": ({"error_code": 110, "error_msg": "Access token invalid"}, "Access token invalid"),
    "FastAPI": ({"detail": "Not Found"}, "Not Found"),
    "Cloudflare": ({"success": False, "errors": [{"code": 7003, "message": "No route"}]},
                   "No route"),
    "a code": ({"code": 1113, "msg": "Out of luck"}, "Out of luck"),
    "success": ({"code": 0, "msg": "all is well"}, "no choice with a message"),
}  # fmt: skip


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("name", BODIES_WITHOUT_ERROR)
def test_an_error_in_a_200_body_of_another_form_is_told(
    server: ModelServer, name: str, *, framed: bool
) -> None:
    body, words = BODIES_WITHOUT_ERROR[name]
    raw = json.dumps(body).encode()
    server.then(Reply(raw=b"data: " + raw + b"\n\n" if framed else raw))
    run = agent(server, retries=0).run("What is there?")
    assert run.error
    if not (framed and name == "success"):
        assert words in run.error.message


def test_a_server_that_refuses_a_workaround_gets_the_other_one(server: ModelServer) -> None:
    def step(visit: Visit) -> Reply | str:
        (answer,) = answers(body_of(visit)["messages"])
        if not answer.get("content"):
            return Reply(status=400, error=message("messages.1.content: Field required"))
        if answer.get("reasoning_content"):
            return Reply(status=500, error=message(BOTH))
        return "A tree."

    server.then(ANSWER, *[step] * 6)
    run = agent(server).run("What is there?")
    assert run.ok, run.error
    (answer,) = answers(server.bodies[-1]["messages"])
    assert answer["content"] == ANSWER.text
    assert "reasoning_content" not in answer
    assert len(server.bodies) == 5
    assert agent(server).run("And?", messages=run.messages[:3]).ok
    assert len(server.bodies) == 6


def test_contradictions_end_with_the_words_of_the_server(server: ModelServer) -> None:
    def step(visit: Visit) -> Reply:
        (answer,) = answers(body_of(visit)["messages"])
        words = GROQ if "reasoning_content" in answer else KIMI
        return Reply(status=500, error=message(words))

    server.then(ANSWER, *[step] * 9)
    run = agent(server).run("What is there?")
    assert not run.ok
    assert run.error
    assert GROQ in run.error.message or KIMI in run.error.message
    assert "Try again" not in run.error.message
    assert len(server.bodies) <= 5


REFUSES_EVERYTHING = [
    message(BOTH),
    message(KIMI),
    message("Streaming is not supported for this model"),
    message("Unknown parameter: 'tool_choice'", param="tool_choice"),
    message(CEREBRAS),
    message("Conversation roles must alternate user/assistant"),
    message("Unsupported parameter: 'temperature'", param="temperature"),
]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("shift", range(len(REFUSES_EVERYTHING)))
def test_a_server_that_refuses_everything_is_asked_three_times_more(
    server: ModelServer, status: int, shift: int
) -> None:
    errors = [*REFUSES_EVERYTHING[shift:], *REFUSES_EVERYTHING[:shift]]
    server.then(ANSWER, *[Reply(status=status, error=error) for error in errors * 3])
    run = agent(server, temperature=0.5, retries=0).run("What is there?")
    assert not run.ok
    assert run.error
    requests = server.bodies[1:]
    assert 1 <= len(requests) <= 4
    last: str = errors[len(requests) - 1]["error"]["message"]
    assert last.rstrip(".!") in run.error.message


def test_a_workaround_of_one_model_leaves_another_one_alone(server: ModelServer) -> None:
    refuses = unless(lambda body: body["model"] == "free" or NO_REASONING(body), 400, message(GROQ))
    server.then(ANSWER, refuses, refuses, ANSWER, refuses)
    assert agent(server, "openai:strict").run("What is there?").ok
    assert agent(server, "openai:free").run("What is there?").ok
    (answer,) = answers(server.bodies[-1]["messages"])
    assert answer["reasoning_content"] == THOUGHT


def test_two_runs_at_once_learn_the_same(server: ModelServer) -> None:
    server.then(*[unless(NO_REASONING, 400, message(GROQ))] * 60)
    call = ToolCall(id="c", name="look", arguments={}, arguments_raw="{}")
    raw = {"origin": server.origin, "model": "m", "reasoning_field": "reasoning_content"}
    answer = Message(role="assistant", tool_calls=(call,), reasoning=THOUGHT, raw=raw)
    result = Message(role="tool", tool_call_id="c", name="look", content=())
    request = ask(
        messages=(Message.of("user", "hi"), answer, result), tools=(ToolSpec(name="look"),)
    )

    async def both() -> list[str]:
        client = find_provider("openai").open(ProviderConfig(base_url=server.url))
        try:
            responses = await asyncio.gather(*[client.chat(request) for _ in range(20)])
        finally:
            await client.close()
        return [response.message.text for response in responses]

    assert asyncio.run(both()) == ["A tree."] * 20
    assert "reasoning_content" in json.dumps(server.bodies[0])
    assert len(server.bodies) <= 40


def test_thinking_that_a_server_of_messages_demands_is_added_to_calls(world: World) -> None:
    call = ToolCall(id="c", name="look", arguments={}, arguments_raw="{}")
    answer = Message(role="assistant", tool_calls=(call,), reasoning=THOUGHT)
    result = Message(role="tool", tool_call_id="c", name="look", content=())
    hello = Message.of("user", "hi")
    request = ask(messages=(hello, answer, result), tools=(ToolSpec(name="look"),))
    words = "The `content[].thinking` in the thinking mode must be passed back to the API."
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    good = next(case for case in ANTHROPIC.answers if case.thorough).play(stream=False)

    async def go() -> None:
        async with world.client(ANTHROPIC) as client:
            world.player.play([Play(json.dumps(error).encode(), 400), good])
            await client.chat(request)

    world.run(go())
    first, second = (visit.body["messages"][1]["content"] for visit in world.player.asked)
    assert [block["type"] for block in first] == ["tool_use"]
    # Another model's reasoning does not go to this one.
    assert second == [{"type": "thinking", "thinking": "", "signature": ""}, *first]


def test_an_error_inside_a_stream_is_learnt_from_too(server: ModelServer) -> None:
    words = {"error": {"message": "Tool calling is not supported in streaming mode!", "code": 400}}
    frames = f"data: {json.dumps(words)}\n\ndata: [DONE]\n\n".encode()
    server.then(Reply(raw=frames), "A tree.")
    run = agent(server).run("What is there?")
    assert run.ok, run.error
    assert ["stream" in body for body in server.bodies] == [True, False]
