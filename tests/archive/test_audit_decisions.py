"""What is in the audit log before a tool begins, and what a check says of calls without an end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from made_records import audit_lines
from stories import NOW, Story

from nbagent.archive.audit import AuditLog, AuditSink, verify_audit
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat import ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.errors import ErrorCode, ErrorInfo, StoreError
from nbagent.contracts.events import Event, RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.policy import Decision
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import register
from nbagent.runtime import Courier

RUN, PARENT = "0123456789abcdef", "fedcba9876543210"
SHA = "d" * 64
BINDS = "e" * 64
ASKED = {"path": "@project/a.md", "content": "the model's words"}
EDITED = {"path": "@project/b.md", "content": "the person's words"}
WRITE = ToolSpec(name="fs.write", traits=ToolTraits(host="fs", sha=SHA))
BY_PERSON = Decision("allowed", "person", waited_ms=1500.12345)
NOBODY_ASKED = Decision()
DENIED = Decision("denied", "policy", "the policy denies this call")
WROTE = {"path": "@project/a.md", "bytesWritten": 9, "sha256After": "2" * 64}


def call_of(key: str = "call_1") -> ToolCall:
    return ToolCall(id=key, name="fs.write", arguments=ASKED, arguments_raw=json.dumps(ASKED))


def context_of(run_id: str = RUN, turn_id: str = "C01") -> ToolContext:
    return ToolContext(run_id=run_id, session="main", turn_id=turn_id, runner=Courier())


def end_of(
    decision: Decision,
    key: str = "call_1",
    *,
    run_id: str = RUN,
    turn_id: str = "C01",
    error: ErrorCode | None = None,
    data: Any = WROTE,
) -> ToolCallFinished:
    failure = ToolResult.failure(ErrorInfo(error, "no")) if error else None
    run = ToolRun(
        tool_call_id=key,
        tool_name="fs.write",
        args=decision.arguments or ASKED,
        result=failure or ToolResult(ok=True, data=data),
        queued_at=NOW,
        duration_ms=1.5,
        waited_ms=decision.waited_ms,
        approval=decision.approval if decision.by else None,
        approved_by=decision.by or None,
        tool_sha=SHA,
    )
    return ToolCallFinished(run_id, turn_id, run, 0)


@pytest.fixture
def sink(tmp_path: Path) -> AuditSink:
    return AuditSink(tmp_path, hosts_of=lambda name: "fs")


def decide(
    sink: AuditSink,
    decision: Decision,
    key: str = "call_1",
    *,
    run_id: str = RUN,
    turn_id: str = "C01",
) -> None:
    sink.decided(call_of(key), WRITE, context_of(run_id, turn_id), decision, BINDS)


def kinds_in(home: Path) -> list[str]:
    return [line["kind"] for line in audit_lines(home)]


def test_who_allowed_a_call_is_written_before_its_tool_begins(
    tmp_path: Path, sink: AuditSink
) -> None:
    decide(sink, BY_PERSON)
    approval, start = audit_lines(tmp_path)
    chain = ("seq", "prev", "at", "pid", "sha")
    what = {
        "run": RUN,
        "turn": "C01",
        "call": "call_1",
        "tool": "fs.write",
        "host": "fs",
        "tool_sha": SHA,
        "args_sha": sha_of(ASKED),
    }
    said = {"by": "person", "ruling": "allowed", "edited": False, "waited_ms": 1500.123}
    assert {key: approval[key] for key in approval if key not in chain} == {
        "kind": "approval",
        **what,
        **said,
        "binds": BINDS,
    }
    assert {key: start[key] for key in start if key not in chain} == {"kind": "start", **what}


@pytest.mark.parametrize(
    ("decision", "error", "before", "after"),
    [
        (NOBODY_ASKED, None, ["start"], ["call", "write"]),
        (BY_PERSON, None, ["approval", "start"], ["call", "write"]),
        (DENIED, "E_DENIED", ["approval"], ["refusal", "call"]),
        (BY_PERSON, "E_SANDBOX_VIOLATION", ["approval", "start"], ["refusal", "call"]),
    ],
    ids=["nobody asked", "allowed", "denied", "allowed and refused by its host"],
)
def test_the_end_of_a_decided_call_adds_no_second_approval(
    tmp_path: Path,
    sink: AuditSink,
    decision: Decision,
    error: ErrorCode | None,
    before: list[str],
    after: list[str],
) -> None:
    decide(sink, decision)
    assert kinds_in(tmp_path) == before
    sink.handle(end_of(decision, error=error))
    assert kinds_in(tmp_path) == before + after
    assert len({line["args_sha"] for line in audit_lines(tmp_path) if "args_sha" in line}) == 1
    assert verify_audit(tmp_path).unfinished == ()


def test_an_edited_call_has_the_hashes_of_both_arguments(tmp_path: Path, sink: AuditSink) -> None:
    decision = Decision("edited", "callback", arguments=EDITED)
    decide(sink, decision)
    sink.handle(end_of(decision))
    approval, start, called, _ = audit_lines(tmp_path)
    assert (approval["edited"], approval["asked_args_sha"]) == (True, sha_of(ASKED))
    assert {line["args_sha"] for line in (approval, start, called)} == {sha_of(EDITED)}
    assert "asked_args_sha" not in start


@pytest.mark.parametrize("other", ["call", "turn", "run"])
def test_a_decision_speaks_of_its_very_call_only(
    tmp_path: Path, sink: AuditSink, other: str
) -> None:
    decide(sink, BY_PERSON)
    told: dict[str, Any] = {
        "call": {"key": "call_2"},
        "turn": {"turn_id": "C02"},
        "run": {"run_id": PARENT},
    }[other]
    sink.handle(end_of(BY_PERSON, **told))
    assert kinds_in(tmp_path) == ["approval", "start", "approval", "call", "write"]
    sink.handle(end_of(BY_PERSON))
    assert kinds_in(tmp_path)[5:] == ["call", "write"]
    # The next call with that id is decided about anew.
    sink.handle(end_of(BY_PERSON))
    assert kinds_in(tmp_path)[7:] == ["approval", "call", "write"]


def test_a_secret_in_a_name_is_masked_before_the_tool_begins(
    tmp_path: Path, sink: AuditSink
) -> None:
    register("sk-canary-4f9a77c1d2e8")
    decide(sink, BY_PERSON, "sk-canary-4f9a77c1d2e8")
    assert [line["call"] for line in audit_lines(tmp_path)] == ["[redacted]"] * 2


# Calls without an end


def test_calls_without_an_end_are_told_and_are_no_fault(tmp_path: Path, sink: AuditSink) -> None:
    for key in "abc":
        decide(sink, BY_PERSON, key)
    decide(sink, DENIED, "d")
    sink.handle(end_of(BY_PERSON, "b"))
    report = verify_audit(tmp_path)
    assert report
    assert report.unfinished == ((RUN, "a"), (RUN, "c"))
    assert repr(report).endswith("audit.jsonl; 2 calls began and did not end)")
    for key in "ac":
        sink.handle(end_of(BY_PERSON, key))
    assert verify_audit(tmp_path).unfinished == ()
    assert repr(verify_audit(tmp_path)).endswith("audit.jsonl)")


def test_the_same_id_in_two_turns_and_twice_in_one_is_counted_call_by_call(
    tmp_path: Path, sink: AuditSink
) -> None:
    for turn_id in "C01", "C02", "C02":
        decide(sink, BY_PERSON, turn_id=turn_id)
    sink.handle(end_of(BY_PERSON, turn_id="C02"))
    assert verify_audit(tmp_path).unfinished == ((RUN, "call_1"),) * 2
    sink.handle(end_of(BY_PERSON, turn_id="C02"))
    sink.handle(end_of(BY_PERSON, turn_id="C01"))
    assert verify_audit(tmp_path).unfinished == ()
    assert kinds_in(tmp_path).count("approval") == 3


def test_words_of_a_model_begin_and_end_no_call(tmp_path: Path, sink: AuditSink) -> None:
    decide(sink, NOBODY_ASKED)
    for kind in "start", "call":
        sink.handle(end_of(NOBODY_ASKED, f'","kind":"{kind}","run":"{RUN}","call":"call_1'))
    assert verify_audit(tmp_path).unfinished == ((RUN, "call_1"),)


# What cannot be written


def block(home: Path) -> None:
    """Make the log unwritable, as a removed disk would."""
    for name in ("audit.jsonl", "audit.head"):
        (home / name).unlink()
        (home / name).mkdir()


@pytest.mark.parametrize(
    "event", [RunFinished(Story().run), end_of(BY_PERSON)], ids=["the run ends", "a call ends"]
)
def test_a_decision_that_cannot_be_written_is_told_at_once_and_raised_later(
    tmp_path: Path, event: Event
) -> None:
    told: list[str] = []
    sink = AuditSink(tmp_path, hosts_of=lambda name: "fs", on_warning=told.append)
    sink.handle(RunStarted(Story().run))
    block(tmp_path)
    decide(sink, BY_PERSON)
    assert len(told) == 1
    assert told[0].startswith("THIS RUN IS NO LONGER AUDITED: the audit log")
    decide(sink, BY_PERSON, "call_2")
    with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED") as caught:
        sink.handle(event)
    assert caught.value.details["reason"] == "audit"
    sink.close()
    decide(sink, BY_PERSON, "call_3")  # after it was detached
    assert len(told) == 1


def test_nothing_that_goes_wrong_reaches_who_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(text: str) -> None:
        raise RuntimeError(text)

    sink = AuditSink(tmp_path, hosts_of=lambda name: "fs", on_warning=deaf)
    odd: dict[str, Any] = {"value": object()}
    decide(sink, Decision("edited", "callback", arguments=odd))
    with pytest.raises(StoreError, match="TypeError in nbagent itself; please report it"):
        sink.handle(RunFinished(Story().run))
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_log_that_was_cut_is_told_by_the_first_decision(tmp_path: Path, sink: AuditSink) -> None:
    decide(sink, BY_PERSON)
    (tmp_path / "audit.jsonl").write_bytes(b"")
    told: list[str] = []
    other = AuditSink(tmp_path, hosts_of=lambda name: "fs", on_warning=told.append)
    decide(other, BY_PERSON)
    other.handle(end_of(BY_PERSON))
    assert len(told) == 1
    assert "changed or cut" in told[0]


def test_an_approved_call_costs_less_than_a_third_of_a_millisecond(
    tmp_path: Path, sink: AuditSink
) -> None:
    call, context, end = call_of(), context_of(), end_of(BY_PERSON)
    log = AuditLog.open(tmp_path)
    log.append(*[{"kind": "call"}] * 20_000)  # in a long log as in a short one
    log.close()
    times: list[int] = []
    for _ in range(300):
        began = time.perf_counter_ns()
        sink.decided(call, WRITE, context, BY_PERSON, BINDS)
        sink.handle(end)
        times.append(time.perf_counter_ns() - began)
    assert kinds_in(tmp_path)[-4:] == ["approval", "start", "call", "write"]
    # The faster ones: the others waited for whoever else is at work on this machine.
    assert sorted(times)[len(times) // 5] / 1000 < 300
