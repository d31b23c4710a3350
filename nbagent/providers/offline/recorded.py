"""A run that was recorded, as a script: the model that answers like it, and a test's source."""

from __future__ import annotations

import re
from typing import Protocol

from nbagent.contracts.chat import redacted
from nbagent.contracts.errors import ErrorInfo, ModelError, error_from_info
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.providers.offline.scripted import Script, script, written
from nbagent.providers.offline.stream import Step


class Recorded(Protocol):
    """A run, live or out of the store."""

    @property
    def record(self) -> RunRecord: ...


def replay(run: Recorded) -> Script:
    """The model of a run as a script: the same texts, reasoning, calls and errors in its order.

    Tools run anew and approvals are asked anew: `Agent(model=nbagent.offline.replay(run), …)`.
    """
    record = redacted(run.record)
    return script([_step(turn) for turn in record.turns], name=f"replay-{record.id[:8]}")


def _step(turn: EngineTurn) -> Step:
    failure = None
    if turn.response is None or turn.response.finish_reason == "error":
        failure = error_from_info(turn.error or ErrorInfo("UNKNOWN", "no answer was kept"))
        if not isinstance(failure, ModelError):
            # A person's stop cannot be played again: the stream breaks where it was.
            failure = ModelError(failure.message, code="LLM_BAD_RESPONSE")
    if turn.response is None:
        return Step(error=failure)
    message = turn.response.message
    made = list(message.tool_calls)
    if failure and made:
        # A stream that breaks loses the last character of its last call.
        raw = made[-1].arguments_raw + "}"
        made[-1] = made[-1].model_copy(update={"arguments_raw": raw})
    usual = "tool_calls" if made else "stop"
    finish = turn.response.finish_reason
    return Step(
        text=message.text,
        reasoning=message.reasoning or "",
        calls=made,
        finish_reason=None if failure or finish == usual else finish,
        error=failure,
    )


def source_of(record: RunRecord) -> str:
    """The text of a pytest function that plays the run's model and expects its answer."""
    record = redacted(record)
    called = [run.tool_name for turn in record.turns for run in turn.tool_runs]
    known = {spec.name for tools in record.toolsets.values() for spec in tools}
    # A function goes by itself: its name alone is found in a notebook only.
    named = [name for name in dict.fromkeys(called) if name in known]
    tools = ", ".join(name if name.isidentifier() else repr(name) for name in named)
    name = "_".join(re.findall(r"[a-z0-9]+", record.prompt.lower())[:8]) or record.id[:8]
    steps = "".join(f"        {written(_step(turn))},\n" for turn in record.turns)
    prompt, limit = record.prompt or "Go on.", record.limits.max_turns
    return (
        "import nbagent\nfrom nbagent import offline\n\n\n"
        f"def test_{name}(tools=None):\n"
        f'    """As in run {record.id}. Its functions stand in this file, or are given."""\n'
        f"    tools = tools or {f'[{tools}]' if tools else repr('none')}\n"
        f"    model = offline.script([\n{steps}    ])\n"
        f"    agent = nbagent.Agent(model=model, tools=tools, max_turns={limit}, quiet=True)\n"
        f"    run = agent.run({prompt!r})\n"
        f"    assert run.text == {record.text!r}\n"
        f"    called = [it.tool_name for turn in run.turns for it in turn.tool_runs]\n"
        f"    assert called == {called!r}\n"
        "    model.assert_complete()\n"
    )
