"""The bench: what a turn costs here, against a loop written by hand over the same HTTP client.

    python tests/bench [--quick] [--json] [--scale]

One table. Nothing here is a test: figures of a busy machine decide nothing; ratios hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import batches
import frames
import loops
import scale
import starts
import streams
from server import serving

_KEYS = ("LLM_", "OPENAI_", "NBAGENT_")


def main() -> int:
    """Run all rows; the exit code says whether each could be measured, not whether it was met."""
    parser = argparse.ArgumentParser(prog="python tests/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small figures, without goals")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--scale",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="only the calls on a large store: the one in this folder, or one that is made once "
        "(a million runs, 6 GB, some minutes) in $BENCH_STORES or the user's cache",
    )
    options = parser.parse_args()
    groups = [group.rows for group in (starts, loops, streams, frames, batches)]
    if options.scale is not None:
        folder = Path(options.scale).resolve() if options.scale else None
        groups = [partial(scale.rows, folder=folder)]
    for name in [name for name in os.environ if name.startswith(_KEYS)]:
        del os.environ[name]
    failed = False
    with tempfile.TemporaryDirectory() as home, serving() as server:
        os.environ["NBAGENT_HOME"] = home
        for rows in groups:
            try:
                for row in rows(server, quick=options.quick):
                    made = dataclasses.replace(row, limit=None) if options.quick else row
                    line = {**dataclasses.asdict(made), "verdict": made.verdict}
                    print(json.dumps(line) if options.json else made, flush=True)
            except Exception:
                failed = True
                traceback.print_exc()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
