"""Checks and applies updates of a state document, before anything is written.

A model moves through the workflow only by such updates. The format of the document is in `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast
from unicodedata import normalize

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.files.frontmatter import append_items, edit_frontmatter, set_names
from nbagent.files.frontmatter_operations import Operation, read_operations
from nbagent.files.patching import to_bytes, to_text
from nbagent.workflow.graph import Graph
from nbagent.workflow.state import (
    LIST_KEYS,
    MAX_BYTES,
    MAX_CHARS,
    MAX_YAML_MARKS,
    MOVE_KEYS,
    PATH,
    VARIABLE_NAME,
    State,
    edge_targets,
    raise_invalid,
    read_state,
    timestamp,
)

_UPDATES = (
    *("stepsCompleted.append", "variables.set", "decisionLog.append", "artifacts.append"),
    *("currentNodeId.set", "updatedAt.set"),
)
_USAGE = f'write {{"path": "{PATH}", "operation": "updateFrontmatter", "update": {{…}}}}'
_KEYS = "write " + ", ".join(
    f'"{key}": {{"{verb}": …}}' for key, verb in (name.split(".") for name in _UPDATES)
)


@dataclass(frozen=True, slots=True)
class StateGuard:
    """Allows only checked updates of one workflow's document: a PatchGuard."""

    graph: Graph
    path: Path
    """Path of the document on the host."""

    def guards(self, path: Path) -> bool:
        """True if this path is the document, in any case or Unicode form a file system accepts."""
        path_key, own_key = (normalize("NFKC", str(name)).casefold() for name in (path, self.path))
        return path_key == own_key

    def change(
        self,
        before: bytes | None,
        update: Mapping[str, Any] | None,
        path_exists: Callable[[str], bool],
    ) -> tuple[bytes, dict[str, Any]]:
        """Apply an update; return the new document and further data for the result.

        Raises:
            ToolError: the update is refused; the message says what is allowed.
        """
        if not update:
            raise ToolError(
                f"{PATH} is changed by updates of its front matter only: {_USAGE}; {_KEYS}",
                code="E_SANDBOX_VIOLATION" if update is None else "E_SCHEMA_VALIDATION",
            )
        if before is None:
            text = f"{PATH} is gone; ask the person, who may put it back and resume"
            raise ToolError(text, code="E_PRECONDITION_FAILED")
        state = read_state(before, self.graph)
        update = checked_update(update)
        facts = self._check_move(state, update, path_exists)

        def edit(front: Any) -> None:
            for key in LIST_KEYS:
                append_items(front, key, _items(update, key))
            set_names(front, "variables", update.get("variables.set", {}))
            front["currentNodeId"] = update.get("currentNodeId.set", state.node)
            front["updatedAt"] = update.get("updatedAt.set", now)

        now = timestamp()
        is_full = "the document is full; keep long texts in files of @project/ and delete variables"
        try:
            after = to_bytes(edit_frontmatter(to_text(before), edit))
            # Read back: values that are valid JSON may still not survive as YAML.
            read_state(after, self.graph)
        except ToolError as error:
            # If the document itself is damaged, the model must not be told to shorten its values.
            _check_editable(before)
            why = "the document cannot hold these values; write them as short plain texts"
            _raise_schema_error(is_full if "too long" in error.message else why)
        if update.keys() - MOVE_KEYS and (
            len(after) > MAX_BYTES or _count_yaml_marks(after) > MAX_YAML_MARKS
        ):
            _raise_schema_error(is_full)
        return after, facts

    def _check_move(
        self, state: State, update: Mapping[str, Any], path_exists: Callable[[str], bool]
    ) -> dict[str, Any]:
        """Check the completed and the next step; return the transition, if there is one."""
        completed, target = update.get("stepsCompleted.append"), update.get("currentNodeId.set")
        details: dict[str, Any] = {"allowed": edge_targets(self.graph, state.node)}
        transition = {"from": state.node, "to": target, "label": None}
        if completed is not None or target is not None:
            details["transition"] = transition

        def refuse(code: ErrorCode, why: str, **more: Any) -> NoReturn:
            raise ToolError(why, code=code, details={**details, **more})

        def require_files(label: str, paths: Iterable[str]) -> None:
            if missing := [path for path in paths if not path_exists(path)]:
                why = f"{label} that are not there: {', '.join(missing)}; write them first"
                refuse("E_PRECONDITION_FAILED", why, missing=missing)

        if completed is not None:
            if completed != state.node:
                why = f"the current step is {state.node}, so {completed!r} cannot be completed now"
                refuse("E_INVALID_TRANSITION", why)
            if state.is_step_done():
                next_to_do = "set currentNodeId to one of the next steps"
                if self.graph.nodes[completed].terminal:
                    next_to_do = "it is the last step: say what came of the workflow"
                why = f"{completed} is completed already; {next_to_do}"
                refuse("E_PRECONDITION_FAILED", why)
            require_files(
                f"{completed} has outputs",
                [path for _, path in self.graph.nodes[completed].outputs],
            )
        require_files("artifacts", _items(update, "artifacts"))
        if target is None:
            return {}
        edge = next((e for e in self.graph.edges_from(state.node) if e.target == target), None)
        if edge is None:
            allowed = ", ".join(details["allowed"]) or "nothing: it is a last step"
            refuse(
                "E_INVALID_TRANSITION",
                f"from {state.node} leads no way to {target!r}; allowed: {allowed}",
            )
        if completed is None and not state.is_step_done():
            append = f'"stepsCompleted": {{"append": ["{state.node}"]}}'
            why = f"{state.node} is not completed; give {append} in the same update"
            refuse("E_PRECONDITION_FAILED", why)
        require_files(f"{target} needs files", self.graph.nodes[target].inputs)
        return {"transition": {**transition, "label": edge.label}}


def _count_yaml_marks(data: bytes) -> int:
    front = data.partition(b"\n---")[0]
    return sum(map(front.count, (b"\n", b",", b":", b"[", b"{")))


def _check_editable(data: bytes) -> None:
    """Raise ToolError if the document itself is invalid, and not the update."""
    try:
        edit_frontmatter(to_text(data), lambda there: None)
    except ToolError as error:
        raise_invalid("E_INVALID_FRONTMATTER", f"{error.message}; nothing was changed")


def _items(update: Mapping[str, Any], key: str) -> list[Any]:
    """Return the items that an update appends to a list; artifacts may be several."""
    value = update.get(f"{key}.append")
    if value is None:
        return []
    return list(cast("list[Any]", value)) if isinstance(value, list) else [value]


def checked_update(update: Mapping[str, Any]) -> dict[str, Any]:
    """Read an update of the document; its values by key and operation: `currentNodeId.set`.

    Raises:
        ToolError: it has an unknown key, or an invalid value.
    """
    checked: dict[str, Any] = {}
    for operation in read_operations(update):
        name, value = _checked_operation(operation)
        if not operation.is_empty:
            checked[name] = value
    if not checked:
        _raise_schema_error(f"the update changes nothing; {_KEYS}")
    return checked


def update_target(update: Mapping[str, Any]) -> Any:
    """Return the next step that an update names, as a model wrote it; None if it names none."""
    with suppress(ToolError):
        for operation in read_operations(update):
            if operation[:2] == ("currentNodeId", "set"):
                return operation.value
    return None


def _checked_operation(operation: Operation) -> tuple[str, Any]:
    """Return a known operation with its valid value; else raise ToolError."""
    name, value = f"{operation.key}.{operation.verb}", operation.value
    if name not in _UPDATES:
        is_known = any(update.startswith(f"{operation.key}.") for update in _UPDATES)
        why = "cannot be changed in this form" if is_known else "is not a key that may be changed"
        _raise_schema_error(f"{operation.key[:80]!r} of {PATH} {why}; {_KEYS}")
    if operation.is_empty:
        return name, value
    match name:
        case "stepsCompleted.append" | "currentNodeId.set":
            # The protocol appends lists. Each update completes at most one step.
            if name == "stepsCompleted.append" and len(operation.items) == 1:
                value = operation.items[0]
            is_valid, expected = isinstance(value, str), "the id of one step"
        case "variables.set":
            is_valid, expected = (
                _are_variables(value),
                "an object of names and values (null deletes)",
            )
        case "decisionLog.append":
            is_valid = all(map(_is_entry, operation.items))
            expected = "a text or an object, or a list of them, each"
        case "artifacts.append":
            is_valid, expected = _are_paths(value), "a path below @project/, or a list of them"
        case _:
            is_valid, expected = _is_time(value), "a time such as 2026-03-04T05:06:07Z"
    if not is_valid:
        _raise_schema_error(
            f'{operation.key}: {{"{operation.verb}": …}} takes {expected}, of at most '
            f"{MAX_CHARS:,} characters"
        )
    return name, value


def _raise_schema_error(why: str) -> NoReturn:
    raise ToolError(why, code="E_SCHEMA_VALIDATION")


def _is_short(value: Any) -> bool:
    return len(dump_json(value)) <= MAX_CHARS


def _is_entry(value: Any) -> bool:
    return type(value) in (str, dict) and bool(value) and _is_short(value)


def _are_variables(value: Any) -> bool:
    pairs = cast("dict[str, Any]", value).items() if isinstance(value, dict) else ()
    return bool(pairs) and all(
        VARIABLE_NAME.fullmatch(name) and _is_short(item) for name, item in pairs
    )


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
