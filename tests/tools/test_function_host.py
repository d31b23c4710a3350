"""Functions as a tool host: names, the notebook's namespace, redefinition."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from refusals import refused

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import ToolContext, ToolHost, ToolOutcome
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


def made_of(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=arguments, arguments_raw="")


def executed(host: FunctionHost, made: ToolCall, context: ToolContext) -> ToolOutcome:
    return asyncio.run(host.execute(made, context, CancelToken()))


def call(host: FunctionHost, bench: Any, name: str, /, **arguments: Any) -> ToolOutcome:
    return executed(host, made_of(name, **arguments), bench.context)


def previewed(host: FunctionHost, made: ToolCall, context: ToolContext) -> CallPreview:
    return asyncio.run(host.preview(made, context))


def names_of(host: FunctionHost, bench: Any) -> list[str]:
    return [spec.name for spec in host.visible_tools(bench.context)]


def test_given_tools_are_listed_in_order_with_their_traits(bench: Any) -> None:
    @tool(interruptible=False, idempotent=True)
    def write(text: str) -> None: ...

    def read() -> str:
        """Read."""
        return "text"

    host: ToolHost = FunctionHost([write, read])
    write_spec, read_spec = host.visible_tools(bench.context)
    assert (write_spec.name, read_spec.name) == ("write", "read")
    assert (write_spec.traits.interruptible, write_spec.traits.idempotent) == (False, True)
    assert (read_spec.traits.interruptible, read_spec.traits.idempotent) == (True, False)
    assert (read_spec.traits.host, host.name, read_spec.description) == (
        "functions",
        "functions",
        "Read.",
    )
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


def test_without_names_all_marked_tools_are_visible(bench: Any) -> None:
    host = FunctionHost(namespace=cell)
    assert names_of(host, bench) == ["population", "fs.count"]


def test_named_tools_may_be_plain_functions_and_methods(bench: Any) -> None:
    class Database:
        def query(self, sql: str) -> str:
            return sql.upper()

    names = cell()
    names["db"] = Database()
    host = FunctionHost(namespace=lambda: names, names=["plain", "db.query", "fs.count"])
    assert names_of(host, bench) == ["plain", "db.query", "fs.count"]
    assert call(host, bench, "db.query", sql="x").result.data == "X"
    assert call(host, bench, "plain", a="3").result.data == 3


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


def test_unknown_tool_of_a_model_is_a_result_with_the_nearest(bench: Any) -> None:
    host = FunctionHost(namespace=cell)
    error = refused(call(host, bench, "get_population"))
    assert error.code == "E_UNKNOWN_TOOL"
    assert error.message == (
        "there is no tool 'get_population'; did you mean 'population'? "
        "Use one of: population, fs.count"
    )
    error = refused(call(FunctionHost(), bench, "x"))
    assert error.message == "there is no tool 'x'; answer without tools"


def test_redefined_function_is_called_in_its_new_form_and_the_outcome_says_so(bench: Any) -> None:
    names = cell(1)
    host = FunctionHost(namespace=lambda: names)
    names = cell(1)  # Run again unchanged it is no other function.
    first = call(host, bench, "population", city="Rome")
    assert (first.result.data, first.notes) == (1, ())
    names = cell(2)
    second = call(host, bench, "population", city="Rome")
    assert second.result.data == 2
    assert second.notes == ("population was redefined since this run began",)
    assert second.tool_sha != first.tool_sha
    assert second.tool_sha == host.visible_tools(bench.context)[0].traits.sha


def test_new_parameters_are_shown_and_taken(bench: Any) -> None:
    names: dict[str, Any] = cell()
    host = FunctionHost(namespace=lambda: names, names=["population"])

    def population(city: str, year: int) -> int:
        return year

    names["population"] = population
    assert list(host.visible_tools(bench.context)[0].parameters["properties"]) == ["city", "year"]
    assert call(host, bench, "population", city="Rome", year=3).result.data == 3


def test_tool_that_is_gone_from_the_namespace_stays_callable(bench: Any) -> None:
    names = cell(7)
    host = FunctionHost(namespace=lambda: names)
    names = {"population": 5}
    assert names_of(host, bench) == ["population", "fs.count"]
    assert call(host, bench, "population", city="Rome").result.data == 7


def test_redefinition_that_cannot_be_a_tool_is_told_and_hides_nothing(bench: Any) -> None:
    names = cell()
    host = FunctionHost(namespace=lambda: names, names=["population"])

    def population(city: Missing) -> int:  # pyright: ignore # noqa: F821
        return 1

    names["population"] = population
    assert names_of(host, bench) == ["population"]
    error = refused(call(host, bench, "population", city="Rome"))
    assert error.message.startswith("population was redefined and cannot be called: the hint")


def test_tool_defined_later_does_not_change_the_tools_of_a_run(bench: Any) -> None:
    names = cell()
    host = FunctionHost(namespace=lambda: names)
    names["late"] = tool(name="late")(lambda: 1)
    assert names_of(host, bench) == ["population", "fs.count"]


def test_bad_arguments_are_a_result(bench: Any) -> None:
    host = FunctionHost(namespace=cell)
    outcome = call(host, bench, "population", town="Rome")
    assert refused(outcome).code == "E_INVALID_ARGUMENTS"
    assert outcome.started_at_ms is None
    raw = ToolCall(id="1", name="population", arguments=None, arguments_raw="{oops")
    outcome = executed(host, raw, bench.context)
    assert refused(outcome).code == "E_INVALID_ARGUMENTS"


def test_failure_around_a_tool_is_a_result_too(bench: Any) -> None:
    def broken() -> dict[str, Any]:
        if started:
            raise RuntimeError("kernel is gone")
        return cell()

    started: list[int] = []
    host = FunctionHost(namespace=broken)
    started.append(1)
    error = refused(call(host, bench, "population", city="Rome"))
    assert error.code == "E_INTERNAL"
    assert "kernel is gone" in error.message


def test_string_hints_find_classes_of_the_notebook(bench: Any) -> None:
    names = cell()
    names["Size"] = int

    def measure(size: Size) -> int:  # pyright: ignore # noqa: F821
        return size + 1  # pyright: ignore

    host = FunctionHost([measure], namespace=lambda: names, names=[])  # pyright: ignore
    assert call(host, bench, "measure", size="4").result.data == 5


def test_function_with_new_code_in_place_counts_as_redefined(bench: Any) -> None:
    def count() -> int:
        return 1

    def newer() -> int:
        return 2

    host = FunctionHost([count])
    count.__code__ = newer.__code__  # As autoreload does.
    outcome = call(host, bench, "count")
    assert outcome.result.data == 2
    assert outcome.notes == ("count was redefined since this run began",)


def test_a_function_redefined_while_it_is_asked_about_does_not_run(bench: Any) -> None:
    names = cell(1)
    host = FunctionHost(namespace=lambda: names, names=["population"])
    made = made_of("population", city="Bonn")
    preview = previewed(host, made, bench.context)
    approved = replace(bench.context, approved=preview.binds)
    assert executed(host, made, approved).result.data == 1
    exec(CELL.format(n=2), names)
    assert refused(executed(host, made, approved)).code == "E_PRECONDITION_FAILED"
    assert previewed(host, made, bench.context).binds != preview.binds


def _other(a: int, b: int = 1) -> int:
    return a * 100 + b


def _swap_code(function: Any) -> None:
    function.__code__ = _other.__code__


def _swap_defaults(function: Any) -> None:
    function.__defaults__ = (100,)


def _swap_wrapped(function: Any) -> None:
    function.__wrapped__.__code__ = _other.__code__


@pytest.mark.parametrize("swap", [_swap_code, _swap_defaults, _swap_wrapped])
def test_code_put_into_a_function_in_place_makes_it_another(
    bench: Any, swap: Callable[[Any], None]
) -> None:
    def inner(a: int, b: int = 1) -> int:
        return a + b

    function: Any = inner
    if swap is _swap_wrapped:

        @functools.wraps(inner)
        def outer(a: int, b: int = 1) -> int:
            return inner(a, b)

        function = outer
    host = FunctionHost([tool(name="f", ask=True)(function)])
    made = made_of("f", a=1)
    binds = previewed(host, made, bench.context).binds
    swap(function)
    approved = replace(bench.context, approved=binds)
    assert refused(executed(host, made, approved)).code == "E_PRECONDITION_FAILED"


def test_a_default_that_the_function_fills_itself_is_no_redefinition(bench: Any) -> None:
    def count(a: int, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(a)
        return len(seen)

    host = FunctionHost([count])
    made = made_of("count", a=1)
    approved = replace(bench.context, approved=previewed(host, made, bench.context).binds)
    results = [executed(host, made, approved).result for _ in range(2)]
    assert [result.data for result in results] == [1, 2]


ASKING = ("@tool\ndef population", "@tool(ask=True)\ndef population")


@pytest.mark.parametrize(
    ("argument", "change", "code"),
    [
        pytest.param("city", ASKING, "E_PRECONDITION_FAILED", id="it asks since"),
        pytest.param("town", ("city", "town"), "E_INVALID_ARGUMENTS", id="arguments fit since"),
    ],
)
def test_a_function_that_changed_since_it_was_looked_at_does_not_run(
    bench: Any, argument: str, change: tuple[str, str], code: str
) -> None:
    names = cell(1)
    host = FunctionHost(namespace=lambda: names, names=["population"])
    made = made_of("population", **{argument: "Bonn"})
    assert previewed(host, made, bench.context).ruling == "allow"
    exec(CELL.format(n=2).replace(*change), names)
    assert refused(executed(host, made, bench.context)).code == code
