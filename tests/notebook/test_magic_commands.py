"""`%agent COMMAND`: what each one answers, and that no answer holds a key."""

from __future__ import annotations

import io
import json
import re
import secrets
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from magic_shell import TOOLS, MagicShell, tab
from servers.model_server import ModelServer, Reply
from session.approval_stage import Asked, ran

import nbagent
from nbagent import offline
from nbagent.notebook.complete import IDENTIFIER
from nbagent.notebook.magics import register
from nbagent.run import FORMATS
from nbagent.session.frontend import Cell, frontend
from nbagent.session.project_trust import trust_items
from nbagent.session.stores import current_store
from nbagent.settings.project_items import allow_item


def test_every_command_answers(shell: MagicShell) -> None:
    model = offline.script(["Hello."] * 3, name="kept")
    shell.agent(f"-m {model.model_id} --quiet")
    arguments = {
        "%agent forget": " last",
        "%agent fork": " last C01",
        "%agent compare": " last last",
        "%agent export": " last md",
        "%agent retry": " last",
    }
    # One has nothing to go on with here, the other needs a notebook.
    left_out = {"%agent resume", "%agent panel"}
    left_out |= {f"%agent {name}" for name in ("history", "compare") if not hasattr(nbagent, name)}
    for line in tab(shell, "%agent |"):
        if line not in left_out:
            assert shell.said(line + arguments.get(line, "")).strip(), line


def test_tools_lists_what_a_model_is_given(shell: MagicShell) -> None:
    assert "@nbagent.tool" in shell.said("%agent tools")
    shell.cell(TOOLS)
    shell.cell(
        "@nbagent.tool(interruptible=False)",
        "def write(path: str, mode: str = 'w') -> None:",
        "    'Write a file.'",
    )
    printed = shell.said("%agent tools")
    lines = [line.split("  ") for line in printed.splitlines()]
    assert ["population(city: string)", "allowed"] in [[*filter(None, line)][:2] for line in lines]
    assert "People living in a city." in printed
    assert "write(path: string, mode: string = …)" in printed
    assert "allowed; finishes before a stop" in printed
    assert "area" not in printed
    printed = shell.said("%agent config tools=area", "%agent tools")
    assert "area(city: string)" in printed


def test_models_lists_those_of_the_server_and_the_scripts(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = offline.script(["Hello."], name="listed")
    printed = shell.said("%agent models")
    rows = [line.split("  ", 1) for line in printed.splitlines() if line]
    found = {row[0]: row[-1].strip() for row in rows}
    assert {"offline:demo", made.model_id} < {*found}
    assert found["openai"].startswith("no key; set OPENAI_API_KEY or LLM_API_KEY")
    assert found["llamacpp"].startswith("no server at")
    more, missing = printed.split("what is missing")
    assert "lists all of them" in more
    assert "lists all of them" not in missing
    with ModelServer(models=["little", "large"]) as server:
        monkeypatch.setenv("LLM_BASE_URL", server.url)
        assert "openai:little" in shell.said("%agent models").split()
        there = f"%agent models vllm --base-url {server.url} --timeout 5"
        assert shell.said(there).splitlines() == ["vllm:little", "vllm:large"]
    assert shell.refused("%agent models openai").code == "LLM_HTTP_ERROR"


def test_stop_says_what_it_stopped(shell: MagicShell) -> None:
    assert shell.said("%agent stop") == "no run is running\n"
    model = offline.script([offline.delay(60), "too late"])
    shell.user_ns["model"] = model
    shell.cell("run = nbagent.Agent(model=model).start('Hello?', quiet=True)")
    assert shell.said("%agent stop") == "stopped 1 run\n"
    assert shell.user_ns["run"].stop_reason == "stopped"


def test_stop_after_the_turn_pauses(shell: MagicShell) -> None:
    shell.cell(TOOLS)
    calls = [offline.delay(0.3), offline.call("population", city="Oslo"), "too late"]
    shell.user_ns["model"] = offline.script(calls)
    shell.cell("run = nbagent.Agent(model=model).start('Hello?', quiet=True)")
    assert shell.said("%agent stop --after-turn").startswith("1 run will pause after")
    run = shell.user_ns["run"].wait()
    assert (run.phase, run.stop_reason, len(run.turns)) == ("WaitingUser", "stopped", 1)


def test_turn_is_forked_with_other_options_and_with_other_words(shell: MagicShell) -> None:
    shell.cell(TOOLS)
    steps = [offline.call("population", city="Oslo"), "One.", "Two.", "Three.", "Four."]
    model = offline.script(steps, name="forks")
    first = shell.agent("-m offline:forks --name 'my run'", "Which?")
    shell.cell("%agent fork my run C02 --temperature 1 --quiet --into second")
    shell.agent("--fork 'my run:C02' --quiet --into third", "{{ 6 * 7 }}?")
    second, third = shell.user_ns["second"], shell.user_ns["third"]
    assert {one.record.kind for one in (second, third)} == {"fork"}
    assert {one.record.parent_id for one in (second, third)} == {first.id}
    assert (second.text, third.text, third.record.prompt) == ("Two.", "Three.", "42?")
    assert [one.temperature for one in model.requests] == [None, None, 1, None]
    roles = [[message.role for message in one.messages] for one in model.requests]
    assert roles[2] == roles[1] == ["user", "assistant", "tool"]
    assert roles[3] == [*roles[1], "user"]
    assert "no turn 'C09'" in str(shell.refused("%agent fork last C09"))


MEANT = {
    "a": "in a",
    "b": "named b",
    "both": "in both",
    "my run": "named my run",
    "last": "the last",
    "_run": "the last",
}
LINES = (
    *("%agent show '{}'", "%agent export '{}' md", "%agent compare '{}' '{}'"),
    *("%agent retry '{}'", "%agent fork '{}' C01 --quiet", "%agent forget '{}'"),
    *("%%agent --continue '{}' --quiet", "%%agent --fork '{}:C01' --quiet"),
)


@pytest.mark.parametrize("word", MEANT)
@pytest.mark.parametrize("line", LINES)
def test_run_of_a_line_is_first_a_variable_then_a_name(
    shell: MagicShell, line: str, word: str
) -> None:
    model = offline.script(["Hello."] * 8, name="meant")
    asked = {
        "in a": "--into a",
        "named b": "--name b",
        "named both": "--name both",
        "in both": "--into both",
        "named my run": "--name 'my run'",
        "named last": "--name last --into last",
        "the last": "",
    }
    ids = {
        prompt: shell.agent(f"-m {model.model_id} --quiet {options}", prompt).id
        for prompt, options in asked.items()
    }
    shell.user_ns["b"] = "no run"
    said = shell.said(line.replace("{}", word), *["More?"] * line.startswith("%%"))
    runs = nbagent.runs()
    started = runs[~runs["run_id"].isin([*ids.values()])]
    assert ids[MEANT[word]][:8] in said or [*started["parent_id"]] == [ids[MEANT[word]]]
    others = {run_id for prompt, run_id in ids.items() if prompt != MEANT[word]}
    assert not [run_id for run_id in others if run_id[:8] in said]


@pytest.mark.parametrize("line", LINES)
def test_start_of_an_id_has_four_characters(shell: MagicShell, line: str) -> None:
    run = shell.agent("-m offline:demo --quiet")
    body = ["More?"] * line.startswith("%%")
    error = shell.refused(line.replace("{}", run.id[:3]), *body)
    assert "at least 4 characters of an id (%agent runs lists them)" in error.message
    assert len(nbagent.runs()) == 1
    shell.cell(line.replace("{}", run.id[:4]), *body)


def test_export_prints_a_run_or_writes_a_file(shell: MagicShell, tmp_path: Path) -> None:
    run = shell.agent("-m offline:demo --quiet --name 'my run'")
    assert shell.said("%agent export last jsonl").strip() == run.export("jsonl").strip()
    said = shell.said("%agent export 'my run' html my out.html")
    assert said == f"wrote run {run.id[:8]} to my out.html\n"
    assert (tmp_path / "my out.html").read_text("utf-8") == run.export("html")
    assert all(f in shell.said("%agent help export") for f in FORMATS)


def test_a_page_without_a_file_name_is_written_beside_the_notebook(
    shell: MagicShell, tmp_path: Path
) -> None:
    run = shell.agent("-m offline:demo --quiet")
    file = f"run-{run.id[:8]}.html"
    assert shell.said("%agent export last html") == f"wrote run {run.id[:8]} to {file}\n"
    assert (tmp_path / file).read_text("utf-8") == run.export("html")


def test_an_option_before_a_command_says_where_it_belongs(shell: MagicShell) -> None:
    said = {line: shell.refused(line).message for line in ("%agent --tools x hi", "%agent -m=a b")}
    assert "write %%agent --tools x, and on the next line: hi." in said["%agent --tools x hi"]
    assert "%agent takes a command first: %agent tools" in said["%agent --tools x hi"]
    assert "'-m=a' is an option of %%agent" in said["%agent -m=a b"]


QUESTIONS = {
    "%agent hello you": "hello you",
    "%agent help me understand this": "help me understand this",
    "%agent show me the data": "show me the data",
    "%agent compare Oslo and Bergen": "compare Oslo and Bergen",
    "%agent stop talking about cats": "stop talking about cats",
    "%agent runs in the family": "runs in the family",
    "%agent config the server please": "config the server please",
    "%agent tools are nice to have": "tools are nice to have",
    "%agent resume the work of yesterday": "resume the work of yesterday",
    "%agent export the table to csv": "export the table to csv",
    "%agent retry that last question": "retry that last question",
    "%agent workflow of the team": "workflow of the team",
    "%agent --tools notebook what is in df": "what is in df",
    "%agent -m offline:demo how large is it?": "how large is it?",
}


@pytest.mark.parametrize("line", QUESTIONS)
def test_error_offers_the_own_words_as_a_question(shell: MagicShell, line: str) -> None:
    assert f"on the next line: {QUESTIONS[line]}" in shell.refused(line).message


@pytest.mark.parametrize(
    "line", ["%agent show frist", "%agent help modls", "%agent resume --max-turn 3", "%agent stpo"]
)
def test_error_of_a_command_offers_no_question(shell: MagicShell, line: str) -> None:
    assert "on the next line: " not in shell.refused(line).message


def test_help_names_the_review_of_a_batch(shell: MagicShell) -> None:
    assert "batch.review()" in shell.said("%agent help batches")
    assert "batch.review()" in shell.refused("%agent review").message


def test_config_shows_the_limit_that_applies(shell: MagicShell) -> None:
    rows = [line.split() for line in shell.said("%agent config max_requests=5").splitlines()]
    found = {row[0]: row[1:] for row in rows if row}
    assert found["max_requests"] == ["5", "this", "kernel"]
    assert "max_repeated_results" not in found  # only the changed row
    rows = [line.split() for line in shell.said("%agent config").splitlines()]
    found = {row[0]: row[1:] for row in rows if row}
    assert found["max_turns"] == ["5", "this", "kernel", "(max_requests)"]
    assert found["max_repeated_results"] == ["6", "default"]
    shell.cell("%agent config max_requests=")


def test_retry_asks_again_with_the_functions_of_the_run_and_lists_the_answers(
    shell: MagicShell,
) -> None:
    shell.user_ns["model"] = model = offline.script(["One.", "Two.", "Three."])
    shell.cell(TOOLS, "run = nbagent.Agent(model, tools=[area]).run('How large?', quiet=True)")
    said = shell.said("%agent retry last 2")
    assert [word for word in ("One.", "Two.", "Three.") if word not in said] == []
    assert [[tool.name for tool in one.tools] for one in model.requests] == [["area"]] * 3
    assert shell.user_ns["_run"].id == shell.user_ns["run"].id


CODE = "Do this:\n```python\nx = 1\nprint(x)\n```\nthen\n~~~\ny = 2\n~~~\n```bash\nls\n```\n"
TO_CELL = {
    "blocks of Python": (CODE, "x = 1\nprint(x)\n\ny = 2"),
    "a fence in a block": ("````py\n```\na\n````", "```\na"),
    "no block": ("Just `x = 1`.", None),
    "another language": ("```sql\nselect 1\n```", None),
    "a cut block": ("```python\nx = ", None),
}


@pytest.mark.parametrize(("answer", "code"), TO_CELL.values(), ids=TO_CELL)
def test_code_of_an_answer_goes_into_a_new_cell(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch, answer: str, code: str | None
) -> None:
    put: list[str] = []
    monkeypatch.setattr(shell, "set_next_input", put.append)
    model = offline.script([answer])
    said = shell.said(f"%%agent -m {model.model_id} --quiet --to cell", "How?")
    assert put == ([code] if code is not None else [])
    assert ("no Python code block" in said) == (code is None)


def test_config_sets_shows_and_takes_back(shell: MagicShell) -> None:
    model = offline.script(["Hello."])
    printed = shell.said(f"%agent config model={model.model_id} system='Be brief.' temperature=0.5")
    row = next(line for line in printed.splitlines() if line.startswith("temperature"))
    assert row.split() == ["temperature", "0.5", "this", "kernel"]
    shell.agent("--temperature 1")
    assert (model.requests[0].system_prompt, model.requests[0].temperature) == ("Be brief.", 1)
    printed = shell.said("%agent config model= temperature=")
    rows = {line.split()[0]: line for line in printed.splitlines() if line}
    assert rows["model"].split()[1:] == ["not", "set", "default"]
    assert {"model", "temperature"} <= {*rows}
    assert "system" not in rows
    assert "'Be brief.'  this kernel" in shell.said("%agent config")


def test_project_that_chooses_is_said_in_the_cell_and_in_the_settings(
    shell: MagicShell, tmp_path: Path
) -> None:
    lines = ["[tool.nbagent]", "model = 'offline:theirs'", "tools = ['notebook']"]
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    with redirect_stderr(io.StringIO()) as errors:
        printed = shell.said("%%agent", "Hello?")
    assert "pyproject.toml of this folder sets model and tools; they are" in (
        printed + errors.getvalue()
    )
    assert shell.user_ns["_run"].record.model == "offline:demo"
    printed = shell.said("%agent config")
    assert "default; not allowed: offline:theirs of pyproject.toml" in printed
    for item in trust_items():
        allow_item(item)
    printed = shell.said("%agent config")
    assert "not allowed" not in printed
    assert re.search(r"model +'offline:theirs' +pyproject\.toml", printed)


COMMANDS_THAT_WORK = """%%agent
%agent trust
%agent config
%agent config temperature=1
%agent doctor
%agent tools
%agent models offline
%agent help trust
%agent runs
%agent show"""
FILES_OF_STRANGERS = {
    "lines that a project may not set": ("allow = ['*']\nbase_url = 'http://h'\nfoo = 1", ()),
    "tools that start programs": ("tools = 'all'\nmodel = 'local:a.gguf'\ntop_p = 'x'", ()),
    "a rule that is not valid": (
        "deny = ['(']",
        ("%%agent", "%agent tools", "%agent models offline"),
    ),
    "a broken file": ("[", ("%%agent", "%agent tools", "%agent models offline")),
}


@pytest.mark.parametrize("case", FILES_OF_STRANGERS)
def test_a_strangers_file_stops_no_command_that_explains_it(
    case: str, shell: MagicShell, tmp_path: Path
) -> None:
    lines, stopped = FILES_OF_STRANGERS[case]
    shell.agent("-m offline:demo")
    (tmp_path / "pyproject.toml").write_text(f"[tool.nbagent]\n{lines}\n")
    for command in COMMANDS_THAT_WORK.splitlines():
        cell = ("Hello?",) if command == "%%agent" else ()
        if command in stopped:
            assert "orrect or remove" in (error := shell.refused(command, *cell).message)
            assert error.startswith("pyproject.toml")
            continue
        with redirect_stderr(io.StringIO()):
            printed = " ".join(shell.said(command, *cell).split())
        if command in ("%agent trust", "%agent config", "%agent doctor"):
            assert ("remove the lines from [tool.nbagent]" in printed) == (not stopped)
            assert ("orrect or remove" in printed) == bool(stopped)


def test_doctor_says_what_was_found_and_works_when_settings_and_store_do_not(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printed = shell.said("%agent doctor")
    rows = {line.split()[0]: line for line in printed.splitlines()}
    assert "offline:demo (no key and no local server was found)" in rows["model"]
    assert "none" in rows["keys"]
    assert "none yet" in rows["store"]
    monkeypatch.setenv("LLM_MODEL", "little")
    shell.agent("-m offline:demo --quiet")
    printed = shell.said("%agent doctor")
    assert "openai:little (set by environment)" in printed
    assert "1 run, 1 turn, 0 tool runs, 2 messages" in printed
    monkeypatch.setenv("NBAGENT_MAX_TURNS", "many")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "file" / "home"))
    printed = shell.said("%agent doctor")
    assert "NBAGENT_MAX_TURNS" in printed
    assert "NOT SAVED ON DISK" in printed


KEY_BODIES = (
    "{{ int(os.environ['FRESH_API_KEY']) }}",
    "{{ {}['x' * 170 + os.environ['FRESH_API_KEY']] }}",
    "{{ os.environ['FRESH_API_KEY'] + KEY",
    "{{ int(os.environ.setdefault('LATER_API_KEY', 'sk-' + KEY[::-1])) }}",
)


@pytest.mark.parametrize("body", KEY_BODIES)
def test_key_is_in_no_error_before_the_first_run(
    shell: MagicShell,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    key = f"sk-{secrets.token_hex(16)}"  # no run of this process has seen it
    monkeypatch.setenv("FRESH_API_KEY", key)
    monkeypatch.setenv("LATER_API_KEY", "")
    monkeypatch.delenv("LATER_API_KEY")
    shell.cell("import os", f"KEY = {key!r}")
    capsys.readouterr()
    body = body.replace("+ KEY", f"+ {key!r}")
    error = shell.refused("%%agent --model offline:demo --tools none", body)
    captured = capsys.readouterr()
    seen = f"{captured.out} {captured.err} {error} {error!r} {error.args} {error.details}"
    assert "E_INVALID_ARGUMENTS" in captured.out + captured.err
    for text in (key, key[::-1]):
        assert not [text[i : i + 8] for i in range(len(text) - 7) if text[i : i + 8] in seen]


def test_runs_lists_the_last_ones(shell: MagicShell) -> None:
    model = offline.script(["One.", "Two.", offline.error("LLM_RATE_LIMITED", "slow down")])
    first = shell.agent(f"-m {model.model_id} --quiet --name 'my run'", "Which\nis larger?")
    shell.agent(f"-m {model.model_id} --quiet", "And \u202e now?")
    shell.refused(f"%%agent -m {model.model_id} --quiet", "More!")
    heads, newest, second, oldest = shell.said("%agent runs").splitlines()
    assert heads.split() == ["run", "name", "began", "state", "model", "prompt"]
    assert [word in newest for word in ("Failed", model.model_id, "More!")] == [True] * 3
    assert "And ⟦U+202E⟧ now?" in second
    assert oldest.startswith(f"{first.id[:8]}  my run  ")
    assert oldest.endswith("Which is larger?")
    assert shell.said("%agent runs 1").split()[5:] == newest.split()


def test_run_that_paused_is_no_error_and_resume_goes_on_with_other_options(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.cell(TOOLS)
    model = offline.script([offline.call("population", city="Oslo"), "Done."])
    paused = shell.agent(f"-m {model.model_id} --max-turns 1 --name paused --temperature 0")
    assert (paused.phase, paused.stop_reason, paused.ok) == ("WaitingUser", "max_turns", False)
    assert "%agent resume" in capsys.readouterr().out
    shell.cell(
        "%agent resume paused --max-turns 40 --system 'Be brief.' --trim tool-results --into after"
    )
    after = shell.user_ns["after"]
    assert (after.text, after.record.kind, after.record.parent_id) == ("Done.", "resume", paused.id)
    assert after.record.limits.max_turns == 40
    assert after.record.options["trim"] == "tool-results"
    assert model.requests[1].system_prompt.startswith("Be brief.")
    assert model.requests[1].temperature == 0


def test_run_that_was_given_functions_goes_on_with_them(shell: MagicShell) -> None:
    asks = offline.call("area", city="Oslo")
    shell.user_ns["model"] = model = offline.script([asks, asks, "Large.", "Yes."])
    shell.cell(TOOLS, "agent = nbagent.Agent(model, tools=[area])")
    shell.cell("paused = agent.run('How large?', max_turns=1, quiet=True)")
    shell.cell("%agent resume --max-turns 9 --quiet")
    assert shell.user_ns["_run"].turns[0].tool_runs[0].result.data == 454.1
    shell.agent("--continue --quiet", "Sure?")
    assert [[tool.name for tool in one.tools] for one in model.requests] == [["area"]] * 4


def test_extension_loads_once_and_again(shell: MagicShell) -> None:
    def ours() -> tuple[int, int, int]:
        completer: Any = shell.Completer
        matchers = [getattr(one, "matcher_identifier", "") for one in completer.custom_matchers]
        cleanups = [one.__module__ for one in shell.input_transformers_cleanup]
        manager: Any = shell.magics_manager
        magics = manager.magics
        n_magics = sum("agent" in magics[kind] for kind in ("cell", "line"))
        return n_magics, matchers.count(IDENTIFIER), cleanups.count(register.__module__)

    shell.cell("%load_ext nbagent", "%reload_ext nbagent")
    register(shell)
    assert ours() == (2, 1, 1)
    shell.cell("%unload_ext nbagent")
    assert ours() == (0, 0, 0)
    shell.cell("%load_ext nbagent")
    assert ours() == (2, 1, 1)


def test_forget_deletes_a_run_and_with_children_those_that_went_on(shell: MagicShell) -> None:
    first = shell.agent("--model offline:demo", "Hello?")
    shell.agent("--continue", "And?")
    for rest in ("", "--children", "a b", "--all", "no-such-run"):
        assert "\n" not in str(shell.refused(f"%agent forget {rest}"))
    assert "children" in str(shell.refused(f"%agent forget {first.id}"))
    assert len(nbagent.runs()) == 2
    said = shell.said(f"%agent forget {first.id[:8]} --children")
    assert said.startswith(f"deleted run {first.id[:8]} and 1 run that continued it;")
    assert "_run" not in shell.user_ns
    assert len(nbagent.runs()) == 0


def test_doctor_lists_the_workarounds_that_were_learnt(shell: MagicShell) -> None:
    error = {"error": {"message": "Unsupported parameter: 'temperature'", "param": "temperature"}}
    with ModelServer([Reply(status=400, error=error), "Fine."]) as server:
        run = nbagent.Agent("openai:m", base_url=server.url, tools=[], temperature=0.5).run("Go.")
        assert run.ok, run.error
        said = shell.said("%agent doctor")
        (row,) = [line for line in said.splitlines() if line.startswith("workaround")]
        assert f"m at {server.origin}: temperature=0.5 was left out" in row


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
    assert "`%agent doctor compact` frees" in said
    before = current_store().database.sizes()[0]
    shell.cell("%agent doctor compact")
    assert current_store().database.sizes()[0] < before / 2
    assert "before)" in capsys.readouterr().out
    assert "nothing to free" in shell.said("%agent doctor")
    assert "compact" in str(shell.refused("%agent doctor all"))


def test_continue_after_forgetting_joins_no_other_conversation(shell: MagicShell) -> None:
    model = offline.script(["One.", "Two.", "Three."])
    shell.agent(f"-m {model.model_id}", "other")
    shell.agent(f"-m {model.model_id}", "mine")
    shell.cell("%agent forget last")
    for line in ("%%agent --continue\nMore?", "%agent forget last", "%agent resume", "%agent show"):
        assert "no run is called" in str(shell.refused(line)), line
    assert shell.agent(f"-m {model.model_id}", "anew").ok
    assert len(nbagent.runs()) == 2


HOSTILE = "x\x1b]8;;http://evil\x07y\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e\nopenai:forged"


@pytest.mark.parametrize("command", ["models openai", "tools", "doctor", "config", "runs"])
def test_listing_of_hostile_names_holds_nothing_that_a_terminal_obeys(
    command: str, shell: MagicShell
) -> None:
    with ModelServer(["Fine."], models=[HOSTILE]) as server:
        shell.agent(f"-m openai:m --base-url {server.url} --quiet --name hostile", HOSTILE)
        nbagent.configure(model=f"openai:{HOSTILE}", base_url=server.url)
        shell.user_ns["hostile"] = nbagent.tool(name="hostile", description=HOSTILE)(lambda: 1)
        said = shell.said(f"%agent {command}")
    assert "x" in said
    assert not [char for char in said if char in "\x1b\x07\u202e"]
    assert "\nopenai:forged" not in said


def test_approvals_of_the_session_are_shown_and_taken_back(shell: MagicShell) -> None:
    answer = Asked("session")

    def run() -> None:
        ran(offline.call("delete", path="a.txt"), answer=answer, session="spring", quiet=True)

    assert "no calls are allowed" in shell.said("%agent approvals")
    run()
    run()
    printed = shell.said("%agent approvals")
    assert 'delete({"path":"a.txt"})  \'spring\'  on_approval' in printed
    assert (printed.count("delete("), answer.paths) == (1, ["a.txt"])
    assert "revoked 1 approval;" in shell.said("%agent approvals clear")
    assert "no calls are allowed" in shell.said("%agent approvals")
    run()
    assert answer.paths == ["a.txt"] * 2, "it is asked about again"
    assert "takes [clear]; remove 'all'" in str(shell.refused("%agent approvals all"))


GRAPH: dict[str, Any] = {
    "nodes": [
        {"id": "draft", "stepFile": "steps/draft.md"},
        {"id": "close", "stepFile": "steps/close.md", "terminal": True},
    ],
    "edges": [{"from": "draft", "to": "close"}],
}


def put_package(folder: Path, graph: dict[str, Any]) -> None:
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    (folder / "workflow.md").write_text("---\nid: story-flow\nname: A story\n---\nBe kind.\n")
    (folder / "workflow.graph.json").write_text(json.dumps(graph, indent=1))
    for name in ("draft", "close"):
        (folder / "steps" / f"{name}.md").write_text("Write.\n")


def test_workflow_shows_a_package_or_all_that_is_wrong_with_it(
    shell: MagicShell, tmp_path: Path
) -> None:
    assert shell.said("%agent workflow").startswith("packages in this folder: none")
    put_package(tmp_path / "story", GRAPH)
    for name in ("one/SKILL.md", "skill/SKILL.md", "skill/steps/step-01.md", "text.bmad"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with zipfile.ZipFile(tmp_path / "zip.bmad", "w") as packed:
        packed.writestr("workflow.md", "x")
    listed = "packages in this folder: skill, story, zip.bmad\n"
    assert shell.said("%agent workflow").startswith(listed)
    assert shell.said("%agent workflow story") == (
        "story-flow · A story\n\nSteps, from draft\n  draft\n    → close (next)\n"
        "  close · the end\n"
    )
    edges = [*GRAPH["edges"], {"from": "draft", "to": "no"}, {"from": "close", "to": "draft"}]
    put_package(tmp_path / "story", {**GRAPH, "edges": edges})
    with redirect_stdout(io.StringIO()) as printed:
        error = shell.refused("%agent workflow story")
    # The error itself follows, as IPython shows it.
    printed_lines = printed.getvalue().splitlines()
    listed = [line for line in printed_lines if line.startswith("workflow.")]
    assert printed_lines[: len(listed)] == listed > []
    assert error.message == f"story cannot be used: it has {len(listed)} problems, listed above"
    assert "nothere" in str(shell.refused("%agent workflow nothere"))
    assert "takes no options" in str(shell.refused("%agent workflow story --raw"))


# The first hour


def test_lists_show_the_prompt_as_it_was_typed(shell: MagicShell) -> None:
    shell.cell("import pandas as pd", "df = pd.DataFrame({'n': [1, 2]})")
    shell.agent("-m offline:demo --quiet", "{{ df }} which n is larger?")
    for command in ("%agent runs", "%agent history", "%agent tree"):
        assert "{{ df }} which n is larger?" in shell.said(command), command
    assert "DataFrame: 2 rows" in shell.said("%agent show last")


def test_why_no_model_answers_is_said_once_in_a_kernel(shell: MagicShell) -> None:
    first, second = (shell.said("%%agent", "Hello?") for _ in range(2))
    assert "no key and no local server was found" in first
    assert "no key and no local server was found" not in second
    assert "offline:demo answers by rules, not by a model" in second


def test_the_tree_shows_this_notebook_and_the_others_by_a_word(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("mine", "other"):
        monkeypatch.setattr(
            frontend(), "cell", lambda name=name: Cell(notebook=str(tmp_path / f"{name}.ipynb"))
        )
        shell.agent("-m offline:demo --quiet", f"Hello from {name}?")
    shown, whole = shell.said("%agent tree"), shell.said("%agent tree all")
    assert "Hello from other?" in shown
    assert "Hello from mine?" not in shown
    assert "1 run of other notebooks: %agent tree all" in shown
    assert "Hello from mine?" in whole
    assert "Hello from other?" in whole


def test_a_notebook_without_records_is_named(shell: MagicShell, tmp_path: Path) -> None:
    (tmp_path / "new.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4}')
    with pytest.warns(UserWarning, match="has no saved runs"):
        shown = repr(nbagent.read_notebook(tmp_path / "new.ipynb"))
    assert shown.startswith("<SavedNotebook new.ipynb, runs: 0; save the notebook first")
