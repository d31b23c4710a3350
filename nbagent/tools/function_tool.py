"""What a function tool is: the decorator, and the definition made from a function.

A definition is made once per function and kept on it. Which tools a run has is `function_host`'s.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast, overload

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.chat import ToolSpec, ToolTraits
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.policy import CallPreview, Ruling
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolOutcome
from nbagent.contracts.secrets import redact, register_environment
from nbagent.shown import clean, plain_repr
from nbagent.shown.texts import BROKEN, kind_name
from nbagent.tools.arguments import Arguments, Bound
from nbagent.tools.docstrings import parse_docstring
from nbagent.tools.hints import UndefinedHintError, parameters_of, signature_of
from nbagent.tools.hosts import checked_name
from nbagent.tools.results import summary
from nbagent.tools.running import CallOfFunction, ToolOptions, is_async

F = TypeVar("F", bound=Callable[..., Any])
HOST_NAME = "functions"
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
    on_cancel: Callable[[], object] | None = None,
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
    on_cancel: Callable[[], object] | None = None,
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
        on_cancel: called once when a stop or the timeout hits it, such as `connection.interrupt`.
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
            setattr(holder, _MARK, options)
        except (AttributeError, TypeError):
            raise UsageError(
                f"{plain_repr(target, 80)} cannot be marked as a tool; wrap it in a def"
            ) from None
        if not method and not issubclass(type(target), type) and not _class_of(target):
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
    found: object = inspect.getattr_static(obj, _MARK, None)
    if type(found) is not ToolOptions and not issubclass(kind, types.FunctionType | type):
        call = inspect.getattr_static(type(obj), "__call__", None)
        found = inspect.getattr_static(call, _MARK, None)
    return found if type(found) is ToolOptions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A callable as a tool: what the model is shown, how arguments are checked, how it runs."""

    spec: ToolSpec
    options: ToolOptions
    arguments: Arguments
    signature: inspect.Signature
    target: Callable[..., Any]

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    @property
    def sha(self) -> str:
        """Hash of source (else code), signature, docstring and options."""
        return self.spec.traits.sha

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Check and coerce; raises a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        return self.arguments.validate(arguments)

    def prepared(self, bound: Bound, preview: CallPreview | None = None) -> PreparedCall:
        """A call with checked arguments, ready to run. By default an approval binds to the sha."""
        if preview is None:
            why = "it is marked with ask=True" if self.options.ask else ""
            preview = CallPreview(ruling=self.spec.traits.ruling, why=why, binds=self.sha)

        async def run(context: ToolContext) -> ToolOutcome:
            return await self.call(bound, context)

        return PreparedCall(spec=self.spec, arguments=bound.plain, preview=preview, run=run)

    async def call(self, bound: Bound, context: ToolContext) -> ToolOutcome:
        """Run it once; only CancelledError comes out."""
        # What chooses by the type of its first argument (singledispatch) looks at places only.
        in_order = callable(getattr(self.target, "register", None))
        args, kwargs = self.arguments.placed(bound, self.signature, context, in_order=in_order)
        work = functools.partial(self.target, *args, **kwargs)
        outcome = await CallOfFunction(self.name, work, self.options, context).run()
        return replace(outcome, tool_sha=self.sha, notes=(*bound.notes, *outcome.notes))

    def renamed(self, name: str) -> FunctionTool:
        """The same tool under another name."""
        if name == self.name:
            return self
        shown = {"name": name, "display_name": self.options.display_name or name}
        return replace(self, spec=self.spec.model_copy(update=shown))


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
        if isinstance(obj, type) or not callable(obj):
            raise UsageError(
                f"{plain_repr(obj, 80)} is no tool; give a function, a bound method or an instance "
                "with __call__"
            )
        options = options_of(obj) or ToolOptions()
        _check_fit(obj, options)
        name = checked_name(options.name or _own_name(obj))
        return _kept_definition(obj, replace(options, name=name), HOST_NAME, namespace or {})
    except NbagentError:
        raise
    except BROKEN as error:
        # Its own attributes (`__signature__`, `__doc__`, …) may raise anything.
        name = obj.__name__ if type(obj) is types.FunctionType else kind_name(obj)
        raise UsageError(
            f"the tool {name!r} cannot be read ({summary(error)}); wrap it in a def with hints "
            "and a docstring"
        ) from error


def method_tool(
    function: Callable[..., Any],
    *,
    name: str,
    host: str,
    ruling: Ruling = "allow",
    loop: Literal["notebook"] | None = None,
    interruptible: bool = True,
    timeout_s: float | None = None,
    max_result_chars: int | None = None,
    threaded: bool = True,
) -> FunctionTool:
    """A function or bound method of nbagent's own as a tool of a built-in host.

    Schema and checks come from its hints, the texts from its docstring; a parameter annotated
    `ToolContext` is filled in and not shown to the model.

    Args:
        function: sync (runs in a worker thread or in the waiting one) or async.
        name: what the model calls it.
        host: the name of its host.
        ruling: what happens to a call by default, as `%agent tools` says it.
        loop: `"notebook"` runs an async one on the notebook's own loop.
        interruptible: False for whatever writes: a stop waits until it has finished.
        timeout_s: after so many seconds the call is `E_TIMEOUT`.
        max_result_chars: of the result's JSON.
        threaded: False runs a sync function in the thread that waits (the notebook's main thread).
    """
    options = ToolOptions(
        name=name,
        threaded=threaded and not is_async(function),
        loop=loop,
        interruptible=interruptible,
        timeout_s=timeout_s,
        max_result_chars=max_result_chars,
        ask=ruling == "ask",
    )
    return _kept_definition(function, options, host, {})


def _kept_definition(
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
    kept: Any = owner.__dict__.get(_KEPT)
    if kept is None or kept[0] != stamp:
        # Bound to no instance: the function lives longer than the object it was bound to.
        made = replace(_define(obj, options, host, namespace), target=owner)
        kept = owner.__dict__[_KEPT] = (stamp, made)
    return kept[1] if owner is obj else replace(kept[1], target=obj)


def _define(
    target: Callable[..., Any], options: ToolOptions, host: str, namespace: Mapping[str, Any]
) -> FunctionTool:
    # A tool is read where it is written, which may be before the first run.
    register_environment()
    name = cast("str", options.name)
    signature = signature_of(target, name)
    first = next(iter(signature.parameters.values()), None)
    if first is not None and first.name == "self" and _class_of(target):
        raise UsageError(
            f"{target.__qualname__!r} is a method of no instance; take the method of an instance, "
            f"such as {_class_of(target)}(…).{name}"
        )
    doc = parse_docstring(redact(clean(_docstring(target) or "")))
    parameters = parameters_of(target, signature, name=name, namespace=namespace)
    arguments = Arguments(name, parameters, doc.parameters)
    description = doc.description if options.description is None else options.description
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
    return FunctionTool(
        spec=spec, options=options, arguments=arguments, signature=signature, target=target
    )


def own_name(obj: Any) -> str:
    """The name that a callable bears itself; empty where it has none."""
    while isinstance(obj, functools.partial):
        obj = cast("functools.partial[Any]", obj).func
    name = getattr(obj, "__name__", None)
    return name if isinstance(name, str) and name.strip() else ""


def _own_name(target: Any) -> str:
    name = own_name(target)
    if name == "<lambda>":
        raise UsageError("a lambda has no name; use a def, or nbagent.tool(name=…)(the lambda)")
    return name or type(_innermost(target)).__name__


def _innermost(target: Any) -> Any:
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    return target


def _docstring(target: Any) -> str | None:
    inner = _innermost(target)
    call = type(inner).__call__
    # An instance's own `__call__` may say more than its class.
    own = inspect.isfunction(call) and bool(call.__doc__) and not inspect.isroutine(inner)
    return inspect.getdoc(call if own else inner)


def _sha(target: Any, signature: inspect.Signature, options: ToolOptions) -> str:
    inner = _innermost(target)
    inner = inspect.unwrap(inner if inspect.isroutine(inner) else type(inner).__call__)
    code: object = getattr(inner, "__code__", None)
    source: object = None
    # Python 3.13 keeps the text of `python -c` under the name that all of `exec` has too.
    if not isinstance(code, types.CodeType) or code.co_filename != "<string>":
        with suppress(OSError, TypeError, SyntaxError, IndexError):
            source = inspect.getsource(inner)
    if source is None:
        source = _code(code) if isinstance(code, types.CodeType) else plain_repr(inner)
    text = plain_repr(signature, 20_000)
    return sha_of([source, text, inspect.getdoc(target), repr(replace(options, on_cancel=None))])


def _code(code: types.CodeType) -> list[object]:
    # Addresses of objects, and the order of a frozenset, change from one process to the next.
    constants = [
        _code(it)
        if isinstance(it, types.CodeType)
        else sorted(map(repr, cast("frozenset[Any]", it)))
        if isinstance(it, frozenset)
        else repr(it)
        for it in code.co_consts
    ]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]
