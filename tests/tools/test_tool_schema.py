"""The JSON Schema that a model is shown of a function, and the words of its docstring."""

# No `from __future__ import annotations`: most tools in notebooks have real hints.

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typing_extensions
from probes import Colour, probe_of
from pydantic import BaseModel, Field

from nbagent.contracts.ports import ToolContext
from nbagent.contracts.secrets import SecretKey
from nbagent.tools.function_tool import as_tool


class Place(BaseModel):
    """Where."""

    title: str
    lat: float = Field(description="Degrees north.")


class Row(typing.TypedDict):
    name: str
    count: typing.NotRequired[int]


ROW = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


PLACE = {
    "description": "Where.",
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "lat": {"type": "number", "description": "Degrees north."},
    },
    "required": ["title", "lat"],
}


def schema_of(function: Callable[..., object]) -> dict[str, Any]:
    return as_tool(function).spec.parameters


def property_of(hint: Any) -> dict[str, Any]:
    return schema_of(probe_of(hint))["properties"]["value"]


INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
HINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "annotated field": (
        Annotated[int, Field(ge=1, description="How many.")],
        {"minimum": 1, "description": "How many.", **INT},
    ),
    "annotated doc": (
        Annotated[str, typing_extensions.Doc("A name.")],
        {"description": "A name.", **TEXT},
    ),
    "enum": (Colour, {"enum": ["red", "dark blue"], **TEXT}),
    "typed dict inside": (list[Row] | None, {"anyOf": [{"items": ROW, "type": "array"}, NULL]}),
    "models, one with a field named title": (
        dict[str, Place],
        {"type": "object", "additionalProperties": PLACE},
    ),
    "fixed tuple": (
        tuple[int, str],
        {
            "type": "array",
            "items": {"anyOf": [INT, TEXT]},
            "minItems": 2,
            "maxItems": 2,
            "description": "In this order: integer, string.",
        },
    ),
    "dict by enum": (
        dict[Colour, int],
        {
            "type": "object",
            "additionalProperties": INT,
            "description": "Keys: 'red', 'dark blue'.",
        },
    ),
}


@pytest.mark.parametrize(("hint", "expected"), HINTS.values(), ids=HINTS.keys())
def test_hint_becomes(hint: Any, expected: dict[str, Any]) -> None:
    assert property_of(hint) == expected


def test_defaults_are_kept_and_make_parameters_optional() -> None:
    def find(query: str, limit: int = 10, *, exact: bool = False, tag: str | None = None) -> None:
        """Find.

        Args:
            query: What to look for.
            limit: How many at most.
        """

    schema = schema_of(find)
    assert schema["required"] == ["query"]
    assert schema["properties"] == {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "default": 10, "description": "How many at most."},
        "exact": {"type": "boolean", "default": False},
        "tag": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    assert schema["additionalProperties"] is False


def test_context_is_not_shown() -> None:
    def hint(q: str, ctx: ToolContext) -> None: ...
    def optional(q: str, ctx: ToolContext | None = None) -> None: ...
    def string(q: str, ctx: "ports.ToolContext | None") -> None: ...  # pyright: ignore # noqa: F821

    functions: list[Any] = [hint, optional, string]
    for function in functions:
        assert list(schema_of(function)["properties"]) == ["q"]


def test_key_in_a_default_is_hidden() -> None:
    SecretKey("sk-default-of-a-tool")

    def ask(q: str, key: str = "sk-default-of-a-tool") -> None: ...

    assert schema_of(ask)["properties"]["key"] == {"type": "string"}


def test_string_hints_are_resolved_in_the_functions_module_then_in_the_namespace() -> None:
    module = types.ModuleType("elsewhere")
    source = (
        "from __future__ import annotations\n"
        "class Here(int): pass\n"
        "Both = int\n"
        "def f(a: Both, b: list[There], c: 'dict[str, Both]') -> Missing: ...\n"
    )
    exec(source, module.__dict__)
    namespace = {"There": float, "Both": str}
    properties = as_tool(module.f, namespace=namespace).spec.parameters["properties"]
    assert properties == {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {"type": "object", "additionalProperties": {"type": "integer"}},
    }


# Descriptions out of docstrings of three styles

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
