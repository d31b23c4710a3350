"""Keep the fields that nbagent does not read: an answer's id, a fingerprint, its own usage.

They are for a person and never sent back. The parsers name the objects; here they are bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.messages import is_storable_json
from nbagent.contracts.secrets import redact_json
from nbagent.providers.transport.sse import fix_surrogates

MAX_BYTES = 64_000
"""Of all fields of one answer, as JSON."""
OMITTED = "omitted"
"""Field with the names of those that were too large."""
_KNOWN = frozenset({"model", "object", "type", "role", "error"})
"""Fields that the response itself has, or that are the same in each answer."""


class VendorFields:
    """Collects the fields of one answer."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def add(self, part: Mapping[str, Any], *, without: Collection[str]) -> None:
        """Add the fields of one object; a later value replaces an earlier one, null none."""
        for name, value in part.items():
            if value not in (None, "", [], {}) and name not in without and name not in _KNOWN:
                self._fields[name] = value

    def build(self) -> dict[str, Any]:
        """Return the fields that a record can hold, without secrets and within the limit."""
        kept: dict[str, Any] = {}
        omitted: list[str] = []
        left_bytes = MAX_BYTES
        for name, value in self._fields.items():
            field = {name: value}
            size = len(_encoded(field)) if is_storable_json(field) else left_bytes + 1
            if size <= left_bytes:
                left_bytes -= size
                kept |= field
            else:
                omitted.append(name[:80])
        if omitted:
            kept[OMITTED] = omitted[:20]
        return fix_surrogates(redact_json(kept))


def _encoded(field: dict[str, Any]) -> bytes:
    return dump_json(fix_surrogates(field))
