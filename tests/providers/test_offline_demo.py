"""offline:demo with tools it has never seen: what it calls, what it says, and that it ends."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import pytest
from demo_talk import Talk, written

from nbagent import tool
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import ChatChunk, ChatRequest, ChatResponse, Message, ProviderConfig
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.providers.offline import DELAY_VARIABLE, PROVIDER
from nbagent.providers.offline.stream import estimated_tokens

PEOPLE = {"Oslo": 709037, "Bergen": 291940, "Rome": 2748109, "New York": 8258035}


@pytest.fixture(autouse=True)
def without_delay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    yield
    uptime_says.clear()


def population(city: str) -> int:
    "People living in a city."
    return PEOPLE[city]


def ticket_status(ticket_id: str) -> str:
    "State of a ticket."
    return "open"


uptime_says: list[Any] = []


def uptime() -> Any:
    "How long the machine has been running."
    return uptime_says[0] if uptime_says else "3 days"


def boiling_point(substance: str, unit: Literal["celsius", "kelvin"] = "celsius") -> float:
    "Temperature at which a substance boils."
    return 78.4


def reserve_table(restaurant: str, guests: int, day: str) -> str:
    "Book a table in a restaurant."
    return "R-81"


@tool(name="trees.plant")
def tree(count: int, park: str) -> int:
    "Plant trees in a park."
    return 1


@tool(name="monthlyPayment")
def loan(principal: float, rate: float, years: int) -> float:
    "Monthly payment of a loan."
    return 1073.64


def median(values: list[float]) -> int:
    "Median of numbers."
    return 5


def fetch_page(url: str) -> str:
    "Download a web page."
    return "<html>"


def grep(pattern: str, path: str) -> list[str]:
    "Search a file for a text."
    return ["a: 1"]


class Device(Enum):
    RADIO = "radio"
    TELEVISION = "television"


def set_volume(device: Device, percent: int) -> None:
    "Set the loudness of a device."


def next_train(from_station: str, to_station: str) -> str:
    "Departure of the next train."
    return "10:42"


def local_time(timezone: str) -> str:
    "Time of the day somewhere."
    return "10:42"


TOOLS = [
    local_time,
    *(population, boiling_point, uptime, reserve_table, tree, loan, median),
    *(fetch_page, grep, set_volume, next_train, ticket_status),
]
# prompt: the calls that are made first.
CALLS = {
    "Which of Oslo, Bergen and Rome is larger?":
        'population(city="Oslo"); population(city="Bergen"); population(city="Rome")',
    "How many people live in New York?": 'population(city="New York")',
    "At what temperature does 'ethanol' boil, in kelvin? I mean the boiling point.":
        'boiling_point(substance="ethanol", unit="kelvin")',
    "Book a table for 4 guests at Maaemo on Friday":
        'reserve_table(restaurant="Maaemo", guests=4, day="Friday")',
    "Plant 12 trees in Frogner Park": 'trees.plant(count=12, park="Frogner Park")',
    "What is the monthly payment for a principal of 200,000 over 25 years at a rate of 4.2?":
        "monthlyPayment(principal=200000, rate=4.2, years=25)",
    "Find the median of 4, 8.5, -3 and 5": "median(values=[4,8.5,-3,5])",
    "Download https://example.org/a?b=1 for me.": 'fetch_page(url="https://example.org/a?b=1")',
    'grep src/main.py for "import os"': 'grep(pattern="import os", path="src/main.py")',
    "Set the radio to a volume of 30 percent": 'set_volume(device="radio", percent=30)',
    "When does the next train to Bergen leave from Oslo?":
        'next_train(from_station="Oslo", to_station="Bergen")',
    "What is the status of ticket OPS-4711?": 'ticket_status(ticket_id="OPS-4711")',
    "What is the local time in Europe/Oslo?": 'local_time(timezone="Europe/Oslo")',
    "How long is the uptime of this machine?": "uptime()",
    "monthly payment with rate=3.5, years=10 and principal=1000":
        "monthlyPayment(principal=1000, rate=3.5, years=10)",
    # A call in backticks is made as it is written.
    'Call `population(city="Oslo")`.': 'population(city="Oslo")',
    "`population('Oslo')` and `median([1])`": 'population(city="Oslo"); median(values=[1])',
    "`trees.plant(count=3, park='A (b)')`": 'trees.plant(count=3, park="A (b)")',
    "`median([1, -2.5])`": "median(values=[1,-2.5])",
    "`unknown(city='Oslo')`": "", "`population(city=open())`": "", "`population(`": "",
    "`population() + (1)`": "",
}  # fmt: skip


@pytest.mark.parametrize("prompt", CALLS)
def test_tool_and_arguments_come_from_the_prompt(prompt: str) -> None:
    talk = Talk(*TOOLS)
    answer = talk.ask(prompt)
    assert written(talk.calls) == CALLS[prompt]
    assert "stand-in" not in answer or not talk.calls


def test_reasoning_says_which_words_chose_the_tool() -> None:
    talk = Talk(population, ticket_status)
    talk.ask("population of Oslo")
    response = talk.runs[0].turns[0].response
    assert response
    for fragment in ("population", "Oslo", "ticket_status 0"):
        assert fragment in (response.reasoning or "")


@pytest.mark.parametrize("choice", ["required", "ticket_status"])
def test_forced_choice_makes_a_call_whatever_the_prompt_says(choice: str) -> None:
    tools = {made.__name__: made for made in (ticket_status, set_volume, population)}
    talk = Talk(*tools.values())
    assert talk.ask("Good morning", tool_choice=choice)
    ((name, arguments),) = talk.calls
    assert choice in ("required", name)
    assert set(arguments) == set(inspect.signature(tools[name]).parameters)


WITHOUT_TOOLS = {
    "count to 5": "1 2 3 4 5",
    "Count to 99999": "4999 5000",
    "Hello": "a rule-based stand-in and not a language model",
    "What is love?": "--model",
}


@pytest.mark.parametrize("prompt", WITHOUT_TOOLS)
def test_without_tools_it_does_what_rules_can_and_says_what_it_is(prompt: str) -> None:
    assert WITHOUT_TOOLS[prompt] in Talk().ask(prompt)
    assert len(Talk().ask("Write a story of 250 words").split()) == 250


COMPARED = {
    "Which of Oslo and Bergen is larger?": "**Oslo** is larger: 709,037 against 291,940",
    "Which is the largest city: Oslo, Bergen or Rome?": "**Rome** is the largest",
    "Which city has the fewest people, Oslo, Bergen or Rome?": "**Bergen** has the fewest",
    "Is Oslo smaller than Bergen?": "**Bergen** is smaller",
    "How many more people live in Oslo than in Bergen?": "difference is **417,097**",
    "What is the total population of Oslo, Bergen and Rome?": "**3,749,086**",
    "Which of Oslo and Bergen is larger, and by how much?": "The difference is **417,097**",
    "Compare Oslo with Rome by population": "**Rome** is larger",
}


@pytest.mark.parametrize("prompt", COMPARED)
def test_numbers_are_compared_as_the_prompt_asks(prompt: str) -> None:
    talk = Talk(population, ticket_status)
    answer = talk.ask(prompt)
    assert COMPARED[prompt] in answer
    assert {name for name, _ in talk.calls} == {"population"}


def test_equal_numbers_and_numbers_inside_objects_are_compared() -> None:
    def car_data(model: str) -> dict[str, int]:
        "Data of a car."
        return {"price": 30500, "weight_kg": {"Alfa": 980, "Beta": 1210}[model]}

    answer = Talk(car_data).ask("Which car has the higher weight, Alfa or Beta?")
    assert "**Beta** is higher: 1210 against 980" in answer
    assert "| Alfa | 30,500 | 980 |" in answer
    assert "are equal: 30" in Talk(car_data).ask("Which car has the higher price, Alfa or Beta?")


def test_conversation_goes_on_with_earlier_results() -> None:
    talk = Talk(population, ticket_status)
    talk.ask("Which of Oslo and Bergen is larger?")
    assert "The difference is **417,097**" in talk.ask("And by how much?")
    assert "**1,000,977**" in talk.ask("And the total?")
    assert len(talk.calls) == 2
    assert "2,748,109" in talk.ask("And Rome?")
    assert talk.calls[2:] == [("population", {"city": "Rome"})]
    assert "**Rome** is the largest" in talk.ask("Which of them is the largest?")
    talk.ask("Look up the population of Oslo again")
    assert len(talk.calls) == 4


@pytest.mark.parametrize("code", ["E_DENIED", "E_INTERRUPTED", "E_TOOL_FAILED"])
def test_failed_call_is_told_and_not_repeated(code: ErrorCode) -> None:
    def delete_row(row: str) -> None:
        "Delete a row."
        raise ToolError("not this row", code=code)

    talk = Talk(delete_row)
    answer = talk.ask("Delete the row 'a'")
    assert len(talk.calls) == 1
    assert '`delete_row(row="a")`: not this row' in answer
    assert ("not allowed" in answer) == (code == "E_DENIED")
    talk = Talk(ticket_status)
    assert "needs `ticket_id`" in talk.ask("What is the status of my ticket?"), "nothing gives it"
    assert talk.calls == []


RESULTS: dict[str, tuple[Any, str]] = {
    "fields": ({"a": {"b": 1}, "c": [1, 2], "d": ""}, "`uptime()`:\n\n- a.b: 1\n- c: 1, 2"),
    "rows": ([{"x": "a|b", "y": None}], "`uptime()`:\n\n| x |\n| --- |\n| a\\|b |"),
    "a text with a fence": ("```\na\n```", "`uptime()`:\n\n````\n```\na\n```\n````"),
    "nothing": (None, "`uptime()`: –"),
    "a flag": (True, "`uptime()`: yes"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_result_is_told_as_fields_and_tables_and_a_long_one_is_cut(case: str) -> None:
    data, said = RESULTS[case]
    uptime_says.append(data)
    assert Talk(uptime).ask("uptime?") == said
    uptime_says[0] = {"rows": [{"n": n} for n in range(30)], "text": "long\n" * 1000}
    answer = Talk(uptime).ask("uptime?")
    assert "… and 10 more" in answer
    assert "(cut)" in answer
    assert len(answer) < 3000


PROMPTS = [
    *("?", "42", "{}", "Oslo", "((((((1+2", "9**9**9**9", "\0\x01", "Ünïcödé \U0001f600"),
    *("a" * 5000, "1 " * 2000, "and " * 500, "'" * 100, "A" + "-b" * 3000, "1/" * 2000),
    *("count to 99999999999999999999", "Which is larger? " * 50, "population " * 300),
]
PIECES = re.findall(
    r"\S+",
    "Oslo and or , . ? : ' \" 3 4.5 -2 of in from to with larger total count all A-17 a@b.c"
    " 2024-01-02 = { } [ ] `code` `f( the is on 12*7 rate= much again ² ٣ İ \0 radio uptime",
)


def random_prompts(seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(PIECES, k=chance.randint(1, 20))) for _ in range(40)]


@pytest.mark.parametrize(
    "seed", [None, *range(6)], ids=lambda seed: "written" if seed is None else f"random {seed}"
)
def test_odd_prompt_ends_with_an_answer_and_repeats_no_call(seed: int | None) -> None:
    chance = random.Random(seed)
    for prompt in PROMPTS if seed is None else random_prompts(seed):
        for tools in ((), TOOLS) if seed is None else (chance.sample(TOOLS, 4),):
            talk = Talk(*tools)
            assert talk.ask(prompt), prompt[:99]
            assert len({written([one]) for one in talk.calls}) == len(talk.calls), prompt[:99]


# How it streams, paces itself, counts tokens and keeps limits.


def request(prompt: str = "Count to 20", **fields: object) -> ChatRequest:
    sent = {"model": "demo", "messages": (Message.of("user", prompt),), **fields}
    return ChatRequest.model_validate(sent)


def chunks_of(sent: ChatRequest) -> list[ChatChunk]:
    async def go() -> list[ChatChunk]:
        return [chunk async for chunk in PROVIDER.open(ProviderConfig()).chat_stream(sent)]

    return asyncio.run(go())


def answered(sent: ChatRequest) -> ChatResponse:
    return asyncio.run(PROVIDER.open(ProviderConfig()).chat(sent))


@pytest.mark.parametrize(("variable", "least_ms"), [("", 15), ("25", 25), ("-3", 15)])
def test_a_stream_is_paced_and_a_whole_answer_or_a_pace_of_zero_does_not_wait(
    variable: str, least_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = monotonic_ms()
    chunks_of(request("Count to 2000"))
    monkeypatch.setenv(DELAY_VARIABLE, variable)
    answered(request("Count to 2000"))
    assert monotonic_ms() - begun < 2000 * 15 / 3
    begun = monotonic_ms()
    pieces = [
        chunk for chunk in chunks_of(request("Count to 5")) if chunk.content or chunk.reasoning
    ]
    assert len(pieces) * least_ms * 0.95 <= monotonic_ms() - begun


def test_usage_is_four_characters_a_token_and_what_was_sent_before_is_cached() -> None:
    first = request("Hey " + "x" * 396, system_prompt="y" * 40)
    one = answered(first)
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.cached_tokens) == (100 + 10, 0)
    assert one.usage.reasoning_tokens == estimated_tokens(len(one.reasoning or ""))
    told = estimated_tokens(len(one.message.text)) + one.usage.reasoning_tokens
    assert (one.usage.completion_tokens, one.usage.total_tokens) == (told, 110 + told)
    messages = (*first.messages, one.message, Message.of("user", "And then?"))
    two = answered(first.model_copy(update={"messages": messages}))
    assert two.usage is not None
    assert two.usage.prompt_tokens > two.usage.cached_tokens == one.usage.prompt_tokens


@pytest.mark.parametrize(
    ("limits", "text", "finish"),
    [
        ({"max_tokens": 5}, "1 2 3 4 5 6 7 8 9 10", "length"),
        ({"stop_sequences": ("11", "7 ")}, "1 2 3 4 5 6 ", "stop"),
    ],
)
def test_answer_ends_at_a_limit_and_says_so(
    limits: dict[str, object], text: str, finish: str
) -> None:
    response = answered(request("Count to 100", **limits))
    assert (response.message.text, response.finish_reason) == (text, finish)
