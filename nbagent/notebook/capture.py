"""Captures printed text and displayed images of a tool for the card of its call."""

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
from nbagent.contracts.secrets import redact, redact_json, redact_truncated, register_environment
from nbagent.contracts.tools import CallOutput
from nbagent.notebook.run_code import (
    IMAGE_TYPES,
    CapturingStream,
    finish_figures,
    open_figures,
    replaced_attributes,
    replaced_streams,
)
from nbagent.sandbox.script_output import Output
from nbagent.shown.images import encoded_image, figures_in
from nbagent.shown.texts import without_codes

_MAX_PRINTED_BYTES = 20_000


_MAX_IMAGES = 10


_MAX_IMAGE_BYTES = 220_000
"""Bytes of one image; larger ones are not drawn by the view."""


_CARD_TYPES = {*IMAGE_TYPES, "text/plain"}
"""A display that has only these types goes to the card. Others, such as a table, a widget or a map,
stay below the view."""


_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
"""Text that a later one on the same line replaces, as progress bars do."""


_LINE_CHARS = 300


@contextmanager
def capture(
    shell: Any, output: CallOutput, say: Callable[[Callable[[], str]], object]
) -> Generator[Callable[[Any], object]]:
    """Capture output of this thread; see `Capture`."""
    captured = _Captured(shell.display_pub, say)
    output.read = captured.read
    figures, returned = open_figures(), list[Any]()
    with (
        replaced_streams(
            *(
                CapturingStream(stream, captured.record, captured.report_last_line)
                for stream in (sys.stdout, sys.stderr)
            )
        ),
        replaced_attributes(
            shell.display_pub, publish=captured.publish, clear_output=captured.clear
        ),
    ):
        try:
            yield lambda value: returned.extend(figures_in(value))
        except KeyboardInterrupt:
            raise  # a stop must not wait until figures are drawn
        except BaseException:
            finish_figures(figures, returned)
            raise
        else:
            finish_figures(figures, returned)


class _Captured:
    """Printed text and images of a tool, in order."""

    def __init__(self, publisher: Any, say: Callable[[Callable[[], str]], object]) -> None:
        self._images: list[ImagePart] = []
        self._printed = Output(_MAX_PRINTED_BYTES)
        self._publish = publisher.publish
        self._say = say
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    def read(self) -> tuple[str, tuple[ImagePart, ...]]:
        """Return the text as a terminal would finally show it, and the images."""
        with self._lock:
            text = self._printed.text
        return redact_truncated(_OVERWRITTEN.sub("", without_codes(text))), tuple(self._images)

    def record(self, data: bytes) -> None:
        """Record printed bytes."""
        with self._lock:
            self._printed.add(data)

    def report_last_line(self, text: str) -> None:
        """Report the last printed line as progress."""
        if text and not text.isspace():
            self._say(partial(_last_line, text))

    def publish(self, data: Any, *args: Any, **options: Any) -> None:
        """Replace the publisher's `publish`."""
        # The live view of a run publishes in another thread. A display with an id is updated later,
        # so it must stay in the cell.
        is_own = threading.get_ident() == self._thread and not options.get("transient")
        if not is_own or not data.keys() <= _CARD_TYPES or options.get("update"):
            is_callers = threading.get_ident() == self._thread
            self._publish(_redacted_forms(data) if is_callers else data, *args, **options)
            return
        image = _image_in(data) or data.get("text/plain", "")
        if isinstance(image, ImagePart) and len(self._images) == _MAX_IMAGES:
            image = f"… only the first {_MAX_IMAGES} images are kept …"
        if isinstance(image, ImagePart):
            self._images.append(image)
        else:
            self.record(f"{image}\n".encode("utf-8", "replace"))

    def clear(self, wait: bool = False) -> None:
        """Replace the publisher's `clear_output`, which would clear the view of the run as well."""
        self._printed, self._images = Output(_MAX_PRINTED_BYTES), []


def _redacted_forms(data: dict[str, Any]) -> dict[str, Any]:
    """Redact the texts of a display; images stay."""
    register_environment()
    return {k: v if k in IMAGE_TYPES else redact_json(v) for k, v in data.items()}


def _image_in(data: dict[str, Any]) -> ImagePart | str | None:
    form = next((data[kind] for kind in IMAGE_TYPES if kind in data), b"")
    with suppress(ValueError):
        content = base64.b64decode(form) if isinstance(form, str) else form
        return encoded_image(content, max_bytes=_MAX_IMAGE_BYTES)
    return None


def _last_line(text: str) -> str:
    lines = re.split(r"[\r\n]+", without_codes(text[-10_000:]).strip())
    return redact(lines[-1])[:_LINE_CHARS]
