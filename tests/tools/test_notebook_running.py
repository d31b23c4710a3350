"""`nb.run`: what code gives back, what the cell shows, how it ends."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from notebook_stage import Notebook

from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import ToolLimits, ToolPolicy


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("None", None),
        ("{'a': (1, 2)}", {"a": [1, 2]}),
        ("def f(n): return n * 2\nf(4)", 8),
        ("from __future__ import annotations\ndef f(a: Nope): ...\nf.__annotations__['a']", "Nope"),
        ("def f(a: int): ...\nf.__annotations__['a'] is int", True),
        ("__name__", "__main__"),
        ("import asyncio\nawait asyncio.sleep(0, 7)", 7),
    ],
)
def test_the_value_is_that_of_the_last_expression(
    notebook: Notebook, code: str, value: Any
) -> None:
    assert notebook.execute(code)["value"] == value


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = = 1", "SyntaxError: .*line 1"),
        ("%matplotlib inline", "magic"),
        ("json?", "help lines"),
        ("y = 1\nreturn 5", "outside function"),
        ("exit()", "would end the notebook's kernel"),
        ("(" * 5_000, "Error: "),
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_what_is_no_python_is_refused_before_anybody_is_asked(
    notebook: Notebook, code: str, says: str
) -> None:
    with pytest.raises(ToolError, match=says) as refusal:
        notebook.on_engine(lambda: notebook.aprepare("nb.run", code=code))
    assert refusal.value.code == "E_INVALID_ARGUMENTS"


def test_running_code_asks_always_and_shows_all_of_it(notebook: Notebook) -> None:
    code = "import os\n" * 500
    preview = notebook.preview("nb.run", code=code)
    assert (preview.ruling, preview.firm, preview.for_session) == ("ask", True, "none")
    (piece,) = preview.pieces
    assert (piece.kind, piece.text) == ("code", code)
    assert "everything that you may do" in preview.why
    assert preview.binds != notebook.preview("nb.run", code=code + " ").binds


# What is printed and drawn


def test_long_output_is_cut_in_its_middle_for_the_model_and_bounded_in_the_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = ToolPolicy(limits=ToolLimits(script_output_bytes=10_000))
    told = Notebook(policy=policy).execute("for i in range(100_000): print('line', i)")["stdout"]
    assert told.startswith("line 0\n")
    assert told.endswith("line 99999\n")
    assert "bytes cut" in told
    assert len(told) < 10_100
    shown = capsys.readouterr().out
    assert len(shown) < 10_100
    assert "not shown" in shown


CLOSED = "import sys, contextlib\nwith contextlib.closing(sys.stdout): pass\nsys.stderr.close()"
GONE = "import sys\nsys.stdout = sys.stderr = sys.displayhook = None"
EVIL = "class Evil:\n    def __repr__(self): raise KeyboardInterrupt\nEvil()"
LEAVING = [
    *("1 / 0", "import sys; sys.exit(3)", "raise GeneratorExit", EVIL, "raise KeyboardInterrupt"),
    "import asyncio\nraise asyncio.CancelledError",
]


@pytest.mark.parametrize("code", [CLOSED, GONE, *LEAVING])
def test_whatever_code_does_the_next_cell_runs_and_prints(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    before = (sys.stdout, sys.stderr, sys.displayhook)
    error = notebook.call("nb.run", code=code).result.error
    assert (error and error.code) == ("E_TOOL_FAILED" if code in LEAVING else None)
    assert (sys.stdout, sys.stderr, sys.displayhook) == before
    print("still here")
    assert notebook.execute("print('and here')")["stdout"] == "and here\n"
    assert capsys.readouterr().out == "still here\nand here\n"


def test_two_pieces_of_code_that_wait_do_not_take_each_others_output(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout

    async def both() -> list[Any]:
        code = "import asyncio\nprint({0})\nawait asyncio.sleep(0.05)\nprint({0})"
        calls = [notebook.acall("nb.run", {"code": code.format(n)}) for n in (1, 2)]
        return [outcome.result.data["stdout"] for outcome in await asyncio.gather(*calls)]

    assert notebook.on_engine(both) == ["1\n1\n", "2\n2\n"]
    assert capsys.readouterr().out == "1\n1\n2\n2\n"
    assert sys.stdout is before


def test_figures_come_back_as_images_also_where_no_cell_shows_them(notebook: Notebook) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    pyplot.figure()  # the person's own
    made = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
    alone = "from matplotlib.figure import Figure\nFigure(figsize=(2, 1))"
    codes = {made + "ax.plot([1, 2])": 1, "1": 0, "ax.set_title('later')": 1, made + "1/0": 1}
    try:
        for code, n_images in {**codes, alone: 1}.items():
            assert len(notebook.call("nb.run", code=code).result.attachments) == n_images, code
    finally:
        pyplot.close("all")
