"""From what a person asked to the engine's plan: model, tools, conversation, limits, record.

Everything that can be refused is refused here, before anything is written or sent. Owns the rules
for resume, continue and fork, and what this process remembers for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nbagent.contracts.canonical import dump_json, load_json, new_id, utc_now
from nbagent.contracts.errors import UsageError
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import CONTINUE_PROMPT, Message, TextPart, redacted
from nbagent.contracts.model import ChatRequest, Usage
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import ToolContext
from nbagent.contracts.version import __version__
from nbagent.engine import EnginePlan
from nbagent.runtime import RunTask
from nbagent.session.approval import PolicyRules
from nbagent.session.chat_composer import ChatComposer
from nbagent.session.fork_edits import describe_edits
from nbagent.session.frontend import Frontend
from nbagent.session.inherit import (
    Conversation,
    check_all_answered,
    conversation_of,
    deferred_turn,
    inherited_options,
    remembered,
)
from nbagent.session.models import ResolvedModel, provider_settings, resolve_model, same_server
from nbagent.session.output import AnswerHosts, Output
from nbagent.session.replay import ReplayedAnswer, DeferredTools, RecordedHost, open_recording
from nbagent.session.request import RunRequest
from nbagent.session.tool_hosts import tools_of
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import check_limits, current_settings, without_secrets
from nbagent.store.writer import Store
from nbagent.tools.hosts import HostSet
from nbagent.view.graph import Edge, GraphState, Step
from nbagent.view.labels import offline_model_text

if TYPE_CHECKING:
    from nbagent.session.workflow_setup import AgentSetup
    from nbagent.workflow.composer import WorkflowRun

DEFERRED_NOTICE = "Asked again: tools that this answer calls run when you choose it (Continue, run.resume())."


class Prepared(NamedTuple):
    """A run that can start, once it has an approver."""

    plan: EnginePlan
    host: HostSet
    rules: PolicyRules
    chosen: ResolvedModel
    flow: WorkflowRun | None = None
    """The workflow, where the run has one."""


def prepare(
    ask: RunRequest, store: Store, frontend: Frontend, courier: RunTask, waiting: Callable[[str], None]
) -> Prepared:
    """Check and resolve everything; UsageError where something cannot be done as asked."""
    # First: it finds the keys of the environment, and what is read from here on is kept and sent.
    call_options = without_secrets(ask.options)
    settings = current_settings()
    parent = store.load(ask.parent_id) if ask.parent_id else None
    deferred = deferred_turn(ask, parent)
    if deferred is not None:
        ask = replace(ask, kind="fork", fork_turn=deferred.id)
    options = inherited_options(call_options, parent, ask.dropped, settings)
    run_settings = without_secrets(provider_settings(options, settings))
    limits = _limits(options, run_settings)
    base = conversation_of(parent, ask, store)
    run_id = new_id()
    guide = _guide(ask, run_settings, options, parent, base, run_id, store)
    flow = guide.flow if guide else None
    prompt_messages = _words(ask, parent, base, limits.max_requests, flow)
    need_key = not ask.dry_run and run_settings.cache != "replay"
    chosen = resolve_model(run_settings, need_key=need_key)
    if guide and run_settings.model is None and (model := guide.model_on(chosen.provider)):
        chosen = resolve_model(run_settings.with_changes(model=model), need_key=need_key)
    one_token = Usage(prompt_tokens=1, total_tokens=1)
    if limits.max_cost_usd is not None and chosen.price(one_token, chosen.model) is None:
        raise UsageError(f"no price is known for {chosen.model_id}; limit max_total_tokens")
    output = None if options.output in (None, str) else Output(options.output)
    recording = open_recording(run_settings, store, run_id)
    names = run_settings.tools if ask.tools is None else ask.options.tools
    namespace = frontend.namespace
    folders = guide.folders if guide else None
    hosts, rules = tools_of(
        names, ask.tools, options=options, settings=settings, namespace=namespace, folders=folders
    )
    if recording is not None and run_settings.replay_tools:
        hosts = [cast("Any", RecordedHost(host, recording)) for host in hosts]
    if ask.defer_calls:
        hosts = [cast("Any", DeferredTools(host)) for host in hosts]
        courier.cancel.after_turn = True
    hides = guide.hiding(rules) if guide else rules.hiding
    host = HostSet(hosts, hides=hides)
    if output is not None:
        host = AnswerHosts(hosts, hides=hides, output=output, chosen=chosen)
    cell = frontend.cell()
    # Who says nothing new has the model answer what was said last, or end its answer.
    prompt_source = ask if ask.prompt or parent is None else parent
    so_far = (*base.history, *(message for message, _ in base.copies))
    cut_off = not (prompt_messages or flow) and so_far and so_far[-1].role == "assistant"
    if cut_off and ask.drop:
        raise UsageError("what is left of the conversation ends with an answer; give a prompt, too")
    opening = (Message.of("user", CONTINUE_PROMPT),) if cut_off else ()
    composer = flow
    if composer is None:
        system = guide.system_prompt(run_settings.system, rules) if guide else run_settings.system
        agent_id = guide.agent_id if guide else None
        composer = ChatComposer(system, opening=opening, output=output, agent=agent_id)
    is_same = parent and ask.kind == "resume" and parent.model == chosen.model_id
    resumed = parent if is_same else None
    record = redacted(
        RunRecord(
            id=run_id,
            session=run_settings.session,
            name=options.name,
            tags=options.tags or (),
            parent_id=parent.id if parent else None,
            shared_messages=len(base.history) if parent else 0,
            kind=ask.kind,
            forked_from=ask.fork_turn,
            case=ask.case or (resumed and resumed.case),
            copied=tuple(turn for _, turn in base.copies),
            agent=guide.agent_id if guide else None,
            workflow=flow.package.id if flow else None,
            nbagent_version=__version__,
            execution_count=cell.execution_count,
            cell_id=cell.cell_id,
            notebook=cell.notebook,
            model=chosen.model_id,
            base_url=chosen.base_url,
            template=prompt_source.template,
            prompt=prompt_source.prompt or "",
            options={**_kept(options, chosen, output, flow), **_marks(ask)},
            limits=limits,
            started_at=utc_now(),
            notices=(
                *([_why_chosen(chosen)] if chosen.why else ()),
                *([store.warning] if store.warning else ()),
                *(_changes(options, chosen, parent, base, ask) if parent else ()),
                *([f"{deferred.id} has the answer of run {deferred.run_id[:8]}."] if deferred else ()),
                *([DEFERRED_NOTICE] if ask.defer_calls else ()),
                *ask.notices,
                *(guide.notices(parent, None if ask.fork_turn else base.turn) if guide else ()),
            ),
            messages=(*so_far[len(base.history) :], *prompt_messages),
        )
    )
    rows = RunOptions.rows()
    not_kept = {n: v for n, v in options.explicit.items() if rows[n].secret or n == "output"}
    if not_kept and not ask.dry_run:
        remembered[run_id] = not_kept
    same_model = parent and (parent.model, parent.base_url) == (record.model, record.base_url)
    client = chosen.client
    if recording and not ask.dry_run:
        client = recording.client(chosen, attempt=ask.case.attempt if ask.case else 1)
    if deferred is not None and deferred.response is not None:
        client = cast("Any", ReplayedAnswer(deferred.response, client))
    plan = EnginePlan(
        run=record,
        history=base.history,
        client=client,
        model=chosen.model,
        host=host,
        composer=composer,
        context=ToolContext(
            run_id=run_id,
            session=record.session,
            runner=courier,
            namespace=namespace,
            run_code=frontend.run_code(),
            capture=frontend.capture(options),
            waiting=waiting,
        ),
        cancel=courier.cancel,
        params=_params(options, run_settings),
        stream=run_settings.stream,
        first_index=base.first_index,
        phase_before=parent.phase if parent else "Running",
        requests_before=0 if ask.prompt or ask.messages else base.requests,
        price=chosen.price,
        trim=run_settings.trim == "tool-results",
        previous_turn=base.turn if same_model else None,
        context_tokens=chosen.context_tokens,
        overflow_advice=flow.overflow_advice if flow else "",
        notices=list(record.notices),
    )
    return Prepared(plan, host, rules, chosen, flow)


def _words(
    ask: RunRequest, parent: RunRecord | None, base: Conversation, max_requests: int, flow: WorkflowRun | None
) -> tuple[Message, ...]:
    """What the person says, as messages."""
    silent = not (ask.prompt or "").strip()
    if ask.prompt is not None and silent and not ask.messages and flow is None:
        raise UsageError("the prompt is empty; write what you want to ask")
    check_all_answered(ask.messages)
    if ask.prompt and not silent:
        parts = ask.parts or (TextPart(text=ask.prompt),)
        user_message = flow.user_message(parts) if flow else Message(role="user", content=parts)
        return (*ask.messages, user_message)
    if flow is not None:
        done = parent is None or parent.phase == "Completed"
        if flow.is_complete and done and not ask.messages:
            raise UsageError(
                f"the workflow {flow.package.id} is complete; start it anew with --workflow, or "
                "ask about it with %%agent --continue"
            )
        return ask.messages
    if parent is not None and ask.kind == "resume" and not ask.messages:
        if parent.phase == "Completed" or parent.stop_reason in ("answered", "content_filter"):
            ended = f"has ended ({parent.stop_reason})"
        elif base.requests >= max_requests:
            ended = f"reached the limit of {max_requests} requests (max_requests)"
        else:
            return ()
        raise UsageError(
            f"run {parent.id[:8]} {ended}; say what to do next: run.resume('…') or "
            "%%agent --continue"
        )
    return ask.messages


def _limits(options: RunOptions, settings: Settings) -> Limits:
    limits = Limits(
        # If only max_requests was lowered, lower max_turns to it.
        max_turns=settings.max_turns if options.max_turns else min(settings.max_turns, settings.max_requests),
        max_requests=settings.max_requests,
        max_repeated_failures=settings.max_repeated_failures,
        max_total_tokens=settings.max_total_tokens,
        max_cost_usd=settings.max_cost_usd,
    )
    check_limits(limits.max_turns, limits.max_requests)
    return limits


def _params(options: RunOptions, settings: Settings) -> dict[str, Any]:
    fields = ChatRequest.model_fields.keys() - {"model", "tools"}
    names = [name for name in Settings.rows() if name in fields]
    params = {n: value for n in names if (value := getattr(settings, n)) is not None}
    return params if options.tool_choice is None else {**params, "tool_choice": options.tool_choice}


def _guide(
    ask: RunRequest,
    settings: Settings,
    options: RunOptions,
    parent: RunRecord | None,
    base: Conversation,
    run_id: str,
    store: Store,
) -> AgentSetup | None:
    """The workflow or the agent of a run that has one of them."""
    if not (options.workflow or options.document or options.agent):
        return None
    from nbagent.session.workflow_setup import AgentSetup, single_agent
    from nbagent.workflow.locate import open_workflow_run

    if not (options.workflow or options.document):
        return single_agent(settings, options)
    new = ask.kind == "start" and not options.document
    paused = parent is not None and parent.stop_reason == "answered"
    flow = open_workflow_run(
        settings,
        options,
        ask.options,
        run_id=run_id,
        intent="start" if new else "continue" if ask.prompt or paused else "resume",
        parent=parent,
        fork=base.turn if ask.fork_turn else None,
        store=store,
    )
    return AgentSetup(options, settings, flow, None)


def _kept(
    options: RunOptions, chosen: ResolvedModel, output: Output | None, flow: WorkflowRun | None
) -> dict[str, Any]:
    """The options as they go into the record: what would go on, JSON values, no secrets."""
    rows = RunOptions.rows()
    recorded = {n: rows[n].redacted(value) for n, value in options.explicit.items() if rows[n].inherited}
    if options.policy is not None:
        recorded["policy"] = load_json(dump_json(asdict(options.policy)))
    if output is not None:
        recorded["output"] = output.name
    if flow is not None:
        recorded["document"] = flow.document.run_id
        recorded["graph"] = _plan_of(flow).model_dump(mode="json", exclude_defaults=True)
    recorded["model"] = chosen.model_id
    if chosen.base_url:
        recorded["base_url"] = chosen.base_url
    return {
        k: list(cast("Sequence[Any]", v)) if isinstance(v, tuple) else v for k, v in recorded.items()
    }


def _why_chosen(chosen: ResolvedModel) -> str:
    model_text = offline_model_text(chosen.model_id) or f"{chosen.model_id} was chosen"
    return f"{model_text}: {chosen.why}."


def _marks(ask: RunRequest) -> dict[str, Any]:
    """What the record says of a fork beside its options; nothing of it goes on."""
    marks = {"edits": [*ask.edits], "drop": [*ask.drop], "holds_calls": ask.defer_calls}
    return {name: value for name, value in marks.items() if value}


def _plan_of(flow: WorkflowRun) -> GraphState:
    """The graph of a workflow and where it stands, for the picture of the run."""
    graph, state = flow.package.graph, flow.state
    steps = [Step(id=n.id, agent=n.agent, terminal=n.terminal) for n in graph.nodes.values()]
    ways = [
        Edge(source=e.source, target=e.target, label=e.label, condition=e.condition)
        for e in graph.edges
    ]
    plan = GraphState(steps=tuple(steps), ways=tuple(ways), completed=state.completed, here=state.node)
    return plan.bounded()


def _changes(
    options: RunOptions, chosen: ResolvedModel, parent: RunRecord, base: Conversation, ask: RunRequest
) -> list[str]:
    """What the person should know of how this run differs from the one before."""
    notices = [describe_edits(ask.edits, ask.drop, str(ask.fork_turn))] if ask.edits or ask.drop else []
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
        notices.append(f"The type {kind} is not known here, so the answer is text; output=… gives it.")
    return notices


# What it has from the run before


# What no record keeps
