"""Gemini's batch API: requests inside the creation of an operation, answers inside its result.

Wire facts: ai.google.dev, "Batch API" and its reference, and the SDK (`google/genai/batches.py`):
at most 20 MB in one creation, 24 hours as a rule, expiry after 48 hours; only under `v1beta`. A
request's `metadata.key` comes back with its answer, but not always
(discuss.ai.google.dev/t/112386); answers are in the order of their requests then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.providers.answer.json_fields import objects_in, text_or_empty
from nbagent.providers.batches.batch_api import (
    MAX_PAGES,
    BatchAnswer,
    BatchHttp,
    BatchLine,
    BatchStatus,
    Submission,
    answer_with,
    create_once,
    id_of,
)
from nbagent.providers.http_errors import stream_error
from nbagent.providers.transport.sse import safe_line

VERSION = ("/v1", "/v1beta")
"""End of the usual base URL, and the one that has batches."""
_ENDED = ("succeeded", "failed", "cancelled", "expired", "partially succeeded")
_UNANSWERED: dict[str, Literal["expired", "cancelled"]] = {
    "expired": "expired",
    "cancelled": "cancelled",
}
_HTTP_STATUS = dict(
    enumerate((499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401), 1)
)
"""Status of HTTP by the code of a `google.rpc.Status`, which an answer's error is."""


class GoogleBatches:
    """The batch API of Gemini at Google."""

    max_requests = 50_000
    max_bytes = 19 * 10**6
    """Below 20 MB, with room for keys and names."""

    def __init__(self, http: BatchHttp, *, model: str) -> None:
        """Take the model of all requests."""
        self._http = http
        self._model = model if "/" in model else f"models/{model}"

    async def submit(self, sending: Submission, lines: Sequence[BatchLine]) -> str:
        """Create the operation."""
        requests = b",".join(
            b'{"request":%b,"metadata":{"key":%b}}' % (line.body, dump_json(line.custom_id))
            for line in lines
        )
        body = b'{"batch":{"displayName":%b,"inputConfig":{"requests":{"requests":[%b]}}}}' % (
            dump_json(_display_name(sending)),
            requests,
        )
        path = f"/{quote(self._model)}:batchGenerateContent"

        async def create() -> str:
            return id_of(await self._http.send("POST", path, body), "name")

        return await create_once(create, lambda: self.find(sending))

    async def find(self, sending: Submission) -> str:
        """Return the name of the operation whose display name has the mark."""
        token = ""
        for _ in range(MAX_PAGES):
            page = await self._http.get(f"/batches?pageSize=100{token}")
            for operation in objects_in(page.get("operations")):
                if _metadata(operation).get("displayName") == _display_name(sending):
                    return id_of(operation, "name")
            next_page = text_or_empty(page.get("nextPageToken"))
            if not next_page:
                break
            token = f"&pageToken={quote(next_page, safe='')}"
        return ""

    async def status(self, batch_id: str) -> BatchStatus:
        """Return the state of an operation."""
        operation = await self._http.get(f"/{quote(batch_id)}")
        metadata = _metadata(operation)
        # `BATCH_STATE_RUNNING`, or `JOB_STATE_…`, as the SDK writes it.
        state = text_or_empty(metadata.get("state")).rpartition("STATE_")[2].replace("_", " ")
        state = safe_line(state.lower(), 40)
        stats = json_object(metadata.get("batchStats")) or {}
        error = json_object(operation.get("error")) or {}
        has_failed = state == "failed" or (bool(error) and not _responses(operation))
        reason = safe_line(text_or_empty(error.get("message"))) or "it gives no reason"
        return BatchStatus(
            state=state,
            is_ended=operation.get("done") is True or state in _ENDED,
            done=_count(stats, "successfulRequestCount") + _count(stats, "failedRequestCount"),
            refusal=reason if has_failed and state not in _UNANSWERED else "",
            unanswered=_UNANSWERED.get(state, ""),
        )

    async def cancel(self, batch_id: str) -> None:
        """Cancel an operation."""
        await self._http.send("POST", f"/{quote(batch_id)}:cancel", b"{}")

    async def answers(
        self, batch_id: str, custom_ids: Sequence[str]
    ) -> AsyncGenerator[BatchAnswer]:
        """Yield the inlined responses: by their keys, or by position if none has a key."""
        items = _responses(await self._http.get(f"/{quote(batch_id)}"))
        keys = [text_or_empty(_metadata(item).get("key")) for item in items]
        if not any(keys) and len(items) == len(custom_ids):
            keys = [*custom_ids]
        for key, item in zip(keys, items, strict=True):
            yield _answer_of(key, item)


def _display_name(sending: Submission) -> str:
    return f"nbagent {sending.mark}"


def _metadata(holder: Mapping[str, Any]) -> dict[str, Any]:
    return json_object(holder.get("metadata")) or {}


def _responses(operation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the responses of an operation: in its result, or where the SDK reads them."""
    for holder in (operation.get("response"), _metadata(operation).get("output")):
        inlined = json_object((json_object(holder) or {}).get("inlinedResponses")) or {}
        if items := objects_in(inlined.get("inlinedResponses")):
            return items
    return []


def _count(stats: Mapping[str, Any], name: str) -> int:
    """Return a count, which is a text in JSON (int64)."""
    text = str(stats.get(name) or "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _answer_of(custom_id: str, item: Mapping[str, Any]) -> BatchAnswer:
    if error := json_object(item.get("error")):
        code = error.get("code")
        status = _HTTP_STATUS.get(code, code) if isinstance(code, int) else code
        fault = stream_error({"error": {**error, "code": status}})
        return BatchAnswer(custom_id=custom_id, fault=fault)
    return answer_with(custom_id, json_object(item.get("response")))
