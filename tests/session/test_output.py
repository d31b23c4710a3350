"""Answers of a type: by the provider's schema mode or by `final_answer`, corrected, as a value."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from json import dumps
from typing import Any, Literal, TypedDict

import pytest
from engine.laws import check_run, population
from pydantic import BaseModel, field_validator
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.providers.offline import call, calls, script


class City(BaseModel):
    name: str
    population: int

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "Atlantis":
            raise ValueError("there is no such city")
        if name == "Nowhere":
            raise LookupError("of the person's")
        return name


@dataclass
class Town:
    name: str
    population: int


class Row(TypedDict):
    name: str
    population: int


OSLO: Any = {"name": "Oslo", "population": 717_710}
BERGEN: Any = {"name": "Bergen", "population": 291_940}


def ran(*steps: Any, **options: Any) -> tuple[Any, Any]:
    model = script(steps)
    options = {"output": City, "tools": [], "quiet": True, **options}
    run = nbagent.Agent(model=model, **options).run("Which city is larger?")
    return check_run(run, model), model


BOTH = {"answer": [OSLO, BERGEN]}
KINDS: dict[str, tuple[Any, Any, Any, list[dict[str, Any]]]] = {
    "a model": (City, OSLO, City(**OSLO), [OSLO]),
    "a TypedDict": (Row, OSLO, OSLO, [OSLO]),
    "a list of models": (list[City], BOTH, [City(**OSLO), City(**BERGEN)], [OSLO, BERGEN]),
    "numbers": (list[int], {"answer": [1, 2]}, [1, 2], [{"value": 1}, {"value": 2}]),
    "a choice": (Literal["Oslo", "Rome"], {"answer": "Oslo"}, "Oslo", [{"value": "Oslo"}]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_by_a_call_is_the_value_and_its_rows(kind: str) -> None:
    output, given, value, rows = KINDS[kind]
    run, model = ran(call("final_answer", given), output=output)
    assert (run.ok, run.stop_reason, len(run.turns)) == (True, "answered", 1)
    assert run.output == value
    assert type(run.output) is type(value)
    frame: Any = run.frame()
    assert frame.to_dict("records") == rows
    (tool,) = model.requests[0].tools
    assert (tool.name, tool.parameters["type"]) == ("final_answer", "object")
    assert "final_answer" in model.requests[0].system_prompt
    assert nbagent.open_run(run.id).output == value


PLAIN, OTHER = '{"name": "Oslo", "population": "717710"}', '{"name": "Rome", "population": 1}'
TAKEN: dict[str, str] = {
    "plain": PLAIN,
    "a fence": f"```json\n{PLAIN}\n```",
    "a fence of CRLF": f"```json\r\n{PLAIN}\r\n```\r\n",
    "a fence without a language": f"```\n{PLAIN}\n```",
    "a fence of tildes": f"~~~json\n{PLAIN}\n~~~",
    "a fence in one line": f"```json {PLAIN} ```",
    "a fence that does not end": f"```json\n{PLAIN}\n",
    "a BOM": f"\ufeff{PLAIN}",
    "a BOM and a fence": f"\ufeff```json\n{PLAIN}\n```",
    "words before a fence": f"Here it is:\n\n```json\n{PLAIN}\n```",
    "words behind a fence": f"```json\n{PLAIN}\n```\nTell me if you need more.",
    "a BOM in a fence": f"```json\n\ufeff{PLAIN}\n```",
    "a space before the language": f"``` json\n{PLAIN}\n```",
    "a language in braces": f"```{{.json}}\n{PLAIN}\n```",
    "a language with a title": f'```json title="a.json"\n{PLAIN}\n```',
    "a quotation": f"> ```json\n> {PLAIN}\n> ```",
    "spaces that are not broken": f"\xa0{PLAIN}\u200b",
    "an indented fence": f"1. It is\n   ```json\n   {PLAIN}\n   ```",
    "the first of two fences": f"```json\n{PLAIN}\n```\nor\n```json\n{OTHER}\n```",
    "a fence of something else first": f"```python\nprint(1)\n```\n```json\n{PLAIN}\n```",
    "a fence that does not fit first": f'```json\n{{"a": 1}}\n```\n```json\n{PLAIN}\n```',
    "words before": f"The answer: {PLAIN}",
    "words behind": f"{PLAIN}\n\nThat is all.",
    "words around": f"I looked [1] at {{both}}; {PLAIN} is larger.",
    "twice the same": f"{PLAIN}\n\nAgain: {PLAIN}",
    "beside an object that does not fit": f'Of {{"n": 2}} cities: {PLAIN}',
    "a comma after the last field": PLAIN.replace("}", ",\n}"),
    "brackets in a text": 'It is {"name": "Oslo", "population": 717710, "note": "}]{ \\" ```"}.',
}


@pytest.mark.parametrize("kind", TAKEN)
def test_an_answer_in_text_counts_at_once_when_it_fits(kind: str) -> None:
    run, model = ran(TAKEN[kind])
    assert run.output == City(**OSLO)
    assert len(model.requests) == 1
    assert nbagent.open_run(run.id).output_as(City) == City(**OSLO)


LISTS: dict[str, list[int] | None] = {
    "[1, 2,]": [1, 2],
    "```json\n[1, 2]\n```": [1, 2],
    "They are: [1, 2]": [1, 2],
    "[1, 2] are they.": [1, 2],
    'So {"answer": [1, 2]}, I think.': [1, 2],
    "As [1] says, none.": None,
    "[1], [2]": None,
    "1, 2": None,
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list_in_text_counts_if_it_is_no_citation(text: str) -> None:
    good = call("final_answer", answer=[7])
    run, model = ran(text, good, output=list[int])
    assert run.output == (LISTS[text] or [7])
    assert len(model.requests) == (1 if LISTS[text] else 2)


def test_a_problem_of_the_whole_answer_names_the_answer() -> None:
    _, model = ran(
        call("final_answer", answer="x"), call("final_answer", answer=[7]), output=list[int]
    )
    assert "the answer: Input should be" in model.requests[1].messages[-1].text


NOT_TAKEN: dict[str, tuple[str, str]] = {
    "two that differ": (f"Either {PLAIN} or {OTHER}.", "several JSON values"),
    "a part of a broken one": (f'{{"city": {PLAIN}, oops', "no JSON"),
    "a part of a larger one": (f'{{"city": {PLAIN}}}', "name: Field required"),
    "cut off": (PLAIN[:-5], "no JSON"),
    "cut off in a fence": (f"```json\n{PLAIN[:-5]}\n```", "no JSON"),
    "in a text": (dumps(PLAIN), "should be an object"),
    "in code": (f"```python\ncity = {PLAIN}\n```", "no JSON"),
    "of Python": ("{'name': 'Oslo', 'population': 1}", "no JSON"),
    "two commas": ('{"name": "Oslo",, "population": 1}', "no JSON"),
    "many open brackets": ("{[" * 50_000, "no JSON"),
    "many brackets": ("{}" * 50_000 + "x", "name: Field required"),
    "many fences": ("```\n" * 20_000, "no JSON"),
    "many quotes": ('{"' * 50_000, "no JSON"),
}


@pytest.mark.parametrize("kind", NOT_TAKEN)
def test_json_that_may_not_be_the_answer_is_asked_for_again(kind: str) -> None:
    text, why = NOT_TAKEN[kind]
    run, model = ran(text, call("final_answer", OSLO))
    assert run.output == City(**OSLO)
    assert len(model.requests) == 2
    assert why in model.requests[1].messages[-1].text


WRONG: dict[str, tuple[Any, str]] = {
    "a wrong field": (call("final_answer", name="Oslo", population="many"), "population: "),
    "refused by a validator": (call("final_answer", name="Atlantis", population=1), "no such city"),
    "a validator that fails": (call("final_answer", name="Nowhere", population=1), "LookupError"),
    "no object": (call("final_answer", raw="[1"), "not a JSON object"),
    "text": ("Oslo, I think.", "it is no JSON"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_goes_back_and_twice_is_forgiven(wrong: str) -> None:
    step, said = WRONG[wrong]
    good = call("final_answer", OSLO)
    run, model = ran(step, step, good)
    assert run.output == City(**OSLO)
    assert said in model.requests[1].messages[-1].text
    run, model = ran(step, step, step, good)
    assert (run.phase, run.error.code) == ("Failed", "E_SCHEMA_VALIDATION")
    assert len(model.requests) == 3
    assert run.output is None
    with pytest.raises(nbagent.UsageError, match="no answer"):
        run.output_as(City)
    with pytest.raises(nbagent.UsageError, match="no typed answer"):
        run.frame()
    resumed = run.resume(model=script([good]))
    assert resumed.output == City(**OSLO), "the correction is in the conversation"


def test_other_tools_run_first_and_beside_the_answer_and_none_has_its_name() -> None:
    both = calls([call("population", city="Oslo"), call("final_answer", OSLO)])
    run, model = ran(call("population", city="Bergen"), both, tools=[population])
    assert [turn.stop_reason for turn in run.turns] == [None, "answered"]
    assert [tool.name for tool in model.requests[0].tools] == ["population", "final_answer"]
    assert run.output == City(**OSLO)
    frame: Any = nbagent.tool_runs(run=run.id)
    row = frame.iloc[-1]
    assert (row["tool_name"], row["host"], row["ok"]) == ("final_answer", "output", True)
    taken = nbagent.tool(name="final_answer")(lambda: "Mine.")
    run, _ = ran("Hello.", tools=[taken])
    assert "rename it" in run.error.message


def test_an_answer_in_the_last_turn_that_is_allowed_is_an_answer() -> None:
    run, _ = ran(call("final_answer", OSLO), max_turns=1)
    assert (run.stop_reason, run.error) == ("answered", None)
    run, _ = ran(call("final_answer", name="Oslo"), max_turns=1)
    assert (run.stop_reason, run.output) == ("max_turns", None)
    assert run.resume(model=script([call("final_answer", OSLO)])).output == City(**OSLO)


def test_the_type_goes_on_with_the_conversation_until_another_is_given() -> None:
    first, _ = ran(call("final_answer", OSLO))
    model = script([call("final_answer", BERGEN), call("final_answer", answer=[BERGEN]), "Bergen."])
    second = first.resume("And the other?", model=model)
    assert second.output == City(**BERGEN)
    forked = second.fork("C02", output=list[Town])
    assert forked.output == [Town(**BERGEN)]
    plain = nbagent.open_run(forked.id).resume("In a word?", output=str)
    assert (plain.output, model.requests[-1].tools) == ("Bergen.", ())
    with pytest.raises(nbagent.UsageError, match="no typed answer"):
        plain.frame()
    run = nbagent.Agent(model=script(["Hello."]), tools=[], quiet=True).run("Hello?")
    assert run.output is None


@pytest.mark.parametrize(
    "given", ["City", 7, lambda: None, list[range]], ids=lambda given: type(given).__name__
)
def test_what_is_no_type_is_refused_before_anything_is_asked(given: Any) -> None:
    model = script(["Hello."])
    with pytest.raises(nbagent.UsageError, match="cannot be the type of an answer"):
        nbagent.Agent(model=model, tools=[], output=given).run("Hello?")
    assert not model.requests


def test_another_process_asks_for_the_type() -> None:
    run, _ = ran(call("final_answer", OSLO))
    code = (
        "import nbagent\n"
        "from nbagent.providers.offline import script\n"
        "from typing import Any\n"
        f"run = nbagent.open_run({run.id!r})\n"
        "print(run.output_as(dict[str, Any]))\n"
        "try: run.output\n"
        "except nbagent.UsageError as error: print(error)\n"
        "child = run.resume('More?', model=script(['Yes.']), quiet=True)\n"
        "print(child.text, child.output, child.record.notices)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert shown[0] == str(OSLO)
    assert "run.output_as(City)" in shown[1]
    assert shown[2].startswith("Yes. None ('The type City is not known here")


MODES: dict[str, tuple[bool, bool]] = {
    # Whether the provider binds the answer: beside tools, and alone.
    "openai:gpt-5.4": (True, True),
    "openai-responses:gpt-5.4": (True, True),
    "anthropic:claude-sonnet-4-5": (True, True),
    "anthropic:claude-3-5-haiku-latest": (False, False),
    "google:gemini-2.5-flash": (False, True),
    "ollama:qwen3": (False, True),
    "groq:qwen3": (False, False),
    "vllm:qwen3": (False, True),
}


@pytest.mark.parametrize("model", MODES)
def test_the_schema_mode_of_a_provider_is_used_where_it_holds(model: str) -> None:
    for tools, by_schema in zip(([population], []), MODES[model], strict=True):
        dry = nbagent.Agent(model=model, tools=tools, output=list[City]).dry_run("Hello?")
        names = [tool.name for tool in dry.request.tools]
        assert ("final_answer" in names) != by_schema, dry.body
        assert (dry.request.output_schema is not None) == by_schema
        assert "population" in str({k: v for k, v in dry.body.items() if k != "messages"})
    if model.startswith("anthropic"):
        # A schema that Anthropic would change is given as a tool.
        changed = nbagent.Agent(model=model, tools=[], output=dict[str, int]).dry_run("Hello?")
        assert [tool.name for tool in changed.request.tools] == ["final_answer"]


def test_a_schema_mode_answer_is_text_and_its_request_is_kept() -> None:
    with ModelServer() as server:
        server.then(Reply(text='{"answer": "Oslo"}'), Reply(text=dumps({"answer": [OSLO]})))
        model: Any = {"model": "openai:little", "base_url": server.url}
        agent = nbagent.Agent(**model, tools=[], output=list[City], quiet=True)
        run = agent.run("Which city is larger?")
        assert run.output == [City(**OSLO)]
        assert [turn.stop_reason for turn in run.turns] == [None, "answered"]
        first, second = server.bodies
        assert "JSON Schema" in second["messages"][-1]["content"], "a server may ignore the mode"
        assert first["response_format"]["type"] == "json_schema"
        request: Any = run.request_of("C01")
        assert request.output_schema == first["response_format"]["json_schema"]["schema"]
