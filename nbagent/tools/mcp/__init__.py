"""MCP servers as tool hosts: stdio and streamable HTTP, through the official `mcp` package.

Imports go one way: host → connection → server. Only `connection` imports the package `mcp`.
"""
