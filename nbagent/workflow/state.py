"""The state document: what its front matter says, whether that can be, and what may become of it.

Texts and values only. Where the document lies is `document`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, cast
from unicodedata import normalize

from nbagent.contracts.canonical import dump_json, is_run_id, utc_now
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.files.frontmatter import edit_frontmatter, read_frontmatter, settable
from nbagent.files.patching import to_bytes, to_text
from nbagent.workflow.graph import Graph, Package

FILE = "workflow.md"
PATH = f"@state/{FILE}"
_VARIABLE = re.compile(r"[A-Za-z_][\w.-]{0,79}")
_MOST_CHARS = 4_000
"""Of one value as JSON."""
_MOST_BYTES = 60_000
"""Of a document; only moves may make it longer, so that a full one still comes to its end."""
_MOST_MARKS = 5_000
"""Of what makes YAML slow to read, in the front matter; reading has its own bound above that."""
_MOVES = {"stepsCompleted.append", "currentNodeId.set", "updatedAt.set"}
_LISTS = ("stepsCompleted", "decisionLog", "artifacts")
_UPDATES = (
    *("stepsCompleted.append", "variables.set", "decisionLog.append", "artifacts.append"),
    *("currentNodeId.set", "updatedAt.set"),
)
_OF_PACKAGE = ("id", "agents", "agent", "entry", "config")
"""Keys of the template that are not the document's."""
_HOW = f'write {{"path": "{PATH}", "operation": "updateFrontmatter", "update": {{KEY: VALUE}}}}'
_KEYS = f"its keys are {', '.join(_UPDATES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a document says; it fits its graph."""

    run_id: str
    """Of the first run of the workflow; its folder bears this name."""
    workflow_id: str
    package_path: str
    """`@project/…`, or the name of a package outside of the project."""
    package_sha256: str
    node: str
    completed: tuple[str, ...]
    """In the order in which they ended; on a loop a step stands here several times."""
    variables: Mapping[str, Any]
    artifacts: tuple[str, ...]

    def ended(self) -> bool:
        """Whether the current step has been completed in this visit."""
        return self.completed[-1:] == (self.node,)

    @property
    def visit(self) -> int:
        """Counts the steps that were entered, from 0; the same all the time in one of them."""
        return len(self.completed) - self.ended()

    def is_complete(self, graph: Graph) -> bool:
        """Whether the workflow is."""
        return graph.nodes[self.node].terminal and self.ended()


def new_document(package: Package, run_id: str, package_path: str) -> str:
    """The text of a fresh document: the template with the state of a run that begins."""
    now = _now()

    def begin(there: Any) -> None:
        for key in _OF_PACKAGE:
            there.pop(key, None)
        if not isinstance(there.get("variables"), dict):
            there["variables"] = {}
        there.update(
            {
                "runId": run_id,
                "workflowId": package.id,
                "package": {"path": package_path, "sha256": package.sha256},
                "currentNodeId": package.graph.entry,
                "stepsCompleted": [],
                "decisionLog": [],
                "artifacts": [],
                "updatedAt": now,
            }
        )

    return edit_frontmatter(package.template, begin)


def of_other_package(text: str, package: Package, package_path: str, run_id: str) -> str:
    """The same document for a package that was changed or lies elsewhere now, or for a fork."""

    now = _now()

    def change(there: Any) -> None:
        there["runId"] = run_id
        there["package"] = {"path": package_path, "sha256": package.sha256}
        there["updatedAt"] = now

    return edit_frontmatter(text, change)


def origin_of(data: bytes) -> tuple[str, str, str]:
    """The run id, the package's path and its hash, before the package is known.

    Raises:
        ToolError: it is no state document; the message is for the person who named it.
    """
    front = _front(data)
    return _identity(to_text(data), front)


def read_state(data: bytes, graph: Graph) -> State:
    """What a document says.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, it cannot be read; `E_SCHEMA_VALIDATION`, a value does
            not fit; `E_INVALID_TRANSITION`, its steps are no way through the graph. The message
            names the line and is for the person who changed it by hand.
    """
    front, text = _front(data), to_text(data)
    run_id, path, sha256 = _identity(text, front)
    for key in _LISTS:
        if not isinstance(front.get(key), list):
            _unfit(text, key, "is no list; write [] for an empty one")
    for key in ("stepsCompleted", "artifacts"):
        if not all(isinstance(one, str) for one in front[key]):
            _unfit(text, key, "holds something else than texts")
    if not isinstance(front.get("variables"), dict):
        _unfit(text, "variables", "is no mapping; write {} for an empty one")
    state = State(
        run_id=run_id,
        workflow_id=_word(text, front, "workflowId"),
        package_path=path,
        package_sha256=sha256,
        node=_word(text, front, "currentNodeId"),
        completed=tuple(front["stepsCompleted"]),
        variables=front["variables"],
        artifacts=tuple(front["artifacts"]),
    )
    _check_way(text, state, graph)
    return state


@lru_cache(maxsize=16)
def _front(data: bytes) -> Mapping[str, Any]:
    """Its front matter, not to be changed. Kept: reading YAML takes longer than all else here."""
    try:
        front = read_frontmatter(to_text(data), strict=True).mapping
    except ToolError as error:
        why = error.message.partition("; correct it")[0]
        _fail("E_INVALID_FRONTMATTER", f"{why}; nothing was changed, correct it by hand")
    if not front:
        why = "it has no front matter between two lines of ---"
        _fail("E_INVALID_FRONTMATTER", f"{why}; nothing was changed, put it back")
    return front


def _identity(text: str, front: Mapping[str, Any]) -> tuple[str, str, str]:
    run_id, package = front.get("runId"), front.get("package")
    if not isinstance(run_id, str) or not is_run_id(run_id):
        _unfit(text, "runId", "is not the id of a run (16 hex digits)")
    if not isinstance(package, dict):
        _unfit(text, "package", "has no path and sha256")
    said = cast("dict[str, Any]", package)
    path, sha256 = said.get("path"), said.get("sha256")
    if not isinstance(path, str) or not path.isprintable() or not isinstance(sha256, str):
        _unfit(text, "package", "has no path and sha256")
    return run_id, path, sha256


def _word(text: str, front: Mapping[str, Any], key: str) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.isprintable() or not value:
        _unfit(text, key, "is no text of one line")
    return value


def _check_way(text: str, state: State, graph: Graph) -> None:
    """The completed steps are a way through the graph that ends at the current one."""
    before: str | None = None
    at_end = () if state.ended() else (state.node,)
    places = [("stepsCompleted", node) for node in state.completed]
    for key, node in (*places, *(("currentNodeId", node) for node in at_end)):
        if node not in graph.nodes:
            _unfit(text, key, f"{node!r} is no step; the steps are {', '.join(graph.nodes)}")
        allowed = [graph.entry] if before is None else _targets(graph, before)
        if node not in allowed:
            after = f"after {before}" if before else "at the start"
            may = ", ".join(allowed) or "nothing, it is the last"
            why = f"{_where(text, key)} says {node}, but {after} comes {may}"
            _fail(
                "E_INVALID_TRANSITION", f"{why}; correct stepsCompleted and currentNodeId by hand"
            )
        before = node


def _targets(graph: Graph, node: str) -> list[str]:
    return [edge.target for edge in graph.edges_from(node)]


def _unfit(text: str, key: str, why: str) -> NoReturn:
    _fail("E_SCHEMA_VALIDATION", f"{_where(text, key)} {why}; nothing was changed, correct it")


def _where(text: str, key: str) -> str:
    found = re.search(rf"(?m)^{key}:", text)
    return f"{key} (line {text.count(chr(10), 0, found.start()) + 1})" if found else key


def _fail(code: ErrorCode, why: str, **details: Any) -> NoReturn:
    raise ToolError(f"the state document cannot be used: {why}", code=code, details=details)


def _now() -> str:
    return utc_now().isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class StateGuard:
    """Lets the document of one workflow change by checked updates only: a PatchGuard."""

    graph: Graph
    path: Path
    """Of the document, on the host."""

    def guards(self, path: Path) -> bool:
        """Whether this is the document, in whatever case a file system may know it."""
        given, own = (normalize("NFKC", str(one)).casefold() for one in (path, self.path))
        return given == own

    def change(
        self,
        before: bytes | None,
        update: Mapping[str, Any] | None,
        is_there: Callable[[str], bool],
    ) -> tuple[bytes, dict[str, Any]]:
        """The document after an update, and what the result says of it.

        Raises:
            ToolError: the update is refused; the message says what is allowed.
        """
        if not update:
            raise ToolError(
                f"{PATH} is changed by updates of its front matter only: {_HOW}; {_KEYS}",
                code="E_SANDBOX_VIOLATION" if update is None else "E_SCHEMA_VALIDATION",
            )
        if before is None:
            text = f"{PATH} is gone; ask the person, who may put it back and resume"
            raise ToolError(text, code="E_PRECONDITION_FAILED")
        state = read_state(before, self.graph)
        for key, value in update.items():
            _check_update(key, value)
        facts = self._move(state, update, is_there)

        def edit(there: Any) -> None:
            for key in _LISTS:
                there[key] += settable(_items(update, key))
            for name, value in update.get("variables.set", {}).items():
                there["variables"][name] = settable(value)
                if value is None:
                    del there["variables"][name]
            there["currentNodeId"] = update.get("currentNodeId.set", state.node)
            there["updatedAt"] = update.get("updatedAt.set", now)

        now = _now()
        is_full = "the document is full; keep long texts in files of @project/ and delete variables"
        try:
            after = to_bytes(edit_frontmatter(to_text(before), edit))
            read_state(after, self.graph)
        except ToolError as error:
            _check_editable(before)
            why = "the document cannot hold these values; write them as short plain texts"
            _misfit(is_full if "too long" in error.message else why)
        if update.keys() - _MOVES and (len(after) > _MOST_BYTES or _n_marks(after) > _MOST_MARKS):
            _misfit(is_full)
        return after, facts

    def _move(
        self, state: State, update: Mapping[str, Any], is_there: Callable[[str], bool]
    ) -> dict[str, Any]:
        """Check what ends and what begins; gives the transition, where there is one."""
        ends, target = update.get("stepsCompleted.append"), update.get("currentNodeId.set")
        details: dict[str, Any] = {"allowed": _targets(self.graph, state.node)}
        transition = {"from": state.node, "to": target, "label": None}
        if ends is not None or target is not None:
            details["transition"] = transition

        def refuse(code: ErrorCode, why: str, **more: Any) -> NoReturn:
            raise ToolError(why, code=code, details={**details, **more})

        def need(what: str, paths: Iterable[str]) -> None:
            if missing := [path for path in paths if not is_there(path)]:
                why = f"{what} that are not there: {', '.join(missing)}; write them first"
                refuse("E_PRECONDITION_FAILED", why, missing=missing)

        if ends is not None:
            if ends != state.node:
                why = f"the current step is {state.node}, so {ends!r} cannot be completed now"
                refuse("E_INVALID_TRANSITION", why)
            if state.ended():
                next_to_do = "set currentNodeId to one of the next steps"
                if self.graph.nodes[ends].terminal:
                    next_to_do = "it is the last step: say what came of the workflow"
                why = f"{ends} is completed already; {next_to_do}"
                refuse("E_PRECONDITION_FAILED", why)
            need(f"{ends} has outputs", [path for _, path in self.graph.nodes[ends].outputs])
        need("artifacts", _items(update, "artifacts"))
        if target is None:
            return {}
        edge = next((e for e in self.graph.edges_from(state.node) if e.target == target), None)
        if edge is None:
            allowed = ", ".join(details["allowed"]) or "nothing: it is a last step"
            refuse(
                "E_INVALID_TRANSITION",
                f"from {state.node} leads no way to {target!r}; allowed: {allowed}",
            )
        if ends is None and not state.ended():
            why = f"{state.node} is not completed; give stepsCompleted.append in the same update"
            refuse("E_PRECONDITION_FAILED", why)
        need(f"{target} needs files", self.graph.nodes[target].inputs)
        return {"transition": {**transition, "label": edge.label}}


def _n_marks(data: bytes) -> int:
    front = data.partition(b"\n---")[0]
    return sum(map(front.count, (b"\n", b",", b":", b"[", b"{")))


def _check_editable(data: bytes) -> None:
    """Raise where the document itself is why an update cannot be written."""
    try:
        edit_frontmatter(to_text(data), lambda there: None)
    except ToolError as error:
        _fail("E_INVALID_FRONTMATTER", f"{error.message}; nothing was changed")


def _items(update: Mapping[str, Any], key: str) -> list[Any]:
    """What is appended to a list; artifacts may be several."""
    value = update.get(f"{key}.append")
    if value is None:
        return []
    return list(cast("list[Any]", value)) if isinstance(value, list) else [value]


def _check_update(key: str, value: Any) -> None:
    """Whether this is an update of the document, and its value one that fits."""
    if key not in _UPDATES:
        _misfit(f"{key[:80]!r} is no update of {PATH}; {_KEYS}")
    match key:
        case "stepsCompleted.append" | "currentNodeId.set":
            fits, wanted = isinstance(value, str), "the id of a step"
        case "variables.set":
            fits, wanted = _are_variables(value), "an object of names and values (null deletes)"
        case "decisionLog.append":
            fits, wanted = _is_entry(value), "a text or an object"
        case "artifacts.append":
            fits, wanted = _are_paths(value), "a path below @project/, or a list of them"
        case _:
            fits, wanted = _is_time(value), "a time such as 2026-03-04T05:06:07Z"
    if not fits:
        _misfit(f"{key} takes {wanted}, of at most {_MOST_CHARS:,} characters")


def _misfit(why: str) -> NoReturn:
    raise ToolError(why, code="E_SCHEMA_VALIDATION")


def _is_short(value: Any) -> bool:
    return len(dump_json(value)) <= _MOST_CHARS


def _is_entry(value: Any) -> bool:
    return type(value) in (str, dict) and bool(value) and _is_short(value)


def _are_variables(value: Any) -> bool:
    pairs = cast("dict[str, Any]", value).items() if isinstance(value, dict) else ()
    return bool(pairs) and all(_VARIABLE.fullmatch(name) and _is_short(it) for name, it in pairs)


def _are_paths(value: Any) -> bool:
    paths = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(paths) and all(
        isinstance(path, str) and path.startswith("@project/") and path.isprintable()
        for path in paths
    )


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return True
