"""The open questions of a run: each is answered once, and can be previewed with other arguments.

Owns which answer counts, and what a later one is told. Deciding about a call is in `approval`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.ports import ShowPieces
from nbagent.contracts.tools import ToolContext

_CHOICES = {"once": "allowed once", "session": "allowed for the session", "deny": "denied"}
_ANSWERED_BY = {"person": "in the view", "callback": "by on_approval", "input": "by input()"}
Preview = tuple[str, tuple[PreviewPiece, ...], str]
"""The reason, the pieces, and the hash that an approval of this effect is bound to."""


@dataclass(kw_only=True, eq=False)
class OpenQuestion:
    """An open question about a call. Its future belongs to the engine's loop."""

    call: ToolCall
    """The call in question, with the arguments that the person may have edited before."""
    question: Question
    context: ToolContext
    future: asyncio.Future[PersonAnswer]
    asked_by: str = "person"
    """`person` if a view asks; else `callback` or `input`, whose answer is the only one."""
    answer: PersonAnswer | None = None
    """The answer that counts; None while the question is open."""
    shown: dict[str, str] = field(default_factory=dict[str, str])
    """For each edit whose effect was shown: the hash that its approval is bound to."""
    pending_edit: tuple[Mapping[str, Any], ShowPieces] | None = None
    """Edited arguments that still need a preview."""
    previewing: asyncio.Task[None] | None = None
    pid: int = field(default_factory=os.getpid)
    is_contradicted: bool = False
    """True once a later answer differed: one notice is enough."""

    @property
    def outcome(self) -> str:
        """How it was answered, for a person: `denied in the view`; empty if it was not."""
        if self.answer is None:
            return ""
        edited = " with other arguments" * (self.answer.arguments is not None)
        return f"{_CHOICES[self.answer.choice]}{edited} {_ANSWERED_BY[self.asked_by]}"

    def bound_edit(self, arguments: Mapping[str, Any]) -> str | None:
        """Hash of the effect that was shown for edited arguments; None if none was shown."""
        return self.shown.get(sha_of(dict(arguments)))


@dataclass(eq=False)
class OpenQuestions:
    """The questions of one run, the last one of each call. Any thread."""

    on_contradiction: Callable[[str], object]
    """Told, on the engine's loop, that a later answer differs from the one that counts."""
    _by_call: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion], init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @contextmanager
    def opened(self, question: OpenQuestion) -> Generator[OpenQuestion]:
        """Keep a question open for the time of the context. On the engine's loop."""
        with self._lock:
            self._by_call[question.call.id] = question
        try:
            yield question
        finally:
            question.future.cancel()  # no preview is shown any more

    def answer(self, tool_call_id: str, answer: PersonAnswer, asked_of: Question | None) -> bool:
        """Answer a question; False if it is not open, or was answered before."""
        with self._lock:
            open_question = self._by_call.get(tool_call_id)
            # The loop of a forked process does not run: its answer would reach nobody.
            if open_question is None or open_question.pid != os.getpid():
                return False
            # The call may have been asked about again, with another effect.
            if asked_of is not None and asked_of is not open_question.question:
                return False
            first = open_question.answer
            if first is None:
                if not self._takes(open_question):
                    return False
                open_question.answer = answer
                return _call_soon(open_question, _set_answer, open_question.future, answer)
            is_news = answer != first and not open_question.is_contradicted
            open_question.is_contradicted |= is_news
        if is_news:
            text = f"{open_question.call.name} was already answered: {open_question.outcome}; "
            text += f"a later answer ({_CHOICES[answer.choice]}) changed nothing"
            _call_soon(open_question, self.on_contradiction, text)
        return False

    def answered(self, tool_call_id: str) -> str:
        """Say why the question about a call takes no answer; empty if it takes one."""
        question = self._by_call.get(tool_call_id)
        if question is None:
            return "there is no such question"
        if question.answer is not None:
            return f"this question was already answered: {question.outcome}"
        if question.future.done():
            return "this question was closed without an answer"
        return "" if self._takes(question) else f"answered {_ANSWERED_BY[question.asked_by]} only"

    def preview(
        self,
        tool_call_id: str,
        arguments: Mapping[str, Any],
        show: ShowPieces,
        make: Callable[[OpenQuestion, Mapping[str, Any]], Coroutine[Any, Any, Preview]],
    ) -> bool:
        """Show what `make` says of a call with other arguments; False if it is not in question."""
        question = self._by_call.get(tool_call_id)
        if question is None or question.answer is not None or question.future.done():
            return False

        def begin() -> None:
            # While one preview is made, only the newest edit is kept: typing makes many.
            question.pending_edit = (arguments, show)
            if question.previewing is None or question.previewing.done():
                question.previewing = asyncio.ensure_future(_show_previews(question, make))

        return _call_soon(question, begin)

    @staticmethod
    def _takes(question: OpenQuestion) -> bool:
        return question.asked_by == "person" and not question.future.done()


async def _show_previews(
    question: OpenQuestion,
    make: Callable[[OpenQuestion, Mapping[str, Any]], Coroutine[Any, Any, Preview]],
) -> None:
    while question.pending_edit is not None and not question.future.done():
        (arguments, show), question.pending_edit = question.pending_edit, None
        why, pieces, bound = await make(question, arguments)
        if not question.future.done():
            question.shown[sha_of(dict(arguments))] = bound
            show(why, pieces)


def _set_answer(future: asyncio.Future[PersonAnswer], answer: PersonAnswer) -> None:
    if not future.done():
        future.set_result(answer)


def _call_soon(question: OpenQuestion, work: Callable[..., object], *args: object) -> bool:
    """Call `work` on the engine's loop; False if that was closed."""
    try:
        question.future.get_loop().call_soon_threadsafe(work, *args)
    except RuntimeError:
        return False
    return True
