"""A small, fast model server on loopback that speaks Chat Completions; standard library only.

For tests, benches and notebooks in tests: `with ModelServer([...]) as server: server.url`.
It plays a script of answers, or (without one) behaves like a little model. It records requests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from servers.dialects import CHAT, call, chunked, completion, delta
from servers.hostile_server import whole
from servers.loopback import Loopback, Visit


@dataclass
class Reply:
    """One answer of the script. What is set is sent; a `status` other than 200 is an error."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    """`(name on the wire, arguments)`; arguments that are a str are sent as they are."""
    reasoning: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    deltas: int | None = None
    """Into how many pieces the text is cut; by default one per word."""
    between_s: float = 0.0
    """Between two deltas."""
    status: int = 200
    error: Any = None
    """The JSON body of an error, or a str that is sent as it is."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    """Close the connection after the deltas, without an end."""
    raw: bytes | None = None
    """Sent as the whole body instead of everything above; see `raw_headers`."""
    raw_pieces: int | None = None
    """Send `raw` in pieces of so many bytes."""
    raw_type: str = "text/event-stream"


Step = Reply | str | Callable[[Visit], "Reply | str"]


class ModelServer(Loopback):
    """Answers in its own thread. After the script's last step it behaves like a little model."""

    def __init__(
        self, script: Sequence[Step] = (), *, models: Sequence[Any] = ("little",), port: int = 0
    ) -> None:
        super().__init__(port=port)
        self.requests: list[Visit] = []
        self.models: list[Any] = list(models)
        self.loaded: list[Any] = []
        """Answer of Ollama to a question for the loaded models."""
        self._script = list(script)

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests if request.method == "POST"]

    def then(self, *steps: Step) -> None:
        self._script.extend(steps)

    async def answer(self, visit: Visit) -> None:
        self.requests.append(visit)
        visit.keep = True
        path = visit.path.partition("?")[0]
        if visit.method == "GET" and path.endswith(("/models", "/api/tags")):
            listed = [{"id": m} if isinstance(m, str) else m for m in self.models]
            body: Any = {"object": "list", "data": listed}
            if path.endswith("/api/tags"):
                body = {"models": [{"model": m["id"], "details": _details(m)} for m in listed]}
            return await visit.send(whole(body))
        if visit.method == "GET" and path.endswith("/api/ps"):
            return await visit.send(whole({"models": self.loaded}))
        step: Step = self._script.pop(0) if self._script else little_model
        made = step(visit) if callable(step) else step
        reply = Reply(text=made) if isinstance(made, str) else made
        for piece in _pieces_of(reply, visit.body or {}):
            await visit.send(piece)
            if reply.between_s:
                await asyncio.sleep(reply.between_s)
        visit.keep = not reply.cut and reply.raw is None
        return None


def little_model(request: Visit) -> Reply:
    """Call the first offered tool once, then say what came back."""
    body = cast("dict[str, Any]", request.body or {})
    messages = cast("list[dict[str, Any]]", body.get("messages") or [])
    tools = cast("list[dict[str, Any]]", body.get("tools") or [])
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.insert(0, str(message["content"]))
    said = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    if results:
        return Reply(text=f"The tools said: {'; '.join(results)}")
    if tools and body.get("tool_choice") != "none":
        function = tools[0]["function"]
        return Reply(calls=[(function["name"], _invented(function.get("parameters") or {}, said))])
    return Reply(text=f"You said: {said}")


def _invented(schema: dict[str, Any], said: Any) -> dict[str, Any]:
    """Arguments that fit a schema, the texts taken from what was said."""
    plain: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True}
    plain |= {"array": [], "object": {}}
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
    words = str(said).split() or ["x"]
    values: dict[str, Any] = {}
    for name in cast("list[str]", schema.get("required") or list(properties)):
        rule = properties.get(name, {})
        values[name] = (rule.get("enum") or [plain.get(str(rule.get("type")), words[-1])])[0]
    return values


def _details(model: dict[str, Any]) -> dict[str, Any]:
    meta: Any = model.get("meta")
    size: Any = cast("dict[str, Any]", meta).get("n_ctx") if isinstance(meta, dict) else None
    return {"context_length": model.get("max_model_len", size)}


def _pieces_of(reply: Reply, body: dict[str, Any]) -> Iterator[bytes]:
    """The answer, in the pieces between which it may wait."""
    status, headers = f"{reply.status} X", [f"{n}: {v}" for n, v in reply.headers.items()]
    start = "\r\n".join([f"HTTP/1.1 {status}", *headers, "Content-Type: "])
    if reply.raw is not None:
        raw, step = reply.raw, reply.raw_pieces or max(1, len(reply.raw))
        yield f"{start}{reply.raw_type}\r\nConnection: close\r\n\r\n".encode()
        yield from (raw[at : at + step] for at in range(0, len(raw), step))
    elif reply.status != 200 or reply.error is not None:
        error = reply.error if reply.error is not None else {"error": {"message": "scripted"}}
        yield whole(error.encode() if isinstance(error, str) else error, status, headers)
    elif body.get("stream"):
        yield f"{start}text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        yield from (chunked(CHAT.frame(chunk)) for chunk in _chunks(reply, body))
        if not reply.cut:
            yield chunked(CHAT.end) + b"0\r\n\r\n"
    else:
        yield whole(_whole(reply, body), headers=headers)


def _usage(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    if reply.usage is not None:
        return reply.usage
    asked = len(json.dumps(body.get("messages", []))) // 4 + 1
    said = len(reply.text.split()) + 5 * len(reply.calls) + 1
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _wire_calls(reply: Reply, body: dict[str, Any]) -> list[dict[str, Any]]:
    turn = len(cast("list[Any]", body.get("messages") or []))
    given = ((n, a if isinstance(a, str) else json.dumps(a)) for n, a in reply.calls)
    return [call(*it, id=f"call_{turn}_{n}", index=n) for n, it in enumerate(given)]


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _whole(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    fields = {"tool_calls": _wire_calls(reply, body), "reasoning_content": reply.reasoning}
    message = {name: value for name, value in fields.items() if value}
    answer = completion(reply.text or None, **message)
    answer["choices"][0]["finish_reason"] = _finish(reply)
    known = {"id": "c1", "object": "chat.completion", "model": body.get("model")}
    return {**answer, **known, "usage": _usage(reply, body)}


def _chunks(reply: Reply, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    chunks = [delta(role="assistant", content="")]
    chunks += [delta(reasoning_content=word) for word in _pieces(reply.reasoning, None)]
    chunks += [delta(content=piece) for piece in _pieces(reply.text, reply.deltas)]
    for made in _wire_calls(reply, body):
        arguments = made["function"]["arguments"]
        half = len(arguments) // 2
        start = {**made, "function": {**made["function"], "arguments": arguments[:half]}}
        rest = {"index": made["index"], "function": {"arguments": arguments[half:]}}
        chunks += [delta(tool_calls=[start]), delta(tool_calls=[rest])]
    if not reply.cut:
        chunks.append(delta(_finish(reply)))
        options = cast("dict[str, Any]", body.get("stream_options") or {})
        if options.get("include_usage"):
            chunks.append({"choices": [], "usage": _usage(reply, body)})
    for chunk in chunks:
        yield {"id": "c1", "model": body.get("model"), **chunk}


def _pieces(text: str, count: int | None) -> list[str]:
    """A text in so many pieces, or word by word."""
    if count is None:
        return re.findall(" ?[^ ]+| ", text)
    # More deltas than letters: the text is repeated so that the count holds.
    text *= -(-count // len(text))
    return [text[i * len(text) // count : (i + 1) * len(text) // count] for i in range(count)]
