"""A model for llama.cpp's own server, written once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # numpy and gguf are loaded only for the tests that ask such a server.
    from servers.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
