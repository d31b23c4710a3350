"""A function with one parameter of any hint, and a call as the engine makes it."""

# No `from __future__ import annotations`: the hints of the tools are local.

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from legal_schema import check_legal

from nbagent.contracts.chat import ToolCall
from nbagent.contracts.ports import ToolOutcome
from nbagent.tools.functions import FunctionHost

# Without types of its own, unlike numpy.
pd: Any = importlib.import_module("pandas")


def probe_of(hint: Any, got: list[Any] | None = None) -> Callable[..., Any]:
    """A function of one `value`, which it keeps."""

    def probe(value) -> None:  # pyright: ignore
        if got is not None:
            got.append(value)

    probe.__annotations__ = {"value": hint}
    return probe  # pyright: ignore


def call(target: Any, bench: Any, arguments: dict[str, Any]) -> ToolOutcome:
    """Through the host, as the engine calls."""
    host = FunctionHost([target])
    (spec,) = host.visible_tools(bench.context)
    check_legal(spec)
    made = ToolCall(id="1", name=spec.name, arguments=arguments, arguments_raw="")
    return asyncio.run(host.execute(made, bench.context, bench.cancel))
