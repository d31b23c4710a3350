"""Functions as a tool host: names, the namespace, what an approval is bound to; several hosts."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from host_door import HostDoor, OtherHost

from nbagent.contracts.errors import UsageError
from nbagent.tools.functions.definition import tool
from nbagent.tools.functions.host import FunctionHost, namespace_tools
from nbagent.tools.hosts import HostSet

CELL = """
@tool
def population(city: str) -> int:
    "People living in a city."
    return {n}

def plain(a: int) -> int:
    return a

@tool(name="a.count")
def count() -> int:
    return 1

@tool
def _hidden() -> int:
    return 0
"""


def cell(n: int = 1) -> dict[str, Any]:
    """Names of a notebook after a cell ran."""
    names: dict[str, Any] = {"tool": tool, "__name__": "__main__", "_": None, "x": 1}
    exec(CELL.format(n=n), names)
    return names


def door_of(*given: Any, **more: Any) -> HostDoor:
    return HostDoor(FunctionHost(given, **more))


class Gone:
    """As a proxy whose object is gone: asked for anything, it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no object for {name}")


def test_marked_functions_of_a_namespace_that_holds_anything_are_its_tools() -> None:
    names = cell()
    more = {"alias": names["population"], "Klass": HostDoor, "f": len, "gone": Gone()}
    assert list(namespace_tools(names | more)) == ["population", "a.count"]


def test_two_functions_of_one_tool_name_are_refused() -> None:
    other = tool(name="a.count")(lambda: 2)
    with pytest.raises(UsageError, match=r"'count' and 'other' are two tools of the name"):
        namespace_tools(cell() | {"other": other})
    with pytest.raises(UsageError, match=r"two tools have the name 'a\.count'"):
        FunctionHost([cell()["count"], other])
    assert len(FunctionHost([other, other]).specs) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("populaton", "did you mean 'population'"),
        ("zzzzzz", "There are: population, a.count"),
        ("x", "there is no tool 'x'"),
        ("a__count", "did you mean 'a.count'"),
        ("fss", "did you mean 'fs'"),
        ("skils", "did you mean 'skills'"),
        ("notebok", "did you mean 'notebook'"),
        ("Notes", "no tool 'Notes'. There are"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        FunctionHost(namespace=cell, names=[name])
    assert words in caught.value.message


def test_a_server_is_named_only_where_no_tool_is_near() -> None:
    for name, is_named in {"a__cont": False, "git__log": True}.items():
        with pytest.raises(UsageError) as caught:
            FunctionHost(namespace=cell, names=[name])
        assert ("All tools of an MCP server" in caught.value.message) == is_named


def test_the_tools_of_a_run_stay_whatever_the_notebook_does() -> None:
    names = cell(7)
    door = door_of(namespace=lambda: names)
    for later in (cell(8) | {"late": tool(name="late")(lambda: 1)}, {"population": 5}):
        names = later
        assert list(door.specs) == ["population", "a.count"]
        assert door.data("population", city="Rome") == 7


def _other(a: int, b: int = 1) -> int:
    return a * 100 + b


def test_code_put_into_a_function_in_place_makes_it_another() -> None:
    def function(a: int, b: int = 1) -> int:
        return a + b

    door = door_of(tool(name="f", ask=True)(function))
    binds = [door.preview("f", a=1).approval_key]
    function.__code__ = _other.__code__  # As autoreload does.
    binds.append(door.preview("f", a=1).approval_key)
    function.__defaults__ = (100,)
    binds.append(door.preview("f", a=1).approval_key)
    assert len(set(binds)) == 3
    assert door.data("f", a=1) == 200


def test_arguments_are_judged_as_json_with_the_defaults_of_what_was_left_out() -> None:
    def delete(
        day: date, force: bool = False, tags: list[str] | None = None, n: int = 3
    ) -> None: ...

    door = door_of(delete)
    prepared = door.on_engine(lambda: door.aprepare("delete", day="2026-01-02", force="yes"))
    assert prepared.arguments == {"day": "2026-01-02", "force": True, "n": 3, "tags": None}


# -- several hosts as one --------------------------------------------------------------------


def greet() -> str:
    return "hello"


def set_with(other: OtherHost) -> HostDoor:
    return HostDoor(HostSet([FunctionHost([greet]), other]))


def test_tools_of_all_hosts_are_listed_and_routed_by_name() -> None:
    door = set_with(OtherHost("a.read"))
    assert door.host.name == "functions+other"
    assert list(door.specs) == ["greet", "a.read"]
    assert door.data("greet") == "hello"
    assert door.data("a.read") == "other a.read"
    assert HostDoor().error("x").message == "there is no tool 'x'. Answer without tools"
    error = door.error("gret")
    assert error.code == "E_UNKNOWN_TOOL"
    assert error.message == (
        "there is no tool 'gret'; did you mean 'greet'? Use one of: greet, a.read"
    )


def test_same_name_in_two_hosts_is_refused_and_names_both() -> None:
    with pytest.raises(UsageError, match=r"'functions' and 'other' both have a tool 'greet'"):
        assert set_with(OtherHost("greet")).specs


def test_names_of_a_built_in_host_are_its_own_and_wrong_ones_are_left_out() -> None:
    assert list(set_with(OtherHost("fs.read", called="fs")).specs) == ["greet", "fs.read"]
    other = OtherHost("a")
    door = set_with(other)
    assert list(door.specs) == ["greet", "a"]
    other.names += ["greet", "fs\u2024read", "nb.run", "b"]
    assert list(door.specs) == ["greet", "a", "b"]
    assert door.data("greet") == "hello"
    assert door.error("nb.run").code == "E_UNKNOWN_TOOL"


def test_hidden_tool_is_not_shown_and_its_call_is_denied_before_its_host_sees_it() -> None:
    hosts = [FunctionHost([greet]), OtherHost("a")]
    door = HostDoor(
        HostSet(hosts, hidden_reason=lambda spec: "deny=greet" if spec.name == "greet" else "")
    )
    assert list(door.specs) == ["a"]
    assert door.error("greet", wrong=1).message == "the policy denies this call: deny=greet"
