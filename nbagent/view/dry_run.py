"""A dry run: the first request of a run, as a value, as text and as nodes.

`session.dry_run` builds the request; nothing is decided here.
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
from nbagent.view.images import part_text, render_parts
from nbagent.view.node import Node, h, line
from nbagent.view.printers import plain_text
from nbagent.view.run_picture import ROOT_CLASS, head_row, page
from nbagent.view.run_status import Status
from nbagent.view.text_format import (
    map_strings,
    one_line,
    pluralize,
    sanitize_value,
    truncate,
    value_text,
)
from nbagent.view.turn_picture import summary_row

_MAX_TEXT_CHARS = 20_000
"""Shown characters of one text; the value itself has all."""
_MAX_BODY_CHARS = 60_000
_MAX_TOTAL_CHARS = 250_000
_BODY_EXPRESSION = "Agent.dry_run(…).body"
_MAX_DATA_URL_CHARS = 200
_BASE64 = re.compile(r"data:.{0,90};base64,|[A-Za-z0-9+/_-]+={0,2}$")
_CONVERSATION = frozenset(
    {
        *("messages", "contents", "input", "tools"),
        *("system", "system_prompt", "systemInstruction", "instructions"),
    }
)
"""Fields of the wires that the sections show; they are no parameters."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """The first request of a run. Keys and values of `extra_body` are hidden."""

    run: RunRecord
    """The run as it would start: model, session, limits, parent and notices."""
    request: ChatRequest
    """System prompt, messages, tools and parameters as passed to the client."""
    body: dict[str, Any]
    """JSON of the request on the wire; the request itself for a model without a wire."""
    body_bytes: int
    url: str | None
    """Address of the server; None for a model without a wire."""
    key: Literal["sent", "function", "none", "missing"]
    """Whether a key is sent, or asked of a function for each request; `missing` if the server
    requires one and none is set."""
    key_variables: tuple[str, ...]
    """Environment variables that may hold the provider's key."""
    withheld_key: str
    """Why a key of the environment is not sent to this server, and how to send it."""
    dropped_params: tuple[str, ...]
    """Parameters that are left out because the server refused them before."""
    stream: bool
    turn_id: str

    def __repr__(self) -> str:
        counts = f"{len(self.request.messages)} messages, {len(self.request.tools)} tools"
        return f"<DryRun {self.run.model}, {counts}, {self.body_bytes:,} bytes>"

    def __str__(self) -> str:
        return _text(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": page(_node(self)), "text/plain": _text(self)}


class _Section(NamedTuple):
    """The system prompt, a message, a tool or the body."""

    title: str
    size: str
    text: str
    note: str = ""
    """How much of the text is not shown, and where all of it is."""
    pictures: Sequence[Node] = ()


def _text(dry: DryRun) -> str:
    """Print the dry run: facts, then each section. For terminals, scripts and exports."""
    head, facts, *sections = _nodes(dry)
    pieces = [plain_text(h("div", "", head, facts))]
    # Without the start of each text, which follows whole.
    pieces += [plain_text(piece, unfold=True, omitted={"nba-sum"}) for piece in sections]
    return "\n\n".join(pieces)


def _node(dry: DryRun) -> Node:
    """Draw the dry run: facts, a fold for each section, and the body of the request."""
    body = json.dumps(map_strings(dry.body, _without_base64), ensure_ascii=False, indent=2)
    shown, note = truncate(sanitize_value(body), _MAX_BODY_CHARS, has_all=_BODY_EXPRESSION)
    section = _Section("body", f"{dry.body_bytes:,} bytes", shown, note)
    return h("div", ROOT_CLASS, *_nodes(dry), _section_node(section))


def _nodes(dry: DryRun) -> list[Node]:
    """Draw the head, the facts, and a fold for each section."""
    rows = [
        h("tr", "", h("th", "", name, scope="row"), h("td", "", value))
        for name, value in _facts(dry)
    ]
    status = Status("Dry run", "bad" if dry.key == "missing" else "waits", "○")
    head = head_row(status, dry.run.model, ["nothing was sent or stored"])
    facts = h("div", "nba-wide", h("table", "", *rows))
    return [head, facts, *map(_section_node, _sections(dry))]


def _section_node(piece: _Section) -> Node:
    summary = summary_row(piece.title, [one_line(piece.text, 100)], piece.size)
    inner = (h("pre", "", piece.text), line("nba-note", piece.note), *piece.pictures)
    return h("details", "nba-turn", h("summary", "", summary), h("div", "nba-body", *inner))


def _without_base64(text: str) -> str:
    """Shorten base64, also in a data URL, to its start and its size; other texts stay."""
    if len(text) <= _MAX_DATA_URL_CHARS or not _BASE64.match(text):
        return text
    return f"{text[:60]}… ({len(text):,} characters)"


def _facts(dry: DryRun) -> list[tuple[str, str]]:
    run, request = dry.run, dry.request
    key = {
        "sent": "with the key of the environment",
        "function": "with the key that a function returns",
        "none": f"without a key: {dry.withheld_key}".removesuffix(": "),
    }
    missing = f"NO KEY IS SET, so the server would refuse it: set {' or '.join(dry.key_variables)}"
    address = "no server: this model answers inside this process"
    if dry.url:
        address = f"{sanitize_value(dry.url)}, {key.get(dry.key, missing)}"
    counts = (
        f"{pluralize(len(request.messages), 'message')}, {pluralize(len(request.tools), 'tool')}"
    )
    tokens = _size_text(request_chars(request), sum(map(_n_images, request.messages)))
    sent = {k: v for k, v in dry.body.items() if k not in _CONVERSATION}
    # Gemini's body does not say it: its address asks for a stream.
    sent.setdefault("stream", dry.stream)
    sent = map_strings(sent, _without_base64)
    params = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in sent.items())
    limits = run.limits.model_dump(exclude_none=True).items()
    rows = [
        ("to", address),
        ("size", f"{counts}, {tokens}; {dry.body_bytes:,} bytes in all"),
        ("parameters", sanitize_value(params)),
        ("limits", ", ".join(f"{name}={value}" for name, value in limits)),
        ("run", _parent_text(dry)),
    ]
    if dry.dropped_params:
        refused = ", ".join(dry.dropped_params)
        rows.append(("left out", f"{refused}: this server refused it before"))
    return [*rows, *(("note", sanitize_value(notice)) for notice in run.notices)]


def _parent_text(dry: DryRun) -> str:
    turn = f"turn {dry.turn_id} in session {sanitize_value(dry.run.session)!r}"
    if dry.run.parent_id is None:
        return f"a new conversation: {turn}"
    verb = {"fork": "forks", "resume": "resumes"}.get(dry.run.kind, "continues")
    earlier = pluralize(dry.run.shared_messages, "message")
    return f"{verb} run {dry.run.parent_id[:8]} ({earlier} of it): {turn}"


def _sections(dry: DryRun) -> Iterator[_Section]:
    """Sections of the request within the budget of an output; a full one keeps the titles."""
    room = _MAX_TOTAL_CHARS
    for piece in _request_sections(dry.request):
        shown, note = truncate(piece.text, min(room, _MAX_TEXT_CHARS), has_all=_BODY_EXPRESSION)
        room -= len(shown)
        yield piece._replace(text=shown, note=note, pictures=piece.pictures if room else ())


def _request_sections(request: ChatRequest) -> Iterator[_Section]:
    if system := request.system_prompt:
        yield _Section("system prompt", _size_text(len(system)), sanitize_value(system))
    for number, message in enumerate(request.messages, 1):
        name = f" {sanitize_value(message.name)}" if message.name else ""
        size = _size_text(message_chars(message), _n_images(message))
        pictures = [node for part in message.content for node in render_parts((part,))[0]]
        text = "\n".join(_message_lines(message))
        yield _Section(f"{number} {message.role}{name}", size, text, "", pictures)
    for tool in request.tools:
        parameters = value_text(tool.parameters, enough=_MAX_TEXT_CHARS)
        text = f"{sanitize_value(tool.description)}\n{parameters}"
        yield _Section(
            f"tool {sanitize_value(tool.name)}", _size_text(tools_chars((tool,))), text.strip()
        )


def _message_lines(message: Message) -> Iterator[str]:
    if message.tool_call_id:
        yield f"[answers {sanitize_value(message.tool_call_id)}]"
    for part in message.content:
        data = "" if isinstance(part, TextPart) else part.data or ""
        if not render_parts((part,))[0]:
            yield part_text(part) + (f", {len(data) * 3 // 4:,} bytes" if data else "")
    for call in message.tool_calls:
        name, arguments = sanitize_value(call.name), sanitize_value(call.arguments_raw)
        yield f"→ {name}({arguments})  [{sanitize_value(call.id)}]"


def _n_images(message: Message) -> int:
    return sum(isinstance(part, ImagePart) for part in message.content)


def _size_text(chars: int, images: int = 0) -> str:
    """Return the size in characters and images, and the estimated tokens.

    Args:
        chars: as `engine.overflow` counts them, with a fixed number for each image.
        images: how many of them there are.
    """
    text = pluralize(chars - images * IMAGE_CHARS, "character")
    text += f" and {pluralize(images, 'image')}" if images else ""
    return f"{text} ≈ {pluralize((chars + 3) // 4, 'token')} (estimate)"
