"""Finds the host that a word means: `fs`, `fs.read`, `skills`, `notebook`, `mcp:git`.

Owns the words. Only the module of a host that was asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.tools.base import HostOrder

ENTRY_POINT_GROUP = "nbagent.tools"
OWN = "functions"
"""Stands for the notebook's own `@nbagent.tool` functions."""
_SHORT = {"fs": "filesystem", "nb": "notebook"}
_SINGLE = dict.fromkeys(("list_skills", "get_skill", "run_python_script"), "skills")
"""Tools whose names do not begin with their host's word."""


def host_words() -> tuple[str, ...]:
    """What can stand for all tools of a host."""
    long = {module: word for word, module in _SHORT.items()}
    built_in = (long.get(name, name) for name in _built_in() if name != "notebook")
    return tuple(sorted({*built_in, "notebook", *_installed()}))


def host_of(word: str) -> str | None:
    """The module (or entry point) whose host has this word or tool; None when there is none."""
    first = word.partition(":")[0].partition(".")[0]
    module = _SHORT.get(first, first)
    if module in _built_in() or module in _installed():
        return module
    if word in _SINGLE:
        return _SINGLE[word]
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
    if module in _built_in():
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
def _built_in() -> frozenset[str]:
    # The files are read, not imported: finding a host must not load every one.
    here = Path(__file__).parent
    files = {path.stem: path for path in here.glob("*.py") if path.stem not in ("hosts", "base")}
    files |= {path.parent.name: path for path in here.glob("*/__init__.py")}
    marks = (b"\ndef open_hosts(", b"import open_hosts")
    return frozenset(n for n, p in files.items() if any(mark in p.read_bytes() for mark in marks))


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
