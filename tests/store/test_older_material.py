"""Material that an earlier nbagent kept is read and continued, and what is written is the same.

`older_material/` was made by `make_older_material.py` with the code of commit f63caa8 (version 6 of
the store), and `expected.json` is what that code itself read in it. Version 7 of the store has
other forms of three documents and of hashes, version 8 another key of scores.
All other cells are compared as they are.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from kernels import clean_environment

import nbagent
from nbagent.store.columns import VERSION
from nbagent.store.older_rows import current_rows

HERE = Path(__file__).parent
OLDER = HERE / "older_material"
EXACT = frozenset(
    (
        *("kind", "phase", "phase_before", "phase_after", "stop_reason", "error_code", "code"),
        *("finish_reason", "role", "source", "type", "ok", "approval", "approved_by", "ran_in"),
        *("isolation", "host", "tool_name", "tool", "name", "tags", "session", "workflow"),
        *("agent", "node", "batch", "row_key", "variant", "attempt", "scorer", "version", "label"),
        *("scored_by", "by", "turn", "position", "call", "repeat_n", "n_messages", "n_new"),
        *("trimmed", "places", "params", "args", "asked_args", "arguments", "options", "limits"),
        *("model", "served_model", "dropped_params", "template", "tool_call_id", "forked_from"),
        *("copied", "finish", "ruling", "edited", "begins", "n"),
    )
)
"""Columns and keys whose values are the same each time, and by these names."""
ADDED_COLUMNS = (
    *("depth", "attempt_statuses", "resent_tokens", "new_prompt_tokens", "toolset_tokens_est"),
)
"""Columns that frames did not have then. Definitions of tools were no rows of `prompts()`."""
ADDED_TO_TURNS = ("attempt_statuses",)
"""Fields of a turn that version 6 did not have."""
VARYING = ("document", "base_url")
"""Options that hold an id and a port."""
WORDED = ("pieces",)
"""Objects whose keys are words for a person."""
JSON_COLUMNS = (
    *("doc", "tags", "params", "variant", "args", "asked_args", "result", "notes"),
    *("tool_calls", "dropped_params"),
)
MOVED_OPTIONS = ("document", "graph", "edits", "drop", "holds_calls")
"""Entries that version 6 kept among the options of a run; they are fields of their own now."""
CURRENT_TO_OLDER = {
    "max_requests": "ceiling",
    "max_repeated_failures": "loop_limit",
    "max_repeated_results": "same_result_limit",
}
"""Names of an export: it is made for other programs and read by no nbagent."""


# Running the script


def run_script(folder: Path, *arguments: Any, code: Path | None = None) -> None:
    """Run the script in a process of its own, with today's code or with another."""
    path = {"PYTHONPATH": str(code)} if code else {}
    done = subprocess.run(
        [sys.executable, str(HERE / "make_older_material.py"), *map(str, arguments)],
        cwd=folder,
        env=clean_environment(folder, **path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def read_by(folder: Path, material: Path, code: Path | None = None) -> dict[str, Any]:
    """Read material, and continue its runs, in a process of its own."""
    target = folder / ("earlier" if code else "today")
    target.mkdir()
    run_script(folder, "read", material, target, code=code)
    read = json.loads((target / "expected.json").read_text("utf-8"))
    return {**read, "records": json_lines(target / "records.jsonl")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Material that the present code writes."""
    folder = tmp_path_factory.mktemp("made")
    run_script(folder, "make", folder)
    return folder


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The older material as today's code reads it."""
    return read_by(tmp_path_factory.mktemp("readings"), OLDER)


@cache
def expected() -> dict[str, Any]:
    return json.loads((OLDER / "expected.json").read_text("utf-8"))


def as_before(reading: Any) -> Any:
    """What was read, without columns and rows of frames that were added since then."""
    if isinstance(reading, list):
        rows = cast("list[Any]", reading)
        return [as_before(row) for row in rows if not is_tool_definition(row)]
    if isinstance(reading, dict):
        fields = cast("dict[str, Any]", reading)
        return {k: as_before(v) for k, v in fields.items() if k not in ADDED_COLUMNS}
    return reading


def is_tool_definition(row: Any) -> bool:
    """True for a row of `prompts()` with the definition of a tool."""
    cells = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    return "first_seen" in cells and cells["kind"] == "tool"


def comparable(frames: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Frames without what only the reader says of the run whose process was gone.

    The words of its end are no part of the file; codes and all else are compared.
    """
    gone = {row["run_id"] for row in frames["runs"] if row.get("name") == "at work"}
    words = ("error", "chars", "result_chars", "result_tokens_est")
    made: dict[str, list[dict[str, Any]]] = {}
    for name, rows in frames.items():
        made[name] = []
        for row in rows:
            kept = dict(row)
            if row.get("run_id") in gone:
                kept = {column: value for column, value in row.items() if column not in words}
                for column in ("text", "result"):
                    if "E_INTERRUPTED" in str(row.get(column)):
                        kept[column] = json.loads(row[column])["error"]["code"]
            made[name].append(kept)
    return made


# Reading older material


@pytest.mark.parametrize("frame", [*expected()["read"]["store"]])
def test_each_frame_of_an_older_store_has_the_rows_it_had(
    frame: str, readings: dict[str, Any]
) -> None:
    before, now = (
        comparable(as_before(one["read"]["store"]))[frame] for one in (expected(), readings)
    )
    assert before, "the material has none"
    for was, is_now in zip(before, now, strict=True):
        assert is_now == was
    now_dtypes = as_before(readings["read"]["dtypes"][frame])
    assert now_dtypes == expected()["read"]["dtypes"][frame]


@pytest.mark.parametrize("what", [name for name in expected()["read"] if name != "store"])
def test_older_notebooks_conversations_and_audit_logs_are_read_as_they_were(
    what: str, readings: dict[str, Any]
) -> None:
    assert as_before(readings["read"][what]) == expected()["read"][what]


def test_a_notebook_that_version_5_saved_is_read() -> None:
    notebook: Any = nbagent.read_notebook(OLDER / "shown_5.json")
    assert notebook.runs()["phase"].tolist() == ["WaitingUser"] * 2
    assert notebook.turns()["turn_id"].tolist() == ["C01", "C02", "C03", "C03"]
    assert notebook.tool_runs()["ok"].tolist() == [True, True]
    first = notebook.open_run("last")
    assert first.text
    assert first.record.limits.max_turns > 0


def with_older_names(line: Any) -> Any:
    """A JSON value, which has today's names of limits and options, with those of before."""
    if isinstance(line, dict):
        fields = cast("dict[str, Any]", line)
        return {CURRENT_TO_OLDER.get(k, k): with_older_names(v) for k, v in fields.items()}
    if isinstance(line, list):
        return [with_older_names(item) for item in cast("list[Any]", line)]
    return line


ADDED_TO_RUNS = ("kernel_id", "file_id")
"""Fields of a run that version 6 did not have."""


def in_older_form(line: dict[str, Any]) -> dict[str, Any]:
    """A line of an export in the form of version 6."""
    if line["type"] != "run":
        return with_older_names(without_vendor(line))
    workflow: dict[str, Any] = line["workflow"] or {}
    fork: dict[str, Any] = line["forked_from"] or {}
    moved = {name: workflow.get(name) for name in ("document", "graph")}
    moved |= {name: fork.get(name) for name in ("edits", "drop")}
    moved["holds_calls"] = fork.get("defer_calls")
    options = {**line["options"], **{name: it for name, it in moved.items() if it}}
    names = {"workflow": workflow.get("name"), "forked_from": fork.get("turn_id")}
    line = {name: it for name, it in line.items() if name not in ADDED_TO_RUNS}
    return with_older_names({**line, **names, "options": options})


def without_vendor(line: dict[str, Any]) -> dict[str, Any]:
    """A turn without the fields that version 6 did not keep, as those of the server's answer."""
    line = {name: it for name, it in line.items() if name not in ADDED_TO_TURNS}
    response: dict[str, Any] = line.get("response") or {}
    if "meta" not in response:
        return line
    meta = {name: it for name, it in response["meta"].items() if name != "vendor"}
    return {**line, "response": {**response, "meta": meta}}


def without_moved_options(run: Any) -> Any:
    """What a run was continued with, without the options that are no options any more."""
    if isinstance(run, list):
        return [without_moved_options(item) for item in cast("list[Any]", run)]
    fields: dict[str, Any] = cast("dict[str, Any]", run) if isinstance(run, dict) else {}
    if "options" not in fields:
        return cast("Any", run)
    options = {k: v for k, v in fields["options"].items() if k not in MOVED_OPTIONS}
    return {**fields, "options": options}


def test_older_runs_are_exported_as_they_were(readings: dict[str, Any]) -> None:
    for was, is_now in zip(json_lines(OLDER / "records.jsonl"), readings["records"], strict=True):
        assert in_older_form(is_now) == was


def test_older_runs_are_read_with_todays_names_of_limits(readings: dict[str, Any]) -> None:
    names = [set(keys_of(line)) for line in readings["records"]]
    assert not set(CURRENT_TO_OLDER.values()) & set().union(*names)
    assert set(CURRENT_TO_OLDER) <= set().union(*names)
    errors = [line["error"] for line in readings["records"] if line.get("error")]
    assert [it["details"] for it in errors if "max_requests" in it.get("details", {})]


def keys_of(line: Any) -> Iterator[str]:
    """The keys of all objects in a line, but not those in texts and results."""
    if isinstance(line, dict):
        for name, value in cast("dict[str, Any]", line).items():
            yield name
            if name in ("limits", "options", "error", "details"):
                yield from keys_of(value)


@pytest.mark.parametrize("what", [*expected()["continued runs"]])
def test_older_runs_batches_and_recordings_are_continued_as_before(
    what: str, readings: dict[str, Any]
) -> None:
    before = without_moved_options(expected()["continued runs"][what])
    assert with_older_names(readings["continued runs"][what]) == before


def test_the_material_holds_each_kind_of_run() -> None:
    runs = expected()["read"]["store"]["runs"]
    assert {run["kind"] for run in runs} == {"start", "continue", "resume", "fork"}
    assert {run["phase"] for run in runs} == {"WaitingUser", "Failed"}
    ends = {"answered", "max_turns", "loop_detected", "stopped", "error"}
    assert ends <= {run["stop_reason"] for run in runs}
    continued = expected()["continued runs"]
    assert continued["workflow"]["stop_reason"] == "workflow_complete"
    assert continued["batch"] == [0, 0, 0], "nothing was asked again, of no model and no judge"
    answers = [*continued["recorded"].values(), continued["cached"]]
    assert {source for one in answers for source in one["sources"]} == {"replay"}
    assert continued["continued"]["limits"]["ceiling"] == 7
    assert continued["continued"]["options"]["loop_limit"] == 2
    assert continued["audit"][0] is True


# Writing


def shape(value: Any, *, is_exact: bool = False) -> Any:
    """Keys and kinds of a JSON value; the values, too, where they are the same each time."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {
            name: "object" if name in WORDED else shape(it, is_exact=is_exact or name in EXACT)
            for name, it in fields.items()
            if name not in VARYING
        }
    if isinstance(value, list):
        shapes = [shape(it, is_exact=is_exact) for it in cast("list[Any]", value)]
        return shapes if is_exact else [it for i, it in enumerate(shapes) if it not in shapes[:i]]
    if is_exact or value is None or isinstance(value, bool):
        return value
    return "text" if isinstance(value, str) else "number"


def cell_shape(column: str, cell: Any) -> Any:
    """The shape of a cell of a table."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "surrogatepass")
    holds_json = column in JSON_COLUMNS or (column == "text" and str(cell).startswith("[{"))
    value = json.loads(cell) if holds_json and isinstance(cell, str) else cell
    return shape(value, is_exact=column in EXACT)


def row_shapes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: cell_shape(name, it) for name, it in row.items() if it is not None} for row in rows
    ]


def opened(material: Path) -> sqlite3.Connection:
    store = sqlite3.connect(":memory:")
    store.row_factory = sqlite3.Row
    store.executescript((material / "store.sql").read_text("utf-8"))
    return store


def as_today(table: str, rows: list[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    """Rows with documents in today's form, and with hashes as texts."""
    made: list[dict[str, Any]] = []
    for row in rows:
        cells = {name: cell for name, cell in row.items() if cell is not None}
        if cells.get("doc") and version == 6:
            doc = json.loads(cells["doc"])
            run: dict[str, list[dict[str, Any]]] = {"runs": [{"doc": {}}]}
            cells["doc"] = current_rows({**run, table: [{**cells, "doc": doc}]})[table][0]["doc"]
            for twice in ("source", "dropped_params") * (table == "turns"):  # columns, too
                cells["doc"].get("response", {}).get("meta", {}).pop(twice, None)
        elif cells.get("doc"):
            cells["doc"] = json.loads(cells["doc"])
            cells["doc"].pop("version", None)
            if table == "turns":
                cells["doc"] = without_vendor(cells["doc"])
            if table == "batches":  # the plan came later, by which a batch is opened
                cells["doc"] = {name: cells["doc"][name] for name in ("columns", "rows")}
        if isinstance(cells.get("doc"), dict):
            cells["doc"] = without_empty(cells["doc"])
        made.append({k: v for k, v in cells.items() if k not in HASHES and v not in ({}, [])})
    return made


def without_free_prices(
    before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of version 6 without costs of 0 that are unknown now: all on loopback was free."""
    return [
        {k: v for k, v in was.items() if not (k.endswith("_usd") and v == 0 and k not in is_now)}
        for was, is_now in zip(before, now, strict=True)
    ]


def with_words_last(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of version 6, with the person's words after directive and brief, as today."""
    sources = [row["source"] for row in rows]
    for i in range(len(rows) - 2):
        if sources[i : i + 3] == ["person", "directive", "directive"]:
            words, *directives = rows[i : i + 3]
            places = [(row["position"], row["at"]) for row in rows[i : i + 3]]
            rows[i : i + 3] = [
                {**row, "position": position, "at": at}
                for row, (position, at) in zip((*directives, words), places, strict=True)
            ]
    return rows


def without_empty(value: Any) -> Any:
    """A document without empty values: version 6 wrote some that are left out now."""
    if not isinstance(value, dict):
        return value
    fields = {k: without_empty(it) for k, it in cast("dict[str, Any]", value).items()}
    return {k: it for k, it in fields.items() if it not in (None, {}, [], "", 0)}


HASHES = ("system_sha", "toolset_sha", "tool_sha")
TABLES = ("runs", "turns", "tool_runs", "messages", "scores", "batches", "texts", "open")
ORDER = {"runs": "n", "texts": "sha", "batches": "name", "open": "run"}


@pytest.mark.parametrize("table", TABLES)
def test_each_table_is_written_with_the_cells_it_had(table: str, made: Path) -> None:
    rows: list[list[dict[str, Any]]] = []
    for material, version in ((OLDER, 6), (made, VERSION)):
        with closing(opened(material)) as store:
            order = ORDER.get(table, "run, 2, 3")
            cells = [dict(row) for row in store.execute(f"SELECT * FROM {table} ORDER BY {order}")]
            if table == "messages" and version == 6:
                cells = with_words_last(cells)
            rows.append(as_today(table, cells, version))
    before, now = map(row_shapes, [without_free_prices(*rows), rows[1]])
    assert before, "the material has none"
    if table == "texts":  # their key is a hash
        before, now = (sorted(shapes, key=json.dumps) for shapes in (before, now))
    for was, is_now in zip(before, now, strict=True):
        assert is_now == was


def test_each_hash_of_a_turn_stands_once_in_the_store(made: Path) -> None:
    with closing(opened(made)) as store:
        for table, columns in {"turns": HASHES[:2], "tool_runs": HASHES[2:]}.items():
            for column in columns:
                sql = f"SELECT DISTINCT typeof({column}) FROM {table} WHERE {column} IS NOT NULL"
                assert [tuple(row) for row in store.execute(sql)] == [("integer",)]
        shas = [row["sha"] for row in store.execute("SELECT sha FROM hashes")]
        assert len(shas) == len(set(shas)) > 5


def columns_of(store: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [
        row["name"] for row in store.execute("SELECT * FROM sqlite_master WHERE type='table'")
    ]
    return {
        table: {
            row["name"] for row in store.execute(f"SELECT name FROM pragma_table_info('{table}')")
        }
        for table in tables
    }


def test_the_store_still_has_all_tables_and_columns_it_had(made: Path) -> None:
    with closing(opened(OLDER)) as older, closing(opened(made)) as now:
        before, after = columns_of(older), columns_of(now)
        assert [older.execute(f"PRAGMA {it}").fetchone()[0] for it in PRAGMAS] == [0x6E626167, 6]
        assert [now.execute(f"PRAGMA {it}").fetchone()[0] for it in PRAGMAS] == [
            0x6E626167,
            VERSION,
        ]
    for table, columns in before.items():
        assert columns <= after[table]


PRAGMAS = ("application_id", "user_version")


def json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    "name", ["answers.jsonl", "records.jsonl", "home/cache", "home/audit.jsonl"]
)
def test_each_line_of_json_is_written_with_the_keys_it_had(name: str, made: Path) -> None:
    shapes: list[list[Any]] = []
    for material in (OLDER, made):
        file = material / name
        (file,) = [*file.iterdir()] if file.is_dir() else [file]
        lines = json_lines(file)
        if material == made:
            is_export = name == "records.jsonl"
            lines = [in_older_form(it) if is_export else with_older_names(it) for it in lines]
        shapes.append([shape(line) for line in lines])
    before, now = shapes
    assert before, "the material has none"
    for was, is_now in zip(before, now, strict=True):
        assert is_now == was


def saved(material: Path) -> list[Any]:
    """Kinds of the outputs of a saved notebook, and the tables of their records."""
    notebook = json.loads((material / "shown.json").read_text("utf-8"))
    outputs: list[Any] = []
    for cell in notebook["cells"]:
        for output in cell["outputs"]:
            metadata = dict(output.get("metadata", {}))
            held: Any = metadata.pop("nbagent", [])
            records = cast("list[Any]", held) if isinstance(held, list) else [held]
            outputs.append([sorted(output), shape(metadata), *map(record_shape, records)])
    return outputs


def record_shape(record: dict[str, Any]) -> Any:
    if "escaped" in record:
        return record_shape(json.loads(record["escaped"]))
    assert record["version"] in (6, VERSION)
    tables: dict[str, list[dict[str, Any]]] = {
        name: it for name, it in record.items() if isinstance(it, list)
    }
    return {
        name: row_shapes(as_today(name, rows, record["version"])) for name, rows in tables.items()
    }


def test_a_notebook_is_saved_with_the_records_it_had(made: Path) -> None:
    before, now = saved(OLDER), saved(made)
    assert sum(len(output) > 2 for output in before) >= 4
    text = (OLDER / "shown.json").read_text("utf-8")
    assert '"escaped"' in text, "one record has half a character"
    for was, is_now in zip(before, now, strict=True):
        assert is_now == was


def documents(material: Path) -> dict[str, list[str]]:
    """The files beside the store, ids and times left out, with the keys of their front matter."""
    keys: dict[str, list[str]] = {}
    for file in sorted((material / "home").rglob("*")):
        name = re.sub(
            r"\d+", "N", re.sub(r"[0-9a-f]{16}", "ID", file.relative_to(material).as_posix())
        )
        text = file.read_text("utf-8") if file.suffix == ".md" else ""
        keys.setdefault(name, []).extend(re.findall(r"^[ -]*([\w.]+):", text, re.M))
    return keys


def test_the_document_of_a_workflow_is_written_as_before(made: Path) -> None:
    before, now = documents(OLDER), documents(made)
    assert "currentNodeId" in before["home/state/ID/workflow.md"]
    assert now == before
