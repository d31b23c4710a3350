"""Recognises templates of other languages, and LaTeX, in a prompt: Jinja, GitHub Actions, …

They share the braces of `{{ expression }}`, but are not evaluated here. A text is taken for one of
them only if it fails as a Python expression, has a statement of Jinja, or names no variable.
"""

from __future__ import annotations

import ast
import re

_JINJA_TAG = re.compile(
    r"\{%[-+~]?[ \t]*(?:assign|autoescape|block|blocktrans(?:late)?|break|cache|call|capture|case"
    r"|comment|continue|csrf_token|cycle|debug|do|docs|echo|elif|else|elsif|extends|firstof|for"
    r"|filter|from|highlight|if|ifchanged|import|include|liquid|load|macro|materialization|now|raw"
    r"|regroup|render|section|set|snapshot|spaceless|static|test|trans(?:late)?|unless|url|verbatim"
    r"|when|with|end[a-z]{2,20})\b(?:(?!%\}|\{%)[^\n]){0,300}%\}"
)
"""A statement of Jinja, Django or Liquid, on one line: LaTeX has `{%` at the end of a line."""
_PIPE = re.compile(r"(?<!\|)\|(?!\|)\s*[A-Za-z_]")
_JINJA_TEST = re.compile(
    r"\bis\s+(?:not\s+)?(?:un)?defined\b|\w\s*~\s*\w|^[-+]\s|[-+]$|^super\(\)$|^loop\.\w"
)
"""Tests, joined texts, trimmed spaces, and names that only Jinja has."""
_GITHUB = re.compile(
    r"(?:env|github|inputs|jobs?|matrix|needs|runner|secrets|steps|strategy|vars)\s*[.\[]"
    r"|(?:always|cancelled|contains|failure|format|fromJSON|hashFiles|startsWith|success|toJSON)\("
    r"|.*(?:&&|\|\|)"
)
_MUSTACHE = re.compile(r"[#/^>&@]|else\b|\.\.?/|\{\s*[\w.]+\s*\}$")
_GO = re.compile(
    r'\.[A-Za-z]|\$|(?:range|with|if)\s+[.$]|end$|printf\s|(?:block|define|include|template)\s+"'
)
_LATEX_BEFORE = re.compile(
    r"\^$|(?<![A-Za-z0-9_])[A-Za-z]_$|\\[A-Za-z]+[*_]?$|\\[A-Za-z]+[^\n]{0,80}\}[_^]?$"
)
"""An exponent, an index of one letter, a command, or a command's further argument."""
_LATEX_COMMAND = re.compile(r"(?:^|[\s{])\\[A-Za-z]{2,}")
_LITERALS = (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.JoinedStr)


def statement_of_jinja(text: str) -> str:
    """Return the first statement of Jinja in a prompt, such as `{% if x %}`; empty if none."""
    match = _JINJA_TAG.search(text)
    return match[0] if match else ""


def language_of(expression: str, before: str, *, undefined: str = "") -> str:
    """Name the language of an expression that failed; empty if it is probably Python.

    Args:
        expression: the text between the braces.
        before: the prompt before the braces.
        undefined: the name that is not defined, if that was the failure.
    """
    if before.endswith("$") and _GITHUB.match(expression):
        return "GitHub Actions"
    if _GO.match(expression):
        return "a Go template"
    if _MUSTACHE.match(expression):
        return "Mustache"
    if _has_filter(expression, undefined) or _JINJA_TEST.search(expression):
        return "Jinja"
    is_latex = _LATEX_COMMAND.search(expression) or _LATEX_BEFORE.search(before[-100:])
    return "LaTeX" if is_latex else ""


def _has_filter(expression: str, undefined: str) -> bool:
    """True if a `|` is followed by a name that is not defined here, or is no value for `|`."""
    try:
        tree = ast.parse(f"({expression}\n)", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return bool(_PIPE.search(expression))
    filters = [
        node.right.func if isinstance(node.right, ast.Call) else node.right
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    ]
    names = {node.id for node in filters if isinstance(node, ast.Name)}
    # Some filters are built-in functions of Python, too, which `|` does not take.
    return undefined in names or not names.isdisjoint(_JINJA_FILTERS)


_JINJA_FILTERS = frozenset(
    {
        *("abs", "capitalize", "default", "escape", "first", "float", "format", "int", "join"),
        *("last", "length", "list", "lower", "map", "max", "min", "replace", "round", "safe"),
        *("sort", "string", "sum", "title", "tojson", "trim", "unique", "upper", "urlencode"),
    }
)


def names_no_variable(expression: str, before: str, *, is_spaced: bool) -> bool:
    """True if an expression was probably meant literally: `x^{{2}}`, `{{0}}` of a format string.

    Args:
        expression: the text between the braces; it is Python.
        before: the prompt before the braces.
        is_spaced: True if the braces have spaces inside, as in `{{ 2 }}`.
    """
    body = ast.parse(f"({expression}\n)", mode="eval").body
    if any(isinstance(node, ast.Name) for node in ast.walk(body)):
        return False
    if isinstance(body, ast.Constant) and isinstance(body.value, str | bytes):
        # A text in braces is how braces are written, and `{{ 'text' }}` is plainly Python.
        return not is_spaced and not set("{}") & set(expression)
    return isinstance(body, _LITERALS) or bool(_LATEX_BEFORE.search(before[-100:]))
