"""Tab and the help in a real kernel: what the front end is answered, also after a reload."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kernels import LiveKernel

SETUP = """
%load_ext nbagent
import nbagent
@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return 717_710
here = __import__("pathlib").Path(".")
"""


def tab(kernel: LiveKernel, typed: str) -> list[str]:
    """The cells that `complete_request` offers where `|` stands."""
    place = typed.index("|")
    code = typed.replace("|", "", 1)
    client: Any = kernel.client  # its methods that wait are made at run time
    content = client.complete(code, place, reply=True, timeout=60)["content"]
    assert content["status"] == "ok"
    start, end = content["cursor_start"], content["cursor_end"]
    return [code[:start] + match + code[end:] for match in content["matches"]]


def test_kernel_answers_tab_help_and_dry_run(tmp_path: Path) -> None:
    kernel = LiveKernel(tmp_path)
    try:
        kernel.run(SETUP)
        for _ in range(2):
            assert tab(kernel, "%%agent --dr|\nHello?") == ["%%agent --dry-run\nHello?"]
            assert tab(kernel, "%%agent -t pop|") == ["%%agent -t population"]
            assert tab(kernel, "%agent sho|") == ["%agent show"]
            kernel.run("%reload_ext nbagent")
        assert tab(kernel, "%%agent\n{{ here.is_abs| }}") == ["%%agent\n{{ here.is_absolute }}"]
        assert tab(kernel, "here.is_abs|") == ["here.is_absolute"]
        began = time.monotonic()
        assert "%%agent -m offline:demo" in tab(kernel, "%%agent -m |")
        assert time.monotonic() - began < 5
        dry = kernel.run("%%agent -m offline:demo --dry-run\nOf Oslo?")
        assert dry.kinds == ["display_data"]
        assert sorted(dry.of("display_data")[0]["data"]) == ["text/html", "text/plain"]
        assert kernel.value("'_run' in dir()") is False
        value = kernel.run("nbagent.Agent('offline:demo').dry_run('Of Oslo?')")
        assert value.kinds == ["execute_result"]
        assert value.of("execute_result")[0]["data"]["text/plain"].startswith("dry run · offline")
        assert "--dry-run" in kernel.run("%%agent --help").printed
        kernel.run("%unload_ext nbagent")
        assert tab(kernel, "%%agent --dr|") == []
    finally:
        kernel.close()
