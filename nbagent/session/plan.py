"""From a request to the engine's plan: model, tools, conversation, limits, record.

Everything that can be refused is refused here, before anything is written or sent.
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
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import ForkedFrom, RunRecord, WorkflowRef
from nbagent.contracts.secrets import ordinary_secret_names
from nbagent.contracts.tools import ToolContext
from nbagent.contracts.version import __version__
from nbagent.engine import EnginePlan
from nbagent.providers.address import is_loopback
from nbagent.runtime import RunTask
from nbagent.session.approval import PolicyRules
from nbagent.session.chat_composer import ChatComposer
from nbagent.session.fork_edits import describe_edits
from nbagent.session.frontend import Frontend
from nbagent.session.inherit import (
    Conversation,
    check_tool_results,
    conversation_of,
    deferred_turn,
    foreign_options,
    inherited_options,
    unrecorded_options,
)
from nbagent.session.models import ResolvedModel, resolve_model, resolve_settings, same_server
from nbagent.session.project_trust import settings_notices
from nbagent.session.replay import DeferredTools, RecordedHost, ReplayedAnswer, open_recording
from nbagent.session.request import RunRequest
from nbagent.session.stores import notice_of
from nbagent.session.tool_hosts import mount_names, open_run_tools
from nbagent.session.typed_answer import FinalAnswerHosts, OutputType
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import check_limits, current_settings, without_secrets
from nbagent.tools.hosts import HostSet
from nbagent.view.graph import Edge, GraphState, Step
from nbagent.view.run_facts import offline_model_text

if TYPE_CHECKING:
    from nbagent.session.workflow_setup import AgentSetup
    from nbagent.workflow.composer import WorkflowRun

DEFERRED_NOTICE = (
    "Asked again. Tool calls of this answer do not run yet; Continue or run.resume() runs them."
)


class PreparedRun(NamedTuple):
    """A run that is ready to start, except for its approver."""

    plan: EnginePlan
    host: HostSet
    rules: PolicyRules
    resolved: ResolvedModel
    workflow_run: WorkflowRun | None = None
    """None if the run has no workflow."""
    audit: str = "all"
    """Which runs are audited: `all`, `outside` or `none`."""


def prepare_run(
    request: RunRequest,
    store: RunStore,
    frontend: Frontend,
    run_task: RunTask,
    waiting: Callable[[str], None],
) -> PreparedRun:
    """Check and resolve a request; UsageError if it cannot be carried out."""
    # First: it registers the secrets of the environment. All that is read later is stored or sent.
    call_options = without_secrets(request.options)
    settings = current_settings()
    parent = store.load(request.parent_id) if request.parent_id else None
    foreign = parent is not None and store.is_foreign(parent.id)
    # A call in another owner's answer does not run: the model is asked again.
    deferred = None if foreign else deferred_turn(request, parent)
    if deferred is not None:
        # The turn is repeated with its stored answer, so that only its calls are new.
        request = replace(request, kind="fork", fork_turn=deferred.id)
    left_out = foreign_options(parent) if parent and foreign else ()
    dropped = {*request.not_inherited, *left_out}
    options = inherited_options(call_options, parent, dropped, settings)
    run_settings = without_secrets(resolve_settings(options, settings))
    limits = _limits(options, run_settings)
    conversation = conversation_of(parent, request, store)
    run_id = new_id()
    agent_setup = _agent_setup(request, run_settings, options, parent, conversation, run_id, store)
    workflow_run = agent_setup.workflow_run if agent_setup else None
    prompt_messages = _prompt_messages(
        request, parent, conversation, limits.max_requests, workflow_run
    )
    # Both send no request.
    need_key = not request.dry_run and run_settings.cache != "replay"
    key = request.api_key and request.api_key.for_settings(run_settings, settings)
    resolved = resolve_model(run_settings, need_key=need_key, api_key=key)
    # Again: the model of an agent's file counts only for the provider that the person uses.
    if (
        agent_setup
        and run_settings.model is None
        and (model := agent_setup.model_on(resolved.provider))
    ):
        changed = run_settings.with_changes(model=model)
        resolved = resolve_model(changed, need_key=need_key, api_key=key)
    # A limit of cost that can never be reached would be a false promise.
    one_token = Usage(prompt_tokens=1, total_tokens=1)
    if limits.max_cost_usd is not None and resolved.price(one_token, resolved.model) is None:
        raise UsageError(_no_price(resolved))
    output = None if options.output in (None, str) else OutputType(options.output)
    recording = open_recording(run_settings, store, run_id)
    # Functions that a call passes replace the tools of the settings.
    names = run_settings.tools if request.tools is None else request.options.tools
    namespace = frontend.namespace
    folders = agent_setup.folders if agent_setup else None
    hosts, policy_rules = open_run_tools(
        names,
        request.tools,
        options=options,
        settings=settings,
        namespace=namespace,
        folders=folders,
    )
    if recording is not None and run_settings.replay_tools:
        hosts = [cast("Any", RecordedHost(host, recording)) for host in hosts]
    if request.defer_calls:
        hosts = [cast("Any", DeferredTools(host)) for host in hosts]
        run_task.cancel.after_turn = True  # one answer only
    hides = agent_setup.tool_filter(policy_rules) if agent_setup else policy_rules.hidden_reason
    host = HostSet(hosts, hidden_reason=hides)
    if output is not None:
        host = FinalAnswerHosts(hosts, hides=hides, output=output, chosen=resolved)
    cell = frontend.cell()
    # Without a new prompt the model answers the last user message, or continues a cut-off answer.
    prompt_source = request if request.prompt or parent is None else parent
    earlier_messages = (*conversation.history, *(message for message, _ in conversation.copies))
    cut_off = (
        not (prompt_messages or workflow_run)
        and earlier_messages
        and earlier_messages[-1].role == "assistant"
    )
    if cut_off and request.drop:
        raise UsageError("what is left of the conversation ends with an answer; give a prompt, too")
    opening = (Message.of("user", CONTINUE_PROMPT),) if cut_off else ()
    composer = workflow_run
    if composer is None:
        system = (
            agent_setup.system_prompt(run_settings.system, policy_rules)
            if agent_setup
            else run_settings.system
        )
        agent_id = agent_setup.agent_id if agent_setup else None
        composer = ChatComposer(system, opening=opening, output=output, agent=agent_id)
    # On another model a run no longer answers the case: the model is part of its variant.
    is_same = parent and request.kind == "resume" and parent.model == resolved.model_id
    is_same = is_same and not foreign
    resumed = parent if is_same else None
    record = redacted(
        RunRecord(
            id=run_id,
            session=run_settings.session,
            name=options.name,
            tags=options.tags or (),
            parent_id=parent.id if parent else None,
            shared_messages=len(conversation.history) if parent else 0,
            kind=request.kind,
            forked_from=_forked_from(request),
            case=request.case or (resumed and resumed.case),
            copied=tuple(turn for _, turn in conversation.copies),
            agent=agent_setup.agent_id if agent_setup else None,
            workflow=_workflow_ref(workflow_run) if workflow_run else None,
            nbagent_version=__version__,
            execution_count=cell.execution_count,
            cell_id=cell.cell_id,
            notebook=cell.notebook,
            kernel_id=cell.kernel_id,
            file_id=cell.file_id,
            model=resolved.model_id,
            base_url=resolved.base_url,
            template=prompt_source.template,
            prompt=prompt_source.prompt or "",
            options=_recorded_options(options, resolved, output),
            limits=limits,
            started_at=utc_now(),
            notices=(
                *([_default_model_notice(resolved)] if resolved.why else ()),
                *([store.warning] if store.warning else ()),
                *([place] if (place := notice_of(store, is_said=not request.dry_run)) else ()),
                *_project_notices(request, agent_setup, resolved),
                *map(_word_notice, ordinary_secret_names()),
                *(
                    _change_notices(options, resolved, parent, conversation, request)
                    if parent
                    else ()
                ),
                *(_foreign_notices(left_out, options, resolved, parent) if parent else ()),
                *(
                    [f"{deferred.id} has the answer of run {deferred.run_id[:8]}."]
                    if deferred
                    else ()
                ),
                *([DEFERRED_NOTICE] if request.defer_calls else ()),
                *request.notices,
                *(
                    agent_setup.notices(parent, None if request.fork_turn else conversation.turn)
                    if agent_setup
                    else ()
                ),
            ),
            messages=(*earlier_messages[len(conversation.history) :], *prompt_messages),
        )
    )
    rows = RunOptions.rows()
    unrecorded = {n: v for n, v in options.explicit.items() if rows[n].secret or n == "output"}
    if unrecorded and not request.dry_run:
        unrecorded_options[run_id] = unrecorded
    # Results were trimmed for one model's context; another one may take them whole.
    same_model = parent and (parent.model, parent.base_url) == (record.model, record.base_url)
    client = resolved.client
    if recording and not request.dry_run:
        client = recording.client(resolved, attempt=request.case.attempt if request.case else 1)
    if deferred is not None and deferred.response is not None:
        client = cast("Any", ReplayedAnswer(deferred.response, client))
    plan = EnginePlan(
        run=record,
        history=conversation.history,
        client=client,
        model=resolved.model,
        host=host,
        composer=composer,
        context=ToolContext(
            run_id=run_id,
            session=record.session,
            runner=run_task,
            namespace=namespace,
            folders=mount_names(options, settings, folders),
            run_code=frontend.run_code(),
            capture=frontend.capture(options),
            waiting=waiting,
        ),
        cancel=run_task.cancel,
        params=_params(options, run_settings),
        stream=run_settings.stream,
        first_index=conversation.first_index,
        phase_before=parent.phase if parent else "Running",
        requests_before=0 if request.prompt or request.messages else conversation.requests,
        price=resolved.price,
        trim=run_settings.trim == "tool-results",
        previous_turn=conversation.turn if same_model else None,
        context_tokens=resolved.context_tokens,
        overflow_advice=workflow_run.overflow_advice if workflow_run else "",
        notices=list(record.notices),
    )
    return PreparedRun(plan, host, policy_rules, resolved, workflow_run, settings.audit)


def _word_notice(name: str) -> str:
    """Say that a secret is an ordinary word, never which."""
    return (
        f"The secret in {name[:100]} is an ordinary word or a short number: it is hidden where it "
        "stands alone, not inside of words. Choose a longer one."
    )


def _no_price(resolved: ResolvedModel) -> str:
    """Say that a limit of cost cannot hold, and what to do."""
    advice = "limit max_total_tokens"
    if is_loopback(resolved.base_url):
        advice += (
            f", or, if the server at {resolved.base_url} runs the model itself, name its provider: "
            f"vllm:{resolved.model}, lmstudio:{resolved.model} or llamacpp:{resolved.model}"
        )
    return f"no price is known for {resolved.model_id}; {advice}"


def _prompt_messages(
    ask: RunRequest,
    parent: RunRecord | None,
    base: Conversation,
    max_requests: int,
    flow: WorkflowRun | None,
) -> tuple[Message, ...]:
    """The user's prompt, as messages."""
    silent = not (ask.prompt or "").strip()
    if ask.prompt is not None and silent and not ask.messages and flow is None:
        raise UsageError("the prompt is empty; write what you want to ask")
    check_tool_results(ask.messages)
    if ask.prompt and not silent:
        parts = ask.parts or (TextPart(text=ask.prompt),)
        own = flow.input_messages(parts) if flow else (Message(role="user", content=parts),)
        return (*ask.messages, *own)
    if flow is not None:
        flow.skip_second_brief((*base.history, *(message for message, _ in base.copies)))
        done = parent is None or parent.phase == "Completed"
        if flow.is_complete and done and not ask.messages:
            raise UsageError(
                f"the workflow {flow.package.id} is complete; start it again with --workflow, or "
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
        max_turns=settings.max_turns
        if options.max_turns
        else min(settings.max_turns, settings.max_requests),
        max_requests=settings.max_requests,
        max_repeated_failures=settings.max_repeated_failures,
        max_total_tokens=settings.max_total_tokens,
        max_cost_usd=settings.max_cost_usd,
    )
    check_limits(limits.max_turns, limits.max_requests)
    return limits


def _params(options: RunOptions, settings: Settings) -> dict[str, Any]:
    # These two mean something else in settings: a full id, and names.
    fields = ChatRequest.model_fields.keys() - {"model", "tools"}
    names = [name for name in Settings.rows() if name in fields]
    params = {n: value for n in names if (value := getattr(settings, n)) is not None}
    return params if options.tool_choice is None else {**params, "tool_choice": options.tool_choice}


def _agent_setup(
    ask: RunRequest,
    settings: Settings,
    options: RunOptions,
    parent: RunRecord | None,
    base: Conversation,
    run_id: str,
    store: RunStore,
) -> AgentSetup | None:
    """The workflow or the agent of a run; None without one."""
    if not (options.workflow or options.document or options.agent):
        return None
    # Late: most runs have no workflow.
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
        kind="start" if new else "continue" if ask.prompt or paused else "resume",
        parent=parent,
        fork=base.turn if ask.fork_turn else None,
        store=store,
    )
    return AgentSetup(options, settings, flow, None)


def _recorded_options(
    options: RunOptions, chosen: ResolvedModel, output: OutputType | None
) -> dict[str, Any]:
    """Options for the record: only inherited ones, as JSON values, without secrets."""
    rows = RunOptions.rows()
    recorded = {
        n: rows[n].redacted(value)
        for n, value in options.explicit.items()
        # Its document is part of the record's workflow, from where it is inherited.
        if rows[n].inherited and n != "document"
    }
    if options.policy is not None:
        recorded["policy"] = load_json(dump_json(asdict(options.policy)))
    if output is not None:
        recorded["output"] = output.name
    recorded["model"] = chosen.model_id
    if chosen.base_url:
        recorded["base_url"] = chosen.base_url
    # Lists, as JSON has them: the record must equal the one that is read back.
    return {
        k: list(cast("Sequence[Any]", v)) if isinstance(v, tuple) else v
        for k, v in recorded.items()
    }


def _default_model_notice(chosen: ResolvedModel) -> str:
    model_text = offline_model_text(chosen.model_id) or f"{chosen.model_id} was chosen"
    return f"{model_text}: {chosen.why}."


def _foreign_notices(
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


def _project_notices(
    request: RunRequest, agent_setup: AgentSetup | None, resolved: ResolvedModel
) -> list[str]:
    """Notices about choices of the project's files that are left out."""
    # A batch shows no notices of its runs.
    is_seen = not request.dry_run and request.case is None
    notices = settings_notices(report=is_seen)
    if agent_setup is not None:
        notices += agent_setup.model_notices(resolved.provider, report=is_seen)
    return notices


def _forked_from(ask: RunRequest) -> ForkedFrom | None:
    """The turn that a fork repeats, with its changes, for the record."""
    if ask.fork_turn is None:
        return None
    return ForkedFrom(
        turn_id=ask.fork_turn,
        edits=tuple(ask.edits),
        drop=ask.drop,
        defer_calls=ask.defer_calls,
    )


def _workflow_ref(flow: WorkflowRun) -> WorkflowRef:
    """The workflow of a run, for the record."""
    graph = _graph_state(flow).model_dump(mode="json", exclude_defaults=True)
    return WorkflowRef(name=flow.package.id, document=flow.document.run_id, graph=graph)


def _graph_state(flow: WorkflowRun) -> GraphState:
    """The graph of a workflow and its current step, for the view of the run."""
    graph, state = flow.package.graph, flow.state
    steps = [Step(id=n.id, agent=n.agent, terminal=n.terminal) for n in graph.nodes.values()]
    ways = [
        Edge(source=e.source, target=e.target, label=e.label, condition=e.condition)
        for e in graph.edges
    ]
    plan = GraphState(
        steps=tuple(steps), ways=tuple(ways), completed=state.completed, here=state.node
    )
    return plan.bounded()


def _change_notices(
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
