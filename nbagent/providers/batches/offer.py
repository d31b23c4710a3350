"""The batch API of a server, as its row names it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BatchForm = Literal["openai", "anthropic", "google"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffer:
    """Facts about the batch API of one server."""

    form: BatchForm
    """Vendor whose form the API has."""
    price_factor: float = 0.5
    """Price of a token, as a share of the price of a single request."""
    endpoint_prefix: str = "/v1"
    """Path before the endpoint in a file of the form `openai`; it is not that of the base URL."""
