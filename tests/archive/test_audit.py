"""The audit log: which lines a run's calls leave, chained by hash, and what finds each change."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stories import NOW, Story, patched, tool_run, walked

from nbagent.archive.audit import AuditLog, AuditSink, Head, verify_audit
from nbagent.archive.locking import locked
from nbagent.contracts.canonical import canonical_json, sha256_hex, sha_of
from nbagent.contracts.chat import ImagePart, TextPart, ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.errors import ErrorCode, ErrorInfo, StoreError, UsageError
from nbagent.contracts.events import RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import Decision, PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import register
from nbagent.runtime import Courier

CALL = {"kind": "call", "run": "0" * 16, "turn": "C01", "call": "call_1", "ok": True}
N_LINES = 12
FILES = ("audit.jsonl", "audit.head")
ODD_NAMES = [
    "two\nlines",
    "return\rand\r\nboth",
    "next line \x85, line \u2028 and paragraph \u2029",
    "half a character \ud83d",
    "nul \0 and escape \x1b[2J",
    'quotes " and \\ and ","sha":"' + "0" * 64 + '"}',
    "日本 ✓ 😀",
]


def log_in(home: Path) -> AuditLog:
    return AuditLog(home / "audit.jsonl")


def write(home: Path, n: int) -> None:
    for _ in range(n):
        log_in(home).append(CALL)


def raw_lines(home: Path) -> list[bytes]:
    return (home / "audit.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a log."""
    home = tmp_path / "home"
    write(home, N_LINES)
    return home


# Writing


def test_a_line_is_one_json_object_chained_by_hashes_that_anybody_can_make(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append(CALL, CALL)
    log.append(*({**CALL, "tool": name} for name in ODD_NAMES))
    prev = "0" * 64
    # Text: no odd name breaks a line for any reader.
    lines = (tmp_path / "audit.jsonl").read_text("ascii").splitlines()
    assert [json.loads(line).get("tool") for line in lines] == [None, None, *ODD_NAMES]
    for n, raw in enumerate(lines, 1):
        line = json.loads(raw)
        assert (line["seq"], line["prev"], line["pid"]) == (n, prev, os.getpid())
        assert line["at"].endswith("Z")
        assert CALL.items() <= line.items()
        prev = line.pop("sha")
        plain = json.dumps(line, separators=(",", ":")).encode()
        assert hashlib.sha256(plain).hexdigest() == prev
    report = verify_audit(tmp_path)
    assert (report.why, report.lines, report.last_sha) == ("", len(lines), prev)


def test_a_log_that_was_moved_away_is_begun_anew_and_both_are_in_order(
    home: Path, tmp_path: Path
) -> None:
    log = log_in(home)
    log.append(CALL)
    for name in FILES:
        (home / name).rename(tmp_path / name.replace("audit", "copy.of-march"))
    log.append(CALL)
    assert verify_audit(home).lines == 1
    assert verify_audit(tmp_path / "copy.of-march.jsonl").lines == N_LINES + 1


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(home: Path) -> None:
    log = log_in(home)
    with (home / "audit.head").open("r+b") as held, locked(held.fileno()):
        with pytest.raises(StoreError, match="another process has held the lock"):
            log.append(CALL)
        assert verify_audit(home)  # checked all the same
    log.append(CALL)
    assert verify_audit(home).lines == N_LINES + 1


# Checking


def test_any_byte_that_is_changed_is_found_in_its_line(home: Path) -> None:
    whole = (home / "audit.jsonl").read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 0x80):
            changed = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
            (home / "audit.jsonl").write_bytes(changed)
            report = verify_audit(home)
            assert not report, f"byte {place}, bit {bit}"
            assert report.lines == whole.count(b"\n", 0, place), f"byte {place}: {report!r}"


def test_any_byte_of_the_head_file_that_is_changed_is_found(home: Path) -> None:
    whole = (home / "audit.head").read_bytes()
    for place in range(len(whole)):
        (home / "audit.head").write_bytes(whole[:place] + b"~" + whole[place + 1 :])
        report = verify_audit(home)
        assert (bool(report), report.lines) == (False, N_LINES)
        assert "audit.head" in report.why


Change = Callable[[list[bytes]], list[bytes]]


def insert(text: bytes, at: int) -> Change:
    return lambda lines: [*lines[: at - 1], text, *lines[at - 1 :]]


def forged(at: int, n: int = 1) -> Change:
    """Put lines in the place of others, with right numbers, `prev` and hashes of their own."""

    def done(lines: list[bytes]) -> list[bytes]:
        prev = re.search(rb'"sha":"(\w+)"', lines[at - 2])
        assert prev is not None
        head, made = Head(at - 1, prev[1].decode()), list[bytes]()
        for _ in range(n):
            line, head = head.line({"kind": "call", "ok": False})
            made.append(line)
        return [*lines[: at - 1], *made, *lines[at - 1 + n :]]

    return done


ENDS = "audit.head is not of a log that ends with line"
CHANGED = "it was changed, or does not follow the line before it"
# What is done, how many lines before it are in order, and a word of the reason.
TAMPERINGS: dict[str, tuple[Change, int, str]] = {
    "a line deleted": (lambda it: it[:5] + it[6:], 5, CHANGED),
    "last line cut off": (lambda it: it[:-1], 11, f"{ENDS} 11"),
    "all lines cut off": (lambda it: [], 0, f"{ENDS} 0"),
    "the last line end cut off": (lambda it: [*it[:-1], it[-1][:-1]], 11, f"{ENDS} 11"),
    "a line twice": (lambda it: [*it[:5], *it[4:]], 5, CHANGED),
    "line ends of Windows": (lambda it: [x.replace(b"\n", b"\r\n") for x in it], 0, CHANGED),
    "a forged line": (forged(5), 5, CHANGED),
    "the last line forged": (forged(12), 12, f"{ENDS} 12"),
    "junk behind the end": (lambda it: [*it, b"junk"], 12, CHANGED),
    # The lines are right in themselves; that they are too many shows at the end.
    "two lines added at the end": (forged(13, 2), 14, f"{ENDS} 14"),
    "deep JSON": (insert(b"[" * 100_000 + b"\n", 2), 1, CHANGED),
    "a line without end": (lambda it: [*it, b"x" * 3_000_000], 12, CHANGED),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_is_done_to_the_lines_is_found_and_stays_so(home: Path, name: str) -> None:
    change, n_before, why = TAMPERINGS[name]
    (home / "audit.jsonl").write_bytes(b"".join(change(raw_lines(home))))
    report = verify_audit(home)
    assert (bool(report), report.lines) == (False, n_before)
    assert why in report.why
    # It is still found when nbagent has written on.
    log = log_in(home)
    for _ in range(3):
        log.append(CALL)
    assert not verify_audit(home)
    assert verify_audit(home).lines <= n_before + 1


HEADS = ["missing", "empty", "other words", "longer", "older", "of one line", "all that is left"]


@pytest.mark.parametrize("what", HEADS)
def test_a_head_file_that_does_not_fit_is_found_also_when_it_is_written_on(
    home: Path, what: str
) -> None:
    head, log = home / "audit.head", home / "audit.jsonl"
    old = head.read_bytes()
    match what:
        case "missing":
            head.unlink()
        case "older":
            write(home, 3)
            head.write_bytes(old)
        case "of one line":
            log.write_bytes(raw_lines(home)[0])
            head.unlink()
        case "all that is left":
            log.unlink()
        case _:
            head.write_bytes({"empty": b"", "other words": b"{}", "longer": old + b" "}[what])
    assert not verify_audit(home)
    write(home, 2)
    assert not verify_audit(home)


def test_a_log_that_was_made_anew_is_found_by_a_hash_that_was_kept(home: Path) -> None:
    kept = verify_audit(home).last_sha.encode()
    write(home, 1)
    assert kept in raw_lines(home)[-1]
    for name in FILES:
        (home / name).unlink()
    write(home, N_LINES + 2)
    assert verify_audit(home)
    assert kept not in b"".join(raw_lines(home))


def test_the_folder_the_file_and_the_current_store_are_checked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(home))
    assert verify_audit() == verify_audit(str(home)) == verify_audit(home / "audit.jsonl")
    for where in ("nothing.jsonl", "no/such/folder"):
        with pytest.raises(UsageError, match="there is no audit log at"):
            verify_audit(home / where)
    shutil.rmtree(home)
    home.mkdir()
    (home / "audit.head").touch()  # all that a full disk let the first run make
    with pytest.raises(UsageError, match="there is no audit log"):
        verify_audit()


# What the calls of a run become

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
CHANGED_CALL = decision_of(approval="edited", by="callback", arguments=EDITED)


def lines_of(home: Path) -> list[dict[str, Any]]:
    text = (home / "audit.jsonl").read_text("ascii")
    assert CANARY not in text
    assert verify_audit(home)
    return [json.loads(line) for line in text.splitlines()]


def decide(sink: AuditSink, decision: Decision, key: str = "call_1") -> None:
    name = decision.prepared.spec.name
    call = ToolCall(id=key, name=name, arguments=ASKED, arguments_raw=json.dumps(ASKED))
    context = ToolContext(run_id=RUN, session="main", turn_id="C01", runner=Courier())
    sink.decided(call, context, decision, BINDS)


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
    sink, end = AuditSink(tmp_path), end_of(CHANGED_CALL)
    decide(sink, CHANGED_CALL)
    place = {"run": RUN, "turn": "C01", "call": "call_1", "tool": "fs.write", "host": "fs"}
    before = {**place, "tool_sha": SHA, "args_sha": sha_of(EDITED)}
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
    "too long": (None, end_of(error="E_TIMEOUT"), "call"),
    "no result": (None, end_of(result=None), "call"),
    "only read": (None, end_of(data={"path": "@project/a", "sha256": "1"}), "call"),
    "cut to its text": (None, end_of(data="a result"), "call"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_a_call_leaves_its_lines(tmp_path: Path, name: str) -> None:
    decision, end, kinds = CASES[name]
    sink = AuditSink(tmp_path)
    if decision is not None:
        decide(sink, decision)
    sink.handle(end)
    lines = lines_of(tmp_path)
    assert [line["kind"] for line in lines] == kinds.split()
    rulings = {line["ruling"] for line in lines if line["kind"] == "approval"}
    assert rulings <= {"denied" if "refusal" in kinds and "start" not in kinds else "allowed"}
    assert len({line["args_sha"] for line in lines if "args_sha" in line}) == 1
    result = end.tool_run.result or ToolResult.failure(ErrorInfo("E_INTERNAL", ""))
    assert {line["code"] for line in lines if "code" in line} == (
        {result.error.code} if result.error else set()
    )


def test_names_and_paths_are_masked_and_cut_and_what_came_back_is_only_hashed(
    tmp_path: Path,
) -> None:
    register(CANARY)
    sink, made_up, image = (
        AuditSink(tmp_path),
        f"{CANARY}\u2028{'x' * 9_000}",
        ImagePart(data="aGk="),
    )
    decide(sink, decision_of(made_up, by="person"), CANARY)
    sink.handle(end_of(error="E_UNKNOWN_TOOL", tool_name=made_up, tool_call_id=CANARY))
    sink.handle(end_of(data={"path": f"@project/{CANARY}.md", "sha256After": "2" * 64}))
    sink.handle(end_of(tool_name="run_python_script", isolation="landlock", data=CANARY))
    result = ToolResult(ok=True, data=None, attachments=(image, TextPart(text=CANARY)))
    sink.handle(end_of(result=result, tool_name="fs.read"))
    *made, _, wrote, script, read = lines_of(tmp_path)
    for line in made:
        assert line["tool"].startswith("[redacted]\u2028xxx")
        assert (len(line["tool"]), line["call"], line["host"]) == (200, "[redacted]", "")
    assert wrote["path"] == "@project/[redacted].md"
    assert (script["isolation"], "isolation" in read) == ("landlock", False)
    parts = [part.model_dump() for part in result.attachments]
    assert read["attachments_sha"] == sha256_hex(canonical_json(parts))


# What the run of a workflow leaves besides


def test_a_run_of_a_workflow_leaves_its_start_requests_moves_refusals_and_end(
    tmp_path: Path,
) -> None:
    sink = AuditSink(tmp_path)
    story = walked(parent_id="f" * 16, kind="continue", shared_messages=2)
    for event in story.events:
        sink.handle(event)
    lines, run = lines_of(tmp_path), story.run
    kinds = "run request refusal call request call state request call state request stop"
    assert [line["kind"] for line in lines] == kinds.split()
    assert {line["run"] for line in lines} == {run.id}
    found = [{key: line[key] for key in line if key not in CHAIN} for line in lines]
    named = {"workflow": "story-flow", "agent": "mira", "model": run.model, "parent": "f" * 16}
    assert found[0] == {"kind": "run", "run": run.id, "begins": "continue", **named}
    sent = [line for line in found if line["kind"] == "request"]
    assert [line["turn"] for line in sent] == ["C01", "C02", "C03", "C04"]
    assert [(line["n_messages"], line["n_new"]) for line in sent] == [
        (3, 3),
        (5, 2),
        (7, 2),
        (9, 2),
    ]
    assert {line["system_sha"] for line in sent} == {run.turns[0].request.system_sha}
    for line, new in zip(sent, (run.messages[:1], run.messages[1:3]), strict=False):
        assert line["messages_sha"] == sha_of([message.model_dump() for message in new])
    refusal, moved, noted = found[2], found[6], found[9]
    assert (refusal["code"], refusal["from"], refusal["to"], "label" in refusal) == (
        *("E_INVALID_TRANSITION", "select", "close"),
        False,
    )
    assert (moved["from"], moved["to"], moved["label"]) == ("select", "draft", "next")
    for line in (moved, noted):
        assert (line["path"], line["call"][0]) == ("@state/workflow.md", "c")
        assert (line["sha256_before"], line["sha256_after"]) == ("1" * 64, "2" * 64)
    assert "from" not in noted
    end = {"phase": "WaitingUser", "stop_reason": "answered"}
    assert found[-1] == {"kind": "stop", "run": run.id, **end}


MISSING = ErrorInfo("E_PRECONDITION_FAILED", "out.md is not there")
OTHER = tool_run("c1", "fs.apply_patch", {"path": "@project/a.md"}, MISSING)
PATCHES: dict[str, tuple[ToolRun, str | None, str]] = {
    "an output is missing": (patched("c1", {}, MISSING), "flow", "refusal call"),
    "another spelling": (
        patched("c1", {}, MISSING, path="@state/./Workflow.md"),
        *("flow", "refusal call"),
    ),
    "another file": (OTHER.model_copy(update={"host": "fs"}), "flow", "call"),
    "a tool of the person's": (patched("c1", {}).model_copy(update={"host": ""}), "flow", "call"),
    "no workflow": (patched("c1", {}), None, "call write"),
    "refused, no workflow": (patched("c1", {}, MISSING), None, "call"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_only_patches_of_the_document_of_a_workflow_are_lines_of_its_state(
    tmp_path: Path, name: str
) -> None:
    run, workflow, kinds = PATCHES[name]
    sink = AuditSink(tmp_path)
    story = Story(workflow=workflow).turn("", run).end(phase="Failed", error=MISSING)
    for event in story.events:
        sink.handle(event)
    around = ["run request ", " stop"] if workflow else ["", ""]
    lines = lines_of(tmp_path)
    assert " ".join(line["kind"] for line in lines) == kinds.join(around)
    assert not workflow or lines[-1]["code"] == "E_PRECONDITION_FAILED"


# What cannot be written


@pytest.mark.parametrize("what", ["home", "home/audit.jsonl", "home/audit.head"])
def test_a_log_that_cannot_be_made_is_an_error_before_any_tool_runs(
    tmp_path: Path, what: str
) -> None:
    home = tmp_path / "home"
    if what == "home":
        home.write_text("x")
    else:
        (tmp_path / what).mkdir(parents=True)
    sink = AuditSink(home)
    for event in BEGIN, end_of(), END:  # until it is detached
        with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED: the audit log"):
            sink.handle(event)


@pytest.mark.parametrize("event", [END, end_of(BY_PERSON)], ids=["the run ends", "a call ends"])
def test_a_decision_that_cannot_be_written_is_raised_by_the_next_event(
    tmp_path: Path, event: RunFinished | ToolCallFinished
) -> None:
    sink = AuditSink(tmp_path)
    sink.handle(BEGIN)
    for name in FILES:  # as a removed disk would
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
    decide(sink, BY_PERSON)
    with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED: the audit log"):
        sink.handle(event)
    decide(sink, BY_PERSON)  # after it was detached


def test_nothing_that_goes_wrong_reaches_who_decides(tmp_path: Path) -> None:
    sink = AuditSink(tmp_path)
    odd: dict[str, Any] = {"value": object()}
    decide(sink, decision_of(approval="edited", by="callback", arguments=odd))
    with pytest.raises(StoreError, match="TypeError in nbagent itself; please report it"):
        sink.handle(END)
    assert not (tmp_path / "audit.jsonl").exists()


def test_the_end_of_a_run_puts_its_lines_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sink = AuditSink(tmp_path)
    for event in (BEGIN, end_of(), end_of()):
        sink.handle(event)
    assert synced == []  # a line does not wait for the disk
    sink.handle(END)
    assert len(synced) == 2
