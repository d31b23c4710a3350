"""The audit log: the calls of all tools and the actions of workflows, in lines chained by hash.

Owns `audit.jsonl` and `audit.head` beside the store: writes lines, also from several processes at
once, and checks them.

A line is one JSON object in ASCII: `seq` and `prev` first, `sha` last, no spaces. `sha` is the
SHA-256 of the line without its own `sha`; `prev` is the `sha` of the line before.

    {"seq":7,"prev":"9f…","at":"…","pid":1,"kind":"call",…,"sha":"c0…"}

A writer locks `audit.head`, reads the end of the chain there (so the size of the log does not
matter), cuts off the incomplete line of a killed writer, appends, and writes the new end.
A line is not fsynced: a killed process loses no line, a power cut may lose the last lines. `sync`,
at the end of a run, puts all lines on the disk.

| when | kind | keys |
|---|---|---|
| decided | `approval` | `tool_sha args_sha asked_args_sha? by ruling edited waited_ms binds?` |
| | `start` | `tool_sha args_sha`: the call is not denied, the tool begins now |
| finished | `refusal` | `tool_sha args_sha code by?` |
| | `call` | `tool_sha args_sha result_sha ok code? duration_ms isolation? attachments_sha?` |
| | `write` | `path sha256_before sha256_after bytes`; before is null for a new file |

All lines of a call have `run turn call tool host`; the log adds `seq prev at pid sha`. The setting
`audit` says which runs are audited: `all` with tools, those with effects `outside` the notebook's
own functions (files, scripts, kernel, servers, workflows), or `none`. A run of a workflow adds:

| when | kind | keys |
|---|---|---|
| it begins | `run` | `run begins workflow agent? model parent?`; begins: start, continue, … |
| a request leaves | `request` | `run turn system_sha toolset_sha n_messages n_new messages_sha` |
| its document is changed | `state` | as `write`, with `from to label` if the step changed |
| a change is refused | `refusal` | as above, with `from to` if the step would have changed |
| it ends | `stop` | `run phase stop_reason code?` |

`messages_sha` covers the messages that are new in this request. Arguments and results are logged as
hashes only: SHA-256 of their canonical JSON. `result_sha` covers the content of the tool message,
`attachments_sha` its pictures and files. `args_sha` covers the arguments that were used,
`asked_args_sha` the model's arguments if a person edited them. `start` is written before the tool
begins, `call` after the store has committed the result: a `start` without a `call` means that the
process died during the tool. A `call` without a `start` was refused, or had invalid arguments.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Any, BinaryIO

from nbagent.contracts.canonical import json_object, load_json, sha256_hex, sha_of, utc_now
from nbagent.contracts.errors import StoreError, ToolCode, UsageError
from nbagent.contracts.events import Event, RunFinished, RunStarted, ToolCallFinished, TurnStarted
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.ports import Decision
from nbagent.contracts.records import RunRecord, ToolResult, ToolRun
from nbagent.contracts.secrets import redact
from nbagent.contracts.tools import ToolContext
from nbagent.files.opening import (
    Folder,
    LinkRefused,
    naming_links,
    open_own_file,
    open_own_folder,
)
from nbagent.settings.sources import to_path
from nbagent.store.file_lock import locked
from nbagent.store.home import current_home, writing_folder

FILE_NAME = "audit.jsonl"
_MAX_LINE_BYTES = 200_000
_HEAD_BYTES = 160
"""Smaller than a disk sector, so it is written whole or not at all."""
_HEAD_PATTERN = re.compile(rb'\{"seq":(\d+),"sha":"([0-9a-f]{64})","size_bytes":(\d+)\} +\n')
_TAIL_PATTERN = re.compile(rb',"sha":"([0-9a-f]{64})"\}\n')
_TAIL_BYTES = len(b',"sha":""}\n') + 64
_OUTSIDE_HOSTS = frozenset(("fs", "skills", "notebook", "nb", "mcp"))
_REFUSALS: frozenset[ToolCode] = frozenset(
    ("E_DENIED", "E_SANDBOX_VIOLATION", "E_READ_LIMIT", "E_WRITE_LIMIT")
)
_STATE_REFUSALS: frozenset[ToolCode] = _REFUSALS.union(
    ("E_INVALID_TRANSITION", "E_PRECONDITION_FAILED"),
    ("E_SCHEMA_VALIDATION", "E_INVALID_FRONTMATTER"),
)
_WORKFLOW_DOCUMENT = "@state/workflow.md"
_MAX_NAME_CHARS = 200

AuditEntry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain, and the check of the line after it."""

    seq: int = 0
    """Number of the last line; 0 if the log is empty."""
    sha: str = "0" * 64
    size_bytes: int = 0
    """Size of the log up to here."""

    def to_bytes(self) -> bytes:
        """The content of the head file, always of the same length."""
        text = f'{{"seq":{self.seq},"sha":"{self.sha}","size_bytes":{self.size_bytes}}}'
        return text.encode().ljust(_HEAD_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes) -> Head | None:
        """Parse a head file; None if `to_bytes` did not write it."""
        match = _HEAD_PATTERN.fullmatch(raw)
        return cls(int(match[1]), match[2].decode(), int(match[3])) if match else None

    @property
    def next_line_prefix(self) -> bytes:
        """The first bytes of the next line, the same for every entry."""
        return f'{{"seq":{self.seq + 1},"prev":"{self.sha}",'.encode()

    def next_line(self, record: AuditEntry) -> tuple[bytes, Head]:
        """Build the next line; return it with the new head.

        The line is ASCII, so no Unicode line separator in a name can split it.
        """
        fields = {"seq": self.seq + 1, "prev": self.sha, **record}
        body = json.dumps(fields, separators=(",", ":"))
        sha = sha256_hex(body)
        line = f'{body[:-1]},"sha":"{sha}"}}\n'.encode()
        return line, Head(self.seq + 1, sha, self.size_bytes + len(line))

    def is_torn(self, piece: bytes) -> bool:
        """True if this piece can be the beginning of the next line, left by a killed writer."""
        start = self.next_line_prefix
        return b"\n" not in piece and piece[: len(start)] == start[: len(piece)]

    def after(self, line: bytes) -> Head | None:
        """The head after this line; None if it is not a complete line that continues the chain."""
        match = _TAIL_PATTERN.fullmatch(line[-_TAIL_BYTES:])
        if match is None or not line.startswith(self.next_line_prefix):
            return None
        sha = match[1].decode()
        if sha256_hex(line[:-_TAIL_BYTES] + b"}") != sha:
            return None
        return Head(self.seq + 1, sha, self.size_bytes + len(line))


def _head_file(log: Path) -> Path:
    return log.with_suffix(".head")


class AuditLog:
    """The audit log of one folder. Any thread, any number of processes.

    Each call of `append` opens the files, so a forked child shares nothing, and a new log is
    started if the file was moved away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *records: AuditEntry) -> None:
        """Write one line for each entry; when this returns, they are in the file.

        Raises:
            StoreError: they could not be written; no line is written in part.
        """
        with self._locked_files() as (log_fd, head_fd):
            head = _repair_end(log_fd, Head.from_bytes(_read_at(head_fd, 0, _HEAD_BYTES + 1)))
            for record in records:
                at = utc_now().isoformat(timespec="microseconds").replace("+00:00", "Z")
                line, after = head.next_line({"at": at, "pid": os.getpid(), **record})
                if os.write(log_fd, line) != len(line):
                    with suppress(OSError):  # if this fails, the next writer cuts the rest off
                        os.ftruncate(log_fd, head.size_bytes)
                    raise OSError("the disk is full")
                _write_head(head_fd, after)
                head = after

    def sync(self) -> None:
        """Fsync the log, so that all lines survive a power cut; StoreError if it fails."""
        with self._locked_files() as descriptors:
            for fd in descriptors:
                os.fsync(fd)

    @contextmanager
    def _locked_files(self) -> Generator[tuple[int, int]]:
        """Open and lock the log and its head file; create them if they are missing."""
        try:
            with ExitStack() as stack:
                folder = open_own_folder(self.path.parent, create=True)
                stack.callback(folder.close)
                head_fd = _open_file(stack, folder, _head_file(self.path))
                stack.enter_context(locked(head_fd))
                # The head is written before the log exists: a log without a head is then always a
                # sign of tampering, never of a writer that was killed here.
                if not os.fstat(head_fd).st_size and not _exists(folder, self.path.name):
                    _write_head(head_fd, Head())
                yield _open_file(stack, folder, self.path, os.O_APPEND), head_fd
        except OSError as error:
            raise StoreError(
                f"the audit log {self.path} cannot be written ({error.strerror or error}). Make "
                "space or make it writable, then start the run again",
                details={"reason": "audit", "path": str(self.path)},
            ) from None


def _repair_end(log_fd: int, stored_head: Head | None) -> Head:
    """Return the head for the next line, after the remains of a killed writer are repaired.

    If the log does not end as its head file says, one of them was changed or cut. Nothing is
    repaired then: the next line does not continue the chain, so every later check reports it.
    """
    size = os.fstat(log_fd).st_size
    if stored_head is None:
        return Head(size_bytes=size)
    tail = _read_at(log_fd, stored_head.size_bytes, 2 * _MAX_LINE_BYTES)
    line, end, torn = tail.rpartition(b"\n")
    # A complete line after the stored end: its writer was killed before it wrote the new head.
    head = stored_head.after(line + end) if line else stored_head
    if head is None or not head.is_torn(torn) or head.size_bytes + len(torn) != size:
        return replace(stored_head, size_bytes=size)
    if torn:
        os.ftruncate(log_fd, head.size_bytes)
    return head


def _write_head(head_fd: int, head: Head) -> None:
    os.lseek(head_fd, 0, os.SEEK_SET)
    if os.write(head_fd, head.to_bytes()) != _HEAD_BYTES:
        raise OSError("the disk is full")


def _open_file(stack: ExitStack, folder: Folder, path: Path, flags: int = 0) -> int:
    with naming_links(path):
        fd = folder.open_entry(path.name, os.O_RDWR | os.O_CREAT | flags)
    stack.callback(os.close, fd)
    return fd


def _exists(folder: Folder, name: str) -> bool:
    try:
        folder.lstat(name)
    except FileNotFoundError:
        return False
    return True


def _read_at(fd: int, start: int, n_bytes: int) -> bytes:
    os.lseek(fd, start, os.SEEK_SET)
    return os.read(fd, n_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditReport:
    """Result of a check of the audit log. True if the whole log is in order."""

    path: Path
    lines: int
    """Number of lines in order, counted up to the first wrong line."""
    why: str = ""
    """The problem with the next line; empty if there is none."""
    last_sha: str = ""
    """Hash of the last line in order. Saved elsewhere, it detects a log that was rewritten."""

    def __bool__(self) -> bool:
        return not self.why

    def __repr__(self) -> str:
        """One line: passed, or the number of the first wrong line and what is wrong with it."""
        if self.why:
            return f"audit broken at line {self.lines + 1:,} of {self.path}: {self.why}"
        return f"audit passed: {self.lines:,} lines of {self.path}, last hash {self.last_sha}"


def _log_elsewhere(path: object) -> str:
    """The end of an error: the log that is in a store that is not the person's own."""
    home = current_home()
    if path is not None or home.is_own or not os.path.isfile(home.folder / FILE_NAME):
        return ""
    return (
        f". {home.folder} has a log, but its store is not yours; "
        f"nbagent.verify_audit({str(home.folder)!r}) checks it"
    )


def verify_audit(path: str | os.PathLike[str] | None = None) -> AuditReport:
    """Check the audit log: find lines that were changed, deleted, inserted, moved or cut off.

    Each line contains the hash of the line before it, and `audit.head` stores the end. Two limits:
    a power cut that lost the last lines looks like tampering; and a complete rewrite of the log and
    its head is found only with a `last_sha` that was saved elsewhere: it must still be in the log.

    Args:
        path: a store's folder, or a log file; the current store by default.

    Raises:
        UsageError: there is no audit log.
        StoreError: it cannot be read.
    """
    location = writing_folder() if path is None else to_path(path, "path")
    log = location / FILE_NAME if os.path.isdir(location) or path is None else location
    if path is not None:  # links to the folder are the person's choice
        log = Path(os.path.realpath(log.parent)) / log.name
    stored_head, lines = _snapshot(log)
    if not stored_head and not os.path.isfile(log):
        raise UsageError(
            f"there is no audit log at {log}; the first run with tools starts one in the folder of "
            f"its store, unless the setting audit is 'none' or 'outside'{_log_elsewhere(path)}"
        )
    before = head = Head()
    why = ""
    for line in lines:
        after = head.after(line)
        if after is None:
            if not head.is_torn(line):
                why = "it was changed, or does not follow the line before it"
            break
        before, head = head, after
    # A writer may have been killed between its line and the head file: the head of one line
    # earlier is accepted too.
    if not why and stored_head not in (head.to_bytes(), before.to_bytes()):
        name = _head_file(log).name
        why = f"{name} does not match a log that ends with line {head.seq:,}: one was changed"
    return AuditReport(path=log, lines=head.seq, why=why, last_sha=head.sha if head.seq else "")


def _snapshot(log: Path) -> tuple[bytes, list[bytes]]:
    """Read the head file and the lines of one moment; later lines are left out."""
    stored_head = b""
    try:
        with ExitStack() as stack:
            if (head := _open_to_read(stack, _head_file(log))) is not None:
                with suppress(OSError):  # a copy on a disk without locks is checked too
                    stack.enter_context(locked(head.fileno()))
                stored_head = head.read(_HEAD_BYTES + 1)
            lines = _open_to_read(stack, log)
            size = os.fstat(lines.fileno()).st_size if lines else 0
            stack.pop_all().close()  # the lock: writers need not wait until all lines are read
        return stored_head, _read_lines(log, size) if size else []
    except OSError as error:
        why = error.strerror if isinstance(error, LinkRefused) else error
        raise StoreError(f"the audit log cannot be read ({why}); make it readable") from None


def _open_to_read(stack: ExitStack, path: Path) -> BinaryIO | None:
    try:
        return stack.enter_context(os.fdopen(open_own_file(path), "rb"))
    except FileNotFoundError:
        return None


def _read_lines(log: Path, size_bytes: int) -> list[bytes]:
    with os.fdopen(open_own_file(log), "rb") as file:
        return file.read(size_bytes).splitlines(keepends=True)


# Events to log entries


def acts_outside(hosts: Iterable[str]) -> bool:
    """True if one of these hosts (`fs`, `mcp:git`, …) is more than functions of the notebook."""
    return any(host.partition(":")[0] in _OUTSIDE_HOSTS for host in hosts)


class AuditSink:
    """Writes the tool calls of one run into the audit log of a store's folder."""

    name = "audit"

    def __init__(self, home: Path, *, starts_log: bool = True) -> None:
        """Audit one run.

        Args:
            home: the folder of the store.
            starts_log: True makes the files when the run begins; False with its first line, so
                that a run without calls leaves none.
        """
        self._log = AuditLog(home / FILE_NAME)
        self._is_started = starts_log
        self._failure: str | None = None
        self._workflow_run: str | None = None
        """Id of the run if it is a workflow run."""

    def decided(self, call: ToolCall, context: ToolContext, decision: Decision, binds: str) -> None:
        """Write who allowed a call, and that its tool begins. On the engine thread. Never raises.

        If writing fails, `handle` raises at the next event, before the tool begins. `binds` is the
        hash that an approval is bound to.
        """
        self._attempt(
            lambda: self._log.append(*_entries_before_call(call, context, decision, binds))
        )

    def handle(self, event: Event) -> None:
        """Write the lines of an event: finished calls, and the steps of a workflow run.

        On the engine thread.

        Raises:
            StoreError: these lines, or those of an earlier decision, could not be written. Nothing
                is written after that, and every later event raises again.
        """
        run_id = self._workflow_run
        if isinstance(event, RunStarted):
            self._workflow_run = event.run.id if event.run.workflow else None
            run_entries = [_run_entry(event.run)] if event.run.workflow else []
            # Also without an entry: an unwritable log is reported before the first tool runs.
            if self._is_started:
                self._attempt(lambda: self._log.append(*run_entries))
        elif isinstance(event, ToolCallFinished):
            self._attempt(
                lambda: self._log.append(
                    *_entries_after_call(event, of_workflow=run_id is not None)
                )
            )
        elif isinstance(event, TurnStarted) and run_id is not None:
            self._attempt(lambda: self._log.append(_request_entry(event, run_id)))
        elif isinstance(event, RunFinished):
            if run_id is not None:
                self._attempt(lambda: self._log.append(_stop_entry(event.run)))
            if self._is_started:
                self._attempt(self._log.sync)
        if self._failure is not None:
            raise StoreError(self._failure, details={"reason": "audit"})

    def close(self) -> None:
        """The log keeps no file open."""

    def _attempt(self, action: Callable[[], None]) -> None:
        """Act on the log; after the first failure store its reason and do nothing."""
        if self._failure is not None:
            return
        self._is_started = True
        try:
            action()
        except Exception as error:
            bug = f"{type(error).__name__} in nbagent itself; please report it"
            why = error.message if isinstance(error, StoreError) else bug
            self._failure = f"THIS RUN IS NO LONGER AUDITED: {why}"


def _entries_before_call(
    call: ToolCall, context: ToolContext, decision: Decision, approval_key: str
) -> list[AuditEntry]:
    """Entries of a decided call, written before its tool begins."""
    edited = decision.arguments is not None
    traits = decision.prepared.spec.traits
    call_fields = {
        **_call_ids(context.run_id, context.turn_id, call.id, call.name, traits.host),
        "tool_sha": traits.sha,
        "args_sha": sha_of(decision.arguments if edited else call.arguments),
    }
    approval = {
        "kind": "approval",
        **call_fields,
        **({"asked_args_sha": sha_of(call.arguments)} if edited else {}),
        "by": _short(decision.decided_by),
        "ruling": "denied" if decision.approval == "denied" else "allowed",
        "edited": edited,
        "waited_ms": round(decision.waited_ms, 3),
        **({"binds": approval_key} if approval_key else {}),
    }
    records: list[AuditEntry] = [approval] if decision.decided_by else []
    return (
        records if decision.approval == "denied" else [*records, {"kind": "start", **call_fields}]
    )


def _entries_after_call(event: ToolCallFinished, *, of_workflow: bool = False) -> list[AuditEntry]:
    """Entries of a finished call: its refusal, the call, the write."""
    run, result = event.tool_run, event.tool_run.result or ToolResult(ok=False)
    call_ids = _call_ids(event.run_id, event.turn_id, run.tool_call_id, run.tool_name, run.host)
    call_fields = {**call_ids, "tool_sha": run.tool_sha, "args_sha": sha_of(run.args)}
    error_code = {} if result.ok else {"code": result.error.code if result.error else "E_INTERNAL"}
    is_state_patch = of_workflow and _patches_workflow_document(run)
    transition = _transition(result) if is_state_patch else dict[str, str]()
    records: list[AuditEntry] = []
    if error_code.get("code") in (_STATE_REFUSALS if is_state_patch else _REFUSALS):
        by = {"by": _short(run.approved_by)} if run.approved_by else {}
        records.append({"kind": "refusal", **call_fields, **error_code, **by, **transition})
    outcome: dict[str, Any] = {
        "result_sha": sha_of(load_json(result.to_json())),
        "ok": result.ok,
        **error_code,
        "duration_ms": round(run.duration_ms, 3),
    }
    data = json_object(result.data) or {}
    if run.isolation:
        outcome["isolation"] = _short(run.isolation)
    if result.attachments:
        outcome["attachments_sha"] = sha_of([part.model_dump() for part in result.attachments])
    records.append({"kind": "call", **call_fields, **outcome})
    if run.host == "fs" and isinstance(data.get("path"), str) and "sha256After" in data:
        records.append(
            {
                "kind": "state" if is_state_patch else "write",
                **call_ids,
                "path": redact(data["path"]),
                "sha256_before": data.get("sha256Before"),
                "sha256_after": data["sha256After"],
                "bytes": data.get("bytesWritten"),
                **transition,
            }
        )
    return records


def _patches_workflow_document(run: ToolRun) -> bool:
    """True if a call patches the document of a workflow, however its path is spelled."""
    path = (run.args or {}).get("path")
    named = normpath(path).casefold() if isinstance(path, str) else ""
    return run.host == "fs" and run.tool_name == "fs.apply_patch" and named == _WORKFLOW_DOCUMENT


def _transition(result: ToolResult) -> dict[str, str]:
    """The step change of a patch, made or refused."""
    data = result.data if result.ok else result.error and result.error.details
    transition = json_object((json_object(data) or {}).get("transition")) or {}
    return {
        key: _short(str(transition[key])) for key in ("from", "to", "label") if transition.get(key)
    }


def _run_entry(run: RunRecord) -> AuditEntry:
    workflow = run.workflow and run.workflow.name
    names = {"workflow": workflow, "agent": run.agent, "model": run.model}
    names["parent"] = run.parent_id
    optional = {key: _short(name) for key, name in names.items() if name}
    return {"kind": "run", "run": run.id, "begins": run.kind, **optional}


def _request_entry(event: TurnStarted, run_id: str) -> AuditEntry:
    request = event.request
    return {
        "kind": "request",
        "run": run_id,
        "turn": event.turn_id,
        "system_sha": request.system_sha,
        "toolset_sha": request.toolset_sha,
        "n_messages": request.n_messages,
        "n_new": request.n_new,
        "messages_sha": sha_of([message.model_dump() for message in event.messages]),
    }


def _stop_entry(run: RunRecord) -> AuditEntry:
    end = {"kind": "stop", "run": run.id, "phase": run.phase, "stop_reason": run.stop_reason}
    return {**end, **({"code": run.error.code} if run.error else {})}


def _call_ids(run_id: str, turn_id: str, call_id: str, tool: str, host: str) -> dict[str, str]:
    names = {"call": call_id, "tool": tool, "host": host}
    return {"run": run_id, "turn": turn_id, **{key: _short(name) for key, name in names.items()}}


def _short(text: str) -> str:
    # Names of tools and ids of calls come from the model or the provider: of any length.
    return redact(text)[:_MAX_NAME_CHARS]
