"""Which modules of nbagent the tests import: those that the table in README.md names, no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
EVERYWHERE = {"contracts", "settings", "testing"}
FRONT = {"notebook", "notebooks", "browser", "bench"}
ROW = re.compile(r"\| `([\w()]+)` \| (.*) \|")


def doors_of(file: Path) -> set[str]:
    """The rooms of nbagent that a test file imports from, but for those that are open to all."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    offline = "nbagent.providers.offline"
    inner = [name for name in names if name.startswith("nbagent.") and not name.startswith(offline)]
    rooms = {name.split(".")[1] for name in inner}
    return {room for room in rooms if (TESTS.parent / "nbagent" / room).is_dir()} - EVERYWHERE


def test_tests_go_through_the_doors_of_their_layer_and_no_door_is_listed_in_vain() -> None:
    listed = dict(ROW.findall((TESTS / "README.md").read_text("utf-8")))
    used: dict[str, set[str]] = {}
    for file in sorted(TESTS.rglob("*.py")):
        parts = file.relative_to(TESTS).parts
        folder = parts[0] if len(parts) > 1 else "(top)"
        if folder not in FRONT and file.name != "stories.py":
            used.setdefault(folder, set()).update(doors_of(file))
    wanted = {folder: set(re.findall(r"`(\w+)`", doors)) for folder, doors in listed.items()}
    assert wanted == {folder: doors for folder, doors in used.items() if doors}
