"""MCP servers as tool hosts of a run.

Owns the specs for the model, the previews for the person, and the results of calls. Everything in a
definition is untrusted: hints such as `readOnlyHint` have no influence on approvals.
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
from nbagent.contracts.canonical import dump_json, json_object, monotonic_ms, sha256_hex, sha_of
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.nearest import name_list
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.files.patching import diff_of
from nbagent.settings.project_items import current_state
from nbagent.shown.images import encoded_image
from nbagent.shown.texts import without_folders
from nbagent.tools.functions.outcome import failure_outcome, value_outcome
from nbagent.tools.host_config import HostConfig
from nbagent.tools.json_schema import portable_schema, sanitize_text
from nbagent.tools.mcp.config import ProjectServer, find_server
from nbagent.tools.mcp.server import MAX_TOOLS, McpServer
from nbagent.tools.progress import throttled_progress
from nbagent.tools.tool_names import unknown_call_error

if TYPE_CHECKING:
    from nbagent.tools.mcp.connection import Connection, Definitions

_MAX_NAME_CHARS = 64
_DESCRIPTION_CHARS = 4_000
_MAX_DEFINITION_CHARS = 200_000
"""Limit for all definitions of one server together: they are sent with each request."""
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server."""

    spec: ToolSpec
    own_name: str
    """As the server calls it."""
    own_names: Mapping[str, str]
    """The server's name of each parameter, by its name in the schema for the model."""


class McpHost:
    """Lists and runs the tools of one server.

    Args:
        server: the server. A project's server that is not allowed yet has only one tool, which
            starts it after an approval.
    """

    def __init__(self, server: McpServer | ProjectServer) -> None:
        self._server = server
        self._definitions: Definitions | None = None
        self._tools: dict[str, ListedTool] = {}
        self.warnings: tuple[str, ...] = ()
        """Notices about the server's tools, for the person."""

    @property
    def name(self) -> str:
        """`mcp:` and the server's name."""
        return f"mcp:{self._server.name}"

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """List the tools; start the server if it does not run.

        Raises:
            ToolError: it does not start.
        """
        server = self._server
        if not isinstance(server, McpServer):
            return [_start_spec(server)]
        if self._definitions is None:
            if not server.is_running:
                context.waiting(f"the MCP server {server.name!r} starts")
            await self._update(server, refresh=True)
        elif server.is_running:
            # A failure is not reported here: the next call restarts the server or fails.
            with suppress(ToolError):
                await self._update(server)
        return [tool.spec for tool in self._tools.values()]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call and preview it. It always asks, whatever the definition says.

        Raises:
            ToolError: there is no such tool, or a parameter has a wrong name.
        """
        server = self._server
        if not isinstance(server, McpServer):
            return await self._prepared_start(server)
        await self._update(server)
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call_error(call.name, tuple(self._tools))
        arguments = call.arguments or {}
        for key in arguments:
            # Otherwise a model could bypass a rule, which uses the name that the model is shown.
            if key in tool.own_names.values() and key not in tool.own_names:
                raise ToolError(
                    f"{call.name} has no parameter {key!r}; write it as its definition does",
                    code="E_INVALID_ARGUMENTS",
                )
        sent = {tool.own_names.get(key, key): value for key, value in arguments.items()}
        whole = {"tool": tool.own_name, "arguments": sent}
        why = f"runs {tool.own_name!r} on the MCP server {server.name!r}; its effects are unknown"
        preview = CallPreview(
            ruling="ask",
            why=sanitize_text(why, 300),
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("URL" if server.url is not None else "command", server.where),
                *([PreviewPiece("folder", server.cwd)] if server.cwd else []),
                *(
                    [PreviewPiece("sent as", _indented_json(whole), "code")]
                    if sent != arguments
                    else []
                ),
            ),
            # With the identity: another program may have the same name and definitions.
            approval_key=sha_of([tool.spec.traits.sha, server.identity]),
            session_scope="every call",
        )

        async def run(context: ToolContext) -> ToolOutcome:
            started_ms = monotonic_ms()
            try:
                await self._update(server)
                current = self._tools.get(call.name)
                if current is None or current.spec.traits.sha != tool.spec.traits.sha:
                    raise ToolError(
                        f"the definition of {call.name} changed after the call was prepared; "
                        "call it again",
                        code="E_PRECONDITION_FAILED",
                    )
                answer = await _connection(server).call(current.own_name, sent, _progress(context))
                # In a thread: decoding a large picture would block the engine's loop.
                outcome = await asyncio.to_thread(_call_outcome, answer)
            except Exception as error:
                outcome = failure_outcome(error)
            return replace(outcome, ran_in="tool loop", started_at_ms=started_ms)

        return PreparedCall(spec=tool.spec, arguments=arguments, preview=preview, run=run)

    async def _update(self, server: McpServer, *, refresh: bool = False) -> None:
        """Start the server if necessary and take its last listing."""
        # In a thread: the first time, this imports the package `mcp`.
        connection = await asyncio.to_thread(_connection, server)
        definitions = await connection.definitions(refresh=refresh)
        if definitions is not self._definitions:
            # In a thread: a hostile server can send definitions that take long to convert.
            self._tools, self.warnings = await asyncio.to_thread(build_tools, server, definitions)
            self._definitions = definitions

    async def _prepared_start(self, described: ProjectServer) -> PreparedCall:
        """Prepare the start of a project's server. No rule can allow it: the person must agree."""
        # In a thread: it reads the files that the entry names.
        self._server = server = await asyncio.to_thread(described.refreshed)

        async def start(context: ToolContext) -> ToolOutcome:
            try:
                self._server = allowed = await asyncio.to_thread(server.allow)
                await self._update(allowed)
            except (ToolError, UsageError) as error:
                self._server = server
                # Hide the folder of the file from the model.
                message = error.message.replace(str(server.path), server.path.name)
                return failure_outcome(ToolError(message))
            result = ToolResult(ok=True, data={"tools": list(self._tools)})
            return ToolOutcome(result=result, ran_in="tool loop")

        preview = CallPreview(
            ruling="ask",
            minimum=True,
            why=f"starts the MCP server {server.name!r} that this project's file describes",
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("file", str(server.path)),
                *_change_pieces(server),
                PreviewPiece("what it starts", server.item.text, "code"),
            ),
            approval_key=server.identity,
            session_scope="every call",
        )
        return PreparedCall(spec=_start_spec(server), arguments={}, preview=preview, run=start)


def _change_pieces(server: ProjectServer) -> list[PreviewPiece]:
    """The difference to the entry that the person allowed before, if there was one."""
    before = current_state(server.item).previous
    if before is None:
        return []
    diff = diff_of(before, server.item.text, server.item.name)
    return [PreviewPiece("changed since you allowed it", diff, "diff")]


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


def build_tools(
    server: McpServer, definitions: Definitions
) -> tuple[dict[str, ListedTool], tuple[str, ...]]:
    """Build the tools by the names that a model is shown; also return a warning about the rest."""
    tools: dict[str, ListedTool] = {}
    left_out, left_chars = list(definitions.left_out), _MAX_DEFINITION_CHARS
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
    names = name_list(repr(sanitize_text(name, 60)) for name in left_out[:_MAX_NAMED])
    return tools, (
        f"{len(left_out):,} tools of the MCP server {server.name!r} are left out ({names}): their "
        "definition is not valid, their name is already used, or they exceed "
        f"{MAX_TOOLS} tools or {_MAX_DEFINITION_CHARS:,} characters",
    )


def tool_name(server: str, own_name: str) -> str:
    """`server__tool` with letters, digits, `_` and `-` only, at most 64 characters.

    OpenAI and Anthropic take no other names. A cut name ends in a hash, so that it stays unique.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{own_name or 'tool'}")
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{name[: _MAX_NAME_CHARS - 9]}_{sha256_hex(own_name)[:8]}"


def _listed_tool(server: McpServer, name: str, own_name: str, raw: Mapping[str, Any]) -> ListedTool:
    shown = portable_schema(raw.get("inputSchema"))
    # With name and command: an approval of one server's tool must not be valid for another server.
    sha = sha_of([server.name, server.url or list(server.command), dict(raw)])
    spec = ToolSpec(
        name=name,
        display_name=sanitize_text(str(raw.get("title") or own_name), 80) or name,
        description=sanitize_text(str(raw.get("description") or ""), _DESCRIPTION_CHARS),
        parameters=shown.schema,
        traits=ToolTraits(host=f"mcp:{server.name}", ruling="ask", sha=sha),
    )
    return ListedTool(spec, own_name, shown.own_names)


def _progress(context: ToolContext) -> Callable[[float, float | None, str | None], None]:
    """Return a callback that shows a server's progress."""
    show = throttled_progress(context)

    def hand_on(done: float, total: float | None, text: str | None) -> None:
        fraction = min(max(done / total, 0.0), 1.0) if total and total > 0 else None
        show(lambda: sanitize_text(text or f"{done:g}", 500), fraction)

    return hand_on


def _indented_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _call_outcome(answer: Any) -> ToolOutcome:
    """Convert a `CallToolResult` of the `mcp` package to an outcome within its budget."""
    raw: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    blocks = [json_object(block) or {} for block in raw.get("content", [])]
    structured = raw.get("structuredContent")
    if answer.is_error:
        texts = [str(block["text"]) for block in blocks if block.get("type") == "text"]
        message = sanitize_text("\n".join(texts), 4_000) or "the tool failed without saying why"
        info = ErrorInfo("E_TOOL_FAILED", without_folders(message))
        return ToolOutcome(result=ToolResult.failure(info))
    if structured is not None:
        # Servers repeat structured content as text for older clients (MCP specification).
        blocks = [block for block in blocks if block.get("type") != "text"]
    items = [_content_item(block) for block in blocks]
    if structured is None:
        return value_outcome(items[0] if len(items) == 1 else items)
    return value_outcome({"structured": structured, "content": items} if items else structured)


def _content_item(block: dict[str, Any]) -> Any:
    """Convert one content block: text, picture, link or embedded resource; else its kind."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return _image_or_label(block.get("data"), block.get("mimeType"))
    resource = block if kind == "resource_link" else json_object(block.get("resource")) or {}
    keys = ("uri", "name", "title", "description", "mimeType", "size", "text")
    shown: dict[str, Any] = {key: resource[key] for key in keys if key in resource}
    if "blob" in resource:
        shown["blob"] = _image_or_label(resource["blob"], resource.get("mimeType"))
    return {sanitize_text(str(kind), 200): shown}


def _image_or_label(data: object, mime: object) -> Any:
    """Decode a picture; for other or invalid data return a label with its MIME type."""
    with suppress(ValueError):  # Invalid base64.
        if image := encoded_image(base64.b64decode(str(data), validate=True)):
            return image
    return f"[{sanitize_text(str(mime or 'data'), 200)}: not sent]"


def _connection(server: McpServer) -> Connection:
    """Return the connection of a server. The first call imports the package `mcp`.

    Raises:
        UsageError: the package is missing or too old.
    """
    try:
        from nbagent.tools.mcp.connection import connection_of
    except ImportError as error:
        raise UsageError(
            f"MCP servers need the package mcp, version 2 ({error}); install it with "
            "%pip install 'mcp>=2.3' and restart the kernel"
        ) from None
    return connection_of(server)


def open_hosts(config: HostConfig) -> Sequence[ToolHost]:
    """Open a host for each named server (`mcp:git`); raise UsageError for an unknown one."""
    names = dict.fromkeys(word.removeprefix("mcp:") for word in config.names)
    return [McpHost(find_server(name, config.project)) for name in names]
