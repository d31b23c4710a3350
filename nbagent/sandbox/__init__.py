"""Running a script apart: `run_script`, and `isolation_level`, which says how far apart that is.

Owns processes, walls and limits. Where scripts come from is `tools.skills`'.
"""

from nbagent.sandbox.isolation import isolation_level
from nbagent.sandbox.order import (
    ActiveIsolation,
    EndedBy,
    LevelName,
    ScriptFile,
    ScriptLimits,
    ScriptOrder,
    ScriptResult,
    Wanted,
)
from nbagent.sandbox.scripts import run_script

__all__ = [
    "ActiveIsolation",
    "EndedBy",
    "LevelName",
    "ScriptFile",
    "ScriptLimits",
    "ScriptOrder",
    "ScriptResult",
    "Wanted",
    "isolation_level",
    "run_script",
]
