"""The port `RunCode`: a piece of Python runs in the notebook as a cell of it, for `nb.run`.

Owns what stands around the code and is taken away whatever happens: the streams that keep what is
printed, the hook for the value, the publisher. Leaves no trace in `In`, `Out` and `_`. What a model
reads of the outcome is the tool's.
"""

# IPython has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from IPython.core.interactiveshell import ExecutionResult
from IPython.display import display

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.ports import CodeOutcome
from nbagent.contracts.secrets import StreamFilter, redact_json
from nbagent.sandbox.outputs import Output
from nbagent.shown.pictures import image_of

_MOST_DISPLAYS = 50
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
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
        figures = _open_figures()
        stdout, stderr = _Tee(sys.stdout, keep_bytes), _Tee(sys.stderr, keep_bytes)
        try:
            with (
                shell.builtin_trap,
                _instead(sys, stdout=stdout, stderr=stderr, displayhook=values.append),
                # The error of the code is the model's; the person's cell goes on.
                _instead(shell, showtraceback=lambda *args, **options: None),
                _instead(shell.display_pub, publish=displays.publish),
            ):
                nodes = compiler.ast_parse(code, file).body
                await shell.run_ast_nodes(nodes, file, compiler=compiler, result=result)
                _show_pictures(shell, values[-1:], displays, figures)
        finally:
            stdout.end()
            stderr.end()
    error = result.error_in_exec or result.error_before_exec
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        raise error
    return CodeOutcome(
        value=values[-1] if values and error is None else None,
        stdout=stdout.kept.text,
        stderr=stderr.kept.text,
        displays=tuple(displays.kept),
        error=error and _from_the_code_on(error, file),
    )


@contextmanager
def _instead(target: Any, **attributes: Any) -> Generator[None]:
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


class _Tee:
    """A stream that keeps the start and the end of what is written, and hands it on.

    Code may keep it and write to it later: it then only hands on.
    """

    def __init__(self, stream: Any, keep_bytes: int) -> None:
        self.kept = Output(keep_bytes)
        self._stream = stream
        self._left_chars = keep_bytes
        self._filter = StreamFilter()
        self._lock = threading.RLock()
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Keep it and hand it on, without the secrets in it."""
        data = str.encode(text, "utf-8", "replace")
        with self._lock:
            if self._is_over:
                self._stream.write(text)
            else:
                self.kept.add(data)
                self._hand_on(self._filter.feed(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Keep them and hand them on."""
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """The cell's own stream stays open: the code did not open it."""
        self._stream.flush()

    def end(self) -> None:
        """From now on it only hands on."""
        with self._lock:
            self._hand_on(self._filter.flush())
            self._is_over = True

    def _hand_on(self, text: str) -> None:
        if text and self._left_chars > 0:
            self._stream.write(text[: self._left_chars])
            self._left_chars -= len(text)
            if self._left_chars <= 0:
                self._stream.write("\n… the rest of this output is not shown …\n")


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
        forms = {kind: it if kind in _PICTURES else redact_json(it) for kind, it in data.items()}
        self._publish(forms, *args, **options)

    def keep(self, data: dict[str, Any]) -> None:
        """For the model."""
        if len(self.kept) == _MOST_DISPLAYS:
            data = {"text/plain": f"… only the first {_MOST_DISPLAYS} displays were kept …"}
        if len(self.kept) <= _MOST_DISPLAYS:
            self.kept.append(dict(data))


def _open_figures() -> list[Any]:
    """The figures that pyplot holds, if it was imported."""
    helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None or "matplotlib.pyplot" not in sys.modules:
        return []
    return [manager.canvas.figure for manager in helpers.Gcf.get_all_fig_managers()]


def _show_pictures(shell: Any, values: list[Any], displays: _Displays, before: list[Any]) -> None:
    """Show the figures that the code made, as at the end of a cell, and a value that is a picture.

    A figure of the person's own stays theirs.
    """
    made = [figure for figure in _open_figures() if not any(figure is old for old in before)]
    for figure in made:
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        if "inline" in str(pyplot.get_backend()).lower():
            display(figure)
            pyplot.close(figure)
        elif isinstance(image := image_of(figure), ImagePart):
            # Its window or widget shows it already.
            displays.keep({"image/png": image.data})
    for value in values:
        if value is None or any(value is figure for figure in made):
            continue
        with suppress(Exception):
            data, metadata = shell.display_formatter.format(value, include=_PICTURES)
            if data:
                shell.display_pub.publish(data=data, metadata=metadata)
