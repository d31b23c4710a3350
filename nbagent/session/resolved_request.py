"""A request with all that it inherits: the run before it, conversation, options, limits.

Each is resolved once, and before anything is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nbagent.contracts.canonical import new_id
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import Message
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.session.inherit import (
    Conversation,
    conversation_of,
    deferred_turn,
    foreign_options,
    inherited_options,
)
from nbagent.session.models import resolve_settings
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import check_limits, current_settings, without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """What a run is asked for, and with which options, limits and earlier messages."""

    request: RunRequest
    run_id: str
    parent: RunRecord | None
    """The run that it goes on from."""
    is_foreign: bool
    """The parent is another owner's."""
    deferred: EngineTurn | None
    """The parent's last turn, if its calls wait to be run."""
    left_out: tuple[str, ...]
    """Options of another owner's run that are not used."""
    options: RunOptions
    """The call's and the inherited ones."""
    settings: Settings
    """Those of the process, without the options."""
    run_settings: Settings
    """Those of this run."""
    limits: Limits
    conversation: Conversation

    @property
    def earlier_messages(self) -> tuple[Message, ...]:
        """The conversation before this run, with the turns that a fork repeats."""
        copies = (message for message, _ in self.conversation.copies)
        return (*self.conversation.history, *copies)


def resolve_request(request: RunRequest, store: RunStore) -> ResolvedRequest:
    """Resolve options, settings and conversation. Raises UsageError."""
    # First: it registers the secrets of the environment. All that is read later is stored or sent.
    call_options = without_secrets(request.options)
    settings = current_settings()
    parent = store.load(request.parent_id) if request.parent_id else None
    is_foreign = parent is not None and store.is_foreign(parent.id)
    # A call in another owner's answer does not run: the model is asked again.
    deferred = None if is_foreign else deferred_turn(request, parent)
    if deferred is not None:
        # The turn is repeated with its stored answer, so that only its calls are new.
        request = replace(request, kind="fork", fork_turn=deferred.id)
    left_out = foreign_options(parent) if parent and is_foreign else ()
    dropped = {*request.not_inherited, *left_out}
    options = inherited_options(call_options, parent, dropped, settings)
    run_settings = without_secrets(resolve_settings(options, settings))
    return ResolvedRequest(
        request=request,
        limits=_limits(options, run_settings),
        conversation=conversation_of(parent, request, store),
        run_id=new_id(),
        parent=parent,
        is_foreign=is_foreign,
        deferred=deferred,
        left_out=tuple(left_out),
        options=options,
        settings=settings,
        run_settings=run_settings,
    )


def _limits(options: RunOptions, settings: Settings) -> Limits:
    limits = Limits(
        # If only max_requests was lowered, lower max_turns to it.
        max_turns=settings.max_turns
        if options.max_turns
        else min(settings.max_turns, settings.max_requests),
        max_requests=settings.max_requests,
        max_repeated_failures=settings.max_repeated_failures,
        max_repeated_results=settings.max_repeated_results,
        max_total_tokens=settings.max_total_tokens,
        max_cost_usd=settings.max_cost_usd,
    )
    check_limits(limits.max_turns, limits.max_requests)
    return limits
