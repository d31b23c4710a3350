"""What everything is compared with: the loop that one writes by hand over httpx2, and nothing else.

No record, no limits, no stop, no errors told; the history is a list of dicts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2

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


class BareLoop:
    """One client, kept; each method is one run."""

    def __init__(self, base_url: str, tool: Callable[..., Any]) -> None:
        self.client = httpx2.AsyncClient(base_url=base_url)
        self.tool = tool

    async def turns(self, *, stream: bool = False) -> list[dict[str, Any]]:
        """Ask and call until there is an answer."""
        ask = self._streamed if stream else self._whole
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Take all steps."}]
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
    """The same with its tools in threads."""

    async def _call(self, call: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self.tool, **json.loads(call["function"]["arguments"]))
