"""Batches at a provider, in the document of the batch whose cases they answer.

Written before a batch is sent and again when its id is known, each time with fsync: a killed
process finds its batch again and sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.store.batches import PROVIDER_BATCHES, batch_doc
from nbagent.store.connections import Connection
from nbagent.store.reader import select_rows
from nbagent.store.rows import text_cell
from nbagent.store.writer import Store, upsert


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderBatch:
    """One batch at a provider."""

    mark: str
    """Text by which the provider's batch is found if its id is not known."""
    server: str
    """Provider, address, model and account: who is asked about it."""
    batch_id: str = ""
    """Id at the provider; empty if it is not known that it was sent."""
    sent_at: float = 0.0
    """Unix time just before it was sent."""
    keys: tuple[str, ...] = ()
    """Keys of its cases in the order of its requests; none if all answers were collected."""
    n_requests: int = 0

    @property
    def custom_ids(self) -> list[str]:
        """Custom ids of its requests, in their order."""
        return [f"{self.mark}-{key}" for key in self.keys]


def waiting_notes(store: Store, name: str) -> tuple[str, ...]:
    """Say which answers of a batch are still at a provider."""
    return tuple(
        f"{batch.n_requests:,} requests are in {batch.batch_id or 'a batch'} of {batch.server}; "
        "executor='provider-batch' collects the answers"
        for batch in provider_batches_of(store, name)
        if batch.keys
    )


def provider_batches_of(store: Store, name: str) -> list[ProviderBatch]:
    """Load the provider batches of a batch, oldest first."""
    doc = batch_doc(store, name) or {}
    listed: list[Any] = doc.get(PROVIDER_BATCHES) or []
    rows = [row for item in listed if (row := json_object(item))]
    return [_from_json(row) for row in rows]


def _from_json(row: dict[str, Any]) -> ProviderBatch:
    batch = ProviderBatch(**row)
    return replace(batch, keys=tuple(batch.keys))


def save_provider_batches(store: Store, name: str, batches: Sequence[ProviderBatch]) -> None:
    """Replace the provider batches of a batch that this process has claimed."""

    def work(c: Connection) -> None:
        for row in select_rows(c, "batches", "WHERE name = ?", (text_cell(name),)):
            doc = {**row.get("doc", {}), PROVIDER_BATCHES: [asdict(batch) for batch in batches]}
            upsert(c, "batches", [{"name": name, "doc": doc, "lease_id": row.get("lease_id")}])

    store.database.transact(work, durable=True)
