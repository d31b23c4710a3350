"""The notebook's tools in a real kernel: what the cell shows, what stays, how a stop gets in."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kernels import Cell, LiveKernel

SETUP = """
import sys
import nbagent
from nbagent import offline

def ask(*calls, **options):
    "Let a model make these calls, each in a turn of its own; their results."
    script = offline.script([*(offline.call(name, **args) for name, args in calls), "done"])
    options.setdefault("on_approval", lambda question: True)
    run = nbagent.Agent(model=script, tools=["notebook"], **options).run("go", quiet=True)
    return [tool_run for turn in run.turns for tool_run in turn.tool_runs]

def code(text, **options):
    (tool_run,) = ask(("nb.run", {"code": text}), **options)
    return tool_run

def kinds(tool_run):
    return [part.media_type for part in tool_run.result.attachments]

SEEN = sys.stdout, sys.stderr
"""


def images_in(cell: Cell) -> list[str]:
    return [d["data"]["image/png"] for d in cell.of("display_data") if "image/png" in d["data"]]


def told(kernel: LiveKernel, name: str = "t") -> dict[str, Any]:
    result = kernel.value(f"({name}.result.ok, {name}.result.data, {name}.result.to_json())")
    assert result[0], result[2]
    return result[1]


def test_what_code_assigns_and_sets_is_seen_by_the_next_cell_and_in_no_history(
    kernel: LiveKernel,
) -> None:
    kernel.run(
        "price = 3\nbefore = len(In), len(Out)\n"
        "a, b = ask(('nb.run', {'code': 'total = price * 4\\ntotal'}),"
        " ('nb.set', {'name': 'color', 'value': ['red']}))\n"
        "same = before == (len(In), len(Out)) and not globals().get('_')"
    )
    assert kernel.value("(total, color, same)") == (12, ["red"], True)
    assert told(kernel, "a")["value"] == 12
    assert told(kernel, "b")["now"]["type"] == "list"
    assert kernel.value("(a.ran_in, b.ran_in)") == ("main thread", "main thread")
    kernel.run("import json as js\n(t,) = ask(('nb.variables', {}))")
    listed = told(kernel)
    names = {line["name"] for line in listed["variables"]}
    assert {"price", "ask"} <= names
    assert not names & {"In", "Out", "exit", "quit", "get_ipython", "open", "_", "__name__"}


def test_what_code_prints_is_shown_in_the_cell_and_told_to_the_model(kernel: LiveKernel) -> None:
    cell = kernel.run('t = code(\'import sys\\nprint("out")\\nprint("err", file=sys.stderr)\')')
    for stream, text in {"stdout": "out\n", "stderr": "err\n"}.items():
        assert "".join(c["text"] for c in cell.of("stream") if c["name"] == stream) == text
    assert (told(kernel)["stdout"], told(kernel)["stderr"]) == ("out\n", "err\n")
    assert kernel.value("SEEN == (sys.stdout, sys.stderr)")


PICTURES = {
    "left open": "fig, ax = plt.subplots(figsize=(2, 1))",
    "lines": "ax = plt.gca(); ax.plot([1, 3, 2])",
    "shown": "plt.plot([1, 3, 2]); plt.show()",
    "figure": "fig, ax = plt.subplots(); fig",
    "axes": "fig, ax = plt.subplots(); ax",
    "displayed": "fig, ax = plt.subplots(); display(fig); plt.close(fig)",
    "a picture as the value": 'from PIL import Image\nImage.new("RGB", (20, 10), "red")',
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_is_shown_once_in_the_cell_and_attached_once(
    kernel: LiveKernel, kind: str
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    text = f"import matplotlib.pyplot as plt\n{PICTURES[kind]}"
    cell = kernel.run(f"t = code({text!r})\nleft = plt.get_fignums()")
    assert len(images_in(cell)) == 1
    assert "figure 1" in str(told(kernel)["displayed"])
    assert kernel.value("(kinds(t), left)") == (["image/png"], [])
    assert kernel.run("1").kinds == ["execute_result"]


def test_displays_are_shown_in_the_cell_and_told_as_text(kernel: LiveKernel) -> None:
    text = (
        "from IPython.display import HTML, Markdown\nimport pandas as pd\n"
        "display(Markdown('**bold**')); display(HTML('<p>a <b>tag</b></p>'))\n"
        "display(pd.DataFrame({'a': [1, 2]}))\n'value'"
    )
    cell = kernel.run(f"t = code({text!r})")
    assert cell.kinds == ["display_data"] * 3
    bold, tag, frame = told(kernel)["displayed"]
    assert bold == "**bold**"
    assert tag == "a tag", "its text: the model sees no browser"
    assert "0  1" in frame
    assert kernel.run("display(5)").of("display_data")[0]["data"]["text/plain"] == "5"


def test_top_level_await_runs_on_the_kernels_loop(kernel: LiveKernel) -> None:
    text = (
        "import asyncio, threading\nawait asyncio.sleep(0.01)\nprint('waited')\n"
        "threading.current_thread() is threading.main_thread()"
    )
    cell = kernel.run(f"t = code({text!r})")
    assert cell.printed == "waited\n"
    assert told(kernel)["value"] is True
    assert kernel.value("t.ran_in") == "notebook loop"


def test_under_arun_code_runs_in_the_main_thread_and_shows_in_the_cell(kernel: LiveKernel) -> None:
    cell = kernel.run(
        "script = offline.script([offline.call('nb.run',"
        " code='print(77)\\nawaited = 1'), 'done'])\n"
        "agent = nbagent.Agent(model=script, tools=['nb.run'], on_approval=lambda q: True)\n"
        "run = await agent.arun('go', quiet=True)\nt = run.turns[0].tool_runs[0]"
    )
    assert cell.printed == "77\n"
    assert kernel.value("(awaited, t.ran_in)") == (1, "main thread")
    assert told(kernel)["stdout"] == "77\n"


def test_an_error_is_told_with_its_lines_and_the_cell_goes_on(kernel: LiveKernel) -> None:
    cell = kernel.run("t = code('def f():\\n    return 1 / 0\\nf()')\nafter = 'reached'")
    assert (cell.error, cell.kinds, kernel.value("after")) == (None, [], "reached")
    error = "t.result.error"
    code, message, lines = kernel.value(
        f"({error}.code, {error}.message, {error}.details['traceback'])"
    )
    assert (code, message) == ("E_TOOL_FAILED", "ZeroDivisionError: division by zero")
    assert "    return 1 / 0" in lines
    # A later cell's own traceback shows the line too, and a source is known.
    cell = kernel.run("f()", fails=True)
    assert cell.error is not None
    assert any("return" in line and "/" in line for line in cell.error["traceback"])
    kernel.run("(t,) = ask(('nb.inspect', {'name': 'f'}))")
    assert "return 1 / 0" in told(kernel)["source"]


@pytest.mark.parametrize(
    "text",
    ["while True: pass", "import time\ntime.sleep(60)", "import asyncio\nawait asyncio.sleep(60)"],
)
def test_an_interrupt_stops_the_code_and_the_notebook_goes_on(
    kernel: LiveKernel, text: str
) -> None:
    sent = kernel.send(f"t = code({'print(123, flush=True)' + chr(10) + text!r})\nleft = 1")
    kernel.heard(lambda message: message["msg_type"] == "stream")
    start = time.monotonic()
    kernel.manager.interrupt_kernel()
    kernel.finish(sent)
    assert time.monotonic() - start < 30
    assert kernel.value("t.result.error.code") == "E_INTERRUPTED"
    assert kernel.value("SEEN == (sys.stdout, sys.stderr)")
    assert kernel.run("print('fine')").printed == "fine\n"
    assert kernel.run("1 / 0", fails=True).error is not None
