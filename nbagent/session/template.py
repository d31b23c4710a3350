"""`{{ expression }}` in a prompt: finds the expressions, evaluates them, puts the values in.

The caller decides which names an expression may use; `nbagent.shown` turns values into text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from types import AsyncGeneratorType, CoroutineType
from typing import Any, cast

from nbagent.contracts.errors import UsageError, describe_error
from nbagent.contracts.messages import Part, TextPart
from nbagent.contracts.secrets import redact_truncated
from nbagent.session.template_languages import (
    language_of,
    names_no_variable,
    statement_of_jinja,
)

# A lookahead: in `{{ {1}}}` the expression ends at the second of two overlapping `}}`.
_OPEN, _CLOSINGS = "{{", re.compile("(?=}})")
_AWAIT_ADVICE = "await it in a cell above, and use the result's name here."
_TABLE = re.compile(r"^\| [^\n]* \|$", re.MULTILINE)
_MAX_CLOSINGS = 64
"""Most `}}` that are tried as the end of one expression: a long LaTeX text must not be slow."""
_BRACES_ADVICE = "To write two literal braces, type {{ '{{' }}."
_LITERAL_ADVICE = (
    "To send the prompt as typed, add --no-template after %%agent or %agent (in Python: "
    "Agent(…, template=False); in the panel: “off” in the field “Template”)."
)
_MAX_NAMED = 3
"""Most expressions that one warning names."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template with its expressions replaced by their values."""

    prompt: str
    """The prompt as one text; an image is `[image: …]` in it."""
    parts: tuple[Part, ...]
    """Parts for a message: neighbouring texts joined, images and files at their places."""
    expressions: tuple[str, ...]
    """The expressions in order, as typed. Empty when the template had none."""
    warnings: tuple[str, ...] = ()
    """For the person: expressions that may have been meant as text."""


class Template:
    """A text with `{{ expressions }}`. All are found before the first is evaluated.

    Everything else stays as typed: single braces, `$`, JSON. If `literal`, all of it does.

    Raises:
        UsageError: an expression is unfinished, or is not Python, or the text is Jinja.
    """

    def __init__(self, text: str, *, literal: bool = False) -> None:
        self.text = text
        self._texts, expressions = ([text], []) if literal else _split(text)
        self.expressions = tuple(expression for expression, _ in expressions)
        """In order, as typed."""
        self.warnings = _literal_warnings(self._texts, expressions)
        """For the person: expressions that may have been meant as text."""

    def render(self, evaluate: Callable[[str], object]) -> Rendered:
        """Replace all expressions by their values. A value is not searched for expressions.

        Args:
            evaluate: returns the value of one Python expression; it gets only text that
                compiles.

        Raises:
            UsageError: an expression raised.
        """
        parts: list[Part] = [TextPart(text=self._texts[0])]
        for expression, before, text in zip(
            self.expressions, self._texts, self._texts[1:], strict=False
        ):
            parts += [*_value_parts(expression, before, text, evaluate), TextPart(text=text)]
        prompt = "".join(_as_text(part) for part in parts)
        return Rendered(prompt, tuple(_merge_texts(parts)), self.expressions, self.warnings)


def render(template: str, evaluate: Callable[[str], object], *, literal: bool = False) -> Rendered:
    """`Template.render` for a text that is used once."""
    return Template(template, literal=literal).render(evaluate)


def _literal_warnings(texts: list[str], expressions: list[_Typed]) -> tuple[str, ...]:
    """Return one warning that names the expressions without a variable, if there are any."""
    literals = [
        f"{{{{ {_excerpt(expression, 60)} }}}}"
        for before, (expression, is_spaced) in zip(texts, expressions, strict=False)
        if names_no_variable(expression, before, is_spaced=is_spaced)
    ]
    if not literals:
        return ()
    more = f" and {len(literals) - _MAX_NAMED} more" if len(literals) > _MAX_NAMED else ""
    return (
        f"{', '.join(literals[:_MAX_NAMED])}{more}: no name is in the braces, and the value was "
        f"put in their place. If it is LaTeX or text: {_LITERAL_ADVICE} {_BRACES_ADVICE}",
    )


def _foreign_error(text: str, language: str, **details: Any) -> UsageError:
    return UsageError(
        f"{text} looks like {language}, which is not evaluated here. {_LITERAL_ADVICE} "
        "Nothing was sent.",
        details={"language": language, **details},
    )


_Typed = tuple[str, bool]
"""An expression as typed, and whether the braces have a space inside."""


def _split(template: str) -> tuple[list[str], list[_Typed]]:
    """Split into texts and expressions as typed; there is one text more than expressions."""
    try:
        texts, expressions = _texts_and_expressions(template)
    except UsageError:
        if statement := statement_of_jinja(template):
            raise _foreign_error(_excerpt(statement), "Jinja") from None
        raise
    # Not in the expressions: `{{ '{% if x %}' }}` is how a statement of Jinja is written.
    for text in texts:
        if statement := statement_of_jinja(text):
            raise _foreign_error(_excerpt(statement), "Jinja")
    return texts, expressions


def _texts_and_expressions(template: str) -> tuple[list[str], list[_Typed]]:
    texts: list[str] = []
    expressions: list[_Typed] = []
    position = 0
    while (start := template.find(_OPEN, position)) >= 0:
        texts.append(template[position:start])
        expression, position = _expression_at(template, start)
        expressions.append((expression, template[start + len(_OPEN)].isspace()))
    return [*texts, template[position:]], expressions


def _expression_at(template: str, start: int) -> tuple[str, int]:
    """The expression that starts here, and the position after it: the shortest that compiles."""
    tried: list[str] = []
    for closing in islice(_CLOSINGS.finditer(template, start + len(_OPEN)), _MAX_CLOSINGS):
        typed = template[start + len(_OPEN) : closing.start()].strip()
        if typed and _compiles(_compilable(typed), "eval"):
            return typed, closing.start() + len("}}")
        tried.append(typed)
    if not tried:
        raise UsageError(
            f"{_excerpt(template[start:])!r} opens an expression and has no closing }}}}."
            f" Close it, or: {_BRACES_ADVICE} {_LITERAL_ADVICE}"
        )
    typed, before = tried[0], template[:start]
    name = f"{{{{ {_excerpt(typed)} }}}}"
    if typed and (language := language_of(typed, before[-100:])):
        raise _foreign_error(f"{'$' * before.endswith('$')}{name}", language)
    raise UsageError(f"{name} {_invalid_reason(typed)} {_BRACES_ADVICE} {_LITERAL_ADVICE}")


def _compilable(typed: str) -> str:
    """Put parentheses around an expression, so that it may have several lines."""
    return f"({typed}\n)" if "\n" in typed else typed


def _compiles(source: str, mode: str, flags: int = 0) -> bool:
    with warnings.catch_warnings():
        # Python warns of odd escapes when the expression is evaluated; once is enough.
        warnings.simplefilter("ignore")
        try:
            compile(source, "<prompt>", mode, flags)
        # Of deep nesting `compile` makes a MemoryError or a RecursionError.
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return False
    return True


def _invalid_reason(typed: str) -> str:
    """Explain why a text is not an expression; the sentence starts with the text."""
    if not typed:
        return "is empty; put a Python expression between the braces."
    if typed[0] in "%!" or typed.endswith("?"):
        return "is for IPython; only Python expressions are evaluated here, no magics or shell."
    if _compiles(typed, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        return f"has to be awaited; {_AWAIT_ADVICE}"
    if _compiles(typed, "exec"):
        return "is a statement; put it in a cell above, and use the name or an expression here."
    return "is not a Python expression."


def _value_parts(
    expression: str, before: str, behind: str, evaluate: Callable[[str], object]
) -> tuple[Part, ...]:
    name = f"{{{{ {_excerpt(expression)} }}}}"
    try:
        value = evaluate(_compilable(expression))
    except Exception as error:
        undefined = error.name or "" if isinstance(error, NameError) else ""
        if language := language_of(expression, before, undefined=undefined):
            named = f"{'$' * before.endswith('$')}{name}"
            reason = _excerpt(describe_error(error)).rstrip(": .")
            text = f"{named} failed ({reason}) and"
            raise _foreign_error(text, language, expression=expression) from error
        remedy = "Try the expression in a cell of its own, and correct it."
        if isinstance(error, NameError):
            remedy = "Run the cell that defines the name, or correct it. "
            remedy += f"{_BRACES_ADVICE} {_LITERAL_ADVICE}"
        reason = _excerpt(describe_error(error)).rstrip(": .")
        reason = reason if reason.endswith("?") else f"{reason}."
        raise UsageError(
            f"{name} failed: {reason} {remedy} Nothing was sent.",
            details={"expression": expression, "error": type(error).__name__},
        ) from error
    kind = type(value)
    if issubclass(kind, Awaitable | AsyncGeneratorType):
        called = isinstance(ast.parse(_compilable(expression), mode="eval").body, ast.Call)
        if called and isinstance(value, CoroutineType):
            # Else Python warns later, in another cell, that it was never awaited.
            cast("CoroutineType[Any, Any, Any]", value).close()
        raise UsageError(
            f"{name} gives a value of type {kind.__name__!r}, which has to be awaited; "
            f"{_AWAIT_ADVICE} Nothing was sent."
        )
    # Late: only a prompt with values needs it, and most have none.
    from nbagent.shown.values import to_prompt_parts

    parts = to_prompt_parts(value)
    ends_in_table = not issubclass(kind, str) and _TABLE.search(_as_text(parts[-1]))
    if ends_in_table and behind.strip() and not re.match(r"[^\S\n]*\n", behind):
        # Else the words behind a table would belong to its last row.
        return (*parts, TextPart(text="\n"))
    return parts


def _excerpt(text: str, limit: int = 200) -> str:
    text = redact_truncated(text)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _as_text(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    if part.type == "image":
        return f"[image: {part.alt}]" if part.alt else "[image]"
    return f"[file: {part.name}]"


def _merge_texts(parts: list[Part]) -> Iterator[Part]:
    """Join neighbouring texts and drop empty ones."""
    for is_text, some in groupby(parts, lambda part: isinstance(part, TextPart)):
        if not is_text:
            yield from some
        elif text := "".join(map(_as_text, some)):
            yield TextPart(text=text)
