"""JavaScript and style sheets of the widgets: files of this package, joined to one module."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from nbagent.view.node import ATTRIBUTES, TAGS, VALUES
from nbagent.view.run_picture import live_stylesheet

_PARTS = ("build", "clicks", "actions", "questions", "view", "widgets")
_COMMENT = re.compile(r"/\*\*.*?\*/|^\s*//[^\n]*\n", re.DOTALL | re.MULTILINE)
_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s"}


@cache
def script(*more: str) -> str:
    """Return the module of a widget: the files of `page`, and others before its export."""
    names = [*(f"page/{part}.js" for part in _PARTS), *more, "page/module.js"]
    # Comments are for readers of the files: each widget sends its module to the page.
    code = _COMMENT.sub("", "\n".join(map(_read_file, names)))
    return f"const LISTS = {_closed_lists()};\n{code}"


def stylesheet(*more: str) -> str:
    """Return the style sheet of live pictures with other files appended."""
    return "\n".join([live_stylesheet(), *map(_read_file, more)])


def _closed_lists() -> str:
    """Return the tags, attributes and patterns of values that the page may build, as JSON."""
    values = {name: [rule.pattern, _flags(rule)] for name, rule in VALUES.items()}
    lists = {"tags": sorted(TAGS), "attributes": sorted(ATTRIBUTES), "values": values}
    return json.dumps(lists, separators=(",", ":"))


def _flags(rule: re.Pattern[str]) -> str:
    return "".join(letter for flag, letter in _FLAGS.items() if rule.flags & flag)


def _read_file(name: str) -> str:
    return files("nbagent.notebook").joinpath(name).read_text("utf-8")
