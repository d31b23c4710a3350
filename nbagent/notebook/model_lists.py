"""What servers listed of their models, for completion: kept, and asked only on this machine.

Never keeps a person waiting: a server that does not answer at once is heard the next time.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from itertools import chain

from nbagent.settings import effective

_WAIT_S = 0.12


class _Lists:
    def __init__(self) -> None:
        self.local: dict[str, tuple[str, ...]] = {}
        """By provider, of servers on loopback."""
        self.asking: threading.Thread | None = None


_lists = _Lists()


def known_models() -> list[str]:
    """Every id that was listed; servers on loopback are asked again, without waiting for long."""
    thread = _lists.asking
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_ask_around, name="nbagent-models", daemon=True)
        _lists.asking = thread
        thread.start()
    thread.join(_WAIT_S)
    local = [f"{provider}:{name}" for provider, names in _lists.local.items() for name in names]
    # Nothing was kept where nothing was listed, so it is not loaded for this.
    listed = sys.modules.get("nbagent.session.clients")
    kept = listed.listed_ids.values() if listed is not None else ()
    return list(dict.fromkeys([*local, *chain(*kept)]))


def _ask_around() -> None:
    # No key goes along, and an answer is remembered for half a minute (`providers.choice`).
    with suppress(Exception):
        choice = import_module("nbagent.providers.choice")
        servers = choice.local_servers(os.environ, effective().base_url)
        found = choice.ask_local(servers, again=False)
        _lists.local = {name: tuple(it.id for it in models) for name, models in found.items()}
