"""The magics in real kernels: one display where nobody looks on, cells that are run again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from kernels import VIEW, Cell, FakePage, LiveKernel

from nbagent.store.rows import from_notebook_json

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return {"Oslo": 717_710, "Bergen": 291_940}[city]
"""


def record_of(cell: Cell) -> Any:
    (display,) = cell.of("display_data")
    return from_notebook_json(display["metadata"]["nbagent"])


def test_headless_cell_gives_one_final_display_and_nothing_else(kernel: LiveKernel) -> None:
    cell = kernel.run("%%agent --into first\nHow many people live in Oslo?")
    assert cell.kinds == ["display_data"]
    (display,) = cell.of("display_data")
    assert sorted(display["data"]) == ["text/html", "text/plain"]
    assert display.get("transient", {}) == {}
    assert "717,710" in display["data"]["text/plain"]
    assert record_of(cell).id == kernel.value("first.id")
    assert kernel.value("_run is first")
    assert kernel.run("%%agent --quiet\nHello?").kinds == []
    assert kernel.run("%%agent -m offline:demo --raw\nHello?").kinds == ["stream"]


def test_works_under_time_and_capture(kernel: LiveKernel) -> None:
    cell = kernel.run("%%time\n%%agent\nHello?")
    assert cell.kinds == ["display_data", "stream"]
    assert "Wall time" in cell.printed
    assert kernel.run("%%capture out\n%%agent\nHello?").kinds == []
    assert kernel.run("out.show()").kinds == ["display_data"]
    assert kernel.run("r = get_ipython().run_cell('%%agent\\nHello?')").kinds == ["display_data"]


def test_error_of_a_cell_is_one_line_and_the_cell_counts_as_failed(kernel: LiveKernel) -> None:
    cell = kernel.run("%%agent --modle x\nHello?", fails=True)
    assert cell.kinds == ["error"]
    assert cell.error is not None
    (line,) = cell.error["traceback"]
    assert line.startswith("E_INVALID_ARGUMENTS: unknown option '--modle'")
    assert (cell.error["ename"], cell.error["evalue"]) == ("UsageError", line)
    kernel.run("model = offline.script([offline.error('LLM_RATE_LIMITED', 'go\\nslow')], name='e')")
    cell = kernel.run("%%agent -m offline:e\nHello?", fails=True)
    assert cell.kinds == ["display_data", "error"]
    assert cell.error is not None
    assert cell.error["traceback"] == ["LLM_RATE_LIMITED: go slow"]
    assert record_of(cell).phase == "Failed"


def test_run_that_ends_a_cell_is_shown_once_and_an_older_one_shows_itself(
    kernel: LiveKernel,
) -> None:
    cell = kernel.run("agent = nbagent.Agent('offline:demo')\nnewer = agent.run('Hello?')\nnewer")
    assert cell.kinds == ["display_data"]
    newer = record_of(cell).id
    assert record_of(kernel.run("_run")).id == newer
    assert kernel.run("newer, 1").kinds == ["execute_result"]
    cell = kernel.run("agent.run('Hello?')\nnewer")
    shown = cell.of("display_data")
    ids = [from_notebook_json(display["metadata"]["nbagent"]).id for display in shown]
    assert len(ids) == 2
    assert ids[1] == newer


def test_kernel_that_is_loaded_with_nothing_shows_runs_and_loads_quickly(tmp_path: Path) -> None:
    environment = {"LLM_API_KEY": "sk-0123456789abcdef", "LLM_MODEL": "offline:demo"}
    with closing(LiveKernel(tmp_path, **environment)) as kernel:
        heavy = "[m for m in ('pandas', 'httpcore2', 'pydantic', 'anywidget') if m in sys.modules]"
        kernel.run("import sys, time\nt = time.perf_counter()\nimport nbagent")
        assert kernel.value(heavy) == []
        cell = kernel.run("nbagent.Agent().run('Hello?')")
        assert cell.kinds == ["display_data"]
        assert "pandas" not in kernel.value(heavy)
        kernel.run("%load_ext nbagent")
        doctor = kernel.run("%agent doctor")
        (said,) = [display["data"] for display in doctor.of("display_data")]
        for words in ("ipykernel", "clicks", "headless", "interrupts", "LLM_API_KEY (set", "1 run"):
            assert words in said["text/plain"]
            assert words in said["text/html"]
        assert "input() reaches you" in str(kernel.run("%agent doctor", stdin=True).messages)


def test_listings_are_tables_and_the_texts_in_them_stay_texts(kernel: LiveKernel) -> None:
    kernel.run("%%agent --quiet --name '<b>\u202ex'\n<script>alert(1)</script>")
    (shown,) = kernel.run("%agent runs 1").of("display_data")
    assert shown["data"].keys() == {"text/html", "text/plain"}
    page = shown["data"]["text/html"]
    assert page.count("<tr") == 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;⟦U+202E⟧x" in page
    for command in ("help", "help tools", "tools", "models", "config", "approvals", "workflow"):
        (shown,) = kernel.run(f"%agent {command}").of("display_data")
        assert "<script" not in shown["data"]["text/html"]


def test_prompts_see_what_cells_printed_showed_and_raised(kernel: LiveKernel) -> None:
    kernel.run("print('printed'); import sys; print('warned', file=sys.stderr)\n[1, 2]")
    kernel.run("def f(n):\n    return 1 / n\nf(0)", fails=True)
    kernel.run("%agent Is {{ _error }} in {{ _cells[-2:] }}?")
    prompt = kernel.value("_run.record.prompt")
    assert prompt.startswith("Is ZeroDivisionError: division by zero\nIn[")
    assert "-> 2     return 1 / n" in prompt
    for line in ("printed", "warned", "[1, 2]", "ZeroDivisionError: division by zero"):
        assert f"\n{line}\n" in prompt.replace("?", "\n")


def test_front_end_gets_a_widget_and_in_the_end_the_saved_picture(kernel: LiveKernel) -> None:
    cell = kernel.run("%%agent --into live\nHow many people live in Oslo?", page=FakePage(kernel))
    (first,) = cell.of("display_data")
    # A run that takes longer saves the picture so far, beside its view.
    *so_far, last = cell.of("update_display_data")
    assert all(VIEW in shown["data"] for shown in (first, *so_far))
    assert sorted(last["data"]) == ["text/html", "text/plain"]
    assert first["transient"]["display_id"] == last["transient"]["display_id"]
    assert from_notebook_json(last["metadata"]["nbagent"]).id == kernel.value("live.id")
    again = kernel.run("%agent show", stdin=True)
    (view,) = again.of("display_data")
    # The saved form: a widget would be a dead box when the notebook is opened again.
    assert sorted(view["data"]) == ["text/html", "text/plain"]


def test_open_page_no_longer_shows_a_forgotten_run(kernel: LiveKernel) -> None:
    asked = kernel.run("%%agent --into forgotten\nHello?", page=FakePage(kernel))
    shown = {d["transient"]["display_id"] for d in asked.of("display_data")}
    done = kernel.run("nbagent.forget('last')", stdin=True)
    updates = done.of("update_display_data")
    assert {u["transient"]["display_id"] for u in updates} == shown
    assert all("was deleted" in u["data"]["text/plain"] for u in updates)
    assert all("text/html" not in u["data"] and not u["metadata"] for u in updates)
    assert "comm_close" in done.kinds
    assert "_run" in str(kernel.run("_run", fails=True).error)


class Pair:
    """The runs `p` and `q`, how they differ below `q`, and a person at the buttons of `q`."""

    def __init__(self, kernel: LiveKernel, answer: str) -> None:
        self.kernel = kernel
        shown = kernel.run(
            f"offline.script(['one', 'two', {answer!r}], name='pair', delay_ms=10)\n"
            "p, q = (nbagent.Agent(model='offline:pair', tools=[]).run(it) for it in 'pq')",
            page=FakePage(kernel),
        )
        page = str(shown.of("update_display_data")[-1]["data"]["text/html"])
        self.place = page.partition('data-kernel="')[2].partition('"')[0]
        kernel.run(
            "from ipywidgets.widgets.widget import _instances as alive\n"
            "from nbagent.notebook.outputs import find_output\n"
            "from nbagent.session.stores import current_store\n"
            f"place = find_output({self.place!r}); place.add(p.id, q.id); place.show_saved()"
        )
        self.ids: tuple[str, str] = kernel.value("(p.id, q.id)")
        kind = "type(it).__name__ == 'PageActions'"
        self.buttons = kernel.value(f"next(it.model_id for it in alive.values() if {kind})")

    def retry(self, until: Callable[[Any], object]) -> list[Any]:
        told: dict[str, Any] = {"do": "retry", "run": self.ids[1], "at": self.place, "fields": {}}
        self.kernel.say(self.buttons, kind="act", **told)
        return [it["content"] for it in self.kernel.heard(until)]


def is_swap(message: dict[str, Any]) -> bool:
    """True if the message replaces an output by its saved form."""
    update = message["msg_type"] == "update_display_data"
    return update and not any("widget" in kind for kind in message["content"]["data"])


def test_a_retry_below_a_run_that_was_deleted_elsewhere_is_shown(kernel: LiveKernel) -> None:
    pair = Pair(kernel, "three")
    kernel.run("current_store().forget(p.id)")
    last = pair.retry(is_swap)[-1]
    assert [from_notebook_json(it).text for it in last["metadata"]["nbagent"]] == ["two", "three"]
    assert "Comparison" not in last["data"]["text/html"]


def test_a_run_is_forgotten_together_with_its_retry_below_it(kernel: LiveKernel) -> None:
    pair = Pair(kernel, "three")
    pair.retry(is_swap)
    done = kernel.run("nbagent.forget(q, children=True)", stdin=True)
    drawn = [it["data"] for it in done.of("update_display_data")]
    assert drawn == [{"text/plain": f"Run {pair.ids[1][:8]} was deleted."}]
    assert "_run" in str(kernel.run("_run", fails=True).error)


def test_what_is_forgotten_beside_a_run_at_work_leaves_its_live_view(kernel: LiveKernel) -> None:
    pair = Pair(kernel, "word " * 999)
    told = pair.retry(lambda message: "word word" in str(message["content"].get("data")))
    view = next(it["data"][VIEW]["model_id"] for it in told if VIEW in it.get("data", ()))
    kernel.send("nbagent.forget(p)", stdin=True)
    heard = kernel.heard(lambda message: VIEW in message["content"].get("data", ()))
    assert sorted(heard[-1]["content"]["data"]) == [VIEW, "text/html", "text/plain"]
    assert "Comparison" not in heard[-1]["content"]["data"]["text/html"]
    sent = [it["content"]["data"] for it in heard if it["msg_type"] == "comm_msg"]
    gone = {"run": " ".join(pair.ids), "ops": [["done", ["div", {}]]]}
    assert gone in [it.get("content") for it in sent]
    (state,) = [it["state"] for it in sent if "pictures" in it.get("state", ())]
    assert "Comparison" not in str(state)
    kernel.say(view, kind="stop")
    last = kernel.heard(is_swap)[-1]["content"]
    assert "Stopped" in last["data"]["text/plain"]


def test_old_views_are_closed_and_do_not_fill_the_kernel(kernel: LiveKernel) -> None:
    boxed = kernel.run(
        "import ipywidgets\n"
        "with ipywidgets.Output(): nbagent.Agent(tools=[], model='offline:demo').run('x')",
        page=FakePage(kernel, applies=False),
    )
    (shown,) = boxed.of("display_data")
    code = (
        "script = nbagent.offline.script(['word ' * 1000] * 9)\n"
        "agent = nbagent.Agent(model=script, tools=[])\n"
        "for _ in range(9): agent.run('x')"
    )
    kernel.run(code, page=FakePage(kernel))
    kernel.run("from ipywidgets.widgets.widget import _instances as alive")
    views = kernel.value("sum(type(w).__name__ == 'LiveWidget' for w in alive.values())")
    assert int(views) <= 5
    # An Output of ipywidgets takes no updates: there it is all that a person sees.
    assert kernel.value(f"{shown['data'][VIEW]['model_id']!r} in alive") is True
