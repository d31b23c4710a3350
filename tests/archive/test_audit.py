"""The audit log: whole lines chained by hash, and whatever is done to them afterwards is found."""

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

from nbagent.archive.audit import AuditLog, Head, verify_audit
from nbagent.archive.locking import locked
from nbagent.contracts.errors import StoreError, UsageError

CALL = {"kind": "call", "run": "0" * 16, "turn": "C01", "call": "call_1", "ok": True}
N_LINES = 12
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


def log_in(home: Path) -> AuditLog:
    return AuditLog(home / "audit.jsonl")


def write(home: Path, n: int) -> None:
    for _ in range(n):
        log_in(home).append(CALL)


def lines_of(home: Path) -> list[bytes]:
    return (home / "audit.jsonl").read_bytes().splitlines(keepends=True)


def put(home: Path, lines: list[bytes]) -> None:
    (home / "audit.jsonl").write_bytes(b"".join(lines))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    write(home, N_LINES)
    assert verify_audit(home)
    return home


# Writing


def test_a_line_is_one_json_object_chained_by_hashes_that_anybody_can_make(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append(CALL, CALL)
    log.append(CALL)
    prev = "0" * 64
    lines = lines_of(tmp_path)
    assert len(lines) == 3
    for n, raw in enumerate(lines, 1):
        line = json.loads(raw)
        assert (line["seq"], line["prev"], line["pid"]) == (n, prev, os.getpid())
        assert line["at"].endswith("Z")
        assert CALL.items() <= line.items()
        prev = line.pop("sha")
        plain = json.dumps(line, separators=(",", ":")).encode()
        assert hashlib.sha256(plain).hexdigest() == prev


def test_odd_names_stay_in_one_line_for_every_reader(tmp_path: Path) -> None:
    log_in(tmp_path).append(*({**CALL, "tool": name} for name in ODD_NAMES))
    lines = (tmp_path / "audit.jsonl").read_text("ascii").splitlines()
    assert [json.loads(line)["tool"] for line in lines] == ODD_NAMES
    assert verify_audit(tmp_path).lines == len(ODD_NAMES)


@pytest.mark.parametrize("n_before", [0, 3])
def test_a_line_torn_at_any_byte_is_cut_off_and_said(tmp_path: Path, n_before: int) -> None:
    log = log_in(tmp_path)
    log.append(*[CALL] * n_before)
    files = [tmp_path / name for name in ("audit.jsonl", "audit.head")]
    whole = {file: file.read_bytes() for file in files}
    head = Head.from_bytes(whole[files[1]])
    assert head is not None
    line = head.line(CALL)
    for n in range(1, len(line)):
        files[0].write_bytes(whole[files[0]] + line[:n])
        files[1].write_bytes(whole[files[1]])
        before = verify_audit(tmp_path)
        assert (before.ok, before.torn_bytes) == (True, n)
        log.append(CALL)
        assert log.warning is None
        report = verify_audit(tmp_path)
        assert (report.ok, report.lines, report.recovered) == (True, n_before + 2, 1)
        mended = json.loads(lines_of(tmp_path)[n_before])
        assert (mended["torn"], mended["torn_bytes"]) == (line[:n].decode(), n)


def test_a_log_that_was_moved_away_is_begun_anew_and_both_are_in_order(
    home: Path, tmp_path: Path
) -> None:
    log = log_in(home)
    log.append(CALL)
    (tmp_path / "away").mkdir()
    for name in ("audit.jsonl", "audit.head"):
        (home / name).rename(tmp_path / "away" / name)
    log.append(CALL)
    assert (verify_audit(home).lines, verify_audit(tmp_path / "away").lines) == (1, N_LINES + 1)
    assert log.warning is None


@pytest.mark.parametrize("what", ["home", "home/audit.jsonl", "home/audit.head"])
def test_a_log_that_cannot_be_made_is_a_clear_error(tmp_path: Path, what: str) -> None:
    home = tmp_path / "home"
    if what == "home":
        home.write_text("x")
    else:
        (tmp_path / what).mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be written") as caught:
        log_in(home).append()
    assert caught.value.message.endswith("then start the run again")


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(home: Path) -> None:
    log = AuditLog(home / "audit.jsonl", lock_wait_s=0.05)
    with (home / "audit.head").open("r+b") as held, locked(held.fileno()):
        with pytest.raises(StoreError, match="another process has held the lock"):
            log.append(CALL)
        assert verify_audit(home)  # checked all the same
    log.append(CALL)
    assert verify_audit(home).lines == N_LINES + 1


# Checking


def test_a_log_that_nobody_touched_is_in_order(home: Path) -> None:
    report = verify_audit(home)
    assert (report.ok, report.lines, report.bad_line, report.why) == (True, N_LINES, None, "")
    assert repr(report) == "AuditReport(in order: 12 lines of audit.jsonl)"
    assert verify_audit(home / "audit.jsonl") == verify_audit(str(home)) == report


def test_any_byte_that_is_changed_is_found_in_its_line(home: Path) -> None:
    whole = (home / "audit.jsonl").read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 0x80):
            changed = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
            (home / "audit.jsonl").write_bytes(changed)
            report = verify_audit(home)
            assert not report, f"byte {place}, bit {bit}"
            line = whole.count(b"\n", 0, place) + 1
            assert report.bad_line == line, f"byte {place}: {report!r}"


def test_any_byte_of_the_head_file_that_is_changed_is_found(home: Path) -> None:
    whole = (home / "audit.head").read_bytes()
    for place in range(len(whole)):
        (home / "audit.head").write_bytes(whole[:place] + b"~" + whole[place + 1 :])
        report = verify_audit(home)
        assert (report.ok, report.bad_line) == (False, N_LINES + 1)
        assert "audit.head" in report.why


Change = Callable[[list[bytes]], list[bytes]]


def insert(text: bytes, at: int) -> Change:
    return lambda lines: [*lines[: at - 1], text, *lines[at - 1 :]]


def copied(at: int, to: int) -> Change:
    return lambda lines: [*lines[: to - 1], lines[at - 1], *lines[to - 1 :]]


def forged(at: int, n: int = 1) -> Change:
    """Put lines in the place of others, with right numbers, `prev` and hashes of their own."""

    def done(lines: list[bytes]) -> list[bytes]:
        prev = re.search(rb'"sha":"(\w+)"', lines[at - 2])
        assert prev is not None
        head, made = Head(at - 1, prev[1].decode()), list[bytes]()
        for _ in range(n):
            made.append(head.line({"kind": "call", "ok": False}))
            head = head.after(made[-1])
        return [*lines[: at - 1], *made, *lines[at - 1 + n :]]

    return done


BELONGS = "of the chain, and line"
# What is done, the first line that is not in order then, and a word of the reason.
TAMPERINGS: dict[str, tuple[Change, int, str]] = {
    "first line deleted": (lambda it: it[1:], 1, "line 2 of the chain, and line 1 belongs here"),
    "a line deleted": (lambda it: it[:5] + it[6:], 6, BELONGS),
    "last line cut off": (lambda it: it[:-1], 12, "ends with line 11, and audit.head says with"),
    "all lines cut off": (lambda it: [], 1, "ends with line 0"),
    "the last line end cut off": (lambda it: [*it[:-1], it[-1][:-1]], 12, "ends with line 11"),
    "neighbours swapped": (lambda it: [*it[:4], it[5], it[4], *it[6:]], 5, BELONGS),
    "a line twice": (copied(5, 6), 6, "it is line 5 of the chain"),
    "foreign words put in": (insert(b"hello\n", 4), 4, "no audit line"),
    "a space put in": (lambda it: [it[0], it[1].replace(b":", b": ", 1), *it[2:]], 2, "changed"),
    "line ends of Windows": (lambda it: [x.replace(b"\n", b"\r\n") for x in it], 1, "changed"),
    "a forged line": (forged(5), 6, "it does not follow the line before it"),
    "the last line forged": (forged(12), 13, "does not fit the last line"),
    "junk behind the end": (lambda it: [*it, b"junk"], 13, "no audit line"),
    # The lines are right in themselves; that they are too many shows at the end.
    "two lines added at the end": (forged(13, 2), 15, "ends with line 14"),
    "deep JSON": (insert(b"[" * 100_000 + b"\n", 2), 2, "no audit line"),
    "a line without end": (lambda it: [*it, b"x" * 3_000_000], 13, "no audit line"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_is_done_to_the_lines_is_found_and_stays_so(home: Path, name: str) -> None:
    change, bad_line, why = TAMPERINGS[name]
    put(home, change(lines_of(home)))
    report = verify_audit(home)
    assert (report.ok, report.bad_line) == (False, bad_line)
    assert why in report.why
    assert f"NOT IN ORDER at line {bad_line} of audit.jsonl" in repr(report)
    # It is still found when nbagent has written on.
    log = log_in(home)
    log.append(CALL)
    log.append(CALL)
    assert not verify_audit(home)
    assert lines_of(home)[-1].endswith(b"\n")
    if "end" in name or "cut" in name:
        # Its size had changed, so the log says so itself, and the person is warned.
        assert log.warning is not None
        assert "verify_audit" in log.warning
        assert any(b'"kind":"recovery"' in line for line in lines_of(home))


@pytest.mark.parametrize("written_on", [False, True], ids=["as it is", "written on"])
@pytest.mark.parametrize("what", ["missing", "empty", "other words", "longer", "an older one"])
def test_a_head_file_that_was_touched_is_found(home: Path, what: str, written_on: bool) -> None:
    head = home / "audit.head"
    old = head.read_bytes()
    if what == "missing":
        head.unlink()
    elif what == "an older one":
        write(home, 3)
        head.write_bytes(old)
    else:
        head.write_bytes({"empty": b"", "other words": b"{}", "longer": old + b" "}[what])
    if written_on:
        write(home, 2)
    report = verify_audit(home)
    assert not report
    assert "audit.head" in report.why or what == "an older one"


@pytest.mark.parametrize(("kept", "deleted"), [(1, "audit.head"), (0, "audit.jsonl")])
def test_a_log_that_was_cut_or_deleted_is_found_also_by_what_is_left(
    home: Path, kept: int, deleted: str
) -> None:
    put(home, lines_of(home)[:kept])
    (home / deleted).unlink()
    assert verify_audit(home).lines == kept
    assert not verify_audit(home)
    write(home, 2)
    assert not verify_audit(home)


def test_a_log_that_was_made_anew_is_found_by_a_hash_that_was_kept(home: Path) -> None:
    kept = verify_audit(home).last_sha
    write(home, 1)
    assert verify_audit(home, contains=kept)
    for name in ("audit.jsonl", "audit.head"):
        (home / name).unlink()
    write(home, N_LINES + 2)
    assert verify_audit(home)
    assert "the log was cut or made anew" in verify_audit(home, contains=kept).why


def test_a_copy_elsewhere_can_be_checked(home: Path, tmp_path: Path) -> None:
    for name in ("audit.jsonl", "audit.head"):
        shutil.copy(home / name, tmp_path / name.replace("audit", "copy.of-march"))
    assert verify_audit(tmp_path / "copy.of-march.jsonl").lines == N_LINES


@pytest.mark.parametrize("where", ["", "nothing.jsonl", "no/such/folder"])
def test_where_there_is_no_log_the_error_says_what_to_give(tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError, match="there is no audit log at") as caught:
        verify_audit(tmp_path / where)
    assert "nbagent.verify_audit('.nbagent')" in caught.value.message


def test_without_a_path_the_current_store_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "mine"))
    with pytest.raises(UsageError):
        verify_audit()
    write(tmp_path / "mine", 3)
    assert verify_audit().lines == 3


def test_calls_without_an_end_are_listed_and_are_no_fault(tmp_path: Path) -> None:
    def of(kind: str, call: str, turn: str = "C01") -> dict[str, Any]:
        return {**CALL, "kind": kind, "call": call, "turn": turn}

    words = f'","kind":"start","run":"{CALL["run"]}","call":"a'
    starts = [of("start", "a"), of("start", "b"), of("start", "c"), of("start", "b", "C02")]
    log_in(tmp_path).append(*starts, of("call", "b", "C02"), of("call", words), of("start", "c"))
    report = verify_audit(tmp_path)
    assert report.ok
    assert report.unfinished == tuple((CALL["run"], key) for key in "abcc")
    assert repr(report).endswith("audit.jsonl; 4 calls began and did not end)")
    log_in(tmp_path).append(*(of("call", key) for key in "abcc"))
    assert verify_audit(tmp_path).unfinished == ()
