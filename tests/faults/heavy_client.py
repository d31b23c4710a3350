"""A process of its own that meets servers that send too much; prints outcomes and its peak.

Started by `test_server_floods.py`, so that the peak is that of a client alone.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import nbagent


def main() -> None:
    """Ask a model at each base URL of the command line once; one line of JSON for each."""
    model, *urls = sys.argv[1:]
    for url in urls:
        began = time.monotonic()
        stream = "/whole-" not in url
        agent = nbagent.Agent(
            model=model, tools="none", base_url=url, stream=stream, key_variable="HOSTILE_KEY"
        )
        run = agent.run("hi", timeout_s=120)
        code = run.error.code if run.error else ""
        text = "".join(turn.text for turn in run.turns)
        said = run.error.message if run.error else ""
        outcome = [code, text[:20], len(text), said[:300], round(time.monotonic() - began, 2)]
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        print(json.dumps([url.split("/")[-2], *outcome, int(peak[1]) if peak else 0]), flush=True)


if __name__ == "__main__":
    main()
