"""offline:demo after its first calls: comparisons, going on, chains of tools, failed calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from demo_talk import (
    INTEGER,
    NUMBER,
    STRING,
    Called,
    Talk,
    Tool,
    offered,
    one_of,
    population,
    ticket,
    uptime,
)

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ChatRequest, Message
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.providers.offline.rules import decide

COMPARED: list[tuple[str, list[str], list[str]]] = [
    ("Which of Oslo and Bergen is larger?", ["**Oslo** is larger: 709,037 against 291,940"], []),
    ("Which is the largest city: Oslo, Bergen or Rome?", ["**Rome** is the largest"], []),
    ("Which city has the fewest people, Oslo, Bergen or Rome?", ["**Bergen** has the fewest"], []),
    ("Is Bergen larger than Oslo?", ["No: **Oslo** is larger"], ["Yes"]),
    ("Is Oslo larger than Bergen?", ["Yes: **Oslo** is larger"], ["No:"]),
    ("Is Oslo smaller than Bergen?", ["No: **Bergen** is smaller"], ["Yes"]),
    ("How many more people live in Oslo than in Bergen?", ["417,097"], ["is more"]),
    ("What is the total population of Oslo, Bergen and Rome?", ["**3,749,086**"], []),
    ("What is the average population of Oslo and Bergen?", ["**500,488.5**"], []),
    ("What is the ratio of the populations of Oslo and Bergen?", ["**2.43** times **Bergen**"], []),
    (
        "Which of Oslo and Bergen is larger, and by how much?",
        ["**Oslo** is larger", "The difference is **417,097**"],
        [],
    ),
    (
        "Which of Oslo, Bergen and Rome have more than 500,000 people?",
        ["**Oslo** and **Rome**."],
        ["**Bergen**"],
    ),
    ("Compare Oslo with Rome by population", ["**Rome** is larger", "2,039,072"], []),
]


@pytest.mark.parametrize(
    ("prompt", "said", "unsaid"), COMPARED, ids=[prompt for prompt, _, _ in COMPARED]
)
def test_numbers_are_compared_as_the_prompt_asks(
    prompt: str, said: list[str], unsaid: list[str]
) -> None:
    talk = Talk([population, ticket])
    answer = talk.ask(prompt)
    for fragment in said:
        assert fragment in answer
    for fragment in unsaid:
        assert fragment not in answer
    assert all(name == "population" for name, _ in talk.calls)


def test_equal_numbers_are_called_equal() -> None:
    talk = Talk([Tool("age", "Age of a person.", {"person": STRING}, offered(41))])
    assert "**Ada** and **Bob** are equal: 41." in talk.ask("Who is older, Ada or Bob?")


def test_results_are_sorted_when_the_prompt_asks() -> None:
    answer = Talk([population]).ask("Rank Oslo, Rome and Bergen by population")
    assert answer.index("| Rome") < answer.index("| Oslo") < answer.index("| Bergen")


def test_numbers_inside_objects_are_found_by_their_key() -> None:
    data = {"Alfa": {"price": 30500, "weight_kg": 980}, "Beta": {"price": 28900, "weight_kg": 1210}}
    car = Tool("car_data", "Data of a car.", {"model": STRING}, one_of(data))
    talk = Talk([car])
    assert "**Beta** is heavier: 1,210 against 980" in talk.ask(
        "Which car is heavier, Alfa or Beta?"
    )
    assert "**Beta** is the cheapest" in talk.ask("And which of them is the cheapest?")


def test_rows_of_one_result_are_compared() -> None:
    rows = [{"lake": "Mjøsa", "depth_m": 453}, {"lake": "Hornindalsvatnet", "depth_m": 514}]
    talk = Talk([Tool("lakes", "Lakes and their depth.", {}, offered(rows))])
    answer = talk.ask("Which of the lakes is the deepest?")
    assert "**Hornindalsvatnet** is the deepest: 514" in answer


def test_differences_of_decimals_are_exact() -> None:
    price = Tool(
        "price",
        "Price of a thing.",
        {"thing": STRING},
        one_of({"tea": 0.1, "milk": 0.3}),
    )
    answer = Talk([price]).ask("What is the difference in the price of tea and milk?")
    assert "**0.2**" in answer


def test_conversation_goes_on_with_earlier_results() -> None:
    talk = Talk([population, ticket])
    talk.ask("Which of Oslo and Bergen is larger?")
    assert "The difference is **417,097**" in talk.ask("And by how much?")
    assert "**1,000,977**" in talk.ask("And the total?")
    assert len(talk.calls) == 2
    assert "2,748,109" in talk.ask("And Rome?")
    assert talk.calls[2:] == [("population", {"city": "Rome"})]
    assert "**Rome** is the largest" in talk.ask("Which of them is the largest?")
    assert len(talk.calls) == 3


def test_known_result_is_used_unless_asked_for_again() -> None:
    talk = Talk([population])
    talk.ask("population of Oslo")
    assert "709,037" in talk.ask("What was the population of Oslo?")
    assert len(talk.calls) == 1
    talk.ask("Look up the population of Oslo again")
    assert len(talk.calls) == 2


find_customer = Tool(
    "find_customer",
    "Find a customer by name.",
    {"name": STRING},
    one_of({"Ada Lovelace": {"customer": {"id": 77, "name": "Ada Lovelace"}}}),
)
invoices = Tool(
    "list_invoices",
    "Invoices of a customer.",
    {"customer_id": INTEGER},
    offered([{"number": "F-77", "amount": 1250.5}]),
)
coordinates = Tool(
    "coordinates",
    "Latitude and longitude of a place.",
    {"place": STRING},
    offered({"latitude": 59.91, "longitude": 10.75}),
)
tides = Tool(
    "tides", "High and low tide.", {"lat": NUMBER, "lon": NUMBER}, offered("high at 14:05")
)
folder = Tool("list_notes", "List the notes.", {}, offered(["may.md", "june.md"]))
NOTES = {"may.md": "warm", "june.md": "hot"}
reading = Tool("read_note", "Read one note.", {"path": STRING}, one_of(NOTES))

CHAINS: list[tuple[str, Sequence[Tool], str, list[Called], str]] = [
    (
        "an id out of an object",
        [invoices, find_customer, uptime],
        "Show the invoices of customer Ada Lovelace",
        [("find_customer", {"name": "Ada Lovelace"}), ("list_invoices", {"customer_id": 77})],
        "1,250.5",
    ),
    (
        "two values by a longer key",
        [tides, coordinates],
        "When is high tide in Oslo?",
        [("coordinates", {"place": "Oslo"}), ("tides", {"lat": 59.91, "lon": 10.75})],
        "high at 14:05",
    ),
    (
        "every item of a list",
        [folder, reading],
        "Read every note",
        [
            ("list_notes", {}),
            ("read_note", {"path": "may.md"}),
            ("read_note", {"path": "june.md"}),
        ],
        "hot",
    ),
]


@pytest.mark.parametrize(
    ("tools", "prompt", "expected", "said"),
    [case[1:] for case in CHAINS],
    ids=[case[0] for case in CHAINS],
)
def test_missing_argument_is_fetched_with_another_tool(
    tools: Sequence[Tool], prompt: str, expected: list[Called], said: str
) -> None:
    talk = Talk(tools)
    answer = talk.ask(prompt)
    assert talk.calls == expected
    assert said in answer


def test_failed_call_is_tried_once_with_what_the_error_offers() -> None:
    def capital(country: str) -> str:
        known = {"Norway": "Oslo", "Peru": "Lima"}
        if country not in known:
            raise ToolError(f"unknown country {country!r}; known: 'Norway', 'Peru'")
        return known[country]

    talk = Talk([Tool("capital", "Capital of a country.", {"country": STRING}, capital)])
    answer = talk.ask("What is the capital of Norwai?")
    assert talk.calls == [("capital", {"country": "Norwai"}), ("capital", {"country": "Norway"})]
    assert "Oslo" in answer
    assert "failed" not in answer


def test_call_that_keeps_failing_is_reported_and_not_repeated() -> None:
    def broken(**arguments: Any) -> Any:
        raise ToolError("the sensor does not answer")

    talk = Talk([Tool("read_sensor", "Read a sensor.", {"sensor": STRING}, broken)])
    answer = talk.ask("Read the sensor named attic")
    assert len(talk.calls) <= 2
    assert "the sensor does not answer" in answer
    seen = [canonical_json([name, arguments]) for name, arguments in talk.calls]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("code", ["E_DENIED", "E_INTERRUPTED"])
def test_refused_call_is_not_tried_in_another_way(code: ErrorCode) -> None:
    def refuse(**arguments: Any) -> Any:
        raise ToolError("not allowed", code=code)

    talk = Talk([Tool("delete_row", "Delete a row.", {"row": STRING}, refuse)])
    answer = talk.ask("Delete the row 'a'")
    assert len(talk.calls) == 1
    assert "not allowed" in answer


def test_missing_argument_is_named_when_nothing_gives_it() -> None:
    talk = Talk([ticket])
    answer = talk.ask("What is the status of my ticket?")
    assert talk.calls == []
    assert "`ticket_id`" in answer


def test_an_answer_that_was_cut_off_goes_on_where_it_stopped() -> None:
    messages = (
        Message.of("user", "count to 12"),
        Message.of("assistant", "1 2 3 4 5"),
        Message.of("user", "Your last answer was cut off. Go on exactly where it stopped."),
    )
    assert decide(ChatRequest(model="demo", messages=messages)).text == "6 7 8 9 10 11 12"
