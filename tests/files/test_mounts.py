"""Mounts: what a person may write, what a path of the model means, what leaves of the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.mounts import Mount, Mounts, parse_mount
from nbagent.files.names import path_parts


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("text", "name", "below", "mode"),
    [
        ("data=data:ro", "@data", "data", "ro"),
        ("data=data:rw", "@data", "data", "rw"),
        ("data=data", "@data", "data", "ro"),
        ("a-b_1=./data/../data", "@a-b_1", "data", "ro"),
        ("odd=da:ta:rw", "@odd", "da:ta", "rw"),
        (r"drive=C:\x:rw", "@drive", r"C:\x", "rw"),
    ],
)
def test_a_mount_is_read_from_a_line(
    project: Path, text: str, name: str, below: str, mode: str
) -> None:
    for folder in ("da:ta", r"C:\x"):
        (project / folder).mkdir()
    mount = parse_mount(text, base=project)
    assert (mount.name, mount.root, mount.mode) == (name, project / below, mode)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data", "is no mount"),
        ("data=", "is no mount"),
        ("data=data:rx", "write --mount NAME=FOLDER:ro or NAME=FOLDER:rw"),
        ("data=nowhere:ro", "there is no folder"),
        ("project=data:ro", "belongs to nbagent"),
        ("@state=data:ro", "belongs to nbagent"),
        ("a b=data:ro", "no name for a mount"),
        ("data=" + "x" * 5_000, "there is no folder"),
        ("data=a\0b", "there is no folder"),
    ],
    ids=lambda text: text[:20],
)
def test_a_mount_that_cannot_be_is_said_plainly(project: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        parse_mount(text, base=project)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("path", "text", "form"),
    [
        ("@project/more/a.csv", "@project/more/a.csv", "@project/more/a.csv"),
        ("./data//a.csv", "@project/data/a.csv", "@project/data/a.csv"),
        ("", "@project", "@project"),
        ("@more/x y.txt", "@more/x y.txt", "@project/data/x y.txt"),
        ("ärger/日本.txt", "@project/ärger/日本.txt", "@project/ärger/日本.txt"),
        ("a[1]/*.txt", "@project/a[1]/*.txt", "@project/a[1]/*.txt"),
    ],
)
def test_a_path_is_named_as_asked_and_has_one_form(
    project: Path, path: str, text: str, form: str
) -> None:
    mounts = Mounts.of(project, extra=[Mount("@more", project / "data")])
    place = mounts.locate(path)
    assert (place.text, mounts.canonical_path(place.mount, place.parts)) == (text, form)


def test_of_two_mounts_the_one_further_down_decides_what_is_written(project: Path) -> None:
    extra = [Mount("@data", project / "data", "ro"), Mount("@out", project / "data" / "out", "rw")]
    mounts = Mounts.of(project, extra=extra)
    (project / "data" / "out").mkdir()
    for path in ("@data/a", "@project/data/a", "DATA/a", "@data/out/a"):
        with pytest.raises(ToolError, match="@data is read only") as raised:
            mounts.check_writable(mounts.locate(path))
        assert raised.value.code == "E_SANDBOX_VIOLATION"
    for path in ("@project/database", "@out/a", "@project/data/out/a"):
        mounts.check_writable(mounts.locate(path))


def test_a_mount_above_the_store_keeps_it_closed(project: Path, tmp_path: Path) -> None:
    store = project / "store"
    (store / "state").mkdir(parents=True)
    extra = [Mount("@up", tmp_path, "rw")]
    mounts = Mounts.of(project, state=store / "state", extra=extra, closed=[store])
    for path in ("@up/project/store", "@up/project/store/state/x", "@up/project/STORE/x", "store"):
        with pytest.raises(ToolError, match="kept by nbagent") as raised:
            mounts.locate(path)
        assert raised.value.code == "E_SANDBOX_VIOLATION"
    assert mounts.locate("@state/x").text == "@state/x"
    assert mounts.reserved_paths == {"@up/project/store"}


@pytest.mark.parametrize("below", ["", "state", "state/s", "blobs"])
def test_no_mount_is_the_store_or_has_the_name_of_another(project: Path, below: str) -> None:
    store = project / "store"
    for name in ("state/s", "blobs"):
        (store / name).mkdir(parents=True)
    (project / "link").symlink_to(store / below)
    for root in (store / below, project / "link"):
        with pytest.raises(UsageError, match="belongs to nbagent itself"):
            Mounts.of(project, extra=[parse_mount(f"d={root}")], closed=[store])
    with pytest.raises(UsageError, match="two mounts"):
        Mounts([Mount("@a", project), Mount("@a", store)])


def test_a_root_that_became_a_link_is_refused(project: Path, tmp_path: Path) -> None:
    mounts = Mounts.of(project)
    (tmp_path / "outside").mkdir()
    project.rename(project.with_name("old"))
    project.symlink_to(tmp_path / "outside")
    with pytest.raises(ToolError) as caught:
        mounts.locate("a.txt")
    assert caught.value.code in ("E_SANDBOX_VIOLATION", "ENOENT")
    assert parse_mount(f"data={project}").root == Path(os.path.realpath(tmp_path / "outside"))


def test_a_relative_mount_stays_where_it_was_resolved(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other" / "data").mkdir(parents=True)
    (project / "data" / "a.txt").touch()
    monkeypatch.chdir(tmp_path / "other")
    mounts = Mounts.of(project, extra=[parse_mount("d=data", base=project)])
    assert [entry.name for entry in mounts.locate("@d").root.scan()] == ["a.txt"]


def test_a_refused_name_is_shown_with_its_invisible_characters() -> None:
    with pytest.raises(ToolError) as caught:
        path_parts("a\u202eb")
    assert "⟦U+202E⟧" in caught.value.message
    assert caught.value.code == "E_SANDBOX_VIOLATION"
