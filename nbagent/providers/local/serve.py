"""The child process of `local:`: one GGUF file behind llama.cpp's own server.

Imports nothing of nbagent, so that it starts in 0.1 s. It reads its job as one line of JSON from
standard input (other users can read a command line, so the key is not there), writes its URL when
the model is loaded, and ends when standard input ends: with its parent.
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
    # The library holds the GIL while it loads a model, for minutes if it is large, so no Python
    # code could notice the parent's end. With O_ASYNC the end of the pipe is a signal (SIGIO),
    # whose default action ends the process.
    with suppress(ImportError, OSError):  # Windows; systems that support it only for sockets.
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    sys.path += job["packages"]
    try:
        import xllamacpp

        library: Any = xllamacpp  # It has no types.
        params = library.CommonParams()
        params.model.path = job["path"]
        params.model_alias = {os.path.basename(job["path"])}
        params.hostnames = ["127.0.0.1"]
        params.port = 0  # Any free port.
        params.api_keys = [job["key"]]
        # Chat templates with tools need it (llama.cpp's docs/function-calling.md).
        params.use_jinja = True
        params.n_parallel = -1  # llama-server's default: four requests that share the context.
        params.ui = False
        for name, value in json.loads(os.environ.get("NBAGENT_LOCAL_PARAMS") or "{}").items():
            *inner, last = name.split(".")
            setattr(reduce(getattr, inner, params), last, value)
        server = library.Server(params)
    except Exception as error:
        # llama.cpp printed faults of the file before; all others come from the parameters.
        sys.exit(f"{type(error).__name__}: {error}; check the file and NBAGENT_LOCAL_PARAMS")
    print(f"\n{server.listening_address}", flush=True)
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
