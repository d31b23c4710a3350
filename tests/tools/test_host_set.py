"""Several hosts as one, and the choice of tools by name."""

from __future__ import annotations

import pytest
from host_door import HostDoor, OtherHost

from nbagent.contracts.errors import UsageError
from nbagent.tools.base import HostSet
from nbagent.tools.function_host import FunctionHost


def greet() -> str:
    return "hello"


def door_of(other: OtherHost) -> HostDoor:
    return HostDoor(HostSet([FunctionHost([greet]), other]))


def test_tools_of_all_hosts_are_listed_and_routed_by_name() -> None:
    door = door_of(OtherHost("a.read"))
    assert door.host.name == "functions+other"
    assert list(door.specs) == ["greet", "a.read"]
    assert door.data("greet") == "hello"
    assert door.data("a.read") == "other a.read"
    error = door.error("gret")
    assert error.code == "E_UNKNOWN_TOOL"
    assert error.message == (
        "there is no tool 'gret'; did you mean 'greet'? Use one of: greet, a.read"
    )


def test_same_name_in_two_hosts_is_refused_and_names_both() -> None:
    with pytest.raises(UsageError, match=r"'functions' and 'other' both have a tool 'greet'"):
        assert door_of(OtherHost("greet")).specs


def test_names_of_a_built_in_host_are_its_own() -> None:
    assert list(door_of(OtherHost("fs.read", called="fs")).specs) == ["greet", "fs.read"]


def test_wrong_names_that_a_host_adds_later_are_left_out() -> None:
    other = OtherHost("a")
    door = door_of(other)
    assert list(door.specs) == ["greet", "a"]
    other.names += ["greet", "fs\u2024read", "nb.run", "b"]
    assert list(door.specs) == ["greet", "a", "b"]
    assert door.data("greet") == "hello"
    assert door.error("nb.run").code == "E_UNKNOWN_TOOL"


def test_hidden_tool_is_not_shown_and_its_call_is_denied_before_its_host_sees_it() -> None:
    hosts = [FunctionHost([greet]), OtherHost("a")]
    door = HostDoor(HostSet(hosts, hides=lambda spec: "deny=greet" if spec.name == "greet" else ""))
    assert list(door.specs) == ["a"]
    error = door.error("greet", wrong=1)
    assert (error.code, error.message) == ("E_DENIED", "the policy denies this call: deny=greet")
