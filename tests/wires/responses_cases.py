"""Requests to and answers of servers of the Responses wire, and their results.

Bytes as in OpenAI's reference and types, and as llama.cpp's own server writes them (no index).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from servers.dialects import RESPONSES
from wires.chat_requests import BLUE, FAR, PDF, RED, TABLE, called, of, result, user
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

from nbagent.contracts.messages import Message, TextPart

SERVERS = {
    "openai": "https://api.openai.com/v1", "azure": "https://r.openai.azure.com/openai/v1"
}  # fmt: skip
sse, said, last = RESPONSES.stream, RESPONSES.message, RESPONSES.last
answer_of, streamed = RESPONSES.response, RESPONSES.events
USED: JSON = {"input_tokens": 5, "output_tokens": 2}
SUM = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
BEGUN, DONE = "response.output_item.added", "response.output_item.done"
TEXT_DELTA, ARGUMENTS = "response.output_text.delta", "response.function_call_arguments.delta"
WHOLE_TEXT, WHOLE_ARGUMENTS = TEXT_DELTA[:-5] + "done", ARGUMENTS[:-5] + "done"


def event(kind: str, **fields: Any) -> JSON:
    return {"type": kind, **fields}


def thought(*texts: str, id: str = "rs_1", secret: str | None = "gAAAA-E+/==", **more: Any) -> JSON:
    summary = [{"type": "summary_text", "text": text} for text in texts]
    item: JSON = {"type": "reasoning", "id": id, "summary": summary, **more}
    return item if secret is None else {**item, "encrypted_content": secret}


def call(arguments: Any = "{}", *, name: str = "b", n: int = 1, **more: Any) -> JSON:
    """A call: `fc_n` is the item, `call_n` what its result names."""
    ids = {"id": f"fc_{n}", "call_id": f"call_{n}"}
    return {"type": "function_call", **ids, "name": name, "arguments": arguments, **more}


def both(id: str, *output: JSON, **given: Any) -> AnswerCase:
    more = given.pop("more", {})
    body = json.dumps(answer_of(*output, **more)).encode()
    stream = sse(*streamed(*output), last(*output, **more))
    return AnswerCase(id, body=body, stream=stream, **given)


def output_of(call_id: str, output: Any = '{"ok":true,"data":1}') -> JSON:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


LOOKED: Sequence[tuple[str, JSON | str]] = [("fs.look", {"at": "a"})]
BARE: Sequence[tuple[str, JSON | str]] = [("b", {})]
TEXT = "Grüße \u2028 both"
USAGE: JSON = {
    "input_tokens": 20, "output_tokens": 9, "total_tokens": 29,
    "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 3},
}  # fmt: skip
COUNTED = {
    "prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29,
    "cached_tokens": 7, "cache_write_tokens": 4, "reasoning_tokens": 3,
}  # fmt: skip
FULL = [
    thought("Hm.", "So."),
    said(TEXT, phase="commentary"),
    call('{"at":"a"}', name="fs__look", status="completed"),
    call('{"n":1}', n=2),
]
FULL_TEXTS: JSON = {
    "text": TEXT, "reasoning": "Hm.\n\nSo.", "calls": [*LOOKED, ("b", {"n": 1})],
    "ids": ["call_1", "call_2"], "usage": COUNTED,
}  # fmt: skip
FULL_STREAM = sse(
    b": keep-alive\n\n", *streamed(*FULL), last(*FULL, usage=USAGE),
    event("response.rate_limits.updated", rate_limits=[]),
)  # fmt: skip


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    yield AnswerCase(
        "reasoning, text, two calls, usage #1 #7 #61",
        body=json.dumps(answer_of(*FULL, usage=USAGE)).encode(), stream=FULL_STREAM,
        back={"input": [..., *map(Exactly, FULL), output_of("call_1"), output_of("call_2")]},
        **FULL_TEXTS, thorough=True,
    )  # fmt: skip
    little = [said("One two", id="msg_7"), call('{"at":null}', name="fs__look")]
    yield AnswerCase(
        "llama.cpp: no index, only ids",
        body=json.dumps(answer_of(*little, usage=USED), indent=1).encode(),
        stream=sse(*streamed(*little, indices=False), last(*little, usage=USED)),
        text="One two", calls=[("fs.look", {"at": None})], usage=SUM, thorough=True,
    )  # fmt: skip


BAD = "LLM_BAD_RESPONSE"
FINE = json.dumps(answer_of(said("fine"))).encode()
INCOMPLETE: JSON = {"status": "incomplete"}
CUT: JSON = {**INCOMPLETE, "incomplete_details": {"reason": "max_output_tokens"}}
BOTH: dict[str, tuple[list[JSON], JSON]] = {
    "text, unknown fields": (
        [said("x", mood={"a": 1}), {"type": "compass", "id": "cp_1", "north": 1}],
        {"text": "x", "more": {"service_tier": "x", "billing": {"a": 1}}}),
    "parts of one message are one text, items have a line between": (
        [said("Half a", " word", phase="commentary"), thought("a", "b"), thought("c", id="rs_2"),
         said("Done", id="msg_2")],
        {"text": "Half a word\n\nDone", "reasoning": "a\n\nb\n\nc"}),
    "the reasoning of an open model is shown and not kept": (
        [thought(secret=None, content=[{"type": "reasoning_text", "text": "hm, so"}]), call()],
        {"reasoning": "hm, so", "calls": BARE, "raw": {"items": ABSENT},
         "back": {"input": [..., {"type": "function_call", "call_id": "call_1"}, ...]}}),
    "a refusal is text": (
        [said(content=[{"type": "refusal", "refusal": "I will not."}])],
        {"text": "I will not.", "finish": "content_filter"}),
    "arguments that are no JSON, one call that ends as completed #15": (
        [call("{oh")], {"calls": [("b", "{oh")]}),
    **{f"{what} that was cut in an answer that says completed": (
        [item], {**found, "finish": "length"})
       for what, item, found in (
           ("half a call", call('{"n"', **INCOMPLETE), {"calls": [("b", '{"n"')]}),
           ("a text", said("Half", **INCOMPLETE), {"text": "Half"}))},
    "reasoning that was cut, and a whole call": (
        [thought("Hm", **INCOMPLETE), call()], {"reasoning": "Hm", "calls": BARE}),
    **{f"cut by {reason}": (
        [said("Half")], {"text": "Half", "finish": finish,
          "notes": ["'steered'"] if reason == "steered" else (),
          "more": {**INCOMPLETE, "incomplete_details": {"reason": reason}}})
       for reason, finish in (
           ("content_filter", "content_filter"), ("guardrail", "content_filter"),
           ("sensitive", "content_filter"), ("steered", "length"),
           ("max_output_tokens", "length"))},
    "parts of type text": ([said(content=[{"type": "text", "text": "x"}])], {"text": "x"}),
    "an item of a later version beside a text": (
        [{"type": "hologram", "id": "h_1"}, said("x")], {"text": "x"}),
    "paid: an item of a later version alone": (
        [{"type": "hologram", "id": "h_1"}],
        {"more": {"usage": USED}, "error": BAD, "words": "hologram, 2 tokens"}),
    "paid: a part of a later version alone": (
        [said(content=[{"type": "hologram"}])],
        {"more": {"usage": USED}, "error": BAD, "words": "hologram, 2 tokens"}),
    "paid: hidden reasoning alone is asked once more": (
        [thought()], {"more": {"usage": USED}, "then": FINE, "text": "fine", "asked": 2}),
}  # fmt: skip
ENDED = last(said("x"))
X = event(TEXT_DELTA, output_index=0, delta="x")
BOOM = event("error", code="rate_limit_exceeded", message="boom", param=None)
FILTERED = {"code": "content_filter", "message": "filtered"}
# Streams of servers that do it another way: events, and what they come to.
STREAMS: dict[str, tuple[Sequence[Any], JSON]] = {
    "nothing but the last event": ([last(*FULL, usage=USAGE)], FULL_TEXTS),
    "items come whole, out of order": (
        [event(DONE, output_index=1, item=call()), event(DONE, output_index=0, item=said("x")),
         last()], {"text": "x", "calls": BARE}),
    "only names of events": (
        [b"event: response.completed\ndata: %b\n\n"
         % json.dumps({"response": answer_of(said("x"))}).encode()], {"text": "x"}),
    "unknown events, [DONE] behind the end, and more events #62": (
        [event("response.rate_limits.updated"), X, event("response.audio.delta", delta=3), ENDED,
         event("response.rate_limits.updated"), b"data: [DONE]\n\n", X, BOOM], {"text": "x"}),
    "OpenRouter: another last event": ([X, event("response.done", response={})], {"text": "x"}),
    "vLLM: a cut answer ends as completed": (
        [X, event("response.completed", response=answer_of(**CUT))],
        {"text": "x", "finish": "length"}),
    "the ids of items change, the index does not": (
        [event(BEGUN, output_index=0, item=call("")),
         event(ARGUMENTS, output_index=0, item_id="u", delta="{}"),
         event(DONE, output_index=0, item={**call(), "id": "v"}), last({**call(), "id": "w"})],
        {"calls": BARE, "ids": ["call_1"]}),
    "parallel calls without indices, interleaved": (
        [event(BEGUN, item=call("")), event(BEGUN, item=call("", name="c", n=2)),
         event(ARGUMENTS, item_id="fc_1", delta='{"n":'),
         event(ARGUMENTS, item_id="fc_2", delta="{}"),
         event(ARGUMENTS, item_id="fc_1", delta="null"),
         event(ARGUMENTS, item_id="fc_1", delta="}"), last()],
        {"calls": [("b", {"n": None}), ("c", {})], "ids": ["call_1", "call_2"]}),
    "the whole arguments are others than their pieces": (
        [event(BEGUN, output_index=0, item=call("")),
         event(ARGUMENTS, output_index=0, delta='{"n":1'),
         event(DONE, output_index=0, item=call('{"n":2}')), last()], {"calls": [("b", {"n": 2})]}),
    "the whole call is announced": (
        [event(BEGUN, output_index=0, item=call('{"n":1}')),
         event(DONE, output_index=0, item=call('{"n":1}')), last()], {"calls": [("b", {"n": 1})]}),
    "the whole call is announced, and no more": (
        [event(BEGUN, output_index=0, item=call('{"n":1}')), last()], {"calls": [("b", {"n": 1})]}),
    "the whole arguments come by an event of their own": (
        [event(BEGUN, output_index=0, item=call("")),
         event(WHOLE_ARGUMENTS, output_index=0, arguments='{"n":1}'), last()],
        {"calls": [("b", {"n": 1})]}),
    "the whole arguments behind their pieces": (
        [event(BEGUN, output_index=0, item=call("")),
         event(ARGUMENTS, output_index=0, delta='{"n":'),
         event(WHOLE_ARGUMENTS, output_index=0, arguments='{"n":1}'), last()],
        {"calls": [("b", {"n": 1})]}),
    "whole texts without pieces": (
        [event(WHOLE_TEXT, output_index=0, content_index=n, text=text)
         for n, text in enumerate("ab")] + [last()], {"text": "a\n\nb"}),
    "a whole text behind its pieces": (
        [X, event(WHOLE_TEXT, output_index=0, content_index=0, text="x"), last()], {"text": "x"}),
    **{f"reasoning by {kind}": (
        [event(kind, output_index=0, delta="hm"), event(TEXT_DELTA, output_index=1, delta="x"),
         last()], {"text": "x", "reasoning": "hm"})
       for kind in ("response.reasoning.delta", "response.reasoning_summary.delta")},
    "Azure: filtered in the middle": (
        [X, event("response.failed", response={"error": FILTERED})],
        {"text": "x", "finish": "content_filter"}),
}  # fmt: skip


ODD_ID = "call:with/odd " + "x" * 60
OTHER_ID = "9MCz0XnYp6oGNAdigaexFZki"
REWRITTEN = [
    Exactly({"type": "message", "role": "assistant", "content": TEXT}),
    *(Exactly({key: item[key] for key in ("type", "call_id", "name", "arguments")})
      for item in FULL[2:]),
]  # fmt: skip
NAMES = {"fs__look": "fs.look", "functions.fs__look": "fs.look"}
ENDED_BY_PHASE = said("x", phase="final_answer")
COMPACT: JSON = {"type": "compaction", "id": "c", "encrypted_content": "E"}
LEAKED = call(name="functions.fs__look")
# id: an answer, where the next request goes, and how the answer is sent back.
BACK: dict[str, tuple[list[JSON], JSON, list[Any]]] = {
    "the same model of another day": (FULL, {"next_model": "m-2026-03-01"}, FULL),
    "another model": (FULL, {"next_model": "other"}, REWRITTEN),
    "Azure reads nothing of another server": (FULL, {"next_server": "azure"}, REWRITTEN),
    "phase alone is kept, and items of kinds that nobody here knows": (
        [COMPACT, ENDED_BY_PHASE], {}, [COMPACT, ENDED_BY_PHASE]),
    "reasoning that the server cannot know is dropped": (
        [thought("a", secret=None), thought("b", id="rs_2"), call()], {},
        [thought("b", id="rs_2"), call()]),
    "reasoning that led to nothing is dropped": (
        [said("x"), thought("a")], {"finish": "length"}, [said("x")]),
    "ids that do not fit #55": (
        [thought("a"), {**call(), "call_id": ODD_ID}], {},
        [thought("a"), {**call(), "call_id": OTHER_ID}]),
    "arguments that are no JSON": (
        [thought("a"), call("{oh")], {}, [thought("a"), {"arguments": '{"INVALID_JSON":"{oh"}'}]),
    "a name that was called in another form": (
        [thought("a"), LEAKED], {}, [thought("a"), {**LEAKED, "name": "fs__look"}]),
}  # fmt: skip


def going_back() -> Iterator[AnswerCase]:
    """Items that a server needs back with its own answer, and that others must not get."""
    for id, (output, given, sent) in BACK.items():
        body = json.dumps(answer_of(*output, **(INCOMPLETE if "finish" in given else {}))).encode()
        calls = [item for item in output if item["type"] == "function_call"]
        said_to = [(NAMES.get(it["name"], it["name"]), it["arguments"]) for it in calls]
        found: list[Any] = [(name, json.loads(it) if it[-1] == "}" else it) for name, it in said_to]
        text = "".join(p["text"] for it in output for p in it.get("content", ()))
        thoughts = [part["text"] for it in output for part in it.get("summary", ())]
        yield AnswerCase(
            f"back: {id}", body=body, text=text, calls=found, **given,
            reasoning="\n\n".join(thoughts) or None,
            back={"input": [..., *sent, *({"type": "function_call_output"} for _ in calls)]},
        )  # fmt: skip


NO_ANSWERS = (
    b'{"output": [null]}', json.dumps(answer_of(said("x"), status="queued")).encode(),
    sse(event("response.created", response={})), sse(event(TEXT_DELTA, output_index=0, delta=3)),
)  # fmt: skip


def errors() -> Iterator[AnswerCase]:
    fault = {"code": "rate_limit_exceeded", "message": "boom"}
    failed = answer_of(status="failed", error=fault)
    expect: JSON = {"error": "LLM_RATE_LIMITED", "words": "boom", "retryable": True}
    yield AnswerCase("failed: whole #9", body=json.dumps(failed).encode(), **expect)
    forms: dict[str, list[Any]] = {
        "last event": [event("response.failed", response=failed)],
        "event": [event("error", **fault)],
        "object": [event("error", error=fault)],
        "late event": [sse(*streamed(*FULL)), event("error", **fault)],
    }
    for form, events in forms.items():
        yield AnswerCase(f"failed: {form} #9", stream=sse(*events), **expect)
    for status in ("failed", "cancelled"):
        id, more = f"{status} without a reason", {"status": status}
        yield both(id, said("x"), more=more, error=BAD, words=status)
    for status in ("queued", "in_progress"):
        for id, output in (("nothing", []), ("a part", [said("x")]), ("null", None)):
            given = {**answer_of(status=status), "output": output, "background": True}
            words = f"background (status '{status}')"
            yield AnswerCase(f"a background answer: {status}, {id}", then=FINE, error=BAD,
                             body=json.dumps(given).encode(), words=words)  # fmt: skip
    plain = said(content="x")
    item = {"type": "output_text", "text": "x"}
    yield AnswerCase("an item that is a text", body=json.dumps(answer_of(item)).encode(), text="x")
    yield AnswerCase("content that is a text", body=json.dumps(answer_of(plain)).encode(),
                     stream=sse(last(plain)), text="x")  # fmt: skip
    written = {**answer_of(), "output": None, "output_text": "x"}
    yield AnswerCase("output_text alone", body=json.dumps(written).encode(), text="x")
    for n, body in enumerate(NO_ANSWERS):
        yield AnswerCase(f"no answer, {n}: {body[:30]!r}", body=body, error=BAD)
    filtered = json.dumps({"error": {"message": "no"}, "content_filters": [{}]}).encode()
    id = "Azure: a prompt that the filter stops #51"
    yield AnswerCase(id, status=400, body=filtered, finish="content_filter")


def text_in(text: str) -> JSON:
    return {"type": "input_text", "text": text}


def image_in(url: str) -> JSON:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def function(name: str, **more: Any) -> JSON:
    empty: JSON = {"type": "object", "properties": {}}
    return {"type": "function", "name": name, "parameters": empty, "strict": False, **more}


FILE: JSON = {
    "type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,UERG"
}  # fmt: skip
HI: list[JSON] = [{"type": "message", "role": "user", "content": [text_in("hi")]}]
INCLUDE = ["reasoning.encrypted_content"]
NOTHING: JSON = {"model": "m", "store": False, "include": INCLUDE, "input": HI}
SCHEMA: JSON = {"type": "object", "properties": {"a": {"default": 1}}}
# Only a server that says so binds the schema.
IN_WORDS = (
    "Be brief.\n\nAnswer with one JSON object that fits this JSON Schema: "
    '{"type":"object","properties":{"a":{"default":1}}}'
)
EVERYTHING_SENT: JSON = {
    **NOTHING, "instructions": IN_WORDS, "temperature": 0.5, "top_p": 0.9, "stream": True,
    "max_output_tokens": 7, "service_tier": "flex",
    "reasoning": Exactly({"effort": "low", "summary": "auto"}),
    "tools": [Exactly(function("fs__read", description="Read.")), Exactly(function("b"))],
    "tool_choice": Exactly({"type": "function", "name": "fs__read"}),
    "text": Exactly({"format": {
        "type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False}}),
}  # fmt: skip
PARAMETERS: dict[str, tuple[Any, JSON]] = {
    **{f"tool choice {choice}": (ask(tools=TOOLS, tool_choice=choice),
                                 {"tool_choice": choice or "auto", "tools": [..., ..., ...]})
       for choice in ("auto", "none", "required", None)},
    **{f"reasoning {given}": (ask(reasoning=given), {"reasoning": Exactly(sent)})
       for given, sent in {"none": {"effort": "none"}, "4096": {
           "effort": "medium", "summary": "auto"}}.items()},
    "system messages at the start are instructions #22 #23": (
        of(Message.of("system", "B"), *ask().messages, Message.of("system", "C"),
           system_prompt="A"),
        {"instructions": "A\n\nB", "input": [*HI, {"role": "system"}]}),
}  # fmt: skip
LEFT, SO = TextPart(text="Left:"), Message.of("user", "So?")
# id: messages, and how they are sent.
HISTORIES: dict[str, tuple[list[Message], list[Any]]] = {
    "images and files stand where they were put": (
        [user(LEFT, RED, FAR, TABLE, PDF)],
        [{"role": "user", "content": [
            text_in("Left:"), image_in("data:image/png;base64,UkVE"),
            image_in("https://example.org/a.png"), text_in("File t.csv:\na;b\nü;1"),
            FILE]}]),
    "results, with images and without": (
        [called("c1", "c2"), result("c1", BLUE, PDF), result("c2"), SO],
        [{"type": "function_call", "call_id": "c1", "name": "fs__read", "arguments": "{}"},
         {"call_id": "c2"},
         Exactly(output_of(
             "c1", [text_in("{}"), image_in("data:image/jpeg;base64,QkxVRQ=="), FILE])),
         Exactly(output_of("c2", "{}")), {"role": "user"}]),
}  # fmt: skip
WIRE = WireSetup(
    name="responses",
    provider="openai-responses",
    conversation="input",
    ended=re.compile(rb'data: {"type": "response.completed"[^\r\n]*'),
    servers=SERVERS,
    answers=(
        *thorough(), *(both(id, *output, **given) for id, (output, given) in BOTH.items()),
        *(AnswerCase(id, stream=sse(*events), **given) for id, (events, given) in STREAMS.items()),
        *going_back(), *errors(),
    ),
    requests=(
        RequestCase("nothing is set #24", ask(), NOTHING, only=True),
        RequestCase("everything is set", everything(output_schema=SCHEMA), EVERYTHING_SENT,
                    only=True, stream=True, config={"extra_body": {"service_tier": "flex"}}),
        RequestCase("the vendor's own server binds the schema", everything(output_schema=SCHEMA),
                    {"instructions": "Be brief.", "text": {"format": {"type": "json_schema"}}},
                    server="openai"),
        *(RequestCase(id, request, expect) for id, (request, expect) in PARAMETERS.items()),
    ),
    histories=HISTORIES,
    urls={"http://h:1/v1/responses": "http://h:1/v1/responses"},
    models=(
        ModelsCase("as with chat", {"data": [{"id": "a"}]}, [("a", None, ())]),
        ModelsCase("no list", b"<html>", BAD),
    ),
    quirks=(1, 7, 9, 15, 22, 23, 24, 51, 55, 61, 62, 64),
)  # fmt: skip
