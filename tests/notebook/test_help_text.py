"""The help: all options and commands are in it, its examples can be typed, each way shows it."""

from __future__ import annotations

import pytest
from magic_shell import MagicShell

from nbagent.contracts.errors import UsageError
from nbagent.notebook.help_text import help_text
from nbagent.notebook.option_table import COMMANDS, OPTIONS
from nbagent.notebook.options import parse, run_and_options, split_command, split_words
from nbagent.settings import checked_value


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
