"""What servers listed of their models, for completion: kept, and asked only on this machine.

Never keeps a person waiting: a server that does not answer at once is heard the next time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

from nbagent.settings import effective

_WAIT_S = 0.12


class _Lists:
    def __init__(self) -> None:
        self.by_provider: dict[str, tuple[str, ...]] = {}
        self.local: dict[str, tuple[str, ...]] = {}
        """By server, of servers on loopback."""
        self.asking: threading.Thread | None = None


_lists = _Lists()


def remember_models(provider: str, names: Iterable[str]) -> None:
    """Keep what a provider listed."""
    _lists.by_provider[provider] = tuple(names)


def known_models() -> list[str]:
    """Every id that was listed; servers on loopback are asked again, without waiting for long."""
    thread = _lists.asking
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_ask_around, name="nbagent-models", daemon=True)
        _lists.asking = thread
        thread.start()
    thread.join(_WAIT_S)
    local = [f"openai:{name}" for names in _lists.local.values() for name in names]
    kept = [f"{p}:{name}" for p, names in _lists.by_provider.items() for name in names]
    return list(dict.fromkeys([*local, *kept]))


def _ask_around() -> None:
    # No key goes along, and an answer is remembered for half a minute (`providers.choice`).
    with suppress(Exception):
        choice = import_module("nbagent.providers.choice")
        servers = choice.local_servers(os.environ, effective().base_url)
        _lists.local = {url: choice.local_models(url) for url in servers}
