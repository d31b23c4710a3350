"""The `@nbagent.tool` decorator, the definition of a tool, and tools that run a function.

A definition is built once for each function and cached on it. A host that plans its calls itself
needs the definition only. The functions of built-in hosts, and the previews of their calls, belong
to the modules of the hosts.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, cast, overload

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.policy import Ruling
from nbagent.contracts.secrets import redact, register_environment
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.shown.texts import VALUE_ERRORS, class_name, clean, safe_repr
from nbagent.tools.functions.arguments import (
    Arguments,
    CheckedArguments,
    UndefinedHintError,
    function_of,
    signature_of,
    unwrap_partials,
)
from nbagent.tools.functions.callables import refusal_of
from nbagent.tools.functions.docstrings import parse_docstring
from nbagent.tools.functions.running import FunctionCall, ToolOptions, is_async
from nbagent.tools.tool_names import FUNCTION_HOST, check_tool_name

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS_ATTRIBUTE = "__nbagent_tool__"
_CACHE_ATTRIBUTE = "__nbagent_definition__"


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
    """Mark a function as a tool; the function itself does not change.

    Args:
        function: the function, when the decorator is used without parentheses.
        name: name for the model; by default the function's own.
        display_name: name on cards and in questions, in any characters; by default `name`.
        description: text for the model; by default from the docstring.
        threaded: run a synchronous function in a worker thread, in parallel with others.
        loop: `"notebook"` runs an async function on the notebook's own event loop.
        interruptible: False makes a stop wait for its end; use it for functions that write.
        idempotent: removed; passing it is an error.
        timeout: in seconds.
        max_result_chars: size limit of the result as JSON (50,000 by default); a longer result
            is cut in the middle.
        ask: True asks for approval before each call, unless `configure(allow=…)` names it.

    Raises:
        UsageError: the options do not suit the function, or its parameters cannot be written as
            JSON.
    """
    if idempotent is not None:
        raise UsageError(
            "idempotent= was removed: a call that a dead kernel interrupted is not repeated; the "
            "model reads E_INTERRUPTED and may call again. Remove idempotent="
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
    _check_options(options)

    def mark(target: F) -> F:
        method = issubclass(type(target), types.MethodType | classmethod | staticmethod)
        holder: Any = cast("Any", target).__func__ if method else target
        _check_target(holder, options)
        try:
            setattr(holder, _OPTIONS_ATTRIBUTE, options)
        except (AttributeError, TypeError):
            raise UsageError(
                f"{safe_repr(target, 80)} cannot be marked as a tool; wrap it in a def"
            ) from None
        if not method and not _class_name(target):
            try:
                as_tool(target)
            except UndefinedHintError:
                pass  # A later cell may define the name; the tool is read again in each run.
            except UsageError:
                delattr(holder, _OPTIONS_ATTRIBUTE)
                raise
        return target

    return mark if function is None else mark(function)


def _check_options(options: ToolOptions) -> None:
    if options.name is not None:
        check_tool_name(options.name)
    if options.timeout_s is not None and not options.timeout_s > 0:
        raise UsageError(f"timeout={options.timeout_s!r} must be more than 0 seconds")
    if options.max_result_chars is not None and options.max_result_chars < 100:
        raise UsageError(f"max_result_chars={options.max_result_chars!r} must be at least 100")
    if cast("Any", options.loop) not in (None, "notebook"):
        raise UsageError(f"loop={options.loop!r} is unknown; use loop='notebook' or leave it out")


def _check_target(target: Any, options: ToolOptions) -> None:
    if reason := refusal_of(target):
        inner = unwrap_partials(target)
        name: object = inspect.getattr_static(inner, "__name__", None)
        if type(inner) is types.FunctionType:
            name = inner.__name__
        raise UsageError(f"{name if isinstance(name, str) else class_name(inner)!r} {reason}")
    if issubclass(type(target), type) or not callable(target):
        raise UsageError(
            f"{safe_repr(target, 80)} cannot be a tool; give a function, a bound method or an "
            "instance with __call__"
        )
    if options.threaded and is_async(target):
        raise UsageError("threaded=True needs a def; an async def runs in parallel anyway")
    if options.loop == "notebook" and not is_async(target):
        raise UsageError("loop='notebook' needs an async def; a def runs in the waiting thread")


def _class_name(target: Any) -> str:
    """Name of the class that a function is defined in; empty if it is defined in none."""
    qualified_name = (
        getattr(target, "__qualname__", "") if type(target) is types.FunctionType else ""
    )
    return str(qualified_name).rsplit("<locals>.", 1)[-1].rpartition(".")[0]


def tool_options(obj: object) -> ToolOptions | None:
    """Options from `@tool` on this object; None if it is not marked. Never runs `__getattr__`."""
    # `isinstance` would read `__class__`, and a lazy proxy without an object raises there.
    kind = type(obj)
    if issubclass(kind, types.MethodType):
        return tool_options(cast("types.MethodType", obj).__func__)
    marked: object = inspect.getattr_static(obj, _OPTIONS_ATTRIBUTE, None)
    if type(marked) is not ToolOptions and issubclass(kind, functools.partial):
        return tool_options(cast("functools.partial[Any]", obj).func)
    if type(marked) is not ToolOptions:
        call = inspect.getattr_static(kind, "__call__", None)
        marked = inspect.getattr_static(call, _OPTIONS_ATTRIBUTE, None)
    return marked if type(marked) is ToolOptions else None


class _CacheEntry(NamedTuple):
    """Definition cached on a function. Pickling drops it; the other process builds its own."""

    cache_key: tuple[Any, ...] = ()
    definition: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _CacheEntry, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as it is shown and checked: its spec for the model, options and parameters."""

    spec: ToolSpec
    options: ToolOptions
    arguments: Arguments

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A definition with the callable that runs its calls."""

    definition: ToolDefinition
    target: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def spec(self) -> ToolSpec:
        return self.definition.spec

    @property
    def arguments(self) -> Arguments:
        return self.definition.arguments

    def prepare_call(self, checked: CheckedArguments) -> PreparedCall:
        """Prepare a call with checked arguments. An approval is valid for this code."""
        definition, traits = self.definition, self.spec.traits
        preview = CallPreview(ruling=traits.ruling, approval_key=traits.sha)

        async def run(context: ToolContext) -> ToolOutcome:
            args, kwargs = definition.arguments.call_arguments(checked, context)
            work = functools.partial(self.target, *args, **kwargs)
            outcome = await FunctionCall(self.name, work, definition.options, context).run()
            return replace(outcome, tool_sha=traits.sha, notes=(*checked.notes, *outcome.notes))

        return PreparedCall(spec=self.spec, arguments=checked.json_values, preview=preview, run=run)


def as_tool(obj: object, *, namespace: Mapping[str, Any] | None = None) -> FunctionTool:
    """Define a function, bound method, partial or callable instance as a tool, marked or not.

    String hints unknown to the function's own module are looked up in `namespace`.

    Raises:
        UsageError: it cannot be a tool; the message says why.
    """
    if type(obj) is FunctionTool:
        return obj
    try:
        options = tool_options(obj) or ToolOptions()
        _check_target(obj, options)
        call = cast("Callable[..., Any]", obj)
        name = check_tool_name(
            options.name or callable_name(call) or type(unwrap_partials(call)).__name__
        )
        options = replace(options, name=name)
        definition = cached_definition(call, options, FUNCTION_HOST, namespace or {})
        return FunctionTool(definition, call)
    except NbagentError:
        raise
    except VALUE_ERRORS as error:
        # Its own attributes (`__signature__`, `__doc__`, …) may raise anything.
        has_name = type(obj) in (types.FunctionType, types.BuiltinFunctionType)
        name = cast("Any", obj).__name__ if has_name else class_name(obj)
        raise UsageError(
            f"the tool {name!r} cannot be read ({safe_repr(error, 200)}); wrap it in a def with "
            "hints and a docstring"
        ) from error


def define_method(
    function: Callable[..., Any], *, name: str, host: str, ruling: Ruling = "allow", **options: Any
) -> ToolDefinition:
    """Define a tool of a built-in host after a function or bound method of nbagent.

    Schema and checks come from its hints, the texts from its docstring. Other options: see
    `ToolOptions`; a synchronous one is `threaded` by default.
    """
    options = {"threaded": not is_async(function), **options}
    options_of_tool = ToolOptions(name=name, ask=ruling == "ask", **options)
    return cached_definition(function, options_of_tool, host, {})


def method_tool(
    function: Callable[..., Any], *, name: str, host: str, ruling: Ruling = "allow", **options: Any
) -> FunctionTool:
    """Make a tool that runs a function or bound method of nbagent; see `define_method`."""
    definition = define_method(function, name=name, host=host, ruling=ruling, **options)
    return FunctionTool(definition, function)


def cached_definition(
    obj: Any, options: ToolOptions, host: str, namespace: Mapping[str, Any]
) -> ToolDefinition:
    """Return the definition cached on a function; build it again if the function changed."""
    owner: Any = getattr(obj, "__func__", obj) if isinstance(obj, types.MethodType) else obj
    if not isinstance(owner, types.FunctionType):
        return _define(obj, options, host, namespace)
    # A wrapper made by functools.wraps inherits the dict of what it wraps, and autoreload puts
    # new code into an old function: only the same function with the same code counts.
    # By id: defaults may not be hashable.
    state = (owner.__code__, id(owner.__defaults__), id(owner.__kwdefaults__), owner.__doc__)
    cache_key = (id(owner), *state, options, host, owner is obj)
    entry: _CacheEntry = owner.__dict__.get(_CACHE_ATTRIBUTE, _CacheEntry())
    if entry.cache_key != cache_key:
        definition = _define(obj, options, host, namespace)
        entry = owner.__dict__[_CACHE_ATTRIBUTE] = _CacheEntry(cache_key, definition)
    return entry.definition


def _define(
    target: Callable[..., Any], options: ToolOptions, host: str, namespace: Mapping[str, Any]
) -> ToolDefinition:
    # A tool may be defined before the first run, which registers the secrets of the environment.
    register_environment()
    name = cast("str", options.name)
    signature = signature_of(target, name, namespace)
    if next(iter(signature.parameters), None) == "self" and _class_name(target):
        raise UsageError(
            f"{target.__qualname__!r} is a method without an instance; use the method of an "
            f"instance, such as {_class_name(target)}(…).{name}"
        )
    text, parameter_texts = parse_docstring(
        redact(clean(_docstring(target))), _parameter_names(target, signature)
    )
    arguments = Arguments(name, signature, parameter_texts)
    description = text if options.description is None else options.description
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
    return ToolDefinition(spec=spec, options=options, arguments=arguments)


def callable_name(obj: Any) -> str:
    """Own name of a callable, empty if it has none; raise UsageError for a lambda."""
    name = getattr(unwrap_partials(obj), "__name__", None)
    if name == "<lambda>":
        raise UsageError("a lambda has no name; use a def, or nbagent.tool(name=…)(the lambda)")
    return name if isinstance(name, str) else ""


def _parameter_names(target: Any, signature: inspect.Signature) -> set[str]:
    """Names of all parameters that a docstring may describe, also of those a partial has bound.

    The text for `**kwargs` stays in the description: the schema has no place for it.
    """
    parameters = [*signature.parameters.values()]
    if isinstance(target, functools.partial):
        with suppress(TypeError, ValueError):
            parameters += inspect.signature(unwrap_partials(target)).parameters.values()
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}


def _docstring(target: Any) -> str:
    inner = unwrap_partials(target)
    call = function_of(inner)
    # An instance's own `__call__` may say more than its class.
    own = call is not inner and inspect.isfunction(call) and call.__doc__
    return inspect.getdoc(call if own else inner) or ""


def _sha(target: Any, signature: inspect.Signature, options: ToolOptions) -> str:
    text = safe_repr(signature, 20_000)
    return sha_of([code_body(target), text, inspect.getdoc(target), repr(options)])


def code_body(target: Any) -> Any:
    """Code of a function as JSON that is equal in every process."""
    inner = inspect.unwrap(function_of(target))
    code: object = getattr(inner, "__code__", None)
    return _instructions(code) if isinstance(code, types.CodeType) else safe_repr(inner)


def _instructions(code: types.CodeType) -> list[Any]:
    """Instructions of a code object, without line numbers.

    Sets are sorted by `repr`: their order changes from process to process (hash randomization).
    """
    steps: list[Any] = []
    for step in dis.get_instructions(code):
        value: Any = step.argval
        if isinstance(value, types.CodeType):
            value = _instructions(value)
        elif isinstance(value, frozenset):
            value = sorted(map(repr, cast("frozenset[Any]", value)))
        steps.append([step.opname, value if isinstance(value, list) else step.argrepr])
    return steps
