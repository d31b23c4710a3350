"""Which model a run gets when nobody named one, and which servers of this machine answer.

Order: `LLM_BASE_URL` or a provider's key in the environment, a local Ollama, `offline:demo`.
Only loopback is asked, without a key and in under 0.3 s.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from nbagent.contracts.canonical import load_json
from nbagent.contracts.chat import ModelInfo, ProviderConfig
from nbagent.contracts.errors import UsageError
from nbagent.providers.registry import (
    find_provider,
    host_of,
    is_loopback,
    normal_base_url,
    origin,
    provider_names,
)
from nbagent.providers.servers import PROVIDERS

OFFLINE = "offline:demo"
_OPENAI_URLS = ("OPENAI_BASE_URL", "LLM_BASE_URL")
_PROBE_S = 0.3
_ALL_PROBES_S = 0.25
"""What is left of 0.3 s is for starting and joining the threads."""
_REMEMBER_S = 30.0
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, the server that has it, and why it was chosen."""

    model_id: str
    base_url: str | None
    why: str


def qualified(model: str) -> str:
    """A model id with its provider: a bare name means an OpenAI-compatible server."""
    provider, colon, _ = model.partition(":")
    return model if colon and provider in provider_names() else f"openai:{model}"


def choose_model(environ: Mapping[str, str], base_url: str | None = None) -> Choice:
    """The model for a run that names none. Never raises; may ask a server on loopback."""
    server = base_url or environ.get("LLM_BASE_URL", "").strip()
    if server:
        if model := _first_model("openai", server):
            return Choice(f"openai:{model}", base_url, f"the first model of {_place(server)}")
    else:
        for row in PROVIDERS:
            named = [name for name in row.key_variables if environ.get(name, "").strip()]
            if row.default_model and named:
                return Choice(f"{row.name}:{row.default_model}", None, f"{named[0]} is set")
    if (local := local_servers(environ).get("ollama")) and (model := _first_model("ollama", local)):
        return Choice(f"ollama:{model}", None, f"Ollama runs on {_place(local)}")
    return Choice(OFFLINE, None, "no key and no local server was found")


def local_servers(environ: Mapping[str, str], base_url: str | None = None) -> dict[str, str]:
    """Where servers of this machine may be, by provider: those of the table, and the one set."""
    servers: dict[str, str] = {}
    for row in PROVIDERS:
        if row.is_local:
            try:
                config = row.resolve(ProviderConfig(), environ)
            except UsageError:
                continue  # what its variable says is no address
            servers[row.name] = config.base_url or ""
    addresses = [base_url or "", *(environ.get(it, "").strip() for it in _OPENAI_URLS)]
    if named := next(filter(None, addresses), None):
        servers["openai"] = named
    return {name: url for name, url in servers.items() if _on_loopback(url)}


def ask_local(
    servers: Mapping[str, str], *, again: bool = True
) -> dict[str, tuple[ModelInfo, ...]]:
    """What servers on loopback list, by provider; only those that answer within 0.3 s in all.

    `again=False` takes what a server listed within the last half minute.
    """
    answers: dict[str, tuple[ModelInfo, ...] | None] = {}

    def ask(name: str, url: str) -> None:
        answers[name] = _models_at(name, url, again=again)

    deadline = time.monotonic() + _ALL_PROBES_S
    threads = [
        threading.Thread(target=ask, args=one, name="nbagent-probe", daemon=True)
        for one in servers.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # In the order of the servers; one that is late writes into the old dictionary.
    found = dict(answers)
    return {name: models for name in servers if (models := found.get(name)) is not None}


_seen: dict[str, tuple[float, tuple[ModelInfo, ...] | None]] = {}


def _first_model(name: str, base_url: str) -> str | None:
    models = _models_at(name, base_url)
    return models[0].id if models else None


def _models_at(name: str, base_url: str, *, again: bool = False) -> tuple[ModelInfo, ...] | None:
    """The models that a server on loopback lists; None for other hosts or no answer."""
    if not _on_loopback(base_url):
        return None
    known = _seen.get(base_url)
    if known and not again and time.monotonic() - known[0] < _REMEMBER_S:
        return known[1]
    models = _listed_at(name, base_url)
    _seen[base_url] = (time.monotonic(), models)
    return models


def _listed_at(name: str, base_url: str) -> tuple[ModelInfo, ...] | None:
    wires = find_provider(name).wires
    assert wires is not None
    wire = wires(ProviderConfig(base_url=base_url))[0]
    parts = urlsplit(normal_base_url(base_url, home=wire.home, endings=wire.endings))
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=_PROBE_S
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + wire.models_path)
        models, _ = wire.models(load_json(connection.getresponse().read(_MOST_BYTES)))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return tuple(models)


def _on_loopback(base_url: str) -> bool:
    return (origin(base_url) or "").startswith("http:") and is_loopback(host_of(base_url))


def _place(url: str) -> str:
    """Host and port, for a person."""
    return (origin(url) or "").partition("://")[2]
