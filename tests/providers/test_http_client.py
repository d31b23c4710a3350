"""The client that all wires share: where it asks, with which headers, and whose error it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from servers.hostile_server import HostileServer, fine
from servers.loopback import Loopback

from nbagent.contracts.secrets import SecretKey
from nbagent.providers.http import HttpClient
from nbagent.providers.streams import Backend, StaleConnection

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
    assert (second.headers.get("authorization"), second.headers.get("beta")) == ("own", "one")
    assert [visit.head.lower().count("\r\naccept:") for visit in (first, second)] == [1, 1]


def test_what_comes_before_a_request_was_sent_is_not_read_as_its_answer() -> None:
    seen: list[bytes] = []

    class Talkative(Loopback):
        async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.read(100))
            writer.write(b"answer")
            await asyncio.sleep(0.02)
            writer.write(b"unasked")
            seen.append(await reader.read(100))

    async def ask_twice(port: int) -> None:
        stream = await Backend().connect_tcp("127.0.0.1", port)
        await stream.write(b"first")
        assert await stream.read(100) == b"answer"
        await asyncio.sleep(0.1)
        await stream.write(b"second")
        with pytest.raises(StaleConnection):
            await stream.read(100)
        await stream.aclose()
        await asyncio.sleep(0.05)

    with Talkative() as server:
        asyncio.run(ask_twice(server.port))
    assert seen in ([b"first"], [b"first", b""]), "the second request stays here"
