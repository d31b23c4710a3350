"""A person is asked in a real kernel: by `input()` without a view, by messages with one."""

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kernels import Cell, LiveKernel, clean_environment

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

@nbagent.tool
def keep(text: str) -> str:
    "Keep a text."
    return f"kept {text}"

for n in range(8):
    offline.script(
        [offline.step(text="I keep it.", calls=[offline.call("keep", text="a\\u202eb")]), "Done."],
        name=f"keeper{n}",
    )
nbagent.configure(ask="keep")
"""
LAST = "(lambda r: (r.result.data or r.result.error.message, r.approval, r.approved_by, r.args))"


class Asking(LiveKernel):
    """A kernel with a tool that asks, and a person who types."""

    n = 0

    def begin(self, options: str, *, stdin: bool = True) -> str:
        """Run an agent that wants to keep a text; returns the id of the cell's request."""
        self.n += 1
        model = f"offline:keeper{self.n - 1}"
        return self.send(f"%%agent --model {model} --tools keep {options}\nKeep it.", stdin=stdin)

    def type(self, *lines: str) -> list[str]:
        """Answer what is asked by `input()`; gives the prompts."""
        prompts: list[str] = []
        for line in lines:
            message: Any = self.client.get_stdin_msg(timeout=20)
            prompts.append(message["content"]["prompt"])
            self.client.input(line)
        return prompts

    def last_call(self) -> Any:
        """Result, approval, who decided, and the arguments that were used."""
        return self.value(f"{LAST}(_run.turns[0].tool_runs[0])")

    def hear(self, wanted: Callable[[Any], Any]) -> Any:
        """The first thing found in the messages on iopub."""
        return wanted(self.heard(lambda message: wanted(message) is not None)[-1])


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """One kernel for this module."""
    made = Asking(tmp_path_factory.mktemp("asking"))
    made.run(SETUP)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (["y"], ("kept a\u202eb", "allowed", "person", {"text": "a\u202eb"})),
        (["n", "not that"], ("not that", "denied", "person", {"text": "a\u202eb"})),
        (
            ["maybe", "e", '{"text": "c"}'],
            ("kept c", "edited", "person", {"text": "c"}),
        ),
    ],
    ids=["allowed", "denied", "edited"],
)
def test_without_a_view_it_is_asked_by_input(
    kernel: Asking, lines: Sequence[str], last: object
) -> None:
    cell = kernel.begin("--raw")
    prompts = kernel.type(*lines)
    shown = kernel.finish(cell)
    assert prompts[0] == "Allow? [y]es once, for the [s]ession, [e]dit, [n]o: "
    assert "? keep" in shown.printed
    assert "a⟦U+202E⟧b" in shown.printed
    assert shown.printed.endswith("Done.\n")
    assert kernel.last_call() == last
    assert kernel.value("_run.turns[0].tool_runs[0].waited_ms > 0")


def test_an_interrupt_of_the_question_is_a_stop(kernel: Asking) -> None:
    cell = kernel.begin("--raw")
    kernel.client.get_stdin_msg(timeout=20)
    kernel.manager.interrupt_kernel()
    shown = kernel.finish(cell)
    assert shown.error is not None
    assert "ENGINE_ABORTED" in shown.error["evalue"]
    assert kernel.value("_run.stop_reason") == "stopped"


def test_where_nobody_types_the_call_is_denied(kernel: Asking) -> None:
    shown = kernel.finish(kernel.begin("", stdin=False))
    assert shown.error is None
    message, approval, by, _ = kernel.last_call()
    assert (approval, by) == ("denied", "nobody")
    assert "nobody is here" in message
    assert "denied: nobody was there" in shown.of("display_data")[0]["data"]["text/plain"]


def test_a_view_without_a_front_end_gives_way_to_input(kernel: Asking) -> None:
    cell = kernel.begin("")
    kernel.type("y")
    kernel.finish(cell)
    assert kernel.last_call()[1:3] == ("allowed", "person")


def test_a_view_answers_by_messages_while_the_cell_runs(kernel: Asking) -> None:
    cell = kernel.begin("")
    model: str = kernel.hear(_model_id)
    kernel.say(model, kind="ready", running=True)
    question = kernel.hear(_question)
    said: dict[str, Any] = {
        "kind": "answer",
        "call": question["key"],
        "nth": question["question"]["nth"],
    }
    odds: list[dict[str, Any]] = [{}, {"choice": 1}, {"choice": "once", "nth": 99}]
    for odd in (*odds, {"choice": "once", "call": None}):
        kernel.say(model, **{**said, **odd})
    kernel.say(model, **said, choice="once", arguments="{oops")
    assert "this is not JSON" in kernel.hear(_unclear)
    kernel.say(model, **said, choice="once", arguments='{"text": "d"}')
    kernel.say(model, **said, choice="deny")
    shown: Cell = kernel.finish(cell)
    assert shown.error is None
    assert kernel.last_call() == ("kept d", "edited", "person", {"text": "d"})
    saved = shown.of("update_display_data")[-1]["data"]["text/plain"]
    assert "keep: arguments edited by the person after" in saved
    row = kernel.value(
        "[str(v) for v in nbagent.tool_runs().iloc[-1][['approval', 'approved_by', 'edited']]]"
    )
    assert row == ["edited", "person", "True"]


def test_a_terminal_asks_below_its_lines(tmp_path: Path) -> None:
    pexpect: Any = pytest.importorskip("pexpect")
    made = (
        "def keep(text: str) -> str: 'Keep.'; return 'kept ' + text\n\n"
        "import nbagent; from nbagent import offline; nbagent.configure(ask='keep'); "
        "step = offline.step(text='I keep it.', calls=[offline.call('keep', text='a')]); "
        "model = offline.script([step, 'Done.'], name='t'); "
        "run = nbagent.Agent(model='offline:t', tools=[keep]).run('Keep it.')"
    )
    words = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    child = pexpect.spawn(
        sys.executable,
        words,
        env=clean_environment(tmp_path),
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=20,
        dimensions=(40, 200),
    )
    child.expect_exact("In [1]: ")
    child.sendline(f"exec({made!r})")
    child.expect_exact("Allow? [y]es once, for the [s]ession, [e]dit, [n]o: ")
    asked: str = child.before.replace("\r", "")
    assert "C01  I keep it.\n? keep" in asked
    assert '    {"text": "a"}\n' in asked
    child.sendline("n")
    child.expect_exact("Reason, for the model: ")
    child.sendline("not that")
    child.expect_exact("In [2]: ")
    assert "E_DENIED" in child.before
    assert "     denied by the person after " in child.before
    child.close(force=True)


def _model_id(message: Any) -> str | None:
    data = message["content"].get("data", {})
    if message["msg_type"] != "display_data":
        return None
    return data.get("application/vnd.jupyter.widget-view+json", {}).get("model_id")


def _ops(message: Any) -> list[Any]:
    if message["msg_type"] != "comm_msg":
        return []
    content = message["content"]["data"].get("content") or {}
    ops = content.get("ops", [])
    tools = [op["tool"] for op in ops if op["op"] == "tool"]
    for op in ops:
        if op["op"] == "state":
            tools += [tool for turn in op["state"]["turns"] for tool in turn["tools"]]
    return [*ops, *tools]


def _question(message: Any) -> Any | None:
    return next((one for one in _ops(message) if one.get("question")), None)


def _unclear(message: Any) -> str | None:
    return next((one["text"] for one in _ops(message) if one.get("op") == "unclear"), None)
