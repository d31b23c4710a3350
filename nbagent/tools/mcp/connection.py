"""The one connection to a server: started at the first use, shared by all runs of the process.

Owns its task, its restart after a death, the timeouts and the last listing. All of it lives on the
engine's loop; the words of the protocol are `wire`'s, which is imported here when it is needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.secrets import redact_cut
from nbagent.tools.mcp.definitions import Listing, listing_of
from nbagent.tools.mcp.description import Description
from nbagent.tools.mcp.life import Life, NotStartedError
from nbagent.tools.mcp.texts import visible
from nbagent.tools.results import summary

if TYPE_CHECKING:
    from nbagent.tools.mcp.wire import Progress, Wire

_GRACE_S = 1.0
"""How long a call that was given up may take to tell the server so."""
_LIST_S = 20.0
_PROBE_S = 5.0
_SETTLE_S = 2.0
"""How long a call's outcome waits for the listing that the call brought about."""
_LAST_WORDS_S = 1.0
_CLOSE_S = 6.0
_BETWEEN_LISTINGS_S = 0.1
_MOST_TIMEOUTS = 10
"""Progress lengthens a call up to so many times its timeout."""
_ERROR_CHARS = 400

T = TypeVar("T")
Why = Literal["done", "stop", "timeout"]


class Broken(ToolError):
    """The server is not there: it did not start, or it ended while it worked.

    Attributes:
        advice: for the person alone: it names the command line, and so folders of this machine.
    """

    advice: str = ""


class _Alive:
    """One life of the connection."""

    def __init__(self) -> None:
        self.life = Life()
        self.opened: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.listed = asyncio.Event()
        """No listing is under way or due."""
        self.doubtful = False
        """A call timed out: ask for a sign of life before the next one."""
        self.failure: str = ""
        self.advised = False
        """`failure` ends with what to do."""

    @property
    def usable(self) -> bool:
        task = self.task
        return task is not None and not task.done() and not self.life.over.is_set()


class Connection:
    """To one server. Its methods are called on the engine's loop unless they say otherwise."""

    def __init__(self, server: Description) -> None:
        self.server = server
        self.listing = Listing({})
        """Read by any thread; replaced as a whole."""
        self._alive: _Alive | None = None
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._mode: str | None = None
        self._kept: set[asyncio.Task[Any]] = set()

    @property
    def is_open(self) -> bool:
        """Whether the server runs or is reached. Any thread."""
        return self._alive is not None and self._alive.usable and self._process == os.getpid()

    @property
    def pid(self) -> int | None:
        """The server's process, while there is one. Any thread."""
        alive = self._alive
        return alive.life.pid if alive is not None and self.is_open else None

    @property
    def version(self) -> str | None:
        """The protocol that was agreed on, while it is open. Any thread."""
        alive = self._alive
        return alive.opened.result().version if alive is not None and self.is_open else None

    def log_lines(self) -> list[str]:
        """The last lines that the server wrote to stderr or logged. Any thread."""
        return self._alive.life.log.lines() if self._alive is not None else []

    async def listed(self, *, anew: bool = False) -> Listing:
        """What the server lists, asked of it when that is due or `anew` is wanted.

        Raises:
            Broken: it does not start or does not answer.
        """
        fresh = not self.is_open
        alive = await self._ready()
        if anew and not fresh:
            try:
                async with asyncio.timeout(_LIST_S):
                    await self._list(alive)
            except Exception:
                alive.life.over.set()  # It hangs or is gone: a new one lists at its start.
                await self._ready()
        else:
            await self.settled(_LIST_S)
        return self.listing

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        cancel: CancelToken,
        progress: Progress,
    ) -> tuple[Any, Why, tuple[str, ...]]:
        """Call a tool of the server by its own name.

        Returns:
            the server's `CallToolResult` (None when it was given up), why it ended, and what the
            server asked for meanwhile and was refused.

        Raises:
            Broken: the server is not there (any more).
            Exception: what the protocol's package raised.
        """
        for attempt in (1, 2):
            loop = asyncio.get_running_loop()
            alive, why = await self._race(self._ready(), loop.create_future(), cancel)
            if alive is None:
                return None, why, ()
            try:
                result, why = await self._watched(alive, tool, arguments, cancel, progress)
            except Exception as error:
                wire = _wire()
                if wire.is_forgotten(error, alive.life) and attempt == 1:
                    alive.life.over.set()  # The server was restarted: it has not run this call.
                    continue
                if wire.is_closed(error) or not alive.usable:
                    raise await self._lost(alive, tool) from error
                raise
            if why == "timeout":
                alive.doubtful = True
            await self.settled(_SETTLE_S)
            return result, why, alive.life.take_refused()
        raise AssertionError("two attempts end above")

    async def settled(self, seconds: float) -> None:
        """Wait until a change of the tools that the server told of has been read."""
        if self._alive is not None and self._alive.usable:
            if self._alive.life.tools_changed.is_set():
                self._alive.listed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._alive.listed.wait()

    async def close(self) -> None:
        """End the connection and the server's process."""
        alive, self._alive = self._alive, None
        if alive is None or alive.task is None:
            return
        alive.life.leave()
        await asyncio.wait([alive.task], timeout=_CLOSE_S)

    async def _ready(self) -> _Alive:
        self._belong_here()
        async with self._lock:
            alive = self._alive
            if alive is not None and alive.usable and await self._answers(alive):
                return alive
            await self.close()
            self._alive = await self._start()
            return self._alive

    def _belong_here(self) -> None:
        """Forget what belongs to a loop that is gone, or to the process that this one forked of."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._process != os.getpid():
            _inherited.append(self._alive)
            self._loop, self._process = loop, os.getpid()
            self._alive, self._lock = None, asyncio.Lock()

    async def _answers(self, alive: _Alive) -> bool:
        if not alive.doubtful:
            return True
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._list(alive)
        except Exception:
            return False
        alive.doubtful = False
        return True

    async def _start(self) -> _Alive:
        wire = await asyncio.to_thread(_wire)
        mode = self._mode or wire.first_mode(self.server)
        alive = await self._open(mode)
        if alive.failure and alive.life.ended and mode == "auto" and self.server.url is None:
            # Some servers of the older protocols end at any request before `initialize`.
            second = await self._open("legacy")
            alive = second if not second.failure else alive
        if alive.failure:
            raise self._not_started(alive)
        if alive.opened.result().is_handshake and self.server.protocol == "auto":
            self._mode = "legacy"
        try:
            async with asyncio.timeout(_LIST_S):
                await self._list(alive)
        except asyncio.CancelledError:
            alive.life.over.set()
            raise
        except Exception as error:
            alive.life.over.set()
            alive.failure = f"it does not list its tools ({_told(error)})"
            raise self._not_started(alive) from None
        return alive

    async def _open(self, mode: str) -> _Alive:
        """A new life; what went wrong stands in its `failure`."""
        alive = _Alive()
        alive.task = asyncio.create_task(self._main(alive, mode), name=self.server.host_name)
        try:
            await asyncio.wait(
                [alive.opened, alive.task],
                timeout=self.server.start_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:
            alive.task.cancel()
            raise
        if not alive.opened.done():
            alive.advised = not alive.failure or alive.advised
            alive.failure = alive.failure or (
                f"it has not answered within {self.server.start_timeout_s:g} s; "
                "give it more with start_timeout=…"
            )
            alive.task.cancel()
            await asyncio.wait([alive.task], timeout=_CLOSE_S)
        return alive

    async def _main(self, alive: _Alive, mode: str) -> None:
        """The task that enters and leaves the connection's contexts."""
        helper: asyncio.Task[None] | None = None
        watch: asyncio.Task[None] | None = None
        try:
            async with _wire().connected(self.server, alive.life, mode=mode) as wire:
                alive.opened.set_result(wire)
                helper = asyncio.create_task(self._follow(alive))
                watch = asyncio.create_task(wire.watch_tools(alive.life))
                await alive.life.over.wait()
                for task in (helper, watch):
                    task.cancel()
        except NotStartedError as error:
            alive.failure, alive.advised = str(error), True
        except Exception as error:
            alive.failure = alive.failure or _told(error)
        finally:
            for task in (helper, watch):
                if task is not None:
                    task.cancel()
            alive.life.over.set()
            alive.listed.set()

    async def _follow(self, alive: _Alive) -> None:
        """List anew whenever the server says that its tools have changed."""
        while True:
            await alive.life.tools_changed.wait()
            alive.listed.clear()
            with suppress(Exception):
                async with asyncio.timeout(_LIST_S):
                    await self._list(alive)
            # A server that says so all the time is not asked all the time.
            await asyncio.sleep(_BETWEEN_LISTINGS_S)

    async def _list(self, alive: _Alive) -> None:
        alive.life.tools_changed.clear()
        try:
            alive.life.take_left_out()
            tools = await alive.opened.result().list_tools()
            left_out = alive.life.take_left_out()
            # In a thread: whoever wrote the definitions may want it to take long.
            self.listing = await asyncio.to_thread(listing_of, self.server, tools, left_out)
        finally:
            alive.listed.set()

    async def _watched(
        self,
        alive: _Alive,
        tool: str,
        arguments: dict[str, Any],
        cancel: CancelToken,
        progress: Progress,
    ) -> tuple[Any, Why]:
        over: asyncio.Future[Why] = asyncio.get_running_loop().create_future()
        clock = _Clock(self.server.timeout_s, lambda: _end(over, "timeout"))

        def on_progress(done: float, total: float | None, text: str | None) -> None:
            clock.wind()
            progress(done, total, text)

        call: Coroutine[Any, Any, Any] = alive.opened.result().call(tool, arguments, on_progress)
        try:
            return await self._race(call, over, cancel)
        finally:
            clock.stop()

    async def _race(
        self, work: Coroutine[Any, Any, T], over: asyncio.Future[Why], cancel: CancelToken
    ) -> tuple[T | None, Why]:
        """Do it until it is done, stopped, or `over` for another reason."""
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: _end(over, "done"))
        forget = cancel.on_set(lambda: loop.call_soon_threadsafe(_end, over, "stop"))
        try:
            why = await over
        except asyncio.CancelledError:
            self._give_up(task)
            raise
        finally:
            forget()
        if why == "done":
            return task.result(), why
        self._give_up(task)
        await asyncio.wait([task], timeout=_GRACE_S)
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result(), "done"  # It was just ready.
        return None, why

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """Cancel a call; the server is told by it. The loop itself holds its tasks weakly."""

        def forget(done: asyncio.Task[Any]) -> None:
            self._kept.discard(done)
            if not done.cancelled():
                done.exception()

        self._kept.add(task)
        task.add_done_callback(forget)
        task.cancel()

    async def _lost(self, alive: _Alive, tool: str) -> Broken:
        """The error for a call during which the server went away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await alive.life.over.wait()
        name, life = self.server.name, alive.life
        alive.life.over.set()
        if self.server.url is not None:
            what = "the connection was lost" + _status(life.http_status)
            if alive.failure:
                what += f" ({alive.failure})"
        else:
            code = "" if life.exit_code is None else f" (exit code {life.exit_code})"
            what = f"the server ended{code}"
        return Broken(
            f"{what} while {tool} ran on the MCP server {name!r}, what it did so far is unknown"
            f"{life.log.quoted()}; the next call starts it again",
            details={"server": name, "exit_code": life.exit_code},
        )

    def _not_started(self, alive: _Alive) -> Broken:
        life = alive.life
        what = alive.failure + _status(life.http_status)
        if life.ended and life.exit_code is not None:
            what = f"it ended at once (exit code {life.exit_code})"
            alive.advised = False
        check = "its URL and headers" if self.server.url is not None else "its command"
        broken = Broken(
            f"the MCP server {self.server.name!r} did not start: {what}{life.log.quoted()}"
            f"{'' if alive.advised else f'; check {check}'}",
            details={"server": self.server.name},
        )
        broken.advice = f" ({self.server.where})"
        return broken


class _Clock:
    """Ends a call that gives no sign of life; progress winds it up, though not for ever."""

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._ring = seconds, ring
        self._last = self._loop.time() + _MOST_TIMEOUTS * seconds
        self._timer = self._loop.call_later(seconds, ring)

    def wind(self) -> None:
        self._timer.cancel()
        at = min(self._loop.time() + self._seconds, self._last)
        self._timer = self._loop.call_at(at, self._ring)

    def stop(self) -> None:
        self._timer.cancel()


def _end(over: asyncio.Future[Why], why: Why) -> None:
    if not over.done():
        over.set_result(why)


def _status(status: int | None) -> str:
    if status is None:
        return ""
    return f" (HTTP {status}{': check the headers' if status in (401, 403) else ''})"


def _told(error: BaseException) -> str:
    """The innermost reason, short: the package wraps them in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return redact_cut(visible(summary(error), _ERROR_CHARS))


def refusal_of(error: BaseException) -> tuple[int, str] | None:
    """Code and message, when the server answered with an error of the protocol."""
    # Such an error can only have come from a module that is loaded.
    return _wire().refusal_of(error)


_importing = threading.Lock()
_inherited: list[Any] = []
"""Never freed: a forked copy that is tidied up would end the parent's server."""


def _wire() -> Any:
    with _importing:
        check_installed()
        try:
            return import_module("nbagent.tools.mcp.wire")
        except ImportError as error:
            raise _missing(f" ({error})") from None


def check_installed() -> None:
    """Raises a UsageError when the package `mcp` is not there. Imports nothing."""
    if find_spec("mcp") is None:
        raise _missing("")


def _missing(why: str) -> UsageError:
    return UsageError(
        f"MCP servers need the package mcp, version 2{why}; install it with "
        "%pip install 'nbagent[mcp]' and restart the kernel"
    )
