"""The page over all cases of a batch from Python: its file, its text, and labels that come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage_of_batches import FEW, agent, ask, calls, note, scorer

import nbagent
from nbagent.lab.case_pages import page_options

LABELS = {"nbagent_labels": 1, "batch": "b", "name": "liked", "by": "anna"}

SAME_RUN = {"run_id": "xx", "value": 3}


def done() -> Any:
    def exact(row: Any, run: Any) -> bool:
        return row["n"] > 0

    return ask(score=scorer(exact)).wait()


def labels(batch: Any, *values: Any) -> list[dict[str, Any]]:
    runs = [result.run_id for result in batch.results()]
    return [
        {"run_id": run_id, "value": value, "reason": "why", "at": "2026-11-29T00:00:00Z"}
        for run_id, value in zip(runs, values, strict=False)
    ]


def written(folder: Path, content: object) -> Path:
    path = folder / "labels.json"
    path.write_text(json.dumps(content), "utf-8")
    return path


def test_a_batch_is_exported_as_one_file_and_printed_without_a_front_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = done()
    text = batch.export("html", tmp_path / "cases.html")
    assert (tmp_path / "cases.html").read_text("utf-8") == text
    assert "default-src 'none'" in text
    assert "a:2" in text
    assert nbagent.batch("b").export() == text
    batch.page()
    printed = capsys.readouterr().out
    assert "3 cases · b · ✕ 1 wrong · ✓ 2 right" in printed
    assert "batch.export('html', 'cases.html')" in printed


def test_labels_of_others_are_hidden_until_the_person_has_given_one() -> None:
    batch = done()
    first, second, _ = (result.run_id for result in batch.results())
    for run_id in (first, second):
        nbagent.score(run_id, "liked", False, by="anna")
    nbagent.score(second, "liked", True, by="ben")
    shown = batch.case_source(page_options("liked", 0, "ben")).results()
    own = [[s.by for s in result.scores if s.scorer == "liked"] for result in shown]
    assert own == [[], ["anna", "ben"], []]
    text = batch.export(name="liked", scale=0, by="ben")
    assert text.count("no (anna)") == 2  # the row, and the plain table
    assert "1 labelled by ben" in text
    other = batch.export(name="other", by="ben")
    assert other.count("no (anna)") == 4


def test_a_file_has_the_prompts_of_the_variants_and_the_calls_of_the_runs() -> None:
    vary = {"system": {"p1": "Never shout at <anyone>.", "p2": "Shout."}}
    batch = agent(calls(2), tools=[note]).map(FEW, "Say {{ n }}", vary=vary, name="b").wait()
    text = batch.export()
    assert "Never shout at \\u003canyone>." in text
    assert 'note {\\"text\\": \\"1\\"}' in text
    assert "→ noted 1" in text
    assert nbagent.batch("b").export() == text
    blind = batch.export(blind=True)
    assert "Never shout" not in blind
    assert "→ noted 1" not in blind


def test_labels_of_a_file_are_stored_as_scores_of_its_person(tmp_path: Path) -> None:
    batch = done()
    path = written(tmp_path, {**LABELS, "labels": labels(batch, 5, 2.0)})
    assert batch.add_labels(path) == 2
    assert batch.add_labels(path, by="ben") == 2
    stored: Any = nbagent.scores(scorer="liked")
    rows = sorted(zip(stored["by"], stored["value"], stored["reason"], strict=True))
    assert rows == [(by, value, "why") for by in ("anna", "ben") for value in (2.0, 5.0)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [{"run_id": "f" * 16, "value": 1}]}, "1 of 2 labels in .* does not have"),
        ({"labels": [{"run_id": 5, "value": 1}]}, "is no label; nothing was stored"),
        ({"labels": [{"run_id": "x", "value": None}]}, "is no label"),
        ({"labels": [{"run_id": "x", "value": [1]}]}, "is no label"),
        ({"labels": [{"run_id": "x", "value": "good"}]}, "is no label"),
        ({"labels": [{"run_id": "x", "value": 999}]}, "on a scale 1 to 5"),
        ({"labels": [{"run_id": "x", "value": 0}]}, "is no label"),
        ({"labels": [{"run_id": "x", "value": 2.5}]}, "is no label"),
        ({"labels": [{"run_id": "x", "value": 10**400}]}, "is no label"),
        ({"scale": 4, "labels": [{"run_id": "x", "value": 5}]}, "on a scale 1 to 4"),
        ({"scale": 5, "labels": [{"run_id": "x", "value": True}]}, "is no label"),
        ({"scale": 0, "labels": []}, "is no label"),
        ({"labels": [json.loads("[" * 900 + "]" * 900)]}, "is no label"),
        ({"labels": [SAME_RUN, SAME_RUN]}, "two labels of run 'xx'"),
        ({"nbagent_labels": True, "labels": []}, "has no labels"),
        ({"name": "exact", "labels": []}, "is by a scorer"),
        ({"labels": "x"}, "has no labels"),
        ({"nbagent_labels": 2, "labels": []}, "has no labels"),
        ({"by": "function", "labels": []}, "is the author of scorers"),
        ({"by": "openai:gpt-5.4", "labels": []}, "say who labelled"),
        ({"by": 3, "labels": []}, "give the name of the person"),
        ({"name": "../x", "labels": []}, "name"),
    ],
    ids=[
        "foreign run",
        "no id",
        "no value",
        "list",
        "word",
        "above every scale",
        "zero",
        "between two",
        "integer that no float holds",
        "above the scale of the page",
        "verdict on a scale",
        "number for a verdict",
        "deep label",
        "two labels of a run",
        "version that is true",
        "name of a scorer",
        "no list",
        "version",
        "function",
        "model",
        "number",
        "score name",
    ],
)
def test_a_file_with_a_wrong_label_stores_nothing(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    batch = done()
    content: dict[str, Any] = {**LABELS, **change}
    if content["labels"] != "x":
        content["labels"] = [*labels(batch, 4), *content["labels"]]
    with pytest.raises(nbagent.UsageError, match=words):
        batch.add_labels(written(tmp_path, content))
    stored: Any = nbagent.scores(scorer="liked")
    assert len(stored) == 0


def test_a_label_of_a_run_that_is_deleted_meanwhile_keeps_the_others_out_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = nbagent.batch(done().name)
    path = written(tmp_path, {**LABELS, "labels": labels(batch, 5, 4, 3)})
    before: Any = batch.results()
    nbagent.forget(before[1].run_id)
    with pytest.raises(nbagent.UsageError, match=r"does not have.*nothing was stored"):
        batch.add_labels(path)
    monkeypatch.setattr(batch, "results", lambda: before)  # read just before
    with pytest.raises(nbagent.UsageError, match=r"was deleted.*; nothing was stored"):
        batch.add_labels(path)
    assert len(nbagent.scores(scorer="liked")) == 0


def test_a_file_of_labels_nested_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text('{"nbagent_labels":1,"labels":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(nbagent.UsageError, match="has no labels"):
        done().add_labels(path)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("add_labels", {"path": 3}, "path=3 is not a path"),
        ("add_labels", {"path": None}, "path=None is not a path"),
        ("add_labels", {"path": "."}, "cannot be read"),
        ("add_labels", {"path": "a\0b"}, "has no labels"),
        ("page", {"by": "openai:gpt"}, "names a model"),
        ("add_labels", {"path": "none.json"}, "cannot be read"),
        ("export", {"format": "htm"}, "did you mean 'html'"),
        ("page", {"scale": 1}, "give a whole number from 2 to 5, or 0"),
        ("page", {"by": " "}, "give the name of the person"),
        ("export", {"name": "a b"}, "name"),
    ],
    ids=[
        "number",
        "none",
        "folder",
        "null byte",
        "model",
        "no file",
        "format",
        "scale",
        "by",
        "name",
    ],
)
def test_a_wrong_option_is_one_clear_line(method: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(nbagent.UsageError, match=words) as refused:
        getattr(done(), method)(**options)
    assert "\n" not in str(refused.value)


def test_a_page_of_a_working_batch_is_told_of_its_changes() -> None:
    batch = ask(FEW)
    changes: list[int] = []
    source = batch.case_source()
    source.watch(lambda: changes.append(1))
    batch.wait()
    assert changes
    assert [result.status for result in source.results()] == ["ok"] * 3
    score = source.label(source.results()[0].run_id, 3.0, "fine")
    assert (score.scorer, score.value, score.by, score.reason) == ("review", 3.0, "person", "fine")
