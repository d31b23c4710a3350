"""Rows about the first seconds: importing, loading the extension, the first request of a kernel."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels import LiveKernel
from measure import Row, child, least, log_of

_IMPORT = """
import time
began = time.process_time()
import nbagent
print((time.process_time() - began) * 1000)
"""
_LOAD = """
import time, warnings
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
began = time.process_time()
shell.run_line_magic("load_ext", "nbagent")
print((time.process_time() - began) * 1000)
"""
_CELL = "%%agent --model openai:gpt-5.4 --base-url {url}\nTake all steps."


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    times, kernels = (1, 1) if quick else (7, 5)
    found = [float(child("-c", _IMPORT)) for _ in range(times)]
    yield least("import nbagent, CPU", found, "ms", 60.0)
    found = [float(child("-c", _LOAD)) for _ in range(times)]
    yield least(
        "%load_ext nbagent after IPython, CPU", found, "ms", 200.0, "`import nbagent` included"
    )
    yield least(
        "first request of a fresh kernel, from the start of the cell",
        [_first_request(server) for _ in range(kernels)],
        "s",
        0.7,
        "from execute_request to the server, after %load_ext",
    )


@contextmanager
def _kernel() -> Generator[LiveKernel]:
    with TemporaryDirectory() as folder:
        kernel = LiveKernel(Path(folder))
        try:
            yield kernel
        finally:
            kernel.close()


def _first_request(server: str) -> float:
    with _kernel() as kernel:
        kernel.run("%load_ext nbagent")
        log_of(server)
        began = time.time()
        kernel.run(_CELL.format(url=f"{server}/turns-1/v1"))
        return log_of(server)["came"][0] - began
