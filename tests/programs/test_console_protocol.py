"""A client that behaves as a console: it can type, opens no page and ignores updates."""

from __future__ import annotations

import json
from pathlib import Path

from kernels import LiveKernel
from terminal_programs import AREA_TOOLS, agent_cell

import nbagent


def test_a_console_reads_lines_while_a_tool_runs_and_one_answer_with_its_record(
    tmp_path: Path,
) -> None:
    (tmp_path / "area_tools.py").write_text(AREA_TOOLS, "utf-8")
    kernel = LiveKernel(tmp_path)
    try:
        kernel.run("import nbagent; from area_tools import area, nap", stdin=True)
        kernel.run("%load_ext nbagent", stdin=True)
        cell_id = kernel.send(agent_cell("--tools nap", "Nap in Oslo."), stdin=True)
        before = kernel.heard(
            lambda m: m["msg_type"] == "stream" and "▸ nap(" in m["content"]["text"]
        )
        (tmp_path / "wake").touch()
        cell = kernel.finish(cell_id)
    finally:
        kernel.close()
    first = [m["content"] for m in before if m["msg_type"] == "display_data"]
    assert "nbagent" in first[0]["metadata"]
    assert "text/html" in first[0]["data"]
    (shown,) = cell.of("display_data")
    assert "was woken" in shown["data"]["text/plain"]
    output = {"metadata": shown["metadata"]}
    cells = [{"cell_type": "code", "outputs": [output]}]
    (tmp_path / "saved.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}), "utf-8")
    assert nbagent.read_notebook(tmp_path / "saved.ipynb").open_run("last").ok
