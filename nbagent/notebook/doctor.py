"""`%agent doctor`: what was found here, and how clicks, stdin and interrupts will work.

The report reads only; `compact` gives the store's empty space back. Keys are named, never shown.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nbagent
from nbagent.archive.audit import FILE_NAME as AUDIT_FILE
from nbagent.archive.audit import verify_audit
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.notebook import kernel
from nbagent.providers.choice import choose_model, qualified
from nbagent.providers.registry import find_provider, provider_names
from nbagent.sandbox.script import isolation_level
from nbagent.session.active import at_work
from nbagent.session.frontend import frontend
from nbagent.session.stores import current_store
from nbagent.settings import effective, origins, store_home

_WORTH_BYTES = 100_000
"""Less empty space than this is not worth an offer."""
_PACKAGES = [
    "ipython",
    "ipykernel",
    "jupyterlab",
    "notebook",
    "ipywidgets",
    "anywidget",
    "httpx2",
    "pydantic",
    "pandas",
    "orjson",
    "nest-asyncio2",
]


def report() -> str:
    """The report, one fact a line. What cannot be found out is said in its line."""
    frontend()  # in a kernel this opens the ways for clicks, as the first run would
    facts = [*_versions(), *kernel.kernel_facts().items(), *_model(), *_keys()]
    rows = [*facts, *_hands(), *_store()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {' '.join(value.splitlines())}" for name, value in rows)


def _versions() -> list[tuple[str, str]]:
    found = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    system = f"{platform.python_version()} on {platform.system()}"
    return [("nbagent", nbagent.__version__), ("python", system), ("packages", found)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _model() -> list[tuple[str, str]]:
    """What a cell without --model asks, and why."""
    try:
        settings = effective()
    except NbagentError as error:
        return [("settings", str(error))]
    if settings.model is not None:
        model, why = qualified(settings.model), f"set by {origins()['model'].source}"
    else:
        choice = choose_model(os.environ, settings.base_url)
        model, why = choice.model_id, choice.why
    rows = [("model", f"{model} ({why}); another with %%agent --model PROVIDER:MODEL")]
    if settings.base_url is not None:
        rows.append(("server", settings.base_url))
    return rows


def _keys() -> list[tuple[str, str]]:
    known: dict[str, None] = {}
    broken: list[tuple[str, str]] = []
    for name in provider_names():
        try:
            known |= dict.fromkeys(find_provider(name).key_variables)
        except NbagentError as error:  # of an installed package
            broken.append(("provider", error.message))
    present = [variable for variable in known if os.environ.get(variable, "").strip()]
    if present:
        return [("keys", f"{', '.join(present)} (set; the text is never shown)"), *broken]
    return [("keys", f"none; {', '.join(known)} are read from the environment"), *broken]


def _hands() -> list[tuple[str, str]]:
    """What tools may touch here, and how scripts are kept apart."""
    try:
        settings = effective()
        found = isolation_level(settings.isolation)
        scripts = f"isolation {found.name}: {found.why}"
    except NbagentError as error:
        return [("scripts", str(error))]
    mounts = ["@project (the folder where the kernel began)", *settings.mounts]
    rules = ", ".join(f"{kind}={text}" for kind, text in settings.policy.rules)
    rows = [("files", ", ".join(mounts)), ("scripts", scripts)]
    return rows + ([("rules", rules)] if rules else [])


def _audit(folder: Path) -> list[tuple[str, str]]:
    if not (folder / AUDIT_FILE).exists():
        return []
    found = verify_audit(folder)
    state = f"{_counted(found.lines, 'lines')}, whole" if found else f"NOT WHOLE: {found.why}"
    return [("audit", state)]


def _store() -> list[tuple[str, str]]:
    try:
        store = current_store()
        kept = [_counted(n, name) for name, n in store.counts().items()]
        size, empty = store.database.sizes()
    except NbagentError as error:
        return [("store", str(error))]
    place = store_home() if store.path is not None else "in memory only"
    rows = [("store", f"{place}: {', '.join(kept)}, {_megabytes(size)}")]
    if store.path is not None and empty >= _WORTH_BYTES:
        offer = f"{_megabytes(empty)} of it are empty; `%agent doctor compact` gives them back"
        rows.append(("compact", offer))
    elif store.path is not None:
        rows.append(("compact", "nothing to give back; nbagent.forget(run) deletes runs"))
    rows += [
        ("earlier runs", f"{file} (of an earlier nbagent)") for file in store.database.earlier()
    ]
    if store.warning:
        rows.append(("warning", store.warning))
    return rows + (_audit(store.path.parent) if store.path is not None else [])


def compact() -> str:
    """Give the store's empty space back, and say how much it was.

    Raises:
        UsageError: a run is at work here, or nothing is kept on disk.
        StoreError: another kernel uses the store.
    """
    if at_work():
        raise UsageError("a run is at work; stop it or wait for its end, then compact the store")
    store = current_store()
    if store.path is None:
        raise UsageError("the store is in memory only; there is nothing to compact")
    before = store.database.sizes()[0]
    store.database.compact()
    after = store.database.sizes()[0]
    return f"the store takes {_megabytes(after)} now ({_megabytes(before)} before)"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _counted(n: int, table: str) -> str:
    words = table.replace("_", " ")
    return f"{n:,} {words[:-1] if n == 1 else words}"
