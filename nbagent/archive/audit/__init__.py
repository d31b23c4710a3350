"""The audit log: what tools with hands did, a line each, chained by hash, beside the store.

Owns `audit.jsonl`, the numbered files before it and `audit.head`. Knows nothing of the store.
"""

from __future__ import annotations

from nbagent.archive.audit.checking import AuditReport, verify_audit
from nbagent.archive.audit.log import AuditLog
from nbagent.archive.audit.sink import AUDITED_HOSTS, AuditSink, is_audited

__all__ = ["AUDITED_HOSTS", "AuditLog", "AuditReport", "AuditSink", "is_audited", "verify_audit"]
