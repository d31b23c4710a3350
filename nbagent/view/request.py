"""What a turn sent → nodes: the messages that were new, tools, options, system prompt."""

from __future__ import annotations

from nbagent.contracts.chat import Message
from nbagent.contracts.records import EngineTurn, RunRecord
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
    new = labels.own_messages(run, request)
    place = place_in(run, turn)
    before = run.turns[place - 1].request if place else None
    same = before is not None and (before.system_sha, before.toolset_sha) == (
        request.system_sha,
        request.toolset_sha,
    )
    system = run.system_prompts.get(request.system_sha, "")
    names = ", ".join(visible(tool.name) for tool in run.toolsets.get(request.toolset_sha, ()))
    earlier = run.turns[place - 1].id if place else ""
    facts = {
        "earlier": f"{request.n_new - len(new)} of them from the run before",
        "answers": f"the calls of {earlier} and their results",
        "tools": f"as in {earlier}" if same and names else names,
        "options": ", ".join(f"{visible(k)}={in_short(v)}" for k, v in request.params.items()),
    }
    if request.n_new <= len(new):
        del facts["earlier"]
    shown = [m for m in new if not earlier or m.role not in ("assistant", "tool")]
    if len(shown) == len(new):
        del facts["answers"]
    rows = [part for message in shown for part in message_nodes(message)]
    rows += [h("div", "nba-note", f"{name}: {text}") for name, text in facts.items() if text]
    if system and same:
        rows.append(h("div", "nba-note", f"system prompt: as in {earlier}"))
    elif system:
        has_all = f"run.request_of({turn.id!r})"
        rows += labelled("system prompt", visible(system), _SYSTEM_CHARS, has_all)
    return h(
        "details",
        "nba-request",
        h("summary", "", h("small", "", labels.request_words(request))),
        h("div", "", *rows),
        data_key=f"{turn.id}/request",
        open_="" if is_open else None,
    )


def message_nodes(message: Message) -> list[Node]:
    """A message in full; a tool's pictures stand in its card, a person's with the prompt."""
    name = one_line(visible(message.name), labels.NAME_CHARS) if message.name else ""
    pieces = [part_words(part) for part in message.content]
    pieces += [f"{visible(c.name)}({arguments_in_short(c.arguments)})" for c in message.tool_calls]
    text = "\n".join(filter(None, pieces))
    return labelled(f"{message.role} {name}".strip(), text, _MESSAGE_CHARS, "run.messages")
