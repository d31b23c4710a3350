"""Tool names on the wire and back: deterministic, as prompt caches depend on them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nbagent.contracts.canonical import sha256_hex

_LONGEST = 64
"""Providers allow letters, digits, `_` and `-`; nbagent's names may have dots."""


_CUT_AT = 55


_OTHER = re.compile(r"[^A-Za-z0-9_-]")


_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


_LEAKED = re.compile(r"^(?:functions|default_api|tools?)[.:]")
"""Prefixes that models copy from their own prompt format into the name."""


_AFTER = re.compile(r"<\|.*|:\d+$", re.S)
"""What leaks behind it: channel marks of gpt-oss, the call's number of Kimi."""


class WireNames:
    """The names of one toolset, both ways."""

    def __init__(self, names: Iterable[str]) -> None:
        self._to_wire: dict[str, str] = {}
        self._from_wire: dict[str, str] = {}
        # Names that are legal as they are keep themselves, whatever the order of the tools.
        for name in sorted(dict.fromkeys(names), key=lambda name: _LEGAL.fullmatch(name) is None):
            wire = wire_name(name)
            if wire in self._from_wire:
                wire = _hashed(wire, name)
            self._to_wire[name] = wire
            self._from_wire[wire] = name

    def to_wire(self, name: str) -> str:
        """The name that a provider is given; also for tools that are no longer offered."""
        return self._to_wire.get(name) or wire_name(name)

    def from_wire(self, text: str) -> str:
        """The tool that the model means; what it wrote when there is none of this name."""
        bare = _AFTER.sub("", text).strip()
        for name in (text, bare, _LEAKED.sub("", bare)):
            if name in self._from_wire or name in self._to_wire:
                return self._from_wire.get(name, name)
        return text


def wire_name(name: str) -> str:
    """The wire form of a name that no other tool has taken."""
    wire = _OTHER.sub("_", name.replace(".", "__"))
    if not wire or wire[0].isdigit() or wire[0] == "-":
        wire = "t_" + wire
    return wire if len(wire) <= _LONGEST else _hashed(wire, name)


def _hashed(wire: str, name: str) -> str:
    return f"{wire[:_CUT_AT]}_{sha256_hex(name)[:8]}"
