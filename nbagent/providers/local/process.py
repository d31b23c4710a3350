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
import tempfile
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey, redact

PARAMS_VARIABLE = "NBAGENT_LOCAL_PARAMS"
"""Environment variable: a JSON object of llama.cpp's parameters, as xllamacpp's CommonParams names
them, for example `{"n_ctx": 16384, "n_gpu_layers": 0, "cpuparams.n_threads": 4}`."""
_POLL_S = 0.02
_NOTICED_S = 0.5
"""So long after its connection broke a process may still be about to end."""
_SHOWN_LINES = 4
_PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", PARAMS_VARIABLE),
)
"""Of this process's environment, no key: what a program and the driver of a graphics card need."""


class ServerProcess:
    """The child that serves one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = SecretKey(secrets.token_urlsafe(24))
        self._url: str | None = None
        self._settled = threading.Event()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._process = subprocess.Popen(
            # -I: nothing is imported from the current folder or for a PYTHON… variable.
            [sys.executable, "-I", str(Path(__file__).with_name("serve.py"))],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=passed | {"GGML_NO_BACKTRACE": "1"},  # else a crash starts a debugger
            start_new_session=True,  # an interrupt of the kernel goes to its whole group
        )
        self._thread = threading.Thread(target=self._begin, name="nbagent-local", daemon=True)
        self._thread.start()

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
            lines = self._lines()
            # What llama.cpp calls an error: `0.00.004.176 E llama_model_load: …`
            errors = [line.split(" E ", 1)[1].strip() for line in lines if " E " in line]
            raise self._fault("could not be loaded", list(dict.fromkeys(errors))[:2] or lines)
        return self._url

    async def check(self) -> None:
        """Raise a ModelError with its last lines when the process has ended, or is about to."""
        for _ in range(round(_NOTICED_S / _POLL_S)):
            if not self.alive:
                what = "lost its server, which the next request starts anew"
                raise self._fault(what, self._lines())
            await asyncio.sleep(_POLL_S)

    def stop(self) -> None:
        """End the process, which has nothing to save."""
        self._process.kill()
        self._thread.join()
        with self._process:  # waits for it, and closes the pipes
            self._log.close()

    def _begin(self) -> None:
        """Tell the child what to serve, and wait for its one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        package = find_spec("xllamacpp")
        order = {
            "path": str(self.path),
            "name": self.path.name,
            "key": self.key.reveal(),
            # With -I the child may not find the package by itself.
            "packages": str(Path(package.origin or "").parents[1]) if package else "",
        }
        with suppress(OSError):  # it has ended already
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._url = self._process.stdout.readline().decode().strip() or None
        if self._url is None:
            self._process.wait()
        self._settled.set()

    def _lines(self) -> list[str]:
        """What it wrote to its error output. Only after its end: it writes where this reads."""
        self._log.seek(0)
        return [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line]

    def _fault(self, what: str, lines: list[str]) -> ModelError:
        said = redact("; ".join(lines[-_SHOWN_LINES:]))
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
    """Those that are there now."""
    return [server for server in _servers.values() if server.alive]


@atexit.register
def _stop_all() -> None:
    for server in _servers.values():
        server.stop()
