"""The document changes by checked updates only: every legal one, and no other, through the tool."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from workflow_stage import LOOP, STATE, make_package

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.tools import ToolContext
from nbagent.files.frontmatter import read_frontmatter
from nbagent.files.mounts import Mount, Mounts
from nbagent.runtime import RunTask
from nbagent.tools.filesystem import FileHost
from nbagent.tools.host_config import HostConfig
from nbagent.workflow.package import load_package
from nbagent.workflow.state import new_document, read_state
from nbagent.workflow.updates import StateGuard

GRAPHS: dict[str, Mapping[str, Mapping[str, str]]] = {
    "loop": LOOP,
    "diamond": {
        "start": {"left": "l", "right": "r"},
        "left": {"join": "next"},
        "right": {"join": "next", "start": "back"},
        "join": {"end": "yes", "other": "no"},
        "end": {},
        "other": {},
    },
}


class Room:
    """A document with its guard below the file tools."""

    def __init__(self, folder: Path, ways: Mapping[str, Mapping[str, str]], **more: Any) -> None:
        self.project = folder / "project"
        self.state = folder / "state"
        for one in (self.project, self.state):
            one.mkdir()
        self.package = load_package(make_package(folder / "flow", ways, **more))
        self.file = self.state / "workflow.md"
        self.new_text = new_document(self.package, "0" * 16, "@project/flow")
        self.file.write_text(self.new_text)
        mounts = Mounts([Mount("@project", self.project, "rw"), Mount("@state", self.state, "rw")])
        guard = StateGuard(self.package.graph, self.file)
        order = HostConfig(names=("fs",), project=self.project, mounts=mounts, guard=guard)
        self.host = FileHost(order)

    def call(self, tool: str = "fs.apply_patch", **arguments: Any) -> dict[str, Any] | ErrorInfo:
        """The data of a result, or its error."""
        call = ToolCall(id="1", name=tool, arguments=arguments, arguments_raw="{}")
        context = ToolContext(run_id="0" * 16, session="t", runner=RunTask())

        async def run() -> Any:
            prepared = await self.host.prepare(call, context)
            return (await prepared.run(context)).result

        try:
            result = asyncio.run(run())
        except ToolError as error:
            return error.info
        return result.error or result.data

    def refused(self, tool: str = "fs.apply_patch", **arguments: Any) -> ErrorInfo:
        """The error of a call, which has changed nothing."""
        before = self.file.read_bytes()
        result = self.call(tool, **arguments)
        assert isinstance(result, ErrorInfo)
        assert self.file.read_bytes() == before
        return result

    def update(self, **update: Any) -> dict[str, Any] | ErrorInfo:
        keys = {key.replace("_", "."): value for key, value in update.items()}
        return self.call(path=STATE, operation="updateFrontmatter", update=keys)

    def at(self, completed: list[str], current: str) -> None:
        """Put the document into a state, as its text."""
        steps = f"stepsCompleted: {json.dumps(completed)}"
        text = self.new_text.replace("stepsCompleted: []", steps)
        entry = self.package.graph.entry
        self.file.write_text(text.replace(f"currentNodeId: {entry}", f"currentNodeId: {current}"))


def states_of(ways: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[list[str], str]]:
    """Every visit of up to three steps, before and after the step has ended."""
    visits: list[list[str]] = [[next(iter(ways))]]
    while visits:
        way = visits.pop(0)
        yield way[:-1], way[-1]
        yield way, way[-1]
        visits += [[*way, there] for there in ways[way[-1]] if len(way) < 3]


def test_of_all_moves_in_all_states_just_the_legal_ones_change_the_document(tmp_path: Path) -> None:
    refused = accepted = 0
    for name, ways in GRAPHS.items():
        (tmp_path / name).mkdir()
        room = Room(tmp_path / name, ways)
        for completed, here in states_of(ways):
            ended = completed[-1:] == [here]
            choices = [None, *ways, "nowhere"]
            for ends, to in itertools.product(choices, choices):
                if ends is None and to is None:
                    continue
                room.at(completed, here)
                before = room.file.read_bytes()
                given = {"stepsCompleted_append": ends, "currentNodeId_set": to}
                result = room.update(**{k: v for k, v in given.items() if v is not None})
                may_end = ends is None or (ends == here and not ended)
                may_go = to is None or (to in ways[here] and (ended or ends == here))
                if may_end and may_go:
                    accepted += 1
                    assert not isinstance(result, ErrorInfo), (completed, here, ends, to, result)
                    state = read_state(room.file.read_bytes(), room.package.graph)
                    assert state.node == (to or here)
                    assert state.completed == (*completed, *([ends] if ends else []))
                    assert ("transition" in result) == (to is not None)
                else:
                    refused += 1
                    assert isinstance(result, ErrorInfo), (completed, here, ends, to)
                    assert result.code in ("E_INVALID_TRANSITION", "E_PRECONDITION_FAILED")
                    assert result.details["allowed"] == list(ways[here])
                    assert room.file.read_bytes() == before
    assert refused > 400
    assert accepted > 20


MISFITS: dict[str, Any] = {
    "no update": {},
    "unknown key": {"zip.set": 1},
    "plain key": {"currentNodeId": "check"},
    "identity": {"runId.set": "0"},
    "variables as text": {"variables.set": "a=1"},
    "a variable's name": {"variables.set": {"a b": 1}},
    "a huge variable": {"variables.set": {"a": "x" * 5_000}},
    "a huge decision": {"decisionLog.append": "x" * 5_000},
    "an empty decision": {"decisionLog.append": ""},
    "an artifact elsewhere": {"artifacts.append": "@pkg/x.md"},
    "an artifact of two lines": {"artifacts.append": "@project/a\nb"},
    "no time": {"updatedAt.set": "yesterday"},
}


@pytest.mark.parametrize("update", MISFITS.values(), ids=MISFITS)
def test_what_is_no_update_is_refused_and_says_what_is(tmp_path: Path, update: Any) -> None:
    given: dict[str, Any] = {"path": STATE, "operation": "updateFrontmatter", "update": update}
    assert Room(tmp_path, LOOP).refused(**given).code == "E_SCHEMA_VALIDATION"


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "write": ("fs.write", {"path": STATE, "content": "x"}),
    "other spelling": ("fs.write", {"path": "@state//./workflow.md", "content": "x"}),
    "other case": ("fs.write", {"path": "@state/Workflow.MD", "content": "x"}),
    "span": ("fs.apply_patch", {"path": STATE, "oldText": "draft", "newText": "done"}),
    "diff": ("fs.apply_patch", {"path": STATE, "diff": "@@ -1 +1 @@\n----\n+-\n"}),
    "span and update": (
        "fs.apply_patch",
        {"path": STATE, "oldText": "a", "newText": "b", "update": {"currentNodeId.set": "check"}},
    ),
    "from above": ("fs.write", {"path": "../state/workflow.md", "content": "x"}),
}


@pytest.mark.parametrize(("tool", "arguments"), DOORS.values(), ids=DOORS)
def test_no_other_tool_changes_it(tmp_path: Path, tool: str, arguments: dict[str, Any]) -> None:
    room = Room(tmp_path, LOOP)
    assert room.refused(tool, **arguments).code == "E_SANDBOX_VIOLATION"
    assert [file.name for file in room.state.iterdir()] == ["workflow.md"]


def test_a_step_ends_when_its_outputs_are_there(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP, outputs={"draft": {"text": "artifacts/draft.md"}})
    result = room.update(stepsCompleted_append="draft", currentNodeId_set="check")
    assert isinstance(result, ErrorInfo)
    assert result.code == "E_PRECONDITION_FAILED"
    assert "@project/artifacts/draft.md" in result.message
    assert isinstance(room.update(artifacts_append="@project/artifacts/draft.md"), ErrorInfo)
    room.call("fs.write", path="artifacts/draft.md", content="Hi")
    result = room.update(
        stepsCompleted_append="draft",
        currentNodeId_set="check",
        artifacts_append=["@project/artifacts/draft.md"],
        variables_set={"rounds": 1, "old": None},
        decisionLog_append={"why": "yes", "by": "mira"},
        updatedAt_set="2026-03-04T05:06:07Z",
    )
    assert isinstance(result, dict)
    assert result["transition"] == {"from": "draft", "to": "check", "label": "next"}
    front = read_frontmatter(room.file.read_text()).mapping
    assert front["artifacts"] == ["@project/artifacts/draft.md"]
    assert (front["variables"], front["updatedAt"]) == ({"rounds": 1}, "2026-03-04T05:06:07Z")
    assert front["decisionLog"] == [{"why": "yes", "by": "mira"}]


def test_a_step_begins_when_its_inputs_are_there(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP, inputs={"check": ["@project/artifacts/draft.md"]})
    before = room.file.read_bytes()
    result = room.update(stepsCompleted_append="draft", currentNodeId_set="check")
    assert isinstance(result, ErrorInfo)
    assert result.code == "E_PRECONDITION_FAILED"
    assert "check needs files that are not there: @project/artifacts/draft.md" in result.message
    assert room.file.read_bytes() == before
    room.call("fs.write", path="artifacts/draft.md", content="Hi")
    result = room.update(stepsCompleted_append="draft", currentNodeId_set="check")
    assert isinstance(result, dict)


def test_outputs_are_there_whatever_their_size_and_keys_never_looked_for(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP, outputs={"draft": {"big": "big.bin"}})
    with (room.project / "big.bin").open("wb") as file:
        file.truncate(70_000_000)
    (room.project / ".env").write_text("KEY=1")
    for path in ("@project/.env", "@project/", "@project/steps"):
        assert isinstance(room.update(artifacts_append=path), ErrorInfo)
    assert not isinstance(room.update(stepsCompleted_append="draft"), ErrorInfo)


def test_names_of_half_written_files_are_kept_from_tools(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP)
    name = f".nbagent-tmp-{sha256_hex('workflow.md')[:16]}"
    result = room.call("fs.write", path=f"@state/{name}/x", content="x")
    assert isinstance(result, ErrorInfo)
    assert not isinstance(room.update(variables_set={"a": 1}), ErrorInfo)


def test_a_full_document_still_comes_to_its_end(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP)
    results = [room.update(decisionLog_append="word, " * 600) for _ in range(20)]
    assert isinstance(results[-1], ErrorInfo)
    assert "keep long texts in files" in results[-1].message
    for here, there in (("draft", "check"), ("check", "draft"), ("draft", "check")):
        moved = room.update(stepsCompleted_append=here, currentNodeId_set=there)
        assert not isinstance(moved, ErrorInfo)


def test_an_update_deletes_no_variable_but_its_own(tmp_path: Path) -> None:
    room = Room(tmp_path, LOOP, front="variables:\n  topic: # what it is about\n  n: 1 # one\n")
    room.update(variables_set={"n": 2})
    text = room.file.read_text()
    assert "topic: # what it is about" in text
    assert "n: 2 # one" in text
    room.update(variables_set={"topic": None})
    assert "topic" not in room.file.read_text()


@pytest.mark.parametrize("value", ["a\u0085b", "yes", "2026-01-01", "---", "x\ny: z", "*a", "\t"])
def test_a_value_reads_back_as_it_was_set_or_is_refused(tmp_path: Path, value: str) -> None:
    room = Room(tmp_path, LOOP)
    result = room.update(variables_set={"v": value})
    now = read_state(room.file.read_bytes(), room.package.graph).variables
    if isinstance(result, ErrorInfo):
        assert "write them as short plain texts" in result.message
    assert now == ({} if isinstance(result, ErrorInfo) else {"v": value})


BY_HAND: dict[str, tuple[str, str, str, str]] = {
    "no step": ("currentNodeId: draft", "currentNodeId: dratf", "E_SCHEMA", "line 9"),
    "a jump": (
        "currentNodeId: draft",
        "currentNodeId: done",
        "E_INVALID_TRANSITION",
        "comes draft",
    ),
    "a way that is none": (
        "stepsCompleted: []",
        "stepsCompleted: [draft, done]",
        "E_INVALID",
        "check",
    ),
    "broken YAML": ("decisionLog: []", "decisionLog:\n\t- [", "E_INVALID_FRONTMATTER", "line"),
    "a number as list": ("stepsCompleted: []", "stepsCompleted: 3", "E_SCHEMA", "stepsCompleted"),
    "variables as list": ("variables: {}", "variables: []", "E_SCHEMA", "variables"),
    "no front matter": ("---\n", "", "E_INVALID_FRONTMATTER", "---"),
    "a key twice": ("artifacts: []", "artifacts: []\nartifacts: []", "E_INVALID", "artifacts"),
    "no run": ("runId: '0000000000000000'", "runId: x", "E_SCHEMA", "16 hex"),
    "an alias": ("variables: {}", "variables: &a\n  x: *a", "E_INVALID_FRONTMATTER", "alias"),
}


@pytest.mark.parametrize(("old", "new", "code", "word"), BY_HAND.values(), ids=BY_HAND)
def test_a_document_that_was_edited_wrongly_is_explained_and_not_touched(
    tmp_path: Path, old: str, new: str, code: str, word: str
) -> None:
    room = Room(tmp_path, LOOP)
    text = room.file.read_text()
    assert old in text
    room.file.write_text(text.replace(old, new, 1))
    update = {"variables.set": {"a": 1}}
    error = room.refused(path=STATE, operation="updateFrontmatter", update=update)
    assert (error.code.startswith(code), word in error.message) == (True, True)
