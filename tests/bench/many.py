"""Child of the bench: many runs at once in one process, and the memory they add to it.

python many.py ours|bare BASE_URL RUNS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def _forget_peak() -> None:
    """Let the high-water mark count from here; importing may have gone above what stayed."""
    Path("/proc/self/clear_refs").write_text("5")


def step(n: int) -> dict[str, int]:
    """Take the next step."""
    return {"step": n}


async def _measured(kind: str, base_url: str, runs: int) -> dict[str, float]:
    if kind == "ours":
        from ours import PROMPT, agent

        made = agent(base_url)

        async def one() -> object:
            run = await made.arun(PROMPT)
            assert run.ok, run.error
            return run
    else:
        from bare import BareLoop

        loop = BareLoop(base_url, step)

        async def one() -> object:
            return await loop.turns(stream=True)

    await one()
    idle = _status_mb("VmRSS")
    _forget_peak()
    began = time.perf_counter()
    kept = await asyncio.gather(*(one() for _ in range(runs)))
    took = time.perf_counter() - began
    peak = _status_mb("VmHWM")
    assert len(kept) == runs
    return {"idle_mb": idle, "added_mb": peak - idle, "s": took}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measured(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
