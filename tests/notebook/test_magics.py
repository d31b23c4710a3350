"""`%%agent` and `%agent` in a real shell: each option has its effect, each error is one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from image_files import png
from magic_shell import TOOLS, MagicShell

import nbagent
from nbagent import offline
from nbagent.contracts.errors import EngineError, NbagentError
from nbagent.contracts.messages import FilePart
from nbagent.contracts.model import ChatRequest
from nbagent.notebook import reports


def names(request: ChatRequest) -> list[str]:
    return [tool.name for tool in request.tools]


def error_lines(capsys: pytest.CaptureFixture[str], error: NbagentError) -> list[str]:
    printed = capsys.readouterr().out
    assert "Traceback" not in printed
    return [line for line in printed.splitlines() if error.message[:20] in line]


# What is sent

SENT: dict[str, Callable[[ChatRequest], bool]] = {
    "--tools none --system 'Be brief.'": lambda r: r.system_prompt == "Be brief.",
    "--top-p 0.9 --max-tokens 7": lambda r: (r.top_p, r.max_tokens) == (0.9, 7),
    "--stop-seq END --stop-seq '--'": lambda r: r.stop_sequences == ("END", "--"),
    "": lambda r: (
        (r.temperature, r.top_p, r.max_tokens, r.stop_sequences, names(r))
        == (None, None, None, (), ["population"])
    ),
    "--tools none": lambda r: (names(r), r.tool_choice, r.system_prompt) == ([], None, ""),
    "-t 'area population'": lambda r: names(r) == ["area", "population"],
    "--tool-choice population": lambda r: r.tool_choice == "population",
}


@pytest.mark.parametrize("line", SENT, ids=lambda line: line or "(nothing)")
def test_option_is_sent_to_the_model(shell: MagicShell, line: str) -> None:
    shell.cell(TOOLS)
    model = offline.script(["Hello."])
    run = shell.agent(f"--model {model.model_id} {line}")
    (request,) = model.requests
    assert SENT[line](request)
    assert request.messages[-1].text == "Hello?"
    assert (run.ok, run.text) == (True, "Hello.")


def test_names_of_a_run_find_it_again(shell: MagicShell) -> None:
    model = offline.script(["One.", "Two."])
    first = shell.agent(
        f"-m {model.model_id} --name 'my run' --tag a --tag b --session study --into kept"
    )
    shell.agent(f"-m {model.model_id}")
    assert shell.user_ns["kept"] is first
    assert nbagent.open_run("my run").text == "One."
    assert (first.session, first.record.tags) == ("study", ("a", "b"))
    shell.agent("--continue 'my run' -m offline:demo", "And?")
    assert shell.user_ns["_run"].record.parent_id == first.id
    assert shell.user_ns["_run"].session == "study"


def test_into_and_the_last_run_are_set_also_when_the_run_failed(shell: MagicShell) -> None:
    model = offline.script([offline.error("LLM_RATE_LIMITED", "slow down")])
    error = shell.refused(f"%%agent -m {model.model_id} --into failed", "Hello?")
    assert error.code == "LLM_RATE_LIMITED"
    run = shell.user_ns["failed"]
    assert run is shell.user_ns["_run"]
    assert (run.phase, run.ok) == ("Failed", False)


# What is shown

SHOWN: dict[str, Callable[[str], bool]] = {
    "--raw": lambda out: out == "**Hello** there.\n",
    "--quiet": lambda out: out == "",
    "": lambda out: "**Hello** there." in out and "✓ Answered" in out,
}


def test_what_answers_without_a_key_is_said_once_with_the_reason(shell: MagicShell) -> None:
    said = shell.said("%%agent", "Hello?")
    line = "offline:demo answers by rules, not by a model: no key and no local server was found."
    assert said.splitlines()[1] == line
    assert (said.count("not by a model"), said.count("no local server")) == (1, 1)


@pytest.mark.parametrize("line", SHOWN, ids=lambda line: line or "(nothing)")
def test_terminal_shows_what_was_asked_for(
    shell: MagicShell, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    model = offline.script(["**Hello** there."])
    shell.agent(f"-m {model.model_id} {line}")
    captured = capsys.readouterr()
    assert SHOWN[line](captured.out), captured.out
    assert captured.err == ""


# The template


def test_values_of_the_notebook_stand_in_the_prompt_and_both_are_kept(shell: MagicShell) -> None:
    model = offline.script(["Fine.", "Fine."])
    shell.cell(
        "import pandas as pd",
        "frame = pd.DataFrame({'city': ['Oslo', 'Bergen'], 'n': [1, 2]})",
        "city, braces, ünïcode = 'Oslo', '{{ city }}', '北京'",
    )
    body = 'Is {{ city }} in {{ frame }}, {{ braces }}, {{ ünïcode }}? {x} $y {"a": {"b": 1}}'
    body += "{{ ', '.join(c * 2 for c in frame.city if city) }}"
    run = shell.agent(f"-m {model.model_id}", body)
    sent = model.requests[0].messages[-1].text
    for words in ("Is Oslo in", "Bergen", "{{ city }}", "北京", '{x} $y {"a": {"b": 1}}OsloOslo'):
        assert words in sent
    assert (run.record.template, run.record.prompt) == (body, sent)
    assert nbagent.open_run(run.id).record.template == body
    plain = "  一 ü 🙂 {x} $HOME %d\n\n\ttab \\frac{a}{b}  "
    run = shell.agent(f"-m {model.model_id}", plain)
    assert model.requests[1].messages[-1].text == plain
    assert (run.record.template, run.record.prompt) == (None, plain), "sent as it was typed"


# What goes wrong

WRONG: dict[str, tuple[str, str]] = {
    "undefined name": ("%%agent\nIs {{ nope }} larger?", "{{ nope }}"),
    "blank prompt": ("%%agent --quiet\n  \n", "the prompt is empty"),
    "empty value": ("%%agent\n{{ '' }}", "the prompt is empty"),
    "above the limit of requests": ("%%agent --max-turns 51\nHello?", "max_requests"),
    "no key": ("%%agent -m openai:x\nHello?", "OPENAI_API_KEY"),
    "nothing to go on with": ("%%agent --continue\nHello?", "no run"),
    "words after a command": ("%agent stop population", "remove 'population'"),
    "options without a provider": ("%agent models --base-url x.org", "name the provider"),
    "no run to show": ("%agent show nope", "'nope'"),
    "prompt on the line of an empty cell": ("%%agent Which city?", "next line"),
    "no tool at all": ("%%agent --tools population\nHello?", "Define one with @nbagent.tool"),
    "unknown setting": ("%agent config modle=x", "'model'"),
    "a key as a setting": ("%agent config api_key=abc", "LLM_API_KEY"),
}


@pytest.mark.parametrize("what", WRONG)
def test_error_of_a_person_is_one_line_and_nothing_is_sent(
    shell: MagicShell, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    cell, fragment = WRONG[what]
    error = shell.refused(cell)
    assert fragment in error.message
    (line,) = error_lines(capsys, error)
    assert line == str(error)
    assert line.startswith(f"{error.code}: ") or line.endswith(" (ENOENT)")
    assert "_run" not in shell.user_ns
    assert len(nbagent.runs()) == 0


def test_misspelt_tool_with_two_underscores_is_no_mcp_server(shell: MagicShell) -> None:
    shell.cell("import nbagent", "@nbagent.tool", "def my__tool() -> int:", "    return 1")
    for doors in ("%%agent --tools my__tol\nHi", "nbagent.Agent(tools=['my__tol']).run('Hi')"):
        message = shell.refused(doors).message
        assert "there is no tool 'my__tol'; did you mean 'my__tool'?" in message


def test_defect_is_one_line_that_says_so(
    shell: MagicShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(reports, "project_file_error", list[str]().pop)
        error = shell.refused("%agent config")
    assert error.code == "E_INTERNAL"
    assert "IndexError" in error.message
    assert error_lines(capsys, error) == [str(error)]


def test_interrupt_before_there_is_a_run_is_one_line_and_stays_an_interrupt(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.cell("def halt():", "    raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        shell.cell("%%agent", "{{ halt() }}")
    assert capsys.readouterr().out == "KeyboardInterrupt: interrupted; no run was started\n"
    assert len(nbagent.runs()) == 0


def test_stopped_run_counts_as_failed_and_resume_goes_on(shell: MagicShell) -> None:
    model = offline.script([offline.call("halt"), "Done."])
    shell.cell(
        "import time",
        "@nbagent.tool",
        "def halt() -> str:",
        "    _run.stop()",
        "    time.sleep(0.05)  # no stop of its own interrupts it",
        "    return 'stopped it'",
    )
    error = shell.refused(f"%%agent -m {model.model_id}", "Hello?")
    assert isinstance(error, EngineError)
    assert error.code == "ENGINE_ABORTED"
    assert shell.user_ns["_run"].turns[0].tool_runs[0].result.data == "stopped it"
    assert len(model.requests) == 1
    shell.cell("%agent resume")
    assert shell.user_ns["_run"].text == "Done."
    # No error: a notebook with this line must pass Run All.
    assert f"nothing to resume: run {shell.user_ns['_run'].id[:8]}" in shell.said("%agent resume")


# Going on


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


def test_a_record_says_which_cell_and_which_template_made_it(shell: MagicShell) -> None:
    model = nbagent.offline.script([nbagent.offline.error("LLM_TIMEOUT"), "Oslo."])
    shell.user_ns["city"] = "Oslo"
    count: int = shell.execution_count
    shell.refused(f"%%agent --model {model.model_id} --tools none", "Is it {{ city }}?")
    shell.cell("%agent resume")
    first, second = (nbagent.open_run(ref).record for ref in nbagent.runs()["run_id"])
    assert [run.execution_count for run in (first, second)] == [count, count + 1]
    assert {run.template for run in (first, second)} == {"Is it {{ city }}?"}
    assert {run.prompt for run in (first, second)} == {"Is it Oslo?"}
    assert len({*nbagent.runs()["template_sha"]}) == 1


# Answers of a type

CITY = """
from pydantic import BaseModel
class City(BaseModel):
    name: str
    population: int
"""


def test_output_names_a_class_of_the_notebook(shell: MagicShell) -> None:
    shell.cell(TOOLS)
    shell.cell(CITY)
    ask = "What is the population of Oslo and of Bergen?"
    run = shell.agent("-m offline:demo --tools population --output list[City] --quiet", ask)
    rows = run.frame().to_dict("records")
    assert rows == [
        {"name": "Oslo", "population": 717_710},
        {"name": "Bergen", "population": 291_940},
    ]
    city = shell.user_ns["City"]
    assert run.output == [city(**row) for row in rows]
    assert shell.agent("--output City --continue --quiet", ask).output == city(**rows[0])
    assert shell.agent("--continue --quiet", ask).output == city(**rows[0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--output Cty", "NameError: name 'Cty' is not defined"),
        ("--output list[Cty]", "name a class of this notebook"),
        ("--output 'open(1)'", "expected the name of a type"),
        ("--output shell_ns", "name a class of this notebook"),
    ],
)
def test_output_that_is_no_type_is_one_clear_line(shell: MagicShell, line: str, said: str) -> None:
    shell.cell(CITY)
    error = shell.refused(f"%%agent -m offline:demo {line}", "Hello?")
    assert said in str(error)
    assert "_run" not in shell.user_ns


def test_a_recording_and_an_image_of_a_run_are_parts_of_a_prompt(shell: MagicShell) -> None:
    model = offline.script([offline.image(png()), "Heard."])
    shell.cell(
        "from IPython.display import Audio",
        "sound = Audio(b'RIFF\\x24\\0\\0\\0WAVEfmt ' + bytes(40))",
        "far = Audio(url='https://example.org/a.mp3')",
    )
    shell.agent(f"--model {model.model_id} --tools none --into drawn", "Draw.")
    body = "{{ drawn.images[0] }} and {{ sound }} and {{ far }}"
    shell.agent(f"--model {model.model_id} --tools none", body)
    parts = model.requests[1].messages[-1].content
    assert [part.type for part in parts] == ["image", "text", "file", "text"]
    recording = parts[2]
    assert isinstance(recording, FilePart)
    assert (recording.name, recording.media_type) == ("recording", "audio/wav")
    assert "a recording without its data, not sent" in model.requests[1].messages[-1].text
