"""What the demo model can say without a tool: what it is, small sums, words, long texts."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, DecimalException
from typing import Any

from nbagent.contracts.chat import ToolSpec
from nbagent.providers.offline.words import Candidate, after_colon, candidates

_MOST_WORDS = 5_000
_USUAL_WORDS = 400
_SENTENCES = (
    "A run begins with a prompt and ends at a stop point.",
    "Between the two lie turns, and every turn is one request to a model.",
    "The model reads the conversation from its first message to its last.",
    "Then it answers, or it asks for a tool.",
    "A tool is an ordinary function of the notebook with a name and a description.",
    "Its arguments come from the model, and its result goes back to the model.",
    "Nothing is lost on the way, because each finished turn is written down.",
    "While the words arrive, the view shows them at an even pace.",
    "A person who has read enough presses Stop.",
    "The partial text stays, and the run can be resumed later.",
    "Long answers are made of short sentences, one after the other.",
    "These sentences come from a list, not from a language model.",
    "They are here so that there is something long enough to watch.",
    "A notebook keeps the question beside its answer.",
    "The table of turns tells how long each of them took.",
    "It also tells how many tokens were counted, and what they cost.",
    "Here they cost nothing, since nothing leaves this machine.",
    "A second run with the same prompt gives the same words again.",
    "That makes it easy to compare two runs line by line.",
    "When the list is at its end, it starts anew with the next paragraph.",
)


def by_itself(prompt: str, tool_wanted: bool) -> str | None:
    """An answer that the rules can give alone; None when they cannot or a tool is meant for it."""
    if (counted := _counting(prompt)) is not None:
        return counted
    if tool_wanted:
        return None
    found = candidates(prompt)
    for rule in (_calculation, _repetition, _about_words):
        if (text := rule(prompt, found)) is not None:
            return text
    return None


def _counting(prompt: str) -> str | None:
    match = re.search(
        r"\bcount\s+(?:up\s+|down\s+)?(?:from\s+(\d+)\s+)?(?:up\s+|down\s+)?to\s+(\d[\d,]*)",
        prompt,
        re.I,
    )
    if match is None:
        return None
    first, last = int(match[1] or 1), int(match[2].replace(",", "")[:9])
    step = 1 if first <= last else -1
    numbers = list(range(first, last + step, step)) if abs(last - first) < 10**6 else []
    if not numbers or len(numbers) > _MOST_WORDS:
        return f"That is further than this demo counts; ask for {_MOST_WORDS:,} numbers at most."
    return " ".join(map(str, numbers))


_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.Mod: operator.mod,
    ast.Pow: lambda left, right: left**right,
}
_SPOKEN = (
    (r"\bto the power of\b", "**"),
    (r"\b(?:times|multiplied by)\b", "*"),
    (r"\bdivided by\b", "/"),
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
)


def _calculation(prompt: str, found: Sequence[Candidate]) -> str | None:
    for pattern, sign in _SPOKEN:
        prompt = re.sub(pattern, sign, prompt, flags=re.I)
    for one in candidates(prompt):
        if one.kind != "expression":
            continue
        try:
            source = one.text.replace(",", "").replace("×", "*").replace("÷", "/")
            value = _calculated(ast.parse(source.replace("^", "**"), mode="eval").body)
        except (SyntaxError, DecimalException, ArithmeticError, ValueError, RecursionError):
            continue
        return f"{one.text} = **{value.normalize():,f}**"
    return None


def _calculated(node: ast.expr) -> Decimal:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Decimal(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _calculated(node.left), _calculated(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 10**6):
            raise ValueError("too large")
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not a sum")


def _repetition(prompt: str, found: Sequence[Candidate]) -> str | None:
    match = re.match(r"\s*(?:please\s+)?(?:say|repeat|echo)\b:?\s*(.+)", prompt, re.I | re.S)
    if match is None:
        return None
    times = re.search(r"\b(\d{1,3})\s+times\b|\b(twice)\b", match[1], re.I)
    quoted = next((one.text for one in found if one.kind == "quoted"), None)
    text = quoted or re.sub(r"\s*\b(?:\d{1,3}\s+times|twice)\b.*", "", match[1], flags=re.S)
    text = re.sub(r"^(?:after me|this|the following|the words?)\b[:,]?\s*", "", text, flags=re.I)
    count = 1 if times is None else 2 if times[2] else int(times[1])
    return "\n".join([text.strip()] * max(count, 1)) if text.strip() else None


def _about_words(prompt: str, found: Sequence[Candidate]) -> str | None:
    text = next((one.text for one in found if one.kind == "quoted"), None) or after_colon(prompt)
    if text is None:
        return None
    if re.search(r"\b(count|how many|number of)\b.*\bwords?\b", prompt, re.I):
        return f"**{len(text.split()):,}** words."
    if re.search(r"\b(count|how many|number of)\b.*\b(characters?|letters?)\b", prompt, re.I):
        letters = "letters" if re.search(r"\bletters?\b", prompt, re.I) else "characters"
        count = sum(c.isalpha() for c in text) if letters == "letters" else len(text)
        return f"**{count:,}** {letters}."
    for pattern, change in (
        (r"\b(revers\w*|backwards?)\b", lambda: text[::-1]),
        (r"\b(upper ?-?case|capitals)\b", text.upper),
        (r"\blower ?-?case\b", text.lower),
    ):
        if re.search(pattern, prompt, re.I):
            return change()
    return None


def long_text(prompt: str) -> str | None:
    """A text long enough to watch and to stop, when the prompt asks for one."""
    asked = re.search(r"\b(\d[\d,]*)[- ]words?\b", prompt, re.I)
    kind = re.search(
        r"\b(story|essay|poem|novel|article|speech|lorem ipsum|at length|in detail)\b"
        r"|(?<!how )\blong(?:er)?\s+(?:text|answer|story|essay|reply|poem|list|report|one|run)\b"
        r"|\b(?:something|a very|really)\s+long\b",
        prompt,
        re.I,
    )
    if asked is None and kind is None:
        return None
    wanted = int(asked[1].replace(",", "")[:9]) if asked else _USUAL_WORDS
    wanted = max(1, min(wanted, _MOST_WORDS))
    paragraphs: list[str] = []
    left, number = wanted, 0
    while left > 0:
        number += 1
        said = [f"Paragraph {number}."]
        said += [_SENTENCES[(number * 7 + i) % len(_SENTENCES)] for i in range(6)]
        kept = " ".join(said).split()[:left]
        left -= len(kept)
        paragraphs.append(" ".join(kept))
    return "\n\n".join(paragraphs)


def introduction(prompt: str, tools: Sequence[ToolSpec], note: str = "") -> str:
    """What this model is, what it understood, and how to get a real one."""
    lines = ["I am `offline:demo`, a rule-based demo and not a language model."]
    found = [one.text for one in candidates(prompt)]
    if note:
        lines.append(f"I cannot call a tool yet. {note}")
    elif tools:
        named = ", ".join(f"`{tool.name}`" for tool in tools[:8])
        lines.append(f"None of the tools here seems meant by your words. The tools: {named}.")
    else:
        lines.append("There is no tool here that I could use, and I know nothing by myself.")
    if found:
        lines.append(f"In your prompt I see: {', '.join(f'`{one}`' for one in found[:8])}.")
    lines.append(
        "To be understood, use words of a tool's name or description and give its arguments"
        " as names, numbers or quoted text. I can also count, work out `12 * 7`, repeat a text,"
        " or write a long one."
    )
    lines.append(
        "For a language model choose one with `--model PROVIDER:MODEL`; `%agent models` lists what"
        " can be asked here."
    )
    return "\n\n".join(lines)
