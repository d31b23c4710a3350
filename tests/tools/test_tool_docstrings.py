"""Descriptions out of docstrings of three styles."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from nbagent.tools.docstrings import Doc, parse_docstring

GOOGLE = """Count people.

    More about it.

    Args:
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

NUMPY = """Count people.

    More about it.

    Parameters
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

SPHINX = """Count people.

    More about it.

    :param str city: The city's name,
        in English.
    :param year: When.
    :type year: int
    :returns: People, rounded.
    :raises ValueError: never mind.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_sections_become_descriptions(
    text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        doc = parse_docstring(text)
    assert doc.parameters["city"] == "The city's name, in English."
    assert doc.parameters["year"] == "When."
    assert doc.description.startswith("Count people.\n\nMore about it.")
    assert doc.description.endswith("Returns: People, rounded.")
    assert "never mind" not in doc.description
    assert text is not GOOGLE or "Note: Old numbers." in doc.description
    assert text is not GOOGLE or doc.parameters["rest"] == "Others."
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


EXAMPLES = "Add.\n\nArgs:\n    a: One.\n\nExamples:\n    >>> add(1)\n    2\n"
PLAIN: dict[str, tuple[str | None, Doc]] = {
    "none": (None, Doc("")),
    "blank": ("   \n ", Doc("")),
    "one line": ("One line.", Doc("One line.")),
    "indented": ("One.\n\n    Two: three.\n    ", Doc("One.\n\nTwo: three.")),
    "no parameters": ("Returns: a number.", Doc("Returns: a number.")),
    "words in prose": ("Of the Parameters of :class:`X`.", Doc("Of the Parameters of :class:`X`.")),
    "examples": (EXAMPLES, Doc("Add.\n\nExamples:\n>>> add(1)\n2", {"a": "One."})),
    "one field": ("Weather.\n\n:param city: the name", Doc("Weather.", {"city": "the name"})),
    "endless": ("x" * 10_000, Doc("x" * 4_000)),
}


@pytest.mark.parametrize("case", PLAIN)
def test_docstring_is_read(case: str) -> None:
    text, doc = PLAIN[case]
    assert parse_docstring(text) == doc


def test_griffe_is_imported_only_for_sections() -> None:
    code = (
        "import sys\n"
        "from nbagent.tools.functions import tool, as_tool\n"
        "def plain(a: int): 'Plain.'\n"
        "as_tool(plain)\n"
        "print('griffe' in sys.modules, 'pandas' in sys.modules, 'IPython' in sys.modules)\n"
        "def rich(a: int):\n    '''Rich.\n\n    Args:\n        a: Number.\n    '''\n"
        "print(as_tool(rich).spec.parameters['properties']['a']['description'])\n"
        "print('griffe' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["False False False", "Number.", "True"]
    assert done.stderr == ""
