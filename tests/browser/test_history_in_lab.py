"""The table of runs in JupyterLab, at three sizes: no column lies over another one."""

from __future__ import annotations

import pytest
from jupyter_apps import Server, opened
from playwright.sync_api import Browser

RUNS = """
%load_ext nbagent
import nbagent
agent = nbagent.Agent(model="offline:demo", tools="none")
for n in range(3):
    agent.run("Which of Oslo and Bergen is the larger city? " * 5, name=f"a-run-of-a-long-name-{n}")
"""
_CUT_CELLS = """
() => [...document.querySelectorAll(".nba-history :is(th, td)")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length
"""


@pytest.mark.proof
def test_no_column_of_the_history_lies_over_another(chromium: Browser, server: Server) -> None:
    name = server.write("history", [RUNS, "%agent history"])
    for width in 700, 1300, 1600:
        with opened(chromium, server, name, size=(width, 900)) as notebook:
            notebook.run(0, 1)
            notebook.output(1).locator(".nba-history td").first.wait_for()
            assert notebook.page.evaluate(_CUT_CELLS) == 0
