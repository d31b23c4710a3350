"""JavaScript and style sheets of the widgets: files of this package, joined to one module."""

from __future__ import annotations

from functools import cache

from nbagent.view.page_code import page_code, read_page_file
from nbagent.view.theme import live_stylesheet

_PARTS = ("build", "clicks", "actions", "questions", "view", "widgets")


@cache
def script(*more: str) -> str:
    """Return the module of a widget: the files of `page`, and others before its export."""
    return page_code(*(f"page/{part}.js" for part in _PARTS), *more, "page/module.js")


def stylesheet(*more: str) -> str:
    """Return the style sheet of live pictures with other files appended."""
    return "\n".join([live_stylesheet(), *map(read_page_file, more)])
