"""A wire that its author has not finished is one error that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from wires.other_package.otherwire import OtherParser, OtherWire

from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.providers.client import WireClient
from nbagent.providers.wires.base import Parser, Wire
from nbagent.providers.wires.chat import Chat
from nbagent.providers.wires.chat_profiles import Profile

CONFIG = ProviderConfig(base_url="http://127.0.0.1:1")


def other(**facts: Any) -> Callable[[], Any]:
    """A wire with these facts instead."""
    return lambda: type("Mine", (OtherWire,), facts)()


WIRES: dict[str, tuple[Callable[[], Any], str]] = {
    "no name": (other(name=""), r"Mine has no name; write name = "),
    "no parser": (other(parser=None), "has no parser; write parser = "),
    "no path": (other(path=Wire.path), r"has no path; write endpoint_paths = \(\"/chat\",\), or"),
    "one path without a comma": (
        *(other(endpoint_paths="/chat"), r"endpoint_paths = '/chat'; write a tuple"),
    ),
    "a path without a slash": (
        *(other(endpoint_paths=("chat",)), r"endpoint_paths = \('chat',\); write a tuple"),
    ),
    "an unknown field": (
        other(unsupported_fields=frozenset({"top_k", "tools"})),
        r"unsupported_fields that no request has \('top_k'\); write some of system_prompt, tools",
    ),
    "one field without a set": (
        other(unsupported_fields="tools"),
        r"unsupported_fields = 'tools'; write frozenset\(\{'tools'\}\)",
    ),
    "a field that is always sent": (
        other(unsupported_fields=frozenset({"messages", "tools"})),
        "must send messages; remove it from unsupported_fields",
    ),
    "a class": (lambda: OtherWire, r"OtherWire is a class; write OtherWire\(\)"),
    "anything else": (object, "object is no Wire; write a subclass of"),
    "none at all": (lambda: (), r"needs a wire; write wires=lambda row, config: \[MyWire\(\)\]"),
    "the second one": (lambda: [Chat(Profile()), other(name="")()], "Mine has no name"),
}


@pytest.mark.parametrize(("wire", "words"), WIRES.values(), ids=WIRES)
def test_a_wire_that_lacks_a_fact_says_what_to_write(wire: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        WireClient(wire(), CONFIG, provider="mine")


@pytest.mark.parametrize("facts", [{}, {"endpoint_paths": ("/talk",), "path": Wire.path}])
def test_a_wire_with_its_facts_is_accepted(facts: dict[str, Any]) -> None:
    assert WireClient(other(**facts)(), CONFIG, provider="mine").provider == "mine"


@pytest.mark.parametrize("name", ["params", "encode_tool", "encode_group"])
def test_a_wire_without_a_method_is_never_created(name: str) -> None:
    lacking = other(**{name: getattr(Wire, name)})
    with pytest.raises(TypeError, match=f"abstract.*{name}"):
        lacking()


def test_a_parser_without_its_method_is_never_created() -> None:
    lacking = cast("Any", type("Mine", (OtherParser,), {"read_event": Parser.read_event}))
    with pytest.raises(TypeError, match=r"abstract.*read_event"):
        lacking(None, None)
