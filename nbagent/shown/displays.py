"""A value's own notebook display: an image, a text or data that a model reads.

The `repr` is preferred to HTML, LaTeX, JSON and SVG where it says anything: these are made for a
browser. Each display method may raise, return another type, or be huge.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.messages import ImagePart
from nbagent.shown.html_text import html_text
from nbagent.shown.images import encoded_image
from nbagent.shown.texts import VALUE_ERRORS, safe_repr

_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "text/html": "_repr_html_",
    "image/svg+xml": "_repr_svg_",
    "application/javascript": "_repr_javascript_",
}
"""IPython's display methods by media type."""
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BROWSER_TEXTS = ("text/latex", "application/json", "text/html", "image/svg+xml")
"""Forms for a browser, the best one for a model first."""
_SAYS_NOTHING = re.compile(
    r"\s*|<[\w.<>]+(?: [\w.]+)? (?:object|instance)\b[^\n]{0,100}>(?:\n\n[\s\S]*)?|<[\w.]+>"
)
"""A `repr` that names only the class, or explains below why it shows no more."""


@dataclass(frozen=True, slots=True)
class JsonDisplay:
    """The data that a value shows as JSON; it may be of any type."""

    data: Any


def prompt_value(value: Any) -> Any:
    """Return what a value gives for a prompt by its method `_prompt_value_`, else the value."""
    kind = cast("type[Any]", type(value))
    if not any("_prompt_value_" in vars(parent) for parent in kind.__mro__):
        return value
    return kind._prompt_value_(value)


def display_of(value: Any) -> ImagePart | JsonDisplay | str | None:
    """Return what a value shows of itself; None if its `repr` is better, or it shows nothing.

    Only methods of the class count: instances such as mocks answer to every name.
    """
    forms = _Forms(value)
    if not forms.names:
        return _own_str(value) or None
    for media_type in _IMAGES:
        if image := _image(forms.get(media_type)):
            return image
    if markdown := forms.text("text/markdown"):
        return markdown
    plain = forms.text("text/plain")
    if plain and not _SAYS_NOTHING.fullmatch(plain):
        return plain
    if not _SAYS_NOTHING.fullmatch(safe_repr(value, 300)):
        return plain or None
    return next(_browser_forms(forms, value), plain or None)


def _browser_forms(forms: _Forms, value: Any) -> Iterator[JsonDisplay | str]:
    """Yield the readable forms of a value whose `repr` says nothing."""
    if pretty := _pretty_text(forms, value) or _own_str(value):
        yield pretty
    for media_type in (*_BROWSER_TEXTS, "application/javascript"):
        if media_type == "application/json":
            data = forms.get(media_type)
            if data is not None:
                yield JsonDisplay(data)
        elif text := forms.text(media_type):
            yield _text_of_html(text) if media_type == "text/html" else text
    yield from forms.vendor_data()


def _text_of_html(html: str) -> str:
    try:
        return html_text(html)
    except VALUE_ERRORS:  # the parser refuses some broken declarations
        return html


def _pretty_text(forms: _Forms, value: Any) -> str:
    """Return the text of `_repr_pretty_` where IPython, which prints it, is loaded."""
    printer: Any = sys.modules.get("IPython.lib.pretty")
    if printer is None or "_repr_pretty_" not in forms.names:
        return ""
    with suppress(*VALUE_ERRORS):
        text: object = printer.pretty(value)
        if isinstance(text, str) and not _SAYS_NOTHING.fullmatch(text):
            return text
    return ""


def _own_str(value: Any) -> str:
    """Return the `str` of a class that defines it and no `repr` that says anything."""
    kind = cast("type[Any]", type(value))
    if kind.__str__ is object.__str__ or not _SAYS_NOTHING.fullmatch(safe_repr(value, 300)):
        return ""
    with suppress(*VALUE_ERRORS):
        text = str(value)
        if not _SAYS_NOTHING.fullmatch(text):
            return text
    return ""


def _image(data: Any) -> ImagePart | str | None:
    """Convert the data of a display, bytes or base64, to an image; None if it is none."""
    with suppress(*VALUE_ERRORS):
        encoded = base64.b64decode(data) if isinstance(data, str) else data
        if isinstance(encoded, bytes | bytearray):
            return encoded_image(bytes(encoded))
    return None


class _Forms:
    """The forms of a value's display by media type, each computed when it is first needed."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._kind = cast("type[Any]", type(value))
        own = {name for parent in self._kind.__mro__ for name in vars(parent)}
        self.names = own & {"_repr_mimebundle_", "_repr_pretty_", *_METHODS.values()}
        """Display methods of the class."""
        # The bundle has precedence, as in IPython.
        bundle = self._call("_repr_mimebundle_", include=None, exclude=None)
        self._bundle: Mapping[str, Any] = (
            cast("Mapping[str, Any]", bundle) if isinstance(bundle, Mapping) else {}
        )

    def get(self, media_type: str) -> Any:
        """Return the data of one form; None if the value has none, or its method fails."""
        with suppress(*VALUE_ERRORS):
            data = self._bundle.get(media_type)
            if data is not None:
                return data
        return self._call(_METHODS.get(media_type, ""))

    def text(self, media_type: str) -> str:
        """Return one form if it is a text, else an empty text."""
        data = self.get(media_type)
        # A subclass may override any method.
        return str.__str__(data) if issubclass(cast("type[Any]", type(data)), str) else ""

    def vendor_data(self) -> Iterator[JsonDisplay]:
        """Yield the data of charts and the like, such as `application/vnd.vegalite.v5+json`."""
        with suppress(*VALUE_ERRORS):
            for media_type, data in self._bundle.items():
                if media_type.endswith("+json"):
                    yield JsonDisplay(data)

    def _call(self, name: str, **how: Any) -> Any:
        if name not in self.names:
            return None
        with suppress(*VALUE_ERRORS):
            # Of the value, as IPython does: it may be a static method or a property.
            method: Callable[..., Any] = getattr(self._value, name)
            form = method(**how)
            # A display method may return (data, metadata).
            return cast("Any", form)[0] if isinstance(form, tuple) and form else cast("Any", form)
        return None
