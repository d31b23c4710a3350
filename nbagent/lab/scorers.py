"""What is said of a run by a function: which values are scores, and the records made of them.

How a model judges is in `judges`, how a person does in `review`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, cast, overload

from pydantic import BaseModel

from nbagent.contracts.canonical import sha_of, utc_now
from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.contracts.records import Case, ScoreRecord
from nbagent.lab.local import Executor
from nbagent.run import Run
from nbagent.runtime import RunTask
from nbagent.shown.images import of_class
from nbagent.shown.texts import clean, cut_middle, class_name, plain_repr
from nbagent.shown.values import to_text
from nbagent.tools.functions.arguments import function_of
from nbagent.tools.functions.definition import body_of

ScoreFunction = Callable[..., Any]
"""Of a row and its run, sync or async."""
_GRACE_S = 1.0
_LABEL_CHARS = 200
TEXT_CHARS = 2_000
"""Of a reason, and of what a scorer raised."""
_ROW_CHARS = 20_000
"""Of all columns of a row; each has a share, and at least `_CELL_CHARS`."""
_CELL_CHARS = 400
_TAKES = (
    "return True or False, a number, a label (a text of up to "
    f"{_LABEL_CHARS} characters), nbagent.Score(value, reason), or a dict of these; "
    "None where there is no score"
)


@dataclass(frozen=True, slots=True)
class Score:
    """A score and why: what a scorer may return."""

    value: bool | float | str | None
    reason: str | None = None


class Said(NamedTuple):
    """One score by its whole name; no value: there is none, or the error says why."""

    name: str
    value: bool | float | str | None = None
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scorer says of one run, and who said it."""

    said: Sequence[Said]
    by: str
    judge_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Judging:
    """What a scorer needs to ask a model."""

    executor: Executor
    case: Case | None = None
    """That the run answers; None outside of a batch."""


class Scorer(ABC):
    """Says something of a run: a function, or a judge."""

    by = "function"
    """Stands in its scores, where no run of a judge says it better."""

    def __init__(self, name: str, version: int, does: Any) -> None:
        self.name, self.version = checked_name(name), checked_version(version)
        self.code = sha_of(does)[:8]
        """Hash of what it does: a scorer that was mended scores anew."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, version {self.version}>"

    async def records(self, row: Mapping[str, Any], run: Run, at: Judging) -> list[ScoreRecord]:
        """The scores of a run; what goes wrong is the `error` of one. On the engine thread.

        Secrets in them are hidden by the store.
        """
        try:
            verdict = await self._verdict(row, run, at)
        except Exception as error:
            verdict = Verdict([Said(self.name, error=self._raised(error))], self.by)
        kept = [it for it in verdict.said if it.value is not None or it.error is not None]
        # Also that there is no score is kept: nobody is asked for it again.
        kept, now = kept or verdict.said[:1] or [Said(self.name)], utc_now()
        return [
            ScoreRecord(
                run_id=run.id,
                scorer=one.name,
                version=self.version,
                value=one.value,
                reason=one.reason,
                by=verdict.by,
                error=one.error and cut_middle(clean(one.error), TEXT_CHARS),
                at=now,
                judge_run_id=verdict.judge_run_id,
            )
            for one in kept
        ]

    @abstractmethod
    async def _verdict(self, row: Mapping[str, Any], run: Run, at: Judging) -> Verdict:
        """What it says; whatever it raises becomes an error."""

    def _raised(self, error: Exception) -> str:
        return str(error) if isinstance(error, NbagentError) else describe_error(error)


class FunctionScorer(Scorer):
    """A function that scores; called, it is the function."""

    def __init__(self, function: ScoreFunction, *, name: str | None, version: int) -> None:
        if not callable(function):
            raise UsageError(f"{plain_repr(function, 200)} is no function of a row and its run")
        own: str = getattr(function, "__name__", "<lambda>")
        if name is None and own == "<lambda>":
            raise UsageError("a scorer without a name: write nbagent.scorer(name='…')(function)")
        super().__init__(own if name is None else name, version, body_of(function))
        try:
            inspect.signature(function).bind("row", "run")
        except ValueError:
            pass  # Of C, without a signature.
        except TypeError as error:
            raise UsageError(f"scorer {own!r} has to take a row and its run: {error}") from None
        self._function = function
        functools.update_wrapper(self, function, updated=())

    def __call__(self, row: Any, run: Any) -> Any:
        return self._function(row, run)

    async def _verdict(self, row: Mapping[str, Any], run: Run, at: Judging) -> Verdict:
        async def work_async() -> list[Said]:
            return said_of(self.name, await self._function(row, run))

        def work() -> list[Said]:
            return said_of(self.name, self._function(row, run))

        # In a thread of its own, or on the loop of async tools: one that never ends would else
        # hold the engine, or one of the few threads that the store and the models wait for.
        courier = RunTask()
        if inspect.iscoroutinefunction(function_of(self._function)):
            job = courier.run(work_async, where="tool loop", label=self.name)
        else:
            job = courier.run(work, where="worker thread", label=self.name)
        # A stop of the batch leaves it behind.
        cancel = courier.outer.cancel if courier.outer else courier.cancel
        task = await cancel.run_cancellable(job, _GRACE_S)
        if task.cancelled() or not task.done():
            return Verdict([Said(self.name, error="stopped before it had ended")], self.by)
        return Verdict(task.result()[0], self.by)

    def _raised(self, error: Exception) -> str:
        """The error and the last line of the scorer's own file that led to it."""
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
    *, name: str | None = None, version: int = 1
) -> Callable[[ScoreFunction], FunctionScorer]: ...
def scorer(
    function: ScoreFunction | None = None, /, *, name: str | None = None, version: int = 1
) -> FunctionScorer | Callable[[ScoreFunction], FunctionScorer]:
    """Make a scorer of a function `(row, run)`, sync or async: `@nbagent.scorer`.

    It returns a bool (an assertion), a number, a text (a label), `nbagent.Score(value, reason)`,
    or several as a dict, a dataclass or a pydantic model (`NAME.key`; a text `reason` among them
    is the reason of all); None where there is no score. What it raises is kept as an error, never
    as a value.

    Args:
        function: where no option is given.
        name: of the score; the function's own without.
        version: to be raised when it changes: scores of another version are made anew.

    Raises:
        UsageError: it has no name, or does not take a row and a run.
    """
    if function is not None:
        return FunctionScorer(function, name=name, version=version)
    return functools.partial(FunctionScorer, name=name, version=version)


def as_scorers(given: object) -> tuple[Scorer, ...]:
    """Scorers, and plain functions as scorers; UsageError where two bear one name."""
    several = cast("list[object]", given) if isinstance(given, list | tuple) else [given]
    scorers = [one if isinstance(one, Scorer) else scorer(cast("Any", one)) for one in several]
    names = [one.name for one in scorers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two scorers are called {name!r}; give one nbagent.scorer(name='…')")
    return tuple(scorers)


# Values → scores


def said_of(name: str, given: Any) -> list[Said]:
    """What a scorer returned, as scores; what is none is an error that says what to return."""
    fields = None if isinstance(given, Score) else _fields(given)
    if fields is None:
        return [_said(name, given)]
    reason = fields.pop("reason") if isinstance(fields.get("reason"), str) else None
    return [_said(f"{name}.{clean(str(key))[:100]}", it, reason) for key, it in fields.items()]


def _fields(given: Any) -> dict[Any, Any] | None:
    """What several scores are given as, by their names; None for anything else."""
    if isinstance(given, Mapping):
        return dict(cast("Mapping[Any, Any]", given))
    if isinstance(given, BaseModel):
        return {name: getattr(given, name) for name in type(given).model_fields}
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return None


def _said(name: str, given: Any, reason: object = None) -> Said:
    if isinstance(given, Score):
        given, reason = given.value, reason if given.reason is None else given.reason
    try:
        value = plain_value(given)
    except UsageError as error:
        return Said(name, error=error.message)
    return Said(name, value, None if reason is None else to_text(reason, TEXT_CHARS))


def plain_value(given: Any) -> bool | float | str | None:
    """One score as it is kept; UsageError, with what to return, for what is none."""
    value = given.item() if of_class(given, "numpy", "generic") else given
    value = value.value if isinstance(value, Enum) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        number = float(value) if abs(value) < 1e308 else math.inf
        if math.isfinite(number):
            return number
        raise UsageError(f"{plain_repr(value, 50)} is no score; {_TAKES}")
    if isinstance(value, str):
        text = clean(value)
        if len(text) <= _LABEL_CHARS:
            return text
        raise UsageError(f"a text of {len(text):,} characters is no label; {_TAKES}")
    raise UsageError(f"a value of type {class_name(value)} is no score; {_TAKES}")


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,80}", name):
        raise UsageError(
            f"{plain_repr(name, 100)} cannot name a score; use letters, digits, '_' and '-'"
        )
    return name


def checked_version(version: object) -> int:
    if type(version) is not int or version < 1:
        raise UsageError(f"version={plain_repr(version, 100)}: count the versions from 1")
    return version


def shown_row(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The columns of a row and their texts, for who judges: bounded, a cut is marked."""
    budget = max(_ROW_CHARS // max(len(row), 1), _CELL_CHARS)
    return [(" ".join(str(name).split())[:100], to_text(row[name], budget)) for name in row]
