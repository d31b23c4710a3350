"""The arguments of a function tool: their JSON Schema, their validation and coercion by pydantic.

Knows parameters (`hints`) and their descriptions; how the function is run is `calling`'s.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.secrets import redact, redact_json
from nbagent.shown import clean, cut_middle, plain_repr
from nbagent.tools.base import listed, nearest
from nbagent.tools.hints import Hinted, said_beside

_REST = "**"
"""Alias of the field that takes what `**kwargs` takes; no parameter can have this name."""
_INPUT_CHARS = 120
_MOST_PROBLEMS = 8
_WANTS_LIST = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"})
_WANTS_CONTAINER = _WANTS_LIST | {
    "dict_type",
    "mapping_type",
    "model_type",
    "model_attributes_type",
    "dataclass_type",
}
_NO_SCHEMA = (PydanticUserError, PydanticUndefinedAnnotation)


class _Schema(GenerateJsonSchema):
    """Without a warning for each default that JSON cannot say; it is left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


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


class Arguments:
    """What a tool takes: the schema for the model, the check for each call."""

    def __init__(
        self, tool: str, parameters: Iterable[Hinted], descriptions: Mapping[str, str]
    ) -> None:
        self._tool = tool
        self._all = tuple(parameters)
        self._descriptions = descriptions
        self.context_names = tuple(p.name for p in self._all if p.is_context)
        self._shown = tuple(p for p in self._all if not p.is_context)
        try:
            self._model = self._build()
            self.json_schema = self._schema()
        except _NO_SCHEMA:
            # Some type has no form in JSON: hide it where the function can do without.
            self._shown = tuple(p for p in self._shown if self._expressible(p))
            self._model = self._build()
            self.json_schema = self._schema()
        self._names = {f"p{i}": p for i, p in enumerate(self._shown)}
        self._by_keyword = all(
            p.kind in (p.kind.POSITIONAL_OR_KEYWORD, p.kind.KEYWORD_ONLY) for p in self._all
        )

    def validate(self, arguments: Mapping[str, Any] | None) -> Bound:
        """Coerce and check; a ToolError `E_INVALID_ARGUMENTS` that a model can act on."""
        if arguments is None:
            raise _invalid(f"the arguments of {self._tool} must be a JSON object")
        raw = self._folded(_copied(arguments))
        for _ in range(4):
            try:
                model = self._model.model_validate(raw)
                break
            except ValidationError as error:
                problems = cast("list[dict[str, Any]]", error.errors(include_url=False))
                repaired = [_repair(raw, problem) for problem in problems]
                if not any(repaired):
                    raise _invalid(self._explain(problems)) from None
        else:
            raise _invalid(f"the arguments of {self._tool} do not fit its schema")
        values: dict[str, Any] = {}
        for key, parameter in self._names.items():
            # Only what was given: the function's own defaults stay its own.
            if key in model.model_fields_set or isinstance(parameter.default, FieldInfo):
                values[parameter.name] = getattr(model, key)
        return Bound(values)

    def placed(
        self, bound: Bound, signature: inspect.Signature, context: object
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the call, the context put in."""
        values = bound.values | dict.fromkeys(self.context_names, context)
        if self._by_keyword:
            return (), values
        in_order = OrderedDict((p.name, values[p.name]) for p in self._all if p.name in values)
        filled = inspect.BoundArguments(signature, in_order)
        filled.apply_defaults()
        return filled.args, filled.kwargs

    def _build(self) -> type[BaseModel]:
        # Fields are p0, p1, … with the parameter's name as alias: `schema`, `copy` and `_x` are
        # fine names for parameters, not for fields of a model.
        fields: dict[str, Any] = {
            f"p{i}": self._field(parameter) for i, parameter in enumerate(self._shown)
        }
        make = cast("Any", create_model)
        model: type[BaseModel] = make("Arguments", __base__=_Arguments, **fields)
        return model

    def _field(self, parameter: Hinted) -> tuple[Any, Any]:
        hint: Any = parameter.hint
        default: Any = parameter.default
        alias = parameter.name
        if parameter.kind is parameter.kind.VAR_POSITIONAL:
            hint, default = cast("Any", list)[hint], cast("Any", [])
        elif parameter.kind is parameter.kind.VAR_KEYWORD:
            hint, default, alias = cast("Any", dict)[str, hint], cast("Any", {}), _REST
        text = self._descriptions.get(parameter.name) or said_beside(parameter.hint)
        if isinstance(default, FieldInfo):
            # The pydantic way: `city: str = Field("Rome", description=…)`.
            hint, text = Annotated[hint, default], default.description or text
            default = default.get_default(call_default_factory=True)
            default = ... if repr(default) == "PydanticUndefined" else default
        elif default is inspect.Parameter.empty:
            default = ...
        more: dict[str, Any] = {"description": text} if text and not _describes(hint) else {}
        return hint, Field(default, alias=alias, **more)

    def _schema(self) -> dict[str, Any]:
        schema = self._model.model_json_schema(by_alias=True, schema_generator=_Schema)
        schema = _without_titles(schema)
        properties: dict[str, Any] = schema.setdefault("properties", {})
        rest = properties.pop(_REST, None)
        out: dict[str, Any] = {"type": "object", "properties": properties}
        if schema.get("required"):
            out["required"] = schema["required"]
        out["additionalProperties"] = (
            False if rest is None else rest.get("additionalProperties", True)
        )
        if "$defs" in schema:
            out["$defs"] = schema["$defs"]
        # A default may be a key that the notebook holds.
        return redact_json(out)

    def _expressible(self, parameter: Hinted) -> bool:
        try:
            TypeAdapter(parameter.hint).json_schema(schema_generator=_Schema)
        except _NO_SCHEMA as error:
            if parameter.required:
                kind = getattr(parameter.hint, "__name__", None) or repr(parameter.hint)
                raise UsageError(
                    f"parameter {parameter.name!r} of tool {self._tool!r} has the type {kind}, "
                    "which a model cannot give; take a name or a number instead, "
                    "or give it a default"
                ) from error
            return False
        return True

    def _folded(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not any(p.kind is p.kind.VAR_KEYWORD for p in self._shown):
            return arguments
        known = {p.name for p in self._shown if p.kind is not p.kind.VAR_KEYWORD}
        known -= set(self.context_names)
        folded = {k: v for k, v in arguments.items() if k in known}
        folded[_REST] = {k: v for k, v in arguments.items() if k not in known}
        return folded

    def _explain(self, problems: list[dict[str, Any]]) -> str:
        lines: dict[str, None] = {}
        for problem in problems:
            lines.setdefault(self._line(problem))
        told = list(lines)[:_MOST_PROBLEMS]
        more = [f"and {len(lines) - len(told)} more"] if len(lines) > len(told) else []
        return f"the arguments of {self._tool} do not fit: " + "; ".join(told + more)

    def _line(self, problem: dict[str, Any]) -> str:
        path = [part for part in problem["loc"] if part != _REST]
        where, kind = _where(path), problem["type"]
        if kind == "extra_forbidden" and len(path) == 1:
            names = [p.name for p in self._shown]
            close = nearest(str(path[0]), names)
            if close:
                return f"{where}: there is no such parameter, did you mean {close!r}?"
            return f"{where}: there is no such parameter" + (
                f", the parameters are {listed(names)}" if names else ", it takes none"
            )
        if kind in ("missing", "missing_argument"):
            expected = _expected(self.json_schema, path)
            return f"{where}: is missing" + (f", expected {expected}" if expected else "")
        said = str(problem["msg"])
        said = said[:1].lower() + said[1:]
        got = plain_repr(problem.get("input"), _INPUT_CHARS)
        return f"{where}: {cut_middle(said, 200)}, got {got}"


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


def _repair(raw: dict[str, Any], problem: dict[str, Any]) -> bool:
    """Undo what models do to nested arguments: JSON inside a string, one value for a list."""
    if problem["type"] not in _WANTS_CONTAINER:
        return False
    holder, key = _holder(raw, problem["loc"])
    if holder is None:
        return False
    value = holder[key]
    if isinstance(value, str):
        try:
            inner = load_json(value)
        except (ValueError, RecursionError):
            inner = value
        if isinstance(inner, list | dict):
            holder[key] = inner
            return True
    if problem["type"] in _WANTS_LIST and value is not None and not isinstance(value, list):
        holder[key] = [value]
        return True
    return False


def _holder(raw: dict[str, Any], path: Iterable[Any]) -> tuple[Any, Any]:
    """The container and key that a problem's path points to; names of union members are skipped."""
    holder: Any = None
    key: Any = None
    here: Any = raw
    for part in path:
        inside = isinstance(here, dict) and part in here
        at = isinstance(here, list) and isinstance(part, int) and part < len(cast("Any", here))
        if inside or at:
            holder, key = cast("Any", here), part
            here = holder[key]
    return holder, key


def _where(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cut_middle(str(part), 60)}"
    return text.lstrip(".") or "arguments"


def _expected(schema: dict[str, Any], path: list[Any]) -> str:
    """What a missing value should be, in a few words, as far as the schema says so at hand."""
    here = schema
    for part in path:
        inner = json_object(_opened(here, schema).get("properties", {}).get(part))
        if inner is None:
            return ""
        here = inner
    return _type_words(_opened(here, schema), schema)


def _opened(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    target = str(node.get("$ref", "")).removeprefix("#/$defs/")
    return schema.get("$defs", {}).get(target, node) if target else node


def _type_words(node: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in node:
        return "one of " + listed(repr(item) for item in node["enum"])
    if "anyOf" in node:
        options = cast("list[dict[str, Any]]", node["anyOf"])
        words = (_type_words(_opened(item, schema), schema) for item in options)
        return " or ".join(word for word in words if word)
    kind = str(node.get("type", ""))
    if kind == "object" and node.get("properties"):
        return f"object with {listed(node['properties'])}"
    if kind == "array":
        items = json_object(node.get("items")) or {}
        inner = _type_words(_opened(items, schema), schema)
        return f"array of {inner}" if inner else kind
    return kind


def _without_titles(node: Any, *, names: bool = False) -> Any:
    """The schema without `title`; `names` says that the keys here are names, not keywords."""
    if isinstance(node, list):
        return [_without_titles(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", node).items():
        if not names and key == "title" and isinstance(item, str):
            continue
        if not names and key in ("default", "const", "enum", "examples"):
            out[key] = item
            continue
        out[key] = _without_titles(item, names=not names and key in ("properties", "$defs"))
    return out
