"""OpenAI's batch API, also of Azure and Groq: a file of requests, a batch of it, files of results.

Wire facts: OpenAI's guide "Batch API" and the types of its SDK (`types/batch.py`,
`batch_create_params.py`): at most 50,000 requests and 200 MB in a file, one model and one endpoint
in it, 24 hours. Results are in any order in `output_file_id`; failed and expired requests are in
`error_file_id`, also of a batch that expired or was cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
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
    read_line,
    unanswered_fault,
)
from nbagent.providers.http_errors import response_error, stream_error
from nbagent.providers.transport.sse import safe_line

_ENDED = ("completed", "failed", "expired", "cancelled")
_MAX_ERRORS = 3
_UNANSWERED = {"batch_expired": "expired", "batch_cancelled": "cancelled"}
"""Codes in the error file of requests that were not made."""
_MARK = "nbagent"
"""Key of the batch's metadata that holds its mark."""


class OpenAIBatches:
    """The batch API of a server with OpenAI's form."""

    max_requests = 50_000
    max_bytes = 200 * 10**6

    def __init__(self, http: BatchHttp, *, endpoint: str) -> None:
        """Take the endpoint of all requests, such as `/v1/chat/completions`."""
        self._http, self._endpoint = http, endpoint

    async def submit(self, sending: Submission, lines: Sequence[BatchLine]) -> str:
        """Upload the requests as a file, and create the batch."""
        file_id = await self._upload(f"nbagent-{sending.mark}.jsonl", lines)
        body = dump_json(
            {
                "input_file_id": file_id,
                "endpoint": self._endpoint,
                "completion_window": "24h",
                "metadata": {_MARK: sending.mark},
            }
        )

        async def create() -> str:
            return id_of(await self._http.send("POST", "/batches", body))

        return await create_once(create, lambda: self.find(sending))

    async def _upload(self, name: str, lines: Sequence[BatchLine]) -> str:
        url = dump_json(self._endpoint)
        content = b"\n".join(
            b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}'
            % (dump_json(line.custom_id), url, line.body)
            for line in lines
        )
        # Longer than a chance sequence of the content; JSON has no raw line break before it.
        boundary = f"nbagent-{name}-boundary"
        start = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        body = start.encode() + content + f"\r\n--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return id_of(await self._http.send("POST", "/files", body, repeats=True, headers=headers))

    async def find(self, sending: Submission) -> str:
        """Return the id of the batch whose metadata has the mark."""
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._http.get(f"/batches?limit=100{after}")
            listed = objects_in(page.get("data"))
            for batch in listed:
                if (json_object(batch.get("metadata")) or {}).get(_MARK) == sending.mark:
                    return id_of(batch)
            # Newest first.
            oldest = token_count(listed[-1], "created_at") if listed else 0
            if not page.get("has_more") or oldest < sending.since - CLOCK_SLACK_S:
                break
            after = f"&after={quote(id_of(listed[-1]), safe='')}"
        return ""

    async def status(self, batch_id: str) -> BatchStatus:
        """Return the state of a batch."""
        batch = await self._batch(batch_id)
        state = safe_line(text_or_empty(batch.get("status")), 40)
        counts = json_object(batch.get("request_counts")) or {}
        return BatchStatus(
            state=state.replace("_", " "),
            is_ended=state in _ENDED,
            done=token_count(counts, "completed") + token_count(counts, "failed"),
            refusal=_refusal(batch) if state == "failed" else "",
            unanswered=state if state in ("expired", "cancelled") else "",
        )

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch; it is `cancelling` for up to ten minutes."""
        await self._http.send("POST", f"/batches/{quote(batch_id, safe='')}/cancel", b"{}")

    async def answers(
        self, batch_id: str, custom_ids: Sequence[str]
    ) -> AsyncGenerator[BatchAnswer]:
        """Yield the lines of both files of results."""
        batch = await self._batch(batch_id)
        for field in ("output_file_id", "error_file_id"):
            if file_id := text_or_empty(batch.get(field)):
                path = f"/files/{quote(file_id, safe='')}/content"
                async for line in self._http.lines(path):
                    yield _answer_of(read_line(line))

    async def _batch(self, batch_id: str) -> dict[str, Any]:
        return await self._http.get(f"/batches/{quote(batch_id, safe='')}")


def _refusal(batch: Mapping[str, Any]) -> str:
    """Return why a batch failed: its first errors, with their lines in the file."""
    errors = objects_in((json_object(batch.get("errors")) or {}).get("data"))
    texts = [
        safe_line(text_or_empty(error.get("message")) or text_or_empty(error.get("code")))
        + (f" (request {line})" if (line := token_count(error, "line")) else "")
        for error in errors[:_MAX_ERRORS]
    ]
    return "; ".join(filter(None, texts)) or "it gives no reason"


def _answer_of(line: dict[str, Any]) -> BatchAnswer:
    custom_id = text_or_empty(line.get("custom_id"))
    response = json_object(line.get("response")) or {}
    request_id = safe_line(text_or_empty(response.get("request_id")), 200)
    body, status = json_object(response.get("body")), token_count(response, "status_code")
    if error := json_object(line.get("error")):
        why = _UNANSWERED.get(text_or_empty(error.get("code")))
        fault = unanswered_fault(why) if why else stream_error({"error": error})
    elif status >= 400:
        fault = response_error(status, {}, body)
    else:
        return answer_with(custom_id, body, request_id)
    return BatchAnswer(custom_id=custom_id, fault=fault, request_id=request_id or None)
