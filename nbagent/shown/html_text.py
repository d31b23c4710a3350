"""The text of an HTML fragment: tables as rows, links with their addresses, no scripts and styles.

For a model only: the text is not safe to be put into a page.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from nbagent.shown.texts import OMITTED

_MAX_CHARS = 100_000
"""Most characters of HTML that are parsed."""
_MAX_ADDRESS_CHARS = 200
_SKIPPED = frozenset({"script", "style", "template", "title"})
_LINES = frozenset(
    {
        *("p", "div", "section", "article", "header", "footer", "main", "nav", "ul", "ol", "dl"),
        *("dt", "dd", "table", "thead", "tbody", "tfoot", "caption", "blockquote", "figure"),
        *("figcaption", "h1", "h2", "h3", "h4", "h5", "h6", "form", "fieldset", "details"),
        *("summary", "hr", "br", "pre"),
    }
)
"""Elements that begin and end a line."""
_MEDIA = frozenset({"img", "audio", "video", "iframe", "embed", "object", "svg", "canvas"})
_SPACES = re.compile(r"[^\S\n]+")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def html_text(html: str) -> str:
    """Return the readable text of an HTML fragment; it says so if there is none."""
    parser = _Reader()
    # The parser takes quadratic time for tags and comments that have no end.
    ended, end, rest = _COMMENT.sub("", html[:_MAX_CHARS]).rpartition(">")
    parser.feed(ended + end + rest.replace("<", "&lt;"))
    parser.close()
    text = parser.text().strip()
    if (missing := len(html) - _MAX_CHARS) > 0:
        text += f"\n… [{missing:,} of {len(html):,} characters of HTML{OMITTED}]"
    return text or "[HTML without text]"


class _Reader(HTMLParser):
    """Collects the texts of a fragment."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._skipped_tag = ""
        self._n_preformatted = 0
        self._row: list[list[str]] | None = None
        """Pieces of the cells of the open table row."""
        self._links: list[tuple[str, int]] = []
        """Addresses of the open links, and how many pieces there were before them."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped_tag:
            return
        if tag in _SKIPPED:
            self._skipped_tag = tag
        elif tag in _MEDIA:
            self._add(_media_text(tag, dict(attrs)))
            self._skipped_tag = tag if tag == "svg" else ""
        elif tag == "tr":
            self._end_row()
            self._break_line()
            self._row = []
        elif tag in ("td", "th") and self._row is not None:
            self._row.append([])
        elif tag == "li":
            self._break_line()
            self._add("- ")
        elif tag == "a":
            self._links.append((_address(dict(attrs).get("href")), len(self._target())))
        elif tag in _LINES:
            self._break_line()
            self._n_preformatted += tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag in _SKIPPED | {"svg", "pre", "a"}:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipped_tag:
            self._skipped_tag = "" if tag == self._skipped_tag else self._skipped_tag
        elif tag in ("tr", "table"):
            self._end_row()
            self._break_line()
        elif tag == "a" and self._links:
            address, start = self._links.pop()
            label = "".join(self._target()[start:])
            self._add(f" ({address})" if address and address not in label else "")
        elif tag in _LINES or tag == "li":
            self._break_line()
            self._n_preformatted = max(self._n_preformatted - (tag == "pre"), 0)

    def handle_data(self, data: str) -> None:
        if self._skipped_tag:
            return
        if not self._n_preformatted:
            data = _SPACES.sub(" ", data.replace("\n", " "))
            pieces = self._target()
            if data == " " and (not pieces or pieces[-1].endswith("\n")):
                return  # the indentation of the source
        self._add(data)

    def text(self) -> str:
        """Return the text of the whole fragment."""
        self._end_row()
        lines = "".join(self._pieces).split("\n")
        return "\n".join(line if self._n_preformatted else line.rstrip() for line in lines)

    def _target(self) -> list[str]:
        return self._row[-1] if self._row else self._pieces

    def _add(self, text: str) -> None:
        self._target().append(text)

    def _break_line(self) -> None:
        pieces = self._target()
        if pieces and not pieces[-1].endswith("\n"):
            pieces.append("\n")

    def _end_row(self) -> None:
        cells, self._row = self._row, None
        if cells:
            texts = (" ".join("".join(cell).split()) for cell in cells)
            self._break_line()
            self._add(f"| {' | '.join(text.replace('|', '/') for text in texts)} |")


def _media_text(tag: str, attributes: dict[str, str | None]) -> str:
    word = {"img": "image", "svg": "drawing", "canvas": "drawing"}.get(tag, tag)
    about = attributes.get("alt") or attributes.get("title") or _address(attributes.get("src"))
    return f"[{word}: {about}]" if about else f"[{word}]"


def _address(url: str | None) -> str:
    """Return an address that a model can use; empty for data in an address, and within a page."""
    is_usable = url and not url.startswith(("data:", "javascript:", "#", "blob:"))
    return url if url and is_usable and len(url) <= _MAX_ADDRESS_CHARS else ""
