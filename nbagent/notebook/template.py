"""`{{ expression }}` in a prompt: finds the expressions, evaluates them, puts the values in.

Two names are a prompt's own, unless the notebook has them: `_error`, the last exception of a cell,
and `_cells`, the cells before. What a value looks like in a prompt belongs to `nbagent.shown`.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType
from typing import Any, cast

from nbagent.contracts.chat import Part, TextPart
from nbagent.contracts.errors import UsageError, described
from nbagent.contracts.secrets import redact_cut, register_named
from nbagent.files.mounts import PROJECT, parse_mount
from nbagent.settings import effective, project_folder
from nbagent.shown.texts import cut_middle, without_codes

_OPEN, _CLOSINGS = "{{", re.compile("(?=}})")
_AWAIT = "await it in a cell above, and use the result's name here."
_MOST_CLOSINGS = 64
"""How many `}}` are tried as the end of one expression. Keeps a long LaTeX text from being slow."""
_ERROR_CHARS = 4_000
_CELL_CHARS = 4_000
_CELLS_CHARS = 20_000
_FRAMES = 3
_LITERAL = "To write two literal braces, type {{ '{{' }}."


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template with its expressions replaced by their values."""

    prompt: str
    """As one text; an image stands in it as `[image: …]`."""
    parts: tuple[Part, ...]
    """What a message carries: neighbouring texts joined, images and files at their places."""
    expressions: tuple[str, ...]
    """The expressions in order, as typed. Empty when the template had none."""


def render(template: str, evaluate: Callable[[str], object]) -> Rendered:
    """Put the values of all `{{ expressions }}` into a template.

    All else stays as typed: single braces, `$`, JSON. A value is not scanned for expressions.
    Every expression is found before the first one is evaluated.

    Args:
        evaluate: gives the value of one Python expression; it is only handed text that compiles.

    Raises:
        UsageError: an expression is unfinished, is not Python, or raised. Nothing is sent then.
    """
    texts, expressions = _split(template)
    parts: list[Part] = [TextPart(text=texts[0])]
    for expression, text in zip(expressions, texts[1:], strict=True):
        parts += [*_value_parts(expression, evaluate), TextPart(text=text)]
    prompt = "".join(_as_text(part) for part in parts)
    return Rendered(prompt, tuple(_joined(parts)), tuple(expressions))


def _split(template: str) -> tuple[list[str], list[str]]:
    """The texts around the expressions, and these as typed; one text more than expressions."""
    texts: list[str] = []
    expressions: list[str] = []
    position = 0
    while (start := template.find(_OPEN, position)) >= 0:
        texts.append(template[position:start])
        expression, position = _expression_at(template, start)
        expressions.append(expression)
    return [*texts, template[position:]], expressions


def _expression_at(template: str, start: int) -> tuple[str, int]:
    """The expression that opens here and where the text goes on: the shortest that compiles."""
    tried: list[str] = []
    for closing in islice(_CLOSINGS.finditer(template, start + len(_OPEN)), _MOST_CLOSINGS):
        typed = template[start + len(_OPEN) : closing.start()].strip()
        if typed and _compiles(_whole(typed), "eval"):
            return typed, closing.start() + len("}}")
        tried.append(typed)
    if not tried:
        raise UsageError(
            f"{_shortened(template[start:])!r} opens an expression and has no closing }}}}."
            f" Close it, or: {_LITERAL}"
        )
    raise UsageError(f"{{{{ {_shortened(tried[0])} }}}} {_why_not(tried[0])} {_LITERAL}")


def _whole(typed: str) -> str:
    """What is compiled: an expression over several lines needs parentheses."""
    return f"({typed}\n)" if "\n" in typed else typed


def _compiles(source: str, mode: str, flags: int = 0) -> bool:
    with warnings.catch_warnings():
        # Python says what it thinks of odd escapes when the expression is evaluated.
        warnings.simplefilter("ignore")
        try:
            compile(source, "<prompt>", mode, flags)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return False
    return True


def _why_not(typed: str) -> str:
    """Say why a text is no expression, for the sentence that starts with the text."""
    if not typed:
        return "is empty; put a Python expression between the braces."
    if typed[0] in "%!" or typed.endswith("?"):
        return "is for IPython; only Python expressions are evaluated here, no magics or shell."
    if _compiles(typed, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        return f"has to be awaited; {_AWAIT}"
    if _compiles(typed, "exec"):
        return "is a statement; put it in a cell above, and use the name or an expression here."
    return "is not a Python expression."


def _value_parts(expression: str, evaluate: Callable[[str], object]) -> tuple[Part, ...]:
    name = f"{{{{ {_shortened(expression)} }}}}"
    try:
        value = evaluate(_whole(expression))
    except Exception as error:
        remedy = "Try the expression in a cell of its own, and correct it."
        if isinstance(error, NameError):
            remedy = f"Run the cell that defines the name, or correct it. {_LITERAL}"
        said = _shortened(described(error)).rstrip(": .")
        raise UsageError(
            f"{name} failed: {said}. {remedy} Nothing was sent.",
            details={"expression": expression, "error": type(error).__name__},
        ) from error
    kind = type(value)
    if issubclass(kind, Awaitable | AsyncGeneratorType):
        called = isinstance(ast.parse(_whole(expression), mode="eval").body, ast.Call)
        if called and isinstance(value, CoroutineType):
            # Nobody else has it: without this Python warns of it later, out of place.
            cast("CoroutineType[Any, Any, Any]", value).close()
        raise UsageError(
            f"{name} gives a value of type {kind.__name__!r}, which has to be awaited; {_AWAIT} "
            "Nothing was sent."
        )
    # Only a prompt with values needs this room; most have none.
    from nbagent.shown import shown_in_prompt

    return shown_in_prompt(value)


def _shortened(text: str, limit: int = 200) -> str:
    text = redact_cut(text)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _as_text(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    if part.type == "image":
        return f"[image: {part.alt}]" if part.alt else "[image]"
    return f"[file: {part.name}]"


def _joined(parts: list[Part]) -> Iterator[Part]:
    """The parts with neighbouring texts as one, and without empty ones."""
    for is_text, some in groupby(parts, lambda part: isinstance(part, TextPart)):
        if not is_text:
            yield from some
        elif text := "".join(map(_as_text, some)):
            yield TextPart(text=text)


# The names of a prompt


def evaluate(shell: Any, expression: str) -> object:
    """The value of an expression in the notebook, with the prompt's own names.

    These are in no namespace that the notebook keeps.
    """
    code = compile(expression, "<prompt>", "eval")
    meant = set(re.findall(r"\b_(?:error|cells)\b", expression)) - set(shell.user_ns)
    if meant:
        register_named(shell.user_ns)
        own = {name: error_text(shell) if name == "_error" else Cells(shell) for name in meant}
        # As globals: what stands in a lambda or a comprehension sees no locals.
        return eval(code, {**shell.user_global_ns, **own})
    return eval(code, shell.user_global_ns, shell.user_ns)


_last_error: BaseException | None = None


def note_error(error: BaseException) -> None:
    """Keep the exception of a cell: it is `_error` from now on."""
    global _last_error
    _last_error = error


def error_text(shell: Any) -> str:
    """The last exception of a cell: type, message, and the lines of the cells that led to it."""
    error = _last_error or getattr(sys, "last_value", None)
    if error is None:
        raise LookupError("no cell of this notebook has failed yet")
    label = shell.compile.format_code_name  # ("Cell", "In[3]"), None for code of no cell
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError) and (cell := label(error.filename)):
        said = said.replace(f'File "{error.filename}"', cell[1])
    frames: list[str] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if cell := label(file):
            around = [(n, linecache.getline(file, n)) for n in range(max(line - 2, 1), line + 2)]
            lines = [f"{'->' if n == line else '  '} {n} {text}" for n, text in around if text]
            frames.append(f"{cell[1]}, line {line}, in {name}\n" + "".join(lines).rstrip())
    return _within("\n".join([said, *frames[-_FRAMES:]]), _ERROR_CHARS)


class Cells:
    """The cells before this one: `_cells[-1]` is the source and the outputs of the last one."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._history = shell.history_manager
        self._numbers = range(1, len(self._history.input_hist_raw) - 1)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: int | slice) -> str:
        numbers = self._numbers[place]
        chosen = [numbers] if isinstance(numbers, int) else list(numbers)
        return _within("\n\n".join(map(self._text, chosen)), _CELLS_CHARS)

    def __repr__(self) -> str:
        return self[:]

    def _text(self, number: int) -> str:
        history = self._history
        pieces = [f"In[{number}]:", history.input_hist_raw[number].rstrip()]
        outputs: list[Any] = getattr(history, "outputs", {}).get(number, [])
        bundles = [output.bundle for output in outputs]
        if not outputs and number in history.output_hist:  # of an IPython before 9
            bundles = [{"text/plain": repr(history.output_hist[number])}]
        texts = ["".join(b.get("stream", "")) or str(b.get("text/plain", "")) for b in bundles]
        if error := getattr(history, "exceptions", {}).get(number):
            texts.append(f"{error.get('ename')}: {error.get('evalue')}")
        if said := "\n".join(text.rstrip() for text in texts if text.strip()):
            pieces += [f"Out[{number}]:", without_codes(said)]
        return _within("\n".join(pieces), _CELL_CHARS)


_FOLDERS = re.compile(
    r"(?<![\w@~.:/])//?(?:[\w.+-]+/)+(?=[\w.+-])"
    r"|(?<!\w)[A-Za-z]:[\\/]+(?:[^\\/\s:*?\"<>|]+[\\/]+)*(?=[^\\/\s])"
)
"""Of a path, also as Windows writes it: all but its last name."""


def _within(text: str, budget_chars: int) -> str:
    """The text within a budget, without secrets and without the folders of this machine."""
    mounts = map(parse_mount, effective().mounts)
    named = [(project_folder(), PROJECT), *((mount.root, mount.name) for mount in mounts)]
    home = Path(os.path.expanduser("~"))
    named += [(home, "~")] if len(home.parts) > 1 else []
    text = re.sub(r"\bfile:/+(?=\w)", "/", text)
    for root, name in sorted(named, key=lambda one: len(str(one[0])), reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(str(root))}(?![\w.-])", name, text)
    text = _FOLDERS.sub("…/", text)
    return cut_middle(redact_cut(text), budget_chars)
