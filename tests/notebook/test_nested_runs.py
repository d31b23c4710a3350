"""What a tool starts by itself is not what the person goes on with."""

from __future__ import annotations

import pytest
from magic_shell import MagicShell

import nbagent
from nbagent.session.frontend import use_frontend
from nbagent.session.stores import close_stores


def test_a_run_inside_a_tool_leaves_run_and_last_alone(shell: MagicShell) -> None:
    inner = nbagent.offline.script(["I am the sub agent"])

    @nbagent.tool
    def helper() -> str:
        """Ask a helper."""
        return nbagent.Agent(model=inner, tools=[]).run("sub question").text

    outer = nbagent.offline.script([nbagent.offline.call("helper"), "outer done", "and on"])
    run = nbagent.Agent(model=outer, tools=[helper]).run("outer question")
    assert shell.user_ns["_run"] is run
    assert nbagent.open_run("last").id == run.id
    shell.agent("--continue --tools none --into more", "go on")
    assert shell.user_ns["more"].record.parent_id == run.id


def test_a_coroutine_function_as_callback_is_refused_before_anything_starts() -> None:
    async def callback(event: object) -> None:
        raise AssertionError("never called")

    script = nbagent.offline.script(["never asked"])
    with pytest.raises(nbagent.UsageError, match="plain function"):
        nbagent.Agent(model=script, tools=[]).run("x", on_event=callback)
    assert script.requests == []


def as_started_anew() -> None:
    """Forget what this kernel has run, as a restart does."""
    use_frontend(None)
    close_stores()


def test_a_fresh_kernel_goes_on_only_with_a_run_of_its_own_notebook(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = nbagent.offline.script(["one", "two", "three"])
    monkeypatch.setenv("JPY_SESSION_NAME", "work/first.ipynb")
    shell.agent(f"--model {script.model_id} --tools none --session trip", "Hello.")
    made = shell.user_ns["_run"]
    assert made.record.notebook == "work/first.ipynb"
    as_started_anew()
    monkeypatch.setenv("JPY_SESSION_NAME", "work/second.ipynb")
    shell.refused("%%agent --continue", "And?")
    shell.agent("--continue --session trip", "And?")
    assert shell.user_ns["_run"].record.parent_id == made.id
    as_started_anew()
    monkeypatch.setenv("JPY_SESSION_NAME", "work/first.ipynb")
    shell.agent("--continue", "And then?")
    assert shell.user_ns["_run"].record.parent_id == made.id
    assert set(nbagent.runs(notebook="work/first.ipynb").run_id) >= {made.id}


def test_a_record_says_which_cell_and_which_template_made_it(shell: MagicShell) -> None:
    model = nbagent.offline.script([nbagent.offline.error("LLM_TIMEOUT"), "Oslo."])
    shell.user_ns.update(model=model.model_id, city="Oslo")
    counts: list[int] = []
    for line, cell in (("--model $model --tools none", "Is it {{ city }}?"), ("", "")):
        line = line.replace("$model", model.model_id)
        counts.append(shell.execution_count)
        if cell:
            shell.refused(f"%%agent {line}", cell)
        else:
            shell.cell("%agent resume")
    first, second = (nbagent.open_run(ref).record for ref in nbagent.runs()["run_id"])
    assert [run.execution_count for run in (first, second)] == counts
    assert {run.template for run in (first, second)} == {"Is it {{ city }}?"}
    assert {run.prompt for run in (first, second)} == {"Is it Oslo?"}
    assert len({*nbagent.runs()["template_sha"]}) == 1
