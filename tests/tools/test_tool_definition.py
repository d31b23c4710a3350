"""Objects that may be tools: decorated functions, every callable, names, versions."""

# No `from __future__ import annotations`: the hints of the tools are local.

import asyncio
import contextlib
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Generator
from typing import Any

import pytest
from host_door import HostDoor, OtherHost
from probes import Colour

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.tools import ToolContext
from nbagent.tools.functions.definition import as_tool, tool
from nbagent.tools.functions.host import namespace_tools
from nbagent.tools.hosts import HostSet


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

    @functools.singledispatchmethod
    def by_type(self, value: int) -> int:
        return value

    @property
    def size(self) -> int:
        return self.n

    two = functools.partialmethod(add, 2)

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


unnamed_one: Callable[[int], int] = lambda a: a  # noqa: E731


def unfit(frame: object, wrong: type[int]) -> None: ...


@functools.singledispatch
def dispatched(value: int) -> int:
    return value


class Dispatching:
    @functools.singledispatchmethod
    def __call__(self, value: int) -> int:
        return value


@contextlib.contextmanager
def managed(a: int) -> Generator[int]:
    yield a


class Unsigned:
    """Its instances can be called, and nothing says how."""

    __call__ = max


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
    "builtin": (lambda: tool(len), "wrap it in a def"),
    "number": (lambda: tool(5), "cannot be a tool"),  # pyright: ignore
    "budget": (lambda: tool(max_result_chars=1), "at least 100"),
    "sync": (lambda: tool(loop="notebook")(lambda: 1), "needs an async def"),
    "class": (lambda: as_tool(Counter), "give a function, a bound method or an instance"),
    "unbound method": (lambda: as_tool(Counter.add), "use the method of an instance"),
    "partial with too many": (lambda: as_tool(functools.partial(unfit, 1, 2, 3)), "wrap it in a"),  # pyright: ignore
    "async": (lambda: tool(threaded=True)(asyncio.sleep), "threaded=True"),
    "single dispatch": (lambda: tool(dispatched), "'dispatched' is a functools.singledispatch"),
    "single dispatch in tools=": (lambda: as_tool(dispatched), "write a def with hints that calls"),
    "partial of single dispatch": (
        lambda: as_tool(functools.partial(dispatched)),
        "singledispatch",
    ),
    "wrapper of single dispatch": (
        lambda: tool(functools.wraps(dispatched)(lambda *args: dispatched(*args))),
        "singledispatch",
    ),
    "single dispatch of a method": (lambda: as_tool(Counter(1).by_type), "singledispatch"),
    "single dispatch in a class": (lambda: tool(vars(Counter)["by_type"]), "singledispatch"),
    "single dispatch of an instance": (lambda: as_tool(Dispatching()), "singledispatch"),
    "context manager": (lambda: tool(managed), "'managed' is a context manager"),
    "overload": (lambda: tool(typing.overload(unfit)), "mark the implementation below"),
    "property": (lambda: tool(vars(Counter)["size"]), "cannot be a tool"),
    "partial method": (lambda: tool(vars(Counter)["two"]), "cannot be a tool"),
    "partial of a lambda": (
        lambda: as_tool(functools.partial(unnamed_one, 1)),
        "a lambda has no name",
    ),
    "instance without a signature": (lambda: as_tool(Unsigned()), "wrap it in a def"),
    "generator object": (lambda: tool(iter("ab")), "cannot be a tool"),  # pyright: ignore
    "lambda": (lambda: tool(lambda: 1), "a lambda has no name"),
    "a type that no model can give": (lambda: tool(unfit), "parameter 'wrong' of tool 'unfit'"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_can_be_no_tool_is_one_clear_error(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in caught.value.message
    assert " at 0x" not in caught.value.message
    assert namespace_tools({"unfit": unfit}) == {}, "it does no harm in later cells"


def test_hint_that_names_what_is_undefined_yet_is_read_later() -> None:
    for head in ("f(size: 'Size')", "f(size: 'list[Size] | None' = None)"):
        function = tool(made(f"def {head}: pass"))
        with pytest.raises(UsageError, match="define or import the names in it"):
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


P = typing.ParamSpec("P")
MISSING = object()


class Shop:
    def __init__(self, name: str = "shop") -> None:
        self.name = name

    def method(self, count: int) -> str:
        return self.name * count

    def __call__(self, count: int) -> int:
        return count + 1

    async def later(self, count: int) -> int:
        return count


def plain(count: int) -> int:
    return count


def two(a: int, b: int = 5, *, c: int = 7) -> list[int]:
    return [a, b, c]


def no_hints(a, b=2, *rest, c=3, **more):  # pyright: ignore
    return [a, b, rest, c, more]  # pyright: ignore


def all_kinds(a: int, /, b: int, *rest: float, c: int, **more: str) -> list[Any]:
    return [a, b, rest, c, more]


def named_like_a_field(self_: int, cls: int, schema: int, model_config: int, json: int) -> int:
    return self_ + cls + schema + model_config + json


def sizes(länge: int, lünge: int = 1, 数: int = 0) -> list[int]:
    """Misst.

    Args:
        数: Wie viele.
    """
    return [länge, lünge, 数]


def with_context(a: int, ctx: ToolContext, /, *, tool_context: Any = None) -> list[Any]:
    return [a, ctx.session, tool_context]


def guarded(*rest: int, tool_context: ToolContext, **more: Any) -> list[Any]:
    return [tool_context.session, more]


def unnamed(function: Callable[P, Any]) -> Callable[P, Any]:
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        return function(*args, **kwargs)

    return wrapper


def keyword_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def made(**given: Any) -> Any:
        return function(**given)

    return made


@typing.overload
def overloaded(a: int) -> int: ...
@typing.overload
def overloaded(a: str) -> str: ...
def overloaded(a: int | str) -> int | str:
    return a


shop = Shop("ab")
CALLS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    # id: what is made a tool, what a model sends, what comes back
    "defaults left out": (two, {"a": 1}, [1, 5, 7]),
    "no hints": (no_hints, {"a": "1"}, ["1", 2, [], 3, {}]),
    "all kinds": (
        all_kinds,
        {"a": 1, "b": 2, "rest": [3], "c": 4, "d": "x"},
        [1, 2, [3.0], 4, {"d": "x"}],
    ),
    "names of pydantic": (
        named_like_a_field,
        {"self_": 1, "cls": 1, "schema": 1, "model_config": 1, "json": 1},
        5,
    ),
    "unicode names by wire key": (sizes, {"l_nge": 1, "l_nge_": 2, "arg3": 3}, [1, 2, 3]),
    "context": (with_context, {"a": 1}, [1, "test", None]),
    "context that a model gives": (
        guarded,
        {"rest": [1], "tool_context": "mine", "x": 2},
        ["test", {"x": 2}],
    ),
    "method": (shop.method, {"count": 2}, "abab"),
    "partial by keyword": (functools.partial(two, b=1), {"a": 0}, [0, 1, 7]),
    "partial with a name of its own": (
        tool(name="pair", description="Two.")(functools.partial(two, b=1)),
        {"a": 0},
        [0, 1, 7],
    ),
    "implementation below overloads": (overloaded, {"a": 2}, 2),
    "wrapper without wraps": (unnamed(two), {"args": [1], "c": 2}, [1, 5, 2]),
    "lru_cache": (functools.lru_cache(plain), {"count": "2"}, 2),
    "builtin by position": (math.gcd, {"integers": [4, 6]}, 2),
    "wrapper by keyword": (keyword_wrapper(plain), {"count": 1}, 1),
}


@pytest.mark.parametrize(("target", "arguments", "expected"), CALLS.values(), ids=CALLS.keys())
def test_callable_is_a_tool(
    target: Any, arguments: dict[str, Any], expected: Any, bench: Any
) -> None:
    outcome = bench.run(target, **arguments)
    assert outcome.result.ok, outcome.result.error
    assert outcome.result.data == expected


DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    # id: hint, default, what the schema says of it (MISSING: nothing)
    "enum member": (Colour, Colour.RED, "red"),
    "infinity": (float, math.inf, MISSING),
    "sentinel": (int, MISSING, MISSING),
}


@pytest.mark.parametrize(("hint", "default", "shown"), DEFAULTS.values(), ids=DEFAULTS.keys())
def test_default_of_any_kind_stays_the_functions_own(
    hint: Any, default: Any, shown: Any, bench: Any
) -> None:
    got: list[Any] = []

    def probe(value: Any = default) -> None:
        got.append(value)

    probe.__annotations__ = {"value": hint}
    assert bench.run(probe).result.ok
    assert got[0] is default
    schema = as_tool(probe).spec.parameters["properties"]["value"]
    assert schema.get("default", MISSING) == shown
    assert "required" not in as_tool(probe).spec.parameters


def test_options_of_a_partial_are_its_own() -> None:
    pair = tool(name="pair", description="Two.")(functools.partial(two, b=1))
    spec = as_tool(pair).spec
    assert (spec.name, spec.description, as_tool(two).name) == ("pair", "Two.", "two")


def test_tool_may_change_its_arguments_and_the_call_stays_as_it_was(bench: Any) -> None:
    def spoil(box: Any, items: list[Any]) -> int:
        box["x"].append(2)
        items.append(1)
        return len(box["x"])

    arguments: dict[str, Any] = {"box": {"x": [1]}, "items": []}
    assert bench.run(spoil, **arguments).result.data == 2
    assert arguments == {"box": {"x": [1]}, "items": []}


def test_keys_that_a_wire_refuses_are_shown_in_ascii_with_the_name_beside() -> None:
    properties = as_tool(sizes).spec.parameters["properties"]
    assert list(properties) == ["l_nge", "l_nge_", "arg3"]
    assert properties["l_nge"]["description"] == "länge"
    assert properties["arg3"]["description"] == "数: Wie viele."


NAMES: dict[str, tuple[str, str]] = {
    # id: what it is called, the name to write
    "another dot": ("fs․read", "fs.read"),
    "letters of other languages": ("größe", "groe"),
    "empty": ("", "my_tool"),
    "of a built-in tool": ("nb.run", "nb_run"),
    "of a skills tool": ("get_skill", "my_get_skill"),
}


@pytest.mark.parametrize(("name", "free"), NAMES.values(), ids=NAMES)
def test_other_names_are_refused_with_the_name_to_write(name: str, free: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"write name={free!r}")):
        tool(name=name)
    if name:
        with pytest.raises(UsageError, match=re.escape(f"write name={free!r}")):
            tool(types.FunctionType(plain.__code__, globals(), name))
    strange = HostDoor(HostSet([OtherHost(name)]))
    with pytest.raises(UsageError, match=re.escape(f"tool host 'other': {name!r} is ")):
        assert strange.specs
