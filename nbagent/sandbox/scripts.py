"""The one door to running a script."""

from __future__ import annotations

from nbagent.contracts.cancel import CancelToken
from nbagent.sandbox.isolation import isolation_level
from nbagent.sandbox.order import ScriptOrder, ScriptResult
from nbagent.sandbox.running import run_at


def run_script(order: ScriptOrder, *, cancel: CancelToken | None = None) -> ScriptResult:
    """Run a script apart and wait for it; call it in a worker thread.

    Whatever the script does ends in a result. Afterwards nothing that it started is alive, where
    the system lets one know (Linux).

    Args:
        order: what to run, where, and within which limits.
        cancel: a stop ends it at once.

    Raises:
        ToolError: nothing was run: the isolation wanted does not work here, or Python does not
            start.
    """
    return run_at(order, isolation_level(order.isolation).name, cancel=cancel)
