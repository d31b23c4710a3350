"""Request of a turn → nodes: its new messages, tools, options, system prompt."""

from __future__ import annotations

from nbagent.contracts.messages import Message
from nbagent.contracts.records import EngineTurn, RunRecord, TurnRequest
from nbagent.view import run_facts
from nbagent.view.images import part_text
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import (
    one_line,
    sanitize_value,
    summarize_arguments,
    summarize_value,
    truncate,
)

_MESSAGE_CHARS = 600
_SYSTEM_CHARS = 3_000
_COPIED_CHARS = 40
"""Shortest text with a copy button: a button is longer than `{"city": "Oslo"}`."""


def turn_position(run: RunRecord, turn: EngineTurn) -> int:
    """Index of a turn in its run, from 0."""
    position = turn.index - run.turns[0].index
    return position if 0 <= position < len(run.turns) else 0


def label_node(text: str) -> Node:
    """Return the label above a text. `small` makes it small without styles too."""
    return h("div", "nba-lab", h("small", "", text))


def with_copy_button(node: Node) -> Node:
    """Add a copy button to a text or a table."""
    return h("div", "nba-code", h("button", "nba-do", data_do="copy", title="Copy"), node)


def labelled_nodes(
    label: str, text: str, limit: int, has_all: str, *, copies: bool = False, fact: str = ""
) -> list[Node]:
    """Draw a text within its limit under a label, on demand with a copy button.

    With `fact`, the text form shows it under this name.
    """
    if not text:
        return []
    shown, note = truncate(text, limit, has_all=has_all)
    code = h("pre", "nba-fact" if fact else "", shown, title=fact or None)
    copies = copies and len(shown) >= _COPIED_CHARS
    parts = (label_node(label), with_copy_button(code) if copies else code, line("nba-note", note))
    return [part for part in parts if part is not None]


def request_node(run: RunRecord, turn: EngineTurn, *, is_open: bool = False) -> Node:
    """Draw the request of a turn as a fold, new messages first."""
    request = turn.request
    # New messages that are in this record; the others are in its parent's.
    end = max(0, request.n_messages - run.shared_messages)
    new = run.messages[max(0, end - request.n_new) : end]
    position = turn_position(run, turn)
    before = run.turns[position - 1] if position else None
    as_before = (
        f"as in {before.id}"
        if before and _prompt_and_tools(before.request) == _prompt_and_tools(request)
        else ""
    )
    shown = [m for m in new if before is None or m.role not in ("assistant", "tool")]
    system = sanitize_value(run.system_prompts.get(request.system_sha, ""))
    names = ", ".join(
        sanitize_value(tool.name) for tool in run.toolsets.get(request.toolset_sha, ())
    )
    options = ", ".join(
        f"{sanitize_value(k)}={summarize_value(v)}" for k, v in request.params.items()
    )
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
        rows += labelled_nodes(
            "system prompt", system, _SYSTEM_CHARS, f"run.request_of({turn.id!r})"
        )
    return h(
        "details",
        "nba-request",
        h("summary", "", h("small", "", run_facts.request_text(request))),
        h("div", "", *rows),
        data_key=f"{turn.id}/request",
        open_="" if is_open else None,
    )


def _prompt_and_tools(request: TurnRequest) -> tuple[str, str]:
    return request.system_sha, request.toolset_sha


def message_nodes(message: Message) -> list[Node]:
    """Draw the text of a message. Pictures are drawn in the tool's card or with the prompt."""
    name = one_line(sanitize_value(message.name), run_facts.NAME_CHARS) if message.name else ""
    pieces = [part_text(part) for part in message.content]
    pieces += [
        f"{sanitize_value(c.name)}({summarize_arguments(c.arguments)})" for c in message.tool_calls
    ]
    text = "\n".join(filter(None, pieces))
    return labelled_nodes(f"{message.role} {name}".strip(), text, _MESSAGE_CHARS, "run.messages")
