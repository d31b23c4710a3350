"""Tools and conversations for the tests of offline:demo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import (
    ChatRequest,
    ChatResponse,
    Message,
    ProviderConfig,
    TextPart,
    ToolSpec,
)
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.records import ToolResult
from nbagent.providers.offline import PROVIDER

Schema = dict[str, Any]
Called = tuple[str, dict[str, Any]]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


@dataclass
class Tool:
    """A tool of a test: what the model sees, and what it does."""

    name: str
    description: str
    parameters: Mapping[str, Schema]
    run: Callable[..., Any]
    optional: Sequence[str] = ()
    defs: Mapping[str, Schema] = field(default_factory=dict[str, Schema])

    def spec(self) -> ToolSpec:
        schema: Schema = {
            "type": "object",
            "properties": dict(self.parameters),
            "required": [name for name in self.parameters if name not in self.optional],
        }
        if self.defs:
            schema["$defs"] = dict(self.defs)
        return ToolSpec(name=self.name, description=self.description, parameters=schema)


@dataclass
class Talk:
    """A conversation with the demo, and every call that it made."""

    tools: Sequence[Tool]
    tool_choice: str | None = None
    messages: list[Message] = field(default_factory=list[Message])
    calls: list[Called] = field(default_factory=list[Called])

    def ask(self, prompt: str) -> str:
        """Say something, run the tools that are called, and give the answer's text."""
        self.messages.append(Message.of("user", prompt))
        first = True
        for _ in range(12):
            response = respond(self.messages, self.tools, self.tool_choice if first else None)
            first = False
            self.messages.append(response.message)
            if not response.message.tool_calls:
                assert response.finish_reason == "stop"
                return response.message.text
            assert response.finish_reason == "tool_calls"
            for call in response.message.tool_calls:
                assert call.arguments is not None
                self.calls.append((call.name, call.arguments))
                self._result(call.id, call.name, call.arguments)
        raise AssertionError(f"no answer after 12 turns: {self.calls}")

    def _result(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        tool = next(one for one in self.tools if one.name == name)
        try:
            result = ToolResult(ok=True, data=tool.run(**arguments))
        except ToolError as error:
            result = ToolResult.failure(error.info)
        except Exception as error:
            info = ErrorInfo("E_TOOL_FAILED", f"{type(error).__name__}: {error}")
            result = ToolResult.failure(info)
        content = (TextPart(text=result.to_json().decode()),)
        self.messages.append(Message(role="tool", tool_call_id=call_id, name=name, content=content))


def written(calls: Iterable[Called]) -> str:
    """Calls as one line: `population(city="Oslo"); uptime()`."""
    return "; ".join(
        f"{name}({', '.join(f'{key}={dump_json(value).decode()}' for key, value in given.items())})"
        for name, given in calls
    )


def respond(
    messages: Sequence[Message], tools: Sequence[Tool], tool_choice: str | None = None
) -> ChatResponse:
    client = PROVIDER.open(ProviderConfig())
    request = ChatRequest(
        model="demo",
        messages=tuple(messages),
        tools=tuple(tool.spec() for tool in tools),
        tool_choice=tool_choice,
    )
    return asyncio.run(client.chat(request))


def offered(value: Any) -> Callable[..., Any]:
    """A tool that gives the same whatever it is asked."""

    def give(**arguments: Any) -> Any:
        return value

    return give


def one_of(data: Mapping[str, Any]) -> Callable[..., Any]:
    """A tool that looks its only argument up."""

    def look_up(**arguments: Any) -> Any:
        (key,) = arguments.values()
        return data[key]

    return look_up


PEOPLE = {"Oslo": 709037, "Bergen": 291940, "Rome": 2748109, "New York": 8258035}
population = Tool("population", "People living in a city.", {"city": STRING}, one_of(PEOPLE))
MOONS = {"Titan": 1345.2, "Europa": 480.0, "Io": 893.2}
moon_mass = Tool("moon_mass", "Mass of a moon in 10^20 kg.", {"moon": STRING}, one_of(MOONS))
ticket = Tool("ticket_status", "State of a ticket.", {"ticket_id": STRING}, offered("open"))
uptime = Tool("uptime", "How long the machine has been running.", {}, offered("3 days"))
