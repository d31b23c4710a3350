"""What the batch API of every vendor does, and the requests to it.

A request that only reads is repeated after a fault. A batch is created once: whether it was created
is found out by its mark, never by sending it again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.errors import ModelError
from nbagent.providers.answer.json_fields import text_or_empty
from nbagent.providers.client import WireClient
from nbagent.providers.rate_limits import backoff_s
from nbagent.providers.transport.sse import bad_response, load_wire, preview, safe_line

_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 600.0, 3600.0
"""Deadlines of one request and of a file of results; 200 MB need minutes on a slow line."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,299}")
_RETRIES = 6
_MAX_REPLY_BYTES = 300 * 2**20
"""Limit of one reply: Gemini gives all answers of a batch in one."""
_MAX_RESULTS_BYTES = 4 * 2**30
_MAX_LINE_BYTES = 64 * 2**20
_TOO_BUSY = (429, 498, 503, 529)
"""Statuses of a server that did nothing with a request."""
CLOCK_SLACK_S = 3600.0
"""A provider's clock may differ from the one here by this much."""
MAX_PAGES = 50
"""Pages of a list of batches that are read to find one."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    custom_id: str
    body: bytes
    """The body that a single request would have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One creation of a batch, by which its batch is found again."""

    mark: str
    """Text that no other batch has. Custom ids start with it."""
    since: float
    """Unix time just before it."""
    n_requests: int
    known_ids: frozenset[str] = frozenset()
    """Ids of batches that other submissions created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """State of a batch at its provider."""

    state: str
    """The provider's word; empty if its reply has none."""
    is_ended: bool
    done: int | None = None
    """Requests that are answered or failed; None if the provider says it only at the end."""
    refusal: str = ""
    """Why the provider refused the batch as a whole; nothing of it was answered."""
    unanswered: Literal["", "expired", "cancelled"] = ""
    """Why requests of the ended batch may have no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """The answer to one request of a batch: a body as of a single request, or an error."""

    custom_id: str
    """Empty for a line that cannot be read."""
    body: bytes = b""
    fault: ModelError | None = None
    request_id: str | None = None


class BatchApi(Protocol):
    """The batch API of one server. All methods raise ModelError."""

    max_requests: int
    """Most requests of one batch."""
    max_bytes: int
    """Most bytes of one batch."""

    async def submit(self, sending: Submission, lines: Sequence[BatchLine]) -> str:
        """Create a batch and return its id."""
        ...

    async def find(self, sending: Submission) -> str:
        """Return the id of the batch that a submission created; empty if it created none."""
        ...

    async def status(self, batch_id: str) -> BatchStatus:
        """Return the state of a batch; error with status 404 if the provider has none."""
        ...

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch. Requests that are answered already keep their answers."""
        ...

    def answers(self, batch_id: str, custom_ids: Sequence[str]) -> AsyncGenerator[BatchAnswer]:
        """Yield the answers of an ended batch, in any order.

        Args:
            custom_ids: ids of its requests in their order.
        """
        ...


class BatchHttp:
    """Requests to the batch API of a client's server, with its key and headers."""

    def __init__(
        self, client: WireClient, headers: Mapping[str, str], *, version: tuple[str, str] = ("", "")
    ) -> None:
        """Take over the connection of a client.

        Args:
            headers: of each request, beside those of the client.
            version: end of the base URL's path, and what stands there for the batch API.
        """
        self._http = client.http_at(version)
        self.client, self._headers = client, headers

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path. Repeated after a fault."""
        return await self.send("GET", path, repeats=True)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        repeats: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of its reply.

        Args:
            repeats: True if a request that was sent twice does no harm.
        """
        attempt = 1
        while True:
            try:
                raw = await self._send_once(method, path, body, headers, once=not repeats)
                return _object_of(raw)
            except ModelError as error:
                wait_s = backoff_s(error, attempt, _RETRIES if repeats else 0)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)
            attempt += 1

    async def _send_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        *,
        once: bool,
    ) -> bytes:
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        headers = {**self._headers, **(headers or {})}
        response_coming = self._http.send(
            method, path, body, deadline=deadline, headers=headers, once=once
        )
        async with aclosing(await response_coming) as response:
            return await response.read(_MAX_REPLY_BYTES)

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the lines of a file that are not empty."""
        deadline = asyncio.get_running_loop().time() + _DOWNLOAD_TIMEOUT_S
        response_coming = self._http.send("GET", path, deadline=deadline, headers=self._headers)
        rest = bytearray()
        async with (
            aclosing(await response_coming) as response,
            aclosing(response.pieces(_MAX_RESULTS_BYTES)) as pieces,
        ):
            async for piece in pieces:
                rest += piece
                if b"\n" in piece:
                    *whole, rest = rest.split(b"\n")
                    for line in filter(bytes.strip, map(bytes, whole)):
                        yield line
                if len(rest) > _MAX_LINE_BYTES:
                    raise bad_response("a line of it is larger than 64 MB")
        if rest.strip():
            yield bytes(rest)


async def create_once(
    create: Callable[[], Awaitable[str]], find: Callable[[], Awaitable[str]]
) -> str:
    """Create a batch and return its id.

    After a fault it may exist, so it is looked for, unless the server said that it is too busy.
    """
    attempt = 1
    while True:
        try:
            return await create()
        except ModelError as error:
            wait_s = backoff_s(error, attempt, _RETRIES)
            if wait_s is None:
                raise
            was_refused = error.status in _TOO_BUSY
        await asyncio.sleep(wait_s)
        if not was_refused and (batch_id := await find()):
            return batch_id
        attempt += 1


def no_state_error(batch_id: str) -> ModelError:
    """Return the error of a batch whose provider does not say its state."""
    return ModelError(
        f"the provider does not say the state of the batch {batch_id}; it may be at work there: "
        "the same call asks for it again",
        code="LLM_BAD_RESPONSE",
    )


def unanswered_fault(why: str) -> ModelError:
    """Return the error of a request that its ended batch did not answer."""
    if why == "expired":
        text = "the batch expired at the provider before it came to this request"
        return ModelError(f"{text}; resume() asks it again", code="LLM_TIMEOUT")
    if why == "cancelled":
        text = "the batch was cancelled at the provider before it came to this request"
        return ModelError(f"{text}; resume() asks it again", code="ENGINE_ABORTED")
    text = "the provider's results have no answer to this request that can be read"
    return ModelError(f"{text}; resume() asks it again", code="LLM_BAD_RESPONSE")


def answer_with(custom_id: str, body: dict[str, Any] | None, request_id: str = "") -> BatchAnswer:
    """Return the answer with a body; one that is missing or nested too deeply is an error."""
    encoded = b""
    if body is not None:
        with suppress(TypeError, ValueError, RecursionError):
            encoded = dump_json(body)
    fault = None if encoded else unanswered_fault("")
    return BatchAnswer(
        custom_id=custom_id, body=encoded, fault=fault, request_id=request_id or None
    )


def read_line(line: bytes) -> dict[str, Any]:
    """Return the object in a line of results; empty if it cannot be read."""
    try:
        return json_object(load_wire(line)) or {}
    except ModelError:
        return {}


def id_of(reply: Mapping[str, Any], field: str = "id") -> str:
    """Return the id in a reply. Raises ModelError if there is none that can be used."""
    text = text_or_empty(reply.get(field))
    if _ID.fullmatch(text):
        return text
    raise bad_response(f"it names no id of a batch or file ({safe_line(text, 80)!r})")


def _object_of(raw: bytes) -> dict[str, Any]:
    reply = json_object(load_wire(raw))
    if reply is None:
        raise bad_response(f"it is no JSON object ({preview(raw)!r})")
    return reply
