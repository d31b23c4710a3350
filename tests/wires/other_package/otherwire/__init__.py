"""A server in a package of its own: one row, with a wire that was made up for this example.

Asked is `{"model", "lines": [[role, text], …]}`; the events that answer are `{"say": text}` and,
at the end, `{"over": tokens}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbagent.contracts.deltas import TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ModelInfo, ToolSpec, Usage
from nbagent.providers.answer.wire_deltas import (
    Finish,
    LastEvent,
    Progress,
    ServerFault,
    UsageReport,
    WireDelta,
)
from nbagent.providers.server_row import Server
from nbagent.providers.wires.base import EncodingContext, Parser, Wire
from nbagent.providers.wires.encoding import answer_text, text_or_part, unsupported_file
from nbagent.providers.wires.tool_names import WireNames


class OtherWire(Wire):
    """Facts alone: attempts, deadlines, retries and cut answers are nbagent's."""

    name = "otherwire"
    messages_field = "lines"
    key_header, key_prefix = "X-Other-Key", ""
    unsupported_fields = frozenset(ChatRequest.model_fields) - {
        *("model", "messages", "system_prompt"),
    }

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        return "/talk"

    def params(
        self, request: ChatRequest, names: WireNames, workarounds: frozenset[str], *, stream: bool
    ) -> dict[str, Any]:
        return {"model": request.model}

    def encode_tool(self, spec: ToolSpec, name: str) -> dict[str, Any]:
        return {}

    def encode_group(self, group: tuple[Message, ...], context: EncodingContext) -> list[Any]:
        return [[message.role, text_of(message)] for message in group]

    def system_fields(self, text: str) -> dict[str, Any] | None:
        return {"system": text}

    def parser(self, request: ChatRequest, progress: Progress) -> Parser:
        return OtherParser(request, progress)

    def read_models(self, body: Any) -> tuple[list[ModelInfo], str | None]:
        return [ModelInfo(id=item["id"]) for item in body["data"]], None


def text_of(message: Message) -> str:
    """Text of a message, with the text of its files. This server takes nothing else."""
    if message.role == "assistant":
        return answer_text(message)
    texts: list[str] = []
    for shown in map(text_or_part, message.content):
        if not isinstance(shown, str):
            raise unsupported_file(shown, "Otherwire")
        texts.append(shown)
    return "\n".join(texts)


class OtherParser(Parser):
    """One answer."""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        if "error" in data:
            text = f"{data['error']}; try again."
            yield ServerFault(ModelError(text, code="LLM_BAD_RESPONSE"))
        if "say" in data:
            yield TextPiece(data["say"])
        if "over" in data:
            yield UsageReport(Usage(completion_tokens=data["over"], total_tokens=data["over"]))
            yield Finish("stop")
            yield LastEvent()


PROVIDER = Server(
    name="otherwire",
    wires=lambda row, config: [OtherWire()],
    key_variables=("OTHERWIRE_KEY",),
    base_url_variables=("OTHERWIRE_URL",),
    default_base_url="https://talk.example.org/v1",
    default_model="x",
)
