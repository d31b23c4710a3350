"""Names of tools: the rules for a valid name, and the suggestion for an unknown one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from nbagent.contracts.built_in_hosts import BUILT_IN_HOSTS, SKILL_TOOLS
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.nearest import name_list, nearest_name
from nbagent.contracts.secrets import redact, register_environment

FUNCTION_HOST = "functions"
"""Host of the notebook's own `@nbagent.tool` functions."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Providers take less (64 characters, no dot): a wire encodes the name when it sends it.
_MIN_HOST_SIMILARITY = 0.75
_HOST_NAMES = ("fs", "skills", "notebook")
"""Words that select all tools of a built-in host, as a person writes them."""


def unknown_name_error(name: str, available: Sequence[str]) -> UsageError:
    """Build the error for a person who named a tool that does not exist."""
    instead = "Define one with @nbagent.tool, or name fs, skills, notebook or mcp:NAME"
    instead = f"There are: {name_list(available)}" if available else instead
    server, mark, _ = name.partition("__")
    # A model is shown the tools of a server as `server__tool`.
    is_near = nearest_name(name, available) is not None
    if server and mark and server not in BUILT_IN_HOSTS and not is_near:
        instead += f". All tools of an MCP server: mcp:{redact(server)[:40]}"
    host = nearest_name(name, _HOST_NAMES, similarity=_MIN_HOST_SIMILARITY)
    known = available if is_near else [host] if host else []
    if available and host and not is_near:  # the list must have the suggested name
        instead += f"; and all tools of {name_list(_HOST_NAMES)}"
    return UsageError(f"{_no_tool(name, known)} {instead}")


def unknown_call_error(name: str, known: Sequence[str]) -> ToolError:
    """Build the error for a model that called a tool that does not exist."""
    instead = f"Use one of: {name_list(known)}" if known else "Answer without tools"
    return ToolError(f"{_no_tool(name, known)} {instead}", code="E_UNKNOWN_TOOL")


def _no_tool(name: str, known: Sequence[str]) -> str:
    close = nearest_name(name, known)
    return f"there is no tool {redact(name)[:100]!r}" + (
        f"; did you mean {close!r}?" if close else "."
    )


def check_tool_name(name: str, host: str = "") -> str:
    """Return a valid name of a tool of this host; else raise UsageError with a suggestion."""
    if not _NAME.fullmatch(name):
        register_environment()
        name = redact(name)  # before it is cleaned: no filter recognises a secret then
        plain = unicodedata.normalize("NFKD", name.strip()).encode("ascii", "ignore").decode()
        suggestion = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)[:128].strip("_") or "my_tool"
        raise UsageError(
            f"{name!r} is not a valid tool name (only ASCII letters, digits, _ . -); write "
            f"name={suggestion!r}"
        )
    first, dot, _ = name.partition(".")
    owner = BUILT_IN_HOSTS.get(first) if dot else None
    if name in SKILL_TOOLS:
        owner = "skills"
    if owner is not None and owner != BUILT_IN_HOSTS.get(host.partition(":")[0]):
        suggestion = name.replace(".", "_") if dot else f"my_{name}"
        raise UsageError(f"{name!r} is the name of a built-in tool; write name={suggestion!r}")
    return name
