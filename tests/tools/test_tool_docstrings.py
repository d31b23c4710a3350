"""Docstrings of tools: a text goes to the parameter that it names, every other one stays."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

from typing import Any

import pytest

from nbagent.tools.functions.definition import as_tool

BOTH = {"a": "First.", "b": "Second."}
ONE = {"a": "First."}
# id: the docstring below `Head.`, the rest of the description, the texts of the parameters
FITTING: dict[str, tuple[str, dict[str, str]]] = {
    "google": ("Args:\n    a: First.\n    b (int, optional): Second.", BOTH),
    "google, space before the colon": ("Args:\n    a (int) : First.\n    b : Second.", BOTH),
    "google, nested types": ("Args:\n    a (dict[str, tuple(int)]): First.", ONE),
    "google, type in square brackets": ("Args:\n    a [int]: First.", ONE),
    "google, not indented": ("Args:\na: First.\nb: Second.", BOTH),
    "google, indented sections": ("  Args:\n    a: First.\n    b: Second.", BOTH),
    "google, broken lines": ("Args:\n    a: First\n        of all.\n\n        More.", {"a": "First of all. More."}),
    "google, broken without indentation": ("Args:\n    a: First,\n    but late.", {"a": "First, but late."}),
    "google, text below": ("Args:\n    a:\n        First.\n    b (int):\n        Second.", BOTH),
    "google, title in capitals": ("ARGS:\n    a: First.", ONE),
    "google, two sections": ("Args:\n    a: First.\n\nKeyword Args:\n    b: Second.", BOTH),
    "google, a star": ("Args:\n    *rest: Others.", {"rest": "Others."}),
    "parameters with a colon": ("Parameters:\n    a: First.\n    b: Second.", BOTH),
    "params": ("Params:\n    a: First.", ONE),
    "parameters without a colon": ("Parameters\n    a: First.\n    b: Second.", BOTH),
    "function parameters": ("Function parameters:\n    a: First.", ONE),
    "inputs": ("Inputs:\n    a: First.", ONE),
    "full-width colons": ("Args：\n    a：First.", ONE),
    "bullets": ("Args:\n    - a: First.\n    - b (int): Second.", BOTH),
    "stars as bullets": ("Args:\n    * a: First.\n    * b: Second.", BOTH),
    "bullets without indentation": ("Args:\n- a: First.\n- b: Second.", BOTH),
    "bullets behind an empty line": ("Args:\n\n- a: First.\n- b: Second.", BOTH),
    "numbers": ("Args:\n    1. a: First.\n    2. b: Second.", BOTH),
    "dashes": ("Args:\n    a - First.\n    b -- Second.", BOTH),
    "long dashes": ("Args:\n    a – First.\n    b (int) — Second.", BOTH),
    "arrows": ("Args:\n    a -> First.\n    b => Second.", BOTH),
    "backticks": ("Args:\n    `a`: First.\n    ``b`` (int): Second.", BOTH),
    "bold names": ("Args:\n    - **a**: First.\n    - **b** (int): Second.", BOTH),
    "bold names with the colon inside": ("Args:\n    **a:** First.", ONE),
    "names below each other": ("Args:\n    a\n        First.\n    b\n        Second.", BOTH),
    "two names": ("Args:\n    a, b: Both.", {"a": "Both.", "b": "Both."}),
    "markdown heading": ("## Parameters\n\n- `a` (int): First.\n- `b`: Second.", BOTH),
    "bold heading": ("**Args:**\n    a: First.", ONE),
    "bold heading, colon outside": ("**Parameters**:\n- a: First.", ONE),
    "numpy": ("Parameters\n----------\na : int\n    First.\nb : int, optional\n    Second.", BOTH),
    "numpy, no space": ("Parameters\n----------\na: int\n    First.\nb\n    Second.", BOTH),
    "numpy, text in the line": ("Parameters\n----------\na : First.\nb : The second.", {"a": "First.", "b": "The second."}),
    "numpy, two words in the line": ("Parameters\n----------\na : First one.\n    b: Still.", {"a": "First one. b: Still."}),
    "numpy, types": ("Parameters\n----------\na : pd.DataFrame or None\n    First.\nb : {1, 2}, default 1\n    Second.", BOTH),
    "numpy, generic type": ("Parameters\n----------\na : dict[str, int] | None\n    First.", ONE),
    "numpy, a line of another sign": ("Parameters\n~~~~~~~~~~\na: First.", ONE),
    "numpy, indented": ("Parameters\n----------\n    a : int\n        First.", ONE),
    "numpy, bullets": ("Parameters\n----------\n- a: First.\n- b: Second.", BOTH),
    "numpy, double line": ("Parameters\n==========\na : int\n    First.", ONE),
    "numpy, other parameters": ("Other Parameters\n----------------\nb : int\n    Second.", {"b": "Second."}),
    "sphinx": (":param a: First.\n:param int b: Second.\n:type a: int", BOTH),
    "sphinx, broken lines": (":param a: First\n    of all.\n:param b: Second.", {"a": "First of all.", "b": "Second."}),
    "sphinx, generic type": (":param dict[str, int] a: First.", ONE),
    "sphinx, stars": (r":param \*rest: Others.", {"rest": "Others."}),
    "sphinx, other words": (":arg a: First.\n:keyword b: Second.", BOTH),
    "epytext": ("@param a: First.\n@type a: int\n@param b: Second.", BOTH),
    "jsdoc": ("@param {int} a - First.\n@param {int} [b=0] Second.", BOTH),
    "doxygen": (r"\param a First.", ONE),
}  # fmt: skip
STAYING: dict[str, tuple[str, str, dict[str, str]]] = {
    "further keywords": (
        "Args:\n    a: First.\n    **more: Numbers by name.",
        "Args:\n    **more: Numbers by name.",
        ONE,
    ),
    "another name": ("Args:\n    zz: Gone?", "Args:\n    zz: Gone?", {}),
    "one of another name": (
        "Args:\n    a: First.\n    zz (int): Gone?\n        Still?",
        "Args:\n    zz (int): Gone?\n        Still?",
        ONE,
    ),
    "bullet of another name": ("Args:\n    - zz: Gone?\n    - a: First.", "Args:\n    - zz: Gone?", ONE),
    "numpy of another name": (
        "Parameters\n----------\na : int\n    First.\nzz : int\n    Gone?",
        "Parameters\n----------\nzz : int\n    Gone?",
        ONE,
    ),
    "sphinx of another name": (":param a: First.\n:param zz: Gone?", ":param zz: Gone?", ONE),
    "jsdoc of another name": ("@param a First.\n@param zz Gone?", "@param zz Gone?", ONE),
    "words before the entries": (
        "Args:\n    All in metres.\n    a: First.", "Args:\n    All in metres.", ONE,
    ),
    "words behind the entries": (
        "Args:\n    a: First.\n    All in metres.", "Args:\n    All in metres.", ONE,
    ),
    "the type before the name": ("Args:\n    a: First\n    int b: More", "Args:\n    int b: More", {"a": "First"}),
    "words behind the section": (
        "Args:\n    a: First.\n\nIn metres: always.", "In metres: always.", ONE,
    ),
    "a section between others": (
        "Before.\n\nArgs:\n    a: First.\n    zz: Gone?\n\nReturns:\n    int: A sum.",
        "Before.\n\nArgs:\n    zz: Gone?\n\nReturns: A sum.",
        ONE,
    ),
    "not indented, another section": ("Args:\na: First.\nReturns:\n    A sum.", "Returns: A sum.", ONE),
    "markdown table": ("## Parameters\n\n| a | First. |", "## Parameters\n\n| a | First. |", {}),
    "words in a line": ("Parameters: a is the first.", "Parameters: a is the first.", {}),
    "a sentence that begins like an entry": ("a: First.", "a: First.", {}),
    "an argument in an example": (
        "Example:\n    Args:\n        a: 5", "Example:\n    Args:\n        a: 5", {},
    ),
    "two texts of one": ("Args:\n    a: First.\n    a: Again?", "Args:\n    a: Again?", ONE),
    "two forms": (":param a: First.\n\nParameters:\n    zz: Gone?", "Parameters:\n    zz: Gone?", ONE),
    "a paragraph behind a field": (":param a: First.\n\nIn metres.", "In metres.", ONE),
    "warnings for everybody": ("Args:\n    a: First.\n\nWarnings:\n    Slow.\n    Never twice.", "Warning: Slow.\nNever twice.", ONE),
    "warnings of Python": ("Args:\n    a: First.\n\nWarns:\n    UserWarning: never.", "", ONE),
    "a result without a type": ("Parameters\n----------\na : int\n    First.\n\nReturns\n-------\nThe sum of both.\n", "Returns: The sum of both.", ONE),
    "fields of programmers": (":param a: First.\n:raises ValueError: never.\n:rtype: int", "", ONE),
    "result of a generator": ("Args:\n    a: First.\n\nYields:\n    int: A part.", "Yields: A part.", ONE),
    "no such section": ("Raises:\n    ValueError: if b is 0.", "Raises:\n    ValueError: if b is 0.", {}),
}  # fmt: skip
FORMS = {**{key: (text, "", texts) for key, (text, texts) in FITTING.items()}, **STAYING}


@pytest.mark.parametrize(("below", "rest", "texts"), FORMS.values(), ids=FORMS)
def test_text_goes_to_its_parameter_and_no_other_is_lost(
    below: str, rest: str, texts: dict[str, str]
) -> None:
    def count(a: int, b: int = 0, *rest: int, **more: int) -> None: ...

    count.__doc__ = f"Head.\n\n{below}\n"
    spec = as_tool(count).spec
    properties: dict[str, Any] = spec.parameters["properties"]
    shown = {
        name: node["description"] for name, node in properties.items() if "description" in node
    }
    assert shown == texts
    assert spec.description == f"Head.\n\n{rest}".strip()
