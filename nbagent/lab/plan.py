"""The cases of a batch: the rows of a table × variants × repeats, each with its prompt and hash.

Reads what a person gives and refuses what does not fit; starts nothing and keeps nothing.
"""

from __future__ import annotations

import ast
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import TextPart
from nbagent.contracts.records import Case
from nbagent.contracts.secrets import redact_truncated
from nbagent.run import with_options
from nbagent.session.request import RunRequest
from nbagent.session.template import Rendered, Template
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import current_settings
from nbagent.shown.values import to_prompt_parts
from nbagent.store.batches import JUDGE_SUFFIX
from nbagent.view.words import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame

PROMPT = "prompt"
"""The axis whose values are templates."""
_FIXED = ("name", "session", "raw", "quiet", "echo", "document", "max_cost_usd")
_DECIDING = (
    *("extra_body", "headers", "tool_choice", "trim", "policy", "mounts", "skills", "variables"),
    *("workflow", "agent", "autopilot"),
)
_LABEL_CHARS = 60
_SHA_CHARS = 32
_MOST = 10_000
_MOST_CASES = 1_000_000
_NAME = re.compile(rf"(?=.*\S)(?!.*{JUDGE_SUFFIX}$).{{1,200}}")
_EXPECTED = {
    **dict.fromkeys(("repeat", "concurrency"), f"a whole number from 1 to {_MOST:,}"),
    **dict.fromkeys(("max_cost_usd", "max_failed"), "a number above 0"),
    "stale": "'run' or 'keep'",
    "name": f"up to 200 characters in one line, which do not end with {JUDGE_SUFFIX}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a person wants a table asked; see `Agent.map`."""

    key: str | None = None
    vary: Any = None
    repeat: int = 1
    name: str | None = None
    concurrency: int = 16
    max_cost_usd: float | None = None
    max_failed: float | None = None
    score: Any = ()
    stale: str | None = None
    executor: Any = None
    names: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        fits = {
            "repeat": _is_count(self.repeat),
            "concurrency": _is_count(self.concurrency),
            "max_cost_usd": self.max_cost_usd is None or _is_positive(self.max_cost_usd),
            "max_failed": self.max_failed is None or _is_positive(self.max_failed),
            "stale": self.stale in (None, "run", "keep"),
            "name": self.name is None or bool(_NAME.fullmatch(_text(self.name))),
        }
        for option, is_right in fits.items():
            if not is_right:
                value = reprlib.repr(getattr(self, option))
                raise UsageError(f"{option}={value} does not fit; expected {_EXPECTED[option]}")


def _is_count(given: Any) -> bool:
    return type(given) is int and 1 <= given <= _MOST


def _is_positive(given: Any) -> bool:
    return type(given) in (int, float) and 0 < given < float("inf")


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


class Row(Mapping[str, Any]):
    """A row of the person's table: `row["n"]`, or `row.n` where no method has that name."""

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self._cells = cells

    def __getitem__(self, column: str) -> Any:
        return self._cells[column]

    def __getattr__(self, column: str) -> Any:
        if column.startswith("__") or column not in self.__dict__.get("_cells", ()):
            raise AttributeError(f"the row has no column {column!r}")
        return self._cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return f"Row({dict(self._cells)!r})"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows with their keys, which differ."""

    data: DataFrame
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One label for each axis, and what these mean."""

    labels: dict[str, str]
    ask: RunRequest
    """What all cases of it share."""
    template: Template
    identity: str = ""
    """Hash of all but the prompt that decides an answer."""
    max_turns: int = 0
    """Of one run."""

    @property
    def name(self) -> str:
        """Its labels."""
        return " · ".join(self.labels.values())


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case as it is to be asked."""

    place: int
    """Of its row in the table, from 0."""
    row: Row
    variant: Variant
    case: Case
    rendered: Rendered


def table_of(data: Any, key: str | None) -> Table:
    """The table that a person gives: a DataFrame, and the column that tells its rows apart.

    Raises:
        UsageError: it is none, it is empty, or keys are missing or double.
    """
    if not hasattr(data, "iloc") or not hasattr(data, "columns"):
        raise UsageError(
            f"the table is a {type(data).__name__}; give a DataFrame, such as "
            "pandas.DataFrame({'n': [1, 2]})"
        )
    columns = tuple(map(str, data.columns))
    if not len(data) or len(set(columns)) < len(columns):
        said = "has no rows" if not len(data) else "has two columns of one name"
        raise UsageError(f"the table {said}; give one with rows, and a name for each column")
    if key is not None and str(key) not in columns:
        raise UsageError(f"key={key!r} is no column; the columns are {', '.join(columns)}")
    # Its own copy: what is done to the person's table later must not change what was asked.
    data = data.copy()
    held: Any = data.index if key is None else data.iloc[:, columns.index(str(key))]
    found: list[Any] = held.tolist()
    if any(map(_is_missing, found)):
        raise UsageError(f"{_key_words(key)} has missing values; each row needs a plain key")
    keys = tuple(map(key_text, found))
    if doubles := [one for one, n in Counter(keys).items() if n > 1][:3]:
        raise UsageError(
            f"{_key_words(key)} has {', '.join(map(repr, doubles))} more than once; name a column "
            "whose values differ (key=…), or use df.reset_index(drop=True)"
        )
    cells = zip(*(data.iloc[:, i].tolist() for i in range(len(columns))), strict=True)
    rows = tuple(Row(dict(zip(columns, one, strict=True))) for one in cells)
    return Table(data, columns, keys, rows or tuple(Row({}) for _ in keys))


def _is_missing(key: Any) -> bool:
    try:
        return key is None or bool(key != key)
    except (TypeError, ValueError):  # pandas.NA, an array
        return True


def key_text(given: Any) -> str:
    """A key as text: 1.0, as pandas makes of 1 beside a missing value, is 1."""
    is_whole = isinstance(given, float) and given.is_integer()
    return str(int(given)) if is_whole else str(given)


def _key_words(key: str | None) -> str:
    return "the index" if key is None else f"the key column {key!r}"


# Variants


def variants_of(base: RunRequest, template: Any, vary: Any) -> list[Variant]:
    """Each combination of the axes' labels.

    Args:
        base: what all have in common.
        template: the prompt, unless the axis `prompt` says it.
        vary: by axis (an option of a run, or `prompt`) the values: a list, or a dict by label.

    Raises:
        UsageError: an axis is no option of a run, has no values, or labels are double.
    """
    if vary is not None and not isinstance(vary, Mapping):
        raise UsageError(f"vary={reprlib.repr(vary)}; write vary={{'model': ['a', 'b']}}")
    given = cast("Mapping[str, Any]", vary or {})
    axes = {name: _values(name, values) for name, values in given.items()}
    if not isinstance(template, str):
        raise UsageError(f"the template is a {type(template).__name__}; write it as text")
    if not template.strip() and PROMPT not in axes and not base.options.workflow:
        raise UsageError("the template is empty; write what you want to ask about each row")
    if template.strip() and PROMPT in axes:
        raise UsageError("the prompt is given twice: as the template and in vary; give it once")
    templates = {text: Template(text) for text in axes.get(PROMPT, {"": template}).values()}
    variants: list[Variant] = []
    for chosen in product(*(axis.items() for axis in axes.values())):
        named = dict(zip(axes, chosen, strict=True))
        changes = {axis: value for axis, (_, value) in named.items() if axis != PROMPT}
        text = named[PROMPT][1] if PROMPT in named else template
        labels = {axis: label for axis, (label, _) in named.items()}
        variants.append(Variant(labels, with_options(base, changes), templates[text]))
    return variants


def _values(axis: str, given: Any) -> dict[str, Any]:
    """The values of an axis by their labels."""
    known = [name for name in RunOptions.rows() if name not in _FIXED]
    if axis not in (PROMPT, *known):
        raise UsageError(f"vary: {axis!r} is no option of a run; known: prompt, {', '.join(known)}")
    is_secret = axis != PROMPT and RunOptions.rows()[axis].secret
    if isinstance(given, Mapping):
        values = {str(k): one for k, one in cast("Mapping[Any, Any]", given).items()}
        n = len(cast("Mapping[Any, Any]", given))
    elif isinstance(given, list | tuple):
        several = cast("Sequence[Any]", given)
        named = enumerate(several, 1)
        values = {str(i) if is_secret else _label(one): one for i, one in named}
        n = len(several)
    else:
        shown = "" if is_secret else f"={reprlib.repr(given)}"
        raise UsageError(f"vary: {axis}{shown} is no list; give [a, b] or a dict")
    if len(values) < max(n, 1):
        said = "has no values" if not n else "has two values with one label"
        raise UsageError(f"vary: {axis} {said}; write {axis}={{'v1': …, 'v2': …}}")
    if axis == PROMPT and not all(isinstance(one, str) and one.strip() for one in values.values()):
        raise UsageError("vary: the values of prompt are templates; write them as text")
    return values


def _label(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_label, cast("Sequence[Any]", value))) or "none"
    said = getattr(value, "model_id", None) or getattr(value, "__name__", None) or value
    return " ".join(redact_truncated(str(said)).split())[:_LABEL_CHARS]


# Cases


def columns_used(variants: Iterable[Variant], columns: Sequence[str]) -> list[str]:
    """The columns that the templates of variants name; all where one names `row`."""
    used: set[str] = set()
    for text in {one for variant in variants for one in variant.template.expressions}:
        used |= {it.id for it in ast.walk(ast.parse(f"({text}\n)")) if isinstance(it, ast.Name)}
    return [name for name in columns if name in used or "row" in used]


def cases_of(
    table: Table, variants: Sequence[Variant], repeat: int, batch: str, names: Mapping[str, Any]
) -> list[PlannedCase]:
    """The cases, row by row.

    Args:
        table: its columns are the names of the templates; `row` is the whole row.
        variants: with their identities.
        repeat: how often each is asked.
        batch: the batch's name.
        names: what a template may use besides: the notebook's own names.

    Raises:
        UsageError: an expression of a template fails, or there are too many cases.
    """
    if len(table.rows) * len(variants) * repeat > _MOST_CASES:
        raise UsageError(f"more than {_MOST_CASES:,} cases; take fewer rows, variants or repeats")
    cases: list[PlannedCase] = []
    for place, (key, row) in enumerate(zip(table.keys, table.rows, strict=True)):
        evaluate, rendered = _evaluator(row, names), dict[int, Rendered]()
        for variant in variants:
            template = variant.template
            if id(template) not in rendered:
                try:
                    rendered[id(template)] = template.render(evaluate)
                except UsageError as error:
                    raise _unfilled(error, key, table.columns) from None
            one = rendered[id(template)]
            for attempt in range(1, repeat + 1):
                sha = sha_of([_said(one), variant.identity, attempt])[:_SHA_CHARS]
                case = Case(
                    batch=batch, row_key=key, variant=variant.labels, attempt=attempt, sha=sha
                )
                cases.append(PlannedCase(place, row, variant, case, one))
    return cases


def _evaluator(row: Row, names: Mapping[str, Any]) -> Callable[[str], object]:
    # As globals: what stands in a lambda or a comprehension sees no locals.
    held = {**names, "row": row, **row}
    return lambda expression: eval(expression, held)


def _unfilled(error: UsageError, key: str, columns: Sequence[str]) -> UsageError:
    if "NameError" in str(error.details.get("error", "")):
        said = f"{error.message.partition(': ')[2].partition('. ')[0]}"
        return UsageError(f"the template: {said}; the columns are {', '.join(columns)}")
    return UsageError(f"the template, in row {key}: {error.message}")


def _said(rendered: Rendered) -> Any:
    """A prompt as it counts for the hash."""
    if all(isinstance(part, TextPart) for part in rendered.parts):
        return rendered.prompt
    return [part.model_dump(mode="json") for part in rendered.parts]


def ask_of(planned: PlannedCase, *, left_usd: float | None, session: str) -> RunRequest:
    """What asks a case for the first time, for at most so much."""
    rendered, ask = planned.rendered, planned.variant.ask
    options = ask.options.with_changes(session=ask.options.session or session)
    if left_usd is not None:
        own = ask.options.max_cost_usd
        options = options.with_changes(max_cost_usd=left_usd if own is None else min(own, left_usd))
    return replace(
        ask,
        prompt=rendered.prompt,
        parts=rendered.parts,
        options=options,
        case=planned.case,
    )


def marks_of(row: Row, columns: Iterable[str]) -> dict[str, str]:
    """Short hashes of some cells of a row, the same in each process."""
    return {name: sha_of(_plain(row[name]))[:8] for name in columns}


def _plain(cell: Any) -> Any:
    """A cell as JSON: as a prompt would show it, where it is no plain value."""
    if cell is None or type(cell) in (str, int, bool):
        return cell
    if type(cell) is float:
        return repr(cell)
    return [part.model_dump(mode="json") for part in to_prompt_parts(cell)]


def row_shas(table: Table, columns: Sequence[str]) -> dict[str, str]:
    """By key, a short hash of what a row has in these columns."""
    rows = zip(table.keys, table.rows, strict=True)
    return {key: sha_of(marks_of(row, columns))[:12] for key, row in rows}


def refuse_other_data(batch: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise UsageError where a row of the same key has another hash than before."""
    changed = [key for key, sha in now.items() if before.get(key, sha) != sha]
    if changed:
        raise UsageError(
            f"batch {batch!r} was made with other data: {pluralize(len(changed), 'row')} of the same "
            f"key changed (first: {changed[0]}); give this table another name=…, or say "
            "stale='run' to ask the changed rows anew, stale='keep' to keep their answers"
        )


def deciding(options: RunOptions) -> list[str]:
    """What else than request, model and server decides an answer, as it holds now."""
    settings = current_settings()
    found = (options.explicit.get(it, getattr(settings, it, None)) for it in _DECIDING)
    return [repr(value) for value in found]


def option_error(variant: Variant, error: NbagentError) -> UsageError:
    """A refusal of a variant, with its name."""
    of = f"variant {variant.name}: " if variant.labels else ""
    return UsageError(f"{of}{error.message}", code=error.code)
