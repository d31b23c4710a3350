"""Scores by a person: one label, or a blind review of many answers, without their variants."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.contracts.canonical import sha256_hex, utc_now
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ScoreRecord
from nbagent.contracts.secrets import redact
from nbagent.lab.scorers import (
    FUNCTION,
    TEXT_CHARS,
    checked_name,
    checked_version,
    plain_value,
    shown_row,
)
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.stores import current_store, find_run
from nbagent.session.typed_answer import answer_text
from nbagent.shown.texts import readable, safe_repr
from nbagent.shown.values import to_text
from nbagent.store.batches import save_labels, scores_of
from nbagent.store.writer import Store
from nbagent.view.review import ANSWER, PROMPT
from nbagent.view.text_format import pluralize

PERSON = "person"
"""Author of labels if no name is given."""
_MAX_NAME_CHARS = 80
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060-\u2064\ufeff]")
"""Characters without a width, by which two names would look alike. Not U+200C: Persian has it."""
MAX_SCALE = 5
"""The page has buttons for labels 1 to 5."""
_SEPARATOR = "─" * 60
_MAX_SIBLINGS = 12
"""Answers to one row whose prompts are compared."""


def score(
    run: Run | str,
    name: str,
    value: bool | float | str,
    *,
    by: str = PERSON,
    reason: str | None = None,
    version: int = 1,
) -> ScoreRecord:
    """Store a person's score of a run, in the same table as those of scorers (`nbagent.scores`).

    It replaces an earlier score by the same person under this name. Scores by other people stay:
    a batch then counts the mean of their numbers, or the label or verdict of the most, and
    `batch.agreement` says how much they agree.

    Args:
        run: a handle, `"last"`, a name or the start of an id.
        name: name of the score: letters, digits, `_` and `-`.
        value: true or false, a number, or a label.
        by: name of the person.
        reason: reason for the score.
        version: version of the instructions for labelling.

    Raises:
        UsageError: there is no such run, the value is no score, or a scorer has scored the run
            under this name.
    """
    store = current_store()
    run_id = store.find(run.id) if isinstance(run, Run) else find_run(run)
    plain = plain_value(value)
    if plain is None:
        raise UsageError("None is no label; give True or False, a number or a word")
    record = ScoreRecord(
        run_id=run_id,
        scorer=checked_name(name),
        version=checked_version(version),
        value=plain,
        reason=None if reason is None else to_text(reason, TEXT_CHARS),
        by=checked_person(by),
        at=utc_now(),
    )
    save_labels(store, [record])
    return record


def checked_person(by: object) -> str:
    """Return the name of a person in its one spelling; raise UsageError if it is none."""
    name = " ".join(unicodedata.normalize("NFC", by).split()) if isinstance(by, str) else ""
    if not isinstance(by, str) or not name:
        raise UsageError(f"by={safe_repr(by, 100)}: give the name of the person, such as 'anna'")
    is_visible = readable(name) == name and not (_CONTROLS.search(by) or _INVISIBLE.search(by))
    if len(name) > _MAX_NAME_CHARS or not is_visible:
        raise UsageError(
            f"by={safe_repr(by, 100)} cannot name a person; use up to {_MAX_NAME_CHARS} visible "
            "characters"
        )
    if name == FUNCTION:
        raise UsageError(f"by={name!r} is the author of scorers; give the name of the person")
    if ":" in name:
        raise UsageError(
            f"by={name!r} names a model, whose scores judges store; give the name of the person"
        )
    return name


class Review:
    """Review in which a person labels answers one by one, without the names of their variants.

    Each label is stored at once, as a score from 1 to `scale`. Answers that this person labelled
    are left out of their next review; skipped ones come again. Labels of others are not shown.
    """

    def __init__(
        self,
        cases: Sequence[tuple[Mapping[str, Any], str]],
        store: Store,
        *,
        name: str = "review",
        scale: int = 5,
        seed: int = 0,
        by: str = PERSON,
        reason: bool = False,
    ) -> None:
        """Select and order the cases.

        Args:
            cases: rows, each with the id of the run that answers it.
            store: has these runs, and stores the labels.
            name: name of the score.
            scale: best label, 2 to 5.
            seed: seed of the order, which reveals nothing about the variants.
            by: name of the person.
            reason: require a reason for each label.

        Raises:
            UsageError: the name, the scale or the person is not valid, or a scorer has this name.
        """
        if type(scale) is not int or not 2 <= scale <= MAX_SCALE:
            raise UsageError(
                f"scale={safe_repr(scale, 100)}: give a whole number from 2 to {MAX_SCALE}"
            )
        self.name, self.scale, self._store = checked_name(name), scale, store
        self.by, self.needs_reason = checked_person(by), bool(reason)
        there = [
            record
            for record in scores_of(store, [run_id for _, run_id in cases])
            if (record.scorer, record.version) == (name, 1)
        ]
        for record in there:
            if not record.is_label:
                raise UsageError(
                    f"score {name!r} is by the scorer {record.by!r}, and would be mixed with "
                    "labels of people; choose another name"
                )
        done = {record.run_id for record in there if record.by == self.by}
        # By a hash, so that the order does not depend on earlier labels.
        in_order = sorted(cases, key=lambda case: sha256_hex(f"{seed}/{case[1]}"))
        self._cases = [case for case in in_order if case[1] not in done]
        self._labels: dict[str, int] = {}
        person = "" if self.by == PERSON else f", by {self.by}"
        why = " Say why." if reason else ""
        self.title = (
            f"{name}{person}: how good is this answer, from 1 (bad) to {scale} (good)?{why}"
        )
        self.position = 1
        """Number of the current case, from 1; at the end `total + 1`."""
        self.total = len(self._cases)

    def __repr__(self) -> str:
        return f"<Review {self.name}: {len(self._labels)} of {self.total} labelled>"

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return headings and texts of the current case, the answer last; empty at the end."""
        if self.position > self.total:
            return ()
        row, run_id = self._cases[self.position - 1]
        try:
            record = self._store.load(run_id)
        except UsageError:  # deleted since the review began
            return ((ANSWER, "(This run was deleted; skip it.)"),)
        prompt = [(PROMPT, record.prompt)] if self._shares_prompt(record.prompt, row) else []
        pieces = [*prompt, *shown_row(row), (ANSWER, answer_text(record) or record.text)]
        return tuple((readable(name), readable(redact(text))) for name, text in pieces)

    def _shares_prompt(self, prompt: str, row: Mapping[str, Any]) -> bool:
        """True if all answers to a row have the same prompt: another one would name the variant."""
        # Not `==`: a cell may hold anything. The cases of one row share the row.
        others = [run_id for other, run_id in self._cases if other is row][:_MAX_SIBLINGS]
        return bool(prompt) and all(prompt == self._prompt_of(run_id) for run_id in others)

    def _prompt_of(self, run_id: str) -> str | None:
        try:
            return self._store.load(run_id).prompt
        except UsageError:  # deleted since the review began
            return None

    def label(self, value: int, reason: str | None = None) -> None:
        """Store the label of the current case, and go to the next; do nothing at the end.

        Raises:
            UsageError: it is no label of the scale, it needs a reason, or the run was deleted.
        """
        if type(value) is not int or not 1 <= value <= self.scale:
            raise UsageError(f"{safe_repr(value, 50)} is no label; give 1 to {self.scale}")
        if self.needs_reason and not (reason or "").strip():
            raise UsageError("write the reason first, then choose the label again")
        if self.position <= self.total:
            run_id = self._cases[self.position - 1][1]
            record = ScoreRecord(
                run_id=run_id,
                scorer=self.name,
                value=float(value),
                reason=None if reason is None else to_text(reason, TEXT_CHARS),
                by=self.by,
                at=utc_now(),
            )
            save_labels(self._store, [record])
            self._labels[run_id] = value
            self.position += 1

    def skip(self) -> None:
        """Go to the next case; this one gets no label."""
        self.position = min(self.position + 1, self.total + 1)

    def back(self) -> None:
        """Go back to the previous case, to label it again."""
        self.position = max(self.position - 1, 1)

    def run(self) -> None:
        """Show buttons and return at once; in a terminal, ask for each case by `input()`.

        Raises:
            UsageError: nobody can be asked here.
        """
        here = frontend()
        if not here.review(self):
            if here.input_prompt() is None:
                raise UsageError(
                    "nobody can be asked here; review in a notebook or a terminal, or write "
                    f"nbagent.score(run, {self.name!r}, 4{self._by_argument()}) for each run"
                )
            self._ask_by_input()

    def _by_argument(self) -> str:
        return "" if self.by == PERSON else f", by={self.by!r}"

    def _ask_by_input(self) -> None:
        print(self.title, flush=True)
        input_prompt = f"1–{self.scale}, [s]kip, [b]ack or [q]uit: "
        try:
            while pieces := self.shown():
                print(f"\n{_SEPARATOR}\n{self.position} of {self.total}")
                for name, text in pieces:
                    print(f"\n{name}\n  " + text.replace("\n", "\n  "))
                if (before := self._labels.get(self._cases[self.position - 1][1])) is not None:
                    print(f"\nlabelled {before}")
                print(flush=True)
                while not self._handle_input(input(input_prompt).strip().lower()):
                    print(f"Type 1 to {self.scale}, s, b or q.", flush=True)
        except (EOFError, KeyboardInterrupt):
            print()
        left = self.total - len(self._labels)
        print(f"{pluralize(len(self._labels), 'label')} kept, {left} left", flush=True)

    def _handle_input(self, word: str) -> bool:
        """Carry out the typed word; False if it is unknown."""
        if word in ("q", "quit"):
            # Leaves the loop as the end of the input does.
            raise EOFError
        if word in ("s", "skip"):
            self.skip()
        elif word in ("b", "back"):
            self.back()
        elif word in map(str, range(1, self.scale + 1)):
            self._label_by_input(int(word))
        else:
            return False
        return True

    def _label_by_input(self, value: int) -> None:
        reason = ""
        while self.needs_reason and not reason:
            reason = input("reason: ").strip()
        try:
            self.label(value, reason or None)
        except UsageError as error:
            print(error.message, flush=True)
