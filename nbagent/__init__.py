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

_HOMES: dict[str, tuple[str, ...]] = {
    "nbagent.agent": ("Agent",),
    "nbagent.run": ("Run", "open_run", "forget"),
    "nbagent.session.branches": ("session_tree",),
    "nbagent.frames": (
        *("runs", "turns", "tool_runs", "transitions", "messages", "prompts", "scores"),
        *("read_notebook", "models"),
    ),
    "nbagent.lab.scorers": ("scorer", "Score"),
    "nbagent.lab.judges": ("judge",),
    "nbagent.lab.review": ("score",),
    "nbagent.overview": ("compare", "history"),
    "nbagent.settings": ("configure",),
    "nbagent.notebook.panel": ("panel",),
    "nbagent.tools.function_tool": ("tool",),
    "nbagent.tools.mcp": ("mcp",),
    "nbagent.workflow.package": ("load_package",),
    "nbagent.workflow.agents": ("load_agent",),
    "nbagent.archive.audit": ("verify_audit",),
    "nbagent.archive.frames": ("expand",),
    "nbagent.contracts.chat": ("Message",),
    "nbagent.contracts.errors": (
        *("NbagentError", "ModelError", "EngineError", "ToolError", "UsageError", "StoreError"),
    ),
    "nbagent.contracts.policy": ("ToolPolicy", "ToolLimits", "Question", "PersonAnswer"),
    "nbagent.contracts.ports": ("ToolContext",),
}
"""Where public names are, by module: each is imported when it is first used."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {
    "events": "nbagent.contracts.events",
    "offline": "nbagent.providers.offline",
    "plot": "nbagent.charts",
}

__all__: list[str] = ["Agent", "Run", "configure", "forget", "open_run", "panel"]
__all__ += ["ToolContext", "ToolLimits", "ToolPolicy", "mcp", "tool", "verify_audit"]
__all__ += ["Message", "PersonAnswer", "Question", "events", "offline"]
__all__ += ["EngineError", "ModelError", "NbagentError", "StoreError", "ToolError", "UsageError"]
__all__ += ["compare", "history", "plot"]
__all__ += ["Score", "judge", "score", "scorer"]
__all__ += ["expand", "load_agent", "load_package", "messages", "models", "prompts"]
__all__ += ["read_notebook", "runs", "scores", "session_tree", "tool_runs", "transitions", "turns"]

if TYPE_CHECKING:
    from nbagent import charts as plot
    from nbagent.agent import Agent
    from nbagent.archive.audit import verify_audit
    from nbagent.archive.frames import expand
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
        messages,
        models,
        prompts,
        read_notebook,
        runs,
        scores,
        tool_runs,
        transitions,
        turns,
    )
    from nbagent.lab.judges import judge
    from nbagent.lab.review import score
    from nbagent.lab.scorers import Score, scorer
    from nbagent.notebook.panel import panel
    from nbagent.overview import compare, history
    from nbagent.providers import offline
    from nbagent.run import Run, forget, open_run
    from nbagent.session.branches import session_tree
    from nbagent.settings import configure
    from nbagent.tools.function_tool import tool
    from nbagent.tools.mcp import mcp
    from nbagent.workflow.agents import load_agent
    from nbagent.workflow.package import load_package


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
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
