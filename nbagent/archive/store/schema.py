"""The store's tables and their ordered migrations.

A change of the tables is one more script at the end of `MIGRATIONS`; a script that was released
never changes. What a column means is said here; who writes it is in `writing`.
"""

from __future__ import annotations

APPLICATION_ID = 0x6E626167
"""`nbag`: tells our file from any other SQLite database."""

_FIRST = """
CREATE TABLE leases(              -- one row per process that may have runs at work
    id          TEXT PRIMARY KEY,
    pid         INTEGER NOT NULL,
    pid_started TEXT,             -- tells a pid from its next holder, where the OS says
    boot_id     TEXT,
    host        TEXT NOT NULL,
    heartbeat   INTEGER NOT NULL  -- all times are microseconds since 1970, UTC
) WITHOUT ROWID;

CREATE TABLE blobs(               -- system prompts (text) and toolsets (JSON), each once
    n    INTEGER PRIMARY KEY,
    sha  TEXT NOT NULL UNIQUE,
    body TEXT                     -- NULL until it is known
);

CREATE TABLE runs(
    n                 INTEGER PRIMARY KEY,  -- the order in which they began
    run_id            TEXT NOT NULL UNIQUE,
    version           INTEGER NOT NULL,
    session           TEXT NOT NULL,
    name              TEXT,
    tags              TEXT NOT NULL,        -- JSON array
    parent_id         TEXT,
    shared_messages   INTEGER NOT NULL,
    kind              TEXT NOT NULL,
    has_words         INTEGER NOT NULL,     -- the person said something when it began
    cell_id           TEXT,
    notebook          TEXT,
    model             TEXT NOT NULL,
    base_url          TEXT,
    template          TEXT,
    prompt            TEXT NOT NULL,
    options           TEXT NOT NULL,        -- JSON
    limits            TEXT NOT NULL,        -- JSON
    phase             TEXT NOT NULL,
    stop_reason       TEXT,
    error_code        TEXT,
    error             TEXT,
    error_details     TEXT,                 -- JSON
    started_at        INTEGER NOT NULL,
    ended_at          INTEGER,
    duration_ms       REAL NOT NULL,
    prompt_tokens     INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    total_tokens      INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    reasoning_tokens  INTEGER NOT NULL,
    cost_usd          REAL,
    notices           TEXT NOT NULL,        -- JSON array
    system_shas       TEXT,                 -- JSON array; NULL until the run has ended
    toolset_shas      TEXT,
    lease_id          TEXT                  -- NULL once the run has ended
);
CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL;
CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running';

CREATE TABLE turns(               -- no texts: a frame of all turns is one quick scan
    run               INTEGER NOT NULL,
    idx               INTEGER NOT NULL,
    turn_id           TEXT NOT NULL,
    open              INTEGER NOT NULL,     -- its calls may still be at work
    phase_before      TEXT NOT NULL,
    phase_after       TEXT NOT NULL,
    stop_reason       TEXT,
    finish_reason     TEXT,                 -- NULL when there was no response
    error_code        TEXT,
    model             TEXT NOT NULL,
    n_messages        INTEGER NOT NULL,
    n_new             INTEGER NOT NULL,
    n_tools           INTEGER NOT NULL,
    tool_calls        INTEGER NOT NULL,
    prompt_tokens     INTEGER,              -- all NULL when the server reported no usage
    completion_tokens INTEGER,
    total_tokens      INTEGER,
    cached_tokens     INTEGER,
    reasoning_tokens  INTEGER,
    cost_usd          REAL,
    started_at        INTEGER NOT NULL,
    duration_ms       REAL NOT NULL,
    model_ms          REAL NOT NULL,
    ttft_ms           REAL,
    retries           INTEGER NOT NULL,
    system            INTEGER,              -- blobs.n
    toolset           INTEGER,              -- blobs.n
    message_at        INTEGER,              -- messages.position of the response
    node              TEXT,
    agent             TEXT,
    details           TEXT,                 -- JSON of what is seldom there
    PRIMARY KEY(run, idx)
) WITHOUT ROWID;

CREATE TABLE tool_runs(
    run          INTEGER NOT NULL,
    idx          INTEGER NOT NULL,          -- turns.idx
    position     INTEGER NOT NULL,
    tool_call_id TEXT NOT NULL,
    tool_name    TEXT NOT NULL,
    started      INTEGER NOT NULL,          -- it may have done something
    ok           INTEGER,                   -- NULL while it runs
    error_code   TEXT,
    args         TEXT,                      -- JSON object; NULL when it was none
    result       TEXT,                      -- JSON as the model is given it
    result_chars INTEGER,
    queued_at    INTEGER,
    started_at   INTEGER,
    duration_ms  REAL NOT NULL,
    waited_ms    REAL NOT NULL,
    ran_in       TEXT,
    approval     TEXT,
    approved_by  TEXT,
    truncated    INTEGER NOT NULL,
    repeat_n     INTEGER NOT NULL,
    tool_sha     TEXT NOT NULL,
    details      TEXT,                      -- JSON of what is seldom there
    UNIQUE(run, idx, position)
);

CREATE TABLE messages(            -- each once, under the run that added it
    run          INTEGER NOT NULL,
    position     INTEGER NOT NULL,          -- below 0: a response that is not in the conversation
    idx          INTEGER,                   -- the turn that added it
    role         TEXT NOT NULL,
    text         TEXT,                      -- NULL: the result of its tool run, as it stands there
    reasoning    TEXT,
    tool_call_id TEXT,
    tool_name    TEXT,
    n_tool_calls INTEGER NOT NULL,
    has_image    INTEGER NOT NULL,
    chars        INTEGER NOT NULL,
    body         TEXT,                      -- JSON of what is seldom there
    UNIQUE(run, position)
);
"""

_PICTURES_ONCE = """
ALTER TABLE messages ADD COLUMN           -- 1: its tool run's attachments come after the text,
    attached INTEGER NOT NULL DEFAULT 0;  -- and stand in details of that row alone
"""

_WAITS_APART = """
ALTER TABLE runs ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN cache_write_tokens INTEGER;  -- NULL as the other counts of tokens
UPDATE turns SET cache_write_tokens = 0 WHERE prompt_tokens IS NOT NULL;

ALTER TABLE turns ADD COLUMN              -- between attempts and for a rate limit;
    retry_wait_ms REAL NOT NULL DEFAULT 0;  -- it was within model_ms before
UPDATE turns SET retry_wait_ms = coalesce(json_extract(details, '$.meta.retry_wait_ms'), 0)
    WHERE instr(details, '"retry_wait_ms"');
UPDATE turns SET model_ms = max(0.0, model_ms - retry_wait_ms) WHERE retry_wait_ms > 0;

UPDATE turns SET details =                -- a response counts its attempts, not its retries
    json_set(json_remove(details, '$.meta.retries'), '$.meta.attempts', retries + 1)
    WHERE retries > 0 AND instr(details, '"retries"');
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _PICTURES_ONCE, _WAITS_APART)
"""Script i brings a file from version i to version i + 1."""
