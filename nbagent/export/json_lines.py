"""Exports a run as JSON Lines for other programs. Pure.

Records have no secrets: the store and `Run.export` remove them before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord
from nbagent.store.rows import to_stored_options

_SEPARATE_LINES = ("messages", "turns", "system_prompts", "toolsets")


def json_lines(run: RunRecord) -> str:
    """Write one JSON object per line, with its `type`:

    - `run`: the fields of the record that are not in the other lines; `workflow` and `forked_from`
      as in the frames, with the rest of their data among the `options`
    - `system_prompt` (`sha`, `text`), `toolset` (`sha`, `tools`): texts that turns refer to
    - `message`: a message of this run, with its `position` in the whole conversation
    - `turn`: as in `run.turns`, without its tool runs. It has the message of its response, which is
      also a `message` unless the turn failed
    - `tool_run`: as in `run.turns[n].tool_runs`, with its `turn_id`
    """
    return "".join(f"{dump_json(line).decode()}\n" for line in _lines(run))


def _lines(run: RunRecord) -> Iterator[dict[str, Any]]:
    yield {
        "type": "run",
        **run.model_dump(exclude={*_SEPARATE_LINES}),
        "workflow": run.workflow and run.workflow.name,
        "forked_from": run.forked_from and run.forked_from.turn_id,
        "options": to_stored_options(run),
    }
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
