"""The client that all wires share: where it asks, with which headers, and whose error it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from servers.hostile_cases import refused
from servers.hostile_server import HostileServer, fine, whole
from servers.loopback import Visit

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.http import HttpClient

KEY = "sk-shared-0123456789abcdefghij"


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer({"it": fine}) as running:
        yield running


def post(
    base_url: str, path: str = "/chat", more: dict[str, str] | None = None, **options: Any
) -> bytes:
    """One request and its whole answer."""

    async def exchange() -> bytes:
        client = HttpClient(base_url, **options)
        deadline = asyncio.get_running_loop().time() + 10
        try:
            response = await client.send("POST", path, b"{}", deadline=deadline, headers=more)
            try:
                return await response.read()
            finally:
                await response.aclose()
        finally:
            await client.aclose()

    return asyncio.run(exchange())


def test_a_key_has_the_header_of_its_wire_and_headers_replace_each_other(
    server: HostileServer,
) -> None:
    key = SecretKey(KEY)
    given = {"Beta": "one", "accept": "text/plain"}
    post(server.url("it"), key=key, key_header="x-api-key", key_prefix="", headers=given)
    post(server.url("it"), more={"beta": "two"}, key=key, headers={**given, "AUTHORIZATION": "own"})
    first, second = server.visits["it"]
    assert (first.headers.get("x-api-key"), first.headers.get("beta")) == (KEY, "one")
    assert first.headers.get("authorization") is None
    assert (second.headers.get("authorization"), second.headers.get("beta")) == ("own", "two")
    assert [visit.head.lower().count("\r\naccept:") for visit in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (refused("400 X", message="odd"), (400, {"error": {"message": "odd"}})),
        (whole(b"<p>no", "503 X"), (503, None)),
    ],
)
def test_a_wire_is_asked_first_what_a_refusal_means(
    server: HostileServer, answer: bytes, seen: tuple[int, Any]
) -> None:
    calls: list[tuple[int, Any]] = []

    async def refuse(visit: Visit) -> None:
        await visit.send(answer)

    def special(status: int, headers: Mapping[str, str], body: Any) -> ModelError | None:
        calls.append((status, body))
        assert int(headers["content-length"])
        return ModelError("of this wire", code="LLM_QUOTA_EXCEEDED") if status == 400 else None

    server.faults["it"] = refuse
    with pytest.raises(ModelError) as caught:
        post(server.url("it"), fault=special)
    assert calls == [seen]
    assert caught.value.code == ("LLM_QUOTA_EXCEEDED" if seen[0] == 400 else "LLM_HTTP_ERROR")
