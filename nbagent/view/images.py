"""Image parts → small pictures, or a line of text for a part that must not be drawn.

The bytes decide, not the media type: PNG, JPEG, GIF and WebP of a bounded size. Never SVG (it can
run code and load files), never an address (opening a notebook must not contact a server). A figure
is an image of a tool with the number by which the model refers to it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence

from nbagent.contracts.messages import FilePart, ImagePart, Part, TextPart
from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.shown.image_files import IMAGE_TYPES, pixel_size
from nbagent.view.markdown import prose_text
from nbagent.view.node import Node, h
from nbagent.view.text_format import format_size, one_line, sanitize_value

_IMAGE_CHARS = 300_000
"""In base64: the images of tools that `notebook.capture` keeps (220,000 bytes) are below it."""
_ANSWER_IMAGE_CHARS = 4_000_000
"""In base64: an image of an answer, which is what the person asked for. Models make 1–3 MB."""
_MAX_PIXELS = 40_000_000
"""A few kB of a compressed image can unpack to gigabytes in the page."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def render_parts(
    parts: Sequence[Part],
    *,
    max_images: int = 2,
    first_number: int = 0,
    answer_figures: Collection[int] = (),
) -> tuple[list[Node], list[str]]:
    """Return the pictures to draw, each with its caption, and a line for every other part.

    Args:
        parts: parts of a message or a tool result.
        max_images: number of pictures to draw.
        first_number: figure number of the first part; 0 if the parts are not figures.
        answer_figures: numbers of figures in the answer; their bytes are not repeated.
    """
    nodes: list[Node] = []
    other_lines: list[str] = []
    for number, part in enumerate(parts, first_number):
        if first_number and number in answer_figures:
            nodes.append(h("div", "nba-note", f"figure {number} · in the answer below"))
        elif isinstance(part, ImagePart) and len(nodes) < max_images and _image_size(part):
            nodes.append(figure_node(part, number if first_number else 0))
        elif text := one_line(_part_line(part), 200):
            other_lines.append(text)
    return nodes, other_lines


def card_figures(
    run: ToolRun, answer_figures: Collection[int] = ()
) -> tuple[list[Node], list[str]]:
    """Pictures of a tool's card, and a line for each other attachment."""
    attachments = run.result.attachments if run.result else ()
    nodes, other_lines = render_parts(
        run.images,
        max_images=_MAX_FIGURES,
        first_number=run.first_figure,
        answer_figures=answer_figures,
    )
    return nodes, other_lines + render_parts(
        [part for part in attachments if part not in run.images], max_images=0
    )[1]


def prompt_attachments(run: RunRecord) -> list[Node]:
    """Attachments of the prompt: pictures, and a line for each file."""
    contents = [
        message.content
        for message in run.messages
        if message.role == "user" and message.typed_text == run.prompt
    ]
    parts = [part for part in [(), *contents][-1] if not isinstance(part, TextPart) or part.name]
    images, files = render_parts(parts)
    return [*(h("div", "nba-note", text) for text in files), *images]


def _part_line(part: Part) -> str:
    if not isinstance(part, TextPart) or not part.name:
        return part_text(part)
    content = part.text.partition(":\n")[2].removesuffix("\n")
    return f"[file: {sanitize_value(part.name)}, {format_size(len(content))}]"


def part_text(part: Part) -> str:
    """Return a part of a message as text; images and files by name."""
    if isinstance(part, TextPart):
        return sanitize_value(part.text)
    if isinstance(part, FilePart):
        return f"[file: {sanitize_value(part.name)}, {sanitize_value(part.media_type)}]"
    return f"[image: {sanitize_value(part.alt or part.url or part.media_type)}]"


_MAX_FIGURES = 8
"""Figures of one card, and of one answer."""
_FIGURE_REFERENCE = re.compile(
    # `[figure 1: caption]` as in tool results, a Markdown image, and plain "figure 1".
    r"\[figure (?P<a>\d{1,4})(?:: [^\[\]\n]{0,300})?\]"
    r"|!\[(?P<caption>[^\[\]\n]{0,300})\]\(<?figure[ _]?(?P<b>\d{1,4})>?\)"
    r"|\bfigure (?P<c>\d{1,4})\b",
    re.IGNORECASE,
)
_VERBATIM = ("code", "pre", "button")


def figures_of(run: RunRecord) -> dict[int, ImagePart]:
    """Images of a run's tools by their figure number."""
    tools = (tool for turn in run.turns for tool in turn.tool_runs if tool.first_figure)
    return {n: image for tool in tools for n, image in enumerate(tool.images, tool.first_figure)}


def answer_image_node(image: ImagePart) -> Node:
    """Draw an image of the model's answer; only a line if it must not be drawn."""
    if image.data and not _image_size(image, _ANSWER_IMAGE_CHARS):
        return h("div", "nba-note", f"{image_line(image)} not drawn here; run.images has it")
    return figure_node(image, max_chars=_ANSWER_IMAGE_CHARS)


def image_line(image: ImagePart) -> str:
    """`[image: PNG picture, 640×480 px · 12 kB]`, where nothing can be drawn."""
    size = "" if image.url else f" · {format_size(len(image.content))}"
    return one_line(f"{part_text(image)[:-1]}{size}]", 200)


def figure_node(
    image: ImagePart, number: int = 0, caption: str = "", *, max_chars: int = _IMAGE_CHARS
) -> Node:
    """Draw an image with a line below it; only the line if it must not be drawn."""
    name = f"figure {number}" if number else ""
    size = _image_size(image, max_chars)
    if image.url and not image.data:
        return h(
            "div", "nba-note", " · ".join(filter(None, (name, part_text(image), "not loaded")))
        )
    if not size:
        why = f"{len(image.data or '') * 3 // 4 // 1000:,} kB, not drawn here"
        return h("div", "nba-note", " · ".join(filter(None, (name, part_text(image), why))))
    own = sanitize_value(caption) or ("" if " px" in image.alt else sanitize_value(image.alt))
    # A caption makes the size needless.
    note = " · ".join(filter(None, (name, own, "" if name and own else size)))
    source = f"data:{image.media_type};base64,{image.data}"
    alt = " · ".join(filter(None, (name, own or size)))
    picture = h("img", "nba-img", alt=alt, src=source)
    return h("div", "nba-figure", picture, h("div", "nba-note", note))


def insert_figures(
    nodes: Sequence[Node], figures: Mapping[int, ImagePart]
) -> tuple[list[Node], set[int]]:
    """Insert each figure below the block of an answer that names it first.

    A block that is only the name of a figure is replaced by it. Code is not searched.

    Returns:
        The blocks, and the numbers of the inserted figures.
    """
    blocks: list[Node] = []
    placed: set[int] = set()
    for block in nodes:
        prose = prose_text([block], _VERBATIM)
        references = [
            match for match in _FIGURE_REFERENCE.finditer(prose) if _figure_number(match) in figures
        ]
        captions = {
            _figure_number(match): match["caption"] or ""
            for match in references
            if _figure_number(match) not in placed
        }
        if len(placed) + len(captions) > _MAX_FIGURES:
            captions = {}  # the cards of the tools still show these figures
        is_name = len(references) == 1 and references[0][0] == prose.strip()
        if not (captions and is_name):
            blocks.append(_plain_references(block, figures) if references else block)
        blocks += [figure_node(figures[n], n, caption) for n, caption in captions.items()]
        placed |= captions.keys()
    return blocks, placed


def _figure_number(match: re.Match[str]) -> int:
    return int(match["a"] or match["b"] or match["c"])


def _plain_references(node: Node, figures: Mapping[int, ImagePart]) -> Node:
    """Replace `[figure 1]` by `figure 1` in a node."""
    if isinstance(node, str):

        def plain(match: re.Match[str]) -> str:
            is_marked = match["c"] is None and _figure_number(match) in figures
            return f"figure {_figure_number(match)}" if is_marked else match[0]

        return _FIGURE_REFERENCE.sub(plain, node)
    if node[0] in _VERBATIM:
        return node
    return [*node[:2], *(_plain_references(child, figures) for child in node[2:])]


def _image_size(part: ImagePart, max_chars: int = _IMAGE_CHARS) -> str:
    """Return `640 × 480 px, 12 kB` for an image that may be drawn; else an empty text."""
    data = part.data or ""
    if part.media_type not in IMAGE_TYPES or len(data) > max_chars:
        return ""
    if _BASE64.fullmatch(data) is None:
        return ""
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        return ""
    size = pixel_size(part.media_type, content)
    if size is None or not 0 < size[0] * size[1] <= _MAX_PIXELS:
        return ""
    return f"{size[0]} × {size[1]} px, {max(1, round(len(content) / 1000)):,} kB"
