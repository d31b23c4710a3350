"""offline:demo with tools it has never seen: what it calls, what it says, and that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from demo_talk import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    Called,
    Schema,
    Talk,
    Tool,
    moon_mass,
    offered,
    population,
    respond,
    ticket,
    uptime,
)

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ChatRequest, Message, ProviderConfig, ToolSpec
from nbagent.providers.offline import PROVIDER

boiling = Tool(
    "boiling_point",
    "Temperature at which a substance boils.",
    {"substance": STRING, "unit": {"enum": ["celsius", "kelvin"], "type": "string"}},
    offered(78.4),
    optional=["unit"],
)
reserve = Tool(
    "reserve_table",
    "Book a table in a restaurant.",
    {"restaurant": STRING, "guests": INTEGER, "day": STRING, "outdoor": BOOLEAN},
    offered("R-81"),
    optional=["outdoor"],
)
tree = Tool("trees.plant", "Plant trees in a park.", {"count": INTEGER, "park": STRING}, offered(1))
loan = Tool(
    "monthlyPayment",
    "Monthly payment of a loan.",
    {"principal": NUMBER, "rate": NUMBER, "years": INTEGER},
    offered(1073.64),
)
median = Tool(
    "median", "Median of numbers.", {"values": {"type": "array", "items": NUMBER}}, offered(5)
)
fetch = Tool("fetch_page", "Download a web page.", {"url": STRING}, offered("<html>"))
grep = Tool(
    "grep", "Search a file for a text.", {"pattern": STRING, "path": STRING}, offered(["a: 1"])
)
level = Tool(
    "set_volume",
    "Set the loudness of a device.",
    {"device": {"$ref": "#/$defs/Device"}, "percent": INTEGER},
    offered(None),
    defs={"Device": {"enum": ["radio", "television"], "type": "string"}},
)
train = Tool(
    "next_train",
    "Departure of the next train.",
    {"from_station": STRING, "to_station": STRING},
    offered("10:42"),
)
synonyms = Tool("synonyms", "Words with the same meaning.", {"word": STRING}, offered(["quick"]))
wiki = Tool(
    "wiki_search",
    "Search the encyclopedia.",
    {"query": STRING, "limit": {"anyOf": [INTEGER, {"type": "null"}], "default": None}},
    offered(["page"]),
    optional=["limit"],
)
FIRST_CALLS: list[tuple[str, Sequence[Tool], str, list[Called]]] = [
    (
        "several names, several calls",
        [population, boiling],
        "Which of Oslo, Bergen and Rome is larger?",
        [("population", {"city": city}) for city in ("Oslo", "Bergen", "Rome")],
    ),
    (
        "a name of two words",
        [moon_mass, population],
        "How many people live in New York?",
        [("population", {"city": "New York"})],
    ),
    (
        "names at the start of the sentence",
        [moon_mass, population],
        "Titan or Europa: which moon has more mass?",
        [("moon_mass", {"moon": "Titan"}), ("moon_mass", {"moon": "Europa"})],
    ),
    (
        "a lower-case word and an enum",
        [population, boiling, uptime],
        "At what temperature does ethanol boil, in kelvin? I mean the boiling point of ethanol.",
        [("boiling_point", {"substance": "ethanol", "unit": "kelvin"})],
    ),
    (
        "a name, a number, a day and a flag",
        [population, reserve],
        "Book a table for 4 guests at Maaemo on Friday, outdoor please",
        [
            (
                "reserve_table",
                {"restaurant": "Maaemo", "guests": 4, "day": "Friday", "outdoor": True},
            )
        ],
    ),
    (
        "a dotted name",
        [population, tree],
        "Plant 12 trees in Frogner Park",
        [("trees.plant", {"count": 12, "park": "Frogner Park"})],
    ),
    (
        "numbers by the words beside them",
        [loan, median],
        "What is the monthly payment for a principal of 200,000 over 25 years at a rate of 4.2?",
        [("monthlyPayment", {"principal": 200000, "rate": 4.2, "years": 25})],
    ),
    (
        "a list of numbers",
        [loan, median],
        "Find the median of 4, 8.5, -3 and 5",
        [("median", {"values": [4, 8.5, -3, 5]})],
    ),
    (
        "an address",
        [fetch, grep],
        "Download https://example.org/a?b=1 for me.",
        [("fetch_page", {"url": "https://example.org/a?b=1"})],
    ),
    (
        "a quoted text and a path",
        [fetch, grep],
        'Search src/main.py for "import os"',
        [("grep", {"pattern": "import os", "path": "src/main.py"})],
    ),
    (
        "an enum behind a reference",
        [level, uptime],
        "Set the radio to a volume of 30 percent",
        [("set_volume", {"device": "radio", "percent": 30})],
    ),
    (
        "from and to, in the other order",
        [train, uptime],
        "When does the next train to Bergen leave from Oslo?",
        [("next_train", {"from_station": "Oslo", "to_station": "Bergen"})],
    ),
    (
        "an identifier",
        [ticket, uptime],
        "What is the status of ticket OPS-4711?",
        [("ticket_status", {"ticket_id": "OPS-4711"})],
    ),
    (
        "several identifiers",
        [ticket, uptime],
        "Status of the tickets OPS-1 and OPS-2, please",
        [("ticket_status", {"ticket_id": "OPS-1"}), ("ticket_status", {"ticket_id": "OPS-2"})],
    ),
    (
        "the rest of the sentence as a query",
        [wiki, uptime],
        "Search the encyclopedia for migrating birds in winter",
        [("wiki_search", {"query": "migrating birds in winter"})],
    ),
    (
        "a tool without parameters",
        [wiki, uptime, ticket],
        "How long is the uptime of this machine?",
        [("uptime", {})],
    ),
    (
        "the word after the verb",
        [population, synonyms],
        "Give me synonyms of fast",
        [("synonyms", {"word": "fast"})],
    ),
    (
        "two tools in one sentence",
        [population, boiling, moon_mass],
        "I need the population of Rome and the mass of the moon Io.",
        [("population", {"city": "Rome"}), ("moon_mass", {"moon": "Io"})],
    ),
    (
        "arguments by name",
        [loan, level],
        "monthly payment with rate=3.5, years=10 and principal=1000",
        [("monthlyPayment", {"principal": 1000, "rate": 3.5, "years": 10})],
    ),
]


@pytest.mark.parametrize(
    ("tools", "prompt", "expected"),
    [case[1:] for case in FIRST_CALLS],
    ids=[case[0] for case in FIRST_CALLS],
)
def test_tool_and_arguments_come_from_the_prompt(
    tools: Sequence[Tool], prompt: str, expected: list[Called]
) -> None:
    talk = Talk(tools)
    answer = talk.ask(prompt)
    assert talk.calls == expected
    assert talk.turns == [len(expected), 0]
    assert "rule-based demo" not in answer


@pytest.mark.parametrize("order", [1, -1], ids=["as listed", "reversed"])
def test_order_of_the_tools_does_not_decide(order: int) -> None:
    tools = [population, boiling, train, ticket, uptime][::order]
    talk = Talk(tools)
    talk.ask("population of Bergen")
    assert talk.calls == [("population", {"city": "Bergen"})]


PROMPTS = [
    "",
    "?",
    "Hello",
    "42",
    "{}",
    "Oslo",
    "a" * 5000,
    "1 " * 2000,
    "and " * 500,
    "'" * 100,
    "((((((1+2",
    "9**9**9**9",
    "2 ** 999999999",
    "count to 99999999999999999999",
    "Ünïcödé Ålesund \U0001f600",
    "Which is larger? " * 50,
    "population " * 300,
    "\0\x01",
    "A" + "-b" * 3000,
    "1/" * 2000,
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: repr(prompt[:20]))
@pytest.mark.parametrize("with_tools", [True, False], ids=["tools", "no tools"])
def test_odd_prompt_ends_with_an_answer(prompt: str, with_tools: bool) -> None:
    tools = [population, loan, grep, train, ticket, wiki] if with_tools else []
    talk = Talk(tools)
    assert talk.ask(prompt)
    seen = [canonical_json([name, arguments]) for name, arguments in talk.calls]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"x": {}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"anyOf": []}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": ["null", "string"]}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"const": 3}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "array"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"pattern": "("}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "object"}}, "required": ["x"]},
    ],
    ids=str,
)
def test_odd_schema_does_no_harm(schema: Schema) -> None:
    tool = ToolSpec(name="odd", description="An odd thing.", parameters=schema)
    request = ChatRequest(
        model="demo", messages=(Message.of("user", "the odd thing of Oslo and 3"),), tools=(tool,)
    )
    response = asyncio.run(PROVIDER.open(ProviderConfig()).chat(request))
    assert response.message.text or response.message.tool_calls


def test_same_request_gets_the_same_answer() -> None:
    messages = [Message.of("user", "Which of Oslo and Bergen is larger?")]
    one = respond(messages, [population, ticket])
    other = respond(messages, [population, ticket])
    assert one == other
    assert one.reasoning == other.reasoning


def test_reasoning_says_which_words_chose_the_tool() -> None:
    response = respond([Message.of("user", "population of Oslo")], [population, ticket])
    assert response.reasoning is not None
    for fragment in ("population", "Oslo", "ticket_status 0"):
        assert fragment in response.reasoning


def test_call_ids_are_unique_in_a_conversation() -> None:
    talk = Talk([population])
    talk.ask("population of Oslo and Bergen")
    talk.ask("population of Oslo and Bergen again")
    ids = [call.id for message in talk.messages for call in message.tool_calls]
    assert len(ids) == 4
    assert len(set(ids)) == 4


def test_choice_none_makes_no_call() -> None:
    talk = Talk([population], tool_choice="none")
    talk.ask("population of Oslo")
    assert talk.calls == []


@pytest.mark.parametrize("choice", ["required", "ticket_status"])
def test_forced_choice_makes_a_call_whatever_the_prompt_says(choice: str) -> None:
    talk = Talk([ticket, level, population], tool_choice=choice)
    assert talk.ask("Good morning")
    assert len(talk.calls) == 1
    if choice == "ticket_status":
        assert talk.calls[0][0] == "ticket_status"
    tool = next(one for one in talk.tools if one.name == talk.calls[0][0])
    assert set(talk.calls[0][1]) == set(tool.parameters)


def test_named_choice_keeps_other_tools_out() -> None:
    talk = Talk([population, wiki], tool_choice="wiki_search")
    talk.ask("population of Oslo")
    assert talk.calls[0][0] == "wiki_search"


WITHOUT_TOOLS = {
    "What is 12 * 7?": "**84**",
    "What is 12 times 7?": "**84**",
    "Compute (3 + 4) * 12 - 1": "**83**",
    "10 / 4": "**2.5**",
    "How many words are in 'one two three'?": "**3** words",
    "Count the words: one two three four": "**4** words",
    "Say hello world": "hello world",
    "Repeat 'ab' 3 times": "ab\nab\nab",
    "Reverse 'abc'": "cba",
    "count to 5": "1 2 3 4 5",
    "Count from 3 to 1": "3 2 1",
    "Hello": "rule-based demo",
    "What is love?": "--model",
}


@pytest.mark.parametrize("prompt", WITHOUT_TOOLS)
def test_without_tools_it_does_what_rules_can_and_says_what_it_is(prompt: str) -> None:
    assert WITHOUT_TOOLS[prompt] in Talk([]).ask(prompt)


def test_long_text_has_as_many_words_as_asked() -> None:
    assert len(Talk([]).ask("Write a story of 250 words").split()) == 250
    assert len(Talk([population]).ask("Tell me a long story").split()) >= 300
    assert Talk([]).ask("Count to 500").split() == [str(n) for n in range(1, 501)]
