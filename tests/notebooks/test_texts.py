"""The README is short, and what it and the notebooks link to exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from make_outputs import NOTEBOOKS

README = NOTEBOOKS.parent / "README.md"
MAX_README_BYTES = 7_000
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)


def texts(file: Path) -> str:
    """Markdown of a file: all of it, or that of a notebook's cells, without code blocks."""
    text = file.read_text("utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return _FENCE.sub("", text)


def broken_links(file: Path) -> list[str]:
    """Links of a file to a missing file or heading, as JupyterLab names headings."""
    headings = {heading.replace(" ", "-") for heading in _HEADING.findall(texts(file))}
    return [
        link
        for link in _LINK.findall(texts(file))
        if not link.startswith(("https:", "http:"))
        and not (link[1:] in headings if link[0] == "#" else (file.parent / link).is_file())
    ]


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MAX_README_BYTES


@pytest.mark.parametrize(
    "file", [README, *sorted(NOTEBOOKS.glob("*.ipynb"))], ids=lambda file: file.name
)
def test_links_lead_to_files_and_headings(file: Path) -> None:
    assert broken_links(file) == []


def test_a_broken_link_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("# One two\n[a](#One-two) [b](#Three) [c](a.md) [d](b.md) [e](https://x.org)\n")
    assert broken_links(file) == ["#Three", "b.md"]


def test_each_notebook_is_in_both_tables_of_what_to_read_next() -> None:
    names = {file.name for file in NOTEBOOKS.glob("*.ipynb")}
    assert {Path(link).name for link in _LINK.findall(texts(README))} >= names
    quickstart = NOTEBOOKS / "quickstart.ipynb"
    assert {*_LINK.findall(texts(quickstart))} == names - {quickstart.name}
