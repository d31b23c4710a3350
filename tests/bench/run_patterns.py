"""Rows of a few hundred real records, and texts, which `big_store` varies.

The rows come from a store that wrote the records, so they have all columns of this version.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from store.made_records import Maker
from stories import NOW, Story, tool_run, walked

from nbagent.contracts.canonical import dump_json, sha256_hex, sha_of
from nbagent.contracts.errors import ErrorCode, ErrorInfo
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import Case, RunRecord, ScoreRecord, ToolRun, toolset_sha
from nbagent.store.batches import save_scores
from nbagent.store.columns import TABLE_COLUMNS, TABLES, TIMESTAMP, TOKEN_COLUMNS
from nbagent.store.rows import encode_row, text_rows
from nbagent.store.writer import Store

Cells = list[Any]
RARE_WORD, FREQUENT_WORD = "quokka", "summary"
RARE_WORDS = (RARE_WORD, "Þingvellir", "日本語")
"""Each is in about one of 10,000 runs; the frequent word is in about one of six."""
_N_PATTERNS = 260
MODEL = "openai:gpt-pattern"
"""Model of all patterns."""
_MODEL_ERRORS: tuple[ErrorCode, ...] = (
    *("LLM_RATE_LIMITED", "LLM_TIMEOUT", "LLM_HTTP_ERROR", "LLM_CONTEXT_OVERFLOW"),
    *("LLM_AUTH_FAILED", "ENGINE_ABORTED", "ENGINE_INTERRUPTED", "ENGINE_BUDGET"),
)
_TOOL_ERRORS: tuple[ErrorCode, ...] = ("E_TOOL_FAILED", "ENOENT", "E_TIMEOUT", "E_DENIED")
TOPICS = (
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


# Texts


class Words:
    """Texts of clauses that are made once, from a vocabulary with frequent and rare words."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        vocabulary = [*_COMMON_WORDS.split(), *TOPICS]
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
            return f"{text} See {rng.choice(TOPICS)} {rng.randrange(10**6):06d}."
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
class Pattern:
    """The rows of one record."""

    kind: str
    """`story`: all texts are varied; `workflow`: only its prompt; `odd`: only ids and times."""
    rows: dict[str, list[Cells]]
    turns: int
    messages: int
    n_tools: int
    can_continue: bool


class Columns:
    """Places of the columns of a table."""

    def __init__(self, table: str) -> None:
        names = TABLE_COLUMNS[table]
        self.place = {name: i for i, name in enumerate(names)}
        columns = TABLES[table].by_name
        self.times = [i for i, name in enumerate(names) if columns[name].dtype == TIMESTAMP]
        self.tokens = [self.place[name] for name in TOKEN_COLUMNS if name in self.place]
        self.costs = [i for i, name in enumerate(names) if name.endswith("_usd")]
        vars(self).update(self.place)

    def __getattr__(self, name: str) -> int:
        return self.place[name]


RUN, TURN, TOOL_RUN, MESSAGE, SCORE = (
    Columns(table) for table in ("runs", "turns", "tool_runs", "messages", "scores")
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of a tool call, encoded."""

    raw: str
    quoted: str
    sha: str


class Library:
    """All that is made once and chosen from."""

    def __init__(self, seed: int) -> None:
        self.words = words = Words(seed)
        self.random = rng = random.Random(seed + 1)
        self.system_prompts = [f"You help with {words.text(5)}" for _ in range(300)]
        self.system_shas = [sha256_hex(text) for text in self.system_prompts]
        self.toolsets = {n: [self._toolset(n) for _ in range(25)] for n in (1, 3, 6, 12)}
        self.toolset_shas = {n: [*map(toolset_sha, sets)] for n, sets in self.toolsets.items()}
        self.arguments = [self._arguments() for _ in range(20_000)]
        self.templates = [self._template() for _ in range(2_000)]
        self.template_shas = [sha256_hex(text) for text in self.templates]
        records = [*_records(rng)]
        self.texts: dict[str, Cells] = {}
        prompts = dict(zip(self.system_shas, self.system_prompts, strict=True))
        tools = {toolset_sha(tools): tools for sets in self.toolsets.values() for tools in sets}
        for row in text_rows(prompts, tools):
            self.texts[row["sha"]] = encode_row("texts", row)
        self.patterns: list[Pattern] = []
        self.weights: list[float] = []
        """Sums of the weights up to each pattern."""
        store = Store.memory()
        for kind, weight, record in records:
            store.add(record)
            self.patterns.append(self._pattern(store, kind, record))
            self.weights.append(sum(self.weights[-1:]) + weight)
        self.score_rows = _score_rows(store, records[0][2])
        store.close()

    @cached_property
    def batch_patterns(self) -> list[Pattern]:
        """Patterns of the cases of batches: short, and no conversation before them."""
        return [item for item in self.patterns if item.kind == "story" and item.turns <= 3]

    def _pattern(self, store: Store, kind: str, record: RunRecord) -> Pattern:
        rows: dict[str, list[Cells]] = {}
        with store.reading() as c:
            names = TABLE_COLUMNS["runs"]
            sql = f"SELECT {', '.join(names)} FROM runs WHERE run_id = ?"
            rows["runs"] = [[*c.execute(sql, (record.id,)).fetchone()]]
            number = rows["runs"][0][RUN.n]
            for table in ("turns", "tool_runs", "messages"):
                names = ", ".join(TABLE_COLUMNS[table])
                sql = f"SELECT {names} FROM {table} WHERE run = ? ORDER BY rowid"
                sql = sql.replace("rowid", "turn") if table == "turns" else sql
                rows[table] = [[*cells] for cells in c.execute(sql, (number,))]
            if kind == "odd":
                sha = TABLE_COLUMNS["texts"].index("sha")
                for cells in c.execute(f"SELECT {', '.join(TABLE_COLUMNS['texts'])} FROM texts"):
                    self.texts.setdefault(cells[sha], [*cells])
        return Pattern(
            kind,
            rows,
            turns=len(record.turns),
            messages=len(record.messages),
            n_tools=len(next(iter(record.toolsets.values()), ())),
            can_continue=kind == "story" and record.error is None,
        )

    def _toolset(self, n: int) -> tuple[ToolSpec, ...]:
        def schema(rank: int) -> dict[str, Any]:
            names = (f"{self.random.choice(TOPICS)}_{i}" for i in range(rank % 4 + 1))
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

    def _arguments(self) -> Arguments:
        rng = self.random
        value: dict[str, Any] = {rng.choice(TOPICS): self.words.text(1), "n": rng.randrange(1_000)}
        raw = dump_json(value).decode()
        return Arguments(raw, dump_json(raw).decode(), sha_of(value))

    def _template(self) -> str:
        text, topic = self.words.text(2), self.random.choice(TOPICS)
        return f"{text} Use {{{{ topic }}}} number {{{{ n }}}} for the {topic}."


def _records(rng: random.Random) -> Iterator[tuple[str, float, RunRecord]]:
    """Records of every shape, each with its kind and its weight."""
    lengths = [1, 2, 3, 4, 5, 6, 7, 8, 15]
    for i in range(_N_PATTERNS):
        n_turns = rng.choices(lengths, (25, 20, 24, 12, 8, 4, 3, 2, 2))[0]
        yield "story", 1.0, _story(rng, f"{i:016x}", n_turns)
    for i in range(20):
        story = walked(id=f"{i + 0x1000:016x}", workflow=f"flow-{i % 4}", model=MODEL)
        yield "workflow", 0.05, story.run
    maker = Maker(7)
    for i in range(40):
        record, _ = maker.run(id=f"{i + 0x2000:016x}", model=MODEL)
        yield "odd", 0.03, record


def _story(rng: random.Random, run_id: str, n_turns: int) -> RunRecord:
    options = {"model": MODEL, "session": "s", "max_turns": 20}
    story = Story(MODEL, id=run_id, options=options, nbagent_version="0.1.0", session="s")
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


def _call(rng: random.Random, call_id: str) -> ToolRun:
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
