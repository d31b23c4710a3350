"""The base of a chat's requests: the person's system prompt and the tool policy."""

from __future__ import annotations

from collections.abc import Sequence

from nbagent.contracts.chat import Message, ToolSpec
from nbagent.contracts.ports import Composition, Verdict
from nbagent.contracts.records import EngineTurn

TOOL_POLICY = """\
You can call tools. Call one when it brings you closer to the answer, several at once when they \
do not depend on each other, and none when you know the answer.
Each result is JSON: {"ok": true, "data": …} or {"ok": false, "error": {"code", "message"}}. \
After an error change the arguments or the tool; do not repeat a call that failed. \
Use only what the results say, and tell the person when they do not suffice."""


class ChatComposer:
    """Chat mode: no workflow, the prompt goes out as it was typed."""

    def __init__(self, system: str | None, *, opening: tuple[Message, ...] = ()) -> None:
        """Compose with a system prompt; `opening` enters the history before the first request."""
        self._system = (system or "").strip()
        self._opening = opening

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition:
        """The system prompt, then the tool policy where there are tools."""
        pieces = [self._system, TOOL_POLICY if tools else ""]
        opening, self._opening = self._opening, ()
        text = "\n\n".join(piece for piece in pieces if piece)
        return Composition(system_prompt=text, new_messages=opening)

    async def after_turn(self, turn: EngineTurn) -> Verdict:
        """An answer is an answer."""
        return Verdict()
