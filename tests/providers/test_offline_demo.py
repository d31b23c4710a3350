"""offline:demo with tools it has never seen and with the real hosts: what it calls and says."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from code_shell import runs_code
from frontends import StandIn

import nbagent
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.session.frontend import use_frontend

Called = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")


class Talk:
    """A conversation with the demo, and every call that it made."""

    def __init__(self, *tools: object, allowed: bool | str = True, **options: Any) -> None:
        self._agent = nbagent.Agent(
            "offline:demo", tools=tools, quiet=True, on_approval=lambda _: allowed, **options
        )
        self.runs: list[nbagent.Run] = []

    @property
    def calls(self) -> list[Called]:
        made = [one for run in self.runs for turn in run.turns for one in turn.tool_runs]
        return [(one.tool_name, dict(one.args or {})) for one in made]

    def ask(self, prompt: str, **options: Any) -> str:
        before = self.runs[-1:]
        run = before[0].resume(prompt) if before else self._agent.run(prompt, **options)
        assert run.raise_for_error().stop_reason == "answered"
        self.runs.append(run)
        return run.text


def written(calls: Iterable[Called]) -> str:
    return "; ".join(
        f"{name}({', '.join(f'{key}={dump_json(value).decode()}' for key, value in given.items())})"
        for name, given in calls
    )


PEOPLE = {"Oslo": 709037, "Bergen": 291940, "Rome": 2748109, "New York": 8258035}


def population(city: str) -> int:
    "People living in a city."
    return PEOPLE[city]


def ticket_status(ticket_id: str) -> str:
    "State of a ticket."
    return "open"


def uptime() -> str:
    "How long the machine has been running."
    return "3 days"


@nbagent.tool(name="trees.plant")
def tree(count: int, park: str) -> int:
    "Plant trees in a park."
    return 1


@nbagent.tool(name="monthlyPayment")
def loan(principal: float, rate: float, years: int) -> float:
    "Monthly payment of a loan."
    return 1073.64


def median(values: list[float]) -> int:
    "Median of numbers."
    return 5


class Device(Enum):
    RADIO = "radio"
    TELEVISION = "television"


def set_volume(device: Device, percent: int, room: Literal["kitchen", "hall"] = "hall") -> None:
    "Set the loudness of a device."


def next_train(from_station: str, to_station: str) -> str:
    "Departure of the next train."
    return "10:42"


TOOLS = [
    *(population, uptime, tree, loan, median, set_volume, next_train, ticket_status),
]
# prompt: the calls that are made first.
CALLS = {
    "Which of Oslo, Bergen and Rome is larger?":
        'population(city="Oslo"); population(city="Bergen"); population(city="Rome")',
    "Plant 12 trees in Frogner Park": 'trees.plant(count=12, park="Frogner Park")',
    "What is the monthly payment for a principal of 200,000 over 25 years at a rate of 4.2?":
        "monthlyPayment(principal=200000, rate=4.2, years=25)",
    "Find the median of 4, 8.5, -3 and 5": "median(values=[4,8.5,-3,5])",
    "Set the radio in the kitchen to a volume of 30 percent":
        'set_volume(device="radio", percent=30, room="kitchen")',
    "When does the next train to Bergen leave from Oslo?":
        'next_train(from_station="Oslo", to_station="Bergen")',
    "What is the status of ticket OPS-4711?": 'ticket_status(ticket_id="OPS-4711")',
    "monthly payment with rate=3.5, years=10 and principal=1000":
        "monthlyPayment(principal=1000, rate=3.5, years=10)",
    # A call in backticks is made as it is written.
    'Call `population(city="Oslo")`.': 'population(city="Oslo")',
    "`population('Oslo')` and `median([1])`": 'population(city="Oslo"); median(values=[1])',
    "`trees.plant(count=3, park='A (b)')`": 'trees.plant(count=3, park="A (b)")',
    "`unknown(city='Oslo')`": "", "`population(city=open())`": "", "`population(`": "",
    "`population() + (1)`": "",
}  # fmt: skip


@pytest.mark.parametrize("prompt", CALLS)
def test_tool_and_arguments_come_from_the_prompt(prompt: str) -> None:
    talk = Talk(*TOOLS)
    answer = talk.ask(prompt)
    assert written(talk.calls) == CALLS[prompt]
    assert "stand-in" not in answer or not talk.calls


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
    "Which city has the fewest people, Oslo, Bergen or Rome?": "**Bergen** has the fewest",
    "How many more people live in Oslo than in Bergen?": "difference is **417,097**",
    "What is the total population of Oslo, Bergen and Rome?": "**3,749,086**",
    "Which of Oslo and Bergen is larger, and by how much?": "The difference is **417,097**",
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


@pytest.mark.parametrize("code", ["E_DENIED", "E_TIMEOUT", "E_TOOL_FAILED"])
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
    "many rows": ({"rows": [{"n": n} for n in range(30)]}, "… and 10 more"),
    "a long text": ("long\n" * 1000, "(cut)"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_result_is_told_as_fields_and_tables_and_a_long_one_is_cut(case: str) -> None:
    def uptime() -> Any:
        "How long the machine has been running."
        return data

    data, said = RESULTS[case]
    answer = Talk(uptime).ask("uptime?")
    assert said in answer
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


# With the real tool hosts.

FILES = {
    "README.md": "# Cities\n\nA small project about cities.\n\n- TODO: add Rome\n",
    "notes.md": "Oslo is the capital.\n",
    "notebooks/first.ipynb": "{}",
    "src/city.py": "PEOPLE = {'Oslo': 700}\n",
    "table/table.csv": "city,n\nOslo,700\n",
    ".agents/skills/word-count/SKILL.md": (
        "---\nname: word-count\ndescription: Counts the words of a text.\n---\n"
        "# Word count\n\nRun `scripts/count.py TEXT`.\n"
    ),
    ".agents/skills/word-count/scripts/count.py": (
        "import sys\nprint(len(' '.join(sys.argv[1:]).split()), 'words')\n"
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr("nbagent.session.tool_hosts.project_folder", lambda: folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def names() -> dict[str, Any]:
    made: dict[str, Any] = {"x": 3, "names": ["a", "b"], "api_key": "sk-secret-value"}
    use_frontend(StandIn(made, run_code=runs_code(made)))
    return made


HOSTS = ("fs", "skills", "notebook", population)
# prompt: the calls, and words of the answer.
OF_HOSTS: dict[str, tuple[str, str]] = {
    "What does README.md say?": ('fs.read(path="README.md")', "project about cities"),
    "What is in @data/table.csv?": ('fs.read(path="@data/table.csv")', "Oslo,700"),
    "List the files of the project": ("fs.list()", " README.md, "),
    "Search for Oslo in src": ('fs.search(query="Oslo", path="src")', "city.py"),
    "Write 'hello' to out/hello.txt":
        ('fs.write(path="out/hello.txt", content="hello")', "- bytesWritten: 5"),
    "Replace Oslo with Bergen in notes.md":
        ('fs.apply_patch(path="notes.md", oldText="Oslo", newText="Bergen")',
         "- path: @project/notes.md"),
    "Which skills are there?": ("list_skills()", "| word-count | Counts the words"),
    "What does the skill word-count do?":
        ('get_skill(skill_name="word-count")', "Run `scripts/count.py TEXT`"),
    'Run `run_python_script("word-count", "scripts/count.py", args=["a b c"])`':
        ('run_python_script(skill_name="word-count", script="scripts/count.py", args=["a b c"])',
         "3 words"),
    "Which variables are there?": ("nb.variables()", "| names | list |"),
    "What is api_key?": ('nb.inspect(name="api_key")', "I was not allowed to call"),
    "Set x to 5": ('nb.set(name="x", value=5)', "- now.value: 5"),
    "Run this:\n```python\nprint(x)\nx * 2\n```":
        ('nb.run(code="print(x)\\nx * 2")', "- value: 6\n\nstdout:\n\n```\n3\n```"),
    "Find the population of Oslo": ('population(city="Oslo")', "709,037"),
}  # fmt: skip


@pytest.mark.parametrize("prompt", OF_HOSTS)
def test_sentence_about_files_skills_and_variables_makes_its_call(
    prompt: str, project: Path, names: dict[str, Any]
) -> None:
    mounts = [f"data={project / 'table'}:ro"]
    talk = Talk(*HOSTS, mounts=mounts)
    answer = talk.ask(prompt)
    calls, said = OF_HOSTS[prompt]
    assert written(talk.calls) == calls
    assert said in answer
    assert "sk-secret-value" not in answer


@pytest.mark.parametrize(
    "prompt",
    ["Write 'a' to out/a.txt", "Replace Oslo with Rome in notes.md", "Run `1 + 1`", "Set x to 5"],
)
def test_refusal_is_told_and_nothing_more_is_asked(
    prompt: str, project: Path, names: dict[str, Any]
) -> None:
    talk = Talk("fs", "notebook", allowed="not today")
    answer = talk.ask(prompt)
    ((name, _),) = talk.calls
    assert f"I was not allowed to call `{name}(" in answer
    assert answer.endswith("not today")
    assert not (project / "out").exists()
    assert names["x"] == 3


def test_file_that_changed_is_read_again(project: Path) -> None:
    talk = Talk("fs")
    talk.ask("Read notes.md")
    (project / "notes.md").write_text("It is new.")
    assert "It is new." in talk.ask("Read notes.md")


@pytest.mark.parametrize("prompt", ["Count to 90", "Write a story of 100 words"])
def test_an_answer_that_was_cut_off_goes_on_where_it_stopped(prompt: str) -> None:
    cut = [nbagent.Agent("offline:demo", tools="none", quiet=True, max_tokens=30).run(prompt)]
    while cut[-1].stop_reason == "length":
        cut.append(cut[-1].resume())
    assert len(cut) > 2
    assert "".join(run.text for run in cut) == Talk().ask(prompt)
    assert cut[-1].stop_reason == "answered"
