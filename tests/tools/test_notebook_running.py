"""`nb.run`: what code gives back, what the cell shows, how it ends."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

import pytest
from notebook_stage import Notebook

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.policy import ToolLimits, ToolPolicy
from nbagent.tools.notebook_output import Tee


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("x = 1", None),
        ("None", None),
        ("", None),
        ("# nothing", None),
        ("'text'", "text"),
        ("{'a': (1, 2)}", {"a": [1, 2]}),
        ("def f(n): return n * 2\nf(4)", 8),
        ("from __future__ import annotations\ndef f(a: Nope): ...\nf.__annotations__['a']", "Nope"),
        ("def f(a: int): ...\nf.__annotations__['a'] is int", True),
        ("if True:\n    5", None),
        ("__name__", "__main__"),
    ],
)
def test_the_value_is_that_of_the_last_expression(
    notebook: Notebook, code: str, value: Any
) -> None:
    assert notebook.execute(code)["value"] == value


def test_an_error_comes_back_with_its_lines_and_what_was_printed(notebook: Notebook) -> None:
    code = "def inner():\n    raise KeyError('lost')\nprint('before')\ny = 5\ninner()"
    error = notebook.error("nb.run", code=code)
    assert error.code == "E_TOOL_FAILED"
    assert error.message == "KeyError: 'lost'"
    assert error.details["stdout"] == "before\n"
    lines = "\n".join(error.details["traceback"])
    assert "line 5, in <module>\n    inner()" in lines
    assert "line 2, in inner\n    raise KeyError('lost')" in lines
    assert notebook.names["y"] == 5


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = = 1", "SyntaxError in line 1"),
        ("a = 1\n  b = 2", "IndentationError in line 2"),
        ("%matplotlib inline", "magic"),
        ("x = 1\n!ls", "magic"),
        ("files = !ls", "magic"),
        ("json?", "help line"),
        ("%%bash\nls -l", "magic"),
        ("return 5", "outside function"),
        ("exit()", "would end the notebook's kernel"),
        ("if 1:\n    quit(0)", "would end the notebook's kernel"),
        ("x = 'a\x00b'", "null"),
        ("(" * 5_000, "compiled|SyntaxError"),
        ("x" + "+x" * 50_000, "compiled|SyntaxError|RecursionError"),
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_what_is_no_python_is_refused_and_nothing_runs(
    notebook: Notebook, code: str, says: str
) -> None:
    error = notebook.error("nb.run", code=code)
    assert error.code == "E_INVALID_ARGUMENTS", error
    assert re.search(says, error.message), error
    assert set(notebook.names) <= {"__name__", "__builtins__"}


def test_a_function_of_ones_own_named_quit_may_be_called(notebook: Notebook) -> None:
    assert notebook.execute("def quit(): return 4\nquit()")["value"] == 4
    assert notebook.execute("quit() + 1")["value"] == 5


@pytest.mark.parametrize(
    "code",
    ["import sys; sys.exit(3)", "raise SystemExit", "raise GeneratorExit", "raise StopIteration"],
)
def test_code_that_wants_to_leave_is_an_error_like_another(notebook: Notebook, code: str) -> None:
    assert notebook.error("nb.run", code=code).code == "E_TOOL_FAILED"


def test_long_output_is_cut_in_its_middle_for_the_model_and_bounded_in_the_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = ToolPolicy(limits=ToolLimits(script_output_bytes=50_000))
    told = Notebook(policy=policy).execute("for i in range(100_000): print('line', i)")["stdout"]
    assert told.startswith("line 0\n")
    assert told.endswith("line 99999\n")
    assert "characters left out" in told
    assert len(told) < 13_000
    shown = capsys.readouterr().out
    assert len(shown) < 51_000
    assert "not shown" in shown


def test_a_stream_that_code_kept_still_writes_later(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.execute("import sys\nkept = sys.stdout\nkept.write('one ')")
    notebook.names["kept"].write("two")
    notebook.names["kept"].flush()
    assert capsys.readouterr().out == "one two"
    with suppress(OSError):
        notebook.names["kept"].fileno()
    assert notebook.error("nb.run", code="kept.write(5)").message.startswith("TypeError")


def test_figures_that_the_code_made_come_back_as_images(notebook: Notebook) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    try:
        old = pyplot.figure()
        old.canvas.draw()
        code = (
            "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(2, 1))\n"
            "ax.plot([1, 2])"
        )
        outcome = notebook.call("nb.run", code=code)
        (image,) = outcome.result.attachments
        assert isinstance(image, ImagePart)
        assert "200×100" in image.alt
        assert outcome.result.data["images"] == [image.alt]
        assert notebook.call("nb.run", code="1").result.attachments == ()
        changed = notebook.call("nb.run", code="ax.set_title('later');")
        assert len(changed.result.attachments) == 1
        failed = notebook.call("nb.run", code="ax.set_title('again')\n1/0").result
        assert (failed.ok, len(failed.attachments)) == (False, 1)
    finally:
        pyplot.close("all")


def test_a_figure_without_pyplot_is_shown_as_the_value(notebook: Notebook) -> None:
    pytest.importorskip("matplotlib.figure")
    code = "from matplotlib.figure import Figure\nf = Figure(figsize=(2, 1)); f.subplots()\nf"
    assert len(notebook.call("nb.run", code=code).result.attachments) == 1


@pytest.mark.parametrize("code", ["1", "x = = 1", "import os; os.getcwd()"])
def test_running_code_asks_always_and_shows_all_of_it(notebook: Notebook, code: str) -> None:
    preview = notebook.preview("nb.run", code=code)
    assert (preview.ruling, preview.firm, preview.for_tool) == ("ask", True, False)
    assert preview.every_time
    (piece,) = preview.pieces
    assert (piece.kind, piece.text) == ("code", code)
    assert "everything that you may do" in preview.why


def test_a_stream_that_nobody_took_away_hands_on_once_its_run_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Owner:
        pass

    owner = Owner()
    tee = Tee(sys.stdout, owner, kept_chars=100, shown_chars=10)
    tee.write("x" * 50)
    assert "is not shown" in capsys.readouterr().out
    del owner
    tee.write("y" * 50)
    assert capsys.readouterr().out == "y" * 50


STREAMS = {
    "closed": "import sys\nsys.stdout.close()\nsys.stderr.close()",
    "closed with": "import sys, contextlib\nwith contextlib.closing(sys.stdout): pass",
    "none": "import sys\nsys.stdout = sys.stderr = sys.displayhook = None",
    "detached": "import sys\nsys.stdout.detach()",
}


@pytest.mark.parametrize("code", STREAMS.values(), ids=STREAMS)
def test_whatever_code_does_to_the_streams_the_next_cell_prints(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    before = (sys.stdout, sys.stderr, sys.displayhook)
    notebook.call("nb.run", code=code)
    assert (sys.stdout, sys.stderr, sys.displayhook) == before
    print("still here")
    assert notebook.execute("print('and here')")["stdout"] == "and here\n"
    assert capsys.readouterr().out == "still here\nand here\n"


class Interrupting:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


def test_a_repr_that_raises_an_interrupt_stops_nothing(notebook: Notebook) -> None:
    notebook.names["evil"] = Interrupting()
    value = notebook.execute("x = 1\nevil")["value"]
    assert "Interrupting, its repr raised KeyboardInterrupt" in value
    error = notebook.error("nb.inspect", name="evil")
    assert "its own code raised it" in error.message
    error = notebook.error("nb.run", code="raise KeyboardInterrupt")
    assert error.message.startswith("KeyboardInterrupt")
    assert notebook.names["x"] == 1
