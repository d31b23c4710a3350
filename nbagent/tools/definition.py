"""What a function tool is: the decorator, and the definition made from a function.

A definition is made once per function and kept on it. Hosts and names are `functions`'.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast, overload

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat import ToolSpec, ToolTraits
from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError, UsageError
from nbagent.contracts.ports import Interrupted, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact, register_environment
from nbagent.shown import clean, plain_repr
from nbagent.shown.texts import BROKEN, kind_name
from nbagent.tools.calling import Ending, ToolOptions, Work, is_async, run_call
from nbagent.tools.docstrings import parse_docstring
from nbagent.tools.hints import hinted_parameters, signature_of
from nbagent.tools.results import (
    MAX_RESULT_CHARS,
    detail_of,
    failure_of,
    loop_hint,
    result_of,
    summary,
)
from nbagent.tools.schema import Arguments, Bound

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__nbagent_tool__"
_KEPT = "__nbagent_definition__"
HOST_NAME = "functions"
_NAME = re.compile(r"[^\s\x00-\x1f]{1,128}")
_BLANK = re.compile(r"[\s\x00-\x1f]+")
_MOST_FUNCTIONS = 20
_SCALARS = (str, bytes, int, float, bool, type(None))


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    threaded: bool = False,
    loop: Literal["notebook"] | None = None,
    interruptible: bool = True,
    idempotent: bool = False,
    timeout: float | None = None,
    on_cancel: Callable[[], object] | None = None,
    max_result_chars: int | None = None,
    ask: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    threaded: bool = False,
    loop: Literal["notebook"] | None = None,
    interruptible: bool = True,
    idempotent: bool = False,
    timeout: float | None = None,
    on_cancel: Callable[[], object] | None = None,
    max_result_chars: int | None = None,
    ask: bool = False,
) -> F | Callable[[F], F]:
    """Make a function a tool; it stays the function that it is.

    Args:
        function: the function, when the decorator is used without parentheses.
        name: what the model calls it; the function's own name by default.
        description: what the model reads; the docstring's by default.
        threaded: run a synchronous function in a worker thread, beside others.
        loop: `"notebook"` runs an async function on the notebook's own event loop.
        interruptible: False lets a stop wait until it has finished; for whatever writes.
        idempotent: True lets it run again after a crash.
        timeout: seconds.
        on_cancel: called once when a stop or the timeout hits it, such as `connection.interrupt`.
        max_result_chars: of the result's JSON; more is cut in the middle (50,000 by default).
        ask: True lets somebody approve each call first, unless `configure(allow=…)` names it.

    Raises:
        UsageError: the options do not fit the function.
    """
    options = ToolOptions(
        name=name,
        description=description,
        threaded=threaded,
        loop=loop,
        interruptible=interruptible,
        idempotent=idempotent,
        timeout_s=timeout,
        on_cancel=on_cancel,
        max_result_chars=max_result_chars,
        ask=ask,
    )
    _check(options)

    def mark(target: F) -> F:
        method = issubclass(type(target), types.MethodType | classmethod | staticmethod)
        holder: Any = cast("Any", target).__func__ if method else target
        _check_fit(holder, options)
        try:
            setattr(holder, MARK, options)
        except (AttributeError, TypeError):
            raise UsageError(
                f"{plain_repr(target, 80)} cannot be marked as a tool; wrap it in a def"
            ) from None
        return target

    return mark if function is None else mark(function)


def _check(options: ToolOptions) -> None:
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise UsageError(f"{options.name!r} is no name for a tool; use letters, digits, _ . -")
    if options.timeout_s is not None and not options.timeout_s > 0:
        raise UsageError(f"timeout={options.timeout_s!r} must be more than 0 seconds")
    if options.max_result_chars is not None and options.max_result_chars < 100:
        raise UsageError(f"max_result_chars={options.max_result_chars!r} must be at least 100")
    if cast("Any", options.loop) not in (None, "notebook"):
        raise UsageError(f"loop={options.loop!r} is unknown; use loop='notebook' or leave it out")
    if options.on_cancel is not None and not callable(cast("Any", options.on_cancel)):
        raise UsageError("on_cancel must be a function without parameters")


def _check_fit(target: Any, options: ToolOptions) -> None:
    if not callable(target):
        raise UsageError(f"{plain_repr(target, 80)} is no function; @tool goes above a def")
    if issubclass(type(target), type):
        return
    if options.threaded and is_async(target):
        raise UsageError("threaded=True is for a def; an async def runs beside others anyway")
    if options.loop == "notebook" and not is_async(target):
        raise UsageError("loop='notebook' is for an async def; a def runs in the waiting thread")


def options_of(obj: object) -> ToolOptions | None:
    """What `@tool` said about this object; None when it never did. Asks no `__getattr__`."""
    # By their types: `isinstance` asks for `__class__`, which raises where a proxy has no object.
    kind = type(obj)
    if issubclass(kind, types.MethodType):
        return options_of(cast("types.MethodType", obj).__func__)
    if issubclass(kind, functools.partial):
        return options_of(cast("functools.partial[Any]", obj).func)
    found: object = inspect.getattr_static(obj, MARK, None)
    if type(found) is not ToolOptions and not issubclass(kind, types.FunctionType | type):
        call = inspect.getattr_static(type(obj), "__call__", None)
        found = inspect.getattr_static(call, MARK, None)
    return found if type(found) is ToolOptions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A callable as a tool: what the model is shown, how arguments are checked, how it runs."""

    name: str
    spec: ToolSpec
    options: ToolOptions
    arguments: Arguments
    signature: inspect.Signature
    target: Callable[..., Any]

    @property
    def sha(self) -> str:
        """Hash of source (else bytecode), signature, docstring and options."""
        return self.spec.traits.sha

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Check and coerce; raises a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        return self.arguments.validate(arguments)

    async def call(self, bound: Bound, context: ToolContext, cancel: CancelToken) -> ToolOutcome:
        """Run it once; only CancelledError comes out."""
        # What chooses by the type of its first argument (singledispatch) looks at places only.
        in_order = callable(getattr(self.target, "register", None))
        args, kwargs = self.arguments.placed(bound, self.signature, context, in_order=in_order)
        budget = self.options.max_result_chars or MAX_RESULT_CHARS
        settle = functools.partial(result_of, budget_chars=budget)
        work = Work(self.target, args, kwargs, label=self.name, settle=settle)
        outcome = self._outcome(await run_call(work, self.options, context, cancel))
        return replace(outcome, notes=(*bound.notes, *outcome.notes)) if bound.notes else outcome

    async def run(
        self, arguments: Mapping[str, Any] | None, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Validate, then call."""
        try:
            bound = self.validate(arguments)
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info), tool_sha=self.sha)
        return await self.call(bound, context, cancel)

    def judged(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as a policy looks at them: those given, and the defaults of the others."""
        taken = (p for p in self.signature.parameters.values() if p.default is not p.empty)
        usual = {p.name: p.default for p in taken if type(p.default) in (str, int, float, bool)}
        return {**usual, **values}

    def renamed(self, name: str) -> FunctionTool:
        """The same tool under another name."""
        if name == self.name:
            return self
        spec = self.spec.model_copy(update={"name": name, "display_name": name})
        return replace(self, name=name, spec=spec)

    def _outcome(self, ending: Ending) -> ToolOutcome:
        truncated, notes, detail = False, (), None
        if ending.error is None and not ending.abandoned:
            result, truncated = result_of(ending.value)
            if ending.why is not None:
                notes = (f"{self.name} finished although {_WHY[ending.why]}",)
        elif ending.why is not None or isinstance(ending.error, Interrupted):
            result = ToolResult.failure(self._stopped(ending))
        else:
            error = ending.error or RuntimeError("it ended without a result")
            hint = loop_hint(error) if ending.place == "tool loop" else ""
            result, detail = failure_of(error, hint=hint), detail_of(error) + hint
        return ToolOutcome(
            result=result,
            ran_in=ending.place,
            started_at_ms=ending.started_ms,
            truncated=truncated,
            tool_sha=self.sha,
            error_detail=detail,
            notes=notes,
        )

    def _stopped(self, ending: Ending) -> ErrorInfo:
        if ending.started_ms is None:
            return ErrorInfo("E_INTERRUPTED", f"{self.name} was not started: the run was stopped")
        after = "; it may still be running, its result is lost" if ending.abandoned else ""
        if ending.error is not None and not isinstance(ending.error, _QUIET):
            after += f" ({summary(ending.error)})"
        if ending.why == "timeout":
            limit = f"{self.options.timeout_s:g} s"
            return ErrorInfo("E_TIMEOUT", f"{self.name} took longer than {limit}{after}")
        return ErrorInfo(
            "E_INTERRUPTED",
            f"{self.name} was stopped before it had finished; what it did so far is unknown{after}",
        )


_WHY = {
    "stop": "the run was stopped",
    "timeout": "its time was up",
    "cancelled": "it was given up",
}
_QUIET = (Interrupted, KeyboardInterrupt, asyncio.CancelledError)


def as_tool(obj: object, *, namespace: Mapping[str, Any] | None = None) -> FunctionTool:
    """The definition of a function, bound method, partial or callable instance.

    Args:
        obj: the callable, marked with `@tool` or not; a FunctionTool is returned as it is.
        namespace: where string hints are looked up that the function's own module does not know.

    Raises:
        UsageError: it cannot be a tool; the message says why.
    """
    if type(obj) is FunctionTool:
        return obj
    try:
        return _tool_of(obj, namespace or {})
    except NbagentError:
        raise
    except BROKEN as error:
        # Its own attributes (`__signature__`, `__doc__`, …) may raise anything.
        name = obj.__name__ if type(obj) is types.FunctionType else kind_name(obj)
        raise UsageError(
            f"the tool {name!r} cannot be read ({summary(error)}); wrap it in a def with hints "
            "and a docstring"
        ) from error


def _tool_of(obj: object, namespace: Mapping[str, Any]) -> FunctionTool:
    if isinstance(obj, type) or not callable(obj):
        raise UsageError(
            f"{plain_repr(obj, 80)} is no tool; give a function, a bound method or an instance "
            "with __call__"
        )
    owner: Any = getattr(obj, "__func__", obj) if isinstance(obj, types.MethodType) else obj
    if not isinstance(owner, types.FunctionType):
        return _define(obj, namespace)
    slot = "bound" if owner is not obj else "plain"
    kept: Any = owner.__dict__.get(_KEPT)
    # A wrapper made by functools.wraps inherits the dict of what it wraps, and autoreload puts
    # new code into an old function: only the same function with the same code counts.
    stamp = _stamp(owner)
    if kept is None or kept[0] is not owner or kept[1] != stamp:
        kept = cast("Any", (owner, stamp, {}))
        owner.__dict__[_KEPT] = kept
    made: dict[str, FunctionTool] = kept[2]
    if slot not in made:
        # Bound to no instance: the function lives longer than the object it was bound to.
        made[slot] = replace(_define(obj, namespace), target=owner)
    return made[slot] if owner is obj else replace(made[slot], target=obj)


def _stamp(function: types.FunctionType) -> tuple[Any, ...]:
    return (
        function.__code__,
        id(function.__defaults__),
        id(function.__kwdefaults__),
        function.__doc__,
        function.__dict__.get(MARK),
    )


def _define(target: Callable[..., Any], namespace: Mapping[str, Any]) -> FunctionTool:
    # A tool is read where it is written, which may be before the first run.
    register_environment()
    options = options_of(target) or ToolOptions()
    _check_fit(target, options)
    name = options.name or _own_name(target)
    signature = signature_of(target, name)
    _check_bound(target, signature, name)
    doc = parse_docstring(redact(clean(_docstring(target) or "")))
    parameters = hinted_parameters(target, signature, name=name, namespace=namespace)
    arguments = Arguments(name, parameters, doc.parameters)
    description = doc.description if options.description is None else options.description
    spec = ToolSpec(
        name=name,
        display_name=name,
        description=redact(clean(description)),
        parameters=arguments.json_schema,
        traits=ToolTraits(
            host=HOST_NAME,
            interruptible=options.interruptible,
            idempotent=options.idempotent,
            ruling="ask" if options.ask else "allow",
            sha=_sha(target, signature, options),
        ),
    )
    return FunctionTool(
        name=name,
        spec=spec,
        options=options,
        arguments=arguments,
        signature=signature,
        target=target,
    )


def _check_bound(target: Any, signature: inspect.Signature, name: str) -> None:
    first = next(iter(signature.parameters.values()), None)
    place = str(getattr(target, "__qualname__", "")).rsplit("<locals>.", 1)[-1]
    if not isinstance(target, types.FunctionType) or first is None or "." not in place:
        return
    if first.name == "self" and first.annotation is first.empty:
        raise UsageError(
            f"{place!r} is a method of no instance; take the method of an instance, "
            f"such as {place.rpartition('.')[0]}(…).{name}"
        )


def _own_name(target: Any) -> str:
    inner = target
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    given = getattr(inner, "__name__", None)
    name = given if isinstance(given, str) and given.strip() else type(inner).__name__
    if name == "<lambda>":
        raise UsageError("a lambda has no name; use a def, or nbagent.tool(name=…)(the lambda)")
    return _BLANK.sub("_", name.strip())[:128]


def _docstring(target: Any) -> str | None:
    inner = target
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    if inspect.isroutine(inner):
        return inspect.getdoc(inner)
    return inspect.getdoc(type(inner).__call__) if _has_own_doc(inner) else inspect.getdoc(inner)


def _has_own_doc(instance: Any) -> bool:
    call = type(instance).__call__
    return bool(getattr(call, "__doc__", None)) and inspect.isfunction(call)


def _sha(target: Any, signature: inspect.Signature, options: ToolOptions) -> str:
    plain = replace(options, on_cancel=None)
    text = plain_repr(signature, 20_000)
    return sha_of([_source(target), text, inspect.getdoc(target), repr(plain)])


def state_of(tool: FunctionTool) -> str:
    """Hash of its definition and of the very code that a call of it would run now.

    Finer than `sha`, which goes by the source: a function may be given other code or defaults in
    place. What a function reads while it runs (globals, the state of an object) is not in it.
    """
    held: list[object] = []
    _hold(tool.target, held, set())
    return sha_of([tool.sha, held])


def _hold(target: Any, held: list[object], seen: set[int]) -> None:
    """Collect the code of a callable, and of the functions that it wraps or closes over."""
    if id(target) in seen or len(seen) >= _MOST_FUNCTIONS:
        return
    seen.add(id(target))
    kind = cast("type[Any]", type(target))
    if issubclass(kind, functools.partial):
        held.append([_plain(target.args), _plain(target.keywords)])
        _hold(target.func, held, seen)
    elif issubclass(kind, types.MethodType):
        _hold(target.__func__, held, seen)
    elif kind is types.FunctionType:
        held.append(
            [_code(target.__code__), _plain(target.__defaults__), _plain(target.__kwdefaults__)]
        )
        inner = [target.__dict__.get("__wrapped__")]
        for cell in target.__closure__ or ():
            with suppress(ValueError):  # It is empty yet.
                inner.append(cell.cell_contents)
        for one in inner:
            if issubclass(type(one), types.FunctionType | types.MethodType | functools.partial):
                _hold(one, held, seen)
    else:
        _hold(inspect.getattr_static(kind, "__call__", None), held, seen)


def _plain(given: object) -> list[object]:
    """Defaults and given arguments: plain values as they are, others by which object it is.

    What an object holds may change with each call (`seen={}`), which makes no other function.
    """
    if isinstance(given, dict):
        pairs = cast("dict[str, object]", given)
        return [[name, *_plain((pairs[name],))] for name in sorted(pairs)]
    values = cast("tuple[object, ...]", given or ())
    return [repr(one) if type(one) in _SCALARS else [kind_name(one), id(one)] for one in values]


def _source(target: Any) -> object:
    inner = target
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None)
    # Python 3.13 keeps the text of `python -c` under the name that all of `exec` has too.
    if not isinstance(code, types.CodeType) or code.co_filename != "<string>":
        with suppress(OSError, TypeError, SyntaxError, IndexError):
            return inspect.getsource(inner)
    return _code(code) if isinstance(code, types.CodeType) else plain_repr(inner)


def _code(code: types.CodeType) -> list[object]:
    constants = [
        _code(const)
        if isinstance(const, types.CodeType)
        # The order of a frozenset changes from one process to the next.
        else sorted(map(repr, cast("frozenset[Any]", const)))
        if isinstance(const, frozenset)
        else repr(const)
        for const in code.co_consts
    ]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]
