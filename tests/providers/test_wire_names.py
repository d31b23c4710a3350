"""Tool names on the wire and back."""

from __future__ import annotations

import re

import pytest

from nbagent.providers.names import WireNames

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


@pytest.mark.parametrize(
    "text",
    [
        "fs__read",
        "fs.read",
        "functions.fs__read",
        "default_api:fs.read",
        "functions.fs.read",
        "fs__read<|channel|>commentary",
        "functions.fs__read:0",
        " fs__read ",
    ],
)
def test_what_models_write_is_understood(text: str) -> None:
    assert WireNames(["fs.read"]).from_wire(text) == "fs.read"


@pytest.mark.parametrize("text", ["fs_read", "", "<|channel|>", ":0", "functions.", "fs__read2"])
def test_an_unknown_name_is_none(text: str) -> None:
    assert WireNames(["fs.read"]).from_wire(text) is None


def test_a_name_that_is_a_tool_as_it_stands_is_not_shortened() -> None:
    assert WireNames(["a", "a:1"]).from_wire("a:1") == "a:1"


def test_a_tool_that_is_no_longer_offered_keeps_its_wire_name() -> None:
    assert WireNames([]).to_wire("fs.read") == WireNames(["fs.read"]).to_wire("fs.read")
