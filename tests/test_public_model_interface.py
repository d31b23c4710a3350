"""The model interface and the tool host, written from nbagent's public names alone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine.laws import check_run
from image_files import in_base64, png
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent import ChatRequest, Message, ToolResult, ToolSpec, offline


class Echo:
    """A host that nobody who wrote nbagent wrote: the two methods, and no name."""

    async def tools(self, context: nbagent.ToolContext) -> Sequence[ToolSpec]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        return [ToolSpec(name="echo", description="Say it again.", parameters=schema)]

    async def prepare(
        self, call: nbagent.ToolCall, context: nbagent.ToolContext
    ) -> nbagent.PreparedCall:
        arguments = call.arguments or {}
        if "text" not in arguments:
            raise nbagent.ToolError("give a text", code="E_INVALID_ARGUMENTS")
        (spec,) = await self.tools(context)

        async def run(context: nbagent.ToolContext) -> nbagent.ToolOutcome:
            if arguments["text"] == "boom":
                raise RuntimeError("no bang")
            return nbagent.ToolOutcome(result=ToolResult(ok=True, data=arguments["text"]))

        return nbagent.PreparedCall(spec=spec, arguments=arguments, run=run)


CALLS: dict[str, tuple[dict[str, Any], bool, Any]] = {
    "answers": ({"text": "hi"}, True, "hi"),
    "is refused": ({}, False, "E_INVALID_ARGUMENTS"),
    "raises": ({"text": "boom"}, False, "E_INTERNAL"),
}


@pytest.mark.parametrize(("arguments", "ok", "wanted"), CALLS.values(), ids=CALLS)
def test_a_host_of_a_stranger_runs_its_tool(
    arguments: dict[str, Any], ok: bool, wanted: Any
) -> None:
    model = offline.script([offline.call("echo", arguments), "Done."])
    called: list[Any] = []
    run = nbagent.Agent(model=model, tools=[Echo()]).run(
        "Go.",
        on_tool_call=lambda name, given: called.append((name, given)),
        on_tool_result=lambda name, result: called.append((name, result)),
    )
    check_run(run, model)
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    assert (result.ok, result.data if ok else result.error and result.error.code) == (ok, wanted)
    assert (run.text, run.iterations) == ("Done.", 2)
    starts = [] if wanted == "E_INVALID_ARGUMENTS" else [("echo", arguments)]
    assert called == [*starts, ("echo", result)]


@pytest.mark.parametrize("name", ["on_tool_call", "on_tool_result"])
@pytest.mark.parametrize("door", ["run", "arun", "start"])
def test_a_callback_that_raises_is_named_and_loses_no_turn(name: str, door: str) -> None:
    def fail(tool: str, value: Any) -> None:
        raise SystemExit("not now")

    model = offline.script([offline.call("echo", text="hi"), "Done."])
    callback: dict[str, Any] = {name: fail}
    agent = nbagent.Agent(model=model, tools=[Echo()])
    if door == "arun":
        run = asyncio.run(agent.arun("Go.", **callback))
    else:
        run = getattr(agent, door)("Go.", **callback).wait()
    check_run(run, model)
    assert (run.text, run.iterations) == ("Done.", 2)
    assert any(f"{name} was detached" in text for text in run.record.notices)


def test_a_callback_that_changes_its_arguments_changes_no_record() -> None:
    model = offline.script([offline.call("echo", text="hi"), "Done."])
    run = nbagent.Agent(model=model, tools=[Echo()]).run(
        "Go.", on_tool_call=lambda name, given: given.clear()
    )
    assert run.turns[0].tool_runs[0].args == {"text": "hi"}


@pytest.mark.parametrize("name", ["on_tool_call", "on_tool_result"])
@pytest.mark.parametrize("kind", ["async", "text"])
def test_a_callback_that_is_no_plain_function_is_refused(name: str, kind: str) -> None:
    async def later(tool: str, value: Any) -> None: ...

    given: dict[str, Any] = {name: later if kind == "async" else "print"}
    with pytest.raises(nbagent.UsageError, match=f"{name}.*function"):
        nbagent.Agent(model=offline.script(["Hi."])).run("Go.", **given)


def test_a_client_chats_streams_and_lists_on_any_loop() -> None:
    spec = ToolSpec(name="echo", description="Say it again.")
    model = offline.script(["Hi.", offline.call("echo", text="hi"), "Streamed."])
    client = nbagent.client(model)
    request = ChatRequest(messages=(Message.of("user", "Hello"),), tools=(spec,))

    async def talk() -> tuple[nbagent.ChatResponse, nbagent.ChatResponse, list[nbagent.ChatChunk]]:
        first, second = await client.chat(request), await client.chat(request)
        return first, second, [chunk async for chunk in client.chat_stream(request)]

    first, second, chunks = asyncio.run(talk())
    assert (first.content, first.tool_calls, first.finish_reason) == ("Hi.", (), "stop")
    assert (second.content, second.finish_reason) == (None, "tool_calls")
    assert [(call.name, call.arguments) for call in second.tool_calls] == [("echo", {"text": "hi"})]
    assert "".join(chunk.content for chunk in chunks) == "Streamed."
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].response is not None
    assert chunks[-1].usage == chunks[-1].response.usage
    assert asyncio.run(nbagent.client("offline:demo").list_models())


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_redacts_and_keeps_the_order_of_a_stream(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "canary-client-key-0123456789"
    monkeypatch.setenv("CLIENT_API_KEY", key)
    step = offline.step(text=f"It is {key} {key[:12]}", calls=[offline.call(key, text=key)])
    client = nbagent.client(offline.script([step]))
    request = ChatRequest(messages=(Message.of("user", "Hello"),))

    async def talk() -> list[Any]:
        if streams:
            return [chunk async for chunk in client.chat_stream(request)]
        return [await client.chat(request)]

    answers = asyncio.run(talk())
    assert key not in repr(answers)
    if streams:
        assert "".join(chunk.content for chunk in answers) == f"It is [redacted] {key[:12]}"
        assert [chunk.done for chunk in answers] == [False] * (len(answers) - 1) + [True]
    else:
        assert answers[0].content == f"It is [redacted] {key[:12]}"


def test_a_client_hides_a_secret_around_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "canary-client-key-0123456789"
    monkeypatch.setenv("CLIENT_API_KEY", key)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{in_base64(png())}"}}
    halves = ({"type": "text", "text": half} for half in (f"It is {key[:9]}", f"{key[9:]}."))
    content = [next(halves), image, next(halves)]
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    with ModelServer([Reply(raw=body, raw_type="application/json")]) as server:
        client = nbagent.client("openai-compatible:little", base_url=server.url)
        answer = asyncio.run(client.chat("Hello"))
    assert (answer.content, len(answer.message.images)) == ("It is [redacted].", 1)


HIDDEN = "a\x1b[2J\x1b]0;own\x07b\r\u202ec\u200bd\n\te"


def test_a_printed_run_and_error_show_hidden_characters() -> None:
    model = offline.script([HIDDEN, offline.error("LLM_HTTP_ERROR", HIDDEN)])
    agent = nbagent.Agent(model=model, tools=[])
    run, failed = agent.run("Go."), agent.run("Go.")
    assert run.text == HIDDEN, "the text stays as the model wrote it"
    for shown in (str(run), str(failed.error)):
        assert not set(shown) & set("\x1b\x07\r\u202e\u200b")
        assert "⟦U+202E⟧c⟦U+200B⟧d\n\te" in shown
    with pytest.raises(nbagent.NbagentError) as raised:
        failed.raise_for_error()
    assert not set(str(raised.value)) & set("\x1b\x07\r\u202e\u200b")


def test_a_stream_that_is_left_or_fails_ends_and_says_why() -> None:
    model = offline.script([offline.step(text="a b c d", delay_ms=1), offline.error("LLM_TIMEOUT")])
    client = nbagent.client(model)
    request = ChatRequest(messages=(Message.of("user", "Hello"),))

    async def leave() -> str:
        async for chunk in client.chat_stream(request):
            if chunk.content:
                return chunk.content
        return ""

    async def fail() -> None:
        async for _ in client.chat_stream(request):
            pass

    assert asyncio.run(leave()).startswith("a")
    with pytest.raises(nbagent.ModelError) as raised:
        asyncio.run(fail())
    assert raised.value.code == "LLM_TIMEOUT"


def test_a_client_needs_a_key_and_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nbagent.UsageError, match="OPENAI_API_KEY"):
        nbagent.client("openai:gpt-5.4")
    key = "sk-test-0123456789abcdef"
    client = nbagent.client("openai:gpt-5.4", api_key=key)
    assert (client.model, client.provider) == ("gpt-5.4", "openai")
    assert key not in repr(client)
    assert key not in repr(vars(client))
    with pytest.raises(nbagent.UsageError, match="base_url"):
        nbagent.client("openai:gpt-5.4", api_key=key, base_url="not a url")


HELLO: tuple[Message, ...] = (Message.of("user", "Hello"),)
LISTED: dict[str, Any] = {"name": "echo", "description": "Say it again."}


class ListsDicts(Echo):
    """A host that lists its tools in the form of OpenAI's API."""

    async def tools(self, context: nbagent.ToolContext) -> Any:
        return [{"type": "function", "function": LISTED}]

    async def prepare(
        self, call: nbagent.ToolCall, context: nbagent.ToolContext
    ) -> nbagent.PreparedCall:
        async def run(context: nbagent.ToolContext) -> nbagent.ToolOutcome:
            return nbagent.ToolOutcome(result=ToolResult(ok=True, data="hi"))

        return nbagent.PreparedCall(spec=ToolSpec(**LISTED), arguments={}, run=run)


class ListsNothing(Echo):
    async def tools(self, context: nbagent.ToolContext) -> Any:
        return ["echo"]


class OfTheProtocol:
    def getVisibleTools(self, context: Any) -> list[Any]:
        return []

    def executeToolCall(self, parameters: Any) -> None: ...


def agent(**options: Any) -> nbagent.Agent:
    return nbagent.Agent(model=offline.script(["Hi."]), **options)


def public(kind: str, /, **given: Any) -> Any:
    """Make a public value as a person writes it, wrong names included."""
    return getattr(nbagent, kind)(**given)


REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "request": (
        lambda: public("ChatRequest", messages=HELLO, systemPrompt="x", maxTokens=1, topP=1.0),
        ("system_prompt", "max_tokens", "top_p"),
    ),
    "stops": (lambda: public("ChatRequest", messages=HELLO, stopSequences=[]), ("stop_sequences",)),
    "usage": (lambda: public("Usage", promptTokens=3), ("prompt_tokens",)),
    "spec": (lambda: public("ToolSpec", name="a", displayName="A"), ("display_name",)),
    "call": (
        lambda: public("ToolCall", id="1", name="a", argumentsRaw="{}"),
        ("arguments_raw",),
    ),
    "result": (lambda: public("ToolResult", ok=True, datum=1), ("write data",)),
    "unlike all": (lambda: public("ToolResult", ok=True, zzz=1), ("takes ok, data",)),
    "model info": (lambda: public("ModelInfo", id="a", contextLength=1), ("context_length",)),
    "message": (lambda: public("Message", role="user", toolCallId="1"), ("tool_call_id",)),
    "config": (
        lambda: public("ProviderConfig", apiKey="abcdefgh", baseUrl="x"),
        ("api_key", "base_url"),
    ),
    "client": (lambda: nbagent.client("offline:demo", timeout=3), ("timeout_s",)),
    "agent with a callback": (lambda: agent(on_tool_call=print), ("agent.run",)),
    "history": (lambda: agent(conversation_history=[]), ("messages=",)),
    "history of a run": (lambda: agent().run("x", conversation_history=[]), ("messages=",)),
    "agent with a setting": (lambda: agent(audit="all"), ("nbagent.configure(audit=",)),
    "run with a setting": (lambda: agent().run("x", audit="all"), ("nbagent.configure(audit=",)),
    "setting": (lambda: nbagent.configure(audit="nope"), ("ARGUMENTS: audit='nope' is",)),
    "host of the protocol": (
        lambda: agent(tools=[OfTheProtocol()]).run("x"),
        ("tools(context)", "prepare(call, context)", "ToolHost"),
    ),
    "host that lists no tools": (
        lambda: agent(tools=[ListsNothing()]).run("x").raise_for_error(),
        ("ListsNothing", "nbagent.ToolSpec("),
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_a_name_that_is_not_known_is_refused_with_the_one_to_write(
    make: Callable[[], Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(nbagent.NbagentError) as raised:
        make()
    assert [word for word in words if word not in str(raised.value)] == []
    assert raised.value.code == "E_INVALID_ARGUMENTS"


STORED: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": [{"role": "user", "newer": 1}]},
    "Usage": {"prompt_tokens": 3},
    "ToolSpec": {"name": "a"},
    "ToolCall": {"id": "1", "name": "a", "arguments_raw": "{}"},
    "ToolResult": {"ok": True, "attachments": [{"type": "text", "text": "a", "newer": 1}]},
    "ModelInfo": {"id": "a"},
    "Message": {"role": "user", "content": [{"type": "text", "text": "a", "newer": 1}]},
    "ChatResponse": {"message": {"role": "assistant", "newer": 1}, "usage": {"newer": 1}},
}


@pytest.mark.parametrize(("name", "fields"), STORED.items(), ids=STORED)
def test_a_stored_value_of_a_newer_version_is_read(name: str, fields: dict[str, Any]) -> None:
    kind = getattr(nbagent, name)
    value = kind.model_validate({**fields, "newer": 1})
    assert value == kind.model_validate_json(value.model_dump_json())
    assert "newer" not in value.model_dump_json()


def test_tokens_are_summed_unless_the_total_is_given() -> None:
    assert nbagent.Usage(prompt_tokens=3, completion_tokens=2).total_tokens == 5
    assert nbagent.Usage(prompt_tokens=3, completion_tokens=2, total_tokens=9).total_tokens == 9


ASKED: dict[str, Any] = {
    "text": "Hello",
    "dicts": [{"role": "user", "content": "Hello"}],
    "messages": [public("Message", role="user", content="Hello")],
    "request": public("ChatRequest", messages=[{"role": "user", "content": "Hello"}]),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_client_takes_a_text_and_messages_in_each_form(asked: Any) -> None:
    model = offline.script(["Hi.", "Streamed."])

    async def talk() -> tuple[str | None, str]:
        async with nbagent.client(model) as client:
            response = await client.chat(asked)
            chunks = [chunk.content async for chunk in client.chat_stream(asked)]
        return response.content, "".join(chunks)

    assert asyncio.run(talk()) == ("Hi.", "Streamed.")
    assert [request.messages for request in model.requests] == [HELLO, HELLO]


@pytest.mark.parametrize("asked", [5, [{"role": "king"}], [5]], ids=["number", "role", "numbers"])
def test_a_client_says_how_a_request_is_written(asked: Any) -> None:
    with pytest.raises(nbagent.UsageError, match="chat"):
        asyncio.run(nbagent.client("offline:demo").chat(asked))


def test_a_host_may_list_its_tools_in_the_form_of_openai() -> None:
    model = offline.script([offline.call("echo"), "Done."])
    run = nbagent.Agent(model=model, tools=[ListsDicts()]).run("Go.")
    check_run(run, model)
    assert [spec.name for spec in model.requests[0].tools] == ["echo"]
    assert run.text == "Done."


@pytest.mark.parametrize("quiet", [False, True], ids=["shown", "quiet"])
def test_a_callback_that_fails_is_reported_once(
    quiet: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(tool: str, value: Any) -> None:
        raise ValueError("not now")

    model = offline.script([offline.call("echo", text="hi"), "Done."])
    nbagent.Agent(model=model, tools=[Echo()], quiet=quiet).run("Go.", on_tool_call=fail)
    printed = capfd.readouterr().err.count("on_tool_call was detached")
    logged = [it.levelno for it in caplog.records if "on_tool_call was detached" in it.getMessage()]
    # Python prints a warning that no handler takes.
    assert printed + sum(level >= logging.WARNING for level in logged) == 1
