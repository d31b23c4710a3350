-- A store file of version 1, as nbagent wrote it, by sqlite3's iterdump.
PRAGMA application_id = 1851941223;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE blobs(               -- system prompts (text) and toolsets (JSON), each once
    n    INTEGER PRIMARY KEY,
    sha  TEXT NOT NULL UNIQUE,
    body TEXT                     -- NULL until it is known
);
INSERT INTO "blobs" VALUES(1,'213c22ed7234eb11116e1e88f314c73cb3a019b5c87fe224b6ce5665bd9ec50e','Be brief.');
INSERT INTO "blobs" VALUES(2,'c48a87777f21203d19f8ed8b5770be39f290233471f6b414daf024e9f444d6b2','[{"name":"work","display_name":"","description":"Works.","parameters":{"type":"object","properties":{}},"traits":{"host":"","interruptible":true,"idempotent":false,"sha":""}}]');
CREATE TABLE leases(              -- one row per process that may have runs at work
    id          TEXT PRIMARY KEY,
    pid         INTEGER NOT NULL,
    pid_started TEXT,             -- tells a pid from its next holder, where the OS says
    boot_id     TEXT,
    host        TEXT NOT NULL,
    heartbeat   INTEGER NOT NULL  -- all times are microseconds since 1970, UTC
) WITHOUT ROWID;
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
INSERT INTO "messages" VALUES(1,0,NULL,'user','go',NULL,NULL,NULL,0,0,2,NULL);
INSERT INTO "messages" VALUES(1,1,1,'assistant','seen',NULL,NULL,NULL,1,0,4,'{"tool_calls":[{"id":"c1","name":"work","raw":"{\"n\":1}"}]}');
INSERT INTO "messages" VALUES(1,2,1,'tool','{"ok":true,"data":"1 seen"}',NULL,'c1','work',0,1,27,'{"content":[{"text":"{\"ok\":true,\"data\":\"1 seen\"}","type":"text"},{"data":"aGVsbG8gcGljdHVyZQ==","alt":"a chart","type":"image"},{"name":"a.csv","media_type":"text/csv","data":"YSxi","type":"file"}]}');
INSERT INTO "messages" VALUES(1,3,2,'assistant','seen',NULL,NULL,NULL,1,0,4,'{"tool_calls":[{"id":"c2","name":"work","raw":"{\"n\":2}"}]}');
INSERT INTO "messages" VALUES(1,4,2,'tool','{"ok":true,"data":"2 seen"}',NULL,'c2','work',0,1,27,'{"content":[{"text":"{\"ok\":true,\"data\":\"2 seen\"}","type":"text"},{"data":"aGVsbG8gcGljdHVyZQ==","alt":"a chart","type":"image"},{"name":"a.csv","media_type":"text/csv","data":"YSxi","type":"file"}]}');
INSERT INTO "messages" VALUES(2,0,NULL,'user','go',NULL,NULL,NULL,0,0,2,NULL);
INSERT INTO "messages" VALUES(2,1,1,'assistant','seen',NULL,NULL,NULL,1,0,4,'{"tool_calls":[{"id":"c1","name":"work","raw":"{\"n\":1}"}]}');
INSERT INTO "messages" VALUES(2,2,1,'tool',NULL,NULL,'c1','work',0,0,27,NULL);
INSERT INTO "messages" VALUES(3,0,NULL,'user','go',NULL,NULL,NULL,0,0,2,NULL);
INSERT INTO "messages" VALUES(3,1,1,'assistant','seen',NULL,NULL,NULL,1,0,4,'{"tool_calls":[{"id":"c1","name":"work","raw":"{\"n\":1}"}]}');
INSERT INTO "messages" VALUES(3,2,1,'tool','{"ok":true,"data":"1 seen"}',NULL,'c1','work',0,1,27,'{"content":[{"text":"{\"ok\":true,\"data\":\"1 seen\"}","type":"text"},{"data":"aGVsbG8gcGljdHVyZQ==","alt":"a chart","type":"image"}]}');
INSERT INTO "messages" VALUES(3,3,2,'assistant','seen',NULL,NULL,NULL,1,0,4,'{"tool_calls":[{"id":"c2","name":"work","raw":"{\"n\":2}"}]}');
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
INSERT INTO "runs" VALUES(1,'aaaaaaaaaaaaaaaa',1,'s1',NULL,'[]',NULL,0,'start',1,NULL,NULL,'openai:gpt-x',NULL,NULL,'go','{}','{"max_turns":20,"ceiling":50,"loop_limit":3,"same_result_limit":6,"max_total_tokens":null,"max_cost_usd":null}','WaitingUser','max_turns',NULL,NULL,NULL,1772600767891011,1772600770891011,0.0,0,0,0,0,0,NULL,'[]','["213c22ed7234eb11116e1e88f314c73cb3a019b5c87fe224b6ce5665bd9ec50e"]','["c48a87777f21203d19f8ed8b5770be39f290233471f6b414daf024e9f444d6b2"]',NULL);
INSERT INTO "runs" VALUES(2,'bbbbbbbbbbbbbbbb',1,'s1',NULL,'[]',NULL,0,'start',1,NULL,NULL,'openai:gpt-x',NULL,NULL,'go','{}','{"max_turns":20,"ceiling":50,"loop_limit":3,"same_result_limit":6,"max_total_tokens":null,"max_cost_usd":null}','WaitingUser','max_turns',NULL,NULL,NULL,1772600767891011,1772600769891011,0.0,0,0,0,0,0,NULL,'[]','["213c22ed7234eb11116e1e88f314c73cb3a019b5c87fe224b6ce5665bd9ec50e"]','["c48a87777f21203d19f8ed8b5770be39f290233471f6b414daf024e9f444d6b2"]',NULL);
INSERT INTO "runs" VALUES(3,'cccccccccccccccc',1,'s1',NULL,'[]',NULL,0,'start',1,NULL,NULL,'openai:gpt-x',NULL,NULL,'go','{}','{"max_turns":20,"ceiling":50,"loop_limit":3,"same_result_limit":6,"max_total_tokens":null,"max_cost_usd":null}','Running',NULL,NULL,NULL,NULL,1772600767891011,NULL,0.0,0,0,0,0,0,NULL,'[]',NULL,NULL,'746af7841fe35105');
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
INSERT INTO "tool_runs" VALUES(1,1,0,'c1','work',1,1,NULL,'{"n":1}','{"ok":true,"data":"1 seen"}',27,NULL,1772600767891011,5.0,0.0,NULL,NULL,NULL,0,1,'','{"result":{"ok":true,"data":"1 seen","error":null,"attachments":[{"type":"image","media_type":"image/png","data":"aGVsbG8gcGljdHVyZQ==","url":null,"alt":"a chart"},{"type":"file","name":"a.csv","media_type":"text/csv","data":"YSxi"}]}}');
INSERT INTO "tool_runs" VALUES(1,2,0,'c2','work',1,1,NULL,'{"n":2}','{"ok":true,"data":"2 seen"}',27,NULL,1772600767891011,5.0,0.0,NULL,NULL,NULL,0,1,'','{"result":{"ok":true,"data":"2 seen","error":null,"attachments":[{"type":"image","media_type":"image/png","data":"aGVsbG8gcGljdHVyZQ==","url":null,"alt":"a chart"},{"type":"file","name":"a.csv","media_type":"text/csv","data":"YSxi"}]}}');
INSERT INTO "tool_runs" VALUES(2,1,0,'c1','work',1,1,NULL,'{"n":1}','{"ok":true,"data":"1 seen"}',27,NULL,1772600767891011,5.0,0.0,NULL,NULL,NULL,0,1,'',NULL);
INSERT INTO "tool_runs" VALUES(3,1,0,'c1','work',1,1,NULL,'{"n":1}','{"ok":true,"data":"1 seen"}',27,NULL,1772600767891011,5.0,0.0,NULL,NULL,NULL,0,1,'','{"result":{"ok":true,"data":"1 seen","error":null,"attachments":[{"type":"image","media_type":"image/png","data":"aGVsbG8gcGljdHVyZQ==","url":null,"alt":"a chart"}]}}');
INSERT INTO "tool_runs" VALUES(3,2,0,'c2','work',1,1,NULL,'{"n":2}','{"ok":true,"data":"2 seen"}',27,NULL,1772600767891011,5.0,0.0,NULL,NULL,NULL,0,1,'','{"result":{"ok":true,"data":"2 seen","error":null,"attachments":[{"type":"image","media_type":"image/png","data":"aGVsbG8gcGljdHVyZQ==","url":null,"alt":"a chart"}]}}');
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
INSERT INTO "turns" VALUES(1,1,'C01',0,'Running','Running',NULL,'tool_calls',NULL,'openai:gpt-x',1,2,1,1,100,20,120,0,0,0.001,1772600768891011,20.25,12.3456789,NULL,0,1,2,1,NULL,NULL,'{"request_model":"gpt-x","params":{"tool_choice":"auto"},"model":"gpt-x","meta":{"request_id":"req_0123456789abcdef"}}');
INSERT INTO "turns" VALUES(1,2,'C02',0,'Running','Running',NULL,'tool_calls',NULL,'openai:gpt-x',3,2,1,1,200,20,220,0,0,0.001,1772600769891011,20.25,12.3456789,NULL,0,1,2,3,NULL,NULL,'{"request_model":"gpt-x","params":{"tool_choice":"auto"},"model":"gpt-x","meta":{"request_id":"req_0123456789abcdef"}}');
INSERT INTO "turns" VALUES(2,1,'C01',0,'Running','Running',NULL,'tool_calls',NULL,'openai:gpt-x',1,2,1,1,100,20,120,0,0,0.001,1772600768891011,20.25,12.3456789,NULL,0,1,2,1,NULL,NULL,'{"request_model":"gpt-x","params":{"tool_choice":"auto"},"model":"gpt-x","meta":{"request_id":"req_0123456789abcdef"}}');
INSERT INTO "turns" VALUES(3,1,'C01',0,'Running','Running',NULL,'tool_calls',NULL,'openai:gpt-x',1,2,1,1,100,20,120,0,0,0.001,1772600768891011,20.25,12.3456789,NULL,0,1,2,1,NULL,NULL,'{"request_model":"gpt-x","params":{"tool_choice":"auto"},"model":"gpt-x","meta":{"request_id":"req_0123456789abcdef"}}');
INSERT INTO "turns" VALUES(3,2,'C02',1,'Running','Running',NULL,'tool_calls',NULL,'openai:gpt-x',3,2,1,1,200,20,220,0,0,0.001,1772600769891011,0.0,12.3456789,NULL,0,1,2,3,NULL,NULL,'{"request_model":"gpt-x","params":{"tool_choice":"auto"},"model":"gpt-x","meta":{"request_id":"req_0123456789abcdef"}}');
CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL;
CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running';
COMMIT;
