"""Names of the built-in tool hosts, and which of them a name of `--tools` means."""

from __future__ import annotations

from typing import Literal

BuiltInHost = Literal["filesystem", "skills", "notebook", "mcp"]

BUILT_IN_HOSTS: dict[str, BuiltInHost] = {
    "fs": "filesystem",
    "filesystem": "filesystem",
    "skills": "skills",
    "mcp": "mcp",
    "nb": "notebook",
    "notebook": "notebook",
}
"""Built-in host by the names that select it. `tools.hosts._built_in_opener` imports its module."""
SKILL_TOOLS = ("list_skills", "get_skill", "run_python_script")
"""Built-in tools whose names do not begin with the name of their host."""

BUILT_IN_TOOLS = (
    *("fs.read", "fs.list", "fs.search", "fs.write", "fs.apply_patch"),
    *("nb.variables", "nb.inspect", "nb.run", "nb.set"),
    *SKILL_TOOLS,
)
"""Names of all tools of the built-in hosts."""


def host_part(name: str) -> str:
    """Return the part of a tool's name that names its host: `fs` of `fs.read`."""
    return name.partition(":")[0].partition(".")[0]


def built_in_host(name: str) -> BuiltInHost | None:
    """Return the built-in host that has this name or tool; None if there is none."""
    if host := BUILT_IN_HOSTS.get(host_part(name)):
        return host
    return "skills" if name in SKILL_TOOLS else None
