"""One MCP server as a tool host of one run.

Owns which of its tools are offered, what a person sees before a call, and the outcome of it. The
connection is shared by all runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms, sha_of
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError, UsageError
from nbagent.contracts.policy import CallPreview, PreviewPiece
from nbagent.contracts.ports import ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact, redact_json
from nbagent.tools.base import nearest, unknown_tool
from nbagent.tools.mcp.connection import Broken, Connection, refusal_of
from nbagent.tools.mcp.definitions import ListedTool
from nbagent.tools.mcp.results import refused, settled
from nbagent.tools.mcp.texts import visible
from nbagent.tools.methods import Refusals
from nbagent.tools.results import detail_of, summary

_PROGRESS_EVERY_MS = 40.0
_PROGRESS_CHARS = 500
_MOST_NAMED = 20


class McpHost:
    """Lists and runs the tools of one server.

    Args:
        connection: to the server.
        only: the names (`server__tool`) that are offered; all by default.
    """

    def __init__(self, connection: Connection, only: Iterable[str] | None = None) -> None:
        self._connection = connection
        self._only = None if only is None else tuple(dict.fromkeys(only))
        self._first_shas: dict[str, str] = {}
        self._refusals = Refusals()
        self._prepared = False
        self._told = False
        """The person has been given the warnings."""

    @property
    def name(self) -> str:
        """`mcp:` and the server's name."""
        return self._connection.server.host_name

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the server's tools, for the person."""
        return self._connection.listing.warnings

    async def prepare(self, context: ToolContext) -> None:
        """Start the server when it does not run, and ask for its tools, once for this run.

        Raises:
            UsageError: it does not start, or has no tool of a name that was asked for.
        """
        if self._prepared and self._connection.is_open:
            return
        try:
            await self._connection.listed(anew=True)
        except UsageError:
            raise
        except Exception as error:
            advice = error.advice if isinstance(error, Broken) else ""
            raise UsageError(_message(error) + advice) from error
        self._prepared = True
        there = self._offered()
        self._first_shas = {name: tool.spec.traits.sha for name, tool in there.items()}
        for name in self._only or ():
            if name not in there:
                raise self._no_such(name)

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools as the server listed them last; none before `prepare`."""
        return [tool.spec for tool in self._offered().values()]

    async def preview(self, call: ToolCall, context: ToolContext) -> CallPreview:
        """Ask, whatever the server says of its tool; an approval may cover all calls of it."""
        self._refusals.forget(call)
        tool = self._offered().get(call.name)
        server = self._connection.server
        if tool is None:
            return CallPreview(ruling="ask", why=f"no tool of the MCP server {server.name!r}")
        try:
            arguments = tool.arguments_of(_object(call))
        except ToolError as error:
            return self._refusals.note(call, error.info)
        whole = {"tool": tool.own_name, "arguments": redact_json(arguments)}
        why = f"runs {tool.own_name!r} on the MCP server {server.name!r}; what it does is its own"
        return CallPreview(
            ruling="ask",
            why=visible(why.replace("\n", " "), 300),
            pieces=(
                PreviewPiece("server", server.name),
                PreviewPiece("URL" if server.url is not None else "command", server.where),
                *([PreviewPiece("folder", redact(server.cwd))] if server.cwd is not None else []),
                PreviewPiece("call", _pretty(whole), "code"),
            ),
            binds=self._binds(tool),
            for_tool=True,
            arguments=tool.shown_arguments(arguments),
            other_arguments=(arguments,),
        )

    def _binds(self, tool: ListedTool) -> str:
        """Its definition, and the program that runs it: another one may bear the same name."""
        return sha_of([tool.spec.traits.sha, self._connection.server.identity])

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run one call; only CancelledError of the calling task comes out."""
        unasked = self._refusals.take(call)
        if unasked is not None:
            return unasked
        try:
            tool = await self._tool(call.name)
        except Exception as error:
            return _failed(error)
        if tool is None:
            return unknown_tool(call.name, tuple(self._offered()))
        sha = tool.spec.traits.sha
        problem: ErrorInfo | None = None
        arguments: dict[str, Any] = {}
        try:
            arguments = tool.arguments_of(_object(call))
        except ToolError as error:
            problem = error.info
        if problem is not None:
            outcome = _outcome(problem)
        elif context.approved not in ("", self._binds(tool)):
            message = (
                f"the definition of {call.name} or the server behind it changed after the call was "
                "approved; call it again to have it approved anew"
            )
            outcome = _outcome(ErrorInfo("E_PRECONDITION_FAILED", message))
        elif cancel.is_set:
            message = f"{call.name} was not started: the run was stopped"
            outcome = _outcome(ErrorInfo("E_INTERRUPTED", message))
        else:
            outcome = await self._run(tool, arguments, context, cancel)
        return replace(outcome, tool_sha=sha, notes=(*outcome.notes, *self._notes(call.name, sha)))

    async def _tool(self, name: str) -> ListedTool | None:
        if name not in self._offered():
            await self._connection.listed()
        return self._offered().get(name)

    async def _run(
        self,
        tool: ListedTool,
        arguments: dict[str, Any],
        context: ToolContext,
        cancel: CancelToken,
    ) -> ToolOutcome:
        started_ms = monotonic_ms()
        notes: tuple[str, ...] = ()
        truncated = False
        try:
            answer, why, asked = await self._connection.call(
                tool.own_name,
                arguments,
                cancel=cancel,
                progress=_Progress(context),
            )
        except Exception as error:
            outcome = _failed(error)
            return replace(outcome, ran_in="tool loop", started_at_ms=started_ms)
        server = self._connection.server
        if why == "done":
            # A large picture takes its time.
            result, truncated = await asyncio.to_thread(settled, answer)
            notes = tuple(f"the MCP server {server.name!r} asked for {what}" for what in asked)
        else:
            result = ToolResult.failure(_given_up(tool.spec.name, why, server.timeout_s))
        return ToolOutcome(
            result=result,
            ran_in="tool loop",
            started_at_ms=started_ms,
            truncated=truncated,
            notes=notes,
        )

    def _offered(self) -> dict[str, ListedTool]:
        tools = self._connection.listing.tools
        if self._only is None:
            return dict(tools)
        return {name: tools[name] for name in self._only if name in tools}

    def _notes(self, name: str, sha: str) -> tuple[str, ...]:
        notes: tuple[str, ...] = ()
        if self._first_shas.setdefault(name, sha) != sha:
            notes = (f"the server changed the definition of {name} since this run began",)
        if not self._told:
            self._told = True
            notes += self.warnings
        return notes

    def _no_such(self, name: str) -> UsageError:
        there = tuple(self._connection.listing.tools)
        close = nearest(name, there)
        hint = f"; did you mean {close!r}?" if close else "."
        more = " …" if len(there) > _MOST_NAMED else ""
        return UsageError(
            f"the MCP server {self._connection.server.name!r} has no tool {name!r}{hint} "
            f"It has: {', '.join(there[:_MOST_NAMED]) or 'none'}{more}"
        )


def _object(call: ToolCall) -> dict[str, Any]:
    if call.arguments is None:
        message = f"the arguments of {call.name} must be a JSON object"
        raise ToolError(message, code="E_INVALID_ARGUMENTS")
    return call.arguments


class _Progress:
    """Hands a server's progress on, not faster than a person can see it."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._last_ms = -_PROGRESS_EVERY_MS

    def __call__(self, done: float, total: float | None, text: str | None) -> None:
        now = monotonic_ms()
        fraction = min(max(done / total, 0.0), 1.0) if total and total > 0 else None
        if now - self._last_ms < _PROGRESS_EVERY_MS and fraction != 1.0:
            return
        self._last_ms = now
        told = text or (f"{done:g} of {total:g}" if total else f"{done:g}")
        self._context.progress(visible(told, _PROGRESS_CHARS), fraction)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _given_up(name: str, why: str, timeout_s: float) -> ErrorInfo:
    if why == "timeout":
        return ErrorInfo(
            "E_TIMEOUT",
            f"{name} gave no sign for {timeout_s:g} s and was cancelled; "
            "what it did so far is unknown",
        )
    return ErrorInfo(
        "E_INTERRUPTED",
        f"{name} was stopped before it had finished; what it did so far is unknown",
    )


def _failed(error: Exception) -> ToolOutcome:
    said = refusal_of(error)
    if said is not None:
        return _outcome(refused(*said))
    if isinstance(error, NbagentError):
        return _outcome(ErrorInfo("E_TOOL_FAILED", redact(error.message), error.details))
    info = ErrorInfo("E_TOOL_FAILED", f"the server's answer cannot be used: {summary(error)}")
    return replace(_outcome(info), error_detail=detail_of(error))


def _outcome(error: ErrorInfo) -> ToolOutcome:
    return ToolOutcome(result=ToolResult.failure(error))


def _message(error: Exception) -> str:
    return error.message if isinstance(error, NbagentError) else summary(error)
