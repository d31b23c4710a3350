"""The door to a tool host for tests: it is listed, looked at, called and stopped as by a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from legal_schema import check_legal

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.files.mounts import Mounts
from nbagent.runtime import RunTask, wait
from nbagent.session.approval import PolicyRules
from nbagent.session.tool_hosts import glob_resolver
from nbagent.tools import filesystem
from nbagent.tools.functions.host import FunctionHost
from nbagent.tools.host_config import HostConfig

T = TypeVar("T")


def refused(outcome: ToolOutcome) -> ErrorInfo:
    """Error that the model gets; fails if the call went well."""
    error = outcome.result.error
    assert error is not None, outcome.result
    return error


class HostDoor:
    """A host, and what a run gives it: a courier, the notebook's names, a stop."""

    prefix = ""
    """Start of its tools' names."""

    def __init__(self, host: ToolHost | None = None) -> None:
        self.host: Any = host or FunctionHost()
        self.cancel = CancelToken()
        self.names: dict[str, Any] = {}
        self.progress: list[str] = []
        self._courier = RunTask(self.cancel)

    def context(self, approved: bool = False) -> ToolContext:
        """Context of a call in a run."""
        return ToolContext(
            run_id="0" * 16,
            session="test",
            turn_id="C01",
            tool_call_id="call/1",
            runner=self._courier,
            namespace=lambda: self.names,
            progress=lambda text, _: self.progress.append(text),
            approved=approved,
        )

    @property
    def specs(self) -> dict[str, ToolSpec]:
        """Specs that the model is shown, by name."""
        listed = self.on_engine(lambda: self.host.tools(self.context()))
        return {spec.name: spec for spec in listed}

    def on_engine(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something on the engine's loop while this thread waits, as a cell does."""
        self._courier = RunTask(self.cancel)
        return wait(self._courier.start(work))

    async def aprepare(self, name: str, /, **arguments: Any) -> PreparedCall:
        """A call, checked."""
        return await self.host.prepare(self._call(name, arguments), self.context())

    def prepared(self, name: str, /, **arguments: Any) -> PreparedCall:
        """A call that was looked at and has not run."""
        return self.on_engine(lambda: self.aprepare(name, **arguments))

    def run_prepared(self, prepared: PreparedCall, *, approved: bool = False) -> ToolOutcome:
        """Run it, as after a person was asked or as when nobody was."""
        context = self.context(approved)

        async def run() -> ToolOutcome:
            return await prepared.run(context)

        return self.on_engine(run)

    async def acall(self, name: str, arguments: dict[str, Any] | None) -> ToolOutcome:
        """A call, on the engine's loop."""
        context = self.context()
        try:
            prepared = await self.host.prepare(self._call(name, arguments), context)
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        # As the engine stops a call.
        grace_s = 1.0 if prepared.spec.traits.interruptible else None
        task = await self.cancel.run_cancellable(prepared.run(context), lambda: grace_s)
        if not task.done() or task.cancelled():
            return ToolOutcome(result=ToolResult.failure(ErrorInfo("E_INTERRUPTED", "stopped")))
        return task.result()

    def call(self, name: str, /, **arguments: Any) -> ToolOutcome:
        """A call, and all that came of it."""
        return self.on_engine(lambda: self.acall(name, arguments))

    def data(self, name: str, /, **arguments: Any) -> Any:
        """Data that the model gets from a successful call."""
        outcome = self.call(name, **arguments)
        assert outcome.result.ok, outcome.result.error
        return json.loads(outcome.result.to_json())["data"]

    def error(self, name: str, /, **arguments: Any) -> ErrorInfo:
        """The error of a call that does not."""
        return refused(self.call(name, **arguments))

    def preview(self, name: str, /, **arguments: Any) -> CallPreview:
        """Preview for a person; for a call that fails at once, the reason."""
        try:
            return self.on_engine(lambda: self.aprepare(name, **arguments)).preview
        except ToolError as error:
            return CallPreview(why=error.message)

    async def arun(self, target: object, /, **arguments: Any) -> ToolOutcome:
        """Call one function, on the engine's loop."""
        self.host = FunctionHost([target], namespace=lambda: self.names, names=[])
        (spec,) = await self.host.tools(self.context())
        check_legal(spec)
        return await self.acall(spec.name, arguments)

    def run(self, target: object, /, **arguments: Any) -> ToolOutcome:
        """Call one function, whatever it is."""
        return self.on_engine(lambda: self.arun(target, **arguments))

    def _call(self, name: str, arguments: dict[str, Any] | None) -> ToolCall:
        raw = json.dumps(arguments, default=repr)
        name = self.prefix + name
        return ToolCall(id="call_1", name=name, arguments=arguments, arguments_raw=raw)

    def stop_after(self, seconds: float) -> None:
        """Stop the run from another thread."""
        threading.Timer(seconds, self.cancel.set).start()


class OtherHost:
    """A host of somebody else, whose tools may change while it is used, as a server's do."""

    lists_at_once = True

    def __init__(self, *names: str, called: str = "other") -> None:
        self.names = list(names)
        self.name = called

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return [ToolSpec(name=name) for name in self.names]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        async def run(context: ToolContext) -> ToolOutcome:
            return ToolOutcome(result=ToolResult(ok=True, data=f"other {call.name}"))

        return PreparedCall(spec=ToolSpec(name=call.name), arguments={}, run=run)


class FileDoor(HostDoor):
    """The file tools over a project, a state and further mounts."""

    def __init__(
        self,
        project: Path,
        *,
        mounts: Mounts | None = None,
        policy: ToolPolicy | None = None,
        words: tuple[str, ...] = ("fs",),
    ) -> None:
        mounts = mounts or Mounts.of(project, state=project.with_name("state"))
        policy = policy or ToolPolicy()
        self.rules = rules = PolicyRules(policy, glob_resolver(mounts))
        given: dict[str, Any] = {"mounts": mounts, "policy": policy, "is_denied": rules.denies}
        super().__init__(*filesystem.open_hosts(HostConfig(names=words, project=project, **given)))
