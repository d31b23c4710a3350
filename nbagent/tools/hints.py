"""The parameters of a callable with their hints resolved, and what a hint says beside its type.

Reads signatures only; schemas and validation are `schema`'s.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args, get_origin

import typing_extensions

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolContext

_EMPTY = inspect.Parameter.empty
_UNPACK = (typing.Unpack, typing_extensions.Unpack)
_MARKED = (
    typing.Required,
    typing.NotRequired,
    typing_extensions.Required,
    typing_extensions.NotRequired,
    typing_extensions.ReadOnly,
)
NOT_GIVEN = object()
"""The default of a key that may be missing: it has none, and is not passed on."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """One parameter with its hint resolved."""

    name: str
    kind: Any
    """As in `inspect.Parameter.kind`."""
    hint: Any
    default: Any
    """`inspect.Parameter.empty` where there is none."""
    is_context: bool = False
    """It takes the ToolContext and is not shown to a model."""
    unpacked_from: str | None = None
    """The name of the `**kwargs: Unpack[…]` that it is one key of."""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        variadic = self.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return self.default is _EMPTY and not variadic


def signature_of(target: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature, or a UsageError for callables that hide theirs."""
    try:
        return inspect.signature(target)
    except (ValueError, TypeError, NameError) as error:
        why = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error))
        raise UsageError(
            f"the parameters of tool {name!r} cannot be read ({why}); wrap it in a def with hints"
        ) from error


def hinted_parameters(
    target: Callable[..., Any],
    signature: inspect.Signature,
    *,
    name: str,
    namespace: Mapping[str, Any],
) -> tuple[Hinted, ...]:
    """All parameters, string hints resolved where the function was defined, then in `namespace`."""
    scope = _scope(target, namespace)
    found: list[Hinted] = []
    for parameter in signature.parameters.values():
        hint = parameter.annotation
        if _is_context(hint, parameter.name):
            found.append(Hinted(parameter.name, parameter.kind, Any, parameter.default, True))
            continue
        hint = Any if hint is _EMPTY else _resolved(hint, parameter.name, name, scope)
        keys = get_args(hint)[0] if get_origin(hint) in _UNPACK else None
        if typing_extensions.is_typeddict(keys):
            found.extend(_unpacked(parameter.name, keys, {p.name for p in found}, name))
        else:
            found.append(Hinted(parameter.name, parameter.kind, hint, parameter.default))
    return tuple(found)


def _unpacked(variadic: str, keys: Any, taken: set[str], tool: str) -> list[Hinted]:
    """`**options: Unpack[Options]` as one keyword for each key."""
    made: list[Hinted] = []
    for key, hint in typing_extensions.get_type_hints(keys, include_extras=True).items():
        if key in taken:
            raise UsageError(f"{key!r} is a parameter of tool {tool!r} and a key of {variadic!r}")
        if get_origin(hint) in _MARKED:
            hint = get_args(hint)[0]
        default = _EMPTY if key in keys.__required_keys__ else NOT_GIVEN
        kind = inspect.Parameter.KEYWORD_ONLY
        made.append(Hinted(key, kind, hint, default, unpacked_from=variadic))
    return made


def said_beside(hint: Any) -> str | None:
    """The text of `Annotated[T, "text"]` or `Annotated[T, Doc("text")]`."""
    if get_origin(hint) is not Annotated:
        return None
    for extra in get_args(hint)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(text, str):
            return text
    return None


def _is_context(hint: Any, name: str) -> bool:
    if hint is _EMPTY:
        return name == "tool_context"
    if isinstance(hint, str):
        words = hint.replace("|", " ").replace("[", " ").replace("]", " ").split()
        return any(word.rsplit(".", 1)[-1].strip("\"'") == "ToolContext" for word in words)
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
        return typing.get_type_hints(
            holder, globalns={}, localns=cast("dict[str, Any]", scope), include_extras=True
        )[parameter]
    except Exception as error:
        text = hint if isinstance(hint, str) else repr(hint)
        raise UsageError(
            f"the hint {text!r} of parameter {parameter!r} of tool {tool!r} cannot be resolved "
            f"({error}); define or import what it names"
        ) from error
