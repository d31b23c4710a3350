"""Rules and secret names hide files from every call, under each of their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_door import FileDoor

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


def mounts_of(project: Path) -> Mounts:
    more = {"@data": project / "private", "@above": project.parent, "@same": project}
    return Mounts.of(project, extra=[Mount(name, root, "rw") for name, root in more.items()])


def door_of(project: Path, *deny: str, allow: tuple[str, ...] = ()) -> FileDoor:
    policy = ToolPolicy(deny=deny, allow=allow)
    return FileDoor(project, mounts=mounts_of(project), policy=policy)


def searched(door: FileDoor, path: str, query: str = "needle") -> set[str]:
    given = door.data("fs.search", query=query, path=path)
    return {match["path"].rpartition("/")[2] for match in given["matches"]}


def listed(door: FileDoor, path: str) -> set[str]:
    return set(door.data("fs.list", path=path, depth=9)["entries"])


ONE_FOLDER = [
    "fs.*(path=@project/private/*)",
    "fs.*(path=@data/*)",
    "fs.*(path=private/*)",
    "filesystem(path=@same/private/*)",
    "fs.*(path=@dat*)",
    'fs.*(path="private/*")',
]
FOLDER_NAMES = ["@data", "private", "@above/project/private", "@same/private", "./private/."]


@pytest.mark.parametrize("deny", ONE_FOLDER)
def test_what_is_denied_in_a_folder_is_found_by_none_of_its_names(project: Path, deny: str) -> None:
    door = door_of(project, deny)
    for path in ("@project", "@same", "@above"):
        assert searched(door, path) == {"a.txt", "z.txt"}
        names = listed(door, path)
        assert not [name for name in names if name.endswith(("x.txt", "sub/", "y.txt"))]
        assert any(name.endswith("public/z.txt") for name in names)
    for path in FOLDER_NAMES:
        assert listed(door, path) == set()
        assert searched(door, path) == set()
        assert door.error("fs.search", query="needle", path=f"{path}/x.txt").code == "E_DENIED"


FILES = [rule.replace("/*)", "/x.txt)") for rule in ONE_FOLDER[:4]]


@pytest.mark.parametrize("rule", [*FILES, 'fs.*(path="private/x.txt", content="x")'])
@pytest.mark.parametrize("kind", ["deny", "ask", "allow"])
def test_a_rule_holds_for_a_file_by_each_of_its_names(project: Path, rule: str, kind: str) -> None:
    rules: dict[str, Any] = {kind: [rule]}
    door = FileDoor(project, mounts=mounts_of(project), policy=ToolPolicy(**rules))
    for path in FOLDER_NAMES:
        for file, ruling in (("x.txt", kind), ("x.txt2", "ask")):
            prepared = door.prepared("fs.write", path=f"{path}/{file}", content="x")
            hit = door.rules.decide(prepared.spec, prepared.preview, prepared.arguments)
            assert hit.ruling == ruling, path


def test_a_file_that_may_not_be_read_is_listed_and_not_searched(project: Path) -> None:
    door = door_of(project, "fs.read(path=*x.txt)")
    assert searched(door, "@project") == {"a.txt", "y.txt", "z.txt"}
    assert "private/x.txt" in listed(door, "@project")
    door = door_of(project, "fs.list(path=*x.txt)")
    assert "x.txt" in searched(door, "@project")
    assert "private/x.txt" not in listed(door, "@project")
    door = door_of(project, "fs.read")
    assert door.error("fs.search", query="needle").code == "E_DENIED"


def test_a_denied_folder_is_left_out_and_what_is_in_it_is_judged_as_written(project: Path) -> None:
    door = door_of(project, "fs.*(path=@data)")
    assert searched(door, "@project") == {"a.txt", "z.txt"}
    assert "private/" not in listed(door, "@project")
    assert searched(door, "private/sub") == {"y.txt"}


def test_a_rule_about_more_than_the_path_is_judged_with_the_call(project: Path) -> None:
    door = door_of(project, "fs.search(path=*x.txt, query=need*)")
    assert "x.txt" not in searched(door, "@project")
    assert "x.txt" in searched(door, "@project", "here")


SECRETS = (
    *(".env", ".ENV", ".env.local", ".envrc", "prod.env", ".npmrc", ".netrc", ".pypirc", ".pgpass"),
    *("server.pem", "private.key", "id_rsa", "id_ed25519.pub", "ｉｄ_rsa", "store.jks", "a.p12"),
    *("credentials", "Credentials.csv", ".git-credentials", "client_secret_1.json", "secrets.yaml"),
    *("service-account.json", "service_account_key.json", "auth.json", "token.txt", "hf_token"),
    *(".Renviron", "keys.json", "mytoken.txt", "wallet.dat"),
    *("main.tfvars", "x.auto.tfvars.json", "terraform.tfstate", "kubeconfig", ".kube/config"),
    *(".ssh/known_hosts", ".aws/config", ".docker/config.json", ".streamlit/secrets.toml"),
    *(".bash_history", ".python_history", "Login Data", "key4.db", "logins.json", "Cookies"),
    *(".mozilla/firefox/x.default/prefs.js", ".config/google-chrome/Default/History"),
    *(".env~", ".#.env", "#.env#", ".env.swp", ".env.bak", ".env.2024", "prod.env.txt", ".my_env"),
    *(".aws_config", ".aws_credentials", "backup.pem.txt", "id_rsa.bak", ".id_rsa.swp", "._id_rsa"),
    *("server.key.old", "server.pem.1", "server (1).pem", "server - copy.pem", "my.pem.gz"),
    *(".netrc~", "secrets.yaml.bak", "credentials.json.orig", "cookies.txt~", "token.bak.txt"),
)
HARMLESS = (
    *("tokens.py", "tokens.json", "tokenizer.json", "author.json", "environment.yml", "env.py"),
    *(".env.example", "example.env", "secrets.py", "creds.md", "secretary.csv", "identity.md"),
    *("keyboard.json", "history.csv", "pem.txt", "config.json", "kube.yaml", "package.json"),
    *(".env.example~", "secrets.py.bak", "notes.txt~", "data.csv.1", "copy.txt", "a (1).csv"),
    *(".docker/Dockerfile", "docker/config.json", "cookiecutter.json", "main.tf", "auth.py"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_what_looks_like_a_key_is_kept_from_every_tool(project: Path, name: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(LINE)
    door = FileDoor(project)
    assert door.error("fs.read", path=name).code == "E_DENIED"
    assert door.error("fs.search", path=name, query="needle").code == "E_DENIED"
    assert door.error("fs.write", path=name, content="x").code == "E_DENIED"
    assert searched(door, "@project") == {"a.txt", "x.txt", "y.txt", "z.txt"}
    if name[0] == "." and "/" in name and not name.startswith((".docker", ".streamlit", ".config")):
        assert door.error("fs.list", path=name.partition("/")[0]).code == "E_DENIED"


def test_what_is_near_and_harmless_is_read(project: Path) -> None:
    door = FileDoor(project)
    for name in HARMLESS:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(LINE)
        assert door.data("fs.read", path=name)["content"] == LINE


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("fs.read(path=.env)", True),
        ('fs.read(path="*.env")', False),
        ("fs.*(path=@above/project/.env)", True),
        ("fs(path=*.env)", True),
        ("fs.read(path=@project/.ssh/*)", True),
        ("fs.read", False),
        ("fs.read(path=@project/**)", False),
        ("fs.read(path=@project/sub/.env)", False),
    ],
)
def test_a_secret_is_read_when_its_name_was_allowed(
    project: Path, rule: str, *, allowed: bool
) -> None:
    name = next((it for it in ("id_rsa", ".ssh/config") if it[:3] in rule), ".env")
    (project / ".ssh").mkdir()
    (project / name).write_text(LINE)
    door = door_of(project, allow=(rule, "fs.search(path=@same/.env)"))
    error = door.call("fs.read", path=name).result.error
    assert (error.code if error else None) == (None if allowed else "E_DENIED")
    assert (".env" in searched(door, "@project")) == (name == ".env")
