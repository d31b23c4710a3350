"""The tables of the store, as data: what a column is called and what kind of value it holds.

What frames ask for is a column of its own; the rest of a record is in `doc`. The tables never
change: a store of another version is put aside, and a new one is begun.
"""

from __future__ import annotations

from typing import Literal

APPLICATION_ID = 0x6E626167
"""`nbag`: tells our file from any other SQLite database."""
VERSION = 4
"""Of the tables. 1 to 3 were written by earlier versions of nbagent."""

Kind = Literal["key", "whole", "number", "flag", "time", "word", "text", "json"]
"""`time`: microseconds since 1970, UTC. `word`: one of ours, without secrets. `text`: of anybody;
a BLOB of its UTF-8 where half a character is in it. `json`: compact; NULL for nothing."""

TOKENS = (
    *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"),
    "cache_write_tokens",
)
_TOKENS: dict[str, Kind] = dict.fromkeys(TOKENS, "whole")
"""All NULL where no usage was reported."""

RUNS: dict[str, Kind] = {
    "n": "key",  # the order in which they began
    "run_id": "word",
    "session": "text",
    "conversation_id": "word",  # of a start or a fork its own id, else its parent's
    "root_id": "word",  # the first run that this one goes back to
    "parent_id": "word",
    "shared_messages": "whole",  # so many of its conversation belong to its ancestors
    "kind": "word",
    "forked_from": "word",
    "name": "text",
    "tags": "json",
    "notebook": "text",
    "cell_id": "text",
    "execution_count": "whole",
    "template": "text",
    "template_sha": "word",  # of the template, of the prompt where it is none; NULL without both
    "prompt": "text",
    "phase": "word",
    "stop_reason": "word",
    "error_code": "word",
    "error": "text",
    "agent": "text",
    "workflow": "text",
    "server": "text",  # base URL
    "model": "text",  # provider:model
    "started_at": "time",
    "nbagent_version": "word",
    # What follows is written when the run ends, and NULL until then.
    "ended_at": "time",
    "duration_ms": "number",
    "turns": "whole",
    "tool_calls": "whole",
    "tool_errors": "whole",
    **_TOKENS,
    "n_unpriced": "whole",
    "cost_usd": "number",
    "model_ms": "number",
    "tools_ms": "number",  # wall time, as in turns
    "waited_ms": "number",
    "retry_wait_ms": "number",
    "params": "json",  # of its first turn
    "system_sha": "word",  # of its last turn
    "toolset_sha": "word",
    "lease_id": "word",  # who is at work on it; NULL once it has ended
    "doc": "json",
}

TURNS: dict[str, Kind] = {  # no long texts: a frame of all turns is one quick scan
    "run": "whole",  # runs.n
    "turn": "whole",  # its number; its id is C and two digits or more of it
    "open": "flag",  # its calls are at work; until they have ended its message and those of its
    # tool runs that have not are in `doc`
    "phase_before": "word",
    "phase_after": "word",
    "stop_reason": "word",
    "finish_reason": "word",  # NULL when there was no response
    "error_code": "word",
    "error": "text",
    "model": "text",  # provider:model
    "served_model": "text",
    "agent": "text",
    "node": "text",
    "source": "word",  # live, hit, replay, offline; NULL when there was no response
    "attempts": "whole",
    "retry_wait_ms": "number",
    "n_messages": "whole",
    "n_new": "whole",
    "n_tools": "whole",
    "tool_calls": "whole",
    **_TOKENS,
    "cost_usd": "number",
    "cost_input_usd": "number",
    "cost_cached_usd": "number",
    "cost_output_usd": "number",
    "saved_usd": "number",
    "started_at": "time",
    "duration_ms": "number",
    "model_ms": "number",
    "ttft_ms": "number",
    "tools_ms": "number",  # while at least one tool ran
    "waited_ms": "number",  # while at least one call waited for a person
    "dropped_params": "json",  # array; NULL for none
    "trimmed": "whole",  # tool results that were sent shortened
    "system_sha": "word",  # texts.sha; NULL for none
    "toolset_sha": "word",
    "message_at": "whole",  # messages.position of the response; NULL when there was none
    "doc": "json",
}

TOOL_RUNS: dict[str, Kind] = {
    "run": "whole",
    "turn": "whole",
    "position": "whole",  # of the call in its response, from 0
    "tool_call_id": "text",
    "model": "text",  # of the turn
    "host": "text",
    "tool_name": "text",
    "ok": "flag",  # NULL while it runs
    "error_code": "word",
    "error": "text",
    "args": "json",  # object, its keys as they were written; NULL when it was none
    "args_sha": "word",  # of its canonical form
    "asked_args": "json",
    "reason": "text",
    "result": "json",  # as the model is given it
    "result_chars": "whole",
    "truncated": "flag",
    "notes": "json",  # array; NULL for none
    "approval": "word",
    "approved_by": "word",
    "waited_ms": "number",
    "queued_at": "time",
    "started_at": "time",  # NULL when it did nothing
    "duration_ms": "number",
    "ran_in": "word",
    "isolation": "word",
    "repeat_n": "whole",
    "tool_sha": "word",
    "doc": "json",
}

MESSAGES: dict[str, Kind] = {  # each once, under the run that added it
    "run": "whole",
    "position": "whole",  # from 0 in its run; below 0: a response outside of the conversation
    "turn": "whole",  # that added it; NULL: it stood there before, or came between two turns
    "role": "word",
    "source": "word",  # person, directive, model, tool
    "call": "whole",  # its text, and its pictures, are the result of this tool run (position)
    "text": "text",  # NULL where `call` is set
    "reasoning": "text",
    "tool_calls": "json",  # array of {id, name, arguments_raw, …}; NULL for none
    "tool_call_id": "text",
    "tool_name": "text",
    "chars": "whole",
    "has_image": "flag",
    "at": "time",
    "doc": "json",
}

TEXTS: dict[str, Kind] = {  # system prompts and toolsets, each once
    "sha": "word",
    "kind": "word",  # system, toolset
    "text": "text",  # a toolset as JSON
}

LEASES: dict[str, Kind] = {  # one row for each process that may have runs at work
    "id": "word",
    "pid": "whole",
    "pid_started": "word",  # tells a pid from its next holder, where the system says
    "boot_id": "word",
    "host": "word",
    "heartbeat": "time",
}

TABLES: dict[str, dict[str, Kind]] = {
    "runs": RUNS,
    "turns": TURNS,
    "tool_runs": TOOL_RUNS,
    "messages": MESSAGES,
    "texts": TEXTS,
    "leases": LEASES,
}
_TYPES: dict[Kind, str] = {
    "key": "INTEGER PRIMARY KEY",
    "whole": "INTEGER",
    "number": "REAL",
    "flag": "INTEGER",
    "time": "INTEGER",
    "word": "TEXT",
    "text": "TEXT",
    "json": "TEXT",
}
_ENDS = {
    "runs": ", UNIQUE(run_id))",
    "turns": ", PRIMARY KEY(run, turn)) WITHOUT ROWID",
    "tool_runs": ", PRIMARY KEY(run, turn, position))",
    "messages": ", PRIMARY KEY(run, position))",
    "texts": ", PRIMARY KEY(sha))",
    "leases": ", PRIMARY KEY(id)) WITHOUT ROWID",
}


def statements() -> list[str]:
    """What makes the tables."""
    made = [
        f"CREATE TABLE {name}({', '.join(f'{it} {_TYPES[kind]}' for it, kind in columns.items())}"
        + _ENDS[name]
        for name, columns in TABLES.items()
    ]
    return [
        *made,
        "CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL",
        "CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running'",
        "CREATE INDEX runs_by_parent ON runs(parent_id) WHERE parent_id IS NOT NULL",
    ]
