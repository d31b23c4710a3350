"""Several hosts as one, and the choice of tools by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.tools.base import HostSet
from nbagent.tools.functions import FunctionHost


class OtherHost:
    """A host whose tools change while it is used, as a server's do."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    @property
    def name(self) -> str:
        return "other"

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return [ToolSpec(name=name) for name in self.names]

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        return ToolOutcome(result=ToolResult(ok=True, data=f"other {call.name}"))


def greet() -> str:
    return "hello"


def call(hosts: ToolHost, bench: Any, name: str) -> ToolResult:
    made = ToolCall(id="1", name=name, arguments={}, arguments_raw="{}")
    return asyncio.run(hosts.execute(made, bench.context, bench.cancel)).result


def test_tools_of_all_hosts_are_listed_and_routed_by_name(bench: Any) -> None:
    hosts = HostSet([FunctionHost([greet]), OtherHost("fs.read")])
    assert hosts.name == "functions+other"
    assert [spec.name for spec in hosts.visible_tools(bench.context)] == ["greet", "fs.read"]
    assert call(hosts, bench, "greet").data == "hello"
    assert call(hosts, bench, "fs.read").data == "other fs.read"


def test_same_name_in_two_hosts_is_refused_and_names_both(bench: Any) -> None:
    hosts = HostSet([FunctionHost([greet]), OtherHost("greet")])
    with pytest.raises(UsageError, match=r"'functions' and 'other' both have a tool 'greet'"):
        hosts.visible_tools(bench.context)


def test_name_that_a_host_takes_later_stays_with_its_owner(bench: Any) -> None:
    other = OtherHost("a")
    hosts = HostSet([other, FunctionHost([greet])])
    hosts.visible_tools(bench.context)
    other.names.append("greet")
    assert [spec.name for spec in hosts.visible_tools(bench.context)] == ["a", "greet"]
    assert call(hosts, bench, "greet").data == "hello"


def test_unknown_tool_is_a_result_that_knows_all_hosts(bench: Any) -> None:
    error = call(HostSet([FunctionHost([greet]), OtherHost("a")]), bench, "gret").error
    assert error is not None
    assert error.code == "E_UNKNOWN_TOOL"
    assert "did you mean 'greet'? Use one of: greet, a" in error.message
