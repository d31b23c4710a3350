"""Messages of a conversation: roles, parts (text, image, file), tool calls. Values only."""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import unknown_argument
from nbagent.contracts.secrets import any_secret_known, redact_json, register_environment

Role = Literal["system", "user", "assistant", "tool"]
FINAL_ANSWER = "final_answer"
"""Tool that receives the typed answer if the provider has no schema mode for answers."""
ANSWER_BY_CALL = f"Give the answer by calling {FINAL_ANSWER}."
"""End of the message that returns an invalid typed answer to the model."""
CONTINUE_PROMPT = "Your last answer was cut off. Go on exactly where it stopped."
"""Prompt with which the model completes an answer that was cut off."""
DIRECTIVE_STARTS = ("RUN_DIRECTIVE\n- ", "NODE_BRIEF\n- ")
"""Starts of the messages that a workflow's runtime sends as the user. What a person writes in a
workflow starts with `USER_INPUT`."""
MAX_DEPTH = 100
"""Most levels of lists and objects in a stored value: orjson, pydantic and `json` have limits of
their own, and a value must pass all of them."""


class Value(BaseModel):
    """Base of all records: frozen. Fields that a newer version added are ignored."""

    # Validators are built at first use: building all of them would slow every import of nbagent.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class PublicValue(Value):
    """Base of the values that a person makes, too: an unknown keyword is an error."""

    def __init__(self, /, **data: Any) -> None:
        fields = type(self).__pydantic_fields__
        if not data.keys() <= fields.keys():
            unknown = [name for name in data if name not in fields]
            raise unknown_argument(type(self).__name__, unknown, fields)
        self.__pydantic_validator__.validate_python(data, self_instance=self)

    # As SQLModel does: pydantic takes this `__init__` for its own and does not call it when it
    # reads a stored record, whose fields of a newer version must be ignored.
    cast("Any", __init__).__pydantic_base_init__ = True


V = TypeVar("V", bound=Value)


def redacted(value: V) -> V:
    """Copy a value with every known secret redacted; return the value itself if it has none."""
    register_environment()
    if not any_secret_known():
        return value
    plain = value.model_dump()
    hidden = redact_json(plain)
    return value if hidden == plain else type(value).model_validate(hidden)


class TextPart(PublicValue):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str
    name: str | None = None
    """Name of the attached file that the text comes from; None for text that the person typed."""


_DISPLAYED_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class ImagePart(PublicValue):
    """An image, inline as base64 or by address."""

    type: Literal["image"] = "image"
    media_type: str = "image/png"
    data: str | None = None
    """Base64, without a data-URL prefix."""
    url: str | None = None
    alt: str = ""

    @property
    def content(self) -> bytes:
        """Bytes of the image file; empty if the image has only an address."""
        try:
            return base64.b64decode(self.data or "")
        except ValueError:
            return b""

    def __repr__(self) -> str:
        # A million characters of base64 in a cell's output would help nobody.
        source = f"url={self.url!r}" if self.url else f"{len(self.content):,} bytes"
        return f"<ImagePart {self.alt or self.media_type!r}, {source}>"

    __str__ = __repr__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Forms for a front end, which draws only these types as an image."""
        shown = {"text/plain": repr(self)}
        if self.media_type in _DISPLAYED_TYPES and (content := self.content):
            shown[self.media_type] = base64.b64encode(content).decode()
        return shown


class FilePart(PublicValue):
    """A file that is sent to the model."""

    type: Literal["file"] = "file"
    name: str
    media_type: str = "application/octet-stream"
    data: str
    """Base64."""


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ToolCall(PublicValue):
    """A call of a tool, as the model requested it."""

    id: str
    name: str
    """The tool's own name (`fs.read`), not its name on the wire."""
    arguments: dict[str, Any] | None = None
    """Decoded arguments; None when `arguments_raw` is no JSON object that a record can hold."""
    arguments_raw: str
    """The arguments exactly as the model wrote them."""
    extra: dict[str, Any] | None = None
    """Vendor fields that must be sent back with the call."""


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    return () if content is None else content


class Message(PublicValue):
    """One role's contribution to a conversation."""

    role: Role
    content: Annotated[tuple[Part, ...], BeforeValidator(_as_parts)] = ()
    """Its parts; a text is taken as one text part."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On tool messages: the call that is answered."""
    name: str | None = None
    """On tool messages: the tool."""
    reasoning: str | None = None
    raw: dict[str, Any] | None = None
    """Vendor data to send back with the message: `{"provider": …, "model": …, …}`."""

    @property
    def text(self) -> str:
        """All text parts, concatenated."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """All images, in order."""
        return tuple(part for part in self.content if isinstance(part, ImagePart))

    @property
    def typed_text(self) -> str:
        """Text that was typed: `text` without the texts of attached files."""
        texts = (part for part in self.content if isinstance(part, TextPart) and not part.name)
        return "".join(part.text for part in texts)

    @classmethod
    def of(cls, role: Role, text: str) -> Message:
        """Make a message of one text part (none if the text is empty)."""
        return cls(role=role, content=(TextPart(text=text),) if text else ())


def is_storable_json(value: Any) -> bool:
    """True if a record can store it: JSON, only finite numbers, at most MAX_DEPTH levels."""
    # No recursion: a hostile value may be deeper than Python's own limit.
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict):
            inner = list(cast("dict[Any, Any]", item).values())
        elif isinstance(item, list | tuple):
            inner = cast("list[Any]", item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
        elif item is None or isinstance(item, str | int | float):
            continue
        else:
            return False
        if depth > MAX_DEPTH:
            return False
        # Most items are texts and integers, which are always valid.
        stack.extend((child, depth + 1) for child in inner if child.__class__ not in (str, int))
    return True


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """Decode a call's arguments. `""` and `null` give `{}`: some models send them for a tool
    without parameters. Anything else that is not an object gives None."""
    try:
        value = load_json(raw) if raw.strip() else None
    except (ValueError, RecursionError):
        return None
    return {} if value is None else json_object(value)
