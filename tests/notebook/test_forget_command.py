"""`%agent forget` and `%agent doctor compact`, in a shell and in a kernel with a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels import LiveKernel
from magic_shell import MagicShell

import nbagent
from nbagent import offline
from nbagent.session.stores import current_store


def test_forget_deletes_a_run_and_says_so(shell: MagicShell) -> None:
    run = shell.agent("--model offline:demo", "Hello?")
    assert f"forgot run {run.id[:8]};" in shell.said(f"%agent forget {run.id[:8]}")
    assert "_run" not in shell.user_ns
    assert len(nbagent.runs()) == 0


def test_run_that_others_go_on_from_needs_the_option(shell: MagicShell) -> None:
    first = shell.agent("--model offline:demo", "Hello?")
    shell.agent("--continue", "And?")
    assert "children" in str(shell.refused(f"%agent forget {first.id}"))
    assert "and 1 run that went on from it" in shell.said(f"%agent forget {first.id} --children")
    assert len(nbagent.runs()) == 0


@pytest.mark.parametrize("rest", ["", "--children", "a b", "--all", "no-such-run"])
def test_forget_without_a_run_deletes_nothing(rest: str, shell: MagicShell) -> None:
    shell.agent("--model offline:demo", "Hello?")
    said = str(shell.refused(f"%agent forget {rest}"))
    assert "\n" not in said
    assert len(nbagent.runs()) == 1


def test_doctor_shows_the_size_and_offers_to_compact(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    model = offline.script(["Read."] * 3, name="reader")
    ids = [shell.agent(f"-m {model.model_id}", "word " * 100_000).id for _ in range(3)]
    for run_id in ids:
        nbagent.forget(run_id)
    capsys.readouterr()
    said = shell.said("%agent doctor")
    assert " MB" in said
    assert "`%agent doctor compact` gives" in said
    before = current_store().database.size_bytes()
    shell.cell("%agent doctor compact")
    assert current_store().database.size_bytes() < before / 2
    assert "before)" in capsys.readouterr().out
    assert "nothing to give back" in shell.said("%agent doctor")
    assert "compact" in str(shell.refused("%agent doctor all"))


def test_open_page_no_longer_shows_a_forgotten_run(tmp_path: Path) -> None:
    kernel = LiveKernel(tmp_path)
    try:
        kernel.run("%load_ext nbagent\nimport nbagent")
        asked = kernel.run("%%agent --model offline:demo\nHello?", stdin=True)
        shown = {d["transient"]["display_id"] for d in asked.of("display_data")}
        done = kernel.run("nbagent.forget('last')", stdin=True)
        updates = done.of("update_display_data")
        assert {u["transient"]["display_id"] for u in updates} == shown
        assert all("was forgotten" in u["data"]["text/plain"] for u in updates)
        assert all("text/html" not in u["data"] and not u["metadata"] for u in updates)
        assert "comm_close" in done.kinds
        assert "_run" in str(kernel.run("_run", fails=True).error)
    finally:
        kernel.close()


def test_continue_after_forgetting_joins_no_other_conversation(shell: MagicShell) -> None:
    model = offline.script(["One.", "Two.", "Three."])
    shell.agent(f"-m {model.model_id}", "other")
    shell.agent(f"-m {model.model_id}", "mine")
    shell.cell("%agent forget last")
    for line in ("%%agent --continue\nMore?", "%agent forget last", "%agent resume", "%agent show"):
        assert "the last run was forgotten" in str(shell.refused(line)), line
    assert shell.agent(f"-m {model.model_id}", "anew").ok
    assert len(nbagent.runs()) == 2
