"""A dry run: what a run would send first, as a value, as text, and as nodes like those of a run.

What would be sent is worked out in `session.active`; nothing is decided here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.records import RunRecord
from nbagent.engine.overflow import IMAGE_CHARS, message_chars, request_chars, tools_chars
from nbagent.view.images import drawn, part_words
from nbagent.view.labels import Status
from nbagent.view.node import Node, h, line, text_of
from nbagent.view.picture import ROOT, head_row, page, row_node
from nbagent.view.words import as_text, cut, one_line, things, visible, with_texts

_MOST = 20_000
"""Characters of one text that are shown; the value itself has all."""
_MOST_BODY = 60_000
_MOST_TOGETHER = 250_000
_ALL = "Agent.dry_run(…).body"
_LONG_DATA = 200


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


class _Piece(NamedTuple):
    """The system prompt, a message, a tool or the body."""

    title: str
    size: str
    text: str
    note: str = ""
    """How much of it is not shown."""
    pictures: Sequence[Node] = ()


def _text(dry: DryRun) -> str:
    """For a terminal, a script, an export: head, then everything, piece by piece."""
    rows = _facts(dry)
    width = max(len(name) for name, _ in rows)
    lines = [f"dry run · {visible(dry.run.model)} · nothing was sent, nothing is kept"]
    lines += [f"{name:<{width}}  {value}" for name, value in rows]
    for piece in _pieces(dry):
        lines += ["", f"── {piece.title} · {piece.size}"]
        lines += [f"   {row}" for row in piece.text.splitlines()]
        lines += [f"   [{text_of(node)}]" for node in piece.pictures]
        lines += [f"   {piece.note}"] if piece.note else []
    return "\n".join(lines)


def _node(dry: DryRun) -> Node:
    """The same in folds, and the body of the request as it goes over the wire."""
    rows = [
        h("tr", "", h("th", "", name, scope="row"), h("td", "", value))
        for name, value in _facts(dry)
    ]
    status = Status("Dry run", "bad" if dry.key == "missing" else "waits", "○")
    head = head_row(status, dry.run.model, ["nothing was sent, nothing is kept"])
    body = json.dumps(with_texts(dry.body, _without_data), ensure_ascii=False, indent=2)
    shown, note = cut(visible(body), _MOST_BODY, has_all=_ALL)
    pieces = [*_pieces(dry), _Piece("body", f"{dry.body_bytes:,} bytes", shown, note)]
    return h("div", ROOT, head, h("div", "nba-wide", h("table", "", *rows)), *map(_fold, pieces))


def _fold(piece: _Piece) -> Node:
    words = row_node(piece.title, [one_line(piece.text, 100)], piece.size)
    inner = (h("pre", "", piece.text), line("nba-note", piece.note), *piece.pictures)
    return h("details", "nba-turn", h("summary", "", words), h("div", "nba-body", *inner))


def _without_data(text: str) -> str:
    """The start of an image or a file, and its size."""
    if len(text) <= _LONG_DATA or not re.match(r"data:.{0,90};base64,", text):
        return text
    return f"{text[:60]}… ({len(text):,} characters)"


def _facts(dry: DryRun) -> list[tuple[str, str]]:
    run, request = dry.run, dry.request
    key = {"sent": "with the key of the environment", "none": "without a key"}
    missing = f"NO KEY IS SET, so it would be refused: set {' or '.join(dry.key_variables)}"
    where = "no server: this model answers by itself, nothing leaves here"
    if dry.url:
        where = f"{visible(dry.url)}, {key.get(dry.key, missing)}"
    counted = f"{things(len(request.messages), 'message')}, {things(len(request.tools), 'tool')}"
    tokens = _size(request_chars(request), sum(map(_images, request.messages)))
    sent = {k: v for k, v in dry.body.items() if k not in ("messages", "tools", "system_prompt")}
    sent.setdefault("stream", dry.stream)
    options = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in sent.items())
    limits = run.limits.model_dump(exclude_none=True).items()
    rows = [
        ("to", where),
        ("size", f"{counted}, {tokens}; {dry.body_bytes:,} bytes in all"),
        ("parameters", visible(options)),
        ("limits", ", ".join(f"{name}={value}" for name, value in limits)),
        ("run", _kinship(dry)),
    ]
    if dry.dropped_params:
        refused = ", ".join(dry.dropped_params)
        rows.append(("left out", f"{refused}: this server refused it before"))
    return [*rows, *(("note", visible(notice)) for notice in run.notices)]


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
    for piece in _whole_pieces(dry.request):
        shown, note = cut(piece.text, min(room, _MOST), has_all=_ALL)
        room -= len(shown)
        yield piece._replace(text=shown, note=note, pictures=piece.pictures if room else ())


def _whole_pieces(request: ChatRequest) -> Iterator[_Piece]:
    if system := request.system_prompt:
        yield _Piece("system prompt", _size(len(system)), visible(system))
    for place, message in enumerate(request.messages, 1):
        name = f" {visible(message.name)}" if message.name else ""
        size = _size(message_chars(message), _images(message))
        pictures = [node for part in message.content for node in drawn((part,))[0]]
        text = "\n".join(_message_lines(message))
        yield _Piece(f"{place} {message.role}{name}", size, text, "", pictures)
    for tool in request.tools:
        text = f"{visible(tool.description)}\n{as_text(tool.parameters, enough=_MOST)}"
        yield _Piece(f"tool {visible(tool.name)}", _size(tools_chars((tool,))), text.strip())


def _message_lines(message: Message) -> Iterator[str]:
    if message.tool_call_id:
        yield f"[answers {visible(message.tool_call_id)}]"
    for part in message.content:
        data = "" if isinstance(part, TextPart) else part.data or ""
        if not drawn((part,))[0]:
            yield part_words(part) + (f", {len(data) * 3 // 4:,} bytes" if data else "")
    for call in message.tool_calls:
        yield f"→ {visible(call.name)}({visible(call.arguments_raw)})  [{visible(call.id)}]"


def _images(message: Message) -> int:
    return sum(isinstance(part, ImagePart) for part in message.content)


def _size(chars: int, images: int = 0) -> str:
    """The size in characters and images, and the tokens that they may be.

    Args:
        chars: as `engine.overflow` counts them, with a fixed number for each image.
        images: how many of them there are.
    """
    words = things(chars - images * IMAGE_CHARS, "character")
    words += f" and {things(images, 'image')}" if images else ""
    return f"{words} ≈ {things((chars + 3) // 4, 'token')} (estimate)"
