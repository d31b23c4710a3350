"""The wires that a server's row names: functions of (row, configuration).

A base URL may decide between the wires of one vendor, as at Azure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from nbagent.contracts.model import ProviderConfig
from nbagent.providers.server_row import Server
from nbagent.providers.wires.anthropic import Anthropic
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat import Chat
from nbagent.providers.wires.google import Google
from nbagent.providers.wires.ollama import Ollama
from nbagent.providers.wires.responses import Responses


def chat_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Chat Completions, and Responses if the server has them for some of its models."""
    quirks = row.quirks_for(config.base_url)
    return [Chat(quirks), Responses(quirks)] if quirks.has_responses else [Chat(quirks)]


def responses_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Responses alone."""
    return [Responses(row.quirks_for(config.base_url))]


def azure_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Return the wires of the route in a base URL at Azure.

    The v1 route (`/openai/v1`) takes the deployment as the model and refuses `api-version`. The
    dated route needs `?api-version=…` and has the deployment in the path
    (`/openai/deployments/NAME/chat/completions`); the URL from Azure's portal already holds it.
    """
    parts = urlsplit(config.base_url or "")
    if "api-version=" not in parts.query or "/v1" in parts.path:
        return chat_wires(row, config)
    dated = replace(
        row.quirks,
        default_path="/openai",
        has_responses=False,
        deployment_in_path="/deployments/" not in parts.path,
    )
    return [Chat(dated)]


def anthropic_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Messages, as the vendor's own server or as a compatible one."""
    is_own = not config.base_url or row.is_at(config.base_url)
    return [Anthropic(config.base_url or "", config.headers, is_own_server=is_own)]


def google_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Return Gemini's own wire."""
    return [Google()]


def ollama_wires(row: Server, config: ProviderConfig) -> Sequence[Wire]:
    """Return Ollama's own wire."""
    return [Ollama()]
