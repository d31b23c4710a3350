"""Reads the JSON of a notebook's file, and drops the records of runs from it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from nbagent.contracts.canonical import json_object, load_json

_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8",
    # Windows PowerShell redirects to UTF-16.
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by the mark at the start of a file."""


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
    notebook = json_object(load_json(text))
    if notebook is None or not isinstance(notebook.get("cells"), list):
        raise ValueError("it has no list of cells")
    return notebook


def without_records(data: bytes) -> tuple[bytes, int]:
    """Drop the records of runs from a notebook's file.

    Returns:
        The file as UTF-8, in the layout that it had (indent, escapes, line ends), and the number of
        outputs that had a record. Without any, `data` itself.

    Raises:
        ValueError, RecursionError: it is not a notebook.
    """
    text = _decode(data)
    notebook = _parse(text)
    with_record = [m for m in output_metadata(notebook) if "nbagent" in m]
    if not with_record:
        return data, 0
    write = _writer_of(text, notebook)
    for metadata in with_record:
        del metadata["nbagent"]
    # UTF-8 cannot encode a lone surrogate; its escape is valid in JSON.
    return write(notebook).encode("utf-8", "backslashreplace"), len(with_record)


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


def output_metadata(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the metadata of all outputs. Raises ValueError if a cell or an output is no object."""
    for cell in notebook["cells"]:
        # Some programs write null for what is empty.
        for output in _object(cell).get("outputs") or ():
            yield _object(_object(output).get("metadata") or {})


def _object(value: Any) -> dict[str, Any]:
    data = json_object(value)
    if data is None:
        raise ValueError("a cell or an output is not as nbformat says")
    return data
