"""Cases of each tool host for the contract tests. A new host adds one entry to CASES."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from servers.mcp_door import HAND

import nbagent

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class HostCase:
    """A host in a project folder of its own, and calls to it."""

    tools: list[Any]
    """As `Agent(tools=…)` takes them."""
    host: str
    """The name in the traits of its tools."""
    names: set[str]
    """Tools that are there, among others."""
    good: Call
    gives: Callable[[Any], bool]
    """True if the data of the good call is right."""
    wrong: dict[str, tuple[str, dict[str, Any], str]]
    """Calls that fail, and their codes."""
    slow: Call | None
    """A call that takes half a minute if nobody stops it; None: there is none."""
    namespace: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    acts_outside: bool = True


def _functions(project: Path) -> HostCase:
    @nbagent.tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    @nbagent.tool
    async def nap(seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    @nbagent.tool
    def fail() -> None:
        """Fail."""
        raise LookupError("nothing there")

    return HostCase(
        tools=[double, nap, fail],
        host="functions",
        names={"double", "nap", "fail"},
        good=("double", {"number": 2}),
        gives=lambda data: data == 4,
        wrong={
            "raises": ("fail", {}, "E_TOOL_FAILED"),
            "wrong type": ("double", {"number": []}, "E_INVALID_ARGUMENTS"),
        },
        slow=("nap", {"seconds": 30}),
        acts_outside=False,
    )


def _filesystem(project: Path) -> HostCase:
    (project / "notes.md").write_text("Oslo is large.\n", "utf-8")
    return HostCase(
        tools=["fs"],
        host="fs",
        names={"fs.read", "fs.list", "fs.search", "fs.write", "fs.apply_patch"},
        good=("fs.read", {"path": "@project/notes.md"}),
        gives=lambda data: data["content"] == "Oslo is large.\n" and not data["truncated"],
        wrong={
            "missing": ("fs.read", {"path": "@project/nope.md"}, "ENOENT"),
            "outside": ("fs.read", {"path": "../../etc/passwd"}, "E_SANDBOX_VIOLATION"),
            "wrong type": ("fs.read", {"path": {}}, "E_INVALID_ARGUMENTS"),
        },
        slow=None,  # Nothing of it takes long; a stopped search is in tests/tools.
    )


_SKILL = """---
name: word-count
description: Counts words. Use it when a text has to be counted.
---
Run `count.py` with the text.
"""


def _skills(project: Path) -> HostCase:
    folder = project / ".agents" / "skills" / "word-count"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(_SKILL, "utf-8")
    (folder / "count.py").write_text("import sys; print(len(sys.argv[1].split()))\n", "utf-8")
    return HostCase(
        tools=["skills"],
        host="skills",
        names={"list_skills", "get_skill", "run_python_script"},
        good=(
            "run_python_script",
            {"skill_name": "word-count", "script": "count.py", "args": ["one two three"]},
        ),
        gives=lambda data: data["stdout"] == "3\n" and data["returncode"] == 0,
        wrong={
            "unknown": ("get_skill", {"skill_name": "nope"}, "ENOENT"),
            "wrong type": ("get_skill", {"skill_name": []}, "E_INVALID_ARGUMENTS"),
        },
        slow=(
            "run_python_script",
            {"skill_name": "word-count", "script": "import time; time.sleep(30)"},
        ),
    )


def _notebook(project: Path) -> HostCase:
    names = {"df": pd.DataFrame({"city": ["Oslo", "Bergen"], "people": [717_710, 291_940]})}
    return HostCase(
        tools=["notebook"],
        host="notebook",
        names={"nb.variables", "nb.inspect", "nb.run", "nb.set"},
        good=("nb.inspect", {"name": "df"}),
        gives=lambda data: "Bergen" in str(data),
        wrong={
            "missing": ("nb.inspect", {"name": "nope"}, "ENOENT"),
            "wrong code": ("nb.run", {"code": "1 +"}, "E_INVALID_ARGUMENTS"),
            "failing code": ("nb.run", {"code": "1 / 0"}, "E_TOOL_FAILED"),
            "wrong type": ("nb.inspect", {"name": []}, "E_INVALID_ARGUMENTS"),
        },
        slow=("nb.run", {"code": "import time\nfor _ in range(3000): time.sleep(0.01)"}),
        namespace=names,
    )


def _mcp(project: Path) -> HostCase:
    server: Any = nbagent.mcp("contract", command=[sys.executable, "-I", str(HAND)])
    return HostCase(
        tools=[server],
        host="mcp:contract",
        names={"contract__echo"},
        good=("contract__echo", {"text": "Oslo"}),
        gives=lambda data: "Oslo" in str(data),
        wrong={"fails": ("contract__fail", {}, "E_TOOL_FAILED")},
        slow=("contract__hang", {}),
    )


CASES: dict[str, Callable[[Path], HostCase]] = {
    "functions": _functions,
    "filesystem": _filesystem,
    "skills": _skills,
    "notebook": _notebook,
    "mcp": _mcp,
}
