"""Cases of a batch: rows of a table × variants × repeats, each with its prompt and hash.

Checks the person's arguments and refuses invalid ones; starts and stores nothing.
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
from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.contracts.messages import TextPart
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import Case
from nbagent.contracts.secrets import redact_truncated
from nbagent.run import with_options
from nbagent.session.models import resolve_settings
from nbagent.session.request import RunRequest
from nbagent.session.template import Rendered, Template
from nbagent.settings.options import BatchOptions, RunOptions
from nbagent.settings.sources import current_settings
from nbagent.settings.types import MAX_CASES
from nbagent.shown.foreign_frames import ForeignTable, LazyTable, foreign_table, is_foreign
from nbagent.shown.images import of_class
from nbagent.shown.texts import VALUE_ERRORS
from nbagent.shown.values import to_prompt_parts
from nbagent.store.batches import JUDGE_SUFFIX
from nbagent.store.dataframes import frame_of_columns
from nbagent.view.text_format import pluralize

if TYPE_CHECKING:
    from pandas import DataFrame

PROMPT = "prompt"
"""Axis whose values are templates."""
_NOT_VARIED = (
    *("name", "session", "raw", "quiet", "echo", "document", "max_cost_usd", "template"),
)
"""Options that change no answer, or that belong to one run or to the whole batch."""
_CACHE_KEY_OPTIONS = (
    *("extra_body", "headers", "tool_choice", "trim", "policy", "mounts", "skills", "variables"),
    *("workflow", "agent", "autopilot"),
)
_LABEL_CHARS = 60
_SHA_CHARS = 32
_NAME_PATTERN = re.compile(
    rf"(?=.*\S)(?!.*{JUDGE_SUFFIX}$)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,200}}"
)
"""Not `…/judge`: that is the batch of the judges' runs."""
_EXPECTED = {
    "max_cost_usd": "a number above 0",
    "stale": "'run' or 'keep'",
    "name": f"up to 200 characters in one line that do not end with {JUDGE_SUFFIX}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """Options of `Agent.map`, checked."""

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
        for option, row in BatchOptions.rows().items():
            value = row.checked(getattr(self, option))
            object.__setattr__(self, option, row.default if value is None else value)
        usd = RunOptions.row("max_cost_usd").checked(self.max_cost_usd)
        object.__setattr__(self, "max_cost_usd", usd)
        fits = {
            "max_cost_usd": usd is None or usd > 0,
            "stale": self.stale in (None, "run", "keep"),
            "name": self.name is None or bool(_NAME_PATTERN.fullmatch(_text_or_empty(self.name))),
        }
        for option, is_right in fits.items():
            if not is_right:
                value = reprlib.repr(getattr(self, option))
                raise UsageError(f"{option}={value} is not valid; expected {_EXPECTED[option]}")


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


class Row(Mapping[str, Any]):
    """A row of the table: `row["n"]`, or `row.n` unless a method has that name."""

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self._cells = cells

    def __getitem__(self, column: str) -> Any:
        return self._cells[column]

    def __getattr__(self, column: str) -> Any:
        # `copy` and `pickle` look up names before `_cells` exists; a plain access would recurse.
        if column.startswith("__") or column not in self.__dict__.get("_cells", ()):
            hint = nearest_or_all(column, self.__dict__.get("_cells", ()), "it has")
            raise AttributeError(f"the row has no column {column!r}{hint}")
        return self._cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return f"Row({dict(self._cells)!r})"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the person's DataFrame with unique keys."""

    data: DataFrame
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One label for each axis, and the request that the labels stand for."""

    labels: dict[str, str]
    request: RunRequest
    """Request that all its cases share."""
    template: Template
    identity: str = ""
    """Hash of everything except the prompt that decides an answer."""
    max_turns: int = 0
    """Limit of one run."""

    @property
    def name(self) -> str:
        """Its labels, joined."""
        return " · ".join(self.labels.values())


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case with its rendered prompt."""

    row_index: int
    """Position of its row in the table, from 0."""
    row: Row
    variant: Variant
    case: Case
    rendered: Rendered


def table_of(data: Any, key: str | None) -> Table:
    """Check a DataFrame and its key column, and return them as a Table.

    Raises:
        UsageError: it is no DataFrame, it is empty, or keys are missing or not unique.
    """
    is_pandas = of_class(data, "pandas", "DataFrame")
    if not is_pandas and (is_foreign(data) or not hasattr(data, "iloc")):
        data = _pandas_of(data)
    columns = tuple(map(str, data.columns))
    if not len(data) or len(set(columns)) < len(columns):
        problem = "has no rows" if not len(data) else "has two columns of one name"
        raise UsageError(f"the table {problem}; give one with rows, and a name for each column")
    if key is not None and str(key) not in columns:
        raise UsageError(f"key={key!r} is no column; the columns are {', '.join(columns)}")
    # A copy: if the person changes their table later, the batch must not change with it.
    data = data.copy()
    key_column: Any = data.index if key is None else data.iloc[:, columns.index(str(key))]
    key_values: list[Any] = key_column.tolist()
    if any(map(is_missing, key_values)):
        raise UsageError(f"{_key_text_source(key)} has missing values; each row needs a plain key")
    keys = tuple(map(key_text, key_values))
    if doubles := [double for double, n in Counter(keys).items() if n > 1][:3]:
        raise UsageError(
            f"{_key_text_source(key)} has {', '.join(map(repr, doubles))} more than once; "
            "name a column whose values differ (key=…), or use df.reset_index(drop=True)"
        )
    # By position: a column may be named by a number.
    cells = zip(*(data.iloc[:, i].tolist() for i in range(len(columns))), strict=True)
    rows = tuple(Row(dict(zip(columns, row_cells, strict=True))) for row_cells in cells)
    # `zip` yields no rows for a table that has only an index.
    return Table(data, columns, keys, rows or tuple(Row({}) for _ in keys))


def _pandas_of(data: Any) -> DataFrame:
    """Convert a table of another library, such as polars; raise UsageError if it is none."""
    table = None
    if is_foreign(data):
        try:
            table = foreign_table(data)
        except VALUE_ERRORS as error:
            raise UsageError(
                f"the table cannot be read ({describe_error(error)}); convert it to pandas"
            ) from None
    if isinstance(table, ForeignTable) and not table.is_series:
        return frame_of_columns(table.columns())
    if isinstance(table, LazyTable):
        raise UsageError(
            f"the table is a {table.title}, whose rows are not computed yet; give {table.how}"
        )
    raise UsageError(
        f"the table is a {type(data).__name__}; give a DataFrame, such as "
        "pandas.DataFrame({'n': [1, 2]})"
    )


def is_missing(key: Any) -> bool:
    try:
        return key is None or bool(key != key)
    except (TypeError, ValueError, ArithmeticError):  # pandas.NA, an array, a signaling NaN
        return True


def key_text(key: Any) -> str:
    """Return a key as text. 1.0 becomes "1": pandas makes floats beside missing values."""
    is_whole = isinstance(key, float) and key.is_integer()
    return str(int(key)) if is_whole else str(key)


def _key_text_source(key: str | None) -> str:
    return "the index" if key is None else f"the key column {key!r}"


# Variants


def variants_of(base: RunRequest, template: Any, vary: Any) -> list[Variant]:
    """Return a variant for each combination of the axes' labels.

    Args:
        base: request that all variants share.
        template: the prompt, unless the axis `prompt` gives it.
        vary: by axis (an option of a run, or `prompt`) the values: a list, or a dict by label.

    Raises:
        UsageError: an axis is no option of a run, has no values, or two have one label.
    """
    if vary is not None and not isinstance(vary, Mapping):
        raise UsageError(f"vary={reprlib.repr(vary)}; write vary={{'model': ['a', 'b']}}")
    varied = cast("Mapping[str, Any]", vary or {})
    axes = {name: _axis_values(name, values) for name, values in varied.items()}
    if not isinstance(template, str):
        raise UsageError(f"the template is a {type(template).__name__}; write it as text")
    if not template.strip() and PROMPT not in axes and not base.options.workflow:
        raise UsageError("the template is empty; write what you want to ask about each row")
    if template.strip() and PROMPT in axes:
        raise UsageError("the prompt is given twice: as the template and in vary; give it once")
    literal = not resolve_settings(base.options, current_settings()).template
    templates = {
        text: Template(text, literal=literal) for text in axes.get(PROMPT, {"": template}).values()
    }
    variants: list[Variant] = []
    for chosen in product(*(axis.items() for axis in axes.values())):
        named = dict(zip(axes, chosen, strict=True))
        changes = {axis: value for axis, (_, value) in named.items() if axis != PROMPT}
        text = named[PROMPT][1] if PROMPT in named else template
        labels = {axis: label for axis, (label, _) in named.items()}
        variants.append(Variant(labels, with_options(base, changes), templates[text]))
    return variants


def _axis_values(axis: str, listed: Any) -> dict[str, Any]:
    """Return the values of an axis by label."""
    known = [name for name in RunOptions.rows() if name not in _NOT_VARIED]
    if axis not in (PROMPT, *known):
        hint = nearest_or_all(axis, (PROMPT, *known), "known:")
        raise UsageError(f"vary: {axis!r} is no option of a run{hint}")
    is_secret = is_secret_axis(axis)
    if isinstance(listed, Mapping):
        values = {str(k): value for k, value in cast("Mapping[Any, Any]", listed).items()}
        n = len(cast("Mapping[Any, Any]", listed))
    elif isinstance(listed, list | tuple):
        several = cast("Sequence[Any]", listed)
        named = enumerate(several, 1)
        # Labels are stored and shown, so values that may hold keys are only numbered.
        values = {str(i) if is_secret else _label(value): value for i, value in named}
        n = len(several)
    else:
        shown = "" if is_secret else f"={reprlib.repr(listed)}"
        raise UsageError(f"vary: {axis}{shown} is no list; give [a, b] or a dict")
    if len(values) < max(n, 1):
        problem = "has no values" if not n else "has two values with one label"
        raise UsageError(f"vary: {axis} {problem}; write {axis}={{'v1': …, 'v2': …}}")
    if axis == PROMPT and not all(
        isinstance(value, str) and value.strip() for value in values.values()
    ):
        raise UsageError("vary: the values of prompt are templates; write them as text")
    return values


def is_secret_axis(axis: str) -> bool:
    """True if the values of an axis may hold keys, so that they are neither stored nor shown."""
    row = RunOptions.rows().get(axis)
    return row is not None and row.secret


def _label(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_label, cast("Sequence[Any]", value))) or "none"
    text = getattr(value, "model_id", None) or getattr(value, "__name__", None) or value
    return " ".join(redact_truncated(str(text)).split())[:_LABEL_CHARS]


# Cases


def columns_used(variants: Iterable[Variant], columns: Sequence[str]) -> list[str]:
    """Return the columns that the templates of variants use; all of them if one uses `row`."""
    return _columns_of(
        {expression for variant in variants for expression in variant.template.expressions}, columns
    )


def columns_in(template: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that one template uses; all of them if it uses `row`."""
    return _columns_of(Template(template).expressions, columns)


def _columns_of(expressions: Iterable[str], columns: Sequence[str]) -> list[str]:
    used: set[str] = set()
    for text in expressions:
        # The line end closes a comment at the end of the expression.
        used |= {
            node.id for node in ast.walk(ast.parse(f"({text}\n)")) if isinstance(node, ast.Name)
        }
    return [name for name in columns if name in used or "row" in used]


def cases_of(
    table: Table, variants: Sequence[Variant], repeat: int, batch: str, names: Mapping[str, Any]
) -> list[PlannedCase]:
    """Return the cases, row by row.

    Args:
        table: its columns can be used in the templates by name; `row` is the whole row.
        variants: with their identities.
        repeat: runs per case.
        batch: name of the batch.
        names: further names for the templates: those of the notebook.

    Raises:
        UsageError: an expression of a template fails, or there are too many cases.
    """
    if len(table.rows) * len(variants) * repeat > MAX_CASES:
        raise UsageError(f"more than {MAX_CASES:,} cases; take fewer rows, variants or repeats")
    cases: list[PlannedCase] = []
    for row_index, (key, row) in enumerate(zip(table.keys, table.rows, strict=True)):
        evaluate, rendered = _evaluator(row, names), dict[int, Rendered]()
        for variant in variants:
            template = variant.template
            if id(template) not in rendered:
                try:
                    rendered[id(template)] = template.render(evaluate)
                except UsageError as error:
                    raise _template_error(error, key, table.columns) from None
            prompt = rendered[id(template)]
            for attempt in range(1, repeat + 1):
                sha = sha_of([_hashable_prompt(prompt), variant.identity, attempt])[:_SHA_CHARS]
                case = Case(
                    batch=batch, row_key=key, variant=variant.labels, attempt=attempt, sha=sha
                )
                cases.append(PlannedCase(row_index, row, variant, case, prompt))
    return cases


def _evaluator(row: Row, names: Mapping[str, Any]) -> Callable[[str], object]:
    # As globals, because a lambda or comprehension inside eval() does not see its locals.
    variables = {**names, "row": row, **row}
    return lambda expression: eval(expression, variables)


def _template_error(error: UsageError, key: str, columns: Sequence[str]) -> UsageError:
    if "NameError" in str(error.details.get("error", "")):  # not of another language
        problem = error.message.partition(": ")[2].partition(". ")[0]
        name = re.search(r"name '(\w+)'", problem)
        hint = nearest_or_all(name and name[1], columns, "the columns are")
        return UsageError(f"the template: {problem}{hint}")
    return UsageError(f"the template, in row {key}: {error.message}")


def _hashable_prompt(rendered: Rendered) -> Any:
    """Return a prompt in the form that is hashed."""
    if all(isinstance(part, TextPart) for part in rendered.parts):
        return rendered.prompt
    return [part.model_dump(mode="json") for part in rendered.parts]


def request_of_case(planned: PlannedCase, *, left_usd: float | None, session: str) -> RunRequest:
    """Build the first request of a case; `left_usd` is what it may cost at most."""
    rendered, ask = planned.rendered, planned.variant.request
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


def fingerprints_of(row: Row, columns: Iterable[str]) -> dict[str, str]:
    """Hash some cells of a row; the hashes are the same in each process."""
    return {name: sha_of(_json_cell(row[name]))[:8] for name in columns}


def _json_cell(cell: Any) -> Any:
    """Return a cell as JSON; a value that is not plain as a prompt would show it."""
    if cell is None or type(cell) in (str, int, bool):
        return cell
    if type(cell) is float:
        # JSON has no NaN, and 1.0 must differ from 1.
        return repr(cell)
    return [part.model_dump(mode="json") for part in to_prompt_parts(cell)]


def row_shas(table: Table, columns: Sequence[str]) -> dict[str, str]:
    """Hash each row's cells in these columns; by key."""
    rows = zip(table.keys, table.rows, strict=True)
    return {key: sha_of(fingerprints_of(row, columns))[:12] for key, row in rows}


def refuse_other_data(batch: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise UsageError if a row has another hash than before: old answers do not fit it."""
    changed = [key for key, sha in now.items() if before.get(key, sha) != sha]
    if changed:
        raise UsageError(
            f"batch {batch!r} was made with other data: {pluralize(len(changed), 'row')} of the "
            f"same key changed (first: {changed[0]}); give this table another name=…, or pass "
            "stale='run' to ask the changed rows again, stale='keep' to keep their answers"
        )


def cache_key_options(options: RunOptions) -> list[str]:
    """Return the options, apart from request, model and server, that can change an answer."""
    settings = current_settings()
    values = (
        options.explicit.get(name, getattr(settings, name, None)) for name in _CACHE_KEY_OPTIONS
    )
    return [repr(value) for value in values]


def option_error(variant: Variant, error: NbagentError) -> UsageError:
    """Return the error with the name of its variant."""
    of = f"variant {variant.name}: " if variant.labels else ""
    return UsageError(f"{of}{error.message}", code=error.code)
