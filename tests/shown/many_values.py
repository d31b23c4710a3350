"""A bank of values of every kind that a tool may return or a prompt may name, each made anew.

`VALUES`: id → (maker, words that the value's text has to have). No test in here.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import functools
import io
import itertools
import json
import math
import pathlib
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
import pandas as pd
import polars as pl
import pydantic
from IPython import display
from PIL import Image as Pillow

VALUES: dict[str, tuple[Callable[[], Any], str]] = {}
"""By id."""


def put(name: str, maker: Callable[[], Any], words: str) -> None:
    """Add a value and what its text has to have."""
    assert name not in VALUES
    VALUES[name] = (maker, words)


def picture(mode: str = "RGB", size: tuple[int, int] = (30, 20)) -> Any:
    return Pillow.new(mode, size)


def encoded(kind: str) -> bytes:
    out = io.BytesIO()
    picture().save(out, kind)
    return out.getvalue()


def figure(size: tuple[float, float] = (2, 1)) -> Any:
    made: Any = matplotlib.figure.Figure(figsize=size)
    made.subplots().plot([1, 2])
    return made


Colour = enum.Enum("Colour", {"RED": "red"})
Point = dataclasses.make_dataclass("Point", ["x", "y"])


class Pair(NamedTuple):
    left: int
    right: int


class City(pydantic.BaseModel):
    name: str = "Oslo"
    founded: date = date(1048, 1, 1)
    extra: object = None


def failing(name: str, base: type, *methods: str, error: type[BaseException] = ValueError) -> Any:
    """A class of which some methods raise."""

    def fail(self: Any, *args: Any) -> Any:
        raise error("no")

    return type(name, (base,), dict.fromkeys(methods, fail))


BadRepr = failing("BadRepr", object, "__repr__")


class BadAttributes:
    """Each attribute raises, `__class__` too."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Lies:
    """Says it is a dict."""

    def _lie(self) -> Any:
        return dict

    vars()["__class__"] = property(_lie)


class Endless(list[int]):
    """It says five, and never ends."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 5


class WithBundle:
    """As plotting libraries do."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/plain": "Figure({'data': []})",
            "text/html": "<script>alert(1)</script>",
            "application/vnd.plotly.v1+json": {},
        }


class WithChart:
    """As Altair does, without a `repr`."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/plain": "<VegaLite 5 object>\n\nIf you see this message, …",
            "application/vnd.vegalite.v5+json": {"mark": "bar"},
        }


SHOWN = {"_repr_html_": lambda _: "<b>shown</b>"}
WithPng = type("WithPng", (), {"_repr_png_": lambda _: encoded("PNG")})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def ring() -> Any:
    made: list[Any] = [1]
    made.append({"again": made})
    return made


def laughs() -> Any:
    value: Any = ["lol"] * 10
    for _ in range(12):
        value = [value] * 10
    return value


def raising() -> Iterator[float]:
    yield 1
    raise ZeroDivisionError


def rows(kind: Any = None) -> Any:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.row_factory = kind
    cursor = connection.execute("SELECT 1 AS a UNION ALL SELECT 2")
    weakref.finalize(cursor, connection.close)
    return cursor


def frame(**columns: Any) -> Any:
    return pd.DataFrame(columns)


# Texts and bytes
put("text", lambda: "as it is", "as it is")
put("100 MB of text", lambda: "x" * 100_000_000, "of 100,000,000 characters left out")
put("text that raises", lambda: failing("BadText", str, "__str__")("hello"), "hello")
put("bytes of text", lambda: "grüße".encode(), "grüße")
put("binary bytes", lambda: b"\x00\xff\xfe", "bytes, 3: 00fffe")
put("bytes of a PNG", lambda: encoded("PNG"), "[image: PNG picture, 30×20 px]")
put("bytes of a WebP", lambda: encoded("WEBP"), "[image: WEBP picture]")
put("lone surrogate inside", lambda: {"k": "\udc00"}, '{"k":"�"}')
# Numbers and moments
put("big int", lambda: 2**200, str(2**200))
put("timedelta", lambda: timedelta(days=1), "1 day, 0:00:00")
put("none", lambda: None, "null")
put("huge int", lambda: 1 << 10_000_000, "[an integer of 10,000,001 bits]")
put("not finite", lambda: {"a": math.inf, "b": [math.nan]}, '{"a":"Infinity","b":["NaN"]}')
put("decimal", lambda: decimal.Decimal("1.10"), "1.10")
put("datetime", lambda: datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00")
put("path at home", lambda: pathlib.Path.home() / "a.csv", "~")
# Records
put("enum", lambda: Colour.RED, "red")
put("dataclass", lambda: Point(1, [2]), '{"x":1,"y":[2]}')
put("pydantic", lambda: City(), '"founded":"1048-01-01"')
put("pydantic with a table", lambda: City(extra=frame(a=[1])), "DataFrame: 1 row × 1 column")
put("named tuple", lambda: Pair(1, 2), '{"left":1,"right":2}')
put("row of SQLite", lambda: rows(sqlite3.Row).fetchone(), '{"a":1}')
# Containers
put("mixed set", lambda: {2, "a", None}, '["a",2,null]')
put("ten million items", lambda: [0] * 10_000_000, "of 10,000,000 items left out")
put("huge range", lambda: range(10**30), "more items left out")
put("billion laughs", laughs, "left out")
put("containers", lambda: {"b": [1, (2, 3)], 4: None}, '{"b":[1,[2,3]],"4":null}')
put("no address inside", lambda: [object()], '["<object object>"]')
put("circular", ring, '[1,{"again":"[circular]"}]')
put("deep", lambda: nested(100_000), "[too deep]")
put("odd keys", lambda: {(1, 2): 3, None: 1, 5: "a", "5": "b"}, '"null":1,"5":"a","5 (2)":"b"}')
# Errors and things of Python
put("exception", lambda: OSError(2, "gone", str(pathlib.Path.home() / "a")), "gone: '~/a'")
put("module", lambda: json, "module json")
put("file", lambda: io.TextIOWrapper(io.BytesIO(b"a")), "<_io.TextIOWrapper encoding=")
# Iterators
put("generator", lambda: (i for i in range(3)), "[0,1,2]")
put("endless generator", lambda: (i for i in itertools.count()), "more items left out")
put("cursor", rows, "[[1],[2]]")
put("endless list", Endless, "[0,1,2,")
# Hostile ones
put("bad repr", BadRepr, "<BadRepr object, its repr failed with ValueError>")
put("repr that is no text", type("NoText", (), {"__repr__": lambda _: 5}), "NoText object")
put("odd class", lambda: type("Odd", (BadAttributes,), {"__doc__": 5}), "Odd")
put("bad iteration", lambda: failing("BadIter", list, "__iter__")([1]), "[1]")
put("bad items", lambda: failing("BadItems", dict, "items")(a=1), "{'a': 1}")
put("bad attributes", BadAttributes, "BadAttributes object>")
put("bad ones inside", lambda: [BadRepr(), {"k": BadAttributes()}], "its repr failed")
put("false class", Lies, "Lies object>")
# numpy
put("numpy scalars", lambda: [np.int8(3), np.bool_(True), np.float32(0.5)], "[3,true,0.5]")
put("numpy moment", lambda: np.datetime64("2020-01-01T00:00:00.000000001"), "00.000000001")
put("huge array", lambda: np.zeros(20_000_000), "float64\n(most of 20,000,000 elements left out")
put("array of objects", lambda: np.array([BadRepr(), None], dtype=object), "repr failed with Val")
put("array of 20 dimensions", lambda: np.zeros((2,) * 20), "of 1,048,576 items left out")
# pandas
put(
    "table", lambda: frame(a=[1, 2], b=["x", None]), "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 |  |"
)
put("empty table", pd.DataFrame, "DataFrame: 0 rows × 0 columns")
put("million rows", lambda: frame(a=np.arange(1_000_000)), "of 1,000,000 rows left out")
put("wide table", lambda: pd.DataFrame(np.zeros((2, 10_000))), "of 10,000 columns left out")
put(
    "levels",
    lambda: pd.DataFrame(
        [[1, 2]],
        index=pd.MultiIndex.from_tuples([("x", 1)], names=["k", "n"]),
        columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]),
    ),
    "| k | n | a / 1 | a / 2 |\n| --- | --- | --- | --- |\n| x | 1 | 1 | 2 |",
)
put("twice the same column", lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "| 1 | 2 |")
put("objects in cells", lambda: frame(c=[{"a": [1]}, BadRepr()]), '| {"a":[1]} |\n| <BadRepr')
put("missing cells", lambda: frame(a=[np.nan], t=[pd.NaT]), "|  |  |")
put("huge cells", lambda: frame(a=["x" * 10_000_000] * 20), "characters left out")
put("bars and lines in cells", lambda: frame(a=["x|y\nz"]), "| x\\|y\\nz |")
put("series", lambda: pd.Series([1.5], name="score"), "score float64\n| score |\n| --- |\n| 1.5 |")
put("index", lambda: pd.Index([1, 2], name="i"), "Index: 2 rows × 1 column\ndtypes: i int64")
put("styler", lambda: frame(a=[1]).style, "Styler of a DataFrame: 1 row")
put("missing values", lambda: [pd.NaT, pd.NA, pd.Timestamp("2020")], '[null,null,"2020-01-01T')
# Pictures
put("figure", figure, "[image: figure, 200×100 px]")
put("axes", lambda: figure().axes[0], "[image: figure, 200×100 px]")
put("array of axes", lambda: matplotlib.figure.Figure().subplots(1, 2), "[image 1: figure, 640×")
put("huge figure", lambda: figure((300, 150)), "[image: figure, 1568×784 px]")
for one in ("1", "PA", "RGBA", "CMYK"):
    put(f"picture {one}", functools.partial(picture, one), "[image: picture, 30×20 px]")
put("picture of floats", lambda: picture("F"), "of mode 'F': not sent; convert its values")
put("picture of 144 megapixels", lambda: picture("L", (12_000, 12_000)), "12000×12000 px, made sm")
put("pictures in a list", lambda: ["a", picture()], '["a","[image 1: picture, 30×20 px]"]')
put("fifty pictures", lambda: [picture("L", (i + 1, 9)) for i in range(50)], "one more image, not")
# What shows itself
put("bundle", WithBundle, "Figure({'data': []})")
put("own PNG", WithPng, "[image: PNG picture, 30×20 px]")
HTML_TABLE = (
    "<table><tr><th>city</th><th>n</th></tr> <tr><td>Oslo &amp; co</td><td>1</td></tr></table>"
)


def method_with(data: Any) -> Callable[..., Any]:
    """A display method; a partial would not be one from Python 3.14 on."""
    return lambda self, *_: data


def showing(*forms: tuple[str, Any], **methods: Any) -> Any:
    """A value whose class has only display methods."""
    made = {f"_repr_{form}_": method_with(data) for form, data in forms}
    return type("Shows", (), {**made, **methods})()


class NamesItself:
    """It has HTML, and a repr that says more."""

    def _repr_html_(self) -> str:
        return "<div>a widget</div>"

    def __repr__(self) -> str:
        return "<xarray.Dataset> x: 3"


class ShowsItself:
    """Its data is itself."""

    def _repr_json_(self) -> Any:
        return {"me": self}


class BundleOfHtml:
    """Its plain text says nothing."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": "<p>from the bundle</p>", "image/png": 5}


put("IPython Markdown", lambda: display.Markdown("# Title"), "# Title")
put("IPython HTML", lambda: display.HTML("<h1>Hello</h1><p>wor<b>ld</b>"), "Hello\nworld")
put("IPython Latex", lambda: display.Latex("$$x^2$$"), "$$x^2$$")
put("IPython Math", lambda: display.Math("x^2"), "$\\displaystyle x^2$")
put("IPython JSON", lambda: display.JSON({"a": [1]}), '{"a":[1]}')
put("IPython JSON, expanded", lambda: display.JSON([1, 2], expanded=True), "[1,2]")
put("IPython SVG", lambda: display.SVG("<svg><text>hi</text></svg>"), "<text>hi</text>")
put("IPython Pretty", lambda: display.Pretty("as it is"), "as it is")
put("IPython Javascript", lambda: display.Javascript("alert(1)"), "alert(1)")
put("IPython IFrame", lambda: display.IFrame("https://e.org/a", 1, 1), "[iframe: https://e.org/a]")
put(
    "displays inside",
    lambda: {"a": [display.HTML("<i>x</i>"), display.JSON({"b": 1})]},
    '["x",{"b":1}]',
)
put("own HTML", lambda: showing(("html", HTML_TABLE)), "| city | n |\n| Oslo & co | 1 |")
put("own LaTeX", lambda: showing(("latex", "$y$")), "$y$")
put("own JSON", lambda: showing(("json", {"k": {1, 2}})), '{"k":[1,2]}')
put("own Markdown", lambda: showing(("markdown", "**b**"), ("html", "<b>b</b>")), "**b**")
put("own SVG", lambda: showing(("svg", "<svg/>")), "<svg/>")
put("own pair of data and metadata", lambda: showing(("html", ("<p>p", {"a": 1}))), "p")
put("own bundle of HTML", BundleOfHtml, "from the bundle")
put("repr that says more than HTML", NamesItself, "<xarray.Dataset> x: 3")
put("JSON of itself", ShowsItself, '{"me":"[circular]"}')
put(
    "HTML without scripts", lambda: display.HTML("a<script>bad()</script><style>p{}</style>b"), "ab"
)
put(
    "HTML of nothing to read", lambda: display.HTML("<script>bad()</script>"), "[HTML without text]"
)
put(
    "HTML with a link",
    lambda: display.HTML("see <a href='https://e.org'>it</a>"),
    "it (https://e.org)",
)
put(
    "HTML with an embedded picture",
    lambda: display.HTML("<img src='data:x' alt='map'>"),
    "[image: map]",
)
put(
    "60 MB of HTML",
    lambda: display.HTML("<p>x</p>" * 7_500_000),
    "of 60,000,000 characters of HTML left",
)
put("60 MB of LaTeX", lambda: display.Latex("x" * 60_000_000), "of 60,000,000 characters left out")
put("tags without an end", lambda: display.HTML("<a " * 300_000), "<a <a")
put("comments without an end", lambda: display.HTML("a<!--" * 200_000), "a")
put(
    "HTML that is no text",
    lambda: showing(("html", 5), ("latex", b"x"), ("json", None)),
    "Shows object",
)
put("HTML that raises", lambda: showing(("latex", "$z$"), _repr_html_=lambda _: 1 / 0), "$z$")
put(
    "displays that raise",
    lambda: failing("Bad", object, "_repr_html_", "_repr_json_")(),
    "Bad object",
)
put("bundle that raises", lambda: failing("Bad", WithPng, "_repr_mimebundle_")(), "[image: PNG")
put("generator that raises", raising, "raised ZeroDivisionError")


# DataFrames of other libraries
def polars_frame() -> Any:
    """Cells of many types, with missing ones."""
    cells = {"n": [1, None], "city": ["Oslo", None], "l": [[1, 2], []], "s": [{"x": 1}, None]}
    return pl.DataFrame(cells)


class Streams:
    """A table of an unknown library that gives its data by Arrow's protocol."""

    def __init__(self) -> None:
        self.frame = pl.DataFrame({"n": [1, 2]})

    def __len__(self) -> int:
        return 2

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.frame.__arrow_c_stream__(requested_schema)


class NeverComputed:
    """A lazy table of an unknown library: its stream would compute it."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise AssertionError("computed")


class Lazy:
    """A source of polars that must not be read."""

    def __call__(self, frame: Any) -> Any:
        raise AssertionError("computed")


put(
    "polars",
    polars_frame,
    '| n | city | l | s |\n| --- | --- | --- | --- |\n| 1 | Oslo | [1,2] | {"x":1} |',
)
put("polars dtypes", polars_frame, "dtypes: n Int64, city String, l List(Int64), s Struct(")
put("polars, title", polars_frame, "DataFrame (polars): 2 rows × 4 columns")
put("polars series", lambda: pl.Series("score", [1.5]), "| score |\n| --- |\n| 1.5 |")
put("polars series without a name", lambda: pl.Series([1.5]), "| values |\n| --- |\n| 1.5 |")
put("polars, empty", pl.DataFrame, "0 rows × 0 columns")
put("polars, no rows", lambda: pl.DataFrame({"a": []}), "(no rows)")
put("polars, a million rows", lambda: pl.DataFrame({"a": range(1_000_000)}), "| 999999 |")
put(
    "polars, left out", lambda: pl.DataFrame({"a": range(1_000_000)}), "of 1,000,000 rows left out;"
)
put(
    "polars, wide",
    lambda: pl.DataFrame({f"c{i}": [1] for i in range(3_000)}),
    "of 3,000 columns left",
)
put(
    "polars, huge cells", lambda: pl.DataFrame({"a": ["x" * 1_000_000] * 20}), "characters left out"
)
put(
    "polars, lazy",
    lambda: pl.LazyFrame({"a": [1]}).map_batches(Lazy(), schema={"a": pl.Int64}),
    "dtypes: a Int64\n(all rows left out; ask for a smaller part: call .collect()",
)
put("polars inside", lambda: [pl.DataFrame({"a": [1]})], '["DataFrame (polars): 1 row')
put("polars expression", lambda: pl.col("a"), "<Expr ['col(")
put(
    "polars objects",
    lambda: pl.DataFrame({"o": pl.Series([BadRepr()], dtype=pl.Object)}),
    "repr failed",
)
put("Arrow's protocol", Streams, "2 rows × 1 column\ndtypes: n Int64")
put("Arrow's protocol, lazy", NeverComputed, "NeverComputed object>")
if find_spec("pyarrow"):  # dask.dataframe needs it, too
    dask_frames: Any = import_module("dask.dataframe")
    pa: Any = import_module("pyarrow")
    put(
        "pyarrow",
        lambda: pa.table({"a": [1, None]}),
        "Table (pyarrow): 2 rows × 1 column\ndtypes: a Int64\n",
    )
    put(
        "pyarrow, twice the same column",
        lambda: pa.table([[1], [2]], names=["a", "a"]),
        "| a | a (2) |",
    )
    put("pyarrow batch", lambda: pa.record_batch({"a": [7]}), "| a |\n| --- |\n| 7 |")
    put("pyarrow chunks", lambda: pa.chunked_array([[7], [8]]), "| 7 |\n| 8 |")
    put("pyarrow text view", lambda: pa.table({"a": pa.array(["x"], pa.string_view())}), "| x |")
    put("pyarrow runs", lambda: pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]), "| 7 |\n| 7 |")
    put("pyarrow, many chunks", lambda: pa.chunked_array([[i] for i in range(9_000)]), "| 0 |")
    put("pyarrow array", lambda: pa.array([7]), "| values |\n| --- |\n| 7 |")
    put("pyarrow scalar", lambda: pa.scalar(5), "5")
    put(
        "dask, lazy",
        lambda: dask_frames.from_pandas(frame(a=[1]), npartitions=1),
        "DataFrame (dask): rows not computed yet, 1 column\ndtypes: a int64\n",
    )
    put(
        "dask series, lazy",
        lambda: dask_frames.from_pandas(frame(a=[1]), npartitions=1)["a"],
        "call .compute() and use its result",
    )

# Further forms of values of the same kinds
put("user string", lambda: collections.UserString("a text"), "a text")
put("period", lambda: frame(p=pd.period_range("2026", periods=1, freq="Y")), "| 2026 |")
put("interval", lambda: pd.Interval(0, 1), "(0, 1]")
put("pandas array", lambda: pd.array(range(500)), "| 250 |")
put("categorical", lambda: pd.Categorical(["a"] * 500), "Categorical: 500 rows")
put("only str", type("OnlyStr", (), {"__str__": lambda _: "its text"}), "its text")
put("bare class name", type("Bare", (), {"__repr__": lambda _: "<lib.Bare>", **SHOWN}), "shown")
put("empty repr", type("Empty", (), {"__repr__": lambda _: "", **SHOWN}), "shown")
put("static display", type("Static", (), {"_repr_html_": staticmethod(lambda: "shown")}), "shown")
put("data of a chart", lambda: WithChart(), '{"mark":"bar"}')
