"""`python -m nbagent …` in a shell: what it prints, and what it does to a file."""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from magic_shell import MagicShell

import nbagent
from nbagent.__main__ import FORMATS, filter_notebook, main

RECORD = {"version": 1, "secret": "a tool's result"}


def notebook(*outputs: dict[str, Any]) -> str:
    cells = [{"cell_type": "code", "outputs": [*outputs]}, {"cell_type": "markdown", "source": "ü"}]
    return json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}, ensure_ascii=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A notebook with a picture, its record, and other metadata."""
    picture = {"data": {"text/html": "<p>x</p>"}, "metadata": {"nbagent": RECORD, "mine": 1}}
    file = tmp_path / "saved.ipynb"
    file.write_text(notebook(picture, {"output_type": "stream", "text": "hello"}), "utf-8")
    file.chmod(0o640)
    return file


def test_doctor_runs_and_show_print_plain_text(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shell.agent("-m offline:demo --quiet --name first", "Hello?")
    said: dict[str, str] = {}
    for words in ("doctor", "runs", "runs 1", "show first", "show"):
        assert main([*words.split()]) == 0
        said[words] = capsys.readouterr().out
    assert "1 run, 1 turn" in said["doctor"]
    assert said["runs"].splitlines()[1].split()[:2] == [run.id[:8], "first"]
    assert run.text.splitlines()[0] in said["show first"] == said["show"]
    assert "\x1b" not in "".join(said.values())


@pytest.mark.parametrize("form", FORMATS)
def test_export_goes_to_a_file_or_to_stdout(
    shell: MagicShell, capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    shell.agent("-m offline:demo --quiet --name first", "Which city?")
    capsys.readouterr()
    file = tmp_path / "exported"
    assert main(["export", "first", "--format", form, "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["export", "first", "--format", form]) == 0
    assert capsys.readouterr().out.strip() == file.read_text("utf-8").strip()
    assert main(["export", "first", "-o", str(tmp_path / "no" / "folder")]) == 1


def test_wrong_words_are_one_line_and_fail(
    shell: MagicShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nope"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "'nope'" in captured.err
    for wrong in ["shwo"], ["trust", "--revok"]:
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2


def test_strip_keeps_the_pictures_and_drops_the_records(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = saved.with_name("link.ipynb")
    link.symlink_to(saved)
    assert main(["strip", str(link)]) == 0
    assert "dropped the records of 1 output;" in capsys.readouterr().out
    after = saved.read_text("utf-8")
    assert "secret" not in after
    assert "ü" in after
    (picture, stream), _ = (cell.get("outputs", (0, 0)) for cell in json.loads(after)["cells"])
    assert picture == {"data": {"text/html": "<p>x</p>"}, "metadata": {"mine": 1}}
    assert stream["text"] == "hello"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert main(["strip", str(saved)]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert (saved.read_text("utf-8"), len(os.listdir(saved.parent))) == (after, 2)


PLAIN = notebook({"metadata": {"nbagent": []}})
READABLE: dict[str, bytes] = {
    "plain": PLAIN.encode(),
    "a mark of UTF-8": codecs.BOM_UTF8 + PLAIN.encode(),
    "two marks": codecs.BOM_UTF8 * 2 + PLAIN.encode(),
    "UTF-16": codecs.BOM_UTF16_LE + PLAIN.encode("utf-16-le"),
    "UTF-16, big end first": codecs.BOM_UTF16_BE + PLAIN.encode("utf-16-be"),
    "no metadata": notebook({"metadata": {"nbagent": []}}, {"metadata": None}, {}).encode(),
    "no outputs": PLAIN.replace('"cell_type": "markdown"', '"outputs": null').encode(),
}


@pytest.mark.parametrize("form", READABLE)
def test_what_one_reader_of_notebooks_takes_the_other_takes_too(tmp_path: Path, form: str) -> None:
    file = tmp_path / "x.ipynb"
    file.write_bytes(READABLE[form])
    with pytest.warns(UserWarning, match="no saved runs"):
        assert nbagent.read_notebook(file).runs().empty
    assert main(["strip", str(file)]) == 0
    assert "nbagent" not in file.read_text("utf-8")
    assert "ü" in file.read_text("utf-8")


BROKEN = {
    "nothing there": None,
    "no JSON": "{",
    "no notebook": "[1]",
    "cells of another kind": '{"cells": [1]}',
    "outputs of another kind": '{"cells": [{"outputs": [1]}]}',
    "metadata of another kind": '{"cells": [{"outputs": [{"metadata": [1]}]}]}',
    "a mark inside": '{"cells"\ufeff: []}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_notebook_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file = tmp_path / "broken.ipynb"
    if text is not None:
        file.write_text(text)
    assert main(["strip", str(file)]) == 1
    assert "is not a readable notebook" in capsys.readouterr().err
    with pytest.raises(nbagent.UsageError, match="is not a notebook"):
        nbagent.read_notebook(file)
    assert [*tmp_path.iterdir()] == ([file] if text is not None else [])
    assert text is None or file.read_text() == text


def test_each_file_is_stripped_by_itself_and_its_name_cannot_speak_to_the_terminal(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo, locked = saved.with_name("fifo"), saved.with_name("locked.ipynb")
    os.mkfifo(fifo)
    shutil.copy(saved, locked)
    locked.chmod(0o444)
    odd = saved.with_name("ev\x1b]0;x\x07il.ipynb")
    half = json.loads(saved.read_text("utf-8"))
    half["cells"][1]["source"] = "\ud800"
    odd.write_bytes(codecs.BOM_UTF8 + json.dumps(half).encode())
    assert main(["strip", str(fifo), "/dev/zero", str(locked), str(odd), str(saved)]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("dropped the records of 1 output") == 2
    assert captured.err.count("is not a writable file") == 3
    assert "\x1b" not in captured.out + captured.err
    assert json.loads(odd.read_text("utf-8"))["cells"][1]["source"] == "\ud800"
    assert "secret" in locked.read_text("utf-8")
    assert "secret" not in odd.read_text("utf-8") + saved.read_text("utf-8")


def test_interrupted_write_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def interrupted(*paths: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["strip", str(saved)])
    assert (saved.read_bytes(), len(os.listdir(saved.parent))) == (before, 1)


def test_module_runs_in_a_shell(saved: Path) -> None:
    command = [sys.executable, "-m", "nbagent", "strip", saved.name]
    done = subprocess.run(command, cwd=saved.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "saved.ipynb: dropped the records of 1 output; the views stay\n"


RECORDED = {
    "cells": [
        {
            "cell_type": "code",
            "outputs": [{"data": {"text/plain": "ü"}, "metadata": {"nbagent": RECORD, "mine": 1}}],
        }
    ],
    "metadata": {},
}
LAYOUTS: dict[str, Callable[[Any], str]] = {
    "Jupyter's": lambda value: json.dumps(value, ensure_ascii=False, indent=1) + "\n",
    "no line end": lambda value: json.dumps(value, ensure_ascii=False, indent=1),
    "two spaces, escapes": lambda value: json.dumps(value, indent=2) + "\n",
    "tabs": lambda value: json.dumps(value, ensure_ascii=False, indent="\t") + "\n",
    "one line": json.dumps,
    "no spaces": lambda value: json.dumps(value, separators=(",", ":")),
    "Windows": lambda value: json.dumps(value, indent=1).replace("\n", "\r\n") + "\r\n",
}


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS)
def test_filter_drops_the_records_and_keeps_every_other_byte(write: Callable[[Any], str]) -> None:
    bare = json.loads(json.dumps(RECORDED))
    del bare["cells"][0]["outputs"][0]["metadata"]["nbagent"]
    for notebook in (RECORDED, bare):
        assert filter_notebook(write(notebook).encode()) == (write(bare).encode(), "")


ODD_NUMBERS = '"x": [NaN, Infinity, -Infinity]'


def test_numbers_that_nbformat_reads_are_read_and_written(saved: Path) -> None:
    text = saved.read_text("utf-8").replace('"metadata": {}', f'"metadata": {{{ODD_NUMBERS}}}')
    filtered, warning = filter_notebook(text.encode())
    assert (b"secret" in filtered, warning) == (False, "")
    assert ODD_NUMBERS in filtered.decode()
    saved.write_text(text.replace(json.dumps(RECORD), "[]"), "utf-8")
    with pytest.warns(UserWarning, match="no saved runs"):
        nbagent.read_notebook(saved)
    saved.write_text(text, "utf-8")
    assert main(["strip", str(saved)]) == 0
    assert saved.read_bytes() == filtered


ODD_PARTS: dict[str, str] = {
    "a cell": "5",
    "outputs": '{"outputs": 5}',
    "an output": '{"outputs": [5, null]}',
    "metadata of an output": '{"outputs": [{"metadata": [1]}]}',
}


@pytest.mark.parametrize("cell", ODD_PARTS.values(), ids=ODD_PARTS)
def test_an_odd_part_beside_good_ones_stays_and_is_named(saved: Path, cell: str) -> None:
    text = saved.read_text("utf-8").replace('"cells": [', f'"cells": [{cell}, ')
    filtered, warning = filter_notebook(text.encode())
    assert b"secret" not in filtered
    assert cell.encode() in filtered
    assert warning == "records not removed: a cell or an output is not as nbformat says"


UNREAD: dict[str, bytes] = {
    "a comma too many": PLAIN.replace("}]", "},]").encode(),
    "marks of a conflict": b"<<<<<<< HEAD\n" + PLAIN.encode(),
    "a control character": PLAIN.replace("ü", "\x01").encode(),
    "Latin-1": PLAIN.encode("latin-1"),
    "UTF-16 without a mark": PLAIN.encode("utf-16-le"),
    "a number of 5,000 digits": PLAIN.replace(": 4", ": " + "4" * 5_000).encode(),
    "nbformat 3": PLAIN.replace('"cells"', '"worksheets"').encode(),
}


UNTOUCHED: dict[str, bytes] = {
    **{name: (text or "").encode("utf-8", "surrogatepass") for name, text in BROKEN.items()},
    "no record": notebook({"metadata": {"mine": 1.0}}).replace("{", "{ ").encode(),
    "an image": bytes(range(256)),
    "nothing": b"",
    **UNREAD,
}
SILENT = {"nothing there", "nothing", "no record"}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_filter_returns_what_it_cannot_read_as_it_is_and_says_so(name: str) -> None:
    data = UNTOUCHED[name]
    command = [sys.executable, "-m", "nbagent", "strip", "--filter"]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    lines = done.stderr.splitlines()
    assert done.stdout == data
    assert [line.startswith(b"records not removed: ") for line in lines] == (
        [] if name in SILENT else [True]
    )


def test_git_keeps_the_records_out_of_commits_and_in_the_file(saved: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *words]
        done = subprocess.run(command, cwd=saved.parent, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "-q")
    git("config", "filter.nbagent.clean", f'"{sys.executable}" -m nbagent strip --filter')
    (saved.parent / ".gitattributes").write_text("*.ipynb filter=nbagent\n")
    (saved.parent / "broken.ipynb").write_text("{")
    git("add", ".")
    git("commit", "-q", "-m", "a notebook")
    assert "secret" in saved.read_text("utf-8")
    committed = git("show", "HEAD:saved.ipynb")
    assert "secret" not in committed
    assert json.loads(committed)["cells"][0]["outputs"][0]["metadata"] == {"mine": 1}
    assert git("show", "HEAD:broken.ipynb") == "{"
    assert git("status", "--short") == ""


@pytest.mark.parametrize("words", ["strip", "strip --filter x.ipynb"])
def test_strip_changes_files_or_filters_and_says_so(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 1
    assert "strip needs the notebooks to change, or --filter" in capsys.readouterr().err


def test_patterns_of_nbval_are_printed_or_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["nbval-config"]) == 0
    printed = capsys.readouterr().out
    assert main(["nbval-config", "-o", str(tmp_path / "nbval.cfg")]) == 0
    assert (tmp_path / "nbval.cfg").read_text("utf-8") == printed
    patterns = ConfigParser(interpolation=None)
    patterns.read_string(printed)
    run_id, bar = patterns["run_id"], patterns["bar"]
    replaced = re.sub(run_id["regex"], run_id["replace"], "run 1a2b3c4d")
    assert replaced == "run RUN_ID"
    assert re.sub(bar["regex"], bar["replace"], "flex-grow:12") == "BAR"
