"""Delivers comm messages of the front end while a cell is running.

The tap (ipykernel 7) handles nbagent's own messages in the thread that receives them, even if the
main thread is blocked. The pump lets the waiting main thread deliver all comm messages. Both use
internals of ipykernel; if these are missing, messages arrive after the cell.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from IPython.core.getipython import get_ipython

Handler = Callable[[Any], object]
Delivery = Literal["tap", "pump", "none"]

_log = logging.getLogger("nbagent")
_COMM_TYPES = frozenset({"comm_open", "comm_msg", "comm_close"})
_POLLIN = 1  # zmq.POLLIN; pyzmq is ipykernel's dependency, not ours
_INSTALL_TIMEOUT_S = 1.0
_TAP_ATTRIBUTE = "_nbagent_tap"

_handlers: dict[str, Handler] = {}
_handler_tasks: set[asyncio.Future[Any]] = set()


def this_kernel() -> Any | None:
    """Return the ipykernel of this process; None outside of a kernel."""
    kernel = getattr(get_ipython(), "kernel", None)
    return kernel if hasattr(kernel, "session") and hasattr(kernel, "iopub_socket") else None


def register(comm_id: str, handler: Handler) -> None:
    """Call `handler` with the content of this comm's custom messages as soon as they arrive.

    It is called in the thread that received the message, possibly in the middle of a tool, so it
    must only set flags and resolve futures. Its prints are lost.
    """
    _handlers[comm_id] = handler


def unregister(comm_id: str) -> None:
    """Let the kernel handle this comm's messages again."""
    _handlers.pop(comm_id, None)


def install_tap() -> bool:
    """Wrap the kernel's receive callback (ipykernel >= 7), once. Return True if it works."""
    kernel = this_kernel()
    if kernel is None:
        return False
    if getattr(kernel, _TAP_ATTRIBUTE, False):
        return True
    thread = getattr(kernel, "shell_channel_thread", None)
    loop = getattr(thread, "io_loop", None)
    stream = getattr(kernel, "shell_stream", None)
    receive = getattr(kernel, "shell_channel_thread_main", None)
    if loop is None or stream is None or receive is None:
        return False
    installed = threading.Event()

    async def tap(frames: Any) -> None:
        if _handlers and _handle_own_message(kernel, frames):
            return
        result = receive(frames)
        if inspect.isawaitable(result):
            await result

    def install() -> None:
        stream.on_recv(tap, copy=False)
        installed.set()

    try:
        # In the receiver's thread: a zmq stream may be used by one thread only.
        loop.add_callback(install)
    except Exception:
        _log.debug("no tap", exc_info=True)
        return False
    setattr(kernel, _TAP_ATTRIBUTE, installed.wait(_INSTALL_TIMEOUT_S))
    return bool(getattr(kernel, _TAP_ATTRIBUTE))


def click_delivery() -> Delivery:
    """Return how nbagent's own messages arrive while a cell runs."""
    kernel = this_kernel()
    if kernel is None:
        return "none"
    if getattr(kernel, _TAP_ATTRIBUTE, False):
        return "tap"
    return "none" if _kernel_pump(kernel) is None else "pump"


class KernelPump:
    """Delivers comm messages while the main thread waits in a cell; others keep their order.

    For `runtime.wait(pump=…)`. One per kernel: nested waits share it.
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
        """Deliver the messages that have arrived."""
        try:
            if self._works:
                self._flush()
        except Exception:
            _log.debug("the pump failed and is off", exc_info=True)
            self._works = False

    def _flush(self) -> None:
        raise NotImplementedError


_pumps: list[KernelPump | None] = []
"""The kernel's pump after the first look-up; None if its internals are unknown."""


def pump() -> KernelPump | None:
    """Return the pump for this thread; None outside the main thread or without a known kernel."""
    kernel = this_kernel()
    is_main = threading.current_thread() is threading.main_thread()
    return _kernel_pump(kernel) if kernel is not None and is_main else None


def _kernel_pump(kernel: Any) -> KernelPump | None:
    if not _pumps:
        _pumps.append(_SocketPump.find(kernel) or _QueuePump.find(kernel))
    return _pumps[0]


class _SocketPump(KernelPump):
    """Pump for ipykernel >= 7: reads the main thread's end of the sockets from the receiver."""

    def __init__(self, kernel: Any, stream: Any) -> None:
        super().__init__(kernel)
        self._stream = stream
        self._queued: deque[Any] = deque()
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
            # On the loop's next turn: delivered now, a later message could overtake queued ones.
            self.kernel.io_loop.add_callback(self._release)

    def _flush(self) -> None:
        self._stream.flush(_POLLIN)

    def _release(self) -> None:
        if self.depth > 0 or self._original is None:
            return
        while self._queued:
            self._stream._run_callback(self._original, self._queued.popleft())
        self._stream.on_recv(self._original, copy=False)
        self._original = None

    def _receive(self, frames: Any) -> None:
        if self.depth > 0 and _type_of(self.kernel, frames) in _COMM_TYPES:
            _deliver(self.kernel, frames)
        else:
            self._queued.append(frames)


class _QueuePump(KernelPump):
    """Pump for ipykernel 6: takes comm messages out of the queue for the dispatcher."""

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
            # Each goes back to the end at once, so an interrupt here loses no message.
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


def _handle_own_message(kernel: Any, frames: Any) -> bool:
    """Handle a message for one of nbagent's comms; return False for other messages."""
    try:
        _, rest = kernel.session.feed_identities(frames, copy=False)
        # Only a peek: with the content the signature is recorded, and the kernel, which gets the
        # messages that are not ours, would refuse them as duplicates.
        peeked = kernel.session.deserialize(rest, content=False, copy=False)
        if peeked["msg_type"] != "comm_msg":
            return False
        content = kernel.session.unpack(peeked["content"])
        handler, data = _handlers.get(content["comm_id"]), content["data"]
        if handler is None or data.get("method") != "custom":
            return False
        # Deserialize all of it: this records the signature, so it cannot be replayed.
        message = kernel.session.deserialize(rest, content=True, copy=False)
    except Exception:
        return False  # the kernel reports invalid messages itself
    with _busy_status(kernel, message):
        try:
            # In a context of its own: a click that the pump delivers is a person's, also if the
            # pump runs inside a tool, whose own code may not answer questions.
            contextvars.Context().run(handler, data.get("content"))
        except Exception:
            _log.debug("a handler of a comm failed", exc_info=True)
    return True


def _deliver(kernel: Any, frames: Any) -> None:
    """Handle a comm message as the kernel would, in the main thread in the middle of a cell."""
    if _handle_own_message(kernel, frames):
        return
    idents, rest = kernel.session.feed_identities(frames, copy=False)
    try:
        message = kernel.session.deserialize(rest, content=True, copy=False)
    except Exception:
        _log.debug("an invalid comm message", exc_info=True)
        return
    with _busy_status(kernel, message):
        # Restored below: otherwise later output of the running cell would belong to this message.
        parent, ident = kernel.get_parent("shell"), kernel._parent_ident["shell"]
        kernel.set_parent(idents, message, channel="shell")
        try:
            result = kernel.shell_handlers[message["msg_type"]](None, idents, message)
            if inspect.isawaitable(result):
                # The loop holds tasks only weakly.
                _handler_tasks.add(task := asyncio.ensure_future(result))
                task.add_done_callback(_handler_tasks.discard)
        except Exception:
            kernel.log.error("Exception in message handler:", exc_info=True)
        finally:
            kernel.set_parent(ident, parent, channel="shell")


@contextmanager
def _busy_status(kernel: Any, message: Any) -> Generator[None]:
    """Publish busy and idle around a message: widgets wait for idle before they send more."""
    _publish(kernel, "busy", message)
    try:
        yield
    finally:
        _publish(kernel, "idle", message)
        lock = getattr(kernel, "_main_asyncio_lock", None)
        if lock is None or lock.locked():
            # A cell is still running, so the last published state must not be idle.
            _publish(kernel, "busy", kernel.get_parent("shell"))


def _publish(kernel: Any, state: str, parent: Any) -> None:
    with suppress(Exception):
        kernel._publish_status(state, "shell", parent=parent)
