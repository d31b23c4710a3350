"""JavaScript and style sheets of the widgets: files of this package, joined to one module."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from nbagent.view.node import closed_lists
from nbagent.view.theme import live_stylesheet

_PARTS = ("build", "clicks", "actions", "questions", "view", "widgets")
_COMMENT = re.compile(r"/\*\*.*?\*/|^\s*//[^\n]*\n", re.DOTALL | re.MULTILINE)


@cache
def script(*more: str) -> str:
    """Return the module of a widget: the files of `page`, and others before its export.

    Its first line is the closed lists of `view.node`, by which `build` makes elements.
    """
    names = [*(f"page/{part}.js" for part in _PARTS), *more, "page/module.js"]
    # Comments are for readers of the files: each widget sends its module to the page.
    code = _COMMENT.sub("", "\n".join(map(_read_file, names)))
    return f"const LISTS = {json.dumps(closed_lists(), separators=(',', ':'))};\n{code}"


def stylesheet(*more: str) -> str:
    """Return the style sheet of live pictures with other files appended."""
    return "\n".join([live_stylesheet(), *map(_read_file, more)])


def _read_file(name: str) -> str:
    return files("nbagent.notebook").joinpath(name).read_text("utf-8")
