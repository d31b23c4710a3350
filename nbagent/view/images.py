"""Image parts → small pictures that a view may draw, and words for all that it may not.

Decides by the bytes, not by what they are called: PNG, JPEG, GIF and WebP of a bounded size.
Never SVG (it can run code and load), never an address (nothing remote loads by itself). A figure is
a picture of a tool with the number by which the model was told to name it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence

from nbagent.contracts.messages import FilePart, ImagePart, Part, TextPart
from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.view.markdown import words_of
from nbagent.view.node import Node, h
from nbagent.view.words import one_line, size, visible

_IMAGE_CHARS = 300_000
_MAX_PIXELS = 40_000_000
"""A few kB can unpack to gigabytes in the page."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def drawn(
    parts: Sequence[Part], *, most: int = 2, first: int = 0, below: Collection[int] = ()
) -> tuple[list[Node], list[str]]:
    """The pictures to draw, each with its caption, and a line for every other part.

    Args:
        parts: of a message or a tool result.
        most: pictures that are drawn.
        first: the number of the first part, where they are figures.
        below: numbers of figures that stand in the answer: their bytes are not repeated.
    """
    nodes: list[Node] = []
    unseen: list[str] = []
    for number, part in enumerate(parts, first):
        if first and number in below:
            nodes.append(h("div", "nba-note", f"figure {number} · in the answer below"))
        elif isinstance(part, ImagePart) and len(nodes) < most and _size(part):
            nodes.append(figure_node(part, number if first else 0))
        elif words := one_line(_in_a_line(part), 200):
            unseen.append(words)
    return nodes, unseen


def card_figures(run: ToolRun, below: Collection[int] = ()) -> tuple[list[Node], list[str]]:
    """What stands in a tool's card: its pictures, and a line for each other attachment."""
    attached = run.result.attachments if run.result else ()
    nodes, unseen = drawn(run.images, most=_FIGURES, first=run.first_figure, below=below)
    return nodes, unseen + drawn([it for it in attached if it not in run.images], most=0)[1]


def attached(run: RunRecord) -> list[Node]:
    """What came with the words of the person: pictures, and a line for each file."""
    asked = [it.content for it in run.messages if it.role == "user" and it.typed_text == run.prompt]
    parts = [it for it in [(), *asked][-1] if not isinstance(it, TextPart) or it.name]
    images, files = drawn(parts)
    return [*(h("div", "nba-note", words) for words in files), *images]


def _in_a_line(part: Part) -> str:
    if not isinstance(part, TextPart) or not part.name:
        return part_words(part)
    content = part.text.partition(":\n")[2].removesuffix("\n")
    return f"[file: {visible(part.name)}, {size(len(content))}]"


def part_words(part: Part) -> str:
    """A part of a message as text; images and files by name."""
    if isinstance(part, TextPart):
        return visible(part.text)
    if isinstance(part, FilePart):
        return f"[file: {visible(part.name)}, {visible(part.media_type)}]"
    return f"[image: {visible(part.alt or part.url or part.media_type)}]"


_FIGURES = 8
"""Of one card, and of one answer."""
_NAMED = re.compile(
    # As a tool's result names it, as an image of Markdown, and in plain words.
    r"\[figure (?P<a>\d{1,4})(?:: [^\[\]\n]{0,300})?\]"
    r"|!\[(?P<caption>[^\[\]\n]{0,300})\]\(<?figure[ _]?(?P<b>\d{1,4})>?\)"
    r"|\bfigure (?P<c>\d{1,4})\b",
    re.IGNORECASE,
)
_VERBATIM = ("code", "pre", "button")


def figures_of(run: RunRecord) -> dict[int, ImagePart]:
    """The pictures of the tools of a run, by the number that the model was told."""
    tools = (tool for turn in run.turns for tool in turn.tool_runs if tool.first_figure)
    return {n: image for tool in tools for n, image in enumerate(tool.images, tool.first_figure)}


def figure_node(image: ImagePart, number: int = 0, caption: str = "") -> Node:
    """A picture of a tool and a line below it: words alone where it cannot be drawn."""
    name = f"figure {number}" if number else ""
    size = _size(image)
    if not size:
        why = f"{len(image.data or '') * 3 // 4 // 1000:,} kB, not drawn here"
        return h("div", "nba-note", " · ".join(filter(None, (name, part_words(image), why))))
    own = visible(caption) or ("" if " px" in image.alt else visible(image.alt))
    # A figure that has words of its own is not described by its size, too.
    words = " · ".join(filter(None, (name, own, "" if name and own else size)))
    source = f"data:{image.media_type};base64,{image.data}"
    alt = " · ".join(filter(None, (name, own or size)))
    picture = h("img", "nba-img", alt=alt, src=source)
    return h("div", "nba-figure", picture, h("div", "nba-note", words))


def with_figures(
    nodes: Sequence[Node], figures: Mapping[int, ImagePart]
) -> tuple[list[Node], set[int]]:
    """The blocks of an answer, each figure below the block that names it first; which these are.

    A block that is only the name of a figure is replaced by the figure. Nothing is looked for in
    code.
    """
    made: list[Node] = []
    placed: set[int] = set()
    for block in nodes:
        prose = words_of([block], _VERBATIM)
        named = [found for found in _NAMED.finditer(prose) if _number(found) in figures]
        fresh = {_number(it): it["caption"] or "" for it in named if _number(it) not in placed}
        if len(placed) + len(fresh) > _FIGURES:
            fresh = {}
        is_name = len(named) == 1 and named[0][0] == prose.strip()
        if not (fresh and is_name):
            made.append(_without_marks(block, figures) if named else block)
        made += [figure_node(figures[n], n, caption) for n, caption in fresh.items()]
        placed |= fresh.keys()
    return made, placed


def _number(found: re.Match[str]) -> int:
    return int(found["a"] or found["b"] or found["c"])


def _without_marks(node: Node, figures: Mapping[int, ImagePart]) -> Node:
    """The node with `figure 1` for `[figure 1]`."""
    if isinstance(node, str):

        def plain(found: re.Match[str]) -> str:
            is_marked = found["c"] is None and _number(found) in figures
            return f"figure {_number(found)}" if is_marked else found[0]

        return _NAMED.sub(plain, node)
    if node[0] in _VERBATIM:
        return node
    return [*node[:2], *(_without_marks(child, figures) for child in node[2:])]


def _size(part: ImagePart) -> str:
    """`640 × 480 px, 12 kB` of an image that may be drawn; else empty."""
    data = part.data or ""
    if part.media_type not in _MEDIA_TYPES or len(data) > _IMAGE_CHARS:
        return ""
    if _BASE64.fullmatch(data) is None:
        return ""
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        return ""
    size = _SIZES[part.media_type](content)
    if size is None or not 0 < size[0] * size[1] <= _MAX_PIXELS:
        return ""
    return f"{size[0]} × {size[1]} px, {max(1, round(len(content) / 1000)):,} kB"


def _png(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR":
        return None
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _gif(content: bytes) -> tuple[int, int] | None:
    if content[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")


def _jpeg(content: bytes) -> tuple[int, int] | None:
    """The size in the frame header, the first of the segments SOF0–SOF15."""
    if not content.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        kind = content[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            return int.from_bytes(content[at + 7 : at + 9], "big"), height
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _webp(content: bytes) -> tuple[int, int] | None:
    """The size in the first chunk: lossy (`VP8 `), lossless (`VP8L`) or extended (`VP8X`)."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:
        return None
    kind = content[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(content[24:27], "little") + 1
        return width, int.from_bytes(content[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width = int.from_bytes(content[26:28], "little") & 0x3FFF
        return width, int.from_bytes(content[28:30], "little") & 0x3FFF
    return None


_SIZES = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
