"""The command of the MCP server by hand."""

from __future__ import annotations

import sys
from pathlib import Path

HAND = Path(__file__).with_name("mcp_hand.py")


def hand(*flags: str) -> list[str]:
    """Command that starts the server, with ways to misbehave."""
    return [sys.executable, "-I", str(HAND), *flags]
