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
    canonical_json,
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
from nbagent.session.open_questions import OpenQuestion, OpenQuestions, Preview
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
_SHOWN_CHARS = 20_000
_CHANGED = "its effect changed while the question was open; "
_NOT_SHOWN = "the effect of the edited arguments was not shown yet; "


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
    """Arguments of the approved call as JSON, or the file; empty if every call of the tool is
    approved."""
    decided_by: str
    """`person` or `callback`."""
    at: datetime


session_grants: dict[tuple[str, object, str], Grant] = {}
"""Approvals for sessions in this process, oldest first, by session, answering callback (None: the
person) and approval hash."""


@dataclass(slots=True, kw_only=True)
class _Review:
    """A call under review: its present form, and what was decided so far."""

    call: ToolCall
    """The call as a person may have edited it."""
    prepared: PreparedCall
    hit: RuleMatch
    approval: Approval = "allowed"
    decided_by: str = ""
    reason: str = ""
    changed: str = ""
    """Why the call is asked about again."""
    waited_ms: float = 0.0


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
    on_contradiction: Callable[[str], object] = lambda text: None
    """Told, on the engine's loop, that a later answer to a question differs from the first."""

    def __post_init__(self) -> None:
        self.questions = OpenQuestions(self.on_contradiction)

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
        review = _Review(call=call, prepared=prepared, hit=self._decide(call, prepared))
        while review.hit.ruling == "ask" and not review.decided_by:
            if self._grant_key(review) in session_grants:
                review.decided_by = "session"
                _show_change(review.prepared, context)
                break
            asked_ms = monotonic_ms()
            by, answer, open_question = await self._ask_person(review, context, cancel, emit)
            review.waited_ms += monotonic_ms() - asked_ms
            if cancel.is_set:
                break  # nobody decided: the result says that the run was stopped
            if answer.choice == "deny":
                review.approval, review.decided_by, review.reason = "denied", by, answer.reason
            else:
                await self._apply_answer(review, by, answer, open_question)
        if review.hit.ruling == "deny":
            review.approval, review.decided_by = "denied", "policy"
            review.reason = f"the policy denies this call: {review.hit.why}"
        return self._decision(call, review, context)

    async def _apply_answer(
        self, review: _Review, by: str, answer: PersonAnswer, open_question: OpenQuestion
    ) -> None:
        """Allow the call, unless what was shown is no longer what would happen: then ask again."""
        key, used = self._grant_key(review), _with_arguments(review.call, answer.arguments)
        is_edit = not _is_same(used.arguments, review.call.arguments)
        if is_edit:
            await self._apply_edit(review, by, used, open_question)
        else:
            await self._prepare_again(review, open_question.context)
        review.hit = self._decide(review.call, review.prepared)
        if review.changed or review.hit.ruling == "deny":
            return
        review.decided_by = by
        if answer.choice == "session" and not is_edit and key is not None:
            session_grants[key] = _grant(self.session, review, by)
            review.reason = f"for the session ({open_question.question.scope})"

    async def _prepare_again(self, review: _Review, context: ToolContext) -> None:
        bound = _approval_hash(review.call, review.prepared)
        review.prepared = await self.host.prepare(review.call, context)
        is_changed = _approval_hash(review.call, review.prepared) != bound
        review.changed = _CHANGED if is_changed else ""

    async def _apply_edit(
        self, review: _Review, by: str, used: ToolCall, open_question: OpenQuestion
    ) -> None:
        """Replace the call by its edited form; it is bound to the effect that was shown of it."""
        shown, bound = review.prepared, open_question.bound_edit(used.arguments or {})
        try:
            prepared = await self.host.prepare(used, open_question.context)
            _require_own_names(used, prepared)
        except ToolError as error:  # the result of a call that was edited all the same
            review.call, review.changed = used, ""
            review.prepared = replace(shown, run=_fail_with(error))
            return
        if bound is None and by == "callback":
            # A program sees no previews, and decides by the arguments. The question's own effect is
            # compared after the edit was prepared, so that a change before it is noticed.
            await self._prepare_again(review, open_question.context)
            if review.changed:
                return
        elif bound is None:
            # With the same key, only the arguments differ, which the person wrote.
            is_same = prepared.preview.approval_key == shown.preview.approval_key
            review.changed = "" if is_same else _NOT_SHOWN
        else:
            review.changed = "" if _approval_hash(used, prepared) == bound else _CHANGED
        review.call, review.prepared = used, prepared

    def _decision(self, call: ToolCall, review: _Review, context: ToolContext) -> Decision:
        """Turn a finished review into the decision, and write it to the audit log."""
        # A person who denies an edited call decides about no arguments: the model's are recorded.
        is_denied = review.approval == "denied" and review.decided_by != "policy"
        is_edited = not is_denied and not _is_same(review.call.arguments, call.arguments)
        used = review.call if is_edited else call
        decision = Decision(
            prepared=review.prepared,
            approval="edited" if is_edited and review.approval == "allowed" else review.approval,
            decided_by=review.decided_by,
            reason=review.reason,
            arguments=used.arguments if is_edited else None,
            waited_ms=review.waited_ms,
        )
        if self.audit is not None:
            self.audit.decided(call, context, decision, _approval_hash(used, review.prepared))
        return decision

    def _grant_key(self, review: _Review) -> tuple[str, object, str] | None:
        """Key of an approval for the session that covers the call; None if none can."""
        if review.prepared.preview.session_scope == "none":
            return None
        return (self.session, self.callback, _session_hash(review.call, review.prepared))

    def _decide(self, call: ToolCall, prepared: PreparedCall) -> RuleMatch:
        return self.rules.decide(
            prepared.spec, prepared.preview, prepared.arguments, call.arguments
        )

    def answer(
        self, tool_call_id: str, answer: PersonAnswer, *, question: Question | None = None
    ) -> bool:
        """Answer the question about a call; False if it takes no answer (see `answered`).

        Any thread. With `question`, only that question is answered, not a later one about the call.

        Raises:
            UsageError: the edited arguments are not JSON.
        """
        if answer.arguments is not None:
            answer = replace(answer, arguments=_plain_arguments({**answer.arguments}))
        return self.questions.answer(tool_call_id, answer, question)

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        """Show the effect of the call in question with other arguments; nothing runs.

        False if the question is not open. Any thread; `show` is called on the engine's loop.
        """
        plain = _plain_arguments({**arguments})
        return self.questions.preview(tool_call_id, plain, show, self._preview)

    async def _preview(self, open_question: OpenQuestion, arguments: Mapping[str, Any]) -> Preview:
        call = _with_arguments(open_question.call, arguments)
        try:
            prepared = await self.host.prepare(call, open_question.context)
            hit, pieces = self._decide(call, prepared), _redacted_pieces(prepared)
        except Exception as error:
            message = error.message if isinstance(error, ToolError) else describe_error(error)
            text = f"refused: {redact(message)}"
            return "", (PreviewPiece("with these arguments", text),), ""
        if hit.ruling == "deny":
            pieces = (PreviewPiece("with these arguments", f"denied: {hit.why}"), *pieces)
        # Another page shows this preview too, and its "Allow once" runs the call without the edit.
        is_edited = not _is_same(arguments, open_question.call.arguments)
        why = "with the edited arguments: " * is_edited + _question_reason(hit, prepared)
        return redact(why), pieces, _approval_hash(call, prepared)

    async def _ask_person(
        self,
        review: _Review,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> tuple[str, PersonAnswer, OpenQuestion]:
        """Ask, and return who answered, the answer, and the question. A stop cancels this task and
        closes the question."""
        question = _question(review, context)
        open_question = OpenQuestion(
            call=review.call,
            question=question,
            context=context,
            future=asyncio.get_running_loop().create_future(),
            asked_by="person" if self.callback is None else "callback",
        )
        with self.questions.opened(open_question):
            try:
                by, answer = await self._wait_for_answer(review, open_question, cancel, emit)
            except asyncio.CancelledError:
                if not cancel.is_set:
                    raise
                # Not raised, so that the record has the time waited.
                by = "nobody"
                answer = PersonAnswer(choice="deny", reason="the run was stopped")
        return by, answer, open_question

    async def _wait_for_answer(
        self,
        review: _Review,
        open_question: OpenQuestion,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> tuple[str, PersonAnswer]:
        if self.callback is None and not await self._can_be_answered():
            cancel.after_turn |= self.pause_if_unanswered
            reason = _NOBODY_CAN_ANSWER
            if not review.prepared.preview.minimum:  # otherwise no rule could allow it
                reason += ", in an unattended notebook allow it with nbagent.configure(allow=…)"
            return "nobody", PersonAnswer(choice="deny", reason=reason)
        question = open_question.question
        ask = self.callback or (None if self.buttons_ready() else self.input_prompt)
        if ask is not None and self.callback is None:
            open_question.asked_by = "input"
        emit(
            ApprovalRequested(
                question.turn_id,
                question.tool_call_id,
                question.tool,
                question.arguments,
                question,
            )
        )
        if ask is None:
            return "person", await open_question.future
        open_question.answer = await _call_handler(ask, question, open_question.context, emit)
        return "callback" if self.callback else "person", open_question.answer

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


def _with_arguments(call: ToolCall, arguments: Any) -> ToolCall:
    """The call with the arguments of the person's answer, if there are any."""
    return call if arguments is None else call.model_copy(update={"arguments": dict(arguments)})


def _is_same(arguments: Mapping[str, Any] | None, others: Mapping[str, Any] | None) -> bool:
    """True if both are the same JSON. Python's own `==` takes True, 1 and 1.0 for equal."""
    return canonical_json(arguments) == canonical_json(others)


def _definition(spec: ToolSpec) -> list[Any]:
    # The whole definition: if a server changes what a tool says it does, the person is asked again.
    return [spec.traits.host, spec.name, spec.traits.sha, spec.description, spec.parameters]


def _require_own_names(edited: ToolCall, prepared: PreparedCall) -> None:
    """Refuse edited arguments that were only read by unwrapping them, as a model's may be.

    A person allows what they wrote.
    """
    written = edited.arguments or {}
    if written and not written.keys() & prepared.arguments.keys():
        raise ToolError(
            f"the edited arguments name no argument of {edited.name}; write them as"
            f" {{{', '.join(prepared.arguments)}}}.",
            code="E_INVALID_ARGUMENTS",
        )


def _approval_hash(call: ToolCall, prepared: PreparedCall) -> str:
    """Hash of the call and the effect that an approval is valid for."""
    preview = prepared.preview
    arguments = None if preview.session_scope == "every call" else call.arguments
    return sha_of([*_definition(prepared.spec), preview.approval_key, arguments])


def _session_hash(call: ToolCall, prepared: PreparedCall) -> str:
    """Hash of all calls that an approval for the session covers."""
    if prepared.preview.session_scope == "this file":
        return sha_of([*_definition(prepared.spec), "file", prepared.preview.session_key])
    return _approval_hash(call, prepared)


def _grant(session: str, review: _Review, by: str) -> Grant:
    tool, preview = review.prepared.spec.name, review.prepared.preview
    calls = {
        "every call": "",
        "this file": preview.session_file,
        "this call": dump_json(review.call.arguments).decode(),
    }
    return Grant(session, tool, redact(calls.get(preview.session_scope, "")), by, utc_now())


def _show_change(prepared: PreparedCall, context: ToolContext) -> None:
    """Show the change of an approved file in the card of a call that nobody is asked about."""
    if prepared.preview.session_scope == "this file":
        pieces = (f"{piece.label}\n{piece.text}" for piece in prepared.preview.pieces)
        text = cut_middle("\n".join(pieces), _SHOWN_CHARS)
        context.output.read = lambda: (text, ())


def _question_reason(hit: RuleMatch, prepared: PreparedCall) -> str:
    """The effect of the call, and the rule that requires approval, if there is one."""
    rule = f"your rule {hit.why}" if hit.rule else ""
    return "; ".join(filter(None, (prepared.preview.why, rule)))


def _question(review: _Review, context: ToolContext) -> Question:
    call, spec, preview = review.call, review.prepared.spec, review.prepared.preview
    scopes = {
        "every call": f"every call of {spec.name}",
        "this file": f"every {spec.name} of {redact(preview.session_file)}",
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
        why=review.changed + _question_reason(review.hit, review.prepared),
        pieces=_redacted_pieces(review.prepared),
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
    # A text first: some objects are equal to everything.
    if isinstance(answer, str):
        if answer == "session":
            return PersonAnswer(choice="session")
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
