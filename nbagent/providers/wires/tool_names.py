"""Tool names on the wire and back.

One rule for all providers, so that a conversation can go to another one. It is deterministic:
history and prompt caches depend on the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from nbagent.contracts.canonical import sha256_hex

_MAX_CHARS = 64
"""OpenAI and Anthropic allow 64 letters, digits, `_` and `-`; Gemini also dots and 128 characters,
but no digit or `-` at the start. nbagent's names may have dots."""
_HASHED_PREFIX_CHARS = 55  # With `_` and 8 digits of the hash: 64.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_LEAKED_PREFIX = re.compile(r"^(?:functions|default_api|tools?)[.:]")
"""Prefixes that models copy from their own prompt format into the name."""
_LEAKED_SUFFIX = re.compile(r"<\|.*|:\d+$", re.S)
"""Endings that models add to the name: channel marks (gpt-oss), the call's number (Kimi)."""


class WireNames:
    """Names of one toolset, both ways."""

    def __init__(self, names: Iterable[str]) -> None:
        self._to_wire: dict[str, str] = {}
        self._from_wire: dict[str, str] = {}
        # Legal names first: they stay as they are, in any order of the tools.
        for name in sorted(dict.fromkeys(names), key=lambda name: _LEGAL.fullmatch(name) is None):
            wire = wire_name(name)
            if wire in self._from_wire:
                wire = _with_hash(wire, name)
            self._to_wire[name] = wire
            self._from_wire[wire] = name

    def to_wire(self, name: str) -> str:
        """Return the name for the provider, also for tools that are no longer offered."""
        return self._to_wire.get(name) or wire_name(name)

    def is_offered(self, text: str) -> bool:
        """True if the model means a tool by this text."""
        return self._find(text) is not None

    def begins_offered(self, text: str) -> bool:
        """True if the name of a tool, in any form that models write, begins with this text."""
        return _LEAKED_PREFIX.sub("", text.strip()) in self._beginnings

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        names = (*self._from_wire, *self._to_wire)
        return frozenset(name[:end] for name in names for end in range(1, len(name) + 1))

    def from_wire(self, text: str) -> str:
        """Return the tool that the model means, or its own text if no tool has this name."""
        name = self._find(text)
        return text if name is None else name

    def _find(self, text: str) -> str | None:
        """Return the tool that the model means; None if no tool has this name.

        Look it up instead of replacing `__` by `.`: `a__b` is a legal name of its own. Models also
        write nbagent's name (`fs.read`), which they know from the prompt.
        """
        bare = _LEAKED_SUFFIX.sub("", text).strip()
        for name in (text, bare, _LEAKED_PREFIX.sub("", bare)):
            if name in self._from_wire or name in self._to_wire:
                return self._from_wire.get(name, name)
        return None


def wire_name(name: str) -> str:
    """Wire form of a name, if no other tool has it."""
    wire = _NOT_ALLOWED.sub("_", name.replace(".", "__"))
    if not wire or wire[0].isdigit() or wire[0] == "-":
        wire = "t_" + wire
    return wire if len(wire) <= _MAX_CHARS else _with_hash(wire, name)


def _with_hash(wire: str, name: str) -> str:
    return f"{wire[:_HASHED_PREFIX_CHARS]}_{sha256_hex(name)[:8]}"
