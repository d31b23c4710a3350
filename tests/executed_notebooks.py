"""Notebooks that programs without a person execute, and the words of what they should show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from notebook_tools import AREA

import nbagent

TOOLS = f"""%load_ext nbagent
import time
import nbagent

{AREA}

@nbagent.tool
def nap(city: str) -> str:
    "Nap in a city."
    time.sleep(60)
    return "slept"
"""
ANSWERED = "%%agent -m offline:demo --tools area\nWhich area has Oslo?"
DENIED = "%%agent -m offline:demo --tools area --ask area\nWhich area has Oslo?"
ENDLESS = "%%agent -m offline:demo --tools nap\nNap in Oslo."


def write_notebook(path: Path, *cells: str) -> Path:
    """Write a notebook whose first cell loads the tools."""
    v4: Any = nbformat.v4
    made = [v4.new_code_cell(s, id=f"cell-{n}") for n, s in enumerate((TOOLS, *cells))]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = v4.new_notebook(cells=made, metadata={"kernelspec": spec})
    path.write_text(json.dumps(document), "utf-8")
    return path


def outputs(path: Path, cell: int) -> list[dict[str, Any]]:
    """The outputs of a cell of a saved notebook, from 0."""
    return json.loads(path.read_text("utf-8"))["cells"][cell]["outputs"]


def check_saved_answer(path: Path, cell: int = 1) -> None:
    """Check that a cell's one display reads as the answer, and that its record is in the file."""
    (output,) = outputs(path, cell)
    for form in ("text/html", "text/plain"):
        assert "454.1" in "".join(output["data"][form])
    run = nbagent.read_notebook(path).open_run("last")
    assert run.turns[-1].text
