"""What the process offers a run: a surface to be shown on, a namespace, a thread that waits.

A script offers plain printing. In a kernel the notebook's own front is found when the first
run starts; this module does not import it, it looks it up by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from nbagent.contracts.policy import PersonAnswer, Question
from nbagent.contracts.ports import RunCode, Sink, Surface
from nbagent.contracts.records import RunRecord
from nbagent.runtime import Courier, Pump

_NOTEBOOK_FRONT = "nbagent.notebook.surface"
_PLAIN_LINES = "nbagent.notebook.plain_lines"
_ASKING = "nbagent.notebook.asking"


def _empty() -> Mapping[str, Any]:
    return {}


def _nothing() -> None:
    return None


def _no_call(courier: Courier) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The hooks that a kernel, a terminal or a script has for runs."""

    surface: Surface | None = None
    namespace: Callable[[], Mapping[str, Any]] = _empty
    """The names a person can use; `@nbagent.tool` functions among them are offered by default."""
    run_code: RunCode | None = None
    """Runs Python in the notebook."""
    cell_id: Callable[[], str | None] = _nothing
    notebook: Callable[[], str | None] = _nothing
    """File name of the notebook."""
    execution_id: Callable[[], str | None] = _nothing
    """Tells one execution of a cell from the next."""
    ask: Callable[[], Callable[[Question], PersonAnswer] | None] = _nothing
    """Called where a run starts: what asks by `input()` in the thread that waits; None where
    nobody types."""
    pump: Callable[[], Pump | None] = _nothing
    """Delivers the front end's messages while the main thread waits."""
    adopt: Callable[[Courier], None] = _no_call
    """Lets an idle kernel run the synchronous tools of a run that nobody waits for."""
    waits_for: str = "a free thread: run.wait() runs it here"
    """What a tool is said to wait for when nobody waits for its run."""
    set_last: Callable[[object], None] = lambda run: None
    """Puts the handle into `_run`."""
    forget: Callable[[tuple[str, ...]], None] = lambda run_ids: None
    """Takes runs that were deleted out of what is shown and remembered."""
    show: Callable[[RunRecord], bool] = lambda run: False
    """Shows a record where it was not shown yet; False where nothing can be shown."""


@dataclass(slots=True)
class _Current:
    front: Front | None = None


_current = _Current()


def use_front(front: Front | None) -> None:
    """Set the front of this process; None lets it be found again."""
    _current.front = front


def front() -> Front:
    """The front of this process."""
    if _current.front is None:
        _current.front = _notebook_front() or Front(ask=_script_asker)
    return _current.front


def plain_printer() -> Sink:
    """A sink that prints events as plain lines, for `echo=True` in a script."""
    asked = _script_asker() is not None
    return import_module(_PLAIN_LINES).PlainPrinter(sys.stdout.write, asked_by_input=asked)


def _script_asker() -> Callable[[Question], PersonAnswer] | None:
    stdin: Any = sys.stdin
    if stdin is None or stdin.closed or not stdin.isatty():
        return None
    return import_module(_ASKING).ask_by_input


def _notebook_front() -> Front | None:
    ipython = sys.modules.get("IPython")
    if ipython is None or cast("Any", ipython).get_ipython() is None:
        return None
    return import_module(_NOTEBOOK_FRONT).make_front()
