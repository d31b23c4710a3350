"""A child process that serves one GGUF file: started, watched, shared and stopped.

One for each file, for all clients of this process. It ends with a client that is closed, at exit,
and, as its standard input ends then, also when this process is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey, redact

PARAMS_VARIABLE = "NBAGENT_LOCAL_PARAMS"
"""Environment variable: a JSON object of llama.cpp's parameters, as xllamacpp's CommonParams names
them, for example `{"n_ctx": 16384, "n_gpu_layers": 0, "cpuparams.n_threads": 4}`."""
_POLL_S = 0.02
_NOTICED_S = 0.5
"""So long after its connection broke a process may still be about to end."""
_KEPT_LINES = 200
_SHOWN_LINES = 4
_PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)
"""Of this process's environment: what a program and the driver of a graphics card need."""


class ServerProcess:
    """The child that serves one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._params = _given_params()
        self.key = SecretKey(secrets.token_urlsafe(24))
        self.context_length: int | None = None
        self._url: str | None = None
        self._settled = threading.Event()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process = subprocess.Popen(
            # -I: nothing is imported from the current folder or for a PYTHON… variable.
            [sys.executable, "-I", str(Path(__file__).with_name("serve.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_bare_environment(),
            start_new_session=True,  # an interrupt of the kernel goes to its whole group
        )
        self._threads = [
            threading.Thread(target=work, name="nbagent-local", daemon=True)
            for work in (self._keep_lines, self._begin)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def settled(self) -> bool:
        """Whether it answers, or never will."""
        return self._settled.is_set()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def started(self, within_s: float) -> str:
        """Wait until it answers; returns its address.

        Raises:
            ModelError: it ended, or takes too long.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        while not self.settled:
            if asyncio.get_running_loop().time() > deadline:
                raise ModelError(
                    f"{self.path.name} was not loaded within {within_s:g} s; it goes on loading,"
                    " so try again later, or set a longer timeout.",
                    code="LLM_TIMEOUT",
                )
            await asyncio.sleep(_POLL_S)
        if self._url is None:
            raise self._fault("could not be loaded", self._errors() or list(self._lines))
        return self._url

    async def check(self) -> None:
        """Raise a ModelError with its last lines when the process has ended, or is about to."""
        for _ in range(round(_NOTICED_S / _POLL_S)):
            if not self.alive:
                lines = list(self._lines)[-_SHOWN_LINES:]
                raise self._fault("lost its server, which the next request starts anew", lines)
            await asyncio.sleep(_POLL_S)

    def stop(self) -> None:
        """End the process, which has nothing to save."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _begin(self) -> None:
        """Tell the child what to serve, and wait for its one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "path": str(self.path),
            "name": self.path.name,
            "key": self.key.reveal(),
            "packages": _home_of("xllamacpp"),
            "params": self._params,
        }
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            self._url, self.context_length = answer["url"], answer["context"]
        except (OSError, ValueError):
            self._process.wait()
            self._threads[0].join()
        finally:
            self._settled.set()

    def _keep_lines(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line.decode("utf-8", "replace").rstrip())

    def _errors(self) -> list[str]:
        """What llama.cpp called an error, as `0.00.004.176 E llama_model_load: …`."""
        said = [line.split(" E ", 1)[1].strip() for line in self._lines if " E " in line]
        return list(dict.fromkeys(said))[:2]

    def _fault(self, what: str, lines: list[str]) -> ModelError:
        said = redact("; ".join(line for line in lines[-_SHOWN_LINES:] if line))
        return ModelError(
            f"{self.path.name} {what} (exit code {self._process.poll()}): {said or 'no words'}",
            code="LLM_HTTP_ERROR",
            said=said,
        )


_servers: dict[Path, ServerProcess] = {}
_lock = threading.Lock()


def server_of(path: Path) -> ServerProcess:
    """The server of a file: the one that is there, else a new one."""
    with _lock:
        server = _servers.get(path)
        if server is None or not server.alive:
            if server is not None:
                server.stop()
            server = _servers[path] = ServerProcess(path)
        return server


def running_servers() -> list[ServerProcess]:
    """Those that answer now."""
    return [server for server in _servers.values() if server.settled and server.alive]


@atexit.register
def _stop_all() -> None:
    for server in _servers.values():
        server.stop()


def _given_params() -> dict[str, Any]:
    try:
        given: Any = json.loads(os.environ.get(PARAMS_VARIABLE) or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ModelError(
            f'{PARAMS_VARIABLE} is no JSON object; write for example {{"n_ctx": 8192}}.'
        )
    return cast("dict[str, Any]", given)


def _bare_environment() -> dict[str, str]:
    """No key of this process goes along. Without the last one a crash starts a debugger."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return passed | {"GGML_NO_BACKTRACE": "1"}


def _home_of(package: str) -> str:
    """The folder that a package is imported from: with -I the child may not find it by itself."""
    spec = find_spec(package)
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else ""
