"""`%%agent --over df`: what its line means, what it refuses, and what Tab offers."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from magic_shell import MagicShell, tab
from servers.batch_server import BatchServer

import nbagent
from nbagent import offline
from nbagent.lab.plan import MapOptions

TABLE = """
import pandas
df = pandas.DataFrame({"id": ["a", "b", "c"], "n": [1, 2, 3], "name with blanks": [7, 8, 9]})
unit = "metres"
V1, V2 = "Be brief.", "Be long."
def exact(row, run):
    return str(row.n) in run.text
def wordy(row, run):
    return len(run.text)
"""


@pytest.fixture
def table(shell: MagicShell) -> MagicShell:
    """A shell with a table, texts and functions."""
    shell.cell(TABLE)
    return shell


def model(answers: int, **how: Any) -> str:
    """A model that repeats the last words of the person."""

    def answer(request: Any) -> str:
        return f"{request.system_prompt}/{request.temperature}/{request.messages[-1].text}"

    return offline.script([answer] * answers, **how).model_id


def batch_of(shell: MagicShell, line: str, *body: str) -> Any:
    shell.cell(f"%%agent -t none {line}", *body)
    return shell.user_ns["_batch"]


def test_each_row_is_asked_with_its_columns_and_the_notebooks_names(table: MagicShell) -> None:
    batch = batch_of(table, f"-m {model(3)} --over df", "Double {{ n }} {{ unit }}, {{ id }}")
    texts = sorted(batch.frame()["text"])
    assert [text.rpartition("/")[2] for text in texts] == [
        f"Double {n} metres, {letter}" for n, letter in zip((1, 2, 3), "abc", strict=True)
    ]


def test_the_prompts_own_names_are_there_too(table: MagicShell) -> None:
    table.run_cell("1 / 0")
    batch = batch_of(table, f"-m {model(3)} --over df", "Row {{ n }}: {{ _error }}")
    assert batch.frame()["text"].str.contains("ZeroDivisionError").all()


def test_axes_keys_repeats_and_scores_of_the_line_are_those_of_the_batch(
    table: MagicShell,
) -> None:
    line = (
        f"-m {model(24)} --over df --vary system=V1,V2 --vary temperature=0,0.5 --repeat 2 "
        "--row-key id --score exact --score wordy --name tried --into mine --concurrency 3"
    )
    batch = batch_of(table, line, "Double {{ n }}")
    assert batch is table.user_ns["mine"]
    assert (batch.name, len(batch)) == ("tried", 24)
    frame = batch.frame()
    assert set(zip(frame["system"], frame["temperature"], frame["attempt"], strict=True)) == {
        (system, heat, n) for system in ("V1", "V2") for heat in ("0", "0.5") for n in (1, 2)
    }
    of_v2 = frame[(frame["system"] == "V2") & (frame["temperature"] == "0.5")]
    assert set(of_v2["text"].str.partition("/Double")[0]) == {"Be long./0.5"}
    assert frame["score_exact"].all()
    assert (frame["score_wordy"] > 10).all()
    assert {*nbagent.runs(batch="tried")["row_key"]} == {"a", "b", "c"}


def test_models_are_taken_as_they_are_written(table: MagicShell) -> None:
    one, two = model(3), model(3)
    batch = batch_of(table, f"--over df --vary model={one},{two}", "Double {{ n }}")
    assert batch.axes == {"model": [one, two]}
    assert set(nbagent.runs(batch=batch.name)["model"]) == {one, two}


def test_the_same_cell_again_asks_nothing_twice(table: MagicShell) -> None:
    line = f"-m {model(3)} --over df --name again"  # a fourth request would fail
    first = batch_of(table, line, "Double {{ n }}").frame()
    second = batch_of(table, line, "Double {{ n }}")
    assert list(second.frame()["run_id"]) == list(first["run_id"])
    assert second.progress.reused == 3


def test_a_batch_leaves_the_last_run_and_the_history_alone(table: MagicShell) -> None:
    run = table.agent("-m offline:demo -t none")
    batch = batch_of(table, f"-m {model(3)} --over df", "Double {{ n }}")
    assert table.user_ns["_run"] is run
    assert nbagent.open_run("last").id == run.id
    assert [one.id for one in nbagent.history()] == [run.id]
    assert len(nbagent.history(batch=batch.name)) == 3
    assert "Double" not in table.said("%agent runs")


def test_a_search_finds_a_run_that_is_older_than_many_of_batches(
    table: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbagent.comparison._MAX_RUNS", 2)
    run = nbagent.Agent(model(1), tools=[]).run("Double what?")
    batch = batch_of(table, f"-m {model(3)} --over df", "Double {{ n }}")
    assert [one.id for one in nbagent.history("Double", limit=2)] == [run.id]
    assert len(nbagent.history("Double", limit=2, batch=batch.name)) == 2


def test_a_dry_run_sends_nothing_and_keeps_the_variables(table: MagicShell) -> None:
    table.user_ns["mine"] = "held"
    line = f"%%agent -m {model(0)} -t none --over df --vary system=V1,V2 --into mine --dry-run"
    assert "nothing is sent" in table.said(line, "Double {{ n }}")
    assert table.user_ns["mine"] == "held"
    assert nbagent.runs().empty


def test_a_batch_that_fails_too_often_fails_the_cell_and_keeps_its_variable(
    table: MagicShell,
) -> None:
    script = offline.script([offline.error("LLM_HTTP_ERROR")] * 3)
    line = f"-m {script.model_id} -t none --over df --max-failed 1 --concurrency 1 --into mine"
    message = table.refused(f"%%agent {line}", "Double {{ n }}").message
    assert "2 cases failed" in message
    assert table.user_ns["mine"].progress.failed == 2


@pytest.mark.parametrize(("line", "state"), [("", "Stopped"), ("--after-turn", "Paused")])
def test_the_stop_command_ends_a_batch_that_nobody_waits_for(
    table: MagicShell, line: str, state: str
) -> None:
    table.user_ns["model"] = offline.script([offline.delay(0.1), "Yes."] * 9)
    table.cell(
        "agent = nbagent.Agent(model, tools=[])",
        f"batch = agent.map(df, 'Say {{{{ n }}}}', concurrency=1, name='stops{state}')",
    )
    said = table.said(f"%agent stop {line}")
    assert f"batch stops{state}" in said
    batch = table.user_ns["batch"].wait()
    assert batch.progress.state == state
    assert batch.progress.ok < 3
    assert table.said("%agent stop") == "no run is running\n"


REFUSED: dict[str, tuple[str, ...]] = {
    "--repeat 3": ("--repeat", "--over NAME"),
    "--vary model=a,b": ("--vary", "--over NAME"),
    "--over df --continue": ("--continue", "--over", "remove one"),
    "--over df --fork last:C01": ("--fork", "--over", "remove one"),
    "--over df --to cell": ("--to", "--over", "remove one"),
    "--over df --raw": ("--raw", "--over", "remove one"),
    "--over nowhere": ("no variable 'nowhere'",),
    "--over df --vary system=Nowhere": ("no text in a variable 'Nowhere'",),
    "--over unit": ("the table is a str", "DataFrame"),
    "--over df.head": ("--over", "variable"),
    "--over df --row-key nr": ("'nr' is no column", "id, n"),
    "--over df --score nobody": ("--score", "no variable 'nobody'"),
    "--over df --vary model": ("--vary", "model=a,b"),
    "--over df --vary model=,": ("model has no values",),
    "--over df --vary size=1": ("'size' is no option of a run",),
    "--over df --vary system=V1 --vary system=V2": ("--vary system", "twice", "system=A,B"),
    "--over df --vary system=V1,V1": ("--vary system=V1,V1", "twice"),
    "--over df --vary temperature=warm": ("--vary temperature", "'warm'", "from 0 to 2"),
    "--over df --repeat 0": ("--repeat", "'0'", "from 1"),
    "--over df --max-failed 1.5": ("--max-failed", "'1.5'", "share"),
    "--over df --concurrency many": ("--concurrency", "'many'"),
    "--over df --key sk-SECRET": ("key_variable",),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_go_together_is_one_clear_error(table: MagicShell, line: str) -> None:
    message = table.refused(f"%%agent -m {model(0)} -t none {line}", "Double {{ n }}").message
    assert [words for words in REFUSED[line] if words not in message] == [], message
    assert "SECRET" not in message
    assert nbagent.runs().empty


def test_an_unknown_column_is_named_with_those_that_are_there(table: MagicShell) -> None:
    message = table.refused(f"%%agent -m {model(0)} --over df", "Double {{ m }}").message
    assert "'m'" in message
    assert "id, n" in message


FITTING = {
    "repeat": ("1", "7", "1001", "1_000"),
    "concurrency": ("1", "5000", "10000"),
    "max_failed": ("0", "1", "+1", "1.0", "0.2", "0.999", "2.0"),
    "max_cost_usd": ("0.01", "5"),
}
UNFIT = {
    "repeat": ("0", "-1", "10001", "2.0", "1.5", "1e3", "many", "True", "nan", "inf"),
    "concurrency": ("0", "-1", "10001", "0.5", "True"),
    "max_failed": ("-1", "-0.5", "1.5", "20%", "True", "nan", "inf"),
    "max_cost_usd": ("0", "-1", "free", "True", "nan", "inf"),
}
ONE_ROW = "import pandas\nrow = pandas.DataFrame({'n': [1]})"


def options_at_doors(shell: MagicShell, option: str, text: str) -> list[Any]:
    """Give an option on the line of a cell, as a text and as a value: its value, or the advice."""
    flag = "--max-cost" if option == "max_cost_usd" else f"--{option.replace('_', '-')}"
    value: Any = text
    with suppress(NameError, SyntaxError):
        value = eval(text, {"nan": math.nan, "inf": math.inf})
    heard: list[Any] = []
    made: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        checked = MapOptions.__post_init__

        def note(how: MapOptions) -> None:
            checked(how)
            made.append({option: getattr(how, option)})

        patch.setattr(MapOptions, "__post_init__", note)
        shell.user_ns.update(agent=nbagent.Agent(shell.user_ns["m"], tools="none"), value=value)
        line = f"-m {shell.user_ns['m']} -t none --over row --dry-run {flag}={text}"
        for cell in (
            [f"%%agent {line}", "{{ n }}"],
            [f"batch = agent.map(row, '{{{{ n }}}}', start=False, {option}={text!r})"],
            [f"batch = agent.map(row, '{{{{ n }}}}', start=False, {option}=value)"],
        ):
            made.clear()
            try:
                shell.cell(*cell)
                heard.append(made[-1])
            except nbagent.UsageError as error:
                heard.append(error.message.partition("expected ")[2])
    return heard


@pytest.mark.parametrize("option", FITTING)
def test_an_option_of_a_batch_is_the_same_at_each_door(shell: MagicShell, option: str) -> None:
    shell.cell(ONE_ROW)
    shell.user_ns["m"] = model(0)
    for text in FITTING[option]:
        heard = options_at_doors(shell, option, text)
        assert isinstance(heard[0], dict), (text, heard)
        assert [{k: (v, type(v)) for k, v in it.items()} for it in heard] == [
            {option: (heard[0][option], type(heard[0][option]))}
        ] * 3, text
    for text in UNFIT[option]:
        heard = options_at_doors(shell, option, text)
        assert heard[0], text
        assert heard == [heard[0]] * 3, text


OFFERED = {
    "%%agent --over |": ["df"],
    "%%agent --row-key |": ["id", "n", "'name with blanks'"],
    "%%agent --score |": ["exact", "wordy"],
    "%%agent --vary sy|": ["system="],
    "%%agent --vary system=|": ["unit", "V1", "V2"],
    "%%agent --vary system=V1,|": ["unit", "V2"],
    "%%agent --vary model=offline:d|": ["offline:demo"],
    "%%agent --vary model=a,offline:d|": ["offline:demo"],
    "%%agent --vary=reasoning=none,lo|": ["low"],
    "%%agent --vary tools=no|": ["none", "notebook"],
}


@pytest.mark.parametrize("typed", OFFERED)
def test_tab_knows_tables_columns_axes_and_their_values(
    table: MagicShell, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "scripts", {})
    typed_words = typed.rstrip("|")
    before = typed_words[: max(map(typed_words.rfind, " =,")) + 1]
    assert [cell.removeprefix(before) for cell in tab(table, typed)] == OFFERED[typed]


def test_the_help_has_the_options_of_a_batch_and_an_example(shell: MagicShell) -> None:
    said = shell.said("%agent help all")
    assert "--over NAME" in shell.said("%agent help batches")
    assert "--over NAME" in said
    assert "%%agent --over df --vary model=" in said
    assert "--repeat" not in shell.said("%agent help resume")


def test_the_line_sends_a_batch_to_the_providers_batch_api(shell: MagicShell) -> None:
    shell.cell(TABLE)
    with BatchServer(polls=0) as server:
        line = f"-m openai-compatible:little --base-url {server.url} --over df"
        batch = batch_of(shell, f"{line} --executor provider-batch", "Double {{ n }}")
        assert batch.frame()["text"].tolist() == [f"a:Double {n}" for n in (1, 2, 3)]
        assert [len(sent.requests) for sent in server.batches.values()] == [3]
