"""A batch in a real kernel: one display where nobody looks on, one widget where somebody does."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from kernels import VIEW, Cell, FakePage, LiveKernel

SETUP = """
%load_ext nbagent
import nbagent, pandas
from nbagent import offline

df = pandas.DataFrame({"n": range(12)})

def answer(request):
    text = request.messages[-1].text
    return offline.error("LLM_HTTP_ERROR", "no luck") if text.endswith(" 7") else text

def exact(row, run):
    return str(row.n) in run.text

fast = offline.script([answer] * 500, name="fast")
offline.script([offline.delay(0.15), answer] * 500, name="slow")
agent = nbagent.Agent(fast, tools=[])
_run = "no run of a batch"
"""
SLOW = "%%agent -m offline:slow -t none --over df --concurrency 1 --into batch --name "


def texts(cell: Cell) -> list[str]:
    return [display["data"]["text/plain"] for display in cell.of("display_data")]


def saved_lines(display: dict[str, Any]) -> list[str]:
    """Lines of the batch in the metadata of an output: a head, its cases, and the ids."""
    return display["metadata"]["nbagent"]["batch"]


def test_headless_batch_is_one_final_display_of_at_most_20_kb(kernel: LiveKernel) -> None:
    cell = kernel.run(
        "%%agent -m offline:fast -t none --over df --score exact --into b\nSay {{ n }}"
    )
    assert cell.kinds == ["display_data"]
    (display,) = cell.of("display_data")
    assert sorted(display["data"]) == ["text/html", "text/plain"]
    assert display.get("transient", {}) == {}
    assert sum(len(text.encode()) for text in display["data"].values()) < 20_000
    assert "12 of 12" in display["data"]["text/plain"]
    assert "LLM_HTTP_ERROR: no luck" in display["data"]["text/plain"]
    assert "data-do" not in display["data"]["text/html"]
    assert kernel.value("_run") == "no run of a batch"
    assert kernel.value("_batch is b")
    assert len(saved_lines(display)) == 14


def test_a_batch_that_ends_a_cell_is_shown_once_and_an_older_one_shows_itself(
    kernel: LiveKernel,
) -> None:
    cell = kernel.run("done = agent.map(df, 'Say {{ n }}', name='shown').wait()\ndone")
    assert [text.split(" · ")[1] for text in texts(cell)] == ["shown"]
    later = kernel.run("done")
    assert texts(later) == texts(cell)
    assert saved_lines(later.of("display_data")[0]) == saved_lines(cell.of("display_data")[0])
    quiet = "agent.map(df, 'Say {{ n }}', name='quiet', quiet=True).wait();"
    assert kernel.run(quiet).kinds == []
    ready = kernel.run("agent.map(df, 'Say {{ n }}', name='ready', start=False)")
    assert "batch.start() starts it" in texts(ready)[0]


def test_a_batch_at_work_that_is_shown_says_that_it_goes_on(kernel: LiveKernel) -> None:
    how = "df, 'Say', name='back', concurrency=1"
    kernel.run(f"slowly = nbagent.Agent('offline:slow', tools=[]).map({how})")
    said = texts(kernel.run("import time; time.sleep(0.5)\nslowly"))[0]
    assert said.startswith("… Running · back")
    assert "running" in said
    assert "show it again" in said
    kernel.run("slowly.stop(); slowly.wait();")


class Watched:
    """A slow batch of a cell that somebody looks at."""

    def __init__(self, kernel: LiveKernel, name: str) -> None:
        self.kernel = kernel
        kernel.page = FakePage(kernel)
        self.request = kernel.send(f"{SLOW}{name}\nSay {{{{ n }}}}", stdin=True)
        begun = kernel.heard(lambda message: VIEW in message["content"].get("data", {}))
        self.first: dict[str, Any] = begun[-1]["content"]
        self.comm: str = self.first["data"][VIEW]["model_id"]

    def ops(self, messages: list[Any]) -> list[list[Any]]:
        """Changes that the page got."""
        ours = [it["content"] for it in messages if it["content"].get("comm_id") == self.comm]
        told = [it["data"].get("content", {}) for it in ours]
        return [one["ops"] for one in told if "ops" in one]

    def until_at_work(self) -> None:
        done = re.compile("[1-9] of 12")
        self.kernel.heard(lambda message: done.search(str(self.ops([message]))))

    def is_over(self, message: Any) -> bool:
        """True if this message is the last one of the cell."""
        is_idle = message["content"].get("execution_state") == "idle"
        return is_idle and message["parent_header"].get("msg_id") == self.request

    def say(self, **message: Any) -> None:
        self.kernel.say(self.comm, **message)


def test_a_live_batch_says_a_few_times_a_second_what_changed_and_ends_as_a_saved_picture(
    kernel: LiveKernel,
) -> None:
    watched = Watched(kernel, "live")
    saved = watched.first["data"]["text/html"]
    assert "Saved while the batch was running" in saved
    assert "data-kernel" not in saved
    began = time.monotonic()
    messages = kernel.heard(watched.is_over, within_s=60)
    took_s = time.monotonic() - began
    ops = watched.ops(messages)
    assert 3 <= len(ops) <= 4 * took_s + 3
    assert {op[1] for batch in ops[:-1] for op in batch if op[0] == "put"} <= {
        *("head", "failures", "variants", "end")
    }
    assert ops[-1][0][0] == "done"
    shown = [it["content"] for it in messages if it["msg_type"] == "update_display_data"]
    assert VIEW not in shown[-1]["data"]
    assert "12 of 12" in shown[-1]["data"]["text/plain"]
    assert "data-kernel" in shown[-1]["data"]["text/html"]
    kept = sum(len(text.encode()) for text in shown[-1]["data"].values())
    assert kept < 20_000
    # A file that is saved in between names the batch; at the end it holds its cases.
    assert [len(saved_lines(it)) for it in (watched.first, shown[-1])] == [1, 14]


@pytest.mark.parametrize(("click", "ended"), [("stop", "Stopped"), ("pause", "Paused")])
def test_clicks_reach_a_batch_while_its_cell_waits(
    kernel: LiveKernel, click: str, ended: str
) -> None:
    watched = Watched(kernel, f"by {click}".replace(" ", "-"))
    watched.until_at_work()
    watched.say(kind=click)  # of which run, it does not say
    watched.say(kind=click, run="0" * 16)
    watched.until_at_work()
    watched.say(kind=click, run="batch")
    cell = kernel.finish(watched.request)
    assert cell.error is None
    assert kernel.reply_to(watched.request)["status"] == ("error" if click == "stop" else "ok")
    shown = cell.of("update_display_data")[-1]["data"]["text/plain"]
    assert f" {ended} · " in shown
    assert "only the missing cases are run" in shown
    assert kernel.value("batch.progress.state") == ended
    assert 0 < kernel.value("batch.progress.ok") < 12


def test_an_interrupt_stops_the_batch_and_the_same_cell_goes_on(kernel: LiveKernel) -> None:
    watched = Watched(kernel, "by-square")
    watched.until_at_work()
    kernel.manager.interrupt_kernel()
    assert kernel.finish(watched.request).error is None, "the picture says it"
    assert kernel.reply_to(watched.request)["ename"] == "Stopped"
    done = kernel.value("batch.progress.ok")
    assert 0 < done < 12
    again = kernel.run(f"{SLOW}by-square\nSay {{{{ n }}}}")
    assert f"({done} reused)" in texts(again)[0]
    assert kernel.value("len(nbagent.runs(batch='by-square', phase='WaitingUser'))") == 11


def test_an_awaited_batch_that_is_interrupted_is_in_a_variable_all_the_same(
    kernel: LiveKernel,
) -> None:
    code = (
        "await agent.amap(df, 'Say {{ n }}', model='offline:slow', concurrency=1, name='awaited')"
    )
    cell = kernel.send(code)
    time.sleep(1.0)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(cell).error is not None
    state, n = kernel.value("(_batch.progress.state, _batch.progress.ok)")
    assert (state, 0 < n < 12) == ("Stopped", True)
    assert kernel.value("len(_batch.frame())") == 12


def test_a_page_that_is_loaded_anew_is_shown_how_far_the_batch_is(kernel: LiveKernel) -> None:
    watched = Watched(kernel, "anew")
    watched.until_at_work()
    watched.say(kind="ready", page=77)

    def is_whole(message: Any) -> bool:
        told = message["content"].get("data", {}).get("content", {})
        return told.get("page") == 77 and "of 12" in str(told["ops"])

    kernel.heard(is_whole)
    watched.say(kind="stop", run="batch")
    kernel.finish(watched.request)
