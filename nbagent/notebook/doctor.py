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
from nbagent.session.stores import current_store
from nbagent.settings import effective, store_home

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
    """The report, one fact a line."""
    rows = [*_versions(), *_kernel(), *_models(), *_store()]
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
        return "(not here)"


def _kernel() -> list[tuple[str, str]]:
    return list(kernel.kernel_facts().items())


def _models() -> list[tuple[str, str]]:
    settings = effective()
    keys = [
        variable
        for name in provider_names()
        for variable in find_provider(name).key_variables
        if os.environ.get(variable, "").strip()
    ]
    if settings.model is not None:
        model = f"{qualified(settings.model)} (from the settings)"
    else:
        choice = choose_model(os.environ, settings.base_url)
        model = f"{choice.model_id}: {choice.why}"
    return [
        ("model", model),
        ("keys", f"{', '.join(dict.fromkeys(keys))} (set; not shown)" if keys else "none set"),
    ]


def _store() -> list[tuple[str, str]]:
    try:
        store = current_store()
    except NbagentError as error:
        return [("store", f"{store_home()}: {error}")]
    counts = ", ".join(f"{n:,} {name}" for name, n in store.counts().items())
    rows = [("store", f"{store_home()}, {store.size_bytes() / 1e6:.1f} MB, {counts}")]
    if store.warning:
        rows.append(("warning", store.warning))
    return rows
