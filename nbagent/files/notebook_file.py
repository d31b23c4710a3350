"""Reads the JSON of a notebook's file, and drops the records of runs from it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.canonical import json_object

_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8",
    # Windows PowerShell redirects to UTF-16.
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by the mark at the start of a file."""
ODD = "a cell or an output is not as nbformat says"


def read_notebook_json(path: Path) -> dict[str, Any]:
    """Read a notebook.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not the JSON of a notebook.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")  # reading a pipe would wait
    return _parse(_decode(path.read_bytes()))


def _decode(data: bytes) -> str:
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    # Some editors put a mark before the one that is there.
    return data.decode(encoding).lstrip("\ufeff")


def _parse(text: str) -> dict[str, Any]:
    # nbformat reads and writes NaN and Infinity, which are not JSON.
    notebook = json_object(json.loads(text))
    if notebook is None or not isinstance(notebook.get("cells"), list):
        raise ValueError("it has no list of cells")
    return notebook


@dataclass(frozen=True, slots=True)
class Stripped:
    """A notebook's file without the records of runs."""

    data: bytes
    """The file as UTF-8, in the layout that it had (indent, escapes, line ends)."""
    n_dropped: int
    """Number of outputs that had a record."""
    n_odd: int
    """Number of cells and outputs that nobody can read; they are unchanged."""


def without_records(data: bytes) -> Stripped:
    """Drop the records of runs from a notebook's file; without any, `data` itself is returned.

    Raises:
        ValueError, RecursionError: it is not a notebook.
    """
    text = _decode(data)
    notebook = _parse(text)
    parts = [*_output_metadata(notebook)]
    n_odd = parts.count(None)
    with_record = [metadata for metadata in parts if metadata and "nbagent" in metadata]
    if not with_record:
        return Stripped(data, 0, n_odd)
    write = _writer_of(text, notebook)
    for metadata in with_record:
        del metadata["nbagent"]
    # UTF-8 cannot encode a lone surrogate; its escape is valid in JSON.
    written = write(notebook).encode("utf-8", "backslashreplace")
    return Stripped(written, len(with_record), n_odd)


def saved_in_outputs(path: Path) -> tuple[list[Any], int]:
    """Read the values that the outputs of a notebook's file hold for nbagent.

    Returns:
        The values, and the number of cells and outputs that nobody can read.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not the JSON of a notebook, or has no such value and odd parts.
    """
    parts = [*_output_metadata(read_notebook_json(path))]
    values = [metadata["nbagent"] for metadata in parts if metadata and "nbagent" in metadata]
    n_odd = parts.count(None)
    if n_odd and not values:
        raise ValueError(ODD)
    return values, n_odd


def _writer_of(text: str, notebook: dict[str, Any]) -> Callable[[Any], str]:
    """Find the layout in which a notebook was written; Jupyter's if it is none of the usual."""
    line = re.match(r"\{\r?\n([ \t]+)", text)
    layouts: list[dict[str, Any]] = (
        [{"indent": line[1]}] if line else [{}, {"separators": (",", ":")}]
    )
    newline = "\r\n" if "\r\n" in text else "\n"
    end = text[len(text.rstrip()) :]
    for layout in layouts:
        for ensure_ascii in (False, True):
            write = partial(json.dumps, ensure_ascii=ensure_ascii, **layout)
            if write(notebook).replace("\n", newline) + end == text:
                return lambda value, write=write: write(value).replace("\n", newline) + end
    return lambda value: json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _output_metadata(notebook: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Yield the metadata of all outputs; None for a cell or output that is not as nbformat says."""
    for cell in notebook["cells"]:
        # Some programs write null for what is empty.
        outputs: Any = (json_object(cell) or {"outputs": cell}).get("outputs") or []
        if not isinstance(outputs, list):
            yield None
            continue
        for output in cast("list[Any]", outputs):
            fields = json_object(output)
            yield None if fields is None else json_object(fields.get("metadata") or {})
