"""A frontend for tests: what a test gives it, and of the rest what a script has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import RunCode
from nbagent.runtime import RunTask
from nbagent.session.frontend import Cell, Frontend, InputPrompt
from nbagent.settings.options import RunOptions


class StandIn(Frontend):
    """Has a namespace, a view, somebody who types, or a place for `_run`."""

    def __init__(
        self,
        namespace: Mapping[str, Any] | None = None,
        *,
        run_code: RunCode | None = None,
        view: Callable[[RunRecord, RunControls], Sink | None] | None = None,
        ask: InputPrompt | None = None,
        adopt: Callable[[RunTask], None] = lambda courier: None,
        set_last: Callable[[object], object] = lambda run: None,
        show: Callable[[RunRecord], bool] = lambda run: False,
        cell: Callable[[], Cell] = Cell,
    ) -> None:
        self._namespace, self._view, self._ask = namespace or {}, view, ask
        self._run_code = run_code
        self._calls = (adopt, set_last, show)
        self._cell = cell

    def namespace(self) -> Mapping[str, Any]:
        return self._namespace

    def cell(self) -> Cell:
        return self._cell()

    def run_code(self) -> RunCode | None:
        return self._run_code

    def input_prompt(self) -> InputPrompt | None:
        return self._ask

    def serve_when_idle(self, courier: RunTask) -> None:
        self._calls[0](courier)

    def bind_variable(self, handle: object, name: str = "_run") -> None:
        self._calls[1](handle)

    def show(self, run: RunRecord) -> bool:
        return self._calls[2](run)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        if self._view is None:
            return super().open(run, controls, options)
        return self._view(run, controls)
