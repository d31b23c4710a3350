"""The arguments of a function tool: their JSON Schema, their validation and coercion by pydantic.

Knows parameters (`hints`) and their descriptions. The schema's shape is `shape`'s, what models do
to arguments is undone by `habits`, how the function is run is `calling`'s.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.secrets import redact, redact_json
from nbagent.shown import clean, plain_repr
from nbagent.tools.explain import explained
from nbagent.tools.habits import Habits
from nbagent.tools.hints import Hinted, said_beside
from nbagent.tools.portable import advice_on, is_protocol, members, portable, type_name
from nbagent.tools.shape import ArgumentsSchema, JsonSchema, cleaned, default_of, wire_keys

_REST = "**"
"""Alias of the field that takes what `**kwargs` takes; no parameter can have this name."""
_MOST_ROUNDS = 8


class _Arguments(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        coerce_numbers_to_str=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """Validated arguments, ready for a call."""

    values: dict[str, Any]
    """By parameter name; `*args` as a list, `**kwargs` as a dict under their names."""
    notes: tuple[str, ...] = ()
    """What was read in another sense than the model wrote it, for the person."""


class Arguments:
    """What a tool takes: the schema for the model, the check for each call.

    Raises:
        UsageError: a parameter has a type that a model cannot give; it says what to write instead.
    """

    def __init__(
        self, tool: str, parameters: Iterable[Hinted], descriptions: Mapping[str, str]
    ) -> None:
        self._tool = tool
        self._all = tuple(parameters)
        self._descriptions = descriptions
        self.context_names = tuple(p.name for p in self._all if p.is_context)
        self._seen: dict[int, Any] = {}
        generator = type("Schema", (ArgumentsSchema,), {"seen": self._seen})
        self._generator = cast("type[ArgumentsSchema]", generator)
        shown = tuple(p for p in self._all if not p.is_context)
        keys = wire_keys(p.name for p in shown)
        try:
            self._shown = tuple(replace(p, hint=portable(p.hint)) for p in shown)
            self._make(keys)
        except Exception:
            # Some type has no form in JSON: hide it where the function can do without.
            self._shown = tuple(fit for p in shown if (fit := self._fitting(p)) is not None)
            try:
                self._make(keys)
            except Exception as error:
                raise UsageError(
                    f"the parameters of tool {tool!r} have no schema "
                    f"({plain_repr(error, 200)}); wrap it in a def with plain hints"
                ) from error
        self._by_keyword = all(
            p.kind in (p.kind.POSITIONAL_OR_KEYWORD, p.kind.KEYWORD_ONLY) for p in self._all
        )

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Coerce and check; a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        if arguments is None:
            raise _invalid(f"the arguments of {self._tool} must be a JSON object")
        copied: dict[str, Any] = _copied(arguments)
        raw = {self._keys.get(key, key): value for key, value in copied.items()}
        habits = Habits(raw, self._guide, self._seen, tool=self._tool, rest=self._rest)
        for _ in range(_MOST_ROUNDS):
            try:
                model = self._model.model_validate(self._folded(raw))
                break
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
            except Exception as error:
                # A validator of the person's own types may raise anything.
                said = plain_repr(error, 200)
                raise _invalid(f"the arguments of {self._tool} do not fit: {said}") from error
            if not habits.repair(problems):
                raise self._refused(problems, habits)
        else:
            raise _invalid(f"the arguments of {self._tool} do not fit its schema")
        values: dict[str, Any] = {}
        for key, parameter in self._fields.items():
            # Only what was given: the function's own defaults stay its own.
            if key in model.model_fields_set or _own_field(parameter) is not None:
                values[parameter.name] = getattr(model, key)
        return Bound(values, tuple(habits.notes))

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
        values: dict[str, Any] = {**bound.values, **dict.fromkeys(self.context_names, context)}
        if self._by_keyword and not in_order:
            return (), values
        unpacked = [p.name for p in self._all if p.unpacked_from and p.name in values]
        for p in self._all:
            if p.name in unpacked:
                values.setdefault(str(p.unpacked_from), {})[p.name] = values[p.name]
        known = [name for name in signature.parameters if name in values]
        filled = inspect.BoundArguments(signature, OrderedDict((n, values[n]) for n in known))
        filled.apply_defaults()
        return filled.args, filled.kwargs

    def _make(self, keys: Mapping[str, str]) -> None:
        """Build model and schema from the parameters that are shown."""
        self._keys = {p.name: keys[p.name] for p in self._shown}
        # Fields are p0, p1, … with the parameter's name as alias: `schema`, `copy` and `_x` are
        # fine names for parameters, not for fields of a model.
        self._fields = {f"p{i}": p for i, p in enumerate(self._shown)}
        fields: dict[str, Any] = {key: self._field(p) for key, p in self._fields.items()}
        make = cast("Any", create_model)
        self._model: type[BaseModel] = make("Arguments", __base__=_Arguments, **fields)
        variadic = [p.name for p in self._shown if p.kind is p.kind.VAR_KEYWORD]
        self._rest = variadic[0] if variadic else None
        self._guide = self._generated()
        # A default may be a key that the notebook holds.
        self.json_schema: JsonSchema = redact_json(cleaned(self._guide))

    def _field(self, parameter: Hinted) -> tuple[Any, Any]:
        hint: Any = parameter.hint
        alias = self._keys[parameter.name]
        if parameter.kind is parameter.kind.VAR_POSITIONAL:
            hint = cast("Any", list)[hint]
        elif parameter.kind is parameter.kind.VAR_KEYWORD:
            hint, alias = cast("Any", dict)[str, hint], _REST
        text = self._descriptions.get(parameter.name) or said_beside(parameter.hint)
        if alias not in (parameter.name, _REST):
            text = f"{parameter.name}: {text}" if text else parameter.name
        more: dict[str, Any] = {}
        info = _own_field(parameter)
        if info is not None:
            # The pydantic way: `city: str = Field("Rome", description=…)`.
            hint, more, text = *_taken_apart(hint, info), info.description or text
        if text and not _describes(hint):
            more["description"] = text
        if info is not None and not info.is_required():
            kept = "default" if info.default_factory is None else "default_factory"
            return hint, Field(alias=alias, **{kept: getattr(info, kept)}, **more)
        if parameter.required or info is not None:
            return hint, Field(alias=alias, **more)
        # The default itself stays with the function: pydantic would copy it for each call.
        return hint, Field(default_factory=_nothing, alias=alias, **more)

    def _generated(self) -> JsonSchema:
        """The generator's schema: with references and marks, the rest of the keywords opened."""
        made = self._model.model_json_schema(by_alias=True, schema_generator=self._generator)
        properties = cast("dict[str, JsonSchema]", made.setdefault("properties", {}))
        for parameter in self._shown:
            shown = properties.get(self._keys[parameter.name])
            if shown is None or _own_field(parameter) is not None:
                continue
            default = parameter.default
            if parameter.kind is parameter.kind.VAR_POSITIONAL:
                default = []
            if default is not _NO_DEFAULT:
                with suppress(KeyError):  # One without a form in JSON is left out.
                    shown["default"] = default_of(default)
        rest = properties.pop(_REST, None)
        out: JsonSchema = {"type": "object", "properties": properties}
        out.update({key: made[key] for key in ("required",) if made.get(key)})
        out["additionalProperties"] = (
            False if rest is None else rest.get("additionalProperties", True)
        )
        out.update({key: made[key] for key in ("$defs",) if key in made})
        return out

    def _fitting(self, parameter: Hinted) -> Hinted | None:
        """The parameter in a form that a model can give; None to hide it."""
        try:
            return replace(parameter, hint=self._expressible(parameter.hint))
        except Exception as error:
            if not parameter.required and parameter.default is not _NO_DEFAULT:
                return None
            found = error
        # Of `str | DataFrame` a model can give the one.
        some: list[Any] = []
        for member in members(parameter.hint):
            try:
                some.append(self._expressible(member))
            except Exception:
                if is_protocol(member):
                    some.clear()
                    break
        if any(member is not type(None) for member in some):
            return replace(parameter, hint=Union[tuple(some)])  # noqa: UP007
        raise UsageError(
            f"parameter {parameter.name!r} of tool {self._tool!r} has the type "
            f"{type_name(parameter.hint)}, {advice_on(parameter.hint, found)}"
        ) from found

    def _expressible(self, hint: Any) -> Any:
        fit = portable(hint)
        made = TypeAdapter(fit).json_schema(schema_generator=self._generator)
        cleaned(made)
        return fit

    def _folded(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._rest is None:
            return arguments
        known = {key for name, key in self._keys.items() if name != self._rest}
        folded = {k: v for k, v in arguments.items() if k in known}
        folded[_REST] = {
            k: v for k, v in arguments.items() if k not in known and k not in self.context_names
        }
        return folded

    def _refused(self, problems: list[dict[str, Any]], habits: Habits) -> ToolError:
        if habits.take_back(problems):
            try:
                self._model.model_validate(self._folded(habits.raw))
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
        told = explained(problems, habits.raw, self._guide)
        return _invalid(f"the arguments of {self._tool} do not fit: {told}")


def _nothing() -> Any:
    return None


def _own_field(parameter: Hinted) -> FieldInfo | None:
    """The pydantic `Field` that stands as default or, with a default in it, inside `Annotated`."""
    if isinstance(parameter.default, FieldInfo):
        return parameter.default
    if parameter.default is _NO_DEFAULT and get_origin(parameter.hint) is Annotated:
        for extra in get_args(parameter.hint)[1:]:
            if isinstance(extra, FieldInfo) and not extra.is_required():
                return extra
    return None


def _taken_apart(hint: Any, info: FieldInfo) -> tuple[Any, dict[str, Any]]:
    """The hint with a Field's constraints, and what else it says but for names and defaults."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        extras = [extra for extra in extras if extra is not info]
        hint = Annotated[(inner, *extras)] if extras else inner
    if info.metadata:
        hint = Annotated[(hint, *info.metadata)]
    said = {key: getattr(info, key) for key in ("examples", "discriminator", "json_schema_extra")}
    return hint, {key: value for key, value in said.items() if value is not None}


_NO_DEFAULT: Any = inspect.Parameter.empty


def _invalid(message: str) -> ToolError:
    return ToolError(redact(clean(message)), code="E_INVALID_ARGUMENTS")


def _describes(hint: Any) -> bool:
    if get_origin(hint) is not Annotated:
        return False
    return any(isinstance(x, FieldInfo) and x.description for x in get_args(hint)[1:])


def _copied(value: Any) -> Any:
    """Containers copied: a tool may change its arguments, the record may not."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): _copied(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(v) for v in cast("list[Any]", value)]
    return value
