"""Where a tool runs, how long, what a stop does to it, what comes of it: real loops and threads."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import pytest
from annotated_types import Predicate
from host_door import HostDoor, refused
from pydantic import AfterValidator, BaseModel, field_serializer

import nbagent
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.tools import ToolOutcome
from nbagent.providers.offline import call, script
from nbagent.tools.functions.definition import tool

LOOP = '@nbagent.tool(loop="notebook")'


def spin(seconds: float) -> None:
    """Python-level work that an interrupt can end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


def thread_name() -> str:
    return threading.current_thread().name


# -- generators ------------------------------------------------------------------------------


async def steps() -> AsyncGenerator[Any]:
    yield "one"
    yield {"two": 2}
    yield 3


def items() -> Generator[str, None, None]:
    yield "one"
    yield "two"


@pytest.mark.parametrize(
    ("function", "place", "data", "progress"),
    [
        pytest.param(steps, "tool loop", 3, ["one", '{"two":2}'], id="progress, then the result"),
        pytest.param(items, "main thread", ["one", "two"], [], id="the items of a plain one"),
    ],
)
def test_generator_gives_progress_and_its_result(
    bench: HostDoor, function: Any, place: str, data: Any, progress: list[str]
) -> None:
    outcome = bench.run(function)
    assert (outcome.result.data, outcome.ran_in) == (data, place)
    assert bench.progress == progress


def test_a_flood_of_progress_is_shown_at_a_pace(bench: HostDoor) -> None:
    async def count() -> AsyncGenerator[int]:
        for number in range(5_000):
            yield number

    assert bench.run(count).result.data == 4_999
    assert 100 <= len(bench.progress) < 500


# -- timeouts --------------------------------------------------------------------------------


KINDS: dict[str, dict[str, Any]] = {
    "async": {},
    "notebook": {"loop": "notebook"},
    "waiting": {},
    "worker": {"threaded": True},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def tool_of(kind: str, seconds: float = 0.0, gives: Any = "done", **options: Any) -> Any:
    """A tool that takes a while, in each of the places."""

    def work() -> Any:
        # Nothing interrupts a worker, and others shall not wait for it.
        (time.sleep if kind == "worker" else spin)(seconds)
        return gives

    async def work_async() -> Any:
        await asyncio.sleep(seconds)
        return gives

    function: Any = work if kind in ("waiting", "worker") else work_async
    return tool(name="work", **KINDS[kind], **options)(function)


@each_kind
def test_tool_is_ended_by_its_time(bench: HostDoor, kind: str) -> None:
    error = refused(bench.run(tool_of(kind, 30, timeout=0.1)))
    assert error.code == "E_TIMEOUT"
    assert error.message.startswith("work took longer than 0.1 s and was stopped; ")
    assert not bench.cancel.is_set


checked_in: list[str] = []


def note(value: Any = True) -> Any:
    checked_in.append(thread_name())
    return value


class Held(BaseModel):
    x: int

    @field_serializer("x")
    def shown(self, x: int) -> int:
        return note(x)


CHECKS: dict[str, tuple[Any, Any]] = {
    "validator": (list[Annotated[int, AfterValidator(note)]], [1]),
    "predicate": (Annotated[int, Predicate(note)], 1),
    "model": (Held, {"x": 1}),
}


@pytest.mark.parametrize(("hint", "value"), CHECKS.values(), ids=CHECKS)
def test_code_of_types_never_runs_on_the_engines_thread(
    bench: HostDoor, hint: Any, value: Any
) -> None:
    def work(x: Any) -> str:
        return "done"

    checked_in.clear()
    work.__annotations__["x"] = hint
    assert bench.run(work, x=value).result.data == "done"
    assert set(checked_in) == {"nbagent-tool-work"}


@pytest.mark.parametrize("by", ["stop", "timeout"])
def test_an_endless_check_of_the_persons_own_holds_up_neither_stop_nor_timeout(by: str) -> None:
    released = threading.Event()
    hint: Any = Annotated[int, AfterValidator(lambda value: released.wait(20) and value)]

    def work(x: Any) -> str:
        return "done"

    work.__annotations__["x"] = hint
    made = tool(timeout=0.2 if by == "timeout" else None)(work)
    run = nbagent.Agent(script([call("work", x=1), "Done."]), tools=[made]).start("Go.")
    other = nbagent.Agent(script(["Hi."])).run("Hello.")
    if by == "stop":
        run.stop()
    run.wait(timeout=10)
    released.set()
    errors = [it.result.error for it in run.turns[0].tool_runs if it.result and it.result.error]
    code = "E_TIMEOUT" if by == "timeout" else "E_INTERRUPTED"
    assert (other.text, [error.code for error in errors]) == ("Hi.", [code])


def test_time_in_the_queue_does_not_count(bench: HostDoor) -> None:
    async def both() -> list[ToolOutcome]:
        first = asyncio.create_task(bench.arun(tool_of("waiting", 1.0)))
        await asyncio.sleep(0.1)
        return [await bench.arun(tool_of("waiting", 0, timeout=0.5)), await first]

    assert [outcome.result.data for outcome in bench.on_engine(both)] == ["done", "done"]


def test_uninterruptible_tool_keeps_its_result_after_its_timeout(bench: HostDoor) -> None:
    outcome = bench.run(tool_of("waiting", 0.3, timeout=0.05, interruptible=False))
    assert outcome.result.data == "done"


# -- stop ------------------------------------------------------------------------------------


def test_error_that_a_stop_provoked_is_no_failure_of_the_tool(bench: HostDoor) -> None:
    async def fetch() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise OSError("connection lost") from None

    bench.stop_after(0.1)
    assert refused(bench.run(fetch)).code == "E_INTERRUPTED"


def test_tool_that_cancels_itself_has_failed(bench: HostDoor) -> None:
    async def selfish() -> None:
        raise asyncio.CancelledError

    @tool(loop="notebook")
    async def selfish_there() -> None:
        raise asyncio.CancelledError

    async def cancelling() -> None:
        cast("asyncio.Task[Any]", asyncio.current_task()).cancel()
        await asyncio.sleep(0)

    for function in (selfish, selfish_there, cancelling):
        error = refused(bench.run(function))
        assert error.code == "E_TOOL_FAILED"
        assert "CancelledError" in error.message


def test_failed_task_of_a_group_is_the_error_of_the_tool(bench: HostDoor) -> None:
    async def failing() -> None:
        raise KeyError("oslo")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())  # The group cancels the task of the tool.

    error = refused(bench.run(grouped))
    assert error.code == "E_TOOL_FAILED"
    assert error.message.endswith("KeyError: 'oslo'")


# -- other loops -----------------------------------------------------------------------------


def test_object_of_another_loop_says_what_to_do(bench: HostDoor) -> None:
    event = asyncio.Event()

    async def use() -> str:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), 0.01)
        return "used"

    assert asyncio.run(use()) == "used"
    here = bench.run(use)
    assert "is bound to a different event loop" in refused(here).message
    assert LOOP in refused(here).message
    assert here.error_detail
    assert LOOP in here.error_detail


async def fetch() -> int:
    return 1


def run_list_in_new_loop() -> object:
    waiting = [fetch(), fetch()]
    return asyncio.new_event_loop().run_until_complete(waiting[0])


def run_in_runner() -> object:
    with asyncio.Runner() as runner:
        return runner.run(fetch())


def run_twice() -> object:
    try:
        return asyncio.run(fetch())
    except RuntimeError:
        return asyncio.get_event_loop().run_until_complete(fetch())


def run_and_raise() -> object:
    try:
        return asyncio.run(fetch())
    except RuntimeError as error:
        raise ValueError("no weather") from error


async def run_in_async() -> object:
    return asyncio.run(fetch())


def no_loop() -> object:
    raise RuntimeError("the event loop of the mill is broken")


IN_A_LOOP: dict[str, tuple[Callable[[], Any], bool]] = {
    "asyncio.run": (lambda: asyncio.run(fetch()), True),
    "run_until_complete": (lambda: asyncio.get_event_loop().run_until_complete(fetch()), True),
    "a new loop": (run_list_in_new_loop, True),
    "a runner": (run_in_runner, True),
    "anyio": (lambda: anyio.run(fetch), True),
    "one after the other": (run_twice, True),
    "a cause": (run_and_raise, True),
    "an async def": (run_in_async, True),
    "another error": (no_loop, False),
}


@pytest.mark.parametrize(("function", "is_advised"), IN_A_LOOP.values(), ids=IN_A_LOOP)
def test_tool_that_starts_a_loop_in_a_loop_reads_what_to_write_and_warns_nobody(
    function: Callable[[], Any], is_advised: bool
) -> None:
    made = tool(name="work")(function)
    model = script([call("work"), "Done."])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = asyncio.run(nbagent.Agent(model, tools=[made]).arun("Go."))
        gc.collect()
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    assert result.error is not None
    advice = "; write the tool as async def and await the coroutine instead of running it"
    assert result.error.message.endswith(advice) is is_advised
    assert [str(each.message) for each in warned if each.category is RuntimeWarning] == []


def test_tool_in_a_worker_thread_may_start_a_loop(bench: HostDoor) -> None:
    assert (
        bench.run(tool(name="work", threaded=True)(lambda: asyncio.run(fetch()))).result.data == 1
    )


# -- what it gave back or raised; values of every kind are in tests/shown ---------------------


def test_large_result_is_cut_to_the_tools_own_budget_and_says_so(bench: HostDoor) -> None:
    for budget, most in ((None, 50_000), (1_000, 1_000)):
        outcome = bench.run(tool(name="probe", max_result_chars=budget)(lambda: "x" * 200_000))
        assert outcome.truncated
        assert 0.9 * most < len(outcome.result.data) <= most
        assert " left out; ask for a smaller part]" in outcome.result.data


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
    assert detail.startswith("ValueError: no such city\n  test_tool_calling.py, line ")
    assert ", in population\n    raise ValueError(" in detail
    assert "caused by KeyError: 'Atlantis'" in detail
    assert ", in inner\n    raise KeyError(city)" in detail
    assert "running.py" not in detail
    assert os.sep + "tests" not in detail


def test_frames_of_nbagent_are_not_shown_to_the_person(bench: HostDoor) -> None:
    def look_up() -> object:
        return nbagent.open_run("a run that is not there")

    detail = bench.run(look_up).error_detail or ""
    files = [line.split(",")[0].strip() for line in detail.splitlines() if ", line " in line]
    assert files == ["test_tool_calling.py"]


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
    "interrupt of its own": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "stop iteration": (StopIteration(1), "StopIteration"),
    "no message": (Mute(), "Mute: (its message cannot be shown)"),
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


# What a tool's error says, and what the model reads; {…} are folders of this machine.
PATHS = {
    "a file of the project": ("{project}/sub/x.txt", "@project/sub/x.txt"),
    "quoted": ("'{project}/sub/x.txt' is bad", "'@project/sub/x.txt' is bad"),
    "the project itself": ("in {project}: no", "in @project: no"),
    "a link to the project": ("{link}/x.txt", "x.txt"),
    "a mount inside the project": ("{project}/inner/a.csv", "@inner/a.csv"),
    "a mount elsewhere": ("{data}/a.csv, {data}/b.csv", "@data/a.csv, @data/b.csv"),
    "a folder beside it": ("{data}-old/a.csv", "a.csv"),
    "outside": ("{outside}/deep/er/x.txt: no", "x.txt: no"),
    "outside, with spaces": ("'{outside}/my deep/x y.txt'", "'x y.txt'"),
    "a URL of a file": ("file://{outside}/x.txt", "x.txt"),
    "a URL of the project": ("file://{project}/x.txt", "@project/x.txt"),
    "an address": (
        "404 for https://a.example.org/home/me/x",
        "404 for https://a.example.org/home/me/x",
    ),
    "a path of an address": ("404 for /no-such-top/items/3", "404 for /no-such-top/items/3"),
    "words": ("and/or, 3/4, a / b", "and/or, 3/4, a / b"),
}


@pytest.mark.parametrize("kind", [OSError, ToolError], ids=["an error", "a ToolError"])
@pytest.mark.parametrize("name", PATHS)
def test_paths_in_errors_become_the_names_of_mounts(
    name: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, data, outside = (tmp_path / folder for folder in ("project", "data", "outside"))
    for folder in (project / "inner", data, outside):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(project)
    monkeypatch.chdir(project)
    said, read = PATHS[name]
    folders = {"project": project, "data": data, "outside": outside, "link": tmp_path / "link"}

    def failing() -> None:
        raise kind(said.format(**folders))

    model = script([call("failing"), "Done."])
    mounts = [f"data={data}", f"inner={project / 'inner'}:rw"]
    nbagent.Agent(model=model, tools=[failing], mounts=mounts).run("Go.").raise_for_error()
    message = json.loads(model.requests[1].messages[-1].text)["error"]["message"]
    assert message.removeprefix("OSError: ") == read


class Interrupting:
    """A result that looks like a person's interrupt when it is shown."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


@each_kind
def test_interrupt_that_a_result_raises_is_the_tools_failure(bench: HostDoor, kind: str) -> None:
    error = refused(bench.run(tool_of(kind, gives=Interrupting())))
    assert (error.code, bench.cancel.is_set) == ("E_TOOL_FAILED", False)
