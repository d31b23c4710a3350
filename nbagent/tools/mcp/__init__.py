"""MCP servers as tool hosts: stdio and streamable HTTP, through the official `mcp` package.

Imports have one direction: host → connection, config → server. Only `connection` imports `mcp`.
"""
