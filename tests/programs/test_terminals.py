"""Consoles: a person types, sees each call while it runs, answers, stops, and reads the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from environments import MakeEnvironment
from front_ends import shows
from terminal_programs import Euporie, QtWindow, Terminal, agent_cell

Start = Callable[[str], Terminal]
ANSWERED = r"Answered · .*2 turns"


def in_terminal(*command: str, term: str = "dumb") -> Callable[[MakeEnvironment], Terminal]:
    return lambda make: Terminal(make("ipykernel", command[0]), *command, TERM=term)


def euporie(make: MakeEnvironment) -> Terminal:
    """Its requirements contradict those of IPython 9."""
    made = make("euporie>=2.8", checkout=False)
    made.use_kernel_of(make("ipykernel", "ipython"))
    return Euporie(made, "euporie-console", TERM="xterm-256color")


PROGRAMS: dict[str, Callable[[MakeEnvironment], Terminal]] = {
    "IPython in a terminal": in_terminal("ipython", "--simple-prompt"),
    "jupyter console": in_terminal("jupyter-console", "--simple-prompt"),
    "qtconsole": lambda make: QtWindow(make("ipykernel", "qtconsole", "PyQt6")),
}
DRAWS = {"euporie console": euporie}
"""It draws the HTML of the end, with its prompt below."""


@pytest.fixture
def start(environment: MakeEnvironment) -> Iterator[Start]:
    """Starts a program, with the extension and the tools of `area_tools` loaded."""
    with ExitStack() as stack:

        def start_one(program: str) -> Terminal:
            terminal = (PROGRAMS | DRAWS)[program](environment)
            stack.callback(terminal.close)
            with terminal.cell("import nbagent; from area_tools import area, nap"):
                pass
            with terminal.cell("get_ipython().run_line_magic('load_ext', 'nbagent')"):
                pass
            return terminal

        yield start_one


@pytest.mark.proof
@shows("IPython in a terminal", "live", "stop", "approve")
@shows("jupyter console", "live", "stop", "approve")
@shows("qtconsole", "live", "stop", "approve")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_console_shows_the_calls_the_answer_a_stop_and_a_question(
    start: Start, program: str
) -> None:
    terminal = start(program)
    with terminal.cell(agent_cell("--tools area", "Which area has Oslo?")):
        terminal.wait_for(ANSWERED)
    assert 'area(city="Oslo") → 454.1' in terminal.text
    with terminal.cell("print('runs:', len(nbagent.runs()), _run.ok)"):
        terminal.wait_for("runs: 1 True")
    assert len(re.findall(ANSWERED, terminal.text)) == 1

    with terminal.cell(agent_cell("--tools nap", "Nap in Oslo.")):
        terminal.wait_for(r"▸ nap\(")
        terminal.wake()
        terminal.wait_for("was woken")
        terminal.wait_for(ANSWERED)

    with terminal.cell(agent_cell("--tools nap", "Nap in Bergen.")):
        terminal.wait_for(r"▸ nap\(")
        terminal.interrupt()
        terminal.wait_for("Stopped")

    with terminal.cell(agent_cell("--tools area --ask area", "Which area has Oslo?")):
        terminal.wait_for(r"Allow\?")
        terminal.answer("y")
        terminal.wait_for(ANSWERED)


@pytest.mark.proof
@shows("euporie console", "live", "stop", "approve")
def test_euporie_draws_the_answer_and_goes_on_after_it(start: Start) -> None:
    terminal = start("euporie console")
    for _ in range(2):  # the second time it is known that it has no widgets
        with terminal.cell(agent_cell("--tools area", "Which area has Oslo?")):
            terminal.wait_for("Answered")
            terminal.wait_for("Oslo: 454.1")
    with terminal.cell("print('runs:', len(nbagent.runs()), _run.ok)"):
        terminal.wait_for("runs: 2 True")

    with terminal.cell(agent_cell("--tools nap", "Nap in Oslo.")):
        terminal.wait_for(r"▸ nap\(")
        terminal.wake()
        terminal.wait_for("Oslo: was woken")

    with terminal.cell(agent_cell("--tools area --ask area", "Which area has Oslo?")):
        terminal.wait_for(r"Allow\?")
        terminal.answer("y")
        terminal.wait_for("Oslo: 454.1")

    terminal.run(agent_cell("--tools nap", "Nap in Bergen."))
    terminal.wait_for(r"▸ nap\(")
    terminal.interrupt()
    terminal.wait_for("Stopped")
