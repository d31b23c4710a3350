"""What a tool gave back or raised, as the model and the person see it.

Values of every kind, pictures and what is too large are in tests/shown/test_every_value.py.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from host_door import HostDoor, refused

from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.records import ToolResult
from nbagent.tools.function_tool import tool


def test_large_result_is_cut_to_the_tools_own_budget_and_says_so(bench: HostDoor) -> None:
    for budget, most in ((None, 50_000), (1_000, 1_000)):
        outcome = bench.run(tool(name="probe", max_result_chars=budget)(lambda: "x" * 200_000))
        assert outcome.truncated
        assert 0.9 * most < len(outcome.result.data) <= most
        assert " left out; ask for a smaller part]" in outcome.result.data


def test_ready_made_result_is_taken_as_it_is(bench: HostDoor) -> None:
    made = ToolResult.failure(ErrorInfo("E_DENIED", "not today"))
    assert bench.run(tool(name="probe")(lambda: made)).result is made


def test_exception_is_short_for_the_model_and_has_frames_for_the_person(bench: HostDoor) -> None:
    def inner(city: str) -> None:
        raise KeyError(city)

    def population(city: str) -> int:
        try:
            inner(city)
        except KeyError as error:
            raise ValueError("no such city") from error
        return 1

    outcome = bench.run(population, city="Atlantis")
    assert outcome.result.error == ErrorInfo("E_TOOL_FAILED", "ValueError: no such city")
    detail = outcome.error_detail or ""
    assert detail.startswith("ValueError: no such city\n  test_tool_results.py, line ")
    assert ", in population\n    raise ValueError(" in detail
    assert "caused by KeyError: 'Atlantis'" in detail
    assert ", in inner\n    raise KeyError(city)" in detail
    assert "running.py" not in detail
    assert os.sep + "tests" not in detail


def test_tool_error_chooses_its_code(bench: HostDoor) -> None:
    def read(name: str) -> str:
        raise ToolError(f"no file {name!r}", code="ENOENT", details={"name": name})

    error = refused(bench.run(read, name="a.txt"))
    assert error == ErrorInfo("ENOENT", "no file 'a.txt'", {"name": "a.txt"})


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


RAISED: dict[str, tuple[BaseException, str]] = {
    "exit": (SystemExit(3), "SystemExit: 3"),
    "generator exit": (GeneratorExit(), "GeneratorExit"),
    "interrupt of its own": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "stop iteration": (StopIteration(1), "StopIteration"),
    "no message": (Mute(), "Mute: (its message cannot be shown)"),
    "long": (ValueError("v" * 5_000), "characters left out"),
    "group": (
        ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
        "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'",
    ),
}


@pytest.mark.parametrize(("error", "words"), RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("kind", ["async", "waiting", "worker"])
def test_whatever_is_raised_is_contained(
    bench: HostDoor, error: BaseException, words: str, kind: str
) -> None:
    async def coroutine() -> None:
        raise error

    def function() -> None:
        raise error

    probe: Any = coroutine if kind == "async" else tool(threaded=kind == "worker")(function)
    with ThreadPoolExecutor() as other:  # In the main thread an interrupt is the person's.
        outcome = other.submit(bench.run, probe).result()
    said = refused(outcome)
    assert said.code == "E_TOOL_FAILED"
    assert words in said.message
    assert len(said.message) < 1_100
    assert outcome.error_detail


def test_host_folders_do_not_go_to_the_model(bench: HostDoor) -> None:
    def read() -> str:
        return Path("no-such-file.txt").absolute().read_text()

    message = refused(bench.run(read)).message
    assert message.endswith(f"No such file or directory: '.{os.sep}no-such-file.txt'")
