"""The tools that a server lists, as the specs that a model is shown.

Owns names, collisions and the hash of a definition. All of it is a stranger's text: hints such as
`readOnlyHint` decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import sha256_hex, sha_of
from nbagent.contracts.chat import ToolSpec, ToolTraits
from nbagent.contracts.errors import ToolError
from nbagent.tools.mcp.description import Description
from nbagent.tools.mcp.schemas import legal
from nbagent.tools.mcp.texts import visible

_LONGEST_NAME = 64
_DESCRIPTION_CHARS = 4_000
_TITLE_CHARS = 80
MOST_TOOLS = 500


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server."""

    spec: ToolSpec
    own_name: str
    """As the server calls it."""
    keys: Mapping[str, str]
    """The server's name of each parameter, by the one that the model is shown."""

    def arguments_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments under the server's own names.

        Raises:
            ToolError: one is given twice, under the server's name and under ours.
        """
        made: dict[str, Any] = {}
        for key, value in arguments.items():
            theirs = self.keys.get(key, key)
            if theirs in made:
                raise ToolError(
                    f"the argument {visible(key, 60)!r} is given twice, under two names; give it "
                    "once",
                    code="E_INVALID_ARGUMENTS",
                )
            made[theirs] = value
        return made

    def shown_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What `arguments_of` gave, under the names that the model is shown."""
        ours = {theirs: name for name, theirs in self.keys.items()}
        return {ours.get(key, key): value for key, value in arguments.items()}


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server listed last."""

    tools: Mapping[str, ListedTool]
    """By the name that the model is shown."""
    warnings: tuple[str, ...] = ()


def listing_of(
    server: Description, tools: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()
) -> Listing:
    """The tools under legal names; of two that would have the same name only the first.

    Args:
        server: whose tools they are.
        tools: as the server defines them.
        left_out: names of those whose definition cannot be read.
    """
    found: dict[str, ListedTool] = {}
    warnings = [
        f"the tool {visible(name, 60)!r} of the MCP server {server.name!r} is left out: its "
        "definition is not as the protocol wants it"
        for name in left_out
    ]
    if len(tools) > MOST_TOOLS:
        warnings.append(
            f"the MCP server {server.name!r} lists {len(tools):,} tools; "
            f"only the first {MOST_TOOLS} are used"
        )
    for raw in tools[:MOST_TOOLS]:
        own_name = str(raw.get("name") or "")
        name = tool_name(server, own_name)
        if name in found:
            told = (visible(found[name].own_name, 60), visible(own_name, 60))
            warnings.append(
                f"the MCP server {server.name!r} has two tools that would be {name!r} "
                f"({told[0]!r}, {told[1]!r}); the second is left out"
            )
            continue
        found[name] = _listed(server, name, own_name, raw)
    return Listing(found, tuple(warnings))


def tool_name(server: Description, own_name: str) -> str:
    """`server__tool` with letters, digits, `_` and `-` only, at most 64 characters."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", own_name) or "tool"
    name = server.prefix + plain
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}_{sha256_hex(own_name)[:8]}"


def _listed(server: Description, name: str, own_name: str, raw: Mapping[str, Any]) -> ListedTool:
    shown = legal(raw.get("inputSchema"))
    title = raw.get("title") or own_name
    spec = ToolSpec(
        name=name,
        display_name=visible(str(title), _TITLE_CHARS) or name,
        description=visible(str(raw.get("description") or ""), _DESCRIPTION_CHARS),
        parameters=shown.schema,
        traits=ToolTraits(
            host=server.host_name,
            ruling="ask",
            # An approval given to one server is not another's, whatever that calls itself.
            sha=sha_of([server.name, server.url or list(server.command), dict(raw)]),
        ),
    )
    return ListedTool(spec, own_name, shown.keys)
