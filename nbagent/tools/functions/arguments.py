"""Arguments of a function tool: the JSON Schema for the model, and the check of each call.

Owns how signatures and type hints are read, the replacement of types that pydantic or JSON cannot
take, and the pydantic model of the parameters. The form of the schema is in `json_schema`, the
repair of models' mistakes in `argument_repair`.
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
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum, EnumType, Flag
from inspect import Parameter
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import pydantic_core
import typing_extensions
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.tools import ToolContext
from nbagent.shown.texts import clean, safe_repr
from nbagent.tools.functions.argument_repair import ArgumentRepair
from nbagent.tools.json_schema import JsonSchema, portable_schema

_MAX_REPAIRS = 8
"""A repair can reveal the next mistake, such as JSON inside JSON."""
_PLAIN_TYPES = (str, int, float, bool, types.NoneType)
_POSITIONAL_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
_READ_AS_LIST = (collections.abc.Iterable, collections.abc.Collection)
"""pydantic has no schema for Collection, and would validate an Iterable only while the tool reads
it: an invalid item would fail inside the tool."""
_SELF = getattr(typing, "Self")  # noqa: B009 (it has no type)
_MISREAD_TYPES: tuple[Any, ...] = (type, collections.abc.Generator, types.FunctionType, _SELF)
"""Types that pydantic accepts with another meaning."""
_ARRAY_ADVICE = "take a list[float] and make the array inside"
_ADVICE = {
    # numpy's ArrayLike is called so since 2.5; before, it is a union of these.
    **dict.fromkeys(("array", "Array", "_Buffer", "Tensor"), _ARRAY_ADVICE),
    "DataFrame": "take the rows as a list[dict], or the name of a variable as a str",
    "Series": "take a list of the values, or the name of a variable as a str",
    **dict.fromkeys(("Callable", "function"), "take the name of the function as a str"),
}
_OTHER_ADVICE = "take a text or a number instead, or a list or dataclass of such"
_CLASS_HOOKS = ("post_init", "custom_init", "computed_fields")
"""Keys of a core schema that point to code of the person's own class."""
_typed_dict_copies: dict[Any, Any] = {}


class UndefinedHintError(UsageError):
    """A type hint names something that is not defined yet, so the tool cannot be read now."""


class _ArgumentModel(BaseModel):
    """Base of the models: unknown keys are errors."""

    # Models write numbers for texts of digits, such as postal codes.
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _SchemaGenerator(GenerateJsonSchema):
    """Drops defaults that JSON cannot express, without a warning for each."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """Checked arguments, ready for a call."""

    values: dict[str, Any]
    """By parameter name; `*args` is a list and `**kwargs` a dict, under their names."""
    json_values: dict[str, Any]
    """The values as JSON, with the defaults of missing arguments."""
    notes: tuple[str, ...] = ()
    """Repairs of the arguments, for the person."""


class Arguments:
    """Parameters of a tool. Raises UsageError for a type that a model cannot write as JSON."""

    def __init__(
        self, tool: str, signature: inspect.Signature, descriptions: Mapping[str, str]
    ) -> None:
        self._tool = tool
        self._signature = signature
        parameters = signature.parameters.values()
        self._context_names = {p.name for p in parameters if p.annotation is ToolContext}
        shown = [p for p in parameters if p.name not in self._context_names]
        self._build([fit for p in shown if (fit := self._supported(p)) is not None], descriptions)

    def validate(self, arguments: Mapping[str, Any] | None) -> CheckedArguments:
        """Coerce and check arguments; raise ToolError `E_INVALID_ARGUMENTS` for the model."""
        # A copy: a tool may change its arguments, and the record must not change with them.
        arguments_copy = deepcopy(dict(arguments or {})).items()
        raw = {
            self._keys.get(k, k): value
            for k, value in arguments_copy
            if k not in self._context_names
        }
        repair = ArgumentRepair(raw, names=self._keys.values(), optional=self._optional)
        problems: list[dict[str, Any]] = []
        for _ in range(_MAX_REPAIRS):
            try:
                return self._checked(self._model.model_validate(raw), tuple(repair.notes))
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
            except Exception as error:
                # A validator of the person's own type may raise anything.
                raise self._invalid(safe_repr(error, 200)) from error
            if not repair.repair(problems):
                break
        raise self._invalid(repair.explain(problems))

    def _invalid(self, why: str) -> ToolError:
        text = clean(f"the arguments of {self._tool} are not valid: {why}")
        return ToolError(text, code="E_INVALID_ARGUMENTS")

    def call_arguments(
        self, checked: CheckedArguments, context: object
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the call, with the `ToolContext` added.

        Keywords are used wherever possible, because some wrappers take only `**kwargs`.
        """
        values = {**checked.values, **dict.fromkeys(self._context_names, context)}
        parameters = self._signature.parameters
        if any(p.kind in _POSITIONAL_KINDS for p in parameters.values()):
            known = {name: values[name] for name in parameters if name in values}
            bound = inspect.BoundArguments(self._signature, cast("Any", known))
            bound.apply_defaults()
            return bound.args, bound.kwargs
        further: Any = (
            {} if self._extra_keywords is None else values.pop(self._extra_keywords.name, {})
        )
        return (), {**further, **values}

    def _build(self, shown: Sequence[Parameter], descriptions: Mapping[str, str]) -> None:
        """Build the pydantic model and the schema of the parameters that the model is shown."""
        self._extra_keywords = next((p for p in shown if p.kind is p.VAR_KEYWORD), None)
        base = (
            _ArgumentModel
            if self._extra_keywords is None
            else _model_with_extra_keys(self._extra_keywords.annotation)
        )
        # Fields are p0, p1, … with the parameter's name as alias: `schema`, `copy` and `_x` are
        # fine names for parameters, not for fields of a model.
        self._fields = {f"p{i}": p for i, p in enumerate(shown) if p is not self._extra_keywords}
        fields: dict[str, Any] = {key: _model_field(p) for key, p in self._fields.items()}
        self._model: type[BaseModel] = cast("Any", create_model)(
            "Arguments", __base__=base, **fields
        )
        optional = {k: f for k, f in self._model.model_fields.items() if not f.is_required()}
        self._optional = {self._fields[key].name for key in optional}
        self._own_field_keys = {
            k for k, f in optional.items() if f.default_factory is not _no_default
        }
        schema = self._model.model_json_schema(by_alias=True, schema_generator=_SchemaGenerator)
        for key, p in self._fields.items():
            node: JsonSchema = schema["properties"][p.name]
            if text := descriptions.get(p.name) or _annotated_text(p.annotation):
                node.setdefault("description", text)
            default = p.default.value if isinstance(p.default, Enum) else p.default
            if key not in self._own_field_keys and type(default) in _PLAIN_TYPES:
                node["default"] = default
        portable = portable_schema(schema)
        self.json_schema, self._keys = portable.schema, portable.own_names
        self.runs_foreign_code = _runs_foreign_code(self._model.__pydantic_core_schema__)
        """True if a check may run functions of the person's types, which can take any time."""

    def _supported(self, parameter: Parameter) -> Parameter | None:
        """Adapt a parameter to JSON; None hides it, so that its default is used."""
        try:
            hint = adapt_hint(parameter.annotation)
            TypeAdapter(hint).json_schema(schema_generator=_SchemaGenerator)
        except Exception as error:
            refusal = _unsupported_error(self._tool, parameter, error)
            if _is_required(parameter) or isinstance(refusal, UndefinedHintError):
                raise refusal from error
            return None
        return parameter.replace(annotation=hint)

    def _checked(self, model: BaseModel, notes: tuple[str, ...]) -> CheckedArguments:
        # Defaults are not passed: the function applies its own, as in any call.
        set_keys = model.model_fields_set | self._own_field_keys
        values = {p.name: getattr(model, key) for key, p in self._fields.items() if key in set_keys}
        if self._extra_keywords is not None:
            values[self._extra_keywords.name] = model.__pydantic_extra__ or {}
        defaults = {p.name: p.default for p in self._fields.values() if p.default is not p.empty}
        return CheckedArguments(
            values, {k: _as_json(v) for k, v in {**defaults, **values}.items()}, notes
        )


def _no_default() -> Any:
    return None


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not Parameter.VAR_POSITIONAL


def _model_with_extra_keys(hint: Any) -> type[BaseModel]:
    """Base of models that take further keys of this type, for `**kwargs`."""
    namespace = {"__annotations__": {"__pydantic_extra__": dict[str, hint]}, "__module__": __name__}
    return type("Open", (_ArgumentModel,), {**namespace, "model_config": ConfigDict(extra="allow")})


def _model_field(parameter: Parameter) -> Any:
    hint: Any = parameter.annotation
    if parameter.kind is Parameter.VAR_POSITIONAL:
        hint = cast("Any", list)[hint]
    # A default may be written the pydantic way: `city: str = Field("Rome", description=…)`.
    own = (parameter.default,) if isinstance(parameter.default, FieldInfo) else ()
    hint = Annotated[(hint, *own, Field(alias=parameter.name))]
    if own or _is_required(parameter):
        return hint
    # The real default stays in the function: pydantic would copy a mutable one at each call.
    return Annotated[hint, Field(default_factory=_no_default)]


def _runs_foreign_code(schema: Any) -> bool:
    """True if a core schema calls functions that belong neither to pydantic nor to nbagent."""
    if isinstance(schema, list | tuple):
        return any(map(_runs_foreign_code, cast("Sequence[Any]", schema)))
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        if any(node.get(hook) for hook in _CLASS_HOOKS):
            return True
        if node.get("type") == "enum":
            return node["cls"]._missing_.__func__ is not vars(Enum)["_missing_"].__func__
        return _runs_foreign_code([v for k, v in node.items() if k not in ("cls", "metadata")])
    if not callable(schema):
        return False
    package = str(getattr(schema, "__module__", "")).partition(".")[0]
    if isinstance(schema, type) and package in sys.stdlib_module_names:
        return False
    # A closure of pydantic may contain a foreign function.
    contents = [cell.cell_contents for cell in getattr(schema, "__closure__", None) or ()]
    contents = [value for value in contents if not isinstance(value, type)]
    return package not in ("pydantic", "nbagent") or bool(contents)


def _as_json(value: Any) -> Any:
    try:
        return pydantic_core.to_jsonable_python(
            value, inf_nan_mode="strings", fallback=lambda odd: safe_repr(odd, 1_000)
        )
    except Exception:  # Whatever the methods of the person's own types raise.
        return safe_repr(value, 1_000)


def unwrap_partials(target: Any) -> Any:
    """Return the callable inside nested partials; any other object itself."""
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    return target


def function_of(target: Any) -> Any:
    """Function that a call executes, also for a partial or an instance with `__call__`."""
    target = unwrap_partials(target)
    return target if inspect.isroutine(target) else type(target).__call__


def signature_of(
    target: Callable[..., Any], tool: str, namespace: Mapping[str, Any]
) -> inspect.Signature:
    """Read a signature and resolve its string hints.

    Names are looked up in the function's own module, then in `namespace`. The parameter that takes
    the context of the run has exactly `ToolContext` as its annotation, also if it was optional.
    """
    signature = inspect.signature(target)
    own: dict[str, Any] = getattr(inspect.unwrap(function_of(target)), "__globals__", {})
    scope = cast("dict[str, Any]", ChainMap(own, cast("dict[str, Any]", namespace)))
    resolved = [
        parameter.replace(annotation=_resolve_hint(parameter, tool, scope))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=resolved)


def _resolve_hint(parameter: inspect.Parameter, tool: str, scope: dict[str, Any]) -> Any:
    hint = parameter.annotation
    if isinstance(hint, str) and re.search(r"\bToolContext\b", hint):
        return ToolContext  # It may be imported under TYPE_CHECKING only.
    if hint is ToolContext or ToolContext in get_args(hint):
        return ToolContext
    if hint is parameter.empty or isinstance(hint, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return Any
    about = f"parameter {parameter.name!r} of tool {tool!r}"
    # `get_type_hints` takes no single hint, only an object with `__annotations__`.
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        resolved = typing.get_type_hints(holder, localns=scope, include_extras=True)["hint"]
    except Exception as error:
        text = hint if isinstance(hint, str) else repr(hint)
        kind = UndefinedHintError if isinstance(error, NameError) else UsageError
        raise kind(
            f"the type hint {text!r} of {about} cannot be resolved ({error}); define or import "
            "the names in it"
        ) from error
    if "ForwardRef(" in safe_repr(resolved):
        raise UsageError(
            f"the type hint of {about} is a recursive alias; write pydantic.JsonValue for any "
            "JSON, or a TypeAliasType"
        )
    return resolved


def _annotated_text(hint: Any) -> str | None:
    """Text in `Annotated[T, "text"]` or `Annotated[T, Doc("text")]`."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    texts = (getattr(extra, "documentation", extra) for extra in extras)
    return next((text for text in texts if isinstance(text, str)), None)


def adapt_hint(hint: Any) -> Any:
    """Replace types that pydantic or JSON cannot take; raise TypeError if that is impossible."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in _MISREAD_TYPES or isinstance(hint, types.FunctionType):
        raise TypeError(hint)
    if origin in _READ_AS_LIST:
        return cast("Any", list)[adapt_hint(args[0]) if args else Any]
    if origin is Annotated:
        return Annotated[(adapt_hint(args[0]), *args[1:])]
    if not args or origin is Literal:
        return _adapt_class(hint)
    changed: list[Any] = [adapt_hint(arg) for arg in args]
    if changed == [*args] or isinstance(origin, typing_extensions.TypeAliasType):
        return hint
    if origin in (Union, types.UnionType):
        return Union[tuple(changed)]  # noqa: UP007
    return origin[tuple(changed) if len(changed) > 1 else changed[0]]


def _adapt_class(hint: Any) -> Any:
    if hint in (date, datetime):
        return Annotated[hint, BeforeValidator(_reject_compact_date)]
    if isinstance(hint, EnumType):
        members = cast("type[Enum]", hint).__members__.values()
        plain = all(isinstance(member.value, str | int | float | None) for member in members)
        if not members or not plain or issubclass(hint, Flag):
            raise TypeError(hint)
    old = sys.version_info < (3, 12) and type(hint).__module__ == "typing"
    return _typed_dict_copy(hint) if old and typing_extensions.is_typeddict(hint) else hint


def _reject_compact_date(value: Any) -> Any:
    # pydantic would read 20260131 as seconds since 1970.
    if isinstance(value, str | int) and re.fullmatch(r"(19|20)\d{6}", str(value).strip()):
        raise ValueError("a day is written like 2026-01-31")
    return value


def _typed_dict_copy(kind: Any) -> Any:
    """Copy a TypedDict to one of typing_extensions: pydantic needs that before Python 3.12."""
    if kind not in _typed_dict_copies:
        copy: Any = typing_extensions.TypedDict(kind.__name__, {})  # pyright: ignore
        copy.__doc__, copy.__module__ = kind.__doc__, kind.__module__
        copy.__required_keys__ = kind.__required_keys__
        copy.__optional_keys__ = kind.__optional_keys__
        _typed_dict_copies[kind] = copy  # Before its keys: a key may have this very type.
        try:
            for key, hint in typing.get_type_hints(kind, include_extras=True).items():
                copy.__annotations__[key] = adapt_hint(hint)
        except BaseException:
            del _typed_dict_copies[kind]
            raise
    return _typed_dict_copies[kind]


def _unsupported_error(tool: str, parameter: Parameter, error: Exception) -> UsageError:
    """Build the error for a parameter that a model cannot fill, with advice."""
    hint = parameter.annotation
    about = f"parameter {parameter.name!r} of tool {tool!r} has the type {type_name(hint)}, which "

    code = error.code if isinstance(error, PydanticUserError) else None
    if isinstance(error, PydanticUndefinedAnnotation) or code == "class-not-fully-defined":
        return UndefinedHintError(f"{about}names a class that is not defined yet; define it first")
    if isinstance(error, pydantic_core.SchemaError) or code == "typed-dict-version":
        lines = [line.strip() for line in str(error).splitlines() if "errors.pydantic" not in line]
        reason = [line for line in lines if line][-1]
        return UsageError(f"{about}cannot be checked ({reason[:200]}); correct it")
    advice = next(
        (text for word, text in _ADVICE.items() if word in type_name(hint)), _OTHER_ADVICE
    )
    return UsageError(f"{about}a model cannot give; {advice}, or give the parameter a default")


def type_name(hint: Any) -> str:
    """Type as a person would write it, without module names."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(hint, type):
        return hint.__name__
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", safe_repr(hint, 200))
