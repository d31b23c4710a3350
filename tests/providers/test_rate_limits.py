"""Limits of a server are shared by all runs: who waits, how long, and that nobody is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply, Step

from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ChatResponse, ClientNotice, ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.catalogue import find_provider
from nbagent.providers.rate_limits import Limiter, RequestSlot

BUSY = {"Retry-After": "1"}
ASKED = ChatRequest(model="m", messages=(Message.of("user", "hi"),))


def unix_ms(seconds: float) -> str:
    return str(int((time.time() + seconds) * 1000))


def ten_a_second(served: deque[float], *, told: bool) -> list[Step]:
    """A server that refuses the eleventh request within a second."""

    def step(request: Visit) -> Reply:
        now = time.monotonic()
        while served and now - served[0] >= 1:
            served.popleft()
        left = 10 - len(served)
        reset_s = served[0] + 1 - now if served else 0
        limits = {"limit": 10, "remaining": max(0, left - 1), "reset": f"{reset_s * 1000:.0f}ms"}
        headers = {f"x-ratelimit-{what}-requests": str(it) for what, it in limits.items()}
        if left <= 0:
            return Reply(status=429, error={"error": {"message": "slow down"}}, headers=BUSY)
        served.append(now)
        return Reply("fine", headers=headers if told else {})

    return [step] * 1_000


@pytest.mark.parametrize("told", [True, False], ids=["limits are told", "only Retry-After"])
@pytest.mark.parametrize("runs", [16, pytest.param(32, marks=pytest.mark.proof)])
def test_runs_at_once_against_ten_requests_a_second_all_end_well(runs: int, told: bool) -> None:
    notices: list[ClientNotice] = []

    async def run(client: ChatClient) -> list[ChatResponse]:
        return [await client.chat(ASKED, notify=notices.append) for _ in range(2)]

    async def all_runs(url: str) -> list[list[ChatResponse]]:
        clients = [find_provider("openai").open(ProviderConfig(base_url=url)) for _ in range(runs)]
        try:
            return await asyncio.gather(*map(run, clients))
        finally:
            for client in clients:
                await client.close()

    with ModelServer(ten_a_second(deque(), told=told)) as server:
        answers = [one for made in asyncio.run(all_runs(server.url)) for one in made]
    assert {one.message.text for one in answers} == {"fine"}
    assert sum(one.meta.attempts > 2 for one in answers) <= 2, "a herd is refused once, then spread"
    assert max(one.meta.retry_wait_ms for one in answers) > 1_000
    assert Counter(notice.kind for notice in notices)["wait"] >= runs - 12
    assert all(notice.wait_s >= 0.1 for notice in notices if notice.kind == "wait")


def openai(kind: str, *texts: str, form: str = "x-ratelimit-{1}-{0}") -> dict[str, str]:
    """Headers of a limit: remaining, reset, limit; empty texts are left out."""
    named = zip(("remaining", "reset", "limit"), texts, strict=False)
    return {form.format(kind, name): text for name, text in named if text}


def anthropic(kind: str) -> dict[str, str]:
    in_30_s = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    return openai(kind, "0", in_30_s, "1000", form="anthropic-ratelimit-{0}-{1}")


TOLD = {
    "nothing": (dict[str, str], 3, (0, 0)),
    "no reset": (lambda: openai("requests", "0"), 3, (0, 0)),
    "no number": (lambda: openai("requests", "soon", "1s", "9"), 3, (0, 0)),
    "some are left": (lambda: openai("requests", "2", "9s"), 1, (0, 0)),
    "all are gone": (lambda: openai("requests", "2", "9s"), 2, (8.5, 9)),
    "milliseconds": (lambda: openai("requests", "0", "900ms", "9"), 0, (0.08, 0.1)),
    "fills up slowly": (lambda: openai("requests", "0", "1m0s", "60"), 0, (0.9, 1)),
    "tokens": (lambda: openai("tokens", "50", "59.5s", "6000"), 0, (0.4, 0.5)),
    "left to the server to refuse": (lambda: openai("requests", "0", "6m0s"), 0, (0, 0)),
    "OpenRouter": (
        lambda: {"x-ratelimit-remaining": "0", "x-ratelimit-reset": unix_ms(30)}, 0, (28, 30),
    ),
    "Anthropic": (lambda: anthropic("requests"), 0, (0.01, 0.03)),
    "Anthropic's tokens": (lambda: anthropic("input-tokens"), 0, (2.5, 3)),
}  # fmt: skip


@pytest.mark.timed
@pytest.mark.parametrize(("headers", "sent", "waits"), TOLD.values(), ids=TOLD)
def test_what_is_left_is_read_in_every_dialect(
    headers: Callable[[], dict[str, str]], sent: int, waits: tuple[float, float]
) -> None:
    async def send() -> float:
        limiter = Limiter()
        with RequestSlot(limiter, 0) as place:
            limiter.update(place, 200, headers())
        for _ in range(sent):
            with RequestSlot(limiter, 100) as place:
                await waited(place)
        return limiter.required_wait_s(100, time.monotonic())

    assert waits[0] <= asyncio.run(send()) <= waits[1]


def test_one_server_and_key_have_one_limiter() -> None:
    key = SecretKey("a key of a test")
    assert Limiter.shared("u", key) is Limiter.shared("u", SecretKey("a key of a test"))
    others = [
        Limiter.shared("v", key),
        Limiter.shared("u", None),
        Limiter.shared("u", SecretKey("another")),
    ]
    assert Limiter.shared("u", key) not in others


async def waited(place: RequestSlot, within_s: float = 5) -> list[float]:
    """Its turn came: what was told of the waiting."""
    deadline = asyncio.get_running_loop().time() + within_s
    told: list[float] = []
    while wait_s := await place.acquire(deadline):
        told.append(wait_s)
    return told


async def held(limiter: Limiter) -> RequestSlot:
    place = RequestSlot(limiter, 1)
    await waited(place)
    return place


def test_a_wait_of_more_than_a_minute_fails_all_that_wait_at_once() -> None:
    async def go() -> None:
        limiter = Limiter()
        busy = [await held(limiter), await held(limiter)]
        limiter.update(busy[0], 429, {}, 5)
        waiting = asyncio.create_task(waited(RequestSlot(limiter, 1), 60))
        await asyncio.sleep(0.05)
        limiter.update(busy[1], 429, {}, 3600)
        for each in (waiting, waited(RequestSlot(limiter, 1))):
            with pytest.raises(ModelError, match=r"3,600 s.*Try again later") as caught:
                await asyncio.wait_for(each, 10)
            assert (caught.value.code, caught.value.retryable) == ("LLM_RATE_LIMITED", False)
        limiter = Limiter()
        with RequestSlot(limiter, 1) as place:
            await waited(place)
            limiter.update(place, 429, {}, 3600)
        with RequestSlot(limiter, 1) as alone:  # A person who tries again is not kept from asking.
            assert await waited(alone) == []
            limiter.update(alone, 200, {})
        assert limiter.required_wait_s(1, time.monotonic()) == 0

    asyncio.run(go())


def test_the_answer_to_a_request_of_before_lifts_no_refusal() -> None:
    async def go() -> None:
        limiter = Limiter()
        early, refused = await held(limiter), await held(limiter)
        limiter.update(refused, 429, {}, 50)
        limiter.update(early, 200, {})
        assert limiter.required_wait_s(1, time.monotonic()) > 0
        for place in (early, refused):
            limiter.release(place)

    asyncio.run(go())


@pytest.mark.parametrize(("others", "free"), [(0, True), (1, False)], ids=["alone", "with another"])
def test_what_is_left_is_less_by_the_requests_without_an_answer_only(
    others: int, *, free: bool
) -> None:
    async def go() -> None:
        limiter = Limiter()
        place, *_ = [await held(limiter) for _ in range(1 + others)]
        limiter.update(place, 200, openai("requests", "1", "50s"))  # Its answer still streams.
        assert (limiter.required_wait_s(1, time.monotonic()) == 0) == free

    asyncio.run(go())


def test_a_cancelled_request_frees_its_slot_and_a_cancelled_waiter_its_place() -> None:
    async def hold(limiter: Limiter, went: asyncio.Event) -> None:
        with RequestSlot(limiter, 1) as place:
            await waited(place)
            went.set()
            await asyncio.sleep(60)

    async def go() -> None:
        limiter = Limiter()
        for place in [await held(limiter) for _ in range(40)]:
            limiter.release(place)
        went = [asyncio.Event() for _ in range(5)]
        holding = [asyncio.create_task(hold(limiter, went[0]))]
        await went[0].wait()
        with RequestSlot(limiter, 1) as refused:
            await waited(refused)
            limiter.update(refused, 429, {})  # No wait is named: one at once is what it takes.
        holding += [asyncio.create_task(hold(limiter, one)) for one in went[1:4]]
        await asyncio.sleep(1.3)
        holding.append(asyncio.create_task(hold(limiter, went[4])))
        await asyncio.sleep(0.05)
        assert not any(one.is_set() for one in went[1:])
        holding[0].cancel()  # The slot goes to the first in line.
        await asyncio.wait_for(went[1].wait(), 10)
        holding[2].cancel()
        holding[3].cancel()
        await asyncio.sleep(0.2)
        assert not went[4].is_set()
        holding[1].cancel()
        await asyncio.wait_for(went[4].wait(), 10)
        assert [one.is_set() for one in went] == [True, True, False, False, True]
        holding[4].cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        assert limiter.required_wait_s(1, time.monotonic()) == 0, "nothing is left taken"

    asyncio.run(go())
