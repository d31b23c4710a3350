"""Providers whose code does not keep its promises."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, cast

from nbagent.contracts.model import ModelInfo, ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.offline import Script
from nbagent.providers.provider import Provider


class Silent(Script):
    """Answers, and lists no models."""

    async def list_models(self) -> list[ModelInfo]:
        sys.exit("no list")


def provider(name: str, opened: Callable[[ProviderConfig], Any]) -> Provider:
    open = cast("Callable[[ProviderConfig], ChatClient]", opened)
    return Provider(name=name, open=open, default_model="x", needs_key=False)


CLOSED = provider("closedwire", lambda config: os.environ["OTHERWIRE_LICENCE"])
SILENT = provider("silentwire", lambda config: Silent(["Hello."], name="silent"))
