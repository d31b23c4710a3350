"""One MCP server as a tool host of one run.

Owns the specs that a model is shown of its tools, what a person sees before a call, and the result
of one. All of a definition is a stranger's text: hints such as `readOnlyHint` decide nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nbagent.contracts.canonical import (
    dump_json,
    json_object,
    load_json,
    monotonic_ms,
    sha256_hex,
    sha_of,
)
from nbagent.contracts.chat import ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.policy import CallPreview, PreviewPiece
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact, redact_json
from nbagent.shown import without_folders
from nbagent.shown.pictures import encoded_image
from nbagent.tools.base import listed, nearest, unknown_call
from nbagent.tools.json_schema import legal_schema, visible
from nbagent.tools.mcp.server import MOST_TOOLS, McpServer, prefix_of
from nbagent.tools.results import detail_of, result_of

if TYPE_CHECKING:
    from nbagent.tools.mcp.config import ProjectServer
    from nbagent.tools.mcp.connection import Connection, Definitions

_LONGEST_NAME = 64
_DESCRIPTION_CHARS = 4_000
_MOST_CHARS = 200_000
"""Of all definitions of one server together; a model reads them at each request."""
_PROGRESS_EVERY_MS = 40.0
_MOST_BLOCKS = 200
_LARGEST_DATA_CHARS = 70_000_000


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
        only: the names (`server__tool`) that are offered; all by default.
    """

    def __init__(
        self, server: McpServer | ProjectServer, only: Iterable[str] | None = None
    ) -> None:
        self._server = server
        self._only = None if only is None else tuple(dict.fromkeys(only))
        self._listed: Definitions | None = None
        self._failure: ToolError | None = None
        """Why the server did not start: it is tried once for a run."""
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
            UsageError: it has no tool of a name that was asked for.
        """
        server = self._server
        if not isinstance(server, McpServer):
            return [_start_spec(server)]
        if self._listed is not None:
            # One that died is started again by the next call, which says so when it cannot.
            if server.is_running:
                with suppress(ToolError):
                    await self._update(server)
            return self._specs()
        if self._failure is not None:
            raise self._failure
        try:
            if not server.is_running:
                context.waiting(f"the MCP server {server.name!r} starts")
            await self._update(server, anew=True)
        except ToolError as error:
            where = f"{error.message} ({server.where})"  # For the person alone.
            self._failure = ToolError(where, code=error.code, details=error.details)
            raise self._failure from error
        self._check_named(server)
        return self._specs()

    def _specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Look at a call. It is asked about, whatever the server says of its tool.

        Raises:
            ToolError: there is no such tool, or it cannot be called so.
        """
        server = self._server
        if not isinstance(server, McpServer):
            if call.name != (spec := _start_spec(server)).name:
                raise unknown_call(call.name, (spec.name,))
            return self._prepared_start(server, spec)
        await self._update(server)
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call(call.name, tuple(self._tools))
        # The model may write a parameter as the server calls it.
        ours = {theirs: name for name, theirs in tool.keys.items()}
        arguments = {ours.get(key, key): value for key, value in (call.arguments or {}).items()}
        if len(arguments) < len(call.arguments or {}):
            raise ToolError(
                f"an argument of {call.name} is given twice, under two names; give it once",
                code="E_INVALID_ARGUMENTS",
            )
        sent = {tool.keys.get(name, name): value for name, value in arguments.items()}
        whole = {"tool": tool.own_name, "arguments": redact_json(sent)}
        why = f"runs {tool.own_name!r} on the MCP server {server.name!r}; what it does is its own"
        binds = _binds(tool, server)
        preview = CallPreview(
            ruling="ask",
            why=visible(why, 300),
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("URL" if server.url is not None else "command", server.where),
                *([PreviewPiece("folder", redact(server.cwd))] if server.cwd else []),
                PreviewPiece("call", _pretty(whole), "code"),
            ),
            binds=binds,
            for_tool=True,
        )

        async def run(context: ToolContext) -> ToolOutcome:
            started_ms = monotonic_ms()
            try:
                answer = await self._answer(server, call.name, sent, binds, context)
                # A large picture takes its time.
                outcome = await asyncio.to_thread(_outcome_of, answer)
            except Exception as error:
                outcome = _failed(error)
            return replace(outcome, ran_in="tool loop", started_at_ms=started_ms)

        return PreparedCall(spec=tool.spec, arguments=arguments, preview=preview, run=run)

    async def _answer(
        self,
        server: McpServer,
        name: str,
        arguments: dict[str, Any],
        binds: str,
        context: ToolContext,
    ) -> Any:
        for _ in range(2):
            connection = await self._update(server)
            tool = self._tools.get(name)
            if tool is None or _binds(tool, server) != binds:
                raise ToolError(
                    f"the definition of {name} changed after the call was prepared; call it again",
                    code="E_PRECONDITION_FAILED",
                )
            answer = await connection.call(tool.own_name, arguments, _progress(context))
            if answer is not None:
                return answer
        raise ToolError(f"the MCP server {server.name!r} forgets its session at once")

    async def _update(self, server: McpServer, *, anew: bool = False) -> Connection:
        """Have the server run, and its tools as it listed them last."""
        connection = await asyncio.to_thread(server.connection)
        definitions = await connection.definitions(anew=anew)
        if definitions is not self._listed:
            # In a thread: whoever wrote the definitions may want it to take long.
            offer = partial(offered, server, definitions, self._only)
            self._tools, self.warnings = await asyncio.to_thread(offer)
            self._listed = definitions
        return connection

    def _check_named(self, server: McpServer) -> None:
        for name in self._only or ():
            if name not in self._tools and self._listed is not None:
                each = (str(raw.get("name") or "") for raw in self._listed.tools)
                there = [tool_name(server.name, own_name) for own_name in each]
                close = nearest(name, there)
                hint = f"; did you mean {close!r}?" if close else "."
                raise UsageError(
                    f"the MCP server {server.name!r} has no tool {name!r}{hint} "
                    f"It has: {listed(there) or 'none'}"
                )

    def _prepared_start(self, server: ProjectServer, spec: ToolSpec) -> PreparedCall:
        """The start of a project's server: no rule allows it, and what is shown is what starts."""

        async def start(context: ToolContext) -> ToolOutcome:
            try:
                self._server = allowed = server.allow()
                await self._update(allowed)
            except (ToolError, UsageError) as error:
                self._server = server
                # The model is not told where the file lies.
                said = error.message.replace(str(server.path), server.path.name)
                return _failed(ToolError(said, details=error.details))
            result = ToolResult(ok=True, data={"tools": list(self._tools)})
            return ToolOutcome(result=result, ran_in="tool loop")

        return PreparedCall(
            spec=spec,
            arguments={},
            preview=CallPreview(
                ruling="ask",
                firm=True,
                why=f"starts the MCP server {server.name!r} that this project's file describes",
                pieces=(
                    PreviewPiece("server", server.name),
                    PreviewPiece("file", str(server.path)),
                    PreviewPiece("what it starts", _pretty(redact_json(server.entry)), "code"),
                ),
                binds=server.identity,
                for_tool=True,
            ),
            run=start,
        )


def _binds(tool: ListedTool, server: McpServer) -> str:
    """Its definition, and the program that runs it: another one may bear the same name."""
    return sha_of([tool.spec.traits.sha, server.identity])


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
    server: McpServer, definitions: Definitions, only: Sequence[str] | None = None
) -> tuple[dict[str, ListedTool], tuple[str, ...]]:
    """The tools under the names that a model is shown, and what is odd about them.

    Of two that would have the same name only the first is offered, and none beyond the bounds.
    """
    tools: dict[str, ListedTool] = {}
    warnings = [
        f"the tool {visible(name, 60)!r} of the MCP server {server.name!r} is left out: its "
        "definition is not as the protocol wants it"
        for name in definitions.left_out
    ]
    left_chars, beyond = _MOST_CHARS, max(len(definitions.tools) - MOST_TOOLS, 0)
    for raw in definitions.tools[:MOST_TOOLS]:
        own_name = str(raw.get("name") or "")
        name = tool_name(server.name, own_name)
        if only is not None and name not in only:
            continue
        if name in tools:
            both = (visible(tools[name].own_name, 60), visible(own_name, 60))
            warnings.append(
                f"the MCP server {server.name!r} has two tools that would be {name!r} "
                f"({both[0]!r}, {both[1]!r}); the second is left out"
            )
            continue
        tool = _listed_tool(server, name, own_name, raw)
        left_chars -= len(tool.spec.description) + len(dump_json(tool.spec.parameters))
        if left_chars < 0:
            beyond += 1
        else:
            tools[name] = tool
    if beyond:
        warnings.append(
            f"{beyond:,} of the {len(definitions.tools):,} tools of the MCP server "
            f"{server.name!r} are left out: a model is shown at most {MOST_TOOLS} and "
            f"{_MOST_CHARS:,} characters of them; name the ones you need: "
            f"--tools {prefix_of(server.name)}NAME"
        )
    return tools, tuple(warnings)


def tool_name(server: str, own_name: str) -> str:
    """`server__tool` with letters, digits, `_` and `-` only, at most 64 characters."""
    name = prefix_of(server) + (re.sub(r"[^A-Za-z0-9_-]", "_", own_name) or "tool")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}_{sha256_hex(own_name)[:8]}"


def _listed_tool(server: McpServer, name: str, own_name: str, raw: Mapping[str, Any]) -> ListedTool:
    shown = legal_schema(raw.get("inputSchema"))
    spec = ToolSpec(
        name=name,
        display_name=visible(str(raw.get("title") or own_name), 80) or name,
        description=visible(str(raw.get("description") or ""), _DESCRIPTION_CHARS),
        parameters=shown.schema,
        traits=ToolTraits(
            host=server.host_name,
            ruling="ask",
            # An approval given to one server is not another's, whatever that calls itself.
            sha=sha_of([server.name, server.url or list(server.command), dict(raw)]),
        ),
    )
    return ListedTool(spec, own_name, shown.keys)


def _progress(context: ToolContext) -> Callable[[float, float | None, str | None], None]:
    """Hands a server's progress on, not faster than a person can see it."""
    last_ms = -_PROGRESS_EVERY_MS

    def hand_on(done: float, total: float | None, text: str | None) -> None:
        nonlocal last_ms
        now, fraction = monotonic_ms(), None
        if total and total > 0:
            fraction = min(max(done / total, 0.0), 1.0)
        if now - last_ms >= _PROGRESS_EVERY_MS or fraction == 1.0:
            last_ms = now
            number = f"{done:g} of {total:g}" if total else f"{done:g}"
            context.progress(visible(text or number, 500), fraction)

    return hand_on


def _failed(error: Exception) -> ToolOutcome:
    said = error.info if isinstance(error, ToolError) else None
    why = f"the server's answer cannot be used: {type(error).__name__}"
    info = said or ErrorInfo("E_TOOL_FAILED", why)
    shown = ErrorInfo(info.code, without_folders(redact(info.message)), info.details)
    detail = None if said else detail_of(error)
    return ToolOutcome(result=ToolResult.failure(shown), error_detail=detail)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _outcome_of(answer: Any) -> ToolOutcome:
    """What a server gave back (the `mcp` package's `CallToolResult`), within a result's budget."""
    raw: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    blocks = [json_object(block) or {} for block in raw.get("content", [])]
    if answer.is_error:
        said = [str(block["text"]) for block in blocks if block.get("type") == "text"]
        if not any(said) and "structuredContent" in raw:
            said = [dump_json(raw["structuredContent"]).decode()]
        message = visible("\n".join(said), 4_000) or "the tool failed without saying why"
        return _failed(ToolError(message))
    items: list[Any] = [_item(block) for block in blocks[:_MOST_BLOCKS]]
    if len(blocks) > _MOST_BLOCKS:
        items.append(f"[{len(blocks) - _MOST_BLOCKS:,} more pieces of content, not sent]")
    value: Any = items[0] if len(items) == 1 else items
    if "structuredContent" in raw:
        value = structured = raw["structuredContent"]
        # For older clients servers say the same once more as text.
        items = [item for item in items if not _says(item, structured)]
        if items:
            value = {"structured": structured, "content": items}
    return result_of(value)


def _item(block: dict[str, Any]) -> Any:
    """One piece of content: text, a picture, a link or an embedded resource, else its kind."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return _binary(block.get("data"), block.get("mimeType"), "")
    resource = block if kind == "resource_link" else json_object(block.get("resource")) or {}
    keys = ("uri", "name", "title", "description", "mimeType", "size", "text")
    shown: dict[str, Any] = {key: resource[key] for key in keys if key in resource}
    if "blob" in resource:
        alt = visible(str(resource.get("uri", "")), 200)
        shown["blob"] = _binary(resource["blob"], resource.get("mimeType"), alt)
    return {visible(str(kind), 200): shown}


def _binary(data: object, mime: object, alt: str) -> Any:
    """The picture that stands there in base64, else what it is and how large."""
    text = data if isinstance(data, str) and len(data) <= _LARGEST_DATA_CHARS else ""
    image = None
    with suppress(ValueError):  # It is no base64, or no picture.
        is_image = str(mime).startswith("image/")
        image = encoded_image(base64.b64decode(text, validate=True), alt) if is_image else None
    size = len(str(data)) * 3 // 4 - str(data)[-2:].count("=")
    return image or f"[{visible(str(mime or 'data'), 200)}, {size:,} bytes: not sent]"


def _says(item: Any, structured: Any) -> bool:
    """Whether a text is the structured content, or the one value in it (`{"result": …}`)."""
    if not isinstance(item, str):
        return False
    whole = json_object(structured)
    values = [structured, *(whole.values() if whole is not None and len(whole) == 1 else ())]
    try:
        said: Any = load_json(item)
    except (ValueError, RecursionError):
        said = item
    return any(type(one) is type(it) and one == it for it in values for one in (item, said))
