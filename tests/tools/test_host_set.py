"""Several hosts as one, and the choice of tools by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from host_door import HostDoor

from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.tools.base import HostSet
from nbagent.tools.function_host import FunctionHost


class OtherHost:
    """A host whose tools change while it is used, as a server's do."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    @property
    def name(self) -> str:
        return "other"

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return [ToolSpec(name=name) for name in self.names]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        async def run(context: ToolContext) -> ToolOutcome:
            return ToolOutcome(result=ToolResult(ok=True, data=f"other {call.name}"))

        return PreparedCall(spec=ToolSpec(name=call.name), arguments={}, run=run)


def greet() -> str:
    return "hello"


def test_tools_of_all_hosts_are_listed_and_routed_by_name() -> None:
    door = HostDoor(HostSet([FunctionHost([greet]), OtherHost("fs.read")]))
    assert door.host.name == "functions+other"
    assert list(door.specs) == ["greet", "fs.read"]
    assert door.data("greet") == "hello"
    assert door.data("fs.read") == "other fs.read"


def test_same_name_in_two_hosts_is_refused_and_names_both() -> None:
    door = HostDoor(HostSet([FunctionHost([greet]), OtherHost("greet")]))
    with pytest.raises(UsageError, match=r"'functions' and 'other' both have a tool 'greet'"):
        assert door.specs


def test_name_that_a_host_takes_later_stays_with_its_owner() -> None:
    other = OtherHost("a")
    door = HostDoor(HostSet([other, FunctionHost([greet])]))
    assert list(door.specs) == ["a", "greet"]
    other.names.append("greet")
    assert list(door.specs) == ["a", "greet"]
    assert door.data("greet") == "hello"


def test_unknown_tool_is_a_result_that_knows_all_hosts() -> None:
    error = HostDoor(HostSet([FunctionHost([greet]), OtherHost("a")])).error("gret")
    assert error.code == "E_UNKNOWN_TOOL"
    assert "did you mean 'greet'? Use one of: greet, a" in error.message
