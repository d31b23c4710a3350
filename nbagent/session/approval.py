"""Decides about a tool call before it runs: by rules, otherwise by asking.

Owns how an agent's policy tightens the user's, the approvals of a session, and the ways to ask:
a callback, a view with buttons, `input()`. If nobody can answer, a call that needs approval is
denied. The look of a question belongs to the view.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from nbagent.contracts.approval import Approval, CallPreview, PersonAnswer, PreviewPiece, Question
from nbagent.contracts.call_patterns import GlobResolver, call_pattern, unchanged_glob
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import (
    dump_json,
    json_object,
    load_json,
    monotonic_ms,
    sha_of,
    utc_now,
)
from nbagent.contracts.errors import ToolError, UsageError, describe_error
from nbagent.contracts.events import ApprovalRequested, Event, Notice
from nbagent.contracts.messages import ToolCall, is_storable_json
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.policy import RULINGS, RuleMatch, Ruling, ToolPolicy
from nbagent.contracts.ports import Decision, ShowPieces, ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.shown.texts import cut_middle, without_folders
from nbagent.store.audit import AuditSink

OnApproval = Callable[[Question], Any]
ANSWER_FORMS = "give True, 'session', False, a reason, or a dict of other arguments"
BUTTONS_READY_S = 2.0
"""Seconds that a view with buttons has to report that its front end is connected. JupyterLab
needs 0.07 s; a front end without anywidget never reports."""
_POLL_S = 0.05
_NOBODY_CAN_ANSWER = (
    "it has to be approved, and nobody is here who could: in a program give on_approval=…"
)
_REASON_CHARS = 4_000


def tighten_policy(policy: ToolPolicy, agent_policy: ToolPolicy | None) -> ToolPolicy:
    """The user's policy, made stricter by the agent's own. An agent's policy can allow nothing."""
    if agent_policy is None:
        return policy
    if agent_policy.allow:
        raise UsageError(
            f"an agent may only tighten the policy, not allow {', '.join(agent_policy.allow)}; "
            "allow it for yourself with nbagent.configure(allow=[…]), or answer with on_approval=…"
        )
    return replace(
        policy,
        ask=(*policy.ask, *agent_policy.ask),
        deny=(*policy.deny, *agent_policy.deny),
        limits=policy.limits.tightened(agent_policy.limits),
        isolation="landlock" if agent_policy.isolation == "landlock" else policy.isolation,
    )


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The policy of a run, applied to tools and calls."""

    policy: ToolPolicy = field(default_factory=ToolPolicy)
    resolve: GlobResolver = unchanged_glob
    """Turns a path pattern of a rule into the form that paths of calls have."""

    def hidden_reason(self, spec: ToolSpec) -> str:
        """The first rule that denies the tool with any arguments; empty if there is none."""
        return self.deny_rule(spec.name, spec.traits.host)

    def deny_rule(self, tool: str, host: str) -> str:
        """The rule that denies the tool of this name; without a name, all tools of the host."""
        rules = (
            f"{kind}={text!r}"
            for kind, text in self._matching_rules(tool, host)
            if kind == "deny" and not call_pattern(text).conditions
        )
        return next(rules, "")

    def conditional_rules(self, spec: ToolSpec) -> list[str]:
        """Rules that apply to this tool with certain arguments only."""
        rules = self._matching_rules(spec.name, spec.traits.host)
        return [f"{kind}={text}" for kind, text in rules if call_pattern(text).conditions]

    def denies(self, tool: str, host: str, arguments: Mapping[str, Any]) -> bool:
        """True if a rule denies this call. For hosts that touch many files in one call."""
        hit = self.policy.says(tool, host, arguments, self.resolve)
        return hit is not None and hit.ruling == "deny"

    def decide(
        self, spec: ToolSpec, preview: CallPreview, *arguments: Mapping[str, Any] | None
    ) -> RuleMatch:
        """Decide about a call; without arguments, about the tool in general.

        Rules that allow are compared with the first form of the `arguments`, the checked ones;
        rules that are stricter than the host with each form, also as the model wrote them.
        """
        default = RuleMatch(ruling=preview.ruling, why=preview.why or "its definition says so")
        hits = [
            self.policy.says(spec.name, spec.traits.host, form, self.resolve)
            for form in arguments or (None,)
        ]
        hit = hits[0] or default
        only_stricter = preview.minimum or hit.ruling != "allow"
        hits_by_order = [hit, default, *hits] if only_stricter else [hit, *hits]
        # The strictest; of equal ones the first.
        return min(filter(None, hits_by_order), key=lambda one: RULINGS.index(one.ruling))

    def _matching_rules(self, tool: str, host: str) -> list[tuple[Ruling, str]]:
        return [
            rule for rule in self.policy.rules if call_pattern(rule[1]).matches_tool(tool, host)
        ]


@dataclass(frozen=True, slots=True)
class Grant:
    """One approval for a session."""

    session: str
    tool: str
    call: str
    """Arguments of the approved call as JSON; empty if every call of the tool is approved."""
    decided_by: str
    """`person` or `callback`."""
    at: datetime


session_grants: dict[tuple[str, object, str], Grant] = {}
"""Approvals for sessions in this process, oldest first, by session, answering callback (None: the
person) and approval hash."""


@dataclass(kw_only=True, eq=False)
class OpenQuestion:
    """An open question about a call. On the engine's loop."""

    call: ToolCall
    context: ToolContext
    answer: asyncio.Future[PersonAnswer]
    pending_edit: tuple[Mapping[str, Any], ShowPieces] | None = None
    """Edited arguments that still need a preview."""
    previewing: asyncio.Task[None] | None = None


@dataclass(kw_only=True, eq=False)
class SessionApprover:
    """Approver of one run. `answer` may be called from any thread."""

    host: ToolHost
    """Prepares a call again after the question: files may have changed meanwhile."""
    rules: PolicyRules
    session: str
    """Session in which its approvals are valid."""
    callback: OnApproval | None
    """Answers instead of a person."""
    buttons_ready: Callable[[], bool | None]
    """True if a view with buttons is connected, False if it may still connect, None without one."""
    input_prompt: OnApproval | None
    """Asks by `input()` in the waiting thread; None if nobody types there."""
    audit: AuditSink | None
    pause_if_unanswered: bool = False
    """Pause after a turn in which nobody could be asked, as a case of a batch does."""
    _open: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion], init=False)

    async def review(
        self,
        call: ToolCall,
        prepared: PreparedCall,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> Decision:
        """Allow, deny or change one call; ask again until the previewed call is the call that would
        run."""
        approval, by, reason, arguments = cast("Approval", "allowed"), "", "", None
        changed, waited_ms = "", 0.0
        hit = self._decide(call, prepared)
        while hit.ruling == "ask":
            bound = _approval_hash(call, prepared)
            grant = (self.session, self.callback, bound)
            if grant in session_grants and prepared.preview.session_scope != "none":
                by = "session"
                break
            question = _question(call, prepared, context, changed + _question_reason(hit, prepared))
            asked_ms = monotonic_ms()
            decision_source, answer = await self._ask_person(
                call, question, prepared, context, cancel, emit
            )
            waited_ms += monotonic_ms() - asked_ms
            if cancel.is_set:
                break  # nobody decided: the result says that the run was stopped
            if answer.choice == "deny":
                approval, by, reason = "denied", decision_source, answer.reason
                break
            prepared = await self.host.prepare(call, context)
            hit = self._decide(call, prepared)
            if _approval_hash(call, prepared) != bound:
                changed = "its effect changed while the question was open; "
                continue
            by, used = decision_source, _with_arguments(call, answer.arguments)
            if hit.ruling != "deny" and used.arguments != call.arguments:
                # The policy decides about the edited call again; the person has seen it already.
                approval, arguments = "edited", used.arguments
                try:
                    prepared = await self.host.prepare(used, context)
                    hit = self._decide(used, prepared)
                except ToolError as error:  # the result of a call that was edited all the same
                    prepared = replace(prepared, run=_fail_with(error))
            elif hit.ruling != "deny" and answer.choice == "session" and question.scope:
                whole = prepared.preview.session_scope == "every call"
                shown = "" if whole else redact(dump_json(call.arguments).decode())
                session_grants[grant] = Grant(
                    self.session, prepared.spec.name, shown, by, utc_now()
                )
                reason = f"for the session ({question.scope})"
            break
        if hit.ruling == "deny":
            approval, by = "denied", "policy"
            reason = f"the policy denies this call: {hit.why}"
        decision = Decision(
            prepared=prepared,
            approval=approval,
            decided_by=by,
            reason=reason,
            arguments=arguments,
            waited_ms=waited_ms,
        )
        if self.audit is not None:
            bound = _approval_hash(_with_arguments(call, arguments), prepared)
            self.audit.decided(call, context, decision, bound)
        return decision

    def _decide(self, call: ToolCall, prepared: PreparedCall) -> RuleMatch:
        return self.rules.decide(
            prepared.spec, prepared.preview, prepared.arguments, call.arguments
        )

    def answer(self, tool_call_id: str, answer: PersonAnswer) -> bool:
        """Answer the question about a call; False if the question is not open. Any thread."""
        open_question = self._open.get(tool_call_id)
        if open_question is None or open_question.answer.done():
            return False
        open_question.answer.get_loop().call_soon_threadsafe(
            _set_answer, open_question.answer, answer
        )
        return True

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        """Show the effect of the call in question with other arguments; nothing runs.

        False if the question is not open. Any thread; `show` is called on the engine's loop.
        """
        open_question = self._open.get(tool_call_id)
        if open_question is None or open_question.answer.done():
            return False

        def begin() -> None:
            # While one preview is made, only the newest edit is kept: typing makes many.
            open_question.pending_edit = (arguments, show)
            if open_question.previewing is None or open_question.previewing.done():
                open_question.previewing = asyncio.ensure_future(self._preview(open_question))

        open_question.answer.get_loop().call_soon_threadsafe(begin)
        return True

    async def _preview(self, open_question: OpenQuestion) -> None:
        while open_question.pending_edit is not None and not open_question.answer.done():
            (arguments, show), open_question.pending_edit = open_question.pending_edit, None
            call = _with_arguments(open_question.call, arguments)
            try:
                prepared = await self.host.prepare(call, open_question.context)
                hit, pieces = self._decide(call, prepared), _redacted_pieces(prepared)
                why = redact(_question_reason(hit, prepared))
                if hit.ruling == "deny":
                    pieces = (PreviewPiece("with these arguments", f"denied: {hit.why}"), *pieces)
            except Exception as error:
                message = error.message if isinstance(error, ToolError) else describe_error(error)
                why = ""
                pieces = (PreviewPiece("with these arguments", f"refused: {redact(message)}"),)
            if not open_question.answer.done():
                show(why, pieces)

    async def _ask_person(
        self,
        call: ToolCall,
        question: Question,
        prepared: PreparedCall,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> tuple[str, PersonAnswer]:
        """Ask, and return who answered and the answer. A stop cancels this task and closes the
        question."""
        call_id = question.tool_call_id
        answered: asyncio.Future[PersonAnswer] = asyncio.get_running_loop().create_future()
        self._open[call_id] = OpenQuestion(call=call, context=context, answer=answered)
        try:
            if self.callback is None and not await self._can_be_answered():
                cancel.after_turn |= self.pause_if_unanswered
                reason = _NOBODY_CAN_ANSWER
                if not prepared.preview.minimum:  # otherwise no rule could allow it
                    reason += ", in an unattended notebook allow it with nbagent.configure(allow=…)"
                return "nobody", PersonAnswer(choice="deny", reason=reason)
            emit(
                ApprovalRequested(
                    question.turn_id, call_id, question.tool, question.arguments, question
                )
            )
            ask = self.callback or (None if self.buttons_ready() else self.input_prompt)
            by = "person" if self.callback is None else "callback"
            return by, await (_call_handler(ask, question, context, emit) if ask else answered)
        except asyncio.CancelledError:
            if not cancel.is_set:
                raise
            # Not raised, so that the record has the time waited.
            return "nobody", PersonAnswer(choice="deny", reason="the run was stopped")
        finally:
            answered.cancel()  # no preview is shown any more
            self._open.pop(call_id, None)

    async def _can_be_answered(self) -> bool:
        until_ms = monotonic_ms() + 1000 * BUTTONS_READY_S
        # Polled: a view tells that it is ready by an attribute, from another thread.
        while self.buttons_ready() is False and monotonic_ms() < until_ms:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return bool(self.buttons_ready()) or self.input_prompt is not None


def _fail_with(error: ToolError) -> Callable[[ToolContext], Awaitable[ToolOutcome]]:
    async def fail(context: ToolContext) -> ToolOutcome:
        return ToolOutcome(result=ToolResult.failure(error.info))

    return fail


def _set_answer(future: asyncio.Future[PersonAnswer], answer: PersonAnswer) -> None:
    if not future.done():
        future.set_result(answer)


def _with_arguments(call: ToolCall, arguments: Any) -> ToolCall:
    """The call with the arguments of the person's answer, if there are any."""
    return call if arguments is None else call.model_copy(update={"arguments": dict(arguments)})


def _approval_hash(call: ToolCall, prepared: PreparedCall) -> str:
    """Key of an approval: the tool's definition, and the arguments unless the whole tool is
    allowed."""
    spec, preview = prepared.spec, prepared.preview
    # The whole definition: if a server changes what a tool says it does, the person is asked again.
    whole = [spec.traits.host, spec.name, spec.traits.sha, spec.description, spec.parameters]
    arguments = None if preview.session_scope == "every call" else call.arguments
    return sha_of([*whole, preview.approval_key, arguments])


def _question_reason(hit: RuleMatch, prepared: PreparedCall) -> str:
    """The effect of the call, and the rule that requires approval, if there is one."""
    rule = f"your rule {hit.why}" if hit.rule else ""
    return "; ".join(filter(None, (prepared.preview.why, rule)))


def _question(call: ToolCall, prepared: PreparedCall, context: ToolContext, why: str) -> Question:
    spec, preview = prepared.spec, prepared.preview
    scopes = {
        "every call": f"every call of {spec.name}",
        "this call": "this exact call",
        "none": "",
    }
    return Question(
        run_id=context.run_id,
        turn_id=context.turn_id,
        tool_call_id=call.id,
        tool=spec.name,
        host=spec.traits.host,
        arguments=copy.deepcopy(call.arguments or {}),
        why=why,
        pieces=_redacted_pieces(prepared),
        scope=scopes[preview.session_scope],
        display_name=spec.title,
        summary=cut_middle(redact(spec.description).strip().partition("\n")[0], 300),
    )


def _redacted_pieces(prepared: PreparedCall) -> tuple[PreviewPiece, ...]:
    return tuple(replace(piece, text=redact(piece.text)) for piece in prepared.preview.pieces)


async def _call_handler(
    ask: OnApproval, question: Question, context: ToolContext, emit: Callable[[Event], None]
) -> PersonAnswer:
    """The answer of `on_approval` or of `input()`; an exception there denies the call."""
    label = f"the question about {question.tool}"

    async def awaited() -> PersonAnswer:
        return to_answer(await ask(question))

    is_async = inspect.iscoroutinefunction(ask)
    work = awaited if is_async else lambda: to_answer(ask(question))
    where = "tool loop" if is_async else "waiting thread"
    try:
        answer, _ = await context.runner.run(work, where=where, label=label)
        return answer
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit would end the loop
        reason = f"asking failed ({without_folders(describe_error(error))}), so the call is denied"
        emit(Notice("warning", reason, question.turn_id))
        return PersonAnswer(choice="deny", reason=reason)


def to_answer(answer: object) -> PersonAnswer:
    """Read the value that `on_approval` returned, in the callback's own thread.

    True allows the call, `"session"` allows it for the session, False and None deny it, any other
    text denies it with that reason; a dict allows it with these arguments instead. A text such as
    `"yes"` is an error that says `True`.
    """
    if isinstance(answer, PersonAnswer):
        arguments = None if answer.arguments is None else _plain_arguments({**answer.arguments})
        return replace(answer, arguments=arguments, reason=cut_middle(answer.reason, _REASON_CHARS))
    if answer is True:
        return PersonAnswer(choice="once")
    if answer is None or answer is False:
        return PersonAnswer(choice="deny", reason="the person's program denied this call")
    if answer == "session":
        return PersonAnswer(choice="session")
    if isinstance(answer, str):
        if answer.strip().lower() in ("y", "yes"):  # hardly a reason for a denial
            raise UsageError(f"on_approval returned {answer!r}; return True to allow the call")
        return PersonAnswer(choice="deny", reason=cut_middle(answer, _REASON_CHARS))
    arguments = json_object(cast("Any", answer))
    if arguments is None:
        raise UsageError(f"on_approval returned a {type(answer).__name__}; {ANSWER_FORMS}")
    return PersonAnswer(choice="once", arguments=_plain_arguments(arguments))


def _plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy JSON values: the call that runs and the stored one must be equal."""
    with suppress(TypeError, ValueError, RecursionError):
        plain = load_json(dump_json(arguments))
        if plain == arguments and is_storable_json(plain):
            return plain
    raise UsageError(
        "on_approval returned arguments that are not JSON; give texts, finite numbers, booleans, "
        "None, lists, and dicts whose keys are texts"
    )
