"""From what a person asked to a run that can start: model, tools, conversation, limits, record.

Everything that can be refused is refused here, before anything is written or sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from nbagent.archive.store import Store
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.chat import Message, Part, TextPart, Usage, redacted
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import EngineTurn, Phase, RunRecord
from nbagent.contracts.secrets import MASK, redact, redact_json, register, register_environment
from nbagent.providers.registry import origin
from nbagent.session.approval import OnApproval
from nbagent.session.clients import Chosen, address, asked_of, choose, same_server
from nbagent.session.composer import ChatComposer
from nbagent.session.front import Front
from nbagent.session.hosts import RunTools, tools_of
from nbagent.session.output import (
    AnswerComposer,
    AnswerHosts,
    Output,
    output_of,
    remember_type,
)
from nbagent.session.recorded import cassette_of, recorded_hosts
from nbagent.settings import RunOptions, Settings, check_limits, effective
from nbagent.tools.base import HostSet

Kind = Literal["start", "continue", "resume", "fork"]

CONTINUE = "Your last answer was cut off. Go on exactly where it stopped."
"""Enters the history when a run goes on after an unfinished answer and nobody said anything."""

_TOLD = ("max_turns", "max_tokens")
"""Limits that may surprise when they go on; said in a notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person wants done: the three doors all end in this."""

    prompt: str | None = None
    parts: tuple[Part, ...] = ()
    """The prompt with its images; empty when it is text only."""
    template: str | None = None
    messages: tuple[Message, ...] = ()
    """A conversation of the person's own making that comes before the prompt."""
    options: RunOptions = field(default_factory=RunOptions)
    tools: tuple[object, ...] | None = None
    """Python functions, MCP servers; None: by name, from the options, the parent, the notebook."""
    on_approval: OnApproval | None = None
    """Answers questions about tool calls instead of a person."""
    kind: Kind = "start"
    parent_id: str | None = None
    fork_turn: str | None = None
    """The turn that is asked anew."""
    dry_run: bool = False
    """Only to be looked at: a key may be missing. See `session.preview`."""
    dropped: tuple[str, ...] = ()
    """Options of the run before that do not go on, also where `options` says nothing."""
    notices: tuple[str, ...] = ()
    """What the person should know of it, beside what is found here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that can start."""

    record: RunRecord
    chosen: Chosen
    tools: RunTools
    composer: ChatComposer
    history: tuple[Message, ...]
    params: dict[str, Any]
    asked: Settings
    """What holds for this run: the options, over the settings."""
    first_index: int
    phase_before: Phase
    """Of the run that this one goes on with."""
    requests_before: int
    before: EngineTurn | None
    """The last turn that asked this model before this run; in a fork, the one asked anew."""
    notices: tuple[str, ...]


def prepare(ask: Ask, *, store: Store, front: Front) -> Prepared:
    """Check and resolve everything.

    Raises:
        UsageError: something cannot be done as asked; nothing was started.
    """
    # Before anything is read: what is read now is kept and sent.
    register_environment()
    settings = effective()
    parent = store.load(ask.parent_id) if ask.parent_id else None
    options = _merged(ask.options, parent, ask.dropped)
    asked = asked_of(options, settings)
    register(os.environ.get(asked.key_variable or "", ""))
    limits = _limits(options, asked)
    base = _Base.of(ask, parent, store)
    words = _words(ask, parent, base, limits.ceiling)
    named = options.tools if ask.tools is None or ask.options.tools is not None else None
    if named is None and ask.tools is None:
        named = settings.tools
    chosen = choose(asked, need_key=not ask.dry_run and asked.cache != "replay")
    inherits = parent is not None and "output" not in ask.dropped
    kind, output = output_of(options.output, parent.id if parent and inherits else None)
    join = HostSet
    if output is not None:
        join = partial(AnswerHosts, output=output, client=chosen.client, model=chosen.model)
    run_id = new_id()
    mode, cassette = cassette_of(asked, store, run_id)
    if asked.replay_tools:
        join = recorded_hosts(cassette, mode, join)
    tools = tools_of(named, ask.tools, options=options, settings=settings, front=front, join=join)
    _check_price(limits, chosen)
    params = redact_json(_params(options, asked))
    system = asked.system
    told = (*_told(ask.options, options, parent), *_told_once(tools.warnings))
    notices = (
        *_notices(chosen, store),
        *_lost_type(parent, kind, inherits),
        *_moved(chosen, parent, base.history),
        *told,
        *ask.notices,
    )
    record = RunRecord(
        id=run_id,
        session=options.session or settings.session,
        name=options.name,
        tags=options.tags or (),
        parent_id=parent.id if parent else None,
        shared_messages=len(base.history) if parent else 0,
        kind=ask.kind,
        cell_id=front.cell_id(),
        notebook=front.notebook(),
        model=chosen.model_id,
        base_url=chosen.base_url,
        template=ask.template,
        prompt=ask.prompt or "",
        options=_kept(options.changed(cassette=asked.cassette), chosen, output),
        limits=limits,
        started_at=utc_now(),
        notices=notices,
        messages=words,
    )
    record = redacted(record)
    if not ask.dry_run:
        _remember(record.id, options)
        remember_type(record.id, kind)
    prompt, opening = redact(system) if system else None, _opening(record.messages, base.history)
    return Prepared(
        record=record,
        chosen=chosen,
        tools=tools,
        composer=ChatComposer(prompt, opening=opening)
        if output is None
        else AnswerComposer(prompt, opening=opening, output=output, hosts=tools.host),
        history=base.history,
        params=params,
        asked=asked,
        first_index=base.first_index,
        phase_before=parent.phase if parent else "Running",
        requests_before=0 if ask.prompt or ask.messages else base.requests,
        before=base.turn_before(record),
        notices=record.notices,
    )


@dataclass(frozen=True, slots=True)
class _Base:
    """Where the conversation stands that a run goes on with."""

    history: tuple[Message, ...] = ()
    first_index: int = 1
    requests: int = 0
    asked_by: RunRecord | None = None
    """The run that made the last turn before, and this turn (in a fork, the one asked anew)."""
    turn: EngineTurn | None = None

    def turn_before(self, record: RunRecord) -> EngineTurn | None:
        """The turn before, when the same model on the same server was asked."""
        asked = self.asked_by
        if asked is None or (asked.model, asked.base_url) != (record.model, record.base_url):
            return None
        return self.turn

    @classmethod
    def of(cls, ask: Ask, parent: RunRecord | None, store: Store) -> _Base:
        if parent is None:
            return cls()
        if parent.phase == "Running":
            raise UsageError(
                f"run {parent.id[:8]} is still at work; wait for it, or stop it where it was "
                "started (■, or %agent stop in that notebook)"
            )
        history = store.conversation(parent.id)
        requests = store.requests_since_words(parent.id)
        if ask.fork_turn is None:
            asked = _last_that_asked(parent, store)
            last = asked.turns[-1] if asked else None
            return cls(history, last.index + 1 if last else 1, requests, asked, last)
        turn = next((t for t in parent.turns if t.id == ask.fork_turn), None)
        if turn is None:
            known = ", ".join(t.id for t in parent.turns) or "none"
            raise UsageError(
                f"run {parent.id[:8]} has no turn {ask.fork_turn!r}; its own turns: {known}"
            )
        later = sum(t.index >= turn.index for t in parent.turns)
        kept = history[: turn.request.n_messages]
        return cls(kept, turn.index, max(0, requests - later), parent, turn)


def _last_that_asked(run: RunRecord, store: Store) -> RunRecord | None:
    """The run itself or the nearest one before it that has turns."""
    while not run.turns and run.parent_id is not None:
        run = store.load(run.parent_id)
    return run if run.turns else None


def _words(ask: Ask, parent: RunRecord | None, base: _Base, ceiling: int) -> tuple[Message, ...]:
    if ask.prompt is not None and not ask.prompt.strip() and not ask.messages:
        raise UsageError("the prompt is empty; write what you want to ask")
    own = ask.messages
    _check_answered(own)
    if ask.prompt:
        parts = ask.parts or (TextPart(text=ask.prompt),)
        return (*own, Message(role="user", content=parts))
    if own or parent is None:
        return own
    if ask.kind == "fork":
        return ()
    if ask.kind == "resume":
        _check_resumable(parent, base, ceiling)
    return ()


def _opening(words: tuple[Message, ...], history: Sequence[Message]) -> tuple[Message, ...]:
    """A directive where an answer was cut off and the person said nothing more."""
    if words or not history or history[-1].role != "assistant":
        return ()
    return (Message.of("user", CONTINUE),)


def _check_answered(messages: Sequence[Message]) -> None:
    """Refuse a conversation that no provider accepts: calls without their results."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or message.tool_call_id != waiting.pop(0):
                raise UsageError(
                    f"messages: the result {message.tool_call_id!r} answers no call in its place; "
                    "put one tool message for each call after the calls, in their order"
                )
            continue
        if waiting:
            break
        waiting = [call.id for call in message.tool_calls]
    if waiting:
        raise UsageError(
            f"messages: the call {waiting[0]!r} has no result; add a tool message with that id"
        )


def _check_resumable(parent: RunRecord, base: _Base, ceiling: int) -> None:
    if parent.phase == "Completed" or parent.stop_reason in ("answered", "content_filter"):
        raise UsageError(
            f"run {parent.id[:8]} has ended ({parent.stop_reason}); to go on, say something: "
            "%%agent --continue with your next words, or run.resume('…')"
        )
    if base.requests >= ceiling:
        raise UsageError(
            f"run {parent.id[:8]} reached the ceiling of {ceiling} requests; say what to do next "
            "(run.resume('…') or %%agent --continue), or raise it: run.resume(ceiling=…)"
        )
    if not base.history:
        raise UsageError(f"run {parent.id[:8]} has no conversation to go on with")


def _merged(options: RunOptions, parent: RunRecord | None, dropped: tuple[str, ...]) -> RunOptions:
    """The options, with what the parent's run had where they say nothing."""
    if parent is None:
        return options
    kept: dict[str, Any] = {"session": parent.session, **parent.options}
    stays = same_server(options, kept.get("model") or parent.model, kept.get("base_url"))
    changes: dict[str, Any] = {}
    for name, row in RunOptions.rows().items():
        said = name in options.given or name in dropped
        if name in kept and row.goes_on and not said and (stays or not row.server):
            changes[name] = _known_again(parent.id, name, kept[name]) if row.secret else kept[name]
    if MASK in (changes.get("base_url") or ""):
        raise UsageError(
            "the base URL of that run held a key, which is never kept; give it again: base_url=…"
        )
    return RunOptions(**changes).changed(**options.given)


_secret: dict[str, dict[str, Any]] = {}
"""By run, of the last runs of this process: what no record keeps, for the runs that go on."""
_REMEMBERED = 1000


def _remember(run_id: str, options: RunOptions) -> None:
    rows = RunOptions.rows()
    values = {name: value for name, value in options.given.items() if rows[name].secret}
    if values:
        _secret[run_id] = values
        for old in list(_secret)[:-_REMEMBERED]:
            _secret.pop(old, None)


def _known_again(run_id: str, name: str, kept: dict[str, Any]) -> dict[str, Any] | None:
    """The values that a record has the names of; None where the settings have them."""
    values = _secret.get(run_id, {}).get(name)
    if values is None and not (getattr(effective(), name) or {}).keys() >= kept.keys():
        raise UsageError(
            f"that run had {name} ({', '.join(kept)}), whose values are never kept; "
            f"give them again: {name}={{…}}"
        )
    return values


def _limits(options: RunOptions, asked: Settings) -> Limits:
    given = options.max_turns is not None
    limits = Limits(
        max_turns=asked.max_turns if given else min(asked.max_turns, asked.ceiling),
        ceiling=asked.ceiling,
        loop_limit=asked.loop_limit,
        max_total_tokens=asked.max_total_tokens,
        max_cost_usd=asked.max_cost_usd,
    )
    check_limits(limits.max_turns, limits.ceiling)
    return limits


def _check_price(limits: Limits, chosen: Chosen) -> None:
    if limits.max_cost_usd is None:
        return
    if chosen.price(Usage(prompt_tokens=1, total_tokens=1), chosen.model) is None:
        raise UsageError(
            f"no price is known for {chosen.model_id}, so max_cost_usd cannot hold; "
            "limit its tokens with max_total_tokens=…"
        )


def _params(options: RunOptions, asked: Settings) -> dict[str, Any]:
    names = [name for name, row in Settings.rows().items() if row.sent]
    params = {n: value for n in names if (value := getattr(asked, n)) is not None}
    return params if options.tool_choice is None else {**params, "tool_choice": options.tool_choice}


def _kept(options: RunOptions, chosen: Chosen, output: Output | None) -> dict[str, Any]:
    """The options as they go into the record: what would go on, JSON values, no secrets."""
    rows = RunOptions.rows()
    kept = {n: rows[n].shown(value) for n, value in options.given.items() if rows[n].goes_on}
    if options.policy is not None:
        kept["policy"] = options.policy.as_json()
    if output is not None:
        kept["output"] = output.name
    kept["model"] = chosen.model_id
    if chosen.base_url:
        kept["base_url"] = chosen.base_url
    return {
        k: list(cast("tuple[Any, ...]", v)) if isinstance(v, tuple) else v for k, v in kept.items()
    }


def _moved(chosen: Chosen, parent: RunRecord | None, history: Sequence[Message]) -> tuple[str, ...]:
    """That the conversation goes to another model or server than before, and what stays behind."""
    if parent is None:
        return ()
    told: list[str] = []
    now, model = chosen.base_url and redact(chosen.base_url), redact(chosen.model_id)
    if address(parent.model, parent.base_url) != address(model, now):
        what = "path on the server" if origin(parent.base_url) == origin(now) else "server"
        before = parent.base_url or parent.model
        told.append(f"The {what} changed: {before} before, {now or model} now.")
    if parent.model != model and any(message.reasoning for message in history):
        told.append(f"Earlier reasoning stays with {parent.model}: it is not sent to {model}.")
    return tuple(told)


def _told(given: RunOptions, options: RunOptions, parent: RunRecord | None) -> tuple[str, ...]:
    """Which limits go on from the run before although nobody said so."""
    names = [n for n in _TOLD if getattr(options, n) is not None and getattr(given, n) is None]
    if parent is None or not names:
        return ()
    limits = " and ".join(f"{name}={getattr(options, name)}" for name in names)
    return (f"As in run {parent.id[:8]}: {limits}. Give other values to change that.",)


def _lost_type(parent: RunRecord | None, kind: Any, inherits: bool) -> tuple[str, ...]:
    """That the answer is no longer of a type, because this process does not have it."""
    name = parent.options.get("output") if parent and inherits and kind is None else None
    return (
        f"The type {name} is not known here, so the answer is text; output=… gives it.",
    ) * bool(name)


_known_warnings: set[str] = set()


def _told_once(warnings: Sequence[str]) -> tuple[str, ...]:
    """What hosts warn of (a skill that is not as it should be), once for each process."""
    fresh = tuple(text for text in warnings if text not in _known_warnings)
    _known_warnings.update(warnings)
    return fresh


def _notices(chosen: Chosen, store: Store) -> tuple[str, ...]:
    notices: list[str] = []
    if chosen.why:
        notices.append(f"{chosen.model_id} was chosen: {chosen.why}.")
    if store.warning:
        notices.append(store.warning)
    return tuple(notices)
