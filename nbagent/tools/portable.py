"""Hints in a form that pydantic takes and JSON can say, or the reason why there is none.

Owns the exchange of types (`Iterator`, numpy scalars, `typing.TypedDict` before Python 3.12) and
the advice on types that no model can give. Reading signatures is `hints`', schemas are `schema`'s.
"""

from __future__ import annotations

import collections.abc
import re
import sys
import types
import typing
from typing import Annotated, Any, Union, cast, get_args, get_origin

import typing_extensions
from pydantic import AfterValidator
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from nbagent.shown import plain_repr

_AS_LIST = (
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Container,
    collections.abc.Reversible,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
)
_AS_ITERATOR = (collections.abc.Iterator, collections.abc.Generator)
_CALLABLE: Any = collections.abc.Callable
_NUMPY = {
    "bool": bool,
    "integer": int,
    "floating": float,
    "complexfloating": complex,
    "str_": str,
    "bytes_": bytes,
}
_NEVER: tuple[Any, ...] = (
    typing.NoReturn,
    typing.Never,
    typing_extensions.Never,
    typing.ClassVar,
    *(getattr(module, "Self") for module in (typing, typing_extensions)),  # noqa: B009
)
_PARAMETER_SPECS = (typing.ParamSpecArgs, typing.ParamSpecKwargs)
_ADVICE = {
    "ndarray": "take a list[float] and make the array inside",
    "_SupportsArray": "take a list[float] and make the array inside",
    "NDArray": "take a list[float] and make the array inside",
    "ArrayLike": "take a list[float] and make the array inside",
    "DataFrame": "take the rows as a list[dict], or the name of a variable as a str",
    "Series": "take a list of the values, or the name of a variable as a str",
    "Timestamp": "take a datetime",
    "Tensor": "take a list[float] and make the tensor inside",
    "Array": "take a list[float] and make the array inside",
    "Callable": "take the name of the function as a str and look it up inside",
    "type": "take the name of the class as a str and look it up inside",
    "range": "take start: int and stop: int",
    "slice": "take start: int and stop: int",
    "IO": "take the path as a str",
    "TextIO": "take the path as a str",
    "BinaryIO": "take the path as a str",
    "timezone": "take the name of the zone as a str",
    "Enum": "give it members",
    "Self": "name the class",
    "ClassVar": "leave ClassVar out",
}
_MODULES = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_])")
_WORD = re.compile(r"\w+")
_ELSE = "take a name or a number instead, or a dataclass of such"


class NoFormError(Exception):
    """A type that a model cannot give. Internal to the making of a tool.

    Attributes:
        hint: the type itself, where it stands inside another one.
    """

    def __init__(self, hint: Any) -> None:
        super().__init__(hint)
        self.hint = hint


def portable(hint: Any) -> Any:
    """The hint as pydantic and JSON can take it.

    Raises:
        NoFormError: the type, or one inside it, has no form in JSON.
    """
    return _portable(hint, {})


def advice_on(hint: Any, error: Exception) -> str:
    """What to write instead of a type that cannot be had; starts with what is wrong."""
    inner = error.hint if isinstance(error, NoFormError) else hint
    if isinstance(error, PydanticUndefinedAnnotation):
        return f"names {error.name!r}, which is not defined; define or import it first"
    if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
        return "names a class that is not defined yet; define it first"
    if isinstance(error, PydanticUserError) and error.code == "typed-dict-version":
        return "holds a typing.TypedDict; import TypedDict from typing_extensions instead"
    if not isinstance(error, NoFormError | PydanticUserError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"which cannot be checked ({' '.join(lines[-1:])[:200]}); correct it"
    known = _ADVICE.keys() & _names(inner) or _ADVICE.keys() & set(_WORD.findall(repr(inner)))
    advice = next((text for name, text in _ADVICE.items() if name in known), _ELSE)
    return f"which a model cannot give; {advice}, or give the parameter a default"


def type_name(hint: Any) -> str:
    """The type as a person would write it."""
    if get_origin(hint) is Annotated:
        return f"Annotated[{type_name(get_args(hint)[0])}, …]"
    named = isinstance(hint, type | types.ModuleType) or callable(hint)
    if named and not get_args(hint) and hasattr(hint, "__name__"):
        return str(hint.__name__)
    return _MODULES.sub("", plain_repr(hint, 200)) if hint is not ... else "..."


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; the hint itself when it is none."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def is_protocol(hint: Any) -> bool:
    """Whether it stands for whatever has certain methods, as in numpy's `ArrayLike`."""
    return bool(getattr(get_origin(hint) or hint, "_is_protocol", False))


def _names(hint: Any) -> set[str]:
    if isinstance(hint, types.FunctionType | types.BuiltinFunctionType):
        return {"Callable"}
    found = {str(getattr(hint, "__name__", "")), str(getattr(get_origin(hint), "__name__", ""))}
    found |= {base.__name__ for base in getattr(hint, "__mro__", ())[:-1]}
    return found


def _portable(hint: Any, seen: dict[int, Any]) -> Any:
    if isinstance(hint, _PARAMETER_SPECS):
        return Any
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_portable(args[0], seen), *args[1:])]
    if origin is None:
        return _bare(hint, seen)
    if origin in (typing.ClassVar, type) or origin is _CALLABLE:
        raise NoFormError(hint)
    if origin in _AS_LIST:
        return _list_of(args, seen)
    if origin in _AS_ITERATOR:
        return Annotated[_list_of(args, seen), AfterValidator(iter)]
    if origin is typing.Literal or isinstance(origin, typing_extensions.TypeAliasType):
        return hint
    changed = tuple(arg if arg is ... else _portable(arg, seen) for arg in args)
    if changed == args:
        return hint
    if origin in (Union, types.UnionType):
        return Union[changed]  # noqa: UP007
    return origin[changed]


def _list_of(args: tuple[Any, ...], seen: dict[int, Any]) -> Any:
    return cast("Any", list)[_portable(args[0], seen) if args else Any]


def _bare(hint: Any, seen: dict[int, Any]) -> Any:
    if hint is type or hint in _NEVER or _is_no_type(hint):
        raise NoFormError(hint)
    if hint is typing_extensions.LiteralString:
        return str
    if hint in _AS_LIST:
        return list
    if hint in _AS_ITERATOR:
        return Annotated[list[Any], AfterValidator(iter)]
    if hint in (bytearray, memoryview):
        return Annotated[bytes, AfterValidator(hint)]
    if isinstance(hint, type) and hint.__module__ == "numpy":
        return _numpy_scalar(hint)
    if sys.version_info < (3, 12) and typing_extensions.is_typeddict(hint):
        return _portable_dict(hint, seen)
    return hint


def _is_no_type(hint: Any) -> bool:
    # pydantic takes a function for the type of its own arguments.
    ours = (list, tuple, dict, set, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
    return isinstance(hint, ours)


def _numpy_scalar(hint: Any) -> Any:
    for base in hint.__mro__:
        plain = _NUMPY.get(base.__name__)
        if plain is not None and base.__module__ == "numpy":
            return Annotated[plain, AfterValidator(hint)]
    return hint


def _portable_dict(hint: Any, seen: dict[int, Any]) -> Any:
    # Before Python 3.12 pydantic takes a TypedDict from typing_extensions only.
    if type(hint).__module__ != "typing":
        return hint
    if id(hint) in seen:
        return seen[id(hint)]
    made: Any = typing_extensions.TypedDict(hint.__name__, {})  # pyright: ignore
    made.__doc__, made.__module__ = hint.__doc__, hint.__module__
    seen[id(hint)] = made  # Before its fields: one of them may be the same type again.
    for key, inner in typing.get_type_hints(hint, include_extras=True).items():
        if get_origin(inner) in (typing.Required, typing.NotRequired):
            inner = get_args(inner)[0]
        made.__annotations__[key] = _portable(inner, seen)
    made.__required_keys__, made.__optional_keys__ = hint.__required_keys__, hint.__optional_keys__
    return made
