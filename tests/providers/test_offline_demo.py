"""offline:demo with tools it has never seen: what it calls, what it says, and that it ends."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from demo_talk import (
    INTEGER,
    NUMBER,
    STRING,
    Talk,
    Tool,
    moon_mass,
    offered,
    one_of,
    population,
    respond,
    ticket,
    uptime,
    written,
)

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import Message
from nbagent.contracts.errors import ErrorCode, ToolError

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
    {"restaurant": STRING, "guests": INTEGER, "day": STRING},
    offered("R-81"),
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
wiki = Tool(
    "wiki_search",
    "Search the encyclopedia.",
    {"query": STRING, "limit": {"anyOf": [INTEGER, {"type": "null"}], "default": None}},
    offered(["page"]),
    optional=["limit"],
)
TOOLS = [
    *(population, moon_mass, boiling, uptime, reserve, tree, loan, median, fetch, grep, level),
    *(train, ticket, wiki),
]
FIRST_CALLS = {
    "Which of Oslo, Bergen and Rome is larger?": (
        'population(city="Oslo"); population(city="Bergen"); population(city="Rome")'
    ),
    "How many people live in New York?": 'population(city="New York")',
    "At what temperature does 'ethanol' boil, in kelvin? I mean the boiling point.": (
        'boiling_point(substance="ethanol", unit="kelvin")'
    ),
    "Book a table for 4 guests at Maaemo on Friday": (
        'reserve_table(restaurant="Maaemo", guests=4, day="Friday")'
    ),
    "Plant 12 trees in Frogner Park": 'trees.plant(count=12, park="Frogner Park")',
    "What is the monthly payment for a principal of 200,000 over 25 years at a rate of 4.2?": (
        "monthlyPayment(principal=200000, rate=4.2, years=25)"
    ),
    "Find the median of 4, 8.5, -3 and 5": "median(values=[4,8.5,-3,5])",
    "Download https://example.org/a?b=1 for me.": 'fetch_page(url="https://example.org/a?b=1")',
    'grep src/main.py for "import os"': 'grep(pattern="import os", path="src/main.py")',
    "Set the radio to a volume of 30 percent": 'set_volume(device="radio", percent=30)',
    "When does the next train to Bergen leave from Oslo?": (
        'next_train(from_station="Oslo", to_station="Bergen")'
    ),
    "What is the status of ticket OPS-4711?": 'ticket_status(ticket_id="OPS-4711")',
    "Search the encyclopedia for 'migrating birds'": 'wiki_search(query="migrating birds")',
    "How long is the uptime of this machine?": "uptime()",
    "monthly payment with rate=3.5, years=10 and principal=1000": (
        "monthlyPayment(principal=1000, rate=3.5, years=10)"
    ),
}


@pytest.mark.parametrize("prompt", FIRST_CALLS)
def test_tool_and_arguments_come_from_the_prompt(prompt: str) -> None:
    talk = Talk(TOOLS)
    answer = talk.ask(prompt)
    assert written(talk.calls) == FIRST_CALLS[prompt]
    assert "stand-in" not in answer


PROMPTS = [
    *("", "?", "42", "{}", "Oslo", "((((((1+2", "9**9**9**9", "\0\x01", "Ünïcödé \U0001f600"),
    *("a" * 5000, "1 " * 2000, "and " * 500, "'" * 100, "A" + "-b" * 3000, "1/" * 2000),
    *("count to 99999999999999999999", "Which is larger? " * 50, "population " * 300),
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: repr(prompt[:20]))
@pytest.mark.parametrize("with_tools", [True, False], ids=["tools", "no tools"])
def test_odd_prompt_ends_with_an_answer(prompt: str, with_tools: bool) -> None:
    tools = [population, loan, grep, train, ticket, wiki] if with_tools else []
    talk = Talk(tools)
    assert talk.ask(prompt)
    seen = [canonical_json([name, arguments]) for name, arguments in talk.calls]
    assert len(seen) == len(set(seen))


def test_reasoning_says_which_words_chose_the_tool() -> None:
    response = respond([Message.of("user", "population of Oslo")], [population, ticket])
    assert response.reasoning is not None
    for fragment in ("population", "Oslo", "ticket_status 0"):
        assert fragment in response.reasoning


@pytest.mark.parametrize("choice", ["required", "ticket_status"])
def test_forced_choice_makes_a_call_whatever_the_prompt_says(choice: str) -> None:
    talk = Talk([ticket, level, population], tool_choice=choice)
    assert talk.ask("Good morning")
    assert len(talk.calls) == 1
    if choice == "ticket_status":
        assert talk.calls[0][0] == "ticket_status"
    tool = next(one for one in talk.tools if one.name == talk.calls[0][0])
    assert set(talk.calls[0][1]) == set(tool.parameters)


WITHOUT_TOOLS = {
    "What is 12 * 7?": "**84**",
    "Compute (3 + 4) * 12 - 1": "**83**",
    "10 / 4": "**2.5**",
    "count to 5": "1 2 3 4 5",
    "Count to 99999": "4999 5000",
    "Hello": "a rule-based stand-in and not a language model",
    "What is love?": "--model",
}


@pytest.mark.parametrize("prompt", WITHOUT_TOOLS)
def test_without_tools_it_does_what_rules_can_and_says_what_it_is(prompt: str) -> None:
    assert WITHOUT_TOOLS[prompt] in Talk([]).ask(prompt)


def test_long_text_has_as_many_words_as_asked() -> None:
    assert len(Talk([]).ask("Write a story of 250 words").split()) == 250
    assert len(Talk([population]).ask("Tell me a long story").split()) >= 300


WRITTEN = {
    'Call `population(city="Oslo")`.': 'population(city="Oslo")',
    "`population('Oslo')` and `moon_mass('Io')`": 'population(city="Oslo"); moon_mass(moon="Io")',
    "`trees.plant(count=3, park='A (b)')`": 'trees.plant(count=3, park="A (b)")',
    "`median([1, -2.5])`": "median(values=[1,-2.5])",
    "`uptime()`": "uptime()",
    "`unknown(city='Oslo')`": "",
    "`population(city=open())`": "",
    "`population(`": "",
    "`population() + (1)`": "",
}


@pytest.mark.parametrize("prompt", WRITTEN)
def test_call_in_backticks_is_made_as_it_is_written(prompt: str) -> None:
    talk = Talk([population, moon_mass, tree, median, uptime])
    talk.ask(prompt)
    assert written(talk.calls) == WRITTEN[prompt]


COMPARED = {
    "Which of Oslo and Bergen is larger?": ("**Oslo** is larger: 709,037 against 291,940",),
    "Which is the largest city: Oslo, Bergen or Rome?": ("**Rome** is the largest",),
    "Which city has the fewest people, Oslo, Bergen or Rome?": ("**Bergen** has the fewest",),
    "Is Bergen larger than Oslo?": ("**Oslo** is larger",),
    "Is Oslo smaller than Bergen?": ("**Bergen** is smaller",),
    "How many more people live in Oslo than in Bergen?": ("difference is **417,097**",),
    "What is the total population of Oslo, Bergen and Rome?": ("**3,749,086**",),
    "What is the average population of Oslo and Bergen?": ("**500,488.5**",),
    "Which of Oslo and Bergen is larger, and by how much?": (
        "**Oslo** is larger",
        "The difference is **417,097**",
    ),
    "Compare Oslo with Rome by population": ("**Rome** is larger", "2,039,072"),
}


@pytest.mark.parametrize("prompt", COMPARED)
def test_numbers_are_compared_as_the_prompt_asks(prompt: str) -> None:
    talk = Talk([population, ticket])
    answer = talk.ask(prompt)
    assert [one for one in COMPARED[prompt] if one not in answer] == []
    assert {name for name, _ in talk.calls} == {"population"}


def test_equal_numbers_are_called_equal() -> None:
    talk = Talk([Tool("age", "Age of a person.", {"person": STRING}, offered(41))])
    assert "**Ada** and **Bob** are equal: 41." in talk.ask("Who is older, Ada or Bob?")


def test_numbers_inside_objects_are_found_by_their_key() -> None:
    data = {"Alfa": {"price": 30500, "weight_kg": 980}, "Beta": {"price": 28900, "weight_kg": 1210}}
    car = Tool("car_data", "Data of a car.", {"model": STRING}, one_of(data))
    answer = Talk([car]).ask("Which car has the higher weight, Alfa or Beta?")
    assert "**Beta** is higher: 1210 against 980" in answer
    assert "| Alfa | 30,500 | 980 |" in answer


def test_conversation_goes_on_with_earlier_results() -> None:
    talk = Talk([population, ticket])
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
    def refuse(**arguments: Any) -> Any:
        raise ToolError("not this row", code=code)

    talk = Talk([Tool("delete_row", "Delete a row.", {"row": STRING}, refuse)])
    answer = talk.ask("Delete the row 'a'")
    assert len(talk.calls) == 1
    assert '`delete_row(row="a")`: not this row' in answer
    assert ("not allowed" in answer) == (code == "E_DENIED")


def test_missing_argument_is_named_when_nothing_gives_it() -> None:
    talk = Talk([ticket])
    answer = talk.ask("What is the status of my ticket?")
    assert talk.calls == []
    assert "needs `ticket_id`" in answer


RESULTS: dict[str, tuple[Any, str]] = {
    "fields": ({"a": {"b": 1}, "c": [1, 2], "d": ""}, "`uptime()`:\n\n- a.b: 1\n- c: 1, 2"),
    "rows": ([{"x": "a|b", "y": None}], "`uptime()`:\n\n| x |\n| --- |\n| a\\|b |"),
    "a text with a fence": ("```\na\n```", "`uptime()`:\n\n````\n```\na\n```\n````"),
    "nothing": (None, "`uptime()`: –"),
    "a flag": (True, "`uptime()`: yes"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_result_is_told_as_fields_and_tables(case: str) -> None:
    data, said = RESULTS[case]
    assert Talk([Tool("uptime", "", {}, offered(data))]).ask("uptime?") == said


def test_long_results_are_cut_and_say_so() -> None:
    rows, text = [{"n": n} for n in range(30)], "long\n" * 1000
    answer = Talk([Tool("uptime", "", {}, offered({"rows": rows, "text": text}))]).ask("uptime?")
    assert "… and 10 more" in answer
    assert "(cut)" in answer
    assert len(answer) < 3000


PIECES = re.findall(
    r"\S+",
    "Oslo and or , . ? : ' \" 3 4.5 -2 of in from to with larger total count all A-17 a@b.c"
    " 2024-01-02 = { } [ ] `code` `f( the is on 12*7 rate= much again ² ٣ İ \0 radio uptime",
)


@pytest.mark.parametrize("seed", range(6))
def test_prompt_put_together_at_random_ends_and_repeats_no_call(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        talk = Talk(chance.sample([population, loan, grep, train, level, reserve, median, wiki], 4))
        assert talk.ask(" ".join(chance.choices(PIECES, k=chance.randint(0, 20))))
        assert len({written([one]) for one in talk.calls}) == len(talk.calls)
