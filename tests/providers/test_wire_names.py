"""Tool names on the wire and back."""

from __future__ import annotations

import re

from nbagent.providers.toolset import WireNames

NAMES = ["fs.read", "fs__read", "a b", "1st", "-x", "grüße", "x" * 70, "x" * 71, "a.b", "a__b", ""]


def test_every_name_is_legal_on_the_wire_and_comes_back() -> None:
    names = WireNames(NAMES)
    wires = [names.to_wire(name) for name in NAMES]
    assert len(set(wires)) == len(NAMES)
    for name, wire in zip(NAMES, wires, strict=True):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire)
        assert names.from_wire(wire) == name


def test_a_legal_name_keeps_itself_in_any_order() -> None:
    for order in (NAMES, NAMES[::-1]):
        names = WireNames(order)
        assert names.to_wire("fs__read") == "fs__read"
        assert names.to_wire("fs.read").startswith("fs__read_")


def test_a_name_that_is_a_tool_as_it_stands_is_not_shortened() -> None:
    assert WireNames(["a", "a:1"]).from_wire("a:1") == "a:1"


def test_a_tool_that_is_no_longer_offered_keeps_its_wire_name() -> None:
    assert WireNames([]).to_wire("fs.read") == WireNames(["fs.read"]).to_wire("fs.read")
