"""Which model a run gets when nobody named one, and why.

Order: `LLM_BASE_URL` or a provider's key in the environment, a local Ollama, `offline:demo`.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from nbagent.contracts.canonical import load_json
from nbagent.contracts.chat import ModelInfo
from nbagent.contracts.errors import UsageError
from nbagent.providers.registry import find_provider, provider_names

OFFLINE = "offline:demo"
_OPENAI_URLS = ("OPENAI_BASE_URL", "LLM_BASE_URL")
_PROBE_S = 0.3
_ALL_PROBES_S = 0.25
"""What is left of 0.3 s is for starting and joining the threads."""
_REMEMBER_S = 30.0


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that people run on their own machine."""

    name: str
    base_url: str
    """Where it listens unless it was told otherwise."""
    variable: str
    """The environment variable that names another address."""

    def address(self, environ: Mapping[str, str]) -> str:
        """Where to look for it."""
        return environ.get(self.variable, "").strip() or self.base_url


LOCAL_SERVERS = (
    LocalServer("lmstudio", "http://127.0.0.1:1234/v1", "LMSTUDIO_BASE_URL"),
    LocalServer("vllm", "http://127.0.0.1:8000/v1", "VLLM_BASE_URL"),
    LocalServer("llamacpp", "http://127.0.0.1:8080/v1", "LLAMACPP_BASE_URL"),
)
"""Ollama has rules of its own (`OLLAMA_HOST`)."""


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
        model = first_model(server)
        if model:
            return Choice(f"openai:{model}", base_url, f"the first model of {_host(server)}")
    for name in provider_names():
        provider = find_provider(name)
        named = [v for v in provider.key_variables if environ.get(v, "").strip()]
        if provider.default_model and named and not server:
            return Choice(f"{name}:{provider.default_model}", None, f"{named[0]} is set")
    local = _ollama_url(environ)
    model = first_model(local)
    if model:
        return Choice(f"openai:{model}", local, f"Ollama runs on {_host(local)}")
    return Choice(OFFLINE, None, "no key and no local server was found")


_seen: dict[str, tuple[float, tuple[ModelInfo, ...] | None]] = {}


def first_model(base_url: str) -> str | None:
    """The first model that a server on loopback lists; None for other hosts or no answer."""
    models = _models_at(base_url)
    return models[0].id if models else None


def local_servers(environ: Mapping[str, str], base_url: str | None = None) -> dict[str, str]:
    """Where servers of this machine may be, by provider: those of the table, and the one set."""
    servers = {it.name: it.address(environ) for it in LOCAL_SERVERS}
    servers |= {"ollama": _ollama_url(environ)}
    addresses = [base_url or "", *(environ.get(it, "").strip() for it in _OPENAI_URLS)]
    if named := next(filter(None, addresses), None):
        servers["openai"] = named
    return {name: url for name, url in servers.items() if _is_on_loopback(url)}


def ask_local(
    servers: Mapping[str, str], *, again: bool = True
) -> dict[str, tuple[ModelInfo, ...]]:
    """What servers on loopback list, by provider; only those that answer within 0.3 s in all.

    No key goes along. `again=False` takes what a server listed within the last half minute.
    """
    answers: dict[str, tuple[ModelInfo, ...]] = {}

    def ask(name: str, url: str) -> None:
        models = _models_at(url, again=again)
        if models is not None:
            answers[name] = models

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
    return {name: found[name] for name in servers if name in found}


def _models_at(base_url: str, *, again: bool = False) -> tuple[ModelInfo, ...] | None:
    """The models that a server on loopback lists; None for other hosts or no answer."""
    if not _is_on_loopback(base_url):
        return None
    known = _seen.get(base_url)
    if known and not again and time.monotonic() - known[0] < _REMEMBER_S:
        return known[1]
    models = _ask_models(base_url)
    _seen[base_url] = (time.monotonic(), models)
    return models


def _is_on_loopback(base_url: str) -> bool:
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return False
    return parts.hostname in ("localhost", "127.0.0.1", "::1") and parts.scheme == "http"


def _ask_models(base_url: str) -> tuple[ModelInfo, ...] | None:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=_PROBE_S
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + "/models")
        body = load_json(connection.getresponse().read(1_000_000))
        return tuple(_model(item) for item in body["data"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _model(item: dict[str, Any]) -> ModelInfo:
    # vLLM and LM Studio say how much it takes beside the id, llama.cpp in `meta`.
    name, meta = str(item["id"]), item.get("meta")
    facts: dict[str, Any] = {**meta, **item} if isinstance(meta, dict) else item
    sizes = [facts.get(it) for it in ("context_length", "max_model_len", "n_ctx")]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return ModelInfo(id=name, context_length=known[0] if known else None)


def _ollama_url(environ: Mapping[str, str]) -> str:
    ollama = find_provider("ollama")
    usual = ollama.default_base_url or ""
    try:
        url = ollama.read_url(environ.get("OLLAMA_HOST", "").strip() or usual)
    except UsageError:
        url = usual  # Who asks for Ollama by its name is told.
    return f"{url}/v1"


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
