"""Figures of a batch's scores and of failed calls: titles, units, and each point in its place."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Patch
from PIL import Image

import nbagent
from nbagent.contracts.model import ChatRequest
from nbagent.export import figures
from nbagent.export.figure_theme import style_of
from nbagent.lab.statistics import compare
from nbagent.providers.offline import call, calls, script

AXES = ["system", "model"]


class Scored:
    """Stands in for a batch: it compares its cases."""

    def __init__(self, cells: pd.DataFrame, axes: list[str]) -> None:
        self.cells, self.axes = cells, axes

    def compare(self, score: str | None = None, **options: Any) -> pd.DataFrame:
        assert score in ("exact", None)
        return compare(self.cells, self.axes, **options)


def batch_of(values: dict[tuple[str, str], list[float | None]], cost: float | None = 0.5) -> Any:
    """A batch of two axes; None is a case that failed."""
    rows = [
        {
            "row_key": str(key),
            "system": system,
            "model": model,
            "attempt": 1,
            "run_id": "r",
            "state": "failed" if value is None else "scored",
            "value": value,
            "cost_usd": cost,
            "text": "…",
        }
        for (system, model), several in values.items()
        for key, value in enumerate(several)
    ]
    cells: Any = pd.DataFrame(rows)
    return Scored(cells.astype({"value": "Float64", "cost_usd": "Float64"}), AXES)


VALUES: dict[tuple[str, str], list[float | None]] = {
    ("v1", "small"): [0, 0, 0, 0, 0, 1, 0, None] * 2,
    ("v2", "small"): [1, 1, 1, 1, 1, 1, 1, 0] * 2,
    ("v1", "large"): [1, 0, 1, 0, 1, 0, 1, 0] * 2,
    ("v2", "large"): [1, 1, 1, 1, 1, 1, 1, 1] * 2,
}
BATCH = batch_of(VALUES)


def legend_of(figure: Any) -> list[str]:
    return figure.axes[0].get_legend_handles_labels()[1]


def said_by(figure: Any) -> list[str]:
    """All that is written beside the axes, once the picture is drawn."""
    assert figure._repr_png_().startswith(b"\x89PNG")
    axes = figure.axes[0]
    rows = [it.get_text() for it in axes.get_yticklabels()]
    return [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *rows]


def points_of(figure: Any) -> list[tuple[float, float]]:
    """Where the points stand, label after label."""
    return [
        (float(x), float(y))
        for container in figure.axes[0].containers
        for x, y in zip(*container.lines[0].get_data(), strict=True)
    ]


def test_means_stand_by_group_with_their_intervals_and_verdicts() -> None:
    figure: Any = nbagent.plot.compare(BATCH, "exact", over="system", by="model")
    title, unit, _, *groups = said_by(figure)
    assert title == "exact by system · 2 failed · p adjusted for 2 comparisons"
    assert unit == "mean of exact, 95 % interval"
    assert groups == ["small", "large"]
    assert legend_of(figure) == ["v1", "v2"]
    frame: Any = BATCH.compare(over="system", by="model")
    in_order = frame.sort_values("system", kind="stable")
    points = points_of(figure)
    assert [x for x, _ in points] == pytest.approx(in_order["mean"].tolist())
    assert [round(y) for _, y in points] == [0, 1, 0, 1]
    texts = [it.get_text() for it in figure.axes[0].texts]
    assert texts == ["baseline", "baseline", "better, p < 0.001", "better, p = 0.0078"]
    bars = [it.lines[2][0].get_segments() for it in figure.axes[0].containers]
    ends = [(float(start[0]), float(end[0])) for several in bars for start, end in several]
    wanted = list(in_order[["lo", "hi"]].itertuples(index=False, name=None))
    assert ends == [pytest.approx(it) for it in wanted]


def test_options_of_a_comparison_reach_it() -> None:
    figure: Any = nbagent.plot.compare(BATCH, by=(), baseline="v2", failed="zero")
    assert said_by(figure)[0] == "score by system · 2 failed"
    assert [it.get_text() for it in figure.axes[0].texts] == ["worse, p < 0.001", "baseline"]
    assert points_of(figure)[0][0] == 5 / 16
    with pytest.raises(nbagent.UsageError, match="there is no axis 'x'"):
        nbagent.plot.compare(BATCH, over="x")


@pytest.mark.parametrize("failed", ["leave out", "zero"])
def test_cost_stands_against_quality_for_each_variant(failed: str) -> None:
    figure: Any = nbagent.plot.cost_quality(BATCH, "exact", failed=failed)
    title, cost, quality, *_ = said_by(figure)
    assert (title, cost) == ("cost and quality by variant", "cost of a case (USD)")
    assert quality == "mean of exact, 95 % interval"
    assert legend_of(figure) == ["small · v1", "small · v2", "large · v1", "large · v2"]
    first = 1 / 7 if failed == "leave out" else 1 / 8
    means = [pytest.approx(it) for it in (first, 7 / 8, 1 / 2, 1)]
    assert points_of(figure) == [(0.5, mean) for mean in means]


def test_what_has_no_score_or_no_price_is_left_out() -> None:
    some = batch_of({("v1", "small"): [None, None], ("v2", "small"): [2, 4]})
    figure: Any = nbagent.plot.compare(some)
    assert legend_of(figure) == ["v2"]
    assert said_by(figure)[0] == "score by system · 2 failed"
    assert legend_of(nbagent.plot.cost_quality(some)) == ["small · v2"]
    one: Any = nbagent.plot.compare(batch_of({("v1", "small"): [4]}))
    assert points_of(one) == [(4, 0)]
    for empty in (
        nbagent.plot.compare(batch_of({("v1", "small"): [None]})),
        nbagent.plot.cost_quality(batch_of({("v1", "small"): [1]}, cost=None)),
        nbagent.plot.failures(limit=0),
    ):
        assert said_by(empty)
        figure = empty
        assert [it.get_text() for it in figure.axes[0].texts] == ["no data"]


def test_costs_of_0_and_unknown_prices_are_said_beside_the_figure() -> None:
    free: Any = nbagent.plot.cost_quality(batch_of({("v1", "small"): [1, 0]}, cost=0.0))
    assert said_by(free)[1] == "cost of a case (USD): 0 in each variant"
    assert [float(tick) for tick in free.axes[0].get_xticks()] == [0]
    unknown = nbagent.plot.cost_quality(batch_of({("v1", "small"): [1]}, cost=None))
    assert said_by(unknown)[0].endswith(" · 1 of 1 without a known price")


def test_many_variants_differ_by_colour_or_form() -> None:
    many: Any = nbagent.plot.cost_quality(
        batch_of({(f"v{n}", "small"): [0, 1, 1] for n in range(25)})
    )
    points = [it.lines[0] for it in many.axes[0].containers]
    assert len({(it.get_color(), it.get_marker()) for it in points}) == 25


def test_no_two_variants_of_a_figure_have_one_colour() -> None:
    for n in range(60):  # a process that has drawn many names
        style_of(f"drawn before {n}")
    labels = [f"prompt {n}" for n in range(10)]
    figure: Any = nbagent.plot.compare(batch_of({(name, "m"): [0, 1] for name in labels}))
    points = [it.lines[0] for it in figure.axes[0].containers]
    assert len({it.get_color() for it in points}) == 10


def test_a_mean_without_an_interval_has_no_bar() -> None:
    figure: Any = nbagent.plot.compare(batch_of({("v1", "m"): [0.3] * 4, ("v2", "m"): [1, 2, 3]}))
    bars = [it.lines[2][0].get_segments()[0] for it in figure.axes[0].containers]
    assert [len(bar) for bar in bars] == [0, 2]
    assert figure._repr_png_()
    low, high = figure.axes[0].get_xlim()
    assert low < 1
    assert high > 3


def test_shares_of_labels_and_chances_of_repeats_say_what_they_are() -> None:
    cells: Any = batch_of({("v1", "m"): [0, 1] * 4, ("v2", "m"): [1] * 8}).cells
    again = pd.concat([cells, cells.assign(attempt=2)])
    figure: Any = nbagent.plot.compare(cast(Any, Scored(again, AXES)), "exact", pass_all=2)
    assert said_by(figure)[:2] == ["pass^2 of exact by system", "pass^2 of exact, 95 % interval"]
    words = cells.assign(value=["yes" if value else "no" for value in cells["value"]])
    figure = nbagent.plot.compare(cast(Any, Scored(words, AXES)), "exact")
    assert said_by(figure)[3:] == ["m · no", "m · yes"]


def test_labels_are_no_formulas() -> None:
    odd = batch_of({("$\\frac{$\x00", "_hidden"): [1, 0], ("v" * 400, "_hidden"): [1, 1]})
    figure: Any = nbagent.plot.compare(odd, over="system")
    assert said_by(figure)[3] == " _hidden"
    assert max(map(len, legend_of(figure))) == 40
    assert nbagent.plot.cost_quality(odd)._repr_png_()  # pyright: ignore


def test_failed_calls_stand_by_tool_and_error_code() -> None:
    def look(place: str) -> str:
        """Look somewhere."""
        if place == "nowhere":
            raise LookupError(place)
        return "seen"

    def ask(question: str) -> str:
        """Ask somebody."""
        raise TimeoutError(question)

    steps = [
        calls([call("look", place="nowhere"), call("look", place="here"), call("look", to=1)]),
        calls([call("ask", question="who?"), call("lok", place="here")]),
        "Done.",
    ]
    nbagent.Agent(script(steps), tools=[look, ask], quiet=True).run("Go.", session="one")
    figure: Any = nbagent.plot.failures()
    assert said_by(figure) == [
        *("failed calls by tool and error code", "failed calls", ""),
        *("look", "ask", "lok"),
    ]
    placed = {
        bars.get_label(): [(int(bar.get_x()), int(bar.get_width())) for bar in bars]
        for bars in figure.axes[0].containers
    }
    assert placed == {
        "E_TOOL_FAILED": [(0, 1), (0, 1), (0, 0)],
        "E_INVALID_ARGUMENTS": [(1, 1), (1, 0), (0, 0)],
        "E_UNKNOWN_TOOL": [(2, 0), (1, 0), (0, 1)],
    }
    assert legend_of(nbagent.plot.failures(session="one", tool_name="lok")) == ["E_UNKNOWN_TOOL"]


def test_a_batch_is_compared_and_drawn_with_the_calls_that_failed_in_it() -> None:
    def look(place: str) -> str:
        """Look somewhere."""
        raise LookupError(place)

    def answer(request: ChatRequest) -> Any:
        n = int(request.messages[0].text)
        if n == 0 and len(request.messages) == 1:
            return call("look", place="nowhere")
        return str(2 * n) if n < 4 or "twice" in (request.system_prompt or "") else "?"

    def exact(row: Any, run: nbagent.Run) -> bool:
        return run.text == row.expected

    rows = pd.DataFrame({"n": range(12), "expected": [str(2 * n) for n in range(12)]})
    agent = nbagent.Agent(script([answer] * 30), tools=[look])
    vary = {"system": {"v1": "Double it.", "v2": "Give it twice."}}
    batch = agent.map(rows, "{{ n }}", vary=vary, score=[exact], name="doubled").wait()
    frame: Any = batch.compare("exact")
    assert frame["mean"].tolist() == [pytest.approx(1 / 3), 1]
    assert frame[["verdict", "pairs", "n"]].values.tolist() == [
        ["baseline", 12, 12],
        ["better", 12, 12],
    ]
    flipped: Any = batch.diff("v1", "v2", "exact")
    assert flipped["row_key"].tolist() == [str(n) for n in range(4, 12)]
    assert flipped.loc[0, ["text_v1", "text_v2"]].tolist() == ["?", "8"]
    assert nbagent.open_run(flipped.loc[0, "run_v2"]).text == "8"
    compared: Any = nbagent.plot.compare(batch, "exact")
    assert [x for x, _ in points_of(compared)] == frame["mean"].tolist()
    assert said_by(compared)[0] == "exact by system"
    assert legend_of(nbagent.plot.cost_quality(batch)) == ["v1", "v2"]
    assert legend_of(nbagent.plot.failures(batch="doubled")) == ["E_TOOL_FAILED"]


# Colours, times and bars

BEGIN = datetime(2026, 11, 28, 6, 54, 3, 250_000, tzinfo=UTC)
MODELS = ("openai:gpt-5.4", "offline:demo", "ollama:qwen3")


def durations_of(*models: str) -> Any:
    return figures.durations([(model, 0.4 + n) for n, model in enumerate(models)])


def colours_of(figure: Any) -> dict[str, str]:
    """The colour of each name of the legend."""
    legend = figure.axes[0].get_legend()
    marks = [getattr(mark, "lines", [mark])[0] for mark in legend.legend_handles]
    colours = [
        mark.get_facecolor() if isinstance(mark, Patch) else mark.get_color() for mark in marks
    ]
    names = [text.get_text() for text in legend.get_texts()]
    return {name: to_hex(colour) for name, colour in zip(names, colours, strict=True)}


def test_a_model_has_one_colour_in_every_figure() -> None:
    over_time = [(BEGIN, model, 1.0) for model in MODELS[::-1]]
    means = [("v1", model, 0.5, 0.4, 0.6, "") for model in MODELS]
    drawn = [
        colours_of(durations_of(*MODELS)),
        colours_of(durations_of(*MODELS[1:], *MODELS[1:])),
        colours_of(figures.over_time("t", "u", over_time, summed=True)),
        colours_of(figures.over_time("t", "u", over_time[1:], summed=False)),
        colours_of(figures.means("t", "u", means[::-1])),
        colours_of(figures.cost_quality("u", [(model, 0.1, 0.5, 0.4, 0.6) for model in MODELS])),
    ]
    assert len(set(drawn[0].values())) == len(MODELS)
    for colours in drawn[1:]:
        assert colours.items() <= drawn[0].items()


def test_names_beyond_the_colours_have_other_marks() -> None:
    styles = [style_of(f"provider:model-{n}", "many") for n in range(50)]
    assert len(set(styles)) == 50
    assert len({style.colour for style in styles}) == len({s.colour for s in styles[:10]}) == 10


SPANS = {
    "one moment": (0.0, r"\d\d:\d\d(:\d\d)?"),
    "two seconds": (2.0, r"\d\d:\d\d(:\d\d)?"),
    "an hour": (3_600.0, r"\d\d:\d\d"),
    "two days": (172_800.0, r"\d\d:\d\d|\d\d Nov"),
    "half a year": (16_000_000.0, r"[A-Z][a-z][a-z]|2027"),
}


@pytest.mark.parametrize(("seconds", "form"), SPANS.values(), ids=list(SPANS))
def test_times_read_as_a_clock_or_a_calendar(seconds: float, form: str) -> None:
    rows = [(BEGIN + timedelta(seconds=seconds * n / 3), "m", 1.0) for n in range(4)]
    figure: Any = figures.over_time("t", "u", rows, summed=False)
    figure._repr_png_()
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert len(ticks) >= 3
    assert all(re.fullmatch(form, tick) for tick in ticks), ticks


FIGURES: dict[str, Callable[[], Any]] = {
    "times": lambda: durations_of(*MODELS),
    "values over time": lambda: figures.over_time(
        "t", "u", [(BEGIN, model, 1.0 + n) for n, model in enumerate(MODELS)], summed=False
    ),
    "outcomes": lambda: figures.outcomes([("look", "ok"), ("look", "failed"), ("look", "denied")]),
    "codes": lambda: figures.failures([("look", code) for code in ("E_DENIED", "E_TIMEOUT")]),
    "means": lambda: figures.means("t", "u", [("v1", "a", 0.5, 0.4, 0.6, "better")]),
    "a run": lambda: nbagent.Agent(script([call("look"), "Done."]), tools=[look]).run("Go.").plot(),
    "nothing": lambda: figures.durations([]),
}


def look() -> str:
    return "seen"


def luminance(pixels: Any) -> Any:
    shares = pixels / 255
    where: Any = np.where
    linear = where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("background", [255, 0x11, 0x1E], ids=["white", "dark", "grey"])
@pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))
def test_each_colour_can_be_seen_on_white_and_on_dark_pages(
    figure: Callable[[], Any], background: int
) -> None:
    picture = Image.open(io.BytesIO(figure()._repr_png_())).convert("RGBA")
    pixels = np.asarray(picture).reshape(-1, 4)
    solid = pixels[pixels[:, 3] == 255][:, :3].astype(float)
    assert len(solid) > 0
    assert (pixels[:, 3] == 0).mean() > 0.3, "the page is not seen behind it"
    page = luminance(np.full(3, float(background)))
    light = luminance(solid)
    contrast = (np.maximum(light, page) + 0.05) / (np.minimum(light, page) + 0.05)
    assert contrast.min() >= 3


def test_bars_begin_at_zero_and_lie_in_the_middle_of_their_row() -> None:
    for figure in (figures.outcomes([("look", "ok")] * 3), figures.failures([("look", "E_X")])):
        axes: Any = figure.axes[0]
        (bar,) = axes.patches
        low, high = sorted(axes.get_ylim())
        assert bar.get_x() == axes.get_xlim()[0] == 0
        assert bar.get_y() + bar.get_height() / 2 == pytest.approx((low + high) / 2)
    assert durations_of("a:b").axes[0].get_xlim()[0] == 0
