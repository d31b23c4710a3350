"""Names of tools: which are legal, and the nearest one where a name is unknown."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

from nbagent.contracts.errors import ToolError, UsageError

BUILT_IN = {
    "fs": "filesystem",
    "filesystem": "filesystem",
    "skills": "skills",
    "mcp": "mcp",
    "nb": "notebook",
    "notebook": "notebook",
}
"""The module of each built-in host, by the words that stand for it; it has an `open_hosts`."""


SKILL_TOOLS = ("list_skills", "get_skill", "run_python_script")
"""Built-in tools whose names do not begin with their host's word."""


OWN = "functions"
"""Stands for the notebook's own `@nbagent.tool` functions."""


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


_MOST_LISTED = 60


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that the person or the model most likely meant."""
    plain = {re.sub(r"[^a-z0-9]", "", one.lower()): one for one in known}
    meant = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((plain[one] for one in difflib.get_close_matches(meant, plain, 1, 0.55)), None)


def listed(names: Iterable[str]) -> str:
    """The names in one line, a long list cut at its end."""
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def unknown_name(name: str, available: Sequence[str]) -> UsageError:
    """The error for a tool name that a person typed wrongly."""
    instead = "Define one with @nbagent.tool, or name fs, skills, notebook or mcp:NAME"
    instead = f"There are: {listed(available)}" if available else instead
    return UsageError(f"{_no_tool(name, available)} {instead}")


def unknown_call(name: str, known: Sequence[str]) -> ToolError:
    """The error for a model that called a tool that is not there."""
    instead = f"Use one of: {listed(known)}" if known else "Answer without tools"
    return ToolError(f"{_no_tool(name, known)} {instead}", code="E_UNKNOWN_TOOL")


def _no_tool(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    return f"there is no tool {name[:100]!r}" + (f"; did you mean {close!r}?" if close else ".")


def checked_name(name: str, host: str = "") -> str:
    """A name for a tool of this host; UsageError where it is none, with the name to write."""
    if not _NAME.fullmatch(name):
        plain = unicodedata.normalize("NFKD", name.strip()).encode("ascii", "ignore").decode()
        free = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)[:128].strip("_") or "my_tool"
        raise UsageError(
            f"{name!r} is no name for a tool: it has ASCII letters, digits, _ . and -; write "
            f"name={free!r}"
        )
    first, dot, _ = name.partition(".")
    owner = BUILT_IN.get(first) if dot else None
    if name in SKILL_TOOLS:
        owner = "skills"
    if owner is not None and owner != BUILT_IN.get(host.partition(":")[0]):
        free = name.replace(".", "_") if dot else f"my_{name}"
        raise UsageError(f"{name!r} is the name of a built-in tool; write name={free!r}")
    return name
