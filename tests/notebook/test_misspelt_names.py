"""A misspelt name is one line that names the nearest one, at every door where names are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from magic_shell import TOOLS, MagicShell

import nbagent
from nbagent.contracts.nearest import nearest_name

BATCH = """
@nbagent.scorer
def exact(row, run):
    return True

frame = pd.DataFrame({"number": [1, 2], "town": ["Oslo", "Bergen"]})
batch = nbagent.Agent(model="offline:demo", tools="none").map(
    frame, "Double {{ number }}", vary={"top_p": [0.1, 0.2]}, score=exact, name="doubled"
).wait()
"""
STATE = """
import pandas as pd
import nbagent
cities = ["Oslo", "Bergen"]
first = nbagent.Agent(model="offline:demo", tools="none").run("Hi", name="opening", session="study")
"""

MISSPELT: dict[str, tuple[str, str]] = {
    # Python: modules, handles, options, filters
    "a function of the module": ("nbagent.rans()", "runs"),
    "a class of the module": ("nbagent.Agnet", "Agent"),
    "a name in other letters": ("nbagent.AGENT", "Agent"),
    "an attribute of a run": ("first.txt", "text"),
    "an option of an agent": ("nbagent.Agent(modle='offline:demo')", "model"),
    "an option of a run": ("nbagent.Agent().run('Hi', max_turn=2)", "max_turns"),
    "a setting": ("nbagent.configure(temprature=0)", "temperature"),
    "an option of a client": ("nbagent.client('offline:demo', basurl='x')", "base_url"),
    "a filter of runs": ("nbagent.runs(modell='x')", "model"),
    "a filter of turns": ("nbagent.turns(finish_resaon='x')", "finish_reason"),
    "a filter of messages": ("nbagent.messages(rol='user')", "role"),
    "a filter of a history": ("nbagent.history(sesion='x')", "session"),
    "a filter's value": ("nbagent.runs(phase='WaitingUsr')", "WaitingUser"),
    "a filter's model": ("nbagent.turns(model='offline:dmo')", "offline:demo"),
    "a filter's session": ("nbagent.runs(session='stduy')", "study"),
    "a column to sort by": ("nbagent.history(sort='cost_us')", "cost_usd"),
    "a column of JSON": ("nbagent.expand(nbagent.runs(), 'varaint')", "variant"),
    # models, runs, turns, tools, files
    "an offline model": ("nbagent.Agent(model='offline:dmo').run('Hi')", "offline:demo"),
    "a provider": ("nbagent.Agent(model='opnai:gpt').run('Hi')", "openai"),
    "the models of a provider": ("nbagent.models('opnai')", "openai"),
    "a run by name": ("nbagent.open_run('openning')", "opening"),
    "the last run": ("nbagent.open_run('lst')", "last"),
    "a run to forget": ("nbagent.forget('openig')", "opening"),
    "a run in a filter": ("nbagent.turns(run='oppening')", "opening"),
    "a session": ("nbagent.session_tree('studdy')", "study"),
    "a tool": ("nbagent.Agent(model='offline:demo', tools='populaton').run('Hi')", "population"),
    "a tool of files": (
        "nbagent.Agent(model='offline:demo', tools='fs.raed').run('Hi')",
        "fs.read",
    ),
    "a host of tools": ("nbagent.Agent(model='offline:demo', tools='skils').run('Hi')", "skills"),
    "a format": ("first.export('htlm')", "html"),
    "a workflow": ("nbagent.load_package('wrteam')", "writeam"),
    # batches
    "an axis to compare by": ("batch.compare(by='topp')", "top_p"),
    "a score": ("batch.compare('exat')", "exact"),
    "an axis to vary": (
        "nbagent.Agent(model='offline:demo').map(frame, 'Hi', vary={'modle': ['a']})",
        "model",
    ),
    "a column in a template": (
        "nbagent.Agent(model='offline:demo').map(frame, 'Double {{ nmber }}')",
        "number",
    ),
    "a column of a row": (
        "nbagent.Agent(model='offline:demo').map(frame, 'Double {{ row.tonw }}')",
        "town",
    ),
    "a batch": ("nbagent.runs(batch='dubled')", "doubled"),
    # cells and lines
    "a variable of a prompt": ("%%agent -m offline:demo\nWhich of {{ citeis }}?", "cities"),
    "an option of a cell": ("%%agent --modle offline:demo\nHi", "--model"),
    "an option of a command": ("%agent resume --max-turn 3", "--max-turns"),
    "a command": ("%agent resum", "resume"),
    "a word after a command": ("%agent doctor compct", "compact"),
    "a topic of help": ("%agent help modls", "models"),
    "a setting in help": ("%agent help max_requsts", "max_requests"),
    "a setting on a line": ("%agent config modle=offline:demo", "model"),
    "a model of a cell": ("%%agent -m offline:dmo\nHi", "offline:demo"),
    "a run in a variable": ("%agent show frist", "first"),
    "a run on a line": ("%%agent --continue openng\nMore", "opening"),
    "a format on a line": ("%agent export first htm", "html"),
    "a frame of a batch": ("%%agent --over farme -m offline:demo\nHi", "frame"),
    "a tool of a cell": ("%%agent -m offline:demo --tools populaton\nHi", "population"),
    "a rule-based model without its provider": ("%%agent -m demo\nHi", "offline:demo"),
    "a provider without a model": ("nbagent.Agent(model='offline').run('Hi')", "offline:demo"),
    "the state of a run": ("first.status", "phase"),
    "the results of a fork": ("first.fork('C01', results={'c1': 2})", "edits"),
    "a rule of a cell": (
        "%%agent -m offline:demo --tools population --deny populaton\nHi",
        "population",
    ),
    "a rule of a cell that asks": ("%%agent -m offline:demo --ask fs.wirte\nHi", "fs.write"),
}


@pytest.mark.parametrize(("code", "nearest"), MISSPELT.values(), ids=list(MISSPELT))
def test_an_error_names_the_nearest_name(
    shell: MagicShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, nearest: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writeam").mkdir()
    (tmp_path / "writeam" / "workflow.md").write_text("---\nname: w\n---\n")
    shell.cell(TOOLS, STATE, BATCH)
    with pytest.raises((nbagent.NbagentError, AttributeError)) as caught:
        shell.cell(code)
    line = str(caught.value)
    forms = (f"id you mean {nearest!r}?", f"(write {nearest})", f"in the variable {nearest!r}")
    assert any(form in line for form in forms)
    assert "\n" not in line
    assert len(line) < 400


REFUSED: dict[str, tuple[str, str]] = {
    "a name of a type": ("nbagent.Agent(output='Ctiy').run('Hi')", "give the type itself"),
    "a number of answers": ("first.retry(n='x')", "expected 1 to 50"),
    "a part of an answer": ("first.retry(n=2.5)", "expected 1 to 50"),
    "a prompt that is a number": ("first.resume(5)", "write it as text"),
    "a fork's prompt": ("first.fork('C01', 5)", "write it as text"),
    "a filter without a name": ("nbagent.runs('frist')", "runs(run='frist')"),
    "a limit without a name": ("nbagent.messages(5)", "messages(run=5)"),
    "a limit in words": ("nbagent.runs(limit='x')", "give a whole number"),
    "a truth in words": ("nbagent.tool_runs(ok='maybe')", "give True or False"),
}


@pytest.mark.parametrize(("code", "advice"), REFUSED.values(), ids=list(REFUSED))
def test_an_odd_value_is_refused_in_one_line_that_says_what_to_write(
    shell: MagicShell, code: str, advice: str
) -> None:
    shell.cell(TOOLS, STATE)
    line = str(shell.refused(code))
    assert advice in line
    assert "\n" not in line


SIMILAR: dict[str, tuple[str, list[str], str | None]] = {
    "case and punctuation": ("FsRead", ["fs.write", "fs.read"], "fs.read"),
    "letters in another order": ("cosine", ["sine", "ocsine"], "ocsine"),
    "a beginning": ("temp", ["top_p", "temperature"], "temperature"),
    "an end": ("usd", ["model", "cost_usd"], "cost_usd"),
    "too short a beginning": ("te", ["temperature"], None),
    "no similar name": ("zebra", ["model", "session"], None),
    "other letters": ("gr\u00f6sse", ["gr\u00f6\u00dfe", "breite"], "gr\u00f6\u00dfe"),
    "only punctuation": ("...", ["model", "???"], None),
    "nothing known": ("model", [], None),
    "a private name": ("hidden", ["_hidden"], None),
    "a long text": ("model" * 1_000, ["model"], None),
    "many names": ("name9", [f"other{n}" for n in range(100_000)], None),
}


@pytest.mark.parametrize(("name", "known", "nearest"), SIMILAR.values(), ids=list(SIMILAR))
def test_the_nearest_name_is_similar_or_none(
    name: str, known: list[str], nearest: str | None
) -> None:
    assert nearest_name(name, known) == nearest
