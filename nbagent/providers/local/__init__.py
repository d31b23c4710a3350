"""The `local` provider: a GGUF file on disk, served by llama.cpp's own server in a child process.

Owns which file a model id means, and the child: one for each file, shared by all clients of this
process. What is sent to it is Chat Completions; its program is in `serve`, downloads in `pull`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey, redact
from nbagent.providers.chat import PROFILES, Chat
from nbagent.providers.local.pull import HUB, INSTALL, cached, downloaded, refused
from nbagent.providers.registry import Provider, whole_response

PARAMS_VARIABLE = "NBAGENT_LOCAL_PARAMS"
"""Environment variable: a JSON object of llama.cpp's parameters, as xllamacpp's CommonParams names
them, for example `{"n_ctx": 16384, "n_gpu_layers": 0, "cpuparams.n_threads": 4}`."""
_PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", PARAMS_VARIABLE),
)
"""Of this process's environment, no key: what a program and the driver of a graphics card need."""
servers: dict[Path, ServerProcess] = {}
"""The last one of each file."""


class LocalClient:
    """Answers for `local:` models; starts a server for each file that it is asked about."""

    provider = "local"

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._clients: dict[tuple[str, ServerProcess], ChatClient] = {}

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """One request, one whole answer."""
        return await whole_response(self.chat_stream(request), notify)

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """One request, its answer in chunks; the last one has `done` and `response`."""
        path = self._file_of(request.model)
        if path not in servers or not servers[path].alive:
            servers[path] = ServerProcess(path)
        server = servers[path]
        if server.url is None:
            text = f"loading {path.name} ({path.stat().st_size / 1e6:,.1f} MB)"
            yield ChatChunk(notice=ClientNotice("wait", text))
        url = await server.started(self._config.timeout_s)
        key = request.model, server
        if key not in self._clients:
            # Imported late: listing the providers must not load the HTTP library.
            from nbagent.providers.exchange import WireClient

            # No retries: waiting does not bring a process back.
            at = replace(self._config, base_url=f"{url}/v1", api_key=server.key, retries=0)
            self._clients[key] = WireClient(Chat(PROFILES["llamacpp"]), at, provider="local")
        try:
            async with aclosing(self._clients[key].chat_stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ModelError as error:
            if error.status is None:
                await server.check()
            raise

    async def list_models(self) -> list[ModelInfo]:
        """The files in the hub's cache, and those that it has asked, as their servers tell."""
        found = {name: ModelInfo(id=name) for name in downloaded()}
        for (name, server), client in self._clients.items():
            if server.alive:
                [model] = await client.list_models()
                found[name] = model.model_copy(update={"id": name})
        return list(found.values())

    async def close(self) -> None:
        """Stop the servers that it asked."""
        while self._clients:
            (_, server), client = self._clients.popitem()
            await client.close()
            server.stop()

    def _file_of(self, model: str) -> Path:
        """The file that a model's name means. Raises ModelError when it cannot be served."""
        if self._config.base_url:
            raise refused("a local: model has a server of its own; leave out the base URL.")
        if find_spec("xllamacpp") is None:
            raise refused(f"local: models need the package xllamacpp; {INSTALL}.")
        if model.startswith(HUB):
            return cached(model)
        path = Path(os.path.abspath(os.path.expanduser(model)))
        if not os.path.isfile(path):  # also False where a name is too long
            raise refused(f"{model!r} is no file; name a GGUF file, or see %agent pull.")
        return path


class ServerProcess:
    """The child that serves one file. It ends when this process ends, also when it is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = SecretKey(secrets.token_urlsafe(24))
        self.url: str | None = None  # until the file is loaded
        self._lines: deque[str] = deque(maxlen=100)
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self.process = subprocess.Popen(
            # -I: nothing is imported from the current folder or for a PYTHON… variable.
            [sys.executable, "-I", str(Path(__file__).with_name("serve.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=passed | {"GGML_NO_BACKTRACE": "1"},  # else a crash starts a debugger
            start_new_session=True,  # an interrupt of the kernel goes to its whole group
        )
        # With -I the child may not find the packages by itself.
        order = {"path": str(path), "key": self.key.reveal(), "packages": sys.path}
        self._reader = threading.Thread(target=self._read, args=(order,), daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._reader.is_alive()

    async def started(self, within_s: float) -> str:
        """Wait until it answers; returns its address. Raises ModelError when it does not."""
        deadline = time.monotonic() + within_s
        while self.url is None:
            if not self.alive:
                raise self._fault("could not be loaded as a GGUF file")
            if time.monotonic() > deadline:
                text = f"{self.path.name} was not loaded within {within_s:g} s; try again later"
                raise ModelError(f"{text}, or set a longer timeout.", code="LLM_TIMEOUT")
            await asyncio.sleep(0.02)
        return self.url

    async def check(self) -> None:
        """Raise a ModelError with its last lines when the process has ended, or is about to."""
        await asyncio.to_thread(self._reader.join, 0.5)
        if not self.alive:
            raise self._fault("lost its server, which the next request starts anew")

    def stop(self) -> None:
        """End the process, which has nothing to save."""
        self.process.kill()
        self._reader.join()

    def _read(self, order: dict[str, Any]) -> None:
        """Tell the child what to serve, and read what it writes until it ends."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        with self.process, suppress(OSError):  # it has ended already
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
            for line in stdout:
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("http://127.0.0.1:"):
                    self.url = text
                self._lines.append(text)

    def _fault(self, what: str) -> ModelError:
        # What llama.cpp calls an error: `0.00.004.176 E llama_model_load: …`
        errors = [line.split(" E ", 1)[1].strip() for line in self._lines if " E " in line]
        shown = [*dict.fromkeys(errors)][:2] or [*self._lines][-4:]
        said = redact("; ".join(shown)) or "no words"
        return refused(f"{self.path.name} {what} (exit code {self.process.poll()}): {said}")


PROVIDER = Provider(name="local", open=LocalClient, needs_key=False)
