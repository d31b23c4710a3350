"""The lines of %%agent and %agent: what they mean, and what is said when they mean nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from nbagent.contracts.errors import UsageError
from nbagent.notebook.options import (
    COMMANDS,
    OPTIONS,
    MagicOptions,
    help_text,
    parse,
    split_command,
)

READ: dict[str, dict[str, Any]] = {
    "": {},
    "   ": {},
    "-m offline:demo": {"model": "offline:demo"},
    "--model=ollama:qwen3:8b": {"model": "ollama:qwen3:8b"},
    "-m=offline:demo": {"model": "offline:demo"},
    "--base-url http://localhost:8000/v1?x=1": {"base_url": "http://localhost:8000/v1?x=1"},
    "--base-url=http://h/v1?x=1": {"base_url": "http://h/v1?x=1"},
    "--system 'Be brief.'": {"system": "Be brief."},
    '--system ""': {"system": ""},
    '--system "-Be brief"': {"system": "-Be brief"},
    "--system=-x": {"system": "-x"},
    r"--system 'C:\notes'": {"system": "C:\\notes"},
    "--tools a,b": {"tools": ("a", "b")},
    "-t 'a b, fs.read'": {"tools": ("a", "b", "fs.read")},
    "-t a,a": {"tools": ("a",)},
    "--tools none": {"tools": "none"},
    "--tools all": {"tools": "all"},
    "--tool-choice required": {"tool_choice": "required"},
    "--max-turns 3": {"max_turns": 3},
    "--temperature 0": {"temperature": 0.0},
    "--temperature 2": {"temperature": 2.0},
    "--top-p .9": {"top_p": 0.9},
    "--max-tokens 1": {"max_tokens": 1},
    "--stop-seq END --stop-seq '---'": {"stop_sequences": ("END", "---")},
    "--timeout 1.5": {"timeout_s": 1.5},
    "--session s1": {"session": "s1"},
    "-c": {"continue_run": "last"},
    "--continue": {"continue_run": "last"},
    "--continue first": {"continue_run": "first"},
    "--continue=first": {"continue_run": "first"},
    "--continue --raw": {"continue_run": "last", "raw": True},
    "-c --model offline:demo": {"continue_run": "last", "model": "offline:demo"},
    "--into first": {"into": "first"},
    "--into größe": {"into": "größe"},
    "--name 'my run'": {"name": "my run"},
    "--tag a --raw --tag b": {"tags": ("a", "b"), "raw": True},
    "--no-stream --quiet": {"no_stream": True, "quiet": True},
    "--help": {"help": True},
    "-h": {"help": True},
    "--name '#1 {x} $y'": {"name": "#1 {x} $y"},
}


@pytest.mark.parametrize("line", READ, ids=lambda line: line or "(empty)")
def test_line_is_read(line: str) -> None:
    assert parse(line) == MagicOptions(**READ[line])


REFUSED: dict[str, tuple[str, ...]] = {
    "--modle x": ("--modle", "--model"),
    "--max_turns 3": ("--max_turns", "--max-turns"),
    "--mod x": ("--mod", "--model"),
    "--contin": ("--contin", "--continue"),
    "-x": ("'-x'", "nearest"),
    "-mopenai:x": ("-m openai:x",),
    "--model a --model b": ("--model", "twice"),
    "--model a -m b": ("-m", "twice"),
    "--raw --raw": ("--raw", "twice"),
    "-c a -c b": ("-c", "twice"),
    "--model": ("--model", "needs a value", "PROVIDER:MODEL"),
    "--model --quiet": ("--model", "needs a value", "--model=--quiet"),
    "--model=": ("--model", "''"),
    "--into=": ("--into", "''", "NAME"),
    "--max-turns 0": ("--max-turns", "'0'", "1 or more"),
    "--max-turns -1": ("--max-turns", "'-1'", "1 or more"),
    "--max-turns 2.0": ("--max-turns", "'2.0'", "whole number"),
    "--max-turns many": ("--max-turns", "'many'", "whole number"),
    "--max-tokens 0": ("--max-tokens", "'0'"),
    "--temperature 2.1": ("--temperature", "'2.1'", "from 0 to 2"),
    "--temperature -0.1": ("--temperature", "'-0.1'", "from 0 to 2"),
    "--temperature nan": ("--temperature", "'nan'", "a number"),
    "--temperature warm": ("--temperature", "'warm'", "a number"),
    "--top-p 1.5": ("--top-p", "'1.5'", "from 0 to 1"),
    "--timeout 0": ("--timeout", "'0'", "seconds"),
    "--timeout 30s": ("--timeout", "'30s'", "seconds"),
    "--timeout inf": ("--timeout", "'inf'", "seconds"),
    "--into my-run": ("--into", "'my-run'", "variable"),
    "--into class": ("--into", "'class'", "variable"),
    "--raw=yes": ("--raw", "'yes'", "no value"),
    "--tools ,": ("--tools", "','", "a,b"),
    "--tools a,none": ("--tools", "'none'", "alone"),
    "--tools a b": ("'b'", "--tools a,b"),
    "--tools a, b": ("'b'", "--tools a,b"),
    "Which city is larger?": ("'Which'", "write the prompt on the next line"),
    "--model x Which city?": ("'Which'", "write the prompt on the next line"),
    "--tools a --quiet b": ("'b'", "write the prompt on the next line"),
    "--raw x": ("'x'", "write the prompt on the next line"),
    "—model x": ("'—model'", "typographic dash"),
    "--system 'Be brief": ("quote '", "not closed"),
    '--system "Be brief': ('quote "', "not closed"),
    "--system don't": ("not closed", "apostrophe"),
    "--system x\\": ("backslash",),
}


@pytest.mark.parametrize("line", REFUSED)
def test_line_is_refused_with_a_message_that_helps(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    for fragment in REFUSED[line]:
        assert fragment in caught.value.message


def test_every_option_fills_its_own_field() -> None:
    assert sorted(option.dest for option in OPTIONS) == sorted(f.name for f in fields(MagicOptions))
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_help_shows_every_option_and_command_and_how_to_write_braces() -> None:
    text = help_text()
    for option in OPTIONS:
        assert ", ".join(option.flags) in text
        assert option.help in text
    for command in COMMANDS:
        assert command.help in text
    assert "{{ '{{' }}" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_examples_of_the_help_are_read() -> None:
    lines = [line.strip() for line in help_text().splitlines()]
    options = [
        parse(line.removeprefix("%%agent")) for line in lines if line.startswith("%%agent -")
    ]
    assert len(options) >= 3
    commands = [
        split_command(line.removeprefix("%agent"))
        for line in lines
        if line.startswith("%agent ") and "COMMAND" not in line
    ]
    assert ("show", "last") in commands


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_each_command_is_known(command: str) -> None:
    assert split_command(f"  {command}   the rest as typed ") == (command, "the rest as typed")
    assert split_command(command) == (command, "")


@pytest.mark.parametrize("line", ["", "  ", "-h", "--help"], ids=repr)
def test_no_command_means_help(line: str) -> None:
    assert split_command(line) == ("help", "")


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("tool", ("'tool'", "'tools'")),
        ("Doctor", ("'Doctor'", "'doctor'")),
        ("resum last", ("'resum'", "'resume'")),
        ("Which city is larger?", ("'Which'", "%%agent")),
        ("--model x", ("'--model'", "%%agent")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_command_names_the_nearest(line: str, fragments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        split_command(line)
    for fragment in fragments:
        assert fragment in caught.value.message
