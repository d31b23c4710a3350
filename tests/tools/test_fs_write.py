"""fs.write and fs.apply_patch: what is asked, what is approved, and what is done."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from host_door import FileDoor

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.policy import ToolLimits, ToolPolicy
from nbagent.files.mounts import Mount, Mounts

FRONT = {"operation": "updateFrontmatter"}
TEXT = "---\nstatus: open\n---\none\ntwo\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.md").write_text(TEXT)
    return folder


def test_a_file_is_written(door: FileDoor, project: Path) -> None:
    given = door.data("fs.write", path="new/b.md", content="ä\n")
    data = "ä\n".encode()
    assert given == {
        "path": "@project/new/b.md",
        "bytesWritten": 3,
        "sha256After": sha256_hex(data),
    }
    assert (project / "new" / "b.md").read_bytes() == data
    given = door.data("fs.write", path="a.md", content="new")
    assert (given["sha256Before"], given["sha256After"]) == (sha256_hex(TEXT), sha256_hex("new"))


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "span": ({"oldText": "two", "newText": "TWO"}, TEXT.replace("two", "TWO")),
    "diff": ({"diff": "@@ -5 +5 @@\n-two\n+TWO\n"}, TEXT.replace("two", "TWO")),
    "keys": ({**FRONT, "update": {"status": "done"}}, TEXT.replace("open", "done")),
    "key away": ({**FRONT, "update": {"status": None}}, TEXT.replace("status: open\n", "")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_patch_takes_one_of_three_forms(door: FileDoor, project: Path, form: str) -> None:
    arguments, new = FORMS[form]
    given = door.data("fs.apply_patch", path="a.md", ifMatchSha256=sha256_hex(TEXT), **arguments)
    assert given == {
        "path": "@project/a.md",
        "sha256Before": sha256_hex(TEXT),
        "sha256After": sha256_hex(new),
    }
    assert (project / "a.md").read_text() == new


def test_a_patch_keeps_bytes_that_are_no_text(door: FileDoor, project: Path) -> None:
    (project / "l.txt").write_bytes(b"caf\xe9\r\nold\r\n")
    door.data("fs.apply_patch", path="l.txt", oldText="old", newText="n\u00e9w")
    assert (project / "l.txt").read_bytes() == b"caf\xe9\r\nn\xc3\xa9w\r\n"


WRITE, PATCH = "fs.write", "fs.apply_patch"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "hash": (WRITE, {"path": "a.md", "content": "x", "ifMatchSha256": "0" * 64}, "E_PRECON"),
    "too much": (WRITE, {"path": "a.md", "content": "x" * 2_000}, "E_WRITE_LIMIT"),
    "surrogate": (WRITE, {"path": "a.md", "content": "\ud800"}, "E_INVALID_ARGUMENTS"),
    "folder": (WRITE, {"path": "sub", "content": "x"}, "E_PRECON"),
    "read only": (WRITE, {"path": "@data/x", "content": "x"}, "E_SANDBOX_VIOLATION"),
    "secret": (WRITE, {"path": ".env", "content": "x"}, "E_DENIED"),
    "huge": (WRITE, {"path": "sparse", "content": "x"}, "E_WRITE_LIMIT"),
    "no form": (PATCH, {"path": "a.md"}, "E_INVALID_ARGUMENTS"),
    "two forms": (PATCH, {"path": "a.md", "diff": "x", "newText": "y"}, "E_INVALID"),
    "no span": (PATCH, {"path": "a.md", "oldText": "x", "newText": "y"}, "E_PRECON"),
    "no file": (PATCH, {"path": "new/n", "oldText": "x", "newText": "y"}, "ENOENT"),
    "front matter": (PATCH, {"path": "bad.md", **FRONT, "update": {"a": 1}}, "E_INVALID_FRONT"),
}


@pytest.mark.timed
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_change_is_typed_asks_nobody_and_changes_nothing(
    project: Path, tmp_path: Path, case: str
) -> None:
    (tmp_path / "data").mkdir()
    (project / "sub").mkdir()
    (project / "link.md").symlink_to("a.md")
    (project / "bad.md").write_text("---\na: [1\n---\n")
    with (project / "sparse").open("wb") as file:
        file.truncate(10**10)
    limits = ToolLimits(max_write_bytes=1_000)
    mounts = Mounts.of(project, extra=[Mount("@data", tmp_path / "data", "ro")])
    door = FileDoor(project, mounts=mounts, policy=ToolPolicy(limits=limits))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    name, arguments, code = REFUSED[case]
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        door.prepared(name, **arguments)
    assert raised.value.code.startswith(code)
    assert str(tmp_path) not in raised.value.message
    assert time.monotonic() - began < 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (project / "a.md").read_text() == TEXT


def test_a_write_is_asked_with_the_whole_diff_and_in_one_form(door: FileDoor) -> None:
    prepared = door.prepared("fs.write", path="./a.md", content=TEXT + "three\n")
    form = {"path": "@project/a.md", "content": TEXT + "three\n", "ifMatchSha256": None}
    assert prepared.arguments == form
    preview = prepared.preview
    assert preview.ruling == "ask"
    assert preview.why == f"change @project/a.md ({len(TEXT) + 6} bytes)"
    (piece,) = preview.pieces
    assert (piece.label, piece.kind) == ("change of @project/a.md", "diff")
    assert "+three\n" in piece.text
    assert " two\n" in piece.text
    content = "".join(f"line {n}\n" for n in range(5_000))
    preview = door.prepared("fs.write", path="new.md", content=content).preview
    assert preview.why.startswith("create @project/new.md")
    (piece,) = preview.pieces
    assert (piece.label, piece.kind) == ("new file @project/new.md", "code")
    assert piece.text == content
    assert {"path", "content"} <= set(piece.instead_of)


def test_what_is_no_text_is_asked_with_sizes_and_hashes(door: FileDoor, project: Path) -> None:
    (project / "b.bin").write_bytes(b"\0\1\2")
    (piece,) = door.prepared("fs.write", path="b.bin", content="text").preview.pieces
    assert piece.kind == "text"
    assert f"old: 3 bytes, SHA-256 {sha256_hex(bytes([0, 1, 2]))}" in piece.text
    assert f"new: 4 bytes, SHA-256 {sha256_hex('text')}" in piece.text


def test_the_state_is_written_without_asking(door: FileDoor, tmp_path: Path) -> None:
    prepared = door.prepared("fs.write", path="@state/s.json", content="{}")
    assert prepared.preview.ruling == "allow"
    assert door.run_prepared(prepared, approved=False).result.ok
    assert (tmp_path / "state" / "s.json").read_text() == "{}"


CHANGES: list[tuple[str, dict[str, str]]] = [
    ("fs.write", {"path": "a.md", "content": "new"}),
    ("fs.write", {"path": "b.md", "content": "new"}),
    ("fs.apply_patch", {"path": "a.md", "oldText": "two", "newText": "2"}),
]


@pytest.mark.parametrize(("name", "arguments"), CHANGES, ids=["write", "new file", "patch"])
def test_a_file_that_changed_is_not_what_was_approved(
    door: FileDoor, project: Path, name: str, arguments: dict[str, str]
) -> None:
    first = door.prepared(name, **arguments)
    (project / arguments["path"]).write_text(TEXT + "more\n")
    error = door.run_prepared(first, approved=True).result.error
    assert error is not None
    assert error.code == "E_PRECONDITION_FAILED"
    assert "approved" in error.message
    assert (project / arguments["path"]).read_text() == TEXT + "more\n"
    second = door.prepared(name, **arguments)
    assert second.preview.binds != first.preview.binds
    assert door.run_prepared(second, approved=True).result.ok


def test_a_change_that_nobody_was_asked_about_is_planned_again(
    door: FileDoor, project: Path
) -> None:
    calls = [("one", "1"), ("two", "2"), ("three", "3")]
    patches = [
        door.prepared("fs.apply_patch", path="a.md", oldText=old, newText=new)
        for old, new in calls[:2]
    ]
    assert all(door.run_prepared(patch, approved=False).result.ok for patch in patches)
    assert (project / "a.md").read_text() == TEXT.replace("one", "1").replace("two", "2")
    error = door.run_prepared(patches[0], approved=False).result.error
    assert error is not None
    assert error.code == "E_PRECONDITION_FAILED"


def test_the_tools_that_are_named_are_offered_with_the_names_of_the_wire(project: Path) -> None:
    specs = FileDoor(project).specs
    assert {name: " ".join(spec.parameters["properties"]) for name, spec in specs.items()} == {
        "fs.read": "path offset limit encoding",
        "fs.list": "path glob depth sizes",
        "fs.search": "query path glob regex context maxMatches",
        "fs.write": "path content ifMatchSha256",
        "fs.apply_patch": "path oldText newText diff operation update ifMatchSha256",
    }
    traits = {name: (spec.traits.ruling, spec.traits.interruptible) for name, spec in specs.items()}
    changing = ("fs.write", "fs.apply_patch")
    assert traits == {n: ("ask", False) if n in changing else ("allow", True) for n in specs}
    there = "The mounts are: @project (read and write), @state (read and write)."
    assert specs["fs.list"].description.endswith(there)
    assert list(FileDoor(project, words=("fs.search",)).specs) == ["fs.search"]
    with pytest.raises(UsageError, match=r"fs\.read"):
        FileDoor(project, words=("fs.raed",))


LOOKED: dict[str, dict[str, Any]] = {
    "fs.read": {"path": "@data/a.md"},
    "fs.search": {"path": "@data", "query": "one"},
    "fs.write": {"path": "@data/a.md", "content": "new"},
}


@pytest.mark.skipif(sys.platform == "win32", reason="an open folder is not renamed there")
@pytest.mark.parametrize("name", LOOKED)
def test_another_folder_of_the_same_mount_is_not_what_was_approved(
    project: Path, tmp_path: Path, name: str
) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(f"one of {folder}\n")
    door = FileDoor(
        project, mounts=Mounts.of(project, extra=[Mount("@data", tmp_path / "x", "rw")])
    )
    first = door.prepared(name, **LOOKED[name])
    assert str(tmp_path) not in first.preview.binds
    (tmp_path / "x").rename(tmp_path / "old")
    (tmp_path / "y").rename(tmp_path / "x")
    assert door.prepared(name, **LOOKED[name]).preview.binds != first.preview.binds
    # What was looked at is what is used, wherever it is by now.
    assert door.run_prepared(first, approved=True).result.ok
    assert (tmp_path / "x" / "a.md").read_text() == "one of y\n"
