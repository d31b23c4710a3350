"""What a turn sent → nodes: the messages that were new, tools, options, system prompt."""

from __future__ import annotations

from nbagent.contracts.messages import Message
from nbagent.contracts.records import EngineTurn, RunRecord, TurnRequest
from nbagent.view import labels
from nbagent.view.images import part_words
from nbagent.view.node import Node, h, line
from nbagent.view.words import arguments_in_short, cut, in_short, one_line, visible

_MESSAGE_CHARS = 600
_SYSTEM_CHARS = 3_000


def place_in(run: RunRecord, turn: EngineTurn) -> int:
    """The place of a turn among those of its run, from 0."""
    place = turn.index - run.turns[0].index
    return place if 0 <= place < len(run.turns) else 0


def label_node(text: str) -> Node:
    """What stands above a text; small also where there is no style."""
    return h("div", "nba-lab", h("small", "", text))


def copied(node: Node) -> Node:
    """A text or a table with a button that copies it."""
    return h("div", "nba-code", h("button", "nba-do", data_do="copy", title="Copy"), node)


def labelled(
    label: str, text: str, limit: int, has_all: str, *, copies: bool = False
) -> list[Node]:
    """A text under its label, within its limit; with a button that copies it."""
    if not text:
        return []
    shown, note = cut(text, limit, has_all=has_all)
    code = h("pre", "", shown)
    parts = (label_node(label), copied(code) if copies else code, line("nba-note", note))
    return [part for part in parts if part is not None]


def request_node(run: RunRecord, turn: EngineTurn, *, is_open: bool = False) -> Node:
    """What the turn sent, the new first; folded."""
    request = turn.request
    # Of its new messages those that the record itself has, not its parent.
    end = max(0, request.n_messages - run.shared_messages)
    new = run.messages[max(0, end - request.n_new) : end]
    place = place_in(run, turn)
    before = run.turns[place - 1] if place else None
    as_before = f"as in {before.id}" if before and _fixed(before.request) == _fixed(request) else ""
    shown = [m for m in new if before is None or m.role not in ("assistant", "tool")]
    system = visible(run.system_prompts.get(request.system_sha, ""))
    names = ", ".join(visible(tool.name) for tool in run.toolsets.get(request.toolset_sha, ()))
    options = ", ".join(f"{visible(k)}={in_short(v)}" for k, v in request.params.items())
    answers = f"the calls of {before.id} and their results" if before else ""
    inherited = request.n_new - len(new)
    facts = {
        "earlier": f"{inherited} of them from the run before" if inherited > 0 else "",
        "answers": answers if len(shown) < len(new) else "",
        "tools": names and (as_before or names),
        "options": options,
        "system prompt": system and as_before,
    }
    rows = [part for message in shown for part in message_nodes(message)]
    rows += [h("div", "nba-note", f"{name}: {text}") for name, text in facts.items() if text]
    if not as_before:
        rows += labelled("system prompt", system, _SYSTEM_CHARS, f"run.request_of({turn.id!r})")
    return h(
        "details",
        "nba-request",
        h("summary", "", h("small", "", labels.request_words(request))),
        h("div", "", *rows),
        data_key=f"{turn.id}/request",
        open_="" if is_open else None,
    )


def _fixed(request: TurnRequest) -> tuple[str, str]:
    return request.system_sha, request.toolset_sha


def message_nodes(message: Message) -> list[Node]:
    """A message in full; a tool's pictures stand in its card, a person's with the prompt."""
    name = one_line(visible(message.name), labels.NAME_CHARS) if message.name else ""
    pieces = [part_words(part) for part in message.content]
    pieces += [f"{visible(c.name)}({arguments_in_short(c.arguments)})" for c in message.tool_calls]
    text = "\n".join(filter(None, pieces))
    return labelled(f"{message.role} {name}".strip(), text, _MESSAGE_CHARS, "run.messages")
