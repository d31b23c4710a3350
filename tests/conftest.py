"""For every test: no key in the environment, no network but loopback, a process as new.

Also a filter for secrets of its own: what one test hides is plain text in the next one.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts import secrets
from nbagent.providers import default_model
from nbagent.testing import fresh_process

pytest_plugins = ["run_order"]
_KEYS = ("LLM_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "DEEPSEEK_", "AZURE_", "NBAGENT_")
_LOOPBACK = ("127.", "::1", "localhost")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Under nohup, in the background and from cron it is inherited so, also by our children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def closed_world(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Clear keys, close the network; a process as new, with its store under tmp_path."""
    for name in list(os.environ):
        if name.startswith(_KEYS):
            monkeypatch.delenv(name)
    # No model server of the developer's machine takes part in a test.
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    for name in ("LMSTUDIO", "VLLM", "LLAMACPP"):
        monkeypatch.setenv(f"{name}_BASE_URL", "http://127.0.0.1:1/v1")
    # No entry, setting or store of the developer's takes part, and none is left behind.
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / f"xdg-{name.lower()}"))
    # The demo model's pause between two pieces is for people who watch it.
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    if not request.node.get_closest_marker("timed"):  # pyright: ignore[reportUnknownMemberType]
        # On a busy machine a server on loopback may need longer than a person would wait.
        monkeypatch.setattr(default_model, "_PROBE_S", 10.0)
    connect = socket.socket.connect

    def only_loopback(self: socket.socket, address: Any) -> None:
        # The address of a Unix socket is a path.
        host = "" if isinstance(address, str | bytes) else str(address[0])
        if host and not host.startswith(_LOOPBACK):
            raise AssertionError(f"a test reached for {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_loopback)
    monkeypatch.setattr(secrets, "_forms", frozenset[str]())
    monkeypatch.setattr(secrets, "_words", frozenset[str]())
    monkeypatch.setattr(secrets, "_word_names", {})
    monkeypatch.setattr(secrets, "_environment", {})
    with fresh_process(tmp_path / "nbagent-home"):
        yield
