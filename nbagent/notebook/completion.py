"""Tab on the lines of `%%agent` and `%agent`, and in `{{ expressions }}` of a prompt.

Owns the place in IPython's completer (matcher API v2). What is answered is in
`completion_answers`; everywhere else, and whatever fails here, IPython goes on alone.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from IPython.core.completer import context_matcher

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
    answers: Any = None
    # Its type knows the two ways to write a matcher, but no plain function as one of them.
    as_matcher: Any = context_matcher(identifier=IDENTIFIER, priority=_PRIORITY)

    @as_matcher
    def agent_matcher(context: Any) -> dict[str, Any]:
        nonlocal answers
        try:
            if "%agent" in context.full_text:
                if answers is None:
                    # Late: most cells are none of ours, and most sessions begin without a Tab.
                    module = import_module("nbagent.notebook.completion_answers")
                    answers = module.Answers(ipython)
                return answers.answer(context)
        except Exception:
            # A traceback in the middle of typing helps nobody.
            logging.getLogger("nbagent").debug("no completion", exc_info=True)
        return {"completions": []}

    return agent_matcher
