"""Exports a conversation as a training example, in OpenAI's format of fine-tuning files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ToolSpec
from nbagent.providers.servers import built_in_server
from nbagent.providers.wires.base import EncodingContext
from nbagent.providers.wires.chat import Chat
from nbagent.providers.wires.tool_names import WireNames


def training_line(messages: Sequence[Message], system: str, tools: Sequence[ToolSpec]) -> str:
    """Write one line of a file: `{"messages": […], "tools": […]}`, up to the last answer.

    Tool names and call ids are encoded for OpenAI's API.

    Raises:
        UsageError: the conversation has no answer of the model.
    """
    # Not the wire of the run: the file is OpenAI's, whichever provider answered.
    wire, names = Chat(built_in_server("openai").quirks), WireNames(tool.name for tool in tools)
    context = EncodingContext(origin="", model="", names=names, has_tools=bool(tools))
    encoded: list[Any] = [{"role": "system", "content": system}] if system else []
    for group in wire.group_messages(messages, frozenset()):
        encoded += wire.encode_group(group, context)
    # Training learns the assistant's messages; a stopped run ends with others.
    while encoded and encoded[-1]["role"] != "assistant":
        encoded.pop()
    if not encoded:
        raise UsageError(
            "the run has no answer to train on; export another format, such as 'jsonl'"
        )
    wire_tools = [wire.encode_tool(tool, names.to_wire(tool.name)) for tool in tools]
    example = {"messages": encoded, **({"tools": wire_tools} if wire_tools else {})}
    return f"{dump_json(example).decode()}\n"
