"""A bank of values of every kind that a tool may return or a prompt may name, each made anew.

`VALUES`: id → (maker, words that the value's text has to have). No test in here.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

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
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
import pandas as pd
import pydantic
from IPython.display import Markdown
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
put("pydantic with a table", lambda: City(extra=frame(a=[1])), "DataFrame: 1 rows × 1 columns")
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
put("huge array", lambda: np.zeros(20_000_000), "shape (20000000,), float64\n[0. 0. 0. ...")
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
put("index", lambda: pd.Index([1, 2], name="i"), "Index: 2 rows × 1 columns\ndtypes: i int64")
put("styler", lambda: frame(a=[1]).style, "Styler of a DataFrame: 1 rows")
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
put("IPython Markdown", lambda: Markdown("# Title"), "# Title")
put("generator that raises", raising, "raised ZeroDivisionError")
