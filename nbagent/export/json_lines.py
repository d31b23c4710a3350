"""A run for other programs: JSON Lines, and OpenTelemetry spans of the GenAI conventions. Pure.

What is given was kept, so its secrets are hidden already; `Run.export` hides the newest, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord

_SEPARATE_LINES = ("messages", "turns", "system_prompts", "toolsets")


def json_lines(run: RunRecord) -> str:
    """One JSON object a line. `type` says which:

    - `run`: all of the record that is not in the other lines
    - `system_prompt` (`sha`, `text`), `toolset` (`sha`, `tools`): what its turns refer to
    - `message`: one of the run's own, with its `position` in the whole conversation
    - `turn`: as in `run.turns`, without its tool runs; the answer's message, which is among the
      messages unless the turn failed, is in it
    - `tool_run`: as in `run.turns[n].tool_runs`, with its `turn_id`
    """
    return "".join(f"{dump_json(line).decode()}\n" for line in _lines(run))


def _lines(run: RunRecord) -> Iterator[dict[str, Any]]:
    yield {"type": "run", **run.model_dump(exclude={*_SEPARATE_LINES})}
    for sha, text in run.system_prompts.items():
        yield {"type": "system_prompt", "sha": sha, "text": text}
    for sha, tools in run.toolsets.items():
        yield {"type": "toolset", "sha": sha, "tools": [tool.model_dump() for tool in tools]}
    for position, message in enumerate(run.messages, run.shared_messages):
        yield {"type": "message", "position": position, **message.model_dump()}
    for turn in run.turns:
        yield {"type": "turn", **turn.model_dump(exclude={"tool_runs"})}
        for tool in turn.tool_runs:
            yield {"type": "tool_run", "turn_id": turn.id, **tool.model_dump()}


# OpenTelemetry: https://github.com/open-telemetry/semantic-conventions-genai (v0.1.0)
