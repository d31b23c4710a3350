"""The notebook's tools: which there are, variables, inspecting, secrets, setting, running code."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from code_shell import runs_code
from frontends import StandIn
from host_door import HostDoor

import nbagent
from nbagent.contracts.approval import Question
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.limits import ToolLimits
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.records import ToolRun
from nbagent.contracts.tools import ToolContext
from nbagent.providers.offline import call, script
from nbagent.session.frontend import use_frontend
from nbagent.tools.host_config import HostConfig
from nbagent.tools.notebook import open_hosts
from nbagent.tools.notebook_values import HIDDEN, mask_secrets


def a_function() -> int:
    """Give one."""
    return 1


class Notebook(HostDoor):
    """A namespace with the notebook's tools."""

    def __init__(self, *words: str, policy: ToolPolicy | None = None) -> None:
        policy = policy or ToolPolicy()
        (host,) = open_hosts(HostConfig(names=words or ("nb",), project=Path(), policy=policy))
        super().__init__(host)
        self.names["__name__"] = "__main__"

    def context(self, approved: bool = False) -> ToolContext:
        runs = runs_code(self.names) if self.names else None
        return replace(super().context(approved), run_code=runs)

    def inspect(self, name: str) -> Any:
        return self.data("nb.inspect", name=name)

    def execute(self, code: str) -> Any:
        return self.data("nb.run", code=code)

    def listed(self, **arguments: Any) -> dict[str, Any]:
        found = self.data("nb.variables", **arguments)
        return {line["name"]: line for line in found["variables"]}

    def in_run(
        self, name: str, asked: Callable[[Question], object] = lambda _: True, /, **arguments: Any
    ) -> ToolRun:
        """Call in a run, as the model and the records get it."""
        use_frontend(StandIn(self.names, run_code=runs_code(self.names)))
        try:
            agent = nbagent.Agent(
                script([call(name, **arguments), "Done."]), tools=["nb"], on_approval=asked
            )
            (turn, _) = agent.run("Go.", quiet=True).turns
        finally:
            use_frontend(None)
        return turn.tool_runs[0]


@pytest.fixture
def notebook() -> Notebook:
    """A notebook with its tools."""
    return Notebook()


ALL = ["nb.variables", "nb.inspect", "nb.run", "nb.set"]


def test_words_choose_the_tools() -> None:
    assert list(Notebook("nb.set", "nb.variables").specs) == ["nb.variables", "nb.set"]
    specs = Notebook("nb.run", "nb").specs
    assert list(specs) == ALL
    traits = {name: (spec.traits.ruling, spec.traits.interruptible) for name, spec in specs.items()}
    special = {"nb.run": ("ask", True), "nb.set": ("ask", False)}
    assert traits == {name: special.get(name, ("allow", True)) for name in specs}
    with pytest.raises(UsageError, match=r"did you mean 'nb\.inspect'"):
        Notebook("nb.inspekt")


@pytest.mark.parametrize("tool", ALL)
def test_without_a_notebook_each_tool_says_so(tool: str) -> None:
    notebook = Notebook()
    notebook.names.clear()
    needed = notebook.specs[tool].parameters.get("required", [])
    error = notebook.error(tool, **dict.fromkeys(needed, "x"))
    assert (error.code, notebook.names) == ("E_PRECONDITION_FAILED", {})
    assert "no notebook here" in error.message


# nb.variables


def test_variables_are_listed_with_type_shape_length_and_size(notebook: Notebook) -> None:
    notebook.names.update(
        df=pd.DataFrame({"a": range(6), "b": [0.5] * 6}),
        items=[1, 2, 3],
        n=7,
        f=a_function,
        C=Path,
        js=json,
        **dict.fromkeys(("In", "Out", "_", "_i1", "exit", "get_ipython"), 3),
    )
    lines = notebook.listed()
    assert list(lines) == ["C", "df", "f", "items", "js", "n"]
    assert (lines["df"]["type"], lines["df"]["shape"]) == ("pandas.DataFrame", [6, 2])
    assert lines["df"]["bytes"] > 6 * 16
    assert (lines["items"]["length"], lines["n"]["value"]) == (3, "7")
    assert [lines[name]["type"] for name in ("C", "f", "js")] == ["type", "function", "module"]


def test_a_pattern_and_a_limit_narrow_the_list(notebook: Notebook) -> None:
    notebook.names.update(df=1, DF2=2, f2x=3, n=4)
    expected = {"df*": ["DF2", "df"], "f2": ["DF2", "f2x"], "?": ["n"], "zzz": []}
    assert {it: sorted(notebook.listed(pattern=it)) for it in expected} == expected
    data = notebook.data("nb.variables", limit=3)
    assert (len(data["variables"]), data["left_out"][:6]) == (3, "1 of 4")
    notebook.names.update({f"name_{i}": i for i in range(3_000)})
    outcome = notebook.call("nb.variables", limit=1_000)
    assert len(outcome.result.to_json()) < 60_000


# Values that do what they like


class Watched(dict[Any, Any]):
    """Notes what of its code runs."""

    ran: list[str] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> Any:
        Watched.ran.append(name)
        return super().__getattribute__(name)

    def __len__(self) -> int:
        Watched.ran.append("len")
        return 1

    def __repr__(self) -> str:
        Watched.ran.append("repr")
        return ""


def test_listing_and_asking_run_no_code_of_a_value(notebook: Notebook) -> None:
    notebook.names.update(a=Watched(), c=[Watched()], d={"x": Watched()})
    Watched.ran.clear()
    assert list(notebook.listed()) == ["a", "c", "d"]
    assert {notebook.preview("nb.set", name=it, value=1).ruling for it in "acd"} == {"ask"}
    assert Watched.ran == []


def test_inspecting_does_not_use_an_iterator_up(notebook: Notebook) -> None:
    notebook.names["rows"] = iter([1, 2, 3])
    notebook.names["held"] = {"rows": notebook.names["rows"]}
    notebook.inspect("rows")
    notebook.inspect("held")
    notebook.execute("rows")
    assert list(notebook.names["rows"]) == [1, 2, 3]


# nb.set


NO_NAMES = ["1x", "class", "__name__", "In", "js"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_are_not_the_persons_are_refused(notebook: Notebook, name: str) -> None:
    notebook.names["js"] = json
    with pytest.raises(ToolError, match="choose another"):  # before anybody is asked
        notebook.on_engine(lambda: notebook.aprepare("nb.set", name=name, value=1))


def test_setting_asks_with_the_old_and_the_new_value(notebook: Notebook) -> None:
    notebook.names["df"] = pd.DataFrame({"a": [1, 2]})
    preview = notebook.preview("nb.set", name="df", value=["x"] * 3_000)
    assert (preview.ruling, preview.session_scope) == ("ask", "this call")
    assert notebook.preview("nb.inspect", name="df").ruling == "allow"
    now, then = preview.pieces
    assert now.text == "<pandas.DataFrame shape [2, 1]>"
    assert json.loads(then.text) == ["x"] * 3_000
    assert "no such variable" in notebook.preview("nb.set", name="new", value=1).pieces[0].text


def test_a_value_that_changes_while_the_person_decides_is_shown_again(notebook: Notebook) -> None:
    notebook.names["n"] = [5]
    seen: list[str] = []

    def asked(question: Question) -> bool:
        seen.append(question.pieces[0].text)
        notebook.names["n"] = [6]
        return True

    notebook.in_run("nb.set", asked, name="n", value=1)
    assert (seen, notebook.names["n"]) == (["[5]", "[6]"], 1)


SECRET = "hunter2-Plover-4417-xyzzy"


@dataclasses.dataclass
class Item:
    name: str
    size: int = 3

    @property
    def computed(self) -> int:
        raise AssertionError("never asked")


@pytest.fixture
def filled() -> Notebook:
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
def test_a_missing_name_says_what_to_do(filled: Notebook, name: str, code: str, says: str) -> None:
    error = filled.error("nb.inspect", name=name)
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
def test_a_value_is_told_by_what_matters(filled: Notebook, name: str, key: str, text: str) -> None:
    assert text in str(filled.inspect(name)[key])


# Secrets


def test_a_secret_variable_is_listed_without_value_and_never_inspected(notebook: Notebook) -> None:
    notebook.names["api_key"] = SECRET
    assert notebook.listed()["api_key"]["value"] == HIDDEN
    assert notebook.error("nb.inspect", name="api_key").code == "E_DENIED"
    assert notebook.error("nb.set", name="api_key", value="x").code == "E_DENIED"


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
    "polars column": (pl.DataFrame({"user": ["ann"], "password": ["pw-8"]}), "pw-8"),
    "polars column inside": ([pl.DataFrame({"user": ["ann"], "token": ["t-9"]})], "t-9"),
    "address": ("postgres://ann:pw-77@db.example/x", "pw-77"),
    "host folder": (os.path.join(os.getcwd(), "data", "a.csv"), os.getcwd()),
    "source": (leaky_source, "in-the-source"),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_has_a_secret_name_inside_a_value_is_not_shown(notebook: Notebook, kind: str) -> None:
    value, secret = HOLDERS[kind]
    notebook.names["held"] = value
    told = notebook.call("nb.inspect", name="held").result
    ran = notebook.call("nb.run", code="held").result
    looked = notebook.preview("nb.set", name="held", value=1)
    assert (told.ok, ran.ok) == (True, True)
    texts = told.to_json().decode() + ran.to_json().decode() + str(looked)
    assert secret not in texts + str(notebook.listed())


def test_masking_code_takes_no_time_for_long_words() -> None:
    start = time.process_time()
    mask_secrets("a" * 200_000 + "=" * 200_000 + "'" + "key='" * 20_000)
    assert time.process_time() - start < 2
    assert mask_secrets("db_password = 'x y'; n = 'z'") == f"db_password = '{HIDDEN}'; n = 'z'"


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


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("None", None),
        ("{'a': (1, 2)}", {"a": [1, 2]}),
        ("def f(n): return n * 2\nf(4)", 8),
        ("from __future__ import annotations\ndef f(a: Nope): ...\nf.__annotations__['a']", "Nope"),
        ("def f(a: int): ...\nf.__annotations__['a'] is int", True),
        ("__name__", "__main__"),
        ("import asyncio\nawait asyncio.sleep(0, 7)", 7),
    ],
)
def test_the_value_is_of_the_last_expression(notebook: Notebook, code: str, value: Any) -> None:
    assert notebook.execute(code)["value"] == value


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = = 1", "SyntaxError: .*line 1"),
        ("%matplotlib inline", "magic"),
        ("json?", "help lines"),
        ("y = 1\nreturn 5", "outside function"),
        ("exit()", "would end the notebook's kernel"),
        ("(" * 5_000, "Error: "),
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_what_is_no_python_is_refused_unasked(notebook: Notebook, code: str, says: str) -> None:
    with pytest.raises(ToolError, match=says) as refusal:
        notebook.on_engine(lambda: notebook.aprepare("nb.run", code=code))
    assert refusal.value.code == "E_INVALID_ARGUMENTS"


def test_running_code_asks_always_and_shows_all_of_it(notebook: Notebook) -> None:
    code = "import os\n" * 500
    preview = notebook.preview("nb.run", code=code)
    assert (preview.ruling, preview.minimum, preview.session_scope) == ("ask", True, "none")
    (piece,) = preview.pieces
    assert (piece.kind, piece.text) == ("code", code)
    assert "everything that you may do" in preview.why
    # An approval is for these arguments; nothing else decides the effect.
    assert preview.approval_key == ""


# What is printed and drawn


def test_long_output_is_cut_in_its_middle_for_the_model_and_bounded_in_the_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = ToolPolicy(limits=ToolLimits(script_output_bytes=10_000))
    told = Notebook(policy=policy).execute("for i in range(100_000): print('line', i)")["stdout"]
    assert told.startswith("line 0\n")
    assert told.endswith("line 99999\n")
    assert "bytes cut" in told
    assert len(told) < 10_100
    shown = capsys.readouterr().out
    assert len(shown) < 10_100
    assert "not shown" in shown


CLOSED = "import sys, contextlib\nwith contextlib.closing(sys.stdout): pass\nsys.stderr.close()"
GONE = "import sys\nsys.stdout = sys.stderr = sys.displayhook = None"
EVIL = "class Evil:\n    def __repr__(self): raise KeyboardInterrupt\nEvil()"
LEAVING = [
    *("1 / 0", "import sys; sys.exit(3)", "raise GeneratorExit", EVIL, "raise KeyboardInterrupt"),
    "import asyncio\nraise asyncio.CancelledError",
]


@pytest.mark.parametrize("code", [CLOSED, GONE, *LEAVING])
def test_whatever_code_does_the_next_cell_runs_and_prints(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    before = (sys.stdout, sys.stderr, sys.displayhook)
    error = notebook.call("nb.run", code=code).result.error
    assert (error and error.code) == ("E_TOOL_FAILED" if code in LEAVING else None)
    assert (sys.stdout, sys.stderr, sys.displayhook) == before
    print("still here")
    assert notebook.execute("print('and here')")["stdout"] == "and here\n"
    assert capsys.readouterr().out == "still here\nand here\n"


def test_two_pieces_of_code_that_wait_do_not_take_each_others_output(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout

    async def both() -> list[Any]:
        code = "import asyncio\nprint({0})\nawait asyncio.sleep(0.05)\nprint({0})"
        calls = [notebook.acall("nb.run", {"code": code.format(n)}) for n in (1, 2)]
        return [outcome.result.data["stdout"] for outcome in await asyncio.gather(*calls)]

    assert notebook.on_engine(both) == ["1\n1\n", "2\n2\n"]
    assert capsys.readouterr().out == "1\n1\n2\n2\n"
    assert sys.stdout is before


def test_code_that_waits_runs_on_one_loop_after_the_other() -> None:
    run_code: Any = runs_code({})

    async def two_at_a_time() -> list[str]:
        codes = (f"import asyncio\nawait asyncio.sleep(0)\nprint({n})" for n in (1, 2))
        outcomes = await asyncio.gather(*(run_code(code, keep_bytes=100) for code in codes))
        return [outcome.stdout for outcome in outcomes]

    # Two at a time: a lock belongs to a loop from its first wait on.
    for _ in range(2):
        assert asyncio.run(two_at_a_time()) == ["1\n", "2\n"]


def test_figures_come_back_as_images_also_where_no_cell_shows_them(notebook: Notebook) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    pyplot.figure()  # the person's own
    made = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
    alone = "from matplotlib.figure import Figure\nFigure(figsize=(2, 1))"
    codes = {made + "ax.plot([1, 2])": 1, "1": 0, "ax.set_title('later')": 1, made + "1/0": 1}
    try:
        for code, n_images in {**codes, alone: 1}.items():
            assert len(notebook.call("nb.run", code=code).result.attachments) == n_images, code
    finally:
        pyplot.close("all")
