"""Base of a wire: facts about one format of requests and answers, without any I/O.

`client.WireClient` sends requests over it. Another package adds a wire and its server as one row,
`Server(name="acme", wires=lambda row, config: [MyWire()], …)`, by the entry point
`nbagent.providers`. It needs nothing in `server_wires`, which names our own wires. A client that is
no `WireClient` comes with `Provider(name="acme", open=…)`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ModelInfo, ToolSpec
from nbagent.providers.answer.json_fields import text_or_empty
from nbagent.providers.answer.vendor_words import read_model_list
from nbagent.providers.answer.wire_deltas import Progress, WireDelta
from nbagent.providers.transport.sse import Splitter, Sse
from nbagent.providers.wires.message_changes import MessageChange
from nbagent.providers.wires.tool_names import WireNames

_DATED = re.compile(r"(?:[-@]\d{4}-?\d{2}-?\d{2}|-latest)$")


@dataclass(frozen=True, slots=True)
class EncodingContext:
    """Everything besides the message that its bytes depend on."""

    origin: str
    """Scheme, host and port of the server. Opaque fields (signatures, encrypted reasoning) go back
    only to the server that sent them; any other one refuses them."""
    model: str
    names: WireNames
    has_tools: bool = False
    workarounds: frozenset[str] = frozenset()
    """Names of the workarounds for this model on this server; see `Wire.workarounds`."""
    changes: tuple[MessageChange, ...] = ()
    """Changes of encoded messages that this server demands for this model."""

    def raw_from_server(self, message: Message) -> dict[str, Any]:
        """Return the message's `raw` if this server wrote it, else nothing."""
        raw = message.raw or {}
        return raw if raw.get("origin") == self.origin else {}

    def raw_from_model(self, message: Message) -> dict[str, Any]:
        """Return the message's `raw` if this model family on this server wrote it, else nothing."""
        raw = self.raw_from_server(message)
        return raw if model_family(str(raw.get("model") or "")) == model_family(self.model) else {}


class Parser(ABC):
    """Reads one answer. A fresh one for each attempt."""

    ends_with_done: bool = False
    """True if `[DONE]` ends an answer of this wire."""
    _progress: Progress

    def __init__(self, request: ChatRequest, progress: Progress) -> None:
        self._progress = progress

    @abstractmethod
    def read_event(self, name: bytes, data: Any) -> Iterable[WireDelta]:
        """Read one decoded frame of a stream. Raises ModelError."""

    def read_whole(self, body: Any) -> Iterable[WireDelta]:
        """Read a whole answer, without streaming. Raises ModelError."""
        return self.read_event(b"", body)


class Wire(ABC):
    """One format of requests and answers. Facts only; the defaults are those of most wires.

    A wire writes `name`, `parser`, `endpoint_paths` or `path`, and the abstract methods.
    """

    name: str
    parser: Callable[[ChatRequest, Progress], Parser]
    """Class of its parser, or a method that makes one."""
    default_path: str | None = None
    """Path to add to a base URL that names only a host; None: that of the row's default server."""
    endpoint_paths: tuple[str, ...] = ()
    """Paths that people copy along with a base URL; requests go to the first one."""
    framing: Callable[[], Splitter] = Sse
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    account_headers: Mapping[str, str] = MappingProxyType({})
    """Headers for the person's account, by field of ProviderConfig."""
    models_path: str = "/models"
    loaded_path: str = ""
    """Path that lists the loaded models with their contexts; only for servers that give a model a
    smaller context than it can have, and cut what is too long without an error."""
    next_page: tuple[str, str] = ("", "")
    """Field in a list of models that names its next page, and the query parameter for it."""
    messages_field: str = "messages"
    tools_template: bytes = b"%b"
    """Template around the encoded list of tools."""
    choice_field: str = "tool_choice"
    """Parameter that says which tool may be called."""
    think_tags: bool = False
    """Reasoning may stand in the text, between tags."""
    unsupported_fields: frozenset[str] = frozenset()
    """Fields of ChatRequest that this wire cannot send. The client resets them before `params` and
    lists those that a person set in the response's `dropped_params`; all others must be sent."""
    nested_field: str = ""
    """Parameter whose keys are merged with its keys in `extra_body`."""
    reserved_keys: frozenset[str] = frozenset({"messages", "tools"})
    """Keys of the body that `extra_body` cannot set."""
    workarounds: frozenset[str] = frozenset()
    """Names of the changed behaviours that this wire has; the rules for them are in
    `providers.refusals`. Its methods get the names in use."""

    def accepts(self, request: ChatRequest, workarounds: frozenset[str]) -> bool:
        """True if this wire can send the request; matters only for servers with several wires."""
        return True

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """Path below the base URL, with its slash; it may have a query."""
        return self.endpoint_paths[0]

    def headers(self, workarounds: frozenset[str]) -> Mapping[str, str]:
        """Headers of each request, without the key."""
        return {}

    @abstractmethod
    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """Body without system, messages and tools.

        Holds only what the request sets: servers refuse or ignore unknown fields, and an unset
        field keeps the server's default.
        """

    def merge_extra_body(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """Merge the person's `extra_body` into the parameters, in place."""
        own_values = json_object(extra.get(self.nested_field)) or {}
        joined = {**params.get(self.nested_field, {}), **own_values}
        params.update(extra)
        if joined:
            params[self.nested_field] = joined

    def offers_tools(self, request: ChatRequest, params: Mapping[str, Any]) -> bool:
        """True if the tools are sent. Without a parameter for `none` a server may call them."""
        if not request.tools or "tools" in self.unsupported_fields:
            return False
        return request.tool_choice != "none" or self.choice_field in params

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True if the server forces the answer into `output_schema`, also with these tools."""
        return False

    @abstractmethod
    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """Encode one tool under its name on the wire."""

    def system_text(self, request: ChatRequest) -> str:
        """System text, with everything that this wire can only say in words."""
        return request.system_prompt

    def group_messages(
        self, messages: Sequence[Message], workarounds: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """Group the messages that are encoded together; each group is encoded once."""
        return ((message,) for message in messages)

    @abstractmethod
    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        """Encode one group. The result must not depend on later messages: it is cached, and the
        provider's prompt cache needs the same bytes in each request."""

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """Fields for the system text beside the messages; None if it is the first message."""
        return None

    def read_models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """Read a list of models and the query of its next page. Raises ValueError."""
        field, parameter = self.next_page
        page = json_object(body) or {}
        # Anthropic names the last model also on the last page.
        mark = text_or_empty(page.get(field)) if page.get("has_more", True) else ""
        return read_model_list(body), mark and f"{parameter}={quote(mark, safe='')}"

    def context_in_use(self, model: str, extra_body: Mapping[str, Any], loaded: Any) -> int | None:
        """Tokens that the server keeps for a model; None if unknown.

        Args:
            model: the model of a request.
            extra_body: the person's, which may set the size.
            loaded: the answer at `loaded_path`; None if it was not asked.
        """
        return None


class Toolset:
    """Tools of a request, encoded once, and their names on the wire."""

    def __init__(self, tools: tuple[ToolSpec, ...], wire: Wire) -> None:
        self.tools = tools
        self.wire = wire
        self.names = WireNames(tool.name for tool in tools)
        self.encoded = dump_json(
            [wire.encode_tool(tool, self.names.to_wire(tool.name)) for tool in tools]
        )


def model_family(model: str) -> str:
    """A model's name without a date or `-latest`. All versions of a family read its reasoning."""
    return _DATED.sub("", model.lower())


def model_version(
    model: str, pattern: re.Pattern[str], default: tuple[int, int] = (0, 0)
) -> tuple[int, int]:
    """Version in a model's name, from the two groups of a pattern."""
    match = pattern.search(model)
    return (int(match[1]), int(match[2] or 0)) if match else default


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}


def name_and_description(spec: ToolSpec, name: str) -> dict[str, Any]:
    """A tool's name on the wire, and its description if it has one."""
    return {"name": name, **without_none({"description": spec.description or None})}


def effort_level(effort: str, levels: Mapping[str, str] | None = None) -> str:
    """Level of an effort, for servers that accept no number of tokens.

    Args:
        levels: the server's names for levels, if they differ.
    """
    if effort.isdecimal():
        effort = "low" if int(effort) <= 2048 else "medium" if int(effort) <= 8192 else "high"
    return (levels or {}).get(effort, effort)
