"""The two sides of each comparison: the loop that one writes by hand over httpx2, and ours.

The bare one has no record, no limits, no stop, no errors told; its history is a list of dicts.
Ours is `nbagent.Agent`; without the store means the same session, engine thread, tools and
handles, given a store whose `commit` keeps nothing. Nothing in the product is replaced.

As a child, many runs at once in one process, and the memory that they add to it:

    python sides.py BASE_URL RUNS
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from nbagent import Agent, runtime, tool
from nbagent.contracts.events import Event
from nbagent.contracts.records import RunRecord
from nbagent.session.active_run import ActiveRun
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions
from nbagent.store.writer import Store

PROMPT = "Take all steps."
STEP = {
    "type": "function",
    "function": {
        "name": "step",
        "description": "Take the next step.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "Its number."}},
            "required": ["n"],
        },
    },
}


@tool
def step(n: int) -> dict[str, Any]:
    """Take the next step.

    Args:
        n: Its number.
    """
    return {"step": n, "done": True, "words": "one more step was taken and all is well"}


class BareLoop:
    """One client, kept; each call of `turns` is one run."""

    def __init__(self, base_url: str, tool: Callable[..., Any] = step) -> None:
        self.client = httpx2.AsyncClient(base_url=base_url)
        self.tool = tool

    async def turns(self, *, stream: bool = False) -> list[dict[str, Any]]:
        """Ask and call until there is an answer."""
        ask = self._streamed if stream else self._whole
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        while True:
            message = await ask(messages)
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return messages
            results = await asyncio.gather(*(self._call(call) for call in calls))
            for call, result in zip(calls, results, strict=True):
                messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
                )

    async def _call(self, call: dict[str, Any]) -> Any:
        return self.tool(**json.loads(call["function"]["arguments"]))

    def _body(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {"model": "gpt-5.4", "messages": messages, "tools": [STEP], **more}

    async def _whole(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        answer = await self.client.post("/chat/completions", json=self._body(messages))
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]

    async def _streamed(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        text: list[str] = []
        calls: list[dict[str, Any]] = []
        body = self._body(messages, stream=True, stream_options={"include_usage": True})
        async with self.client.stream("POST", "/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    delta = choice["delta"]
                    if delta.get("content"):
                        text.append(delta["content"])
                    for call in delta.get("tool_calls", ()):
                        calls.append({k: call[k] for k in ("id", "type", "function")})
        message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
        return {**message, "tool_calls": calls} if calls else message


class ThreadedBareLoop(BareLoop):
    """Bare loop with its tools in threads."""

    async def _call(self, call: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self.tool, **json.loads(call["function"]["arguments"]))


class KeepsNothing(Store):
    """A store that is asked to commit each event and does not."""

    async def commit(self, event: Event, on_wait: Callable[[], None] = lambda: None) -> None:
        """Leave it."""


def agent(base_url: str, **options: Any) -> Agent:
    """The agent of the loops."""
    return Agent("openai:gpt-5.4", base_url=base_url, tools=[step], **options)


def run_unkept(base_url: str, store: Store, *, stream: bool, max_turns: int = 20) -> RunRecord:
    """One run without the store, waited for in this thread."""
    options = RunOptions(
        model="openai:gpt-5.4", base_url=base_url, stream=stream, max_turns=max_turns
    )
    active = ActiveRun(RunRequest(prompt=PROMPT, options=options, tools=(step,)), store=store)
    with runtime.InterruptGuard(active.plan.cancel):
        active.start()
        return runtime.wait(active.run_task)


def status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def forget_peak() -> None:
    """Let the high-water mark count from here; importing may have gone above what stayed."""
    Path("/proc/self/clear_refs").write_text("5")


async def _many(base_url: str, runs: int) -> dict[str, float]:
    made = agent(base_url)

    async def one() -> None:
        run = await made.arun(PROMPT)
        assert run.ok, run.error

    await one()
    idle = status_mb("VmRSS")
    forget_peak()
    await asyncio.gather(*(one() for _ in range(runs)))
    return {"idle_mb": idle, "added_mb": status_mb("VmHWM") - idle}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_many(sys.argv[1], int(sys.argv[2])))))
