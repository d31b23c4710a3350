"""fs.list and fs.search as a model sees them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from fs_door import Door

from nbagent.contracts.policy import ToolLimits, ToolPolicy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("b.md", "a.txt", "sub/c.md", "sub/deep/d.md", "build/e.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"needle in {name}\n")
    (folder / ".gitignore").write_text("build/\n")
    (folder / "link.md").symlink_to("b.md")
    (folder / ".env").write_text("needle=1")
    return folder


def test_a_folder_is_listed(door: Door) -> None:
    assert door.data("fs.list", path="@project") == {
        "path": "@project",
        "entries": [
            {"name": ".env", "kind": "file", "bytes": 8},
            {"name": ".gitignore", "kind": "file", "bytes": 7},
            {"name": "a.txt", "kind": "file", "bytes": 16},
            {"name": "b.md", "kind": "file", "bytes": 15},
            {"name": "build", "kind": "folder"},
            {"name": "link.md", "kind": "link"},
            {"name": "sub", "kind": "folder"},
        ],
    }


def test_a_list_goes_as_deep_as_asked_and_not_into_what_is_ignored(door: Door) -> None:
    deep = [entry["name"] for entry in door.data("fs.list", depth=9, glob="*.md")["entries"]]
    assert deep == ["b.md", "link.md", "sub/c.md", "sub/deep/d.md"]
    two = [entry["name"] for entry in door.data("fs.list", depth=2)["entries"]]
    assert "sub/deep" in two
    assert "sub/deep/d.md" not in two
    below = door.data("fs.list", path="sub", glob="deep/*.md", depth=3)
    assert [entry["name"] for entry in below["entries"]] == ["deep/d.md"]
    named = door.data("fs.list", path="build")["entries"]
    assert [entry["name"] for entry in named] == ["e.md"]


def test_a_long_list_is_cut_with_a_hint(door: Door, project: Path) -> None:
    for number in range(600):
        (project / "sub" / f"{number:03}.txt").touch()
    given = door.data("fs.list", path="sub")
    assert len(given["entriesPreview"]) == 500
    assert given["truncated"] is True
    assert "glob" in given["hint"]
    assert "entries" not in given


def test_a_list_ends_in_its_time(project: Path) -> None:
    door = Door(project, policy=ToolPolicy(limits=ToolLimits(search_timeout_s=1e-9)))
    given = door.data("fs.list", depth=9, glob="none")
    assert given["entriesPreview"] == []
    assert "1e-09 s were up" in given["hint"]


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("none", "ENOENT", "there is no"),
        ("b.md", "E_PRECONDITION_FAILED", "is a file"),
        ("link.md", "E_SANDBOX_VIOLATION", "links"),
        ("@other", "E_SANDBOX_VIOLATION", "@project, @state"),
    ],
)
def test_what_cannot_be_listed_is_told(door: Door, path: str, code: str, words: str) -> None:
    told = door.error("fs.list", path=path)
    assert told.code == code
    assert words in told.message


def test_the_model_is_told_which_mounts_there_are(door: Door) -> None:
    told = "The mounts are: @project (read and write), @state (read and write)."
    assert door.specs["fs.list"].description.endswith(told)


def test_an_empty_state_is_there(door: Door) -> None:
    assert door.data("fs.list", path="@state") == {"path": "@state", "entries": []}


def test_a_search_gives_matches_and_figures(door: Door) -> None:
    given = door.data("fs.search", query="needle", glob="*.md", context=1)
    assert [match["path"] for match in given["matches"]] == [
        "@project/b.md",
        "@project/sub/c.md",
        "@project/sub/deep/d.md",
    ]
    assert given["matches"][0] == {
        "path": "@project/b.md",
        "line": 1,
        "column": 1,
        "text": "needle in b.md",
        "before": [],
        "after": [],
    }
    assert given["truncated"] is False
    assert given["stats"] == {"filesScanned": 3, "matchesFound": 3}


def test_a_search_counts_what_it_may_not_look_into(door: Door) -> None:
    given = door.data("fs.search", query="needle", maxMatches=2)
    assert len(given["matches"]) == 2
    assert given["truncated"] is True
    assert "first 2" in given["hint"]
    assert given["stats"]["filesSkipped"] == 1
    assert all(".env" not in match["path"] for match in given["matches"])


def test_a_secret_is_not_searched_by_its_path_either(door: Door, project: Path) -> None:
    assert door.error("fs.search", query="needle", path=".env").code == "E_DENIED"
    allowing = Door(project, policy=ToolPolicy(allow=("fs.search(path=.env)",)))
    assert len(allowing.data("fs.search", query="needle", path=".env")["matches"]) == 1
    assert allowing.data("fs.search", query="needle=1")["matches"][0]["path"] == "@project/.env"


def hard(project: Path) -> str:
    """A text over which, and a query with which, a search takes many seconds."""
    chance = random.Random(1)
    text = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz \n", k=1_000_000))
    for number in range(8):
        (project / f"hard{number}.txt").write_text(text * 4)
    return r"(?:.{1,500}q.{1,500}){2}#"


def test_a_search_ends_in_its_time(project: Path) -> None:
    door = Door(project, policy=ToolPolicy(limits=ToolLimits(search_timeout_s=0.3)))
    began = time.monotonic()
    given = door.data("fs.search", query=hard(project), regex=True)
    assert time.monotonic() - began < 2.5
    assert given["truncated"] is True
    assert "0.3 s were up" in given["hint"]


def test_a_stop_is_honoured_at_once(door: Door, project: Path) -> None:
    query = hard(project)
    door.stop_after(0.2)
    began = time.monotonic()
    assert door.error("fs.search", query=query, regex=True).code == "E_INTERRUPTED"
    assert 0.2 < time.monotonic() - began < 0.4


@pytest.mark.parametrize(
    ("query", "regex"),
    [("", 0), ("a\nb", 0), ("\ud800", 0), ("x" * 2000, 0), ("(", 1), (r"(a)\1", 1), ("(?=a)", 1)],
    ids=["empty", "lines", "surrogate", "long", "bracket", "back-reference", "look-around"],
)
def test_a_query_that_is_none_is_told(door: Door, query: str, regex: int) -> None:
    assert door.error("fs.search", query=query, regex=bool(regex)).code == "E_INVALID_ARGUMENTS"


def test_reads_need_no_approval_and_are_told_in_one_form(door: Door) -> None:
    for name, arguments in (
        ("fs.read", {"path": "./a.txt"}),
        ("fs.list", {"path": "./a.txt"}),
        ("fs.search", {"path": "./a.txt", "query": "x"}),
    ):
        preview = door.preview(name, **arguments)
        assert preview.ruling == "allow"
        assert preview.arguments is not None
        assert preview.arguments["path"] == "@project/a.txt"


@pytest.mark.parametrize("name", ["fs.list", "fs.search"])
@pytest.mark.parametrize("glob", ["\ud800*", "#", "  ", "{a,b}" * 7], ids=ascii)
def test_a_glob_that_is_none_is_told(door: Door, name: str, glob: str) -> None:
    query = {"query": "x"} if name == "fs.search" else {}
    assert door.error(name, glob=glob, **query).code == "E_INVALID_ARGUMENTS"
