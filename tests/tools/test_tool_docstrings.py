"""Descriptions out of docstrings of three styles."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nbagent.tools.function_tool import as_tool

HEAD = "Count people.\n\nMore about it.\n\n"
GOOGLE = f"""{HEAD}Args:
    city (str): The city's name,
        in English.
    year: When.
    *rest: Others.

Note:
    Old numbers.

Returns:
    People, rounded.

Raises:
    ValueError: never mind.
"""
NUMPY = f"""{HEAD}Parameters
----------
city : str
    The city's name,
    in English.
year, month : int, optional
    When.

Returns
-------
int
    People, rounded.
"""
SPHINX = f"""{HEAD}:param str city: The city's name,
    in English.
:param year: When.
:type year: int
:returns: People, rounded.
:raises ValueError: never mind.
"""
END = "Returns: People, rounded."
BOTH = {"city": "The city's name, in English.", "year": "When."}
EXAMPLES = "Add.\n\nArgs:\n    year: One.\n\nExamples:\n    >>> add(1)\n    2\n"
CASES: dict[str, tuple[str | None, str, dict[str, str]]] = {
    # id: the docstring, the description, those of the parameters
    "google": (GOOGLE, f"{HEAD}Note: Old numbers.\n\n{END}", {**BOTH, "rest": "Others."}),
    "numpy": (NUMPY, HEAD + END, BOTH),
    "sphinx": (SPHINX, HEAD + END, BOTH),
    "none": (None, "", {}),
    "no parameters": ("Returns: a number.", "Returns: a number.", {}),
    "words in prose": ("Of the Parameters of :class:`X`.", "Of the Parameters of :class:`X`.", {}),
    "examples": (EXAMPLES, "Add.\n\nExamples:\n>>> add(1)\n2", {"year": "One."}),
    "one field": ("Weather.\n\n:param city: the name", "Weather.", {"city": "the name"}),
    "endless": ("x" * 10_000, "x" * 4_000, {}),
}


@pytest.mark.parametrize(("text", "description", "parameters"), CASES.values(), ids=CASES)
def test_docstring_is_read(
    text: str | None,
    description: str,
    parameters: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def count(city: str, *rest: int, year: int = 1) -> None: ...

    count.__doc__ = text
    spec = as_tool(count).spec
    texts = {n: p.get("description") for n, p in spec.parameters["properties"].items()}
    assert spec.description == description
    assert {name: text for name, text in texts.items() if text} == parameters
    assert (caplog.records, capfd.readouterr()) == ([], ("", ""))


def test_griffe_is_imported_only_for_sections() -> None:
    code = (
        "import sys, nbagent\n"
        "@nbagent.tool\ndef plain(a: int): 'Plain.'\n"
        "print('griffe' in sys.modules, 'pandas' in sys.modules, 'IPython' in sys.modules)\n"
        "@nbagent.tool\ndef rich(a: int):\n    '''Rich.\n\n    Args:\n        a: Number.\n    '''\n"
        "print('griffe' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["False False False", "True"], "")
