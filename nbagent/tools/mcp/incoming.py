"""What a server sends, made fit for the protocol's package before that reads it.

Owns leaving single tools out of a listing and answering in place of an answer that cannot be read:
the package refuses a whole listing for one bad schema, and waits for ever for what is no JSON to
it. Imports `mcp`: only `wire` and `stdio` import this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mcp_types.methods import validate_server_result

from nbagent.contracts.canonical import json_object
from nbagent.tools.mcp.life import UNREADABLE, Life

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams

_DEEPEST = 100
_EDGE_BYTES = 400
_ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,200}")'
_FIRST = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*' + _ID + rb'\s*,\s*"result"')
_LAST = re.compile(
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'(?:\s*,\s*"jsonrpc"\s*:\s*"2\.0")?\s*\}\s*\Z'
)
_RESULT_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"result"')

Received = SessionMessage | Exception


@asynccontextmanager
async def checked(
    transport: Transport, life: Life, version: Callable[[], str]
) -> AsyncGenerator[TransportStreams]:
    """The transport, with listings that the package can read."""
    async with transport as (read, write):
        yield _Incoming(read, life, version), write


class _Incoming:
    """A stream of messages with the listings among them put right."""

    def __init__(
        self, stream: ReadStream[Received], life: Life, version: Callable[[], str]
    ) -> None:
        self._stream, self._life, self._version = stream, life, version

    @property
    def last_context(self) -> Any:
        """The sender's context, where the stream knows it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Received:
        """The next message."""
        return self._put_right(await self._stream.receive())

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Received:
        return self._put_right(await self._stream.__anext__())

    async def __aenter__(self) -> _Incoming:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)

    def _put_right(self, item: Received) -> Received:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse):
            tools: Any = message.result.get("tools")
            if isinstance(tools, list):
                message.result["tools"] = [
                    tool for tool in cast("list[Any]", tools) if self._is_usable(tool)
                ]
        return item

    def _is_usable(self, tool: Any) -> bool:
        # What a listing of either protocol has beside its tools.
        whole = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        try:
            validate_server_result("tools/list", self._version(), whole)
            types.ListToolsResult.model_validate(whole, by_name=False)
        except KeyError:
            return True  # A protocol that the package does not check.
        except (ValueError, RecursionError):
            self._life.leave_out(_name_of(tool))
            return False
        return True


def readable(line: bytes, life: Life) -> SessionMessage | None:
    """In place of a message that the package cannot read, one that it can; None for no message."""
    try:
        whole = json_object(json.loads(line))
    except RecursionError:
        whole = None
    except ValueError:
        return None
    result = json_object((whole or {}).get("result"))
    tools: Any = None if result is None else result.get("tools")
    if whole is not None and result is not None and isinstance(tools, list):
        kept: list[Any] = []
        for tool in cast("list[Any]", tools):
            if _is_deep(tool):
                life.leave_out(_name_of(tool))
            else:
                kept.append(tool)
        less = json.dumps({**whole, "result": {**result, "tools": kept}})
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(less, by_name=False))
        except ValueError:
            return None
    return _error_for(line)


def _error_for(line: bytes) -> SessionMessage | None:
    """An error for the call that the line answers, when it says so at its start or its end."""
    found = _FIRST.match(line[:_EDGE_BYTES])
    if found is None and _RESULT_FIRST.match(line[:_EDGE_BYTES]):
        found = _LAST.search(line[-_EDGE_BYTES:])
    if found is None:
        return None
    told = "it is nested too deeply to be read; ask for less of it"
    error = types.ErrorData(code=UNREADABLE, message=told)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=json.loads(found[1]), error=error))


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _name_of(tool: Any) -> str:
    return str((json_object(tool) or {}).get("name") or "without a name")
