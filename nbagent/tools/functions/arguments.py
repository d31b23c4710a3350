"""What a function tool takes: the schema that a model is shown, and the check of each call.

Owns how signatures and docstrings are read, the exchange of types that pydantic or JSON takes in
another form only, and the pydantic model made of the parameters. The schema's form is
`json_schema`'s, what models do to arguments is undone by `habits`.
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
from nbagent.shown.texts import clean, plain_repr
from nbagent.tools.functions.argument_repair import Habits
from nbagent.tools.json_schema import JsonSchema, legal_schema

_MOST_ROUNDS = 8
_PLAIN = (str, int, float, bool, types.NoneType)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
_AS_LIST = (collections.abc.Iterable, collections.abc.Collection)
"""Pydantic knows no collections, and reads an iterable item by item while the tool runs."""
_SELF = getattr(typing, "Self")  # noqa: B009 (it has no type)
_MISREAD: tuple[Any, ...] = (type, collections.abc.Generator, types.FunctionType, _SELF)
"""What pydantic would take for something else."""
_AN_ARRAY = "take a list[float] and make the array inside"
_ADVICE = {
    # numpy's ArrayLike is called so since 2.5; before, it is a union of these.
    **dict.fromkeys(("array", "Array", "_Buffer", "Tensor"), _AN_ARRAY),
    "DataFrame": "take the rows as a list[dict], or the name of a variable as a str",
    "Series": "take a list of the values, or the name of a variable as a str",
    **dict.fromkeys(("Callable", "function"), "take the name of the function as a str"),
}
_ELSE = "take a text or a number instead, or a list or dataclass of such"
_HOOKS = ("post_init", "custom_init", "computed_fields")
"""What a class of the person's has of its own, in a core schema."""
_typed_dicts: dict[Any, Any] = {}


class UndefinedHintError(UsageError):
    """A hint names what does not exist yet, so that the tool can't be read now."""


class _Closed(BaseModel):
    """The base of the models: no key beside the parameters."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _Generator(GenerateJsonSchema):
    """Without a warning for each default that JSON cannot say; it is left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class Bound:
    """Checked arguments, ready for a call."""

    values: dict[str, Any]
    """By parameter name; `*args` as a list, `**kwargs` as a dict under their names."""
    plain: dict[str, Any]
    """The same as JSON values, with the defaults of what was not given."""
    notes: tuple[str, ...] = ()
    """What was read in another sense than the model wrote it, for the person."""


class Arguments:
    """What a tool takes; UsageError for a parameter of a type that a model cannot give."""

    def __init__(
        self, tool: str, signature: inspect.Signature, descriptions: Mapping[str, str]
    ) -> None:
        self._tool = tool
        self._signature = signature
        parameters = signature.parameters.values()
        self._contexts = {p.name for p in parameters if p.annotation is ToolContext}
        shown = [p for p in parameters if p.name not in self._contexts]
        self._build([fit for p in shown if (fit := self._fitting(p)) is not None], descriptions)

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Coerce and check; a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        # A tool may change its arguments, the record may not.
        given = deepcopy(dict(arguments or {})).items()
        raw = {self._keys.get(k, k): value for k, value in given if k not in self._contexts}
        habits = Habits(raw, names=self._keys.values(), optional=self._optional)
        problems: list[dict[str, Any]] = []
        for _ in range(_MOST_ROUNDS):
            try:
                return self._bound(self._model.model_validate(raw), tuple(habits.notes))
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
            except Exception as error:
                # A validator of the person's own types may raise anything.
                raise self._misfit(plain_repr(error, 200)) from error
            if not habits.repair(problems):
                break
        raise self._misfit(habits.explained(problems))

    def _misfit(self, why: str) -> ToolError:
        text = clean(f"the arguments of {self._tool} do not fit: {why}")
        return ToolError(text, code="E_INVALID_ARGUMENTS")

    def placed(self, bound: Bound, context: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the call, the context put in.

        By keyword wherever that is possible, for a wrapper may take nothing else.
        """
        values = {**bound.values, **dict.fromkeys(self._contexts, context)}
        parameters = self._signature.parameters
        if any(p.kind in _BY_PLACE for p in parameters.values()):
            known = {name: values[name] for name in parameters if name in values}
            filled = inspect.BoundArguments(self._signature, cast("Any", known))
            filled.apply_defaults()
            return filled.args, filled.kwargs
        further: Any = {} if self._rest is None else values.pop(self._rest.name, {})
        return (), {**further, **values}

    def _build(self, shown: Sequence[Parameter], descriptions: Mapping[str, str]) -> None:
        """Make model and schema of the parameters that are shown."""
        self._rest = next((p for p in shown if p.kind is p.VAR_KEYWORD), None)
        base = _Closed if self._rest is None else _open_to(self._rest.annotation)
        # Fields are p0, p1, … with the parameter's name as alias: `schema`, `copy` and `_x` are
        # fine names for parameters, not for fields of a model.
        self._fields = {f"p{i}": p for i, p in enumerate(shown) if p is not self._rest}
        fields: dict[str, Any] = {key: _field(p) for key, p in self._fields.items()}
        self._model: type[BaseModel] = cast("Any", create_model)(
            "Arguments", __base__=base, **fields
        )
        optional = {k: f for k, f in self._model.model_fields.items() if not f.is_required()}
        self._optional = {self._fields[key].name for key in optional}
        self._from_field = {k for k, f in optional.items() if f.default_factory is not _nothing}
        made = self._model.model_json_schema(by_alias=True, schema_generator=_Generator)
        for key, p in self._fields.items():
            node: JsonSchema = made["properties"][p.name]
            if text := descriptions.get(p.name) or _text_beside(p.annotation):
                node.setdefault("description", text)
            default = p.default.value if isinstance(p.default, Enum) else p.default
            if key not in self._from_field and type(default) in _PLAIN:
                node["default"] = default
        legal = legal_schema(made)
        self.json_schema, self._keys = legal.schema, legal.keys
        self.runs_foreign_code = _runs_foreign_code(self._model.__pydantic_core_schema__)
        """Whether a check may run functions of the person's types, and so take any time."""

    def _fitting(self, parameter: Parameter) -> Parameter | None:
        """The parameter in a form that a model can give; None to hide it behind its default."""
        try:
            fit = adapted(parameter.annotation)
            TypeAdapter(fit).json_schema(schema_generator=_Generator)
        except Exception as error:
            refusal = _refusal(self._tool, parameter, error)
            if _is_required(parameter) or isinstance(refusal, UndefinedHintError):
                raise refusal from error
            return None
        return parameter.replace(annotation=fit)

    def _bound(self, model: BaseModel, notes: tuple[str, ...]) -> Bound:
        # Only what was given: the function's own defaults stay its own.
        given = model.model_fields_set | self._from_field
        values = {p.name: getattr(model, key) for key, p in self._fields.items() if key in given}
        if self._rest is not None:
            values[self._rest.name] = model.__pydantic_extra__ or {}
        usual = {p.name: p.default for p in self._fields.values() if p.default is not p.empty}
        return Bound(values, {k: _as_json(v) for k, v in {**usual, **values}.items()}, notes)


def _nothing() -> Any:
    return None


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not Parameter.VAR_POSITIONAL


def _open_to(hint: Any) -> type[BaseModel]:
    """A base of models that take further keys of this type."""
    made = {"__annotations__": {"__pydantic_extra__": dict[str, hint]}, "__module__": __name__}
    return type("Open", (_Closed,), {**made, "model_config": ConfigDict(extra="allow")})


def _field(parameter: Parameter) -> Any:
    hint: Any = parameter.annotation
    if parameter.kind is Parameter.VAR_POSITIONAL:
        hint = cast("Any", list)[hint]
    # The pydantic way: `city: str = Field("Rome", description=…)`.
    own = (parameter.default,) if isinstance(parameter.default, FieldInfo) else ()
    hint = Annotated[(hint, *own, Field(alias=parameter.name))]
    if own or _is_required(parameter):
        return hint
    # The default itself stays with the function: pydantic would copy it for each call.
    return Annotated[hint, Field(default_factory=_nothing)]


def _runs_foreign_code(schema: Any) -> bool:
    """Whether a core schema of pydantic's calls functions that are not pydantic's or ours."""
    if isinstance(schema, list | tuple):
        return any(map(_runs_foreign_code, cast("Sequence[Any]", schema)))
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        if any(node.get(hook) for hook in _HOOKS):
            return True
        if node.get("type") == "enum":
            return node["cls"]._missing_.__func__ is not vars(Enum)["_missing_"].__func__
        return _runs_foreign_code([v for k, v in node.items() if k not in ("cls", "metadata")])
    if not callable(schema):
        return False
    package = str(getattr(schema, "__module__", "")).partition(".")[0]
    if isinstance(schema, type) and package in sys.stdlib_module_names:
        return False
    # A closure of pydantic's may hold a function of anybody's.
    held = [cell.cell_contents for cell in getattr(schema, "__closure__", None) or ()]
    held = [value for value in held if not isinstance(value, type)]
    return package not in ("pydantic", "nbagent") or bool(held)


def _as_json(value: Any) -> Any:
    try:
        return pydantic_core.to_jsonable_python(
            value, inf_nan_mode="strings", fallback=lambda odd: plain_repr(odd, 1_000)
        )
    except Exception:  # Whatever the methods of the person's own types raise.
        return plain_repr(value, 1_000)


def without_partials(target: Any) -> Any:
    """What a partial calls in the end; anything else is itself."""
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    return target


def function_of(target: Any) -> Any:
    """The function that a call ends in: also of a partial, and of an instance with `__call__`."""
    target = without_partials(target)
    return target if inspect.isroutine(target) else type(target).__call__


def signature_of(
    target: Callable[..., Any], tool: str, namespace: Mapping[str, Any]
) -> inspect.Signature:
    """The signature, string hints resolved where the function was defined, then in `namespace`.

    The parameter that takes the run's context has `ToolContext` as its annotation.
    """
    signature = inspect.signature(target)
    own: dict[str, Any] = getattr(inspect.unwrap(function_of(target)), "__globals__", {})
    scope = cast("dict[str, Any]", ChainMap(own, cast("dict[str, Any]", namespace)))
    resolved = [
        parameter.replace(annotation=_resolved(parameter, tool, scope))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=resolved)


def _resolved(parameter: inspect.Parameter, tool: str, scope: dict[str, Any]) -> Any:
    hint = parameter.annotation
    if isinstance(hint, str) and re.search(r"\bToolContext\b", hint):
        return ToolContext  # It may be imported for type checkers only.
    if hint is ToolContext or ToolContext in get_args(hint):
        return ToolContext
    if hint is parameter.empty or isinstance(hint, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return Any
    about = f"parameter {parameter.name!r} of tool {tool!r}"
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        made = typing.get_type_hints(holder, localns=scope, include_extras=True)["hint"]
    except Exception as error:
        text = hint if isinstance(hint, str) else repr(hint)
        kind = UndefinedHintError if isinstance(error, NameError) else UsageError
        raise kind(
            f"the hint {text!r} of {about} cannot be resolved ({error}); define or import what it "
            "names"
        ) from error
    if "ForwardRef(" in plain_repr(made):
        raise UsageError(
            f"the hint of {about} is an alias that names itself; write pydantic.JsonValue for any "
            "JSON, or a TypeAliasType"
        )
    return made


def _text_beside(hint: Any) -> str | None:
    """The text of `Annotated[T, "text"]` or `Annotated[T, Doc("text")]`."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    texts = (getattr(extra, "documentation", extra) for extra in extras)
    return next((text for text in texts if isinstance(text, str)), None)


def adapted(hint: Any) -> Any:
    """The hint as pydantic and JSON can take it; TypeError where there is no such form."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in _MISREAD or isinstance(hint, types.FunctionType):
        raise TypeError(hint)
    if origin in _AS_LIST:
        return cast("Any", list)[adapted(args[0]) if args else Any]
    if origin is Annotated:
        return Annotated[(adapted(args[0]), *args[1:])]
    if not args or origin is Literal:
        return _adapted_class(hint)
    changed: list[Any] = [adapted(arg) for arg in args]
    if changed == [*args] or isinstance(origin, typing_extensions.TypeAliasType):
        return hint
    if origin in (Union, types.UnionType):
        return Union[tuple(changed)]  # noqa: UP007
    return origin[tuple(changed) if len(changed) > 1 else changed[0]]


def _adapted_class(hint: Any) -> Any:
    if hint in (date, datetime):
        return Annotated[hint, BeforeValidator(_no_compact_day)]
    if isinstance(hint, EnumType):
        members = cast("type[Enum]", hint).__members__.values()
        plain = all(isinstance(member.value, str | int | float | None) for member in members)
        if not members or not plain or issubclass(hint, Flag):
            raise TypeError(hint)
    old = sys.version_info < (3, 12) and type(hint).__module__ == "typing"
    return _typed_dict(hint) if old and typing_extensions.is_typeddict(hint) else hint


def _no_compact_day(value: Any) -> Any:
    # Of 20260131 pydantic would count seconds since 1970.
    if isinstance(value, str | int) and re.fullmatch(r"(19|20)\d{6}", str(value).strip()):
        raise ValueError("a day is written like 2026-01-31")
    return value


def _typed_dict(kind: Any) -> Any:
    """The same of typing_extensions: before Python 3.12 pydantic takes no other."""
    if kind not in _typed_dicts:
        made: Any = typing_extensions.TypedDict(kind.__name__, {})  # pyright: ignore
        made.__doc__, made.__module__ = kind.__doc__, kind.__module__
        made.__required_keys__ = kind.__required_keys__
        made.__optional_keys__ = kind.__optional_keys__
        _typed_dicts[kind] = made  # Before its keys: one of them may be of this kind.
        try:
            for key, hint in typing.get_type_hints(kind, include_extras=True).items():
                made.__annotations__[key] = adapted(hint)
        except BaseException:
            del _typed_dicts[kind]
            raise
    return _typed_dicts[kind]


def _refusal(tool: str, parameter: Parameter, error: Exception) -> UsageError:
    """The error for a parameter that a model cannot fill: which, and what to write instead."""
    hint = parameter.annotation
    about = f"parameter {parameter.name!r} of tool {tool!r} has the type {type_name(hint)}, which "
    code = error.code if isinstance(error, PydanticUserError) else None
    if isinstance(error, PydanticUndefinedAnnotation) or code == "class-not-fully-defined":
        return UndefinedHintError(f"{about}names a class that is not defined yet; define it first")
    if isinstance(error, pydantic_core.SchemaError) or code == "typed-dict-version":
        lines = [line.strip() for line in str(error).splitlines() if "errors.pydantic" not in line]
        reason = [line for line in lines if line][-1]
        return UsageError(f"{about}cannot be checked ({reason[:200]}); correct it")
    advice = next((text for word, text in _ADVICE.items() if word in type_name(hint)), _ELSE)
    return UsageError(f"{about}a model cannot give; {advice}, or give the parameter a default")


def type_name(hint: Any) -> str:
    """The type as a person would write it."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(hint, type):
        return hint.__name__
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", plain_repr(hint, 200))
