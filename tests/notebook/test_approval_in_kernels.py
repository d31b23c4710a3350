"""A person is asked by `input()` in a real kernel and in a terminal; or nobody is there."""

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from kernels import LiveKernel, clean_environment

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

@nbagent.tool
def keep(text: str) -> str:
    "Keep a text."
    return f"kept {text}"

def asks_first(request):
    if request.messages[-1].role == "tool":
        return offline.text("Done.")
    return offline.step(text="I keep it.", calls=[offline.call("keep", text="a\\u202eb")])

model = offline.script([asks_first] * 99, name="keeper")
nbagent.configure(ask="keep")
"""
LAST = "(lambda r: (r.result.data or r.result.error.message, r.approval, r.approved_by, r.args))"


class Asking(LiveKernel):
    """A kernel with a tool that asks, and a person who types."""

    def begin(self, options: str = "", *, stdin: bool = True) -> str:
        """Run an agent that wants to keep a text; returns the id of the cell's request."""
        line = f"%%agent --model offline:keeper --tools keep {options}"
        return self.send(f"{line}\nKeep it.", stdin=stdin)

    def last_call(self) -> Any:
        """Result, approval, who decided, and the arguments that were used."""
        return self.value(f"{LAST}(_run.turns[0].tool_runs[0])")


KERNEL = Asking


ODD = {"text": "a\u202eb"}
TYPED: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "edited": (
        ("maybe", "e", "{text}", '{"text": "c"}'),
        ("kept c", "edited", "person", {"text": "c"}),
    ),
    "as-it-was": (("e", "", " YES "), ("kept a\u202eb", "allowed", "person", ODD)),
    "for-the-session": (("s",), ("kept a\u202eb", "allowed", "person", ODD)),
    "denied": (("no", "not this"), ("not this", "denied", "person", ODD)),
}


@pytest.mark.parametrize("case", TYPED)
def test_without_a_view_it_is_asked_by_input(kernel: Asking, case: str) -> None:
    lines, decided = TYPED[case]
    cell = kernel.begin(f"--raw --session {case}")
    prompts: list[str] = []
    for line in lines:
        prompts.append(kernel.client.get_stdin_msg(timeout=20)["content"]["prompt"])
        kernel.client.input(line)
    shown = kernel.finish(cell)
    # The whole question: a server that executes cells shows their prints after their end.
    assert prompts[0].endswith("\nAllow? [y]es once, for the [s]ession, [e]dit, [n]o: ")
    assert "? keep" in prompts[0]
    assert ("Type y, s, e or n." in shown.printed) == ("maybe" in lines)
    assert ("not valid JSON" in shown.printed) == ("{text}" in lines)
    assert "a⟦U+202E⟧b" in prompts[0]
    assert shown.printed.endswith("Done.\n")
    assert kernel.last_call() == decided
    assert kernel.value("_run.turns[0].tool_runs[0].waited_ms > 0")


def test_an_interrupt_of_the_question_is_a_stop_and_a_failure_without_an_error_box(
    kernel: Asking,
) -> None:
    cell = kernel.begin("--raw")
    kernel.client.get_stdin_msg(timeout=20)
    kernel.manager.interrupt_kernel()
    shown = kernel.finish(cell)
    assert shown.error is None
    reply = kernel.reply_to(cell)
    assert (reply["status"], reply["ename"]) == ("error", "Stopped")
    assert kernel.value("_run.stop_reason") == "stopped"


def test_where_nobody_types_the_call_is_denied(kernel: Asking) -> None:
    shown = kernel.finish(kernel.begin(stdin=False))
    assert shown.error is None
    message, approval, by, _ = kernel.last_call()
    assert (approval, by) == ("denied", "nobody")
    assert "nobody is here" in message
    assert (
        "denied: approval needed but nobody can answer"
        in shown.of("display_data")[0]["data"]["text/plain"]
    )


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
    given: Any = {"env": clean_environment(tmp_path), "cwd": str(tmp_path), "encoding": "utf-8"}
    child = pexpect.spawn(sys.executable, words, timeout=20, dimensions=(40, 200), **given)
    child.expect_exact("In [1]: ")
    child.sendline(f"exec({made!r})")
    child.expect_exact("Allow? [y]es once, for the [s]ession, [e]dit, [n]o: ")
    asked: str = child.before.replace("\r", "")
    assert "C01  I keep it.\n? keep" in asked
    assert "  text: a\n" in asked
    child.sendline("n")
    child.expect_exact("Reason, for the model: ")
    child.sendline("not that")
    child.expect_exact("In [2]: ")
    assert 'keep(text="a") ✕ denied by you' in child.before
    assert "     denied by you after " in child.before
    assert "not that" in child.before
    child.close(force=True)
