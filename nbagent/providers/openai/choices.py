"""Which of an answer's choices is read. One is asked for; a server may send more.

Choices are never mixed: the one with index 0 is the answer, or else the first that came.
"""

from __future__ import annotations

from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.providers.frames import bad_answer
from nbagent.providers.openai.calls import index_of


class ChoicePicker:
    """Picks the same choice from every chunk of one answer."""

    def __init__(self) -> None:
        self.index: int | None = None
        """Of the choice that is read, once it is known."""

    def pick(self, choices: Any) -> dict[str, Any] | None:
        """The answer's choice; None when only others are in the list.

        Raises:
            ModelError: it is no list of objects.
        """
        first: Any = choices[0] if choices.__class__ is list else None
        if first.__class__ is not dict:
            raise bad_answer("`choices` is not a list of objects")
        offered: dict[int, dict[str, Any]] = {}
        for item in cast("list[Any]", choices):
            choice = json_object(item)
            if choice is not None:
                offered.setdefault(index_of(choice.get("index")) or 0, choice)
        if self.index is None:
            self.index = 0 if 0 in offered else next(iter(offered))
        return offered.get(self.index)
