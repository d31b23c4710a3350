"""nbagent: run an agent in a notebook cell, watch every turn, keep every turn as data.

    %load_ext nbagent

    %%agent --tools population
    Which of Oslo and Bergen is larger?

Names are resolved when they are first used; `import nbagent` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Agent": "nbagent.agent",
    "Run": "nbagent.run",
    "open_run": "nbagent.run",
    "panel": "nbagent.notebook.panel",
    "forget": "nbagent.run",
    "tool": "nbagent.tools.function_tool",
    "configure": "nbagent.settings",
    "runs": "nbagent.frames",
    "turns": "nbagent.frames",
    "tool_runs": "nbagent.frames",
    "messages": "nbagent.frames",
    "prompts": "nbagent.frames",
    "read_notebook": "nbagent.frames",
    "expand": "nbagent.frames",
    "models": "nbagent.frames",
    "NbagentError": "nbagent.contracts.errors",
    "ModelError": "nbagent.contracts.errors",
    "EngineError": "nbagent.contracts.errors",
    "ToolError": "nbagent.contracts.errors",
    "UsageError": "nbagent.contracts.errors",
    "StoreError": "nbagent.contracts.errors",
    "Message": "nbagent.contracts.chat",
    "verify_audit": "nbagent.archive.audit",
    "mcp": "nbagent.tools.mcp",
    "ToolContext": "nbagent.contracts.ports",
    "ToolPolicy": "nbagent.contracts.policy",
    "ToolLimits": "nbagent.contracts.policy",
    "Question": "nbagent.contracts.policy",
    "PersonAnswer": "nbagent.contracts.policy",
}
_MODULES = {"events": "nbagent.contracts.events", "offline": "nbagent.providers.offline"}

__all__ = [
    "Agent",
    "EngineError",
    "Message",
    "ModelError",
    "NbagentError",
    "PersonAnswer",
    "Question",
    "Run",
    "StoreError",
    "ToolContext",
    "ToolError",
    "ToolLimits",
    "ToolPolicy",
    "UsageError",
    "configure",
    "events",
    "expand",
    "forget",
    "mcp",
    "messages",
    "models",
    "offline",
    "open_run",
    "panel",
    "prompts",
    "read_notebook",
    "runs",
    "tool",
    "tool_runs",
    "turns",
    "verify_audit",
]

if TYPE_CHECKING:
    from nbagent.agent import Agent
    from nbagent.archive.audit import verify_audit
    from nbagent.contracts import events
    from nbagent.contracts.chat import Message
    from nbagent.contracts.errors import (
        EngineError,
        ModelError,
        NbagentError,
        StoreError,
        ToolError,
        UsageError,
    )
    from nbagent.contracts.policy import PersonAnswer, Question, ToolLimits, ToolPolicy
    from nbagent.contracts.ports import ToolContext
    from nbagent.frames import (
        expand,
        messages,
        models,
        prompts,
        read_notebook,
        runs,
        tool_runs,
        turns,
    )
    from nbagent.notebook.panel import panel
    from nbagent.providers import offline
    from nbagent.run import Run, forget, open_run
    from nbagent.settings import configure
    from nbagent.tools.function_tool import tool
    from nbagent.tools.mcp import mcp


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'nbagent' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext nbagent`: register `%agent` and `%%agent`."""
    import_module("nbagent.notebook.magics").register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext nbagent`: take the magics and their completion back; runs and store stay."""
    import_module("nbagent.notebook.magics").unregister(ipython)
