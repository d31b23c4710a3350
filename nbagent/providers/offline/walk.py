"""`offline:demo` in a workflow: it walks the graph from the directive, the brief and the files.

A visible stand-in as the rest of the demo: it does what a step's file says in a few simple forms
of English (`_ORDER`) and chooses the next step by simple conditions (`_holds`). It knows no step by
its name and keeps no state but the messages.
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
from nbagent.providers.offline.demo import Made, cell_text, made_call
from nbagent.providers.offline.filling import items, literal
from nbagent.providers.offline.stream import Step, call

_READ, _WRITE, _PATCH = "fs.read", "fs.write", "fs.apply_patch"
_MOST_PATCHES = 3
"""To end one step, before the person hears what is wrong."""
_STUCK = "I cannot go on with"
_FEW_WORDS = _FEW_LINES = 2
"""Of the person: `go on` or `publish` decides something and is no text to quote."""

_KIND = re.compile(r"(RUN_DIRECTIVE(?=\n- runType: )|NODE_BRIEF|USER_INPUT)\n(.*)", re.DOTALL)
_FIELD = re.compile(r"- (\w+):(?: (.*))?")
_OUTPUT = re.compile(r"  - .+? -> (\S.*)")
_EDGE = re.compile(r"  - (\S+) \(label=(.*?)(?:, condition=(.*))?\)")

_ORDER = re.compile(
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
"""What the demo understands of a step's file."""
_WRAPPED = re.compile(r"(`[^`]*`)|(?<=\S)\n *(?=[A-Za-z`(])")
"""A sentence may go over several lines; what stands in backticks stays as it is."""
_SAYS = re.compile(r"(?:if )?the person (?:says|said|answers|answered) (.+)")
_IS = re.compile(r"(?:if )?`?(\w+)`? is (?:(less than|more than|at least|at most) )?(.+)")
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
    def words(self) -> list[str]:
        """Those of the person that lead along it."""
        found = _SAYS.fullmatch(self.condition)
        return [it.strip("`'\" ") for it in re.split(r",| or ", found[1])] if found else []

    @property
    def comparison(self) -> re.Match[str] | None:
        """Of a variable with a value."""
        return None if self.words else _IS.fullmatch(self.condition)


@dataclass(slots=True)
class _Story:
    """What the messages say. A visit of a step begins when the step before it has ended."""

    state: str = "@state/workflow.md"
    autopilot: bool = False
    node: str = ""
    step_file: str = ""
    outputs: list[str] = field(default_factory=list[str])
    edges: list[_Edge] = field(default_factory=list[_Edge])
    made: list[Made] = field(default_factory=list[Made])
    """Calls of this visit that went well."""
    failed: list[Made] = field(default_factory=list[Made])
    """Calls since the last brief that did not."""
    words: list[str] = field(default_factory=list[str])
    """The person's in this visit."""
    asked: bool = False
    n_answers: int = 0
    """Questions of this visit that the person has answered."""
    ended: bool = False
    last_words: str = ""
    """The person's, of any step."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """By their paths, as they were read last."""
    steps: list[str] = field(default_factory=list[str])
    artifacts: list[str] = field(default_factory=list[str])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables that the step at work sets; its last patch writes them."""
    title: str = ""
    n_questions: int = 0
    """Of the step at work, as far as its file was gone through."""


def is_workflow(request: ChatRequest) -> bool:
    """Whether the runtime sent a directive, and the last user message is one of a workflow."""
    kinds = [_KIND.match(it.text) for it in request.messages if it.role == "user"]
    return bool(kinds and kinds[-1]) and "RUN_DIRECTIVE" in [it[1] for it in kinds if it]


def walk(request: ChatRequest) -> Step:
    """What the step still needs, or the patch that ends it."""
    story = _read(request.messages)
    if story.ended:
        return Step(text=_summary(story))
    if story.step_file not in story.files:
        wished = [Made(_READ, {"path": story.step_file})]
        return _made(story, wished, "The brief names a step whose file I have not read.") or Step()
    text = _split(story.files[story.step_file])[1]
    orders = _orders(text)
    story.title = next(iter(re.findall(r"(?m)^#+ +(.+)", text)), story.node)
    reads: list[Made] = []
    if any(it["counter"] for it in orders) or any(edge.comparison for edge in story.edges):
        reads.append(Made(_READ, {"path": story.state}))
    for order in orders:
        if order["files"]:
            paths = map(_path, re.findall(r"`([@{][^`\s]+)`", order["files"]))
            reads += [Made(_READ, {"path": path}) for path in paths]
        elif step := _made(story, reads, "I read what the step is about."):
            return step
        elif order["ask"] is not None or order["halt"]:
            story.n_questions += 1
            if story.n_questions > story.n_answers and not story.autopilot:
                return _question(story, order["ask"] or "")
        elif order["path"]:
            given = {"path": _path(order["path"]), "content": order["text"]}
            if step := _made(story, [Made(_WRITE, given)], f"The step says: {order[0]}"):
                return step
        elif order["outputs"]:
            if step := _made(story, _outputs(story), "It wants its outputs."):
                return step
        else:
            story.changes |= _changed(story, order)
    return (
        _made(story, reads, "I read what the step is about.")
        or _made(story, _outputs(story), "The brief lists outputs.")
        or _end(story)
    )


def _read(messages: Sequence[Message]) -> _Story:
    story = _Story()
    results = {one.tool_call_id: one.text for one in messages if one.role == "tool"}
    for message in messages:
        kind = _KIND.match(message.text) if message.role == "user" else None
        if kind:
            _hear(story, kind[1], kind[2])
        elif message.role == "assistant":
            # What somebody said who had not read the step is no question of it.
            may_ask = not message.tool_calls and story.step_file in story.files
            story.asked |= may_ask and not message.text.startswith(_STUCK)
            for asked in message.tool_calls:
                _keep(story, made_call(asked, results.get(asked.id, "")))
    return story


def _hear(story: _Story, kind: str, rest: str) -> None:
    """One message of the three kinds."""
    lines = rest.split("\n")
    fields = {it[1]: it[2] or "" for line in lines if (it := _FIELD.fullmatch(line))}
    if kind == "RUN_DIRECTIVE":
        story.state = fields.get("state", story.state)
        story.autopilot = fields.get("autopilot") == "true"
        return
    said = kind == "USER_INPUT"
    node = lines[0].removeprefix("- forNodeId: ") if said else fields.get("currentNodeId", "")
    if node != story.node or (story.ended and story.edges):
        story.node, story.ended, story.asked = node, False, False
        story.made, story.words, story.n_answers = [], [], 0
    if said:
        words = "\n".join(lines[1:]).strip()
        story.words.append(words)
        if len(words.split()) > _FEW_WORDS:
            story.last_words = words
        story.n_answers += story.asked
        story.asked = False
    else:
        story.failed = []
        story.step_file = fields.get("stepFile", "")
        story.outputs = [it[1] for line in lines if (it := _OUTPUT.fullmatch(line))]
        edges = (it for line in lines if (it := _EDGE.fullmatch(line)))
        story.edges = [_Edge(it[1], it[2], it[3] or "") for it in edges]


def _keep(story: _Story, made: Made) -> None:
    """One call, and what it says about files and the document."""
    path, data = made.arguments.get("path"), json_object(made.data) or {}
    if not made.ok:
        story.failed.append(made)
        # An output that was missing is written again.
        gone = [it for it in story.outputs if made.tool == _PATCH and it in str(data)]
        story.made = [it for it in story.made if it.arguments.get("path") not in gone]
        return
    story.made.append(made)
    if not isinstance(path, str):
        return
    text = data.get("content", data.get("contentPreview"))
    if made.tool == _READ and isinstance(text, str):
        story.files[path] = text
        if path == story.state:
            document = _split(text)[0]
            story.steps = [*map(str, items(document.get("stepsCompleted")))]
            story.artifacts = [*map(str, items(document.get("artifacts")))]
            story.variables = json_object(document.get("variables")) or {}
    elif made.tool == _PATCH and path == story.state:
        update = json_object(made.arguments.get("update")) or {}
        added = update.get("artifacts.append", [])
        story.artifacts += [added] if isinstance(added, str) else map(str, items(added))
        story.steps += [str(it) for key, it in update.items() if key == "stepsCompleted.append"]
        story.variables |= json_object(update.get("variables.set")) or {}
        moved = "currentNodeId.set" in update
        story.ended = moved or (not story.edges and "stepsCompleted.append" in update)


def _split(text: str) -> tuple[dict[str, Any], str]:
    """Front matter and body; no front matter where it cannot be read."""
    from nbagent.files.frontmatter import read_frontmatter  # late: the YAML library costs 35 ms

    with suppress(ToolError):
        return read_frontmatter(text)[:2]
    return {}, text


def _path(text: str) -> str:
    return re.sub(r"\{(bundle|skill)-root\}", "@pkg", text.replace("{project-root}", "@project"))


def _orders(text: str) -> list[re.Match[str]]:
    """What a step asks for, in its order. To halt is to wait for the answers, or one question."""
    found = list(_ORDER.finditer(_WRAPPED.sub(lambda it: it[1] or " ", text)))
    halts = [it for it in found if it["halt"]]
    if not any(it["ask"] is not None for it in found):
        halts = halts[:-1]
    return [it for it in found if it not in halts]


def _changed(story: _Story, order: re.Match[str]) -> dict[str, Any]:
    """The variable that an order sets, with its new value."""
    if name := order["counter"]:
        old = {**story.variables, **story.changes}.get(name)
        return {name: (old if isinstance(old, int | float) else 0) + int(order["add"])}
    if order["answer"] or order["kept"]:
        words = (story.words or [""])[-1]
        is_short = bool(words) and words.count("\n") < _FEW_LINES
        return {order["name"] or order["kept"]: words} if order["answer"] or is_short else {}
    return {order["name"]: literal(order["value"].strip("`"))}


def _made(story: _Story, wished: Sequence[Made], why: str) -> Step | None:
    """Those of the calls that are still to be made; what is wrong where one cannot be."""
    left = [it for it in wished if it.key not in [old.key for old in story.made]]
    for one in list(left):
        path = one.arguments["path"]
        failure = next((it for it in story.failed if it.key == one.key), None)
        if failure and (one.tool == _WRITE or path in (story.step_file, story.state)):
            return _complaint(story, failure)
        if failure:
            left.remove(one)  # The step goes on without a file that cannot be read.
    calls = [call(it.tool, it.arguments) for it in left]
    return Step(reasoning=why, calls=calls) if calls else None


def _outputs(story: _Story) -> list[Made]:
    """Writes the outputs that this visit has not written."""
    written = [it.arguments.get("path") for it in story.made if it.tool == _WRITE]
    left = [path for path in story.outputs if path not in written]
    return [Made(_WRITE, {"path": it, "content": _text_for(it, story)}) for it in left]


def _text_for(path: str, story: _Story) -> str:
    """A short text of what is known; of a table that was read, its lines, each once."""
    read = dict.fromkeys(str(it.arguments["path"]) for it in story.made if it.tool == _READ)
    read = [it for it in read if it in story.files and it not in (story.step_file, story.state)]
    for one in reversed(read):
        if path.endswith(".csv") and one.endswith(".csv"):
            return "".join(dict.fromkeys(story.files[one].splitlines(keepends=True)))
    lines = [f"# {story.title}", "", *(f"> {it}" for it in story.last_words.splitlines()), ""]
    lines += [f"- {it}: {cell_text(v)}" for it, v in (story.variables | story.changes).items()]
    for one in read:
        rows = story.files[one].splitlines()
        lines.append(f"- `{one}`: {len(rows)} lines, {len(set(rows))} of them different")
    return "\n".join([*lines, "", "Written by `offline:demo`, a rule-based stand-in.", ""])


def _question(story: _Story, asked: str) -> Step:
    said = re.sub(r"^ the (?:person|user)", "", asked).strip(" :,")
    known = ", ".join(f"`{word}`" for edge in story.edges for word in edge.words)
    listed = f"\n\nI understand {known}." if known else ""
    return Step(reasoning="The person decides here.", text=f"{said or story.title}{listed}")


def _holds(edge: _Edge, story: _Story) -> bool:
    """Whether a condition of a form that is known is met."""
    if edge.words:
        said = (story.words or [""])[-1]
        found = (re.search(rf"(?<!\w){re.escape(it)}(?!\w)", said, re.I) for it in edge.words)
        return (story.autopilot and not said) or any(found)
    comparison, variables = edge.comparison, {**story.variables, **story.changes}
    if comparison is None or comparison[1] not in variables:
        return False
    value, wanted = variables[comparison[1]], literal(comparison[3].strip("`'\""))
    if comparison[2] is None:
        return str(value).casefold() == str(wanted).casefold()
    are_numbers = isinstance(value, int | float) and isinstance(wanted, int | float)
    return are_numbers and _COMPARE[comparison[2]](value, wanted)


def _chosen(story: _Story) -> tuple[_Edge | None, str]:
    """One of several edges, and why; None where the person has to say it."""
    for edge in story.edges:
        if _holds(edge, story):
            is_first = edge.words and not story.words
            return edge, "the first choice, as autopilot is on" if is_first else edge.condition
    plain = [edge for edge in story.edges if edge.condition in ("", "otherwise")]
    if plain:
        # Another label than this leads aside.
        edge = next((it for it in plain if it.label == "next"), plain[0])
        return edge, "no other condition holds"
    if any(edge.words for edge in story.edges) and not story.autopilot:
        return None, ""
    return story.edges[0], "the first edge, as I understand none of the conditions"


def _end(story: _Story) -> Step:
    """The one patch that ends the step and goes on; another one where it was refused."""
    update: dict[str, Any] = {"stepsCompleted.append": story.node}
    why = "The step is done."
    if len(story.edges) > 1:
        edge, reason = _chosen(story)
        if edge is None:
            return _question(story, "How shall it go on?")
        why = f"{story.node} -> {edge.target} ({edge.label}): {reason}"
        update |= {"currentNodeId.set": edge.target, "decisionLog.append": why}
    elif story.edges:
        update["currentNodeId.set"] = story.edges[0].target
    if story.changes:
        update["variables.set"] = story.changes
    if made := [it for it in story.outputs if it not in story.artifacts]:
        update["artifacts.append"] = made[0] if len(made) == 1 else made
    refused = [it for it in story.failed if it.tool == _PATCH]
    if refused:
        why = f"It was refused: {_reason(refused[-1])}"
        other = _other(story, update, refused)
        if other is None or len(refused) >= _MOST_PATCHES:
            return _complaint(story, refused[-1])
        update = other
    arguments = {"path": story.state, "operation": "updateFrontmatter", "update": update}
    return Step(reasoning=why, calls=[call(_PATCH, arguments)])


def _other(story: _Story, update: dict[str, Any], refused: Sequence[Made]) -> dict[str, Any] | None:
    """What the last refusal leaves open and was not tried."""
    error = json_object(refused[-1].data) or {}
    if any(path in str(error) for path in story.outputs):
        again = "its outputs were missing and are written again"
        return {**update, "decisionLog.append": f"{story.node}: {again}"}
    tried = [json_object(it.arguments.get("update")) or {} for it in refused]
    targets = [str(it) for it in items((json_object(error.get("details")) or {}).get("allowed"))]
    for target in targets:
        if target not in [it.get("currentNodeId.set") for it in tried]:
            log = f"{story.node} -> {target}: another step was refused"
            return {**update, "currentNodeId.set": target, "decisionLog.append": log}
    # It may stand in the document already as completed.
    moves = "currentNodeId.set" in update and all("stepsCompleted.append" in it for it in tried)
    if error.get("code") == "E_PRECONDITION_FAILED" and moves:
        return {key: it for key, it in update.items() if key != "stepsCompleted.append"}
    return None


def _reason(failure: Made) -> str:
    error = json_object(failure.data) or {}
    return str(error.get("message") or error.get("code") or "")


def _complaint(story: _Story, failure: Made) -> Step:
    what = f"`{failure.tool}` of `{failure.arguments.get('path')}` failed. {_reason(failure)}"
    return Step(text=f"{_STUCK} `{story.node}`: {what}\n\nTell me when I shall try again.")


def _summary(story: _Story) -> str:
    if story.edges:
        return f"`{story.node}` is done."
    steps = " → ".join(f"`{it}`" for it in story.steps)
    listed = "\n".join(f"- `{it}`" for it in dict.fromkeys(story.artifacts)) or "- none"
    return f"The workflow is complete: {steps}.\n\nWritten:\n\n{listed}"
