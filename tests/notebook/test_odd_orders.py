"""`--continue` cells run again in any order, in real kernels: replaced, never stacked."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kernels import LiveKernel

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline

def said(run):
    "What the person said in this conversation."
    return [message.text for message in run.messages if message.role == "user"]

def at_times(request):
    "Fails, answers, or calls a tool again and again, in turns."
    n = len(at_times.seen)
    at_times.seen.append(n)
    return offline.error("LLM_HTTP_ERROR", "no") if n % 5 == 3 else f"answer {n}"

at_times.seen = []
model = offline.script([at_times] * 2000, name="odd")
%agent config model=offline:odd
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[LiveKernel]:
    with closing(LiveKernel(folder, JPY_SESSION_NAME="orders.ipynb")) as started:
        started.run(SETUP)
        yield started


def ask(kernel: LiveKernel, cell: str, words: str, options: str = "") -> list[str]:
    """Run a cell, which may fail; what the person said in its conversation then."""
    kernel.finish(kernel.send(f"%%agent --quiet {options}\n{words}", cell_id=cell))
    return kernel.value("said(_run)")


def test_cells_in_random_orders_replace_what_they_added(kernel: LiveKernel) -> None:
    rng = random.Random(3)
    path: list[tuple[str, str]] = []
    for n in range(60):
        cell = rng.choice("AABCDE") if path else "A"
        words = f"{cell}{n}"
        if cell == "A":
            path = []
        cells = [one for one, _ in path]
        path = path[: cells.index(cell)] if cell in cells else path
        path.append((cell, words))
        shown = ask(kernel, cell, words, "" if cell == "A" else "--continue")
        assert shown == [text for _, text in path], f"after {n}: cell {cell}"


def test_what_later_cells_added_to_a_replaced_run_is_kept_and_named(kernel: LiveKernel) -> None:
    ask(kernel, "n1", "first")
    ask(kernel, "n2", "second", "--continue")
    assert kernel.value("_run.record.notices") == ()
    ask(kernel, "n3", "third", "--continue --into third")
    kernel.run("old = nbagent.open_run(third.record.parent_id)")
    assert ask(kernel, "n2", "anew", "--continue") == ["first", "anew"]
    # The replaced run stays as a sibling.
    assert kernel.value("said(nbagent.open_run(old.id))") == ["first", "second"]
    assert kernel.value("_run.record.parent_id == old.record.parent_id")
    notices = kernel.value("_run.record.notices")
    assert len(notices) == 1
    third = kernel.value("third.id[:8]")
    assert f"The answer of 1 later run ({third}) is kept" in notices[0]
    assert notices[0].endswith(f"to continue there, use `%%agent --continue {third}`.")
    words = ask(kernel, "n4", "fourth", f"--continue {third}")
    assert words == ["first", "second", "third", "fourth"]


def test_a_run_that_failed_or_was_limited_is_replaced_and_its_resumes_with_it(
    kernel: LiveKernel,
) -> None:
    kernel.run(
        "steps = ['one', offline.error('LLM_HTTP_ERROR', 'no'), 'two', offline.call('look'), "
        "'three', 'four', 'five']\n"
        "@nbagent.tool\ndef look() -> int:\n    'Look.'\n    return 1\n"
        "limited = offline.script(steps, name='limited')"
    )
    ask(kernel, "l1", "first", "-m offline:limited")
    ask(kernel, "l2", "fails", "--continue")
    assert kernel.value("_run.phase") == "Failed"
    kernel.run("%agent resume", cell_id="l3")
    assert kernel.value("(_run.text, said(_run))") == ("two", ["first", "fails"])
    assert ask(kernel, "l2", "limited", "--continue --max-turns 1") == ["first", "limited"]
    assert kernel.value("_run.stop_reason") == "max_turns"
    assert ask(kernel, "l2", "again", "--continue --max-turns 9") == ["first", "again"]
    assert kernel.value("_run.text") == "three"
    assert ask(kernel, "l4", "then", "--continue") == ["first", "again", "then"]
    assert ask(kernel, "l4", "then, anew", "--continue") == ["first", "again", "then, anew"]


def test_forks_copies_and_sessions_in_between_keep_their_places(kernel: LiveKernel) -> None:
    kernel.run("other = offline.script([str(n) for n in range(99)], name='calm')")
    ask(kernel, "f1", "first", "-m offline:calm --session calm")
    ask(kernel, "f2", "second", "--continue")
    kernel.run("_run.fork('C02', 'forked')", cell_id="f3")
    assert kernel.value("said(_run)") == ["first", "second", "forked"]
    # A copy has an id of its own, and adds; the original replaces all that came after it.
    added = ask(kernel, "f2-copy", "second", "--continue")
    assert added == ["first", "second", "forked", "second"]
    assert ask(kernel, "f2", "other", "--continue") == ["first", "other"]
    ask(kernel, "f4", "elsewhere", "-m offline:calm --session other")
    assert ask(kernel, "f5", "third", "--continue --session calm") == ["first", "other", "third"]
    ask(kernel, "f4", "elsewhere", "-m offline:calm --session other")
    for _ in range(2):
        anew = ask(kernel, "f5", "third, anew", "--continue --session calm")
        assert anew == ["first", "other", "third, anew"]


def test_cell_that_asks_several_times_stacks_once_and_starts_anew_when_run_again(
    kernel: LiveKernel,
) -> None:
    kernel.run("model = offline.script([str(n) for n in range(20)], name='loop')")
    kernel.run("%%agent -m offline:loop --quiet\nfirst", cell_id="a2")
    for _ in range(2):
        kernel.run(
            "for words in ('second', 'third'):\n"
            "    get_ipython().run_cell_magic('agent', '--continue --quiet', words)",
            cell_id="b2",
        )
        assert kernel.value("said(_run)") == ["first", "second", "third"]


def test_a_copied_notebook_with_the_same_cell_ids_leaves_the_others_messages(
    kernel: LiveKernel, folder: Path
) -> None:
    kernel.run("both = offline.script(['ok'] * 9, name='both')")
    ask(kernel, "a", "first", "-m offline:both")
    assert ask(kernel, "b", "second", "--continue --name chat") == ["first", "second"]
    with closing(LiveKernel(folder, JPY_SESSION_NAME=str(folder / "copy.ipynb"))) as copy:
        copy.run(SETUP)
        refused = copy.run("%%agent --continue\nmore", cell_id="b", fails=True)
        assert refused.error is not None
        assert "no run of this notebook yet" in refused.error["evalue"]
        for _ in range(2):
            shown = ask(copy, "b", "mine", "--continue chat --name mine -m offline:odd")
            assert shown == ["first", "second", "mine"]
        assert ask(copy, "c", "more", "--continue") == ["first", "second", "mine", "more"]
        assert ask(copy, "b", "anew", "--continue mine -m offline:odd") == [
            "first",
            "second",
            "anew",
        ]
    with closing(LiveKernel(folder, JPY_SESSION_NAME="orders.ipynb")) as again:
        again.run(SETUP)
        after_a_restart = ask(again, "d", "third", "--continue -m offline:odd")
        assert after_a_restart == ["first", "second", "third"], "its own notebook's last run"


def test_a_cell_of_a_renamed_notebook_replaces_its_answer_as_before(tmp_path: Path) -> None:
    first, second = tmp_path / "first.ipynb", tmp_path / "second.ipynb"
    cells = [{"cell_type": "code", "id": cell, "source": "", "outputs": []} for cell in "ab"]
    first.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    kernel_id = str(uuid.uuid4())
    started = LiveKernel(tmp_path, JPY_SESSION_NAME=str(first), kernel_id=kernel_id)
    with closing(started) as kernel:
        kernel.run(SETUP)
        ask(kernel, "a", "first")
        assert ask(kernel, "b", "second", "--continue") == ["first", "second"]
        recorded = kernel.value(
            "(_run.record.notebook, _run.record.cell_id, _run.record.kernel_id)"
        )
        assert recorded == (str(first), "b", kernel_id)
    first.rename(second)
    with closing(LiveKernel(tmp_path, JPY_SESSION_NAME=str(second))) as kernel:
        kernel.run(SETUP)
        kernel.run("%agent show last", cell_id="new")
        assert ask(kernel, "b", "anew", "--continue") == ["first", "anew"]
        # The connection file of a kernel that no server has started says nothing.
        assert kernel.value("(_run.record.notebook, _run.record.kernel_id)") == (str(second), None)
        assert ask(kernel, "c", "third", "--continue") == ["first", "anew", "third"]
