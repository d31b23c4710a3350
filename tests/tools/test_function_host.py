"""Functions as a tool host: names, the notebook's namespace, redefinition."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from host_door import HostDoor, refused

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolOutcome
from nbagent.tools.functions import FunctionHost, namespace_tools, tool

CELL = """
@tool
def population(city: str) -> int:
    "People living in a city."
    return {n}

def plain(a: int) -> int:
    return a

@tool(name="fs.count")
def count() -> int:
    return 1

@tool
def _hidden() -> int:
    return 0
"""


def cell(n: int = 1) -> dict[str, Any]:
    """What a notebook holds after a cell ran."""
    names: dict[str, Any] = {"tool": tool, "__name__": "__main__", "_": None, "x": 1}
    exec(CELL.format(n=n), names)
    return names


def door_of(*given: Any, **more: Any) -> HostDoor:
    return HostDoor(FunctionHost(given, **more))


def population(door: HostDoor, **more: Any) -> ToolOutcome:
    return door.call("population", city="Rome", **more)


def test_given_tools_are_listed_in_order_with_their_traits() -> None:
    @tool(interruptible=False, idempotent=True)
    def write(text: str) -> None: ...

    def read() -> str:
        """Read."""
        return "text"

    write_spec, read_spec = door_of(write, read).specs.values()
    assert (write_spec.name, read_spec.name) == ("write", "read")
    assert (write_spec.traits.interruptible, write_spec.traits.idempotent) == (False, True)
    assert (read_spec.traits.interruptible, read_spec.traits.idempotent) == (True, False)
    assert (read_spec.traits.host, read_spec.description) == ("functions", "Read.")
    assert len(read_spec.traits.sha) == 64


def test_namespace_may_hold_anything() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Yes:
        def __getattr__(self, name: str) -> Any:
            return self

    names = {"strange": Strange(), "yes": Yes(), "Klass": Strange, "none": None, "f": len}
    assert namespace_tools(names) == {}


def test_one_function_under_two_names_is_one_tool() -> None:
    names = cell()
    names["alias"] = names["population"]
    assert list(namespace_tools(names)) == ["population", "fs.count"]


def test_two_functions_of_one_tool_name_are_refused() -> None:
    names = cell()
    names["other"] = tool(name="fs.count")(lambda: 2)
    with pytest.raises(UsageError, match=r"'count' and 'other' are two tools of the name"):
        namespace_tools(names)


def test_named_tools_may_be_plain_functions_and_methods() -> None:
    class Database:
        def query(self, sql: str) -> str:
            return sql.upper()

    names = cell()
    names["db"] = Database()
    door = door_of(namespace=lambda: names, names=["plain", "db.query", "fs.count"])
    assert list(door.specs) == ["plain", "db.query", "fs.count"]
    assert door.data("db.query", sql="x") == "X"
    assert door.data("plain", a="3") == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("populaton", "did you mean 'population'"),
        ("fs_count", "did you mean 'fs.count'"),
        ("plian", "did you mean 'plain'"),
        ("zzzzzz", "there are: population, fs.count"),
        ("x", "there is no tool 'x'"),
        ("db._secret", "there is no tool"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        FunctionHost(namespace=cell, names=[name])
    assert words in caught.value.message


def test_two_given_tools_of_one_name_are_refused() -> None:
    def one() -> None: ...

    two = tool(name="one")(lambda: None)
    with pytest.raises(UsageError, match="two tools have the name 'one'"):
        FunctionHost([one, two])
    assert len(FunctionHost([one, one]).tools) == 1


def test_unknown_tool_of_a_model_is_a_result_with_the_nearest() -> None:
    door = door_of(namespace=cell)
    error = door.error("get_population")
    assert error.code == "E_UNKNOWN_TOOL"
    assert error.message == (
        "there is no tool 'get_population'; did you mean 'population'? "
        "Use one of: population, fs.count"
    )
    assert door.call("population", town="Rome").started_at_ms is None
    assert HostDoor().error("x").message == "there is no tool 'x'; answer without tools"


def test_new_parameters_are_shown_and_taken() -> None:
    names: dict[str, Any] = cell()
    door = door_of(namespace=lambda: names, names=["population"])

    def newer(city: str, year: int) -> int:
        return year

    names["population"] = tool(name="population")(newer)
    assert list(door.specs["population"].parameters["properties"]) == ["city", "year"]
    assert population(door, year=3).result.data == 3


def test_the_tools_of_a_run_stay_whatever_the_notebook_does() -> None:
    names = cell(7)
    door = door_of(namespace=lambda: names)
    for later in (cell(7) | {"late": tool(name="late")(lambda: 1)}, {"population": 5}):
        names = later
        assert list(door.specs) == ["population", "fs.count"]
        assert population(door).result.data == 7


def test_redefinition_that_cannot_be_a_tool_is_told_and_hides_nothing() -> None:
    names = cell()
    door = door_of(namespace=lambda: names, names=["population"])

    def newer(city: Missing) -> int:  # pyright: ignore # noqa: F821
        return 1

    names["population"] = newer
    assert list(door.specs) == ["population"]
    error = refused(population(door))
    assert error.message.startswith("population was redefined and cannot be called: the hint")


def test_failure_around_a_tool_is_a_result_too() -> None:
    def broken() -> dict[str, Any]:
        if started:
            raise RuntimeError("kernel is gone")
        return cell()

    started: list[int] = []
    door = door_of(namespace=broken)
    started.append(1)
    error = refused(population(door))
    assert error.code == "E_INTERNAL"
    assert "kernel is gone" in error.message


def test_string_hints_find_classes_of_the_notebook() -> None:
    names = cell()
    names["Size"] = int

    def measure(size: Size) -> int:  # pyright: ignore # noqa: F821
        return size + 1  # pyright: ignore

    door = door_of(measure, namespace=lambda: names, names=[])  # pyright: ignore
    assert door.data("measure", size="4") == 5


def _other(a: int, b: int = 1) -> int:
    return a * 100 + b


def _swap_code(function: Any) -> None:
    function.__code__ = _other.__code__


def _swap_defaults(function: Any) -> None:
    function.__defaults__ = (100,)


def _swap_wrapped(function: Any) -> None:
    function.__wrapped__.__code__ = _other.__code__


@pytest.mark.parametrize("swap", [_swap_code, _swap_defaults, _swap_wrapped])
def test_code_put_into_a_function_in_place_makes_it_another(swap: Callable[[Any], None]) -> None:
    def inner(a: int, b: int = 1) -> int:
        return a + b

    function: Any = inner
    if swap is _swap_wrapped:

        @functools.wraps(inner)
        def outer(a: int, b: int = 1) -> int:
            return inner(a, b)

        function = outer
    door = door_of(tool(name="f", ask=True)(function))
    binds = door.preview("f", a=1).binds
    swap(function)  # As autoreload does.
    assert door.error("f", a=1, approved=binds).code == "E_PRECONDITION_FAILED"
    again = door.call("f", a=1)
    if swap is _swap_code:
        assert again.result.data == 101
        assert again.notes == ("f was redefined since this run began",)


def test_a_default_that_the_function_fills_itself_is_no_redefinition() -> None:
    def count(a: int, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(a)
        return len(seen)

    door = door_of(count)
    approved = door.preview("count", a=1).binds
    assert [door.data("count", a=1, approved=approved) for _ in range(2)] == [1, 2]


CHANGES: dict[str, tuple[str, bool, tuple[str, str], str]] = {
    # id: the argument, whether it was approved, what changes in the cell, the code
    "it was approved": ("city", True, ("return 1", "return 2"), "E_PRECONDITION_FAILED"),
    "it asks since": (
        *("city", False),
        ("@tool\ndef population", "@tool(ask=True)\ndef population"),
        "E_PRECONDITION_FAILED",
    ),
    "arguments fit since": ("town", False, ("city", "town"), "E_INVALID_ARGUMENTS"),
}


@pytest.mark.parametrize(("argument", "asked", "change", "code"), CHANGES.values(), ids=CHANGES)
def test_a_function_that_changed_since_it_was_looked_at_does_not_run(
    argument: str, asked: bool, change: tuple[str, str], code: str
) -> None:
    names = cell(1)
    door = door_of(namespace=lambda: names, names=["population"])
    arguments = {argument: "Bonn"}
    preview = door.preview("population", **arguments)
    assert preview.ruling == "allow"
    approved = preview.binds if asked else ""
    exec(CELL.format(n=1), names)  # Run again unchanged it is no other function.
    if asked:
        outcome = door.call("population", approved=approved, **arguments)
        assert (outcome.result.data, outcome.notes) == (1, ())
    exec(CELL.format(n=1).replace(*change), names)
    assert door.error("population", approved=approved, **arguments).code == code
    assert door.preview("population", **arguments).binds != preview.binds
