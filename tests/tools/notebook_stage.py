"""The notebook's tools on a plain namespace, as the tests of them call them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

from nbagent.contracts.chat import ToolCall
from nbagent.contracts.policy import CallPreview, ToolPolicy
from nbagent.contracts.ports import ToolOutcome
from nbagent.tools.base import HostOrder
from nbagent.tools.notebook import NotebookHost, open_hosts


def order(*words: str, policy: ToolPolicy | None = None) -> HostOrder:
    return HostOrder(words=words, project=Path(), policy=policy or ToolPolicy())


def the_host(*words: str, policy: ToolPolicy | None = None) -> NotebookHost:
    (host,) = open_hosts(order(*words, policy=policy))
    assert isinstance(host, NotebookHost)
    return host


class Notebook:
    """A namespace with the notebook's tools."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.names: dict[str, Any] = bench.namespace
        self.names["__name__"] = "__main__"
        self.host = the_host("nb")
        self.approved = ""

    def outcome(self, tool: str, /, **arguments: Any) -> ToolOutcome:
        context = dataclasses.replace(self.bench.context, approved=self.approved)
        call = _call(tool, arguments)
        return asyncio.run(self.host.execute(call, context, self.bench.cancel))

    def preview(self, tool: str, /, **arguments: Any) -> CallPreview:
        return asyncio.run(self.host.preview(_call(tool, arguments), self.bench.context))

    def data(self, tool: str, /, **arguments: Any) -> Any:
        result = self.outcome(tool, **arguments).result
        assert result.ok, result.error
        return json.loads(result.to_json())["data"]

    def error(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        result = self.outcome(tool, **arguments).result
        assert not result.ok, result.data
        return json.loads(result.to_json())["error"]

    def inspect(self, name: str) -> Any:
        return self.data("nb.inspect", name=name)

    def run(self, code: str) -> Any:
        return self.data("nb.run", code=code)

    def listed(self, **arguments: Any) -> dict[str, Any]:
        found = self.data("nb.variables", **arguments)
        return {line["name"]: line for line in found["variables"]}


def _call(tool: str, arguments: dict[str, Any]) -> ToolCall:
    raw = json.dumps(arguments)
    return ToolCall(id="call_1", name=tool, arguments=arguments, arguments_raw=raw)
