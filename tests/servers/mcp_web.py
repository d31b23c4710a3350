"""An MCP server over streamable HTTP, by the official package, on a free port of loopback.

Run as a script; the first line of its output is its address. It speaks both protocols.
"""

from __future__ import annotations

import socket
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

server = MCPServer("web")


@server.tool()
def add(a: Annotated[int, Field(description="The first.")], b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def headers(ctx: Context[Any]) -> dict[str, str]:
    """What the client sent beside the call."""
    request: Any = ctx.request_context.request
    return dict(request.headers)


@server.tool()
async def steps(ctx: Context[Any]) -> str:
    """Work in steps."""
    for i in range(1, 4):
        await ctx.report_progress(i, 3, f"step {i}")
    return "done"


@server.tool()
async def sleep() -> str:
    """Work for long."""
    try:
        await anyio.sleep(600)
    except BaseException:
        print("cancelled sleep", flush=True)
        raise
    return "woke up"


@server.tool()
async def learn(name: str, ctx: Context[Any]) -> str:
    """Add a tool."""
    server.add_tool(add, name=name)
    await ctx.notify_tools_changed()
    return "learnt"


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main()
