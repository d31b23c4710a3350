"""`offline:walk`, and `offline:demo` in a workflow: follow the graph by briefs and files.

Obeys instructions in a step's file in a few simple forms of English (`_INSTRUCTION`) and chooses
the next step by simple conditions (`_condition_holds`). It knows no step by name and has no state
but the messages.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest
from nbagent.files.frontmatter_operations import Operation, read_operations
from nbagent.providers.offline.argument_values import items
from nbagent.providers.offline.call_results import PlannedCall, call_with_result, cell_text
from nbagent.providers.offline.prompt_values import literal
from nbagent.providers.offline.stream import ScriptedAnswer, call

_READ, _WRITE, _PATCH = "fs.read", "fs.write", "fs.apply_patch"
_MAX_PATCHES = 3
"""Attempts to end one step, before the person is told the reason."""
_NO_OPERATION = Operation("", "append", [])
_STUCK = "I cannot continue"
_COMMAND_WORDS = _FEW_LINES = 2
"""A shorter message (`go on`, `publish`) is a decision, not a text to quote."""

_MESSAGE_KIND = re.compile(
    r"(RUN_DIRECTIVE(?=\n- runType: )|NODE_BRIEF|USER_INPUT)\n(.*)", re.DOTALL
)
_FIELD = re.compile(r"- (\w+):(?: (.*))?")
_OUTPUT = re.compile(r"  - .+? -> (\S.*)")
_EDGE = re.compile(r"  - (\S+) \(label=(.*?)(?:, condition=(.*))?\)")

_INSTRUCTION = re.compile(
    r"\b[Ww]rite `(?P<text>[^`]+)` to `(?P<path>[^`\s]+)`"
    r"|\b(?:[Ww]rite|[Ss]ave)\b[^.`\n]*?\b(?P<outputs>outputs?)\b"
    r"|\b[Rr]ead\b(?P<files>(?:[^.`\n]*`[@{][^`\s]+`)+)"
    r"|\b[Ss]et `(?P<name>\w+)` to (?:(?P<answer>the person's (?:words|answer))"
    r"|(?P<value>`[^`]+`|-?\d+))"
    r"|\b(?:[Kk]eep\b[^.`\n]*? in the variable|[Rr]emember\b[^.`\n]*? as) `(?P<kept>\w+)`"
    r"|\b[Aa]dd (?P<add>\d+) to `(?P<counter>\w+)`"
    r"|(?<!not )(?<![Nn]ever )\b(?:Ask|ask the (?:person|user))\b(?P<ask>[^\n]*)"
    r"|\b(?P<halt>HALT|[Hh]alt|[Ww]ait for the (?:person|user))\b"
)
"""Instructions in a step's file that the demo understands."""
_LINE_BREAK = re.compile(r"(`[^`]*`)|(?<=\S)\n *(?=[A-Za-z`(])")
"""Line breaks inside a sentence; text in backticks stays as it is."""
_PERSON_SAYS = re.compile(r"(?:if )?the person (?:says|said|answers|answered) (.+)")
_VARIABLE_IS = re.compile(r"(?:if )?`?(\w+)`? is (?:(less than|more than|at least|at most) )?(.+)")
_COMPARE = {
    "less than": operator.lt,
    "more than": operator.gt,
    "at least": operator.ge,
    "at most": operator.le,
}


@dataclass(frozen=True, slots=True)
class _Edge:
    target: str
    label: str
    condition: str

    @property
    def answers(self) -> list[str]:
        """The person's answers that choose this edge."""
        match = _PERSON_SAYS.fullmatch(self.condition)
        return [answer.strip("`'\" ") for answer in re.split(r",| or ", match[1])] if match else []

    @property
    def comparison(self) -> re.Match[str] | None:
        """Comparison of a variable with a value."""
        return None if self.answers else _VARIABLE_IS.fullmatch(self.condition)


@dataclass(slots=True)
class _WorkflowState:
    """State read from the messages. A visit of a step begins when the step before has ended."""

    state_path: str = "@state/workflow.md"
    autopilot: bool = False
    node: str = ""
    step_file: str = ""
    outputs: list[str] = field(default_factory=list[str])
    edges: list[_Edge] = field(default_factory=list[_Edge])
    calls: list[PlannedCall] = field(default_factory=list[PlannedCall])
    """Successful calls of this visit."""
    failed: list[PlannedCall] = field(default_factory=list[PlannedCall])
    """Failed calls since the last brief."""
    user_texts: list[str] = field(default_factory=list[str])
    """The person's messages in this visit."""
    has_asked: bool = False
    n_answers: int = 0
    """Number of questions in this visit that the person has answered."""
    ended: bool = False
    last_user_text: str = ""
    """The person's last longer message, in any step."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Contents by path, as last read."""
    steps: list[str] = field(default_factory=list[str])
    artifacts: list[str] = field(default_factory=list[str])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables that the current step sets; its last patch writes them."""
    title: str = ""
    n_questions: int = 0
    """Questions in the current step's file up to the current instruction."""


def is_workflow(request: ChatRequest) -> bool:
    """True if a directive was sent and the last user message belongs to a workflow."""
    kinds = [
        _MESSAGE_KIND.match(message.text) for message in request.messages if message.role == "user"
    ]
    return bool(kinds and kinds[-1]) and "RUN_DIRECTIVE" in [
        message[1] for message in kinds if message
    ]


def workflow_answer(request: ChatRequest) -> ScriptedAnswer:
    """Return the step's next calls or question, or the patch that ends it."""
    state = _read(request.messages)
    if state.ended:
        return ScriptedAnswer(text=_workflow_summary(state))
    if state.step_file not in state.files:
        wanted = [PlannedCall(_READ, {"path": state.step_file})]
        return (
            _pending_calls(state, wanted, "The brief names a step whose file I have not read.")
            or ScriptedAnswer()
        )
    text = _split_frontmatter(state.files[state.step_file])[1]
    instructions = _instructions(text)
    state.title = next(iter(re.findall(r"(?m)^#+ +(.+)", text)), state.node)
    reads: list[PlannedCall] = []
    if any(order["counter"] for order in instructions) or any(
        edge.comparison for edge in state.edges
    ):
        reads.append(PlannedCall(_READ, {"path": state.state_path}))
    for instruction in instructions:
        if instruction["files"]:
            paths = map(_tool_path, re.findall(r"`([@{][^`\s]+)`", instruction["files"]))
            reads += [PlannedCall(_READ, {"path": path}) for path in paths]
        elif step := _pending_calls(state, reads, "I read what the step is about."):
            return step
        elif instruction["ask"] is not None or instruction["halt"]:
            state.n_questions += 1
            if state.n_questions > state.n_answers and not state.autopilot:
                return _question(state, instruction["ask"] or "")
        elif instruction["path"]:
            arguments = {"path": _tool_path(instruction["path"]), "content": instruction["text"]}
            if step := _pending_calls(
                state, [PlannedCall(_WRITE, arguments)], f"The step says: {instruction[0]}"
            ):
                return step
        elif instruction["outputs"]:
            if step := _pending_calls(state, _output_calls(state), "It wants its outputs."):
                return step
        else:
            state.changes |= _changed_variables(state, instruction)
    return (
        _pending_calls(state, reads, "I read what the step is about.")
        or _pending_calls(state, _output_calls(state), "The brief lists outputs.")
        or _finish_step(state)
    )


def _read(messages: Sequence[Message]) -> _WorkflowState:
    state = _WorkflowState()
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    for message in messages:
        kind = _MESSAGE_KIND.match(message.text) if message.role == "user" else None
        if kind:
            _read_message(state, kind[1], kind[2])
        elif message.role == "assistant":
            # An answer before the step's file was read is not a question of this step.
            may_ask = not message.tool_calls and state.step_file in state.files
            state.has_asked |= may_ask and not message.text.startswith(_STUCK)
            for tool_call in message.tool_calls:
                _record_call(state, call_with_result(tool_call, results.get(tool_call.id, "")))
    return state


def _read_message(state: _WorkflowState, kind: str, rest: str) -> None:
    """Read one message of the three kinds."""
    lines = rest.split("\n")
    fields = {match[1]: match[2] or "" for line in lines if (match := _FIELD.fullmatch(line))}
    if kind == "RUN_DIRECTIVE":
        state.state_path = fields.get("state", state.state_path)
        state.autopilot = fields.get("autopilot") == "true"
        return
    is_user_input = kind == "USER_INPUT"
    node = (
        lines[0].removeprefix("- forNodeId: ") if is_user_input else fields.get("currentNodeId", "")
    )
    if node != state.node or (state.ended and state.edges):
        state.node, state.ended, state.has_asked = node, False, False
        state.calls, state.user_texts, state.n_answers = [], [], 0
    if is_user_input:
        text = "\n".join(lines[1:]).strip()
        state.user_texts.append(text)
        if len(text.split()) > _COMMAND_WORDS:
            state.last_user_text = text
        state.n_answers += state.has_asked
        state.has_asked = False
    else:
        state.failed = []
        state.step_file = fields.get("stepFile", "")
        state.outputs = [match[1] for line in lines if (match := _OUTPUT.fullmatch(line))]
        edges = (match for line in lines if (match := _EDGE.fullmatch(line)))
        state.edges = [_Edge(match[1], match[2], match[3] or "") for match in edges]


def _record_call(state: _WorkflowState, finished_call: PlannedCall) -> None:
    """Record one call and its effect on files and the state document."""
    path, data = finished_call.arguments.get("path"), json_object(finished_call.data) or {}
    if not finished_call.ok:
        state.failed.append(finished_call)
        # An output that was missing is written again.
        missing_outputs = [
            path for path in state.outputs if finished_call.tool == _PATCH and path in str(data)
        ]
        state.calls = [
            planned_call
            for planned_call in state.calls
            if planned_call.arguments.get("path") not in missing_outputs
        ]
        return
    state.calls.append(finished_call)
    if not isinstance(path, str):
        return
    text = data.get("content", data.get("contentPreview"))
    if finished_call.tool == _READ and isinstance(text, str):
        state.files[path] = text
        if path == state.state_path:
            document = _split_frontmatter(text)[0]
            state.steps = [*map(str, items(document.get("stepsCompleted")))]
            state.artifacts = [*map(str, items(document.get("artifacts")))]
            state.variables = json_object(document.get("variables")) or {}
    elif finished_call.tool == _PATCH and path == state.state_path:
        operations = _operations(finished_call)
        artifacts, steps, variables = (
            operations.get(key, _NO_OPERATION)
            for key in ("artifacts", "stepsCompleted", "variables")
        )
        state.artifacts += map(str, artifacts.items)
        state.steps += map(str, steps.items)
        state.variables |= json_object(variables.value) or {}
        moved = "currentNodeId" in operations
        state.ended = moved or (not state.edges and bool(steps.items))


def _operations(patch: PlannedCall) -> dict[str, Operation]:
    """Return the operations of an update, by key."""
    update = json_object(patch.arguments.get("update")) or {}
    with suppress(ToolError):
        return {operation.key: operation for operation in read_operations(update)}
    return {}


def _split_frontmatter(text: str) -> tuple[dict[str, Any], str]:
    """Return front matter and body; no front matter if it cannot be read."""
    from nbagent.files.frontmatter import read_frontmatter  # Late: YAML costs 35 ms.

    with suppress(ToolError):
        return read_frontmatter(text)[:2]
    return {}, text


def _tool_path(text: str) -> str:
    return re.sub(r"\{(bundle|skill)-root\}", "@pkg", text.replace("{project-root}", "@project"))


def _instructions(text: str) -> list[re.Match[str]]:
    """Return a step's instructions in order.

    HALT waits for the answers to questions; without a question the last HALT is one itself.
    """
    matches = list(_INSTRUCTION.finditer(_LINE_BREAK.sub(lambda match: match[1] or " ", text)))
    halts = [match for match in matches if match["halt"]]
    if not any(match["ask"] is not None for match in matches):
        halts = halts[:-1]
    return [match for match in matches if match not in halts]


def _changed_variables(state: _WorkflowState, instruction: re.Match[str]) -> dict[str, Any]:
    """Return the variable that an instruction sets, with its new value."""
    if name := instruction["counter"]:
        old = {**state.variables, **state.changes}.get(name)
        return {name: (old if isinstance(old, int | float) else 0) + int(instruction["add"])}
    if instruction["answer"] or instruction["kept"]:
        user_text = (state.user_texts or [""])[-1]
        is_short = bool(user_text) and user_text.count("\n") < _FEW_LINES
        return (
            {instruction["name"] or instruction["kept"]: user_text}
            if instruction["answer"] or is_short
            else {}
        )
    return {instruction["name"]: literal(instruction["value"].strip("`"))}


def _pending_calls(
    state: _WorkflowState, wished: Sequence[PlannedCall], why: str
) -> ScriptedAnswer | None:
    """Return the calls that are still to be made, or the failure of one that is needed."""
    left = [wanted for wanted in wished if wanted.key not in [old.key for old in state.calls]]
    for planned_call in list(left):
        path = planned_call.arguments["path"]
        failure = next((failed for failed in state.failed if failed.key == planned_call.key), None)
        if failure and (planned_call.tool == _WRITE or path in (state.step_file, state.state_path)):
            return _failure_answer(state, failure)
        if failure:
            left.remove(planned_call)  # The step continues without a file that cannot be read.
    calls = [call(wanted.tool, wanted.arguments) for wanted in left]
    return ScriptedAnswer(reasoning=why, calls=calls) if calls else None


def _output_calls(state: _WorkflowState) -> list[PlannedCall]:
    """Plan to write the outputs that this visit has not written."""
    written = [
        planned_call.arguments.get("path")
        for planned_call in state.calls
        if planned_call.tool == _WRITE
    ]
    left = [path for path in state.outputs if path not in written]
    return [PlannedCall(_WRITE, {"path": path, "content": _text_for(path, state)}) for path in left]


def _text_for(path: str, state: _WorkflowState) -> str:
    """Write a short text of known facts; for a CSV file the lines of the one read, each once."""
    read = dict.fromkeys(
        str(planned_call.arguments["path"])
        for planned_call in state.calls
        if planned_call.tool == _READ
    )
    read = [
        path
        for path in read
        if path in state.files and path not in (state.step_file, state.state_path)
    ]
    for source in reversed(read):
        if path.endswith(".csv") and source.endswith(".csv"):
            return "".join(dict.fromkeys(state.files[source].splitlines(keepends=True)))
    lines = [
        f"# {state.title}",
        "",
        *(f"> {line}" for line in state.last_user_text.splitlines()),
        "",
    ]
    lines += [f"- {name}: {cell_text(v)}" for name, v in (state.variables | state.changes).items()]
    for source in read:
        rows = state.files[source].splitlines()
        lines.append(f"- `{source}`: {len(rows)} lines, {len(set(rows))} of them different")
    return "\n".join([*lines, "", "Written by `offline:demo`, a rule-based stand-in.", ""])


def _question(state: _WorkflowState, question: str) -> ScriptedAnswer:
    text = re.sub(r"^ the (?:person|user)", "", question).strip(" :,")
    known = ", ".join(f"`{word}`" for edge in state.edges for word in edge.answers)
    listed = f"\n\nI understand {known}." if known else ""
    return ScriptedAnswer(
        reasoning="The person decides here.", text=f"{text or state.title}{listed}"
    )


def _condition_holds(edge: _Edge, state: _WorkflowState) -> bool:
    """True if a condition has a known form and is met."""
    if edge.answers:
        user_text = (state.user_texts or [""])[-1]
        matches = (
            re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", user_text, re.I)
            for answer in edge.answers
        )
        return (state.autopilot and not user_text) or any(matches)
    comparison, variables = edge.comparison, {**state.variables, **state.changes}
    if comparison is None or comparison[1] not in variables:
        return False
    value, wanted = variables[comparison[1]], literal(comparison[3].strip("`'\""))
    if comparison[2] is None:
        return str(value).casefold() == str(wanted).casefold()
    are_numbers = isinstance(value, int | float) and isinstance(wanted, int | float)
    return are_numbers and _COMPARE[comparison[2]](value, wanted)


def _choose_edge(state: _WorkflowState) -> tuple[_Edge | None, str]:
    """Choose an edge and give the reason; None if the person must decide."""
    for edge in state.edges:
        if _condition_holds(edge, state):
            is_first = edge.answers and not state.user_texts
            return edge, "the first choice, as autopilot is on" if is_first else edge.condition
    plain = [edge for edge in state.edges if edge.condition in ("", "otherwise")]
    if plain:
        # The edge labelled `next` is the usual way.
        edge = next((edge for edge in plain if edge.label == "next"), plain[0])
        return edge, "no other condition holds"
    if any(edge.answers for edge in state.edges) and not state.autopilot:
        return None, ""
    return state.edges[0], "the first edge, as I understand none of the conditions"


def _finish_step(state: _WorkflowState) -> ScriptedAnswer:
    """Return the patch that ends the step and continues; another one after a refusal."""
    update: dict[str, Any] = {"stepsCompleted": {"append": [state.node]}}
    why = "The step is done."
    if len(state.edges) > 1:
        edge, reason = _choose_edge(state)
        if edge is None:
            return _question(state, "Which way shall it continue?")
        why = f"{state.node} -> {edge.target} ({edge.label}): {reason}"
        update |= _move_to(edge.target, why)
    elif state.edges:
        update["currentNodeId"] = {"set": state.edges[0].target}
    if state.changes:
        update["variables"] = {"set": state.changes}
    if new_outputs := [
        planned_call for planned_call in state.outputs if planned_call not in state.artifacts
    ]:
        update["artifacts"] = {"append": new_outputs}
    refused = [planned_call for planned_call in state.failed if planned_call.tool == _PATCH]
    if refused:
        why = f"It was refused: {_reason(refused[-1])}"
        other = _alternative_update(state, update, refused)
        if other is None or len(refused) >= _MAX_PATCHES:
            return _failure_answer(state, refused[-1])
        update = other
    arguments = {"path": state.state_path, "operation": "updateFrontmatter", "update": update}
    return ScriptedAnswer(reasoning=why, calls=[call(_PATCH, arguments)])


def _move_to(target: str, why: str) -> dict[str, Any]:
    return {"currentNodeId": {"set": target}, "decisionLog": {"append": [why]}}


def _alternative_update(
    state: _WorkflowState, update: dict[str, Any], refused: Sequence[PlannedCall]
) -> dict[str, Any] | None:
    """Return an update that the last refusal allows and that was not tried yet."""
    error = json_object(refused[-1].data) or {}
    if any(path in str(error) for path in state.outputs):
        again = "its outputs were missing and are written again"
        return {**update, "decisionLog": {"append": [f"{state.node}: {again}"]}}
    tried = [_operations(refused_call) for refused_call in refused]
    targets = [
        str(refused_call)
        for refused_call in items((json_object(error.get("details")) or {}).get("allowed"))
    ]
    for target in targets:
        if target not in [old.get("currentNodeId", _NO_OPERATION).value for old in tried]:
            why = f"{state.node} -> {target}: another step was refused"
            return {**update, **_move_to(target, why)}
    # The document may list the step as completed already.
    moves = "currentNodeId" in update and all("stepsCompleted" in old for old in tried)
    if error.get("code") == "E_PRECONDITION_FAILED" and moves:
        return {key: value for key, value in update.items() if key != "stepsCompleted"}
    return None


def _reason(failure: PlannedCall) -> str:
    error = json_object(failure.data) or {}
    return str(error.get("message") or error.get("code") or "")


def _failure_answer(state: _WorkflowState, failure: PlannedCall) -> ScriptedAnswer:
    failed_call = (
        f"`{failure.tool}` of `{failure.arguments.get('path')}` failed. {_reason(failure)}"
    )
    return ScriptedAnswer(
        text=f"{_STUCK} `{state.node}`: {failed_call}\n\nTell me when to try again."
    )


def _workflow_summary(state: _WorkflowState) -> str:
    if state.edges:
        return f"`{state.node}` is done."
    steps = " → ".join(f"`{step}`" for step in state.steps)
    listed = "\n".join(f"- `{path}`" for path in dict.fromkeys(state.artifacts)) or "- none"
    return f"The workflow is complete: {steps}.\n\nWritten:\n\n{listed}"
