"""Which of the notebook's tools there are, their list of variables, and setting one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from notebook_stage import Notebook, a_function
from shown.many_values import VALUES

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.policy import Question

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


HOSTILE = [
    *("bad repr", "repr that is no text", "bad attributes", "endless list"),
    *("circular", "100 MB of text", "ten million items", "huge int", "deep"),
    *("bad ones inside", "empty table", "not finite"),
    *("objects in cells", "twice the same column", "generator", "odd class"),
]


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_value_breaks_a_tool_or_its_budget(notebook: Notebook, kind: str) -> None:
    notebook.names["odd"] = VALUES[kind][0]()
    notebook.data("nb.variables")
    assert len(json.dumps(notebook.inspect("odd"))) < 60_000
    assert len(json.dumps(notebook.execute("odd"))) < 60_000
    assert len(notebook.preview("nb.set", name="odd", value=1).pieces[0].text) < 1_000


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
    assert (preview.ruling, preview.for_session) == ("ask", "this call")
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
