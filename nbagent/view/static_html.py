"""The static form of a run: what a saved notebook keeps. HTML without a script, and two texts.

Reads well with all styles stripped. Everything that a model or a tool wrote is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from html import escape as _entities
from importlib.resources import files

from nbagent.view.old_markdown import TAGS, Node
from nbagent.view.static_text import answer_of, markdown, plain
from nbagent.view.view_types import (
    Block,
    CallWords,
    ImageView,
    RequestView,
    ToolView,
    TurnView,
    ViewState,
)
from nbagent.view.words import seconds

_KINDS = (("model", "model"), ("tool", "tools"), ("wait", "waiting for you"), ("bad", "retries"))
_VOID = ("br", "hr")
# JupyterLab (MathJax 3) and nbconvert (MathJax 2) typeset what stands between `$` in any output:
# a price would lose its words, and what a model wrote would be run as TeX.
_NO_TEX = "mathjax_ignore tex2jax_ignore"


def bundle(state: ViewState, *, unfolded: Collection[str] = ()) -> dict[str, str]:
    """The picture as a display bundle. Never `application/json`: it would outrank the HTML."""
    return {
        "text/html": html(state, unfolded=unfolded),
        "text/markdown": markdown(state),
        "text/plain": plain(state),
    }


@cache
def style() -> str:
    """The style sheet of the live view, without comments and spaces."""
    text = files("nbagent.view").joinpath("run_before.css").read_text("utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r"\s*([{};,>])\s*", r"\1", text).strip()


def html(state: ViewState, *, unfolded: Collection[str] = ()) -> str:
    """The picture as nested `<details>`.

    Args:
        unfolded: what a person has open: ids of turns, `C01/request`.
    """
    pieces = [
        f"<style>{style()}</style>",
        f'<div class="nba-run {_NO_TEX}">',
        _head(state),
        _bar(state),
        _line("nba-offline", state["offline"]),
        *(_turn(turn, state, unfolded) for turn in state["turns"]),
        *(_line("nba-notice", f"note: {notice}") for notice in state["notices"]),
        _answer(state),
        _ending(state),
        _foot(state),
        "</div>",
    ]
    return "\n".join(piece for piece in pieces if piece)


def escape(text: str) -> str:
    """Text that stays text, in an element and in an attribute.

    Line ends too: in a Markdown export an empty line would end the HTML, and what follows it
    (a link, a remote image) would be Markdown.
    """
    return _entities(text).replace("\n", "&#10;").replace("\r", "&#13;")


def _line(name: str, text: str) -> str:
    return f'<div class="{name}">{escape(text)}</div>' if text else ""


def _ending(state: ViewState) -> str:
    name = "nba-error" if state["error_mark"] == "✕" else "nba-notice"
    said = _line(name, f"{state['error_mark']} {state['error']}" if state["error"] else "")
    return said + _line("nba-notice", state["error_help"])


def _head(state: ViewState) -> str:
    status = state["status"]
    facts = " · ".join(
        f"<b>{escape(fact['value'])}</b>"
        + (f" {escape(fact['word'])}" if fact["word"] else "")
        + (f' <span class="nba-aside">{escape(fact["aside"])}</span>' if fact["aside"] else "")
        for fact in state["facts"]
    )
    return (
        f'<div class="nba-head"><span class="nba-mark nba-{status["tone"]}" aria-hidden="true">'
        f"{status['mark']}</span> "
        f'<strong class="nba-phase">{escape(status["word"])}</strong> '
        f'<code class="nba-chip">{escape(state["model"])}</code> '
        f'<span class="nba-facts">{facts}</span></div>'
    )


def _bar(state: ViewState) -> str:
    """The time bar; its words stand in the foot as a table."""
    pieces = "".join(
        f'<i class="nba-{piece["kind"]}" style="flex-grow:{max(piece["ms"], 1):.0f}"></i>'
        for piece in state["bar"]
    )
    return f'<div class="nba-bar" title="{escape(state["bar_words"])}">{pieces}</div>'


def _open(key: str, unfolded: Collection[str]) -> str:
    return " open" if key in unfolded else ""


def _turn(turn: TurnView, state: ViewState, unfolded: Collection[str]) -> str:
    return (
        f'<details class="nba-turn"{_open(turn["id"], unfolded)}><summary>'
        f'<code class="nba-id">{escape(turn["id"])}</code> '
        f'<span class="nba-sum">{_summary(turn)}</span> '
        f'<span class="nba-num">{escape(turn["numbers"])}</span></summary>\n'
        f'<div class="nba-body">{_body(turn, state, unfolded)}</div></details>'
    )


def _summary(turn: TurnView) -> str:
    summary = turn["summary"]
    words = [_call(call) for call in summary["calls"]]
    words += [f"and {summary['more']} more"] if summary["more"] else []
    words += [escape(summary["text"])] if summary["text"] else []
    if summary["error"]:
        words.append(f'<span class="nba-err">✕ {escape(summary["error"])}</span>')
    return " &nbsp; ".join(words) or "no text"


def _call(call: CallWords) -> str:
    outcome = escape(call["outcome"])
    ends = {
        "ok": f' <span class="nba-res">→ {outcome}</span>',
        "failed": f' <span class="nba-err">✕ {outcome}</span>',
    }
    decided = f' <span class="nba-res">{call["decided"]}</span>' if "decided" in call else ""
    return (
        f'<code><span class="nba-call">{escape(call["name"])}</span>'
        f"({escape(call['arguments'])}){decided}{ends.get(call['phase'], ' …')}</code>"
    )


def _body(turn: TurnView, state: ViewState, unfolded: Collection[str]) -> str:
    pieces: list[str] = [_line("nba-lab", turn["who"])]
    if turn["reasoning"]["text"]:
        pieces.append(_line("nba-lab", "reasoning"))
        note = _line("nba-note", turn["reasoning"]["note"])
        thought = escape(turn["reasoning"]["text"])
        pieces.append(f'<blockquote class="nba-think">{thought}{note}</blockquote>')
    if turn["id"] == state["answer"]:
        pieces.append(_line("nba-lab", "text · the answer below"))
    elif turn["tree"]:
        pieces.append(_line("nba-lab", "text"))
        pieces.append(f'<div class="nba-text">{nodes_html(turn["tree"])}</div>')
        pieces.append(_line("nba-note", turn["text"]["note"]))
    pieces += [_card(tool) for tool in turn["tools"]]
    pieces += [_line("nba-notice", f"note: {notice}") for notice in turn["notices"]]
    pieces.append(_line("nba-error", f"✕ {turn['error']}" if turn["error"] else ""))
    pieces.append(_request(turn["request"], _open(f"{turn['id']}/request", unfolded)))
    return "\n".join(piece for piece in pieces if piece)


def _block(label: str, block: Block) -> str:
    if not block["text"]:
        return ""
    note = _line("nba-note", block["note"])
    return f"{_line('nba-lab', label)}<pre>{escape(block['text'])}</pre>{note}"


def _card(tool: ToolView) -> str:
    bad = " nba-bad" if tool["phase"] == "failed" else ""
    word = f' <span class="nba-err">✕ {escape(tool["word"])}</span>' if bad else ""
    return "".join(
        (
            f'<div class="nba-card{bad}"><div class="nba-top"><code class="nba-call">',
            f"{escape(tool['name'])}</code>{word} ",
            f'<span class="nba-num">{escape(tool["where"])}</span></div>',
            _line("nba-notice", tool["decision"]),
            _block("arguments", tool["arguments"]),
            _block("arguments that the model had written", tool["given"]),
            _block("result", tool["result"]),
            _block("error", {"text": tool["error"], "note": ""}),
            _block("where it failed" if tool["error"] else "error", tool["detail"]),
            *(_line("nba-notice", f"note: {note}") for note in tool["notes"]),
            _pictures(tool["images"]),
            "</div>",
        )
    )


def _pictures(images: Sequence[ImageView]) -> str:
    return "".join(
        f'<img alt="{escape(image["alt"])}"'
        f' src="data:{image["media_type"]};base64,{image["data"]}">'
        + _line("nba-note", f"{image['alt']} · {image['size']}")
        for image in images
    )


def _request(request: RequestView, is_open: str) -> str:
    if not request["words"]:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(message["role"])}</th>'
        f"<td><pre>{escape(message['body']['text'])}</pre>"
        f"{_line('nba-note', message['body']['note'])}{_pictures(message['images'])}</td></tr>"
        for message in request["messages"]
    )
    rows += "".join(
        f'<tr><th scope="row">{label}</th><td>{escape(text)}</td></tr>'
        for label, text in (
            ("earlier", request["earlier"]),
            ("tools", request["tools"]),
            ("options", request["params"]),
        )
        if text
    )
    if request["system"]["text"]:
        note = _line("nba-note", request["system"]["note"])
        text = escape(request["system"]["text"])
        rows += f'<tr><th scope="row">system prompt</th><td><pre>{text}</pre>{note}</td></tr>'
    return (
        f'<details class="nba-request"{is_open}><summary class="nba-lab">{escape(request["words"])}'
        f"</summary><table>{rows}</table></details>"
    )


def _answer(state: ViewState) -> str:
    turn = answer_of(state)
    if turn is None:
        return ""
    return (
        f'<div class="nba-answer">{_line("nba-note", state["answer_note"])}'
        f"{nodes_html(turn['tree'])}{_line('nba-note', turn['text']['note'])}</div>"
    )


def nodes_html(nodes: Sequence[Node]) -> str:
    """A Markdown tree as HTML: known tags, known attributes, all text escaped."""
    return "".join(escape(n) if isinstance(n, str) else _node_html(n) for n in nodes)


def _node_html(node: list[object]) -> str:
    tag, attributes, children = node
    if not isinstance(tag, str) or tag not in TAGS or not isinstance(attributes, dict):
        return ""
    if tag in _VOID:
        return f"<{tag}>"
    given = "".join(
        f' {name}="{escape(str(value))}"'  # pyright: ignore[reportUnknownArgumentType]
        for name, value in attributes.items()  # pyright: ignore[reportUnknownVariableType]
        if name in ("href", "start", "align")
    )
    if "href" in attributes:
        given += ' rel="noopener noreferrer nofollow" target="_blank"'
    inner = nodes_html(children) if isinstance(children, list) else ""  # pyright: ignore[reportUnknownArgumentType]
    return f"<{tag}{given}>{inner}</{tag}>"


def _foot(state: ViewState) -> str:
    steps = "".join(
        f' · <code>{escape(step["type"])}</code> <span class="nba-aside">{escape(step["words"])}'
        "</span>"
        for step in state["next"]
    )
    about = escape(state["about"])
    return f'<div class="nba-foot"><div>{about}{steps}</div>{_time_table(state)}</div>'


def _time_table(state: ViewState) -> str:
    """Where the time went, in figures: what the bar says where there is no style."""
    total = sum(piece["ms"] for piece in state["bar"])
    if not total:
        return ""
    kinds = [(k, word) for k, word in _KINDS if any(p["kind"] == k for p in state["bar"])]
    head = "".join(f"<th>{word}</th>" for _, word in kinds)
    rows: list[str] = []
    for turn in state["turns"]:
        mine = [piece for piece in state["bar"] if piece["turn"] == turn["id"]]
        cells = "".join(
            f"<td>{seconds(sum(p['ms'] for p in mine if p['kind'] == kind))}</td>"
            for kind, _ in kinds
        )
        share = sum(p["ms"] for p in mine) / total
        rows.append(
            f'<tr><th scope="row">{escape(turn["id"])}</th>{cells}'
            f'<td><progress max="100" value="{100 * share:.0f}"'
            ' aria-label="share of the time"></progress></td></tr>'
        )
    return (
        f"<details><summary>time: {escape(state['bar_words'])}</summary>"
        f"<table><tr><th>turn</th>{head}<th>share</th></tr>{''.join(rows)}</table></details>"
    )
