"""MCP servers as tool hosts of a run, by the words of `--tools`.

Owns the specs that a model is shown of its tools, what a person sees before a call, and the result
of one. All of a definition is a stranger's text: hints such as `readOnlyHint` decide nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.canonical import (
    dump_json,
    json_object,
    monotonic_ms,
    sha256_hex,
    sha_of,
)
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.shown.images import encoded_image
from nbagent.shown.texts import without_folders
from nbagent.tools.functions.outcome import failure_of, result_of
from nbagent.tools.host_config import HostOrder
from nbagent.tools.json_schema import legal_schema, visible
from nbagent.tools.mcp.config import ProjectServer, found
from nbagent.tools.mcp.server import MOST_TOOLS, McpServer
from nbagent.tools.progress import paced_progress
from nbagent.tools.tool_names import listed, unknown_call

if TYPE_CHECKING:
    from nbagent.tools.mcp.connection import Connection, Definitions

_LONGEST_NAME = 64
_DESCRIPTION_CHARS = 4_000
_MOST_CHARS = 200_000
"""Of all definitions of one server together; a model reads them at each request."""
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server."""

    spec: ToolSpec
    own_name: str
    """As the server calls it."""
    keys: Mapping[str, str]
    """The server's name of each parameter, by the one that the model is shown."""


class McpHost:
    """Lists and runs the tools of one server.

    Args:
        server: whose tools; of a project's server that was not allowed yet, the one tool starts it.
    """

    def __init__(self, server: McpServer | ProjectServer) -> None:
        self._server = server
        self._listed: Definitions | None = None
        self._tools: dict[str, ListedTool] = {}
        self.warnings: tuple[str, ...] = ()
        """What is odd about the server's tools, for the person."""

    @property
    def name(self) -> str:
        """`mcp:` and the server's name."""
        return f"mcp:{self._server.name}"

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """What the server lists; it is started first when it does not run.

        Raises:
            ToolError: it does not start.
        """
        server = self._server
        if not isinstance(server, McpServer):
            return [_start_spec(server)]
        if self._listed is None:
            if not server.is_running:
                context.waiting(f"the MCP server {server.name!r} starts")
            await self._update(server, anew=True)
        elif server.is_running:
            # One that died is started again by the next call, which says so when it cannot.
            with suppress(ToolError):
                await self._update(server)
        return [tool.spec for tool in self._tools.values()]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Look at a call. It is asked about, whatever the server says of its tool.

        Raises:
            ToolError: there is no such tool, or it cannot be called so.
        """
        server = self._server
        if not isinstance(server, McpServer):
            return self._prepared_start(server)
        await self._update(server)
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call(call.name, tuple(self._tools))
        arguments = call.arguments or {}
        for key in arguments:
            # Rules know a parameter by the name that the model is shown.
            if key in tool.keys.values() and key not in tool.keys:
                raise ToolError(
                    f"{call.name} has no parameter {key!r}; write it as its definition does",
                    code="E_INVALID_ARGUMENTS",
                )
        sent = {tool.keys.get(key, key): value for key, value in arguments.items()}
        whole = {"tool": tool.own_name, "arguments": sent}
        why = f"runs {tool.own_name!r} on the MCP server {server.name!r}; what it does is its own"
        preview = CallPreview(
            ruling="ask",
            why=visible(why, 300),
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("URL" if server.url is not None else "command", server.where),
                *([PreviewPiece("folder", server.cwd)] if server.cwd else []),
                *([PreviewPiece("sent as", _pretty(whole), "code")] if sent != arguments else []),
            ),
            # Another program may bear the same name.
            approval_key=sha_of([tool.spec.traits.sha, server.identity]),
            session_scope="every call",
        )

        async def run(context: ToolContext) -> ToolOutcome:
            started_ms = monotonic_ms()
            try:
                await self._update(server)
                now = self._tools.get(call.name)
                if now is None or now.spec.traits.sha != tool.spec.traits.sha:
                    raise ToolError(
                        f"the definition of {call.name} changed after the call was prepared; "
                        "call it again",
                        code="E_PRECONDITION_FAILED",
                    )
                answer = await _connection(server).call(now.own_name, sent, _progress(context))
                # A large picture takes its time.
                outcome = await asyncio.to_thread(_outcome_of, answer)
            except Exception as error:
                outcome = failure_of(error)
            return replace(outcome, ran_in="tool loop", started_at_ms=started_ms)

        return PreparedCall(spec=tool.spec, arguments=arguments, preview=preview, run=run)

    async def _update(self, server: McpServer, *, anew: bool = False) -> None:
        """Have the server run, and its tools as it listed them last."""
        # In a thread: the first time this imports much.
        connection = await asyncio.to_thread(_connection, server)
        definitions = await connection.definitions(anew=anew)
        if definitions is not self._listed:
            # In a thread: whoever wrote the definitions may want it to take long.
            self._tools, self.warnings = await asyncio.to_thread(offered, server, definitions)
            self._listed = definitions

    def _prepared_start(self, server: ProjectServer) -> PreparedCall:
        """The start of a project's server: no rule allows it, and what is shown is what starts."""

        async def start(context: ToolContext) -> ToolOutcome:
            try:
                self._server = allowed = server.allow()
                await self._update(allowed)
            except (ToolError, UsageError) as error:
                self._server = server
                # The model is not told where the file lies.
                said = error.message.replace(str(server.path), server.path.name)
                return failure_of(ToolError(said))
            result = ToolResult(ok=True, data={"tools": list(self._tools)})
            return ToolOutcome(result=result, ran_in="tool loop")

        preview = CallPreview(
            ruling="ask",
            minimum=True,
            why=f"starts the MCP server {server.name!r} that this project's file describes",
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("file", str(server.path)),
                PreviewPiece("what it starts", _pretty(server.entry), "code"),
            ),
            approval_key=server.identity,
            session_scope="every call",
        )
        return PreparedCall(spec=_start_spec(server), arguments={}, preview=preview, run=start)


def _start_spec(server: ProjectServer) -> ToolSpec:
    return ToolSpec(
        name=tool_name(server.name, "start_server"),
        display_name=f"start {server.name}",
        description=(
            f"Start the MCP server {server.name!r} of this project; the person is asked. "
            "Its tools can be called after that."
        ),
        traits=ToolTraits(host=f"mcp:{server.name}", ruling="ask", sha=server.identity),
    )


def offered(
    server: McpServer, definitions: Definitions
) -> tuple[dict[str, ListedTool], tuple[str, ...]]:
    """The tools under the names that a model is shown, and a warning of those left out."""
    tools: dict[str, ListedTool] = {}
    left_out, left_chars = list(definitions.left_out), _MOST_CHARS
    for raw in definitions.tools:
        own_name = str(raw.get("name") or "")
        name = tool_name(server.name, own_name)
        tool = _listed_tool(server, name, own_name, raw)
        size = len(tool.spec.description) + len(dump_json(tool.spec.parameters))
        if name in tools or size > left_chars:
            left_out.append(own_name)
        else:
            left_chars -= size
            tools[name] = tool
    if not left_out:
        return tools, ()
    names = listed(repr(visible(name, 60)) for name in left_out[:_MOST_NAMED])
    return tools, (
        f"{len(left_out):,} tools of the MCP server {server.name!r} are left out ({names}): each "
        "is not as the protocol wants it, the second of its name, or beyond "
        f"{MOST_TOOLS} tools or {_MOST_CHARS:,} characters",
    )


def tool_name(server: str, own_name: str) -> str:
    """`server__tool` with letters, digits, `_` and `-` only, at most 64 characters."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{own_name or 'tool'}")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}_{sha256_hex(own_name)[:8]}"


def _listed_tool(server: McpServer, name: str, own_name: str, raw: Mapping[str, Any]) -> ListedTool:
    shown = legal_schema(raw.get("inputSchema"))
    # An approval given to one server is not another's, whatever that calls itself.
    sha = sha_of([server.name, server.url or list(server.command), dict(raw)])
    spec = ToolSpec(
        name=name,
        display_name=visible(str(raw.get("title") or own_name), 80) or name,
        description=visible(str(raw.get("description") or ""), _DESCRIPTION_CHARS),
        parameters=shown.schema,
        traits=ToolTraits(host=f"mcp:{server.name}", ruling="ask", sha=sha),
    )
    return ListedTool(spec, own_name, shown.keys)


def _progress(context: ToolContext) -> Callable[[float, float | None, str | None], None]:
    """Hands a server's progress on."""
    show = paced_progress(context)

    def hand_on(done: float, total: float | None, text: str | None) -> None:
        fraction = min(max(done / total, 0.0), 1.0) if total and total > 0 else None
        show(lambda: visible(text or f"{done:g}", 500), fraction)

    return hand_on


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _outcome_of(answer: Any) -> ToolOutcome:
    """What a server gave back (the `mcp` package's `CallToolResult`), within a result's budget."""
    raw: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    blocks = [json_object(block) or {} for block in raw.get("content", [])]
    structured = raw.get("structuredContent")
    if answer.is_error:
        said = [str(block["text"]) for block in blocks if block.get("type") == "text"]
        message = visible("\n".join(said), 4_000) or "the tool failed without saying why"
        info = ErrorInfo("E_TOOL_FAILED", without_folders(message))
        return ToolOutcome(result=ToolResult.failure(info))
    if structured is not None:
        # For older clients servers say the same once more as text.
        blocks = [block for block in blocks if block.get("type") != "text"]
    items = [_item(block) for block in blocks]
    if structured is None:
        return result_of(items[0] if len(items) == 1 else items)
    return result_of({"structured": structured, "content": items} if items else structured)


def _item(block: dict[str, Any]) -> Any:
    """One piece of content: text, a picture, a link or an embedded resource, else its kind."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return _binary(block.get("data"), block.get("mimeType"))
    resource = block if kind == "resource_link" else json_object(block.get("resource")) or {}
    keys = ("uri", "name", "title", "description", "mimeType", "size", "text")
    shown: dict[str, Any] = {key: resource[key] for key in keys if key in resource}
    if "blob" in resource:
        shown["blob"] = _binary(resource["blob"], resource.get("mimeType"))
    return {visible(str(kind), 200): shown}


def _binary(data: object, mime: object) -> Any:
    """The picture that stands there in base64, else what it is."""
    with suppress(ValueError):  # It is no base64.
        if image := encoded_image(base64.b64decode(str(data), validate=True)):
            return image
    return f"[{visible(str(mime or 'data'), 200)}: not sent]"


def _connection(server: McpServer) -> Connection:
    """The connection of a server. Imports the package `mcp` the first time.

    Raises:
        UsageError: the package is missing or too old.
    """
    try:
        from nbagent.tools.mcp.connection import connection_of
    except ImportError as error:
        raise UsageError(
            f"MCP servers need the package mcp, version 2 ({error}); install it with "
            "%pip install 'nbagent[mcp]' and restart the kernel"
        ) from None
    return connection_of(server)


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """A host for each server that a word names (`mcp:git`); UsageError where there is none."""
    names = dict.fromkeys(word.removeprefix("mcp:") for word in order.words)
    return [McpHost(found(name, order.project)) for name in names]
