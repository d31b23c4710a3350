"""An answer of a declared type: its schema, its check, and the corrections asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from nbagent.contracts.canonical import dump_json, json_object, monotonic_ms, sha_of
from nbagent.contracts.errors import ToolError, UsageError, describe_error
from nbagent.contracts.messages import FINAL_ANSWER, ToolCall
from nbagent.contracts.model import ChatRequest, ToolSpec, ToolTraits
from nbagent.contracts.ports import SchemaClient, ToolHost
from nbagent.contracts.records import RunRecord, ToolResult
from nbagent.contracts.secrets import redact
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.session.json_answer import NoJson, read_json_answer
from nbagent.session.models import ResolvedModel
from nbagent.tools.functions.arguments import adapt_hint, type_name
from nbagent.tools.hosts import HostSet

MAX_CORRECTIONS = 2
_WRAPPER_FIELD = "answer"
"""Field for an answer that is not an object itself: the schemas of answers and of tools must be
objects."""
FINAL_ANSWER_PROMPT = (
    f"When you know the answer, give it by calling {FINAL_ANSWER}: only that counts."
)


class OutputType:
    """The declared type of an answer; UsageError for a type that JSON cannot express."""

    def __init__(self, kind: Any) -> None:
        if isinstance(kind, str):
            example = kind if kind.isidentifier() else "City"
            raise UsageError(
                f"output={kind[:80]!r} cannot be the type of an answer: it is a text; give the "
                f"type itself: output={example[:80]}"
            )
        self.name = type_name(kind)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(adapt_hint(kind))
            schema = self._adapter.json_schema()
        except Exception as error:
            why = " ".join(describe_error(error).split())[:200]
            raise UsageError(f"output={self.name} cannot be the type of an answer: {why}") from None
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            box: dict[str, Any] = {_WRAPPER_FIELD: (adapt_hint(kind), ...)}
            boxed = create_model("Answer", __config__=ConfigDict(extra="forbid"), **box)
            schema = boxed.model_json_schema()
        self.schema: dict[str, Any] = schema

    def read(self, text: str) -> Any:
        """Read the value from a text; ToolError, for the model, if it is invalid."""
        try:
            return read_json_answer(text, self.value_of)
        except NoJson as error:
            raise _invalid_answer(str(error)) from None

    def value_of(self, value: Any) -> Any:
        """Read the value from JSON; ToolError, for the model, if it is invalid."""
        if self._wrapped and (boxed := json_object(value)) and boxed.keys() == {_WRAPPER_FIELD}:
            value = boxed[_WRAPPER_FIELD]
        try:
            return self._adapter.validate_json(dump_json(value))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, error_item['loc'])) or 'the answer'}: {error_item['msg']}"
                for error_item in error.errors(include_url=False, include_input=False)[:10]
            ]
            raise _invalid_answer("; ".join(problems)) from None
        except Exception as error:  # a validator of the person's class may raise anything
            raise _invalid_answer(describe_error(error)) from None

    def rows(self, value: Any) -> list[dict[str, Any]]:
        """The value as table rows: one per item of a list, or one for a single object."""
        plain: Any = self._adapter.dump_python(value)
        items = cast("list[Any]", plain) if isinstance(plain, list) else [plain]
        return [item if isinstance(item, dict) else {"value": item} for item in items]


def _invalid_answer(why: str) -> ToolError:
    return ToolError(redact(f"the answer does not fit: {why}"), code="E_SCHEMA_VALIDATION")


def answer_text(record: RunRecord) -> str | None:
    """The answer as JSON: the arguments of `final_answer`, or the text."""
    if not (record.turns and record.ok):
        return None
    last = record.turns[-1]
    for run in reversed(last.tool_runs):
        if run.tool_name == FINAL_ANSWER and run.result is not None and run.result.ok:
            return dump_json(run.args).decode()
    return last.text


class FinalAnswerHosts(HostSet):
    """The hosts of a run, with `final_answer` unless the provider enforces the schema."""

    def __init__(
        self,
        hosts: Sequence[ToolHost],
        *,
        hides: Callable[[ToolSpec], str],
        output: OutputType,
        chosen: ResolvedModel,
    ) -> None:
        super().__init__(hosts, hidden_reason=hides)
        self._output = output
        self._chosen = chosen
        self._spec = ToolSpec(
            name=FINAL_ANSWER,
            description="Give the final answer. Call this once, when nothing else is left to do.",
            parameters=output.schema,
            traits=ToolTraits(host="output", sha=sha_of(output.schema)[:16]),
        )

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        tools = await super().tools(context)
        if any(spec.name == FINAL_ANSWER for spec in self.all_specs):
            raise UsageError(f"a tool is called {FINAL_ANSWER}, as the one for output=…; rename it")
        client, model, schema = self._chosen.client, self._chosen.model, self._output.schema
        request = ChatRequest(model=model, messages=(), tools=tuple(tools), output_schema=schema)
        binds = isinstance(client, SchemaClient) and client.has_schema_mode(request)
        return tools if binds else [*tools, self._spec]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        if call.name != FINAL_ANSWER:
            return await super().prepare(call, context)
        # In a thread: validators of the person's class may be slow.
        await asyncio.to_thread(self._output.value_of, call.arguments)

        async def accept(context: ToolContext) -> ToolOutcome:
            result = ToolResult(ok=True, data="accepted")
            return ToolOutcome(result=result, started_at_ms=monotonic_ms())

        return PreparedCall(spec=self._spec, arguments=call.arguments or {}, run=accept)
