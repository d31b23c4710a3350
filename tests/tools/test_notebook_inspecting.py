"""`nb.inspect`: what is told of a value, and what is hidden under the name of a secret."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

import pandas as pd
import pytest
from notebook_stage import Notebook, a_function

from nbagent.tools.notebook_values import HIDDEN, masked

SECRET = "hunter2-Plover-4417-xyzzy"


@dataclasses.dataclass
class Item:
    name: str
    size: int = 3

    @property
    def computed(self) -> int:
        raise AssertionError("never asked")


@pytest.fixture
def notebook() -> Notebook:
    made = Notebook()
    made.names.update(
        config={"model": "m", "deep": {"list": [7, 8, 9]}},
        item=Item("box"),
        js=json,
        f=a_function,
        Item=Item,
        numbers=sys.modules["numpy"].array([[1.0, 2.0], [3.0, float("nan")]]),
        df=pd.DataFrame({"a": range(100), "b": [None, "x"] * 50}),
    )
    return made


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("confg", "ENOENT", "nb.variables"),
        ("df['a']", "ENOENT", "nb.run"),
        ("In", "E_DENIED", "not shown"),
        ("__builtins__", "E_DENIED", "not shown"),
    ],
)
def test_a_name_that_is_not_there_says_what_to_do(
    notebook: Notebook, name: str, code: str, says: str
) -> None:
    error = notebook.error("nb.inspect", name=name)
    assert (error.code, says in error.message) == (code, True), error


TOLD: list[tuple[str, str, str]] = [
    ("config", "value", "{'model': 'm', 'deep': {'list': [7, 8, 9]}}"),
    ("df", "shape", "[100, 2]"),
    ("df", "value", "dtypes: a int64, b "),
    ("df", "describe", "mean | 49.5"),
    ("numbers", "shape", "[2, 2]"),
    ("f", "signature", "a_function()"),
    ("f", "source", "return 1"),
    ("item", "value", "{'name': 'box', 'size': 3}"),
]


@pytest.mark.parametrize(("name", "key", "text"), TOLD, ids=[f"{n}: {k}" for n, k, _ in TOLD])
def test_each_kind_of_value_is_told_by_what_matters(
    notebook: Notebook, name: str, key: str, text: str
) -> None:
    assert text in str(notebook.inspect(name)[key])


# Secrets


def test_a_secret_variable_is_listed_without_value_and_never_inspected(notebook: Notebook) -> None:
    notebook.names["api_key"] = SECRET
    assert notebook.listed()["api_key"]["value"] == HIDDEN
    assert notebook.error("nb.inspect", name="api_key").code == "E_DENIED"
    assert notebook.error("nb.set", name="api_key", value="x").code == "E_DENIED"


@dataclasses.dataclass
class Login:
    password: str


class Client:
    def __repr__(self) -> str:
        return "Client(auth_token='tok-12', user='ann')"


def leaky_source() -> str:
    password = "in-the-source"
    return password.upper()


HOLDERS: dict[str, tuple[Any, str]] = {
    "dict": ({"user": "ann", "api_key": "sk-1"}, "sk-1"),
    "deep": ({"a": [{"b": {"password": "pw-1"}}]}, "pw-1"),
    "repr": (Client(), "tok-12"),
    "column": (pd.DataFrame({"user": ["ann"], "password": ["pw-3"]}), "pw-3"),
    "row of many": (
        pd.Series(["pw-7"] * 9_000, index=["password", *map(str, range(8_999))]),
        "password | pw-7",
    ),
    "column inside": ({"df": pd.DataFrame({"user": ["ann"], "token": ["t-4"]})}, "t-4"),
    "named series": (pd.Series(["pw-6"], name="password"), "pw-6"),
    "address": ("postgres://ann:pw-77@db.example/x", "pw-77"),
    "host folder": (os.path.join(os.getcwd(), "data", "a.csv"), os.getcwd()),
    "source": (leaky_source, "in-the-source"),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_stands_under_a_secret_name_inside_a_value_is_not_shown(
    notebook: Notebook, kind: str
) -> None:
    value, secret = HOLDERS[kind]
    notebook.names["held"] = value
    told = notebook.call("nb.inspect", name="held").result
    ran = notebook.call("nb.run", code="held").result
    looked = notebook.preview("nb.set", name="held", value=1)
    assert (told.ok, ran.ok) == (True, True)
    texts = told.to_json().decode() + ran.to_json().decode() + str(looked)
    assert secret not in texts + str(notebook.listed())


@pytest.mark.timed
def test_masking_code_takes_no_time_for_long_words() -> None:
    start = time.monotonic()
    masked("a" * 200_000 + "=" * 200_000 + "'" + "key='" * 20_000)
    assert time.monotonic() - start < 2
    assert masked("db_password = 'x y'; n = 'z'") == f"db_password = '{HIDDEN}'; n = 'z'"


@pytest.mark.parametrize("path", ["os.environ", "env", "os.environ._data"])
def test_the_environment_is_never_shown(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PLAIN_WORD", "from-the-environment")
    notebook.names.update(os=os, env=os.environ, inside=vars(os.environ)["_data"])
    notebook.names["held"] = {"env": os.environ}
    for name in ("env", "inside"):
        assert notebook.error("nb.inspect", name=name).code == "E_DENIED"
    shown = notebook.call("nb.inspect", name="held").result.to_json().decode()
    shown += notebook.call("nb.run", code=path).result.to_json().decode()
    assert "from-the-environment" not in shown


def test_a_key_is_hidden_wherever_it_comes_out(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-nb-0123456789abcdefXYZ"
    made = "sk-made-by-code-42-0123456"
    notebook.names.update(service_key=key, other={"plain": key}, half=made[:9])
    code = "for c in service_key: print(c, end='')\nprint()\nother['plain']"
    results = [
        notebook.in_run("nb.inspect", name="other"),
        notebook.in_run("nb.run", code=code),
        notebook.in_run("nb.run", code=f"new_token = half + {made[9:]!r}\n[new_token]"),
        notebook.in_run("nb.run", code="raise ValueError('no ' + service_key)"),
        notebook.in_run("nb.run", code="print('x' * 9_985 + service_key + 'y' * 30_000)"),
    ]
    assert "[redacted]" in str(results[1].result)
    printed = capsys.readouterr().out
    assert "[redacted]" in printed
    assert not [text for text in (key[:12], made) if text in str(results) + printed]
