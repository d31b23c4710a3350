"""The decorator leaves a function as it is; the definition knows one version from the next."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from nbagent.contracts.errors import UsageError
from nbagent.tools.functions import FunctionTool, as_tool, tool


def test_decorated_function_stays_a_function() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async def wait() -> str:
        return "waited"

    assert tool(add) is add
    assert tool(name="sum", timeout=3)(add) is add
    assert add(1, b=2) == 3
    assert inspect.isfunction(add)
    assert tool(wait) is wait
    assert asyncio.run(wait()) == "waited"


def test_options_are_read_from_the_mark() -> None:
    @tool(name="fs.sum", description="Adds up.", idempotent=True, max_result_chars=500)
    def add(a: int) -> int:
        """Not this."""
        return a

    definition = as_tool(add)
    assert (definition.name, definition.spec.name) == ("fs.sum", "fs.sum")
    assert definition.spec.description == "Adds up."
    assert definition.spec.traits.idempotent
    assert definition.options.max_result_chars == 500
    assert as_tool(definition) is definition


def test_marks_on_methods_serve_every_instance(bench: Any) -> None:
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

    assert Counter(1).add(2) == 3
    assert as_tool(Counter(1).add).spec is as_tool(Counter(2).add).spec
    assert bench.run(Counter(10).add, by=1).result.data == 11
    assert bench.run(Counter(20).add, by=1).result.data == 21
    assert as_tool(Counter(1).add).name == "add_up"
    assert bench.run(Counter.fixed).result.data == 5
    assert bench.run(Counter(1).kind).result.data == "Counter"


def test_definition_keeps_no_instance_alive() -> None:
    class Owner:
        def act(self) -> int:
            return 1

    owner = Owner()
    as_tool(owner.act)
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


def test_mark_on_a_call_method_serves_the_instance() -> None:
    class Search:
        @tool(name="search", description="Searches.")
        def __call__(self, query: str) -> str:
            return query

    definition = as_tool(Search())
    assert (definition.name, definition.spec.description) == ("search", "Searches.")


def test_wrapper_is_not_taken_for_what_it_wraps(bench: Any) -> None:
    @tool
    def inner(a: int) -> int:
        return a

    as_tool(inner)

    @functools.wraps(inner)
    def outer(a: int) -> int:
        return inner(a) * 100

    assert bench.run(outer, a=2).result.data == 200
    assert as_tool(outer).target is outer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda: tool(name="two words"), "is no name", id="name"),
        pytest.param(lambda: tool(name=""), "is no name", id="empty name"),
        pytest.param(lambda: tool(timeout=0), "more than 0", id="timeout"),
        pytest.param(lambda: tool(loop="other"), "loop='notebook'", id="loop"),  # pyright: ignore
        pytest.param(lambda: tool(on_cancel=5), "on_cancel", id="hook"),  # pyright: ignore
        pytest.param(lambda: tool(max_result_chars=1), "at least 100", id="budget"),
        pytest.param(lambda: tool(len), "wrap it in a def", id="builtin"),
        pytest.param(lambda: tool(5), "is no function", id="number"),  # pyright: ignore
        pytest.param(lambda: tool(threaded=True)(asyncio.sleep), "threaded=True", id="async"),
        pytest.param(lambda: tool(loop="notebook")(lambda: 1), "for an async def", id="sync"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_advice(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in caught.value.message


def _compiled(source: str) -> FunctionTool:
    """A function without source text, as from `exec`."""
    names: dict[str, Any] = {"tool": tool}
    exec(source, names)
    return as_tool(names["f"])


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param("def f(a: int = 1):\n    'Doc.'\n    return a + 2", id="body"),
        pytest.param("def f(a: int = 2):\n    'Doc.'\n    return a + 1", id="default"),
        pytest.param("def f(a: str = 1):\n    'Doc.'\n    return a + 1", id="hint"),
        pytest.param("def f(a: int = 1):\n    'Other.'\n    return a + 1", id="docstring"),
        pytest.param(
            "@tool(timeout=5)\ndef f(a: int = 1):\n    'Doc.'\n    return a + 1", id="options"
        ),
    ],
)
def test_sha_tells_one_version_from_the_next(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python 3.13 does for the text of `python -c`, which has the same name as ours.
    monkeypatch.setitem(linecache.cache, "<string>", (8, None, ["import x\n"], "<string>"))
    same = "def f(a: int = 1):\n    'Doc.'\n    return a + 1"
    assert _compiled(same).sha == _compiled(same).sha
    assert _compiled(same).sha != _compiled(changed).sha


def test_sha_does_not_depend_on_memory_addresses() -> None:
    source = "def f(a=object(), b={1, 'x'}):\n    return a in {'p', 'q'}, lambda: 1"
    assert _compiled(source).sha == _compiled(source).sha
