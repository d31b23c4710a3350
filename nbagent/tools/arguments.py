"""What a function tool takes: the schema that a model is shown, and the check of each call.

Owns the pydantic model made of the parameters. Hints are `hints`', the schema's form is
`json_schema`'s, what models do to arguments is undone by `habits`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Union, cast

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.secrets import redact
from nbagent.shown import clean, plain_repr
from nbagent.tools.habits import Habits
from nbagent.tools.hints import (
    Parameter,
    UndefinedHintError,
    adapted,
    members_of,
    refusal_of,
    text_beside,
)
from nbagent.tools.json_schema import JsonSchema, legal_schema

_MOST_ROUNDS = 8
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class _Closed(BaseModel):
    """The base of the models: no key beside the parameters."""

    model_config = ConfigDict(
        extra="forbid",
        coerce_numbers_to_str=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


class _Generator(GenerateJsonSchema):
    """pydantic's generator, quiet, with named tuples as objects."""

    # Without a warning for each default that JSON cannot say; it is left out.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def named_tuple_schema(self, schema: Any) -> JsonSchema:
        """A named tuple as an object: a model that sees names does not mix up the order."""
        fields = cast("list[dict[str, Any]]", schema["fields"])
        properties = {field["name"]: self.generate_inner(field["schema"]) for field in fields}
        required = [f["name"] for f in fields if f["schema"]["type"] != "default"]
        closed = {"required": required, "additionalProperties": False}
        return {"type": "object", "properties": properties, **closed}


@dataclass(frozen=True, slots=True)
class Bound:
    """Checked arguments, ready for a call."""

    values: dict[str, Any]
    """By parameter name; `*args` as a list, `**kwargs` as a dict under their names."""
    plain: dict[str, Any]
    """The same as JSON values, with the plain defaults of what was not given."""
    notes: tuple[str, ...] = ()
    """What was read in another sense than the model wrote it, for the person."""


class Arguments:
    """What a tool takes: the schema for the model, the check for each call.

    Raises:
        UsageError: a parameter has a type that a model cannot give; it says what to write instead.
    """

    def __init__(
        self, tool: str, parameters: Iterable[Parameter], descriptions: Mapping[str, str]
    ) -> None:
        self._tool = tool
        self._all = tuple(parameters)
        shown = [p for p in self._all if not p.is_context]
        try:
            self._build([replace(p, hint=adapted(p.hint)) for p in shown], descriptions)
        except Exception:
            # Some type has no form in JSON: hide it where the function can do without.
            fitting = [made for p in shown if (made := self._fitting(p)) is not None]
            try:
                self._build(fitting, descriptions)
            except Exception as error:
                raise UsageError(
                    f"the parameters of tool {tool!r} have no schema "
                    f"({plain_repr(error, 200)}); wrap it in a def with plain hints"
                ) from error

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Coerce and check; a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        if arguments is None:
            raise _invalid(f"the arguments of {self._tool} must be a JSON object")
        # A tool may change its arguments, the record may not.
        raw = {self._keys.get(key, key): value for key, value in deepcopy(dict(arguments)).items()}
        habits = Habits(raw, tool=self._tool, names=self._keys.values(), optional=self._optional)
        for _ in range(_MOST_ROUNDS):
            try:
                return self._bound(self._model.model_validate(raw), tuple(habits.notes))
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
            except Exception as error:
                # A validator of the person's own types may raise anything.
                said = plain_repr(error, 200)
                raise _invalid(f"the arguments of {self._tool} do not fit: {said}") from error
            if not habits.repair(problems):
                text = habits.explained(problems)
                raise _invalid(f"the arguments of {self._tool} do not fit: {text}")
        raise _invalid(f"the arguments of {self._tool} do not fit its schema")

    def placed(
        self,
        bound: Bound,
        signature: inspect.Signature,
        context: object,
        *,
        in_order: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the call, the context put in.

        By keyword wherever that is possible, unless `in_order` asks for places.
        """
        values = dict(bound.values)
        for p in self._all:
            if p.is_context:
                values[p.name] = context
            elif p.is_stepped and p.name in values:
                values[p.name] = iter(values[p.name])
        rest = next((p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        if not in_order and not any(p.kind in _POSITIONAL for p in self._all):
            further: dict[str, Any] = values.pop(rest.name, {}) if rest is not None else {}
            return (), {**further, **values}
        known = {name: values[name] for name in signature.parameters if name in values}
        filled = inspect.BoundArguments(signature, cast("Any", known))
        filled.apply_defaults()
        return filled.args, filled.kwargs

    def _build(self, shown: list[Parameter], descriptions: Mapping[str, str]) -> None:
        """Make model and schema of the parameters that are shown."""
        self._rest = next((p for p in shown if p.kind is p.kind.VAR_KEYWORD), None)
        base = _Closed if self._rest is None else _open_to(self._rest.hint)
        # Fields are p0, p1, … with the parameter's name as alias: `schema`, `copy` and `_x` are
        # fine names for parameters, not for fields of a model.
        self._fields = {f"p{i}": p for i, p in enumerate(p for p in shown if p is not self._rest)}
        fields: dict[str, Any] = {key: _field(p) for key, p in self._fields.items()}
        self._model: type[BaseModel] = cast("Any", create_model)(
            "Arguments", __base__=base, **fields
        )
        infos = self._model.model_fields
        self._optional = {p.name for key, p in self._fields.items() if not infos[key].is_required()}
        self._from_field = {
            key
            for key, info in infos.items()
            if not info.is_required() and info.default_factory is not _nothing
        }
        made = self._model.model_json_schema(by_alias=True, schema_generator=_Generator)
        properties = cast("dict[str, JsonSchema]", made.get("properties", {}))
        for key, p in self._fields.items():
            if text := descriptions.get(p.name) or text_beside(p.hint):
                properties[p.name].setdefault("description", text)
            if key not in self._from_field and not infos[key].is_required():
                default: Any = [] if p.kind is p.kind.VAR_POSITIONAL else p.default
                properties[p.name].update(_default_of(default))
        legal = legal_schema(made)
        self.json_schema, self._keys = legal.schema, legal.keys

    def _fitting(self, parameter: Parameter) -> Parameter | None:
        """The parameter in a form that a model can give; None to hide it."""
        try:
            return replace(parameter, hint=_expressible(parameter.hint))
        except Exception as error:
            refusal = refusal_of(self._tool, parameter.name, parameter.hint, error)
        # Of `str | DataFrame` a model can give the one.
        some: list[Any] = []
        for member in members_of(parameter.hint):
            try:
                some.append(_expressible(member))
            except Exception:
                continue
        if any(member is not type(None) for member in some):
            return replace(parameter, hint=Union[tuple(some)])  # noqa: UP007
        if parameter.required or isinstance(refusal, UndefinedHintError):
            raise refusal
        return None

    def _bound(self, model: BaseModel, notes: tuple[str, ...]) -> Bound:
        # Only what was given: the function's own defaults stay its own.
        given = model.model_fields_set | self._from_field
        values = {p.name: getattr(model, key) for key, p in self._fields.items() if key in given}
        if self._rest is not None:
            hidden = {p.name for p in self._all if p.is_context}
            extra = model.__pydantic_extra__ or {}
            values[self._rest.name] = {k: v for k, v in extra.items() if k not in hidden}
        usual = {
            p.name: p.default
            for p in self._fields.values()
            if type(p.default) in (str, int, float, bool)
        }
        return Bound(values, {**usual, **{k: _as_json(v) for k, v in values.items()}}, notes)


def _nothing() -> Any:
    return None


def _open_to(hint: Any) -> type[BaseModel]:
    """A base of models that take further keys of this type."""
    made = {"__annotations__": {"__pydantic_extra__": dict[str, hint]}, "__module__": __name__}
    return type("Open", (_Closed,), {**made, "model_config": ConfigDict(extra="allow")})


def _field(parameter: Parameter) -> Any:
    hint: Any = parameter.hint
    if parameter.kind is parameter.kind.VAR_POSITIONAL:
        hint = cast("Any", list)[hint]
    # The pydantic way: `city: str = Field("Rome", description=…)`.
    own = (parameter.default,) if isinstance(parameter.default, FieldInfo) else ()
    hint = Annotated[(hint, *own, Field(alias=parameter.name))]
    if parameter.required or own:
        return hint
    # The default itself stays with the function: pydantic would copy it for each call.
    return Annotated[hint, Field(default_factory=_nothing)]


def _expressible(hint: Any) -> Any:
    fit = adapted(hint)
    TypeAdapter(fit).json_schema(schema_generator=_Generator)
    return fit


def _default_of(value: Any) -> JsonSchema:
    """The `default` of a schema; empty where the value has no form in JSON."""
    if isinstance(value, Enum):
        scalar = isinstance(value.value, str | int | float | None)
        return {"default": value.value if scalar else value.name}
    if isinstance(value, set | frozenset):
        # Their order changes from one process to the next.
        value = sorted(cast("set[Any]", value), key=repr)
    try:
        return {"default": pydantic_core.to_jsonable_python(value)}
    except Exception:  # Whatever the default's own methods raise.
        return {}


def _as_json(value: Any) -> Any:
    try:
        return pydantic_core.to_jsonable_python(
            value, inf_nan_mode="strings", fallback=lambda it: plain_repr(it, 1_000)
        )
    except Exception:  # Whatever the methods of the person's own types raise.
        return plain_repr(value, 1_000)


def _invalid(message: str) -> ToolError:
    return ToolError(redact(clean(message)), code="E_INVALID_ARGUMENTS")
