"""Which host a word means (`fs`, `fs.read`, `skills`, `notebook`, `mcp:git`), and which names for
tools are free.

Owns the words. Only the module of a host that was asked for is imported.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.tools.base import HostOrder

ENTRY_POINT_GROUP = "nbagent.tools"
OWN = "functions"
"""Stands for the notebook's own `@nbagent.tool` functions."""
_BUILT_IN = {"fs": "filesystem", "skills": "skills", "notebook": "notebook", "mcp": "mcp"}
"""The module of each built-in host, by its word; it has an `open_hosts`."""
_MODULES = {**_BUILT_IN, "nb": "notebook", "filesystem": "filesystem"}
_SINGLE: dict[str, str] = dict.fromkeys(("list_skills", "get_skill", "run_python_script"), "skills")
"""Built-in tools whose names do not begin with their host's word."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def checked_name(name: str) -> str:
    """A name for a tool of the person's; UsageError where it is none, with the name to write."""
    if not _NAME.fullmatch(name):
        plain = unicodedata.normalize("NFKD", name.strip()).encode("ascii", "ignore").decode()
        free = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)[:128].strip("_") or "my_tool"
        raise UsageError(
            f"{name!r} is no name for a tool: it has ASCII letters, digits, _ . and -; write "
            f"@nbagent.tool(name={free!r})"
        )
    if name in _SINGLE or ("." in name and name.partition(".")[0] in _MODULES):
        free = name.replace(".", "_") if "." in name else f"my_{name}"
        raise UsageError(
            f"{name!r} is the name of a built-in tool; write @nbagent.tool(name={free!r})"
        )
    return name


def host_words() -> tuple[str, ...]:
    """What can stand for all tools of a host."""
    return tuple(sorted({*_BUILT_IN, *_installed()}))


def host_of(word: str) -> str | None:
    """The module (or entry point) whose host has this word or tool; None when there is none."""
    first = word.partition(":")[0].partition(".")[0]
    if first in _MODULES or first in _installed():
        return _MODULES.get(first, first)
    return _SINGLE.get(word) or ("mcp" if "__" in word.strip("_") else None)


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
    if module in _MODULES.values():
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
