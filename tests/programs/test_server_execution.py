"""jupyter-server-nbmodel: the server executes a cell and keeps its outputs, without a page."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from environments import MakeEnvironment, serving
from executed_notebooks import ANSWERED, DENIED, TOOLS
from front_ends import shows

import nbagent

SERVER = (
    *("jupyter", "server", "--no-browser", "--allow-root", "--port={port}"),
    *("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"),
)


class ServerKernel:
    """A kernel whose cells the server executes; its client only asks for their outputs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kernel = f"/api/kernels/{self._ask('/api/kernels', {'name': 'python3'})['id']}"

    def execute(self, code: str, answer: str | None = None) -> list[dict[str, Any]]:
        """Execute a cell, answer its question if it asks one, and return its outputs."""
        began = self._ask(f"{self._kernel}/execute", {"code": code})
        end = time.monotonic() + 120
        while time.monotonic() < end:
            reply = self._ask(began["request_url"])
            if reply.get("input_request") and answer is not None:
                self._ask(f"{self._kernel}/input", {"input": answer})
                answer = None
            elif reply.get("status") in ("ok", "error"):
                return json.loads(reply["outputs"])
            time.sleep(0.1)
        raise AssertionError(f"the cell did not end: {code}")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:  # 300: the cell asks for input
            if error.code != 300:
                raise
            text = error.read()
        return json.loads(text or b"{}")


def saved(folder: Path, shown: list[dict[str, Any]]) -> Path:
    """A notebook that holds these outputs."""
    cell = {"cell_type": "code", "outputs": shown}
    path = folder / "saved.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}), "utf-8")
    return path


@pytest.mark.proof
@shows("jupyter-server-nbmodel", "approve", "saved form reads", "record in the file")
def test_a_cell_that_the_server_executes_has_the_answer_and_its_record(
    environment: MakeEnvironment,
) -> None:
    made = environment("jupyter-server-nbmodel", "jupyterlab")
    with serving(made, *SERVER) as url:
        kernel = ServerKernel(url)
        kernel.execute(TOOLS)
        shown = kernel.execute(ANSWERED)
        pictures = [one for one in shown if "454.1" in str(one.get("data"))]
        assert len(pictures) == 1, shown
        assert nbagent.read_notebook(saved(made.work, shown)).open_run("last").text

        shown = kernel.execute(DENIED, answer="y")
        assert "454.1" in str(shown)
        assert nbagent.read_notebook(saved(made.work, shown)).open_run("last").ok
