"""A dry run: what a run would send first, as a value, as text, and as nodes like those of a run.

What would be sent is worked out in `session.active`; nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from nbagent.contracts.chat import ChatRequest, ImagePart, Message, Part, TextPart, ToolSpec
from nbagent.contracts.records import RunRecord
from nbagent.engine.overflow import IMAGE_CHARS, message_chars, request_chars, tools_chars
from nbagent.view.images import drawn, part_words
from nbagent.view.node import Node, h, line, text_of
from nbagent.view.picture import ROOT, page, row_node
from nbagent.view.words import as_text, cut, one_line, things, visible

_MOST = 20_000
"""Characters of one text that are shown; the value itself has all."""
_MOST_BODY = 60_000
_MOST_TOGETHER = 250_000
_ALL = "Agent.dry_run(…).body"
_LONG_DATA = 200
_KEYS = {
    "sent": "with the key of the environment",
    "none": "without a key",
    "missing": "NO KEY IS SET, so it would be refused: set",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """What would be sent first, but for keys and the values of `extra_body`, which are hidden."""

    run: RunRecord
    """As it would begin: its model, session, limits, parent and notices."""
    request: ChatRequest
    """System prompt, messages, tools and parameters as the client is given them."""
    body: dict[str, Any]
    """The JSON of the request on the wire; for a model without one, the request itself."""
    body_bytes: int
    url: str | None
    """Where it would go; None for a model without a wire."""
    key: Literal["sent", "none", "missing"]
    """Whether a key goes along; `missing` where the server answers only with one."""
    key_variables: tuple[str, ...]
    """The variables of the environment in which the provider's key is looked for."""
    dropped_params: tuple[str, ...]
    """What is left out because the server refused it before."""
    stream: bool
    turn_id: str

    def __repr__(self) -> str:
        counts = f"{len(self.request.messages)} messages, {len(self.request.tools)} tools"
        return f"<DryRun {self.run.model}, {counts}, {self.body_bytes:,} bytes>"

    def __str__(self) -> str:
        return _text(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": page(_node(self)), "text/plain": _text(self)}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A message, a tool or the body, ready to be shown."""

    title: str
    facts: str
    text: str
    note: str = ""
    pictures: tuple[Node, ...] = ()
    summary: str = ""
    """Its first words, for the line that unfolds it."""


def _text(dry: DryRun) -> str:
    """For a terminal, a script, an export: head, then everything, piece by piece."""
    rows = _facts(dry)
    width = max(len(name) for name, _ in rows)
    lines = [f"dry run · {visible(dry.run.model)} · nothing was sent, nothing is kept"]
    lines += [f"{name:<{width}}  {value}" for name, value in rows]
    for piece in _pieces(dry):
        lines += ["", f"── {piece.title} · {piece.facts}"]
        lines += [f"   {row}" for row in piece.text.splitlines()]
        lines += [f"   [{caption}]" for node in piece.pictures if (caption := text_of(node))]
        lines += [f"   {piece.note}"] if piece.note else []
    return "\n".join(lines)


def _node(dry: DryRun) -> Node:
    """The same in folds, and the body of the request as it goes over the wire."""
    rows = [
        h("tr", "", h("th", "", name, scope="row"), h("td", "", value))
        for name, value in _facts(dry)
    ]
    tone = "bad" if dry.key == "missing" else "waits"
    return h(
        "div",
        ROOT,
        h(
            "div",
            "nba-head",
            h("span", f"nba-mark nba-{tone}", "○ ", aria_hidden="true"),
            h("strong", "nba-phase", "Dry run"),
            " ",
            h("code", "nba-chip", visible(dry.run.model)),
            h("span", "nba-facts", " nothing was sent, nothing is kept"),
        ),
        h("div", "nba-wide", h("table", "", *rows)),
        *(_fold(piece) for piece in (*_pieces(dry), _body(dry))),
    )


def _fold(piece: _Piece) -> Node:
    words = row_node(piece.title, [piece.summary], piece.facts)
    inner = (h("pre", "", piece.text), line("nba-note", piece.note), *piece.pictures)
    return h("details", "nba-turn", h("summary", "", words), h("div", "nba-body", *inner))


def _facts(dry: DryRun) -> list[tuple[str, str]]:
    counted = (
        f"{things(len(dry.request.messages), 'message')}, {things(len(dry.request.tools), 'tool')}"
    )
    images = sum(_images(message) for message in dry.request.messages)
    tokens = _sizes(request_chars(dry.request), images)
    where = visible(dry.url or "no server: this model answers by itself, nothing leaves here")
    rows = [
        ("to", f"{where}, {_key(dry)}" if dry.url else where),
        ("size", f"{counted}, {tokens}; {dry.body_bytes:,} bytes in all"),
        ("parameters", _parameters(dry)),
        ("limits", _limits(dry)),
        ("run", _kinship(dry)),
    ]
    if dry.dropped_params:
        refused = ", ".join(dry.dropped_params)
        rows.append(("left out", f"{refused}: this server refused it before"))
    return [*rows, *(("note", visible(notice)) for notice in dry.run.notices)]


def _key(dry: DryRun) -> str:
    if dry.key != "missing":
        return _KEYS[dry.key]
    return f"{_KEYS[dry.key]} {' or '.join(dry.key_variables)}"


def _parameters(dry: DryRun) -> str:
    shown = {k: v for k, v in dry.body.items() if k not in ("messages", "tools", "system_prompt")}
    shown.setdefault("stream", dry.stream)
    return visible(", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in shown.items()))


def _limits(dry: DryRun) -> str:
    values = dry.run.limits.model_dump(exclude_none=True)
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _kinship(dry: DryRun) -> str:
    turn = f"turn {dry.turn_id} in session {visible(dry.run.session)!r}"
    if dry.run.parent_id is None:
        return f"a new conversation: {turn}"
    word = {"fork": "forks", "resume": "resumes"}.get(dry.run.kind, "goes on with")
    earlier = things(dry.run.shared_messages, "message")
    return f"{word} run {dry.run.parent_id[:8]} ({earlier} of it): {turn}"


def _pieces(dry: DryRun) -> Iterator[_Piece]:
    """Everything, as far as it fits into an output; what does not keeps its line."""
    room = _MOST_TOGETHER
    for piece in _all_pieces(dry):
        room -= len(piece.text)
        if room < 0:
            note = f"… {len(piece.text):,} characters are not repeated here; {_ALL} has all"
            piece = replace(piece, text="", note=note, pictures=())
        yield piece


def _all_pieces(dry: DryRun) -> Iterator[_Piece]:
    if dry.request.system_prompt:
        facts = _sizes(len(dry.request.system_prompt))
        yield _piece("system prompt", facts, visible(dry.request.system_prompt))
    for place, message in enumerate(dry.request.messages, 1):
        title = f"{place} {message.role}"
        title += f" {visible(message.name)}" if message.name else ""
        yield _message(title, message)
    for tool in dry.request.tools:
        yield _tool(tool)


def _message(title: str, message: Message) -> _Piece:
    texts: list[str] = []
    pictures: list[Node] = []
    for part in message.content:
        nodes, _ = drawn((part,))
        pictures += nodes
        texts += [] if nodes else [_words(part)]
    for call in message.tool_calls:
        texts.append(f"→ {visible(call.name)}({visible(call.arguments_raw)})  [{visible(call.id)}]")
    if message.tool_call_id:
        texts.insert(0, f"[answers {visible(message.tool_call_id)}]")
    facts = _sizes(message_chars(message), _images(message))
    return _piece(title, facts, "\n".join(texts), pictures)


def _images(message: Message) -> int:
    return sum(isinstance(part, ImagePart) for part in message.content)


def _words(part: Part) -> str:
    if isinstance(part, TextPart):
        return visible(part.text)
    data = part.data or ""
    size = f", {len(data) * 3 // 4:,} bytes" if data else ""
    return f"{part_words(part)}{size}"


def _tool(tool: ToolSpec) -> _Piece:
    schema = as_text(tool.parameters, enough=_MOST)
    said = visible(tool.description)
    facts = _sizes(tools_chars((tool,)))
    return _piece(f"tool {visible(tool.name)}", facts, f"{said}\n{schema}".strip())


def _body(dry: DryRun) -> _Piece:
    plain = json.dumps(_shortened(dry.body), ensure_ascii=False, indent=2)
    shown, note = cut(visible(plain), _MOST_BODY, has_all=_ALL)
    return _Piece("body", f"{dry.body_bytes:,} bytes", shown, note, summary="the request as JSON")


def _shortened(value: Any) -> Any:
    """The body with the data of images and files cut short, and their size said."""
    if isinstance(value, str):
        is_data = value.startswith("data:") and ";base64," in value[:100]
        if is_data and len(value) > _LONG_DATA:
            return f"{value[:60]}… ({len(value):,} characters)"
        return value
    if isinstance(value, dict):
        return {k: _shortened(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_shortened(item) for item in cast("list[Any]", value)]
    return value


def _piece(title: str, facts: str, said: str, pictures: Sequence[Node] = ()) -> _Piece:
    shown, note = cut(said, _MOST, has_all=_ALL)
    return _Piece(title, facts, shown, note, tuple(pictures), summary=one_line(said, 100))


def _sizes(chars: int, images: int = 0) -> str:
    """The size in characters and images, and the tokens that they may be.

    Args:
        chars: as `engine.overflow` counts them, with a fixed number for each image.
        images: how many of them there are.
    """
    words = things(chars - images * IMAGE_CHARS, "character")
    words += f" and {things(images, 'image')}" if images else ""
    return f"{words} ≈ {things((chars + 3) // 4, 'token')} (estimate)"
