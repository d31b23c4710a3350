"""Run notebooks headless and keep their outputs, or see what they show.

`python tests/notebooks/make_outputs.py` makes the committed outputs of `notebooks/` again, with
names (`providers`) those of these notebooks only.
"""

# nbformat and nbclient have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parent.parent))
from kernels import clean_environment

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def executed(
    notebook: Path, folder: Path, *, change: Callable[[str], str] = str, times: int = 1
) -> Any:
    """The notebook with fresh outputs, run in `folder` with a store of its own.

    Args:
        notebook: the file; it stays as it is.
        folder: the kernel works here, keeps its runs here and finds what is already here.
        change: rewrites the source of each code cell first.
        times: one kernel runs all cells as often as this.
    """
    made: Any = nbformat.read(notebook, as_version=4)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source = change(cell.source)
    client = NotebookClient(
        made,
        timeout=120,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel(env=clean_environment(folder)):
        for _ in range(times):
            for number, cell in enumerate(made.cells):
                client.execute_cell(cell, number)
    made.metadata["language_info"] = {"name": "python"}
    made.metadata.pop("widgets", None)
    return made


def beside(folder: Path, *, cassettes: bool = True) -> None:
    """Lay into a folder what notebooks find beside them."""
    for kind in ("*.csv", "*.py", "*.json", "*.jsonl")[: 3 + cassettes]:
        for file in NOTEBOOKS.glob(kind):
            shutil.copy(file, folder)
    shutil.copytree(NOTEBOOKS / "packages", folder / "packages")


def main() -> None:
    """Write fresh outputs into the notebooks of the folder."""
    names = sys.argv[1:] or [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    for notebook in (NOTEBOOKS / f"{name}.ipynb" for name in names):
        with tempfile.TemporaryDirectory() as folder:
            beside(Path(folder))
            made = executed(notebook, Path(folder))
        text = nbformat.writes(made)
        leaks = [word for word in (folder, str(Path.home()), os.getcwd()) if word in text]
        if leaks:
            raise SystemExit(f"{notebook.name}: outputs name places of this machine: {leaks}")
        notebook.write_text(text + "\n", "utf-8")
        print(f"{notebook.name}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
