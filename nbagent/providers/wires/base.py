"""What a wire is: the facts of one request and answer format, without any I/O.

`exchange.WireClient` makes a client of it. A package of its own brings one through the entry
point `nbagent.providers`: a `Provider` whose `open` returns `WireClient(MyWire(), config, …)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ModelInfo, ToolSpec
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.answer.fields import text_or_empty
from nbagent.providers.answer.vendor_words import models_in
from nbagent.providers.transport.sse import Splitter, Sse
from nbagent.providers.wires.tool_names import WireNames

_DATED = re.compile(r"(?:[-@]\d{4}-?\d{2}-?\d{2}|-latest)$")


@dataclass(frozen=True, slots=True)
class Encoding:
    """What the bytes of a message depend on besides the message itself."""

    origin: str
    """Scheme, host and port of the server: what is opaque goes back only to where it is from."""
    model: str
    names: WireNames
    has_tools: bool = False
    flags: frozenset[str] = frozenset()
    """What was learnt of this model on this server; see `Wire.lesson`."""

    def from_here(self, message: Message) -> dict[str, Any]:
        """The message's `raw` when this server wrote it, else nothing."""
        raw = message.raw or {}
        return raw if raw.get("origin") == self.origin else {}

    def own(self, message: Message) -> dict[str, Any]:
        """The message's `raw` when this model family on this server wrote it, else nothing."""
        raw = self.from_here(message)
        return raw if family(str(raw.get("model") or "")) == family(self.model) else {}


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is done differently from now on for a model, because of a refusal."""

    flag: str
    text: str
    """One sentence for the person, without its full stop."""


class Parser(Protocol):
    """Reads one answer. A fresh one for each attempt."""

    done_ends: bool = False
    """Whether `[DONE]` is a last word of this wire."""
    _into: Assembly

    def __init__(self, request: ChatRequest, into: Assembly) -> None:
        self._into = into

    def event(self, name: bytes, data: Any) -> None:
        """Take one decoded frame of a stream. Raises ModelError."""
        ...

    def whole(self, body: Any) -> None:
        """Take a whole answer, as it comes without streaming. Raises ModelError."""
        self.event(b"", body)


class Wire(Protocol):
    """One request and answer format. Facts only; what most wires share is the default."""

    name: str
    parser: Callable[[ChatRequest, Assembly], Parser]
    home: str = "/v1"
    """The path of a base URL that names only a host."""
    endings: tuple[str, ...] = ()
    """Paths that people copy along with a base URL; the first one is what is asked."""
    framing: Callable[[], Splitter] = Sse
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    models_path: str = "/models"
    next_page: tuple[str, str] = ("", "")
    """The field of a list of models that names its next page, and the parameter for it."""
    messages_field: str = "messages"
    tools_form: bytes = b"%b"
    """What stands around the encoded list of tools."""
    choice_field: str = "tool_choice"
    """The parameter that says which tool may be called."""
    think_tags: bool = False
    """Reasoning may stand in the text, between tags."""
    lacks: frozenset[str] = frozenset()
    """Fields of a request that have no place on this wire; the person is told."""
    nested_field: str = ""
    """The parameter whose keys are joined with those of the same one in `extra_body`."""
    reserved: frozenset[str] = frozenset({"messages", "tools"})
    """Keys of the body that `extra_body` cannot set."""

    def suits(self, request: ChatRequest, flags: frozenset[str]) -> bool:
        """Whether this wire is the one for a model, where a server speaks several."""
        return True

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """What follows the base URL, with its slash; it may have a query."""
        return self.endings[0]

    def headers(self, flags: frozenset[str]) -> Mapping[str, str]:
        """Headers of each request, besides the key's."""
        return {}

    def params(
        self, request: ChatRequest, names: WireNames, flags: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        """All of the body but system, messages and tools. Only what was set is in it."""
        ...

    def join_extra(self, params: dict[str, Any], extra: Mapping[str, Any]) -> None:
        """Put the person's `extra_body` into the parameters, in place."""
        given = json_object(extra.get(self.nested_field)) or {}
        joined = {**params.get(self.nested_field, {}), **given}
        params.update(extra)
        if joined:
            params[self.nested_field] = joined

    def offers_tools(self, request: ChatRequest, params: Mapping[str, Any]) -> bool:
        """Whether the tools are sent: not when a server would call them against `none`."""
        unheard = request.tool_choice == "none" and self.choice_field not in params
        return bool(request.tools) and not unheard

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Whether the server binds the answer to `output_schema`, with these tools, too."""
        return False

    def tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        """One tool under its name on the wire."""
        ...

    def system(self, request: ChatRequest) -> str:
        """The system text, with what has to be said in words on this wire."""
        return request.system_prompt

    def groups(
        self, messages: Sequence[Message], flags: frozenset[str]
    ) -> Iterable[tuple[Message, ...]]:
        """The messages that are encoded together; each group is encoded once."""
        return ((message,) for message in messages)

    def encode(self, group: tuple[Message, ...], context: Encoding) -> list[Any]:
        """The wire's messages for one group. Depends on nothing that comes later."""
        ...

    def system_fields(self, text: str) -> dict[str, Any] | None:
        """Where the system text stands beside the messages; None: it is the first of them."""
        return None

    def models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        """The models of a list, and the query of its next page. Raises ValueError."""
        field, parameter = self.next_page
        page = json_object(body) or {}
        # Anthropic names the last model also where nothing follows.
        mark = text_or_empty(page.get(field)) if page.get("has_more", True) else ""
        return models_in(body), mark and f"{parameter}={quote(mark, safe='')}"

    def lesson(
        self, error: ModelError, request: ChatRequest, flags: frozenset[str]
    ) -> Lesson | None:
        """What to do differently after a refusal; None where there is nothing to learn."""
        return None


class Toolset:
    """The tools of a request: encoded once, and their names on the wire."""

    def __init__(self, tools: tuple[ToolSpec, ...], wire: Wire) -> None:
        self.tools = tools
        self.wire = wire
        self.names = WireNames(tool.name for tool in tools)
        self.encoded = dump_json([wire.tool(tool, self.names.to_wire(tool.name)) for tool in tools])


def family(model: str) -> str:
    """A model's name without a date or `-latest`: its reasoning can be read by all of these."""
    return _DATED.sub("", model.lower())


def version_in(
    model: str, pattern: re.Pattern[str], otherwise: tuple[int, int] = (0, 0)
) -> tuple[int, int]:
    """The generation in a model's name, as the two groups of a pattern find it."""
    found = pattern.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else otherwise


def only_set(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a request says anything about."""
    return {name: value for name, value in fields.items() if value is not None}


def described(spec: ToolSpec, name: str) -> dict[str, Any]:
    """A tool's name on the wire, with its description where it has one."""
    return {"name": name, **only_set({"description": spec.description or None})}


def effort_word(asked: str, words: Mapping[str, str] | None = None) -> str:
    """The level of an effort, for servers that take no number of tokens.

    Args:
        words: what a server calls the levels that it calls otherwise.
    """
    if asked.isdecimal():
        asked = "low" if int(asked) <= 2048 else "medium" if int(asked) <= 8192 else "high"
    return (words or {}).get(asked, asked)
