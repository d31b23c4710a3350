"""Many runs at once: threads, loops, runs inside tools; each keeps its own events and record."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from engine.laws import check_run, look, results

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import RunFinished, RunStarted, TextDelta, TurnFinished
from nbagent.contracts.model import ChatRequest
from nbagent.providers.offline import ScriptedAnswer, call, calls, script, step, text


def by_prompt(tool: str) -> Any:
    """A model that looks at the person's words once and repeats the result."""

    def answer(request: ChatRequest) -> ScriptedAnswer:
        last = request.messages[-1]
        if last.role == "user":
            return call(tool, place=last.text)
        return text(last.text)

    return script([answer] * 400)


def test_runs_in_threads_run_their_tools_in_their_own_thread() -> None:
    agent = nbagent.Agent(model=by_prompt("where"), tools=[where])
    found: dict[int, nbagent.Run] = {}

    def work(n: int) -> None:
        found[n] = agent.run(f"place {n}")

    threads = [threading.Thread(target=work, args=(n,), name=f"worker-{n}") for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for n in range(8):
        run = check_run(found[n])
        assert results(run)[0]["data"] == f"place {n} in worker-{n}"
        assert run.turns[0].tool_runs[0].ran_in == "waiting thread"


def where(place: str) -> str:
    """Say where it runs."""
    return f"{place} in {threading.current_thread().name}"


def test_who_still_waits_runs_the_tools_when_another_one_left_with_a_timeout() -> None:
    model = script([step(calls=[call("where", place="a")], wait_ms=600), "Done."])
    run = nbagent.Agent(model=model, tools=[where]).start("Go.")
    second = threading.Thread(target=run.wait, name="second")
    threading.Timer(0.05, second.start).start()
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.2)
    assert run.phase == "Running"
    second.join(30)
    assert results(check_run(run, model))[0]["data"] == "a in second"


def test_arun_side_by_side_on_one_loop_and_run_inside_it() -> None:
    agent = nbagent.Agent(model=by_prompt("look"), tools=[look])

    async def main() -> list[nbagent.Run]:
        runs = await asyncio.gather(*(agent.arun(f"place {n}") for n in range(10)))
        return [*runs, agent.run("place 10")]

    runs = asyncio.run(main())
    for n, run in enumerate(runs):
        assert f"seen place {n}" in check_run(run).text
    assert runs[-1].turns[0].tool_runs[0].ran_in == "main thread"


def test_stream_yields_every_event_of_its_own_run_in_order() -> None:
    agent = nbagent.Agent(model=by_prompt("look"), tools=[look])

    async def events_of(prompt: str) -> list[Any]:
        return [event async for event in agent.stream(prompt)]

    async def main() -> list[list[Any]]:
        return list(await asyncio.gather(events_of("left"), events_of("right")))

    for prompt, events in zip(("left", "right"), asyncio.run(main()), strict=True):
        assert isinstance(events[0], RunStarted)
        assert isinstance(events[-1], RunFinished)
        assert events[0].run.prompt == prompt
        assert len([e for e in events if isinstance(e, TurnFinished)]) == 2
        assert f"seen {prompt}" in events[-1].run.text
        assert nbagent.open_run(events[-1].run.id).record == events[-1].run


@pytest.mark.parametrize("way", ["leaving the stream", "cancelling arun"])
def test_who_goes_away_stops_the_run_and_its_text_is_kept(way: str) -> None:
    agent = nbagent.Agent(model=script([step(text="One two three four five.", delay_ms=300)]))

    async def leave() -> None:
        stream = agent.stream("Go.")
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()

    async def cancel() -> None:
        words = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_event(event: Any) -> None:
            if isinstance(event, TextDelta):
                loop.call_soon_threadsafe(words.set)

        task = asyncio.create_task(agent.arun("Go.", on_event=on_event))
        await words.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave() if way == "leaving the stream" else cancel())
    run = check_run(nbagent.open_run("last"))
    assert (run.phase, run.stop_reason, run.text[:3]) == ("Failed", "stopped", "One")
    assert "five" not in run.text


def test_an_error_before_the_start_comes_out_of_the_stream() -> None:
    async def main() -> None:
        async for _ in nbagent.Agent(model=script(["Never."])).stream(""):
            raise AssertionError("nothing is yielded")

    with pytest.raises(UsageError, match="the prompt is empty"):
        asyncio.run(main())


def test_a_tool_may_run_an_agent_and_an_async_one_awaits_it() -> None:
    inner = nbagent.Agent(model=by_prompt("look"), tools=[look])

    def plainly(task: str) -> str:
        """Let another agent do it."""
        return inner.run(task).text

    async def awaiting(task: str) -> str:
        """Let another agent do it."""
        return (await inner.arun(task)).text

    async def wrongly(task: str) -> str:
        """Let another agent do it, and block the loop."""
        return inner.run(task).text

    def for_itself(task: str) -> str:
        """Wait for the run that this call belongs to."""
        return run.wait().text

    tools = [plainly, awaiting, wrongly, for_itself]
    model = script([calls([call(tool.__name__, task="a") for tool in tools]), "Done."])
    run = nbagent.Agent(model=model, tools=tools).start("Go.")
    *good, blocking, endless = results(check_run(run.wait(), model))
    assert all("seen a" in result["data"] for result in good)
    assert "await agent.arun" in blocking["error"]["message"]
    assert "cannot wait for the run that it belongs to" in endless["error"]["message"]
    assert len(nbagent.runs()) == 3, "the run that could not be waited for was not started"


def test_tools_run_side_by_side_in_their_places_and_in_the_context_of_their_cell() -> None:
    cell = contextvars.ContextVar("cell", default="none")
    meeting = threading.Barrier(2, timeout=10)

    def meet() -> str:
        """Meet the other one."""
        meeting.wait()
        return cell.get()

    async def tell() -> str:
        """Tell the cell."""
        return cell.get()

    @nbagent.tool(threaded=True)
    def aside() -> str:
        """Meet it in a thread."""
        return meet()

    @nbagent.tool(loop="notebook")
    async def there() -> str:
        """Tell it where the notebook has no loop."""
        return cell.get()

    tools = [aside, meet, tell, there]
    model = script([calls([call(tool.__name__) for tool in tools]), "Done."])
    cell.set("first")
    run = nbagent.Agent(model=model, tools=tools).start("Go.")
    cell.set("second")
    check_run(run.wait(), model)
    assert [result.get("data", result) for result in results(run)] == ["first"] * 4
    tool_runs = run.turns[0].tool_runs
    places = ["worker thread", "main thread", "tool loop", "tool loop"]
    assert [tool_run.ran_in for tool_run in tool_runs] == places
    assert all(it.queued_at <= it.started_at for it in tool_runs if it.queued_at and it.started_at)
