"""The file tools as a model sees them: what is too much, what is asked, approved and done."""

from __future__ import annotations

import base64
import io
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from host_door import FileDoor

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.policy import ToolPolicy
from nbagent.files.mounts import Mount, Mounts


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("b.md", "sub/c.md", "sub/deep/d.md", "build/e.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"needle in {name}\n")
    (folder / "a.txt").write_bytes("one\ntwo ä\r\nthree\n".encode())
    (folder / ".gitignore").write_text("build/\n")
    (folder / "a.md").write_text(TEXT)
    (folder / "link.md").symlink_to("b.md")
    (folder / ".env").write_text("needle=1")
    return folder


def limited(project: Path, **limits: Any) -> FileDoor:
    return FileDoor(project, policy=ToolPolicy(limits=ToolLimits(**limits)))


def test_a_file_is_given_whole(door: FileDoor, project: Path) -> None:
    data = (project / "a.txt").read_bytes()
    assert door.data("fs.read", path="a.txt") == {
        "path": "@project/a.txt",
        "bytes": len(data),
        "sha256": sha256_hex(data),
        "truncated": False,
        "content": "one\ntwo ä\r\nthree\n",
    }
    given = door.data("fs.read", path="a.txt", offset=2, limit=1)
    assert (given["content"], given["truncated"]) == ("two ä\r\n", False)
    assert "offset=3" in given["hint"]


def test_a_long_file_is_cut_at_a_line_and_says_how_to_go_on(door: FileDoor, project: Path) -> None:
    lines = [f"line {n} " + "x" * 50 + "\n" for n in range(1, 3_001)]
    (project / "long.txt").write_text("".join(lines))
    given = door.data("fs.read", path="long.txt")
    assert given["truncated"] is True
    assert "content" not in given
    shown = given["contentPreview"].splitlines(keepends=True)
    assert shown == lines[: len(shown)]
    assert f"offset={len(shown) + 1}" in given["hint"]
    rest = door.data("fs.read", path="long.txt", offset=len(shown) + 1, limit=2)
    assert rest["content"] == "".join(lines[len(shown) : len(shown) + 2])
    (project / "min.js").write_text("x" * 100_000)
    given = door.data("fs.read", path="min.js")
    assert (len(given["contentPreview"]), given["truncated"]) == (20_000, True)
    assert "fs.search" in given["hint"]


@pytest.mark.parametrize(
    ("data", "arguments", "content"),
    [
        ("ä".encode("latin-1"), {"encoding": "latin-1"}, "ä"),
        ("ä€".encode("utf-16"), {}, "ä€"),
        (b"", {}, ""),
        (b"\xef\xbb\xbfmark", {}, "\ufeffmark"),
        (b"a\x0cb\xe2\x80\xa8c", {"limit": 1}, "a\x0cb\u2028c"),
    ],
    ids=["latin-1", "utf-16", "empty", "mark", "odd separators"],
)
def test_texts_of_all_kinds_are_read(
    door: FileDoor, project: Path, data: bytes, arguments: dict[str, Any], content: str
) -> None:
    (project / "t.txt").write_bytes(data)
    assert door.data("fs.read", path="t.txt", **arguments)["content"] == content


def png(side: int) -> bytes:
    image: Any = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.effect_noise((side, side), 50).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("data", [b"\x7fELF\0\1\2", b"\x89PNG\r\n\x1a\n\0x"], ids=["elf", "png"])
def test_a_binary_file_is_named_as_one(door: FileDoor, project: Path, data: bytes) -> None:
    (project / "b.bin").write_bytes(data)
    outcome = door.call("fs.read", path="b.bin")
    given = outcome.result.data
    assert given["truncated"] is True
    assert data[:4].hex(" ") in given["contentPreview"]
    assert not outcome.result.attachments


@pytest.mark.parametrize("side", [40, 2_500])
def test_a_picture_is_attached_small_enough(door: FileDoor, project: Path, side: int) -> None:
    (project / "p.png").write_bytes(png(side))
    outcome = door.call("fs.read", path="p.png")
    (part,) = outcome.result.attachments
    assert isinstance(part, ImagePart)
    assert part.data is not None
    assert len(base64.b64decode(part.data)) <= 1_500_000
    assert outcome.result.data["sha256"] == sha256_hex((project / "p.png").read_bytes())
    assert "attached" in outcome.result.data["content"]


ERRORS: list[tuple[str, dict[str, Any], str, str]] = [
    ("fs.read", {"path": "none.txt"}, "ENOENT", "fs.list"),
    ("fs.read", {"path": "."}, "E_PRECONDITION_FAILED", "fs.list"),
    ("fs.read", {"path": "a.txt", "offset": 9}, "E_INVALID_ARGUMENTS", "has 3 lines"),
    ("fs.read", {"path": "a.txt", "offset": 10**30}, "E_INVALID_ARGUMENTS", "use a smaller one"),
    ("fs.read", {"path": "a.txt", "encoding": "rot13"}, "E_INVALID_ARGUMENTS", "'utf-16'"),
    ("fs.read", {"path": "link.md"}, "E_SANDBOX_VIOLATION", "links are not followed"),
    ("fs.list", {"path": "none"}, "ENOENT", "there is no"),
    ("fs.list", {"path": "b.md"}, "ENOENT", "no folder"),
    ("fs.list", {"path": "@other"}, "E_SANDBOX_VIOLATION", "@project, @state"),
    *[
        (name, {"glob": glob, "query": "x"}, "E_INVALID_ARGUMENTS", "")
        for name in ("fs.list", "fs.search")
        for glob in ("\ud800*", "#", "{a,b}" * 7)
    ],
    *[
        ("fs.search", {"query": query, "regex": "(" in query}, "E_INVALID_ARGUMENTS", "")
        for query in ("", "a\nb", "\ud800", "x" * 2_000, "(", r"(a)\1")
    ],
]


@pytest.mark.parametrize(("name", "arguments", "code", "words"), ERRORS, ids=ascii)
def test_what_cannot_be_done_says_what_to_do(
    door: FileDoor, project: Path, name: str, arguments: dict[str, Any], code: str, words: str
) -> None:
    told = door.error(name, **arguments)
    assert told.code == code
    assert words in told.message
    assert str(project) not in told.message


def test_more_than_may_be_read_is_refused_and_a_part_of_it_is_not(project: Path) -> None:
    door = limited(project, max_read_bytes=1_000)
    lines = [f"line {n}\n" for n in range(1_000)]
    (project / "big.txt").write_text("".join(lines))
    assert door.error("fs.read", path="big.txt").code == "E_READ_LIMIT"
    assert door.data("fs.read", path="big.txt", offset=2, limit=2)["content"] == "line 1\nline 2\n"
    assert door.error("fs.read", path="big.txt", offset=900, limit=2).code == "E_READ_LIMIT"


def test_a_folder_is_listed_by_names_and_with_sizes_on_request(door: FileDoor) -> None:
    entries = [".env", ".gitignore", "a.md", "a.txt", "b.md", "build/", "link.md", "sub/"]
    listing = {"path": "@project", "entries": entries, "truncated": False}
    assert door.data("fs.list", path="@project") == listing
    sizes = {".env": 8, ".gitignore": 7, "a.md": len(TEXT), "a.txt": 18, "b.md": 15}
    assert door.data("fs.list", sizes=True) == {**listing, "sizes": sizes}
    assert door.data("fs.list", path="@state")["entries"] == []


def test_a_list_goes_as_deep_as_asked_and_leaves_out_what_is_ignored(
    door: FileDoor, project: Path
) -> None:
    (project / ".ssh").mkdir()
    (project / ".ssh" / "notes.md").touch()
    deep = door.data("fs.list", depth=9, glob="*.md")["entries"]
    assert deep == ["a.md", "b.md", "link.md", "sub/c.md", "sub/deep/d.md"]
    two = door.data("fs.list", depth=2)["entries"]
    assert {"sub/deep/", ".ssh/"} <= set(two)
    assert not {"sub/deep/d.md", ".ssh/notes.md"} & set(two)
    below = door.data("fs.list", path="sub", glob="deep/*.md", depth=3)
    assert below["entries"] == ["deep/d.md"]
    assert door.data("fs.list", path="build")["entries"] == ["e.md"]


def test_a_long_list_is_cut_with_a_hint(door: FileDoor, project: Path) -> None:
    for number in range(600):
        (project / "sub" / f"{number:03}.txt").touch()
    given = door.data("fs.list", path="sub")
    assert (len(given["entriesPreview"]), given["truncated"]) == (500, True)
    assert "glob" in given["hint"]
    assert "entries" not in given
    given = limited(project, search_timeout_s=1e-9).data("fs.list", depth=9, glob="none")
    assert given["entriesPreview"] == []
    assert "1e-09 s were up" in given["hint"]


def test_a_search_gives_matches_and_figures(door: FileDoor) -> None:
    given = door.data("fs.search", query="needle", glob="*.md", context=1)
    names = ["@project/b.md", "@project/sub/c.md", "@project/sub/deep/d.md"]
    assert [match["path"] for match in given["matches"]] == names
    first = {"path": "@project/b.md", "line": 1, "column": 1, "text": "needle in b.md"}
    assert given["matches"][0] == {**first, "before": [], "after": []}
    assert given["truncated"] is False
    assert given["stats"] == {"filesScanned": 4, "matchesFound": 3}
    cut = door.data("fs.search", query="needle", maxMatches=2)
    assert (len(cut["matches"]), cut["truncated"]) == (2, True)
    assert "first 2" in cut["hint"]
    assert cut["stats"]["filesSkipped"] == 1, "what is secret is counted"


def hard(project: Path) -> str:
    """A text over which, and a query with which, a search takes many seconds."""
    chance = random.Random(1)
    text = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz \n", k=1_000_000))
    for number in range(8):
        (project / f"hard{number}.txt").write_text(text * 4)
    return r"(?:.{1,500}q.{1,500}){2}#"


@pytest.mark.timed
def test_a_search_ends_in_its_time_and_at_a_stop(door: FileDoor, project: Path) -> None:
    query = hard(project)
    began = time.monotonic()
    given = limited(project, search_timeout_s=0.3).data("fs.search", query=query, regex=True)
    assert time.monotonic() - began < 20  # to its end it would take minutes
    assert given["truncated"] is True
    assert "0.3 s were up" in given["hint"]
    began = time.monotonic()
    door.stop_after(0.2)
    assert door.error("fs.search", query=query, regex=True).code == "E_INTERRUPTED"
    assert 0.2 < time.monotonic() - began < 20
    time.sleep(0.3)
    spent = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - spent < 0.2, "the search goes on, with nobody waiting"


FRONT = {"operation": "updateFrontmatter"}
TEXT = "---\nstatus: open\n---\none\ntwo\n"


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
def test_a_refused_change_asks_nobody_and_changes_nothing(
    project: Path, tmp_path: Path, case: str
) -> None:
    (tmp_path / "data").mkdir()
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
    assert {"path", "content"} <= set(piece.replaced_arguments)


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
    assert second.preview.approval_key != first.preview.approval_key
    assert door.run_prepared(second, approved=True).result.ok


def test_a_change_that_asked_nobody_is_planned_again(door: FileDoor, project: Path) -> None:
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
def test_another_folder_of_a_mount_is_not_approved(
    project: Path, tmp_path: Path, name: str
) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(f"one of {folder}\n")
    door = FileDoor(
        project, mounts=Mounts.of(project, extra=[Mount("@data", tmp_path / "x", "rw")])
    )
    first = door.prepared(name, **LOOKED[name])
    assert str(tmp_path) not in first.preview.approval_key
    (tmp_path / "x").rename(tmp_path / "old")
    (tmp_path / "y").rename(tmp_path / "x")
    assert door.prepared(name, **LOOKED[name]).preview.approval_key != first.preview.approval_key
    # What was looked at is what is used, wherever it is by now.
    assert door.run_prepared(first, approved=True).result.ok
    assert (tmp_path / "x" / "a.md").read_text() == "one of y\n"
