"""Writing the audit log: torn tails, threads, full files, and folders that cannot be written."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from made_records import audit_lines

from nbagent.archive.audit import AuditLog, verify_audit
from nbagent.archive.audit.lines import Head, make_line
from nbagent.archive.audit.locking import locked
from nbagent.contracts.errors import StoreError

CALL = {
    "kind": "call",
    "run": "0123456789abcdef",
    "turn": "C01",
    "call": "call_1",
    "tool": "fs.read",
    "host": "fs",
    "tool_sha": "a" * 64,
    "args_sha": "b" * 64,
    "result_sha": "c" * 64,
    "ok": True,
    "duration_ms": 1.234,
}
ODD_NAMES = [
    "two\nlines",
    "return\rand\r\nboth",
    "next line \x85, line \u2028 and paragraph \u2029",
    "half a character \ud83d",
    "nul \0 and escape \x1b[2J",
    'quotes " and \\ and ","sha":"' + "0" * 64 + '"}',
    "right to left \u202e and zero \u200b width",
    "日本 ✓ 😀",
]


def test_a_line_is_one_json_object_chained_by_hashes_that_anybody_can_make(tmp_path: Path) -> None:
    log = AuditLog.open(tmp_path)
    log.append(CALL, CALL)
    log.append(CALL)
    log.close()
    first, second, third = audit_lines(tmp_path)
    assert [first["seq"], second["seq"], third["seq"]] == [1, 2, 3]
    assert (first["prev"], second["prev"]) == ("0" * 64, first["sha"])
    assert third["prev"] == second["sha"]
    assert first["pid"] == os.getpid()
    assert first["at"].endswith("Z")
    assert CALL.items() <= first.items()
    for line in (first, second, third):
        sha = line.pop("sha")
        assert hashlib.sha256(json.dumps(line, separators=(",", ":")).encode()).hexdigest() == sha


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_odd_names_stay_in_one_line_for_every_reader(tmp_path: Path, name: str) -> None:
    log = AuditLog.open(tmp_path)
    log.append({**CALL, "tool": name})
    log.append(CALL)
    log.close()
    text = (tmp_path / "audit.jsonl").read_text("ascii")
    assert len(text.splitlines()) == 2
    assert json.loads(text.splitlines()[0])["tool"] == name
    assert verify_audit(tmp_path).lines == 2


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_a_line_torn_at_any_byte_is_cut_off_and_told(tmp_path: Path, n_before: int) -> None:
    log = AuditLog.open(tmp_path)
    for _ in range(n_before):
        log.append(CALL)
    log.close()
    files = [tmp_path / name for name in ("audit.jsonl", "audit.head")]
    whole = {file: file.read_bytes() for file in files}
    head = Head.from_bytes(whole[files[1]])
    assert head is not None
    line = make_line(CALL, head)
    for n in range(1, len(line)):
        files[0].write_bytes(whole[files[0]] + line[:n])
        files[1].write_bytes(whole[files[1]])
        before = verify_audit(tmp_path)
        assert (before.ok, before.torn_bytes) == (True, n)
        log = AuditLog.open(tmp_path)
        log.append(CALL)
        assert log.warning is None
        log.close()
        report = verify_audit(tmp_path)
        assert (report.ok, report.lines, report.recovered) == (True, n_before + 2, 1)
        told = audit_lines(tmp_path)[n_before]
        assert (told["torn"], told["torn_bytes"]) == (line[:n].decode(), n)


def test_a_torn_line_is_mended_also_by_a_log_that_is_open(tmp_path: Path) -> None:
    log = AuditLog.open(tmp_path)
    log.append(CALL)
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"seq":2,"pr')
    log.append(CALL)
    log.close()
    assert [line["kind"] for line in audit_lines(tmp_path)] == ["call", "recovery", "call"]
    assert verify_audit(tmp_path).recovered == 1


def test_threads_and_several_logs_of_one_process_write_at_once(tmp_path: Path) -> None:
    logs = [AuditLog(tmp_path / "audit.jsonl", full_bytes=50_000) for _ in range(3)]

    def work(log: AuditLog) -> None:
        for _ in range(100):
            log.append(CALL)
        log.sync()

    threads = [threading.Thread(target=work, args=(log,)) for log in logs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    report = verify_audit(tmp_path)
    assert (report.ok, report.lines) == (True, 600)
    assert report.files > 2


def test_where_a_full_file_cannot_be_renamed_it_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*paths: object) -> None:  # Windows, while another process has it open
        raise PermissionError

    log = AuditLog.open(tmp_path, full_bytes=1_000)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refused)
        for _ in range(5):
            log.append(CALL)
    assert not list(tmp_path.glob("audit.0*"))
    log.append(CALL)
    log.close()
    assert len(list(tmp_path.glob("audit.0*"))) == 1
    assert verify_audit(tmp_path).lines == 6


def test_a_log_that_was_moved_away_is_begun_anew_and_both_are_in_order(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    away.mkdir()
    log = AuditLog.open(home)
    log.append(CALL, CALL)
    for name in ("audit.jsonl", "audit.head"):
        os.rename(home / name, away / name)
    log.append(CALL)
    log.close()
    assert (verify_audit(home).lines, verify_audit(away).lines) == (1, 2)
    assert log.warning is None


@pytest.mark.parametrize("what", ["file", "log is a folder", "head is a folder", "log is a pipe"])
def test_a_log_that_cannot_be_made_is_a_clear_error(tmp_path: Path, what: str) -> None:
    home = tmp_path / "home"
    if what == "file":
        home.write_text("x")
    elif what == "log is a pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes here")
        home.mkdir()
        os.mkfifo(home / "audit.jsonl")
    else:
        (home / ("audit.jsonl" if "log" in what else "audit.head")).mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be written") as caught:
        AuditLog.open(home)
    assert caught.value.message.endswith("then start the run again")


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", patience_s=0.05)
    log.append(CALL)
    with (tmp_path / "audit.head").open("r+b") as held, locked(held.fileno(), patience_s=1):
        with pytest.raises(StoreError, match="another process has held the audit log"):
            log.append(CALL)
        log.close()
    log.append(CALL)
    log.close()
    assert verify_audit(tmp_path).lines == 2
