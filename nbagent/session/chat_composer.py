"""The system prompt and the opening messages of a run without a workflow.

An answer of a declared type is text if the provider enforces a schema; otherwise the model calls
`final_answer`, a tool that is offered with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.messages import ANSWER_BY_CALL, FINAL_ANSWER, Message
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.ports import Composition, TurnDecision
from nbagent.contracts.records import EngineTurn
from nbagent.session.typed_answer import FINAL_ANSWER_PROMPT, MAX_CORRECTIONS, OutputType

TOOL_POLICY = """\
You can call tools. Call one when it brings you closer to the answer, several at once when they \
do not depend on each other, and none when you know the answer.
Each result is JSON: {"ok": true, "data": …} or {"ok": false, "error": {"code", "message"}}. \
After an error change the arguments or the tool; do not repeat a call that failed. \
Use only what the results say, and tell the person when they do not suffice."""


class ChatComposer:
    """Composer of chat mode: without a workflow, the prompt is sent as typed.

    With `output` it explains how to answer, and returns an invalid answer to the model; a
    resumed run starts this count again. `opening` enters the history before the first request.
    """

    def __init__(
        self,
        system: str | None,
        *,
        opening: tuple[Message, ...] = (),
        output: OutputType | None = None,
        agent: str | None = None,
    ) -> None:
        self._system = (system or "").strip()
        self._agent = agent
        self._opening = opening
        self._output = output
        self._by_call = False
        self._n_invalid = 0

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition:
        """The system prompt, the tool policy where there are tools, and how an answer is given."""
        output = self._output
        self._by_call = output is not None and any(spec.name == FINAL_ANSWER for spec in tools)
        pieces = [
            self._system,
            TOOL_POLICY if tools else "",
            FINAL_ANSWER_PROMPT if self._by_call else "",
        ]
        opening, self._opening = self._opening, ()
        return Composition(
            system_prompt="\n\n".join(piece for piece in pieces if piece),
            new_messages=opening,
            agent=self._agent,
            output_schema=output.schema if output and not self._by_call else None,
        )

    async def after_turn(self, turn: EngineTurn) -> TurnDecision:
        """Check the answer's type; return an invalid answer to the model, at most twice."""
        if self._output is None:
            return TurnDecision()
        answers = [run.result for run in turn.tool_runs if run.tool_name == FINAL_ANSWER]
        errors = [result.error for result in answers if result and result.error]
        if len(errors) < len(answers):
            return TurnDecision(call_was_answer=True)
        if turn.tool_runs and not errors:
            return TurnDecision()
        if errors:
            why = errors[-1].message
        else:
            try:
                # In a thread: validators of the person's class may be slow.
                await asyncio.to_thread(self._output.read, turn.text)
                return TurnDecision()
            except ToolError as error:
                why = error.message
        self._n_invalid += 1
        how = ANSWER_BY_CALL
        if not self._by_call:
            schema = dump_json(self._output.schema).decode()
            how = f"Answer with nothing but JSON that fits this JSON Schema: {schema}"
        again = (Message.of("user", f"{why}. {how}"),)
        if self._n_invalid <= MAX_CORRECTIONS:
            return TurnDecision(new_messages=again)
        text = f"{self._n_invalid} answers were not valid as {self._output.name}: {why}"
        return TurnDecision(error=ErrorInfo("E_SCHEMA_VALIDATION", text), new_messages=again)
