"""One sentence for the foot of a saved picture: the record that is in the file with it."""

from __future__ import annotations

from nbagent.settings.sources import current_settings

_NOTES = {
    "all": "This file holds the record of the run, with the results of tools",
    "own": "This file holds the record of the run, without the results of tools",
}


def saved_record_note() -> str:
    """Say which record the output's metadata holds, and how to remove it; empty if none."""
    note = _NOTES.get(current_settings().records, "")
    return note and f"{note}; python -m nbagent strip FILE removes it"
