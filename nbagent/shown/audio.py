"""Converts a recording with a player in the notebook (`IPython.display.Audio`) to a file part.

Nothing is downloaded. Only prompts send recordings: most models refuse them, and a refused result
of a tool would end the run.
"""

from __future__ import annotations

import base64
from pathlib import PurePath
from typing import Any

from nbagent.contracts.messages import FilePart
from nbagent.shown.images import of_class

_MAX_BYTES = 20_000_000
"""Providers accept requests of about this size."""


def to_audio(value: Any) -> FilePart | str | None:
    """Convert a recording to a file; a text if it cannot be sent; None for other values."""
    if not of_class(value, "IPython.lib.display", "Audio"):
        return None
    data: Any = value.data
    if not isinstance(data, bytes) or not data:
        return "[a recording without its data, not sent; make it with Audio(filename=…)]"
    if len(data) > _MAX_BYTES:
        size = f"{len(data) / 1e6:,.0f} MB"
        return f"[a recording of {size}: too large to be sent; at most {_MAX_BYTES // 10**6} MB]"
    media_type = str(value.mimetype or "audio/wav")
    name = PurePath(str(value.filename)).name if value.filename else "recording"
    return FilePart(name=name, media_type=media_type, data=base64.b64encode(data).decode())
