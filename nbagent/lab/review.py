"""What a person says of runs: one label, or a review of many answers, blind to their variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nbagent.contracts.canonical import sha256_hex, utc_now
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ScoreRecord
from nbagent.contracts.secrets import redact
from nbagent.lab.scorers import (
    TEXT_CHARS,
    checked_name,
    checked_version,
    plain_value,
    shown_row,
)
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.output import answer_text
from nbagent.session.stores import current_store, find_run
from nbagent.shown.texts import clean, plain_repr, readable
from nbagent.shown.values import to_text
from nbagent.store.batches import save_scores, scores_of
from nbagent.store.writer import Store
from nbagent.view.words import pluralize

_PERSON = "person"
_MOST = 5
"""Of a scale: so many buttons there are."""
_RULE = "─" * 60


def score(
    run: Run | str,
    name: str,
    value: bool | float | str,
    *,
    by: str = _PERSON,
    reason: str | None = None,
    version: int = 1,
) -> ScoreRecord:
    """Keep what a person says of a run, in the same table as what scorers say (`nbagent.scores`).

    Said again, it replaces what the same person said under this name.

    Args:
        run: a handle, `"last"`, a name or the start of an id.
        name: of the score: letters, digits, `_` and `-`.
        value: true or false, a number, or a label.
        by: who says it.
        reason: why, in words.
        version: of the instructions it was labelled by.

    Raises:
        UsageError: there is no such run, the value is no score, or the name is another's there.
    """
    store = current_store()
    run_id = store.find(run.id) if isinstance(run, Run) else find_run(run)
    plain, given_by = plain_value(value), cast("object", by)
    if plain is None:
        raise UsageError("None is no label; give True or False, a number or a word")
    if not isinstance(given_by, str) or not given_by.strip():
        raise UsageError(f"by={plain_repr(by, 100)}: name who says it, such as 'person'")
    record = ScoreRecord(
        run_id=run_id,
        scorer=checked_name(name),
        version=checked_version(version),
        value=plain,
        reason=None if reason is None else to_text(reason, TEXT_CHARS),
        by=clean(by),
        at=utc_now(),
    )
    _refuse_others(scores_of(store, [run_id]), record.scorer, record.version, record.by)
    save_scores(store, [record])
    return record


def _refuse_others(there: Sequence[ScoreRecord], name: str, version: int, by: str) -> None:
    """Raise UsageError where a score of this name and version is somebody else's."""
    for one in there:
        if (one.scorer, one.version) == (name, version) and one.by != by:
            raise UsageError(
                f"score {name!r} of run {one.run_id[:8]} is by {one.by!r} and would be lost; "
                "take another name"
            )


class Review:
    """Answers that a person labels one by one, without the names of their variants.

    Labels are kept at once, as the scores 1 to `scale` of this name; what was labelled before is
    left out, and what is skipped comes again in the next review.
    """

    def __init__(
        self,
        cases: Sequence[tuple[Mapping[str, Any], str]],
        store: Store,
        *,
        name: str = "review",
        scale: int = 5,
        seed: int = 0,
    ) -> None:
        """Be ready for the first label.

        Args:
            cases: rows, each with the id of a run that answers it.
            store: has these runs, and keeps the labels.
            name: of the score.
            scale: the best label, 2 to 5.
            seed: of the order, which tells nothing of the variants.

        Raises:
            UsageError: the name or the scale does not fit, or the name is a scorer's.
        """
        if type(scale) is not int or not 2 <= scale <= _MOST:
            raise UsageError(
                f"scale={plain_repr(scale, 100)}: give a whole number from 2 to {_MOST}"
            )
        self.name, self.scale, self._store = checked_name(name), scale, store
        there = scores_of(store, [run_id for _, run_id in cases])
        _refuse_others(there, name, 1, _PERSON)
        done = {one.run_id for one in there if (one.scorer, one.version) == (name, 1)}
        # By a hash: the order does not depend on what was labelled before.
        in_order = sorted(cases, key=lambda case: sha256_hex(f"{seed}/{case[1]}"))
        self._cases = [case for case in in_order if case[1] not in done]
        self._labels: dict[str, int] = {}
        self.title = f"{name}: how good is this answer, from 1 (bad) to {scale} (good)?"
        self.position = 1
        """Number of the case that is shown, from 1; at the end, one more than there are."""
        self.total = len(self._cases)

    def __repr__(self) -> str:
        return f"<Review {self.name}: {len(self._labels)} of {self.total} labelled>"

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Headings and texts of the case that waits for a label; empty at the end."""
        if self.position > self.total:
            return ()
        row, run_id = self._cases[self.position - 1]
        record = self._store.load(run_id)
        pieces = [*shown_row(row), ("answer", answer_text(record) or record.text)]
        return tuple((readable(name), readable(redact(text))) for name, text in pieces)

    def label(self, value: int) -> None:
        """Keep the label of the case that is shown, and go to the next; nothing at the end."""
        if type(value) is not int or not 1 <= value <= self.scale:
            raise UsageError(f"{plain_repr(value, 50)} is no label; give 1 to {self.scale}")
        if self.position <= self.total:
            run_id = self._cases[self.position - 1][1]
            record = ScoreRecord(
                run_id=run_id, scorer=self.name, value=float(value), by=_PERSON, at=utc_now()
            )
            save_scores(self._store, [record])
            self._labels[run_id] = value
            self.position += 1

    def skip(self) -> None:
        """Go to the next case; this one gets no label."""
        self.position = min(self.position + 1, self.total + 1)

    def back(self) -> None:
        """Show the case before, to label it again."""
        self.position = max(self.position - 1, 1)

    def run(self) -> None:
        """Show it with buttons and return at once; in a terminal, ask for each case.

        Raises:
            UsageError: nobody can be asked here.
        """
        here = frontend()
        if not here.review(self):
            if here.input_prompt() is None:
                raise UsageError(
                    "nobody can be asked here; review in a notebook or a terminal, or write "
                    f"nbagent.score(run, {self.name!r}, 4) for each run"
                )
            self._ask_by_input()

    def _ask_by_input(self) -> None:
        print(self.title, flush=True)
        words = f"1–{self.scale}, [s]kip, [b]ack or [q]uit: "
        try:
            while pieces := self.shown():
                print(f"\n{_RULE}\n{self.position} of {self.total}")
                for name, text in pieces:
                    print(f"\n{name}\n  " + text.replace("\n", "\n  "))
                if (before := self._labels.get(self._cases[self.position - 1][1])) is not None:
                    print(f"\nlabelled {before}")
                print(flush=True)
                while not self._takes(input(words).strip().lower()):
                    print(f"Type 1 to {self.scale}, s, b or q.", flush=True)
        except (EOFError, KeyboardInterrupt):
            print()
        left = self.total - len(self._labels)
        print(f"{pluralize(len(self._labels), 'label')} kept, {left} left", flush=True)

    def _takes(self, word: str) -> bool:
        """Do what a person typed; False for a word that means nothing."""
        if word in ("q", "quit"):
            raise EOFError
        if word in ("s", "skip"):
            self.skip()
        elif word in ("b", "back"):
            self.back()
        elif word in map(str, range(1, self.scale + 1)):
            self.label(int(word))
        else:
            return False
        return True
