"""No link in a folder of nbagent leads out of it, whenever it was made."""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from path_attacks import SECRET, picture
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.errors import NbagentError
from nbagent.contracts.events import Event
from nbagent.providers.offline import call, script
from nbagent.sandbox.folder_thread import is_available
from nbagent.session.stores import close_stores, current_store
from nbagent.settings.sources import store_home

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")

LEVELS = {
    "the home": "",
    "all states": "state",
    "a session's state": "state/default",
    "a folder in it": "state/default/below",
    "the cache": "cache",
    "the database": "runs.sqlite",
    "its log": "runs.sqlite-wal",
    "its index of the log": "runs.sqlite-shm",
    "its journal": "runs.sqlite-journal",
    "the lock": "runs.lock",
    "the audit log": "audit.jsonl",
    "its head": "audit.head",
    "what git ignores": ".gitignore",
}
TARGETS = ("a file", "a folder", "nothing")
SAYS_NOTHING = frozenset({"what git ignores", "the cache"})
"""Levels without which a run does its work: the link is left alone."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, without NBAGENT_HOME, beside a folder with a secret."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.delenv("NBAGENT_HOME")
    monkeypatch.chdir(folder)
    lay_outside(tmp_path / "outside")
    return folder


def lay_outside(outside: Path) -> None:
    """Files of every name that nbagent opens, with a secret in each, and the folders."""
    for name in LEVELS.values():
        file = outside / "folder" / name
        if "." in name:
            file.write_text(SECRET)
        else:
            file.mkdir(parents=True)
            (file / "secret.txt").write_text(SECRET)
    (outside / "file").write_text(SECRET)


def target_of(outside: Path, kind: str) -> Path:
    return outside / {"a file": "file", "a folder": "folder", "nothing": "none"}[kind]


def work() -> str:
    """Two runs, the doctor and the frames; all that was said, errors included."""
    steps = [
        call("fs.write", path="@state/note.txt", content="written"),
        call("fs.write", path="@state/below/note.txt", content="written"),
        call("fs.read", path="@state/secret.txt"),
        call("fs.list", path="@state", depth=3),
        "Done.",
    ]
    said = [attempt(lambda: shown(nbagent.Agent(script(steps), tools=["fs"]).run("Go on.")))]
    with ModelServer([Reply(text="Hi.")]) as server:
        agent = nbagent.Agent("openai:little", base_url=server.url, tools="none", cache="auto")
        said.append(attempt(lambda: shown(agent.run("Hello?"))))
    said.append(attempt(frame_text))
    said.append(attempt(lambda: str(nbagent.verify_audit())))
    return "\n".join(said)


def frame_text() -> str:
    frame: Any = nbagent.runs()
    return frame.to_csv()


def shown(run: nbagent.Run) -> str:
    return f"{run.record.model_dump_json()} {run.messages}"


def attempt(step: Callable[[], str]) -> str:
    message = ""
    try:
        return step()
    except NbagentError as error:
        message = error.message
    assert "\n" not in message
    return message


def put_link(place: Path, target: Path) -> None:
    if os.path.lexists(place):
        place.rename(place.with_name(f"{place.name}.old"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_link_at_any_level_leads_nowhere(
    when: str, level: str, target: str, project: Path
) -> None:
    outside = project.with_name("outside")
    home = project / ".nbagent"
    if when == "after":
        work()
    put_link(home / LEVELS[level], target_of(outside, target))
    before = picture(outside)
    said = work()
    close_stores()
    said += work()
    close_stores()
    assert picture(outside) == before
    assert SECRET not in said
    assert str(outside) not in said, said[said.index(str(outside)) - 300 :][:400]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_link_in_the_folder_that_the_person_chose_is_named(
    level: str, target: str, tmp_path: Path
) -> None:
    lay_outside(tmp_path / "outside")
    home = store_home()
    if level == "the home":  # the person's own link is followed
        home.symlink_to(tmp_path / "chosen")
        (tmp_path / "chosen").mkdir()
        assert '"ok":true' in work().replace('"ok": true', '"ok":true')
        assert (tmp_path / "chosen" / "runs.sqlite").is_file()
        return
    put_link(home / LEVELS[level], target_of(tmp_path / "outside", target))
    before = picture(tmp_path / "outside")
    said = work()
    assert picture(tmp_path / "outside") == before
    assert SECRET not in said
    if level not in SAYS_NOTHING:
        assert "is a link" in said


CASSETTES = {
    "a link": "answers.jsonl",
    "a link to a folder on the way": "folder/answers.jsonl",
    "a link, named by dots": "folder/../answers.jsonl",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["auto", "refresh", "replay"])
@pytest.mark.parametrize("name", CASSETTES)
def test_a_cassette_in_the_project_is_no_link(
    name: str, mode: str, target: str, project: Path
) -> None:
    outside = project.with_name("outside")
    (project / "answers.jsonl").symlink_to(target_of(outside, target))
    (project / "folder").symlink_to(outside / "folder")
    before = picture(outside)
    events: list[Event] = []
    with ModelServer([Reply(text="Hi.")]) as server:
        run = nbagent.Agent(
            "openai:little", base_url=server.url, cassette=CASSETTES[name], cache=mode
        ).run("Hello?", on_event=events.append)
    assert picture(outside) == before
    said = f"{shown(run)} {events}"
    assert SECRET not in said
    assert "is a link, and links below the project are not followed" in said
    assert run.ok == (mode == "refresh")  # it asks, and says that the answer is not recorded


def test_a_link_outside_of_the_project_is_the_persons_own(project: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    with ModelServer([Reply(text="Hi.")]) as server:
        agent = nbagent.Agent(
            "openai:little", base_url=server.url, cassette=str(tmp_path / "shared" / "a.jsonl")
        )
        agent.run("Hello?").raise_for_error()
    assert (tmp_path / "real" / "a.jsonl").is_file()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", ["report.md", "folder/report.md"])
def test_an_export_is_not_written_through_a_link_in_the_project(
    path: str, target: str, project: Path
) -> None:
    outside = project.with_name("outside")
    (project / "report.md").symlink_to(target_of(outside, target))
    (project / "folder").symlink_to(outside / "folder")
    before = picture(outside)
    run = nbagent.Agent(script(["Hi."])).run("Hello?")
    with pytest.raises(nbagent.UsageError, match="is a link, and links below the project"):
        run.export("md", path)
    assert picture(outside) == before


# Stores of others


STRANGE = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM turns; END",
    "a trigger of updates": "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN SELECT 1; END",
    "a view": "CREATE VIEW v AS SELECT 1",
    "a view in the place of a table": "DROP TABLE prompts; CREATE VIEW prompts AS SELECT 1 AS kind",
    "a generated column": "CREATE TABLE g(a, b AS (a || 'x'))",
    "a check": "CREATE TABLE g(a CHECK(length(a) > 1))",
    "a default": "CREATE TABLE g(a DEFAULT (random()))",
    "a virtual table": "CREATE VIRTUAL TABLE f USING fts5(text)",
    "an index of an expression": "CREATE INDEX e ON runs(lower(name))",
    "an index with a condition": "CREATE INDEX e ON runs(name) WHERE length(name) > 3",
    "a unique index": "CREATE UNIQUE INDEX e ON runs(session)",
    "a collation": "CREATE INDEX e ON runs(name COLLATE NOCASE)",
    "a name with a line": 'CREATE VIEW "a\nb" AS SELECT 1',
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_store_with_parts_of_others_is_refused_by_name(strange: str, tmp_path: Path) -> None:
    nbagent.Agent(script(["Hi."])).run("Hello?").raise_for_error()
    close_stores()
    file = store_home() / "runs.sqlite"
    change(file, STRANGE[strange])
    before = file.read_bytes()
    for attempted in (
        lambda: nbagent.Agent(script(["Hi."])).run("Hello?"),
        lambda: nbagent.runs(store=store_home()),
    ):
        with pytest.raises(NbagentError, match="nbagent did not make the") as caught:
            attempted()
        assert "\n" not in str(caught.value)
    assert file.read_bytes() == before


def test_a_part_of_others_that_comes_later_is_not_run() -> None:
    nbagent.Agent(script(["Hi."])).run("Hello?").raise_for_error()
    change(store_home() / "runs.sqlite", STRANGE["a trigger"])
    with pytest.raises(NbagentError, match="nbagent did not make the trigger 't'"):
        nbagent.Agent(script(["Hi."])).run("Hello?")
    change(store_home() / "runs.sqlite", "DROP TRIGGER t")
    assert len(nbagent.turns()) == 1


def test_a_cell_with_more_bytes_than_a_run_has_is_an_error() -> None:
    run = nbagent.Agent(script(["Hi."])).run("Hello?").raise_for_error()
    close_stores()
    change(
        store_home() / "runs.sqlite",
        f"UPDATE runs SET prompt = zeroblob({300 << 20}) WHERE run_id = '{run.id}'",
    )
    with pytest.raises(NbagentError, match="too big"):
        nbagent.runs()


def change(file: Path, sql: str) -> None:
    import sqlite3

    connection = sqlite3.connect(file)
    connection.executescript(sql)
    connection.close()


# Folders of the person


def yes(_: object) -> bool:
    return True


PRIVATE = {
    "configuration": ("XDG_CONFIG_HOME", "nbagent/folders/entry.json"),
    "data": ("XDG_DATA_HOME", "nbagent/stores/other/runs.sqlite"),
}


@pytest.mark.parametrize("folder", PRIVATE)
@pytest.mark.parametrize("mounted", ["", "nbagent", "nbagent/folders", ".."])
def test_no_mount_reaches_the_persons_folders_of_nbagent(
    folder: str, mounted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, file = PRIVATE[folder]
    base = tmp_path / "person" / "base"
    monkeypatch.setenv(variable, str(base))
    (base / "nbagent" / "folders").mkdir(parents=True)
    (base / file).parent.mkdir(parents=True, exist_ok=True)
    (base / file).write_text(SECRET)
    before = picture(base)
    below = os.path.relpath(base / file, base / mounted)
    steps = [
        call("fs.read", path=f"@m/{below}"),
        call("fs.write", path=f"@m/{below}", content="changed"),
        call("fs.search", path="@m", query="the-secret"),
        "Done.",
    ]
    agent = nbagent.Agent(script(steps), mounts=[f"m={base / mounted}:rw"], on_approval=yes)
    said = attempt(lambda: shown(agent.run("Go on.")))
    assert SECRET not in said
    assert picture(base) == before
    assert "nbagent itself" in said


@pytest.mark.parametrize("folder", PRIVATE)
@pytest.mark.parametrize("skill", ["..", "nbagent", "nbagent/deeper"])
def test_no_skill_has_the_persons_folders_of_nbagent(
    folder: str, skill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "person" / "base"
    monkeypatch.setenv(PRIVATE[folder][0], str(base))
    (base / "nbagent" / "deeper").mkdir(parents=True)
    (base / skill / "SKILL.md").write_text("---\nname: wide\ndescription: Reads all.\n---\n")
    (base / skill / "read.py").write_text("print(1)")
    steps = [call("list_skills"), call("run_python_script", skill_name="wide", script="read.py")]
    agent = nbagent.Agent(
        script([*steps, "Done."]), skills=[str(base / skill)], tools=["skills"], on_approval=yes
    )
    results = [it.result for turn in agent.run("Go on.").turns for it in turn.tool_runs]
    # Without another skill there is no tool for skills.
    assert [it.error.code for it in results if it and it.error] == ["E_UNKNOWN_TOOL"] * 2


def test_the_project_is_not_the_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "config" / "nbagent"
    base.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base.parent))
    monkeypatch.chdir(base)
    said = attempt(lambda: shown(nbagent.Agent(script(["Hi."]), tools=["fs"]).run("Go on.")))
    assert "@project belongs to nbagent itself" in said


SESSIONS = ("default", "Plan", "plan", "PLAN", "é", "e\u0301", "a b", "a_b")


def test_sessions_whose_names_differ_only_in_case_have_states_of_their_own() -> None:
    for name in SESSIONS:
        steps = [call("fs.write", path="@state/name.txt", content=name), "Done."]
        nbagent.Agent(script(steps), tools=["fs"], session=name).run("Go on.").raise_for_error()
    folders = sorted(path.name for path in (store_home() / "state").iterdir())
    assert len({name.casefold() for name in folders}) == len(SESSIONS)
    assert "default" in folders


def test_a_state_folder_of_an_earlier_nbagent_is_found_again() -> None:
    (store_home() / "state" / "Plan").mkdir(parents=True)
    (store_home() / "state" / "Plan" / "note.txt").write_text("kept")
    steps = [call("fs.read", path="@state/note.txt"), "Done."]
    run = nbagent.Agent(script(steps), tools=["fs"], session="Plan").run("Go on.")
    assert "kept" in shown(run)


# Swaps while nbagent works


confined = pytest.mark.skipif(
    not is_available(), reason="SQLite follows links; only Landlock confines it while they change"
)
SWAPPED = ("", "state", "state/default", "cache", "runs.sqlite", "audit.jsonl", "runs.lock")
_HERE, _EXCHANGE = -100, 2


class Swapper(threading.Thread):
    """Exchanges files and folders of a home with links to the outside, at random."""

    def __init__(self, home: Path, outside: Path) -> None:
        super().__init__(daemon=True)
        self._home, self._outside = home, outside
        self._exchange: Any = ctypes.CDLL(None).renameat2
        self.stop = threading.Event()
        self.swaps = 0

    def run(self) -> None:
        chance = random.Random(26)
        links = self._home.with_name("links")
        links.mkdir()
        while not self.stop.is_set():
            name = chance.choice(SWAPPED)
            place, link = self._home / name, links / "link"
            link.symlink_to(self._outside / "folder" / name)
            names = os.fsencode(place), os.fsencode(link)
            for _ in range(chance.choice([2, 4, 10, 100])):
                if self._exchange(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
                    self.swaps += 1
            # The real one is back; what was created meanwhile in its place stays with it.
            if not link.is_symlink():
                self._exchange(_HERE, names[0], _HERE, names[1], _EXCHANGE)
            link.unlink()


@contextmanager
def swapping(home: Path, outside: Path) -> Generator[Swapper]:
    swapper = Swapper(home, outside)
    swapper.start()
    try:
        yield swapper
    finally:
        swapper.stop.set()
        swapper.join()


@confined
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("swaps", "seconds"), [(40, 0), pytest.param(1000, 60, marks=pytest.mark.proof)]
)
@pytest.mark.filterwarnings("ignore")
def test_swaps_while_nbagent_works_lead_nowhere(swaps: int, seconds: int, project: Path) -> None:
    outside = project.with_name("outside")
    work()
    close_stores()
    before = picture(outside)
    until = time.monotonic() + seconds
    done = 0
    with swapping(project / ".nbagent", outside) as swapper:
        while not done or swapper.swaps < swaps or time.monotonic() < until:
            said = work()
            close_stores()
            assert SECRET not in said
            assert picture(outside) == before
            done += 1
    close_stores()
    # What was there before the swaps is there and can be used again.
    said = json.dumps(work())
    assert current_store().path is not None, said
    assert picture(outside) == before
