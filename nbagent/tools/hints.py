"""The parameters of a callable, with hints that a model can fill: read, resolved, adapted.

Owns the exchange of types that pydantic or JSON takes in another form only, and the advice on
types that no model can give. Schemas and checks are `arguments`'.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum, EnumType, Flag
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import typing_extensions
from pydantic import AfterValidator, BeforeValidator
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolContext
from nbagent.shown import plain_repr

_EMPTY = inspect.Parameter.empty
_MARKED = (
    *(typing.Required, typing.NotRequired, typing_extensions.Required),
    *(typing_extensions.NotRequired, typing_extensions.ReadOnly),
)
_AS_LIST = (
    *(collections.abc.Iterable, collections.abc.Collection, collections.abc.Container),
    *(collections.abc.Reversible, collections.abc.Iterator, collections.abc.Generator),
)
"""Abstract kinds of which pydantic knows none, or reads them item by item while the tool runs."""
_STEPPED = (collections.abc.Iterator, collections.abc.Generator)
_NO_TYPES = (types.FunctionType, list, dict)
_MISREAD = (
    *(type, typing.Unpack, typing_extensions.Unpack),
    *(getattr(module, "Self") for module in (typing, typing_extensions)),  # noqa: B009
)
"""What pydantic would take for something else."""
_COMPACT_DAY = re.compile(r"(?:19|20)\d{6}")
_AN_ARRAY = "take a list[float] and make the array inside"
_ADVICE = {
    **dict.fromkeys(("ndarray", "NDArray", "_SupportsArray", "Tensor", "Array"), _AN_ARRAY),
    "DataFrame": "take the rows as a list[dict], or the name of a variable as a str",
    "Series": "take a list of the values, or the name of a variable as a str",
    "Timestamp": "take a datetime",
    **dict.fromkeys(("int64", "int32", "integer"), "take an int"),
    **dict.fromkeys(("float64", "float32", "floating"), "take a float"),
    "Flag": "take a list of its names, as list[Literal[…]]",
    "Callable": "take the name of the function as a str and look it up inside",
    "type": "take the name of the class as a str and look it up inside",
    **dict.fromkeys(("IO", "TextIO", "BinaryIO"), "take the path as a str"),
}
_ELSE = "take a name or a number instead, or a dataclass of such"


class UndefinedHintError(UsageError):
    """A hint names what does not exist yet, so that the tool can't be read now."""


class UnfitHintError(Exception):
    """A type that no model can give. Internal to the making of a tool."""

    def __init__(self, hint: Any) -> None:
        super().__init__(hint)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter with its hint resolved."""

    name: str
    kind: Any
    """As in `inspect.Parameter.kind`."""
    hint: Any
    default: Any
    """`inspect.Parameter.empty` where there is none."""
    is_context: bool = False
    """It takes the ToolContext and is not shown to a model."""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is _EMPTY and self.kind is not inspect.Parameter.VAR_POSITIONAL

    @property
    def is_stepped(self) -> bool:
        """Whether the function steps through it with `next`."""
        return (get_origin(self.hint) or self.hint) in _STEPPED


def signature_of(target: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature, or a UsageError for callables that hide theirs."""
    try:
        return inspect.signature(target)
    except (ValueError, TypeError, NameError) as error:
        why = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error))
        raise UsageError(
            f"the parameters of tool {name!r} cannot be read ({why}); wrap it in a def with hints"
        ) from error


def parameters_of(
    target: Callable[..., Any],
    signature: inspect.Signature,
    *,
    name: str,
    namespace: Mapping[str, Any],
) -> tuple[Parameter, ...]:
    """All parameters, string hints resolved where the function was defined, then in `namespace`."""
    scope = _scope(target, namespace)
    made: list[Parameter] = []
    for parameter in signature.parameters.values():
        hint = parameter.annotation
        if _is_context(hint, parameter.name):
            made.append(Parameter(parameter.name, parameter.kind, Any, parameter.default, True))
            continue
        hint = Any if hint is _EMPTY else _resolved(hint, parameter.name, name, scope)
        made.append(Parameter(parameter.name, parameter.kind, hint, parameter.default))
    return tuple(made)


def text_beside(hint: Any) -> str | None:
    """The text of `Annotated[T, "text"]` or `Annotated[T, Doc("text")]`."""
    for extra in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(text, str):
            return text
    return None


def adapted(hint: Any) -> Any:
    """The hint as pydantic and JSON can take it; UnfitHintError where there is no such form."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return Any
    if hint in _MISREAD or origin in _MISREAD or isinstance(hint, _NO_TYPES):
        raise UnfitHintError(hint)
    if (origin or hint) in _AS_LIST:
        return cast("Any", list)[adapted(args[0]) if args else Any]
    if origin is Annotated:
        return Annotated[(adapted(args[0]), *args[1:])]
    if origin is Literal:
        if any(isinstance(value, bytes) for value in args):
            raise UnfitHintError(hint)
        return hint
    if origin is None:
        return _adapted_class(hint)
    changed = tuple(_adapted_argument(arg) for arg in args)
    if changed == args or isinstance(origin, typing_extensions.TypeAliasType):
        return hint
    return Union[changed] if origin in (Union, types.UnionType) else origin[changed]  # noqa: UP007


def _adapted_argument(arg: Any) -> Any:
    # `...` of a tuple, the list of parameters of a Callable.
    kept = arg is ... or isinstance(cast("object", arg), list)
    return arg if kept else adapted(arg)


def _adapted_class(hint: Any) -> Any:
    if hint is typing_extensions.LiteralString:
        return str
    if hint in (date, datetime):
        return Annotated[hint, BeforeValidator(_no_compact_day)]
    if isinstance(hint, EnumType):
        return _adapted_enum(cast("Any", hint))
    if sys.version_info < (3, 12) and typing_extensions.is_typeddict(hint):
        return _typed_dict(hint)
    return hint


def _adapted_enum(kind: type[Enum]) -> Any:
    members = kind.__members__
    if not members or issubclass(kind, Flag):
        raise UnfitHintError(kind)
    if all(_is_scalar(member.value) for member in members.values()):
        return kind
    # By name, where JSON has no such values.
    return Annotated[Literal[tuple(members)], AfterValidator(kind.__getitem__)]


def _is_scalar(value: Any) -> bool:
    infinite = isinstance(value, float) and not abs(value) < float("inf")
    return value is None or (isinstance(value, str | int | float) and not infinite)


def _no_compact_day(value: Any) -> Any:
    # pydantic would count seconds since 1970.
    if isinstance(value, str | int) and _COMPACT_DAY.fullmatch(str(value).strip()):
        raise ValueError("a day is written like 2026-01-31")
    return value


@functools.cache
def _typed_dict(hint: Any) -> Any:
    # Before Python 3.12 pydantic takes a TypedDict from typing_extensions only.
    if type(hint).__module__ != "typing":
        return hint
    keys = typing.get_type_hints(hint, include_extras=True)
    made: Any = typing_extensions.TypedDict(hint.__name__, {})  # pyright: ignore
    made.__doc__, made.__module__ = hint.__doc__, hint.__module__
    for key, inner in keys.items():
        inner = get_args(inner)[0] if get_origin(inner) in _MARKED else inner
        made.__annotations__[key] = made if inner is hint else adapted(inner)
    made.__required_keys__, made.__optional_keys__ = hint.__required_keys__, hint.__optional_keys__
    return made


def refusal_of(tool: str, parameter: str, hint: Any, error: Exception) -> UsageError:
    """The error for a parameter that a model cannot fill: which, and what to write instead."""
    about = f"parameter {parameter!r} of tool {tool!r} has the type {type_name(hint)}, which "
    if isinstance(error, PydanticUndefinedAnnotation):
        return UndefinedHintError(f"{about}names {error.name!r}, which is not defined; define it")
    if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
        return UndefinedHintError(f"{about}names a class that is not defined yet; define it first")
    if isinstance(error, PydanticUserError) and error.code == "typed-dict-version":
        return UsageError(f"{about}holds a typing.TypedDict; import it from typing_extensions")
    if not isinstance(error, UnfitHintError | PydanticUserError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return UsageError(f"{about}cannot be checked ({' '.join(lines[-1:])[:200]}); correct it")
    inner = error.hint if isinstance(error, UnfitHintError) else hint
    bases = [base.__name__ for base in getattr(inner, "__mro__", ())]
    words = {*bases, *re.findall(r"\w+", repr(inner))}
    words |= (
        {"Callable"} if isinstance(inner, types.FunctionType | types.BuiltinFunctionType) else set()
    )
    advice = next((text for name, text in _ADVICE.items() if name in words), _ELSE)
    return UsageError(f"{about}a model cannot give; {advice}, or give the parameter a default")


def type_name(hint: Any) -> str:
    """The type as a person would write it."""
    if get_origin(hint) is Annotated:
        return f"Annotated[{type_name(get_args(hint)[0])}, …]"
    named = isinstance(hint, type | types.ModuleType) or callable(hint)
    if named and not get_args(hint) and hasattr(hint, "__name__"):
        return str(hint.__name__)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", plain_repr(hint, 200))


def members_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union; none where they stand for whatever has certain methods."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    structural = any(getattr(get_origin(it) or it, "_is_protocol", False) for it in members)
    return () if structural else members


def _is_context(hint: Any, name: str) -> bool:
    if hint is _EMPTY:
        return name == "tool_context"
    if isinstance(hint, str):
        return re.search(r"\bToolContext\b", hint) is not None
    return hint is ToolContext or ToolContext in get_args(hint)


def _scope(target: Callable[..., Any], namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Any = inspect.unwrap(target)
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    enclosed: dict[str, Any] = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for free, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            enclosed[free] = cell.cell_contents
        except ValueError:
            continue  # A cell that is not filled yet.
    own: dict[str, Any] = getattr(function, "__globals__", {})
    return ChainMap(enclosed, own, cast("dict[str, Any]", namespace))


def _resolved(hint: Any, parameter: str, tool: str, scope: Mapping[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={parameter: hint})
    try:
        made = typing.get_type_hints(
            holder, globalns={}, localns=cast("dict[str, Any]", scope), include_extras=True
        )[parameter]
    except Exception as error:
        text = hint if isinstance(hint, str) else repr(hint)
        kind = UndefinedHintError if isinstance(error, NameError) else UsageError
        raise kind(
            f"the hint {text!r} of parameter {parameter!r} of tool {tool!r} cannot be resolved "
            f"({error}); define or import what it names"
        ) from error
    if itself := _unresolved(made):
        raise UsageError(
            f"the hint of parameter {parameter!r} of tool {tool!r} is an alias that names itself "
            f"({itself!r}); write pydantic.JsonValue for any JSON, or a TypeAliasType"
        )
    return made


def _unresolved(hint: Any) -> str:
    """The name inside a hint that is still a text: of an alias that is made of itself."""
    if isinstance(hint, typing.ForwardRef):
        return hint.__forward_arg__
    inner = get_args(hint) if get_origin(hint) is not Literal else ()
    return next((name for arg in inner if (name := _unresolved(arg))), "")
