"""Parameters, tools and images that a server refuses: dropped once and told, or one clear line."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply, Step
from servers.player import Play
from wires import anthropic_cases, chat_cases, google_cases, ollama_cases, responses_cases
from wires.anthropic_cases import THOUGHT
from wires.harness import ABSENT, JSON, WireSetup, World, ask, asked_next, matches
from wires.harness import TOOLS as LOOKS

import nbagent
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ProviderConfig,
    ToolSpec,
)
from nbagent.providers.catalogue import find_provider
from nbagent.providers.workarounds import forget_workarounds
from nbagent.view.terminal import run_text

CHAT, ANTHROPIC, GOOGLE = chat_cases.WIRE, anthropic_cases.WIRE, google_cases.WIRE
OLLAMA, RESPONSES = ollama_cases.WIRE, responses_cases.WIRE
TOOLS = (ToolSpec(name="look"),)
IMAGE = Message(role="user", content=(TextPart(text="See."), ImagePart(data="AAAA")))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def answer(
    server: ModelServer, *requests: ChatRequest, **config: Any
) -> tuple[list[ChatResponse], list[ClientNotice]]:
    """The answers to some requests, one after another, each with a client of its own."""
    notices: list[ClientNotice] = []

    async def one(request: ChatRequest) -> ChatResponse:
        client = find_provider("openai").open(ProviderConfig(base_url=server.url, **config))
        try:
            chunks = [chunk async for chunk in client.chat_stream(request)]
        finally:
            await client.close()
        notices.extend(chunk.notice for chunk in chunks if chunk.notice)
        assert chunks[-1].response
        return chunks[-1].response

    async def all_of_them() -> list[ChatResponse]:
        return [await one(request) for request in requests]

    return asyncio.run(all_of_them()), notices


def failure(server: ModelServer, request: ChatRequest) -> ModelError:
    with pytest.raises(ModelError) as caught:
        answer(server, request)
    return caught.value


# How servers say that they do not take NAME.
WORDINGS: dict[str, tuple[int, Any]] = {
    "OpenAI": (400, {"error": {
        "message": "Unsupported parameter: 'NAME' is not supported with this model.",
        "param": "NAME", "code": "unsupported_parameter"}}),
    "FastAPI": (422, {"detail": [{
        "type": "extra_forbidden", "loc": ["body", "NAME"], "input": {"temperature": 1},
        "msg": "Extra inputs are not permitted"}]}),
    "terse": (400, {"error": "unknown field 'NAME' in request"}),
    "a proxy": (400, {"error": {
        "message": "Tools with NAME are not supported. Use /v1/responses, or set NAME to 'none'.",
        "param": "NAME", "code": None}}),
    "OpenRouter": (404, {"error": {
        "message": "No endpoints found that support the provided 'NAME' value.", "code": 404}}),
}  # fmt: skip


def refusing(*names: str, wording: str = "OpenAI") -> list[Step]:
    """A server that answers only when none of these parameters is in the request."""
    status, worded = WORDINGS[wording]

    def step(request: Visit) -> Reply | str:
        for name in names:
            if name in request.body:
                return Reply(status=status, error=json.dumps(worded).replace("NAME", name))
        return "fine"

    return [step] * 30


SET: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.2},
    "top_p": {"top_p": 0.9},
    "stop": {"stop_sequences": ("X",)},
    "reasoning_effort": {"reasoning": "low"},
    "response_format": {"output_schema": {"type": "object"}},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    "stream_options": {},
}
OF_THE_PERSON = ("parallel_tool_calls", "top_k", "strict")
"""Keys of extra_body, which are left out like any other."""


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", [*SET, *OF_THE_PERSON])
def test_a_refused_parameter_is_left_out_once_told_and_remembered(
    server: ModelServer, name: str, wording: str
) -> None:
    server.then(*refusing(name, wording=wording))
    request = ask(**SET.get(name, {}))
    extra = {"extra_body": {name: 1}} if name in OF_THE_PERSON else {}
    responses, notices = answer(server, request, request, **extra)
    assert [response.message.text for response in responses] == ["fine", "fine"]
    assert [response.meta.dropped_params for response in responses] == [(name,), (name,)]
    assert [response.meta.attempts for response in responses] == [1, 1]
    assert [name in body for body in server.bodies] == [True, False, False]
    assert [notice.kind for notice in notices] == ["dropped_param"]
    assert name in notices[0].text
    assert "{" not in notices[0].text
    assert notices[0].error
    assert all(body["messages"] and body["model"] == "m" for body in server.bodies)
    assert all(("tools" in body) == bool(request.tools) for body in server.bodies)


def test_everything_refused_one_after_another_is_learnt_three_at_a_time(
    server: ModelServer,
) -> None:
    names = [*SET, "max_tokens", "max_completion_tokens"]
    server.then(*refusing(*names))
    more = {name: value for given in SET.values() for name, value in given.items()}
    request = ask(**more, max_tokens=9)
    for _ in range(2):
        fault = failure(server, request)
        assert "Unsupported parameter" in fault.server_text
        assert "3 changes of the request were learnt" in fault.message
    responses, notices = answer(server, request)
    assert set(responses[0].meta.dropped_params) == {*SET, "max_completion_tokens"}
    assert len(server.bodies) == len(names) + 3
    assert len(notices) == len(names) - 2 * 3
    assert server.bodies[-1].keys() == {"model", "messages", "tools", "stream"}


# A parameter in the words of a server, and what is set for it.
SPOKEN: list[tuple[str, dict[str, Any], int, str]] = [
    ("temperature", {"temperature": 0.5}, 400, "invalid temperature: only 1 is allowed here"),
    ("temperature", {"temperature": 0.5, "top_p": 0.5}, 400,
        "`temperature` and `top_p` cannot both be specified for this model."),
    ("temperature", {"temperature": 0.5}, 400, "This model doesn't accept temperature"),
    ("top_p", {"top_p": 0.5}, 400, "Invalid parameter: top_p is not valid for this model"),
    ("stop", {"stop_sequences": ("X",)}, 400, "Argument not supported on this model: stop"),
    ("stop", {"stop_sequences": ("X",)}, 400, "Model m does not support parameter stop."),
    ("reasoning_effort", {"reasoning": "low"}, 400,
        "Model m does not support parameter reasoningEffort."),
    ("reasoning_effort", {"reasoning": "low"}, 400, "m does not support reasoning effort"),
    ("stream_options", {}, 400, "stream_options: invalid field"),
    ("stream_options", {}, 500, "create() got an unexpected keyword argument 'stream_options'"),
    ("tool_choice", SET["tool_choice"], 400, 'tool_choice: only "auto" is supported'),
    ("tool_choice", SET["tool_choice"], 400, "Invalid tool_choice: must be one of 'none', 'auto'"),
    ("tool_choice", SET["tool_choice"], 400,
        "tool_choice 'required' is incompatible with thinking enabled"),
    ("tool_choice", SET["tool_choice"], 400, "m doesn't support toolConfig.toolChoice.any."),
    ("temperature", {"temperature": 0.5}, 400, "参数 temperature 不支持"),
    ("temperature", {"temperature": 0.5}, 400, "Parameter temperature is invalid"),
    ("temperature", {"temperature": 0.5}, 400,
        "invalid temperature: only 1 is allowed for this model"),
    ("stop", {"stop_sequences": ("X",)}, 400, "stop: Extra inputs are not permitted"),
    ("stop", {"stop_sequences": ("X",)}, 400,
        "litellm.BadRequestError: stop: Extra inputs are not permitted"),
    ("reasoning_effort", {"reasoning": "low"}, 400,
        "Argument not supported on this model: reasoningEffort"),
    ("reasoning_effort", {"reasoning": "low"}, 400, "m1 does not support thinking"),
    ("reasoning_effort", {"reasoning": "low"}, 400, "Reasoning is not supported by this model"),
    ("reasoning_effort", {"reasoning": "low"}, 400,
        "reasoning_effort must be one of none or default"),
    ("temperature", {"temperature": 0.5, "top_p": 0.5}, 400,
        "Unsupported parameter temperature. Supported parameters are top_p and stop"),
    ("temperature", {"temperature": 0.5, "top_p": 0.5}, 400,
        "temperature is not supported; use top_p instead"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "status", "said"), SPOKEN)
def test_a_parameter_is_read_out_of_a_sentence(
    server: ModelServer, name: str, given: dict[str, Any], status: int, said: str
) -> None:
    def step(request: Visit) -> Reply | str:
        refusal = Reply(status=status, error={"error": {"message": said}})
        return refusal if name in request.body else "fine"

    server.then(*[step] * 3)
    responses, notices = answer(server, ask(**given))
    assert responses[0].meta.dropped_params == (name,)
    assert len(notices) == 1


LISTED: dict[str, Any] = {"temperature": 0.5, "top_p": 0.5, "stop_sequences": ("X",)}
EXTRA = "Extra inputs are not permitted"
# id: the error, and what is left out at once.
LISTS: dict[str, tuple[Any, set[str]]] = {
    "a list": ("Unsupported parameters: temperature, top_p and seed", {"temperature", "top_p"}),
    "a quoted list": ("Unknown parameters: ['top_p', 'stop']", {"top_p", "stop"}),
    "an unsent one between": (
        "temperature, presence_penalty, top_p are not supported", {"temperature", "top_p"}),
    "the first in param": (
        {"message": "Unsupported parameters: 'temperature', 'top_p'", "param": "temperature"},
        {"temperature", "top_p"}),
    "FastAPI": (
        [{"loc": ["body", name], "msg": EXTRA, "type": "extra_forbidden"}
         for name in ("temperature", "stop", "nothing", "top_p")],
        {"temperature", "top_p", "stop"}),
    "FastAPI, one of them by its value": (
        [{"loc": ["body", "top_p"], "msg": EXTRA, "type": "extra_forbidden"},
         {"loc": ["body", "temperature"], "msg": "Input should be a number", "type": "float"}],
        {"top_p"}),
    "the later one is advice": ("temperature is not supported, use top_p instead", {"temperature"}),
    "a list of the others": (
        "temperature is not supported, supported parameters are top_p, stop", {"temperature"}),
    "not together": ("temperature and top_p cannot both be specified", {"temperature"}),
}  # fmt: skip


@pytest.mark.parametrize(("error", "names"), LISTS.values(), ids=LISTS)
def test_all_parameters_that_one_refusal_names_are_left_out_at_once(
    server: ModelServer, error: Any, names: set[str]
) -> None:
    inner: Any = {"message": error} if isinstance(error, str) else error
    body = {"detail" if isinstance(error, list) else "error": inner}
    server.then(Reply(status=400, error=body), "fine")
    responses, notices = answer(server, ask(**LISTED))
    assert set(responses[0].meta.dropped_params) == names
    assert len(notices) == 1
    assert all(name in notices[0].text for name in names)


def test_a_supported_name_is_left_alone_where_the_refused_one_was_not_sent(
    server: ModelServer,
) -> None:
    said = "Unsupported parameter: seed. Supported parameters are temperature, top_p"
    server.then(*[Reply(status=400, error={"error": {"message": said}})] * 3)
    assert said in str(failure(server, ask(**LISTED)))
    assert len(server.bodies) == 1


MOST: dict[str, Any] = {"tools": TOOLS, "temperature": 2.0}
TURNS = "Conversation roles must alternate"
# What is asked, the refusal, and how often it is asked: nothing that helps can be left out.
FINAL: list[tuple[dict[str, Any], int, str, int]] = [
    (MOST, 400, "temperature: Input should be less than or equal to 1", 1),
    ({"stop_sequences": ("X",)}, 400, "Please stop: this content is not allowed; it rises", 1),
    (MOST, 400, "temperature is too high; drop it below 1", 1),
    (MOST, 400, "Invalid parameter: temperature must not be greater than 1", 1),
    (MOST, 400, "messages.0.content: unknown temperature words are not supported", 1),
    (MOST, 400, "Invalid schema for function 'look': unknown keyword", 1),
    (MOST, 404, "The model 'temperature' does not exist", 1),
    (MOST, 401, "temperature is not supported with this key", 1),
    *((MOST, 400, f"Unsupported parameter: '{name}' is not supported with this model.", 1)
      for name in ("messages", "model", "tools")),
    ({"temperature": 1.0}, 400, "Unsupported parameter: 'temperature' is not supported", 2),
    ({}, 400, TURNS, 2),
]  # fmt: skip


@pytest.mark.parametrize(("given", "status", "said", "asked"), FINAL)
def test_what_no_change_can_help_is_asked_no_more(
    server: ModelServer, given: dict[str, Any], status: int, said: str, asked: int
) -> None:
    param = said.split("'")[1] if said.startswith("Unsupported") else None
    error = {"error": {"message": said, "param": param}}
    server.then(*[Reply(status=status, error=error)] * 9)
    found = failure(server, ask(**given))
    assert said in str(found)
    assert len(server.bodies) == asked


# What servers refuse, and what is sent instead: in the middle of a conversation, on every wire.

BETA = "thinking-binding-controls-2026-08-01"
DROPS = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BOUND = "messages.1.content.0: The block is bound to a different conversation"
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"
TAKES_ADAPTIVE = '"thinking.type.enabled" is not supported for this model. Use adaptive thinking.'
FORCED = "Thinking may not be enabled when tool_choice forces tool use."
KEPT: JSON = {"messages": [..., {"content": [THOUGHT, ..., ..., ...]}, ...]}
GONE: JSON = {"messages": [..., {"content": [..., ..., ...]}, ...]}
OFF: JSON = {"thinking": {"type": "disabled"}}
MINIMAL = "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model."
UNVERIFIED = "Your organization must be verified to stream this model."
SUMMARY = "Your organization must be verified to generate reasoning summaries."
LEVEL = "Unknown name \"thinkingLevel\" at 'generation_config.thinking_config'"
ID = "Unknown name \"id\" at 'contents[1].parts[2].{}': Cannot find field."
THOUGHTS = "Invalid JSON payload received. Unknown name \"thought\" at 'contents[1].parts[0]'"
ENCRYPTED = "The encrypted content for item rs_1 could not be verified."
LENGTH = "Unknown name \"maxOutputTokens\" at 'generation_config': Cannot find field."
EFFORT = "output_config.effort: `xhigh` is not supported for this model"
FORCES: JSON = {"tool_choice": "fs.look"}
LOW: JSON = {"reasoning": "low"}


@dataclass(frozen=True)
class Lesson:
    """Request, the server's refusal of each attempt, and the outcome."""

    wire: WireSetup
    given: JSON
    refusals: Sequence[str]
    dropped: tuple[str, ...] = ()
    attempts: Sequence[Any] = ()
    """As in `matches`, the body of each; none: what is dropped is missing in the last one."""
    words: str = "was left out: the server refuses it"
    model: str = "m"
    param: str | None = None
    """Parameter that the server names in `param`."""
    other: tuple[JSON, JSON] = ({}, {})
    """Another request to the same model, and its body."""


LESSONS = {
    "chat: another value of an effort is tried again": Lesson(
        CHAT, {"reasoning": "minimal"}, [MINIMAL], ("reasoning_effort",),
        other=({"reasoning": "low"}, {"reasoning_effort": "low"})),
    "chat: a forced choice that is refused leaves auto alone": Lesson(
        CHAT, FORCES, ["Thinking mode does not support this tool_choice"], ("tool_choice",),
        other=({}, {"tool_choice": "auto"})),
    "chat: no tools are sent where none cannot be said: the model may call them": Lesson(
        CHAT, {"tool_choice": "none"}, ["Unsupported parameter: 'tool_choice'"], ("tool_choice",),
        [{"tools": ..., "tool_choice": "none"}, {"tools": ABSENT}]),
    "chat: a stream that is refused is asked for as a whole": Lesson(
        CHAT, {}, [UNVERIFIED], ("stream",), param="stream"),
    "chat: the limit is sent under the name that is taken": Lesson(
        CHAT, {"max_tokens": 9}, ["Unsupported parameter: 'max_tokens'"], (),
        [{"max_tokens": 9}, {"max_tokens": ABSENT, "max_completion_tokens": 9}], "is sent as"),
    "Gemini: a limit": Lesson(
        GOOGLE, {"max_tokens": 9}, [LENGTH], ("generationConfig.maxOutputTokens",)),
    "Gemini: a level of thinking": Lesson(
        GOOGLE, LOW, [LEVEL], ("generationConfig.thinkingConfig",), model="gemini-3-flash"),
    "Responses: the first that is named": Lesson(
        RESPONSES, {"max_tokens": 9, "top_p": 0.5},
        ["top_p is not supported here, but max_output_tokens is."], ("top_p",)),
    "Responses: the summary": Lesson(
        RESPONSES, LOW, [SUMMARY], ("reasoning.summary",), param="reasoning.summary"),
    "Gemini: ids of calls and of results": Lesson(
        GOOGLE, {}, [ID.format("function_call"), ID.format("function_response")],
        ("contents.parts.functionCall.id", "contents.parts.functionResponse.id")),
    "Gemini: thoughts in the history": Lesson(
        GOOGLE, {}, [THOUGHTS], (),
        [{"contents": [..., {"parts": [{"thought": True}, ..., ..., ...]}, ...]},
         {"contents": [..., {"parts": [{"thought": ABSENT}, ..., ...]}, ...]}],
        "earlier thinking is left out"),
    "Responses: reasoning of another account": Lesson(
        RESPONSES, {}, [ENCRYPTED], (),
        [{"input": [..., {"type": "reasoning"}, *[...] * 5]}, {"input": [..., *[...] * 5]}],
        "earlier thinking is left out"),
    "Responses: a field of an item": Lesson(
        RESPONSES, {}, ["Unknown parameter: 'input[2].phase'."], ("input.phase",),
        param="input[2].phase"),
    "Ollama: thinking in the history": Lesson(
        OLLAMA, {}, ['json: unknown field "thinking"'], ("messages.thinking",)),
    "Ollama: no tools in a stream": Lesson(
        OLLAMA, {}, ["streaming is not supported with tools"], ("stream",),
        [{"stream": True}, {"stream": False}]),
    "Claude: no stream": Lesson(
        ANTHROPIC, {}, ["m does not support streaming"], ("stream",), model="claude-opus-4-6"),
    "Ollama: an option": Lesson(
        OLLAMA, {"max_tokens": 9}, ["unknown option: num_predict"], ("options.num_predict",)),
    "Ollama: thinking": Lesson(OLLAMA, LOW, ['"m" does not support thinking'], ("think",)),
    "Claude: blocks of another conversation, which cannot be dropped there": Lesson(
        ANTHROPIC, {}, [BOUND, BOUND], (),
        [{**KEPT, "thinking": ABSENT}, {**KEPT, "thinking": {"type": "adaptive", **DROPS}}, GONE],
        "earlier thinking", "claude-1-99"),
    "Claude: blocks of another conversation": Lesson(
        ANTHROPIC, {"reasoning": "high"}, [BOUND], (),
        [{"thinking": {"block_binding": ABSENT}},
         {**KEPT, "thinking": {"type": "adaptive", "display": "summarized", **DROPS}}],
        "has changed", "claude-opus-9"),
    "Claude: the same without thinking": Lesson(
        ANTHROPIC, {"reasoning": "none"}, [BOUND], (), [{**KEPT, **OFF}, {**GONE, **OFF}],
        "the server refuses it", "claude-haiku-9"),
    "Claude: a signature": Lesson(
        ANTHROPIC, {}, [SIGNATURE], (), [KEPT, GONE], "the server refuses it", "claude-sonnet-4-5"),
    "Claude: an effort": Lesson(
        ANTHROPIC, {"reasoning": "xhigh"}, [EFFORT], ("output_config.effort",),
        model="claude-opus-4-6"),
    "Claude: a forced tool (quirk 49)": Lesson(
        ANTHROPIC, FORCES, [FORCED], ("tool_choice",),
        [{"tool_choice": {"name": "fs__look"}}, {"tools": ..., "tool_choice": ABSENT}]),
    "Claude: an object of parameters": Lesson(
        ANTHROPIC, {"reasoning": "xhigh"}, ["output_config: Extra inputs are not permitted"],
        ("output_config.effort",), model="claude-opus-4-6"),
    "Claude: the effort parameter": Lesson(
        ANTHROPIC, {"reasoning": "xhigh"}, ["This model does not support the effort parameter."],
        ("output_config.effort",), model="claude-opus-4-6"),
    "Claude: no system role": Lesson(
        ANTHROPIC, {"system_prompt": "Be brief."}, ["role system is not supported"], (),
        [{"system": ...}, {"system": ABSENT}], "no system role"),
    "Gemini: no system role": Lesson(
        GOOGLE, {"system_prompt": "Be brief."}, ["Developer instruction is not enabled for m"], (),
        [{"systemInstruction": ...}, {"systemInstruction": ABSENT}], "no system role"),
    "Gemini: thinking in plain words": Lesson(
        GOOGLE, LOW, ["Thinking is not enabled for this model"],
        ("generationConfig.thinkingConfig",), model="gemini-3-flash"),
    "Responses: an item that is not stored": Lesson(
        RESPONSES, {}, ["Item with id 'rs_1' not found. Items are not persisted."], (),
        [{"input": [..., {"type": "reasoning"}, *[...] * 5]}, {"input": [..., *[...] * 5]}],
        "earlier thinking is left out"),
    "another server of Messages: a kind of block": Lesson(
        ANTHROPIC, {}, ["unknown content block type: thinking"], (), [KEPT, GONE],
        "the server refuses it", "qwen3"),
    "another server of Messages: a kind of thinking": Lesson(
        ANTHROPIC, LOW, [TAKES_ADAPTIVE], ("thinking",), model="qwen3"),
}  # fmt: skip


def at(body: Any, path: str) -> Any:
    """Value in a body under a name, or under a path of names; in lists the first one."""
    values: list[Any] = [body]
    for key in path.split("."):
        lists = [cast("list[JSON]", it if isinstance(it, list) else [it]) for it in values]
        values = [item[key] for items in lists for item in items if key in item]
    return next(iter(values), None)


@pytest.mark.parametrize("name", LESSONS)
def test_what_is_refused_is_sent_another_way_told_and_remembered(world: World, name: str) -> None:
    lesson = LESSONS[name]
    forget_workarounds()
    good = next(case for case in lesson.wire.answers if case.thorough).play(stream=False)
    error = {"param": lesson.param, "status": "INVALID_ARGUMENT"}
    refusals = [
        {"error": said if lesson.wire is OLLAMA else {**error, "message": said}}
        for said in lesson.refusals
    ]
    request = ask(model=lesson.model, tools=LOOKS, **lesson.given)
    other, expected = lesson.other

    async def go() -> list[ChatChunk]:
        async with world.client(lesson.wire) as client:
            world.player.play([good])
            asked = asked_next(request, await client.chat(request))
            refused = [Play(json.dumps(body).encode(), 400) for body in refusals]
            world.player.play([*refused, good])
            chunks = [chunk async for chunk in client.chat_stream(asked)]
            chunks += [chunk async for chunk in client.chat_stream(asked)]
            await client.chat(ask(model=lesson.model, tools=LOOKS, **other))
            return chunks

    chunks = world.run(go())
    *attempts, again, last = world.player.asked
    assert len(attempts) == len(refusals) + 1
    assert again.body == attempts[-1].body, "it is remembered"
    for sent, wanted in zip(attempts, lesson.attempts, strict=bool(lesson.attempts)):
        matches(wanted, sent.body)
        drops = lesson.wire is ANTHROPIC and b"drop_block" in sent.data
        assert sent.headers.get("anthropic-beta") == (BETA if drops else None)
    for path in lesson.dropped:
        assert at(attempts[0].body, path)
        assert lesson.attempts or not at(again.body, path)
    matches(expected, last.body)
    notices = [chunk.notice for chunk in chunks if chunk.notice]
    assert [notice.kind for notice in notices] == ["dropped_param"] * len(refusals)
    assert all(lesson.words in notice.text for notice in notices), notices
    responses = [chunk.response for chunk in chunks if chunk.response]
    assert [one.meta.dropped_params for one in responses] == [lesson.dropped] * 2


def test_many_requests_at_once_learn_the_same_without_end(server: ModelServer) -> None:
    server.then(*refusing("temperature", "max_tokens", "max_completion_tokens") * 7)

    async def go() -> set[str]:
        client = find_provider("openai").open(ProviderConfig(base_url=server.url))
        try:
            asked = ask(temperature=0.2, max_tokens=9)
            answers = await asyncio.gather(*[client.chat(asked) for _ in range(20)])
            return {response.message.text for response in answers}
        finally:
            await client.close()

    assert asyncio.run(go()) == {"fine"}
    assert len(server.bodies) <= 80
    assert server.bodies[-1].keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        (500, "After the optional system message, conversation roles must alternate"),
        (400, "Unexpected role 'user' after role 'tool'"),
    ],
)
def test_a_template_that_wants_turns_gets_a_short_answer_between(
    server: ModelServer, status: int, said: str
) -> None:
    server.then(Reply(status=status, error={"error": {"message": said}}))
    call = ToolCall(id="c", name="look", arguments={}, arguments_raw="{}")
    image = ImagePart(data="AAAA")
    messages = (
        Message.of("user", "One."),
        Message.of("user", "Two."),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="c", content=(TextPart(text="{}"), image)),
        Message.of("user", "Three."),
    )
    responses, notices = answer(server, ask(messages=messages), ask(messages=messages[:4]))
    assert len(responses) == 2
    assert len(notices) == 1
    assert "alternating roles" in notices[0].text
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert roles[0] == ["user", "user", "assistant", "tool", "user", "user"]
    turns = ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert roles[1] == [*turns, "assistant", "user"]
    assert roles[2] == turns
    assert server.bodies[1]["messages"][: len(turns)] == server.bodies[2]["messages"]


NO_TOOLS = [
    (400, "registry.ollama.ai/library/gemma:latest does not support tools"),
    (404, "No endpoints found that support tool use. To learn more about provider routing …"),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (500, "tools param requires --jinja flag"),
]
NO_IMAGES = [
    (404, "No endpoints found that support image input"),
    (400, "Invalid content type. image_url is only supported by certain models."),
    (500, "image input is not supported - hint: you may need to provide the mmproj"),
    (400, "messages[1]: unknown variant `image_url`, expected `text` at line 1 column 9"),
    (400, "messages[0].content must be a string"),
    (400, "Cannot process images with this model"),
]
WAV = base64.b64encode(b"RIFF\0\0\0\0WAVEfmt ").decode()
AUDIO = Message(
    role="user",
    content=(TextPart(text="Hear."), FilePart(name="a.wav", media_type="audio/wav", data=WAV)),
)
NO_AUDIO = [
    (400, "audio input is not supported"),
    (400, "This model does not support audio input"),
    (422, "messages[0]: unknown variant `input_audio`, expected `text` or `image_url`"),
    (400, "Invalid content type. input_audio is only supported by certain models."),
    (404, "No endpoints found that support input audio"),
]
WITHOUT = [
    *[("no audio", (AUDIO,), *row) for row in NO_AUDIO],
    *[("no tools", (), *row) for row in NO_TOOLS],
    *[("no images or files", (IMAGE,), *row) for row in NO_IMAGES],
]


@pytest.mark.parametrize(("what", "messages", "status", "said"), WITHOUT, ids=range(len(WITHOUT)))
def test_refused_tools_and_images_are_one_clear_error(
    server: ModelServer, what: str, messages: tuple[Message, ...], status: int, said: str
) -> None:
    server.then(*[Reply(status=status, error={"error": {"message": said}})] * 3)
    asked = ask(tools=TOOLS, messages=messages or (Message.of("user", "hi"),))
    found = failure(server, asked)
    assert (found.code, found.status, found.server_text) == ("LLM_HTTP_ERROR", status, said)
    assert str(found).startswith(f"LLM_HTTP_ERROR: m accepts {what} here; ")
    assert str(found).removesuffix(".").endswith(f"The server said: {said.removesuffix('.')}")
    assert "\n" not in str(found)
    assert len(server.bodies) == 1


def test_without_tools_and_images_the_server_speaks_for_itself(server: ModelServer) -> None:
    rows = [(row, ask()) for row in NO_IMAGES + NO_TOOLS if row[0] < 500]
    rows += [((400, "Image format webp is not supported"), ask(messages=(IMAGE,)))]
    for (status, said), asked in rows:
        server.then(Reply(status=status, error={"error": {"message": said}}))
        assert "takes no" not in str(failure(server, asked))


def test_the_person_sees_it_in_the_run_the_record_and_the_frame(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ModelServer(refusing("temperature")) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[], temperature=0.2)
        first = agent.run("Go.", echo=True)
        assert capsys.readouterr().out.count("temperature") == 1, "said once, by the notice"
        second = agent.run("Go.", echo=True)
        assert capsys.readouterr().out.count("temperature") == 1, "said again, though not asked"
        assert ["temperature" in body for body in server.bodies] == [True, False, False]
    for run in (first, second):
        assert run.ok, run.error
        response = run.turns[0].response
        assert response
        assert response.meta.dropped_params == ("temperature",)
        assert nbagent.open_run(run.id).turns[0].response == response
        assert run_text(run.record).count("temperature") == 1, "the run view says so"
    assert "temperature=0.2 was left out" in first.turns[0].notices[0]
    turns: Any = cast("Any", nbagent).turns()
    assert turns["dropped_params"].tolist() == ['["temperature"]'] * 2
