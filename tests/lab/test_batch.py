"""A table asked in variants: what is sent, what is reused, how it ends, what its frame says."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent import UsageError, offline
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.ports import Cost
from nbagent.providers.offline import Script, StepLike

TABLE: Any = pd.DataFrame(
    {
        "id": [f"r{n}" for n in range(12)],
        "n": range(12),
        "expected": [str(2 * n) for n in range(12)],
    }
)
SYSTEMS = {"v1": "Double it.", "v2": "Double the number.", "v3": "Triple it."}
asked: list[tuple[str, str]] = []
"""System prompt and prompt of each request of the present test."""


def doubled(request: ChatRequest) -> str:
    """A model that doubles; under a system prompt with `Triple` it triples."""
    prompt = request.messages[0].text
    asked.append((request.system_prompt or "", prompt))
    n = int(re.findall(r"\d+", prompt)[0])
    return str(n * (3 if "Triple" in (request.system_prompt or "") else 2))


def model(answer: Callable[[ChatRequest], StepLike] = doubled, name: str = "doubler") -> Script:
    steps: list[Any] = [answer] * 2_000
    return offline.script(steps, name=name)


@nbagent.tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def agent(**options: Any) -> nbagent.Agent:
    given: dict[str, Any] = {"tools": "none", **options}
    return nbagent.Agent(**given) if "model" in given else nbagent.Agent(model=model(), **given)


def exact(row: Any, run: nbagent.Run) -> bool:
    return run.text.strip() == row.expected


TEMPLATE = "Number {{ n }}"


def test_a_polars_frame_is_asked_with_its_own_cells_and_continued() -> None:
    columns = {"id": ["a", "b"], "n": [4, 5], "half": [None, 3]}
    other: Any = pl.DataFrame(columns)
    for _ in range(2):  # the second time its answers are reused
        batch = agent().map(other, "{{ n }} and {{ half }}", key="id", name="other").wait()
        assert batch.frame().text.tolist() == ["8", "10"]
    assert sorted(prompt for _, prompt in asked) == ["4 and null", "5 and 3"]


def test_a_batch_says_once_what_a_project_chose_and_does_not_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.nbagent]\nsystem = 'Triple it.'")
    monkeypatch.chdir(tmp_path)
    printed = [str(agent().map(TABLE, TEMPLATE, key="id", name=name).wait()) for name in "ab"]
    assert [text.count("pyproject.toml of this folder sets system") for text in printed] == [1, 0]
    assert {system for system, _ in asked} == {""}


def test_each_row_is_asked_in_each_variant_and_each_answer_has_its_run() -> None:
    batch = agent().map(
        TABLE, TEMPLATE, key="id", vary={"system": SYSTEMS}, repeat=2, name="b", score=[exact]
    )
    frame: Any = batch.wait().frame()
    assert len(batch) == len(frame) == len(asked) == 12 * 3 * 2
    assert set(Counter(asked).values()) == {2}
    row = frame[(frame["id"] == "r4") & (frame["system"] == "v3") & (frame["attempt"] == 2)].iloc[0]
    assert (row["n"], row["text"], row["score_exact"], row["ok"]) == (4, "12", False, True)
    run = batch.open_run("r4", system="v3", attempt=2)
    assert (run.id, run.text, run.record.prompt) == (row["run_id"], "12", "Number 4")
    kept: Any = nbagent.runs(batch="b")
    assert len(kept) == 72
    assert sorted(kept["row_key"].unique()) == sorted(TABLE["id"])
    assert set(kept["variant"]) == {f'{{"system":"{label}"}}' for label in SYSTEMS}
    assert Counter(kept["attempt"]) == {1: 36, 2: 36}
    # No answer of the batch is what the person goes on with.
    with pytest.raises(UsageError, match="no run of this notebook yet"):
        nbagent.open_run("last")


def test_the_same_call_asks_nothing_twice_and_what_changed_is_asked_anew() -> None:
    again: dict[str, Any] = {"key": "id", "vary": {"system": SYSTEMS}, "name": "b"}
    first = agent().map(TABLE, TEMPLATE, **again).wait()
    asked.clear()
    second = agent().map(TABLE, TEMPLATE, **again).wait()
    assert (second.progress.reused, second.progress.ok, asked) == (36, 36, [])
    assert second.frame()["run_id"].tolist() == first.frame()["run_id"].tolist()
    # Another text of one variant, a new row, another template.
    again["vary"] = {"system": {**SYSTEMS, "v3": "Triple the number."}}
    agent().map(TABLE, TEMPLATE, **again).wait()
    assert {system for system, _ in asked} == {"Triple the number."}
    assert len(asked) == 12
    asked.clear()
    longer = pd.concat([TABLE, TABLE.tail(1).assign(id="r12", n=12)])
    agent().map(longer, TEMPLATE, **again).wait()
    assert [prompt for _, prompt in asked] == ["Number 12"] * 3
    asked.clear()
    agent().map(longer, "The number {{ n }}", **again).wait()
    assert len(asked) == 39
    asked.clear()
    kept = agent().map(longer, "A number: {{ n }}", **again, stale="keep").wait()
    assert (kept.progress.reused, asked) == (39, [])


def test_without_a_name_the_same_call_has_the_same_name_and_another_one_another() -> None:
    names = [
        agent().map(TABLE, TEMPLATE, start=False).name,
        agent().map(TABLE, TEMPLATE, start=False).name,
        agent().map(TABLE, f"{TEMPLATE}!", start=False).name,
        agent(system="x").map(TABLE, TEMPLATE, start=False).name,
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_two_variants_that_are_the_same_have_runs_of_their_own() -> None:
    vary = {"system": {"a": "Double it.", "b": "Double it."}}
    for _ in range(2):
        frame: Any = agent().map(TABLE, TEMPLATE, key="id", vary=vary, name="aa").wait().frame()
        assert len(asked) == 24
        assert frame["run_id"].nunique() == 24
    frame = agent().map(TABLE, TEMPLATE, key="id", vary=vary, name="aa").wait().frame()
    runs: Any = nbagent.runs(batch="aa")
    labels = dict(zip(runs["run_id"], runs["variant"], strict=True))
    assert all(f'"{it.system}"' in labels[it.run_id] for it in frame.itertuples())


def test_other_data_under_the_same_name_is_refused_unless_it_is_said_what_to_do() -> None:
    agent().map(TABLE, TEMPLATE, key="id", name="b").wait()
    other = TABLE.assign(n=TABLE["n"].where(TABLE["n"] != 3, 33))
    with pytest.raises(UsageError, match=r"made with other data: 1 row .*first: r3.*stale='run'"):
        agent().map(other, TEMPLATE, key="id", name="b")
    # What the prompt does not use may change.
    same = agent().map(TABLE.assign(expected="?"), TEMPLATE, key="id", name="b").wait()
    assert same.progress.ok == 12
    asked.clear()
    kept = agent().map(other, TEMPLATE, key="id", name="b", stale="keep").wait()
    assert (asked, kept.progress.ok) == ([], 12)
    agent().map(other, TEMPLATE, key="id", name="b", stale="run").wait()
    assert [prompt for _, prompt in asked] == ["Number 33"]


def test_a_stop_keeps_what_is_there_and_the_same_call_goes_on_from_it() -> None:
    gate, begun = threading.Event(), threading.Event()

    def slow(request: ChatRequest) -> StepLike:
        answer = doubled(request)
        if len(asked) == 20:
            begun.set()
        return offline.step(text=answer, wait_ms=0 if gate.is_set() else 30)

    how: dict[str, Any] = {"key": "id", "vary": {"system": SYSTEMS}, "name": "b", "concurrency": 4}
    batch = agent(model=model(slow)).map(TABLE, TEMPLATE, **how)
    assert begun.wait(20)
    batch.stop()
    batch.wait()
    stopped = batch.progress
    assert (stopped.state, stopped.why) == ("Stopped", "stopped")
    assert 10 <= stopped.ok < 36
    assert len(batch.frame()) == 36
    gate.set()
    on = agent(model=model(slow)).map(TABLE, TEMPLATE, **how).wait()
    assert (on.progress.state, on.progress.ok, on.progress.reused) == ("Finished", 36, stopped.ok)
    # An answer that was cut off is asked for again, in a run that goes on from the first one.
    turns: Any = nbagent.turns(batch="b")
    assert turns["ok"].sum() == 36
    assert len(asked) == len(turns)
    resumed: Any = nbagent.runs(batch="b", kind="resume")
    assert set(resumed["parent_id"]) <= set(nbagent.runs(batch="b", phase="Failed")["run_id"])


def test_a_pause_waits_for_the_runs_at_work_and_resume_goes_on() -> None:
    batch = agent(model=model(lambda it: offline.step(text=doubled(it), wait_ms=20))).map(
        TABLE, TEMPLATE, key="id", name="b", concurrency=3
    )
    while batch.progress.ok < 3:
        time.sleep(0.005)
    batch.stop(after_rows=True)
    batch.wait()
    assert batch.progress.state == "Paused"
    assert set(nbagent.runs(batch="b")["stop_reason"]) == {"answered"}, "nothing was cut off"
    assert batch.resume().progress.ok == len(asked) == 12


def test_an_interrupt_in_a_synchronous_tool_stops_the_batch_and_wait_returns_it() -> None:
    @nbagent.tool
    def dawdle(n: int) -> int:
        """Take long."""
        if n == 5:
            main = threading.get_ident()
            threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
            time.sleep(30)
        return n

    def calls(request: ChatRequest) -> StepLike:
        n = int(re.findall(r"\d+", request.messages[0].text)[0])
        return "Done." if len(request.messages) > 1 else offline.call("dawdle", n=n)

    began = time.monotonic()
    batch = agent(model=model(calls), tools=[dawdle]).map(
        TABLE, TEMPLATE, key="id", name="b", concurrency=2
    )
    assert batch.wait() is batch
    assert time.monotonic() - began < 20
    assert batch.progress.state == "Stopped"
    assert 0 < batch.progress.ok < 12
    assert nbagent.tool_runs(batch="b")["error_code"].dropna().tolist()[0] == "E_INTERRUPTED"
    assert batch.resume().progress.ok == 12


def test_as_it_is_awaited_the_loop_goes_on_and_tools_run_on_it() -> None:
    threads: set[int] = set()

    @nbagent.tool
    def where() -> str:
        """Say where."""
        threads.add(threading.get_ident())
        return "here"

    def calls(request: ChatRequest) -> StepLike:
        return "Done." if len(request.messages) > 1 else offline.call("where")

    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            ticks.append(time.monotonic())

    async def main() -> int:
        ticking = asyncio.ensure_future(tick())
        batch = await agent(model=model(calls), tools=[where]).amap(TABLE, TEMPLATE, key="id")
        ticking.cancel()
        return batch.progress.ok

    assert (asyncio.run(main()), threads) == (12, {threading.get_ident()})
    assert len(ticks) > 5


def test_leaving_an_awaited_batch_stops_it() -> None:
    slow = model(lambda it: offline.step(text=doubled(it), wait_ms=50))

    async def leave() -> None:
        async with asyncio.timeout(0.15):
            await agent(model=slow).amap(TABLE, TEMPLATE, key="id", name="b", concurrency=1)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    n = len(asked)
    time.sleep(0.2)
    assert len(asked) == n < 12
    assert agent().map(TABLE, TEMPLATE, key="id", name="b").wait().progress.ok == 12


def test_failed_cases_are_no_answers_and_are_asked_again_by_the_next_call() -> None:
    broken = {"on": True}

    def sometimes(request: ChatRequest) -> StepLike:
        answer = doubled(request)
        is_bad = broken["on"] and answer in ("4", "8")
        return offline.error("LLM_HTTP_ERROR", "out of order") if is_bad else answer

    failing = agent(model=model(sometimes), retries=0)
    batch = failing.map(TABLE, TEMPLATE, key="id", name="b", score=[exact]).wait()
    progress = batch.progress
    assert (progress.state, progress.ok, progress.failed) == ("Finished", 10, 2)
    assert [it.row_key for it in progress.failures] == ["r2", "r4"]
    assert "LLM_HTTP_ERROR: out of order" in progress.failures[0].why
    frame: Any = batch.frame()
    assert frame["score_exact"].isna().sum() == 2, "a failure is no score of 0"
    assert frame.set_index("id").loc["r2", "error"].startswith("LLM_HTTP_ERROR")
    assert batch.cells()["state"].tolist().count("failed") == 2
    broken["on"] = False
    asked.clear()
    assert failing.map(TABLE, TEMPLATE, key="id", name="b").wait().progress.ok == 12
    assert sorted(prompt for _, prompt in asked) == ["Number 2", "Number 4"]


def test_a_case_that_a_person_resumes_by_hand_is_answered() -> None:
    broken = {"on": True}

    def sometimes(request: ChatRequest) -> StepLike:
        answer = doubled(request)
        is_bad = broken["on"] and answer == "4"
        return offline.error("LLM_HTTP_ERROR", "out of order") if is_bad else answer

    failing = agent(model=model(sometimes), retries=0)
    batch = failing.map(TABLE, TEMPLATE, key="id", name="b").wait()
    broken["on"] = False
    mended = batch.open_run("r2").resume()
    told = batch.open_run("r3").resume("And again?")
    assert (mended.ok, told.ok) == (True, True)
    asked.clear()
    again = failing.map(TABLE, TEMPLATE, key="id", name="b").wait()
    assert (again.progress.ok, asked) == (12, [])
    assert again.open_run("r2").id == mended.id
    assert again.open_run("r3").id == batch.open_run("r3").id, "what was said besides is no case"


@pytest.mark.parametrize(("most", "failed"), [(3, 4), (0.25, 4), (0.999, 12)])
def test_too_many_failures_end_the_batch(most: float, failed: int) -> None:
    def down(request: ChatRequest) -> StepLike:
        asked.append(("", request.messages[0].text))
        return offline.error("LLM_HTTP_ERROR", "down")

    batch = agent(model=model(down), retries=0).map(
        TABLE, TEMPLATE, key="id", max_failed=most, concurrency=1
    )
    progress = batch.wait().progress
    assert (progress.failed, len(asked)) == (failed, failed)
    assert (progress.state, "cases failed" in progress.why) == (
        ("Stopped", True) if failed < 12 else ("Finished", False)
    )


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request costs 0.1 USD; no offline model costs anything, and no other one is asked here."""
    monkeypatch.setattr(
        "nbagent.session.models.cost_of", lambda *_, **__: Cost(input_usd=0.06, output_usd=0.04)
    )


@pytest.mark.usefixtures("priced")
def test_the_budget_is_of_the_whole_batch_also_over_several_goes() -> None:
    how: dict[str, Any] = {"key": "id", "name": "b", "concurrency": 8}
    batch = agent().map(TABLE, TEMPLATE, max_cost_usd=0.55, **how).wait()
    progress = batch.progress
    assert (progress.ok, progress.state) == (5, "Stopped")
    assert progress.cost_usd == pytest.approx(0.5)
    assert "max_cost_usd=0.55 is used up" in progress.why
    again = agent().map(TABLE, TEMPLATE, max_cost_usd=0.55, **how).wait()
    assert (again.progress.ok, len(asked)) == (5, 5)
    more = agent().map(TABLE, TEMPLATE, max_cost_usd=2, **how).wait()
    assert (more.progress.ok, len(asked)) == (12, 12)
    assert more.progress.cost_usd == pytest.approx(1.2)
    spent: Any = more.frame()["cost_usd"]
    assert spent.sum() == pytest.approx(1.2)


@pytest.mark.usefixtures("priced")
def test_recorded_answers_cost_nothing_and_are_compared_by_what_they_cost_once(
    tmp_path: Path,
) -> None:
    with ModelServer() as server:
        recorded = nbagent.Agent(
            "openai:little", base_url=server.url, tools="none", cassette=str(tmp_path / "a.jsonl")
        )
        for name, paid_usd in (("first", 1.2), ("again", 0.0)):
            batch = recorded.map(TABLE, TEMPLATE, key="id", name=name, score=[exact]).wait()
            assert batch.progress.cost_usd == pytest.approx(paid_usd)
            frame: Any = batch.frame()
            cells: Any = batch.cells("exact")
            assert frame["cost_usd"].sum() == pytest.approx(paid_usd)
            assert cells["cost_usd"].tolist() == pytest.approx([0.1] * 12)
        assert len(server.bodies) == 12


@pytest.mark.usefixtures("priced")
def test_recorded_answers_of_a_case_that_was_cut_off_and_went_on_are_all_in_its_cost(
    tmp_path: Path,
) -> None:
    at_work: list[Any] = []

    @nbagent.tool(interruptible=False)
    def look(n: int) -> int:
        """Look."""
        for batch in at_work:
            batch.stop()
        return n

    def looks(visit: Visit) -> Reply:
        has_looked = any(message["role"] == "tool" for message in visit.body["messages"])
        return Reply(text="0") if has_looked else Reply(calls=[("look", {"n": 0})])

    with ModelServer([looks] * 2) as server:
        recorded = nbagent.Agent(
            "openai:little", base_url=server.url, tools=[look], cassette=str(tmp_path / "a.jsonl")
        )
        recorded.map(TABLE.head(1), TEMPLATE, key="id", name="first").wait()
        batch = recorded.map(TABLE.head(1), TEMPLATE, key="id", name="again", score=[exact])
        at_work.append(batch)
        assert batch.wait().progress.state == "Stopped"
        at_work.clear()
        assert batch.resume().progress.ok == 1
        assert len(server.bodies) == 2
    assert len(nbagent.runs(batch="again")) == 2
    cells: Any = batch.cells("exact")
    assert cells["cost_usd"].tolist() == pytest.approx([0.2])


def test_a_call_that_nobody_can_approve_ends_its_row_and_an_approval_later_goes_on() -> None:
    @nbagent.tool(ask=True)
    def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    def calls(request: ChatRequest) -> StepLike:
        doubled(request)
        n = int(re.findall(r"\d+", request.messages[0].text)[0])
        return "Done." if n % 4 or len(request.messages) > 1 else offline.call("pay", n=n)

    paying = agent(model=model(calls), tools=[pay])
    planned = paying.map(TABLE, TEMPLATE, key="id", name="b", start=False)
    assert re.search(r"pay\b.*needs approval", str(planned.dry_run()), re.DOTALL)
    batch = planned.start().wait()
    assert (batch.progress.ok, batch.progress.failed) == (9, 3)
    assert batch.progress.failures[0].why.startswith("E_DENIED: pay needs approval")
    assert len(asked) == 12, "the rows with a question end with it"
    batch = paying.map(TABLE, TEMPLATE, key="id", name="b", on_approval=lambda question: True)
    assert batch.wait().progress.ok == 12
    assert nbagent.tool_runs(batch="b", ok=True)["result"].tolist().count("") == 0
    assert len(nbagent.tool_runs(batch="b", ok=True)) == 3


def test_answers_of_a_type_are_columns_and_a_list_is_one() -> None:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        people: int

    def typed(request: ChatRequest) -> StepLike:
        return offline.call("final_answer", name="Oslo", people=7)

    frame: Any = agent(model=model(typed), output=City).map(TABLE.head(2), TEMPLATE).wait().frame()
    assert frame["output_name"].tolist() == ["Oslo", "Oslo"]
    assert frame["output_people"].tolist() == [7, 7]


def test_a_column_of_the_table_gives_way_to_one_of_the_runs() -> None:
    table = TABLE.assign(text="mine").head(2)
    frame: Any = agent().map(table, "{{ text }} {{ n }}").wait().frame()
    assert (frame["row_text"].tolist(), frame["text"].tolist()) == (["mine", "mine"], ["0", "2"])
    assert frame.index.tolist() == [0, 1]


def test_prompts_models_and_tools_can_be_varied_and_a_template_uses_the_row() -> None:
    other = model(lambda it: "other", name="other")
    batch = (
        agent()
        .map(
            TABLE.rename(columns={"n": "the number"}).head(2),
            vary={
                "prompt": {
                    "short": "{{ row['the number'] }}",
                    "long": "Number {{ row['the number'] }}",
                },
                "model": ["offline:doubler", other],
                "tools": {"none": [], "one": [note]},
            },
        )
        .wait()
    )
    frame: Any = batch.frame()
    assert batch.axes == {
        "prompt": ["short", "long"],
        "model": ["offline:doubler", "offline:other"],
        "tools": ["none", "one"],
    }
    assert len(frame) == 2 * 2 * 2 * 2
    assert Counter(frame["text"]) == {"other": 8, "0": 4, "2": 4}
    assert {prompt for _, prompt in asked} == {"0", "1", "Number 0", "Number 1"}


def test_a_dry_run_counts_what_is_to_be_asked_and_sends_and_keeps_nothing() -> None:
    batch = agent().map(TABLE, TEMPLATE, vary={"system": SYSTEMS}, name="b", start=False)
    assert re.search(r"v1 +12 +0 +12 ", str(batch.dry_run()))
    assert (asked, batch.progress.state, len(nbagent.runs(batch="b"))) == ([], "Ready", 0)
    agent().map(TABLE.head(5), TEMPLATE, vary={"system": SYSTEMS}, name="b").wait()
    later = agent().map(TABLE, TEMPLATE, vary={"system": SYSTEMS}, name="b", start=False)
    assert re.search(r"v2 +12 +5 +7 ", str(later.dry_run()))


def _busy() -> object:
    slow = model(lambda it: offline.step(text="1", wait_ms=200), name="slow")
    agent(model=slow).map(TABLE, TEMPLATE, name="busy")
    return agent().map(TABLE, TEMPLATE, name="busy")


DOUBLE: Any = pd.DataFrame({"id": ["a", "b", "a"], "n": [1, 2, 3]})
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "double keys": (lambda: agent().map(DOUBLE, TEMPLATE, key="id"), "'id' has 'a' more than once"),
    "double index": (
        lambda: agent().map(DOUBLE.set_index("id"), TEMPLATE),
        "the index has 'a' more than once",
    ),
    "missing key": (
        lambda: agent().map(DOUBLE.assign(id=["a", None, "b"]), TEMPLATE, key="id"),
        "has missing values",
    ),
    "no such key": (lambda: agent().map(TABLE, TEMPLATE, key="ID"), "key='ID' is no column; the"),
    "unknown column": (
        lambda: agent().map(TABLE, "{{ nn }}"),
        "name 'nn' is not defined; the columns are id, n, expected",
    ),
    "failing expression": (
        lambda: agent().map(TABLE, "{{ 1 // n }}", key="id"),
        "in row r0: .*ZeroDivisionError",
    ),
    "unclosed": (lambda: agent().map(TABLE, "{{ n"), "no closing"),
    "empty template": (lambda: agent().map(TABLE, " "), "the template is empty"),
    "two prompts": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"prompt": ["{{ n }}"]}),
        "the prompt is given twice",
    ),
    "no text": (lambda: agent().map(TABLE, 5), "the template is a int"),  # pyright: ignore
    "no table": (lambda: agent().map([1], TEMPLATE), "the table is a list"),  # pyright: ignore
    "not computed": (
        lambda: agent().map(pl.LazyFrame({"n": [1]}), TEMPLATE),  # pyright: ignore
        r"the table is a LazyFrame \(polars\), whose rows are not computed yet; give \.collect",
    ),
    "one column": (
        lambda: agent().map(pl.Series("n", [1]), TEMPLATE),  # pyright: ignore
        "the table is a Series",
    ),
    "no rows": (lambda: agent().map(TABLE.head(0), TEMPLATE), "has no rows"),
    "unknown axis": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"sytem": ["a"]}),
        "'sytem' is no option of a run; did you mean 'system'",
    ),
    "bad value": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"temperature": [0, 9]}),
        "temperature=9 is not valid",
    ),
    "text for a list": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"model": "a"}),
        "model='a' is no list",
    ),
    "no values": (lambda: agent().map(TABLE, TEMPLATE, vary={"model": []}), "has no values"),
    "one label twice": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"system": ["x", "x"]}),
        "two values with one label",
    ),
    "unknown model": (
        lambda: agent().map(TABLE, TEMPLATE, vary={"model": ["offline:doubler", "nope:x"]}),
        "variant nope:x: .*nope",
    ),
    "no price": (
        lambda: agent(model="openai:m", base_url="https://llm.example.org/v1").map(
            TABLE, TEMPLATE, max_cost_usd=1
        ),
        "no price is known for openai:m",
    ),
    "repeat": (lambda: agent().map(TABLE, TEMPLATE, repeat=0), "repeat=0 is not valid"),
    "concurrency": (lambda: agent().map(TABLE, TEMPLATE, concurrency=0), "concurrency=0"),
    "stale": (lambda: agent().map(TABLE, TEMPLATE, stale="x"), "stale='x'"),  # pyright: ignore
    "judge's name": (
        lambda: agent().map(TABLE, TEMPLATE, name="b/judge"),
        "name='b/judge' is not valid",
    ),
    "executor": (lambda: agent().map(TABLE, TEMPLATE, executor=5), "executor=5 is not a Dask"),
    "at work": (_busy, "batch 'busy' is at work"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_one_error_and_nothing_is_sent(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0001")
    make, said = REFUSED[case]
    with pytest.raises(UsageError, match=said):
        make()
    assert asked == []


def test_a_store_that_fails_in_mid_batch_ends_it_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nbagent.store.writer import Store

    def fails(request: ChatRequest) -> StepLike:
        if len(asked) == 5:
            (store,) = stores
            path = store.path
            assert path is not None
            path.unlink()
        return doubled(request)

    stores: list[Store] = []
    opened = Store.open.__func__  # pyright: ignore

    def noted(cls: type[Store], home: Any, **options: Any) -> Store:
        stores.append(opened(cls, home, **options))
        return stores[-1]

    monkeypatch.setattr(Store, "open", classmethod(noted))
    batch = agent(model=model(fails)).map(TABLE, TEMPLATE, key="id", name="b", concurrency=1)
    progress = batch.wait().progress
    assert progress.state == "Stopped"
    assert "RUNS ARE NOT SAVED ON DISK" in progress.why
    assert 5 <= progress.ok < 12
    assert len(batch.frame()["text"].dropna()) == progress.ok
