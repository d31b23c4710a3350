"""Images of an answer: the forms in which servers send them, and which bytes are kept.

One border for all wires: an image that is too large, broken or no image is left out with one
sentence, and the rest of the answer stays.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import ImagePart
from nbagent.providers.answer.json_fields import text_or_empty
from nbagent.providers.transport.sse import fix_surrogates
from nbagent.shown.image_files import (
    IMAGE_TYPES,
    MAX_ANSWER_IMAGE_BYTES,
    describe_image,
    image_type,
)

MAX_IMAGES = 16
"""Images of one answer."""
_DATA_URL = re.compile(r"data:([^;,]{0,100})((?:;[^;,]{0,100})*),", re.IGNORECASE)
_SPACES = re.compile(r"\s+")
_URL_SAFE = str.maketrans("-_", "+/")
_MAX_CHARS = MAX_ANSWER_IMAGE_BYTES * 4 // 3 + 4
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-\\"
"""Characters of base64 in JSON, also with escaped slashes."""
_LONG_CHARS = 1_000_000
CUT_MARK = "/~"
"""Ends the data that `LongDataFilter` has cut."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file in an answer, as the server sent it."""

    media_type: str
    data: str = ""
    """Base64, or a data URL."""
    url: str = ""
    """Address instead of the data."""

    @property
    def is_image(self) -> bool:
        """True unless the server names another kind of file."""
        return not self.media_type or self.media_type.lower().startswith("image/")


def find_file(part: dict[str, Any]) -> SentFile | None:
    """Return the file in one part of an answer; None if there is none.

    The forms: `inlineData` (Gemini), `image_url` (Chat Completions), `source` (Anthropic),
    `image_generation_call` (Responses), and `b64_json` or `data` of other servers.
    """
    inline = json_object(part.get("inlineData")) or json_object(part.get("inline_data"))
    source = inline or json_object(part.get("source")) or part
    if uploaded := json_object(part.get("fileData")):
        uri = text_or_empty(uploaded.get("fileUri"))
        return SentFile(text_or_empty(uploaded.get("mimeType")), url=uri) if uri else None
    named = source.get("mimeType") or source.get("mime_type") or source.get("media_type")
    media_type, kind = text_or_empty(named), text_or_empty(part.get("type"))
    holder = part.get("image_url") or part.get("imageUrl")
    address = text_or_empty((json_object(holder) or {}).get("url")) or text_or_empty(holder)
    if kind == "image_generation_call":
        data = text_or_empty(part.get("result"))
        return SentFile(media_type, data) if data else None
    if not address and source is not part:
        address = text_or_empty(source.get("url"))
    if not address and (source is not part or kind in ("image", "output_image") or not kind):
        data = text_or_empty(source.get("data")) or text_or_empty(source.get("b64_json"))
        return SentFile(media_type, data) if data else None
    if not address:
        return None
    if match := _DATA_URL.match(address):
        return SentFile(match[1].strip() or media_type, address[match.end() :])
    is_address = address.lower().startswith(("https://", "http://"))
    return SentFile(media_type, url=address) if is_address else SentFile(media_type, address)


def find_files(listed: Any) -> Iterator[SentFile]:
    """Yield the files in a list of images: objects, or texts with a data URL, address or base64."""
    for item in cast("list[Any]", listed) if isinstance(listed, list) else []:
        part = {"image_url": item} if isinstance(item, str) else json_object(item)
        if part and (sent := find_file(part)) is not None:
            yield sent


def answer_image(sent: SentFile) -> ImagePart | str:
    """Return an image of an answer, or the sentence that says why it is left out."""
    if not sent.is_image:
        kind = sent.media_type[:60]
        return f"A file of the type {kind!r} in the answer is left out: only images are kept."
    if sent.url:
        # Never loaded: opening a notebook must not contact a server.
        known = sent.media_type if sent.media_type in IMAGE_TYPES else IMAGE_TYPES[0]
        return ImagePart(media_type=known, url=fix_surrogates(sent.url[:2_000]))
    if len(sent.data) > _MAX_CHARS or sent.data.endswith(CUT_MARK):
        return _left_out(f"it has more than {MAX_ANSWER_IMAGE_BYTES // 1_000_000} MB")
    text = _SPACES.sub("", sent.data).translate(_URL_SAFE).rstrip("=")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return _left_out("its data is not valid base64")
    media_type = image_type(content)
    if media_type is None:
        named = f", although it is named {sent.media_type[:60]!r}" if sent.media_type else ""
        return _left_out(f"its bytes are no complete PNG, JPEG, GIF or WebP file{named}")
    alt = describe_image(media_type, content)
    return ImagePart(media_type=media_type, data=base64.b64encode(content).decode(), alt=alt)


def _left_out(reason: str) -> str:
    return f"An image of the answer is left out: {reason}."


class LongDataFilter:
    """Cuts base64 data of an answer that is longer than an image may be.

    The rest of the answer is read as if the data were short: a large image costs no text.
    """

    def __init__(self) -> None:
        self._run = 0
        """Length of the base64 data at the end of what came so far."""
        self._total = 0
        self._cuts = False

    def feed(self, piece: bytes) -> bytes:
        """Return the piece, without what is too long."""
        if not self._run:
            self._run = len(piece) - len(piece.rstrip(_BASE64))
            return piece
        # `translate` is much faster than `lstrip` and mostly leaves nothing.
        rest = piece.translate(None, _BASE64) and piece.lstrip(_BASE64)
        n_more = len(piece) - len(rest)
        start = piece[:n_more]
        self._run, self._total = self._run + n_more, self._total + n_more
        if self._total > _MAX_CHARS and self._run > _LONG_CHARS:
            start, self._cuts = b"" if self._cuts else CUT_MARK.encode(), True
        if rest:
            self._run, self._cuts = len(rest) - len(rest.rstrip(_BASE64)), False
        return start + rest
