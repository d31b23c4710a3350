"""Running a piece of Python in a namespace and telling what came of it.

Owns compiling, the last expression's value, what is told of an error. What the code shows is
`notebook_output`'s; in which thread it runs is its caller's.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import re
import sys
import types
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_cut, redact_json, register_named
from nbagent.shown import BROKEN, clean, cut_middle, plain_repr
from nbagent.tools.notebook_names import masked_text
from nbagent.tools.notebook_output import Displays, Tee, is_of_open_figure
from nbagent.tools.notebook_values import type_text, value_shown
from nbagent.tools.results import detail_of, summary
from nbagent.tools.running import is_raised_by_code

_STDOUT_CHARS = 12_000
_STDERR_CHARS = 6_000
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_MOST_SOURCES = 200
"""Of the latest pieces of code the source is kept, for tracebacks and `inspect.getsource`."""
_MAGIC = re.compile(r"\s*[%!?]|\s*[\w, ]+=\s*[%!]|\s*\?*[\w.]+\?{1,2}\s*$")
_LEAVING = ("exit", "quit")
_numbers = itertools.count(1)
_sources: list[str] = []


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is ready to run."""

    name: str
    """The file name in its tracebacks."""
    pieces: tuple[types.CodeType, ...]
    gives_value: bool
    """The last piece is an expression."""

    @property
    def waits(self) -> bool:
        """Whether it awaits something outside of any function."""
        return any(piece.co_flags & inspect.CO_COROUTINE for piece in self.pieces)


def compiled(code: str, names: Mapping[str, Any]) -> Program:
    """Compile a cell's code; its last expression apart.

    Args:
        code: plain Python.
        names: where it will run; not changed.

    Raises:
        ToolError: it is no Python (`E_INVALID_ARGUMENTS`).
    """
    name = f"<nbagent {next(_numbers)}>"
    try:
        tree = ast.parse(code, name)
        _refuse_leaving(tree, names)
        last = tree.body[-1] if tree.body else None
        pieces: list[types.CodeType] = []
        body = tree.body[:-1] if isinstance(last, ast.Expr) else tree.body
        if body:
            module = ast.Module(body=body, type_ignores=[])
            pieces.append(compile(module, name, "exec", _FLAGS, dont_inherit=True))
        if isinstance(last, ast.Expr):
            # A future statement of the code holds for its last line too.
            flags = _FLAGS | _futures(pieces)
            expression = ast.Expression(last.value)
            pieces.append(compile(expression, name, "eval", flags, dont_inherit=True))
    except SyntaxError as error:
        raise _no_python(error, code) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ToolError(
            f"the code cannot be compiled: {type(error).__name__}: {cut_middle(str(error), 200)}; "
            "write it shorter",
            code="E_INVALID_ARGUMENTS",
        ) from None
    _keep_source(name, code)
    return Program(name, tuple(pieces), isinstance(last, ast.Expr))


def _futures(pieces: list[types.CodeType]) -> int:
    import __future__

    every = 0
    for feature in __future__.all_feature_names:
        every |= getattr(__future__, feature).compiler_flag
    return pieces[0].co_flags & every if pieces else 0


def _no_python(error: SyntaxError, code: str) -> ToolError:
    lines = code.splitlines()
    number = error.lineno or 0
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    first = next((text for text in lines if text.strip()), "")
    if _MAGIC.match(line) or first.startswith("%%"):
        message = (
            f"line {number} is a magic, a shell line or a help line of IPython "
            f"({line.strip()[:100]!r}); nb.run takes plain Python: use subprocess, import the "
            "module, or call help()"
        )
    else:
        told = f": {line.strip()[:200]}" if line.strip() else ""
        message = f"{type(error).__name__} in line {number}: {error.msg}{told}"
    # The line may hold a key that the model wrote.
    text = masked_text(redact_cut(clean(message)))
    return ToolError(text, code="E_INVALID_ARGUMENTS", details={"line": number})


def _refuse_leaving(tree: ast.Module, names: Mapping[str, Any]) -> None:
    own = {name for name in _LEAVING if type(names.get(name)) is types.FunctionType}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in _LEAVING and called.id not in own:
            raise ToolError(
                f"{called.id}() in line {called.lineno} would end the notebook's kernel with all "
                "its variables; leave it out, or raise an exception to stop early",
                code="E_INVALID_ARGUMENTS",
            )


def _keep_source(name: str, code: str) -> None:
    lines = [line + "\n" for line in code.splitlines()]
    # Without a time of change, `linecache.checkcache` leaves the entry alone.
    linecache.cache[name] = (len(code), None, lines, name)
    _sources.append(name)
    while len(_sources) > _MOST_SOURCES:
        linecache.cache.pop(_sources.pop(0), None)


class Running:
    """One run of a program: captures what it shows, and makes the result of it.

    Args:
        names: the notebook's namespace.
        shown_chars: of stdout and of stderr, in the cell.
    """

    def __init__(self, program: Program, names: dict[str, Any], *, shown_chars: int) -> None:
        self._program = program
        self._names = names
        self._shown_chars = shown_chars
        self._data: dict[str, Any] = {}
        self._error: BaseException | None = None
        self._cut = False

    def run(self) -> ToolOutcome:
        """Run it here."""
        displays = Displays()
        with self._captured(displays):
            value: Any = None
            for piece in self._program.pieces:
                value = eval(piece, self._names)
            self._take_value(value, displays)
        return self._settled(displays)

    async def arun(self) -> ToolOutcome:
        """Run it on the loop that is running here; what it awaits is awaited."""
        displays = Displays()
        with self._captured(displays):
            value: Any = None
            for piece in self._program.pieces:
                value = eval(piece, self._names)
                if piece.co_flags & inspect.CO_COROUTINE:
                    value = await value
            self._take_value(value, displays)
        return self._settled(displays)

    def _take_value(self, value: Any, displays: Displays) -> None:
        if not self._program.gives_value or value is None:
            return
        if is_of_open_figure(value):
            self._data["value"] = plain_repr(value, 500)
            return
        try:
            it = value_shown(value)
        except KeyboardInterrupt as error:
            if not is_raised_by_code(error):
                raise
            self._data["value"] = f"<{type_text(value)}, its repr raised KeyboardInterrupt>"
            return
        self._data["value"], self._cut = it.data, it.cut
        displays.show(it.parts)

    @contextmanager
    def _captured(self, displays: Displays) -> Generator[None]:
        """Around the code: an error of it ends here, an interrupt goes on."""
        register_named(self._names)
        with (
            _kept_hook(),
            self._tee("stdout", _STDOUT_CHARS) as stdout,
            self._tee("stderr", _STDERR_CHARS) as stderr,
        ):
            try:
                with displays:
                    yield
            except BROKEN as error:
                self._error = error
            except KeyboardInterrupt as error:
                if not is_raised_by_code(error):
                    raise
                self._error = error
            displays.show_open_figures()
        register_named(self._names)
        for name, tee in (("stdout", stdout), ("stderr", stderr)):
            if text := tee.close_kept():
                self._data[name] = text

    @contextmanager
    def _tee(self, name: str, kept_chars: int) -> Generator[Tee]:
        before: Any = getattr(sys, name)
        while isinstance(before, Tee) and before.is_over:
            before = before.stream
        tee = Tee(before, self, kept_chars=kept_chars, shown_chars=self._shown_chars)
        setattr(sys, name, tee)
        try:
            yield tee
        finally:
            setattr(sys, name, before)
            tee.close_kept()

    def _settled(self, displays: Displays) -> ToolOutcome:
        if displays.texts:
            self._data["displayed"] = displays.texts
        if displays.images:
            self._data["images"] = [image.alt for image in displays.images]
        if displays.left_out:
            self._data["not_sent"] = f"{displays.left_out} more images or displays"
        images = tuple(displays.images)
        if self._error is None:
            data = {"value": None, "stdout": "", "stderr": "", **self._data}
            result = ToolResult(ok=True, data=redact_json(data), attachments=images)
            return ToolOutcome(result=result, truncated=self._cut)
        details = {"traceback": masked_text(detail_of(self._error)).splitlines(), **self._data}
        info = ErrorInfo("E_TOOL_FAILED", _said(self._error), redact_json(details))
        return ToolOutcome(result=ToolResult(ok=False, error=info, attachments=images))


@contextmanager
def _kept_hook() -> Generator[None]:
    before = sys.displayhook
    try:
        yield
    finally:
        sys.displayhook = before


def _said(error: BaseException) -> str:
    text = masked_text(summary(error))
    if isinstance(error, SystemExit):
        return f"{text}; the code asked to leave Python, which goes on: leave that out"
    return text


def live_names(names: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's namespace itself.

    Raises:
        ToolError: there is no notebook here (`E_PRECONDITION_FAILED`).
    """
    if not names or not isinstance(names, dict):
        raise ToolError(
            "there is no notebook here, so there are no variables to look at; go on without the "
            "nb tools",
            code="E_PRECONDITION_FAILED",
        )
    return names
