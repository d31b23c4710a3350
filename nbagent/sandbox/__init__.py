"""Running a script apart: `run_script`, and `isolation_level`, which says how far apart that is.

Owns processes, confinement and limits. Where scripts come from is `tools.skills`'.
"""

from nbagent.sandbox.outputs import ScriptFile
from nbagent.sandbox.running import LevelName, ScriptLimits, ScriptOrder
from nbagent.sandbox.script import ActiveIsolation, ScriptResult, isolation_level, run_script

__all__ = [
    "ActiveIsolation",
    "LevelName",
    "ScriptFile",
    "ScriptLimits",
    "ScriptOrder",
    "ScriptResult",
    "isolation_level",
    "run_script",
]
