"""The question of `%agent trust`: what a folder would decide, and what the person allows.

Only a person answers it: nothing is decided without a terminal, in nbclient, or while a run is at
work. `store.home` decides by the entries that are written here.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from nbagent import runtime
from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.session.active_run import active_runs
from nbagent.session.frontend import frontend
from nbagent.session.project_trust import ignored_text, trust_items
from nbagent.session.stores import current_store, drop_store, has_store, take_over_store
from nbagent.settings.project_items import allow_item, current_state, disallow_item
from nbagent.settings.sources import project_file_error, project_folder, store_home
from nbagent.settings.trust import (
    FolderEntry,
    TrustItem,
    delete_entry,
    entry_file,
    entry_of,
    new_store_id,
    replace_entry,
)
from nbagent.store.connections import FILE_NAME
from nbagent.store.home import (
    StoreHome,
    current_home,
    not_lasting,
    short_path,
    stand_in_of,
    useless_trusted_paths,
)
from nbagent.store.record_cells import from_us
from nbagent.store.store_facts import read_facts
from nbagent.view.text_format import format_start, pluralize

_WITHOUT_PERSON = (
    "nobody can answer here: the question needs a notebook with a front end, or a terminal "
    "(`python -m nbagent trust`). Jobs without a person set NBAGENT_HOME to a folder of their "
    "own, or NBAGENT_TRUST to the folders whose store they trust"
)


def trust_line() -> str:
    """Say whether the store is the person's own, and why not, in one line."""
    return ". ".join(filter(None, (_store_trust(current_home()), useless_trusted_paths())))


def _store_trust(home: StoreHome) -> str:
    where = short_path(home.folder)
    if not home.is_own:
        return (
            f"the store in {where} is not yours: {home.why_not}; runs are kept in "
            f"{short_path(stand_in_of(home.folder))}. `%agent trust` takes it over"
        )
    rest = not_lasting(home.folder)
    if has_store():
        text = f"the store is yours ({_proof(home)})"
    else:
        text = f"there is no store yet; the first run creates one in {where} that is yours"
    return f"{text}. {rest}" if rest else text


def _proof(home: StoreHome) -> str:
    if home.store_id and entry_of(home.folder):
        return "its id is in your configuration folder; `%agent trust --revoke` takes it back"
    chosen = os.environ.get("NBAGENT_HOME")
    if chosen and os.path.realpath(store_home()) == str(home.folder):
        return "NBAGENT_HOME names it"
    return "this process created it" if home.store_id else "NBAGENT_TRUST names its folder"


def ask_for_trust(show: Callable[[str], None]) -> str:
    """Show what this folder would decide, and ask the person about each part.

    Returns:
        What was decided, in a few lines.

    Raises:
        UsageError: there is nobody to ask, or the decision cannot be written.
        StoreError: the store cannot be taken over.
    """
    if runtime.inside_a_tool() or runtime.on_engine_thread():
        raise UsageError("%agent trust asks a person, so it cannot be used inside a tool call")
    home, all_items = current_home(), trust_items()
    items = [item for item in all_items if current_state(item).status != "allowed"]
    if not home.is_own and os.path.islink(store_home()):
        raise UsageError(
            f"{store_home()} is a link; set NBAGENT_HOME to {os.path.realpath(store_home())} "
            "before the kernel starts to use the store there, or delete the link"
        )
    notes = _notes(home, [item for item in all_items if item not in items])
    if home.is_own and not items:
        return "\n".join([f"{trust_line()}. There is nothing to ask.", *notes])
    _require_no_run()
    if frontend().input_prompt() is None:
        # To look needs nobody.
        show("\n".join([*_descriptions(home, items), *notes]))
        raise UsageError(_WITHOUT_PERSON)
    lines: list[str] = []
    descriptions = iter(_descriptions(home, items))
    if not home.is_own:
        show(next(descriptions))
        if _says_yes("Take over this store with all its runs? [y/N] "):
            lines.append(take_over(home))
        else:
            lines.append(f"{short_path(home.folder)} stays as it is.")
    for item in items:
        show(next(descriptions))
        lines.append(_decide_item(item, _says_yes(f"Allow {item.name}? [y/N] ")))
    return "\n".join([*lines, *notes])


def _descriptions(home: StoreHome, items: Sequence[TrustItem]) -> list[str]:
    """Describe each part that is asked about."""
    store = [] if home.is_own else [_describe_store(home)]
    return [*store, *(_describe_item(item, current_state(item).previous) for item in items)]


def _notes(home: StoreHome, allowed: Sequence[TrustItem]) -> list[str]:
    """What is decided already, and what is never used."""
    error = project_file_error()
    return [
        *(f"Allowed: {item.name}\n{_indented(item.text)}" for item in allowed),
        *filter(None, [f"No run starts here: {error}" if error else ignored_text()]),
        *([] if home.is_own else filter(None, [useless_trusted_paths()])),
    ]


def take_over(home: StoreHome) -> str:
    """Make a stranger's store the person's own, with all its runs."""
    store_id = new_store_id()
    with_runs = pluralize(take_over_store(home.folder, store_id), "run")
    before = entry_of(home.folder)
    entry = FolderEntry(str(home.folder), store_id, before.allowed if before else {})
    try:
        replace_entry(entry)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"{_entry_name(home.folder)} cannot be written ({describe_error(error)}), so the store "
            "is not taken over. Make that folder writable, or set NBAGENT_TRUST to "
            f"{home.folder.parent} before the kernel starts"
        ) from None
    drop_store(home.folder)
    stand_in = stand_in_of(home.folder)
    note = (
        f" Runs that were made meanwhile stay in {short_path(stand_in)}; "
        f"nbagent.runs(store={str(stand_in)!r}) reads them."
        if _has_runs(stand_in)
        else ""
    )
    return f"{short_path(home.folder)} is your store now, with {with_runs}.{note}"


def _has_runs(folder: Path) -> bool:
    try:
        facts = read_facts(folder / FILE_NAME, count=True)
    except (NbagentError, OSError):
        return True  # perhaps
    return facts is not None and facts.runs > 0


def revoke_trust() -> str:
    """Delete the entries of this folder, and change the id of its store, so that no copy fits."""
    if runtime.inside_a_tool():
        raise UsageError("%agent trust --revoke cannot be used inside a tool call")
    home, project = current_home(), project_folder()
    places = dict.fromkeys((home.folder, project, *(item.folder for item in trust_items())))
    folders = [folder for folder in places if entry_of(folder) is not None]
    if home.is_own and home.store_id and (home.folder / FILE_NAME).is_file():
        _require_no_run()
        store = current_store()
        if store.path is not None:
            store.set_store_id(new_store_id())
    try:
        for folder in folders:
            delete_entry(folder)
    except OSError as error:
        raise UsageError(
            f"{_entry_name(home.folder)} cannot be deleted ({describe_error(error)}); make that "
            "folder writable"
        ) from None
    drop_store(home.folder)
    if not folders:
        return "there was nothing to take back: you allowed nothing in this folder"
    # Of a project and the store in it the project is named.
    names = dict.fromkeys(
        short_path(folder.parent if folder == home.folder else folder) for folder in folders
    )
    note = (
        " Its runs stay there and can be read; new ones are kept in your data folder."
        if home.folder in folders and not current_home().is_own
        else ""
    )
    return f"took back what you allowed in {', '.join(names)}.{note}"


def _entry_name(folder: Path) -> str:
    try:
        return f"your entry {short_path(entry_file(folder))}"
    except RuntimeError:
        return "your entry of this folder, without a home folder,"


def _require_no_run() -> None:
    if active_runs():
        raise UsageError("a run is at work; wait for it or stop it (%agent stop), then repeat this")


def _says_yes(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        raise UsageError(_WITHOUT_PERSON) from None


def _describe_store(home: StoreHome) -> str:
    lines = [f"Store  {home.folder}", f"  not yours: {home.why_not}"]
    try:
        facts = read_facts(home.folder / FILE_NAME, count=True)
        if facts is not None:
            last = (
                f", the last of {format_start(from_us(facts.last_run_us))}"
                if (facts.last_run_us is not None and 0 <= facts.last_run_us < 1 << 52)
                else ""
            )
            lines.append(f"  {pluralize(facts.runs, 'run')}{last}")
    except (NbagentError, OSError) as error:
        lines.append(f"  {describe_error(error)}")
    lines += [
        "  If you take it over, its runs are yours to list, continue and delete, and new runs are "
        "kept in it.",
        "  Its runs bring no server, key, model, tool, mount, prompt or rule into a run that "
        "continues them.",
    ]
    return "\n".join(lines)


def _describe_item(item: TrustItem, before: str | None) -> str:
    if before is None:
        return f"{item.name}\n{_indented(item.text)}"
    lines = difflib.unified_diff(
        before.splitlines(), item.text.splitlines(), "allowed before", "now", lineterm=""
    )
    return f"{item.name} has changed since you allowed it\n" + _indented("\n".join(lines))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _decide_item(item: TrustItem, is_allowed: bool) -> str:
    try:
        (allow_item if is_allowed else disallow_item)(item)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"{item.name} cannot be decided: {_entry_name(item.folder)} cannot be written "
            f"({describe_error(error)})"
        ) from None
    return f"{item.name} is {'allowed' if is_allowed else 'not used'}."
