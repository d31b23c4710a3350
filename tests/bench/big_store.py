"""A store of many runs, made once: the rows of a few hundred real records, varied.

    python tests/bench/big_store.py FOLDER [--runs 1000000]

The store's own code makes the tables and the rows that are varied, so that columns which are added
later are here too. Equal arguments make equal rows. Made in bulk, without the writer: a table whose
rows the writer derives from others has to be made by the store's code afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from run_patterns import (
    MESSAGE,
    MODEL,
    RUN,
    SCORE,
    TOOL_RUN,
    TOPICS,
    TURN,
    Arguments,
    Cells,
    Columns,
    Library,
    Pattern,
)

from nbagent.contracts.canonical import dump_json, sha256_hex, sha_of
from nbagent.contracts.records import JUDGE_SUFFIX, turn_id
from nbagent.store.columns import TABLE_COLUMNS
from nbagent.store.connections import FILE_NAME
from nbagent.store.rows import encode_row, to_us
from nbagent.store.schema import TURN_INDEXES, create_statements
from nbagent.store.upkeep import finish_upkeep, plan_upkeep
from nbagent.store.writer import Store

MARKER = "made.json"
"""Written last; a folder without it is incomplete."""
LAST_START = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
"""Start of the newest run; the others are spread over the two years before it."""
_DAYS = 730
BATCH_OF_500 = "batch-01"
"""Has 500 runs in a store of 20,000 runs or more."""
N_SESSIONS = 200
"""`default`, nine that are always in use, and others that are in use for a few weeks."""
_N_STEADY_SESSIONS = 10
_N_NOTEBOOKS = 50
_N_BATCHES = 20
_RUNS_IN_A_CHUNK = 4_000
_MODELS = (
    *("openai:gpt-5.4", "openai:gpt-5.4-mini", "openai:o4", "anthropic:claude-opus-4-8"),
    *("anthropic:claude-haiku-4-5", "gemini:gemini-3-pro", "gemini:gemini-3-flash"),
    *("deepseek:deepseek-flash", "mistral:mistral-large", "ollama:qwen3", "groq:llama-4"),
    "offline:demo",
)


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
        # The rows have their hashes as texts, as those of version 6: they are migrated below.
        for name in TURN_INDEXES:
            c.execute(f"DROP INDEX {name}")
        plan_upkeep(c)
        c.execute("PRAGMA journal_mode = WAL")
    c.close()
    with closing(Store.open(folder)) as store:
        finish_upkeep(store.database)
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
    library = Library(seed)
    maker = _RowMaker(library)
    maker.add_batches(_batch_sizes(runs))
    for plan in _plans(library, runs):
        maker.add(plan)
        if plan.number % _RUNS_IN_A_CHUNK == 0 or plan.number == runs:
            c.execute("BEGIN")
            for table, rows in maker.take().items():
                c.executemany(inserts[table], rows)
            c.execute("COMMIT")


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
    pattern: Pattern
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


def _plans(library: Library, runs: int) -> Iterator[_Plan]:
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

    def __init__(self, library: Library) -> None:
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
        for sha in sorted(made.text_shas()):
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
            scorer = pattern[SCORE.scorer]
            is_wanted = {"helpful": case.judge_id is not None, "person": rng.random() < 0.05}
            if is_wanted.get(scorer, True):
                row = pattern.copy()
                row[SCORE.run] = plan.number
                row[SCORE.at] = plan.started_us + 60_000_000
                if row[SCORE.kind] == "label":
                    row[SCORE.label] = rng.choice(("good", "good", "fair", "poor"))
                else:
                    is_number = row[SCORE.kind] == "number"
                    row[SCORE.value] = rng.random() if is_number else float(rng.random() < 0.7)
                if scorer == "helpful":
                    row[SCORE.judge_run_id] = case.judge_id
                yield row


class _OddRows:
    """Rows of a run with the texts of its pattern, and its own ids, session and times."""

    def __init__(self, plan: _Plan, library: Library) -> None:
        self.plan, self.library, self.random = plan, library, library.random
        self.pattern = plan.pattern.rows
        self._delta_us = plan.started_us - self.pattern["runs"][0][RUN.started_at]

    def run(self) -> Cells:
        plan, rng = self.plan, self.random
        row = self._copy(RUN, self.pattern["runs"][0])
        end = plan.conversation
        row[RUN.n] = plan.number
        row[RUN.run_id] = plan.run_id
        row[RUN.session] = session_name(plan.session)
        row[RUN.root_id], row[RUN.conversation_id] = end.root_id, end.conversation_id
        row[RUN.notebook] = f"notebook-{plan.session % _N_NOTEBOOKS:02d}.ipynb"
        row[RUN.cell_id] = f"{rng.getrandbits(32):08x}"
        row[RUN.execution_count] = plan.number % 90 + 1
        row[RUN.name] = None
        if rng.random() < 0.01:
            word = "best" if rng.random() < 0.1 else f"{rng.choice(TOPICS)}-{plan.number}"
            row[RUN.name] = word
        return row

    def turns(self) -> list[Cells]:
        return [self._copy_of_run(TURN, row) for row in self.pattern["turns"]]

    def tool_runs(self) -> list[Cells]:
        return [self._copy_of_run(TOOL_RUN, row) for row in self.pattern["tool_runs"]]

    def messages(self) -> list[Cells]:
        return [self._copy_of_run(MESSAGE, row) for row in self.pattern["messages"]]

    def text_shas(self) -> set[str]:
        """Hashes of the texts that its turns refer to."""
        shas = {
            row[i] for row in self.pattern["turns"] for i in (TURN.system_sha, TURN.toolset_sha)
        }
        return shas - {None}

    def _copy(self, columns: Columns, pattern: Cells) -> Cells:
        row = pattern.copy()
        for i in columns.times:
            if row[i] is not None:
                row[i] += self._delta_us
        return row

    def _copy_of_run(self, columns: Columns, pattern: Cells) -> Cells:
        row = self._copy(columns, pattern)
        row[columns.run] = self.plan.number
        return row


class _StoryRows(_OddRows):
    """Rows of a run with new texts, another model, and other figures."""

    def __init__(self, plan: _Plan, library: Library) -> None:
        super().__init__(plan, library)
        rng = self.random
        self._has_new_calls = plan.pattern.kind == "story"
        self._model = _MODELS[int(len(_MODELS) * rng.random() ** 2)]
        self._tokens, self._cost = rng.randrange(1, 60), rng.random() * 30
        old = self.pattern["runs"][0]
        rank = rng.randrange(len(library.system_prompts))
        self._system = old[RUN.system_sha] and library.system_shas[rank]
        self._toolset = old[RUN.toolset_sha]
        if plan.pattern.n_tools in library.toolset_shas:
            self._toolset = rng.choice(library.toolset_shas[plan.pattern.n_tools])
        self._template, self._template_sha, self._prompt = self._new_prompt()
        # By turn and position: the id of a call, its arguments, and its result.
        self._calls: dict[tuple[int, int], tuple[str, Arguments, str]] = {}

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
        values = {"topic": rng.choice(TOPICS), "n": str(n)}
        prompt = template.replace("{{ topic }}", values["topic"]).replace("{{ n }}", values["n"])
        return template, library.template_shas[rank], prompt

    def run(self) -> Cells:
        plan, row = self.plan, super().run()
        row[RUN.model] = self._model
        row[RUN.system_sha], row[RUN.toolset_sha] = self._system, self._toolset
        row[RUN.template], row[RUN.template_sha] = self._template, self._template_sha
        row[RUN.prompt] = self._prompt
        row[RUN.duration_ms] *= 0.5 + self.random.random()
        row[RUN.doc] = row[RUN.doc].replace(MODEL, self._model)
        self._change_figures(RUN, row)
        if plan.parent is not None:
            row[RUN.kind] = "fork" if plan.is_fork else "continue"
            row[RUN.parent_id] = plan.parent.run_id
            row[RUN.shared_messages] = plan.shared
            row[RUN.forked_from] = turn_id(plan.parent.first_turn) if plan.is_fork else None
        if plan.case is not None:
            row[RUN.batch] = batch_name(plan.case.batch) + JUDGE_SUFFIX * plan.case.is_judge
            row[RUN.row_key] = plan.case.row_key
            row[RUN.variant] = f'{{"system":"v{plan.case.variant}"}}'
            row[RUN.attempt] = 1
            row[RUN.case_sha] = plan.case.sha
        return row

    def turns(self) -> list[Cells]:
        rows = super().turns()
        for row in rows:
            row[TURN.turn] += self.plan.earlier_turns
            row[TURN.n_messages] += self.plan.shared
            row[TURN.model] = self._model
            if row[TURN.message_at] is not None:
                row[TURN.served_model] = self._model.partition(":")[2]
            row[TURN.system_sha], row[TURN.toolset_sha] = self._system, self._toolset
            self._change_figures(TURN, row)
        if self.plan.parent is not None:
            rows[0][TURN.phase_before] = "WaitingUser"
        return rows

    def tool_runs(self) -> list[Cells]:
        rows = super().tool_runs()
        rng, library = self.random, self.library
        for row in rows:
            row[TOOL_RUN.turn] += self.plan.earlier_turns
            row[TOOL_RUN.model] = self._model
            if self._has_new_calls:
                call = f"call_{rng.getrandbits(80):020x}"
                arguments = rng.choice(library.arguments)
                row[TOOL_RUN.tool_call_id] = call
                row[TOOL_RUN.args], row[TOOL_RUN.args_sha] = arguments.raw, arguments.sha
                if row[TOOL_RUN.ok]:
                    data = {"rows": rng.randrange(5_000), "text": library.words.answer()}
                    row[TOOL_RUN.result] = dump_json({"ok": True, "data": data}).decode()
                place = row[TOOL_RUN.turn], row[TOOL_RUN.position]
                self._calls[place] = call, arguments, row[TOOL_RUN.result]
        return rows

    def messages(self) -> list[Cells]:
        rows = super().messages()
        words = self.library.words
        for row in rows:
            if row[MESSAGE.source] == "person":
                self._set_text(row, self._prompt)
                continue
            if row[MESSAGE.turn] is not None:
                row[MESSAGE.turn] += self.plan.earlier_turns
            if not self._has_new_calls:
                continue
            if row[MESSAGE.call] is not None:
                call, _, result = self._calls[row[MESSAGE.turn], row[MESSAGE.call]]
                row[MESSAGE.tool_call_id], row[MESSAGE.chars] = call, len(result)
                continue
            if row[MESSAGE.text]:
                self._set_text(row, words.answer())
            if row[MESSAGE.reasoning]:
                row[MESSAGE.reasoning] = words.text(3)
            if row[MESSAGE.tool_calls]:
                row[MESSAGE.tool_calls] = self._tool_calls(row)
        return rows

    def _tool_calls(self, row: Cells) -> str:
        """Calls of a response, as JSON, with the new ids and arguments."""
        turn, bodies = row[MESSAGE.turn], list[str]()
        for place, body in enumerate(json.loads(row[MESSAGE.tool_calls])):
            call, arguments, _ = self._calls[turn, place]
            name = body["name"]
            bodies.append(f'{{"id":"{call}","name":"{name}","arguments_raw":{arguments.quoted}}}')
        return f"[{','.join(bodies)}]"

    def _set_text(self, row: Cells, text: str) -> None:
        row[MESSAGE.text], row[MESSAGE.chars] = text, len(text)

    def _change_figures(self, columns: Columns, row: Cells) -> None:
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
