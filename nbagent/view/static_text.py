"""A run's picture as plain text and as Markdown that cannot run anything.

Numbers and ids that change from run to run have one pattern each, so that
`tests/nbval.cfg` can blot them out:

    run id   `run 1a2b3c4d`, `%agent show 1a2b3c4d`   8 hex digits
    time     `12 ms`, `2.8 s`, `125 s`, `12 min 5 s`
    cost     `$0.0004`, `<$0.0001`
    bar      `flex-grow:12` in the style of a piece of the time bar (`static_html`)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from nbagent.view.old_markdown import Node, words_of
from nbagent.view.view_types import CallWords, Summary, ToolView, TurnView, ViewState
from nbagent.view.words import one_line

_REASON_CHARS = 300
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")
_BLOCKS = frozenset(("p", "ul", "ol", "blockquote", "pre", "table", "hr")) | {
    f"h{level}" for level in range(1, 7)
}


def plain(state: ViewState) -> str:
    """What a terminal or an export shows: header, a line for each turn, the answer."""
    lines = [f"{state['status']['mark']} {state['status']['word']} · {state['model']}"]
    facts = facts_line(state)
    lines[0] += f" · {facts}" if facts else ""
    lines += [line for line in (state["offline"], state["activity"]) if line]
    for turn in state["turns"]:
        numbers = f"  ({turn['numbers']})" if turn["numbers"] else ""
        lines.append(f"{turn['id']}  {summary_line(turn)}{numbers}")
        lines += [f"     {words}" for words in decisions(turn)]
        lines += [f"     note: {notice}" for notice in turn["notices"]]
    lines += [f"note: {notice}" for notice in state["notices"]]
    answer = answer_of(state)
    if answer:
        note = f"({state['answer_note']})" if state["answer_note"] else ""
        lines += ["", *([note] if note else []), answer["text"]["text"].rstrip()]
        lines += [answer["text"]["note"]] if answer["text"]["note"] else []
        lines.append("")
    if state["error"]:
        lines.append(f"{state['error_mark']} {state['error']}")
    lines += [state["error_help"]] if state["error_help"] else []
    lines.append(foot_line(state))
    return "\n".join(lines)


def answer_of(state: ViewState) -> TurnView | None:
    """The turn whose text is the answer."""
    return next((turn for turn in state["turns"] if turn["id"] == state["answer"]), None)


def facts_line(state: ViewState) -> str:
    """The numbers of the header in one line."""
    return " · ".join(
        " ".join(word for word in (fact["value"], fact["word"], fact["aside"]) if word)
        for fact in state["facts"]
    )


def foot_line(state: ViewState) -> str:
    """What run this is, and what to type next."""
    steps = [f"{step['type']} ({step['words']})" for step in state["next"]]
    return " · ".join([state["about"], *steps])


def summary_line(turn: TurnView) -> str:
    """A turn's line as text."""
    summary: Summary = turn["summary"]
    words = [call_line(call) for call in summary["calls"]]
    if summary["more"]:
        words.append(f"and {summary['more']} more")
    words += [summary["text"]] if summary["text"] else []
    words += [f"✕ {summary['error']}"] if summary["error"] else []
    return "   ".join(words) or ("…" if turn["phase"] == "running" else "no text")


def decisions(turn: TurnView) -> list[str]:
    """What was said to the calls that somebody was asked about, a line for each."""
    return [_decision(tool) for tool in turn["tools"] if tool["decision"]]


def _decision(tool: ToolView) -> str:
    words = f"{tool['name']}: {tool['decision']}"
    why = tool["error"].removeprefix("the policy denies this call: ")
    if tool["word"] == "E_DENIED" and why != "the person denied this call":
        words += f": {one_line(why, _REASON_CHARS)}"
    if tool["given"]["text"]:
        words += f"; the model had written {one_line(tool['given']['text'], _REASON_CHARS)}"
    return words


def call_line(call: CallWords) -> str:
    """`population(city="Oslo") → 717,710`."""
    ends = {
        "ok": f" → {call['outcome']}",
        "failed": f" ✕ {call['outcome']}",
        "asking": " ? waiting for you",
        "running": " … running",
        "queued": "",
    }
    decided = f" {call['decided']}" if "decided" in call else ""
    return f"{call['name']}({call['arguments']}){decided}{ends[call['phase']]}"


def markdown(state: ViewState) -> str:
    """The same as Markdown; whatever a model or a tool wrote is escaped."""
    lines = [f"**{_escaped(state['status']['mark'] + ' ' + state['status']['word'])}**"]
    lines[0] += f" · {_escaped(state['model'])} · {_escaped(facts_line(state))}"
    lines += [f"\n{_escaped(state['offline'])}"] if state["offline"] else []
    lines.append("")
    for turn in state["turns"]:
        line = f"- {_escaped(turn['id'])} {_escaped(summary_line(turn))}"
        lines.append(f"{line} ({_escaped(turn['numbers'])})" if turn["numbers"] else line)
        lines += [f"  - {_escaped(words)}" for words in (*decisions(turn), *turn["notices"])]
    lines += [f"\n{_escaped(notice)}" for notice in state["notices"]]
    answer = answer_of(state)
    if answer:
        note = [_escaped(word) for word in (state["answer_note"], answer["text"]["note"]) if word]
        lines += ["", *note, _blocks(answer["tree"])]
    if state["error"]:
        lines += ["", f"**{state['error_mark']} {_escaped(state['error'])}**"]
        lines += ["", _escaped(state["error_help"])] if state["error_help"] else []
    return "\n".join([*lines, "", _escaped(foot_line(state))])


def _escaped(text: str) -> str:
    """Text that stays text: no HTML, no mark-up, no link, on one line."""
    line = " ".join(text.split())
    safe = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", safe).replace("://", ":\u200b//").replace("\u200b", "&#8203;")


def _blocks(nodes: Sequence[Node], indent: str = "") -> str:
    """Blocks of a tree as Markdown. What stands inline between them becomes a paragraph."""
    blocks: list[str] = []
    for is_block, group in groupby(nodes, lambda n: not isinstance(n, str) and n[0] in _BLOCKS):
        if is_block:
            blocks += [_block(n[0], n[1], n[2]) for n in group if not isinstance(n, str)]
        elif words := _inline(list(group)):
            blocks.append(words)
    return "\n\n".join(blocks).replace("\n", f"\n{indent}")


def _block(tag: str, attributes: dict[str, Any], children: list[Node]) -> str:
    match tag:
        case "p":
            return _inline(children)
        case "ul" | "ol":
            items = [node for node in children if not isinstance(node, str)]
            start = attributes.get("start", 1)
            first = start if isinstance(start, int) else 1
            marks = [f"{first + i}. " if tag == "ol" else "- " for i in range(len(items))]
            return "\n".join(
                mark + _blocks(item[2], " " * len(mark))
                for mark, item in zip(marks, items, strict=True)
            )
        case "blockquote":
            return "> " + _blocks(children).replace("\n", "\n> ")
        case "pre":
            text = "".join(words_of(children)).rstrip("\n")
            fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
            return f"{fence}\n{text}\n{fence}"
        case "table":
            return _table(children)
        case "hr":
            return "---"
        case _:
            return f"{'#' * (int(tag[1]) + 2 if int(tag[1]) < 4 else 6)} {_inline(children)}"


def _table(sections: list[Node]) -> str:
    rows = [
        [_inline(cell[2]) for cell in row[2] if not isinstance(cell, str)]
        for section in sections
        if not isinstance(section, str)
        for row in section[2]
        if not isinstance(row, str)
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def _inline(nodes: Sequence[Node]) -> str:
    words: list[str] = []
    for node in nodes:
        if isinstance(node, str):
            lead, tail = (" " if node[:1].isspace() else ""), (" " if node[-1:].isspace() else "")
            words.append(f"{lead}{_escaped(node)}{tail}" if node.strip() else " ")
            continue
        tag, attributes, children = node
        inner = _inline(children)
        if tag in ("em", "strong", "s") and inner.strip():
            mark = {"em": "*", "strong": "**", "s": "~~"}[tag]
            words.append(f"{mark}{inner.strip()}{mark}")
        elif tag == "a" and attributes.get("href"):
            # The address is shown, not linked: one that runs a command looks like any other.
            words.append(f"{inner} ({_escaped(str(attributes['href']))})")
        elif tag == "br":
            words.append("\\\n")
        else:
            words.append(inner)
    return "".join(words).strip(" ")
