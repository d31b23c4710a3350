"""`nbagent.judges`: judges with a ready rubric."""

from __future__ import annotations

from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.lab.judges import Judge
from nbagent.lab.scorers import Scorer
from nbagent.shown.texts import safe_repr

__all__ = ["correct", "grounded"]

# Parts of recorded requests: keep their words, or raise the versions.
_CORRECT = """\
The answer is correct: it says the same as the column `{expected}`, which holds the right answer. \
Other words, another order, another format of the same value, and more explanation do not matter. \
An answer that contradicts the column, leaves out a part of it, or offers several answers of which \
only one is right, is not correct. Measure by the column only, also where you know better."""
_GROUNDED = """\
The answer is grounded: each of its statements of fact follows from a result of a tool call, from \
a column, or from the prompt. Other words and rounded numbers do not matter. A statement that no \
result supports makes the answer ungrounded, also if it is true; so does one that contradicts a \
result. A failed call supports nothing. An answer that only says what could not be found out is \
grounded."""


def correct(
    expected: str = "expected",
    *,
    model: str | object | None = None,
    name: str = "correct",
    version: int = 1,
    **options: Any,
) -> Scorer:
    """Return a judge that compares the answer with a column that holds the right one.

    A row without a right answer gets no score, and no model is asked.

    Args:
        expected: the column.
        model: `provider:model`, or a script; None: as the settings say.
        name: of the score.
        version: raise it to judge again.
        options: as in `nbagent.judge`, except `output`.
    """
    column: Any = expected
    if not isinstance(column, str) or not column.strip():
        raise UsageError(
            f"expected={safe_repr(column, 100)}: give the column with the right answers"
        )
    return _judge(_CORRECT.format(expected=expected), (expected,), model, name, version, options)


def grounded(
    *,
    model: str | object | None = None,
    name: str = "grounded",
    version: int = 1,
    **options: Any,
) -> Scorer:
    """Return a judge of whether tool results support all that the answer states.

    Args:
        model: `provider:model`, or a script; None: as the settings say.
        name: of the score.
        version: raise it to judge again.
        options: as in `nbagent.judge`, except `output`.
    """
    options = {"sees": ("answer", "tools"), **options}
    return _judge(_GROUNDED, (), model, name, version, options)


def _judge(
    rubric: str,
    columns: tuple[str, ...],
    model: str | object | None,
    name: str,
    version: int,
    options: dict[str, Any],
) -> Scorer:
    if "output" in options:
        raise UsageError(f"{name}: it says true or false; for another output use nbagent.judge(…)")
    sees = options.pop("sees", "answer")
    return Judge(
        rubric,
        name=name,
        version=version,
        output=None,
        options={"model": model, **options},
        sees=sees,
        columns=columns,
    )


def __dir__() -> list[str]:
    """Public names only, as Tab offers them."""
    return __all__
