"""What holds for every tool host. A new host adds one entry to HOSTS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import CODES
from nbagent.contracts.ports import ToolContext, ToolHost, ToolOutcome
from nbagent.providers.names import WireNames
from nbagent.runtime import Courier
from nbagent.tools.base import HostSet
from nbagent.tools.functions import FunctionHost, tool


@tool
async def echo(text: str, times: int = 1) -> dict[str, Any]:
    """Give a text back.

    Args:
        text: What to give back.
        times: How often.
    """
    return {"text": text * times}


@tool(name="files.wait")
async def wait(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


@tool
async def fail() -> None:
    """Fail."""
    raise LookupError("nothing there")


def functions() -> ToolHost:
    return FunctionHost([echo, wait, fail])


def joined() -> ToolHost:
    return HostSet([FunctionHost([echo, fail]), FunctionHost([wait])])


HOSTS: dict[str, Callable[[], ToolHost]] = {"functions": functions, "joined": joined}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> ToolHost:
    return HOSTS[request.param]()


def context() -> ToolContext:
    return ToolContext(run_id="0" * 16, session="default", turn_id="C01", runner=Courier())


def executed(host: ToolHost, name: str, arguments: dict[str, Any]) -> ToolOutcome:
    call = ToolCall(id="c1", name=name, arguments=arguments, arguments_raw=json.dumps(arguments))
    return asyncio.run(host.execute(call, context(), CancelToken()))


def specs_of(host: ToolHost) -> list[ToolSpec]:
    return list(host.visible_tools(context()))


def test_every_schema_is_an_object_of_plain_json(host: ToolHost) -> None:
    for spec in specs_of(host):
        assert spec.parameters["type"] == "object"
        assert isinstance(spec.parameters["properties"], dict)
        assert json.loads(json.dumps(spec.parameters, allow_nan=False)) == spec.parameters
        assert spec.description
        assert spec.traits.sha
        assert spec.traits.host


def test_every_name_travels_on_the_wire_and_back(host: ToolHost) -> None:
    names = [spec.name for spec in specs_of(host)]
    wire = WireNames(names)
    assert [wire.from_wire(wire.to_wire(name)) for name in names] == names


def test_listing_twice_gives_the_same_tools(host: ToolHost) -> None:
    assert specs_of(host) == specs_of(host)


def test_a_result_is_json_with_the_data(host: ToolHost) -> None:
    outcome = executed(host, "echo", {"text": "ab", "times": 2})
    assert json.loads(outcome.result.to_json()) == {"ok": True, "data": {"text": "abab"}}
    assert outcome.ran_in is not None


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("fail", {}, "E_TOOL_FAILED"),
        ("nowhere", {}, "E_UNKNOWN_TOOL"),
        ("echo", {"text": []}, "E_INVALID_ARGUMENTS"),
        ("echo", {}, "E_INVALID_ARGUMENTS"),
    ],
    ids=["raises", "unknown", "wrong type", "missing"],
)
def test_what_goes_wrong_is_a_typed_error(
    host: ToolHost, name: str, arguments: dict[str, Any], code: str
) -> None:
    outcome = executed(host, name, arguments)
    assert outcome.result.error is not None
    assert outcome.result.error.code == code
    assert code in CODES
    assert outcome.result.error.message


def test_a_stop_ends_a_waiting_tool(host: ToolHost) -> None:
    async def stopped() -> tuple[ToolOutcome, float]:
        cancel = CancelToken()
        call = ToolCall(id="c1", name="files.wait", arguments={"seconds": 30}, arguments_raw="")
        task = asyncio.ensure_future(host.execute(call, context(), cancel))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        cancel.set()
        return await task, time.monotonic() - began

    outcome, took = asyncio.run(stopped())
    assert outcome.result.error is not None
    assert outcome.result.error.code == "E_INTERRUPTED"
    assert took < 5


def test_a_tool_gets_a_copy_of_its_arguments(host: ToolHost) -> None:
    arguments = {"text": "ab", "times": "2"}
    executed(host, "echo", arguments)
    assert arguments == {"text": "ab", "times": "2"}
