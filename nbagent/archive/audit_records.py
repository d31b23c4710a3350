"""What the audit log says of a run: its calls → records. The one place that knows their keys.

| when | kind | keys |
|---|---|---|
| decided | `approval` | `tool_sha args_sha asked_args_sha? by ruling edited waited_ms binds?` |
| | `start` | `tool_sha args_sha`: it is not denied, so the tool begins now |
| finished | `refusal` | `tool_sha args_sha code by?` |
| | `call` | `tool_sha args_sha result_sha ok code? duration_ms isolation? attachments?` |
| | `write` | `path sha256_before sha256_after bytes`; before is null for a new file |
| opened | `recovery` | `what why`: what `audit` noticed |

All of a run have `run turn call tool host`; the log adds `seq prev at pid sha`. Arguments and
results are in it as hashes only: SHA-256 of their canonical JSON, of a result that of the tool
message's content. `args_sha` is of the arguments that are used, `asked_args_sha` of the model's,
where they were edited. That a tool begins is written before it does, its end after the store has
committed the result: a `start` without a `call` is a tool that its process did not outlive. A
`call` without a `start` was refused, or had broken arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbagent.archive.audit import FILE_NAME, AuditLog, Record
from nbagent.contracts.canonical import json_object, load_json, sha_of
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import StoreError, ToolCode
from nbagent.contracts.events import Event, RunFinished, RunStarted, ToolCallFinished
from nbagent.contracts.ports import Decision, ToolContext
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact

_AUDITED_HOSTS = frozenset(("fs", "skills", "notebook", "nb", "mcp"))
_REFUSALS: frozenset[ToolCode] = frozenset(
    ("E_DENIED", "E_SANDBOX_VIOLATION", "E_READ_LIMIT", "E_WRITE_LIMIT")
)
_MOST_CHARS = 200
_MOST_PATH_CHARS = 4_096


def is_audited(hosts: Iterable[str]) -> bool:
    """Whether a run with tools of these hosts (`fs`, `mcp:git`, …) is audited, all of its calls."""
    return any(host.partition(":")[0] in _AUDITED_HOSTS for host in hosts)


class AuditSink:
    """Writes what a run's tools do into the audit log of a store's folder. One for each run."""

    name = "audit"

    def __init__(self, home: Path, *, on_warning: Callable[[str], None]) -> None:
        """Nothing is opened yet. `on_warning` is called once when the log was changed or cut, and
        at once when a decision could not be written.
        """
        self._log = AuditLog(home / FILE_NAME)
        self._on_warning = on_warning
        self._warned = False
        self._failure: str | None = None

    def decided(
        self, call: ToolCall, spec: ToolSpec, context: ToolContext, decision: Decision, binds: str
    ) -> None:
        """Write who allowed a call, and that its tool begins. On the engine thread. Never raises.

        What cannot be written is a warning, and `handle` raises it. `binds` is the hash that an
        approval is bound to.
        """
        if self._failure is None:
            self._do(lambda: self._log.append(*_before(call, spec, context, decision, binds)))
            if self._failure is not None:
                self._warn(self._failure)

    def handle(self, event: Event) -> None:
        """Write the lines of a finished call. On the engine thread.

        Raises:
            StoreError: they, or those of a decision before, could not be written. Nothing is
                written any more, and every event raises it again.
        """
        if self._failure is None:
            if isinstance(event, RunStarted):
                self._do(self._log.append)  # what cannot be written shows before the first tool
            elif isinstance(event, ToolCallFinished):
                self._do(lambda: self._log.append(*_after(event)))
            elif isinstance(event, RunFinished):
                self._do(self._log.sync)
        if self._failure is not None:
            raise StoreError(self._failure, details={"reason": "audit"})

    def close(self) -> None:
        """The log keeps no file open."""

    def _do(self, action: Callable[[], None]) -> None:
        """Act on the log, and keep what went wrong."""
        try:
            action()
        except StoreError as error:
            self._failure = f"THIS RUN IS NO LONGER AUDITED: {error.message}"
        except Exception as error:
            bug = f"{type(error).__name__} in nbagent itself; please report it"
            self._failure = f"THIS RUN IS NO LONGER AUDITED: {bug}"
        if self._log.warning and not self._warned:
            self._warned = True
            self._warn(self._log.warning)

    def _warn(self, text: str) -> None:
        with suppress(Exception):
            self._on_warning(text)


def _before(
    call: ToolCall, spec: ToolSpec, context: ToolContext, decision: Decision, binds: str
) -> list[Record]:
    """What a decided call leaves in the log before its tool begins."""
    edited = decision.arguments is not None
    used = decision.arguments if edited else call.arguments
    what = {
        **_place(context.run_id, context.turn_id, call.id, call.name, spec.traits.host),
        "tool_sha": spec.traits.sha,
        "args_sha": sha_of(used),
    }
    approval = {
        "kind": "approval",
        **what,
        **({"asked_args_sha": sha_of(call.arguments)} if edited else {}),
        "by": _short(decision.by),
        "ruling": "denied" if decision.approval == "denied" else "allowed",
        "edited": edited,
        "waited_ms": round(decision.waited_ms, 3),
        **({"binds": binds} if binds else {}),
    }
    records: list[Record] = [approval] if decision.by else []
    return records if decision.approval == "denied" else [*records, {"kind": "start", **what}]


def _after(event: ToolCallFinished) -> list[Record]:
    """What a finished call leaves in the log: its refusal, itself, its write."""
    run, result = event.tool_run, event.tool_run.result or ToolResult(ok=False)
    place = _place(event.run_id, event.turn_id, run.tool_call_id, run.tool_name, run.host)
    what = {**place, "tool_sha": run.tool_sha, "args_sha": sha_of(run.args)}
    failed = {} if result.ok else {"code": result.error.code if result.error else "E_INTERNAL"}
    records: list[Record] = []
    if failed.get("code") in _REFUSALS:
        by = {"by": _short(run.approved_by)} if run.approved_by else {}
        records.append({"kind": "refusal", **what, **failed, **by})
    done: dict[str, Any] = {
        "result_sha": sha_of(load_json(result.to_json())),
        "ok": result.ok,
        **failed,
        "duration_ms": round(run.duration_ms, 3),
    }
    data = json_object(result.data) or {}
    if run.isolation:
        done["isolation"] = _short(run.isolation)
    if result.attachments:
        # Of each its own hash: the tool message holds them beside the result.
        done["attachments"] = [sha_of(part.model_dump()) for part in result.attachments]
    records.append({"kind": "call", **what, **done})
    if run.host == "fs" and isinstance(data.get("path"), str) and "sha256After" in data:
        records.append(
            {
                "kind": "write",
                **place,
                "path": redact(data["path"])[:_MOST_PATH_CHARS],
                "sha256_before": data.get("sha256Before"),
                "sha256_after": data["sha256After"],
                "bytes": data.get("bytesWritten"),
            }
        )
    return records


def _place(run_id: str, turn_id: str, call_id: str, tool: str, host: str) -> dict[str, str]:
    names = {"call": call_id, "tool": tool, "host": host}
    return {"run": run_id, "turn": turn_id, **{key: _short(name) for key, name in names.items()}}


def _short(text: str) -> str:
    # Names of tools and ids of calls are the model's and the provider's own words.
    return redact(text)[:_MOST_CHARS]
