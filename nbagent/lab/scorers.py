"""Scorers: functions that score a run, valid score values, and the records made of them.

Scoring by a model is in `judges`, by a person in `review`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, cast, get_args, overload

from pydantic import BaseModel

from nbagent.contracts.canonical import sha_of, utc_now
from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.contracts.records import MAX_SCORE, Better, Case, ScoreRecord
from nbagent.lab.local import Executor
from nbagent.run import Run
from nbagent.runtime import RunTask
from nbagent.shown.images import of_class
from nbagent.shown.texts import class_name, clean, cut_middle, safe_repr
from nbagent.shown.values import to_text
from nbagent.tools.functions.arguments import function_of
from nbagent.tools.functions.definition import code_body

ScoreFunction = Callable[..., Any]
"""Function of a row and its run, sync or async."""
FUNCTION = "function"
"""Author of the scores of functions."""
_STOP_GRACE_S = 1.0
_MAX_LABEL_CHARS = 200
TEXT_CHARS = 2_000
"""Limit for a reason, and for the error of a scorer."""
_MAX_ROW_CHARS = 20_000
"""Limit for all columns of a row together; each gets an equal share, at least `_MIN_CELL_CHARS`."""
_MIN_CELL_CHARS = 400
_RETURN_ADVICE = (
    "return True or False, a number, a label (a text of up to "
    f"{_MAX_LABEL_CHARS} characters), nbagent.Score(value, reason), or a dict of these; "
    "None if there is no score"
)


@dataclass(frozen=True, slots=True)
class Score:
    """A score with its reason; a scorer may return it."""

    value: bool | float | str | None
    reason: str | None = None


class ScoreValue(NamedTuple):
    """One score with its full name; without a value there is no score, or it failed (`error`)."""

    name: str
    value: bool | float | str | None = None
    reason: str | None = None
    error: str | None = None
    by: str | None = None
    """Author, if another than that of the scorer's other scores."""
    judge_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class ScorerResult:
    """Scores of one run, and their author."""

    values: Sequence[ScoreValue]
    by: str
    judge_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """Executor and case for a scorer that asks a model."""

    executor: Executor
    case: Case | None = None
    """Case that the run answers; None outside of a batch."""
    template: str = ""
    """Prompt of the case's variant, with its `{{ expressions }}`."""


class Scorer(ABC):
    """Scores a run: a function, or a judge."""

    by = FUNCTION
    """Author that its scores name, unless a judge's run names the model."""

    @property
    @abstractmethod
    def costs(self) -> bool:
        """True if scoring asks a model, so that budgets and estimates must count it.

        Abstract: a new kind of scorer that does not say so cannot be made.
        """

    def __init__(self, name: str, version: int, does: Any, *, better: Better = "higher") -> None:
        self.name, self.version = checked_name(name), checked_version(version)
        self.better: Better = checked_direction(better)
        # The direction is stored with each score, so that another one scores again.
        self.code = sha_of(does if better == "higher" else [does, better])[:8]
        """Hash of its code: a corrected scorer scores again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, version {self.version}>"

    def applies_to(self, run_id: str) -> bool:
        """True if it scores this run."""
        return True

    def code_of(self, run_id: str) -> str:
        """Hash of its code, and of what else its score of this run depends on."""
        return self.code

    async def records(
        self, row: Mapping[str, Any], run: Run, at: ScoringContext
    ) -> list[ScoreRecord]:
        """Score a run; a failure becomes the `error` of a score. On the engine thread.

        The store hides secrets in scores.
        """
        try:
            verdict = await self._score(row, run, at)
        except Exception as error:
            verdict = ScorerResult([ScoreValue(self.name, error=self._raised(error))], self.by)
        # A judge may give a reason why there is no score.
        values = [value for value in verdict.values if value[1:4] != (None, None, None)]
        # "No score" is stored too, otherwise each start would score this run again.
        values, now = values or verdict.values[:1] or [ScoreValue(self.name)], utc_now()
        return [
            ScoreRecord(
                run_id=run.id,
                scorer=value.name,
                version=self.version,
                value=value.value,
                reason=value.reason,
                by=value.by or verdict.by,
                error=value.error and cut_middle(clean(value.error), TEXT_CHARS),
                at=now,
                judge_run_id=value.judge_run_id or verdict.judge_run_id,
                better=self.better,
            )
            for value in values
        ]

    @abstractmethod
    async def _score(self, row: Mapping[str, Any], run: Run, at: ScoringContext) -> ScorerResult:
        """Score one run; anything raised becomes the error of a score."""

    def _raised(self, error: Exception) -> str:
        return str(error) if isinstance(error, NbagentError) else describe_error(error)


class FunctionScorer(Scorer):
    """Scorer made of a function; calling it calls the function."""

    def __init__(
        self, function: ScoreFunction, *, name: str | None, version: int, better: Better = "higher"
    ) -> None:
        if not callable(function):
            raise UsageError(f"{safe_repr(function, 200)} is not a function of a row and its run")
        own: str = getattr(function, "__name__", "<lambda>")
        if name is None and own == "<lambda>":
            raise UsageError("a scorer without a name: write nbagent.scorer(name='…')(function)")
        super().__init__(own if name is None else name, version, code_body(function), better=better)
        try:
            inspect.signature(function).bind("row", "run")
        except ValueError:
            pass  # a function written in C, without a signature
        except TypeError as error:
            raise UsageError(f"scorer {own!r} has to take a row and its run: {error}") from None
        self._function = function
        # Without its `__dict__`, whose names could replace attributes of this object.
        functools.update_wrapper(self, function, updated=())

    @property
    def costs(self) -> bool:
        return False  # a model that the function asks by itself is not seen here

    def __call__(self, row: Any, run: Any) -> Any:
        return self._function(row, run)

    async def _score(self, row: Mapping[str, Any], run: Run, at: ScoringContext) -> ScorerResult:
        async def work_async() -> list[ScoreValue]:
            return score_values(self.name, await self._function(row, run))

        def work() -> list[ScoreValue]:
            return score_values(self.name, self._function(row, run))

        # In a thread of its own, or on the loop of async tools: a scorer that never ends would
        # otherwise block the engine, or one of the few threads that store and models need.
        run_task = RunTask()
        if inspect.iscoroutinefunction(function_of(self._function)):
            job = run_task.run(work_async, where="tool loop", label=self.name)
        else:
            job = run_task.run(work, where="worker thread", label=self.name)
        # A stop of the batch does not wait for it: a thread cannot be ended from outside.
        cancel = run_task.outer.cancel if run_task.outer else run_task.cancel
        task = await cancel.run_cancellable(job, _STOP_GRACE_S)
        if task.cancelled() or not task.done():
            return ScorerResult([ScoreValue(self.name, error="stopped before it ended")], self.by)
        return ScorerResult(task.result()[0], self.by)

    def _raised(self, error: Exception) -> str:
        """Return the error with the last line of the scorer's own file in its traceback."""
        code = getattr(inspect.unwrap(function_of(self._function)), "__code__", None)
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if code is not None and frame.filename == code.co_filename
        ]
        where = f" (line {own[-1].lineno}: {own[-1].line})" if own else ""
        return describe_error(error).rstrip(": ") + where


@overload
def scorer(function: ScoreFunction, /) -> FunctionScorer: ...
@overload
def scorer(
    *, name: str | None = None, version: int = 1, better: Better = "higher"
) -> Callable[[ScoreFunction], FunctionScorer]: ...
def scorer(
    function: ScoreFunction | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    better: Better = "higher",
) -> FunctionScorer | Callable[[ScoreFunction], FunctionScorer]:
    """Make a scorer of a function `(row, run)`, sync or async: `@nbagent.scorer`.

    It returns a bool (an assertion), a number, a text (a label), `nbagent.Score(value, reason)`,
    or several as a dict, a dataclass or a pydantic model (`NAME.key`; a text `reason` among them
    is the reason of all); None if there is no score. An exception is stored as an error, never as
    a value.

    Args:
        function: the function, if no option is given.
        name: of the score; default: the function's name.
        version: raise it when the scorer changes: runs are then scored again.
        better: `lower` for a score like a count of errors, so that comparisons say which is better.

    Raises:
        UsageError: it has no name, or does not take a row and a run.
    """
    if function is not None:
        return FunctionScorer(function, name=name, version=version, better=better)
    return functools.partial(FunctionScorer, name=name, version=version, better=better)


def as_scorers(scorers_or_one: object) -> tuple[Scorer, ...]:
    """Return scorers, made of functions where needed; none for None.

    Raises:
        UsageError: two have one name, or one is no function.
    """
    if scorers_or_one is None:
        return ()
    several = (
        cast("list[object]", scorers_or_one)
        if isinstance(scorers_or_one, list | tuple)
        else [scorers_or_one]
    )

    def made(item: object) -> Scorer:
        # Not `scorer(item)`, which takes None for a decorator with options.
        return FunctionScorer(cast("Any", item), name=None, version=1)

    scorers = [item if isinstance(item, Scorer) else made(item) for item in several]
    names = [item.name for item in scorers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two scorers are called {name!r}; give one nbagent.scorer(name='…')")
    return tuple(scorers)


# Values → scores


def score_values(name: str, value: Any) -> list[ScoreValue]:
    """Convert a scorer's return value to scores; an invalid value becomes an error with advice."""
    fields = None if isinstance(value, Score) else _mapping_of(value)
    if fields is None:
        return [_score_value(name, value)]
    reason = fields.pop("reason") if isinstance(fields.get("reason"), str) else None
    return [
        _score_value(f"{name}.{clean(str(key))[:100]}", value, reason)
        for key, value in fields.items()
    ]


def _mapping_of(value: Any) -> dict[Any, Any] | None:
    """Return several scores by name, from a mapping, model or dataclass; None for other values."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _score_value(name: str, returned: Any, reason: object = None) -> ScoreValue:
    if isinstance(returned, Score):
        returned, reason = returned.value, reason if returned.reason is None else returned.reason
    try:
        value = plain_value(returned)
    except UsageError as error:
        return ScoreValue(name, error=error.message)
    return ScoreValue(name, value, None if reason is None else to_text(reason, TEXT_CHARS))


def plain_value(returned: Any) -> bool | float | str | None:
    """Convert a value to a storable score; raise UsageError, with advice, if it is none."""
    value = returned.item() if of_class(returned, "numpy", "generic") else returned
    value = value.value if isinstance(value, Enum) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if abs(value) <= MAX_SCORE:  # False for NaN
            return float(value)
        raise UsageError(f"{safe_repr(value, 50)} is no score; {_RETURN_ADVICE}")
    if isinstance(value, str):
        text = clean(value)
        if len(text) <= _MAX_LABEL_CHARS:
            return text
        raise UsageError(f"a text of {len(text):,} characters is no label; {_RETURN_ADVICE}")
    raise UsageError(f"a value of type {class_name(value)} is no score; {_RETURN_ADVICE}")


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,80}", name):
        raise UsageError(
            f"{safe_repr(name, 100)} cannot name a score; use letters, digits, '_' and '-'"
        )
    return name


def checked_version(version: object) -> int:
    if type(version) is not int or version < 1:
        raise UsageError(f"version={safe_repr(version, 100)}: count the versions from 1")
    return version


def checked_direction(better: object) -> Better:
    if better not in get_args(Better):
        raise UsageError(f"better={safe_repr(better, 100)} is unknown; it is 'higher' or 'lower'")
    return cast("Better", better)


def shown_row(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row's columns as text for a judge or person: bounded, with cuts marked."""
    budget = max(_MAX_ROW_CHARS // max(len(row), 1), _MIN_CELL_CHARS)
    return [(" ".join(str(name).split())[:100], to_text(row[name], budget)) for name in row]
