"""Answers and requests of Messages servers: Anthropic's own, and others that speak it.

`#n` in an id is the number of a quirk that the rest of the id names; `WIRE.quirks` lists them.
https://docs.claude.com/en/api/messages
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from servers.dialects import ANTHROPIC
from wires.chat_cases import AFTER_RESULTS
from wires.chat_requests import BLUE, EMPTY, FAR, PDF, READ, RED, TABLE, called, result, user
from wires.harness import (
    ABSENT,
    JSON,
    TOOLS,
    AnswerCase,
    Exactly,
    ModelsCase,
    RequestCase,
    WireSetup,
    ask,
    everything,
)

from nbagent.contracts.messages import Message, TextPart, ToolCall

SERVERS = {
    "anthropic": "https://api.anthropic.com/v1",
    "deepseek": "https://api.deepseek.com/anthropic",
    "ollama": "http://ollama:11434",
    "llama.cpp": "http://box:8080/v1",
}
USED: JSON = {"input_tokens": 5, "output_tokens": 2}
SUM = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
STOP: JSON = {"type": "message_stop"}
delta, start, pieces = ANTHROPIC.delta, ANTHROPIC.start, ANTHROPIC.block
head, tail, sse = ANTHROPIC.head_event, ANTHROPIC.tail, ANTHROPIC.stream
HTTP, BAD = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"


def event(type: str, **fields: Any) -> JSON:
    return {"type": type, **fields}


def said(words: Any, place: int = 0) -> JSON:
    return delta(place, "text", text=words)


def wrote(piece: str, place: int = 0) -> JSON:
    return delta(place, "input_json", partial_json=piece)


def whole(*content: Any, **more: Any) -> bytes:
    return json.dumps(ANTHROPIC.message(*content, **more)).encode()


def stream(*content: JSON, **more: Any) -> bytes:
    return sse(*ANTHROPIC.events(*content, **more))


def both(id: str, *content: JSON, word: Any = "end_turn", **given: Any) -> AnswerCase:
    more: JSON = {"word": word, "usage": given.pop("used", None), **given.pop("more", {})}
    body, streamed = whole(*content, **more), stream(*content, **more)
    return AnswerCase(id, body=body, stream=streamed, **given)


def text(words: str, **more: Any) -> JSON:
    return {"type": "text", "text": words, **more}


def use(id: str, name: str = "fs__look", **arguments: Any) -> JSON:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def given_back(id: str, content: Any = ..., **more: Any) -> JSON:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


THOUGHT: JSON = {"type": "thinking", "thinking": "Hm, so.", "signature": "SIG=="}
SILENT: JSON = {"type": "thinking", "thinking": "", "signature": "SIG2"}
REDACTED: JSON = {"type": "redacted_thinking", "data": "RED=="}
SEARCHED: JSON = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": 1}}
FOUND: JSON = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"a": None}]}
GREETING = "Grüße \u2028 both"
LOOK, LOOKED = use("toolu_1", at="a"), ("fs.look", {"at": "a"})
FINE = whole(text("fine"))


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    usage: JSON = {
        "input_tokens": 12, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 100,
        "output_tokens": 40, "output_tokens_details": {"thinking_tokens": 20},
    }  # fmt: skip
    counts = {"prompt_tokens": 142, "completion_tokens": 40, "total_tokens": 182}
    counts |= {"cached_tokens": 100, "cache_write_tokens": 30, "reasoning_tokens": 20}
    content = [THOUGHT, text(GREETING), LOOK, use("toolu_2", "b", n=1)]
    both_forms: JSON = {
        "body": whole(*content, word="tool_use", usage=usage, diagnostics={"x": 1}),
        "stream": b'event: ping\ndata: {"type": "ping"}\n\n: alive\n\n' + stream(
            *content, word="tool_use", usage=usage),
    }  # fmt: skip
    back = {"messages": [..., {"role": "assistant", "content": list(map(Exactly, content))}, {
        "role": "user", "content": [given_back("toolu_1"), given_back("toolu_2")]}]}  # fmt: skip
    yield AnswerCase(
        "thinking, text, two calls, usage, unknown fields #46", **both_forms, text=GREETING,
        reasoning="Hm, so.", calls=[LOOKED, ("b", {"n": 1})], ids=["toolu_1", "toolu_2"],
        usage=counts, thorough=True, back=back,
    )  # fmt: skip
    yield both("text alone", text("One two"), used=USED, text="One two", usage=SUM, thorough=True)


DETAILS: JSON = {"type": "refusal", "category": "cyber", "explanation": "I will not."}
REFUSED: JSON = {
    "finish": "content_filter", "raw": {"stop_details": DETAILS}, "more": {"stop_details": DETAILS}
}  # fmt: skip
# id: blocks and stop reason, and what they come to.
WHOLE: dict[str, tuple[list[JSON], str, JSON]] = {
    "one call": ([LOOK], "tool_use", {"calls": [LOOKED], "raw": {"blocks": ABSENT}}),
    "blocks of later versions": ([{"type": "mood", "of": 1}, text("x")], "end_turn", {"text": "x"}),
    "a tool of the server's is no call": ([SEARCHED, FOUND, text("x")], "end_turn", {
        "text": "x", "back": {"messages": [
            ..., {"content": [Exactly(SEARCHED), Exactly(FOUND), text("x")]}]}}),
    "refused": ([], "refusal", {"text": "I will not.", **REFUSED}),
    "refused in the middle": ([text("Half.")], "refusal", {"text": "Half.", **REFUSED}),
}  # fmt: skip


def blocks() -> Iterator[AnswerCase]:
    for id, (content, word, expect) in WHOLE.items():
        yield both(id, *content, word=word, **expect)
    for id, (parts, expect) in STREAMS.items():
        yield AnswerCase(id, stream=sse(*parts), **expect)
    for word, finish in FINISH.items():
        notes = [NOTES[word]] if word in NOTES else ()
        yield both(f"ended by {word}", text("x"), word=word, text="x", finish=finish, notes=notes)


def parsed(*parts: str) -> list[JSON]:
    """A call whose input comes in these pieces, and no stop of its block."""
    return [start(0, {**LOOK, "input": {}}), *map(wrote, parts)]


CALLED: JSON = {"calls": [LOOKED]}
GIVEN: JSON = {"calls": [("fs.look", {"at": None})]}
CUT: JSON = {"error": BAD, "words": "cut"}
NAMED = b'event: content_block_delta\ndata: {"delta": {"type": "text_delta", "text": "x"}}\n\n'
READ_MORE: JSON = {"input_tokens": None, "cache_read_input_tokens": 6, "output_tokens": 3}
# id: events, and what they come to.
STREAMS: dict[str, tuple[list[Any], JSON]] = {
    "input at the start, and no pieces": ([start(0, LOOK), *tail("tool_use")], CALLED),
    "only empty pieces": ([*parsed("", ""), *tail()], {"calls": [("fs.look", {})]}),
    "a piece that says null": ([*parsed('{"at": ', "null", "}"), *tail()], GIVEN),
    "blocks that take turns": (
        [start(1, text("")), *parsed('{"at":'), said("a", 1), wrote('"a"}'), said("b", 1), *tail()],
        {"text": "ab", **CALLED}),
    "unknown events and deltas": (
        [head(), event("mood", index=0), delta(0, "mood", mood="x"),
         b"event: later\ndata: {}\n\n", said("x", 1), *tail()], {"text": "x"}),
    "usage: the last word counts #46": (
        [head({"input_tokens": 9, "cache_read_input_tokens": 4}), said("x"),
         *tail(usage=READ_MORE)],
        {"text": "x", "usage": {"prompt_tokens": 15, "completion_tokens": 3, "total_tokens": 18,
                   "cached_tokens": 6}}),
    "what follows the end is ignored": (
        [said("x"), *tail(), b"data: [DONE]\n\n", b"data: {oops\n\n"], {"text": "x"}),
    "a thousand beginnings": (
        [event for n in range(1_000) for event in (head(), said(f"Draft {n}."))] + tail(),
        {"text": "Draft 999."}),
    "data without the name of its event": (
        [NAMED, b"event: message_stop\ndata: {}\n\n"], {"text": "x"}),
    "a second start voids what came before": (
        [head({"input_tokens": 9}), *pieces(0, SILENT), said("Half a", 1), *pieces(2, LOOK),
         head({"input_tokens": 5}), said("Whole.", 0), *tail()],
        {"text": "Whole.", "usage": {"prompt_tokens": 5, "total_tokens": 5},
         "raw": ABSENT}),
    "a second start before anything came": (
        [head(), said("x", 0), *tail()], {"text": "x"}),
    "usage: a later 0 voids none": (
        [head({"input_tokens": 9}), said("x"),
         *tail(usage={"input_tokens": 0, "output_tokens": 3})],
        {"text": "x", "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}),
    "[DONE] is no end": ([*pieces(0, LOOK), tail("tool_use")[0], b"data: [DONE]\n\n"],
                         CUT),
}  # fmt: skip
NOTES: dict[Any, str] = {
    "pause_turn": "paused its answer (pause_turn)",
    "compaction": "paused its answer (compaction)",
    "bored": "'bored'",
}
"""Words of a stop that a person is told, and a part of the notice."""
FINISH = {
    **dict.fromkeys(("end_turn", "stop_sequence", "tool_use", None, *NOTES), "stop"),
    **dict.fromkeys(("max_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("refusal", "sensitive", "guardrail_intervened"), "content_filter"),
}
CLAUDE = "claude-opus-5-5"
CUT_SHORT: JSON = {"type": "thinking", "thinking": "never signed"}
# id: blocks of the answer, fields of the case; the blocks of the next request.
BACK: dict[str, tuple[list[JSON], JSON, list[Any]]] = {
    "silent and redacted thinking": (
        [SILENT, REDACTED, text(" So. "), THOUGHT, LOOK], {},
        [Exactly(SILENT), REDACTED, text(" So. "), THOUGHT, LOOK]),
    "thinking without a signature": ([CUT_SHORT, text("x"), LOOK], {}, [text("x"), LOOK]),
    "text of nothing, a later snapshot of the model": (
        [THOUGHT, text(" \n"), LOOK], {"next_model": f"{CLAUDE}-20261101"}, [THOUGHT, LOOK]),
    "another model": (
        [THOUGHT, REDACTED, text("x"), LOOK], {"next_model": "claude-sonnet-5-5"},
        [text("x"), LOOK]),
    "another server": (
        [THOUGHT, text("x"), LOOK], {"next_server": "llama.cpp"}, [text("x"), LOOK]),
}  # fmt: skip


def going_back() -> Iterator[AnswerCase]:
    """Parts that Anthropic needs back byte for byte, and that others must not get."""
    for id, (content, given, sent) in BACK.items():
        written = "".join(block.get("text", "") for block in content)
        expect: JSON = {
            "text": written if written.strip() else "",
            "reasoning": "".join(block.get("thinking", "") for block in content) or None,
            "back": {"messages": [..., {"content": sent}, {"content": [given_back("toolu_1")]}]},
            "request": ask(model=CLAUDE, tools=TOOLS),
        }
        more = {**expect, "server": "anthropic", "calls": [LOOKED], **given}
        yield both(f"back: {id} #45", *content, **more)
    lost: JSON = {"reasoning": CUT_SHORT["thinking"], "back": {"messages": [{"role": "user"}]}}
    yield both("back: an answer that was only thinking #20", CUT_SHORT, **lost)


CAPPED = {"retry-after": "", "anthropic-ratelimit-requests-limit": "50"}


COMPACTED: JSON = {"type": "compaction", "content": "The story so far.", "signature": "C=="}
MESSAGE_COUNTS: JSON = {"type": "message", "input_tokens": 23, "output_tokens": 10}
COMPACTION_COUNTS: JSON = {
    "type": "compaction", "input_tokens": 180, "output_tokens": 35, "cache_read_input_tokens": 7,
}  # fmt: skip
# id: sums, entries of `iterations`; prompt and completion tokens.
ITERATIONS: dict[str, tuple[tuple[int, int], Any, tuple[int, int]]] = {
    "one compaction": ((23, 10), [COMPACTION_COUNTS, MESSAGE_COUNTS], (210, 45)),
    "two compactions": (
        (23, 10), [COMPACTION_COUNTS, COMPACTION_COUNTS, MESSAGE_COUNTS], (397, 80)),
    "nothing but a compaction": ((0, 0), [COMPACTION_COUNTS], (187, 35)),
    "messages alone are in the sums": ((46, 20), [MESSAGE_COUNTS, MESSAGE_COUNTS], (46, 20)),
    "an adviser has another price": (
        (23, 10), [MESSAGE_COUNTS, {**MESSAGE_COUNTS, "type": "advisor_message"}], (23, 10)),
    "a declined fallback is in no sum": (
        (23, 10), [MESSAGE_COUNTS, {**MESSAGE_COUNTS, "type": "fallback_message"}], (23, 10)),
    "null": ((23, 10), None, (23, 10)),
    "no list": ((23, 10), {"type": "compaction", "input_tokens": 5}, (23, 10)),
    "odd counts": ((23, 10), [{"type": "compaction", "input_tokens": -5, "output_tokens": "x"}, 3],
                   (23, 10)),
}  # fmt: skip


def compactions() -> Iterator[AnswerCase]:
    """Compactions at the server: their counts, their blocks, and the pause after one."""
    for id, ((read, wrote), entries, (prompt, completion)) in ITERATIONS.items():
        used = {"input_tokens": read, "output_tokens": wrote, "iterations": entries}
        counts = {"prompt_tokens": prompt, "completion_tokens": completion}
        counts["total_tokens"] = prompt + completion
        if prompt in (210, 187, 397):
            counts["cached_tokens"] = 14 if prompt == 397 else 7
        yield both(f"iterations: {id}", text("x"), used=used, text="x", usage=counts)
    added: JSON = {"input_tokens": 203, "output_tokens": 45, "cache_read_input_tokens": 7}
    added["iterations"] = [COMPACTION_COUNTS, MESSAGE_COUNTS]
    counts = {"prompt_tokens": 210, "completion_tokens": 45, "total_tokens": 255}
    yield both("iterations: a gateway has added them", text("x"), used=added, text="x",
               usage={**counts, "cached_tokens": 7})  # fmt: skip
    signed = {k: v for k, v in COMPACTED.items() if k != "content"}
    events = [
        head(), start(0, {"type": "compaction", "content": None}),
        delta(0, "compaction", **{k: COMPACTED[k] for k in ("content", "signature")}),
        *pieces(1, text("x")), *tail(),
    ]  # fmt: skip
    request, server = ask(model=CLAUDE, tools=TOOLS), "anthropic"
    back = {"messages": [..., {"content": [Exactly(COMPACTED), text("x")]}]}
    given: JSON = {"text": "x", "back": back, "request": request, "server": server}
    yield AnswerCase("compaction: its block goes back", stream=sse(*events),
                     body=whole(COMPACTED, text("x")), **given)  # fmt: skip
    failed = {**signed, "content": None}
    given["back"] = {"messages": [..., {"content": [Exactly(failed), text("x")]}]}
    body = whole(failed, text("x"))
    yield AnswerCase("compaction: one that failed goes back", body=body, **given)
    paused: JSON = {"notes": ["continue with --continue"], "used": {"output_tokens": 9}}
    yield both("compaction: a pause without a text is an answer", COMPACTED, word="compaction",
               **paused)  # fmt: skip


def contents() -> Iterator[AnswerCase]:
    """Contents of compatible servers, and answers that hold nothing."""
    yield AnswerCase("content that is a text", body=whole()[:-1].replace(
        b'"content": []', b'"content": "x"') + b"}", text="x")  # fmt: skip
    for id, content in (("a block alone", {"type": "text", "text": "x"}), ("texts", ["x"]),
                        ("a block without a type", [{"text": "x"}])):  # fmt: skip
        body = {**json.loads(whole()), "content": content}
        yield AnswerCase(f"content: {id}", body=json.dumps(body).encode(), text="x")
    yield both("a block of type output_text", {"type": "output_text", "text": "x"}, text="x")
    paid: JSON = {"used": {"output_tokens": 9}, "then": FINE}
    yield both("paid: nothing is asked once more", **paid, text="fine", asked=2)
    yield both("paid: redacted thinking alone", REDACTED, **paid, error=BAD,
               words="redacted_thinking, 9 tokens")  # fmt: skip
    yield both("silent: no block and no counts", **{**paid, "used": {"output_tokens": 0}},
               text="fine", asked=2)  # fmt: skip
    silent = ask(tools=TOOLS, messages=AFTER_RESULTS.messages)
    yield both("silent after results: a few tokens", used={"output_tokens": 3}, request=silent)


def errors() -> Iterator[AnswerCase]:
    busy: JSON = {"type": "overloaded_error", "message": "Overloaded"}
    failed = event("error", error=busy)
    anew: JSON = {"then": FINE, "text": "fine", "asked": 2}
    yield AnswerCase("overloaded, and asked again #47", stream=sse(head(), failed), **anew)
    shown: JSON = {"then": FINE, "error": HTTP, "http_status": 529, "retryable": True}
    yield AnswerCase(
        "overloaded behind a text #47", stream=sse(head(), said("Half."), failed), **shown
    )
    capped: JSON = {"status": 429, "headers": CAPPED, "error": "LLM_QUOTA_EXCEEDED"}
    yield AnswerCase("a spend cap is no rate limit", **capped)
    yield AnswerCase("text that is none", stream=sse(said(3), STOP), error=BAD)


HI = [{"role": "user", "content": [text("hi")]}]
CACHED = {"cache_control": {"type": "ephemeral"}}
NUMBERED = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
ANSWER = {"type": "integer", "description": "(minimum: 1)"}
CLOSED = {"type": "object", "properties": {"n": ANSWER}, "additionalProperties": False}
SENT: JSON = {
    "model": CLAUDE, "thinking": {"type": "adaptive"}, "output_config": {
        "effort": "low", "format": {"type": "json_schema", "schema": Exactly(CLOSED)}},
    "max_tokens": 7, "messages": HI, "stop_sequences": ["X"],
    "tools": [Exactly({"name": "fs__read", "description": "Read.", "input_schema": EMPTY}),
              Exactly({"name": "b", "input_schema": EMPTY})],
    "tool_choice": {"type": "tool", "name": "fs__read"}, "stream": True, "top_k": 3,
}  # fmt: skip


def adaptive(effort: str) -> JSON:
    """Thinking of which the model decides how long."""
    shown = {"type": "adaptive", "display": "summarized"}
    return {"thinking": Exactly(shown), "output_config": {"effort": effort}}


def budget(tokens: int, most: int = 16_000) -> JSON:
    shown = {"type": "enabled", "budget_tokens": tokens}
    return {"thinking": Exactly(shown), "output_config": ABSENT, "max_tokens": most}


UNSAID: JSON = {"thinking": ABSENT, "output_config": ABSENT}
OFF: JSON = {"thinking": Exactly({"type": "disabled"}), "output_config": ABSENT}
# models: what is asked for, and how it is sent.
REASONING: dict[tuple[str, ...], dict[str | None, JSON]] = {
    ("claude-fable-5-2", CLAUDE, "claude-haiku-5-5-20261001"): {
        None: UNSAID, "none": OFF, "minimal": adaptive("low"), "xhigh": adaptive("xhigh"),
         "9000": adaptive("high")},
    ("claude-sonnet-5-5", "anthropic/claude-sonnet-5.5"): {
        "none": {"thinking": {"type": "between_tools"}}, "medium": adaptive("medium")},
    ("claude-sonnet-5",): {"none": OFF, "max": adaptive("max")},
    ("claude-opus-4-8", "claude-opus-4-7"): {"none": UNSAID, "9000": adaptive("high")},
    ("claude-sonnet-4-6",): {"none": UNSAID, "high": adaptive("high"), "9000": budget(9000)},
    ("claude-haiku-4-5-20251001", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest"): {
        None: UNSAID, "none": UNSAID, "low": budget(2048), "minimal": budget(1024),
        "7": budget(1024), "high": budget(16_384, 32_384), "max": budget(32_768, 48_768)},
    ("qwen3:8b",): {None: UNSAID, "none": OFF, "medium": budget(8192)},
}  # fmt: skip
AT_HOME = "https://api.anthropic.com/v1/messages"
URLS = {
    **dict.fromkeys(("https://api.anthropic.com", "api.anthropic.com/v1", AT_HOME), AT_HOME),
    "https://api.z.ai/api/anthropic/": "https://api.z.ai/api/anthropic/v1/messages",
    "localhost:11434": "http://localhost:11434/v1/messages",
}


def source(media_type: str, data: str, type: str = "image", **more: Any) -> JSON:
    held = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": type, "source": held, **more}


IMAGES: list[JSON] = [
    source("image/png", "UkVE"), source("image/jpeg", "QkxVRQ=="),
    {"type": "image", "source": {"type": "url", "url": FAR.url}},
    source("application/pdf", "UERG", "document", title="a.pdf"),
]  # fmt: skip
FAILED = '{"ok":false,"error":{"code":"E_INTERRUPTED","message":"cancelled by the person"}}'
ODD = (ToolCall(id="a:b", name="b", arguments=None, arguments_raw="{o"),)
ODD_ID = "kBUtqCuf6wSGzb69ZchS2zjC"
# id: messages, and how they are sent.
HISTORIES: dict[str, tuple[list[Message], list[Any]]] = {
    "parallel results go in one message, before the text #43": (
        [called("c1", "c2"), result("c1"), result("c2"), user(TextPart(text="go on"))],
        [{"content": [use("c1", "fs__read"), use("c2", "fs__read")]},
         {"role": "user", "content": [given_back("c1", "{}"), given_back("c2", "{}")]},
         {"role": "user", "content": [text("go on")]}]),
    "a cancelled call has an error as its result #44": (
        [called("c1"), result("c1", said=FAILED)],
        [..., {"content": [Exactly(given_back("c1", FAILED, is_error=True))]}]),
    "images and files, also in results": (
        [user(TextPart(text="See:"), RED, BLUE, FAR, PDF, TABLE), called("c1"),
         result("c1", RED, PDF)],
        [{"content": [text("See:"), *map(Exactly, IMAGES), text("File t.csv:\na;b\nü;1")]}, ...,
         {"content": [given_back("c1", [text("{}"), IMAGES[0], IMAGES[3]])]}]),
    "a result of nothing": (
        [called("c1"), Message(role="tool", tool_call_id="c1", name="fs.read")],
        [..., {"content": [{**given_back("c1"), "content": ABSENT}]}]),
    "nothing at all is not sent, a later system message is said by the user #20": (
        [user(TextPart(text=" ")), Message(role="assistant", reasoning="hm"),
         user(TextPart(text="b")), Message.of("system", "S")],
        [{"content": [text("b")]}, {"role": "user", "content": [text("S")]}]),
    "ids and arguments that do not fit": (
        [Message(role="assistant", tool_calls=ODD), result("a:b")],
        [{"content": [{"id": ODD_ID, "input": {"INVALID_JSON": "{o"}}]},
         {"content": [{"tool_use_id": ODD_ID}]}]),
}  # fmt: skip


def requests() -> Iterator[RequestCase]:
    bare: JSON = {"model": "m", "max_tokens": 16_000, "messages": HI}
    yield RequestCase("nothing is set", ask(), bare, only=True)
    request = everything(model=CLAUDE, output_schema=NUMBERED)
    for server in ("anthropic", ""):
        where, marks = server or "elsewhere", CACHED if server else {}
        kept = {} if server else {"temperature": 0.5, "top_p": 0.9}
        system = [Exactly({**text("Be brief."), **marks})]
        sent = {**SENT, **kept, **marks, "system": system}
        more: JSON = {"server": server, "stream": True, "config": {"extra_body": {"top_k": 3}}}
        yield RequestCase(f"everything, {where} #42", request, sent, only=True, **more)
    for choice, sent in {None: "auto", "auto": "auto", "none": "none", "required": "any"}.items():
        expect = {"tool_choice": Exactly({"type": sent}), "tools": [...]}
        yield RequestCase(f"tool choice {choice}", ask(tools=(READ,), tool_choice=choice), expect)
    for models, table in REASONING.items():
        for model in models:
            for asked, expect in table.items():
                id = f"{model} thinks {asked}"
                yield RequestCase(id, ask(model=model, reasoning=asked), expect)
    request, expect = ask(model="claude-3-9", reasoning="9", max_tokens=2000), budget(1024, 2000)
    yield RequestCase("thoughts that have room", request, expect)


def model(id: str, **more: Any) -> JSON:
    return {"type": "model", "id": id, "display_name": id, "lifecycle": "active", **more}


YES, NO = {"supported": True}, {"supported": False}
ABLE = {"image_input": YES, "thinking": {"supported": True, "types": {"adaptive": YES}}}
PLAIN = {"image_input": NO, "thinking": {"supported": False, "types": {"disabled": YES}}}
LISTED = [
    model("a", max_input_tokens=200_000, capabilities=ABLE),
    model("b", max_input_tokens=0, capabilities=PLAIN),
    *(model("gone", lifecycle="retired"), {"id": "little"}, {"id": None}, 3),
]
ALL = ("reasoning", "tools", "vision")
TOLD = [("a", 200_000, ALL), ("b", None, ("tools",)), ("little", None, ())]
MODELS = (
    ModelsCase("what Anthropic tells", {"data": LISTED, "has_more": False}, TOLD),
    ModelsCase("no list", {"data": "none"}, BAD),
)
ANSWERS: Sequence[Any] = (thorough, blocks, compactions, contents, going_back, errors)
WIRE = WireSetup(
    name="anthropic", provider="anthropic", ended=re.compile(rb'"message_stop"\}'),
    servers=SERVERS, answers=tuple(case for cases in ANSWERS for case in cases()),
    requests=tuple(requests()), histories=HISTORIES, urls=URLS, models=MODELS,
    quirks=(20, *range(42, 48), 64),
)  # fmt: skip
