"""`nb.inspect`: what is told of a value, and what is hidden under the name of a secret."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any, NamedTuple

import pandas as pd
import pytest
from notebook_stage import Notebook, a_function

from nbagent.contracts.chat import ImagePart
from nbagent.contracts.secrets import is_secret_name
from nbagent.tools.notebook_names import HIDDEN, masked_text

SECRET = "hunter2-Plover-4417-xyzzy"


@dataclasses.dataclass
class Item:
    name: str
    size: int = 3

    @property
    def computed(self) -> int:
        raise AssertionError("never asked")


class Slotted:
    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = [10, 20]


class Pair(NamedTuple):
    left: int
    right: str


PATHS: dict[str, Any] = {
    "config['model']": "m",
    'config["deep"]["list"][-1]': 9,
    "item.name": "box",
    "slotted.inner[1]": 20,
    "pair.right": "r",
    "rows[0]": {"a": 1},
    " rows[0]['a'] ": 1,
}


def put_examples(names: dict[str, Any]) -> None:
    names.update(
        config={"model": "m", "deep": {"list": [7, 8, 9]}},
        item=Item("box"),
        slotted=Slotted(),
        pair=Pair(1, "r"),
        rows=[{"a": 1}],
        js=json,
        frame=pd.DataFrame({"price": [1.5, 2.5], "color": ["red", "blue"]}),
    )


@pytest.mark.parametrize("path", PATHS)
def test_simple_paths_lead_to_data(notebook: Notebook, path: str) -> None:
    put_examples(notebook.names)
    assert notebook.inspect(path)["value"] == PATHS[path]


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("confg", "ENOENT", "did you mean 'config'"),
        ("config['modell']", "ENOENT", "did you mean 'model'"),
        ("rows[5]", "ENOENT", "from 0 to 0"),
        ("frame['prize']", "ENOENT", "did you mean 'price'"),
        ("item.computed", "E_INVALID_ARGUMENTS", "computed"),
        ("item.__class__", "E_INVALID_ARGUMENTS", "Python's own"),
        ("js.dumps()", "E_INVALID_ARGUMENTS", "no simple path"),
        ("rows[0:1]", "E_INVALID_ARGUMENTS", "no simple path"),
        ("a + b", "E_INVALID_ARGUMENTS", "no simple path"),
        ("(" * 300, "E_INVALID_ARGUMENTS", "no simple path"),
        ("a\x00", "E_INVALID_ARGUMENTS", "no simple path"),
        ("", "E_INVALID_ARGUMENTS", "no simple path"),
        ("item[0]", "E_INVALID_ARGUMENTS", "use nb.run"),
        ("In", "E_DENIED", "not shown"),
        ("_i3", "E_DENIED", "not shown"),
        ("__builtins__", "E_DENIED", "not shown"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_to_do(
    notebook: Notebook, path: str, code: str, says: str
) -> None:
    put_examples(notebook.names)
    error = notebook.error("nb.inspect", name=path)
    assert (error.code, says in error.message) == (code, True), error


def test_a_data_frame_is_told_by_columns_head_and_statistics(notebook: Notebook) -> None:
    notebook.names["df"] = pd.DataFrame({"a": range(100), "b": [None, "x"] * 50})
    told = notebook.inspect("df")
    assert told["shape"] == [100, 2]
    assert told["columns"][0] == {"name": "a", "dtype": "int64"}
    assert "| 0 |  |" in told["head"]
    assert "99" in told["tail"]
    assert "mean | 49.5" in told["describe"]
    assert told["missing"] == {"b": 50}
    assert notebook.inspect("df.a")["type"] == "pandas.Series"
    assert "mean | 49.5" in notebook.inspect("df['a']")["describe"]


def test_a_large_frame_is_described_quickly_by_evenly_spread_rows(notebook: Notebook) -> None:
    notebook.names["df"] = pd.DataFrame({f"c{i}": range(1_000_000) for i in range(8)})
    start = time.monotonic()
    told = notebook.inspect("df")
    assert time.monotonic() - start < 5
    assert told["described_rows"] == "250,000 of 1,000,000, evenly spread"


def test_an_array_is_told_by_its_numbers(notebook: Notebook) -> None:
    numpy = sys.modules["numpy"]
    notebook.names["arr"] = numpy.array([[1.0, 2.0], [3.0, float("nan")]])
    told = notebook.inspect("arr")
    assert told["shape"] == [2, 2]
    assert (told["min"], told["max"], told["mean"]) == (1.0, 3.0, 2.0)


def test_functions_and_classes_are_told_by_signature_docstring_and_source(
    notebook: Notebook,
) -> None:
    notebook.names.update(f=a_function, item=Item)
    told = notebook.inspect("f")
    assert told["signature"].startswith("a_function()")
    assert told["docstring"] == "Give one."
    assert "return 1" in told["source"]
    assert "size: int = 3" in notebook.inspect("item")["source"]
    assert notebook.inspect("item.computed")["type"] == "property"


def test_a_module_is_told_by_its_names(notebook: Notebook) -> None:
    notebook.names["js"] = json
    told = notebook.inspect("js")
    assert told["module"] == "json"
    assert "dumps" in told["names"]
    assert notebook.inspect("js.dumps")["signature"].startswith("dumps(obj")


def test_a_figure_is_told_as_an_image(notebook: Notebook) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    notebook.names["figure"] = figure
    outcome = notebook.call("nb.inspect", name="figure")
    (image,) = outcome.result.attachments
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    assert outcome.result.data["value"].startswith("[image 1: figure")


# Secrets


SECRETS = """api_key API_KEY OPENAI_API_KEY apikey openaiKey key keys myAPIKey token hf_token
accessToken tokens client_secret secrets password db_passwd DB_PASSWORD2 credentials
aws_credential_file Authorization pwd jwt session_cookie passphrase private_key_pem keyfile
openaikey"""
OTHERS = """monkey turkeys keyboard keyword tokenizer max_tokens token_count prompt_tokens df n
pass_rate author spins donkey_count KeyError"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["", *OTHERS.split()])
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_a_secret_variable_is_listed_without_value_and_never_inspected(notebook: Notebook) -> None:
    notebook.names.update(api_key=SECRET, x=1)
    data = notebook.data("nb.variables")
    assert {"name": "api_key", "type": "str", "hidden": "looks like a secret"} in data["variables"]
    assert SECRET not in json.dumps(data)
    error = notebook.error("nb.inspect", name="api_key")
    assert error.code == "E_DENIED"
    assert notebook.error("nb.inspect", name="api_key[0]").code == "E_DENIED"
    assert notebook.error("nb.set", name="api_key", value="x").code == "E_DENIED"
    assert notebook.names["api_key"] == SECRET


@dataclasses.dataclass
class Login:
    user: str
    password: str


class Client:
    def __init__(self) -> None:
        self.auth_token = "tok-12"

    def __repr__(self) -> str:
        return f"Client(auth_token={self.auth_token!r}, user='ann')"


def leaky_source() -> str:
    password = "in-the-source"
    return password.upper()


HOLDERS: dict[str, tuple[Any, str]] = {
    "dict": ({"user": "ann", "api_key": "sk-1"}, "sk-1"),
    "deep": ({"a": [{"b": {"password": "pw-1"}}]}, "pw-1"),
    "dataclass": (Login("ann", "pw-2"), "pw-2"),
    "repr": (Client(), "tok-12"),
    "column": (pd.DataFrame({"user": ["ann"], "password": ["pw-3"]}), "pw-3"),
    "row": (pd.DataFrame({"v": ["ann", "pw-9"]}, index=["user", "password"]), "pw-9"),
    "column inside": ({"df": pd.DataFrame({"user": ["ann"], "token": ["t-4"]})}, "t-4"),
    "series": (pd.Series({"user": "ann", "secret": "s-5"}), "s-5"),
    "named series": (pd.Series(["pw-6"], name="password"), "pw-6"),
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
    assert told.ok
    assert ran.ok
    assert secret not in told.to_json().decode() + ran.to_json().decode() + str(looked)


def test_masking_code_takes_no_time_for_long_words() -> None:
    start = time.monotonic()
    text = "a" * 200_000 + "=" * 200_000 + "'" + "key='" * 20_000
    masked_text(text)
    assert time.monotonic() - start < 2
    assert masked_text("db_password = 'x y'; n = 'z'") == f"db_password = '{HIDDEN}'; n = 'z'"


@pytest.mark.parametrize("path", ["os.environ", "env", "os.environ._data"])
def test_the_environment_is_never_shown(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PLAIN_WORD", "from-the-environment")
    notebook.names.update(os=os, env=os.environ, held={"env": os.environ})
    assert notebook.error("nb.inspect", name=path).code == "E_DENIED"
    shown = notebook.call("nb.inspect", name="held").result.to_json().decode()
    shown += notebook.call("nb.run", code=path).result.to_json().decode()
    assert "from-the-environment" not in shown


def test_passwords_in_addresses_and_host_folders_are_not_told(notebook: Notebook) -> None:
    notebook.names["address"] = "postgres://ann:pw-77@db.example/x"
    notebook.names["path"] = os.path.join(os.getcwd(), "data", "a.csv")
    texts = json.dumps([notebook.listed(), notebook.inspect("address"), notebook.inspect("path")])
    assert "pw-77" not in texts
    assert "ann:" in texts
    assert os.getcwd() not in texts
    assert "a.csv" in texts


def test_what_a_secret_variable_holds_is_not_shown_by_another_path(notebook: Notebook) -> None:
    notebook.names |= {
        "password": "hunter22",
        "api_key": "A1" * 12,
        "credentials": {"user": "x"},
        "sort_key": "price",
    }
    notebook.names |= {
        "rows": ["".join(["hunter", "22"]), "price"],
        "box": [notebook.names["credentials"]],
        "copy": "A1" * 12,
        "empty": (),
        "some_keys": (),
    }
    for path in ("rows[0]", "box[0]", "copy"):
        error = notebook.error("nb.inspect", name=path)
        assert error.code == "E_DENIED"
        assert "hunter" not in error.message
    assert notebook.inspect("rows[1]")["value"] == "price"
    assert notebook.inspect("empty")["value"] == []
    assert "hunter22" not in json.dumps(notebook.inspect("rows"))


def test_a_key_is_hidden_wherever_it_comes_out(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-nb-0123456789abcdefXYZ"
    notebook.names.update(service_key=key, other={"plain": key})
    told = notebook.call("nb.inspect", name="other").result.to_json().decode()
    code = "for c in service_key: print(c, end='')\nprint()\nother['plain']"
    ran = notebook.call("nb.run", code=code).result.to_json().decode()
    assert key not in told + ran
    assert key not in capsys.readouterr().out
    assert "[redacted]" in ran
    error = notebook.error("nb.run", code="raise ValueError('no ' + service_key)")
    assert key not in repr(error)
