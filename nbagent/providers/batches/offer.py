"""The batch API of a server, as its row names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbagent.contracts.model import ChatRequest

if TYPE_CHECKING:
    from nbagent.providers.batches.batch_api import BatchApi
    from nbagent.providers.client import WireClient


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffer:
    """Facts about the batch API of one server."""

    open: Callable[[WireClient, ChatRequest], BatchApi]
    """Open it for requests like this one: of its model, over its wire. A function of
    `server_batches`, or one of another package."""
    price_factor: float = 0.5
    """Price of a token, as a share of the price of a single request."""
