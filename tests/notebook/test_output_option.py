"""`%%agent --output TYPE`: a class of the notebook, also for the cells that go on."""

from __future__ import annotations

import pytest
from magic_shell import TOOLS, MagicShell

CITY = """
from pydantic import BaseModel
class City(BaseModel):
    name: str
    population: int
"""


def test_output_names_a_class_of_the_notebook(shell: MagicShell) -> None:
    shell.cell(TOOLS)
    shell.cell(CITY)
    ask = "What is the population of Oslo and of Bergen?"
    run = shell.agent("-m offline:demo --tools population --output list[City] --quiet", ask)
    rows = run.frame().to_dict("records")
    assert rows == [
        {"name": "Oslo", "population": 717_710},
        {"name": "Bergen", "population": 291_940},
    ]
    city = shell.user_ns["City"]
    assert run.output == [city(**row) for row in rows]
    assert shell.agent("--output City --continue --quiet", ask).output == city(**rows[0])
    assert shell.agent("--continue --quiet", ask).output == city(**rows[0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--output Cty", "NameError: name 'Cty' is not defined"),
        ("--output list[Cty]", "name a class of this notebook"),
        ("--output 'open(1)'", "expected the name of a type"),
        ("--output shell_ns", "name a class of this notebook"),
    ],
)
def test_output_that_is_no_type_is_one_clear_line(shell: MagicShell, line: str, said: str) -> None:
    shell.cell(CITY)
    error = shell.refused(f"%%agent -m offline:demo {line}", "Hello?")
    assert said in str(error)
    assert "_run" not in shell.user_ns
