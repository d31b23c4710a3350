"""Opens the batch API of a client's server, by the form that its row names."""

from __future__ import annotations

from nbagent.contracts.model import ChatRequest
from nbagent.providers.batches.anthropic_batches import AnthropicBatches
from nbagent.providers.batches.batch_api import BatchApi, BatchHttp
from nbagent.providers.batches.google_batches import VERSION, GoogleBatches
from nbagent.providers.batches.offer import BatchOffer
from nbagent.providers.batches.openai_batches import OpenAIBatches
from nbagent.providers.client import WireClient
from nbagent.providers.servers import SERVERS


def open_batch_api(offer: BatchOffer, client: WireClient, request: ChatRequest) -> BatchApi:
    """Open the batch API for requests like this one: of its model, over its wire."""
    path, headers = client.endpoint(request)
    match offer.form:
        case "openai":
            http = BatchHttp(client, headers)
            return OpenAIBatches(http, endpoint=f"{offer.endpoint_prefix}{path}")
        case "anthropic":
            return AnthropicBatches(BatchHttp(client, headers), path=path)
        case "google":
            return GoogleBatches(BatchHttp(client, headers, version=VERSION), model=request.model)


def servers_with_batches() -> list[str]:
    """Return the names of the servers that have a batch API."""
    return [row.name for row in SERVERS if row.batches is not None]
