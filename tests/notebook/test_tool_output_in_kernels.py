"""Output of a tool in a real kernel: in its card, not in the cell."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import LiveKernel

SETUP = """
import sys, time, threading, asyncio
import nbagent
from nbagent import offline
from IPython.display import HTML, Image, clear_output, display
from matplotlib import pyplot as plt

def ask(*calls, **options):
    "Let a model make these calls, each in a turn of its own."
    script = offline.script([*(offline.call(name, **args) for name, args in calls), "done"])
    return nbagent.Agent(model=script, **options).run("go", **given)

def tool_run(function, **options):
    "What came of one call of a function without arguments."
    global run
    name = getattr(function, "__name__", function)
    run = ask((name, {}), tools=[function], **options)
    return run.turns[0].tool_runs[0]

def tool(body):
    "A tool with this body."
    lines = "".join(f"    {line}\\n" for line in body.splitlines())
    exec(f"def work():\\n    'Work.'\\n{lines}", globals())
    return work

given = {}
SEEN = sys.stdout, sys.stderr, get_ipython().display_pub.publish
"""
DRAWN = "plt.plot([1, 3, 2])"


def streamed_or_shown(kernel: LiveKernel, code: str) -> list[str]:
    """The kinds of what the cell got beside the picture of the run."""
    cell = kernel.run(code)
    assert cell.kinds[-1] == "display_data", "the run's own picture"
    return cell.kinds[:-1]


OUTPUTS: dict[str, tuple[str, str, int, list[str]]] = {
    "both streams": ("print(1)\nprint(2, file=sys.stderr)", "1\n2\n", 0, []),
    "a display of text": ("display(5)", "5\n", 0, []),
    "a progress bar": ("for i in (1, 9): print(f'\\r{i}0%', end='')", "90%", 0, []),
    "colours": ("print('\\x1b[31mred\\x1b[0m')", "red\n", 0, []),
    "a figure that is shown": (f"{DRAWN}; plt.show(); print(1)", "1\n", 1, []),
    "two figures left open": (f"{DRAWN}; plt.figure(); {DRAWN}", "", 2, []),
    "a figure that is displayed": (
        "f, ax = plt.subplots(); display(f); plt.close()",
        "",
        1,
        [],
    ),
    "what was cleared": (f"print(1); {DRAWN}; plt.show(); clear_output(); print(2)", "2\n", 0, []),
    "a thread of the tool": (
        "t = threading.Thread(target=print, args=[7]); t.start(); t.join()",
        "7\n",
        0,
        [],
    ),
    "what only the page can show": ("display(HTML('<b>x</b>'))", "", 0, ["display_data"]),
    "what is changed later": ("display(5, display_id=True)", "", 0, ["display_data"]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_output_of_a_tool_stands_in_its_run_and_not_in_the_cell(
    kernel: LiveKernel, kind: str
) -> None:
    body, printed, shown, in_cell = OUTPUTS[kind]
    assert streamed_or_shown(kernel, f"t = tool_run(tool({body!r}))") == in_cell
    assert kernel.value("(t.printed, len(t.shown), plt.get_fignums())") == (printed, shown, [])
    assert kernel.value("SEEN == (sys.stdout, sys.stderr, get_ipython().display_pub.publish)")
    kernel.run("from nbagent.store.rows import from_notebook_json, to_notebook_json")
    kernel.run("saved = from_notebook_json(to_notebook_json(run.record))")
    kept = "nbagent.open_run(run.id).record == run.record == saved"
    assert kernel.value(kept), "in the store and in a saved notebook"


RETURNED = {
    "figure": "fig, ax = plt.subplots(); return fig",
    "axes": "fig, ax = plt.subplots(); return ax",
    "figures in a list": "return [plt.subplots()[0]]",
}


@pytest.mark.parametrize("kind", RETURNED)
def test_a_returned_figure_is_shown_once(kernel: LiveKernel, kind: str) -> None:
    assert streamed_or_shown(kernel, f"t = tool_run(tool({RETURNED[kind]!r}))") == []
    assert kernel.value("(len(t.images), len(t.shown), plt.get_fignums())") == (1, 0, [])


def test_a_figure_of_the_person_stays_theirs(kernel: LiveKernel) -> None:
    kernel.run("mine = plt.figure(); t = tool_run(tool('return 1')); left = plt.get_fignums()")
    assert kernel.value("(t.images, left)") == ((), [1])


def test_without_a_view_prints_stay_in_the_cell(kernel: LiveKernel) -> None:
    kernel.run("given = {'quiet': True}")
    cell = kernel.run("t = tool_run(tool('print(1)'))")
    kernel.run("given = {}")
    assert (cell.printed, kernel.value("t.printed")) == ("1\n", "")


@pytest.mark.parametrize(
    "ending", ["raise ValueError", "threading.Timer(0.2, run_now.stop).start(); time.sleep(30)"]
)
def test_what_was_printed_before_the_end_is_kept(kernel: LiveKernel, ending: str) -> None:
    body = f"print(1)\n{ending}"
    kernel.run(
        f"work = tool({body!r})\n"
        "script = offline.script([offline.call('work'), 'done'])\n"
        "run_now = nbagent.Agent(model=script, tools=[work]).start('go')\nrun_now.wait()"
    )
    (t,) = kernel.value("[(t.printed, t.result.ok) for t in run_now.turns[0].tool_runs]")
    assert t == ("1\n", False)
    assert kernel.run("print(2)").printed == "2\n"


def test_secrets_are_hidden_also_across_two_prints(kernel: LiveKernel) -> None:
    secret = "sk-proj-" + "a1B2" * 8
    body = f"print({secret[:12]!r}, end='')\nprint({secret[12:]!r})"
    kernel.run(f"import os\nos.environ['OPENAI_API_KEY'] = {secret!r}")
    kernel.run(f"t = tool_run(tool({body!r}))")
    assert secret[12:] not in kernel.value("t.printed")


@pytest.mark.parametrize("code", ["print(7)", "import asyncio\nawait asyncio.sleep(0)\nprint(7)"])
def test_code_of_the_model_prints_into_its_card(kernel: LiveKernel, code: str) -> None:
    call = f"ask(('nb.run', {{'code': {code!r}}}), tools=['nb.run'], on_approval=lambda q: True)"
    assert streamed_or_shown(kernel, f"t = {call}.turns[0].tool_runs[0]") == []
    assert kernel.value("(t.printed, t.result.data['stdout'])") == ("7\n", "7\n")


def test_the_last_line_is_told_while_the_tool_runs(kernel: LiveKernel) -> None:
    kernel.run("told = []\ndef hear(e):\n    told.append(getattr(e, 'text', None))")
    body = "print(1)\nprint('two\\nthree')"
    kernel.run(
        "agent = nbagent.Agent(model=offline.script([offline.call('work'), 'done']),"
        f" tools=[tool({body!r})])\nagent.start('go', on_event=hear).wait()"
    )
    assert kernel.value("[text for text in told if text in ('1', 'three')]") == ["1", "three"]


def test_figures_are_numbered_through_the_conversation_and_the_model_is_told(
    kernel: LiveKernel,
) -> None:
    kernel.run(
        f"work = tool({f'{DRAWN}; plt.show(); return plt.figure()'!r})\n"
        "script = offline.script([offline.call('work'), 'one', offline.call('work'), 'two'])\n"
        "agent = nbagent.Agent(model=script, tools=[work])\n"
        "first = agent.run('go')\nnext = first.resume('again')"
    )
    runs: list[Any] = kernel.value(
        "[(t.first_figure, len(t.images), t.result.note) for r in (first, next)"
        " for turn in r.turns for t in turn.tool_runs]"
    )
    assert [it[:2] for it in runs] == [(1, 2), (3, 2)]
    assert runs[1][2].startswith("the person sees figures 3 to 4; write [figure 3]")
    kernel.run("from nbagent.view.images import figures_of")
    assert kernel.value("(list(figures_of(first.record)), list(figures_of(next.record)))") == (
        [1, 2],
        [3, 4],
    )


def test_a_recorded_result_brings_its_output_with_it(kernel: LiveKernel) -> None:
    options = "cassette='tools.jsonl', replay_tools=True"
    kernel.run(f"work = tool({f'print(1); {DRAWN}; plt.show()'!r})")
    kernel.run(f"a = tool_run(work, {options}); b = tool_run(work, {options})")
    assert kernel.value("(b.printed, b.shown == a.shown, 'not run' in b.notes[0])") == (
        "1\n",
        True,
        True,
    )


def test_the_saved_picture_has_the_output_in_the_card_and_the_figure_in_the_answer(
    kernel: LiveKernel,
) -> None:
    body = f"print('look <b>'); {DRAWN}; plt.show()"
    cell = kernel.run(
        "script = offline.script([offline.call('work'), 'As [figure 1] shows.'])\n"
        f"_ = nbagent.Agent(model=script, tools=[tool({body!r})]).run('go')"
    )
    (saved,) = cell.of("display_data")
    page, answer = saved["data"]["text/html"].split('class="nba-answer"', 1)
    assert "look &lt;b&gt;" in page
    assert (page.count("<img"), answer.count("<img")) == (0, 1), "once, where the answer names it"
    assert "As figure 1 shows." in answer
    assert "printed: look <b>" in saved["data"]["text/plain"]
