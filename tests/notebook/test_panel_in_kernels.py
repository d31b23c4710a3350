"""The panel in a real kernel: while a cell runs, while it is idle, and with nobody there."""

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kernels import LiveKernel
from magic_shell import MagicShell

SETUP = """
%load_ext nbagent
import nbagent, time
from nbagent import offline
from nbagent.notebook.panel import panel_of_this_kernel

@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    print("looked up", city)
    return 717_710

@nbagent.tool
def nap(seconds: int) -> str:
    "Sleep for some seconds."
    for _ in range(seconds * 50):
        time.sleep(0.02)
    return "slept"
"""


class PanelKernel(LiveKernel):
    """A kernel with a panel, and a person at its box."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run(SETUP)
        self.cell = self.send("%agent panel", cell_id="panel-cell", stdin=True)
        self.shown = self.finish(self.cell)
        self.box: str = self.value("panel_of_this_kernel().widget.model_id")

    def ask(self, prompt: str) -> None:
        self.say(self.box, kind="send", id="m", prompt=prompt)

    def choose(self, model: str, first: str = "") -> None:
        """Begin a new conversation with a model, which a line may make first."""
        said = [{"kind": "field", "name": "model", "value": model}, {"kind": "new"}]
        self.run(f"{first}\nfor said in {said!r}: panel_of_this_kernel().on_message(said)")

    def says(self, word: str, value: object) -> Any:
        def says(message: dict[str, Any]) -> bool:
            return self._told(message).get(word) == value

        return says

    def _told(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if content.get("comm_id") != self.box or message["msg_type"] != "comm_msg":
            return {}
        return content["data"].get("state", {}).get("state", {})


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelKernel]:
    with closing(PanelKernel(tmp_path_factory.mktemp("panel"))) as made:
        yield made


def _is_print(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "stream"


def test_a_prompt_on_an_idle_kernel_runs_its_tools_in_the_main_thread(kernel: PanelKernel) -> None:
    kernel.ask("What is the population of Oslo?")
    messages = kernel.heard(kernel.says("working", ""))
    assert not any(_is_print(m) for m in messages), "what a tool prints stands in its card"
    assert kernel.value("_run.turns[0].tool_runs[0].printed") == "looked up Oslo\n"
    assert kernel.value("(_run.ok, _run.turns[0].tool_runs[0].ran_in, _run.record.cell_id)") == (
        True,
        "main thread",
        None,
    )
    assert kernel.value("list(nbagent.runs()['run_id']) == [_run.id]") is True


def test_a_tool_says_that_it_waits_for_a_cell(kernel: PanelKernel) -> None:
    kernel.choose(
        "offline:slow",
        "offline.script([offline.step(text='word ' * 20, calls=[offline.call('population', "
        "city='Rome')]), 'Done.'], name='slow', delay_ms=20)",
    )
    kernel.ask("Look it up")
    kernel.heard(lambda m: "'run'" in str(m["content"].get("data")))
    kernel.send("time.sleep(2.5)")
    words = "waits for the kernel: a cell is running"
    kernel.heard(lambda m: words in str(m["content"].get("data")))
    kernel.heard(kernel.says("working", ""))
    assert kernel.value("_run.text") == "Done."
    kernel.choose("")


def test_a_stop_withdraws_a_prompt_that_waits_for_a_cell(kernel: PanelKernel) -> None:
    before = kernel.value("len(nbagent.runs())")
    kernel.send("print('begun', flush=True); time.sleep(1.5)")
    kernel.heard(lambda m: m["content"].get("text") == "begun\n")
    kernel.ask("What is the population of Oslo?")
    kernel.say(kernel.box, kind="stop")
    refused = {"kind": "refused", "id": "m", "prompt": "What is the population of Oslo?"}
    kernel.heard(lambda m: m["content"].get("data", {}).get("content") == refused)
    assert kernel.value("len(nbagent.runs())") == before


def test_an_interrupt_stops_a_tool_on_the_idle_kernel_and_the_kernel_lives(
    kernel: PanelKernel,
) -> None:
    kernel.ask("Use nap with 20 seconds")
    kernel.heard(lambda m: "nap" in str(m["content"].get("data")))
    time.sleep(0.5)
    kernel.manager.interrupt_kernel()
    kernel.heard(kernel.says("working", ""), within_s=10)
    assert kernel.value("(_run.stop_reason, 6 * 7)") == ("stopped", 42)


def test_an_interrupted_cell_does_not_end_the_panels_next_run(kernel: PanelKernel) -> None:
    cell = kernel.send("%%agent --model offline:demo --tools nap\nUse nap with 30 seconds")
    time.sleep(1.0)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(cell).error is None
    assert kernel.reply_to(cell)["ename"] == "Stopped"
    kernel.ask("Say hello")
    kernel.heard(kernel.says("working", ""))
    assert kernel.value("_run.ok") is True


def test_the_second_call_shows_the_same_panel_and_without_a_person_a_display_says_so(
    kernel: PanelKernel,
) -> None:
    again = kernel.finish(kernel.send("nbagent.panel()", stdin=True))
    first, second = (
        shown.of("display_data")[0]["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
        for shown in (kernel.shown, again)
    )
    assert first == second
    assert again.kinds.count("comm_open") == 0
    nobody = kernel.run("nbagent.panel()")
    assert nobody.kinds == ["display_data"]
    (output,) = nobody.of("display_data")
    assert [*output["data"]] == ["text/html", "text/plain"]
    assert output["data"]["text/plain"].startswith("nbagent panel. This cell ran without a person")


def test_a_terminal_is_told_what_to_write_instead(shell: MagicShell) -> None:
    for line in ("nbagent.panel()", "%agent panel"):
        assert "in a terminal %%agent" in str(shell.refused(line))
