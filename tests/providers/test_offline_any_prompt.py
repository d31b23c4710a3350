"""offline:demo with conversations put together at random: it always decides, and never repeats."""

from __future__ import annotations

import random

import pytest

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ChatRequest, Message, TextPart, ToolCall, ToolSpec
from nbagent.providers.offline.rules import decide

WORDS = [
    "Oslo",
    "Bergen",
    "and",
    "or",
    ",",
    ".",
    "?",
    ":",
    "'",
    '"',
    "3",
    "4.5",
    "-2",
    "1,000",
    "k",
    "of",
    "in",
    "from",
    "to",
    "with",
    "larger",
    "total",
    "average",
    "12*7",
    "count",
    "show",
    "all",
    "each",
    "user_id",
    "A-17",
    "http://x.y",
    "a@b.c",
    "may",
    "2024-01-02",
    "Monday",
    "=",
    "{",
    "}",
    "[",
    "]",
    "`code`",
    "the",
    "is",
    "Is",
    "not",
    "without",
    "on",
    "off",
    "500",
    "words",
    "rank",
    "than",
    "million",
    "ratio",
    "by",
    "how",
    "much",
    "again",
    "²",
    "٣",
    "½",
    "İ",
]
NAMES = [
    "city",
    "user_id",
    "from_place",
    "to",
    "date",
    "count",
    "query",
    "text",
    "path",
    "on",
    "values",
    "n",
    "lat",
    "code",
    "_",
    "é",
]
TYPES = [
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "number"}},
    {"enum": ["red", "on", 3, None]},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {"anyOf": [{"type": "null"}, {"type": "string"}]},
    {},
]
RESULTS = [
    '{"ok":false,"error":{"code":"E_TOOL_FAILED","message":"known: \'Oslo\' `x`"}}',
    '{"ok":false,"error":"text"}',
    "garbage",
    "[]",
    *(
        f'{{"ok":true,"data":{data}}}'
        for data in [
            "3",
            '"x"',
            '{"id":3,"city":"Oslo"}',
            "[1,2,3]",
            '[{"name":"a","n":1.5},{"name":"b"}]',
            "null",
            "true",
            '{"a":1,"b":2}',
            '"12kg"',
            "[[],{}]",
            "1e300",
            "123456789012345678901234567890",
            "0",
            "-1",
            "[0,0]",
        ]
    ),
]
ARGUMENTS = [{}, {"city": "Oslo"}, None, {"n": 3}, {"values": [1]}]


def some_tools(chosen: random.Random) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(
            name=chosen.choice(["get", "list", "x.y", "isPrime", "", "add_1"]) + one,
            description=" ".join(chosen.choices(WORDS, k=chosen.randint(0, 6))),
            parameters={
                "type": "object",
                "properties": {
                    name: chosen.choice(TYPES)
                    for name in chosen.sample(NAMES, chosen.randint(0, 4))
                },
                "required": chosen.sample(NAMES, 3),
            },
        )
        for one in chosen.sample(NAMES, chosen.randint(0, 5))
    )


def some_conversation(chosen: random.Random, tools: tuple[ToolSpec, ...]) -> tuple[Message, ...]:
    said: list[Message] = []
    for exchange in range(chosen.randint(1, 3)):
        prompt = " ".join(chosen.choices(WORDS, k=chosen.randint(0, 25)))
        said.append(Message.of("user", prompt))
        for turn in range(chosen.randint(0, 3)):
            calls = tuple(
                ToolCall(
                    id=f"c{exchange}{turn}{number}",
                    name=chosen.choice(tools).name if tools else "gone",
                    arguments=chosen.choice(ARGUMENTS),
                    arguments_raw="{}",
                )
                for number in range(chosen.randint(0, 3))
            )
            said.append(Message(role="assistant", tool_calls=calls))
            for call in calls:
                content = (TextPart(text=chosen.choice(RESULTS)),)
                answered = Message(
                    role="tool", tool_call_id=call.id, name=call.name, content=content
                )
                said.append(answered)
    return tuple(said[: chosen.randint(1, len(said))])


@pytest.mark.parametrize("seed", range(8))
def test_any_conversation_gets_new_calls_or_a_text(seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(60):
        tools = some_tools(chosen)
        messages = some_conversation(chosen, tools)
        choice = chosen.choice([None, "auto", "none", "required"])
        request = ChatRequest(model="demo", messages=messages, tools=tools, tool_choice=choice)
        decided = decide(request)
        assert decided.calls or decided.text
        assert decided == decide(request)
        last = max(i for i, message in enumerate(messages) if message.role == "user")
        answered = {message.tool_call_id for message in messages[last:]}
        made = {
            canonical_json([call.name, call.arguments or {}])
            for message in messages[last:]
            for call in message.tool_calls
            if call.id in answered
        }
        wished = [canonical_json([wish.tool, wish.arguments]) for wish in decided.calls]
        assert len(wished) == len(set(wished))
        assert not made & set(wished)
