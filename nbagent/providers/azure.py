"""Azure OpenAI: Chat Completions and Responses at a resource of its own, in two routes.

The v1 route takes the deployment as the model; the dated one has it in the path and needs
`?api-version=…` in the base URL (providers.md 5).
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from nbagent.contracts.chat import ChatRequest, ProviderConfig
from nbagent.providers.chat import PROFILES, Chat
from nbagent.providers.responses import Responses
from nbagent.providers.wires import Wire

HOSTS = ("azure.com", "azure.us", "azure.cn")
KEY_VARIABLES = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")
URL_VARIABLES = ("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT")


def azure_wires(config: ProviderConfig) -> list[Wire]:
    """The wires of the route that the base URL names."""
    dated = "api-version=" in urlsplit(config.base_url or "").query
    wires: list[Wire] = [_Dated()] if dated else [Chat(PROFILES["azure"]), Responses()]
    if not _is_token(config):
        for wire in wires:
            wire.key_header, wire.key_prefix = "api-key", ""
    return wires


class _Dated(Chat):
    """The route with a version in its query."""

    endings = ()

    def __init__(self) -> None:
        super().__init__(PROFILES["azure-dated"])

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """The deployment is in the path; `model` in the body is ignored."""
        return f"/deployments/{quote(request.model, safe='')}/chat/completions"


def _is_token(config: ProviderConfig) -> bool:
    """Whether the key is a token of Entra ID: three parts, the first of them JSON in base64."""
    key = config.api_key.reveal() if config.api_key else ""
    return key.startswith("ey") and key.count(".") == 2
