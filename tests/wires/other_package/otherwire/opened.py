"""A provider that opens its client itself; here to send a header besides its wire's."""

from __future__ import annotations

from dataclasses import replace

from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.provider import Provider
from otherwire import OtherWire


def opened(config: ProviderConfig) -> ChatClient:
    """Called for the first question: only then is the HTTP library imported."""
    from nbagent.providers.client import WireClient

    headers = {**config.headers, "X-Opened": "by itself"}
    return WireClient(OtherWire(), replace(config, headers=headers), provider="openedwire")


PROVIDER = Provider(
    name="openedwire",
    open=opened,
    key_variables=("OTHERWIRE_KEY",),
    base_url_variables=("OTHERWIRE_URL",),
    default_base_url="https://talk.example.org/v1",
    default_model="x",
)
