"""What the calls of a run become in the audit log: which lines, which hashes, and no text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from stories import NOW, Story

from nbagent.archive.audit import verify_audit
from nbagent.archive.audit_records import AuditSink
from nbagent.contracts.canonical import canonical_json, sha256_hex, sha_of
from nbagent.contracts.chat import ImagePart, TextPart, ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.errors import ErrorCode, ErrorInfo, StoreError
from nbagent.contracts.events import RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import Decision, PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import register
from nbagent.runtime import Courier

CANARY = "sk-canary-4f9a77c1d2e8"
RUN, SHA, BINDS = "0123456789abcdef", "d" * 64, "e" * 64
ASKED = {"path": "@project/a.md", "content": CANARY}
EDITED = {"path": "@project/b.md", "content": "the person's words"}
HOSTS = {"fs.write": "fs", "fs.read": "fs", "run_python_script": "skills", "git__log": "mcp:git"}
WROTE = {"path": "@project/a.md", "bytesWritten": 9, "sha256After": "2" * 64}
CHAIN = ("seq", "prev", "at", "pid", "sha")
BEGIN, END = RunStarted(Story().run), RunFinished(Story().run)


def decision_of(name: str = "fs.write", **fields: Any) -> Decision:
    async def run(context: ToolContext) -> ToolOutcome:
        raise NotImplementedError

    spec = ToolSpec(name=name, traits=ToolTraits(host=HOSTS.get(name, ""), sha=SHA))
    prepared = PreparedCall(spec=spec, arguments=ASKED, preview=CallPreview(), run=run)
    return Decision(prepared=prepared, **fields)


BY_PERSON = decision_of(by="person", waited_ms=1500.12345)
NOBODY_ASKED = decision_of()
DENIED = decision_of(approval="denied", by="policy", reason="the policy denies this call")
CHANGED = decision_of(approval="edited", by="callback", arguments=EDITED)


def lines_of(home: Path) -> list[dict[str, Any]]:
    text = (home / "audit.jsonl").read_text("ascii")
    assert CANARY not in text
    assert verify_audit(home)
    return [json.loads(line) for line in text.splitlines()]


def kinds_in(home: Path) -> list[str]:
    return [line["kind"] for line in lines_of(home)]


def sink_in(home: Path, **more: Any) -> AuditSink:
    return AuditSink(home, **more)


def decide(sink: AuditSink, decision: Decision, key: str = "call_1") -> None:
    spec = decision.prepared.spec
    call = ToolCall(id=key, name=spec.name, arguments=ASKED, arguments_raw=json.dumps(ASKED))
    context = ToolContext(run_id=RUN, session="main", turn_id="C01", runner=Courier())
    sink.decided(call, spec, context, decision, BINDS)


def end_of(
    decision: Decision = NOBODY_ASKED,
    data: Any = WROTE,
    *,
    error: ErrorCode | None = None,
    **more: Any,
) -> ToolCallFinished:
    failure = ToolResult.failure(ErrorInfo(error, f"no {CANARY}")) if error else None
    fields: dict[str, Any] = {
        "tool_call_id": "call_1",
        "tool_name": "fs.write",
        "args": decision.arguments or ASKED,
        "result": failure or ToolResult(ok=True, data=data),
        "duration_ms": 12.3456789,
        "approval": decision.approval if decision.by else None,
        "approved_by": decision.by or None,
    }
    fields |= more
    run = ToolRun(**fields, host=HOSTS.get(fields["tool_name"], ""), tool_sha=SHA, queued_at=NOW)
    return ToolCallFinished(RUN, "C01", run, 0)


def test_an_approval_its_start_and_its_end_are_lines_of_hashes_without_text(tmp_path: Path) -> None:
    sink, end = sink_in(tmp_path), end_of(CHANGED)
    decide(sink, CHANGED)
    before = {
        "run": RUN,
        "turn": "C01",
        "call": "call_1",
        "tool": "fs.write",
        "host": "fs",
        "tool_sha": SHA,
        "args_sha": sha_of(EDITED),
    }
    said = {"by": "callback", "ruling": "allowed", "edited": True, "waited_ms": 0.0}
    asked = {"asked_args_sha": sha_of(ASKED), "binds": BINDS}
    expected: list[dict[str, Any]] = [
        {"kind": "approval", **before, **asked, **said},
        {"kind": "start", **before},
    ]
    found = [{key: line[key] for key in line if key not in CHAIN} for line in lines_of(tmp_path)]
    assert found == expected  # before the tool begins
    sink.handle(end)
    assert end.tool_run.result is not None
    result_sha = sha256_hex(canonical_json(json.loads(end.tool_run.result.to_json())))
    called, wrote = lines_of(tmp_path)[2:]
    done = {"kind": "call", **before, "result_sha": result_sha, "ok": True, "duration_ms": 12.346}
    assert {key: called[key] for key in called if key not in CHAIN} == done
    assert (wrote["kind"], wrote["path"], wrote["bytes"]) == ("write", "@project/a.md", 9)
    assert (wrote["sha256_before"], wrote["sha256_after"]) == (None, "2" * 64)


# What is decided (None: nothing is), how the call ends, and the lines of both.
CASES: dict[str, tuple[Decision | None, ToolCallFinished, str]] = {
    "nobody asked": (NOBODY_ASKED, end_of(), "start call write"),
    "allowed": (BY_PERSON, end_of(BY_PERSON), "approval start call write"),
    "denied": (DENIED, end_of(DENIED, error="E_DENIED"), "approval refusal call"),
    "allowed, refused by its host": (
        BY_PERSON,
        end_of(BY_PERSON, error="E_SANDBOX_VIOLATION"),
        "approval start refusal call",
    ),
    "read limit": (None, end_of(error="E_READ_LIMIT"), "refusal call"),
    "write limit": (None, end_of(error="E_WRITE_LIMIT"), "refusal call"),
    "hidden": (None, end_of(error="E_DENIED"), "refusal call"),
    "not there": (None, end_of(error="ENOENT"), "call"),
    "too long": (None, end_of(error="E_TIMEOUT"), "call"),
    "interrupted": (None, end_of(error="E_INTERRUPTED"), "call"),
    "changed meanwhile": (None, end_of(error="E_PRECONDITION_FAILED"), "call"),
    "no result": (None, end_of(result=None), "call"),
    "only read": (None, end_of(data={"path": "@project/a", "sha256": "1"}), "call"),
    "another host": (None, end_of(tool_name="git__log"), "call"),
    "cut to its text": (None, end_of(data="a result"), "call"),
    "no path": (None, end_of(data={"path": 3, "sha256After": "1"}), "call"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_a_call_leaves_its_lines(tmp_path: Path, name: str) -> None:
    decision, end, kinds = CASES[name]
    sink = sink_in(tmp_path)
    if decision is not None:
        decide(sink, decision)
    sink.handle(end)
    lines = lines_of(tmp_path)
    assert [line["kind"] for line in lines] == kinds.split()
    rulings = {line["ruling"] for line in lines if line["kind"] == "approval"}
    assert rulings <= {"denied" if "refusal" in kinds and "start" not in kinds else "allowed"}
    assert len({line["args_sha"] for line in lines if "args_sha" in line}) == 1
    result = end.tool_run.result or ToolResult.failure(ErrorInfo("E_INTERNAL", ""))
    codes = {
        line["code"] for line in lines if line["kind"] in ("refusal", "call") if "code" in line
    }
    assert codes == ({result.error.code} if result.error else set())
    assert verify_audit(tmp_path).unfinished == ()


def test_names_and_paths_are_masked_and_cut(tmp_path: Path) -> None:
    register(CANARY)
    sink, made_up = sink_in(tmp_path), f"{CANARY}\u2028{'x' * 9_000}"
    decide(sink, decision_of(made_up, by="person"), CANARY)
    sink.handle(end_of(error="E_UNKNOWN_TOOL", tool_name=made_up, tool_call_id=CANARY))
    sink.handle(end_of(data={"path": f"@project/{CANARY}.md", "sha256After": "2" * 64}))
    *made, _, wrote = lines_of(tmp_path)
    for line in made:
        assert line["tool"].startswith("[redacted]\u2028xxx")
        assert (len(line["tool"]), line["call"], line["host"]) == (200, "[redacted]", "")
    assert wrote["path"] == "@project/[redacted].md"


def test_a_script_says_how_it_was_kept_apart_and_attachments_have_hashes(tmp_path: Path) -> None:
    sink, image = sink_in(tmp_path), ImagePart(data="aGVsbG8=")
    result = ToolResult(ok=True, data=None, attachments=(image, TextPart(text=CANARY)))
    apart = {"isolation": "landlock", "stdout": CANARY}
    sink.handle(end_of(data=apart, tool_name="run_python_script"))
    sink.handle(end_of(data=apart, tool_name="git__log"))
    sink.handle(end_of(result=result, tool_name="fs.read"))
    script, other, read = lines_of(tmp_path)
    assert (script["isolation"], "isolation" in other) == ("landlock", False)
    assert read["attachments"][0] == sha256_hex(canonical_json(image.model_dump()))
    assert len(read["attachments"]) == 2


# What cannot be written


def test_a_log_that_cannot_be_written_is_an_error_before_any_tool_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sink = sink_in(tmp_path / "file")
    for event in BEGIN, end_of(), END:  # until it is detached
        with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED: the audit log"):
            sink.handle(event)


@pytest.mark.parametrize("event", [END, end_of(BY_PERSON)], ids=["the run ends", "a call ends"])
def test_a_decision_that_cannot_be_written_is_a_warning_at_once_and_raised_later(
    tmp_path: Path, event: RunFinished | ToolCallFinished
) -> None:
    warnings: list[str] = []
    sink = sink_in(tmp_path, on_warning=warnings.append)
    sink.handle(BEGIN)
    for name in ("audit.jsonl", "audit.head"):  # as a removed disk would
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
    for key in "ab":
        decide(sink, BY_PERSON, key)
    with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED") as caught:
        sink.handle(event)
    assert caught.value.details["reason"] == "audit"
    decide(sink, BY_PERSON, "c")  # after it was detached
    assert len(warnings) == 1
    assert warnings[0].startswith("THIS RUN IS NO LONGER AUDITED: the audit log")


def test_nothing_that_goes_wrong_reaches_who_decides(tmp_path: Path) -> None:
    def broken(text: str) -> None:
        raise RuntimeError(text)

    sink = sink_in(tmp_path, on_warning=broken)
    odd: dict[str, Any] = {"value": object()}
    decide(sink, decision_of(approval="edited", by="callback", arguments=odd))
    with pytest.raises(StoreError, match="TypeError in nbagent itself; please report it"):
        sink.handle(END)
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_log_that_was_cut_is_a_warning_with_the_first_decision(tmp_path: Path) -> None:
    decide(sink_in(tmp_path), BY_PERSON)
    (tmp_path / "audit.jsonl").write_bytes(b"")
    warnings: list[str] = []
    other = sink_in(tmp_path, on_warning=warnings.append)
    decide(other, BY_PERSON)
    other.handle(end_of(BY_PERSON))
    assert len(warnings) == 1
    assert "changed or cut" in warnings[0]


def test_the_end_of_a_run_puts_its_lines_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for events, n_files in ([end_of()] * 3, 2), ([], 0):
        synced.clear()
        sink = sink_in(tmp_path)
        for event in [BEGIN, *events]:
            sink.handle(event)
        assert synced == []  # a line does not wait for the disk
        sink.handle(END)
        assert len(synced) == n_files
