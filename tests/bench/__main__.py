"""The bench: what a turn costs here, against a loop written by hand over the same HTTP client.

    python tests/bench [--quick] [--json]

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
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import frames
import loops
import scripts
import starts
import streams
import trees
from measure import Row
from server import serving

_KEYS = ("LLM_", "OPENAI_", "NBAGENT_")


def main() -> int:
    """Run all rows; the exit code says whether each could be measured, not whether it was met."""
    parser = argparse.ArgumentParser(prog="python tests/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small figures, to see that it works")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith(_KEYS)]:
        del os.environ[name]
    failed = False
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBAGENT_HOME"] = home
        with serving() as server:
            for group in (
                starts.rows(server, quick=options.quick),
                loops.rows(server, quick=options.quick),
                streams.rows(server, quick=options.quick),
                frames.rows(quick=options.quick),
                trees.rows(quick=options.quick),
                scripts.rows(quick=options.quick),
            ):
                try:
                    _print(group, as_json=options.json)
                except Exception:
                    failed = True
                    traceback.print_exc()
    return int(failed)


def _print(rows: Iterator[Row], *, as_json: bool) -> None:
    for row in rows:
        if as_json:
            line = json.dumps({**dataclasses.asdict(row), "verdict": row.verdict})
        else:
            ratio = "" if row.ratio is None else f"{row.ratio:.2f} ×"
            line = (
                f"{row.verdict:6} {row.name:62} {row.goal:>12} {ratio:>8}  {row.figure}"
                f"{f'  [{row.note}]' if row.note else ''}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
