"""What the audit log says of a run: its events → records. The one place that knows their keys.

| kind | keys |
|---|---|
| `approval` | `tool host tool_sha args_sha by ruling edited waited_ms binds?` |
| `refusal` | `tool host tool_sha args_sha code by?` |
| `call` | `tool host tool_sha args_sha result_sha ok code? duration_ms isolation? attachments?` |
| `write` | `tool host path sha256_before sha256_after bytes?`; before is null for a new file |
| `recovery` | `what why?` or `torn torn_bytes`: what `log` found when it was opened |

All of a run have `run turn call`; the log adds `seq prev at pid sha`. Arguments and results are in
it as hashes only: SHA-256 of their canonical JSON, of a result that of the tool message's content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nbagent.archive.audit.lines import FILE_NAME
from nbagent.archive.audit.log import AuditLog, Record
from nbagent.contracts.canonical import json_object, load_json, sha_of
from nbagent.contracts.errors import StoreError, ToolCode
from nbagent.contracts.events import Event, RunFinished, RunStarted, ToolCallFinished
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
    """Writes what a run's tools did into the audit log of a store's folder. One for each run."""

    name = "audit"

    def __init__(
        self,
        home: Path,
        *,
        hosts_of: Callable[[str], str],
        binds_of: Callable[[str], str] = lambda tool_call_id: "",
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Take the events of one run; nothing is opened yet.

        Args:
            home: the store's folder.
            hosts_of: the name of a tool's host, by the tool's name; empty when there is none.
            binds_of: the hash that an approval was bound to, by the id of the call.
            on_warning: told, once, when the log was found changed or cut.
        """
        self._log = AuditLog(home / FILE_NAME)
        self._hosts_of = hosts_of
        self._binds_of = binds_of
        self._on_warning = on_warning
        self._warned = False
        self._failed = False

    def handle(self, event: Event) -> None:
        """Write the lines of a finished call. On the engine thread.

        Raises:
            StoreError: they could not be written. Once; after that, nothing is written any more.
        """
        if self._failed:
            return
        try:
            if isinstance(event, RunStarted):
                self._log.append()  # what cannot be written shows before the first tool runs
            elif isinstance(event, ToolCallFinished):
                self._log.append(*records_of(event, self._hosts_of, self._binds_of))
            elif isinstance(event, RunFinished):
                self._log.sync()
        except StoreError as error:
            self._failed = True
            raise StoreError(
                f"THIS RUN IS NO LONGER AUDITED: {error.message}", details=error.details
            ) from None
        if self._log.warning and not self._warned:
            self._warned = True
            self._on_warning(self._log.warning)

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()


def records_of(
    event: ToolCallFinished,
    hosts_of: Callable[[str], str],
    binds_of: Callable[[str], str] = lambda tool_call_id: "",
) -> list[Record]:
    """What a finished call leaves in the log: its approval, its refusal, itself, its write."""
    run = event.tool_run
    host = hosts_of(run.tool_name)
    place = {
        "run": event.run_id,
        "turn": event.turn_id,
        "call": _short(run.tool_call_id),
        "tool": _short(run.tool_name),
        "host": _short(host),
    }
    what = {**place, "tool_sha": run.tool_sha, "args_sha": sha_of(run.args)}
    records: list[Record] = []
    if run.approved_by:
        binds = binds_of(run.tool_call_id)
        records.append({"kind": "approval", **what, **_approval(run, binds)})
    error = None if run.result is None or run.result.ok else run.result.error
    if error is not None and error.code in _REFUSALS:
        by = {"by": _short(run.approved_by)} if run.approved_by else {}
        records.append({"kind": "refusal", **what, "code": error.code, **by})
    records.append({"kind": "call", **what, **_call(run, host)})
    if host == "fs" and (write := _write(run)):
        records.append({"kind": "write", **place, **write})
    return records


def _approval(run: ToolRun, binds: str) -> dict[str, Any]:
    return {
        "by": _short(run.approved_by or ""),
        "ruling": "denied" if run.approval == "denied" else "allowed",
        "edited": run.approval == "edited",
        "waited_ms": round(run.waited_ms, 3),
        **({"binds": binds} if binds else {}),
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
