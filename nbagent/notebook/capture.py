"""Captures what a tool prints and displays: it goes to the card of its call."""

from __future__ import annotations

import base64
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from nbagent.contracts.messages import ImagePart
from nbagent.contracts.secrets import redact, redact_truncated
from nbagent.contracts.tools import CallOutput
from nbagent.notebook.run_code import (
    PICTURE_FORMS,
    Stream,
    finish_figures,
    open_figures,
    replaced,
    streams_replaced,
)
from nbagent.sandbox.script_output import Output
from nbagent.shown.images import encoded_image, figures_in
from nbagent.shown.texts import without_codes

_PRINTED_BYTES = 20_000


_MOST_SHOWN = 10


_SHOWN_BYTES = 220_000
"""Of one picture: what a view draws."""


_SHOWN_FORMS = {*PICTURE_FORMS, "text/plain"}
"""A display of these alone goes to the card; a table, a widget, a map stays below the view."""


_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")


_LINE_CHARS = 300


@contextmanager
def capture(
    shell: Any, output: CallOutput, say: Callable[[Callable[[], str]], object]
) -> Generator[Callable[[Any], object]]:
    """Take what this thread prints and displays; see `Capture`."""
    taken = _Taken(shell.display_pub, say)
    output.read = taken.read
    figures, returned = open_figures(), list[Any]()
    with (
        streams_replaced(*(Stream(it, taken.keep, taken.say) for it in (sys.stdout, sys.stderr))),
        replaced(shell.display_pub, publish=taken.publish, clear_output=taken.clear),
    ):
        try:
            yield lambda value: returned.extend(figures_in(value))
        except KeyboardInterrupt:
            raise  # A stop does not wait for figures to be drawn.
        except BaseException:
            finish_figures(figures, returned)
            raise
        else:
            finish_figures(figures, returned)


class _Taken:
    """What a tool printed and displayed, in the order in which it came."""

    def __init__(self, publisher: Any, say: Callable[[Callable[[], str]], object]) -> None:
        self._images: list[ImagePart] = []
        self._kept = Output(_PRINTED_BYTES)
        self._publish = publisher.publish
        self._say = say
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    def read(self) -> tuple[str, tuple[ImagePart, ...]]:
        """What was printed, as a terminal would show it in the end, and the pictures."""
        with self._lock:
            text = self._kept.text
        return redact_truncated(_OVERWRITTEN.sub("", without_codes(text))), tuple(self._images)

    def keep(self, data: bytes) -> None:
        """Keep what is printed."""
        with self._lock:
            self._kept.add(data)

    def say(self, text: str) -> None:
        """Tell the last line of what is printed."""
        if text and not text.isspace():
            self._say(partial(_last_line, text))

    def publish(self, data: Any, *args: Any, **options: Any) -> None:
        """In the place of the publisher's own."""
        # The live view of a run publishes in another thread, and what has an id changes later.
        is_own = threading.get_ident() == self._thread and not options.get("transient")
        if not is_own or not data.keys() <= _SHOWN_FORMS or options.get("update"):
            self._publish(data, *args, **options)
            return
        image = _image_in(data) or data.get("text/plain", "")
        if isinstance(image, ImagePart) and len(self._images) == _MOST_SHOWN:
            image = f"… only the first {_MOST_SHOWN} pictures are kept …"
        if isinstance(image, ImagePart):
            self._images.append(image)
        else:
            self.keep(f"{image}\n".encode("utf-8", "replace"))

    def clear(self, wait: bool = False) -> None:
        """In the place of the publisher's own, which would clear the view of the run as well."""
        self._kept, self._images = Output(_PRINTED_BYTES), []


def _image_in(data: dict[str, Any]) -> ImagePart | str | None:
    form = next((data[kind] for kind in PICTURE_FORMS if kind in data), b"")
    with suppress(ValueError):
        content = base64.b64decode(form) if isinstance(form, str) else form
        return encoded_image(content, most_bytes=_SHOWN_BYTES)
    return None


def _last_line(text: str) -> str:
    lines = re.split(r"[\r\n]+", without_codes(text[-10_000:]).strip())
    return redact(lines[-1])[:_LINE_CHARS]
