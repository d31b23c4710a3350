"""How a dry run looks: as plain text, and as HTML without a script in the style of the run view.

Knows no IPython, so that a script can print one. What would be sent is worked out in
`session.active`; here nothing is decided. Text is text: all of it is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from nbagent.contracts.chat import ImagePart, Message, Part, TextPart, ToolSpec
from nbagent.engine.overflow import IMAGE_CHARS, message_chars, request_chars, tools_chars
from nbagent.providers.registry import find_provider
from nbagent.session.active import DryRun
from nbagent.view.images import part_words, pictures_of
from nbagent.view.static_html import escape, style
from nbagent.view.view_types import ImageView
from nbagent.view.words import as_text, cut, one_line, visible

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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A message, a tool or the body, ready to be written down."""

    title: str
    facts: str
    text: str
    note: str = ""
    pictures: Sequence[ImageView] = ()
    gist: str = ""
    """Its first words, for the line that unfolds it."""


def bundle(dry: DryRun) -> dict[str, str]:
    """The display bundle."""
    return {"text/html": html(dry), "text/plain": text(dry)}


def text(dry: DryRun) -> str:
    """For a terminal, a script, an export: header, then everything, piece by piece."""
    rows = _facts(dry)
    width = max(len(name) for name, _ in rows)
    lines = [f"dry run · {visible(dry.run.model)} · nothing was sent, nothing is kept"]
    lines += [f"{name:<{width}}  {value}" for name, value in rows]
    for piece in _pieces(dry):
        lines += ["", f"── {piece.title} · {piece.facts}"]
        lines += [f"   {line}" for line in piece.text.splitlines()]
        lines += [f"   [{p['alt']}, {p['size']}]" for p in piece.pictures]
        lines += [f"   {piece.note}"] if piece.note else []
    return "\n".join(lines)


def html(dry: DryRun) -> str:
    """The same as nested `<details>`, and the body of the request as it goes over the wire."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _facts(dry)
    )
    tone = "bad" if dry.key == "missing" else "waits"
    pieces = [
        f"<style>{style()}</style>",
        # Nothing in it is TeX, see static_html.
        '<div class="nba-run nba-dry mathjax_ignore tex2jax_ignore">',
        f'<div class="nba-head"><span class="nba-mark nba-{tone}" aria-hidden="true">○</span> '
        f'<strong class="nba-phase">Dry run</strong> '
        f'<code class="nba-chip">{escape(visible(dry.run.model))}</code> '
        '<span class="nba-facts">nothing was sent, nothing is kept</span></div>',
        f'<div class="nba-offline"><table>{rows}</table></div>',
        *(_details(piece) for piece in (*_pieces(dry), _body(dry))),
        "</div>",
    ]
    return "\n".join(pieces)


def _details(piece: _Piece) -> str:
    images = "".join(
        f'<img alt="{escape(p["alt"])}" src="data:{p["media_type"]};base64,{p["data"]}">'
        f'<div class="nba-note">{escape(p["alt"])} · {escape(p["size"])}</div>'
        for p in piece.pictures
    )
    note = f'<div class="nba-note">{escape(piece.note)}</div>' if piece.note else ""
    return (
        f'<details class="nba-turn"><summary><code class="nba-id">{escape(piece.title)}</code> '
        f'<span class="nba-sum">{escape(piece.gist)}</span> '
        f'<span class="nba-num">{escape(piece.facts)}</span></summary>'
        f'<div class="nba-body"><pre>{escape(piece.text)}</pre>{note}{images}</div></details>'
    )


def _facts(dry: DryRun) -> list[tuple[str, str]]:
    counted = f"{_n(len(dry.request.messages), 'message')}, {_n(len(dry.request.tools), 'tool')}"
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
    variables = find_provider(dry.run.model.partition(":")[0]).key_variables
    return f"{_KEYS[dry.key]} {' or '.join(variables)}"


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
    earlier = _n(dry.run.shared_messages, "message")
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
    pictures: list[ImageView] = []
    for part in message.content:
        drawn, _ = pictures_of((part,))
        pictures += drawn
        texts += [] if drawn else [_words(part)]
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
    return _Piece("body", f"{dry.body_bytes:,} bytes", shown, note, gist="the request as JSON")


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


def _piece(title: str, facts: str, said: str, pictures: Sequence[ImageView] = ()) -> _Piece:
    shown, note = cut(said, _MOST, has_all=_ALL)
    return _Piece(title, facts, shown, note, pictures, gist=one_line(said, 100))


def _sizes(chars: int, images: int = 0) -> str:
    """The size in characters and images, and the tokens that they may be.

    Args:
        chars: as `engine.overflow` counts them, with a fixed number for each image.
        images: how many of them there are.
    """
    words = _n(chars - images * IMAGE_CHARS, "character")
    words += f" and {_n(images, 'image')}" if images else ""
    return f"{words} ≈ {_n((chars + 3) // 4, 'token')} (estimate)"


def _n(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"
