"""The batch APIs that a server's row names: functions of (client, request).

Imports are late: listing the providers must not load the HTTP library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbagent.contracts.model import ChatRequest

if TYPE_CHECKING:
    from nbagent.providers.batches.batch_api import BatchApi
    from nbagent.providers.client import WireClient


def openai_batches(client: WireClient, request: ChatRequest) -> BatchApi:
    """Files and batches of OpenAI, whose endpoints begin with `/v1` at every address."""
    return _of_files(client, request, prefix="/v1")


def azure_batches(client: WireClient, request: ChatRequest) -> BatchApi:
    """Files and batches of Azure (learn.microsoft.com, global batch: `/chat/completions`)."""
    return _of_files(client, request, prefix="")


def _of_files(client: WireClient, request: ChatRequest, *, prefix: str) -> BatchApi:
    from nbagent.providers.batches.batch_api import BatchHttp
    from nbagent.providers.batches.openai_batches import OpenAIBatches

    path, headers = client.endpoint(request)
    return OpenAIBatches(BatchHttp(client, headers), endpoint=f"{prefix}{path}")


def anthropic_batches(client: WireClient, request: ChatRequest) -> BatchApi:
    """Batches of Messages."""
    from nbagent.providers.batches.anthropic_batches import AnthropicBatches
    from nbagent.providers.batches.batch_api import BatchHttp

    path, headers = client.endpoint(request)
    return AnthropicBatches(BatchHttp(client, headers), path=path)


def google_batches(client: WireClient, request: ChatRequest) -> BatchApi:
    """Operations of Gemini."""
    from nbagent.providers.batches.batch_api import BatchHttp
    from nbagent.providers.batches.google_batches import VERSION, GoogleBatches

    _, headers = client.endpoint(request)
    return GoogleBatches(BatchHttp(client, headers, version=VERSION), model=request.model)
