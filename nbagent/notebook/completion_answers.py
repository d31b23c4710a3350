"""What IPython is answered on Tab: what is typed, joined to what could stand there.

Imported by `completion` when a person first presses Tab in one of our cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    SimpleCompletion,
    provisionalcompleter,
    rectify_completions,
)

from nbagent.notebook.completion_place import Typing, typing_at
from nbagent.notebook.known_values import Known, known_for
from nbagent.notebook.line_words import quoted


class _Silence:
    """No completions, and yet an answer: nothing is known here, and Python's names do not fit.

    IPython lets a matcher silence the others only when it found something.
    """

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[SimpleCompletion]:
        return iter(())


class Answers:
    """Answers for one IPython."""

    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython
        self._python = _Python(ipython)

    def answer(self, context: Any) -> dict[str, Any]:
        """A result of the matcher API v2; without completions where it is no affair of ours."""
        typing = typing_at(context.full_text, context.cursor_line, context.cursor_position)
        if typing is None:
            return {"completions": []}
        if typing.what == "python":
            return self._python.completed(typing.fragment)
        return _completed(typing, self._ipython.user_ns)


def _completed(typing: Typing, namespace: Any) -> dict[str, Any]:
    found = [_completion(one, typing) for one in known_for(typing, namespace)]
    return {
        "completions": found or _Silence(),
        "matched_fragment": typing.fragment,
        "suppress": True,
        "ordered": True,
    }


def _completion(known: Known, typing: Typing) -> SimpleCompletion:
    as_it_is = known.kind in ("option", "setting")
    text = known.text if as_it_is else quoted(known.text, typing.quote)
    return SimpleCompletion(text, type=known.kind)


class _Python:
    """Ordinary Python completion of an expression in a prompt, by a completer of its own."""

    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython
        self._completer: Any = None

    def completed(self, expression: str) -> dict[str, Any]:
        """What IPython completes of the expression alone."""
        outer = self._ipython.Completer
        if self._completer is None:
            # Not the person's own one: it is at work now, and keeps what it works at.
            self._completer = IPCompleter(
                shell=self._ipython,
                namespace=self._ipython.user_ns,
                global_namespace=self._ipython.user_global_ns,
                parent=self._ipython,
            )
        self._completer.use_jedi = outer.use_jedi
        self._completer.namespace = self._ipython.user_ns
        with provisionalcompleter():
            found = list(self._completer.completions(expression, len(expression)))
            found = list(rectify_completions(expression, found))
        kept = [one for one in found if not one.text.startswith("%")]
        start = kept[0].start if kept else len(expression)
        return {
            "completions": [SimpleCompletion(one.text, type=one.type) for one in kept],
            "matched_fragment": expression[start:],
            "suppress": True,
            "ordered": True,
        }
