"""Makes notebooks/providers.jsonl: the answers that notebooks/providers.ipynb replays.

`python tests/notebooks/make_cassette.py`, then `make_outputs.py`.

No provider is asked. The notebook runs in mode `auto` through the real clients; only the sending
of bytes is replaced, by a stand-in that answers in the format of each provider. What is said was
written by hand, below; what the record says of it is the work of the wires.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from make_outputs import NOTEBOOKS, executed

NOTEBOOK = NOTEBOOKS / "providers.ipynb"
CASSETTE = NOTEBOOKS / "providers.jsonl"
KEYS = (
    *("OPENAI", "AZURE_OPENAI", "ANTHROPIC", "GEMINI", "DEEPSEEK", "OPENROUTER", "GROQ"),
    *("MISTRAL", "LLM"),
)
JSON = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One answer of a model."""

    text: str = ""
    thought: str = ""
    cities: tuple[str, ...] = ()
    """It calls `population` for each."""
    opens: bool = False
    """It is the model's first one in its conversation."""


@dataclass(frozen=True)
class Answer:
    """What is sent for it: with ids and usage."""

    said: Said
    model: str
    key: str
    """Ids are made from it."""
    prompt: int
    cached: int

    @property
    def calls(self) -> list[tuple[str, JSON]]:
        """An id and the arguments of each call."""
        ids = (
            hashlib.sha256(f"{self.key} {city}".encode()).hexdigest() for city in self.said.cities
        )
        return [(id[:9], {"city": city}) for id, city in zip(ids, self.said.cities, strict=True)]

    @property
    def thought_tokens(self) -> int:
        """About a token for three letters of a summary, which is shorter than the thoughts."""
        return len(self.said.thought) // 3

    @property
    def completion(self) -> int:
        """Thoughts included."""
        return self.thought_tokens + len(self.said.text) // 4 + 18 * len(self.said.cities) + 2

    @property
    def signature(self) -> str:
        """Stands for what a provider encrypts."""
        return f"written-by-hand-{self.key}"


Format = Callable[[Answer], Iterator[bytes]]


def words(text: str) -> Iterator[str]:
    """The pieces of a stream."""
    for n, word in enumerate(text.split(" ") if text else ()):
        yield f" {word}" if n else word


def event(data: JSON, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def chat(answer: Answer, field: str = "reasoning_content") -> Iterator[bytes]:
    """Chat Completions; servers differ in where the reasoning is."""

    def chunk(delta: JSON, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({"id": f"c-{answer.key}", "model": answer.model, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in words(answer.said.thought):
        if field == "mistral":
            thinking = {"type": "thinking", "thinking": [{"type": "text", "text": piece}]}
            yield chunk({"content": [thinking]})
        elif field == "details":
            detail = {"type": "reasoning.text", "text": piece, "format": "unknown", "index": 0}
            yield chunk({"reasoning": piece, "reasoning_details": [detail]})
        else:
            yield chunk({field: piece})
    for piece in words(answer.said.text):
        yield chunk({"content": piece})
    for n, (id, arguments) in enumerate(answer.calls):
        function = {"name": "population", "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": n, "id": id, "type": "function", "function": function}]}
        )
        rest = {"index": n, "function": {"arguments": json.dumps(arguments)}}
        yield chunk({"tool_calls": [rest]})
    yield chunk({}, "tool_calls" if answer.calls else "stop")
    usage = {
        "prompt_tokens": answer.prompt,
        "completion_tokens": answer.completion,
        "total_tokens": answer.prompt + answer.completion,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
        "completion_tokens_details": {"reasoning_tokens": answer.thought_tokens},
    }
    yield event({"id": f"c-{answer.key}", "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def responses(answer: Answer) -> Iterator[bytes]:
    """OpenAI Responses: items, of which the one with the reasoning is encrypted."""
    items: list[JSON] = []

    def typed(kind: str, **data: Any) -> bytes:
        name = f"response.{kind}"
        return event({"type": name, **data}, name)

    def done(item: JSON) -> bytes:
        items.append(item)
        return typed("output_item.done", output_index=len(items) - 1, item=item)

    if thought := answer.said.thought:
        for piece in words(thought):
            yield typed("reasoning_summary_text.delta", output_index=0, delta=piece)
        summary = [{"type": "summary_text", "text": thought}]
        item = {"type": "reasoning", "id": f"rs_{answer.key}", "summary": summary}
        yield done({**item, "encrypted_content": answer.signature})
    for id, arguments in answer.calls:
        call = {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}"}
        call = {**call, "name": "population", "arguments": ""}
        yield typed("output_item.added", output_index=len(items), item=call)
        text = json.dumps(arguments)
        yield typed("function_call_arguments.delta", output_index=len(items), delta=text)
        yield done({**call, "arguments": text})
    if text := answer.said.text:
        for piece in words(text):
            yield typed("output_text.delta", output_index=len(items), delta=piece)
        content: list[JSON] = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "id": f"msg_{answer.key}", "role": "assistant"}
        yield done({**message, "status": "completed", "content": content})
    usage = {
        "input_tokens": answer.prompt,
        "input_tokens_details": {"cached_tokens": answer.cached},
        "output_tokens": answer.completion,
        "output_tokens_details": {"reasoning_tokens": answer.thought_tokens},
        "total_tokens": answer.prompt + answer.completion,
    }
    whole = {"id": f"resp_{answer.key}", "status": "completed", "model": answer.model}
    yield typed("completed", response={**whole, "output": items, "usage": usage})


def anthropic(answer: Answer) -> Iterator[bytes]:
    """Messages: blocks, of which the one with the thinking is signed."""

    def typed(kind: str, **data: Any) -> bytes:
        return event({"type": kind, **data}, kind)

    fresh = answer.prompt - answer.cached
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": answer.cached,
        "cache_creation_input_tokens": fresh - 4,
        "output_tokens": 1,
    }
    message = {"id": f"msg_{answer.key}", "role": "assistant", "model": answer.model}
    yield typed("message_start", message={**message, "content": [], "usage": usage})
    blocks: list[tuple[JSON, list[JSON]]] = []
    if answer.said.thought:
        deltas = [{"type": "thinking_delta", "thinking": it} for it in words(answer.said.thought)]
        signed = {"type": "signature_delta", "signature": answer.signature}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]))
    if answer.said.text:
        deltas = [{"type": "text_delta", "text": it} for it in words(answer.said.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for id, arguments in answer.calls:
        call: JSON = {"type": "tool_use", "id": f"toolu_{id}", "name": "population", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        blocks.append((call, [delta]))
    for n, (block, deltas) in enumerate(blocks):
        yield typed("content_block_start", index=n, content_block=block)
        for delta in deltas:
            yield typed("content_block_delta", index=n, delta=delta)
        yield typed("content_block_stop", index=n)
    details = {"thinking_tokens": answer.thought_tokens}
    used = {"output_tokens": answer.completion, "output_tokens_details": details}
    reason = "tool_use" if answer.calls else "end_turn"
    yield typed("message_delta", delta={"stop_reason": reason}, usage=used)
    yield typed("message_stop")


def google(answer: Answer) -> Iterator[bytes]:
    """Gemini: parts; the first call of an answer, or its last text, carries a signature."""

    def chunk(part: JSON, **more: Any) -> bytes:
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, **more}
        usage = {
            "promptTokenCount": answer.prompt,
            "cachedContentTokenCount": answer.cached,
            "candidatesTokenCount": answer.completion - answer.thought_tokens,
            "thoughtsTokenCount": answer.thought_tokens,
            "totalTokenCount": answer.prompt + answer.completion,
        }
        found = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": answer.model}
        return event(found)

    if answer.said.thought:
        yield chunk({"text": answer.said.thought, "thought": True})
    for piece in words(answer.said.text):
        yield chunk({"text": piece})
    signed = {"thoughtSignature": answer.signature}
    for n, (id, arguments) in enumerate(answer.calls):
        call = {"functionCall": {"id": id, "name": "population", "args": arguments}}
        yield chunk({**call, **(signed if n == 0 else {})})
    last = {"text": "", **({} if answer.calls else signed)}
    yield chunk(last, finishReason="STOP")


def ollama(answer: Answer) -> Iterator[bytes]:
    """Ollama's own: a line for each piece."""

    def line(message: JSON, **more: Any) -> bytes:
        message = {"role": "assistant", "content": "", **message}
        found = {"model": answer.model, "message": message, "done": False, **more}
        return json.dumps(found, ensure_ascii=False).encode() + b"\n"

    for piece in words(answer.said.thought):
        yield line({"thinking": piece})
    for piece in words(answer.said.text):
        yield line({"content": piece})
    for id, arguments in answer.calls:
        function = {"name": "population", "arguments": arguments}
        yield line({"tool_calls": [{"id": f"call_{id[:8]}", "function": function}]})
    counts = {"prompt_eval_count": answer.prompt, "eval_count": answer.completion}
    spent = {"total_duration": 2_400_000_000, "eval_duration": 1_900_000_000}
    yield line({}, done=True, done_reason="stop", **counts, **spent)


@dataclass
class Voice:
    """A model of the notebook: how its server answers, and what it says to the questions."""

    format: Format
    larger: str
    by: str
    think: str = ""
    """Before it calls the tool."""
    more: tuple[Said, ...] = ()
    """What else it says in the notebook."""
    served: str = ""
    """The model that the server says it ran, where that is another one."""
    caches: bool = False
    wants_back: bool = False
    """Its reasoning has to come with the next request of the conversation."""
    _asked: int = field(default=0, init=False)
    _talk: list[Answer] = field(default_factory=list[Answer], init=False)
    """Its answers in this conversation."""

    @property
    def says(self) -> tuple[Said, ...]:
        """All its answers, in the order in which it is asked."""
        calls = Said("", self.think, ("Oslo", "Bergen"), opens=True)
        return (calls, Said(self.larger), Said(self.by), *self.more)

    def answer(self, model: str, body: bytes) -> bytes:
        """The bytes of the next answer."""
        said = self.says[self._asked]
        self._asked += 1
        self._talk = [] if said.opens else self._talk
        for before in self._talk if self.wants_back else ():
            thought = json.dumps(before.said.thought, ensure_ascii=False).encode()
            came = before.signature.encode() in body or thought in body
            assert came or not before.said.thought, "reasoning stayed behind"
        cached = self._talk[-1].prompt if self._talk and self.caches else 0
        key, served = f"{model.rpartition('/')[2]}-{self._asked}", self.served or model
        # Not the body's size: that changes with each key that a wire sends.
        prompt = 190 + 5 * len(model) + 110 * len(self._talk)
        made = Answer(said, served, key, prompt, cached)
        self._talk.append(made)
        return b"".join(self.format(made))


def flag(think: str, text: str) -> tuple[Said, Said]:
    """The question about the picture."""
    return Said("", think, ("Oslo",), opens=True), Said(text)


VOICES = {
    "gpt-5.4": Voice(
        chat,
        "Oslo: 717,710 people, against 291,940 in Bergen.",
        "By 425,770 people.",
        served="gpt-5.4-2026-03-05",
        caches=True,
    ),
    "gpt-6-astra": Voice(
        responses,
        "**Oslo** is larger, with 717,710 people to Bergen's 291,940.",
        "**425,770** people: Oslo has almost two and a half times as many.",
        "I need both numbers, so I ask for both at once.",
        caches=True,
        wants_back=True,
    ),
    "our-gpt": Voice(chat, "Oslo is larger.", "The difference is 425,770 people."),
    "claude-sonnet-5-5": Voice(
        anthropic,
        "Oslo is the larger one: **717,710** people live there, and **291,940** in Bergen.",
        "By **425,770** people.",
        "Two cities, one tool. I can look up both in one go.",
        flag(
            "A red field, and a blue cross with white borders: Norway. Its capital is Oslo.",
            "This is the flag of **Norway**. In its capital, Oslo, live **717,710** people.",
        ),
        caches=True,
        wants_back=True,
    ),
    "gemini-3.8-flash": Voice(
        google,
        "Oslo, with 717,710 inhabitants, is larger than Bergen with 291,940.",
        "Oslo has 425,770 more inhabitants.",
        "**Comparing**\n\nI look up the population of each city.",
        (
            *flag(
                "**Reading the picture**\n\nA Nordic cross in red, white and blue is Norway.",
                "Norway's flag. Oslo, the capital, has 717,710 inhabitants.",
            ),
            Said("Oslo is larger than Bergen by 425,770 people.", opens=True),
        ),
        caches=True,
        wants_back=True,
    ),
    "deepseek-flash": Voice(
        chat,
        "Oslo is larger (717,710 against 291,940).",
        "By 425,770.",
        "The user wants to compare Oslo and Bergen. I call population twice.",
        caches=True,
        wants_back=True,
    ),
    "moonshotai/kimi-k2-thinking": Voice(
        partial(chat, field="details"),
        "Oslo is larger: 717,710 vs. 291,940.",
        "By 425,770 people, which is about 146 % more.",
        "Let me get both populations.",
        wants_back=True,
    ),
    "openai/gpt-oss-120b": Voice(
        partial(chat, field="reasoning"),
        "**Oslo** (717,710) is larger than **Bergen** (291,940).",
        "Oslo is larger by **425,770** people.",
        "Need populations. Use the function for both.",
    ),
    "mistral-medium-latest": Voice(
        partial(chat, field="mistral"),
        "Oslo is the larger city, with 717,710 people.",
        "The difference is 425,770 people.",
        "I compare the two cities with the tool.",
    ),
    "qwen3:8b": Voice(
        ollama,
        "Oslo is larger than Bergen.",
        "Oslo has 425770 more people than Bergen.",
        "Okay, the user asks which is larger. I should call the tool for both cities.",
        wants_back=True,
    ),
    "gemma": Voice(chat, "Oslo is larger: 717,710 people.", "425,770 people.", caches=True),
    "house-model": Voice(chat, "The larger city is Oslo.", "It is larger by 425,770 people."),
}


class _Played:
    """An answer in the place of `http.Response`."""

    status = 200
    request_id: str | None = None

    def __init__(self, body: bytes) -> None:
        self.headers: dict[str, str] = {}
        self._body = body

    async def pieces(self, limit: int = 0) -> AsyncGenerator[bytes]:
        yield self._body

    def shorten(self, within_s: float) -> None:
        pass

    async def aclose(self) -> None:
        pass


def install() -> None:
    """In the notebook's kernel: nothing is sent from now on, and each provider has a key."""
    import os

    from nbagent.providers.http import HttpClient

    os.environ.update({f"{name}_API_KEY": "never-sent-anywhere" for name in KEYS})

    async def send(
        self: HttpClient, method: str, path: str, body: bytes | None = None, **how: Any
    ) -> Any:
        asked = cast("JSON", json.loads(body or b"{}"))
        model = asked.get("model") or path.rpartition("models/")[2].partition(":")[0]
        return _Played(VOICES[model].answer(model, body or b""))

    HttpClient.send = send


def make(cassette: Path) -> None:
    """Run the notebook in mode `auto`, and keep what it records."""

    def records(source: str) -> str:
        here = str(Path(__file__).parent)
        first = f"import sys; sys.path.insert(0, {here!r})\n"
        first += "from make_cassette import install; install()\n"
        source = source.replace('cache="replay"', 'cache="auto"')
        return source.replace("%load_ext nbagent", f"{first}%load_ext nbagent")

    with tempfile.TemporaryDirectory() as folder:
        executed(NOTEBOOK, Path(folder), change=records)
        text = (Path(folder) / cassette.name).read_text("utf-8")
    made, written = text.count("\n"), sum(len(voice.says) for voice in VOICES.values())
    if made != written:
        raise SystemExit(f"{made} answers were recorded, {written} are written here; look why")
    cassette.write_text(text, "utf-8")
    print(f"{cassette.name}: {made} answers, {len(text):,} bytes")


if __name__ == "__main__":
    make(CASSETTE)
