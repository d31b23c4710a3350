"""The runs of a notebook, also after its file was renamed, moved or copied.

A run records the path of its notebook, its cell, its kernel and the identity of the file. A front
end reports the path only when a kernel process starts, so runs of another path belong to the
notebook as well:

- runs of the same kernel: a restart keeps the id of the kernel;
- if there are none, runs whose cell or record is in the notebook's file, unless they belong to
  another notebook that still exists: a copy has the same cells, but a history of its own.

Only runs of the store are candidates. The file is read to recognize them, so a notebook from
somebody else adds no run.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import orjson

from nbagent.contracts.canonical import json_object
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import RunOrigin
from nbagent.session.frontend import Cell
from nbagent.store.reader import RunNode
from nbagent.store.rows import saved_run_ids

_MAX_BYTES = 100_000_000
"""Larger files are not read. One of this size takes less than a second."""
# The form that nbformat requires. VS Code sends the address of the cell in its editor instead.
_SAVED_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class _SavedIds:
    """Ids in the file of a notebook."""

    cells: frozenset[str]
    """Ids of its cells; empty before nbformat 4.5."""
    runs: frozenset[str]
    """Ids of the runs whose records are in its outputs."""

    def has(self, run: RunOrigin) -> bool:
        """True if the run's cell or record is in the file."""
        return run.run_id in self.runs or run.cell_id in self.cells


def last_notebook_run(store: RunStore, here: Cell) -> str | None:
    """Id of the run of the cell's notebook that started last; anywhere if no notebook is known."""
    if here.notebook is None:
        return store.last_run()
    for run in store.run_origins(notebook=here.notebook, kernel_id=here.kernel_id):
        if _is_same_kernel(run, here) or not _has_moved(run, here):
            return run.run_id
    saved = _saved_ids(here.notebook)
    if saved is None:
        return None
    origins = store.run_origins(cell_ids=saved.cells, run_ids=saved.runs)
    return next((run.run_id for run in origins if not _is_of_other(run, here)), None)


def is_of_notebook(run: RunOrigin, here: Cell) -> bool:
    """True if a run belongs to the cell's notebook, or if it is not known to which one."""
    if run.notebook is None or here.notebook is None or run.notebook == here.notebook:
        return True
    if _is_same_kernel(run, here):
        return True
    saved = _saved_ids(here.notebook)
    return saved is not None and saved.has(run) and not _is_of_other(run, here)


def split_by_notebook(
    store: RunStore, branches: Sequence[RunNode], here: Cell
) -> tuple[list[RunNode], list[RunNode]]:
    """Split the conversations of a session: those with a run of the cell's notebook, the others."""
    ids_by_branch = [_ids_of(branch) for branch in branches]
    origins = store.run_origins(run_ids=[run_id for ids in ids_by_branch for run_id in ids])
    ours = {origin.run_id for origin in origins if is_of_notebook(origin, here)}
    own, others = list[RunNode](), list[RunNode]()
    for branch, ids in zip(branches, ids_by_branch, strict=True):
        (own if not ours.isdisjoint(ids) else others).append(branch)
    return own, others


def _ids_of(branch: RunNode) -> list[str]:
    ids, waiting = list[str](), [branch]
    while waiting:
        node = waiting.pop()
        ids.append(node.run.id)
        waiting += node.children
    return ids


def file_id(notebook: str) -> str | None:
    """Identity of a file, which a rename keeps and a copy does not have; None without a file.

    Jupyter writes into the file when it saves. A file that was replaced, such as by git, has a new
    identity, so a run of another one may still belong to the notebook.
    """
    facts = _regular_file(notebook)
    return f"{facts.st_dev}-{facts.st_ino}" if facts is not None and facts.st_ino else None


def _is_same_kernel(run: RunOrigin, here: Cell) -> bool:
    return here.kernel_id is not None and run.kernel_id == here.kernel_id


def _is_of_other(run: RunOrigin, here: Cell) -> bool:
    """True if a run that this notebook's file has belongs to another notebook that exists."""
    if run.file_id is not None and run.file_id == here.file_id:
        return False
    return _is_kept(run, here) or _has_moved(run, here)


def _is_kept(run: RunOrigin, here: Cell) -> bool:
    """True if the run's notebook has the path that it had."""
    if run.notebook is None or not os.path.isfile(run.notebook):
        return False
    with suppress(OSError):
        if os.path.samefile(run.notebook, here.notebook or ""):
            return False
    # Without the run it is a later notebook with the name of a renamed one.
    saved = _saved_ids(run.notebook)
    return file_id(run.notebook) == run.file_id or saved is None or saved.has(run)


def _has_moved(run: RunOrigin, here: Cell) -> bool:
    """True if the run's notebook has another name in this folder now.

    `Untitled.ipynb` names one notebook after the other.
    """
    if run.file_id is None or run.file_id == here.file_id or here.notebook is None:
        return False
    with suppress(OSError):
        for other in Path(here.notebook).parent.glob("*.ipynb"):
            # The identity of a deleted file may be given to a new one.
            if file_id(str(other)) == run.file_id and (saved := _saved_ids(str(other))):
                return saved.has(run)
    return False


def _saved_ids(notebook: str) -> _SavedIds | None:
    """Ids in a notebook's file; None if there is none, or it cannot be read."""
    facts = _regular_file(notebook)
    if facts is None or facts.st_size > _MAX_BYTES:
        return None
    return _read_ids(notebook, facts.st_mtime_ns, facts.st_size)


def _regular_file(path: str) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        facts = os.stat(path)
        return facts if stat.S_ISREG(facts.st_mode) else None
    return None


@lru_cache(maxsize=20)
def _read_ids(notebook: str, mtime_ns: int, size: int) -> _SavedIds | None:
    """Read the ids in a notebook of this time and size: a file that was changed is read again."""
    try:
        document = json_object(_load(Path(notebook).read_bytes())) or {}
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    cells = [*_objects(document.get("cells"))]
    outputs = [output for cell in cells for output in _objects(cell.get("outputs"))]
    saved = [(json_object(output.get("metadata")) or {}).get("nbagent") for output in outputs]
    cell_ids = (str(cell.get("id", "")) for cell in cells)
    run_ids = (run_id for records in saved for run_id in saved_run_ids(records))
    return _SavedIds(
        cells=frozenset(filter(_SAVED_CELL_ID.fullmatch, cell_ids)),
        runs=frozenset(filter(str.isalnum, run_ids)),
    )


def _load(data: bytes) -> Any:
    # Not `load_json`: integers need not be exact, and its search for long ones takes seconds here.
    with suppress(ValueError):
        return orjson.loads(data)
    return json.loads(data)


def _objects(value: Any) -> Iterable[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return (item for item in map(json_object, items) if item is not None)
