"""The lines of %%agent and %agent: what they mean, what is refused, and the help."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from magic_shell import MagicShell

from nbagent.contracts.errors import UsageError
from nbagent.notebook.help_text import help_text
from nbagent.notebook.option_table import COMMANDS, OPTIONS, Line
from nbagent.notebook.options import continued, parse, run_and_options, split_command, split_words
from nbagent.settings import checked_value

READ: dict[str, dict[str, Any]] = {
    "": {},
    "-m offline:demo": {"model": "offline:demo"},
    '--system ""': {"system": ""},
    "--system=-x": {"system": "-x"},
    r"--system 'C:\notes'": {"system": "C:\\notes"},
    "-t 'a b, fs.read'": {"tools": ("a", "b", "fs.read")},
    "-t a,a": {"tools": ("a",)},
    "--stop-seq END --stop-seq '---'": {"stop_sequences": ("END", "---")},
    "-c": {"continue_run": "last"},
    "--continue=first": {"continue_run": "first"},
    "--continue --raw": {"continue_run": "last", "raw": True},
    "--tag a --raw --tag b": {"tags": ("a", "b"), "raw": True},
    "-h": {"help": True},
    "--reasoning off": {"reasoning": "none"},
    "--max-cost 0.5 --max-total-tokens 900": {"max_cost_usd": 0.5, "max_total_tokens": 900},
    "--cache replay --cassette a.jsonl": {"cache": "replay", "cassette": "a.jsonl"},
    r'--system "say \"hi\" \\ now"': {"system": 'say "hi" \\ now'},
    r"--system a\ b": {"system": "a b"},
    "--model\u00a0offline:demo\u2003--raw": {"model": "offline:demo", "raw": True},
    "--system 'don\u2019t say \u201cno\u201d'": {"system": "don\u2019t say \u201cno\u201d"},
}


@pytest.mark.parametrize("line", READ, ids=lambda line: line or "(empty)")
def test_line_is_read(line: str) -> None:
    assert parse(line) == Line(**READ[line])


REFUSED: dict[str, tuple[str, ...]] = {
    "--modle x": ("--modle", "--model"),
    "-x": ("'-x'", "nearest"),
    "--model a --model b": ("--model", "twice"),
    "--model --quiet": ("--model", "needs a value", "--model=--quiet"),
    "--raw=yes": ("--raw", "'yes'", "no value"),
    "--temperature 2.1": ("--temperature", "'2.1'", "from 0 to 2"),
    "--timeout 30s": ("--timeout", "'30s'", "seconds"),
    "--into my-run": ("--into", "'my-run'", "variable"),
    "--tools ,": ("--tools", "','", "a,b"),
    "--tools a,none": ("--tools", "'none'", "alone"),
    "--tools a b": ("'b'", "--tools a,b"),
    "Which city is larger?": ("'Which'", "write the prompt on the next line"),
    "—model x": ("'—model'", "typographic dash"),
    "--system 'Be brief": ("quote '", "not closed"),
    "--system don't": ("not closed", "apostrophe"),
    r"--system C:\notes": ("backslash", "'n'", r"'C:\notes'"),
    "--system \u201cBe brief.\u201d": ("\u201c", "typographic quote"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_line_is_refused_with_a_message_that_helps(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    for fragment in REFUSED[line]:
        assert fragment in caught.value.message


KEYS = [
    *("--api-key sk-SECRET", "--api-key=sk-SECRET", "--key sk-SECRET", "api_key=sk-SECRET"),
    *("--model x --api-key 'sk-SECRET", "-m x api_key=sk-SECRET", "--openai-api-key sk-SECRET"),
    *("--api-key \u201csk-SECRET", "--token sk-SECRET", "key='sk-SECRET"),
]


@pytest.mark.parametrize("line", KEYS)
def test_a_key_on_a_line_is_refused_and_not_shown(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_command(line)
    assert "SECRET" not in caught.value.message
    for read in (parse, split_words, partial(run_and_options, "resume")):
        with pytest.raises(
            UsageError, match=r"key_variable=NAME \(--key-variable NAME\)"
        ) as caught:
            read(line)
        assert "SECRET" not in caught.value.message
    with pytest.raises(UsageError, match="no name of an environment variable") as caught:
        parse("--key-variable sk-SECRET")
    assert "SECRET" not in caught.value.message


def test_line_that_ends_in_a_backslash_goes_on_in_the_next() -> None:
    line, prompt = continued("--model a \\", "  --raw \\\n--quiet\nWhich\ncity?\\\n")
    assert (parse(line), prompt) == (Line(model="a", raw=True, quiet=True), "Which\ncity?\\\n")
    assert continued("--raw", "Which\\\ncity?") == ("--raw", "Which\\\ncity?")


WRONG_WORDS: dict[str, tuple[str, ...]] = {
    "tool": ("'tool'", "'tools'"),
    "Which city is larger?": ("'Which'", "%%agent"),
    "--model x": ("'--model'", "%%agent"),
    "resume last --session x": ("does not take --session", "--max-turns"),
    "resume last --max-turns 4 more": ("unexpected word 'more'",),
    "show last --raw": ("%agent show takes no options", "--raw"),
}


@pytest.mark.parametrize("line", WRONG_WORDS)
def test_wrong_word_of_a_command_is_named(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_and_options(*split_command(line))
    for fragment in WRONG_WORDS[line]:
        assert fragment in caught.value.message


# The help: all options and commands are in it, its examples can be typed, each way shows it.


def test_help_shows_every_option_and_command_and_how_to_write_braces() -> None:
    text = help_text()
    for option in OPTIONS:
        assert ", ".join(option.flags) in text
        assert option.help in text
        for flag in option.flags:
            assert option.help in help_text(flag)
            bare = flag.lstrip("-") if len(flag) > 2 and flag != "--help" else flag
            assert option.help in help_text(bare)
    for command in COMMANDS:
        assert f"\n  {command.name} " in text
        assert command.help in text
        own = help_text(command.name)
        assert own.startswith(f"%agent {command.name}")
        assert command.help in " ".join(own.split())
        flags = [option.flags[-1] for option in OPTIONS if option.name in command.options]
        assert [flag for flag in flags if flag not in own] == []
        assert max(len(line) for line in own.splitlines()) <= 100
    assert "{{ '{{' }}" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    with pytest.raises(UsageError, match="'modle'; the nearest is 'models'"):
        help_text("modle")


def examples() -> list[str]:
    """Every line of every help that a person could copy into a cell."""
    texts = [help_text(), *(help_text(command.name) for command in COMMANDS)]
    # `%agent help tools` also has the option of that name, below the command's examples.
    below = [text.partition("Examples\n")[2].partition("\n%%agent -")[0] for text in texts]
    lines = [text.splitlines() for text in below]
    found = [line.strip() for some in lines for line in some]
    return list(dict.fromkeys(line for line in found if line.startswith("%")))


@pytest.mark.parametrize("example", examples())
def test_example_of_the_help_can_be_typed(example: str) -> None:
    magic, _, rest = example.partition(" ")
    if magic == "%%agent":
        assert parse(rest) != parse("")
        return
    name, rest = split_command(rest)
    if name == "config":
        for word in split_words(rest):
            setting, _, value = word.partition("=")
            checked_value(setting, value)
    elif name in ("show", "resume", "models"):
        run_and_options(name, rest)
    else:
        assert help_text(name).startswith(f"%agent {name}")


WAYS = [
    *("%%agent?", "%agent?", "%%agent --help", "%%agent -h\nHello?", "%agent help"),
    *("%agent", "%agent -h", "%agent --help"),
]


def test_every_way_to_the_help_shows_all_of_it(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in WAYS:
        shell.cell(cell)
        captured = capsys.readouterr()
        assert help_text() in captured.out, cell
        assert captured.err == ""


def test_terminal_still_waits_for_the_prompt_of_a_cell(shell: MagicShell) -> None:
    assert shell.check_complete("%%agent --model offline:demo") == ("incomplete", "")
    assert shell.check_complete("%%agent\nHello?\n\n")[0] == "complete"
