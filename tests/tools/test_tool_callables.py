"""Every kind of callable and of parameter list that people write, called as a model would."""

# No `from __future__ import annotations`: the hints of the tools are local.

import functools
import math
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from host_door import HostDoor, OtherHost
from probes import Colour
from pydantic import Field

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolContext
from nbagent.tools.base import HostSet
from nbagent.tools.function_tool import as_tool, namespace_tools, tool

P = typing.ParamSpec("P")
MISSING = object()


class Hostile:
    """A default whose every method fails."""

    def _fail(self, *given: Any) -> Any:
        raise RuntimeError

    __repr__ = __eq__ = __deepcopy__ = _fail
    __hash__ = object.__hash__


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
    "hostile": (Any, Hostile(), MISSING),
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


def test_fields_of_pydantic_give_defaults_and_names_stay_the_parameters(bench: Any) -> None:
    def probe(
        a: int = Field(1, alias="other", ge=0),
        b: Annotated[int, Field(default=2, description="Bees.")] = Field(3),
        c: Annotated[list[int], Field(default_factory=list)] = [4],  # noqa: B006
    ) -> list[Any]:
        return [a, b, c]

    assert bench.run(probe).result.data == [1, 3, [4]]
    assert bench.run(probe, a=-1).result.error.code == "E_INVALID_ARGUMENTS"


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


class RaisesAll:
    """As a proxy whose object is gone: asked for anything, it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no object for {name}")

    def __call__(self, city: str) -> int:
        return len(city)


def test_callable_whose_own_attributes_fail_is_one_clear_error() -> None:
    target: Any = RaisesAll()
    agent = nbagent.Agent("offline:demo", tools=[target])
    for ask in (lambda: as_tool(target), lambda: agent.run("Go."), lambda: agent.dry_run("Go.")):
        with pytest.raises(UsageError, match=r"tool 'RaisesAll' .*; wrap it in a def"):
            ask()
    assert namespace_tools({"it": target, "plain": plain}) == {}, "beside others it does no harm"
