"""How the front end's comm messages reach a run while its cell is still running.

The tap (ipykernel 7) sees our own messages in the thread that receives them, whatever the main
thread does. The pump lets the waiting main thread deliver everybody's. Both use internals of
ipykernel: what is missing there is found out, and the messages then arrive after the cell.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from IPython.core.getipython import get_ipython

Handler = Callable[[Any], object]
Way = Literal["tap", "pump", "none"]

_log = logging.getLogger("nbagent")
_COMM_TYPES = frozenset({"comm_open", "comm_msg", "comm_close"})
_POLLIN = 1  # zmq.POLLIN
_INSTALL_S = 1.0
_TAPPED = "_nbagent_tap"

_handlers: dict[str, Handler] = {}
_at_work: set[asyncio.Future[Any]] = set()


def this_kernel() -> Any | None:
    """The ipykernel that this process is, or None."""
    kernel = getattr(get_ipython(), "kernel", None)
    return kernel if hasattr(kernel, "session") and hasattr(kernel, "iopub_socket") else None


def register(comm_id: str, handler: Handler) -> None:
    """Hand the content of this comm's custom messages to `handler`, as soon as they arrive.

    It is called in whatever thread received the message, also in the middle of a tool: it must
    only set flags and resolve futures. What it prints is lost.
    """
    _handlers[comm_id] = handler


def unregister(comm_id: str) -> None:
    """Leave this comm's messages to the kernel again."""
    _handlers.pop(comm_id, None)


def install_tap() -> bool:
    """Listen where the kernel receives its messages (ipykernel >= 7). Once; true if it works."""
    kernel = this_kernel()
    if kernel is None:
        return False
    if getattr(kernel, _TAPPED, False):
        return True
    thread = getattr(kernel, "shell_channel_thread", None)
    loop = getattr(thread, "io_loop", None)
    stream = getattr(kernel, "shell_stream", None)
    receive = getattr(kernel, "shell_channel_thread_main", None)
    if loop is None or stream is None or receive is None:
        return False
    installed = threading.Event()

    async def tap(frames: Any) -> None:
        if _handlers and _take_ours(kernel, frames):
            return
        result = receive(frames)
        if inspect.isawaitable(result):
            await result

    def install() -> None:
        stream.on_recv(tap, copy=False)
        installed.set()

    try:
        loop.add_callback(install)
    except Exception:
        _log.debug("no tap", exc_info=True)
        return False
    setattr(kernel, _TAPPED, installed.wait(_INSTALL_S))
    return bool(getattr(kernel, _TAPPED))


def clicks_arrive_by() -> Way:
    """How our own messages arrive while a cell runs."""
    kernel = this_kernel()
    if kernel is None:
        return "none"
    if getattr(kernel, _TAPPED, False):
        return "tap"
    return "none" if _pump_of(kernel) is None else "pump"


class KernelPump:
    """Delivers comm messages while the main thread waits in a cell; the rest keeps its order.

    For `runtime.wait(pump=…)`. There is one for a kernel: nested waits share it.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.depth = 0
        self._works = True

    def __enter__(self) -> KernelPump:
        self.depth += 1
        self._works = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1

    def poll(self) -> None:
        """Deliver what has come."""
        try:
            if self._works:
                self._flush()
        except Exception:
            _log.debug("the pump failed and is off", exc_info=True)
            self._works = False

    def _flush(self) -> None:
        raise NotImplementedError


_pumps: list[KernelPump | None] = []
"""That of the kernel, once it was looked for; None if its internals are not known."""


def pump() -> KernelPump | None:
    """What delivers comm messages while this thread waits; None where nothing has to."""
    kernel = this_kernel()
    is_main = threading.current_thread() is threading.main_thread()
    return _pump_of(kernel) if kernel is not None and is_main else None


def _pump_of(kernel: Any) -> KernelPump | None:
    if not _pumps:
        _pumps.append(_SocketPump.find(kernel) or _QueuePump.find(kernel))
    return _pumps[0]


class _SocketPump(KernelPump):
    """ipykernel >= 7: the main thread's end of the pair of sockets from the receiving thread."""

    def __init__(self, kernel: Any, stream: Any) -> None:
        super().__init__(kernel)
        self._stream = stream
        self._held: deque[Any] = deque()
        self._original: Any = None

    @staticmethod
    def find(kernel: Any) -> _SocketPump | None:
        with suppress(Exception):
            stream = kernel.shell_channel_thread.manager._shell_channel_to_main.to_stream
            wanted = ("flush", "on_recv", "_recv_callback", "_run_callback")
            if all(hasattr(stream, name) for name in wanted):
                return _SocketPump(kernel, stream)
        return None

    def __enter__(self) -> KernelPump:
        if self._original is None:
            self._original = self._stream._recv_callback
            self._stream.on_recv(self._receive, copy=False)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__()
        if self.depth == 0:
            # Not before the loop runs again: the kernel must not see a later message first.
            self.kernel.io_loop.add_callback(self._release)

    def _flush(self) -> None:
        self._stream.flush(_POLLIN)

    def _release(self) -> None:
        if self.depth > 0 or self._original is None:
            return
        while self._held:
            self._stream._run_callback(self._original, self._held.popleft())
        self._stream.on_recv(self._original, copy=False)
        self._original = None

    def _receive(self, frames: Any) -> None:
        if self.depth > 0 and _type_of(self.kernel, frames) in _COMM_TYPES:
            _deliver(self.kernel, frames)
        else:
            self._held.append(frames)


class _QueuePump(KernelPump):
    """ipykernel 6: the queue of messages that the dispatcher will take after the cell."""

    @staticmethod
    def find(kernel: Any) -> _QueuePump | None:
        queue = getattr(kernel, "msg_queue", None)
        known = hasattr(queue, "get_nowait") and hasattr(queue, "put_nowait")
        known = known and hasattr(getattr(kernel, "shell_stream", None), "flush")
        return _QueuePump(kernel) if known else None

    def _flush(self) -> None:
        self.kernel.shell_stream.flush(_POLLIN)
        queue = self.kernel.msg_queue
        comms: list[Any] = []
        for _ in range(queue.qsize()):
            # Each goes back to the end at once, so that an interrupt here loses nothing.
            item = queue.get_nowait()
            if self._is_comm(item):
                comms.append(item)
            else:
                queue.put_nowait(item)
        for _, _, args in comms:
            _deliver(self.kernel, args[0])

    def _is_comm(self, item: Any) -> bool:
        with suppress(Exception):
            _, dispatch, args = item
            ours = getattr(dispatch, "__name__", "") == "dispatch_shell" and len(args) == 1
            return ours and _type_of(self.kernel, args[0]) in _COMM_TYPES
        return False


def _type_of(kernel: Any, frames: Any) -> str | None:
    with suppress(Exception):
        _, rest = kernel.session.feed_identities(frames, copy=False)
        return kernel.session.unpack(rest[1].bytes).get("msg_type")
    return None


def _take_ours(kernel: Any, frames: Any) -> bool:
    """Handle a message that is for one of our comms; false when it is not."""
    try:
        _, rest = kernel.session.feed_identities(frames, copy=False)
        peeked = kernel.session.deserialize(rest, content=False, copy=False)
        if peeked["msg_type"] != "comm_msg":
            return False
        content = kernel.session.unpack(peeked["content"])
        handler, data = _handlers.get(content["comm_id"]), content["data"]
        if handler is None or data.get("method") != "custom":
            return False
        # Whole, so that its signature is noted and it cannot be played twice.
        message = kernel.session.deserialize(rest, content=True, copy=False)
    except Exception:
        return False  # The kernel has its own words for a message that is not one.
    with _shown_busy(kernel, message):
        try:
            handler(data.get("content"))
        except Exception:
            _log.debug("a handler of a comm failed", exc_info=True)
    return True


def _deliver(kernel: Any, frames: Any) -> None:
    """Handle a comm message in the main thread, in the middle of a cell, as the kernel would."""
    if _take_ours(kernel, frames):
        return
    idents, rest = kernel.session.feed_identities(frames, copy=False)
    try:
        message = kernel.session.deserialize(rest, content=True, copy=False)
    except Exception:
        _log.debug("an invalid comm message", exc_info=True)
        return
    with _shown_busy(kernel, message):
        parent, ident = kernel.get_parent("shell"), kernel._parent_ident["shell"]
        kernel.set_parent(idents, message, channel="shell")
        try:
            result = kernel.shell_handlers[message["msg_type"]](None, idents, message)
            if inspect.isawaitable(result):
                _at_work.add(task := asyncio.ensure_future(result))
                task.add_done_callback(_at_work.discard)
        except Exception:
            kernel.log.error("Exception in message handler:", exc_info=True)
        finally:
            kernel.set_parent(ident, parent, channel="shell")


@contextmanager
def _shown_busy(kernel: Any, message: Any) -> Generator[None]:
    """Tell the front end when the message is done (widgets wait for it) and what goes on after."""
    _publish(kernel, "busy", message)
    try:
        yield
    finally:
        _publish(kernel, "idle", message)
        lock = getattr(kernel, "_main_asyncio_lock", None)
        if lock is None or lock.locked():
            # A cell is running: the last word on the kernel's state must not be idle.
            _publish(kernel, "busy", kernel.get_parent("shell"))


def _publish(kernel: Any, state: str, parent: Any) -> None:
    with suppress(Exception):
        kernel._publish_status(state, "shell", parent=parent)
