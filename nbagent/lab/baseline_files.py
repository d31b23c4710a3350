"""The file of a baseline: written from the cases of a batch, and read as data."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError, describe_error
from nbagent.export.written_file import write_export
from nbagent.settings.sources import named_path, to_path
from nbagent.store.saved_batches import (
    SavedBatch,
    SavedBatchError,
    batch_lines,
    file_text,
    read_file_text,
)

_MAX_FILE_BYTES = 64_000_000
_MAX_SAVED_BYTES = 16_000_000
"""Size of the files that are written."""


def save_batch(
    path: str | os.PathLike[str],
    name: str,
    axes: Mapping[str, Sequence[str]],
    results: Sequence[CaseResult],
) -> Path:
    """Write a batch to a JSON file; see `BatchResults.save`."""
    file = named_path(path, "path", base=Path.cwd())
    write_export(file_text(batch_lines(name, axes, results, max_bytes=_MAX_SAVED_BYTES)), path)
    return file


def load_batch(path: str | os.PathLike[str]) -> SavedBatch:
    """Read a batch from the file that `save_batch` wrote.

    Raises:
        UsageError: it cannot be read, is damaged, or was saved by a newer version.
    """
    file = to_path(path, "path")
    if file.suffix == ".ipynb":
        raise UsageError(
            f"{file} is a notebook; nbagent.read_notebook({str(file)!r}).batch() is its batch"
        )
    try:
        return read_file_text(_read(file))
    except SavedBatchError as error:
        raise UsageError(
            f"{file} is no baseline: {error}. batch.save({file.name!r}) writes one"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({describe_error(error)})") from None


def _read(file: Path) -> str:
    """Read a file; refuse pipes, which would wait, and files that no batch needs."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SavedBatchError("it is no file")
    if status.st_size > _MAX_FILE_BYTES:
        size = _MAX_FILE_BYTES // 1_000_000
        raise SavedBatchError(f"it is larger than {size} MB, which no baseline is")
    return file.read_text("utf-8-sig")
