"""The lines of %%agent and %agent: how they are read, what is refused, and the help."""

from __future__ import annotations

import re
from typing import Any

import pytest
from magic_shell import TOOLS, MagicShell, tab

from nbagent import offline
from nbagent.contracts.errors import NbagentError
from nbagent.notebook.help import TOPICS

SYSTEM: dict[str, str] = {
    '--system ""': "",
    "--system=-x": "-x",
    r"--system 'C:\notes'": "C:\\notes",
    r'--system "say \"hi\" \\ now"': 'say "hi" \\ now',
    r"--system a\ b": "a b",
    "--system\u00a0brief\u2003--raw": "brief",
    "--system 'don\u2019t say \u201cno\u201d'": "don\u2019t say \u201cno\u201d",
    "--system 'a --raw b' --raw": "a --raw b",
    "--raw \\\n  --system brief": "brief",
}


@pytest.mark.parametrize("line", SYSTEM)
def test_value_of_a_line_is_read_as_a_shell_would(shell: MagicShell, line: str) -> None:
    model = offline.script(["Hello."])
    run = shell.agent(f"-m {model.model_id} -t none {line}", "Which\ncity?\\")
    assert model.requests[0].system_prompt == SYSTEM[line]
    assert run.record.prompt == "Which\ncity?\\"


KEPT: dict[str, dict[str, Any]] = {
    "": {},
    "-t 'population area'": {"tools": ["population", "area"]},
    "-t area,area": {"tools": ["area"]},
    "--stop-seq END --stop-seq '---'": {"stop_sequences": ["END", "---"]},
    "--tag a --raw --tag b": {"tags": ["a", "b"], "raw": True},
    "--reasoning off": {"reasoning": "none"},
    "--max-cost 0.5 --max-total-tokens 900": {"max_cost_usd": 0.5, "max_total_tokens": 900},
    "--autopilot --var a=1": {"autopilot": True, "variables": ["a=1"]},
    "--autopilot off": {"autopilot": False},
}


@pytest.mark.parametrize("line", KEPT, ids=lambda line: line or "(empty)")
def test_options_of_a_line_are_kept_with_the_run(shell: MagicShell, line: str) -> None:
    shell.cell(TOOLS)
    model = offline.script(["Hello."])
    run = shell.agent(f"-m {model.model_id} {line}")
    kept = {**run.record.options, "tags": list(run.record.tags), "raw": "--raw" in line}
    assert {name: kept.get(name) for name in KEPT[line]} == KEPT[line]
    assert kept.keys() - KEPT[line].keys() <= {"model", "tags", "raw"}


REFUSED: dict[str, tuple[str, ...]] = {
    "--modle x": ("'--modle'", "'--model'"),
    "-x": ("unknown option '-x'. All of them: %agent help all",),
    "--max-requests 3": ("'--max-requests' is a setting", "%agent config max_requests="),
    "--model a --model b": ("--model", "twice"),
    "--model --quiet": ("--model needs a value", "--model=--quiet"),
    "--model ''": ("--model=''", "provider:model"),
    "--raw=yes": ("--raw", "'yes'", "no value"),
    "--temperature 2.1": ("--temperature", "'2.1'", "from 0 to 2"),
    "--timeout 30s": ("--timeout", "'30s'", "seconds"),
    "--into my-run": ("--into", "'my-run'", "variable"),
    "--to file": ("--to", "'file'", "'cell'"),
    "--fork last": ("--fork", "'last'", "last:C03"),
    "--fork last:C01 --continue": ("--continue and --fork", "keep one"),
    "--tools ,": ("--tools", "','", "a,b"),
    "--tools a,none": ("--tools", "'none'", "alone"),
    "--tools a b": ("unexpected word 'b'", "--tools 'a, b'"),
    "Which city isn't larger?": ("unexpected word 'Which'", "next lines"),
    "\u2014model x": ("'\u2014model'", "typographic", "--"),
    "--system 'Be brief": ("open quote '", "close it"),
    "--system don't": ("open quote", "apostrophe"),
    r"--system C:\notes": ("backslash", "single quotes", r"C:\\notes"),
    "--system \u201cBe brief.\u201d": ("\u201c", "typographic"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_line_is_refused_with_a_message_that_helps(shell: MagicShell, line: str) -> None:
    message = shell.refused(f"%%agent {line}", "Hello?").message
    assert [words for words in REFUSED[line] if words not in message] == [], message


KEYS = [
    *("--api-key sk-SECRET", "--api-key=sk-SECRET", "--key sk-SECRET", "api_key=sk-SECRET"),
    *("--model x --api-key 'sk-SECRET", "-m x api_key=sk-SECRET", "--openai-api-key sk-SECRET"),
    *("--api-key \u201csk-SECRET", "--token sk-SECRET", "key='sk-SECRET"),
]


@pytest.mark.parametrize("line", KEYS)
def test_a_key_on_a_line_is_refused_and_not_shown(shell: MagicShell, line: str) -> None:
    for magic in ("%agent", "%%agent", "%agent resume", "%agent config", "%agent forget"):
        message = shell.refused(f"{magic} {line}", *["Hello?"] * magic.startswith("%%")).message
        assert "SECRET" not in message
        assert "key_variable=NAME (--key-variable NAME)" in message
    message = shell.refused("%%agent --key-variable sk-SECRET", "Hello?").message
    assert "not the name of an environment variable" in message
    assert "SECRET" not in message


WRONG_WORDS: dict[str, tuple[str, ...]] = {
    "tool": ("'tool'", "'tools'"),
    "modles openai": ("'modles'", "'models'"),
    "resmue last --max-turns 4": ("'resmue'", "'resume'"),
    "why not": ("no command 'why'", "%%agent"),
    "--model x": ("'--model'", "%%agent"),
    "resume last --session x": ("does not take --session", "--max-turns"),
    "resume last --max-turns 4 more": ("unexpected word 'more'",),
    "resume last --var x": ("--var='x' is not valid", "NAME=VALUE"),
    "show last --raw": ("show does not take --raw", "no options"),
    "stop population": ("--after-turn", "remove 'population'"),
    "panel now": ("takes [right]", "'now'"),
    "compare last": ("needs RUN RUN", "compare first last"),
    "fork last": ("C03",),
    "retry": ("needs RUN", "retry last 3"),
    "retry last x": ("from 1 to 50", "'x'"),
    "retry last 51": ("from 1 to 50", "'51'"),
    "export last": ("needs RUN FORMAT", "last html"),
    "export last pdf": ("'pdf' is unknown", "html"),
    "export last md nothere/run.md": ("cannot be written",),
    "help modle": ("'modle'", "'models'"),
}


@pytest.mark.parametrize("line", WRONG_WORDS)
def test_wrong_word_of_a_command_is_named(shell: MagicShell, line: str) -> None:
    shell.agent("-m offline:demo --quiet")
    message = shell.refused(f"%agent {line}").message
    assert [words for words in WRONG_WORDS[line] if words not in message] == [], message


ASKED = {
    "%agent Which of them is larger?": "Which of them is larger?",
    "%agent What's \"larger\" of 'these?": "What's \"larger\" of 'these?",
    "x = 1\nfor n in range(2):\n    %agent Is {{ n }} (not x) larger?": "Is 1 (not x) larger?",
    "%agent Which of them \\\n  is larger?": "Which of them    is larger?",
    "%agent Is this (one?\ny = (2)": "Is this (one?",
    "%agent tell me a story": "tell me a story",
    "%agent 哪个城市更大？": "哪个城市更大？",
    "%agent 哪个更大?": "哪个更大?",
    "%agent Compare Oslo and Bergen.": "Compare Oslo and Bergen.",
    "%agent Stop?!": None,
    '"""\n%agent Is this one?\n"""': None,
}


@pytest.mark.parametrize("cell", ASKED)
def test_line_that_is_a_sentence_asks_the_model(shell: MagicShell, cell: str) -> None:
    model = offline.script(["Bergen."] * 2)
    shell.cell(f"%agent config model={model.model_id}")
    if ASKED[cell] is not None:
        shell.cell(cell)
        assert shell.user_ns["_run"].record.prompt == ASKED[cell]
    elif cell.startswith("%"):
        assert "'stop'" in shell.refused(cell).message
    else:
        assert "Is this one?" in shell.cell(cell)
        assert not model.requests


def test_question_mark_asks_the_model_and_never_about_a_name(shell: MagicShell) -> None:
    shell.cell("larger = 1")
    assert shell.check_complete("%agent Which is larger?")[0] == "complete"
    shell.agent("-m offline:demo --quiet --name 'what?'")
    assert "\u00b7 what? \u00b7" in shell.said("%agent show what?")
    assert "show a run again" in shell.said("%agent show?")
    assert "Docstring" in shell.said("%agent?")


# The help: all options and commands are in it, its examples can be typed, each way shows it.


def test_help_shows_every_option_and_command(shell: MagicShell) -> None:
    text = shell.said("%agent help all")
    assert max(map(len, text.splitlines())) <= 100
    pages = [shell.said(f"%agent help {topic}".rstrip()) for topic in ("", *TOPICS)]
    for flag in [cell.split()[-1] for cell in tab(shell, "%%agent --|")]:
        assert re.search(rf"(^|[ ,]){flag}\b", text)
        assert any(re.search(rf"(^|[ ,]){flag}\b", page) for page in pages)
        assert flag in shell.said(f"%agent help {flag}")
        assert flag == "--help" or flag in shell.said(f"%agent help {flag.removeprefix('--')}")
    for command in [cell.split()[-1] for cell in tab(shell, "%agent |")]:
        assert f"\n  {command}" in text
        assert shell.said(f"%agent help {command}").startswith(f"%agent {command}")
        assert any(f"\n  {command}" in page for page in pages)
        taken = [cell.split()[-1] for cell in tab(shell, f"%agent {command} x --|")]
        own = shell.said(f"%agent help {command}")
        assert [flag for flag in taken if flag not in own] == []


def test_help_without_a_topic_shows_what_everybody_needs(shell: MagicShell) -> None:
    text = shell.said("%agent help")
    options, _, commands = text.partition("%agent COMMAND")
    commands = commands.partition("\nExamples")[0]
    assert len(re.findall(r"^  -", options, re.M)) == 10
    assert re.findall(r"^  ([a-z]+)", commands, re.M) == [
        *("tools", "models", "show", "resume", "stop", "config", "trust", "doctor"),
        "help",
    ]
    assert "%agent help TOPIC" in text
    assert all(topic in text.partition("TOPIC")[2] for topic in (*TOPICS, "all"))


def test_example_of_the_help_can_be_typed(shell: MagicShell) -> None:
    shell.cell(TOOLS, "cities = ['Oslo']")
    shell.agent("-m offline:demo --quiet --name first")
    commands = [cell.split()[-1] for cell in tab(shell, "%agent |")]
    texts = [shell.said(f"%agent help {command}") for command in ("", "all", *commands)]
    lines = [line.strip() for text in texts for line in text.partition("Examples")[2].splitlines()]
    examples = dict.fromkeys(line for line in lines if re.match("%%?agent [^-]* ", line))
    assert len(examples) > 12
    for example in examples:
        if re.match("%agent (pull|models|history|compare)", example):
            continue
        said = ""
        try:
            shell.said(example, *["Hello?"] * example.startswith("%%"))
        except NbagentError as error:
            said = str(error)
        reading = r"unexpected|unknown|does not (fit|take)|no command|needs a value"
        assert not re.search(reading, said), example


def test_every_way_to_the_help_shows_the_same(shell: MagicShell) -> None:
    text = shell.said("%agent help")
    ways = ["%%agent?", "%agent?", "%%agent --help", "%%agent -h\nHello?", "%agent", "%agent -h"]
    for cell in [*ways, "%agent --help", "%agent resume -h"]:
        assert (text if "resume" not in cell else "%agent resume") in shell.said(cell), cell


def test_terminal_still_waits_for_the_prompt_of_a_cell(shell: MagicShell) -> None:
    assert shell.check_complete("%%agent --model offline:demo") == ("incomplete", "")
    assert shell.check_complete("%%agent\nHello?\n\n")[0] == "complete"
