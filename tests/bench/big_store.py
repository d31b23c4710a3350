"""A store of many runs, made once: the rows of a few hundred real records, varied.

    python tests/bench/big_store.py FOLDER [--runs 1000000]

The store's own code makes the tables and the rows that are varied, so that columns which are added
later are here too. Equal arguments make equal rows. Made in bulk, without the writer: a table whose
rows the writer derives from others has to be made by the store's code afterwards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from store.made_records import Maker
from stories import NOW, Story, tool_run, walked

from nbagent.contracts.canonical import dump_json, sha256_hex, sha_of
from nbagent.contracts.errors import ErrorCode, ErrorInfo
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import JUDGE_SUFFIX, Case, RunRecord, ScoreRecord, turn_id
from nbagent.contracts.records import toolset_sha as sha_of_toolset
from nbagent.store.batches import save_scores
from nbagent.store.columns import FRAMES, TABLE_COLUMNS, TIMESTAMP, TOKEN_COLUMNS, create_statements
from nbagent.store.database import FILE_NAME
from nbagent.store.rows import encode_row, text_rows, to_us
from nbagent.store.writer import Store

Cells = list[Any]
MARKER = "made.json"
"""Written last; a folder without it is incomplete."""
LAST_START = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
"""Start of the newest run; the others are spread over the two years before it."""
_DAYS = 730
RARE_WORD, FREQUENT_WORD = "quokka", "summary"
RARE_WORDS = (RARE_WORD, "Þingvellir", "日本語")
"""Each is in about one of 25,000 runs; the frequent word is in about half of them."""
BATCH_OF_500 = "batch-01"
"""Has 500 runs in a store of 20,000 runs or more."""
N_SESSIONS = 200
"""`default`, nine that are always in use, and others that are in use for a few weeks."""
_N_STEADY_SESSIONS = 10
_N_NOTEBOOKS = 50
_N_BATCHES = 20
_N_PATTERNS = 260
_RUNS_IN_A_CHUNK = 4_000
_MODEL = "openai:gpt-pattern"
_MODELS = (
    *("openai:gpt-5.4", "openai:gpt-5.4-mini", "openai:o4", "anthropic:claude-opus-4-8"),
    *("anthropic:claude-haiku-4-5", "gemini:gemini-3-pro", "gemini:gemini-3-flash"),
    *("deepseek:deepseek-flash", "mistral:mistral-large", "ollama:qwen3", "groq:llama-4"),
    "offline:demo",
)
_MODEL_ERRORS: tuple[ErrorCode, ...] = (
    *("LLM_RATE_LIMITED", "LLM_TIMEOUT", "LLM_HTTP_ERROR", "LLM_CONTEXT_OVERFLOW"),
    *("LLM_AUTH_FAILED", "ENGINE_ABORTED", "ENGINE_INTERRUPTED", "ENGINE_BUDGET"),
)
_TOOL_ERRORS: tuple[ErrorCode, ...] = ("E_TOOL_FAILED", "ENOENT", "E_TIMEOUT", "E_DENIED")
_TOPICS = (
    *("city", "order", "invoice", "patient", "engine", "river", "ticket", "contract", "molecule"),
    *("harbour", "schedule", "budget", "turbine", "survey", "customer", "library", "route"),
)
_COMMON_WORDS = (
    "the of and to in is a for that with as on are by it from at this be which was or an were "
    "we can not have has if they their than more between number list table value values data "
    "find show compare read write name first last each all sum mean price city year month report "
    f"{FREQUENT_WORD} answer question result error file column row model test change check "
    "larger smaller people country total average increase decrease because however therefore "
    "Zürich Ærø naïve façade København Αθήνα Łódź 東京 données größer señal"
)
_TOOL_NAMES = ("lookup", "query_table", "fetch_page", "convert", "list_orders", "weather", "plot")


def cache_folder() -> Path:
    """Folder for stores of the bench, outside of the repository."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BENCH_STORES") or Path(root) / "nbagent-bench")


def cached_store(runs: int) -> Path:
    """Folder with a store of so many runs for the tables of this version; made if it is missing."""
    tables = sha_of([create_statements(), TABLE_COLUMNS])[:8]
    folder = cache_folder() / f"{runs}-runs-{tables}"
    make(folder, runs)
    return folder


def make(folder: Path, runs: int, *, seed: int = 1) -> dict[str, Any]:
    """Make a store in a folder, unless it is complete; return what its marker says."""
    marker = folder / MARKER
    if marker.exists():
        return json.loads(marker.read_text("utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    Store.open(folder).close()
    file = folder / FILE_NAME
    with sqlite3.connect(file, isolation_level=None) as c:
        # A crash leaves no marker, so nothing here needs to survive one.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            c.execute(f"PRAGMA {pragma}")
        _fill(c, runs, seed)
        made: dict[str, Any] = {
            table: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in TABLE_COLUMNS
        }
        c.execute("PRAGMA journal_mode = WAL")
    c.close()
    made |= {
        "seed": seed,
        "bytes": file.stat().st_size,
        "seconds": round(time.perf_counter() - began),
    }
    marker.write_text(json.dumps(made), "utf-8")
    return made


def _fill(c: sqlite3.Connection, runs: int, seed: int) -> None:
    inserts = {
        table: f"INSERT INTO {table}({', '.join(names)}) VALUES({', '.join('?' * len(names))})"
        for table, names in TABLE_COLUMNS.items()
    }
    library = _Library(seed)
    maker = _RowMaker(library)
    maker.add_batches(_batch_sizes(runs))
    for plan in _plans(library, runs):
        maker.add(plan)
        if plan.number % _RUNS_IN_A_CHUNK == 0 or plan.number == runs:
            c.execute("BEGIN")
            for table, rows in maker.take().items():
                c.executemany(inserts[table], rows)
            c.execute("COMMIT")


# Texts


class _Words:
    """Texts of clauses that are made once, from a vocabulary with frequent and rare words."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        vocabulary = [*_COMMON_WORDS.split(), *_TOPICS]
        while len(vocabulary) < 6_000:
            syllables = (
                rng.choice("bcdfghklmnprstvwz") + rng.choice(("a", "e", "i", "o", "u", "ie", "ou"))
                for _ in range(rng.randrange(2, 5))
            )
            vocabulary.append("".join(syllables) + rng.choice(("", "n", "r", "s", "st", "l", "m")))
        weights = [*itertools.accumulate(1 / (rank + 8) for rank in range(len(vocabulary)))]
        self._clauses = [
            " ".join(rng.choices(vocabulary, cum_weights=weights, k=rng.randrange(4, 10)))
            + rng.choice(".,;:?")
            for _ in range(60_000)
        ]

    def text(self, clauses: int) -> str:
        return " ".join(self.random.choices(self._clauses, k=clauses))

    def prompt(self) -> str:
        """What a person writes: mostly a new text."""
        rng = self.random
        text = self.text(rng.choice((1, 2, 2, 3, 4)))
        draw = rng.random()
        if draw < 0.3:
            return f"{text} See {rng.choice(_TOPICS)} {rng.randrange(10**6):06d}."
        if draw > 0.992:
            return f"{text}\n\n{self.text(60)}"
        return text

    def answer(self) -> str:
        """What a model writes."""
        draw = self.random.random()
        if draw > 0.995:
            return self.text(120)
        text = self.text(self.random.choice((1, 1, 2, 3, 4)))
        return text if draw > 0.00002 * len(RARE_WORDS) else f"{text} {self.rare_word()}"

    def rare_word(self) -> str:
        return self.random.choice(RARE_WORDS)


# Patterns: rows of real records


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The rows of one record."""

    kind: str
    """`story`: all texts are varied; `workflow`: only its prompt; `odd`: only ids and times."""
    rows: dict[str, list[Cells]]
    turns: int
    first_turn: int
    messages: int
    n_tools: int
    can_continue: bool


class _Columns:
    """Places of the columns of a table."""

    def __init__(self, table: str) -> None:
        names = TABLE_COLUMNS[table]
        self.place = {name: i for i, name in enumerate(names)}
        frame = FRAMES[table]
        self.times = [
            i
            for i, name in enumerate(names)
            if name in frame.columns and frame.dtype(name) == TIMESTAMP
        ]
        self.tokens = [self.place[name] for name in TOKEN_COLUMNS if name in self.place]
        self.costs = [i for i, name in enumerate(names) if name.endswith("_usd")]
        vars(self).update(self.place)

    def __getattr__(self, name: str) -> int:
        return self.place[name]


_RUN, _TURN, _TOOL_RUN, _MESSAGE, _SCORE = (
    _Columns(table) for table in ("runs", "turns", "tool_runs", "messages", "scores")
)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Arguments of a tool call, encoded."""

    raw: str
    quoted: str
    sha: str


class _Library:
    """All that is made once and chosen from."""

    def __init__(self, seed: int) -> None:
        self.words = words = _Words(seed)
        self.random = rng = random.Random(seed + 1)
        self.system_prompts = [f"You help with {words.text(5)}" for _ in range(300)]
        self.system_shas = [sha256_hex(text) for text in self.system_prompts]
        self.toolsets = {n: [self._toolset(n) for _ in range(25)] for n in (1, 3, 6, 12)}
        self.toolset_shas = {n: [*map(sha_of_toolset, sets)] for n, sets in self.toolsets.items()}
        self.arguments = [self._arguments() for _ in range(20_000)]
        self.templates = [self._template() for _ in range(2_000)]
        self.template_shas = [sha256_hex(text) for text in self.templates]
        records = [*_records(rng)]
        self.texts: dict[str, Cells] = {}
        for prompts, tools in (
            (dict(zip(self.system_shas, self.system_prompts, strict=True)), {}),
            *(({}, dict(zip(self.toolset_shas[n], sets, strict=True))) for n, sets in self._sets),
        ):
            for row in text_rows(prompts, tools):
                self.texts[row["sha"]] = encode_row("texts", row)
        self.patterns: list[_Pattern] = []
        self.weights: list[float] = []
        """Sums of the weights up to each pattern."""
        store = Store.memory()
        for kind, weight, record in records:
            store.add(record)
            self.patterns.append(self._pattern(store, kind, record))
            self.weights.append(sum(self.weights[-1:]) + weight)
        self.score_rows = _score_rows(store, records[0][2])
        store.close()

    @property
    def _sets(self) -> Iterator[tuple[int, list[tuple[ToolSpec, ...]]]]:
        yield from self.toolsets.items()

    @cached_property
    def batch_patterns(self) -> list[_Pattern]:
        """Patterns of the cases of batches: short, and no conversation before them."""
        return [item for item in self.patterns if item.kind == "story" and item.turns <= 3]

    def _pattern(self, store: Store, kind: str, record: RunRecord) -> _Pattern:
        rows: dict[str, list[Cells]] = {}
        with store.reading() as c:
            names = TABLE_COLUMNS["runs"]
            sql = f"SELECT {', '.join(names)} FROM runs WHERE run_id = ?"
            rows["runs"] = [[*c.execute(sql, (record.id,)).fetchone()]]
            number = rows["runs"][0][_RUN.n]
            for table in ("turns", "tool_runs", "messages"):
                names = ", ".join(TABLE_COLUMNS[table])
                sql = f"SELECT {names} FROM {table} WHERE run = ? ORDER BY rowid"
                sql = sql.replace("rowid", "turn") if table == "turns" else sql
                rows[table] = [[*cells] for cells in c.execute(sql, (number,))]
            if kind == "odd":
                for cells in c.execute(f"SELECT {', '.join(TABLE_COLUMNS['texts'])} FROM texts"):
                    self.texts.setdefault(cells[0], [*cells])
        return _Pattern(
            kind,
            rows,
            turns=len(record.turns),
            first_turn=record.turns[0].index if record.turns else 1,
            messages=len(record.messages),
            n_tools=len(next(iter(record.toolsets.values()), ())),
            can_continue=kind == "story" and record.error is None,
        )

    def _toolset(self, n: int) -> tuple[ToolSpec, ...]:
        def schema(rank: int) -> dict[str, Any]:
            names = (f"{self.random.choice(_TOPICS)}_{i}" for i in range(rank % 4 + 1))
            properties = {
                name: {"type": "string", "description": self.words.text(1)} for name in names
            }
            return {"type": "object", "properties": properties, "required": [*properties]}

        return tuple(
            ToolSpec(
                name=f"{self.random.choice(_TOOL_NAMES)}_{i}",
                description=self.words.text(2),
                parameters=schema(i),
            )
            for i in range(n)
        )

    def _arguments(self) -> _Arguments:
        rng = self.random
        value: dict[str, Any] = {rng.choice(_TOPICS): self.words.text(1), "n": rng.randrange(1_000)}
        raw = dump_json(value).decode()
        return _Arguments(raw, dump_json(raw).decode(), sha_of(value))

    def _template(self) -> str:
        text, topic = self.words.text(2), self.random.choice(_TOPICS)
        return f"{text} Use {{{{ topic }}}} number {{{{ n }}}} for the {topic}."


def _records(rng: random.Random) -> Iterator[tuple[str, float, RunRecord]]:
    """Records of every shape, each with its kind and its weight."""
    lengths = [1, 2, 3, 4, 5, 6, 7, 8, 15]
    for i in range(_N_PATTERNS):
        n_turns = rng.choices(lengths, (25, 20, 24, 12, 8, 4, 3, 2, 2))[0]
        yield "story", 1.0, _story(rng, f"{i:016x}", n_turns)
    for i in range(20):
        story = walked(id=f"{i + 0x1000:016x}", workflow=f"flow-{i % 4}", model=_MODEL)
        yield "workflow", 0.05, story.run
    maker = Maker(7)
    for i in range(40):
        record, _ = maker.run(id=f"{i + 0x2000:016x}", model=_MODEL)
        yield "odd", 0.03, record


def _story(rng: random.Random, run_id: str, n_turns: int) -> RunRecord:
    options = {"model": _MODEL, "session": "s", "max_turns": 20}
    story = Story(_MODEL, id=run_id, options=options, nbagent_version="0.1.0", session="s")
    has_system, n_tools = rng.random() < 0.8, rng.choice((1, 3, 6, 12))
    tools = tuple(ToolSpec(name=f"tool_{i}") for i in range(n_tools)) if n_turns > 1 else ()
    fails = rng.random() < 0.06
    at = NOW
    for i in range(1, n_turns + 1):
        model_ms = float(rng.randrange(400, 9_000))
        is_last = i == n_turns
        n_calls = 0 if is_last or not tools else rng.choice((1, 1, 1, 1, 1, 1, 2, 3))
        began = at + timedelta(milliseconds=model_ms)
        calls = [
            _call(rng, f"call_{i}_{n}").model_copy(update={"queued_at": began, "started_at": began})
            for n in range(n_calls)
        ]
        lasted = max((call.duration_ms for call in calls), default=0.0)
        error = ErrorInfo(rng.choice(_MODEL_ERRORS), "the model did not answer") if fails else None
        story.turn(
            "" if calls and rng.random() < 0.5 else "An answer.",
            *calls,
            reasoning="A thought." if rng.random() < 0.15 else "",
            system="Be brief." if has_system else "",
            tools=tools,
            started_at=at,
            model_ms=model_ms,
            duration_ms=model_ms + lasted,
            ttft_ms=model_ms / 4,
            cost_usd=rng.randrange(1, 200) / 1e5,
            cost_input_usd=rng.randrange(1, 100) / 1e5,
            cost_output_usd=rng.randrange(1, 100) / 1e5,
            phase_after="Running" if not is_last else "Failed" if fails else "WaitingUser",
            stop_reason=None if not is_last else "error" if fails else "answered",
            **({"response": None, "error": error} if is_last and fails else {}),
        )
        at = began + timedelta(milliseconds=lasted + 5)
    ended = {"ended_at": at, "duration_ms": (at - NOW).total_seconds() * 1000}
    if fails:
        ended |= {"phase": "Failed", "stop_reason": "error", "error": story.run.turns[-1].error}
    return story.end(**ended).run


def _call(rng: random.Random, call_id: str) -> Any:
    failed = rng.random() < 0.06
    error = ErrorInfo(rng.choice(_TOOL_ERRORS), "KeyError: 'rows'")
    name = f"{rng.choice(_TOOL_NAMES)}_{rng.randrange(3)}"
    value = error if failed else "a result"
    made = tool_run(call_id, name, {"n": 1}, value, float(rng.randrange(1, 900)))
    asked = {"approval": "allowed", "approved_by": "person", "waited_ms": 2_000.0}
    return made.model_copy(update={"host": "functions", **(asked if rng.random() < 0.1 else {})})


def _score_rows(store: Store, record: RunRecord) -> list[Cells]:
    """Rows of scores by functions, a judge and a person."""
    case = Case(batch="b", row_key="r", sha="c")
    scored = record.model_copy(update={"id": f"{0x3000:016x}", "case": case})
    store.add(scored)
    base: dict[str, Any] = {"run_id": scored.id, "at": NOW}
    row: dict[str, Any] = {"row": {"expected": "0123456789ab"}}
    save_scores(
        store,
        [
            ScoreRecord(**base, scorer="exact", value=True, by="function", **row),
            ScoreRecord(**base, scorer="length", value=0.5, by="function", **row),
            ScoreRecord(
                **base, scorer="helpful", value="good", by="openai:o4", reason="Fits.", **row
            ),
            ScoreRecord(**base, scorer="person", value="good", by="person"),
        ],
    )
    with store.reading() as c:
        names = ", ".join(TABLE_COLUMNS["scores"])
        return [[*cells] for cells in c.execute(f"SELECT {names} FROM scores ORDER BY scorer")]


# Runs: what is decided about each before its rows are made


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The end of a run that a later run may continue."""

    run_id: str
    root_id: str
    conversation_id: str
    shared: int
    """Number of messages before the run."""
    messages: int
    """Number of messages up to its end."""
    first_turn: int
    last_turn: int
    length: int
    """Number of runs in the chain."""


@dataclass(frozen=True, slots=True)
class _CaseOfBatch:
    """The case of a run in a batch."""

    batch: int
    row_key: str
    variant: int
    sha: str
    is_judge: bool = False
    judge_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is decided about a run before its rows are made."""

    number: int
    run_id: str
    started_us: int
    session: int
    pattern: _Pattern
    parent: _Conversation | None = None
    is_fork: bool = False
    case: _CaseOfBatch | None = None

    @property
    def shared(self) -> int:
        if self.parent is None:
            return 0
        return self.parent.shared if self.is_fork else self.parent.messages

    @property
    def earlier_turns(self) -> int:
        if self.parent is None:
            return 0
        return self.parent.first_turn - 1 if self.is_fork else self.parent.last_turn

    @property
    def conversation(self) -> _Conversation:
        """Its end, for a run that continues it."""
        parent = self.parent
        continues = parent is not None and not self.is_fork
        return _Conversation(
            self.run_id,
            root_id=parent.root_id if parent else self.run_id,
            conversation_id=parent.conversation_id if parent and continues else self.run_id,
            shared=self.shared,
            messages=self.shared + self.pattern.messages,
            first_turn=self.earlier_turns + 1,
            last_turn=self.earlier_turns + self.pattern.turns,
            length=parent.length + 1 if parent else 1,
        )


class _Sessions:
    """Chooses sessions in bursts: most work is in a few of them, and most of them are old."""

    def __init__(self, rng: random.Random, runs: int) -> None:
        self._random, self._runs = rng, runs
        self._current = self._left = 0

    def choose(self, number: int) -> int:
        if self._left == 0:
            self._left = self._random.choice((1, 3, 8, 20))
            self._current = self._draw(number)
        self._left -= 1
        return self._current

    def _draw(self, number: int) -> int:
        draw = self._random.random()
        if draw < 0.3:
            return 0
        if draw < 0.5:
            return self._random.randrange(1, _N_STEADY_SESSIONS)
        n = N_SESSIONS - _N_STEADY_SESSIONS
        place = (number - 1) * n // self._runs - self._random.choice((0, 0, 0, 1, 1, 2, 3))
        # Every tenth of these is small.
        if place % 10 == 7 and self._random.random() < 0.95:
            place -= 1
        return _N_STEADY_SESSIONS + max(0, place)


def session_name(index: int) -> str:
    """Name of a session; from 10 on, the larger the index, the later its runs."""
    return "default" if index == 0 else f"session-{index:03d}"


def _batch_sizes(runs: int) -> list[int]:
    first = min(500, runs // 40)
    shares = [1] * 9 + [6] * 6 + [20] * 3 + [80]
    left = runs // 10 - first
    return [first, *(max(1, left * share // sum(shares)) for share in shares)]


def _plans(library: _Library, runs: int) -> Iterator[_Plan]:
    """Plans of all runs in the order of their numbers."""
    rng = library.random
    step = _DAYS * 86_400 * 10**6 // runs
    first_us = to_us(LAST_START) - step * (runs - 1)
    sizes = _batch_sizes(runs)
    batches = {(i + 1) * runs // (len(sizes) + 2): i for i in range(len(sizes))}
    sessions = _Sessions(rng, runs)
    heads: dict[int, _Conversation] = {}
    cases: Iterator[tuple[str, _CaseOfBatch]] = iter(())
    for number in range(1, runs + 1):
        # The newest run starts at a time that is known; others begin a little out of order.
        jitter = rng.randrange(step) if number < runs else 0
        started_us = first_us + step * (number - 1) - jitter
        if number in batches:
            cases = _cases(rng, batches[number], sizes[batches[number]])
        run_id, case = next(cases, (f"{rng.getrandbits(64):016x}", None))
        if case is not None:
            pattern = rng.choice(library.batch_patterns)
            yield _Plan(number, run_id, started_us, 0, pattern, case=case)
            continue
        session = sessions.choose(number)
        pattern = rng.choices(library.patterns, cum_weights=library.weights)[0]
        parent = heads.pop(session, None)
        if parent and (parent.length >= 5 or pattern.kind != "story" or rng.random() > 0.26):
            parent = None
        is_fork = parent is not None and rng.random() < 0.1
        plan = _Plan(number, run_id, started_us, session, pattern, parent, is_fork)
        if pattern.can_continue:
            heads[session] = plan.conversation
        yield plan


def _cases(rng: random.Random, batch: int, size: int) -> Iterator[tuple[str, _CaseOfBatch]]:
    """Ids and cases of a batch; in some batches each run is followed by its judge's."""
    is_judged = batch % 7 == 2
    for i in range(0, size, 2 if is_judged else 1):
        judge_id = f"{rng.getrandbits(64):016x}" if is_judged else None
        case = _CaseOfBatch(batch, f"row-{i // 6:05d}", i % 3, sha256_hex(f"{batch} {i}"))
        yield f"{rng.getrandbits(64):016x}", replace(case, judge_id=judge_id)
        if judge_id:
            yield judge_id, replace(case, is_judge=True)


def batch_name(index: int) -> str:
    """Name of a batch."""
    return f"batch-{index + 1:02d}"


# Rows


class _RowMaker:
    """Makes the rows of runs, and collects them by table."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        self._random = library.random
        self.rows: dict[str, list[Cells]] = defaultdict(list)
        self._known_texts: set[str] = set()

    def take(self) -> dict[str, list[Cells]]:
        """The rows that were made since the last call."""
        rows, self.rows = self.rows, defaultdict(list)
        return rows

    def add(self, plan: _Plan) -> None:
        """Make the rows of a run."""
        maker = _StoryRows if plan.pattern.kind != "odd" else _OddRows
        made = maker(plan, self._library)
        self.rows["runs"].append(made.run())
        self.rows["turns"] += made.turns()
        self.rows["tool_runs"] += made.tool_runs()
        self.rows["messages"] += made.messages()
        if plan.case is not None and not plan.case.is_judge:
            self.rows["scores"] += self._scores(plan, plan.case)
        for sha in made.text_shas():
            if sha not in self._known_texts:
                self._known_texts.add(sha)
                self.rows["texts"].append(self._library.texts[sha])

    def add_batches(self, sizes: Sequence[int]) -> None:
        """Make the rows of all batches."""
        for batch, size in enumerate(sizes):
            n = (size + 5) // 6
            shas = {f"row-{i:05d}": sha256_hex(f"{batch} {i}")[:12] for i in range(n)}
            row = {"name": batch_name(batch), "doc": {"columns": ["n"], "rows": shas}}
            self.rows["batches"].append(encode_row("batches", row))

    def _scores(self, plan: _Plan, case: _CaseOfBatch) -> Iterator[Cells]:
        rng = self._random
        for pattern in self._library.score_rows:
            scorer = pattern[_SCORE.scorer]
            is_wanted = {"helpful": case.judge_id is not None, "person": rng.random() < 0.05}
            if is_wanted.get(scorer, True):
                row = pattern.copy()
                row[_SCORE.run] = plan.number
                row[_SCORE.at] = plan.started_us + 60_000_000
                if row[_SCORE.kind] == "label":
                    row[_SCORE.label] = rng.choice(("good", "good", "fair", "poor"))
                else:
                    is_number = row[_SCORE.kind] == "number"
                    row[_SCORE.value] = rng.random() if is_number else float(rng.random() < 0.7)
                if scorer == "helpful":
                    row[_SCORE.judge_run_id] = case.judge_id
                yield row


class _OddRows:
    """Rows of a run with the texts of its pattern, and its own ids, session and times."""

    def __init__(self, plan: _Plan, library: _Library) -> None:
        self.plan, self.library, self.random = plan, library, library.random
        self.pattern = plan.pattern.rows
        self._delta_us = plan.started_us - self.pattern["runs"][0][_RUN.started_at]

    def run(self) -> Cells:
        plan, rng = self.plan, self.random
        row = self._copy(_RUN, self.pattern["runs"][0])
        end = plan.conversation
        row[_RUN.n] = plan.number
        row[_RUN.run_id] = plan.run_id
        row[_RUN.session] = session_name(plan.session)
        row[_RUN.root_id], row[_RUN.conversation_id] = end.root_id, end.conversation_id
        row[_RUN.notebook] = f"notebook-{plan.session % _N_NOTEBOOKS:02d}.ipynb"
        row[_RUN.cell_id] = f"{rng.getrandbits(32):08x}"
        row[_RUN.execution_count] = plan.number % 90 + 1
        row[_RUN.name] = None
        if rng.random() < 0.01:
            word = "best" if rng.random() < 0.1 else f"{rng.choice(_TOPICS)}-{plan.number}"
            row[_RUN.name] = word
        return row

    def turns(self) -> list[Cells]:
        return [self._copy_of_run(_TURN, row) for row in self.pattern["turns"]]

    def tool_runs(self) -> list[Cells]:
        return [self._copy_of_run(_TOOL_RUN, row) for row in self.pattern["tool_runs"]]

    def messages(self) -> list[Cells]:
        return [self._copy_of_run(_MESSAGE, row) for row in self.pattern["messages"]]

    def text_shas(self) -> set[str]:
        """Hashes of the texts that its turns refer to."""
        shas = {
            row[i] for row in self.pattern["turns"] for i in (_TURN.system_sha, _TURN.toolset_sha)
        }
        return shas - {None}

    def _copy(self, columns: _Columns, pattern: Cells) -> Cells:
        row = pattern.copy()
        for i in columns.times:
            if row[i] is not None:
                row[i] += self._delta_us
        return row

    def _copy_of_run(self, columns: _Columns, pattern: Cells) -> Cells:
        row = self._copy(columns, pattern)
        row[columns.run] = self.plan.number
        return row


class _StoryRows(_OddRows):
    """Rows of a run with new texts, another model, and other figures."""

    def __init__(self, plan: _Plan, library: _Library) -> None:
        super().__init__(plan, library)
        rng = self.random
        self._has_new_calls = plan.pattern.kind == "story"
        self._model = _MODELS[int(len(_MODELS) * rng.random() ** 2)]
        self._tokens, self._cost = rng.randrange(1, 60), rng.random() * 30
        old = self.pattern["runs"][0]
        rank = rng.randrange(len(library.system_prompts))
        self._system = old[_RUN.system_sha] and library.system_shas[rank]
        self._toolset = old[_RUN.toolset_sha]
        if plan.pattern.n_tools in library.toolset_shas:
            self._toolset = rng.choice(library.toolset_shas[plan.pattern.n_tools])
        self._template, self._template_sha, self._prompt = self._new_prompt()
        # By turn and position: the id of a call, its arguments, and its result.
        self._calls: dict[tuple[int, int], tuple[str, _Arguments, str]] = {}

    def text_shas(self) -> set[str]:
        return {sha for sha in (self._system, self._toolset) if sha}

    def _new_prompt(self) -> tuple[str | None, str, str]:
        """Template, hash of the template, and prompt."""
        rng, library, case = self.random, self.library, self.plan.case
        if case is None and rng.random() > 0.15:
            prompt = library.words.prompt()
            return None, sha256_hex(prompt), prompt
        # The first templates are those of batches; of the others, some are used more than others.
        first = 3 * _N_BATCHES
        rank = first + int((len(library.templates) - first) * rng.random() ** 2)
        n = rng.randrange(100_000)
        if case is not None:
            rank, n = case.batch * 3 + case.variant, int(case.row_key.rpartition("-")[2])
        template = library.templates[rank]
        values = {"topic": rng.choice(_TOPICS), "n": str(n)}
        prompt = template.replace("{{ topic }}", values["topic"]).replace("{{ n }}", values["n"])
        return template, library.template_shas[rank], prompt

    def run(self) -> Cells:
        plan, row = self.plan, super().run()
        row[_RUN.model] = self._model
        row[_RUN.system_sha], row[_RUN.toolset_sha] = self._system, self._toolset
        row[_RUN.template], row[_RUN.template_sha] = self._template, self._template_sha
        row[_RUN.prompt] = self._prompt
        row[_RUN.duration_ms] *= 0.5 + self.random.random()
        row[_RUN.doc] = row[_RUN.doc].replace(_MODEL, self._model)
        self._change_figures(_RUN, row)
        if plan.parent is not None:
            row[_RUN.kind] = "fork" if plan.is_fork else "continue"
            row[_RUN.parent_id] = plan.parent.run_id
            row[_RUN.shared_messages] = plan.shared
            row[_RUN.forked_from] = turn_id(plan.parent.first_turn) if plan.is_fork else None
        if plan.case is not None:
            row[_RUN.batch] = batch_name(plan.case.batch) + JUDGE_SUFFIX * plan.case.is_judge
            row[_RUN.row_key] = plan.case.row_key
            row[_RUN.variant] = f'{{"system":"v{plan.case.variant}"}}'
            row[_RUN.attempt] = 1
            row[_RUN.case_sha] = plan.case.sha
        return row

    def turns(self) -> list[Cells]:
        rows = super().turns()
        for row in rows:
            row[_TURN.turn] += self.plan.earlier_turns
            row[_TURN.n_messages] += self.plan.shared
            row[_TURN.model] = self._model
            if row[_TURN.message_at] is not None:
                row[_TURN.served_model] = self._model.partition(":")[2]
            row[_TURN.system_sha], row[_TURN.toolset_sha] = self._system, self._toolset
            self._change_figures(_TURN, row)
        if self.plan.parent is not None:
            rows[0][_TURN.phase_before] = "WaitingUser"
        return rows

    def tool_runs(self) -> list[Cells]:
        rows = super().tool_runs()
        rng, library = self.random, self.library
        for row in rows:
            row[_TOOL_RUN.turn] += self.plan.earlier_turns
            row[_TOOL_RUN.model] = self._model
            if self._has_new_calls:
                call = f"call_{rng.getrandbits(80):020x}"
                arguments = rng.choice(library.arguments)
                row[_TOOL_RUN.tool_call_id] = call
                row[_TOOL_RUN.args], row[_TOOL_RUN.args_sha] = arguments.raw, arguments.sha
                if row[_TOOL_RUN.ok]:
                    data = {"rows": rng.randrange(5_000), "text": library.words.answer()}
                    row[_TOOL_RUN.result] = dump_json({"ok": True, "data": data}).decode()
                place = row[_TOOL_RUN.turn], row[_TOOL_RUN.position]
                self._calls[place] = call, arguments, row[_TOOL_RUN.result]
        return rows

    def messages(self) -> list[Cells]:
        rows = super().messages()
        words = self.library.words
        for row in rows:
            if row[_MESSAGE.source] == "person":
                self._set_text(row, self._prompt)
                continue
            if row[_MESSAGE.turn] is not None:
                row[_MESSAGE.turn] += self.plan.earlier_turns
            if not self._has_new_calls:
                continue
            if row[_MESSAGE.call] is not None:
                call, _, result = self._calls[row[_MESSAGE.turn], row[_MESSAGE.call]]
                row[_MESSAGE.tool_call_id], row[_MESSAGE.chars] = call, len(result)
                continue
            if row[_MESSAGE.text]:
                self._set_text(row, words.answer())
            if row[_MESSAGE.reasoning]:
                row[_MESSAGE.reasoning] = words.text(3)
            if row[_MESSAGE.tool_calls]:
                row[_MESSAGE.tool_calls] = self._tool_calls(row)
        return rows

    def _tool_calls(self, row: Cells) -> str:
        """Calls of a response, as JSON, with the new ids and arguments."""
        turn, bodies = row[_MESSAGE.turn], list[str]()
        for place, body in enumerate(json.loads(row[_MESSAGE.tool_calls])):
            call, arguments, _ = self._calls[turn, place]
            name = body["name"]
            bodies.append(f'{{"id":"{call}","name":"{name}","arguments_raw":{arguments.quoted}}}')
        return f"[{','.join(bodies)}]"

    def _set_text(self, row: Cells, text: str) -> None:
        row[_MESSAGE.text], row[_MESSAGE.chars] = text, len(text)

    def _change_figures(self, columns: _Columns, row: Cells) -> None:
        for i in columns.tokens:
            if row[i] is not None:
                row[i] *= self._tokens
        for i in columns.costs:
            if row[i] is not None:
                row[i] *= self._cost


def main() -> None:
    """Make a store in the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python tests/bench/big_store.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    print(json.dumps(make(options.folder, options.runs)))


if __name__ == "__main__":
    main()
