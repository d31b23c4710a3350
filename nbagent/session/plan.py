"""From a request to the engine's plan: model, tools, conversation, limits, record.

Everything that can be refused is refused here, before anything is written or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import dump_json, load_json, utc_now
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import CONTINUE_PROMPT, Message, TextPart, redacted
from nbagent.contracts.model import ChatRequest, Usage
from nbagent.contracts.ports import ChatClient, RunStore
from nbagent.contracts.records import ForkedFrom, RunRecord, WorkflowRef
from nbagent.contracts.tools import ToolContext
from nbagent.contracts.version import __version__
from nbagent.engine import EnginePlan
from nbagent.runtime import RunTask
from nbagent.session.approval import PolicyRules, tighten_policy
from nbagent.session.chat_composer import ChatComposer
from nbagent.session.frontend import Cell, Frontend
from nbagent.session.inherit import (
    check_tool_results,
    unrecorded_options,
)
from nbagent.session.models import ResolvedModel, resolve_model
from nbagent.session.replay import (
    DeferredTools,
    RecordedHost,
    Recording,
    ReplayedAnswer,
    open_recording,
)
from nbagent.session.request import RunRequest
from nbagent.session.resolved_request import ResolvedRequest, resolve_request
from nbagent.session.rule_names import check_rules, rule_notices
from nbagent.session.run_notices import no_price_text, start_notices
from nbagent.session.tool_hosts import WorkflowFolders, mount_names, open_run_tools
from nbagent.session.typed_answer import FinalAnswerHosts, OutputType
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.project_file import one_project_reading
from nbagent.tools.hosts import HostSet
from nbagent.view.graph import Edge, GraphState, Step

if TYPE_CHECKING:
    from nbagent.session.workflow_setup import AgentSetup
    from nbagent.workflow.composer import WorkflowRun


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunTools:
    """The tools of a run, their rules, and the cassette of its calls."""

    host: HostSet
    rules: PolicyRules
    output: OutputType | None
    recording: Recording | None
    folders: WorkflowFolders | None
    notices: Sequence[str]
    """About the rules of the settings."""


@one_project_reading()
def prepare_run(
    request: RunRequest,
    store: RunStore,
    frontend: Frontend,
    run_task: RunTask,
    waiting: Callable[[str], None],
) -> PreparedRun:
    """Check and resolve a request; UsageError if it cannot be carried out."""
    basis = resolve_request(request, store)
    agent_setup = _agent_setup(basis, store)
    prompt_messages = _prompt_messages(basis, agent_setup)
    resolved = _choose_model(basis, agent_setup)
    tools = _open_tools(basis, store, frontend.namespace, agent_setup, resolved)
    if basis.request.defer_calls:
        run_task.cancel.after_turn = True  # one answer only
    opening = _opening(basis, prompt_messages, agent_setup)
    record = _start_record(basis, frontend.cell(), resolved, tools.output, agent_setup)
    changes = {
        "notices": (*start_notices(basis, store, agent_setup, resolved), *tools.notices),
        "messages": (*(message for message, _ in basis.conversation.copies), *prompt_messages),
    }
    record = redacted(record.model_copy(update=changes))
    _keep_unrecorded(basis)
    context = ToolContext(
        run_id=record.id,
        session=record.session,
        runner=run_task,
        namespace=frontend.namespace,
        folders=mount_names(basis.options, basis.settings, tools.folders),
        run_code=frontend.run_code(),
        capture=frontend.capture(basis.options),
        waiting=waiting,
    )
    workflow_run = agent_setup.workflow_run if agent_setup else None
    composer = workflow_run or _chat_composer(basis, agent_setup, tools, opening)
    plan = _engine_plan(basis, record, resolved, tools, composer, context, run_task.cancel)
    audit = basis.settings.audit
    return PreparedRun(plan, tools.host, tools.rules, resolved, workflow_run, audit)


def _choose_model(basis: ResolvedRequest, agent_setup: AgentSetup | None) -> ResolvedModel:
    """Resolve the model, and refuse a limit of cost that can never be reached."""
    run_settings = basis.run_settings
    # Both send no request.
    request = basis.request
    need_key = not request.dry_run and run_settings.cache != "replay"
    key = request.api_key and request.api_key.for_settings(run_settings, basis.settings)
    resolved = resolve_model(run_settings, need_key=need_key, api_key=key)
    # Again: the model of an agent's file counts only for the provider that the person uses.
    if agent_setup and run_settings.model is None:
        model = agent_setup.model_on(resolved.provider)
        if model:
            changed = run_settings.with_changes(model=model)
            resolved = resolve_model(changed, need_key=need_key, api_key=key)
    # A limit of cost that can never be reached would be a false promise.
    one_token = Usage(prompt_tokens=1, total_tokens=1)
    if basis.limits.max_cost_usd is not None and resolved.price(one_token, resolved.model) is None:
        raise UsageError(no_price_text(resolved))
    return resolved


def _open_tools(
    basis: ResolvedRequest,
    store: RunStore,
    namespace: Callable[[], Mapping[str, Any]],
    agent_setup: AgentSetup | None,
    resolved: ResolvedModel,
) -> _RunTools:
    """Open the hosts of a run, with what stands around them: a cassette, a final answer."""
    request, options, run_settings = basis.request, basis.options, basis.run_settings
    output = None if options.output in (None, str) else OutputType(options.output)
    recording = open_recording(run_settings, store, basis.run_id)
    folders = agent_setup.folders if agent_setup else None
    hosts, rules = open_run_tools(
        # Functions that a call passes replace the tools of the settings.
        run_settings.tools if request.tools is None else request.options.tools,
        request.tools,
        options=options,
        settings=basis.settings,
        namespace=namespace,
        folders=folders,
    )
    own_policy, inherited = request.options.policy, basis.settings.policy
    check_rules(own_policy, hosts, namespace())
    if own_policy is None and options.policy is not None:
        inherited = tighten_policy(inherited, options.policy)
    notices = rule_notices(inherited, hosts, namespace())
    if recording is not None and run_settings.replay_tools:
        hosts = [cast("Any", RecordedHost(host, recording)) for host in hosts]
    if request.defer_calls:
        hosts = [cast("Any", DeferredTools(host)) for host in hosts]
    hides = agent_setup.tool_filter(rules) if agent_setup else rules.hidden_reason
    host = HostSet(hosts, hidden_reason=hides)
    if output is not None:
        host = FinalAnswerHosts(hosts, hides=hides, output=output, chosen=resolved)
    return _RunTools(
        host=host,
        rules=rules,
        output=output,
        recording=recording,
        folders=folders,
        notices=notices,
    )


def _opening(
    basis: ResolvedRequest, prompt_messages: Sequence[Message], agent_setup: AgentSetup | None
) -> tuple[Message, ...]:
    """What is said to a model whose answer was cut off, where nobody says more."""
    # Without a new prompt the model answers the last user message, or continues a cut-off answer.
    earlier = basis.earlier_messages
    has_words = prompt_messages or (agent_setup and agent_setup.workflow_run)
    if has_words or not earlier or earlier[-1].role != "assistant":
        return ()
    if basis.request.drop:
        raise UsageError("what is left of the conversation ends with an answer; give a prompt, too")
    return (Message.of("user", CONTINUE_PROMPT),)


def _chat_composer(
    basis: ResolvedRequest,
    agent_setup: AgentSetup | None,
    tools: _RunTools,
    opening: tuple[Message, ...],
) -> ChatComposer:
    """The composer of a run without a workflow."""
    system, agent_id = basis.run_settings.system, None
    if agent_setup is not None:
        system, agent_id = agent_setup.system_prompt(system, tools.rules), agent_setup.agent_id
    return ChatComposer(system, opening=opening, output=tools.output, agent=agent_id)


def _start_record(
    basis: ResolvedRequest,
    cell: Cell,
    resolved: ResolvedModel,
    output: OutputType | None,
    agent_setup: AgentSetup | None,
) -> RunRecord:
    """The record of a run at its start, without its notices and messages."""
    request, parent, conversation = basis.request, basis.parent, basis.conversation
    workflow_run = agent_setup.workflow_run if agent_setup else None
    prompt_source = request if request.prompt or parent is None else parent
    # On another model a run no longer answers the case: the model is part of its variant.
    is_same = parent and request.kind == "resume" and parent.model == resolved.model_id
    resumed = parent if is_same and not basis.is_foreign else None
    return RunRecord(
        id=basis.run_id,
        session=basis.run_settings.session,
        name=basis.options.name,
        tags=basis.options.tags or (),
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
        options=_recorded_options(basis.options, resolved, output),
        limits=basis.limits,
        started_at=utc_now(),
    )


def _keep_unrecorded(basis: ResolvedRequest) -> None:
    """Keep the options that no record holds for the runs of this process that go on from here."""
    rows = RunOptions.rows()
    explicit = basis.options.explicit.items()
    unrecorded = {n: v for n, v in explicit if rows[n].secret or n == "output"}
    if unrecorded and not basis.request.dry_run:
        unrecorded_options[basis.run_id] = unrecorded


def _engine_plan(
    basis: ResolvedRequest,
    record: RunRecord,
    resolved: ResolvedModel,
    tools: _RunTools,
    composer: ChatComposer | WorkflowRun,
    context: ToolContext,
    cancel: CancelToken,
) -> EnginePlan:
    """The plan of a run for the engine."""
    request, parent, conversation = basis.request, basis.parent, basis.conversation
    # Results were trimmed for one model's context; another one may take them whole.
    same_model = parent and (parent.model, parent.base_url) == (record.model, record.base_url)
    by_chat = isinstance(composer, ChatComposer)
    return EnginePlan(
        run=record,
        history=conversation.history,
        client=_client(basis, resolved, tools),
        model=resolved.model,
        host=tools.host,
        composer=composer,
        context=context,
        cancel=cancel,
        params=_params(basis.options, basis.run_settings),
        stream=basis.run_settings.stream,
        first_index=conversation.first_index,
        phase_before=parent.phase if parent else "Running",
        requests_before=0 if request.prompt or request.messages else conversation.requests,
        price=resolved.price,
        trim=basis.run_settings.trim == "tool-results",
        previous_turn=conversation.turn if same_model else None,
        context_tokens=resolved.context_tokens,
        overflow_advice="" if by_chat else composer.overflow_advice,
        notices=list(record.notices),
    )


def _client(basis: ResolvedRequest, resolved: ResolvedModel, tools: _RunTools) -> ChatClient:
    """The model's client, with what stands before it: a cassette, an answer that is repeated."""
    request, deferred, client = basis.request, basis.deferred, resolved.client
    if tools.recording and not request.dry_run:
        attempt = request.case.attempt if request.case else 1
        client = tools.recording.client(resolved, attempt=attempt)
    if deferred is not None and deferred.response is not None:
        client = cast("Any", ReplayedAnswer(deferred.response, client))
    return client


def _prompt_messages(basis: ResolvedRequest, agent_setup: AgentSetup | None) -> tuple[Message, ...]:
    """The user's prompt, as messages."""
    ask, parent = basis.request, basis.parent
    flow = agent_setup.workflow_run if agent_setup else None
    silent = not (ask.prompt or "").strip()
    if ask.prompt is not None and silent and not ask.messages and flow is None:
        raise UsageError("the prompt is empty; write what you want to ask")
    check_tool_results(ask.messages)
    if ask.prompt and not silent:
        parts = ask.parts or (TextPart(text=ask.prompt),)
        own = flow.input_messages(parts) if flow else (Message(role="user", content=parts),)
        return (*ask.messages, *own)
    if flow is not None:
        flow.skip_second_brief(basis.earlier_messages)
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
        elif basis.conversation.requests >= (ceiling := basis.limits.max_requests):
            ended = f"reached the limit of {ceiling} requests (max_requests)"
        else:
            return ()
        raise UsageError(
            f"run {parent.id[:8]} {ended}; say what to do next: run.resume('…') or "
            "%%agent --continue"
        )
    return ask.messages


def _params(options: RunOptions, settings: Settings) -> dict[str, Any]:
    # These two mean something else in settings: a full id, and names.
    fields = ChatRequest.model_fields.keys() - {"model", "tools"}
    names = [name for name in Settings.rows() if name in fields]
    params = {n: value for n in names if (value := getattr(settings, n)) is not None}
    return params if options.tool_choice is None else {**params, "tool_choice": options.tool_choice}


def _agent_setup(basis: ResolvedRequest, store: RunStore) -> AgentSetup | None:
    """The workflow or the agent of a run; None without one."""
    ask, options, parent, settings = basis.request, basis.options, basis.parent, basis.run_settings
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
        run_id=basis.run_id,
        kind="start" if new else "continue" if ask.prompt or paused else "resume",
        parent=parent,
        fork=basis.conversation.turn if ask.fork_turn else None,
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
