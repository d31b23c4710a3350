"""Names that a prompt may use in `{{ expression }}`.

The notebook's variables, and two names of prompts: `_error`, the last exception of a cell, and
`_cells`, the previous cells.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from nbagent.contracts.nearest import name_error_with_hint
from nbagent.contracts.secrets import redact_truncated, register_named_secrets
from nbagent.files.mounts import PROJECT, parse_mount
from nbagent.settings.sources import current_settings, project_folder
from nbagent.shown.texts import cut_middle, without_codes

_ERROR_CHARS = 4_000
_CELL_CHARS = 4_000
_CELLS_CHARS = 20_000
_MAX_FRAMES = 3


def evaluate(shell: Any, expression: str, *, in_cell: bool = True) -> object:
    """Evaluate an expression in the notebook, with the names of prompts added.

    These names are not stored in the notebook's namespace.

    Args:
        shell: IPython's shell.
        expression: the expression.
        in_cell: False between two cells, as in the panel: no cell runs now.
    """
    code = compile(expression, "<prompt>", "eval")
    own = own_names(shell, expression, in_cell=in_cell)
    try:
        if own:
            # As globals: lambdas and comprehensions inside `eval` do not see its locals.
            return eval(code, {**shell.user_global_ns, **own})
        return eval(code, shell.user_global_ns, shell.user_ns)
    except NameError as error:
        raise name_error_with_hint(error, shell.user_ns) from error


def own_names(shell: Any, text: str, *, in_cell: bool = True) -> dict[str, object]:
    """Return the names of prompts that a text uses; a notebook's variable of that name wins."""
    names = set(re.findall(r"\b_(?:error|cells)\b", text)) - set(shell.user_ns)
    if names:
        # Source and output of a cell may contain a key that is in a variable only.
        register_named_secrets(shell.user_ns)
    return {
        name: error_text(shell) if name == "_error" else Cells(shell, in_cell=in_cell)
        for name in names
    }


_last_error: BaseException | None = None


def note_error(error: BaseException) -> None:
    """Keep the exception of a cell as `_error`."""
    global _last_error
    _last_error = error


def error_text(shell: Any) -> str:
    """Print the last exception of a cell: type, message, and its traceback's lines of cells."""
    # Python's own: a cell may have failed before the extension was loaded.
    error = _last_error or getattr(sys, "last_value", None)
    if error is None:
        raise LookupError("no cell of this notebook has failed yet")
    label = shell.compile.format_code_name  # ("Cell", "In[3]"); None for code outside of cells
    message = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError) and (cell := label(error.filename)):
        message = message.replace(f'File "{error.filename}"', cell[1])
    frames: list[str] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if cell := label(file):
            around = [(n, linecache.getline(file, n)) for n in range(max(line - 2, 1), line + 2)]
            lines = [f"{'->' if n == line else '  '} {n} {text}" for n, text in around if text]
            frames.append(f"{cell[1]}, line {line}, in {name}\n" + "".join(lines).rstrip())
    return _redacted("\n".join([message, *frames[-_MAX_FRAMES:]]), _ERROR_CHARS)


class Cells:
    """The previous cells: `_cells[-1]` has the source and the outputs of the last one."""

    def __init__(self, shell: Any, *, in_cell: bool) -> None:
        self._shell = shell
        self._history = shell.history_manager
        # Input 0 is empty in IPython. In a cell, the last one is the cell that runs now.
        self._numbers = range(1, len(self._history.input_hist_raw) - in_cell)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int | slice) -> str:
        numbers = self._numbers[index]
        chosen = [numbers] if isinstance(numbers, int) else list(numbers)
        return _redacted("\n\n".join(map(self._text, chosen)), _CELLS_CHARS)

    def __repr__(self) -> str:
        return self[:]

    def _text(self, number: int) -> str:
        history = self._history
        pieces = [f"In[{number}]:", history.input_hist_raw[number].rstrip()]
        outputs: list[Any] = getattr(history, "outputs", {}).get(number, [])
        bundles = [output.bundle for output in outputs]
        if not outputs and number in history.output_hist:  # IPython before 9 has no `outputs`
            bundles = [{"text/plain": repr(history.output_hist[number])}]
        texts = ["".join(b.get("stream", "")) or str(b.get("text/plain", "")) for b in bundles]
        if error := getattr(history, "exceptions", {}).get(number):
            texts.append(f"{error.get('ename')}: {error.get('evalue')}")
        if output_text := "\n".join(text.rstrip() for text in texts if text.strip()):
            pieces += [f"Out[{number}]:", without_codes(output_text)]
        return _redacted("\n".join(pieces), _CELL_CHARS)


_FOLDERS = re.compile(
    r"(?<![\w@~.:/])//?(?:[\w.+-]+/)+(?=[\w.+-])"
    r"|(?<!\w)[A-Za-z]:[\\/]+(?:[^\\/\s:*?\"<>|]+[\\/]+)*(?=[^\\/\s])"
)
"""The folders of a path, also of a Windows path: everything before its last name."""


def _redacted(text: str, budget_chars: int) -> str:
    """Hide secrets and folders of this machine in a text, and cut it to a budget."""
    mounts = map(parse_mount, current_settings().mounts)
    named = [(project_folder(), PROJECT), *((mount.root, mount.name) for mount in mounts)]
    home = Path(os.path.expanduser("~"))
    named += [(home, "~")] if len(home.parts) > 1 else []
    text = re.sub(r"\bfile:/+(?=\w)", "/", text)
    # The longest first: a mount inside the project has a name of its own.
    for root, name in sorted(named, key=lambda one: len(str(one[0])), reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(str(root))}(?![\w.-])", name, text)
    text = _FOLDERS.sub("…/", text)
    return cut_middle(redact_truncated(text), budget_chars)
