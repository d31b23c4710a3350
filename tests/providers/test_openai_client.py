"""The client of Chat Completions servers, against a real server on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from typing import Any, TypeVar

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ImagePart,
    Message,
    ProviderConfig,
    TextPart,
    ToolCall,
    ToolSpec,
)
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.openai import OpenAIClient, normal_base_url
from nbagent.providers.openai.request import Dialect, HistoryEncoder, Toolset
from nbagent.providers.retry import RetryPolicy, retry_after_s

T = TypeVar("T")
KEY = "sk-test-0123456789abcdef"
TOOLS = (ToolSpec(name="fs.read", description="Read."), ToolSpec(name="b"))
QUICK = RetryPolicy(first_wait_s=0.01)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def ask(text: str = "hi", **more: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=(Message.of("user", text),), **more)


def with_client(
    server: ModelServer, work: Callable[[OpenAIClient], Awaitable[T]], **config: Any
) -> T:
    async def go() -> T:
        config.setdefault("base_url", server.url)
        given = ProviderConfig(api_key=SecretKey(KEY), **config)
        client = OpenAIClient(given, retry=QUICK)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(go())


def chat(
    server: ModelServer,
    request: ChatRequest,
    notices: list[ClientNotice] | None = None,
    **config: Any,
) -> ChatResponse:
    notify = notices.append if notices is not None else None
    return with_client(server, lambda client: client.chat(request, notify=notify), **config)


def stream(server: ModelServer, request: ChatRequest, **config: Any) -> list[ChatChunk]:
    async def collect(client: OpenAIClient) -> list[ChatChunk]:
        return [chunk async for chunk in client.chat_stream(request)]

    return with_client(server, collect, **config)


def failure(server: ModelServer, request: ChatRequest | None = None, **config: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        chat(server, request or ask(), **config)
    return caught.value


def test_stream_and_whole_answer_agree(server: ModelServer) -> None:
    reply = Reply(text="one two three", reasoning="so so", calls=[("fs__read", {"path": "a"})])
    server.then(reply, reply)
    chunks = stream(server, ask(tools=TOOLS))
    whole = chat(server, ask(tools=TOOLS))
    assert chunks[-1].done
    assert [chunk for chunk in chunks if chunk.done] == [chunks[-1]]
    streamed = chunks[-1].response
    assert streamed
    assert streamed.message == whole.message
    assert streamed.usage == whole.usage
    assert "".join(chunk.content for chunk in chunks) == whole.message.text
    assert whole.message.tool_calls[0].name == "fs.read"
    assert server.bodies[0]["stream_options"] == {"include_usage": True}
    assert "stream" not in server.bodies[1]


def test_connections_are_kept_after_a_stream(server: ModelServer) -> None:
    async def three(client: OpenAIClient) -> None:
        for _ in range(3):
            async for chunk in client.chat_stream(ask()):
                if chunk.done:
                    break
        await client.chat(ask())

    with_client(server, three)
    assert {request.connection for request in server.requests} == {1}


def test_only_what_was_set_is_sent(server: ModelServer) -> None:
    chat(server, ask())
    assert server.bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    chat(
        server,
        ask(
            system_prompt="Be brief.",
            tools=TOOLS,
            tool_choice="fs.read",
            temperature=0.5,
            max_tokens=7,
            stop_sequences=("X",),
            reasoning="low",
            output_schema={"type": "object"},
        ),
        extra_body={"top_k": 3},
    )
    body = server.bodies[1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["tool_choice"] == {"type": "function", "function": {"name": "fs__read"}}
    assert body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    kept = ("temperature", "max_tokens", "stop", "reasoning_effort", "top_k")
    assert [body[name] for name in kept] == [0.5, 7, ["X"], "low", 3]
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


def encoded(base_url: str, messages: list[Message], model: str = "m") -> list[Any]:
    encoder = HistoryEncoder(Dialect.of(base_url), model, Toolset(TOOLS))
    first = encoder.encode("", messages)
    assert encoder.encode("", messages) == first
    return json.loads(first)


def test_history_is_whitelisted_and_images_of_tools_follow_their_results() -> None:
    call = ToolCall(id="c1", name="fs.read", arguments={}, arguments_raw="")
    bad = ToolCall(id="weird id", name="b", arguments=None, arguments_raw="{oh")
    image = ImagePart(data="AAAA")
    wire = encoded(
        "http://h:1/v1",
        [
            Message.of("system", "S"),
            Message(role="assistant"),
            Message(role="user", content=(TextPart(text="look"), image)),
            Message(role="assistant", tool_calls=(call, bad), reasoning="hm"),
            Message(role="tool", tool_call_id="c1", name="x", content=(TextPart(text="r"), image)),
            Message(role="tool", tool_call_id="weird id", content=(TextPart(text="e"),)),
        ],
    )
    system, user, assistant, first, second, images = wire
    assert system == {"role": "system", "content": "S"}
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert assistant["content"] == ""
    assert assistant.keys() == {"role", "content", "tool_calls"}
    assert assistant["tool_calls"][0]["function"] == {"name": "fs__read", "arguments": "{}"}
    assert json.loads(assistant["tool_calls"][1]["function"]["arguments"])["INVALID_JSON"] == "{oh"
    assert first.keys() == {"role", "tool_call_id", "content"}
    assert second["tool_call_id"] == assistant["tool_calls"][1]["id"] != "weird id"
    assert images["role"] == "user"
    assert images["content"][1]["type"] == "image_url"


@pytest.mark.parametrize(
    ("base_url", "model", "expected"),
    [
        ("https://api.deepseek.com", "m", {"reasoning_content": "hm"}),
        ("https://api.deepseek.com", "other", {"reasoning_content": ""}),
        ("http://vllm:8000/v1", "m", {"reasoning": "hm"}),
        ("http://vllm:8000/v1", "other", {}),
        ("https://api.openai.com/v1", "m", {}),
    ],
)
def test_reasoning_goes_back_where_it_has_to(
    base_url: str, model: str, expected: dict[str, str]
) -> None:
    raw = {"origin": Dialect.of(base_url).origin, "model": "m", "reasoning_field": "reasoning"}
    call = ToolCall(id="c1", name="b", arguments={}, arguments_raw="{}")
    message = Message(role="assistant", tool_calls=(call,), reasoning="hm", raw=raw)
    (wire,) = encoded(base_url, [message], model)
    assert {name: wire[name] for name in wire if name.startswith("reasoning")} == expected


@pytest.mark.parametrize(
    ("status", "error", "code", "asked"),
    [
        (400, {}, "LLM_HTTP_ERROR", 1),
        (401, {}, "LLM_AUTH_FAILED", 1),
        (403, {}, "LLM_AUTH_FAILED", 1),
        (402, {}, "LLM_QUOTA_EXCEEDED", 1),
        (404, {}, "LLM_HTTP_ERROR", 1),
        (408, {}, "LLM_TIMEOUT", 3),
        (409, {}, "LLM_HTTP_ERROR", 3),
        (413, {}, "LLM_HTTP_ERROR", 1),
        (429, {}, "LLM_RATE_LIMITED", 3),
        (429, {"code": "insufficient_quota"}, "LLM_QUOTA_EXCEEDED", 1),
        (400, {"code": "context_length_exceeded"}, "LLM_CONTEXT_OVERFLOW", 1),
        (400, {"message": "prompt is too long: 9 tokens"}, "LLM_CONTEXT_OVERFLOW", 1),
        (500, {}, "LLM_HTTP_ERROR", 3),
        (503, {}, "LLM_HTTP_ERROR", 3),
        (529, {}, "LLM_HTTP_ERROR", 3),
    ],
)
def test_statuses_become_codes_and_only_some_are_tried_again(
    server: ModelServer, status: int, error: dict[str, str], code: str, asked: int
) -> None:
    body = {"error": {"message": "because", **error}}
    server.then(*[Reply(status=status, error=body, headers={"x-request-id": "r7"})] * 3)
    found = failure(server)
    assert (found.code, found.status, found.request_id) == (code, status, "r7")
    assert error.get("message", "because") in str(found)
    assert len(server.requests) == asked


@pytest.mark.parametrize("body", ["", "<html>", "[]", "null", '{"detail": "x"}', '{"error": "x"}'])
def test_error_bodies_of_any_shape_are_read(server: ModelServer, body: str) -> None:
    server.then(Reply(status=400, error=body))
    assert failure(server).code == "LLM_HTTP_ERROR"


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("0", 0.0, 0.0),
        ("-5", 0.0, 0.0),
        ("2.5", 2.5, 2.5),
        ("1e9", 1e9, 1e9),
        (formatdate(time.time() - 100, usegmt=True), 0.0, 0.0),
        (formatdate(time.time() + 3000, usegmt=True), 2000.0, 3000.0),
    ],
    ids=["0", "negative", "fraction", "huge", "a date in the past", "a date to come"],
)
def test_retry_after_is_read(header: str, low: float, high: float) -> None:
    found = retry_after_s({"retry-after": header})
    assert found is not None
    assert low <= found <= high


@pytest.mark.parametrize("header", ["", "soon", "nan", "NaN"])
def test_an_unreadable_retry_after_counts_as_absent(header: str) -> None:
    assert retry_after_s({"retry-after": header}) is None
    error = ModelError("x", retryable=True)
    wait_s = RetryPolicy().wait_s(error, 1, 600)
    assert wait_s is not None
    assert 0.37 <= wait_s <= 0.5


def test_two_429_with_retry_after_0_cost_next_to_nothing(server: ModelServer) -> None:
    limited = Reply(status=429, headers={"Retry-After": "0"})
    notices: list[ClientNotice] = []
    server.then(limited, limited, "done")
    response = chat(server, ask(), notices)
    assert response.message.text == "done"
    assert (response.meta.retries, response.meta.retry_wait_ms) == (2, 0.0)
    assert [(n.kind, n.attempt, n.wait_s) for n in notices] == [
        ("retry", 1, 0.0),
        ("retry", 2, 0.0),
    ]


def test_a_wait_of_more_than_a_minute_is_left_to_the_person(server: ModelServer) -> None:
    server.then(Reply(status=429, headers={"Retry-After": "1e9"}))
    found = failure(server)
    assert (found.code, found.retry_after_s, len(server.requests)) == ("LLM_RATE_LIMITED", 1e9, 1)


def test_retries_are_told_in_the_stream_and_stop_after_the_first_token(server: ModelServer) -> None:
    server.then(Reply(drop=True), "fine")
    chunks = stream(server, ask())
    assert chunks[0].notice
    assert chunks[0].notice.kind == "retry"
    assert chunks[-1].done
    server.then(Reply(text="half of it", cut=True))
    seen: list[str] = []

    async def cut(client: OpenAIClient) -> None:
        async for chunk in client.chat_stream(ask()):
            assert not chunk.done
            seen.append(chunk.content)

    with pytest.raises(ModelError) as caught:
        with_client(server, cut)
    assert caught.value.code in ("LLM_BAD_RESPONSE", "LLM_HTTP_ERROR")
    assert "".join(seen) == "half of it"
    assert len(server.requests) == 3


def test_an_ended_connection_without_an_end_of_the_stream_is_a_cut(server: ModelServer) -> None:
    server.then(Reply(raw=b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
    with pytest.raises(ModelError, match="cut") as caught:
        stream(server, ask())
    assert caught.value.code == "LLM_BAD_RESPONSE"


def test_redirects_are_not_followed(server: ModelServer) -> None:
    with ModelServer() as other:
        place = f"{other.url}/chat/completions?token=abc"
        server.then(Reply(status=307, error="", headers={"Location": place}))
        found = failure(server)
        assert found.code == "LLM_HTTP_ERROR"
        assert other.url in str(found)
        assert "token" not in str(found)
        assert other.requests == []


def test_a_gzip_bomb_stays_small(server: ModelServer) -> None:
    bomb = gzip.compress(b"0" * 300_000_000, 1)
    headers = {"Content-Encoding": "gzip"}
    server.then(Reply(raw=bomb, headers=headers, raw_type="application/json"))
    tracemalloc.start()
    found = failure(server)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.code == "LLM_BAD_RESPONSE"
    assert peak < 150_000_000


def test_gzip_is_read_and_other_encodings_are_refused(server: ModelServer) -> None:
    body = b'{"choices":[{"message":{"content":"ok"}}]}'
    kind = "application/json"
    server.then(
        Reply(raw=gzip.compress(body), headers={"Content-Encoding": "gzip"}, raw_type=kind),
        Reply(raw=body, headers={"Content-Encoding": "br"}, raw_type=kind),
    )
    assert chat(server, ask()).message.text == "ok"
    assert failure(server).code == "LLM_BAD_RESPONSE"


def test_the_deadline_covers_silence_drips_and_waits(server: ModelServer) -> None:
    server.then(
        Reply(text="late", delay_s=5),
        Reply(raw=b": ping\n" * 1000, raw_pieces=7, between_s=0.02),
        Reply(status=429, headers={"Retry-After": "30"}),
    )
    for code in ("LLM_TIMEOUT", "LLM_TIMEOUT", "LLM_RATE_LIMITED"):
        start = time.monotonic()
        assert failure(server, timeout_s=0.3).code == code
        assert time.monotonic() - start < 3


def test_no_server_is_a_clear_error(server: ModelServer) -> None:
    found = failure(server, base_url="http://127.0.0.1:1/v1")
    assert found.code == "LLM_HTTP_ERROR"
    assert "127.0.0.1:1" in str(found)
    assert "running" in str(found)


def test_a_refused_parameter_is_dropped_and_remembered(server: ModelServer) -> None:
    refusal = {
        "error": {
            "message": "Unsupported value: 'temperature' does not support 0.2 with this model.",
            "param": "temperature",
            "code": "unsupported_value",
        }
    }
    notices: list[ClientNotice] = []
    server.then(Reply(status=400, error=refusal))
    response = chat(server, ask(temperature=0.2), notices)
    assert [n.kind for n in notices] == ["dropped_param"]
    assert "temperature" in notices[0].text
    assert response.meta.dropped_params == ("temperature",)
    assert response.meta.retries == 0
    again = chat(server, ask(temperature=0.2), notices)
    assert again.meta.dropped_params == ("temperature",)
    assert len(notices) == 1
    assert ["temperature" in body for body in server.bodies] == [True, False, False]


def test_max_tokens_is_sent_under_the_name_that_is_taken(server: ModelServer) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens'."
    server.then(Reply(status=400, error={"error": {"message": said}}))
    response = chat(server, ask(max_tokens=9))
    assert server.bodies[1]["max_completion_tokens"] == 9
    assert "max_tokens" not in server.bodies[1]
    assert response.meta.dropped_params == ()


def test_tools_with_reasoning_are_asked_again_without_reasoning(server: ModelServer) -> None:
    said = "Function tools with reasoning_effort are not supported here. Use /v1/responses."
    error = {"error": {"message": said, "param": "reasoning_effort"}}
    server.then(Reply(status=400, error=error), "fine", "fine")
    response = chat(server, ask(tools=TOOLS))
    assert server.bodies[1]["reasoning_effort"] == "none"
    assert response.meta.dropped_params == ("reasoning_effort",)
    assert "reasoning_effort" not in (chat(server, ask()), server.bodies[2])[1]


def test_the_key_travels_in_one_header_and_shows_nowhere(server: ModelServer) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    server.then(Reply(status=401, error=error))

    async def work(client: OpenAIClient) -> str:
        with pytest.raises(ModelError) as caught:
            await client.chat(ask())
        found = caught.value
        assert found.__context__ is None
        http: Any = vars(client)["_http"]
        return f"{found} {found!r} {vars(found)} {client!r} {vars(client)} {vars(http)}"

    shown = with_client(server, work)
    assert KEY not in shown
    assert "[redacted]" in shown
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in server.requests[0].path


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(status=400, error="x" * 590 + KEY), id="refusal"),
        pytest.param(Reply(status=400, error=" " * (64 * 1024 - 16) + KEY), id="body over the cap"),
        pytest.param(Reply(raw=b"x" * 65 + KEY.encode() + b"z" * 3000), id="no answer"),
        pytest.param(Reply(raw=b"{" + b"x" * 64 + KEY.encode() + b"z" * 3000), id="broken JSON"),
        pytest.param(
            Reply(status=400, error="no", headers={"x-request-id": "x" * 185 + KEY}), id="id"
        ),
    ],
)
def test_a_text_of_the_server_is_redacted_before_it_is_cut(
    server: ModelServer, reply: Reply
) -> None:
    server.then(reply)
    with pytest.raises(ModelError) as caught:
        chat(server, ask())
    shown = f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert KEY[:8] not in shown, "neither the key nor a part of it"


def test_without_a_key_nothing_is_sent_to_openai() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        asyncio.run(OpenAIClient(ProviderConfig()).chat(ask()))
    assert caught.value.code == "LLM_AUTH_FAILED"


def test_a_key_that_cannot_be_a_header_is_named_without_showing_it(server: ModelServer) -> None:
    async def go() -> None:
        key = SecretKey("sk-with-ünïcode-and\nnewline")
        client = OpenAIClient(ProviderConfig(api_key=key, base_url=server.url))
        await client.chat(ask())

    with pytest.raises(ModelError) as caught:
        asyncio.run(go())
    assert caught.value.code == "LLM_AUTH_FAILED"
    assert "nïcode" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("example.org/api", "https://example.org/api"),
        ("https://api.deepseek.com", "https://api.deepseek.com"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        (
            "https://h/deployments/d/chat/completions?api-version=1",
            "https://h/deployments/d?api-version=1",
        ),
    ],
)
def test_base_urls_are_taken_as_they_are_meant(given: str, normal: str) -> None:
    assert normal_base_url(given) == normal


@pytest.mark.parametrize(
    "url", ["ftp://h/v1", "http://user:pw@h/v1", "http://h:port/v1", "http://"]
)
def test_a_base_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        OpenAIClient(ProviderConfig(base_url=url))


def test_models_are_listed_with_what_the_server_tells(server: ModelServer) -> None:
    server.models = [
        "plain",
        {"id": "v", "max_model_len": 4096},
        {"id": "r", "context_length": 10, "supported_parameters": ["tools", "seed"]},
        {"nonsense": 1},
    ]
    models = with_client(server, lambda client: client.list_models())
    assert [(m.id, m.context_length, m.capabilities) for m in models] == [
        ("plain", None, ()),
        ("v", 4096, ()),
        ("r", 10, ("tools",)),
    ]


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_leaving_a_stream_closes_its_connection(server: ModelServer, leave: str) -> None:
    server.then(Reply(text="a b c d e f g h", between_s=0.2))

    async def go(client: OpenAIClient) -> None:
        started = asyncio.Event()
        chunks = client.chat_stream(ask())

        async def follow() -> None:
            async for chunk in chunks:
                if chunk.content:
                    started.set()
                    if leave == "close":
                        return

        task = asyncio.create_task(follow())
        await started.wait()
        if leave == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
            await chunks.aclose()
        for _ in range(100):
            if server.closed_early:
                return
            await asyncio.sleep(0.02)

    with_client(server, go)
    assert server.closed_early == 1


def test_many_requests_at_once_share_one_pool(server: ModelServer) -> None:
    async def go(client: OpenAIClient) -> list[ChatResponse]:
        return await asyncio.gather(*[client.chat(ask(str(n))) for n in range(40)])

    texts = [response.message.text for response in with_client(server, go)]
    assert texts == [f"You said: {n}" for n in range(40)]


def test_a_loop_with_the_little_model_ends(server: ModelServer) -> None:
    response = chat(server, ask(tools=TOOLS))
    call = response.message.tool_calls[0]
    result = Message(role="tool", tool_call_id=call.id, content=(TextPart(text="42"),))
    messages = (Message.of("user", "hi"), response.message, result)
    final = chat(server, ChatRequest(model="m", messages=messages, tools=TOOLS))
    assert "42" in final.message.text
    assert server.bodies[1]["messages"][1]["tool_calls"][0]["id"] == call.id


def test_a_proxy_serves_other_hosts_but_never_this_machine(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer() as proxy:
        address = proxy.url.removesuffix("/v1")
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        chat(server, ask())
        assert proxy.requests == []
        chat(server, ask(), base_url="http://models.example.org/v1")
        assert proxy.requests[0].headers["host"] == "models.example.org"
        assert len(server.requests) == 1


def test_a_prompt_that_the_filter_stops_is_an_answer_not_a_failure(server: ModelServer) -> None:
    error = {"error": {"code": "content_filter", "message": "no", "status": 400}}
    server.then(Reply(status=400, error=error))
    response = chat(server, ask())
    assert (response.finish_reason, response.message.text) == ("content_filter", "")


def test_refusal_of_a_request_without_a_key_says_that_none_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = Reply(status=401, error={"error": {"message": "no."}})
    with ModelServer([refusal, refusal]) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url)
        bare = agent.run("Hello?").error
        monkeypatch.setenv("LLM_API_KEY", "sk-wrong-0123456789")
        keyed = agent.run("Hello?").error
    assert bare is not None
    assert keyed is not None
    assert bare.message.startswith(
        "the provider wants a key (HTTP 401): no. None was sent: set LLM"
    )
    assert keyed.message == "the provider refused the key (HTTP 401): no. Check the key."
