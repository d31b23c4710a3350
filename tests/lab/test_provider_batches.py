"""Batches at a provider's batch API: sent once, collected by id, half the price, faults by case."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from lab.stage_of_batches import until
from pydantic import BaseModel
from servers.batch_server import BatchServer, SentBatch

import nbagent
from nbagent import UsageError
from nbagent.contracts.errors import ModelError
from nbagent.contracts.ports import Cost

TABLE: Any = pd.DataFrame({"n": range(5)})
MODELS = {
    "openai": "openai-compatible:little",
    "anthropic": "anthropic:little",
    "google": "google:little",
}
VENDORS = pytest.mark.parametrize("vendor", MODELS)
_OTHERS = [pytest.param(vendor, marks=pytest.mark.proof) for vendor in ("anthropic", "google")]
SHORT = pytest.mark.parametrize("vendor", ["openai", *_OTHERS])
"""For faults that only the reader of one vendor's results tells apart: the others are proofs."""
PROCESS = """
import os, sys
import pandas as pd
import nbagent
import nbagent.lab.provider_batch as polling
from nbagent.store.writer import Store
polling.FIRST_POLL_S = 0.01
commit = Store.commit
async def commit_and_die(self, event, *rest):
    await commit(self, event, *rest)
    if type(event).__name__ in sys.argv[3:]:
        os._exit(9)
Store.commit = commit_and_die
agent = nbagent.Agent(model=sys.argv[1], base_url=sys.argv[2], tools="none")
table = pd.DataFrame({"n": range(5)})
how = {"executor": "provider-batch", "name": "b"}
print(agent.map(table, "{{ n }}", **how).wait().progress.ok)
"""


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbagent.lab.provider_batch.FIRST_POLL_S", 0.004)
    monkeypatch.setattr("nbagent.lab.provider_batch.MAX_POLL_S", 0.05)
    monkeypatch.setattr("nbagent.providers.rate_limits._FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("nbagent.providers.batches.anthropic_batches.CANDIDATE_POLL_S", 0.004)


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


def send(server: BatchServer, vendor: str = "openai", table: Any = TABLE, **how: Any) -> Any:
    options: Any = {"model": MODELS.get(vendor, vendor), "base_url": server.url, "tools": "none"}
    options |= {"quiet": True, **how.pop("agent", {})}
    agent = nbagent.Agent(**options)
    named: Any = {"executor": "provider-batch", "name": "b", **how}
    return agent.map(table, "{{ n }}", **named)


def texts(batch: Any) -> list[Any]:
    return [None if text is pd.NA else text or None for text in batch.frame()["text"]]


def sizes(server: BatchServer) -> list[int]:
    return [len(sent.requests) for sent in server.batches.values()]


ALL = [f"a:{n}" for n in range(5)]


@pytest.mark.parametrize("vendor", [*MODELS, "openai-responses:little"])
def test_cases_are_sent_once_and_their_answers_are_runs_as_all_others(
    vendor: str, server: BatchServer
) -> None:
    if "responses" in vendor:
        server.answer_of = lambda body: f"a:{body['input'][-1]['content'][0]['text']}"
        server.tamper = lambda lines: [_as_responses(line) for line in lines]
    scorer = nbagent.scorer(name="even")(lambda row, run: row.n % 2 == 0)
    batch = send(server, vendor, score=scorer).wait()
    assert (batch.progress.state, texts(batch), sizes(server)) == ("Finished", ALL, [5])
    assert batch.frame()["score_even"].tolist() == [True, False, True, False, True]
    assert batch.frame()["total_tokens"].tolist() == [15] * 5
    run = batch.open_run(3)
    assert (run.messages[0].text, run.stop_reason, len(run.turns)) == ("3", "answered", 1)
    assert "at 50% of the price" in run.turns[0].notices[0]
    assert nbagent.runs(batch="b")["ok"].tolist() == [True] * 5
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5], "the same call asks nothing again"


def _as_responses(line: bytes) -> bytes:
    body = json.loads(line)
    message = body["response"]["body"]["choices"][0]["message"]
    part = {"type": "output_text", "text": message["content"], "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    whole = {"id": "r", "object": "response", "status": "completed", "output": [item]}
    body["response"]["body"] = {**whole, "model": "little", "usage": usage}
    return json.dumps(body).encode()


ENDPOINTS = {
    "openai:little": "/v1/chat/completions",
    "openai-responses:little": "/v1/responses",
    "groq:little": "/v1/chat/completions",
    "azure:little": "/chat/completions",
}


@pytest.mark.parametrize("model", ENDPOINTS)
def test_each_server_gets_the_endpoint_that_its_batches_know(
    model: str, server: BatchServer
) -> None:
    server.outcome = lambda n: "missing"
    send(server, model, TABLE.head(1)).wait()
    (sent,) = server.batches.values()
    assert sent.facts["endpoint"] == ENDPOINTS[model]
    line = json.loads(server.files[sent.facts["input_file_id"]])
    assert (line["url"], line["method"]) == (ENDPOINTS[model], "POST")
    assert (sent.facts["completion_window"], "stream" in line["body"]) == ("24h", False)


def test_a_case_costs_half_of_a_single_request_also_in_the_estimate(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dollar = Cost(input_usd=0.5, output_usd=0.5)
    monkeypatch.setattr("nbagent.session.models.cost_of", lambda *_, **__: dollar)
    planned = send(server, start=False)
    assert "Together about $0.5" in str(planned.dry_run())
    batch = planned.start().wait()
    assert batch.frame()["cost_usd"].tolist() == [0.5] * 5
    assert batch.progress.cost_usd == 2.5


def _broken(lines: list[Any]) -> list[Any]:
    return [lines[0], b'{"custom_id":"x', b"[]", b'"\xff"', *lines[1:]]


def _foreign(results: list[Any]) -> list[Any]:
    if isinstance(results[0], bytes):
        line = json.loads(results[0])
        return [json.dumps({**line, "custom_id": "not-ours"}).encode(), *results]
    return [{**results[0], "metadata": {"key": "not-ours"}}, *results]


def _strange(lines: list[Any]) -> list[Any]:
    """The texts of two answers are no UTF-8, and half a character; one line is nested deeply."""
    deep = b"[" * 200_000 + b"]" * 200_000
    first, second, third, *rest = lines
    return [
        first.replace(b"a:0", b"a:\xff"),
        second.replace(b"a:1", b"a:\\ud83d"),
        third.replace(b'"a:2"', deep),
        *rest,
    ]


def _empty_bodies(results: list[Any]) -> list[Any]:
    """The second result is none."""
    if isinstance(results[0], bytes):
        line = json.loads(results[1])
        bare = {"custom_id": line["custom_id"], "response": None, "result": {"type": "new word"}}
        return [results[0], json.dumps(bare).encode(), *results[2:]]
    return [results[0], {"metadata": results[1]["metadata"]}, *results[2:]]


TAMPERED: dict[str, tuple[Callable[[list[Any]], list[Any]], int, str]] = {
    "in another order": (lambda results: results[::-1], 5, ""),
    "twice": (lambda results: [*results, *results], 5, "5 repeated"),
    "with foreign ids": (_foreign, 5, "1 of no request"),
    "with missing lines": (lambda results: results[:3], 3, "2 missing"),
    "with broken lines": (_broken, 5, "3 not readable"),
    "with a line that says nothing": (_empty_bodies, 4, ""),
    "none at all": (lambda results: [], 0, "5 missing"),
}


@SHORT
@pytest.mark.parametrize("how", TAMPERED)
def test_odd_results_cost_at_most_their_own_cases(
    how: str, vendor: str, server: BatchServer
) -> None:
    if how == "with broken lines" and vendor == "google":
        how = "twice"  # its results are one JSON document, without lines
    server.tamper, n_ok, note = TAMPERED[how]
    batch = send(server, vendor).wait()
    answered = [text for text in texts(batch) if text is not None]
    assert answered == [text for text in ALL if text in answered], "each at its own row"
    assert (len(answered), batch.progress.failed) == (n_ok, 5 - n_ok)
    assert note in " ".join(batch.progress.notes)
    server.tamper = lambda results: results
    assert texts(batch.resume()) == ALL
    assert sizes(server) == [5, 5 - n_ok][: 1 + (n_ok < 5)], "only these are sent again"


OUTCOMES = {
    "error": "LLM_HTTP_ERROR",
    "expired": "LLM_TIMEOUT",
    "cancelled": "ENGINE_ABORTED",
}


@pytest.mark.parametrize(
    ("vendor", "outcome"),
    [
        pytest.param(v, o, marks=[] if o == "error" or v == "openai" else pytest.mark.proof)
        for v in MODELS
        for o in OUTCOMES
    ],
)
def test_a_failed_case_says_why_and_resume_sends_only_it_again(
    outcome: str, vendor: str, server: BatchServer
) -> None:
    server.outcome = lambda n: outcome if n in (1, 4) else "ok"
    batch = send(server, vendor).wait()
    assert texts(batch) == ["a:0", None, "a:2", "a:3", None]
    why = batch.frame()["error"][1]
    if outcome == "error":
        assert "bad temperature" in why
    if vendor != "google":
        assert why.startswith(OUTCOMES[outcome])
    server.outcome = lambda n: "ok"
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5, 2]


@SHORT
@pytest.mark.parametrize("state", ["expired", "cancelled"])
def test_of_a_batch_that_ended_early_the_answers_are_taken(
    state: str, vendor: str, server: BatchServer
) -> None:
    server.end_state = state
    server.outcome = lambda n: "ok" if n < 2 else "missing"
    batch = send(server, vendor).wait()
    assert texts(batch) == ["a:0", "a:1", None, None, None]
    assert "resume() asks it again" in batch.frame()["error"][4]
    server.end_state, server.outcome = "completed", lambda n: "ok"
    assert texts(batch.resume()) == ALL


@pytest.mark.parametrize("vendor", ["openai", "google"])
def test_a_batch_that_the_provider_refuses_whole_leaves_the_cases_unasked(
    vendor: str, server: BatchServer
) -> None:
    server.end_state = "failed"
    batch = send(server, vendor)
    with pytest.raises(ModelError, match=r"refused the batch .*: (not parseable|bad input)"):
        batch.wait()
    assert (batch.progress.state, len(nbagent.runs(batch="b"))) == ("Stopped", 0)
    server.end_state = "completed"
    assert texts(send(server, vendor).wait()) == ALL


@SHORT
def test_a_refused_creation_is_one_line_and_the_next_call_creates_it(
    vendor: str, server: BatchServer
) -> None:
    refusals = {400: "no such model", 404: "has no batch API at this address", 401: "key"}
    for status, words in refusals.items():
        server.refuse_creations = [(status, {"error": {"message": "no such model", "type": "x"}})]
        with pytest.raises(ModelError, match=words):
            send(server, vendor).wait()
    server.refuse_creations = [(529, {"error": {"message": "busy", "type": "overloaded_error"}})]
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5]


@VENDORS
def test_a_creation_whose_reply_is_lost_is_found_instead_of_repeated(
    vendor: str, server: BatchServer
) -> None:
    server.lose_creations = 1
    other = SentBatch("other", vendor, [("foreign-0", {"messages": [{"content": "x"}]})] * 5, {})
    other.facts = {"metadata": {"nbagent": "x"}, "displayName": "x"}
    server.batches["other"] = other
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5, 5]


def test_a_provider_that_forgot_the_batch_lets_it_be_sent_again(server: BatchServer) -> None:
    server.hold = True
    batch = send(server)
    until(lambda: server.batches and "GET" in server.visits[-1].line)
    server.lost_batches = set(server.batches)
    batch.wait()
    assert batch.progress.failed == 5
    server.lost_batches, server.hold = set(), False
    assert texts(batch.resume()) == ALL
    assert sizes(server) == [5, 5]


@SHORT
def test_a_provider_that_says_no_state_is_not_asked_for_ever(
    vendor: str, server: BatchServer
) -> None:
    server.hold = server.hides_state = True
    with pytest.raises(ModelError, match="does not say the state of the batch"):
        send(server, vendor).wait()
    server.hold = server.hides_state = False
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5]


@pytest.mark.parametrize("vendor", ["openai", _OTHERS[0]])
def test_a_download_that_breaks_is_repeated(vendor: str, server: BatchServer) -> None:
    server.break_results = 1
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5]


def test_gemini_answers_without_keys_are_read_in_the_order_of_their_requests(
    server: BatchServer,
) -> None:
    server.keys_come_back = False
    assert texts(send(server, "google").wait()) == ALL
    server.tamper = lambda results: results[:3]
    batch = send(server, "google", name="c").wait()
    assert texts(batch) == [None] * 5, "which answer is whose cannot be known"


def test_of_an_error_and_an_answer_to_one_request_the_answer_counts(server: BatchServer) -> None:
    def with_error_first(lines: list[bytes]) -> list[bytes]:
        custom_id = json.loads(lines[0])["custom_id"]
        error = {"custom_id": custom_id, "result": {"type": "expired"}}
        return [json.dumps(error).encode(), *lines]

    server.tamper = with_error_first
    assert texts(send(server, "anthropic").wait()) == ALL


def test_an_answer_of_broken_text_is_kept_and_a_too_deep_one_costs_its_case(
    server: BatchServer,
) -> None:
    server.tamper = _strange
    batch = send(server).wait()
    assert texts(batch) == ["a:\ufffd", "a:\ufffd", None, "a:3", "a:4"]


# Leaving and coming back


@pytest.mark.parametrize("pause", [False, True], ids=["stop", "pause"])
@SHORT
def test_the_wait_is_left_at_once_and_the_same_call_collects_the_answers(
    vendor: str, pause: bool, server: BatchServer
) -> None:
    server.hold = True
    batch = send(server, vendor)
    until(lambda: any("in progress" in note or "running" in note for note in batch.progress.notes))
    batch.stop(after_rows=pause)
    batch.wait()
    assert batch.progress.state == ("Paused" if pause else "Stopped")
    assert "the same call collects its answers" in batch.progress.notes[0]
    assert len(nbagent.runs(batch="b")) == 0
    server.hold = False
    assert texts(send(server, vendor).wait()) == ALL
    assert sizes(server) == [5]


@SHORT
def test_a_batch_whose_sending_was_left_is_sent_once(vendor: str, server: BatchServer) -> None:
    server.hold_replies = True
    batch = send(server, vendor)
    until(lambda: server.visits)
    batch.stop()
    assert batch.wait().progress.state == "Stopped"
    again = send(server, vendor)
    server.hold_replies = False
    assert (texts(again.wait()), sizes(server)) == (ALL, [5])


@pytest.mark.parametrize("vendor", ["openai", "google"])
def test_the_bar_shows_how_many_requests_are_done_at_the_provider(
    vendor: str, server: BatchServer
) -> None:
    server.hold, server.n_done = True, 3
    batch = send(server, vendor)
    until(lambda: "3 done at the provider · 2 left" in str(batch))
    assert "3 of 5 requests" in batch.progress.notes[0]
    batch.stop()
    assert "5 left" in str(batch.wait())
    server.hold = False
    assert "provider" not in str(send(server, vendor).wait())


def test_a_batch_that_is_opened_by_name_says_where_its_answers_are_and_collects_them(
    server: BatchServer,
) -> None:
    server.hold = True
    batch = send(server)
    until(lambda: any("in progress" in note for note in batch.progress.notes))
    batch.stop()
    batch.wait()
    note = "5 requests are in batch_2 of openai-compatible:little"
    opened: Any = nbagent.batch("b")
    assert note in opened.progress.notes[0]
    assert note in send(server, executor=None, start=False).progress.notes[0]
    server.hold = False
    agent = nbagent.Agent(model=MODELS["openai"], base_url=server.url, tools="none", quiet=True)
    assert texts(nbagent.batch("b", data=TABLE, agent=agent).resume()) == ALL
    assert sizes(server) == [5]
    assert not opened.progress.notes


@SHORT
def test_cancel_takes_the_answers_that_exist_and_resume_asks_the_rest(
    vendor: str, server: BatchServer
) -> None:
    server.hold, server.outcome = True, lambda n: "ok" if n < 2 else "cancelled"
    batch = send(server, vendor)
    until(lambda: any("in progress" in note or "running" in note for note in batch.progress.notes))
    assert batch.cancel() == 1
    batch.wait()
    assert texts(batch) == ["a:0", "a:1", None, None, None]
    assert batch.cancel() == 0
    server.outcome = lambda n: "ok"
    assert texts(batch.resume()) == ALL
    assert sizes(server) == [5, 3]


def test_only_a_provider_batch_can_be_cancelled() -> None:
    batch = nbagent.Agent(model="offline:demo", tools="none", quiet=True).map(TABLE, "{{ n }}")
    with pytest.raises(UsageError, match=r"batch\.stop\(\) ends it"):
        batch.wait().cancel()


def test_of_two_models_the_first_answers_are_taken_while_the_other_works(
    server: BatchServer,
) -> None:
    server.hold = True
    vary = {"model": {"a": "openai-compatible:a", "b": "openai-compatible:b"}}
    batch = send(server, vary=vary)
    until(lambda: len(server.batches) == 2)
    first, second = server.batches.values()
    server.finish(second)
    until(lambda: batch.progress.ok == 5)
    server.finish(first)
    batch.wait()
    assert (batch.progress.ok, sizes(server)) == (10, [5, 5])
    assert {body["model"] for _, body in first.requests} == {"a"}


def test_more_requests_than_a_batch_takes_go_in_several(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "nbagent.providers.batches.openai_batches.OpenAIBatches"
    monkeypatch.setattr(f"{name}.max_requests", 2)
    assert texts(send(server).wait()) == ALL
    assert sizes(server) == [2, 2, 1]
    monkeypatch.setattr(f"{name}.max_bytes", 500)
    table = pd.DataFrame({"n": ["short", "x" * 600]})
    batch = send(server, table=table, name="c")
    with pytest.raises(UsageError, match=r"row '1' has .* MB; .* so nothing was sent"):
        batch.wait()
    assert sizes(server) == [2, 2, 1]


class Size(BaseModel):
    cm: int


def test_an_answer_that_needs_a_second_request_gets_it_in_the_next_batch(
    server: BatchServer,
) -> None:
    server.answer_of = lambda body: '{"cm": 1}' if len(body["messages"]) > 2 else "large"
    agent: Any = {"output": Size, "model": "openai:gpt-5.4"}
    batch = send(server, agent=agent, table=TABLE.head(2)).wait()
    assert batch.progress.failed == 2
    assert "batch.resume() sends it in a new provider batch" in batch.frame()["error"][0]
    batch.resume()
    assert (batch.progress.ok, sizes(server)) == (2, [2, 2])
    assert batch.frame()["output_cm"].tolist() == [1, 1]


def test_a_parameter_that_the_server_refuses_is_left_out_in_the_next_batch(
    server: BatchServer,
) -> None:
    def refuse(lines: list[Any]) -> list[Any]:
        if "temperature" not in [*server.batches.values()][-1].requests[0][1]:
            return lines
        error = {"message": "Unsupported parameter: 'temperature' is not supported"}
        error |= {"type": "invalid_request_error", "code": "unsupported_parameter"}
        error |= {"param": "temperature"}
        body = {"response": {"status_code": 400, "body": {"error": error}}}
        return [json.dumps({**json.loads(line), **body}).encode() for line in lines]

    server.tamper = refuse
    batch = send(server, agent={"temperature": 0.5, "model": "openai-compatible:fussy"}).wait()
    assert "The next batch does so" in batch.frame()["error"][0]
    assert texts(batch.resume()) == ALL


def test_a_row_that_cannot_be_asked_fails_alone(server: BatchServer) -> None:
    table = pd.DataFrame({"n": ["", 1, "", 3]})
    batch = send(server, table=table).wait()
    assert texts(batch) == [None, "a:1", None, "a:3"]
    assert "the prompt is empty" in batch.frame()["error"][2]
    assert (batch.progress.state, batch.progress.failed, sizes(server)) == ("Finished", 2, [2])
    batch.resume()
    assert (batch.progress.failed, sizes(server)) == (2, [2]), "nothing is sent a second time"
    here = nbagent.Agent(model="offline:demo", tools="none", quiet=True)
    assert here.map(table, "{{ n }}").wait().progress.failed == 2, "as without a provider batch"


# Refused before anything is sent


@nbagent.tool
def look(where: str) -> str:
    """Look somewhere."""
    return where


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tools": ({"agent": {"tools": [look]}}, r"tools do not go .* \(look\).*tools='none'"),
    "workflow": ({"agent": {"workflow": "x"}}, "workflow does not go with a provider batch"),
    "varied workflow": ({"vary": {"workflow": ["x"]}}, "workflow does not go"),
    "varied tools": ({"vary": {"tools": {"a": [look], "b": "none"}}}, "variant a: tools do not go"),
    "stream": ({"agent": {"stream": True}}, "stream does not go"),
    "approval": ({"agent": {"on_approval": lambda call: True}}, "on_approval does not go"),
    "cassette": ({"agent": {"cassette": "a.jsonl"}}, "cassette does not go"),
    "cache": ({"agent": {"cache": "auto"}}, "cache does not go"),
    "budget": ({"max_cost_usd": 1}, "max_cost_usd cannot stop a provider batch"),
    "failures": ({"max_failed": 2}, "max_failed cannot stop a provider batch"),
    "no batch API": ({"vendor": "ollama:x"}, "no batch API of ollama .* openai, .*anthropic"),
    "no such executor": ({"executor": "provider-bach"}, "'provider-batch' for the batch API"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_is_refused_before_anything_is_sent(name: str, server: BatchServer) -> None:
    how, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        send(server, **how)
    assert not server.visits


def test_an_output_type_that_needs_a_tool_is_refused(server: BatchServer) -> None:
    with pytest.raises(UsageError, match="by a tool"):
        send(server, "anthropic", agent={"output": Size, "model": "anthropic:claude-3-opus"})
    assert not server.visits


def test_an_offline_model_answers_here_without_a_provider() -> None:
    agent = nbagent.Agent(model="offline:demo", tools="none", quiet=True)
    batch = agent.map(TABLE, "Say {{ n }}", executor="provider-batch").wait()
    assert batch.progress.ok == 5


# A killed process

KILLS = ["uploading", "creating", "waiting", "RunStarted", "TurnFinished", "RunFinished"]
_SHORT = {("openai", "creating")}


@pytest.mark.parametrize(
    ("vendor", "moment"),
    [
        pytest.param(v, m, marks=[] if (v, m) in _SHORT else pytest.mark.proof)
        for v in MODELS
        for m in KILLS
        if v == "openai" or m != "uploading"
    ],
)
def test_a_killed_process_finds_its_provider_batch_again(
    vendor: str, moment: str, server: BatchServer
) -> None:
    server.hold = moment == "waiting"
    command = [sys.executable, "-c", PROCESS, MODELS[vendor], server.url]
    events = [moment] if moment[0].isupper() else []
    with subprocess.Popen([*command, *events], stdout=subprocess.PIPE) as process:
        server.on_create = process.kill if moment == "creating" else server.on_create
        server.on_upload = process.kill if moment == "uploading" else server.on_upload
        if moment == "waiting":
            until(lambda: any(sent.polls > 1 for sent in server.batches.values()), within_s=60)
            process.kill()
        assert process.wait(60) in (9, -9, 1)
    server.hold = False
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    assert (done.stdout.strip(), sizes(server)) == ("5", [5]), "nothing is sent twice"
    ok: Any = nbagent.runs(batch="b", ok=True)
    assert (sorted(ok["text"]), ok["row_key"].nunique()) == (ALL, 5)
    turns: Any = nbagent.turns()
    assert (turns["source"] == "live").sum() == 5, "no answer is paid twice"
