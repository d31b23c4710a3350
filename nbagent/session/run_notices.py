"""What is said at the start of a run: a chosen model, unused options, what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import ordinary_secret_names
from nbagent.providers.address import is_loopback
from nbagent.session.fork_edits import describe_edits
from nbagent.session.inherit import Conversation
from nbagent.session.models import ResolvedModel, same_server
from nbagent.session.project_trust import settings_notices
from nbagent.session.request import RunRequest
from nbagent.session.resolved_request import ResolvedRequest
from nbagent.session.stores import notice_of
from nbagent.settings.options import RunOptions
from nbagent.view.run_facts import offline_model_text

if TYPE_CHECKING:
    from nbagent.session.workflow_setup import AgentSetup

DEFERRED_NOTICE = (
    "Asked again. If the answer has tool calls, they do not run yet; Continue or run.resume() runs "
    "them."
)

_explained_stores: WeakSet[RunStore] = WeakSet()
"""Stores of runs with a notice on the offline stand-in, so a fresh process state has none."""


def start_notices(
    basis: ResolvedRequest,
    store: RunStore,
    agent_setup: AgentSetup | None,
    resolved: ResolvedModel,
) -> Iterator[str]:
    """Yield what a person is told before the first request."""
    request, parent, conversation = basis.request, basis.parent, basis.conversation
    if resolved.why and not _is_explained(store, resolved, is_said=not request.dry_run):
        yield default_model_notice(resolved)
    if store.warning:
        yield store.warning
    if text := notice_of(store, is_said=not request.dry_run):
        yield text
    yield from project_notices(request, agent_setup, resolved)
    yield from map(word_notice, ordinary_secret_names())
    if parent is not None:
        yield from change_notices(basis.options, resolved, parent, conversation, request)
        yield from foreign_notices(basis.left_out, basis.options, resolved, parent)
    if basis.deferred:
        yield f"{basis.deferred.id} has the answer of run {basis.deferred.run_id[:8]}."
    if request.defer_calls:
        yield DEFERRED_NOTICE
    yield from request.notices
    if agent_setup is not None:
        yield from agent_setup.notices(parent, None if request.fork_turn else conversation.turn)


def _is_explained(store: RunStore, resolved: ResolvedModel, *, is_said: bool) -> bool:
    """True if an earlier run of this process said why the offline stand-in was chosen.

    The head of each run names the stand-in; the reason is said once, with the first run.
    """
    if not offline_model_text(resolved.model_id):
        return False
    is_explained = store in _explained_stores
    if is_said:
        _explained_stores.add(store)
    return is_explained


def word_notice(name: str) -> str:
    """Say that a secret is an ordinary word, never which."""
    return (
        f"The secret in {name[:100]} is an ordinary word or a short number: it is hidden where it "
        "stands alone, not inside of words. Choose a longer one."
    )


def no_price_text(resolved: ResolvedModel) -> str:
    """Say that a limit of cost cannot hold, and what to do."""
    advice = "limit max_total_tokens"
    if is_loopback(resolved.base_url):
        advice += (
            f", or, if the server at {resolved.base_url} runs the model itself, name its provider: "
            f"vllm:{resolved.model}, lmstudio:{resolved.model} or llamacpp:{resolved.model}"
        )
    return f"no price is known for {resolved.model_id}; {advice}"


def default_model_notice(chosen: ResolvedModel) -> str:
    model_text = offline_model_text(chosen.model_id) or f"{chosen.model_id} was chosen"
    return f"{model_text}: {chosen.why}."


def foreign_notices(
    left_out: Sequence[str], options: RunOptions, chosen: ResolvedModel, parent: RunRecord
) -> list[str]:
    """One notice about the options of another owner's run that are not used."""
    same = {
        "model": parent.model == chosen.model_id,
        "base_url": parent.base_url == chosen.base_url,
    }
    names = [n for n in left_out if n not in options.explicit and not same.get(n)]
    if not names:
        return []
    return [
        f"Run {parent.id[:8]} was in this store when you took it over, so it may be anybody's: "
        f"its {', '.join(names)} {'is' if len(names) == 1 else 'are'} not used, yours apply. Name "
        "an option to use it."
    ]


def project_notices(
    request: RunRequest, agent_setup: AgentSetup | None, resolved: ResolvedModel
) -> list[str]:
    """Notices about choices of the project's files that are left out."""
    # A batch shows no notices of its runs.
    is_seen = not request.dry_run and request.case is None
    notices = settings_notices(report=is_seen)
    if agent_setup is not None:
        notices += agent_setup.model_notices(resolved.provider, report=is_seen)
    return notices


def change_notices(
    options: RunOptions,
    chosen: ResolvedModel,
    parent: RunRecord,
    base: Conversation,
    ask: RunRequest,
) -> list[str]:
    """Notices about differences between this run and its parent."""
    notices = (
        [describe_edits(ask.edits, ask.drop, str(ask.fork_turn))] if ask.edits or ask.drop else []
    )
    now = RunOptions(model=chosen.model_id, base_url=chosen.base_url)
    if not same_server(now, parent.model, parent.base_url):
        before, after = parent.base_url or parent.model, chosen.base_url or chosen.model_id
        notices.append(f"The server changed: {before} before, {after} now.")
    if parent.model != chosen.model_id and any(message.reasoning for message in base.history):
        notices.append(
            f"Earlier reasoning stays with {parent.model}: it is not sent to {chosen.model_id}."
        )
    kind = parent.options.get("output")
    if kind and options.output is None:
        notices.append(
            f"The type {kind} is not known here, so the answer is text; give it with output=…."
        )
    return notices
