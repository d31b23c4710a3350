"""Turns, tool runs, messages and lists of runs show themselves as the last value of a cell."""

# IPython has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_RECORDS, _CHAT = "nbagent.contracts.records", "nbagent.contracts.chat"
_KINDS = ((_RECORDS, "EngineTurn"), (_RECORDS, "ToolRun"), (_CHAT, "Message"))


def register_formatters(shell: Any) -> None:
    """Show these values as pictures where the front end shows HTML."""
    formatter = shell.display_formatter.formatters["text/html"]
    for module, name in _KINDS:
        formatter.for_type_by_name(module, name, _drawn)
    for kind in (list, tuple):
        formatter.for_type(kind, _drawn_runs)


def unregister_formatters(shell: Any) -> None:
    """Take it back."""
    formatter = shell.display_formatter.formatters["text/html"]
    for module, name in _KINDS:
        for known in (formatter.deferred_printers, formatter.type_printers):
            for key in [key for key in known if _name_of(key) == (module, name)]:
                del known[key]
    for kind in (list, tuple):
        formatter.type_printers.pop(kind, None)


def _name_of(key: Any) -> tuple[str, str]:
    return key if isinstance(key, tuple) else (key.__module__, key.__name__)


def _drawn(value: object) -> str | None:
    # Late: what draws takes longer to import than the extension may.
    node = import_module("nbagent.view.values").value_node(value)
    return None if node is None else import_module("nbagent.view.picture").page(node)


def _drawn_runs(values: Any) -> str | None:
    """Runs in a list; None leaves any other list as it is shown everywhere."""
    run = getattr(sys.modules.get("nbagent.run"), "Run", None)
    if run is None or not values or not all(type(one) is run for one in values):
        return None
    return _drawn([one.record for one in values])
