"""Answers that need no tool: count, compute a sum, repeat a text, write a long text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress

from nbagent.providers.offline.call_results import number_text
from nbagent.providers.offline.prompt_values import number_of
from nbagent.providers.offline.vocabulary import is_german

_LONG_TEXT = re.compile(
    r"\b(?:story|essay|poem|geschichte|gedicht|aufsatz|long (?:text|answer)"
    r"|\d{1,4}[- ](?:words?|wörtern?))\b",
    re.I,
)
_COUNT = re.compile(r"\b(?:count\s+(?:up\s+)?to|zähle?\s+bis)\s+(\d{1,9})\b", re.I)
_MAX_COUNT = 5_000
_FILLER = "Every turn is one request to a model, and this text comes from a rule of offline:demo. "


def plain_answer(prompt: str) -> str:
    """Count (to 5,000) or write a long text; empty if the rules cannot answer."""
    if count := _COUNT.search(prompt):
        return " ".join(map(str, range(1, min(int(count[1]), _MAX_COUNT) + 1)))
    if _LONG_TEXT.search(prompt):
        word_count = re.search(r"\b(\d{1,4})[- ]w", prompt)
        wanted = int(word_count[1]) if word_count else 400
        return " ".join((_FILLER * (wanted // 10 + 1)).split()[:wanted])
    return ""


_SPOKEN = (
    (r"\bplus\b|\bund\b(?= ?\d)", "+"),
    (r"\b(?:minus|less)\b|−", "-"),
    (r"\b(?:times|multiplied by|mal)\b|×|(?<=\d) ?x ?(?=\d)", "*"),
    (r"\b(?:divided by|over|geteilt durch|durch)\b|÷", "/"),
    (r"(?<=\d)% (?:of|von)\b|(?<=\d) (?:percent|prozent) (?:of|von)\b", "/100*"),
    (r"\^", "**"),
    (r"\b(?:squared|zum quadrat)\b", "**2"),
)
_ORDERS = (
    (r"\bsubtract ([-\d.]+) from ([-\d.]+)", r"\2 - \1"),
    (r"\badd ([-\d.]+) (?:and|to) ([-\d.]+)", r"\1 + \2"),
    (r"\bmultiply ([-\d.]+) (?:by|and|with) ([-\d.]+)", r"\1 * \2"),
    (r"\bdivide ([-\d.]+) by ([-\d.]+)", r"\1 / \2"),
    (r"(?<![\d.])(\d+ ?/ ?\d+) (?:of|von) (?=\d)", r"(\1) * "),
)
_FILL_WORDS = re.compile(
    r"\b(?:what|whats|how much|is|are|was|ist|wie ?viel|sind|s|the|result|of|compute|calculate"
    r"|berechne|ergibt|please|bitte|equals?|gleich|and|evaluate|von|die|der|das|value|a|number|me"
    r"|tell|give)\b|[?!=:’'`]|\.(?!\d)"
)
_SUM = re.compile(r"[-+*/().\d\s]*\d[-+*/().\d\s]*")
_CHANGES: tuple[tuple[str, Callable[[float], float]], ...] = (
    (r"\b(?:double|twice|verdopple|verdoppeln?|das doppelte)\b", lambda n: n * 2),
    (r"\b(?:triple|verdreifache)\b", lambda n: n * 3),
    (r"\b(?:half|halve|halbiere|die hälfte)\b", lambda n: n / 2),
    (r"\bsquare root\b|\bwurzel\b", lambda n: n**0.5),
    (r"\b(?:square|quadriere)\b", lambda n: n * n),
)
_MAX_FIGURE = 1e12


def sum_answer(prompt: str) -> str:
    """Compute a sum that is the whole prompt: `12*7`, `2 plus 2`, `double 5`; else empty."""
    text = _with_points(prompt.strip().lower())
    if text is None or re.search(r"\d{4}-\d\d-\d\d", text):
        return ""
    for pattern, change in _CHANGES:
        rest = _FILL_WORDS.sub(" ", re.sub(pattern, " ", text)).strip()
        if re.search(pattern, text) and re.fullmatch(r"\d{1,12}(?:\.\d{1,9})?", rest):
            return f"**{number_text(change(number_of(rest) or 0))}**"
    typed = text
    for pattern, sign in (*_ORDERS, *_SPOKEN):
        text = re.sub(pattern, sign, text)
    source = _FILL_WORDS.sub(" ", text).strip()
    if not _SUM.fullmatch(source) or not re.search(r"[-+*/]", source[1:]):
        return ""
    with suppress(ValueError, SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError):
        figure = _figure(ast.parse(source[:200], mode="eval").body)
        shown = f"{source} = " if text == typed else ""
        return f"{shown}**{number_text(figure)}**"
    return ""


def _with_points(text: str) -> str | None:
    """Write numbers with a decimal point; None if a sign may be one of thousands or a point."""
    has_thousands = bool(re.search(r"\d,\d{3}(?!\d)", text))
    has_point = bool(re.search(r"\d\.\d{3}(?!\d)", text))
    if (has_thousands and has_point) or ((has_thousands or has_point) and is_german(text)):
        return None
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.sub(r"(?<=\d),(?=\d)", ".", text)


def repeated_text(prompt: str) -> str:
    """Return the text that the person wants to be said: `Say hello`; empty without one."""
    match = re.fullmatch(
        r"\s*(?:please |bitte )?(?:say|sag|echo|repeat(?: after me)?|wiederhole)\b[:\s]+"
        r"(.{1,500}?)\s*",
        prompt,
        re.IGNORECASE | re.DOTALL,
    )
    if match is None or re.search(r"\b(?:in|auf|to|an) \w+(?: \w+)?[.!?]*\Z", match[1]):
        return ""
    return match[1].strip("'\"“”„")


def _figure(node: ast.expr) -> float:
    """Compute a sum of numbers. Raises ValueError for anything else and for huge numbers."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_figure(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _figure(node.left), _figure(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > _MAX_FIGURE):
            raise ValueError("too large")
        figure = _applied(node.op, left, right)
        if figure is not None and abs(figure) < _MAX_FIGURE**2:
            return figure
    raise ValueError("no sum")


def _applied(sign: ast.operator, left: float, right: float) -> float | None:
    """Compute one step of a sum; None for a sign that is not known and for complex numbers."""
    match sign:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.Pow():
            return left**right if left >= 0 or float(right).is_integer() else None
        case _:
            return None
