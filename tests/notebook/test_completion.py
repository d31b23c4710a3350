"""Tab on the lines of `%%agent` and `%agent`: what is offered, what it replaces, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from magic_shell import TOOLS, MagicShell, tab
from servers.model_server import ModelServer

import nbagent
from nbagent import offline
from nbagent.session import models
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import configure


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests in this process have listed models and named scripts."""
    monkeypatch.setattr(models, "listed_models", {})
    monkeypatch.setattr(offline, "scripts", {})


@pytest.fixture(params=["jedi", "no jedi"])
def typist(shell: MagicShell, request: pytest.FixtureRequest) -> Iterator[MagicShell]:
    """A shell with one of IPython's two ways to complete Python."""
    completer: Any = shell.Completer
    before = completer.use_jedi
    completer.use_jedi = request.param == "jedi"
    yield shell
    completer.use_jedi = before


def words(shell: MagicShell, typed: str) -> list[str]:
    """Only what is put in, of what Tab offers."""
    before, _, after = typed.partition("|")
    return [cell[len(before.rstrip("-")) : len(cell) - len(after)] for cell in tab(shell, typed)]


def test_tab_offers_every_option_and_every_command(typist: MagicShell) -> None:
    flags = words(typist, "%%agent |")
    of_a_run = [row.flags[-1] for row in RunOptions.rows().values() if row.usage]
    assert flags == [*of_a_run, *flags[len(of_a_run) :]]
    assert {"--continue", "--fork", "--to", "--into", "--ask", "--help"} <= {*flags}
    assert words(typist, "%%agent --|\nHello?") == flags
    commands = words(typist, "%agent |")
    assert {"tools", "models", "compare", "history", "fork", "help"} <= {*commands}
    topics = {"tools", "running", "batches", "models", "workflow", "all"}
    assert set(words(typist, "%agent help |")) == {*commands, *flags, *topics}


OFFERED = {
    "%%agent --mo|": ["%%agent --model", "%%agent --mount"],
    "%%time\n%%agent --dr|\nHello?": ["%%time\n%%agent --dry-run\nHello?"],
    "%%agent --raw \\\n  --dr|\nHello?": ["%%agent --raw \\\n  --dry-run\nHello?"],
    "%%agent -m offli|": ["%%agent -m offline:demo", "%%agent -m offline:"],
    "%%agent --model ope|": [
        "%%agent --model openai:gpt-5.4",
        "%%agent --model openai:",
        "%%agent --model openai-compatible:",
        "%%agent --model openai-responses:",
        "%%agent --model openrouter:",
    ],
    "%%agent --session |": ["%%agent --session default"],
    "x = 1\n  %agent do|\ny": ["x = 1\n  %agent doctor\ny"],
    "%agent config \\\n  tri|": ["%agent config \\\n  trim="],
    "%agent approvals |": ["%agent approvals clear"],
    "%agent resume last --max-tu|": ["%agent resume last --max-turns"],
    "%agent resume --session|": [],
    "%agent fork last C01 --max-tu|": ["%agent fork last C01 --max-turns"],
    "%agent doctor |": ["%agent doctor compact", "%agent doctor --drop-backup"],
    "%agent stop |": ["%agent stop --after-turn"],
    "%agent export last |": [
        f"%agent export last {word}" for word in ("md", "html", "jsonl", "openai", "cell", "otel")
    ],
    "%agent export last md |": [],
    "%agent retry last |": [],
    "%agent resume last --trim |": [
        f"%agent resume last --trim {word}" for word in RunOptions.rows()["trim"].choices
    ],
    "%agent forget x --ch|": ["%agent forget x --children"],
    "%%agent --to |": ["%%agent --to cell"],
    "%%agent --raw --raw|": [],
    "%%agent --tag a --ta|": ["%%agent --tag a --tag"],
    "%agent panel |": ["%agent panel right"],
}


@pytest.mark.parametrize("typed", OFFERED)
def test_tab_completes_what_is_typed(shell: MagicShell, typed: str) -> None:
    assert tab(shell, typed) == OFFERED[typed]


SILENT = ["%%agent --name im|", "%%agent --system 'im|", "%agent doctor im|"]


def test_no_name_of_python_is_mixed_in_where_nothing_is_known(typist: MagicShell) -> None:
    assert {typed: tab(typist, typed) for typed in SILENT} == {typed: [] for typed in SILENT}


def test_tab_completes_tools_one_after_the_other(typist: MagicShell) -> None:
    typist.cell(TOOLS)
    hosts = ["fs", "skills", "notebook"]
    # Servers that other tests of this process have made are offered too.
    offered = [w for w in words(typist, "%%agent --tools |") if not w.startswith("mcp:")]
    assert offered[:4] == ["population", "area", "all", "none"]
    assert sorted(offered[4:]) == sorted(hosts)
    more = [f"%%agent -t population,{word}" for word in ("area", *hosts)]
    found = [word for word in tab(typist, "%%agent -t population,|") if ",mcp:" not in word]
    assert sorted(found) == sorted(more)
    assert tab(typist, "%%agent -t 'population, a|") == ["%%agent -t 'population, area"]
    assert "population" in words(typist, "%%agent --tool-choice |")
    assert tab(typist, "%agent config tools=pop|") == ["%agent config tools=population"]


def test_tab_completes_runs_packages_and_variables(typist: MagicShell, tmp_path: Path) -> None:
    assert words(typist, "%agent show |") == []
    (tmp_path / "story").mkdir()
    (tmp_path / "story" / "workflow.md").touch()
    assert words(typist, "%agent workflow |") == ["story"]
    assert list(tmp_path.rglob("runs.sqlite")) == [], "looking makes no store"
    model = offline.script(["One.", "Two."], name="completed")
    unnamed = offline.script(["One."])
    first = typist.agent(f"-m {model.model_id} --quiet --name 'my run' --session study --into kept")
    second = typist.agent(f"-m {model.model_id} --quiet --name taken")
    typist.user_ns["taken"] = first
    runs = ["last", "kept", "taken", second.id[:8], "'my run'", first.id[:8]]
    assert words(typist, "%agent show |") == runs
    assert words(typist, "%%agent --continue |")[:6] == runs
    assert words(typist, f"%agent compare {first.id} |") == runs
    assert "--model" in words(typist, "%%agent --continue |")
    assert tab(typist, "%%agent -c my|") == ["%%agent -c 'my run'"]
    assert tab(typist, '%agent resume "my|') == ['%agent resume "my run"']
    assert tab(typist, f"%agent show {first.id[:5]}|") == [f"%agent show {first.id[:8]}"]
    assert words(typist, "%%agent --session |") == ["default", "study"]
    assert tab(typist, "%%agent --into k|") == ["%%agent --into kept"]
    typist.cell("class City: ...")
    assert tab(typist, "%%agent --output Ci|") == ["%%agent --output City"]
    assert tab(typist, "%%agent -m offline:comp|") == [f"%%agent -m {model.model_id}"]
    nbagent.Agent(unnamed).run("Go.")
    assert unnamed.model_id not in words(typist, "%%agent -m |")
    typist.said("%agent models offline")
    offered = words(typist, "%%agent -m |")
    assert (model.model_id in offered, unnamed.model_id in offered) == (True, False)


def test_expression_in_a_prompt_completes_as_python(typist: MagicShell) -> None:
    typist.cell("import pathlib", "here = pathlib.Path('.')", "table = {'first key': 1}")
    assert tab(typist, "%%agent\nIs {{ here.is_abs| }} it?") == [
        "%%agent\nIs {{ here.is_absolute }} it?"
    ]
    (offered,) = tab(typist, "%%agent --raw\n{{ table['fi| }}")
    assert offered.startswith("%%agent --raw\n{{ table['first key")
    assert "%%agent\n{{ here }} or {{ table }}" in tab(typist, "%%agent\n{{ here }} or {{ tabl| }}")
    assert not [cell for cell in tab(typist, "%%agent\n{{ |") if "{{ %" in cell]


ELSEWHERE = [
    *("impor|", "prin|", "x = 1\nx.real.conju|", "%agent doctor\nx = 1\nprin|", "%confi|"),
    *('text = "%%agent "; prin|', "%%time\nimpor|", "%%agen|"),
]


def test_completion_elsewhere_is_as_without_us(typist: MagicShell) -> None:
    ours = {typed: tab(typist, typed) for typed in ELSEWHERE}
    assert all(ours.values())
    completer: Any = typist.Completer
    (matcher,) = completer.custom_matchers
    completer.custom_matchers.clear()
    try:
        assert {typed: tab(typist, typed) for typed in ELSEWHERE} == ours
    finally:
        completer.custom_matchers.append(matcher)


def test_what_is_broken_is_left_out_and_nothing_is_raised(
    shell: MagicShell,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class Odd:
        """Raises whatever is asked of it."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    shell.cell(TOOLS)
    shell.user_ns["odd"] = Odd()
    home = tmp_path / "broken"
    home.mkdir()
    (home / "runs.sqlite").write_bytes(b"no database" * 999)
    monkeypatch.setenv("NBAGENT_HOME", str(home))
    monkeypatch.setenv("NBAGENT_MAX_TURNS", "many")
    assert "population" in words(shell, "%%agent --tools |")
    assert "offline:demo" in words(shell, "%%agent --model |")
    assert tab(shell, "%agent show |") == []
    assert tab(shell, "%%agent --session |") == []
    assert tab(shell, "%%agent --into |") == []
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_models_that_a_server_listed_are_offered_and_no_server_is_asked(shell: MagicShell) -> None:
    with ModelServer(models=["qwen3:8b", "little", "lit\nx", "lit\u202ex"]) as server:
        configure(base_url=server.url)
        assert tab(shell, "%%agent -m openai:lit|") == []
        assert not server.requests
        shell.said("%agent models openai")
        assert tab(shell, "%%agent -m openai:lit|") == ["%%agent -m openai:little"]
        assert tab(shell, "%%agent -m qwen|") == ["%%agent -m openai:qwen3:8b"]
    configure(base_url=None)


def test_a_cell_shows_the_run_that_tab_offered(shell: MagicShell) -> None:
    shell.user_ns["x"] = "expanded"
    # The last two cannot be typed, so that Tab offers the run's id.
    for name in ("what?", " lead", "it's", "$HOME", "{x}", "a\nb", "a\x1b[31m\u202eb\u200b"):
        run = nbagent.Agent(offline.script(["The answer."])).run("Go.", name=name)
        offered = tab(shell, "%agent show |")
        assert not [c for line in offered for c in "\n\x1b\u202e\u200b" if c in line]
        by_name = [one for one in offered if name in one]
        (line, *_) = by_name or [one for one in offered if run.id[:8] in one]
        assert run.id[:8] in shell.said(line)
