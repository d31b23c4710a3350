"""What the audit log says of a run: its calls → records. The one place that knows their keys.

| when | kind | keys |
|---|---|---|
| decided | `approval` | `tool_sha args_sha asked_args_sha? by ruling edited waited_ms binds?` |
| | `start` | `tool_sha args_sha`: it is not denied, so the tool begins now |
| finished | `refusal` | `tool_sha args_sha code by?` |
| | `call` | `tool_sha args_sha result_sha ok code? duration_ms isolation? attachments?` |
| | `write` | `path sha256_before sha256_after bytes?`; before is null for a new file |
| opened | `recovery` | `what why?` or `torn torn_bytes`: what `log` found |

All of a run have `run turn call tool host`; the log adds `seq prev at pid sha`. Arguments and
results are in it as hashes only: SHA-256 of their canonical JSON, of a result that of the tool
message's content.
`args_sha` is of the arguments that are used, `asked_args_sha` of the model's, where they were
edited. A `start` without a `call` is a tool that its process did not outlive. A `call` without a
`start` was refused, had broken arguments, or ran again after such an end, in the next process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbagent.archive.audit.lines import FILE_NAME
from nbagent.archive.audit.log import AuditLog, Record
from nbagent.contracts.canonical import json_object, load_json, sha_of
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import StoreError, ToolCode
from nbagent.contracts.events import Event, RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.ports import Decision, ToolContext
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import redact

AUDITED_HOSTS = frozenset(("fs", "skills", "notebook", "nb", "mcp"))
"""A run with a tool of one of these is audited, with all of its calls."""
_REFUSALS: frozenset[ToolCode] = frozenset(
    ("E_DENIED", "E_SANDBOX_VIOLATION", "E_READ_LIMIT", "E_WRITE_LIMIT")
)
_MOST_CHARS = 200
_MOST_PATH_CHARS = 4_096


def is_audited(hosts: Iterable[str]) -> bool:
    """Whether a run with tools of these hosts (`fs`, `mcp:git`, …) is audited."""
    return any(host.partition(":")[0] in AUDITED_HOSTS for host in hosts)


class AuditSink:
    """Writes what a run's tools do into the audit log of a store's folder. One for each run.

    Also calls of another run, the one that is gone on with, may be handed to it.
    """

    name = "audit"

    def __init__(
        self,
        home: Path,
        *,
        hosts_of: Callable[[str], str],
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take the calls of one run; nothing is opened yet.

        Args:
            home: the store's folder.
            hosts_of: the name of a tool's host, by the tool's name; empty when there is none.
            on_warning: told, once, when the log was found changed or cut, and at once when a
                decision could not be written.
        """
        self._log = AuditLog(home / FILE_NAME)
        self._hosts_of = hosts_of
        self._on_warning = on_warning
        self._warned = False
        self._decided: Counter[tuple[str, str, str]] = Counter()
        """Calls whose approval is written and whose end is not: run, turn, id of the call."""
        self._failure: StoreError | None = None

    def decided(
        self, call: ToolCall, spec: ToolSpec, context: ToolContext, decision: Decision, binds: str
    ) -> None:
        """Write who allowed a call, and that its tool begins. On the engine thread. Never raises.

        What cannot be written is told as a warning, and `handle` raises it.

        Args:
            call: as the model asked for it.
            spec: the definition that was decided about.
            context: of the call; says its run and turn.
            decision: what was said, and the arguments to use instead, if any.
            binds: the hash that an approval is bound to.
        """
        if self._failure is not None:
            return
        try:
            self._log.append(*_records_before(call, spec, context, decision, binds))
            self._decided[context.run_id, context.turn_id, call.id] += 1
        except Exception as error:
            self._failure = _no_longer_audited(error)
            with suppress(Exception):
                self._on_warning(self._failure.message)
        else:
            self._tell_warning()

    def handle(self, event: Event) -> None:
        """Write the lines of a finished call. On the engine thread.

        Raises:
            StoreError: they, or those of a decision before, could not be written. Nothing is
                written any more, and every event raises it again.
        """
        if self._failure is None:
            try:
                self._write(event)
            except Exception as error:
                self._failure = _no_longer_audited(error)
        if self._failure is not None:
            raise StoreError(self._failure.message, details=self._failure.details) from None
        self._tell_warning()

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()

    def _write(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._log.append()  # what cannot be written shows before the first tool runs
        elif isinstance(event, ToolCallFinished):
            key = (event.run_id, event.turn_id, event.tool_run.tool_call_id)
            told = self._decided[key] > 0
            self._log.append(*_records_after(event, self._hosts_of, told=told))
            self._decided[key] -= 1
            if self._decided[key] <= 0:
                del self._decided[key]
        elif isinstance(event, RunFinished):
            self._log.sync()

    def _tell_warning(self) -> None:
        if self._log.warning and not self._warned:
            self._warned = True
            with suppress(Exception):
                self._on_warning(self._log.warning)


def _no_longer_audited(error: Exception) -> StoreError:
    """What is told of a line that could not be written; of no StoreError only the kind."""
    known = isinstance(error, StoreError)
    why = error.message if known else f"{type(error).__name__} in nbagent itself; please report it"
    details = error.details if known else {"reason": "audit"}
    return StoreError(f"THIS RUN IS NO LONGER AUDITED: {why}", details=details)


def _records_before(
    call: ToolCall, spec: ToolSpec, context: ToolContext, decision: Decision, binds: str
) -> list[Record]:
    """What a decided call leaves in the log before its tool begins."""
    edited = decision.arguments is not None
    place = _place(context.run_id, context.turn_id, call.id, call.name, spec.traits.host)
    used = decision.arguments if edited else call.arguments
    what = {**place, "tool_sha": spec.traits.sha, "args_sha": sha_of(used)}
    records: list[Record] = []
    if decision.by:
        asked = {"asked_args_sha": sha_of(call.arguments)} if edited else {}
        told = _approval(decision.by, decision.approval, decision.waited_ms)
        bound = {"binds": binds} if binds else {}
        records.append({"kind": "approval", **what, **asked, **told, **bound})
    if decision.approval != "denied":
        records.append({"kind": "start", **what})
    return records


def _records_after(
    event: ToolCallFinished, hosts_of: Callable[[str], str], *, told: bool
) -> list[Record]:
    """What a finished call leaves: its refusal, itself, its write; its approval if not yet told."""
    run = event.tool_run
    host = hosts_of(run.tool_name)
    place = _place(event.run_id, event.turn_id, run.tool_call_id, run.tool_name, host)
    what = {**place, "tool_sha": run.tool_sha, "args_sha": sha_of(run.args)}
    records: list[Record] = []
    if run.approved_by and not told:
        approval = _approval(run.approved_by, run.approval, run.waited_ms)
        records.append({"kind": "approval", **what, **approval})
    error = None if run.result is None or run.result.ok else run.result.error
    if error is not None and error.code in _REFUSALS:
        by = {"by": _short(run.approved_by)} if run.approved_by else {}
        records.append({"kind": "refusal", **what, "code": error.code, **by})
    records.append({"kind": "call", **what, **_call(run, host)})
    if host == "fs" and (write := _write(run)):
        records.append({"kind": "write", **place, **write})
    return records


def _place(run_id: str, turn_id: str, call_id: str, tool: str, host: str) -> dict[str, Any]:
    return {
        "run": run_id,
        "turn": turn_id,
        "call": _short(call_id),
        "tool": _short(tool),
        "host": _short(host),
    }


def _approval(by: str, approval: str | None, waited_ms: float) -> dict[str, Any]:
    return {
        "by": _short(by),
        "ruling": "denied" if approval == "denied" else "allowed",
        "edited": approval == "edited",
        "waited_ms": round(waited_ms, 3),
    }


def _call(run: ToolRun, host: str) -> dict[str, Any]:
    result = run.result or ToolResult(ok=False)
    told: dict[str, Any] = {"result_sha": result_sha(result), "ok": result.ok}
    if not result.ok:
        told["code"] = result.error.code if result.error else "E_INTERNAL"
    told["duration_ms"] = round(run.duration_ms, 3)
    isolation = (json_object(result.data) or {}).get("isolation")
    if host == "skills" and isinstance(isolation, str):
        told["isolation"] = _short(isolation)
    if result.attachments:
        # Of each its own hash: the tool message holds them beside the result.
        told["attachments"] = [sha_of(part.model_dump()) for part in result.attachments]
    return told


def result_sha(result: ToolResult) -> str:
    """The hash of a result: of the canonical form of its tool message's first text."""
    return sha_of(load_json(result.to_json()))


def _write(run: ToolRun) -> dict[str, Any]:
    """What a tool of the files wrote; empty when it wrote nothing. Also under its older names."""
    data = json_object(run.result.data) if run.result and run.result.ok else None
    if data is None or not isinstance(data.get("path"), str) or "sha256After" not in data:
        return {}
    n_bytes = data.get("bytesWritten")
    return {
        "path": redact(data["path"])[:_MOST_PATH_CHARS],
        "sha256_before": _hash(data.get("sha256Before")),
        "sha256_after": _hash(data["sha256After"]),
        **({"bytes": n_bytes} if isinstance(n_bytes, int) else {}),
    }


def _hash(value: object) -> str | None:
    return _short(value) if isinstance(value, str) else None


def _short(text: str) -> str:
    # Names of tools and ids of calls are the model's and the provider's own words.
    return redact(text)[:_MOST_CHARS]
