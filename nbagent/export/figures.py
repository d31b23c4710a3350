"""Figures of runs. The only module that imports matplotlib.

It does not use pyplot, which has global state and may display figures by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from math import nan
from typing import Any, NamedTuple, cast

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.export.figure_theme import (
    OUTCOME_COLOURS,
    TEXT,
    TIME_COLOURS,
    Style,
    style_of,
    styles_of,
)

_HATCH = {"waiting for you": "///", "denied": "///"}
_MIN_SPAN = timedelta(seconds=20)
"""Shortest time on an axis of times; a shorter one would need ticks of milliseconds."""
_MAX_ROWS = 40
"""With more tool runs each turn is one row, and only some of more rows get a label."""
_MAX_NAMES = 20
_MIN_ROWS = 2.0
_MIN_HEIGHT = 1.8
_LABEL_CHARS = 40


class Plot(Figure):
    """A figure that IPython can display although pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        out, figure = BytesIO(), cast("Any", self)  # half of its types are unknown
        figure.savefig(out, format="png", dpi=110)
        return out.getvalue()


class Piece(NamedTuple):
    """A bar of the timeline; times in seconds since the start of the run."""

    row: str
    kind: str
    start: float
    length: float


def timeline(run: RunRecord) -> Figure:
    """A Gantt chart of one run: model, tools, waiting and retries of each turn over time."""
    many = sum(len(turn.tool_runs) for turn in run.turns) > _MAX_ROWS
    pieces = [piece for turn in run.turns for piece in _pieces(run, turn, one_row=many)]
    rows = list(dict.fromkeys(piece.row for piece in pieces))
    figure, axes = _axes(
        f"run {run.id[:8]} · {run.model}", "time since the start (s)", "", height=0.26 * len(rows)
    )
    for kind, colour in TIME_COLOURS.items():
        bars = [piece for piece in pieces if piece.kind == kind]
        if bars:
            axes.barh(
                [rows.index(bar.row) for bar in bars],
                [bar.length for bar in bars],
                left=[bar.start for bar in bars],
                color=colour,
                hatch=_HATCH.get(kind),
                edgecolor=TEXT if kind in _HATCH else "none",
                linewidth=0.3,
                label=kind,
            )
    _name_rows(axes, rows)
    axes.set_xlim(left=0)
    return _with_legend(figure, axes)


def _pieces(run: RunRecord, turn: EngineTurn, *, one_row: bool) -> Iterable[Piece]:
    start, row = _seconds_since_start(run, turn.started_at), turn.id
    lost, model = turn.retry_wait_ms / 1000, turn.model_ms / 1000
    if lost:  # failed attempts and waits come before the response
        yield Piece(row, "retries, failures", start, lost)
    yield Piece(row, "retries, failures" if turn.error else "model", start + lost, model)
    for tool in turn.tool_runs:
        name = row if one_row else f"{turn.id} {tool.tool_name}"
        if tool.waited_ms:
            asked_at = _seconds_since_start(run, tool.queued_at or turn.started_at)
            yield Piece(name, "waiting for you", asked_at, tool.waited_ms / 1000)
        if tool.started_at:
            kind = "retries, failures" if _failed(tool) else "tools"
            yield Piece(
                name, kind, _seconds_since_start(run, tool.started_at), tool.duration_ms / 1000
            )


def _failed(tool: ToolRun) -> bool:
    return tool.result is not None and not tool.result.ok


def _seconds_since_start(run: RunRecord, moment: datetime) -> float:
    return max(0.0, (moment - run.started_at).total_seconds())


# Many runs


def over_time(
    title: str, unit: str, rows: Sequence[tuple[datetime, str, float]], *, summed: bool
) -> Figure:
    """Values of runs over time, by model.

    Args:
        title: what is drawn.
        unit: of the values.
        rows: start, model and value of each run.
        summed: whether the values of a model are added up.
    """
    figure, axes = _axes(title, "start of the run (UTC)", unit)
    by_model: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for start, model, value in sorted(rows, key=lambda row: row[0]):
        total = by_model[model][-1][1] if summed and by_model[model] else 0.0
        by_model[model].append((start, total + value))
    for model in _most_common(row[1] for row in rows):
        starts, values = zip(*by_model[model], strict=True)
        style = style_of(model)
        look = {"color": style.colour, "marker": style.marker, "label": _label(model)}
        if summed:
            axes.step(starts, values, where="post", markersize=3, **look)
        else:
            axes.plot(starts, values, linestyle="none", markersize=4, **look)
    axes.set_ylim(bottom=0)
    if rows:
        _name_times(axes, [row[0] for row in rows])
    return _with_legend(figure, axes)


def outcomes(rows: Sequence[tuple[str, str]]) -> Figure:
    """Bar chart of calls by tool and outcome.

    Args:
        rows: for each call the tool, and `ok`, `failed` or `denied`.
    """
    return _counts("calls by tool", "calls", rows, OUTCOME_COLOURS)


def failures(rows: Sequence[tuple[str, str]]) -> Figure:
    """Bar chart of failed calls by tool and error code.

    Args:
        rows: for each failed call the tool and the error code.
    """
    codes = _most_common(code for _, code in rows)
    colours = {code: style_of(code, "code").colour for code in codes}
    return _counts("failed calls by tool and error code", "failed calls", rows, colours)


def _counts(
    title: str, unit: str, rows: Sequence[tuple[str, str]], colours: Mapping[str, str]
) -> Figure:
    """Stacked bars: the number of rows by name, with one colour for each kind."""
    names = _most_common(name for name, _ in rows)
    figure, axes = _axes(title, unit, "", height=0.3 * len(names))
    counts = Counter(rows)
    left = [0] * len(names)
    for kind, colour in colours.items():
        widths = [counts[name, kind] for name in names]
        if any(widths):
            axes.barh(
                range(len(names)),
                widths,
                left=left,
                color=colour,
                hatch=_HATCH.get(kind),
                edgecolor=TEXT if kind in _HATCH else "none",
                linewidth=0.3,
                label=kind,
            )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    _name_rows(axes, names)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _with_legend(figure, axes)


def durations(rows: Sequence[tuple[str, float]]) -> Figure:
    """Histogram of the duration of turns, by model.

    Args:
        rows: for each turn the model and its time in seconds.
    """
    figure, axes = _axes("time of turns", "time of a turn (s)", "turns")
    names = _most_common(model for model, _ in rows)
    if names:
        values = [[time for model, time in rows if model == name] for name in names]
        styles = [style_of(name) for name in names]
        axes.hist(
            values,
            bins=20,
            range=(0, max(time for _, time in rows) or 1),
            stacked=True,
            color=[style.colour for style in styles],
            hatch=[style.hatch or None for style in styles],
            edgecolor=[TEXT if style.hatch else "none" for style in styles],
            label=[_label(name) for name in names],
        )
        axes.set_xlim(left=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
    return _with_legend(figure, axes)


# Many variants


def means(
    title: str,
    unit: str,
    rows: Sequence[tuple[str, str, float, float | None, float | None, str]],
    *,
    is_share: bool = False,
) -> Figure:
    """Means with their intervals, side by side within each group.

    Args:
        title: what is drawn.
        unit: of the means.
        rows: group, label, mean, the ends of its interval (None for none), verdict.
        is_share: the axis goes from 0 to 1.
    """
    groups = list(dict.fromkeys(row[0] for row in rows))
    labels = list(dict.fromkeys(row[1] for row in rows))
    figure, axes = _axes(title, unit, "", height=0.34 * len(groups) * len(labels))
    styles = styles_of(labels)
    for n, label in enumerate(labels):
        label_rows = [row for row in rows if row[1] == label]
        shift = (n - (len(labels) - 1) / 2) * 0.8 / len(labels)
        places = [groups.index(row[0]) + shift for row in label_rows]
        values = [row[2] for row in label_rows]
        errors = _errors([row[2:5] for row in label_rows])
        _draw_points(axes, label, styles[label], values, places, xerr=errors)
        for (_, _, mean, _, _, verdict), position in zip(label_rows, places, strict=True):
            axes.annotate(
                verdict,
                (mean, position),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=TEXT,
            )
    _name_rows(axes, groups)
    axes.set_ylim(max(len(groups), 1) - 0.4, -0.6)
    if is_share:
        axes.set_xlim(-0.03, 1.03)
    return _with_legend(figure, axes)


def _draw_points(
    axes: Any, name: str, style: Style, x: Sequence[float], y: Sequence[float], **errors: Any
) -> None:
    """Draw points with their intervals (`xerr` or `yerr`)."""
    axes.errorbar(
        x, y, fmt=style.marker, color=style.colour, capsize=3, label=_label(name), **errors
    )


def cost_quality(
    unit: str,
    rows: Sequence[tuple[str, float, float, float | None, float | None]],
    *,
    more: str = "",
    is_share: bool = False,
) -> Figure:
    """Cost against mean score, a point with its interval for each variant.

    Args:
        unit: of the means.
        rows: variant, cost of a case in dollars, mean, the ends of its interval (None for none).
        more: end of the title.
        is_share: the axis of the means goes from 0 to 1.
    """
    is_free = bool(rows) and all(row[1] == 0 for row in rows)
    unit_of_cost = "cost of a case (USD): 0 in each variant" if is_free else "cost of a case (USD)"
    figure, axes = _axes(f"cost and quality by variant{more}", unit_of_cost, unit, height=4)
    styles = styles_of([row[0] for row in rows])
    for row in rows:
        name, cost, mean, *_ = row
        _draw_points(axes, name, styles[name], [cost], [mean], yerr=_errors([row[2:]]))
    if is_free:  # matplotlib would invent a scale
        axes.set_xlim(-1, 1)
        axes.set_xticks([0])
    else:
        axes.set_xlim(left=0)
    if is_share:
        axes.set_ylim(-0.03, 1.03)
    return _with_legend(figure, axes)


def _errors(rows: Sequence[tuple[float, float | None, float | None]]) -> list[list[float]]:
    """Lengths of the intervals below and above their means; without an interval no bar is drawn."""
    below = [nan if lo is None else max(0.0, mean - lo) for mean, lo, _ in rows]
    above = [nan if hi is None else max(0.0, hi - mean) for mean, _, hi in rows]
    return [below, above]


def _most_common(names: Iterable[str]) -> list[str]:
    """The most frequent names."""
    return [name for name, _ in Counter(names).most_common(_MAX_NAMES)]


def _axes(title: str, x: str, y: str, *, height: float = 3.0) -> tuple[Figure, Any]:
    figure = Plot(
        figsize=(8, min(14.0, max(_MIN_HEIGHT, height + 1.2))),
        layout="constrained",
        facecolor="none",
    )
    axes: Any = figure.add_subplot(facecolor="none")
    axes.set_title(_label(title, 80), fontsize=10, loc="left", color=TEXT)
    axes.set_xlabel(x, color=TEXT)
    axes.set_ylabel(y, color=TEXT)
    axes.tick_params(colors=TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(TEXT)
    return figure, axes


def _name_times(axes: Any, moments: Sequence[datetime]) -> None:
    """Label the axis of times with dates, hours and minutes."""
    first, last = min(moments), max(moments)
    edge = max(_MIN_SPAN - (last - first), (last - first) / 10) / 2
    axes.set_xlim(first - edge, last + edge)
    locator = AutoDateLocator(minticks=3, maxticks=8, tz=UTC)
    formats = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(
            locator,
            tz=UTC,
            formats=formats,
            zero_formats=["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"],
            offset_formats=["", "%Y", "%b %Y", "%d %b %Y", "%d %b %Y", "%d %b %Y, %H:%M"],
        )
    )
    axes.xaxis.get_offset_text().set_color(TEXT)


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """Label the rows, the first one on top."""
    step = -(-len(names) // _MAX_ROWS) or 1  # more labels would overlap
    ticks = range(0, len(names), step)
    axes.set_yticks(ticks, [_label(names[tick]) for tick in ticks], fontsize=8)
    edge = max(0.5, (_MIN_ROWS - len(names)) / 2)  # a single bar would fill the figure
    axes.set_ylim(len(names) - 1 + edge, -edge)


def _with_legend(figure: Figure, axes: Any) -> Figure:
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            fontsize=8,
            frameon=False,
            labelcolor=TEXT,
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=TEXT)
    return figure


def _label(text: str, limit: int = _LABEL_CHARS) -> str:
    """Make a text safe for matplotlib: `$` would start a formula, a leading `_` hides a label."""
    shown_text = "".join(char if char.isprintable() else "?" for char in text)
    shown_text = shown_text if len(shown_text) <= limit else f"{shown_text[: limit - 1]}…"
    plain = shown_text.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
