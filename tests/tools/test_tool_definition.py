"""The decorator leaves a function as it is; the definition knows one version from the next."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.tools.function_tool import as_tool, namespace_tools, tool


def test_decorated_function_stays_a_function() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert tool(add) is add
    assert tool(name="sum", timeout=3)(add) is add
    assert (add(1, b=2), inspect.isfunction(add)) == (3, True)


def test_options_are_read_from_the_mark() -> None:
    @tool(name="db.sum", display_name="Summe ü", description="Adds up.", interruptible=False)
    def add(a: int) -> int:
        """Not this."""
        return a

    definition = as_tool(add)
    spec = definition.spec
    assert (spec.name, spec.display_name, spec.description) == ("db.sum", "Summe ü", "Adds up.")
    assert (spec.traits.host, spec.traits.interruptible) == ("functions", False)
    assert as_tool(definition) is definition
    assert as_tool(unfit_later).spec.display_name == "unfit_later"


def unfit_later(frame: object = None) -> None: ...


class Counter:
    def __init__(self, n: int) -> None:
        self.n = n

    @tool(name="add_up")
    def add(self, by: int) -> int:
        """Add to the counter."""
        return self.n + by

    @tool
    @staticmethod
    def fixed() -> int:
        return 5

    @classmethod
    @tool
    def kind(cls) -> str:
        return cls.__name__

    @tool(name="search", description="Searches.")
    def __call__(self, query: str) -> str:
        return query


def test_marks_on_methods_serve_every_instance(bench: Any) -> None:
    assert Counter(1).add(2) == 3
    assert as_tool(Counter(1).add).spec is as_tool(Counter(2).add).spec
    assert as_tool(Counter(1).add).name == "add_up"
    called = as_tool(Counter(1)).spec
    assert (called.name, called.description) == ("search", "Searches.")
    calls: list[tuple[Any, dict[str, int], Any]] = [
        (Counter(10).add, {"by": 1}, 11),
        (Counter(20).add, {"by": 1}, 21),
        (Counter.fixed, {}, 5),
        (Counter(1).kind, {}, "Counter"),
    ]
    for target, arguments, data in calls:
        assert bench.run(target, **arguments).result.data == data


def unfit(frame: object, wrong: type[int]) -> None: ...


def made(source: str) -> Any:
    """A function without source text."""
    names: dict[str, Any] = {"tool": nbagent.tool}
    exec(source, names)
    return names["f"]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "timeout": (lambda: tool(timeout=0), "more than 0"),
    "loop": (lambda: tool(loop="other"), "loop='notebook'"),  # pyright: ignore
    "idempotent": (lambda: tool(idempotent=True), "the model reads E_INTERRUPTED"),  # pyright: ignore
    "builtin without a signature": (lambda: as_tool(max), "wrap it in a def with hints"),
    # pyright: ignore
    "class": (lambda: as_tool(Counter), "give a function, a bound method or an instance"),
    "unbound method": (lambda: as_tool(Counter.add), "take the method of an instance"),
    "partial with too many": (lambda: as_tool(functools.partial(unfit, 1, 2, 3)), "wrap it in a"),  # pyright: ignore
    "async": (lambda: tool(threaded=True)(asyncio.sleep), "threaded=True"),
    "lambda": (lambda: tool(lambda: 1), "a lambda has no name"),
    "a type that no model can give": (lambda: tool(unfit), "parameter 'wrong' of tool 'unfit'"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_tool_is_one_clear_error_where_it_is_decorated(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in caught.value.message
    assert " at 0x" not in caught.value.message
    assert namespace_tools({"unfit": unfit}) == {}, "it does no harm in later cells"


def test_hint_that_names_what_is_undefined_yet_is_read_later() -> None:
    for head in ("f(size: 'Size')", "f(size: 'list[Size] | None' = None)"):
        function = tool(made(f"def {head}: pass"))
        with pytest.raises(UsageError, match="define or import what it names"):
            as_tool(function)
        function.__globals__["Size"] = int
        assert list(as_tool(function).spec.parameters["properties"]) == ["size"]


SAME = "def f(a: int = 1):\n    'Doc.'\n    return a + 1, lambda: 1"


OTHER = {
    "inner function": SAME.replace("lambda: 1", "lambda: 2"),
    "default": SAME.replace("= 1", "= 2"),
    "docstring": SAME.replace("Doc", "X"),
    "options": SAME.replace("def", "@tool(ask=1)\ndef"),
}


def sha_of(source: str) -> str:
    return as_tool(made(source)).spec.traits.sha


@pytest.mark.parametrize("changed", OTHER)
def test_sha_tells_one_version_from_the_next(changed: str) -> None:
    assert sha_of(SAME) == sha_of(SAME)
    assert sha_of(SAME) != sha_of(OTHER[changed])


def test_sha_depends_on_no_address_no_place_and_no_order_of_a_set() -> None:
    source = "def f(a=object(), b={1, 'x'}):\n    return a in {'p', 'q'}, lambda: 1"
    assert sha_of(source) == sha_of(f"\n\n{source}  # said")
