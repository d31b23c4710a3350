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

HOSTS = tuple(
    f"{service}.azure.{cloud}"
    for cloud in ("com", "us", "cn")
    for service in ("openai", "cognitiveservices", "services.ai", "models.ai")
)
"""Not all of azure.com: anybody's virtual machine has a name in cloudapp.azure.com."""
KEY_VARIABLES = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")
URL_VARIABLES = ("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT")


def azure_wires(config: ProviderConfig) -> list[Wire]:
    """The wires of the route that the base URL names."""
    parts = urlsplit(config.base_url or "")
    wires: list[Wire] = [Chat(PROFILES["azure"]), Responses()]
    if "api-version=" in parts.query and "/v1" not in parts.path:
        wires = [_Dated(names_deployment="/deployments/" in parts.path)]
    key = config.api_key.reveal() if config.api_key else ""
    has_own = any(name.lower() == "authorization" for name in config.headers)
    # A token of Entra ID has three parts, the first of them JSON in base64.
    if not has_own and not (key.startswith("ey") and key.count(".") == 2):
        for wire in wires:
            wire.key_header, wire.key_prefix = "api-key", ""
    return wires


class _Dated(Chat):
    """The route with a version in its query. `model` in the body is ignored there.

    Args:
        names_deployment: the base URL is the one of a deployment, as the portal shows it.
    """

    def __init__(self, *, names_deployment: bool) -> None:
        super().__init__(PROFILES["azure-dated"])
        self._names_deployment = names_deployment

    def path(self, request: ChatRequest, *, stream: bool) -> str:
        """The deployment is in the path."""
        model = "" if self._names_deployment else f"/deployments/{quote(request.model, safe='')}"
        return model + super().path(request, stream=stream)
