"""Tab on the lines of `%%agent` and `%agent`, and in `{{ expressions }}` of a prompt.

Owns the place in IPython's completer (matcher API v2) and what it is answered: what is typed,
joined to what could stand there. Everywhere else, and whatever fails here, IPython goes on alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    SimpleCompletion,
    context_matcher,
    provisionalcompleter,
    rectify_completions,
)

from nbagent.notebook.completion_place import Typing, typing_at
from nbagent.notebook.line_words import quoted

IDENTIFIER = "nbagent.agent_matcher"
_PRIORITY = 200
"""Above IPython's own (0 to 100), so that its matchers are not even asked."""


def register(ipython: Any) -> None:
    """Let Tab complete our lines in this IPython; once, however often the extension is loaded."""
    unregister(ipython)
    completer = getattr(ipython, "Completer", None)
    if completer is not None:
        completer.custom_matchers.append(_matcher(ipython))


def unregister(ipython: Any) -> None:
    """Take it back."""
    matchers = getattr(getattr(ipython, "Completer", None), "custom_matchers", [])
    ours = [one for one in matchers if getattr(one, "matcher_identifier", "") == IDENTIFIER]
    for one in ours:
        matchers.remove(one)


def _matcher(ipython: Any) -> Any:
    python = _Python(ipython)
    # Its type knows the two ways to write a matcher, but no plain function as one of them.
    as_matcher: Any = context_matcher(identifier=IDENTIFIER, priority=_PRIORITY)

    @as_matcher
    def agent_matcher(context: Any) -> dict[str, Any]:
        try:
            line, column = context.cursor_line, context.cursor_position
            typing = typing_at(context.full_text, line, column)
            if typing is not None and typing.what == "python":
                return python.completed(typing.fragment)
            if typing is not None:
                return _completed(typing, ipython.user_ns)
        except Exception:
            # A traceback in the middle of typing helps nobody.
            logging.getLogger("nbagent").debug("no completion", exc_info=True)
        return {"completions": []}

    return agent_matcher


class _Silence:
    """No completions, and yet an answer: nothing is known here, and Python's names do not fit.

    IPython lets a matcher silence the others only when it found something.
    """

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[SimpleCompletion]:
        return iter(())


def _completed(typing: Typing, namespace: Any) -> dict[str, Any]:
    # Late: most sessions begin without a Tab.
    values = import_module("nbagent.notebook.known_values")
    found = [_completion(known, typing) for known in values.known_for(typing, namespace)]
    return _answer(found or _Silence(), typing.fragment)


def _completion(known: Any, typing: Typing) -> SimpleCompletion:
    as_it_is = known.kind in ("option", "setting")
    text = known.text if as_it_is else quoted(known.text, typing.quote)
    return SimpleCompletion(text, type=known.kind)


def _answer(completions: Any, fragment: str) -> dict[str, Any]:
    return {
        "completions": completions,
        "matched_fragment": fragment,
        "suppress": True,
        "ordered": True,
    }


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
        names = [SimpleCompletion(one.text, type=one.type) for one in kept]
        return _answer(names, expression[start:])
