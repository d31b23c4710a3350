"""Batches that the outputs of a saved notebook hold, read-only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nbagent.lab.results import BatchResults
from nbagent.lab.saved_results import SavedResults
from nbagent.lab.stored_batch import StoredBatch
from nbagent.store.batches import batch_doc
from nbagent.store.saved_batches import SavedBatchError, from_notebook_batch, is_batch
from nbagent.store.writer import Store


def notebook_batches(
    documents: Iterable[Any], stores: Sequence[Store]
) -> tuple[dict[str, BatchResults], list[str]]:
    """Read the batches of a notebook by their names; of one that was shown twice the last counts.

    Args:
        documents: those of its outputs' metadata; others than batches are skipped.
        stores: the person's own stores, for a batch of which only the name was saved.

    Returns:
        The batches, and sentences about those that cannot be read.
    """
    batches: dict[str, BatchResults] = {}
    problems: list[str] = []
    for document in documents:
        if not is_batch(document):
            continue
        try:
            saved = from_notebook_batch(document)
        except SavedBatchError as error:
            problems.append(f"a batch was left out: {error}")
            continue
        if not isinstance(saved, str):
            batches[saved.name] = SavedResults(saved)
        elif (stored := _stored(saved, stores)) is not None:
            batches[saved] = stored
        else:
            problems.append(f"of batch {saved!r} only the name was saved, and no store has it")
    return batches, problems


def _stored(name: str, stores: Sequence[Store]) -> StoredBatch | None:
    for store in stores:
        if (doc := batch_doc(store, name)) is not None:
            return StoredBatch(store, name, doc)
    return None
