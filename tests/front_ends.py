"""The table of front ends: what each program can do. `python tests/front_ends.py` prints it
as the README has it.

Each yes is shown by a test that bears `@shows(program, *columns)`; `test_table_of_programs.py`
compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
COLUMNS = ("headless", "live", "stop", "approve", "saved form reads", "record in the file")
TABLE: dict[str, tuple[str, ...]] = {
    "JupyterLab 4, Notebook 7": ("yes", "yes", "yes", "yes", "yes", "yes"),
    "papermill": ("yes", "lines in the log", "by timeout", "denied, said", "yes", "yes"),
    "nbconvert --execute, jupyter execute, nbclient": (
        *("yes", "lines in the log", "by timeout", "denied, said"),
        *("yes", "yes"),
    ),
    "IPython in a terminal": ("–", "yes", "yes", "yes", "–", "–"),
    "jupyter console": ("–", "yes", "yes", "yes", "–", "–"),
    "qtconsole": ("–", "yes", "yes", "yes", "–", "–"),
    "euporie console": ("–", "yes", "yes", "yes", "–", "–"),
    "jupyter-server-nbmodel": ("–", "no: outputs come at the end", "yes", "yes", "yes", "yes"),
    "jupyter-collaboration 5: the tab that ran the cell": ("–", *("yes",) * 5),
    "jupyter-collaboration 5: a second tab": ("–", *("once trusted",) * 3, "yes", "yes"),
    "jupyter-collaboration 5: reloaded in mid-run": (
        *("–", "yes", "yes", "not tried", "names the run, `%agent show` shows it"),
        "its id; `%agent show` saves it",
    ),
    "voila: cell": ("yes", "no: the page comes at the end", "–", "–", "yes", "–"),
    "voila: panel": ("–", "yes", "yes", "–", "–", "–"),
    "jupytext": ("–", "–", "–", "–", "yes", "yes, in the paired .ipynb"),
    "nbstripout": ("–", "–", "–", "–", "removed with the outputs", "removed with the outputs"),
    "nbdime": ("–", "–", "–", "–", "yes", "yes, also merged"),
    "nbval": ("yes", "–", "–", "–", "yes", "–"),
    "marimo: `Agent.run`": ("yes", "no", "–", "–", "yes", "–"),
    "mystmd": ("–", "–", "–", "–", "yes", "as `records=` says"),
}
"""A cell is `yes`, `–` (the program has no such thing), `no`, or what happens instead."""
ELSEWHERE = {"JupyterLab 4, Notebook 7": "tests/browser"}
"""Programs whose cells are shown by a whole folder of tests."""


def shows(program: str, *columns: str) -> Callable[[T], T]:
    """Say that a test shows these cells of the table."""
    unknown = {*columns} - {*COLUMNS}
    if program not in TABLE or unknown:
        raise ValueError(f"no such cells: {program}, {unknown}")
    return lambda test: test


def markdown() -> str:
    """The table for the README."""
    rows = [("program", *COLUMNS), ("---",) * (len(COLUMNS) + 1)]
    rows += [(program, *cells) for program, cells in TABLE.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(markdown())
