"""MCP servers as tool hosts: stdio and streamable HTTP, through the official `mcp` package.

Owns nothing itself. Inside, imports go: server → host; server → connection (the only one that
imports `mcp`, late).
"""

from nbagent.tools.mcp.config import configured_servers, known_servers, mcp
from nbagent.tools.mcp.host import McpHost, open_hosts
from nbagent.tools.mcp.server import McpServer

__all__ = ["McpHost", "McpServer", "configured_servers", "known_servers", "mcp", "open_hosts"]
