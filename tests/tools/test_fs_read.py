"""fs.read: text by lines, bytes, pictures; what is too much, and what is kept back."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from fs_door import Door

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import ToolLimits, ToolPolicy
from nbagent.contracts.secrets import register
from nbagent.files.mounts import Mount, Mounts
from nbagent.tools.base import HostOrder
from nbagent.tools.filesystem import open_hosts


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_bytes("one\ntwo ä\r\nthree\n".encode())
    return folder


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_given_whole(door: Door, project: Path) -> None:
    data = (project / "a.txt").read_bytes()
    assert door.data("fs.read", path="a.txt") == {
        "path": "@project/a.txt",
        "bytes": len(data),
        "sha256": sha(data),
        "truncated": False,
        "content": "one\ntwo ä\r\nthree\n",
    }


@pytest.mark.parametrize(
    ("offset", "limit", "content", "goes_on"),
    [
        (1, 1, "one\n", "offset=2"),
        (2, 1, "two ä\r\n", "offset=3"),
        (2, None, "two ä\r\nthree\n", ""),
        (None, 2, "one\ntwo ä\r\n", "offset=3"),
        (3, 100, "three\n", ""),
        (0, 1, "one\n", "offset=2"),
    ],
)
def test_lines_are_given_and_how_to_go_on(
    door: Door, offset: int | None, limit: int | None, content: str, goes_on: str
) -> None:
    given = door.data("fs.read", path="a.txt", offset=offset, limit=limit)
    assert given["content"] == content
    assert given["truncated"] is False
    assert goes_on in given.get("hint", "")
    assert ("hint" in given) is bool(goes_on)


def test_a_long_file_is_cut_at_a_line_with_a_hint_that_leads_on(door: Door, project: Path) -> None:
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


def test_one_very_long_line_is_cut_with_a_hint(door: Door, project: Path) -> None:
    (project / "min.js").write_text("x" * 100_000)
    given = door.data("fs.read", path="min.js")
    assert given["truncated"] is True
    assert len(given["contentPreview"]) == 20_000
    assert "base64" in given["hint"]


def test_bytes_are_given_in_base64(door: Door, project: Path) -> None:
    data = bytes(range(256)) * 400
    (project / "b.bin").write_bytes(data)
    given = door.data("fs.read", path="b.bin", encoding="base64", offset=10, limit=20)
    assert base64.b64decode(given["content"]) == data[10:30]
    assert given["sha256"] == sha(data)
    whole = door.data("fs.read", path="b.bin", encoding="base64")
    part = base64.b64decode(whole["contentPreview"])
    assert data.startswith(part)
    assert f"offset={len(part)}" in whole["hint"]


@pytest.mark.parametrize(
    ("data", "arguments", "content"),
    [
        ("ä".encode("latin-1"), {"encoding": "latin-1"}, "ä"),
        ("ä€".encode("utf-16"), {}, "ä€"),
        (b"", {}, ""),
        (b"\xef\xbb\xbfmark", {}, "\ufeffmark"),
        (b"x" * 50 + b"\xff", {}, "x" * 50 + "\ufffd"),
        (b"a\x0cb\xe2\x80\xa8c", {"limit": 1}, "a\x0cb\u2028c"),
    ],
    ids=["latin-1", "utf-16", "empty", "mark", "one bad byte", "odd separators"],
)
def test_texts_of_all_kinds_are_read(
    door: Door, project: Path, data: bytes, arguments: dict[str, Any], content: str
) -> None:
    (project / "t.txt").write_bytes(data)
    assert door.data("fs.read", path="t.txt", **arguments)["content"] == content


def test_a_binary_file_is_named_as_one(door: Door, project: Path) -> None:
    (project / "b.bin").write_bytes(b"\x7fELF\0\1\2")
    given = door.data("fs.read", path="b.bin")
    assert given["truncated"] is True
    assert "7f 45 4c 46" in given["contentPreview"]
    assert "base64" in given["hint"]


def png(side: int) -> bytes:
    image: Any = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.effect_noise((side, side), 50).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("side", [40, 2_500])
def test_a_picture_is_attached_small_enough(door: Door, project: Path, side: int) -> None:
    (project / "p.png").write_bytes(png(side))
    outcome = door.call("fs.read", path="p.png")
    (part,) = outcome.result.attachments
    assert isinstance(part, ImagePart)
    assert part.data is not None
    assert len(base64.b64decode(part.data)) <= 1_500_000
    data = outcome.result.data
    assert data["sha256"] == sha((project / "p.png").read_bytes())
    assert "attached" in data["content"]


def test_a_broken_picture_is_binary(door: Door, project: Path) -> None:
    (project / "p.png").write_bytes(png(40)[:-40])
    assert door.data("fs.read", path="p.png")["truncated"] is True
    assert not door.call("fs.read", path="p.png").result.attachments


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"path": "none.txt"}, "ENOENT", "fs.list"),
        ({"path": "a.txt/x"}, "ENOENT", "no folder"),
        ({"path": "."}, "E_PRECONDITION_FAILED", "fs.list"),
        ({"path": "a.txt", "offset": 9}, "E_INVALID_ARGUMENTS", "has 3 lines"),
        ({"path": "a.txt", "offset": -1}, "E_INVALID_ARGUMENTS", "first line"),
        ({"path": "a.txt", "limit": 0}, "E_INVALID_ARGUMENTS", "positive"),
        ({"path": "a.txt", "encoding": "rot13"}, "E_INVALID_ARGUMENTS", "base64"),
        ({"path": "link.txt"}, "E_SANDBOX_VIOLATION", "links are not followed"),
        ({"path": {}}, "E_INVALID_ARGUMENTS", "path"),
    ],
    ids=[
        *("nothing", "file as folder", "folder", "beyond the end", "negative", "no lines"),
        *("encoding", "link", "no text"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    door: Door, project: Path, arguments: dict[str, Any], code: str, words: str
) -> None:
    (project / "link.txt").symlink_to("a.txt")
    told = door.error("fs.read", **arguments)
    assert told.code == code
    assert words in told.message
    assert str(project) not in told.message


def test_more_than_may_be_read_is_refused_and_a_part_of_it_is_not(project: Path) -> None:
    door = Door(project, policy=ToolPolicy(limits=ToolLimits(max_read_bytes=1_000)))
    lines = [f"line {n}\n" for n in range(1_000)]
    (project / "big.txt").write_text("".join(lines))
    assert door.error("fs.read", path="big.txt").code == "E_READ_LIMIT"
    assert door.data("fs.read", path="big.txt", offset=2, limit=2)["content"] == "line 1\nline 2\n"
    assert door.error("fs.read", path="big.txt", offset=900, limit=2).code == "E_READ_LIMIT"
    arguments = {"path": "big.txt", "encoding": "base64"}
    assert door.error("fs.read", **arguments, limit=2_000).code == "E_READ_LIMIT"
    part = door.data("fs.read", **arguments, offset=5_000, limit=10)
    assert base64.b64decode(part["content"]) == "".join(lines).encode()[5_000:5_010]


ALLOWED = [
    ("fs.read(path=@project/.env)", True),
    ("fs.read(path=.env)", True),
    ("fs.*(path=@project/.env)", True),
    ("fs(path=*.env)", True),
    ("fs.read(path=@project/id_*)", True),
    ("fs.write(path=@project/.env)", False),
    ("fs.read", False),
    ("fs.*", False),
    ("fs.read(path=*)", False),
    ("fs.read(path=@project/*)", False),
    ("fs.read(path=@project/**)", False),
    ("fs.read(path=*.*)", False),
    ("fs.read(path=@project/sub/.env)", False),
]


@pytest.mark.parametrize(("rule", "allowed"), ALLOWED)
def test_a_secret_is_read_only_when_its_name_was_allowed(
    project: Path, rule: str, *, allowed: bool
) -> None:
    name = "id_rsa" if "id_" in rule else ".env"
    (project / name).write_text("KEY=1")
    door = Door(project, policy=ToolPolicy(allow=(rule,)))
    error = door.call("fs.read", path=name).result.error
    assert (error.code if error else None) == (None if allowed else "E_DENIED")


def test_a_known_key_in_a_file_is_hidden(door: Door, project: Path) -> None:
    register("sk-very-secret-key-123")
    (project / "notes.md").write_text("my key: sk-very-secret-key-123\n")
    assert door.data("fs.read", path="notes.md")["content"] == "my key: [redacted]\n"


def test_older_names_are_there_when_they_are_asked_for(project: Path) -> None:
    names = ["fs.read", "fs.list", "fs.search", "fs.write", "fs.apply_patch"]
    assert list(Door(project).specs) == names
    door = Door(project, words=("read_file", "write_file", "list_files"))
    assert list(door.specs) == ["read_file", "write_file", "list_files"]
    assert door.data("read_file", path="a.txt")["path"] == "@project/a.txt"
    assert door.preview("write_file", path="b.txt", content="x").ruling == "ask"
    assert list(Door(project, words=("fs.search",)).specs) == ["fs.search"]


def test_a_tool_that_is_none_is_told(project: Path) -> None:
    with pytest.raises(UsageError, match=r"fs\.read"):
        open_hosts(HostOrder(words=("fs.raed",), project=project))


def test_a_mount_of_the_person_is_read(project: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("a\n")
    mounts = Mounts.of(project, extra=[Mount("@data", tmp_path / "data")])
    door = Door(project, mounts=mounts)
    assert door.data("fs.read", path="@data/t.csv")["content"] == "a\n"
    assert "@project, @data" in door.error("fs.read", path="@dta/t.csv").message


@pytest.mark.parametrize("offset", [10**20, 10**30, 2**63, 1_000])
def test_bytes_behind_the_end_are_a_typed_error(tmp_path: Path, offset: int) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_bytes(b"abc")
    door = Door(tmp_path / "project")
    for encoding in ("base64", "utf-8"):
        error = door.error("fs.read", path="a.txt", offset=offset, encoding=encoding)
        assert error.code == "E_INVALID_ARGUMENTS"
        assert "use a smaller one" in error.message
    assert door.data("fs.read", path="a.txt", offset=3, encoding="base64")["content"] == ""
