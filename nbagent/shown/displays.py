"""Objects that know how to show themselves in a notebook, and functions, classes and errors.

Takes their pictures, Markdown and the text of their HTML; nothing is loaded and no SVG is drawn.
Asks only what the class itself defines: an instance may pretend to have everything.
"""

from __future__ import annotations

import base64
import inspect
import types
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, cast

from nbagent.contracts.chat import ImagePart
from nbagent.shown.pictures import encoded_image
from nbagent.shown.texts import BROKEN, clean, cut_middle, said, without_folders

_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/markdown": "_repr_markdown_",
    "text/html": "_repr_html_",
    "text/latex": "_repr_latex_",
}
_HTML_CHARS = 200_000
"""Of a value's HTML that is read for its text."""


def display_of(value: Any) -> ImagePart | str | None:
    """The value's own display as an image or a text; None when its class defines none."""
    kind = cast("type[Any]", type(value))
    own = {name for parent in kind.__mro__ for name in vars(parent)}
    forms: dict[str, Any] = {
        media_type: _asked(value, kind, name)
        for media_type, name in _METHODS.items()
        if name in own
    }
    if "_repr_mimebundle_" in own:
        # It wins, as in a notebook.
        bundle = _asked(value, kind, "_repr_mimebundle_", include=None, exclude=None)
        forms |= cast("dict[str, Any]", bundle) if isinstance(bundle, Mapping) else {}
    for media_type in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        if (image := encoded_image(_bytes(forms.get(media_type)))) is not None:
            return image
    for media_type in ("text/markdown", "text/plain", "text/html", "text/latex"):
        text = forms.get(media_type)
        if not isinstance(text, str) or (media_type == "text/plain" and _says_nothing(text)):
            continue
        if text := html_text(text) if media_type == "text/html" else clean(text):
            return text
    return None


def _asked(value: Any, kind: type, name: str, **how: Any) -> Any:
    try:
        form: Any = getattr(kind, name)(value, **how)
    except BROKEN:
        return None
    # A form may come with its metadata beside it.
    return cast("Any", form)[0] if isinstance(form, tuple) and form else cast("Any", form)


def _bytes(form: object) -> bytes:
    try:
        return base64.b64decode(form) if isinstance(form, str) else cast("bytes", form or b"")
    except ValueError:
        return b""


def _says_nothing(text: str) -> bool:
    """Whether it is the kind of repr that names only the class: `<IPython…HTML object>`."""
    return text.startswith("<") and text.rstrip().endswith(">") and "\n" not in text


class _Words(HTMLParser):
    """Collects what a person reads: cells apart, blocks on lines of their own, no scripts."""

    _SILENT = frozenset({"script", "style", "head", "template", "svg", "noscript"})
    _WITHIN_A_LINE = frozenset(
        {"a", "abbr", "b", "code", "em", "font", "i", "mark", "small", "span", "strong", "sub"}
        | {"sup", "u"}
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT:
            self._silent += 1
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        elif tag == "img":
            given = dict(attrs)
            source = given.get("src") or ""
            name = given.get("alt") or ("inline" if source.startswith("data:") else source)
            self.pieces.append(f"[image: {name}, not sent]")
        elif tag not in self._WITHIN_A_LINE:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT:
            self._silent = max(self._silent - 1, 0)
        elif tag not in self._WITHIN_A_LINE | {"td", "th"}:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(data)


def html_text(html: str) -> str:
    """What a person reads of HTML."""
    words = _Words()
    words.feed(cut_middle(clean(html), _HTML_CHARS))
    words.close()
    lines = (
        " ".join(line.split()).removeprefix("| ") for line in "".join(words.pieces).split("\n")
    )
    return "\n".join(line for line in lines if line)


def described(value: Any) -> str | None:
    """Words for an error, a function, a class or a module; None for any other value."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, BaseException):
        text = "; ".join(map(said, (value, *getattr(value, "exceptions", ())[:5])))
    elif issubclass(kind, types.ModuleType):
        text = f"module {value.__name__}"
    elif issubclass(kind, type):
        text = f"class {_head(value)}"
    elif issubclass(kind, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        text = f"function {_head(value)}"
    else:
        return None
    return without_folders(clean(text))


def _head(thing: Any) -> str:
    """Name, signature and the first line of the docstring."""
    name = getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "?")
    try:
        signature = str(inspect.signature(thing))
    except BROKEN:
        signature = "(…)"
    # A class without a docstring inherits one that is about another.
    own = not isinstance(thing, type) or vars(thing).get("__doc__")
    doc = ((inspect.getdoc(thing) if own else "") or "").strip().split("\n")[0]
    return f"{name}{cut_middle(signature, 500)}" + (f": {cut_middle(doc, 300)}" if doc else "")
