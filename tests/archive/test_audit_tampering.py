"""Whatever is done to an audit log afterwards is found, also when it is written on after that."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nbagent.archive.audit import AuditLog, verify_audit
from nbagent.archive.audit.lines import Head, make_line
from nbagent.contracts.errors import StoreError, UsageError

N_LINES = 12


def write(home: Path, first: int, last: int, *, full_bytes: int = 10**9) -> None:
    log = AuditLog.open(home, full_bytes=full_bytes)
    for n in range(first, last + 1):
        log.append({"kind": "call", "run": f"{n:016x}", "tool": "fs.read", "ok": True})
    log.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, 1, N_LINES)
    assert verify_audit(tmp_path)
    return tmp_path


def lines_of(home: Path) -> list[bytes]:
    return (home / "audit.jsonl").read_bytes().splitlines(keepends=True)


def put(home: Path, lines: list[bytes]) -> None:
    (home / "audit.jsonl").write_bytes(b"".join(lines))


def test_a_log_that_nobody_touched_is_in_order(home: Path) -> None:
    report = verify_audit(home)
    assert report
    assert (report.ok, report.lines, report.bad_line, report.why) == (True, N_LINES, None, "")
    assert repr(report) == "AuditReport(in order: 12 lines of audit.jsonl)"
    assert verify_audit(home / "audit.jsonl") == report
    assert verify_audit(str(home)) == report


def test_any_byte_that_is_changed_is_found_in_its_line(home: Path) -> None:
    whole = (home / "audit.jsonl").read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 0x80):
            changed = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
            (home / "audit.jsonl").write_bytes(changed)
            report = verify_audit(home)
            line = whole.count(b"\n", 0, place) + 1
            assert not report, f"byte {place}, bit {bit}"
            assert report.bad_line == line, f"byte {place}: {report!r}"


@pytest.mark.proof
def test_every_bit_that_is_changed_is_found(home: Path) -> None:
    for name in ("audit.jsonl", "audit.head"):
        whole = (home / name).read_bytes()
        for place in range(len(whole)):
            for bit in range(8):
                changed = whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :]
                (home / name).write_bytes(changed)
                assert not verify_audit(home), f"{name}: byte {place}, bit {bit}"
        (home / name).write_bytes(whole)


def test_any_byte_of_the_head_file_that_is_changed_is_found(home: Path) -> None:
    whole = (home / "audit.head").read_bytes()
    for place in range(len(whole)):
        (home / "audit.head").write_bytes(whole[:place] + b"~" + whole[place + 1 :])
        report = verify_audit(home)
        assert not report
        assert report.bad_line == N_LINES + 1
        assert "audit.head" in report.why


def delete(at: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: lines[: at - 1] + lines[at:]


def again(at: int, to: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[: to - 1], lines[at - 1], *lines[to - 1 :]]


def swap(one: int, other: int) -> Callable[[list[bytes]], list[bytes]]:
    def swapped(lines: list[bytes]) -> list[bytes]:
        lines = list(lines)
        lines[one - 1], lines[other - 1] = lines[other - 1], lines[one - 1]
        return lines

    return swapped


def insert(text: bytes, at: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[: at - 1], text, *lines[at - 1 :]]


def forged(at: int) -> Callable[[list[bytes]], list[bytes]]:
    """Put a line in the place of another one, with a right number, `prev` and hash of its own."""

    def done(lines: list[bytes]) -> list[bytes]:
        match = re.search(rb'"prev":"(\w+)"', lines[at - 1])
        assert match is not None
        line = make_line({"kind": "call", "ok": False}, Head(at - 1, match[1].decode()))
        return [*lines[: at - 1], line, *lines[at:]]

    return done


def added(n: int) -> Callable[[list[bytes]], list[bytes]]:
    """Put lines of one's own behind the last one, chained as they should be."""

    def done(lines: list[bytes]) -> list[bytes]:
        match = re.search(rb'"sha":"(\w+)"', lines[-1])
        assert match is not None
        head, lines = Head(len(lines), match[1].decode()), list(lines)
        for _ in range(n):
            lines.append(make_line({"kind": "call"}, head))
            head = head.after(lines[-1])
        return lines

    return done


# What is done, the first line that is not in order then, and a word of the reason.
TAMPERINGS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "first line deleted": (delete(1), 1, "line 1 is missing before it"),
    "a line deleted": (delete(6), 6, "line 6 is missing before it"),
    "three lines deleted": (lambda it: it[:4] + it[7:], 5, "lines 5 to 7 are missing before it"),
    "last line cut off": (lambda it: it[:-1], 12, "1 line is missing at the end"),
    "five lines cut off": (lambda it: it[:-5], 8, "5 lines are missing at the end"),
    "all lines cut off": (lambda it: [], 1, "12 lines are missing at the end"),
    "half of the last line cut off": (lambda it: [*it[:-1], it[-1][:90]], 12, "1 line is missing"),
    "the last line end cut off": (lambda it: [*it[:-1], it[-1][:-1]], 12, "1 line is missing"),
    "head cut off": (lambda it: it[7:], 1, "lines 1 to 7 are missing before it"),
    "neighbours swapped": (swap(5, 6), 5, "line 5 is missing before it"),
    "far lines swapped": (swap(2, 11), 2, "missing before it"),
    "a line twice": (again(5, 6), 6, "it is line 5 of the chain"),
    "a line copied back": (again(9, 3), 3, "missing before it"),
    "the last line twice": (again(12, 13), 13, "it is line 12 of the chain"),
    "foreign words put in": (insert(b"hello\n", 4), 4, "no audit line"),
    "a foreign object put in": (insert(b'{"seq":4}\n', 4), 4, "no audit line"),
    "an empty line put in": (insert(b"\n", 4), 4, "no audit line"),
    "a space put in": (lambda it: [it[0], it[1].replace(b":", b": ", 1), *it[2:]], 2, "changed"),
    "line ends of Windows": (lambda it: [x.replace(b"\n", b"\r\n") for x in it], 1, "changed"),
    "a forged line": (forged(5), 6, "it does not follow the line before it"),
    "the last line forged": (forged(12), 13, "does not fit the last line"),
    "junk behind the end": (lambda it: [*it, b"junk"], 13, "no audit line"),
    "zeros behind the end": (lambda it: [*it, bytes(4096)], 13, "no audit line"),
    "two lines added at the end": (added(2), 13, "2 lines at the end are unknown"),
    "deep JSON": (insert(b"[" * 100_000 + b"\n", 2), 2, "no audit line"),
    "a line without end": (lambda it: [*it, b"x" * 3_000_000], 13, "no audit line"),
    "other bytes": (lambda it: [bytes(range(256)) * 10], 1, "no audit line"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_is_done_to_the_lines_is_found_and_stays_so(home: Path, name: str) -> None:
    change, bad_line, why = TAMPERINGS[name]
    put(home, change(lines_of(home)))
    report = verify_audit(home)
    assert not report.ok
    if name == "two lines added at the end":
        bad_line = 15  # the lines are right in themselves; that they are too many shows at the end
    assert (report.bad_line, report.bad_file) == (bad_line, "audit.jsonl")
    assert why in report.why
    assert f"NOT IN ORDER at line {bad_line} of audit.jsonl" in repr(report)
    # It is still found when nbagent has written on.
    log = AuditLog.open(home)
    log.append({"kind": "call"})
    log.append({"kind": "call"})
    assert not verify_audit(home)
    assert lines_of(home)[-1].endswith(b"\n")
    if "end" in name or "cut" in name:
        # Its size had changed, so the log says so itself, and the person is told.
        assert log.warning is not None
        assert "verify_audit" in log.warning
        assert any(b'"kind":"recovery"' in line for line in lines_of(home))
    log.close()


def test_the_log_says_itself_what_was_cut_and_when_it_was_noticed(home: Path) -> None:
    put(home, lines_of(home)[:-3])
    write(home, 1, 2)
    report = verify_audit(home)
    assert report.bad_line == N_LINES - 2
    assert "lines 10 to 12 are missing before it; nbagent noticed at 2" in report.why
    assert "and went on" in report.why


@pytest.mark.parametrize("written_on", [False, True], ids=["as it is", "written on"])
@pytest.mark.parametrize("what", ["missing", "empty", "other words", "longer", "an older one"])
def test_a_head_file_that_was_touched_is_found(home: Path, what: str, written_on: bool) -> None:
    head = home / "audit.head"
    old = head.read_bytes()
    if what == "missing":
        head.unlink()
    elif what == "an older one":
        write(home, 1, 3)
        head.write_bytes(old)
    else:
        head.write_bytes({"empty": b"", "other words": b"{}", "longer": old + b" "}[what])
    if written_on:
        write(home, 1, 2)
    report = verify_audit(home)
    assert not report
    assert "audit.head" in report.why or what == "an older one"


def test_cutting_the_log_to_one_line_and_deleting_its_head_is_found(home: Path) -> None:
    put(home, lines_of(home)[:1])
    (home / "audit.head").unlink()
    assert not verify_audit(home)
    write(home, 1, 2)
    assert not verify_audit(home)


def test_a_log_that_was_deleted_is_found_by_its_head_file(home: Path) -> None:
    (home / "audit.jsonl").unlink()
    report = verify_audit(home)
    assert "12 lines are missing at the end" in report.why
    assert report.lines == 0
    write(home, 1, 2)
    assert not verify_audit(home)


def test_a_log_made_anew_is_found_by_a_hash_kept_elsewhere(home: Path) -> None:
    kept = verify_audit(home).last_sha
    write(home, 1, 5)
    assert verify_audit(home, contains=kept)
    for file in home.glob("audit.*"):
        file.unlink()
    write(home, 1, N_LINES)
    assert verify_audit(home)
    report = verify_audit(home, contains=kept)
    assert not report
    assert "made anew" in report.why


def test_files_that_are_full_are_checked_as_one_chain(tmp_path: Path) -> None:
    for first in (1, 21):
        write(tmp_path, first, first + 19, full_bytes=2_000)
    files = sorted(path.name for path in tmp_path.glob("audit.*.jsonl"))
    assert files == [f"audit.{n:06d}.jsonl" for n in range(1, len(files) + 1)]
    assert len(files) > 3
    assert all(file.stat().st_size < 3_000 for file in tmp_path.glob("audit*.jsonl"))
    report = verify_audit(tmp_path)
    assert (report.ok, report.lines, report.files) == (True, 40, len(files) + 1)
    assert f"40 lines in {len(files) + 1} files" in repr(report)
    assert verify_audit(tmp_path / files[0]) == report


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "second", "last full"])
def test_a_full_file_that_is_missing_or_cut_is_found(tmp_path: Path, which: int) -> None:
    write(tmp_path, 1, 40, full_bytes=2_000)
    full = sorted(tmp_path.glob("audit.*.jsonl"))
    chosen = full[which]
    after = [*full, tmp_path / "audit.jsonl"][full.index(chosen) + 1]
    whole = chosen.read_bytes()
    chosen.write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])
    report = verify_audit(tmp_path)
    assert (report.bad_file, report.bad_line) == (after.name, 1)
    assert "is missing before it" in report.why
    chosen.write_bytes(whole[:-9])
    assert verify_audit(tmp_path).bad_file == chosen.name
    chosen.unlink()
    report = verify_audit(tmp_path)
    assert (report.bad_file, report.bad_line) == (after.name, 1)
    assert "are missing before it" in report.why


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
    write(tmp_path / "mine", 1, 3)
    assert verify_audit().lines == 3


def test_a_log_that_cannot_be_read_is_a_clear_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, mode: str = "r") -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(StoreError, match="cannot be read"):
        verify_audit(home)
