"""MCP servers as tool hosts: stdio and streamable HTTP, through the official `mcp` package.

Owns nothing itself. Inside, imports go: texts → schemas, description → definitions, config;
life → incoming; incoming, processes → stdio → wire (the only ones that import `mcp`, late) →
connection → connections; results → host → server → opening.
"""

from nbagent.tools.mcp.connections import connection_to
from nbagent.tools.mcp.host import McpHost
from nbagent.tools.mcp.opening import mcp
from nbagent.tools.mcp.opening import open_hosts as open_hosts  # `hosts` looks for this line.
from nbagent.tools.mcp.server import McpServer, known_servers

__all__ = ["McpHost", "McpServer", "connection_to", "known_servers", "mcp", "open_hosts"]
