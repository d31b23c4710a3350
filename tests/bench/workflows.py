"""A row about workflows: what composing a request adds to the turn that it is for."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import Row, compared
from sides import PROMPT, agent

_EACH = 4
"""Turns of which the last one changes the document."""
_RULES = "\n".join(f"- Rule {n}: say where each number comes from." for n in range(40))


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    turns, pairs = (6, 1) if quick else (20, 15)
    with tempfile.TemporaryDirectory() as folder:
        package = _package(Path(folder) / "flow")
        yield _composing(f"{server}/turns-{turns}/v1", package, turns, pairs)


def _package(folder: Path) -> Path:
    (folder / "steps").mkdir(parents=True)
    (folder / "workflow.md").write_text(f"---\nid: flow\nvariables: {{n: 0}}\n---\n{_RULES}\n")
    for n in range(1, 7):
        (folder / "steps" / f"step-0{n}.md").write_text(f"# Step {n}\n\nDo it.\n")
    return folder


def _composing(url: str, package: Path, turns: int, pairs: int) -> Row:
    made = agent(url, stream=False, workflow=os.fspath(package), max_turns=turns, quiet=True)
    first = made.run(PROMPT)
    flow = first.workflow
    assert flow is not None
    assert len(first.turns) == turns, first.error
    file, turn = flow.document.path, first.turns[0]
    # Few: that the YAML of a new one is read is a cost of the tool that writes it, as the writing.
    texts = [file.read_text().replace("n: 0", f"n: {n}") for n in range(_EACH)]
    changed = [file.with_name(f"{n}.md") for n in range((pairs + 1) * turns // _EACH)]
    for n, other in enumerate(changed):
        other.write_text(texts[n % len(texts)])

    async def compose() -> None:
        for n in range(turns):
            if n % _EACH == _EACH - 1:
                changed.pop().replace(file)
            await flow.before_turn(())
            await flow.after_turn(turn)

    with asyncio.Runner() as runner:
        return compared(
            "composing a workflow's request, of a turn of it with the store",
            lambda: made.run(PROMPT),
            lambda: runner.run(compose()),
            pairs=pairs,
            limit=0.1,
            each=(turns, "turn"),
        )
