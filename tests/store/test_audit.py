"""The audit log: which lines a run's calls leave, chained by hash, and what finds each change."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine.laws import codes
from stories import Story, patched, tool_run, walked

import nbagent
from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import canonical_json, sha256_hex, sha_of
from nbagent.contracts.errors import ErrorInfo, StoreError, UsageError
from nbagent.contracts.events import RunFinished, RunStarted
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.records import ToolRun, WorkflowRef
from nbagent.contracts.secrets import register_secret
from nbagent.providers.offline import ScriptedAnswer, call, script
from nbagent.store import audit
from nbagent.store.audit import AuditLog, AuditSink, Head, verify_audit
from nbagent.store.file_lock import locked

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


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_in(home)
    with (home / "audit.head").open("r+b") as held, locked(held.fileno()):
        # It waits for ten seconds; here no longer than it takes to see that it waits.
        monkeypatch.setattr(audit, "locked", partial(locked, wait_s=0.1))
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
            line, head = head.next_line({"kind": "call", "ok": False})
            made.append(line)
        return [*lines[: at - 1], *made, *lines[at - 1 + n :]]

    return done


ENDS = "audit.head does not match a log that ends with line"
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


def test_a_report_says_in_one_line_whether_the_log_passed(home: Path) -> None:
    report = verify_audit(home)
    end = f"last hash {report.last_sha}"
    assert repr(report) == f"audit passed: {N_LINES} lines of {home / 'audit.jsonl'}, {end}"
    lines = raw_lines(home)
    (home / "audit.jsonl").write_bytes(b"".join([lines[0], lines[2]]))
    assert repr(verify_audit(home)).startswith(
        f"audit broken at line 2 of {home / 'audit.jsonl'}: it was changed, or does not follow"
    )
    (home / "audit.jsonl").write_bytes(b"".join(lines[:2]))
    assert repr(verify_audit(home)).startswith("audit broken at line 3 of ")


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
CHAIN = ("seq", "prev", "at", "pid", "sha")
ASKED, EDITED = {"path": "a.md", "content": CANARY}, {"path": "b.md", "content": "my words"}
WRITE = call("fs.write", ASKED)


def audited(
    *calls: ScriptedAnswer, rule: str = "", **options: Any
) -> tuple[nbagent.Run, list[Any]]:
    """A run that makes these calls, one a turn, and the lines that it leaves."""
    if rule:
        nbagent.configure(deny=[rule])
    agent = nbagent.Agent(model=script([*calls, "Done."]), tools=["fs", slow, chart], **options)
    run = agent.run("Go.")
    assert (run.text, run.record.notices) == ("Done.", ())
    return run, lines_of(Path(os.environ["NBAGENT_HOME"]))


def edited(question: Question) -> dict[str, str]:
    return EDITED


def allowed(question: Question) -> bool:
    return True


def denied(question: Question) -> bool:
    return False


def lines_of(home: Path) -> list[dict[str, Any]]:
    text = (home / "audit.jsonl").read_text("ascii")
    assert CANARY not in text
    assert verify_audit(home)
    return [json.loads(line) for line in text.splitlines()]


@nbagent.tool(timeout=0.05)
async def slow() -> None:
    """Take too long."""
    await asyncio.sleep(5)


def chart() -> list[Any]:
    """Draw a chart."""
    return [CANARY, ImagePart(data="aGk=")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_an_approval_its_start_and_its_end_are_lines_of_hashes_without_text(project: Path) -> None:
    run, lines = audited(WRITE, on_approval=edited)
    (done,) = run.turns[0].tool_runs
    assert done.result
    place = {"run": run.id, "turn": "C01", "call": done.tool_call_id, "tool": "fs.write"}
    place["host"] = "fs"
    before = {**place, "tool_sha": done.tool_sha, "args_sha": sha_of(EDITED)}
    found = [{key: line[key] for key in line if key not in CHAIN} for line in lines]
    approval, start, called, wrote = found
    assert approval.pop("waited_ms") >= 0
    assert len(approval.pop("binds")) == 64
    said = {"by": "callback", "ruling": "allowed", "edited": True, "asked_args_sha": sha_of(ASKED)}
    assert approval == {"kind": "approval", **before, **said}
    assert start == {"kind": "start", **before}
    assert called.pop("duration_ms") == pytest.approx(done.duration_ms, abs=0.001)
    result_sha = sha256_hex(canonical_json(json.loads(done.result.to_json())))
    assert called == {"kind": "call", **before, "result_sha": result_sha, "ok": True}
    written = (project / "b.md").read_bytes()
    assert (wrote["kind"], wrote["path"], wrote["bytes"]) == ("write", "@project/b.md", 8)
    assert (wrote["sha256_before"], wrote["sha256_after"]) == (None, sha256_hex(written))


# The call, how it is answered for, and its lines.
CASES: dict[str, tuple[ScriptedAnswer, dict[str, Any], str]] = {
    "nobody asked": (call("fs.list"), {}, "start call"),
    "allowed": (WRITE, {"on_approval": allowed}, "approval start call write"),
    "denied": (WRITE, {"on_approval": denied}, "approval refusal call"),
    "denied by a rule": (WRITE, {"rule": "fs.write"}, "approval refusal call"),
    "refused by its host": (call("fs.read", path="../x"), {}, "refusal call"),
    "too long": (call("slow"), {}, "start call"),
    "unknown": (call("fs.raed"), {}, "call"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_a_call_leaves_its_lines(project: Path, name: str) -> None:
    made, options, kinds = CASES[name]
    run, lines = audited(made, **options)
    assert " ".join(line["kind"] for line in lines) == kinds
    rulings = {line["ruling"] for line in lines if line["kind"] == "approval"}
    assert rulings <= {"denied" if "refusal" in kinds else "allowed"}
    assert len({line["args_sha"] for line in lines if "args_sha" in line}) == 1
    assert {line["code"] for line in lines if "code" in line} == {*codes(run)} - {None}


def test_names_and_paths_are_masked_and_cut_and_what_came_back_is_only_hashed(
    project: Path,
) -> None:
    register_secret(CANARY)
    made_up = f"{CANARY}\u2028{'x' * 9_000}"
    write = call("fs.write", path=f"{CANARY}.md", content="x")
    run, lines = audited(call(made_up), write, call("chart"), on_approval=allowed)
    odd, *_, wrote, _, drawn = lines
    assert odd["tool"].startswith("[redacted]\u2028xxx")
    assert (len(odd["tool"]), odd["host"]) == (200, "")
    assert wrote["path"] == "@project/[redacted].md"
    result = run.turns[2].tool_runs[0].result
    assert result
    parts = [part.model_dump() for part in result.attachments]
    assert drawn["attachments_sha"] == sha256_hex(canonical_json(parts))


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
        *(patched("c1", {}, MISSING, path="@state/./Workflow.md"), "flow", "refusal call"),
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
    ref = WorkflowRef(name=workflow) if workflow else None
    story = Story(workflow=ref).turn("", run).end(phase="Failed", error=MISSING)
    for event in story.events:
        sink.handle(event)
    around = ["run request ", " stop"] if workflow else ["", ""]
    lines = lines_of(tmp_path)
    assert " ".join(line["kind"] for line in lines) == kinds.join(around)
    assert not workflow or lines[-1]["code"] == "E_PRECONDITION_FAILED"


def test_a_line_says_how_a_script_was_isolated_and_hides_a_secret_in_a_path(tmp_path: Path) -> None:
    register_secret(CANARY)
    sink, ran = AuditSink(tmp_path), tool_run("c1", "run_python_script", {}, "done")
    wrote = patched("c2", {}, {"path": f"@project/{CANARY}.md"})
    isolated = ran.model_copy(update={"isolation": "landlock"})
    for event in Story().turn("", isolated, wrote).end().events:
        sink.handle(event)
    script_line, _, write_line = lines_of(tmp_path)
    assert script_line["isolation"] == "landlock"
    assert write_line["path"] == "@project/[redacted].md"


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
    for event in Story().turn("One.").end().events:  # until it is detached
        if isinstance(event, RunStarted | RunFinished):
            with pytest.raises(StoreError, match="THIS RUN IS NO LONGER AUDITED: the audit log"):
                sink.handle(event)


def test_a_decision_that_cannot_be_written_is_told_by_the_run(project: Path) -> None:
    def broken(question: Question) -> bool:
        for name in FILES:  # as a removed disk would
            file = Path(os.environ["NBAGENT_HOME"], name)
            file.unlink()
            file.mkdir()
        return True

    agent = nbagent.Agent(model=script([WRITE, "Done."]), tools=["fs"], on_approval=broken)
    run = agent.run("Go.")
    assert run.text == "Done."
    assert "THIS RUN IS NO LONGER AUDITED: the audit log" in str(run.record.notices)


def test_the_end_of_a_run_puts_its_lines_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sink = AuditSink(tmp_path)
    for event in walked().events:
        assert synced == []  # a line does not wait for the disk
        sink.handle(event)
    assert len(synced) == 2


# Which runs are audited


@pytest.mark.parametrize(("tools", "is_said"), [(["fs"], True), ([chart], False), ([], False)])
def test_a_run_that_acts_outside_says_that_a_store_in_memory_has_no_log(
    tools: list[Any], is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "file" / "home"))
    run = nbagent.Agent(model=script(["Done."]), tools=tools).run("Go.")
    assert ("this run is not audited" in str(run.record.notices)) == is_said


def test_a_run_without_tools_starts_no_log() -> None:
    nbagent.Agent(model=script(["Done."]), tools=[]).run("Go.")
    with pytest.raises(UsageError, match="the first run with tools starts one"):
        verify_audit()


def test_a_project_may_not_switch_the_log_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.nbagent]\naudit = "none"\n')
    monkeypatch.chdir(tmp_path)
    run = nbagent.Agent(model=script([call("slow"), "Done."]), tools=[slow]).run("Go.")
    assert "pyproject.toml sets audit, which a project may not set" in str(run.record.notices)
    assert verify_audit()
