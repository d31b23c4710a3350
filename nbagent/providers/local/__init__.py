"""The `local` provider: a GGUF file, served by llama.cpp's own server in a child process.

Owns the file of a model id, and the child processes: one per file, shared by all clients of this
process. Requests are Chat Completions; the child's program is `serve`. Files of the Hugging Face
hub are read from its cache; only `%agent pull` downloads, by `huggingface_hub` with its cache,
progress bar, `HF_ENDPOINT` and `HF_TOKEN`. The package resumes after a broken connection; a
download that was stopped starts again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbagent.contracts.chat_doors import ChatDoors
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ModelError
from nbagent.contracts.model import (
    ChatRequest,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
)
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey, register_secret
from nbagent.providers.provider import Provider
from nbagent.providers.servers import built_in_server
from nbagent.providers.transport.sse import safe_line
from nbagent.providers.wires.chat import Chat

_QUIRKS = built_in_server("llamacpp").quirks
HUB = "hf:"
_PART = r"\w[\w.-]*"
_OWNER = r"(?![^/]*(?:--|\.\.|\.git/))\w(?:[\w.-]{0,94}\w)?"
"""Owner and repository names that the hub accepts."""
_NAME = re.compile(rf"(?:local:)?(?:{HUB})?({_OWNER}/{_OWNER})/((?:{_PART}/)*{_PART}\.gguf)")
INSTALL = "%pip install xllamacpp huggingface_hub"
SUGGESTED = """\
%agent pull OWNER/REPO/FILE.gguf downloads a model from the Hugging Face hub. Small models that
llama.cpp's documentation names for tool calls (docs/function-calling.md of ggml-org/llama.cpp);
the makers of nbagent have not tried them:

  ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf            native tool calls
  bartowski/gemma-2-2b-it-GGUF/gemma-2-2b-it-Q8_0.gguf                  generic, 2.78 GB
  bartowski/Qwen2.5-7B-Instruct-GGUF/Qwen2.5-7B-Instruct-Q4_K_M.gguf    native, 4.68 GB

Sizes are those on the hub's pages; the size is shown before a download begins."""
"""Text of `%agent pull` without a name.

Read at commit edb465a901a36028919c4c4a3715b47bb8c88687 of https://github.com/ggml-org/llama.cpp,
which names repository and quantisation; file names are those of the repositories.
"""
PARAMS_VARIABLE = "NBAGENT_LOCAL_PARAMS"
"""Environment variable: a JSON object of llama.cpp's parameters, as xllamacpp's CommonParams names
them, for example `{"n_ctx": 16384, "n_gpu_layers": 0, "cpuparams.n_threads": 4}`."""
_PASSED_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", PARAMS_VARIABLE),
)
"""Environment variables for the child: what a program and a graphics driver need, and no key."""
servers: dict[Path, ServerProcess] = {}
"""The current process of each file; module-wide, so that agents share a loaded model."""


class LocalClient(ChatDoors):
    """Answers for `local:` models; starts a server for each file."""

    provider = "local"

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._clients: dict[tuple[str, ServerProcess], ChatClient] = {}

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Send one request; yield its answer. It always streams: a stop ends it sooner."""
        path = self._model_file(request.model)
        if path not in servers or not servers[path].alive:
            servers[path] = ServerProcess(path)
        server = servers[path]
        if server.url is None:
            text = f"loading {path.name} ({path.stat().st_size / 1e6:,.1f} MB)"
            yield ClientNotice("wait", text)
        url = await server.started(self._config.timeout_s)
        key = request.model, server
        if key not in self._clients:
            # Late import: listing the providers must not load the HTTP library.
            from nbagent.providers.client import WireClient

            # No retries: waiting does not restart a process.
            at = replace(self._config, base_url=f"{url}/v1", api_key=server.key, retries=0)
            self._clients[key] = WireClient(Chat(_QUIRKS), at, provider="local")
        try:
            async with aclosing(self._clients[key].send(request, stream=True)) as deltas:
                async for delta in deltas:
                    yield delta
        except ModelError as error:
            if error.status is None:
                await server.check()
            raise

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """True as for llama.cpp's server."""
        return Chat(_QUIRKS).has_schema_mode(request)

    async def list_models(self) -> list[ModelInfo]:
        """List the files in the hub's cache, and the loaded ones as their servers describe them."""
        models = {name: ModelInfo(id=name) for name in downloaded()}
        for (name, server), client in self._clients.items():
            if server.alive:
                [model] = await client.list_models()
                models[name] = model.model_copy(update={"id": name})
        return list(models.values())

    async def close(self) -> None:
        """Stop the servers that this client used."""
        while self._clients:
            (_, server), client = self._clients.popitem()
            await client.close()
            server.stop()

    def _model_file(self, model: str) -> Path:
        """Return the file of a model. Raises ModelError if it cannot be served."""
        if self._config.base_url:
            raise _cannot_serve("a local: model has its own server; leave out the base URL.")
        if find_spec("xllamacpp") is None:
            raise _cannot_serve(f"local: models need the package xllamacpp; {INSTALL}.")
        if model.startswith(HUB):
            return cached_file(model)
        path = Path(os.path.abspath(os.path.expanduser(model)))
        if not os.path.isfile(path):  # Also False for a name that is too long.
            raise _cannot_serve(f"{model!r} is not a file; name a GGUF file, or see %agent pull.")
        return path


class ServerProcess:
    """The child that serves one file. It ends with this process, also if this one is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = SecretKey(secrets.token_urlsafe(24))
        self.url: str | None = None  # until the file is loaded
        self._lines: deque[str] = deque(maxlen=100)
        passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        self.process = subprocess.Popen(
            # -I: no imports from the current folder or because of a PYTHON… variable.
            [sys.executable, "-I", str(Path(__file__).with_name("serve.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=passed | {"GGML_NO_BACKTRACE": "1"},  # Otherwise a crash starts a debugger.
            start_new_session=True,  # An interrupt of the kernel must not reach it.
        )
        # With -I the child may not find the packages. The key goes through the pipe, because other
        # users can read command lines.
        job = {"path": str(path), "key": self.key.reveal(), "packages": sys.path}
        self._reader = threading.Thread(target=self._read, args=(job,), daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._reader.is_alive()

    async def started(self, within_s: float) -> str:
        """Wait until it answers; return its URL. Raises ModelError if it does not."""
        deadline = time.monotonic() + within_s
        while self.url is None:
            if not self.alive:
                raise self._failure("could not be loaded as a GGUF file")
            if time.monotonic() > deadline:
                text = f"{self.path.name} was not loaded within {within_s:g} s; try again later"
                raise ModelError(f"{text}, or set a longer timeout.", code="LLM_TIMEOUT")
            await asyncio.sleep(0.02)
        return self.url

    async def check(self) -> None:
        """Raise a ModelError with its last lines if the process has ended or is about to."""
        await asyncio.to_thread(self._reader.join, 0.5)
        if not self.alive:
            raise self._failure("lost its server; the next request starts it again")

    def stop(self) -> None:
        """End the process, which has nothing to save."""
        self.process.kill()
        self._reader.join()

    def _read(self, job: dict[str, Any]) -> None:
        """Send the child its job, and read its output until it ends."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        with self.process, suppress(OSError):  # It may have ended already.
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
            for line in stdout:
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("http://127.0.0.1:"):
                    self.url = text
                self._lines.append(text)

    def _failure(self, problem: str) -> ModelError:
        # llama.cpp marks errors with E: `0.00.004.176 E llama_model_load: …`
        errors = [line.split(" E ", 1)[1].strip() for line in self._lines if " E " in line]
        shown = [*dict.fromkeys(errors)][:2] or [*self._lines][-4:]
        output = "; ".join(shown) or "no output"
        return _cannot_serve(
            f"{self.path.name} {problem} (exit code {self.process.poll()}): {output}"
        )


def pull(name: str, report: Callable[[str], None]) -> str:
    """Download OWNER/REPO/FILE.gguf, unless it is in the cache; return its model id.

    `report` is given one line at a time: the size before the download, the id after it.
    """
    repo, file = split_name(name)
    hub = _hub()
    endpoint = os.environ.get("HF_ENDPOINT") or None
    local_path: object = None
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # It logs each attempt; one error after the last is enough.
    try:
        url = hub.hf_hub_url(repo, file, endpoint=endpoint)
        offered = hub.get_hf_file_metadata(url, endpoint=endpoint)
        # The package uses them as folder names: a hostile hub could name a path outside the cache.
        for identifier in (offered.etag, offered.commit_hash):
            if re.fullmatch(_PART, identifier or "") is None:
                raise ValueError(f"the hub names its content {identifier!r}, which is not a hash.")
        local_path = hub.try_to_load_from_cache(repo, file, revision=offered.commit_hash)
        if not isinstance(local_path, str):
            report(f"downloading {file} ({(offered.size or 0) / 1e6:,.1f} MB) from {repo}")
        hub.hf_hub_download(repo, file, endpoint=endpoint)
    except Exception as error:  # Many kinds of OSError and ValueError.
        local_path = hub.try_to_load_from_cache(repo, file)
        if not isinstance(local_path, str):
            register_secret(os.environ.get("HF_TOKEN", ""))
            reason = safe_line(str(error), 400) or type(error).__name__
            raise _cannot_serve(
                f"{repo}/{file} was not downloaded: {reason.rstrip('.')}. Check the name and the"
                " connection; for a repository that is not public set HF_TOKEN."
            ) from error
    finally:
        log.setLevel(level)
    model_id = f"local:{HUB}{repo}/{file}"
    report(f"{'already here' if isinstance(local_path, str) else 'downloaded'}: --model {model_id}")
    return model_id


def cached_file(name: str) -> Path:
    """Return a hub file's path in the cache. Raises ModelError if it is not there."""
    repo, file = split_name(name)
    path = _hub().try_to_load_from_cache(repo, file)
    if not isinstance(path, str):
        raise _cannot_serve(f"{name!r} was not downloaded yet; run %agent pull {repo}/{file}.")
    return Path(path)


def downloaded() -> list[str]:
    """List the GGUF files in the hub's cache, as `hf:OWNER/REPO/FILE.gguf`."""
    cache = Path(_hub("huggingface_hub.constants").HF_HUB_CACHE)
    paths = cache.glob("models--*/snapshots/**/*.gguf")
    files = (path.relative_to(cache).as_posix() for path in paths)
    folder = re.compile(r"models--(.+?)--(.+)/snapshots/[^/]+/")
    return sorted({folder.sub(rf"{HUB}\1/\2/", file) for file in files})


def split_name(name: str) -> tuple[str, str]:
    """Split `OWNER/REPO/FILE.gguf` into repository and file. Raises ModelError if it is not one."""
    parts = _NAME.fullmatch(name.strip())
    if parts is None:
        text = f"{name!r} is not a model file of the hub; write OWNER/REPO/FILE.gguf"
        raise _cannot_serve(f"{text}, %agent pull alone lists three.")
    return parts[1], parts[2]


def _hub(module: str = "huggingface_hub") -> Any:
    try:
        return import_module(module)  # Late import: it costs 0.1 s.
    except ImportError:
        text = f"models of the hub need the package huggingface_hub; {INSTALL}."
        raise _cannot_serve(text) from None


def _cannot_serve(text: str) -> ModelError:
    """Build the error of a file that cannot be served."""
    return ModelError(text, code="LLM_HTTP_ERROR")


PROVIDER = Provider(name="local", open=LocalClient, needs_key=False, is_free=True)
