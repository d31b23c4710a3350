"""Tools that ask first, a host that changes under its question, and one door to run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.laws import check_run

import nbagent
from nbagent.contracts.chat import ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.policy import CallPreview, Question
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.providers.offline import script

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
        preview = replace(self.base, binds=state)
        return PreparedCall(spec=self.spec, arguments=arguments, preview=preview, run=run)
