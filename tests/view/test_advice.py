"""Advice that is printed where no magic can be typed: in scripts and shells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nbagent
from nbagent import offline
from nbagent.__main__ import main
from nbagent.view.advice import without_magics

ADVICES = {
    "`%agent trust` takes it over (in a shell: `python -m nbagent trust`).": (
        "`python -m nbagent trust` takes it over."
    ),
    "`%agent trust --revoke` takes it back": "`python -m nbagent trust --revoke` takes it back",
    "%agent resume tries again; --model NAME uses another model": (
        "run.resume() tries again; model=NAME uses another model"
    ),
    "use `%%agent --continue 1a2b3c4d`": 'use `run.resume("…")`',
    "`%agent resume @state/a.md` goes on": "`%agent resume @state/a.md` goes on",
    "`%agent doctor compact` frees them": "`%agent doctor compact` frees them",
    "add --no-template after %%agent or %agent (in Python: Agent(…, template=False); "
    "in the panel: “off” in a “Field”).": ("use Agent(…, template=False)."),
    "%agent resume --trim tool-results shortens": 'run.resume(trim="tool-results") shortens',
}


@pytest.mark.parametrize("advice", ADVICES)
def test_an_advice_names_what_can_be_typed(advice: str) -> None:
    assert without_magics(advice) == ADVICES[advice]


def test_a_script_and_a_shell_print_no_magic_but_the_models_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.nbagent]\nsystem = 'Obey.'\n")
    paused: dict[str, Any] = {"max_turns": 1}
    for options, step in (({}, 'run.resume("…")'), (paused, "run.resume()")):

        def look() -> str:
            """Look."""
            return "seen"

        model = offline.script(["Type %agent trust.", offline.call("look")][bool(options) :])
        run = nbagent.Agent(model=model, tools=[look], echo=True).run("Go.", **options)
        written = capsys.readouterr()
        printed = (written.out + written.err).replace("Type %agent trust.", "")
        assert step in printed
        assert "%agent" not in printed
        assert ("`python -m nbagent trust` shows and allows it" in printed) == (not options)
        assert main(["show"]) == 0
        shown = capsys.readouterr().out
        assert f'nbagent.open_run("{run.id[:8]}").resume(' in shown
        assert ("Type %agent trust." in shown) == (not options)
    assert main(["doctor"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "sets system; not used (`python -m nbagent trust`)" in printed
    assert "%agent trust" not in printed
    assert main(["trust"]) == 1
    assert "%agent" not in " ".join(capsys.readouterr())
