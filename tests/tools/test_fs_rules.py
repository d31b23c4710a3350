"""What rules keep from lists and searches: each name that a walk comes by is judged."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fs_door import Door

from nbagent.contracts.policy import ToolPolicy
from nbagent.files.mounts import Mount, Mounts

LINE = "needle here\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("a.txt", "private/x.txt", "private/sub/y.txt", "public/z.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LINE)
    return folder


def door_of(project: Path, *deny: str, words: tuple[str, ...] = ("fs",), **more: Any) -> Door:
    mounts = [
        Mount("@data", project / "private", "ro"),
        Mount("@above", project.parent, "ro"),
        Mount("@same", project, "ro"),
    ]
    return Door(
        project,
        mounts=Mounts.of(project, extra=mounts),
        words=words,
        forbids=ToolPolicy(deny=deny).denies,
        **more,
    )


def searched(door: Door, path: str, **more: Any) -> set[str]:
    given = door.data("fs.search", query="needle", path=path, **more)
    return {match["path"].rpartition("/")[2] for match in given["matches"]}


def listed(door: Door, path: str) -> set[str]:
    return {entry["name"] for entry in door.data("fs.list", path=path, depth=9)["entries"]}


ONE_FOLDER = [
    "fs.*(path=@project/private/*)",
    "fs.*(path=@data/*)",
    "fs.*(path=@above/project/private/*)",
    "fs.*(path=private/*)",
    "filesystem(path=@same/private/*)",
]


@pytest.mark.parametrize("deny", ONE_FOLDER)
@pytest.mark.parametrize("path", ["@project", "@same", "@above"])
def test_what_is_denied_below_a_folder_is_not_found_from_above(
    project: Path, deny: str, path: str
) -> None:
    door = door_of(project, deny)
    assert searched(door, path) == {"a.txt", "z.txt"}
    assert not [name for name in listed(door, path) if name.endswith(("x.txt", "sub", "y.txt"))]
    assert any(name.endswith("public/z.txt") for name in listed(door, path))


@pytest.mark.parametrize("deny", ONE_FOLDER)
@pytest.mark.parametrize("path", ["@data", "private", "@above/project/private"])
def test_a_denied_folder_is_empty_by_each_of_its_names(project: Path, deny: str, path: str) -> None:
    door = door_of(project, deny)
    listing = door.data("fs.list", path=path)
    assert listing["entries"] == []
    assert "rules" in listing["hint"]
    found = door.data("fs.search", query="needle", path=path)
    assert found["matches"] == []
    assert "rules" in found["hint"]
    assert door.error("fs.search", query="needle", path=f"{path}/x.txt").code == "E_DENIED"


def test_a_file_that_may_not_be_read_is_listed_and_not_searched(project: Path) -> None:
    door = door_of(project, "fs.read(path=*x.txt)")
    assert searched(door, "@project") == {"a.txt", "y.txt", "z.txt"}
    assert "private/x.txt" in listed(door, "@project")
    door = door_of(project, "fs.list(path=*x.txt)")
    assert "x.txt" in searched(door, "@project")
    assert "private/x.txt" not in listed(door, "@project")


def test_a_denied_folder_is_not_gone_into_and_what_is_in_it_is_judged_as_written(
    project: Path,
) -> None:
    door = door_of(project, "fs.*(path=@data)")
    assert searched(door, "@project") == {"a.txt", "z.txt"}
    assert "private" not in listed(door, "@project")
    assert searched(door, "private/sub") == {"y.txt"}


def test_a_rule_about_more_than_the_path_is_judged_with_the_call(project: Path) -> None:
    door = door_of(project, "fs.search(path=*x.txt, query=need*)")
    assert "x.txt" not in searched(door, "@project")
    found = door.data("fs.search", query="here", path="@project")["matches"]
    assert any(match["path"].endswith("x.txt") for match in found)


def test_a_rule_for_an_older_name_holds_where_it_is_offered(project: Path) -> None:
    deny = "list_files(path=@project/private/*)"
    assert "private/x.txt" in listed(door_of(project, deny), "@project")
    both = door_of(project, deny, words=("fs", "list_files"))
    assert "private/x.txt" not in listed(both, "@project")


def test_a_tool_that_is_denied_as_a_whole_shows_nothing(project: Path) -> None:
    door = door_of(project, "fs.read")
    assert door.error("fs.search", query="needle").code == "E_DENIED"
    assert "a.txt" in listed(door, "@project")


@pytest.mark.parametrize("deny", [(), ("mcp:git",), ("fs.write(path=*)",)], ids=repr)
def test_no_file_is_asked_about_where_no_rule_could_forbid_one(
    project: Path, deny: tuple[str, ...]
) -> None:
    policy, asked = ToolPolicy(deny=deny), list[str]()

    def forbids(tool: str, host: str, arguments: Any) -> bool:
        asked.append(tool)
        return policy.denies(tool, host, arguments)

    door = Door(project, forbids=forbids)
    assert len(searched(door, "@project")) == 4
    assert listed(door, "@project") >= {"private/x.txt", "private/sub/y.txt"}
    assert asked == ["fs.search", "fs.read", "fs.list"]


@pytest.mark.parametrize(
    ("path", "others"),
    [
        ("@data/x.txt", {"@project/private/x.txt", "@above/project/private/x.txt"}),
        ("./private/x.txt", {"@data/x.txt", "private/x.txt", "@same/private/x.txt"}),
        ("@above/project", {"@project", "@same"}),
    ],
)
@pytest.mark.parametrize("name", ["fs.read", "fs.write"])
def test_a_preview_tells_every_form_of_a_path(
    project: Path, tmp_path: Path, path: str, others: set[str], name: str
) -> None:
    mounts = [
        Mount("@data", project / "private", "rw"),
        Mount("@above", tmp_path, "rw"),
        Mount("@same", project, "rw"),
    ]
    door = Door(project, mounts=Mounts.of(project, extra=mounts))
    if name == "fs.write" and path == "@above/project":
        path, others = f"{path}/n", {f"{other}/n" for other in others}
    given = {"path": path, **({"content": "x"} if name == "fs.write" else {})}
    preview = door.preview(name, **given)
    assert preview.arguments is not None
    forms = [preview.arguments, *preview.other_arguments]
    assert {form["path"] for form in forms} >= others
    assert all(form.keys() == preview.arguments.keys() for form in forms)
    assert len({form["path"] for form in forms}) == len(forms)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are text there")
def test_names_that_are_no_text_are_shown_escaped(project: Path) -> None:
    (project / os.fsdecode(b"bad\xff.txt")).write_text(LINE)
    (project / os.fsdecode(b"dir\xff")).mkdir()
    (project / os.fsdecode(b"dir\xff") / "in.txt").write_text(LINE)
    (project / ".gitignore").write_text("*.log\n")
    for door in (door_of(project), door_of(project, "fs.*(path=@project/private/*)")):
        for more in ({}, {"glob": "*.txt"}, {"glob": "!*.md"}):
            names = [e["name"] for e in door.data("fs.list", depth=9, **more)["entries"]]
            assert "bad⟦U+DCFF⟧.txt" in names
            assert searched(door, "@project", **more) >= {"a.txt", "z.txt"}
