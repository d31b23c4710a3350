"""fs.write and fs.apply_patch: what is asked, what is approved, and what is done."""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fs_door import Door

from nbagent.contracts.policy import ToolLimits, ToolPolicy
from nbagent.contracts.secrets import register
from nbagent.files.locks import locked
from nbagent.files.mounts import Mount, Mounts
from nbagent.files.opening import open_root

TEXT = "---\nstatus: open\n---\none\ntwo\n"


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.md").write_text(TEXT)
    return folder


def test_a_file_is_written(door: Door, project: Path) -> None:
    given = door.data("fs.write", path="new/b.md", content="ä\n")
    data = "ä\n".encode()
    assert given == {"path": "@project/new/b.md", "bytesWritten": 3, "sha256After": sha(data)}
    assert (project / "new" / "b.md").read_bytes() == data


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "span": ({"oldText": "two", "newText": "TWO"}, TEXT.replace("two", "TWO")),
    "diff": ({"diff": "@@ -5 +5 @@\n-two\n+TWO\n"}, TEXT.replace("two", "TWO")),
    "keys": ({"updateFrontmatter": {"status": "done"}}, TEXT.replace("open", "done")),
    "key away": ({"updateFrontmatter": {"status": None}}, TEXT.replace("status: open\n", "")),
    "deleted": ({"oldText": "two\n", "newText": ""}, TEXT.replace("two\n", "")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_patch_takes_one_of_three_forms(door: Door, project: Path, form: str) -> None:
    arguments, new = FORMS[form]
    given = door.data("fs.apply_patch", path="a.md", ifMatchSha256=sha(TEXT), **arguments)
    assert given == {"path": "@project/a.md", "sha256Before": sha(TEXT), "sha256After": sha(new)}
    assert (project / "a.md").read_text() == new


def test_a_patch_keeps_bytes_that_are_no_text(door: Door, project: Path) -> None:
    (project / "l.txt").write_bytes(b"caf\xe9\r\nold\r\n")
    door.data("fs.apply_patch", path="l.txt", oldText="old", newText="n\u00e9w")
    assert (project / "l.txt").read_bytes() == b"caf\xe9\r\nn\xc3\xa9w\r\n"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("fs.write", {"path": "a.md", "content": "x", "ifMatchSha256": "0" * 64}, "E_PRECON"),
        ("fs.write", {"path": "none.md", "content": "x", "ifMatchSha256": "0" * 64}, "E_PRECON"),
        ("fs.write", {"path": "a.md", "content": "x" * 2_000}, "E_WRITE_LIMIT"),
        ("fs.write", {"path": "a.md", "content": "\ud800"}, "E_INVALID_ARGUMENTS"),
        ("fs.write", {"path": ".", "content": "x"}, "E_SANDBOX_VIOLATION"),
        ("fs.write", {"path": "sub", "content": "x"}, "E_PRECON"),
        ("fs.write", {"path": "a.md/x", "content": "x"}, "ENOENT"),
        ("fs.write", {"path": "link.md", "content": "x"}, "E_SANDBOX_VIOLATION"),
        ("fs.write", {"path": ".git/hooks/x", "content": "x"}, "E_SANDBOX_VIOLATION"),
        ("fs.write", {"path": "@data/x", "content": "x"}, "E_DENIED"),
        ("fs.write", {"path": ".env", "content": "x"}, "E_DENIED"),
        ("fs.apply_patch", {"path": "a.md"}, "E_INVALID_ARGUMENTS"),
        ("fs.apply_patch", {"path": "a.md", "oldText": "one"}, "E_INVALID_ARGUMENTS"),
        ("fs.apply_patch", {"path": "a.md", "diff": "x", "newText": "y"}, "E_INVALID_ARGUMENTS"),
        ("fs.apply_patch", {"path": "a.md", "oldText": "x", "newText": "y"}, "E_PRECON"),
        ("fs.apply_patch", {"path": "new/none", "oldText": "x", "newText": "y"}, "ENOENT"),
        ("fs.apply_patch", {"path": "b.bin", "oldText": "x", "newText": "y"}, "E_PRECON"),
        ("fs.apply_patch", {"path": "bad.md", "updateFrontmatter": {"a": 1}}, "E_INVALID_FRONT"),
        (
            "fs.apply_patch",
            {"path": "a.md", "oldText": "one", "newText": "x" * 2_000},
            "E_WRITE_LIMIT",
        ),
    ],
    ids=[
        *("hash", "hash of nothing", "too much", "surrogate", "mount", "folder", "file as folder"),
        *("link", "git", "read only", "secret", "no form", "half a form", "two forms", "no span"),
        *("no file", "binary", "front matter", "too much after"),
    ],
)
def test_a_refused_change_is_typed_asks_nobody_and_changes_nothing(
    project: Path, tmp_path: Path, name: str, arguments: dict[str, Any], code: str
) -> None:
    (tmp_path / "data").mkdir()
    (project / "sub").mkdir()
    (project / "link.md").symlink_to("a.md")
    (project / "b.bin").write_bytes(b"x\0")
    (project / "bad.md").write_text("---\na: [1\n---\n")
    door = Door(
        project,
        mounts=Mounts.of(project, extra=[Mount("@data", tmp_path / "data", "ro")]),
        policy=ToolPolicy(limits=ToolLimits(max_write_bytes=1_000)),
    )
    before = sorted(path.name for path in tmp_path.rglob("*"))
    told = door.error(name, **arguments)
    assert told.code.startswith(code)
    preview = door.preview(name, **arguments)
    assert (preview.ruling, preview.pieces) == ("allow", ())
    assert door.error(name, **arguments).code == told.code
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (project / "a.md").read_text() == TEXT


def test_a_file_too_large_to_be_read_is_not_patched_and_may_be_replaced(project: Path) -> None:
    door = Door(project, policy=ToolPolicy(limits=ToolLimits(max_read_bytes=10)))
    patch = {"path": "a.md", "diff": "@@ -0,0 +1 @@\n+x\n"}
    assert door.preview("fs.apply_patch", **patch).ruling == "allow"
    assert door.error("fs.apply_patch", **patch).code == "E_READ_LIMIT"
    preview = door.preview("fs.write", path="a.md", content="new")
    assert "new: 3 bytes" in preview.pieces[0].text
    assert door.data("fs.write", path="a.md", content="new", approved=preview.binds)


def test_a_write_to_the_project_is_asked_with_the_whole_diff(door: Door) -> None:
    preview = door.preview("fs.write", path="./a.md", content=TEXT + "three\n")
    assert preview.ruling == "ask"
    assert preview.why == f"change @project/a.md ({len(TEXT) + 6} bytes)"
    assert preview.arguments is not None
    assert preview.arguments["path"] == "@project/a.md"
    (piece,) = preview.pieces
    assert (piece.label, piece.kind) == ("@project/a.md", "diff")
    assert "+three\n" in piece.text
    assert " two\n" in piece.text


def test_a_new_file_is_asked_with_all_of_it(door: Door) -> None:
    content = "".join(f"line {n}\n" for n in range(5_000))
    preview = door.preview("fs.write", path="new.md", content=content)
    assert preview.why.startswith("create @project/new.md")
    assert preview.pieces[0].text.count("\n+line") == 5_000


def test_what_is_no_text_is_asked_with_sizes_and_hashes(door: Door, project: Path) -> None:
    (project / "b.bin").write_bytes(b"\0\1\2")
    (piece,) = door.preview("fs.write", path="b.bin", content="text").pieces
    assert piece.kind == "text"
    assert f"old: 3 bytes, SHA-256 {sha(bytes([0, 1, 2]))}" in piece.text
    assert f"new: 4 bytes, SHA-256 {sha('text')}" in piece.text


def test_a_known_key_is_hidden_in_a_diff(door: Door, project: Path) -> None:
    register("sk-very-secret-key-123")
    (project / "k.txt").write_text("sk-very-secret-key-123\n")
    (piece,) = door.preview("fs.write", path="k.txt", content="none\n").pieces
    assert "sk-very" not in piece.text
    assert "[redacted]" in piece.text


def test_the_state_is_written_without_asking(door: Door, tmp_path: Path) -> None:
    preview = door.preview("fs.write", path="@state/s.json", content="{}")
    assert preview.ruling == "allow"
    door.data("fs.write", path="@state/s.json", content="{}")
    assert (tmp_path / "state" / "s.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fs.write", {"path": "a.md", "content": "new"}),
        ("fs.write", {"path": "b.md", "content": "new"}),
        ("fs.apply_patch", {"path": "a.md", "oldText": "two", "newText": "2"}),
    ],
    ids=["write", "write a new file", "patch"],
)
def test_an_approval_does_not_serve_for_a_file_that_changed(
    door: Door, project: Path, name: str, arguments: dict[str, str]
) -> None:
    approved = door.preview(name, **arguments).binds
    (project / arguments["path"]).write_text(TEXT + "more\n")
    error = door.error(name, approved=approved, **arguments)
    assert error.code == "E_PRECONDITION_FAILED"
    assert "approved" in error.message
    assert (project / arguments["path"]).read_text() == TEXT + "more\n"
    approved = door.preview(name, **arguments).binds
    assert door.data(name, approved=approved, **arguments)


def test_writing_tools_are_asked_and_are_not_interrupted(door: Door) -> None:
    traits = {name: spec.traits for name, spec in door.specs.items()}
    for name in ("fs.write", "fs.apply_patch"):
        assert (traits[name].ruling, traits[name].interruptible) == ("ask", False)
    for name in ("fs.read", "fs.list", "fs.search"):
        assert (traits[name].ruling, traits[name].interruptible) == ("allow", True)


def test_the_schema_has_the_names_of_the_wire(door: Door) -> None:
    specs = {name: spec.parameters for name, spec in door.specs.items()}
    assert set(specs["fs.read"]["properties"]) == {"path", "offset", "limit", "encoding"}
    assert set(specs["fs.list"]["properties"]) == {"path", "glob", "depth"}
    wanted = {"query", "path", "glob", "regex", "context", "maxMatches"}
    assert set(specs["fs.search"]["properties"]) == wanted
    assert set(specs["fs.write"]["properties"]) == {"path", "content", "ifMatchSha256"}
    forms = {"oldText", "newText", "diff", "updateFrontmatter"}
    assert set(specs["fs.apply_patch"]["properties"]) == {"path", "ifMatchSha256", *forms}
    assert specs["fs.write"]["required"] == ["path", "content"]
    assert all(spec["properties"]["path"].get("description") for spec in specs.values())


def test_a_write_says_what_it_replaced(door: Door) -> None:
    given = door.data("fs.write", path="a.md", content="new")
    assert (given["sha256Before"], given["sha256After"]) == (sha(TEXT), sha("new"))
    assert "sha256Before" not in door.data("fs.write", path="b.md", content="new")


@pytest.mark.skipif(sys.platform == "win32", reason="no file there is sparse by itself")
@pytest.mark.parametrize("name", ["fs.write", "fs.apply_patch"])
def test_a_huge_file_is_refused_at_once(door: Door, project: Path, name: str) -> None:
    with (project / "sparse").open("wb") as file:
        file.truncate(10**12)
    arguments = {"path": "sparse", "content": "x"}
    if name == "fs.apply_patch":
        arguments = {"path": "sparse", "oldText": "a", "newText": "b"}
    began = time.monotonic()
    preview = door.preview(name, **arguments)
    error = door.error(name, **arguments)
    assert error.code == ("E_WRITE_LIMIT" if name == "fs.write" else "E_READ_LIMIT")
    assert "ask the person" in error.message
    assert preview.pieces == ()
    # Also where nobody looked before.
    assert door.error(name, **arguments).code == error.code
    assert time.monotonic() - began < 2
    assert (project / "sparse").stat().st_size == 10**12


@pytest.mark.skipif(sys.platform == "win32", reason="the lock of a folder is POSIX's")
def test_a_write_that_waits_for_another_writer_is_stopped(door: Door, project: Path) -> None:
    door.stop_after(0.2)
    began = time.monotonic()
    with closing(open_root(project)) as folder, locked(folder):
        assert door.error("fs.write", path="a.md", content="x").code == "E_INTERRUPTED"
    assert 0.2 < time.monotonic() - began < 2
    assert (project / "a.md").read_text() == TEXT


@pytest.mark.parametrize("name", ["fs.read", "fs.list", "fs.search", "fs.write", "fs.apply_patch"])
def test_an_approval_does_not_serve_for_another_folder_of_the_same_mount(
    project: Path, tmp_path: Path, name: str
) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "fs.read": {"path": "@data/a.md"},
        "fs.list": {"path": "@data"},
        "fs.search": {"path": "@data", "query": "one"},
        "fs.write": {"path": "@data/a.md", "content": "new"},
        "fs.apply_patch": {"path": "@data/a.md", "oldText": "one", "newText": "1"},
    }
    doors: list[Door] = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(TEXT)
        mounts = Mounts.of(project, extra=[Mount("@data", tmp_path / folder, "rw")])
        doors.append(Door(project, mounts=mounts))
    first, other = (door.preview(name, **arguments[name]).binds for door in doors)
    assert first != other
    assert str(tmp_path) not in first
    assert doors[1].error(name, approved=first, **arguments[name]).code == "E_PRECONDITION_FAILED"
    assert (tmp_path / "y" / "a.md").read_text() == TEXT
    # Nor for one that took the place of the folder.
    (tmp_path / "x").rename(tmp_path / "old")
    (tmp_path / "y").rename(tmp_path / "x")
    assert doors[0].preview(name, **arguments[name]).binds != first
    assert doors[0].error(name, approved=first, **arguments[name])
    (tmp_path / "x").rename(tmp_path / "y")
    (tmp_path / "old").rename(tmp_path / "x")
    assert doors[0].data(name, approved=first, **arguments[name])


@pytest.mark.parametrize(
    ("older", "name"),
    [("read_file", "fs.read"), ("write_file", "fs.write"), ("list_files", "fs.list")],
)
def test_an_older_name_says_whose_it_is(project: Path, older: str, name: str) -> None:
    door = Door(project, words=("fs", older))
    traits = {name: spec.traits for name, spec in door.specs.items()}
    assert traits[older].alias_of == name
    assert traits[name].alias_of == ""
    alone = Door(project, words=(older,))
    given = {"path": "new.md", "content": "x"} if name == "fs.write" else {"path": "./a.md"}
    told = alone.preview(older, **given).arguments
    assert told is not None
    assert told["path"].startswith("@project/")
