"""For every test: no key in the environment, no network but loopback, a store of its own.

Also a filter for secrets of its own: what one test hides is plain text in the next one. And what
one test allowed for the session is asked about again.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts import secrets

_KEYS = ("LLM_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "DEEPSEEK_", "AZURE_", "NBAGENT_")
_LOOPBACK = ("127.", "::1", "localhost")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Under nohup, in the background and from cron it is inherited so, also by our children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def closed_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clear keys, close the network, keep the store under tmp_path."""
    for name in list(os.environ):
        if name.startswith(_KEYS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "nbagent-home"))
    # No model server of the developer's machine takes part in a test.
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    for name in ("LMSTUDIO", "VLLM", "LLAMACPP"):
        monkeypatch.setenv(f"{name}_BASE_URL", "http://127.0.0.1:1/v1")
    connect = socket.socket.connect

    def only_loopback(self: socket.socket, address: Any) -> None:
        # The address of a Unix socket is a path.
        host = "" if isinstance(address, str | bytes) else str(address[0])
        if host and not host.startswith(_LOOPBACK):
            raise AssertionError(f"a test reached for {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_loopback)
    settings = sys.modules.get("nbagent.settings")
    if settings is not None:
        vars(settings)["project_folder"].cache_clear()  # a test of its own begins where it is
    listed = sys.modules.get("nbagent.session.listed")
    if listed is not None:
        vars(listed)["_kept"].clear()
    approval = sys.modules.get("nbagent.session.approval")
    if approval is not None:
        approval.forget_approvals()
    # A server of another test had the same port, and said what it does not take.
    for name, learnt in (("refusals", "_known"), ("limits", "_limiters")):
        module = sys.modules.get(f"nbagent.providers.{name}")
        if module is not None:
            vars(module)[learnt].clear()
    monkeypatch.setattr(secrets, "_forms", frozenset[str]())
    monkeypatch.setattr(secrets, "_environment", {})
