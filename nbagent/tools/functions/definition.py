"""What a function tool is: the decorator, the definition made from a function, the hosts of such.

A definition is made once per function and kept on it. What a built-in host's functions do, and what
a call of theirs would do, belongs to the host's own module.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, cast, overload

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.policy import Ruling
from nbagent.contracts.secrets import redact, register_environment
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.shown.texts import VALUE_ERRORS, clean, class_name, plain_repr
from nbagent.tools.functions.arguments import (
    Arguments,
    Bound,
    UndefinedHintError,
    function_of,
    signature_of,
    without_partials,
)
from nbagent.tools.functions.docstrings import parse_docstring
from nbagent.tools.functions.running import CallOfFunction, ToolOptions, is_async
from nbagent.tools.tool_names import OWN, checked_name

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__nbagent_tool__"
_KEPT = "__nbagent_definition__"


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    display_name: str | None = None,
    description: str | None = None,
    threaded: bool = False,
    loop: Literal["notebook"] | None = None,
    interruptible: bool = True,
    timeout: float | None = None,
    max_result_chars: int | None = None,
    ask: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    display_name: str | None = None,
    description: str | None = None,
    threaded: bool = False,
    loop: Literal["notebook"] | None = None,
    interruptible: bool = True,
    idempotent: object = None,
    timeout: float | None = None,
    max_result_chars: int | None = None,
    ask: bool = False,
) -> F | Callable[[F], F]:
    """Make a function a tool; it stays the function that it is.

    Args:
        function: the function, when the decorator is used without parentheses.
        name: what the model calls it; the function's own name by default.
        display_name: what cards and questions call it, in any letters; the name by default.
        description: what the model reads; the docstring's by default.
        threaded: run a synchronous function in a worker thread, beside others.
        loop: `"notebook"` runs an async function on the notebook's own event loop.
        interruptible: False lets a stop wait until it has finished; for whatever writes.
        idempotent: is gone, and an error.
        timeout: seconds.
        max_result_chars: of the result's JSON; more is cut in the middle (50,000 by default).
        ask: True lets somebody approve each call first, unless `configure(allow=…)` names it.

    Raises:
        UsageError: the options do not fit the function, or no model can be offered it.
    """
    if idempotent is not None:
        raise UsageError(
            "idempotent= is gone: a call that a dead kernel cut is not run again by itself; the "
            "model reads E_INTERRUPTED and may call again. Leave idempotent= out"
        )
    options = ToolOptions(
        name=name,
        display_name=display_name,
        description=description,
        threaded=threaded,
        loop=loop,
        interruptible=interruptible,
        timeout_s=timeout,
        max_result_chars=max_result_chars,
        ask=ask,
    )
    _check(options)

    def mark(target: F) -> F:
        method = issubclass(type(target), types.MethodType | classmethod | staticmethod)
        holder: Any = cast("Any", target).__func__ if method else target
        _check_fit(holder, options)
        try:
            setattr(holder, _MARK, options)
        except (AttributeError, TypeError):
            raise UsageError(
                f"{plain_repr(target, 80)} cannot be marked as a tool; wrap it in a def"
            ) from None
        if not method and not _class_of(target):
            try:
                as_tool(target)
            except UndefinedHintError:
                pass  # A later cell may define it.
            except UsageError:
                delattr(holder, _MARK)
                raise
        return target

    return mark if function is None else mark(function)


def _check(options: ToolOptions) -> None:
    if options.name is not None:
        checked_name(options.name)
    if options.timeout_s is not None and not options.timeout_s > 0:
        raise UsageError(f"timeout={options.timeout_s!r} must be more than 0 seconds")
    if options.max_result_chars is not None and options.max_result_chars < 100:
        raise UsageError(f"max_result_chars={options.max_result_chars!r} must be at least 100")
    if cast("Any", options.loop) not in (None, "notebook"):
        raise UsageError(f"loop={options.loop!r} is unknown; use loop='notebook' or leave it out")


def _check_fit(target: Any, options: ToolOptions) -> None:
    if issubclass(type(target), type) or not callable(target):
        raise UsageError(
            f"{plain_repr(target, 80)} is no tool; give a function, a bound method or an instance "
            "with __call__"
        )
    if options.threaded and is_async(target):
        raise UsageError("threaded=True is for a def; an async def runs beside others anyway")
    if options.loop == "notebook" and not is_async(target):
        raise UsageError("loop='notebook' is for an async def; a def runs in the waiting thread")


def _class_of(target: Any) -> str:
    """The name of the class in whose body a function stands; empty where it is in none."""
    place = getattr(target, "__qualname__", "") if type(target) is types.FunctionType else ""
    return str(place).rsplit("<locals>.", 1)[-1].rpartition(".")[0]


def options_of(obj: object) -> ToolOptions | None:
    """What `@tool` said about this object; None when it never did. Asks no `__getattr__`."""
    # By their types: `isinstance` asks for `__class__`, which raises where a proxy has no object.
    kind = type(obj)
    if issubclass(kind, types.MethodType):
        return options_of(cast("types.MethodType", obj).__func__)
    if issubclass(kind, functools.partial):
        return options_of(cast("functools.partial[Any]", obj).func)
    marked: object = inspect.getattr_static(obj, _MARK, None)
    if type(marked) is not ToolOptions:
        call = inspect.getattr_static(kind, "__call__", None)
        marked = inspect.getattr_static(call, _MARK, None)
    return marked if type(marked) is ToolOptions else None


class _Kept(NamedTuple):
    """The definition kept on a function; it is not pickled with it, but made anew elsewhere."""

    stamp: tuple[Any, ...] = ()
    made: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A callable as a tool: what the model is shown, how arguments are checked, how it runs."""

    spec: ToolSpec
    options: ToolOptions
    arguments: Arguments
    target: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.spec.name

    def prepared(self, bound: Bound, preview: CallPreview | None = None) -> PreparedCall:
        """A call with checked arguments, ready to run. By default an approval binds to the sha."""
        traits = self.spec.traits
        if preview is None:
            preview = CallPreview(ruling=traits.ruling, approval_key=traits.sha)

        async def run(context: ToolContext) -> ToolOutcome:
            args, kwargs = self.arguments.placed(bound, context)
            work = functools.partial(self.target, *args, **kwargs)
            outcome = await CallOfFunction(self.name, work, self.options, context).run()
            return replace(outcome, tool_sha=traits.sha, notes=(*bound.notes, *outcome.notes))

        return PreparedCall(spec=self.spec, arguments=bound.plain, preview=preview, run=run)


def as_tool(obj: object, *, namespace: Mapping[str, Any] | None = None) -> FunctionTool:
    """The definition of a function, bound method, partial or callable instance, marked or not.

    String hints that the function's own module does not know are looked up in `namespace`.
    UsageError says why it cannot be a tool.
    """
    if type(obj) is FunctionTool:
        return obj
    try:
        options = options_of(obj) or ToolOptions()
        _check_fit(obj, options)
        call = cast("Callable[..., Any]", obj)
        name = checked_name(options.name or own_name(call) or type(without_partials(call)).__name__)
        return cached_definition(call, replace(options, name=name), OWN, namespace or {})
    except NbagentError:
        raise
    except VALUE_ERRORS as error:
        # Its own attributes (`__signature__`, `__doc__`, …) may raise anything.
        name = obj.__name__ if type(obj) is types.FunctionType else class_name(obj)
        raise UsageError(
            f"the tool {name!r} cannot be read ({plain_repr(error, 200)}); wrap it in a def with "
            "hints and a docstring"
        ) from error


def method_tool(
    function: Callable[..., Any], *, name: str, host: str, ruling: Ruling = "allow", **options: Any
) -> FunctionTool:
    """A function or bound method of nbagent's own as a tool of a built-in host.

    Schema and checks come from its hints, the texts from its docstring. A synchronous one runs in
    a worker thread unless `threaded=False`; the other options are those of `ToolOptions`.
    """
    threaded = options.pop("threaded", not is_async(function))
    made = ToolOptions(name=name, threaded=threaded, ask=ruling == "ask", **options)
    return cached_definition(function, made, host, {})


def cached_definition(
    obj: Any, options: ToolOptions, host: str, namespace: Mapping[str, Any]
) -> FunctionTool:
    """The definition that is kept on a function, made anew when something of it has changed."""
    owner: Any = getattr(obj, "__func__", obj) if isinstance(obj, types.MethodType) else obj
    if not isinstance(owner, types.FunctionType):
        return _define(obj, options, host, namespace)
    # A wrapper made by functools.wraps inherits the dict of what it wraps, and autoreload puts
    # new code into an old function: only the same function with the same code counts.
    state = (owner.__code__, id(owner.__defaults__), id(owner.__kwdefaults__), owner.__doc__)
    stamp = (id(owner), *state, options, host, owner is obj)
    kept: _Kept = owner.__dict__.get(_KEPT, _Kept())
    if kept.stamp != stamp:
        # Bound to no instance: the function lives longer than the object it was bound to.
        made = replace(_define(obj, options, host, namespace), target=owner)
        kept = owner.__dict__[_KEPT] = _Kept(stamp, made)
    return kept.made if owner is obj else replace(kept.made, target=obj)


def _define(
    target: Callable[..., Any], options: ToolOptions, host: str, namespace: Mapping[str, Any]
) -> FunctionTool:
    # A tool is read where it is written, which may be before the first run.
    register_environment()
    name = cast("str", options.name)
    signature = signature_of(target, name, namespace)
    if next(iter(signature.parameters), None) == "self" and _class_of(target):
        raise UsageError(
            f"{target.__qualname__!r} is a method of no instance; take the method of an instance, "
            f"such as {_class_of(target)}(…).{name}"
        )
    said, said_of = parse_docstring(redact(clean(_docstring(target))))
    arguments = Arguments(name, signature, said_of)
    description = said if options.description is None else options.description
    spec = ToolSpec(
        name=name,
        display_name=options.display_name or name,
        description=redact(clean(description)),
        parameters=arguments.json_schema,
        traits=ToolTraits(
            host=host,
            interruptible=options.interruptible,
            ruling="ask" if options.ask else "allow",
            sha=_sha(target, signature, options),
        ),
    )
    return FunctionTool(spec=spec, options=options, arguments=arguments, target=target)


def own_name(obj: Any) -> str:
    """The name that a callable bears itself, empty where it has none; UsageError for a lambda."""
    name = getattr(without_partials(obj), "__name__", None)
    if name == "<lambda>":
        raise UsageError("a lambda has no name; use a def, or nbagent.tool(name=…)(the lambda)")
    return name if isinstance(name, str) else ""


def _docstring(target: Any) -> str:
    inner = without_partials(target)
    call = function_of(inner)
    # An instance's own `__call__` may say more than its class.
    own = call is not inner and inspect.isfunction(call) and call.__doc__
    return inspect.getdoc(call if own else inner) or ""


def _sha(target: Any, signature: inspect.Signature, options: ToolOptions) -> str:
    text = plain_repr(signature, 20_000)
    return sha_of([body_of(target), text, inspect.getdoc(target), repr(options)])


def body_of(target: Any) -> Any:
    """What a function does, as JSON that is the same in each process."""
    inner = inspect.unwrap(function_of(target))
    code: object = getattr(inner, "__code__", None)
    return _steps(code) if isinstance(code, types.CodeType) else plain_repr(inner)


def _steps(code: types.CodeType) -> list[Any]:
    """What code does: not where it stands, and nothing that changes from process to process."""
    steps: list[Any] = []
    for step in dis.get_instructions(code):
        value: Any = step.argval
        if isinstance(value, types.CodeType):
            value = _steps(value)
        elif isinstance(value, frozenset):
            value = sorted(map(repr, cast("frozenset[Any]", value)))
        steps.append([step.opname, value if isinstance(value, list) else step.argrepr])
    return steps
