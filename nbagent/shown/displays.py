"""Objects that know how to show themselves in a notebook, and things of Python: functions, errors.

Takes their pictures, Markdown and the text of their HTML; nothing is loaded and no SVG is drawn.
Asks only what the class itself defines: an instance may pretend to have everything.
"""

from __future__ import annotations

import base64
import inspect
import types
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any, cast

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ImagePart
from nbagent.shown.budgets import BUDGET_CHARS
from nbagent.shown.pictures import encoded_image
from nbagent.shown.texts import (
    BROKEN,
    clean,
    cut_middle,
    kind_name,
    said,
    without_folders,
)

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "text/html": "_repr_html_",
    "application/json": "_repr_json_",
    "image/svg+xml": "_repr_svg_",
}
_HTML_CHARS = 200_000
"""Of a value's HTML that is read for its text."""
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_WAITING = (types.CoroutineType, types.AsyncGeneratorType)


def display_of(value: Any) -> ImagePart | str | None:
    """The value's own display as an image or a text; None when its class defines none."""
    kind = cast("type[Any]", type(value))
    if not any(name in vars(c) for c in kind.__mro__ for name in _OWN):
        return None
    forms = _forms(value, kind)
    for media_type in _IMAGE_TYPES:
        data = _bytes(forms.get(media_type))
        image = None if data is None else encoded_image(data)
        if image is not None:
            return image
    for media_type in ("text/markdown", "text/plain"):
        text = forms.get(media_type)
        if isinstance(text, str) and text and not _says_nothing(text):
            return clean(text)
    html = forms.get("text/html")
    if isinstance(html, str) and (text := html_text(html)):
        return text
    latex = forms.get("text/latex")
    if isinstance(latex, str) and latex:
        return clean(latex)
    if "application/json" in forms:
        try:
            return dump_json(forms["application/json"]).decode()
        except BROKEN:
            return None
    svg = forms.get("image/svg+xml")
    return None if svg is None else f"[{kind_name(value)}: an SVG picture, which is not sent]"


_OWN = ("_repr_mimebundle_", *_METHODS.values())


def _forms(value: Any, kind: type) -> dict[str, Any]:
    """What the value gives by media type; the bundle wins, as in a notebook."""
    forms: dict[str, Any] = {}
    for media_type, name in _METHODS.items():
        if (form := _asked(value, kind, name)) is not None:
            forms[media_type] = form
    bundle = _asked(value, kind, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(bundle, Mapping):
        forms.update(cast("dict[str, Any]", bundle))
    return forms


def _asked(value: Any, kind: type, name: str, **how: Any) -> Any:
    method = getattr(kind, name, None)
    if method is None:
        return None
    try:
        form = cast("object", method(value, **how))
    except BROKEN:
        return None
    # A form may come with its metadata beside it.
    if isinstance(form, tuple) and form:
        return cast("tuple[Any, ...]", form)[0]
    return cast("Any", form)


def _bytes(form: object) -> bytes | None:
    if isinstance(form, bytes):
        return form
    if not isinstance(form, str):
        return None
    try:
        return base64.b64decode(form)
    except ValueError:
        return None


def _says_nothing(text: str) -> bool:
    """Whether it is the kind of repr that names only the class: `<IPython…HTML object>`."""
    return text.startswith("<") and text.rstrip().endswith(">") and "\n" not in text


class _Words(HTMLParser):
    """Collects what a person reads: cells apart, blocks on lines of their own, no scripts."""

    _SILENT = frozenset(
        {"script", "style", "head", "template", "svg", "noscript", "audio", "video"}
    )
    _BLOCKS = frozenset(
        (
            *("address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl"),
            *("dt", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
            *("header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tbody"),
            *("thead", "tr", "ul"),
        )
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
            told = dict(attrs)
            source = told.get("src") or ""
            named = told.get("alt") or ("inline" if source.startswith("data:") else source)
            self.pieces.append(f"[image: {named}, not sent]")
        elif tag in self._BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT:
            self._silent = max(self._silent - 1, 0)
        elif tag in self._BLOCKS and tag != "br":
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


def described(value: Any, budget: int = BUDGET_CHARS) -> str | None:
    """Words for a thing of Python itself; None for any other value."""
    for kinds, words in _THINGS:
        if issubclass(type(value), kinds):
            return cut_middle(without_folders(clean(words(value))), budget)
    return None


def _function_words(function: Any) -> str:
    return f"function {_head(function)}"


def _class_words(kind: Any) -> str:
    return f"class {_head(kind)}"


def _head(thing: Any) -> str:
    """Name, signature and the first line of the docstring."""
    name = getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "?")
    try:
        signature = str(inspect.signature(thing))
    except BROKEN:
        signature = "(…)"
    # A class without a docstring inherits one that tells of another.
    own = not isinstance(thing, type) or vars(thing).get("__doc__")
    doc = ((inspect.getdoc(thing) if own else "") or "").strip().split("\n")[0]
    return f"{name}{cut_middle(signature, 500)}" + (f": {cut_middle(doc, 300)}" if doc else "")


def _error_words(error: BaseException) -> str:
    inner = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
    if issubclass(type(error), BaseExceptionGroup):
        return f"{said(error)}: {'; '.join(map(said, inner[:5]))}"
    return said(error)


def _waiting_words(value: Any) -> str:
    kind = "coroutine" if isinstance(value, types.CoroutineType) else "asynchronous generator"
    return f"[{kind} {value.__qualname__}, which was not awaited]"


_THINGS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (BaseException, _error_words),
    (_FUNCTIONS, _function_words),
    (type, _class_words),
    (types.ModuleType, lambda module: f"module {module.__name__}"),
    (_WAITING, _waiting_words),
)
