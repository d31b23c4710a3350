"""Mounts: what a person may write, what a path of the model means, what leaves of the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.mounts import Mount, Mounts, parse_mount
from nbagent.files.names import looks_secret, path_parts


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
        ("@data=data:rw", "@data", "data", "rw"),
        ("a-b_1=./data/../data", "@a-b_1", "data", "ro"),
        ("odd=da:ta", "@odd", "da:ta", "ro"),
        ("odd=da:ta:rw", "@odd", "da:ta", "rw"),
    ],
)
def test_a_mount_is_read_from_a_line(
    project: Path, text: str, name: str, below: str, mode: str
) -> None:
    (project / "da:ta").mkdir()
    mount = parse_mount(text, base=project)
    assert (mount.name, mount.root, mount.mode) == (name, project / below, mode)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data", "is no mount"),
        ("=data", "is no mount"),
        ("data=", "is no mount"),
        ("data=data:rx", "neither :ro nor :rw"),
        ("data=nowhere:ro", "there is no folder"),
        ("project=data:ro", "belongs to nbagent"),
        ("@state=data:ro", "belongs to nbagent"),
        ("a b=data:ro", "no name for a mount"),
        ("9=data:ro", "no name for a mount"),
        ("data=file.txt:ro", "there is no folder"),
    ],
)
def test_a_mount_that_cannot_be_is_said_plainly(project: Path, text: str, said: str) -> None:
    (project / "file.txt").touch()
    with pytest.raises(UsageError, match=said):
        parse_mount(text, base=project)


def test_a_drive_is_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def is_dir(self: Path) -> bool:
        seen.append(str(self))
        return True

    monkeypatch.setattr(Path, "is_dir", is_dir)
    mount = parse_mount(r"data=C:\x:rw")
    assert mount.mode == "rw"
    assert parse_mount(r"data=C:\x").mode == "ro"
    assert all(path.endswith(r"C:\x") for path in seen)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("@project/data/a.csv", "@project/data/a.csv"),
        ("data/a.csv", "@project/data/a.csv"),
        ("./data//a.csv", "@project/data/a.csv"),
        ("@project", "@project"),
        ("@project/", "@project"),
        (".", "@project"),
        ("", "@project"),
        ("@more/x y.txt", "@more/x y.txt"),
        ("ärger/日本.txt", "@project/ärger/日本.txt"),
        (".github/workflows/a.yml", "@project/.github/workflows/a.yml"),
        ("a..b/..c", "@project/a..b/..c"),
    ],
)
def test_a_path_has_one_form(project: Path, path: str, text: str) -> None:
    mounts = Mounts.of(project, extra=[Mount("@more", project / "data")])
    assert mounts.place(path).text == text


def test_two_mounts_of_one_name_are_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="two mounts"):
        Mounts([Mount("@a", project), Mount("@a", project / "data")])


def test_a_read_only_mount_is_read_only_also_through_the_one_around_it(project: Path) -> None:
    mounts = Mounts.of(project, extra=[Mount("@data", project / "data", "ro")])
    for path in ("@data/a", "@project/data/a", "DATA/a"):
        with pytest.raises(ToolError, match="@data is read only"):
            mounts.check_writable(mounts.place(path))
    mounts.check_writable(mounts.place("@project/database"))


def test_a_writable_mount_inside_a_read_only_one_is_writable(project: Path) -> None:
    mounts = Mounts.of(project / "data" / "state", package=project / "data")
    mounts.check_writable(mounts.place("@project/a"))
    with pytest.raises(ToolError, match="@pkg is read only"):
        mounts.check_writable(mounts.place("@pkg/a"))


def test_a_closed_folder_is_reached_only_by_a_mount_inside_it(project: Path) -> None:
    home = project / ".home"
    mounts = Mounts.of(project, state=home / "state", closed=[home])
    with pytest.raises(ToolError, match="kept by nbagent"):
        mounts.place("@project/.home/runs.db")
    assert mounts.place("@state/a.json").text == "@state/a.json"


def test_a_root_that_was_replaced_is_opened_anew(project: Path) -> None:
    mounts = Mounts.of(project)
    held = mounts.root(mounts["@project"])
    assert mounts.root(mounts["@project"]) is held
    project.rename(project.with_name("old"))
    with pytest.raises(ToolError, match="is not there"):
        mounts.root(mounts["@project"])
    project.mkdir()
    (project / "new.txt").touch()
    assert [entry.name for entry in mounts.root(mounts["@project"]).scan()] == ["new.txt"]
    assert [entry.name for entry in held.scan()] == ["data"]


def test_a_mount_made_from_a_link_is_the_folder_behind_it(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    assert Mount("@data", tmp_path / "link").root == Path(os.path.realpath(project))


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".ENV", ".env.local", "server.pem", "id_rsa", "id_ed25519.pub", ".netrc"),
        *("credentials", "Credentials", "private.key", ".git-credentials", "ｉｄ_rsa"),
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", [".env.example", "env.py", "identity.md", "pem.txt", "creds.md"])
def test_other_names_are_none(name: str) -> None:
    assert not looks_secret(name)


def test_a_refused_name_is_shown_with_its_invisible_characters() -> None:
    with pytest.raises(ToolError) as caught:
        path_parts("a\u202eb")
    assert "⟦U+202E⟧" in caught.value.message
    assert caught.value.code == "E_SANDBOX_VIOLATION"


@pytest.mark.parametrize(
    "folder", ["x" * 5_000, "a/" * 3_000, "~nobody-is-called-so", "a\0b"], ids=lambda f: f[:6]
)
def test_a_folder_that_cannot_be_looked_at_is_said_plainly(project: Path, folder: str) -> None:
    with pytest.raises(UsageError, match="there is no folder") as raised:
        parse_mount(f"data={folder}:ro", base=project)
    assert len(str(raised.value)) < 500


def test_a_relative_mount_stays_where_it_was_resolved(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (project / "data" / "a.txt").touch()
    monkeypatch.chdir(other)
    mounts = Mounts.of(project, extra=[parse_mount("d=data", base=project)])
    assert mounts["@d"].root == project / "data"
    assert [entry.name for entry in mounts.root(mounts["@d"]).scan()] == ["a.txt"]


@pytest.mark.parametrize("below", ["", "state", "state/s", "blobs"])
def test_no_mount_is_the_store_or_lies_in_it(project: Path, below: str) -> None:
    store = project / "store"
    for name in ("state/s", "blobs"):
        (store / name).mkdir(parents=True)
    for root in (store / below, project / "link"):
        if root.name == "link":
            root.symlink_to(store / below)
        with pytest.raises(UsageError, match="kept by nbagent itself"):
            Mounts.of(project, extra=[Mount("@d", root, "ro")], closed=[store])


def test_a_mount_above_the_store_keeps_it_closed(project: Path, tmp_path: Path) -> None:
    store = project / "store"
    (store / "state").mkdir(parents=True)
    mounts = Mounts.of(
        project, state=store / "state", extra=[Mount("@up", tmp_path, "rw")], closed=[store]
    )
    for path in ("@up/project/store", "@up/project/store/state/x", "@up/project/STORE/x", "store"):
        with pytest.raises(ToolError) as raised:
            mounts.place(path)
        assert raised.value.code == "E_DENIED"
    assert mounts.place("@state/x").text == "@state/x"
    assert mounts.skipped_below(mounts.place("@up")) == {("project", "store")}


def test_host_paths_become_mount_names(project: Path) -> None:
    mounts = Mounts.of(project, extra=[Mount("@data", project / "data")])
    said = f"cannot open {project}/data/a.csv nor '{project}' nor {project}-2/x"
    hidden = mounts.hide_roots(said)
    assert hidden == f"cannot open @data/a.csv nor '@project' nor {project}-2/x"


def test_a_root_that_became_a_link_is_refused(project: Path, tmp_path: Path) -> None:
    mounts = Mounts.of(project)
    (tmp_path / "outside").mkdir()
    project.rename(project.with_name("old"))
    project.symlink_to(tmp_path / "outside")
    with pytest.raises(ToolError) as caught:
        mounts.root(mounts["@project"])
    assert caught.value.code in ("E_SANDBOX_VIOLATION", "ENOENT")
