"""Which host a word means: `fs`, `fs.read`, `skills`, `notebook`, `mcp:git`, or an installed one.

Only the module of a host that was asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.tools.base import BUILT_IN, SKILL_TOOLS, HostOrder

ENTRY_POINT_GROUP = "nbagent.tools"
OWN = "functions"
"""Stands for the notebook's own `@nbagent.tool` functions."""
_WORDS = ("fs", "skills", "notebook", "mcp")


def host_words() -> tuple[str, ...]:
    """What can stand for all tools of a host."""
    return tuple(sorted({*_WORDS, *_installed()}))


def host_of(word: str) -> str | None:
    """The module (or entry point) whose host has this word or tool; None when there is none."""
    first = word.partition(":")[0].partition(".")[0]
    if first in BUILT_IN or first in _installed():
        return BUILT_IN.get(first, first)
    if word in SKILL_TOOLS:
        return "skills"
    return "mcp" if "__" in word.strip("_") else None


def open_hosts(words: Iterable[str], order: HostOrder) -> list[ToolHost]:
    """The hosts that the words mean, each opened once with all words of its own.

    Raises:
        UsageError: a host cannot be opened; the message says what to do.
    """
    asked: dict[str, list[str]] = {}
    for word in words:
        module = host_of(word)
        if module is None:
            raise UsageError(f"{word!r} names no tool host; there are: {', '.join(host_words())}")
        asked.setdefault(module, []).append(word)
    hosts: list[ToolHost] = []
    for module, its_words in asked.items():
        hosts += _opener(module)(replace(order, words=tuple(its_words)))
    return hosts


def _opener(module: str) -> Callable[[HostOrder], Sequence[ToolHost]]:
    if module in BUILT_IN.values():
        return import_module(f"nbagent.tools.{module}").open_hosts
    entry = _installed()[module]
    try:
        found: Any = entry.load()
    except Exception as error:
        raise UsageError(
            f"the tool host {module!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}; repair or uninstall its package"
        ) from error
    return found


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
