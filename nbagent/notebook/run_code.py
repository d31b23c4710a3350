"""Runs Python in the notebook for the tool `nb.run` (port `RunCode`).

Owns the temporary replacements around the code, which are always undone: streams that record
prints, the hook for the value, the display publisher. Leaves no trace in `In`, `Out` and `_`. The
tool decides what the model reads of the outcome.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from IPython.core.interactiveshell import ExecutionResult
from IPython.display import display

from nbagent.contracts.messages import ImagePart
from nbagent.contracts.secrets import StreamFilter, redact_json
from nbagent.contracts.tools import CodeOutcome
from nbagent.sandbox.script_output import Output
from nbagent.shown.images import to_image

_MAX_DISPLAYS = 50
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_async_code_locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
"""Serializes code with `await` on each loop: two at a time would replace each other's streams. A
lock belongs to one loop, and a process may have several, one after the other."""


def run_code(
    shell: Any, code: str, *, keep_bytes: int
) -> CodeOutcome | Coroutine[Any, Any, CodeOutcome]:
    """Run code in a shell; see `RunCode`. Return a coroutine if the code has an `await`."""
    awaits: bool = shell.should_run_async(code, transformed_cell=code)
    if awaits:
        return _run_in_turn(shell, code, keep_bytes)
    work = _run(shell, code, keep_bytes)
    # Without an await it never suspends, so it needs no event loop; the thread's own one is busy.
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("code without an await did not finish at once")


async def _run_in_turn(shell: Any, code: str, keep_bytes: int) -> CodeOutcome:
    lock = _async_code_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        return await _run(shell, code, keep_bytes)


async def _run(shell: Any, code: str, keep_bytes: int) -> CodeOutcome:
    # A compiler of its own, so that `from __future__` lines do not affect the person's cells.
    compiler, result = shell.compiler_class(), ExecutionResult(None)
    file = compiler.cache(code, shell.execution_count)
    values: list[Any] = []
    displays = _DisplayCapture(shell.display_pub)
    figures = open_figures()
    stdout, stderr = Output(keep_bytes), Output(keep_bytes)
    with (
        shell.builtin_trap,
        replaced_streams(
            CapturingStream(sys.stdout, stdout.add, _limited_writer(keep_bytes, sys.stdout)),
            CapturingStream(sys.stderr, stderr.add, _limited_writer(keep_bytes, sys.stderr)),
        ),
        replaced_attributes(sys, displayhook=values.append),
        # The model gets the error of the code; the person's cell must not show it.
        replaced_attributes(shell, showtraceback=lambda *args, **options: None),
        replaced_attributes(shell.display_pub, publish=displays.publish),
    ):
        nodes = compiler.ast_parse(code, file).body
        await shell.run_ast_nodes(nodes, file, compiler=compiler, result=result)
        made = finish_figures(figures, in_window=displays.record_figure)
        if values and not any(values[-1] is figure for figure in made):
            _show_picture(shell, values[-1])
    error = result.error_in_exec or result.error_before_exec
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        raise error
    return CodeOutcome(
        value=values[-1] if values and error is None else None,
        stdout=stdout.text,
        stderr=stderr.text,
        displays=tuple(displays.recorded),
        error=error and _without_shell_frames(error, file),
    )


def _show_picture(shell: Any, value: object) -> None:
    """Display a value that has an image."""
    # A `repr` method that fails must not make the code fail, which has ended.
    with suppress(Exception):
        data, metadata = shell.display_formatter.format(value, include=IMAGE_TYPES)
        if data:
            shell.display_pub.publish(data=data, metadata=metadata)


@contextmanager
def replaced_attributes(target: Any, **attributes: Any) -> Generator[None]:
    """Replace attributes temporarily; restore them even if the code has changed them."""
    before = {name: getattr(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def _without_shell_frames(error: BaseException, file: str) -> BaseException:
    """Drop IPython's frames before the code from the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


@contextmanager
def replaced_streams(stdout: CapturingStream, stderr: CapturingStream) -> Generator[None]:
    """Replace stdout and stderr temporarily."""
    try:
        with replaced_attributes(sys, stdout=stdout, stderr=stderr):
            yield
    finally:
        stdout.end()
        stderr.end()


class CapturingStream:
    """Wraps a stream: records what is written, and passes it on without secrets.

    Code may keep it and write to it later; then it writes to the wrapped stream.
    """

    def __init__(
        self, stream: Any, keep: Callable[[bytes], object], hand_on: Callable[[str], object]
    ) -> None:
        self._stream, self._keep, self._hand_on = stream, keep, hand_on
        self._filter = StreamFilter()
        self._lock = threading.RLock()
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        data = str.encode(text, "utf-8", "replace")
        with self._lock:
            if self._is_over:
                self._stream.write(text)
            else:
                self._keep(data)
                self._hand_on(self._filter.feed(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        # Only flush: the code did not open the wrapped stream.
        self._stream.flush()

    def end(self) -> None:
        """Stop recording; later writes go to the wrapped stream."""
        with self._lock:
            self._hand_on(self._filter.flush())
            self._is_over = True


def _limited_writer(most_chars: int, stream: Any) -> Callable[[str], None]:
    """Return a function that writes up to `most_chars` to a stream, then a note."""
    left = most_chars

    def write(text: str) -> None:
        nonlocal left
        if text and left > 0:
            stream.write(text[:left])
            left -= len(text)
            if left <= 0:
                stream.write("\n… the rest of this output is not shown …\n")

    return write


class _DisplayCapture:
    """Records the first displays of the code, and passes all on to the cell without secrets."""

    def __init__(self, publisher: Any) -> None:
        self.recorded: list[dict[str, Any]] = []
        self._publish = publisher.publish
        self._thread = threading.get_ident()

    def publish(self, data: Any, *args: Any, **options: Any) -> None:
        """Replace the publisher's `publish`."""
        # The live view of a run publishes in another thread.
        if threading.get_ident() == self._thread:
            self.record(data)
        forms = {
            kind: content if kind in IMAGE_TYPES else redact_json(content)
            for kind, content in data.items()
        }
        self._publish(forms, *args, **options)

    def record(self, data: dict[str, Any]) -> None:
        """Record a display for the model."""
        if len(self.recorded) == _MAX_DISPLAYS:
            data = {"text/plain": f"… only the first {_MAX_DISPLAYS} displays were kept …"}
        if len(self.recorded) <= _MAX_DISPLAYS:
            self.recorded.append(dict(data))

    def record_figure(self, figure: object) -> None:
        """Record a figure for the model only: its window or widget shows it already."""
        if isinstance(image := to_image(figure), ImagePart):
            self.record({"image/png": image.data})


# Figures of matplotlib


def finish_figures(
    before: list[Any],
    returned: Sequence[Any] = (),
    in_window: Callable[[Any], None] = lambda figure: None,
) -> list[Any]:
    """Display and close figures that are new and still open, as at the end of a cell.

    Args:
        before: figures that were open before; they are left alone.
        returned: figures that are in the result already; they are closed but not displayed.
        in_window: called with each figure that a window or a widget shows; it stays open.

    Returns:
        The new figures.
    """
    made = [figure for figure in open_figures() if not any(figure is old for old in before)]
    for figure in made:
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        if "inline" not in str(pyplot.get_backend()).lower():
            in_window(figure)
            continue
        with suppress(Exception):
            if not any(figure is other for other in returned):
                display(figure)
            pyplot.close(figure)
    return made


def open_figures() -> list[Any]:
    """Return pyplot's open figures; empty if pyplot is not imported."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None or "matplotlib.pyplot" not in sys.modules:
        return []
    return [manager.canvas.figure for manager in helpers.Gcf.get_all_fig_managers()]
