"""Saved batches as a person reads them: of a baseline's file, or of a saved notebook. Read-only."""

from __future__ import annotations

import os

from nbagent.lab.baseline_files import load_batch
from nbagent.lab.results import CaseResults
from nbagent.run import public_names
from nbagent.store.saved_batches import SavedBatch
from nbagent.view.text_format import pluralize


class SavedResults(CaseResults):
    """Batch of a file: its cases and scores. Its runs are in the store of who saved it."""

    def __init__(self, saved: SavedBatch) -> None:
        """Show what was saved."""
        super().__init__(saved.name, saved.results, saved.axes)
        self.notes = saved.notes
        """Sentences that say what was left out of the file."""

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them."""
        return public_names(super().__dir__(), set())

    def __repr__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<SavedResults {self.name}, {pluralize(len(self), 'case')}{notes}>"


def read_batch(path: str | os.PathLike[str]) -> SavedResults:
    """Read a batch that `batch.save("baseline.json")` wrote: `frame()`, `compare()`, `diff()`.

    It is read as data, whoever wrote it; nothing in it is run, asked or stored.

    Raises:
        UsageError: it cannot be read, is damaged, or was saved by a newer version.
    """
    return SavedResults(load_batch(path))
