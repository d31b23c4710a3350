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
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_note_and_variadic_parameters_are_kept() -> None:
    doc = parse_docstring(GOOGLE)
    assert "Note: Old numbers." in doc.description
    assert doc.parameters["rest"] == "Others."


def test_examples_are_kept() -> None:
    doc = parse_docstring("Add.\n\nArgs:\n    a: One.\n\nExamples:\n    >>> add(1)\n    2\n")
    assert doc.description == "Add.\n\nExamples:\n>>> add(1)\n2"


@pytest.mark.parametrize(
    ("text", "description"),
    [
        pytest.param(None, "", id="none"),
        pytest.param("   \n ", "", id="blank"),
        pytest.param("One line.", "One line.", id="one line"),
        pytest.param("One.\n\n    Two: three.\n    ", "One.\n\nTwo: three.", id="indented"),
        pytest.param("Returns: a number.", "Returns: a number.", id="no parameters"),
        pytest.param("Uses the Parameters of :class:`X`.", None, id="words in prose"),
    ],
)
def test_plain_docstring_is_the_description(text: str | None, description: str | None) -> None:
    assert parse_docstring(text) == Doc(text or "" if description is None else description)


def test_endless_docstring_is_cut() -> None:
    assert len(parse_docstring("word " * 10_000).description) == 4_000


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


def test_one_sphinx_field_is_enough() -> None:
    doc = parse_docstring("Weather in a city.\n\n:param city: the name")
    assert doc.description == "Weather in a city."
    assert doc.parameters == {"city": "the name"}
