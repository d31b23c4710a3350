"""fs.read, fs.list and fs.search as a model sees them; what is too much, and what is kept back."""

from __future__ import annotations

import base64
import io
import random
import time
from pathlib import Path
from typing import Any

import pytest
from host_door import FileDoor

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.chat import ImagePart
from nbagent.contracts.policy import ToolLimits, ToolPolicy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("b.md", "sub/c.md", "sub/deep/d.md", "build/e.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"needle in {name}\n")
    (folder / "a.txt").write_bytes("one\ntwo ä\r\nthree\n".encode())
    (folder / ".gitignore").write_text("build/\n")
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


def test_a_long_file_is_cut_at_a_line_with_a_hint_that_leads_on(
    door: FileDoor, project: Path
) -> None:
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
    entries = [".env", ".gitignore", "a.txt", "b.md", "build/", "link.md", "sub/"]
    listing = {"path": "@project", "entries": entries, "truncated": False}
    assert door.data("fs.list", path="@project") == listing
    sizes = {".env": 8, ".gitignore": 7, "a.txt": 18, "b.md": 15}
    assert door.data("fs.list", sizes=True) == {**listing, "sizes": sizes}
    assert door.data("fs.list", path="@state")["entries"] == []


def test_a_list_goes_as_deep_as_asked_and_not_into_what_is_ignored(
    door: FileDoor, project: Path
) -> None:
    (project / ".ssh").mkdir()
    (project / ".ssh" / "notes.md").touch()
    deep = door.data("fs.list", depth=9, glob="*.md")["entries"]
    assert deep == ["b.md", "link.md", "sub/c.md", "sub/deep/d.md"]
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
    assert given["stats"] == {"filesScanned": 3, "matchesFound": 3}
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
    assert time.monotonic() - began < 2.5
    assert given["truncated"] is True
    assert "0.3 s were up" in given["hint"]
    began = time.monotonic()
    door.stop_after(0.2)
    assert door.error("fs.search", query=query, regex=True).code == "E_INTERRUPTED"
    assert 0.2 < time.monotonic() - began < 0.5
    time.sleep(0.3)
    spent = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - spent < 0.2, "the search goes on, with nobody waiting"
