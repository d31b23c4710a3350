"""The batch APIs of OpenAI, Anthropic and Gemini on loopback, with switchable faults.

Written from their references: files and `/batches`, `/messages/batches`, `:batchGenerateContent`.
A batch ends after some questions about it, or when a test says so.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from servers.hostile_server import whole
from servers.loopback import Loopback, Visit

Outcome = Callable[[int], str]
"""Outcome of a request by its position: `ok`, `error`, `expired`, `cancelled`, `missing`."""
Tamper = Callable[[list[Any]], list[Any]]
"""Changes the results, each of them a line or (Gemini) an object."""


@dataclass
class SentBatch:
    """A batch that was created."""

    id: str
    vendor: str
    requests: list[tuple[str, Any]]
    """Custom id and body."""
    facts: dict[str, Any]
    created: float = field(default_factory=time.time)
    state: str = "in_progress"
    polls: int = 0

    @property
    def is_ended(self) -> bool:
        return self.state not in ("in_progress", "cancelling")


class BatchServer(Loopback):
    """Accepts batches and answers them. Its faults are attributes that a test sets."""

    def __init__(self, *, polls: int = 1, hold: bool = False, port: int = 0) -> None:
        super().__init__(port=port)
        self.batches: dict[str, SentBatch] = {}
        self.files: dict[str, bytes] = {}
        self.visits: list[Visit] = []
        self.polls, self.hold = polls, hold
        self.outcome: Outcome = lambda n: "ok"
        self.tamper: Tamper = lambda results: results
        self.end_state = "completed"
        self.keys_come_back = True
        """Gemini: the metadata of a request comes back with its answer."""
        self.lose_creations = 0
        """So many creations are carried out, and the connection is reset before the answer."""
        self.refuse_creations: list[tuple[int, Any]] = []
        """Status and body of the next creations, which are not carried out."""
        self.hides_state = False
        """The state of a batch is null."""
        self.n_done = 0
        """Requests that are done while a batch works."""
        self.hold_replies = False
        """What is to be created waits."""
        self.lost_batches: set[str] = set()
        """Ids that are answered with 404."""
        self.break_results = 0
        """So many downloads of results are cut."""
        self.answer_of: Callable[[Any], str] = lambda body: f"a:{prompt_of(body)}"
        self.on_create: Callable[[], object] = lambda: None
        """Called when a batch was created, before the reply."""
        self.on_upload: Callable[[], object] = lambda: None
        self._ids = count(1)

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def paths(self, method: str) -> list[str]:
        return [visit.path.partition("?")[0] for visit in self.visits if visit.method == method]

    async def answer(self, visit: Visit) -> None:
        self.visits.append(visit)
        visit.keep = True
        path = visit.path.partition("?")[0].removeprefix("/v1beta").removeprefix("/v1")
        while visit.method == "POST":
            if not self.hold_replies:
                break
            await asyncio.sleep(0.004)
        reply = self._reply(visit, path)
        if reply is None:
            return visit.reset()
        status, body = reply
        if isinstance(body, bytes) and self.break_results and len(body) > 20:
            self.break_results -= 1
            visit.keep = False
            head = f"HTTP/1.1 200 X\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            return await visit.send(head + body[: len(body) // 2])
        return await visit.send(whole(body, f"{status} X"))

    def _reply(self, visit: Visit, path: str) -> tuple[int, Any] | None:
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", r"/files", self._upload),
            ("GET", r"/files/([^/]+)/content", self._content),
            ("POST", r"/(batches)", self._create),
            ("POST", r"/(messages/batches)", self._create),
            ("POST", r"/(models/.+:batchGenerateContent)", self._create),
            ("GET", r"/(batches|messages/batches)", self._list),
            ("GET", r"/messages/batches/([^/]+)/results", self._results),
            ("POST", r"/(?:messages/)?batches/([^/:]+)[/:]cancel", self._cancel),
            ("GET", r"/(?:messages/)?batches/([^/]+)", self._show),
        ]
        for method, pattern, route in routes:
            if visit.method == method and (match := re.fullmatch(pattern, path)):
                if set(match.groups()) & self.lost_batches:
                    break
                return route(visit, *match.groups())
        return 404, {"error": {"message": f"no {path}", "type": "not_found_error"}}

    # Creating

    def _upload(self, visit: Visit) -> tuple[int, Any]:
        boundary = visit.headers["content-type"].partition("boundary=")[2].encode()
        parts = visit.data.split(b"--" + boundary)
        fields = dict[bytes, bytes]()
        for part in parts[1:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            fields[re.findall(rb'name="(\w+)"', head)[0]] = value.removesuffix(b"\r\n")
        assert fields[b"purpose"] == b"batch"
        self.on_upload()
        return 200, {"id": self._keep(fields[b"file"]), "object": "file"}

    def _keep(self, content: bytes) -> str:
        file_id = f"file-{next(self._ids)}"
        self.files[file_id] = content
        return file_id

    def _create(self, visit: Visit, route: str) -> tuple[int, Any] | None:
        if self.refuse_creations:
            return self.refuse_creations.pop(0)
        body = visit.body
        if route == "batches":
            lines = map(json.loads, self.files[body["input_file_id"]].split(b"\n"))
            listed = [(line["custom_id"], line["body"]) for line in lines]
            sent = SentBatch(f"batch_{next(self._ids)}", "openai", listed, body)
            assert {b["model"] for _, b in listed} == {listed[0][1]["model"]}
        elif route == "messages/batches":
            listed = [(one["custom_id"], one["params"]) for one in body["requests"]]
            sent = SentBatch(f"msgbatch_{next(self._ids)}", "anthropic", listed, {})
            assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name, _ in listed)
        else:
            inlined = body["batch"]["inputConfig"]["requests"]["requests"]
            listed = [(one["metadata"]["key"], one["request"]) for one in inlined]
            sent = SentBatch(str(next(self._ids)), "google", listed, body["batch"])
        assert len({name for name, _ in listed}) == len(listed)
        self.batches[sent.id] = sent
        self.on_create()
        if self.lose_creations:
            self.lose_creations -= 1
            return None
        return 200, self._picture(sent)

    # Looking

    def _list(self, visit: Visit, route: str) -> tuple[int, Any]:
        vendor = "anthropic" if route.startswith("messages") else "openai"
        if "pageSize" in visit.path:
            found = [self._picture(b) for b in self.batches.values() if b.vendor == "google"]
            return 200, {"operations": found}
        found = [self._picture(b) for b in self.batches.values() if b.vendor == vendor]
        return 200, {"data": found[::-1], "has_more": False}

    def _show(self, visit: Visit, batch_id: str) -> tuple[int, Any]:
        sent = self.batches[batch_id]
        sent.polls += 1
        if not self.hold and not sent.is_ended and sent.polls > self.polls:
            self.finish(sent)
        picture = self._picture(sent)
        if self.hides_state:
            for holder in (picture, picture.get("metadata", {})):
                holder |= dict.fromkeys(holder.keys() & {"status", "processing_status", "state"})
        return 200, picture

    def finish(self, sent: SentBatch) -> None:
        sent.state = "cancelled" if sent.state == "cancelling" else self.end_state

    def _cancel(self, visit: Visit, batch_id: str) -> tuple[int, Any]:
        self.batches[batch_id].state = "cancelling"
        self.hold = False
        return 200, self._picture(self.batches[batch_id])

    def _picture(self, sent: SentBatch) -> dict[str, Any]:
        n = len(sent.requests)
        if sent.vendor == "openai":
            return self._openai_picture(sent, n)
        if sent.vendor == "anthropic":
            status = {"in_progress": "in_progress", "cancelling": "canceling"}
            counts = {"processing": 0 if sent.is_ended else n, "succeeded": n * sent.is_ended}
            return {
                "id": sent.id,
                "type": "message_batch",
                "processing_status": status.get(sent.state, "ended"),
                "request_counts": {**counts, "errored": 0, "canceled": 0, "expired": 0},
                "created_at": datetime.fromtimestamp(sent.created, UTC).isoformat(),
                "results_url": "http://elsewhere.invalid/results",
            }
        states = {"in_progress": "RUNNING", "cancelling": "RUNNING", "completed": "SUCCEEDED"}
        metadata = {
            "state": f"BATCH_STATE_{states.get(sent.state, sent.state.upper())}",
            "displayName": sent.facts["displayName"],
            "batchStats": {"requestCount": str(n), "successfulRequestCount": str(self.n_done)},
        }
        operation: dict[str, Any] = {"name": f"batches/{sent.id}", "metadata": metadata}
        if sent.is_ended:
            operation["done"] = True
            operation["response"] = {"inlinedResponses": {"inlinedResponses": self._made(sent)}}
            if sent.state == "failed":
                operation |= {"error": {"code": 3, "message": "bad input"}, "response": {}}
        return operation

    def _openai_picture(self, sent: SentBatch, n: int) -> dict[str, Any]:
        picture: dict[str, Any] = {
            "id": sent.id,
            "status": sent.state,
            "metadata": sent.facts["metadata"],
            "created_at": int(sent.created),
            "request_counts": {"total": n, "completed": n if sent.is_ended else self.n_done},
        }
        if sent.state == "failed":
            error = {"code": "invalid_json_line", "line": 1, "message": "not parseable"}
            picture["errors"] = {"object": "list", "data": [error]}
        elif sent.is_ended:
            lines = self._made(sent)
            good = [line for line in lines if b'"error":null' in line or b'"error"' not in line]
            bad = [line for line in lines if line not in good]
            # Made anew for each question; the ids differ, as nobody keeps them.
            picture["output_file_id"] = self._keep(b"\n".join(good) + b"\n") if good else None
            picture["error_file_id"] = self._keep(b"\n".join(bad)) if bad else None
        return picture

    # Results

    def _content(self, visit: Visit, file_id: str) -> tuple[int, Any]:
        return 200, self.files[file_id]

    def _results(self, visit: Visit, batch_id: str) -> tuple[int, Any]:
        return 200, b"\n".join(self._made(self.batches[batch_id])) + b"\n"

    def _made(self, sent: SentBatch) -> list[Any]:
        results: list[Any] = []
        for n, (custom_id, body) in enumerate(sent.requests):
            outcome = self.outcome(n)
            if outcome == "missing":
                continue
            make = {"openai": openai_line, "anthropic": anthropic_line, "google": google_item}
            result = make[sent.vendor](custom_id, outcome, self.answer_of(body))
            if sent.vendor != "google":
                result = json.dumps(result, separators=(",", ":")).encode()
            elif not self.keys_come_back:
                del result["metadata"]
            results.append(result)
        return self.tamper(results)


def prompt_of(body: Any) -> str:
    """The last words of a request, in any of the three forms."""
    last = (body.get("messages") or body.get("contents") or body.get("input"))[-1]
    content = last.get("content", last.get("parts"))
    return content if isinstance(content, str) else content[0]["text"]


def openai_line(custom_id: str, outcome: str, text: str) -> dict[str, Any]:
    line: dict[str, Any] = {"id": "r", "custom_id": custom_id, "response": None, "error": None}
    if outcome == "ok":
        message = {"role": "assistant", "content": text}
        body = {
            "id": "c",
            "object": "chat.completion",
            "model": "little",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
        line["response"] = {"status_code": 200, "request_id": "req_1", "body": body}
    elif outcome == "error":
        error = {"message": "bad temperature", "type": "invalid_request_error", "code": "x"}
        line["response"] = {"status_code": 400, "request_id": "req_1", "body": {"error": error}}
        line["error"] = None
    else:
        line["error"] = {"code": f"batch_{outcome}", "message": "not made"}
    return line


def anthropic_line(custom_id: str, outcome: str, text: str) -> dict[str, Any]:
    if outcome == "ok":
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "little",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        return {"custom_id": custom_id, "result": {"type": "succeeded", "message": message}}
    if outcome == "error":
        error = {"type": "invalid_request_error", "message": "bad temperature"}
        result = {"type": "errored", "error": {"type": "error", "error": error}}
        return {"custom_id": custom_id, "result": result}
    return {"custom_id": custom_id, "result": {"type": outcome.replace("cancelled", "canceled")}}


def google_item(custom_id: str, outcome: str, text: str) -> dict[str, Any]:
    item: dict[str, Any] = {"metadata": {"key": custom_id}}
    if outcome == "ok":
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}}
        item["response"] = {
            "candidates": [{**candidate, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5},
            "modelVersion": "little",
        }
    else:
        code = {"error": 3, "expired": 4, "cancelled": 1}[outcome]
        item["error"] = {"code": code, "message": "bad temperature" if code == 3 else "not made"}
    return item
