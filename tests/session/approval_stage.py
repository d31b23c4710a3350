"""Tools that ask first, a host that changes under its question, and one door to run them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.laws import check_run

import nbagent
from nbagent.contracts.approval import CallPreview, Question
from nbagent.contracts.events import ApprovalRequested, Event
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord, ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.providers.offline import script

Press = Callable[[RunControls, ApprovalRequested], object]
done: list[str] = []


@nbagent.tool(ask=True)
def delete(path: str) -> str:
    """Delete a file."""
    done.append(path)
    return f"deleted {path}"


@nbagent.tool
def look(path: str) -> str:
    """Look at a file."""
    return f"seen {path}"


def ran(
    *steps: Any, tools: Any = (delete, look), answer: Any = None, **options: Any
) -> tuple[Any, Any]:
    """A run of these steps, and the model; nothing was deleted before."""
    done.clear()
    model = script([*steps, "Done."])
    run = nbagent.Agent(model=model, tools=list(tools), on_approval=answer, **options).run("Go.")
    return check_run(run, model), model


class UnsayableExit(BaseException):
    """Exception of a person's code whose message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class Unsayable(UnsayableExit, Exception):
    """Such an exception that `except Exception` catches."""


class Asked:
    """An `on_approval` that gives one answer, raises it, or calls it, and keeps the questions."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.questions: list[Question] = []

    @property
    def paths(self) -> list[str]:
        return [question.arguments["path"] for question in self.questions]

    def __call__(self, question: Question) -> Any:
        self.questions.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(question) if callable(self.answer) else self.answer


def only(run: Any) -> Any:
    (tool_run,) = [it for turn in run.turns for it in turn.tool_runs]
    return tool_run


class View:
    """A view that keeps its events; its buttons may be pressed, and it may fail in every way."""

    name = "test view"
    can_answer = True

    def __init__(self, press: Press | None = None, fails: str = "") -> None:
        self.press, self.fails = press, fails
        self.events: list[Event] = []
        self.closed = 0

    def open(self, run: RunRecord, controls: RunControls) -> Sink:
        self._fail("open")
        self.controls = controls
        return self

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self._fail(type(event).__name__)
        if self.press is not None and isinstance(event, ApprovalRequested):
            threading.Thread(target=self.press, args=(self.controls, event)).start()

    def close(self) -> None:
        self.closed += 1
        self._fail("close")

    def _fail(self, place: str) -> None:
        if self.fails == place:
            raise RuntimeError(f"no {place}")


class Shifting:
    """A host whose call would do something else each time it is looked at, for a while."""

    name = "shifting"

    def __init__(
        self, looks: list[str], preview: CallPreview, form: dict[str, Any] | None = None
    ) -> None:
        self.looks, self.base, self.form = looks, preview, form
        self.approved: list[str] = []
        self.spec = ToolSpec(name="shift", traits=ToolTraits(host=self.name, ruling=preview.ruling))

    async def tools(self, context: ToolContext) -> list[ToolSpec]:
        return [self.spec]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        state = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

        async def run(context: ToolContext) -> ToolOutcome:
            self.approved.append(state)
            return ToolOutcome(result=ToolResult(ok=True, data="ok"))

        arguments = self.form or call.arguments or {}
        preview = replace(self.base, approval_key=state)
        return PreparedCall(spec=self.spec, arguments=arguments, preview=preview, run=run)
