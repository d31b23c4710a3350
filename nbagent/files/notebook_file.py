"""Reads the JSON of a notebook's file, for all who read saved notebooks."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
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
    data = path.read_bytes()
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    # Some editors put a mark before the one that is there.
    notebook = json_object(load_json(data.decode(encoding).lstrip("\ufeff")))
    if notebook is None or not isinstance(notebook.get("cells"), list):
        raise ValueError("it has no list of cells")
    return notebook


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
