"""What code shows while it runs: printed text, displays and figures, for the model and the cell.

What is printed goes on to the cell and is kept for the model, both within budgets and without
secrets. Knows IPython's display publisher only where IPython is running already.
"""

from __future__ import annotations

import base64
import io
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.chat import FilePart, ImagePart
from nbagent.contracts.secrets import StreamFilter, redact, redact_cut
from nbagent.shown import BROKEN, clean, cut_middle
from nbagent.shown.budgets import MOST_IMAGES
from nbagent.shown.displays import html_text
from nbagent.shown.pictures import encoded_image, image_of, of_class
from nbagent.tools.notebook_names import masked_text

_DISPLAY_CHARS = 4_000
_MOST_DISPLAYS = 20
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SHOWS_ITSELF = ("ipympl", "widget", "nbagg", "notebook")
"""Backends whose open figures are live in the cell."""
_sent: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The last picture of each figure that the model has seen."""


class Tee:
    """A stream that keeps the start and the end of what is written, and hands it on.

    Code may keep it and write to it later: it then only hands on. So it does when its owner is
    gone: an interrupt may come before it was taken away again.

    Args:
        stream: where it goes on to.
        owner: whose output it is.
        kept_chars: for the model.
        shown_chars: handed on; then one line says that the rest is not.
    """

    def __init__(self, stream: Any, owner: object, *, kept_chars: int, shown_chars: int) -> None:
        self.stream = stream
        self._owner = weakref.ref(owner)
        self._half = kept_chars // 2
        self._head = ""
        self._tail: list[str] = []
        self._tail_chars = 0
        self._total = 0
        self._left = shown_chars
        self._filter = StreamFilter()
        self._lock = threading.RLock()
        self._open = True

    @property
    def is_over(self) -> bool:
        """It only hands on."""
        return not self._open or self._owner() is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Keep it and hand it on."""
        if not isinstance(cast("object", text), str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            if self.is_over:
                self.stream.write(text)
                return len(text)
            self._keep(text)
            self._hand_on(self._filter.feed(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Keep them and hand them on."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Only what was handed on: the start of a secret stays until its end comes."""
        self.stream.flush()

    def close(self) -> None:
        """The cell's own stream stays open: the code did not open it."""
        self.flush()

    def detach(self) -> Any:
        """Refused: it would take the cell's stream apart."""
        raise io.UnsupportedOperation("the notebook's stream cannot be detached")

    def close_kept(self) -> str:
        """End the keeping; what was written, its middle left out where it is long."""
        with self._lock:
            self._hand_on(self._filter.flush())
            self._open = False
            tail = "".join(self._tail)[-self._half :]
            missing = self._total - len(self._head) - len(tail)
            gap = f"… [{missing:,} of {self._total:,} characters left out; print less] …"
            text = self._head + (gap if missing > 0 else "") + tail
        return masked_text(redact_cut(clean(text)))

    def _keep(self, text: str) -> None:
        self._total += len(text)
        room = self._half - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if not text:
            return
        self._tail.append(text)
        self._tail_chars += len(text)
        if self._tail_chars > 4 * self._half + 10_000:
            self._tail = ["".join(self._tail)[-self._half :]]
            self._tail_chars = len(self._tail[0])

    def _hand_on(self, text: str) -> None:
        if not text or self._left <= 0:
            return
        self.stream.write(text[: self._left])
        self._left -= len(text)
        if self._left <= 0:
            self.stream.write("\n… the rest of this output is not shown …\n")


class Displays:
    """Collects what code displays in a kernel; in a script nothing is displayed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.images: list[ImagePart] = []
        self.left_out = 0
        shell = _shell()
        self.publisher: Any = getattr(shell, "display_pub", None)
        self._is_own = False
        self._before = {id(figure): _is_stale(figure) for figure in open_figures()}

    def __enter__(self) -> Displays:
        # Hooks are kept by thread: this one sees the displays of the code alone.
        if hasattr(self.publisher, "register_hook"):
            self.publisher.register_hook(self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        if hasattr(self.publisher, "unregister_hook"):
            self.publisher.unregister_hook(self._take)

    def add_image(self, image: ImagePart) -> None:
        """Keep an image, if there is room for one more."""
        if image in self.images:
            return
        if len(self.images) < MOST_IMAGES:
            self.images.append(image)
        else:
            self.left_out += 1

    def show(self, parts: Iterable[ImagePart | FilePart]) -> None:
        """Keep images for the model and show them in the cell."""
        for part in parts:
            if isinstance(part, ImagePart) and part not in self.images:
                self.add_image(part)
                self._publish(part)

    def _publish(self, image: ImagePart) -> None:
        if self.publisher is None or not image.data:
            return
        data = {image.media_type: image.data, "text/plain": f"[{image.alt}]"}
        self._is_own = True
        try:
            with suppress(*BROKEN):
                self.publisher.publish(data=data, metadata={})
        finally:
            self._is_own = False

    def show_open_figures(self) -> None:
        """Take the figures that the code made or changed; inline they are closed, as by a cell."""
        figures = [figure for figure in open_figures() if self._may_differ(figure)]
        if not figures:
            return
        matplotlib: Any = sys.modules["matplotlib"]
        backend = str(matplotlib.get_backend()).lower()
        for figure in figures:
            image = image_of(figure)
            if isinstance(image, ImagePart):
                if _sent.get(figure) == image.data:
                    continue
                _sent[figure] = image.data or ""
            if not isinstance(image, ImagePart):
                self.texts.append(image or "[a figure that could not be drawn]")
            elif any(name in backend for name in _SHOWS_ITSELF):
                self.add_image(image)
            else:
                self.show([image])
            if "inline" in backend:
                sys.modules["matplotlib.pyplot"].close(figure)

    def _may_differ(self, figure: Any) -> bool:
        """Whether the code may have made or changed it. One of the person's own stays theirs."""
        before = self._before.get(id(figure))
        if before is None:
            return True
        # A figure that was saved says of itself that it changed.
        return _is_stale(figure) and (not before or figure in _sent)

    def _take(self, message: Any) -> Any:
        """See one message on its way to the cell; its texts go on without secrets."""
        if self._is_own:
            return message
        with suppress(*BROKEN):
            data = message["content"].get("data")
            if message["header"]["msg_type"] != "clear_output" and isinstance(data, Mapping):
                message["content"]["data"] = self._seen(cast("Mapping[str, Any]", data))
        return message

    def _seen(self, data: Mapping[str, Any]) -> dict[str, Any]:
        image = _image_in(data)
        if isinstance(image, ImagePart):
            self.add_image(image)
        elif len(self.texts) >= _MOST_DISPLAYS:
            self.left_out += 1
        elif text := image or _text_in(data):
            text = clean(cut_middle(text, _DISPLAY_CHARS))
            self.texts.append(masked_text(redact_cut(text)))
        return {
            kind: redact(form) if isinstance(form, str) and kind not in _IMAGE_TYPES else form
            for kind, form in data.items()
        }


def _image_in(data: Mapping[str, Any]) -> ImagePart | str | None:
    for kind in _IMAGE_TYPES:
        form = data.get(kind)
        if isinstance(form, str):
            return encoded_image(base64.b64decode(form))
        if isinstance(form, bytes):
            return encoded_image(form)
    return None


def _text_in(data: Mapping[str, Any]) -> str:
    for kind in ("text/markdown", "text/plain", "text/latex"):
        form = data.get(kind)
        if isinstance(form, str) and form and not (form.startswith("<") and form.endswith(">")):
            return form
    html = data.get("text/html")
    if isinstance(html, str) and (text := html_text(html)):
        return text
    return str(data.get("text/plain", "")) or f"[{', '.join(data)}]"


def _shell() -> Any:
    # Not imported: where IPython does not run already, there is nothing to show in.
    ipython: Any = sys.modules.get("IPython")
    with suppress(*BROKEN):
        return ipython.get_ipython()
    return None


def open_figures() -> list[Any]:
    """The figures that pyplot holds, if it was imported."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None or "matplotlib.pyplot" not in sys.modules:
        return []
    with suppress(*BROKEN):
        return [manager.canvas.figure for manager in helpers.Gcf.get_all_fig_managers()]
    return []


def _is_stale(figure: Any) -> bool:
    return bool(getattr(figure, "stale", False))


def is_of_open_figure(value: Any, depth: int = 0) -> bool:
    """Whether it is a figure of pyplot or a part of one (or a few of these): it is shown anyway."""
    kind = cast("type[Any]", type(value))
    if kind in (list, tuple):
        few: list[Any] = list(value[:50]) if depth < 3 else []
        return bool(few) and all(is_of_open_figure(item, depth + 1) for item in few)
    if of_class(value, "numpy", "ndarray"):
        objects = value.dtype.kind == "O" and value.size > 0 and depth < 3
        return objects and is_of_open_figure(value.flat[0], depth + 1)
    if not of_class(value, "matplotlib.artist", "Artist"):
        return False
    with suppress(*BROKEN):
        own = of_class(value, "matplotlib.figure", "Figure")
        figure = value if own else value.get_figure()
        return any(figure is one for one in open_figures())
    return False
