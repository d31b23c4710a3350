"""The panel's lines: its list of the last runs, and what is wrong in words that fit the panel.

Owns texts and the runs they are about. What is done with them is in `runs`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence

from nbagent.contracts.errors import NbagentError
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_cut
from nbagent.session.stores import current_store
from nbagent.view.view_state import status_words
from nbagent.view.words import one_line, visible

LISTED = 12
"""So many runs are in the list."""
_LOOKED_AT = 60
_LINEAGE = 50
_PROMPT_CHARS = 36
_MODEL_CHARS = 30
_HOW = {"resume": " (resumed)", "fork": " (asked again)"}
# What a cell writes as an option, as it is done in the panel.
_OPTIONS = (
    (r"--base-url\b", "`%agent config base_url=…`"),
    (r"--timeout\b", "`%agent config timeout_s=…`"),
    (r"--model (\w+:[\w.-]+)", r"\1 in the Model field"),
    (r"--model(?: (?:NAME|PROVIDER:MODEL))?(?![\w-])", "the Model field"),
    (r"--tools none\b", "no tool ticked"),
    (r"--tools\b", "the ticks of the tools"),
)
_log = logging.getLogger("nbagent")


def recent_runs() -> tuple[list[tuple[str, str]], list[str]]:
    """The last runs that are over, as words and id of each, and the models that were asked."""
    runs = current_store().runs(limit=_LOOKED_AT)
    by_id = {run.id: run for run in runs}
    over = [run for run in runs[:LISTED] if run.stop_reason]
    said = {run.id: _prompt(run, by_id) for run in over}
    often = Counter(said.values())
    lines = [(_line(run, said[run.id], often[said[run.id]] > 1), run.id) for run in over]
    return lines, [run.model for run in runs[:LISTED]]


def _prompt(run: RunRecord, by_id: dict[str, RunRecord]) -> str:
    """What the run was asked; one without words of its own has those it goes on from."""
    words = one_line(visible(run.prompt), _PROMPT_CHARS) or run.id[:8]
    before = by_id.get(run.parent_id or "")
    again = before is not None and before.prompt == run.prompt
    return words + _HOW.get(run.kind, "") if again or run.kind == "resume" else words


def _line(run: RunRecord, said: str, alike: bool) -> str:
    ended = status_words(run.phase, run.stop_reason, run.error.code if run.error else None, None)[
        "word"
    ]
    pieces = [said] if ended == "Answered" else [said, ended]
    if alike:
        began = run.started_at.astimezone().strftime("%H:%M")
        pieces += [began, one_line(visible(run.model), _MODEL_CHARS)]
    return " · ".join(pieces)


def lineage(run_id: str) -> Sequence[RunRecord]:
    """A run and those that it goes on from, oldest first; a fork begins a line of its own."""
    store = current_store()
    runs = [store.load(run_id)]
    while len(runs) < _LINEAGE and runs[0].parent_id is not None and runs[0].kind != "fork":
        runs.insert(0, store.load(runs[0].parent_id))
    return runs


def error_words(error: Exception) -> str:
    """One line that says what is wrong and what to do about it in the panel."""
    if isinstance(error, NbagentError):
        said = error.message
        for pattern, instead in _OPTIONS:
            said = re.sub(pattern, instead, said)
    else:
        _log.debug("the panel could not start a run", exc_info=error)
        said = f"nbagent itself failed: {type(error).__name__}: {error}"
    return " ".join(visible(redact_cut(said)).splitlines())
