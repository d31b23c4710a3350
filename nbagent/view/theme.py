"""Colours and style sheets. Each colour stands once, in `theme.css`.

`COLOURS` are those of a light page, for figures and for the inline styles that an untrusted
notebook keeps; `DARK` are those of a dark one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_VARIABLE = re.compile(r"--([a-z]+):\s*([^;]+);")
_RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
"""An innermost rule, with the declarations before it."""
_TAG_LIST = re.compile(r"[a-z0-9]+(?:,[a-z0-9]+)*")
_VARIABLE_USE, _DEFINITION = re.compile(r"var\(--(\w+)"), re.compile(r"--(\w+):[^;{}]+;?")
_CLASS_NAME = re.compile(r"nba-[\w-]+")
_FALLBACK = re.compile(r"var\(--[\w-]+,\s*([^)]+)\)")
_DARK_SURFACES = {"bg": "#1e1e1e", "fg": "#e4e4e6", "line": "#3c3e42"}
"""Surfaces of a dark page of our own; in Jupyter they follow the theme."""


def _read(name: str) -> str:
    return files("nbagent.view").joinpath(name).read_text("utf-8")


def _colours(rules: str) -> dict[str, str]:
    return {name: _FALLBACK.sub(r"\1", value) for name, value in _VARIABLE.findall(rules)}


_LIGHT_RULES, _, _DARK_RULES = _read("theme.css").partition("body[")
COLOURS: Mapping[str, str] = _colours(_LIGHT_RULES)
"""Colours by name on a light page: `model`, `call`, `bad`, `ok`, …"""
DARK: Mapping[str, str] = {**COLOURS, **_DARK_SURFACES, **_colours(_DARK_RULES)}
"""Colours by name on a dark page."""

_SOFT_EDGE, _SOFT = "#8885", "#8881"
"""Half transparent, so that they hold on light and dark pages."""
_FRAME = f"border:1px solid {_SOFT_EDGE}"
_STEP = f"{_FRAME};border-radius:6px;padding:3px 9px"
STYLES: Mapping[str, str] = {
    "nba-run": f"max-width:860px;{_FRAME};border-radius:8px;overflow:hidden",
    "nba-history": f"max-width:none;{_FRAME};border-radius:8px;overflow:auto",
    "nba-head": f"display:flex;flex-wrap:wrap;gap:2px 10px;padding:6px 12px;background:{_SOFT}",
    "nba-bar": f"display:flex;height:4px;background:{_SOFT_EDGE}",
    "nba-i-model": f"background:{COLOURS['model']}",
    "nba-i-tool": f"background:{COLOURS['call']}",
    "nba-i-wait": f"background:{COLOURS['idle']}",
    "nba-i-bad": f"background:{COLOURS['bad']}",
    "nba-i-ok": f"background:{COLOURS['ok']}",
    "nba-turn": "padding:3px 12px",
    "nba-line": "display:inline-flex;flex-wrap:wrap;align-items:baseline;gap:0 9px;"
    "width:calc(100% - 24px)",
    "nba-sum": "flex:1 1 180px;overflow:hidden",
    "nba-below": "flex:1 0 100%",
    "nba-end": "padding:5px 14px",
    "nba-num": "float:right;opacity:.7",
    "nba-body": "padding:2px 12px 10px 30px",
    "nba-card": f"{_FRAME};border-radius:5px;padding:6px 10px;margin-top:6px",
    "nba-prompt": "margin:0;padding:7px 12px",
    "nba-wide": "padding:3px 12px",
    "nba-sep": f"margin:0;border:0;border-top:1px solid {_SOFT_EDGE}",
    "nba-answer": "padding:10px 14px;font-size:14px",
    "nba-foot": "padding:4px 14px 8px;font-size:11px;opacity:.7",
    "nba-img": "max-width:100%",
    "nba-do": "display:none",
    "nba-think": "white-space:pre-wrap",
    "nba-l": "text-align:left",
    "nba-r": "text-align:right",
    "nba-del": f"background:{COLOURS['bad']}2e",
    "nba-ins": f"background:{COLOURS['ok']}33",
    "nba-flow": f"border-bottom:1px solid {_SOFT_EDGE};padding:6px 12px",
    "nba-graph": "display:flex;flex-wrap:wrap;gap:6px 10px;list-style:none;margin:0;padding:6px 0",
    "nba-step": _STEP,
    "nba-past": f"{_STEP};background:{_SOFT}",
    "nba-here": f"border:2px solid {COLOURS['model']};border-radius:6px;padding:2px 8px",
    "nba-way": "opacity:.75",
    "nba-branches": "list-style:none;margin:0;padding:0 0 0 18px",
    "nba-rows": "margin:4px 0",
    "nba-cell": "text-align:left;padding:2px 14px 2px 0;white-space:pre-wrap",
    "nba-notes": "margin:4px 0;white-space:pre-wrap",
}
"""Inline style by first class: the whole look in a notebook that is not trusted yet.

Plain values only: JupyterLab's sanitizer drops a style with `var()`, `color-mix()`, `overflow-wrap`
and the like."""


@cache
def saved_stylesheet() -> str:
    """Return the style sheet of saved pictures; it refines the inline styles."""
    # The panel has a saved form of its own.
    return _minified("theme.css", "run.css").replace(",.nba-panel", "")


@cache
def history_stylesheet() -> str:
    """Return the style sheet of the table of runs, behind that of a picture."""
    return saved_stylesheet() + _minified("history.css")


def used_rules(sheet: str, page: str) -> str:
    """Return the part of a sheet that a page needs: rules on its classes, and their variables."""
    classes = set(_CLASS_NAME.findall(page))

    def used(rule: re.Match[str]) -> str:
        before, _, selectors = rule[1].rpartition(";")
        named = set(_CLASS_NAME.findall(selectors))
        tags = selectors.strip("{").split(",") if _TAG_LIST.fullmatch(selectors) else []
        is_used = bool(named & classes) if named else any(f"<{tag}" in page for tag in tags)
        return rule[0] if is_used or not (named or tags) else f"{before};" * bool(before)

    rules = _RULE.sub(used, sheet)
    variables = {*_VARIABLE_USE.findall(rules)}
    return _DEFINITION.sub(lambda d: d[0] if d[1] in variables else "", rules)


@cache
def live_stylesheet() -> str:
    """Return the style sheet of live pictures, which have no inline styles and may ask."""
    # `nba-do` hides buttons that nobody answers; in a live picture they are answered.
    rules = [f".{cls}{{{style}}}" for cls, style in STYLES.items() if cls != "nba-do"]
    return "".join(rules) + _minified("theme.css", "run.css", "question.css")


@cache
def cases_stylesheet() -> str:
    """Return the rules of the page over all cases, behind those of live pictures."""
    return _minified("cases.css")


@cache
def dark_rules() -> str:
    """Return rules for a page of our own, which follows the theme of its reader."""
    variables = "".join(f"--{name}:{value};" for name, value in DARK.items())
    return f"@media (prefers-color-scheme:dark){{.nba-run{{{variables}}}}}"


def _minified(*names: str) -> str:
    """Read style sheets and remove comments and spaces: each saved run contains them."""
    text = re.sub(r"/\*.*?\*/", "", "".join(map(_read, names)), flags=re.DOTALL)
    text = re.sub(r"\s*([{};,>])\s*", r"\1", re.sub(r"\s+", " ", text))
    return text.replace(": ", ":").replace(";}", "}").strip()
