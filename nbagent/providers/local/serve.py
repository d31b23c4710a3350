"""The child process of `local:`: one GGUF file behind llama.cpp's own server.

A program that knows nothing of nbagent, so that it starts in 0.1 s. It is started with a bare
environment, reads what it needs as one line of JSON (no key stands in a command line), writes its
address when the model is loaded, and ends when its standard input ends: with its parent.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import reduce
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    # The library holds Python's lock while it loads a model, for minutes if that is large. The
    # end of a pipe in this mode is a signal, and its default is to end the process.
    with suppress(ImportError, OSError):  # Windows; a system that does this for sockets only
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    sys.path += job["packages"]
    try:
        import xllamacpp

        library: Any = xllamacpp  # it has no types
        params = library.CommonParams()
        params.model.path = job["path"]
        params.model_alias = {os.path.basename(job["path"])}
        params.hostnames = ["127.0.0.1"]
        params.port = 0  # a free one
        params.api_keys = [job["key"]]
        params.use_jinja = True  # templates with tools (llama.cpp's docs/function-calling.md)
        params.n_parallel = -1  # four at once that share the context, as llama-server's default
        params.ui = False
        for name, value in json.loads(os.environ.get("NBAGENT_LOCAL_PARAMS") or "{}").items():
            *inner, last = name.split(".")
            setattr(reduce(getattr, inner, params), last, value)
        server = library.Server(params)
    except Exception as error:
        # What is wrong with a file stands above it; the rest are the person's parameters.
        sys.exit(f"{type(error).__name__}: {error}; check the file and NBAGENT_LOCAL_PARAMS")
    print(f"\n{server.listening_address}", flush=True)
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
