"""The table of front ends says no more than tests show."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from front_ends import COLUMNS, ELSEWHERE, TABLE, markdown

_NOT_SHOWN = ("–", "no", "not tried")


def shown_cells(tests: Path) -> Iterator[tuple[str, str]]:
    """Program and column of each `@shows(…)` in the tests."""
    names = {"OTHERS": "nbconvert --execute, jupyter execute, nbclient"}
    for file in tests.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "shows":
                words = [w.value for w in node.args if isinstance(w, ast.Constant)]
                first = node.args[0]
                program = names[first.id] if isinstance(first, ast.Name) else str(words[0])
                is_all = any(isinstance(word, ast.Starred) for word in node.args)
                columns = COLUMNS if is_all else [str(w) for w in words if w in COLUMNS]
                yield from ((program, column) for column in columns)


def test_each_cell_of_the_table_is_shown_by_a_test_with_the_real_program() -> None:
    said = {
        (program, column)
        for program, cells in TABLE.items()
        for column, cell in zip(COLUMNS, cells, strict=True)
        if not cell.startswith(_NOT_SHOWN) and program not in ELSEWHERE
    }
    assert {*shown_cells(Path(__file__).parents[1])} == said


def test_the_table_for_the_readme_has_a_row_for_each_program() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(TABLE) + 2
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 2}


def test_the_readme_shows_this_table() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    assert markdown() in readme.read_text("utf-8"), "put in what tests/front_ends.py prints"
