"""Decides about a tool call before it runs: by the rules, else by asking somebody.

Owns how an agent's policy tightens the person's, what was approved for the session, and the
ways to ask: a callback, a view with buttons, `input()`. Where nobody can answer, a call that has
to be asked about is denied. How a question looks belongs to the view.
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
from nbagent.contracts.call_patterns import GlobResolver, unchanged_glob, call_pattern
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
ANSWERS = "give True, 'session', False, a reason, or a dict of other arguments"
READY_S = 2.0
"""A view whose front end has not answered after so long cannot be asked with."""
_POLL_S = 0.05
_NOBODY = "it has to be approved, and nobody is here who could: in a program give on_approval=…"
_REASON_CHARS = 4_000


def tightened(policy: ToolPolicy, by: ToolPolicy | None) -> ToolPolicy:
    """The person's policy, made stricter by an agent's own, which can allow nothing."""
    if by is None:
        return policy
    if by.allow:
        raise UsageError(
            f"an agent may only tighten the policy, not allow {', '.join(by.allow)}; allow it for "
            "yourself with nbagent.configure(allow=[…]), or answer with on_approval=…"
        )
    return replace(
        policy,
        ask=(*policy.ask, *by.ask),
        deny=(*policy.deny, *by.deny),
        limits=policy.limits.tightened(by.limits),
        isolation="landlock" if by.isolation == "landlock" else policy.isolation,
    )


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What the policy of a run says to tools and calls."""

    policy: ToolPolicy = field(default_factory=ToolPolicy)
    resolve: GlobResolver = unchanged_glob
    """Brings what rules say of paths to the form that paths have."""

    def hiding(self, spec: ToolSpec) -> str:
        """The first rule that denies the tool whatever the arguments; empty: none."""
        return self.forbidding(spec.name, spec.traits.host)

    def forbidding(self, tool: str, host: str) -> str:
        """The same for a name; without one, the rule that denies all tools of the host."""
        rules = (
            f"{kind}={text!r}"
            for kind, text in self._about(tool, host)
            if kind == "deny" and not call_pattern(text).conditions
        )
        return next(rules, "")

    def about_some_calls(self, spec: ToolSpec) -> list[str]:
        """The rules that speak of this tool with certain arguments only."""
        rules = self._about(spec.name, spec.traits.host)
        return [f"{kind}={text}" for kind, text in rules if call_pattern(text).conditions]

    def denies(self, tool: str, host: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a rule forbids this call; for hosts that look at many things in one call."""
        hit = self.policy.says(tool, host, arguments, self.resolve)
        return hit is not None and hit.ruling == "deny"

    def says(
        self, spec: ToolSpec, preview: CallPreview, *arguments: Mapping[str, Any] | None
    ) -> RuleMatch:
        """What happens to a call; without arguments, to the tool in general.

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

    def _about(self, tool: str, host: str) -> list[tuple[Ruling, str]]:
        return [rule for rule in self.policy.rules if call_pattern(rule[1]).matches_tool(tool, host)]


@dataclass(frozen=True, slots=True)
class Grant:
    """Something that was allowed for a session."""

    session: str
    tool: str
    call: str
    """Which call; empty when every call of the tool was allowed."""
    by: str
    """`person` or `callback`."""
    at: datetime


granted: dict[tuple[str, object, str], Grant] = {}
"""What was allowed for a session in this process, the oldest first: by session, the callback that
answered (None: the person), and what an approval is bound to."""


@dataclass(kw_only=True, eq=False)
class OpenQuestion:
    """A question that waits for its answer. On the engine's loop."""

    call: ToolCall
    context: ToolContext
    answer: asyncio.Future[PersonAnswer]
    edited: tuple[Mapping[str, Any], ShowPieces] | None = None
    """Arguments whose preview is still to be made."""
    previewing: asyncio.Task[None] | None = None


@dataclass(kw_only=True, eq=False)
class SessionApprover:
    """The Approver of one run. `answer` may be called in any thread."""

    host: ToolHost
    """Prepares a call again after somebody was asked."""
    rules: PolicyRules
    session: str
    """What is allowed for the session holds in this one."""
    callback: OnApproval | None
    """Answers instead of a person."""
    buttons: Callable[[], bool | None]
    """Whether a view is open whose front end answers; None where there is none, False where it
    may yet get ready."""
    by_input: OnApproval | None
    """Asks in the thread that waits, where somebody types."""
    audit: AuditSink | None
    pauses: bool = False
    """Whether the run pauses after a turn in which nobody could be asked: as a case of a batch."""
    _open: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion], init=False)

    async def review(
        self,
        call: ToolCall,
        prepared: PreparedCall,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> Decision:
        """Allow, deny or change one call: ask until what the person saw is what would run."""
        approval, by, reason, arguments = cast("Approval", "allowed"), "", "", None
        changed, waited_ms = "", 0.0
        hit = self._hit(call, prepared)
        while hit.ruling == "ask":
            bound = _bound(call, prepared)
            grant = (self.session, self.callback, bound)
            if grant in granted and prepared.preview.session_scope != "none":
                by = "session"
                break
            question = _question(call, prepared, context, changed + _why(hit, prepared))
            asked_ms = monotonic_ms()
            decision_source, answer = await self._ask(call, question, prepared, context, cancel, emit)
            waited_ms += monotonic_ms() - asked_ms
            if cancel.is_set:
                break  # Nobody decided: the call is told that the run was stopped.
            if answer.choice == "deny":
                approval, by, reason = "denied", decision_source, answer.reason
                break
            prepared = await self.host.prepare(call, context)
            hit = self._hit(call, prepared)
            if _bound(call, prepared) != bound:
                changed = "what it would do changed while it was decided; "
                continue
            by, used = decision_source, _with(call, answer.arguments)
            if hit.ruling != "deny" and used.arguments != call.arguments:
                # The policy judges the edited call anew; the person has seen it.
                approval, arguments = "edited", used.arguments
                try:
                    prepared = await self.host.prepare(used, context)
                    hit = self._hit(used, prepared)
                except ToolError as error:  # the result of a call that was edited all the same
                    prepared = replace(prepared, run=_failing(error))
            elif hit.ruling != "deny" and answer.choice == "session" and question.scope:
                whole = prepared.preview.session_scope == "every call"
                shown = "" if whole else redact(dump_json(call.arguments).decode())
                granted[grant] = Grant(self.session, prepared.spec.name, shown, by, utc_now())
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
            bound = _bound(_with(call, arguments), prepared)
            self.audit.decided(call, context, decision, bound)
        return decision

    def _hit(self, call: ToolCall, prepared: PreparedCall) -> RuleMatch:
        return self.rules.says(prepared.spec, prepared.preview, prepared.arguments, call.arguments)

    def answer(self, tool_call_id: str, answer: PersonAnswer) -> bool:
        """Answer the question about a call; False when it is not asked (any more). Any thread."""
        open_question = self._open.get(tool_call_id)
        if open_question is None or open_question.answer.done():
            return False
        open_question.answer.get_loop().call_soon_threadsafe(_settle, open_question.answer, answer)
        return True

    def preview(self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces) -> bool:
        """Show what a call that is asked about would do with other arguments; nothing is run.

        False when it is not asked (any more). Any thread; `show` is called on the engine's loop.
        """
        open_question = self._open.get(tool_call_id)
        if open_question is None or open_question.answer.done():
            return False

        def begin() -> None:
            # While one is made, only the last of those that come is made next.
            open_question.edited = (arguments, show)
            if open_question.previewing is None or open_question.previewing.done():
                open_question.previewing = asyncio.ensure_future(self._preview(open_question))

        open_question.answer.get_loop().call_soon_threadsafe(begin)
        return True

    async def _preview(self, open_question: OpenQuestion) -> None:
        while open_question.edited is not None and not open_question.answer.done():
            (arguments, show), open_question.edited = open_question.edited, None
            call = _with(open_question.call, arguments)
            try:
                prepared = await self.host.prepare(call, open_question.context)
                hit, pieces = self._hit(call, prepared), _pieces(prepared)
                why = redact(_why(hit, prepared))
                if hit.ruling == "deny":
                    pieces = (PreviewPiece("with these arguments", f"denied: {hit.why}"), *pieces)
            except Exception as error:
                message = error.message if isinstance(error, ToolError) else describe_error(error)
                why = ""
                pieces = (PreviewPiece("with these arguments", f"refused: {redact(message)}"),)
            if not open_question.answer.done():
                show(why, pieces)

    async def _ask(
        self,
        call: ToolCall,
        question: Question,
        prepared: PreparedCall,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> tuple[str, PersonAnswer]:
        """Who answered, and what; a stop, which cancels this task, ends the question."""
        call_id = question.tool_call_id
        answered: asyncio.Future[PersonAnswer] = asyncio.get_running_loop().create_future()
        self._open[call_id] = OpenQuestion(call=call, context=context, answer=answered)
        try:
            if self.callback is None and not await self._somebody_is_there():
                cancel.after_turn |= self.pauses
                reason = _NOBODY
                if not prepared.preview.minimum:  # else no rule can allow it
                    reason += ", in an unattended notebook allow it with nbagent.configure(allow=…)"
                return "nobody", PersonAnswer(choice="deny", reason=reason)
            emit(
                ApprovalRequested(
                    question.turn_id, call_id, question.tool, question.arguments, question
                )
            )
            ask = self.callback or (None if self.buttons() else self.by_input)
            by = "person" if self.callback is None else "callback"
            return by, await (_called(ask, question, context, emit) if ask else answered)
        except asyncio.CancelledError:
            if not cancel.is_set:
                raise
            # Not raised, so that the time waited is kept.
            return "nobody", PersonAnswer(choice="deny", reason="the run was stopped")
        finally:
            answered.cancel()  # no preview is shown any more
            self._open.pop(call_id, None)

    async def _somebody_is_there(self) -> bool:
        until_ms = monotonic_ms() + 1000 * READY_S
        while self.buttons() is False and monotonic_ms() < until_ms:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return bool(self.buttons()) or self.by_input is not None


def _failing(error: ToolError) -> Callable[[ToolContext], Awaitable[ToolOutcome]]:
    async def fail(context: ToolContext) -> ToolOutcome:
        return ToolOutcome(result=ToolResult.failure(error.info))

    return fail


def _settle(future: asyncio.Future[PersonAnswer], answer: PersonAnswer) -> None:
    if not future.done():
        future.set_result(answer)


def _with(call: ToolCall, arguments: Any) -> ToolCall:
    """The call with the arguments that a person gave, if any."""
    return call if arguments is None else call.model_copy(update={"arguments": dict(arguments)})


def _bound(call: ToolCall, prepared: PreparedCall) -> str:
    """What an approval is bound to: the definition and, but for whole tools, the very call."""
    spec, preview = prepared.spec, prepared.preview
    whole = [spec.traits.host, spec.name, spec.traits.sha, spec.description, spec.parameters]
    arguments = None if preview.session_scope == "every call" else call.arguments
    return sha_of([*whole, preview.approval_key, arguments])


def _why(hit: RuleMatch, prepared: PreparedCall) -> str:
    """What the call would do, and the rule that asks, when one does."""
    rule = f"your rule {hit.why}" if hit.rule else ""
    return "; ".join(filter(None, (prepared.preview.why, rule)))


def _question(call: ToolCall, prepared: PreparedCall, context: ToolContext, why: str) -> Question:
    spec, preview = prepared.spec, prepared.preview
    scopes = {"every call": f"every call of {spec.name}", "this call": "this very call", "none": ""}
    return Question(
        run_id=context.run_id,
        turn_id=context.turn_id,
        tool_call_id=call.id,
        tool=spec.name,
        host=spec.traits.host,
        arguments=copy.deepcopy(call.arguments or {}),
        why=why,
        pieces=_pieces(prepared),
        scope=scopes[preview.session_scope],
        display_name=spec.title,
        summary=cut_middle(redact(spec.description).strip().partition("\n")[0], 300),
    )


def _pieces(prepared: PreparedCall) -> tuple[PreviewPiece, ...]:
    return tuple(replace(piece, text=redact(piece.text)) for piece in prepared.preview.pieces)


async def _called(
    ask: OnApproval, question: Question, context: ToolContext, emit: Callable[[Event], None]
) -> PersonAnswer:
    """The answer of the person's program or of `input()`; whatever fails there is a denial."""
    label = f"the question about {question.tool}"

    async def awaited() -> PersonAnswer:
        return answer_of(await ask(question))

    is_async = inspect.iscoroutinefunction(ask)
    work = awaited if is_async else lambda: answer_of(ask(question))
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


def answer_of(answer: object) -> PersonAnswer:
    """What `on_approval` returned, as an answer: read where it was given, in its own thread.

    True allows the call, `"session"` allows it for the session, False and None deny it, any other
    text denies it with that reason; a dict allows it with these arguments instead. A text such as
    `"yes"` is an error that says `True`.
    """
    if isinstance(answer, PersonAnswer):
        arguments = None if answer.arguments is None else _plain({**answer.arguments})
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
        raise UsageError(f"on_approval returned a {type(answer).__name__}; {ANSWERS}")
    return PersonAnswer(choice="once", arguments=_plain(arguments))


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """A copy of JSON values only: what runs and what is kept must be the same."""
    with suppress(TypeError, ValueError, RecursionError):
        plain = load_json(dump_json(arguments))
        if plain == arguments and is_storable_json(plain):
            return plain
    raise UsageError(
        "on_approval returned arguments that are no JSON; give texts, finite numbers, booleans, "
        "None, lists, and dicts whose keys are texts"
    )
