"""Objects that know how to show themselves in a notebook, and functions, classes and errors.

Takes their pictures, Markdown and the text of their HTML; nothing is loaded and no SVG is drawn.
Asks only what the class itself defines: an instance may pretend to have everything.
"""

from __future__ import annotations

import base64
import inspect
import re
import types
from collections.abc import Mapping
from html import unescape
from typing import Any, cast

from nbagent.contracts.chat import ImagePart
from nbagent.shown.pictures import encoded_image
from nbagent.shown.texts import BROKEN, clean, cut_middle, error_line, without_folders

_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/markdown": "_repr_markdown_",
    "text/html": "_repr_html_",
    "text/latex": "_repr_latex_",
}
_HTML_CHARS = 200_000
"""Of a value's HTML that is read for its text."""
# None of these looks further than the next tag, or it would take ages on broken HTML.
_SILENT = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|head|template|svg|noscript)\b.*?(?:</\1\s*>|\Z)", re.S | re.I
)
_IMAGE = re.compile(r"<img\b[^<>]*>", re.I)
_ATTRIBUTE = re.compile(r"\b(alt|src)\s*=\s*[\"']([^\"']*)")
_CELL = re.compile(r"<t[dh]\b[^<>]*>", re.I)
_WITHIN_A_LINE = re.compile(
    r"</?(?:t[dh]|a|abbr|b|code|em|font|i|mark|small|span|strong|su[bp]|u)\b[^<>]*>", re.I
)
_TAG = re.compile(r"<[/!]?[a-z][^<>]*>", re.I)


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


def html_text(html: str) -> str:
    """What a person reads of HTML: cells apart, blocks on lines of their own, no scripts."""
    text = _SILENT.sub("", cut_middle(clean(html), _HTML_CHARS))
    text = _IMAGE.sub(_image_name, text)
    for tags, instead in ((_CELL, " | "), (_WITHIN_A_LINE, ""), (_TAG, "\n")):
        text = tags.sub(instead, text)
    lines = (" ".join(line.split()).removeprefix("| ") for line in unescape(text).split("\n"))
    return "\n".join(line for line in lines if line)


def _image_name(tag: re.Match[str]) -> str:
    given = dict(_ATTRIBUTE.findall(tag[0]))
    source = given.get("src", "")
    return (
        f"[image: {given.get('alt') or ('inline' if source[:5] == 'data:' else source)}, not sent]"
    )


def described(value: Any) -> str | None:
    """Words for an error, a function, a class or a module; None for any other value."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, BaseException):
        text = "; ".join(map(error_line, (value, *getattr(value, "exceptions", ())[:5])))
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
