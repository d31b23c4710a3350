"""Two ports. `RunCode`, for `nb.run`: a piece of Python runs in the notebook as a cell of it.
`Capture`: what a tool prints and displays goes to its card and not to the cell.

Owns what stands around the code and is taken away whatever happens: the streams that keep what is
printed, the hook for the value, the publisher. Leaves no trace in `In`, `Out` and `_`. What a model
reads of the outcome is the tool's.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from IPython.core.interactiveshell import ExecutionResult
from IPython.display import display

from nbagent.contracts.messages import ImagePart
from nbagent.contracts.secrets import StreamFilter, redact_json
from nbagent.contracts.tools import CodeOutcome
from nbagent.sandbox.script_output import Output
from nbagent.shown.images import image_of

_MOST_DISPLAYS = 50
PICTURE_FORMS = ("image/png", "image/jpeg", "image/gif", "image/webp")
_one_at_a_time = asyncio.Lock()
"""Code that awaits: two of them would take each other's streams away."""


def run_code(
    shell: Any, code: str, *, keep_bytes: int
) -> CodeOutcome | Coroutine[Any, Any, CodeOutcome]:
    """Run code in a shell; see `RunCode`."""
    awaits: bool = shell.should_run_async(code, transformed_cell=code)
    work = _run(shell, code, keep_bytes, _one_at_a_time if awaits else nullcontext())
    if awaits:
        return work
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("code without an await has waited for something")


async def _run(shell: Any, code: str, keep_bytes: int, turn: Any) -> CodeOutcome:
    async with turn:
        # With a compiler of its own its `from __future__` lines hold for no cell of the person's.
        compiler, result = shell.compiler_class(), ExecutionResult(None)
        file = compiler.cache(code, shell.execution_count)
        values: list[Any] = []
        displays = _Displays(shell.display_pub)
        figures = open_figures()
        stdout, stderr = Output(keep_bytes), Output(keep_bytes)
        with (
            shell.builtin_trap,
            streams_replaced(
                Stream(sys.stdout, stdout.add, _up_to(keep_bytes, sys.stdout)),
                Stream(sys.stderr, stderr.add, _up_to(keep_bytes, sys.stderr)),
            ),
            replaced(sys, displayhook=values.append),
            # The error of the code is the model's; the person's cell goes on.
            replaced(shell, showtraceback=lambda *args, **options: None),
            replaced(shell.display_pub, publish=displays.publish),
        ):
            nodes = compiler.ast_parse(code, file).body
            await shell.run_ast_nodes(nodes, file, compiler=compiler, result=result)
            made = finish_figures(figures, in_window=displays.keep_figure)
            if values and not any(values[-1] is figure for figure in made):
                _show_picture(shell, values[-1])
    error = result.error_in_exec or result.error_before_exec
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        raise error
    return CodeOutcome(
        value=values[-1] if values and error is None else None,
        stdout=stdout.text,
        stderr=stderr.text,
        displays=tuple(displays.kept),
        error=error and _from_the_code_on(error, file),
    )


def _show_picture(shell: Any, value: object) -> None:
    """Show a value that has a picture."""
    with suppress(Exception):
        data, metadata = shell.display_formatter.format(value, include=PICTURE_FORMS)
        if data:
            shell.display_pub.publish(data=data, metadata=metadata)


@contextmanager
def replaced(target: Any, **attributes: Any) -> Generator[None]:
    """Other attributes for a while; afterwards what was there, whatever the code made of them."""
    before = {name: getattr(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def _from_the_code_on(error: BaseException, file: str) -> BaseException:
    """The error without the frames of IPython that led to the code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


@contextmanager
def streams_replaced(stdout: Stream, stderr: Stream) -> Generator[None]:
    """Other streams for a while."""
    try:
        with replaced(sys, stdout=stdout, stderr=stderr):
            yield
    finally:
        stdout.end()
        stderr.end()


class Stream:
    """Stands for a stream: keeps what is written, and hands it on without the secrets in it.

    Code may keep it and write to it later: that goes to the stream itself.
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
        # The stream stays open: the code did not open it.
        self._stream.flush()

    def end(self) -> None:
        """From now on it is the stream itself."""
        with self._lock:
            self._hand_on(self._filter.flush())
            self._is_over = True


def _up_to(most_chars: int, stream: Any) -> Callable[[str], None]:
    """Writes the first characters to a stream, and says that there were more."""
    left = most_chars

    def write(text: str) -> None:
        nonlocal left
        if text and left > 0:
            stream.write(text[:left])
            left -= len(text)
            if left <= 0:
                stream.write("\n… the rest of this output is not shown …\n")

    return write


class _Displays:
    """Keeps what the code displays first, and hands all on to the cell without its secrets."""

    def __init__(self, publisher: Any) -> None:
        self.kept: list[dict[str, Any]] = []
        self._publish = publisher.publish
        self._thread = threading.get_ident()

    def publish(self, data: Any, *args: Any, **options: Any) -> None:
        """In the place of the publisher's own."""
        # The live view of a run publishes in another thread.
        if threading.get_ident() == self._thread:
            self.keep(data)
        forms = {
            kind: it if kind in PICTURE_FORMS else redact_json(it) for kind, it in data.items()
        }
        self._publish(forms, *args, **options)

    def keep(self, data: dict[str, Any]) -> None:
        """For the model."""
        if len(self.kept) == _MOST_DISPLAYS:
            data = {"text/plain": f"… only the first {_MOST_DISPLAYS} displays were kept …"}
        if len(self.kept) <= _MOST_DISPLAYS:
            self.kept.append(dict(data))

    def keep_figure(self, figure: object) -> None:
        """For the model alone: its window or widget shows it already."""
        if isinstance(image := image_of(figure), ImagePart):
            self.keep({"image/png": image.data})


# Of a tool, for its card


def finish_figures(
    before: list[Any],
    returned: Sequence[Any] = (),
    in_window: Callable[[Any], None] = lambda figure: None,
) -> list[Any]:
    """Show the figures that were made since and left open, as at the end of a cell; close them.

    Args:
        before: the person's own, which stay theirs.
        returned: those that a result has already.
        in_window: is given each that a window or a widget shows; it stays open.
    """
    made = [figure for figure in open_figures() if not any(figure is old for old in before)]
    for figure in made:
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        if "inline" not in str(pyplot.get_backend()).lower():
            in_window(figure)
            continue
        with suppress(Exception):
            if not any(figure is it for it in returned):
                display(figure)
            pyplot.close(figure)
    return made


def open_figures() -> list[Any]:
    """The figures that pyplot holds, if it was imported."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None or "matplotlib.pyplot" not in sys.modules:
        return []
    return [manager.canvas.figure for manager in helpers.Gcf.get_all_fig_managers()]
