"""Virtual environments with real programs and this checkout, made once and used by all tests.

`NBAGENT_TEST_ENVIRONMENTS` names a folder that keeps them from one session to the next.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kernels import clean_environment

CHECKOUT = Path(__file__).parents[1]
_INSTALLED = "installed.txt"
"""File of an environment that is complete: its requirements."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder in which its programs run."""

    folder: Path
    work: Path

    @property
    def scripts(self) -> Path:
        """Folder of its programs."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.scripts / "python"

    def environ(self, **more: str) -> dict[str, str]:
        """Environment variables: its programs come first, no keys, a store of its own."""
        path = os.pathsep.join([str(self.scripts), os.environ["PATH"]])
        folders = {
            f"JUPYTER_{name}_DIR": str(self.work / f"jupyter-{name.lower()}")
            for name in ("CONFIG", "RUNTIME", "DATA")
        }
        own = {"PATH": path, "VIRTUAL_ENV": str(self.folder), "HOME": str(self.work), **folders}
        return clean_environment(self.work, **{**own, **more})

    def use_kernel_of(self, other: Environment) -> None:
        """Start the kernels of this environment's programs in another environment."""
        folder = self.work / "jupyter-data" / "kernels" / "python3"
        folder.mkdir(parents=True)
        argv = [str(other.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(spec))

    def run(
        self, program: str, *arguments: str, fails: bool = False, stdin: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; an exit code other than 0 is an error, unless it `fails`."""
        done = subprocess.run(
            [self.scripts / program, *arguments],
            cwd=self.work,
            env=self.environ(**more),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=150,
        )
        if (done.returncode != 0) != fails:
            pytest.fail(f"{program} returned {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done


MakeEnvironment = Callable[..., Environment]
"""`make(*requirements)` returns an environment with these packages and this checkout; without it
for a program whose requirements contradict ours, and whose kernel is another environment's."""


@contextmanager
def serving(made: Environment, *command: str) -> Generator[str]:
    """Start a server; `{port}` in the command is its port. Gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(port=port) for word in command]
    log = made.work / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [made.scripts / words[0], *words[1:]],
            cwd=made.work,
            env=made.environ(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            end = time.monotonic() + 45
            while process.poll() is None and time.monotonic() < end:
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=2).close()
                    break
                time.sleep(0.1)
            else:
                pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _install(folder: Path, requirements: tuple[str, ...]) -> None:
    """Make an environment. Skips the test if the package index is out of reach."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [python, "-m", "pip", "install", "-q", "--retries", "1", *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"pip cannot install {', '.join(requirements)}: {done.stderr[-300:]}")
    (folder / _INSTALLED).write_text("\n".join(requirements))


@pytest.fixture(scope="session")
def environments_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all environments."""
    if named := os.environ.get("NBAGENT_TEST_ENVIRONMENTS"):
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named).resolve()
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def environment(environments_folder: Path, tmp_path: Path) -> MakeEnvironment:
    """Makes an environment, or finds the one that another test made."""

    def make(
        *requirements: str, checkout: bool = True, files: Mapping[str, str] | None = None
    ) -> Environment:
        folder = environments_folder / "+".join(requirements).replace(">=", "-")
        if not (folder / _INSTALLED).exists():
            _install(folder, (*requirements, *(["-e", str(CHECKOUT)] if checkout else [])))
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text, "utf-8")
        return Environment(folder, tmp_path)

    return make
