"""What a tool gave back or raised, as the model and the person see it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.records import ToolResult
from nbagent.tools.function_tool import tool
from nbagent.tools.results import MAX_RESULT_CHARS


@dataclass
class Point:
    x: int
    at: Path


@pytest.mark.parametrize(
    ("value", "data"),
    [
        pytest.param(None, None, id="none"),
        pytest.param("text", "text", id="text"),
        pytest.param("", "", id="empty text"),
        pytest.param((1, (2,)), [1, [2]], id="tuples"),
        pytest.param(
            {1: float("inf"), None: {2, 1}}, {"1": "Infinity", "null": [1, 2]}, id="odd keys"
        ),
        pytest.param(Point(1, Path("a/b")), {"x": 1, "at": "a/b"}, id="dataclass"),
        pytest.param((i * i for i in range(4)), [0, 1, 4, 9], id="iterator"),
        pytest.param(map(str, [1]), ["1"], id="map"),
        pytest.param(2**70, 2**70, id="big int"),
        pytest.param(object(), "<object object>", id="anything else"),
    ],
)
def test_result_is_plain_json(bench: Any, value: object, data: Any) -> None:
    outcome = bench.run(lambda_tool(lambda: value))
    assert outcome.result == ToolResult(ok=True, data=data)
    assert json.loads(outcome.result.to_json()) == {"ok": True, "data": data}
    assert not outcome.truncated


def lambda_tool(function: Callable[..., object]) -> Callable[..., object]:
    return tool(name="probe")(function)


def test_pictures_of_a_result_become_attachments(bench: Any) -> None:
    pytest.importorskip("PIL")
    from PIL import Image  # pyright: ignore

    picture = cast("object", cast("Any", Image).new("L", (2, 2)))
    result = bench.run(lambda_tool(lambda: {"n": 1, "plot": picture})).result
    assert result.data == {"n": 1, "plot": "[image 1: picture, 2×2 px]"}
    assert [part.type for part in result.attachments] == ["image"]
    result = bench.run(lambda_tool(lambda: picture)).result
    assert result.data == "[image 1: picture, 2×2 px]"
    assert len(result.attachments) == 1


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 200_000, id="text"),
        pytest.param(list(range(200_000)), id="list"),
        pytest.param({str(i): "y" * 90 for i in range(5_000)}, id="dict"),
        pytest.param([["z" * 40_000], ["z" * 40_000]], id="nested"),
        pytest.param("\N{GRINNING FACE}" * 60_000, id="wide characters"),
        pytest.param(type("Big", (), {"__repr__": lambda _: "r" * 90_000})(), id="repr"),  # pyright: ignore
    ],
)
@pytest.mark.parametrize("budget", [None, 1_000])
def test_large_result_is_cut_and_says_so(bench: Any, value: object, budget: int | None) -> None:
    function = tool(name="probe", max_result_chars=budget)(lambda: value)
    outcome = bench.run(function)
    assert outcome.truncated
    text = outcome.result.data
    text = text if isinstance(text, str) else dump_json(text).decode()
    assert len(text) <= (budget or MAX_RESULT_CHARS)
    assert " left out; ask for a smaller part]" in text


def test_exception_is_short_for_the_model_and_has_frames_for_the_person(bench: Any) -> None:
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
    detail = outcome.error_detail
    assert detail.startswith("ValueError: no such city\n  test_tool_results.py, line ")
    assert ", in population\n    raise ValueError(" in detail
    assert "caused by KeyError: 'Atlantis'" in detail
    assert ", in inner\n    raise KeyError(city)" in detail
    assert "calling.py" not in detail
    assert os.sep + "tests" not in detail


def test_tool_error_chooses_its_code(bench: Any) -> None:
    def read(name: str) -> str:
        raise ToolError(f"no file {name!r}", code="ENOENT", details={"name": name})

    error = bench.run(read, name="a.txt").result.error
    assert error == ErrorInfo("ENOENT", "no file 'a.txt'", {"name": "a.txt"})


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def _recurse(n: int = 0) -> int:
    return _recurse(n + 1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(SystemExit(3), "SystemExit: 3", id="exit"),
        pytest.param(GeneratorExit(), "GeneratorExit", id="generator exit"),
        pytest.param(KeyboardInterrupt(), "KeyboardInterrupt", id="interrupt of its own"),
        pytest.param(StopIteration(1), "StopIteration", id="stop iteration"),
        pytest.param(MemoryError(), "MemoryError", id="memory"),
        pytest.param(Mute(), "Mute: (its message cannot be shown)", id="no message"),
        pytest.param(ValueError("v" * 5_000), "characters left out", id="long"),
        pytest.param(
            ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
            "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'",
            id="group",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["async", "waiting", "worker"])
def test_whatever_is_raised_is_contained(
    bench: Any, error: BaseException, words: str, kind: str
) -> None:
    async def coroutine() -> None:
        raise error

    def function() -> None:
        raise error

    probe: Any = coroutine if kind == "async" else tool(threaded=kind == "worker")(function)
    with ThreadPoolExecutor() as other:  # In the main thread an interrupt is the person's.
        outcome = other.submit(bench.run, probe).result()
    assert outcome.result.error.code == "E_TOOL_FAILED"
    assert words in outcome.result.error.message
    assert len(outcome.result.error.message) < 1_100
    assert outcome.error_detail


def test_endless_recursion_is_contained(bench: Any) -> None:
    outcome = bench.run(tool(name="probe")(_recurse), n=0)
    assert outcome.result.error.message.startswith("RecursionError: maximum recursion depth")
    assert "more frames" in outcome.error_detail
    assert len(outcome.error_detail) < 3_000


def test_host_folders_do_not_go_to_the_model(bench: Any, tmp_path: Path) -> None:
    def read() -> str:
        return Path("no-such-file.txt").absolute().read_text()

    message = bench.run(read).result.error.message
    assert message.endswith(f"No such file or directory: '.{os.sep}no-such-file.txt'")


def test_ready_made_result_is_taken_as_it_is(bench: Any) -> None:
    made = ToolResult.failure(ErrorInfo("E_DENIED", "not today"))
    assert bench.run(lambda_tool(lambda: made)).result is made
