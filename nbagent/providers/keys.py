"""How a key reaches a request: the header that carries it, and keys that a function returns.

Such a function is called for each request and nothing is cached: it knows when its token expires.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import KeySource, SecretKey

Key = SecretKey | KeySource
"""A key, or the function that returns one."""


@dataclass(frozen=True, slots=True)
class KeyHeader:
    """The header that carries a key."""

    name: str = "Authorization"
    prefix: str = "Bearer "
    tokens_as_bearer: bool = False
    """A JSON web token goes as `Authorization: Bearer` instead. It has three parts, the first of
    them JSON in base64 ("ey…")."""

    def names(self) -> frozenset[str]:
        """Names of the headers, in lower case; a person's own header of such a name replaces it."""
        bearer = {"authorization"} if self.tokens_as_bearer else set[str]()
        return frozenset({self.name.lower()} | bearer)

    def encode(self, key: SecretKey) -> dict[str, str]:
        """Return the header with this key. Raises ModelError for a text that cannot be a key."""
        text = key.reveal().strip()
        if not text.isascii() or not text.isprintable():
            message = "the key contains characters that no key contains; copy it again."
            raise ModelError(message, code="LLM_AUTH_FAILED")
        if self.tokens_as_bearer and text.startswith("ey") and text.count(".") == 2:
            return {"Authorization": f"Bearer {text}"}
        return {self.name: self.prefix + text}


async def current_key(key: Key | None, deadline: float) -> SecretKey | None:
    """Return the key for the next request; ask its function before the deadline (loop time).

    The function runs in a thread of its own: it may block, and this loop belongs to all runs.

    Raises:
        ModelError: the function raised, returned no key, or did not return in time.
    """
    if not isinstance(key, KeySource):
        return key
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[object] = loop.create_future()

    def ask() -> None:
        result = _call(key)
        with suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(_settle, arrived, result)

    # A daemon: the end of the process must not wait for a function that blocks.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(ask,), name="nbagent-key", daemon=True
    )
    thread.start()
    try:
        async with asyncio.timeout_at(deadline):
            return _checked(await arrived)
    except TimeoutError:
        pass
    raise ModelError(
        "the function in api_key= did not return a key in time; check it, or raise timeout_s.",
        code="LLM_TIMEOUT",
    )


def _call(source: KeySource) -> object:
    """Return what the function returns, or a ModelError with nothing of its own error's words."""
    try:
        result = source()
        if inspect.isawaitable(result):
            # Not `asyncio.run`: nest_asyncio replaces it.
            with asyncio.Runner() as runner:
                return runner.run(_awaited(cast("Awaitable[object]", result)))
        return result
    except BaseException as error:  # SystemExit of a login tool, too, is only this.
        # Its message may hold the key that it tried.
        return ModelError(
            f"the function in api_key= failed ({type(error).__name__}); call it yourself to see"
            " why.",
            code="LLM_AUTH_FAILED",
        )


async def _awaited(coming: Awaitable[object]) -> object:
    return await coming


def _settle(arrived: asyncio.Future[object], result: object) -> None:
    if not arrived.done():
        arrived.set_result(result)


def _checked(result: object) -> SecretKey:
    """Return the key in a function's result. Raises ModelError."""
    if isinstance(result, ModelError):
        raise result
    if isinstance(result, str):
        # Not its own method: a subclass may bring one that fails with the key in its words.
        # Some return the scheme along with the key.
        result = SecretKey(str.strip(result).removeprefix("Bearer ").strip())
    if isinstance(result, SecretKey) and result:
        return result
    kind = "an empty text" if isinstance(result, SecretKey) else type(result).__name__
    raise ModelError(
        f"the function in api_key= returned {kind}, not a key; it must return the key as a text.",
        code="LLM_AUTH_FAILED",
    )
