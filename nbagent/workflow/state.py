"""The content of the state document: reads, checks and creates its front matter.

Text and values only. The file is in `document`, updates by the model in `updates`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, cast

from nbagent.contracts.canonical import is_run_id, utc_now
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.files.frontmatter import edit_frontmatter, read_frontmatter
from nbagent.files.patching import to_text
from nbagent.workflow.graph import Graph, Package

FILE = "workflow.md"
PATH = f"@state/{FILE}"
VARIABLE_NAME = re.compile(r"[A-Za-z_][\w.-]{0,79}")
MAX_CHARS = 4_000
"""Largest value, as JSON."""
MAX_BYTES = 60_000
"""Largest document. Only moves between steps may make it longer, so that a workflow with a full
document can still be completed."""
MAX_YAML_MARKS = 5_000
"""Most characters of YAML syntax in the front matter: they make parsing slow. The reader has its
own, higher limit."""
MOVE_KEYS = {"stepsCompleted.append", "currentNodeId.set", "updatedAt.set"}
LIST_KEYS = ("stepsCompleted", "decisionLog", "artifacts")
_PACKAGE_KEYS = ("id", "agents", "agent", "entry", "config")
"""Keys of the template that the document does not take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State in a document, valid for its graph."""

    run_id: str
    """Id of the workflow's first run, and name of its folder."""
    workflow_id: str
    package_path: str
    """`@project/…`, or the name of a package outside of the project."""
    package_sha256: str
    node: str
    completed: tuple[str, ...]
    """Steps in the order in which they ended; in a loop a step is in it several times."""
    variables: Mapping[str, Any]
    artifacts: tuple[str, ...]

    def is_step_done(self) -> bool:
        """True if the current step is completed in this visit."""
        return self.completed[-1:] == (self.node,)

    @property
    def visit(self) -> int:
        """Number of steps entered before, from 0. Constant from entering a step to leaving it."""
        return len(self.completed) - self.is_step_done()

    def is_complete(self, graph: Graph) -> bool:
        """True if the workflow is complete."""
        return graph.nodes[self.node].terminal and self.is_step_done()


def new_document(package: Package, run_id: str, package_path: str) -> str:
    """Make the text of a new document: the template with the initial state."""
    now = timestamp()

    def begin(front: Any) -> None:
        for key in _PACKAGE_KEYS:
            front.pop(key, None)
        if not isinstance(front.get("variables"), dict):
            front["variables"] = {}
        front.update(
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


def with_package(text: str, package: Package, package_path: str, run_id: str) -> str:
    """Change a document for a changed or moved package, or for a fork."""

    now = timestamp()

    def change(front: Any) -> None:
        front["runId"] = run_id
        front["package"] = {"path": package_path, "sha256": package.sha256}
        front["updatedAt"] = now

    return edit_frontmatter(text, change)


def read_origin(data: bytes) -> tuple[str, str, str]:
    """Read the run id, the package's path and its hash: all that can be read without the package.

    Raises:
        ToolError: it is not a state document; the message is for the person who named it.
    """
    front = _read_front(data)
    return _identity(to_text(data), front)


def read_state(data: bytes, graph: Graph) -> State:
    """Read and check a document.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, it cannot be read; `E_SCHEMA_VALIDATION`, a value is
            not valid; `E_INVALID_TRANSITION`, its steps are no path through the graph. The message
            names the line and is for the person who edited the document by hand.
    """
    front, text = _read_front(data), to_text(data)
    run_id, path, sha256 = _identity(text, front)
    for key in LIST_KEYS:
        if not isinstance(front.get(key), list):
            _raise_invalid_value(text, key, "is no list; write [] for an empty one")
    for key in ("stepsCompleted", "artifacts"):
        if not all(isinstance(item, str) for item in front[key]):
            _raise_invalid_value(text, key, "holds something else than texts")
    if not isinstance(front.get("variables"), dict):
        _raise_invalid_value(text, "variables", "is no mapping; write {} for an empty one")
    state = State(
        run_id=run_id,
        workflow_id=_read_line(text, front, "workflowId"),
        package_path=path,
        package_sha256=sha256,
        node=_read_line(text, front, "currentNodeId"),
        completed=tuple(front["stepsCompleted"]),
        variables=front["variables"],
        artifacts=tuple(front["artifacts"]),
    )
    _check_path(text, state, graph)
    return state


@lru_cache(maxsize=16)
def _read_front(data: bytes) -> Mapping[str, Any]:
    """Read its front matter; do not change the result. Cached, because parsing YAML is slow."""
    try:
        front = read_frontmatter(to_text(data), strict=True).mapping
    except ToolError as error:
        why = error.message.partition("; correct it")[0]
        raise_invalid("E_INVALID_FRONTMATTER", f"{why}; nothing was changed, correct it by hand")
    if not front:
        why = "it has no front matter between two lines of ---"
        raise_invalid("E_INVALID_FRONTMATTER", f"{why}; nothing was changed, put it back")
    return front


def _identity(text: str, front: Mapping[str, Any]) -> tuple[str, str, str]:
    run_id, package = front.get("runId"), front.get("package")
    if not isinstance(run_id, str) or not is_run_id(run_id):
        _raise_invalid_value(text, "runId", "is not the id of a run (16 hex digits)")
    if not isinstance(package, dict):
        _raise_invalid_value(text, "package", "has no path and sha256")
    mapping = cast("dict[str, Any]", package)
    path, sha256 = mapping.get("path"), mapping.get("sha256")
    if not isinstance(path, str) or not path.isprintable() or not isinstance(sha256, str):
        _raise_invalid_value(text, "package", "has no path and sha256")
    return run_id, path, sha256


def _read_line(text: str, front: Mapping[str, Any], key: str) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.isprintable() or not value:
        _raise_invalid_value(text, key, "is no text of one line")
    return value


def _check_path(text: str, state: State, graph: Graph) -> None:
    """Check that the completed steps are a path through the graph that ends at the current one."""
    previous: str | None = None
    at_end = () if state.is_step_done() else (state.node,)
    visits = [("stepsCompleted", node) for node in state.completed]
    for key, node in (*visits, *(("currentNodeId", node) for node in at_end)):
        if node not in graph.nodes:
            _raise_invalid_value(
                text, key, f"{node!r} is no step; the steps are {', '.join(graph.nodes)}"
            )
        allowed = [graph.entry] if previous is None else edge_targets(graph, previous)
        if node not in allowed:
            after = f"after {previous}" if previous else "at the start"
            may = ", ".join(allowed) or "nothing, it is the last"
            why = f"{_locate(text, key)} says {node}, but {after} comes {may}"
            raise_invalid(
                "E_INVALID_TRANSITION", f"{why}; correct stepsCompleted and currentNodeId by hand"
            )
        previous = node


def edge_targets(graph: Graph, node: str) -> list[str]:
    return [edge.target for edge in graph.edges_from(node)]


def _raise_invalid_value(text: str, key: str, why: str) -> NoReturn:
    raise_invalid(
        "E_SCHEMA_VALIDATION", f"{_locate(text, key)} {why}; nothing was changed, correct it"
    )


def _locate(text: str, key: str) -> str:
    match = re.search(rf"(?m)^{key}:", text)
    return f"{key} (line {text.count(chr(10), 0, match.start()) + 1})" if match else key


def raise_invalid(code: ErrorCode, why: str, **details: Any) -> NoReturn:
    raise ToolError(f"the state document cannot be used: {why}", code=code, details=details)


def timestamp() -> str:
    return utc_now().isoformat(timespec="seconds").replace("+00:00", "Z")
