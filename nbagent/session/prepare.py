"""From what a person asked to the engine's plan: model, tools, conversation, limits, record.

Everything that can be refused is refused here, before anything is written or sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from nbagent import __version__
from nbagent.archive.store import Store
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.chat import Message, Part, TextPart, Usage, redacted
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Limits
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import MASK
from nbagent.engine import EnginePlan
from nbagent.providers.registry import origin
from nbagent.runtime import Courier
from nbagent.session.approval import OnApproval
from nbagent.session.clients import Chosen, address, asked_of, choose, same_server
from nbagent.session.composer import ChatComposer
from nbagent.session.frontend import Frontend
from nbagent.session.going_on import (
    Conversation,
    check_answered,
    check_resumable,
    conversation_of,
    opening,
)
from nbagent.session.hosts import RunTools, tools_of
from nbagent.session.output import (
    AnswerComposer,
    AnswerHosts,
    Output,
    output_of,
    remember_type,
)
from nbagent.session.recorded import cassette_of, recorded_hosts
from nbagent.settings import (
    RunOptions,
    Settings,
    check_limits,
    effective,
    without_secrets,
)
from nbagent.tools.base import HostSet

Kind = Literal["start", "continue", "resume", "fork"]

_SAID_LIMITS = ("max_turns", "max_tokens")
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

    plan: EnginePlan
    """Without an approver."""
    tools: RunTools
    chosen: Chosen


def prepare(ask: Ask, *, store: Store, frontend: Frontend, courier: Courier) -> Prepared:
    """Check and resolve everything.

    Raises:
        UsageError: something cannot be done as asked; nothing was started.
    """
    # First: it finds the keys of the environment, and what is read from here on is kept and sent.
    given = without_secrets(ask.options)
    parent = store.load(ask.parent_id) if ask.parent_id else None
    options = _merged(given, parent, ask.dropped)
    settings = effective()
    asked = without_secrets(asked_of(options, settings))
    limits = _limits(options, asked)
    base = conversation_of(parent, ask.fork_turn, store)
    words = _words(ask, base, limits.ceiling)
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
    tools = tools_of(
        _named_tools(ask, options, settings),
        ask.tools,
        options=options,
        settings=settings,
        namespace=frontend.namespace,
        join=join,
    )
    _check_price(limits, chosen)
    cell = frontend.cell()
    # Who says nothing new has the model answer what was said last.
    said = ask if ask.prompt or parent is None else parent
    record = redacted(
        RunRecord(
            id=run_id,
            session=options.session or settings.session,
            name=options.name,
            tags=options.tags or (),
            parent_id=parent.id if parent else None,
            shared_messages=len(base.history) if parent else 0,
            kind=ask.kind,
            forked_from=ask.fork_turn,
            nbagent_version=__version__,
            execution_count=cell.execution_count,
            cell_id=cell.cell_id,
            notebook=cell.notebook,
            model=chosen.model_id,
            base_url=chosen.base_url,
            template=said.template,
            prompt=said.prompt or "",
            options=_kept(options.changed(cassette=asked.cassette), chosen, output),
            limits=limits,
            started_at=utc_now(),
            messages=words,
        )
    )
    notices = (
        *([f"{chosen.model_id} was chosen: {chosen.why}."] if chosen.why else ()),
        *([store.warning] if store.warning else ()),
        *_lost_type(parent, kind, inherits),
        *_moved(record, base),
        *_limits_that_go_on(given, options, parent),
        *ask.notices,
    )
    record = record.model_copy(update={"notices": notices})
    if not ask.dry_run:
        _remember(record.id, options)
        remember_type(record.id, kind)
    begin = opening(record.messages, base.history)
    composer = ChatComposer(asked.system, opening=begin)
    if output is not None:
        composer = AnswerComposer(asked.system, opening=begin, output=output, hosts=tools.host)
    plan = EnginePlan(
        run=record,
        history=base.history,
        client=chosen.client if ask.dry_run else chosen.recorded(mode, cassette),
        model=chosen.model,
        host=tools.host,
        composer=composer,
        context=ToolContext(
            run_id=record.id,
            session=record.session,
            runner=courier,
            namespace=frontend.namespace,
            run_code=frontend.run_code(),
            mounts=tools.mounts,
            policy=tools.policies.effective,
        ),
        cancel=courier.cancel,
        params=_params(options, asked),
        stream=asked.stream,
        first_index=base.first_index,
        phase_before=parent.phase if parent else "Running",
        requests_before=0 if ask.prompt or ask.messages else base.requests,
        price=chosen.price,
        trim=asked.trim == "tool-results",
        before=base.turn_before(record),
        context_tokens=chosen.context_tokens,
        notices=list(notices),
    )
    return Prepared(plan=plan, tools=tools, chosen=chosen)


def _words(ask: Ask, base: Conversation, ceiling: int) -> tuple[Message, ...]:
    """What the person says, as messages."""
    if ask.prompt is not None and not ask.prompt.strip() and not ask.messages:
        raise UsageError("the prompt is empty; write what you want to ask")
    check_answered(ask.messages)
    if ask.prompt:
        parts = ask.parts or (TextPart(text=ask.prompt),)
        return (*ask.messages, Message(role="user", content=parts))
    if base.parent is not None and ask.kind == "resume" and not ask.messages:
        check_resumable(base.parent, base, ceiling)
    return ask.messages


def _named_tools(ask: Ask, options: RunOptions, settings: Settings) -> Any:
    if ask.tools is not None:
        return ask.options.tools
    return options.tools if options.tools is not None else settings.tools


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
        k: list(cast("Sequence[Any]", v)) if isinstance(v, tuple) else v for k, v in kept.items()
    }


def _moved(record: RunRecord, base: Conversation) -> tuple[str, ...]:
    """That the conversation goes to another model or server than before, and what stays behind."""
    parent = base.parent
    if parent is None:
        return ()
    notices: list[str] = []
    if address(parent.model, parent.base_url) != address(record.model, record.base_url):
        same = origin(parent.base_url) == origin(record.base_url)
        before, now = parent.base_url or parent.model, record.base_url or record.model
        what = "path on the server" if same else "server"
        notices.append(f"The {what} changed: {before} before, {now} now.")
    if parent.model != record.model and any(message.reasoning for message in base.history):
        notices.append(
            f"Earlier reasoning stays with {parent.model}: it is not sent to {record.model}."
        )
    return tuple(notices)


def _limits_that_go_on(
    given: RunOptions, options: RunOptions, parent: RunRecord | None
) -> tuple[str, ...]:
    """Which limits go on from the run before although nobody said so."""
    names = [
        name
        for name in _SAID_LIMITS
        if getattr(options, name) is not None and getattr(given, name) is None
    ]
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
