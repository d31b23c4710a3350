"""Items of a project's files: settings, servers, models of agents.

A project's files are a stranger's, so an item applies only while the person's entry of the folder
holds exactly its text. Owns the comparison of both, and the form in which a person reads a value.
`NBAGENT_TRUST` and the trust in a folder's store never allow an item.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from nbagent.settings.trust import FolderEntry, TrustItem, entry_of, replace_entry


@dataclass(frozen=True, slots=True)
class ItemState:
    """The state of an item: `new` was never allowed; of `changed` another text was allowed."""

    status: Literal["allowed", "new", "changed"]
    previous: str | None = None
    """The text that was allowed before, so that the difference can be shown; only if changed."""


def state_of(item: TrustItem, entry: FolderEntry | None) -> ItemState:
    """Compare an item with the entry of its folder."""
    previous = entry.allowed.get(item.name) if entry else None
    if previous is None:
        return ItemState("new")
    return ItemState("allowed") if previous == item.text else ItemState("changed", previous)


def current_state(item: TrustItem) -> ItemState:
    """Compare an item with the entry that its folder has now."""
    return state_of(item, entry_of(item.folder))


def allow_item(item: TrustItem) -> None:
    """Allow exactly this text. Call it only if the person decided so.

    Raises OSError if the entry cannot be written.
    """
    entry = entry_of(item.folder) or FolderEntry(str(item.folder.resolve()))
    replace_entry(replace(entry, allowed={**entry.allowed, item.name: item.text}))


def disallow_item(item: TrustItem) -> None:
    """Forget what was allowed of this name. Raises OSError if the entry cannot be written."""
    entry = entry_of(item.folder)
    if entry is not None and item.name in entry.allowed:
        rest = {name: text for name, text in entry.allowed.items() if name != item.name}
        replace_entry(replace(entry, allowed=rest))


def readable(value: Any) -> str:
    """Write a value of a file so that nothing in it is invisible; different values stay different.

    A text is written as it is, with escapes for all that does not print; other values as JSON.
    """
    if not isinstance(value, str):
        text = json.dumps(value, indent=2 if isinstance(value, dict) else None, ensure_ascii=False)
        return _printable(text, lambda c: json.dumps(c)[1:-1])
    text = value.replace("\\", "\\\\")
    return _printable(text, lambda c: c.encode("unicode_escape").decode())


def _printable(text: str, escape: Callable[[str], str]) -> str:
    return "".join(c if c.isprintable() or c == "\n" else escape(c) for c in text)
