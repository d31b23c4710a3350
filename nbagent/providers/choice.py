"""Which model a run gets when nobody named one, and why.

Order: `LLM_BASE_URL` or a provider's key in the environment, a local Ollama, `offline:demo`.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from nbagent.contracts.canonical import load_json
from nbagent.providers.registry import find_provider, provider_names

OFFLINE = "offline:demo"
_PROBE_S = 0.3
_REMEMBER_S = 30.0


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


_seen: dict[str, tuple[float, tuple[str, ...]]] = {}


def first_model(base_url: str) -> str | None:
    """The first model that a server on loopback lists; None for other hosts or no answer."""
    return next(iter(local_models(base_url)), None)


def local_models(base_url: str) -> tuple[str, ...]:
    """The models that a server on loopback lists; none for other hosts or no answer."""
    parts = urlsplit(base_url)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1") or parts.scheme != "http":
        return ()
    known = _seen.get(base_url)
    if known and time.monotonic() - known[0] < _REMEMBER_S:
        return known[1]
    models = _ask_models(parts.hostname, parts.port or 80, parts.path.rstrip("/") + "/models")
    _seen[base_url] = (time.monotonic(), models)
    return models


def local_servers(environ: Mapping[str, str], base_url: str | None = None) -> tuple[str, ...]:
    """Where a server of this machine may be: the one that is set, and Ollama's."""
    named = base_url or environ.get("LLM_BASE_URL", "").strip()
    return tuple(url for url in (named, _ollama_url(environ)) if url)


def _ask_models(host: str, port: int, path: str) -> tuple[str, ...]:
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_S)
    try:
        connection.request("GET", path)
        body = load_json(connection.getresponse().read(1_000_000))
        return tuple(str(model["id"]) for model in body["data"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return ()
    finally:
        connection.close()


def _ollama_url(environ: Mapping[str, str]) -> str:
    # OLLAMA_HOST may lack a scheme or name every interface (reference: Ollama's FAQ).
    host = environ.get("OLLAMA_HOST", "").strip() or "127.0.0.1:11434"
    host = host if "://" in host else f"http://{host}"
    parts = urlsplit(host)
    name = "127.0.0.1" if parts.hostname in (None, "0.0.0.0", "::") else parts.hostname
    return f"http://{name}:{parts.port or 11434}/v1"


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
