"""A run as a file for others: each format, through `run.export`; and figures of runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from wires.sdk_types import problem

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import call, calls, error, script
from nbagent.run import Run
from nbagent.store.rows import to_notebook_json

FORMATS = ("md", "html", "jsonl", "openai", "cell", "otel")


def look_up(place: str) -> dict[str, Any]:
    """Look something up."""
    if place == "nowhere":
        raise LookupError("no such place")
    return {"place": place, "n": 2**70, "half": "\ud83d"}


def run_of(*steps: Any, prompt: str = "Go.", **options: Any) -> Run:
    return nbagent.Agent(script(steps), tools=[look_up], quiet=True, **options).run(prompt)


@pytest.fixture
def run() -> Run:
    steps = call("look_up", place="a needle"), call("look_up", place="nowhere"), "The **end**."
    return run_of(*steps, prompt="Which $\\alpha$ & <b>?", system="Be brief.")


def test_json_lines_hold_the_whole_record(run: Run) -> None:
    lines: list[dict[str, Any]] = [json.loads(it) for it in run.export("jsonl").splitlines()]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_type.setdefault(line["type"], []).append(line)
    calls = by_type["tool_run"]
    for turn in by_type["turn"]:
        turn["tool_runs"] = [it for it in calls if it["turn_id"] == turn["id"]]
    plain = {
        **by_type["run"][0],
        "messages": by_type["message"],
        "turns": by_type["turn"],
        "system_prompts": {it["sha"]: it["text"] for it in by_type["system_prompt"]},
        "toolsets": {it["sha"]: it["tools"] for it in by_type["toolset"]},
    }
    assert RunRecord.model_validate(plain) == run.record
    assert [it["position"] for it in by_type["message"]] == [0, 1, 2, 3, 4, 5]


def test_json_lines_of_a_run_that_goes_on_count_its_messages_in_the_conversation() -> None:
    child = run_of(call("look_up", place="a needle"), "The end.", "And more.").resume("And now?")
    lines = [json.loads(it) for it in child.export("jsonl").splitlines()]
    assert [it["position"] for it in lines if it["type"] == "message"] == [4, 5]


def test_a_line_for_fine_tuning_is_of_the_types_of_the_sdk() -> None:
    steps = call("look_up", place="a needle"), call("look_up", place="nowhere"), "The end."
    whole = run_of(*steps, "And the rest.", system="Be brief.").resume("And now?")
    line = json.loads(whole.export("openai"))
    assert problem(line["messages"], list[ChatCompletionMessageParam]) == ""
    assert problem(line["tools"], list[ChatCompletionFunctionToolParam]) == ""
    roles = [it["role"] for it in line["messages"]]
    assert roles[:7] == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert roles[7:] == ["user", "assistant"]
    asked = line["messages"][2]["tool_calls"][0]
    assert json.loads(asked["function"]["arguments"]) == {"place": "a needle"}
    assert line["messages"][3]["tool_call_id"] == asked["id"]


def test_a_run_without_an_answer_is_no_example() -> None:
    failed = run_of(error("LLM_HTTP_ERROR"))
    with pytest.raises(UsageError, match="no answer to train on"):
        failed.export("openai")


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {it["key"]: next(iter(it["value"].values())) for it in span["attributes"]}


def test_spans_have_the_names_of_the_conventions_and_content_only_if_asked(run: Run) -> None:
    plain, whole = run.export("otel"), run.export("otel", content=True)
    for text in ("needle", "The **end**", "Which", "Be brief", "no such place"):
        assert text not in plain
        assert text in whole
    spans = json.loads(plain)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    root = spans[0]
    model = run.turns[0].request.model
    names = ["invoke_agent", *[f"chat {model}", "execute_tool look_up"] * 2, f"chat {model}"]
    assert [it["name"] for it in spans] == names
    assert {it.get("parentSpanId") for it in spans[1:]} == {root["spanId"]}
    assert len({it["spanId"] for it in spans}) == len(spans)
    assert {len(it["traceId"]) for it in spans} == {32}
    begins, ends = ([int(it[f"{at}TimeUnixNano"]) for it in spans] for at in ("start", "end"))
    assert begins[0] == min(begins)
    assert ends[0] == max(ends)
    chat, failed = attributes(spans[1]), attributes(spans[4])
    assert chat["gen_ai.operation.name"] == "chat"
    response = run.turns[0].response
    assert response
    assert response.usage
    assert chat["gen_ai.usage.input_tokens"] == str(response.usage.prompt_tokens)
    assert failed["error.type"] == "E_TOOL_FAILED"
    assert spans[4]["status"] == {"code": 2}


def test_spans_go_to_the_tracer_provider_of_the_package(run: Run) -> None:
    trace: Any = pytest.importorskip("opentelemetry.sdk.trace")
    exporting: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    kept: Any = pytest.importorskip(memory).InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(exporting.SimpleSpanProcessor(kept))
    run.send_spans(provider)
    spans: list[Any] = list(kept.get_finished_spans())
    root = spans[-1]
    assert root.name == "invoke_agent"
    assert {it.parent.span_id for it in spans[:-1]} == {root.context.span_id}
    assert sum(not it.status.is_unset for it in spans) == 1


def test_markdown_reads_as_a_page(run: Run) -> None:
    text = run.export()
    assert "> Which \\$&#92;alpha\\$ &amp; &lt;b&gt;?" in text
    assert "<details>\n<summary>turn C01 look_up(place=&quot;a needle&quot;)" in text
    assert "\n---\n\nThe **end**.\n" in text
    assert text.count("<details>") == text.count("</details>")
    shown = run_of(
        "# A\n\n1. one\n   - two `x`\n\n| a |\n|---|\n| b |\n\n```\n```` <b>\n```"
    ).export()
    for part in ("### A", "1. one\n\n   - two `x`", "| a |\n| --- |\n| b |", "`````\n```` <b>"):
        assert part in shown


def test_the_cell_asks_the_same_again(run: Run) -> None:
    assert run.export("cell").splitlines() == [
        f"%%agent --model {run.model} --system 'Be brief.'",
        "Which $\\alpha$ & <b>?",
    ]
    two_lines = run_of(
        "Yes.", prompt="{{ x }}", system="Be\nbrief.", stop_sequences=["\n\n", "END"]
    )
    assert (
        two_lines.export("cell") == f"%%agent --model {two_lines.model}\n{{{{ '{{{{' }}}} x }}}}\n"
    )


def test_the_cell_of_a_colleagues_run_has_its_words_only(run: Run, tmp_path: Path) -> None:
    record = run.record.model_copy(
        update={
            "template": "{{ __import__('os').system('id') }}",
            "options": {"base_url": "http://evil.test", "mounts": ["/"]},
        }
    )
    output = {"metadata": {"nbagent": to_notebook_json(record)}}
    file = tmp_path / "theirs.ipynb"
    file.write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    theirs = nbagent.read_notebook(file).open_run("last")
    assert theirs.export("cell") == f"%%agent\n{run.record.prompt}\n"


def test_the_title_of_a_page_is_text(run: Run, tmp_path: Path) -> None:
    record = run.record.model_copy(update={"model": "</title><script>alert(1)</script>"})
    output = {"metadata": {"nbagent": to_notebook_json(record)}}
    file = tmp_path / "theirs.ipynb"
    file.write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    text = nbagent.read_notebook(file).open_run("last").export("html")
    assert "&lt;/title&gt;" in text.partition("<body>")[0]
    assert "<script" not in text
    assert text.count("</title>") == 1


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_has_what_is_returned_and_no_secret(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-proj-0123456789abcdefghijkl"
    run = run_of(call("look_up", place=key), f"It is {key}.", prompt=f"Use {key}.")
    monkeypatch.setenv("OPENAI_API_KEY", key)  # after the run: the record in memory has it
    file = tmp_path / "out"
    text = run.export(form, file, content=True)
    assert key not in text
    assert file.read_bytes() == text.encode()
    with pytest.raises(UsageError, match="cannot be written"):
        run.export(form, tmp_path / "no" / "folder")


def test_an_unknown_format_names_the_known_ones(run: Run) -> None:
    with pytest.raises(UsageError, match="take one of md, html, jsonl, openai, cell, otel"):
        run.export("pdf")


def texts_of(figure: Any) -> set[str]:
    axes = figure.axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    return {axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *rows}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokens", {"tokens of runs", "start of the run (UTC)", "tokens"}),
        ("cost", {"cost of runs, added up", "cost (USD)"}),
        ("tools", {"calls by tool", "calls", "look_up"}),
        ("turns", {"time of turns", "time of a turn (s)", "turns"}),
    ],
)
def test_figures_have_titles_and_units(name: str, words: set[str], run: Run) -> None:
    had_pyplot = "matplotlib.pyplot" in sys.modules
    figure = getattr(nbagent.plot, name)()
    assert words <= texts_of(figure)
    handles, _ = figure.axes[0].get_legend_handles_labels()
    assert handles
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert getattr(nbagent.plot, name)(session="default", limit=0)._repr_png_()
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_the_timeline_has_a_row_for_each_call(run: Run) -> None:
    figure: Any = run.plot()
    wanted = {f"run {run.id[:8]} · {run.model}", "time since the start (s)"}
    assert wanted | {"C01", "C01 look_up", "C02", "C02 look_up", "C03"} <= texts_of(figure)
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert labels == ["model", "tools", "retries, failures"]
    several = calls([call("look_up", place=str(n)) for n in range(9)])
    many = run_of(*[several] * 5, "Done.")
    assert "C01 look_up" not in texts_of(many.plot())


def test_names_in_figures_are_no_formulas() -> None:
    run = run_of("Yes.", prompt="x")
    record = run.record.model_copy(update={"model": "offline:_$\\frac{$\x00"})
    assert Run(record, run._store).plot()._repr_png_()  # pyright: ignore


@pytest.mark.parametrize("format", ["md", "html"])
def test_a_document_has_all_of_a_long_answer(format: str) -> None:
    run = run_of("\n\n".join(f"Paragraph {n} of a long answer." for n in range(4_000)))
    text = run.export(format)
    assert "Paragraph 3999 of" in text
    assert "characters more" not in text
