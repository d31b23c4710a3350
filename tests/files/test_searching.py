"""Searching and walking: what is found where, what is left out, and that nothing takes for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nbagent.files.mounts import Mounts
from nbagent.files.searching import SearchQuery, SearchResult, search


def lay(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def found(folder: Path, query: str, path: str = "@project", **more: Any) -> SearchResult:
    return search(Mounts.of(folder).locate(path), SearchQuery(query=query, **more))


def places(answer: SearchResult) -> list[tuple[str, int, int]]:
    return [(m.path.removeprefix("@project/"), m.line, m.column) for m in answer.matches]


TEXT = "first line\nsecond ä line\r\n\nfourth line line\nlast"


def test_a_match_says_line_column_and_what_is_around(tmp_path: Path) -> None:
    lay(tmp_path, {"a.txt": TEXT})
    answer = found(tmp_path, "line", context=1)
    assert places(answer) == [("a.txt", 1, 7), ("a.txt", 2, 10), ("a.txt", 4, 8)]
    second, last = answer.matches[1:]
    assert (second.text, second.before, second.after) == ("second ä line", ("first line",), ("",))
    assert (last.before, last.after) == (("",), ("last",))
    assert (answer.files_scanned, answer.matches_found, answer.why_cut) == (1, 3, "")


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("^second", [(2, 1)]),
        ("line$", [(1, 7), (4, 13)]),
        (r"\s", [(1, 6), (2, 7), (4, 7)]),
        (r"line\s*second", []),
        (r"^$", [(3, 1)]),
        (r"x*", [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]),
        (r"last\z|first", [(1, 1), (5, 1)]),
    ],
)
def test_a_regular_expression_is_of_one_line(
    tmp_path: Path, query: str, where: list[tuple[int, int]]
) -> None:
    lay(tmp_path, {"a.txt": TEXT})
    assert [place[1:] for place in places(found(tmp_path, query, regex=True))] == where


@pytest.mark.parametrize("query", ["a.b", "(", "\\", "a|b", "$"])
def test_without_regex_the_words_are_taken_as_they_are(tmp_path: Path, query: str) -> None:
    lay(tmp_path, {"a.txt": f"axb\nx{query}\n"})
    assert places(found(tmp_path, query)) == [("a.txt", 2, 2)]


IGNORING: dict[str, str | bytes] = {
    ".gitignore": "*.log\n!keep.log\n/build/\nout/\ndoc/*.html\n\\#odd\n[\n",
    "a.log": "x",
    "keep.log": "x",
    "build/b.txt": "x",
    "sub/build/b.txt": "x",
    "sub/out/b.txt": "x",
    "doc/a.html": "x",
    "doc/deep/a.html": "x",
    "#odd": "x",
    "sub/.gitignore": "*.txt\n!b.txt\nmine/\n",
    "sub/a.txt": "x",
    "sub/b.txt": "x",
    "sub/c.log": "x",
    "sub/mine/d.md": "x",
    "other/.gitignore": "!*.log\n",
    "other/a.log": "x",
    ".git/config": "x",
    ".github/w.yml": "x",
    ".venv/lib/a.py": "x",
    "node_modules/a/b.js": "x",
    "binary.bin": b"x\0x",
    ".env": "x",
}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git to compare with")
def test_what_git_ignores_is_left_out_unless_it_is_named(tmp_path: Path) -> None:
    lay(tmp_path, IGNORING)
    matches = {path for path, _, _ in places(found(tmp_path, "x", max_matches=1000))}
    # Who names an ignored folder sees into it.
    for path in ("build", "node_modules", "build/b.txt"):
        assert len(places(found(tmp_path, "x", path))) == 1
    for folder in (".git", ".venv", "node_modules"):
        shutil.rmtree(tmp_path / folder)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    unread = {"binary.bin", ".env", ".gitignore", "sub/.gitignore", "other/.gitignore"}
    assert names - unread == matches - unread


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.py", {"a.py", "src/b.py", "src/deep/c.py"}),
        ("src/**/*.py", {"src/b.py", "src/deep/c.py"}),
        ("*.py, *.md", {"a.py", "src/b.py", "src/deep/c.py", "src/d.md"}),
        ("!*.py", {"src/d.md", "e.txt"}),
        ("src/", {"src/b.py", "src/deep/c.py", "src/d.md"}),
        ("/a.py", {"a.py"}),
    ],
)
def test_a_glob_chooses_files(tmp_path: Path, glob: str, names: set[str]) -> None:
    files = ("a.py", "src/b.py", "src/deep/c.py", "src/d.md", "e.txt")
    lay(tmp_path, dict.fromkeys(files, "x"))
    assert {path for path, _, _ in places(found(tmp_path, "x", glob=glob))} == names


def test_long_lines_are_shown_around_the_match(tmp_path: Path) -> None:
    lay(tmp_path, {"a.js": "y" * 300_000 + "needle" + "z" * 300_000})
    (match,) = found(tmp_path, "needle").matches
    assert match.column == 300_001
    assert "needle" in match.text
    assert len(match.text) < 500


def test_matches_are_found_on_both_sides_of_a_window(tmp_path: Path) -> None:
    lines = [f"{'needle' if n % 997 == 0 else 'hay'} {n:06}" for n in range(60_000)]
    lay(tmp_path, {"a.txt": "\n".join(lines)})
    for regex in (False, True):
        answer = found(tmp_path, "needle", regex=regex, max_matches=1000)
        assert [m.line for m in answer.matches] == list(range(1, 60_001, 997))
        assert all(m.text == lines[m.line - 1] for m in answer.matches)


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path) -> None:
    lay(tmp_path, {"a/x.txt": "x", "b/x.txt": "x", "c.txt": "x"})

    def vanish(path: str) -> bool:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        (tmp_path / "c.txt").unlink(missing_ok=True)
        return True

    answer = found(tmp_path, "x", allows=vanish)
    assert (places(answer), answer.files_skipped) == ([("b/x.txt", 1, 1)], 1)
