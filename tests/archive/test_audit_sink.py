"""What a run's events become in the audit log: which lines, which hashes, and no text at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from stories import NOW, Story

from nbagent.archive.audit import AuditSink, verify_audit
from nbagent.contracts.canonical import canonical_json, sha256_hex
from nbagent.contracts.chat import ImagePart, TextPart
from nbagent.contracts.errors import ErrorCode, ErrorInfo, StoreError
from nbagent.contracts.events import RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import register

CANARY = "sk-canary-4f9a77c1d2e8"
HOSTS = {
    "fs.read": "fs",
    "fs.write": "fs",
    "write_file": "fs",
    "fs.apply_patch": "fs",
    "run_python_script": "skills",
    "git__log": "mcp:git",
    "population": "functions",
}
SHA = "d" * 64


def run_of(name: str, data: Any = None, *, error: ErrorCode | None = None, **more: Any) -> ToolRun:
    failed = error is not None
    result = (
        ToolResult.failure(ErrorInfo(error, f"it says {CANARY}", {"seen": CANARY}))
        if failed
        else ToolResult(ok=True, data=data)
    )
    fields: dict[str, Any] = {
        "tool_call_id": "call_1",
        "args": {"text": CANARY},
        "result": result,
        "duration_ms": 12.3456789,
    }
    return ToolRun(tool_name=name, tool_sha=SHA, queued_at=NOW, **{**fields, **more})


def finished(run: ToolRun) -> ToolCallFinished:
    return ToolCallFinished("0123456789abcdef", "C02", run, 0)


def lines_after(home: Path, *runs: ToolRun, **more: Any) -> list[dict[str, Any]]:
    sink = AuditSink(home, hosts_of=lambda name: HOSTS.get(name, ""), **more)
    for run in runs:
        sink.handle(finished(run))
    sink.close()
    assert verify_audit(home)
    text = (home / "audit.jsonl").read_text("ascii")
    assert CANARY not in text
    return [json.loads(line) for line in text.splitlines()]


def test_a_call_leaves_one_line_with_hashes_and_no_text(tmp_path: Path) -> None:
    run = run_of("fs.read", {"path": "@project/a.md", "content": f"{CANARY} ü"})
    (line,) = lines_after(tmp_path, run)
    assert run.result is not None
    told = run.result.to_json()
    assert {key: line[key] for key in line if key not in ("seq", "prev", "at", "pid", "sha")} == {
        "kind": "call",
        "run": "0123456789abcdef",
        "turn": "C02",
        "call": "call_1",
        "tool": "fs.read",
        "host": "fs",
        "tool_sha": SHA,
        "args_sha": sha256_hex(canonical_json({"text": CANARY})),
        "result_sha": sha256_hex(canonical_json(json.loads(told))),
        "ok": True,
        "duration_ms": 12.346,
    }


@pytest.mark.parametrize(
    ("tool", "before"),
    [
        ("fs.write", {"sha256Before": "1" * 64}),
        ("write_file", {"sha256Before": None}),
        ("fs.apply_patch", {}),
    ],
)
def test_a_write_leaves_what_the_file_was_and_is(
    tmp_path: Path, tool: str, before: dict[str, Any]
) -> None:
    data = {"path": "@project/notes/a.md", "bytesWritten": 120, "sha256After": "2" * 64}
    called, wrote = lines_after(tmp_path, run_of(tool, {**data, **before}))
    assert (called["kind"], wrote["kind"]) == ("call", "write")
    assert wrote["path"] == "@project/notes/a.md"
    assert wrote["sha256_before"] == before.get("sha256Before")
    assert wrote["sha256_after"] == "2" * 64
    assert (wrote["bytes"], wrote["call"]) == (120, called["call"])


@pytest.mark.parametrize(
    "run",
    [
        run_of("fs.write", error="E_PRECONDITION_FAILED"),
        run_of("fs.read", {"path": "@project/a", "sha256": "1" * 64}),
        run_of("population", {"path": "@project/a", "sha256After": "1" * 64}),
        run_of("fs.write", "a result that was cut to its text"),
        run_of("fs.write", {"path": 3, "sha256After": "1"}),
        run_of("fs.write", None, result=None),
    ],
    ids=["failed", "reading", "another host", "cut", "no path", "no result"],
)
def test_what_wrote_nothing_leaves_no_write(tmp_path: Path, run: ToolRun) -> None:
    assert [line["kind"] for line in lines_after(tmp_path, run)] == ["call"]


def test_a_file_name_that_holds_a_secret_is_masked(tmp_path: Path) -> None:
    register(CANARY)
    data = {"path": f"@project/{CANARY}.md", "sha256After": "2" * 64}
    wrote = lines_after(tmp_path, run_of("fs.write", data))[1]
    assert wrote["path"] == "@project/[redacted].md"


def test_names_that_a_model_made_up_are_masked_and_cut(tmp_path: Path) -> None:
    register(CANARY)
    run = run_of(f"{CANARY}\u2028{'x' * 9_000}", error="E_UNKNOWN_TOOL", tool_call_id=CANARY)
    (line,) = lines_after(tmp_path, run)
    assert line["tool"].startswith("[redacted]\u2028xxx")
    assert len(line["tool"]) == 200
    assert (line["call"], line["host"]) == ("[redacted]", "")


def test_an_approval_that_was_not_told_before_stands_at_the_end_of_its_call(tmp_path: Path) -> None:
    run = run_of(
        "fs.write", {"path": "@project/a"}, approval="edited", approved_by="person", waited_ms=1500
    )
    approval, called = lines_after(tmp_path, run)
    assert (approval["kind"], called["kind"]) == ("approval", "call")
    assert (approval["by"], approval["ruling"], approval["edited"]) == ("person", "allowed", True)
    assert approval["waited_ms"] == 1500
    assert (approval["tool_sha"], approval["args_sha"]) == (SHA, called["args_sha"])


def test_a_denial_is_an_approval_line_a_refusal_and_the_call(tmp_path: Path) -> None:
    run = run_of("fs.write", error="E_DENIED", approval="denied", approved_by="nobody")
    approval, refusal, called = lines_after(tmp_path, run)
    assert (approval["ruling"], approval["by"], approval["edited"]) == ("denied", "nobody", False)
    assert "binds" not in approval
    assert (refusal["kind"], refusal["code"], refusal["by"]) == ("refusal", "E_DENIED", "nobody")
    assert (called["kind"], called["ok"], called["code"]) == ("call", False, "E_DENIED")


@pytest.mark.parametrize(
    ("code", "is_refusal"),
    [
        ("E_SANDBOX_VIOLATION", True),
        ("E_READ_LIMIT", True),
        ("E_WRITE_LIMIT", True),
        ("ENOENT", False),
        ("E_TIMEOUT", False),
        ("E_INTERRUPTED", False),
    ],
)
def test_what_a_host_refuses_is_told_from_what_went_wrong(
    tmp_path: Path, code: ErrorCode, is_refusal: bool
) -> None:
    lines = lines_after(tmp_path, run_of("fs.read", error=code))
    assert [line["kind"] for line in lines] == ["refusal"] * is_refusal + ["call"]
    assert {line["code"] for line in lines} == {code}


def test_a_script_says_how_it_was_kept_apart(tmp_path: Path) -> None:
    apart = {"isolation": "landlock", "stdout": CANARY}
    script_line, other = lines_after(
        tmp_path, run_of("run_python_script", apart), run_of("git__log", apart)
    )
    assert script_line["isolation"] == "landlock"
    assert "isolation" not in other


def test_attachments_have_hashes_of_their_own(tmp_path: Path) -> None:
    image = ImagePart(data="aGVsbG8=")
    result = ToolResult(ok=True, data=None, attachments=(image, TextPart(text=CANARY)))
    (line,) = lines_after(tmp_path, run_of("fs.read", result=result))
    assert line["attachments"][0] == sha256_hex(canonical_json(image.model_dump()))
    assert len(line["attachments"]) == 2


@pytest.mark.parametrize(
    "value",
    ["half \ud83d", 10**30, {"\ud83d": [None, 1.5, True]}, "\u2028\n", []],
    ids=["surrogate", "big", "odd key", "line ends", "empty"],
)
def test_odd_values_have_hashes_too(tmp_path: Path, value: Any) -> None:
    one, other = lines_after(
        tmp_path,
        run_of("fs.read", value, args={"value": value}),
        run_of("fs.read", [value, 1], args={"value": [value, 1]}),
    )
    assert one["args_sha"] != other["args_sha"]
    assert one["result_sha"] != other["result_sha"]


BEGIN = RunStarted(Story().run)
END = RunFinished(Story().run)


def test_a_log_that_cannot_be_written_is_told_before_any_tool_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sink = AuditSink(tmp_path / "file", hosts_of=HOSTS.__getitem__)
    for event in BEGIN, finished(run_of("fs.read")), END:  # until it is detached
        with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED: the audit log"):
            sink.handle(event)
    sink.close()


def test_the_end_of_a_run_puts_its_lines_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for runs, n_files in ([run_of("fs.read")] * 3, 2), ([], 0):
        synced.clear()
        sink = AuditSink(tmp_path, hosts_of=HOSTS.__getitem__)
        for event in [BEGIN, *map(finished, runs)]:
            sink.handle(event)
        assert synced == []  # a line does not wait for the disk
        sink.handle(END)
        sink.close()
        assert len(synced) == n_files
