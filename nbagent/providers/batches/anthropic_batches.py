"""Anthropic's batch API: requests inside the creation of a batch, results as lines.

Wire facts: platform.claude.com, "Batch processing", and the types of its SDK
(`types/messages/message_batch.py`): at most 100,000 requests and 256 MB, 24 hours, results for
29 days. Custom ids match `[a-zA-Z0-9_-]{1,64}`. A batch has no metadata, and requests are counted
as processing until the whole batch has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any
from urllib.parse import quote

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.providers.answer.json_fields import objects_in, text_or_empty, token_count
from nbagent.providers.batches.batch_api import (
    CLOCK_SLACK_S,
    MAX_PAGES,
    BatchAnswer,
    BatchHttp,
    BatchLine,
    BatchStatus,
    Submission,
    answer_with,
    create_once,
    id_of,
    no_state_error,
    read_line,
    unanswered_fault,
)
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import safe_line

_COUNTS = ("succeeded", "errored", "canceled", "expired")
CANDIDATE_POLL_S = 10.0
"""Interval of looking at a batch that may be ours; only its results tell."""


class AnthropicBatches:
    """The batch API of Anthropic."""

    max_requests = 100_000
    max_bytes = 256 * 10**6

    def __init__(self, http: BatchHttp, *, path: str) -> None:
        """Take the path of Messages below the base URL."""
        self._http, self._path = http, f"{path}/batches"

    async def submit(self, sending: Submission, lines: Sequence[BatchLine]) -> str:
        """Create the batch."""
        requests = b",".join(
            b'{"custom_id":%b,"params":%b}' % (dump_json(line.custom_id), line.body)
            for line in lines
        )

        async def create() -> str:
            return id_of(await self._http.send("POST", self._path, b'{"requests":[%b]}' % requests))

        return await create_once(create, lambda: self.find(sending))

    async def find(self, sending: Submission) -> str:
        """Return the id of the batch whose results have the mark.

        A batch of this size and time that is at work may be the one: its end is awaited, because a
        second batch would be paid, too.
        """
        for batch_id in await self._candidates(sending):
            while True:
                status = await self.status(batch_id)
                if status.is_ended:
                    break
                if not status.state:
                    raise no_state_error(batch_id)
                await asyncio.sleep(CANDIDATE_POLL_S)
            async with aclosing(self.answers(batch_id, ())) as answers:
                async for answer in answers:
                    if answer.custom_id.startswith(sending.mark):
                        return batch_id
                    if answer.custom_id:
                        break
        return ""

    async def _candidates(self, sending: Submission) -> list[str]:
        """Return the ids of the batches of its time with its number of requests."""
        candidates: list[str] = []
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._http.get(f"{self._path}?limit=100{after}")
            listed = objects_in(page.get("data"))
            for batch in listed:
                if _may_be(batch, sending) and id_of(batch) not in sending.known_ids:
                    candidates.append(id_of(batch))
            # Newest first.
            if not (page.get("has_more") and listed):
                break
            if _created_at(listed[-1]) < sending.since - CLOCK_SLACK_S:
                break
            after = f"&after_id={quote(id_of(listed[-1]), safe='')}"
        return candidates

    async def status(self, batch_id: str) -> BatchStatus:
        """Return the state of a batch."""
        batch = await self._http.get(self._url(batch_id))
        state = safe_line(text_or_empty(batch.get("processing_status")), 40)
        return BatchStatus(state=state.replace("_", " "), is_ended=state == "ended")

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch; requests in progress may still be answered."""
        await self._http.send("POST", f"{self._url(batch_id)}/cancel", b"{}")

    async def answers(
        self, batch_id: str, custom_ids: Sequence[str]
    ) -> AsyncGenerator[BatchAnswer]:
        """Yield the lines of the results."""
        # Not `results_url`: the key is sent to this server only.
        async for line in self._http.lines(f"{self._url(batch_id)}/results"):
            yield _answer_of(read_line(line))

    def _url(self, batch_id: str) -> str:
        return f"{self._path}/{quote(batch_id, safe='')}"


def _may_be(batch: dict[str, Any], sending: Submission) -> bool:
    """True if a batch in a list has the time and the size of a submission."""
    is_near = abs(_created_at(batch) - sending.since) < CLOCK_SLACK_S
    counts = batch.get("request_counts")
    n = sum(token_count(counts, name) for name in ("processing", *_COUNTS))
    return is_near and n == sending.n_requests and not batch.get("archived_at")


def _created_at(batch: dict[str, Any]) -> float:
    try:
        return datetime.fromisoformat(text_or_empty(batch.get("created_at"))).timestamp()
    except ValueError:
        return 0.0


def _answer_of(line: dict[str, Any]) -> BatchAnswer:
    custom_id = text_or_empty(line.get("custom_id"))
    result = json_object(line.get("result")) or {}
    match result.get("type"):
        case "errored":
            fault = stream_error(result.get("error"))
        case "expired":
            fault = unanswered_fault("expired")
        case "canceled":
            fault = unanswered_fault("cancelled")
        case _:
            return answer_with(custom_id, json_object(result.get("message")))
    return BatchAnswer(custom_id=custom_id, fault=fault)
