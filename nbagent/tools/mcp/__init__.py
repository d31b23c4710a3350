"""MCP servers as tool hosts: stdio and streamable HTTP, through the official `mcp` package.

Owns nothing itself. Inside, imports go: server → host → config; server → connection (the only one
that imports `mcp`, late).
"""

from nbagent.tools.mcp.config import mcp
from nbagent.tools.mcp.config import open_hosts as open_hosts  # `hosts` looks for this line.
from nbagent.tools.mcp.host import McpHost
from nbagent.tools.mcp.server import McpServer, known_servers

__all__ = ["McpHost", "McpServer", "known_servers", "mcp", "open_hosts"]
