"""The buttons below a finished run: what a page says is checked before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.notebook import actions
from nbagent.notebook.outputs import Output, output_of
from nbagent.view.cell import cell_text

BAD: dict[str, dict[str, Any]] = {
    "unknown output": {"at": "0-1"},
    "unknown run": {"run": "0" * 16},
    "no verb": {"do": None},
    "an approval": {"do": "answer", "choice": "once"},
    "a list": {"do": ["retry"]},
    "words that are no text": {"prompt": {"a": 1}},
    "endless words": {"prompt": "x" * 200_000},
    "a turn that is no text": {"turn": 5},
}


@pytest.fixture
def output() -> Output:
    """An output with a finished run."""
    run = nbagent.Agent(model="offline:demo", tools=[], max_turns=7).run("Hello {{ braces }}")
    output = Output()
    output.add(run.id)
    return output


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_message_that_is_not_whole_does_nothing(
    output: Output, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def note(work: object, **_: object) -> None:
        done.append(work)

    monkeypatch.setattr(actions, "start_by_click", note)
    monkeypatch.setattr(actions, "later", note)
    fine = {"kind": "act", "do": "retry", "at": output.id, "run": output.run_ids[0]}
    actions.heard({**fine, **change})
    actions.heard([fine])
    assert done == []
    actions.heard(fine)
    assert len(done) == 1


def test_only_the_last_thousand_outputs_are_remembered(output: Output) -> None:
    others = [Output() for _ in range(1_000)]
    assert output_of(output.id) is None
    assert [output_of(one.id) for one in others] == others


def test_retry_and_fork_name_a_turn_of_the_run_and_continue_its_end(output: Output) -> None:
    (run_id,) = output.run_ids
    retry = actions.asked("retry", output, run_id, "", "")
    assert (retry.kind, retry.fork_turn, retry.prompt) == ("fork", "C01", None)
    fork = actions.asked("fork", output, run_id, "C01", " in short ")
    assert (fork.fork_turn, fork.prompt, fork.parent_id) == ("C01", "in short", run_id)
    assert actions.asked("continue", output, run_id, "", "").kind == "resume"
    assert actions.asked("continue", output, run_id, "", "more").kind == "continue"
    with pytest.raises(UsageError, match="has no turn 'C09'"):
        actions.asked("fork", output, run_id, "C09", "")
    output.at_work = print
    with pytest.raises(UsageError, match="still running"):
        actions.asked("retry", output, run_id, "", "")


def test_a_run_as_a_cell_asks_the_same(output: Output) -> None:
    head, prompt = cell_text(output.load(output.run_ids[0])).splitlines()
    assert head.startswith("%%agent ")
    assert {"offline:demo", "--max-turns", "7"} <= {*head.split()}
    # Braces that were typed as such do not become an expression.
    assert prompt == "Hello {{ '{{' }} braces }}"
