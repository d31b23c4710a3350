"""`%agent doctor`: what was found here, and how clicks, stdin and interrupts will work.

Reads; changes nothing. Keys are named, never shown.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import nbagent
from nbagent.contracts.errors import NbagentError
from nbagent.notebook import kernel
from nbagent.providers.base import find_provider, provider_names
from nbagent.providers.choice import choose_model, qualified
from nbagent.session.front import front
from nbagent.session.stores import current_store
from nbagent.settings import effective, origins, store_home

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
    front()  # in a kernel this opens the ways for clicks, as the first run would
    rows = [*_versions(), *kernel.kernel_facts().items(), *_model(), *_keys(), *_store()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


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
        source = next(origin.source for origin in origins() if origin.name == "model")
        model, why = qualified(settings.model), f"set by {source}"
    else:
        choice = choose_model(os.environ, settings.base_url)
        model, why = choice.model_id, choice.why
    rows = [("model", f"{model} ({why}); another with %%agent --model PROVIDER:MODEL")]
    if settings.base_url is not None:
        rows.append(("server", settings.base_url))
    return rows


def _keys() -> list[tuple[str, str]]:
    providers = [find_provider(name) for name in provider_names()]
    known = list(dict.fromkeys(v for provider in providers for v in provider.key_variables))
    present = [variable for variable in known if os.environ.get(variable, "").strip()]
    if present:
        return [("keys", f"{', '.join(present)} (set; the text is never shown)")]
    return [("keys", f"none; {', '.join(known)} are read from the environment")]


def _store() -> list[tuple[str, str]]:
    try:
        store = current_store()
        kept = [_counted(n, name) for name, n in store.counts().items()]
        size = store.size_bytes() / 1e6
    except NbagentError as error:
        return [("store", f"{store_home()}: {error}")]
    place = store_home() if store.path is not None else "in memory only"
    rows = [("store", f"{place}: {', '.join(kept)}, {size:.1f} MB")]
    if store.warning:
        rows.append(("warning", store.warning))
    return rows


def _counted(n: int, table: str) -> str:
    words = table.replace("_", " ")
    return f"{n:,} {words[:-1] if n == 1 else words}"
