"""The shape of a tool's JSON Schema: what pydantic makes of a hint, in the subset every wire takes.

Owns the generator and the cleaning (`reference/providers.md` 2.7): references opened but where a
type holds itself, `anyOf` only, no `const`, no `prefixItems`, plain JSON. Words about a schema are
here too; checking arguments is `schema`'s.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable
from enum import Enum, Flag
from typing import Any, cast

import pydantic_core
from pydantic.json_schema import GenerateJsonSchema

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.tools.base import listed
from nbagent.tools.portable import NoFormError

JsonSchema = dict[str, Any]
ENUM = "x-enum"
"""Keyword of ours: the id of the Enum class that a node stands for. Not shown to a model."""
LITERAL = "x-literal"
"""Keyword of ours: the id of the values of a Literal that JSON cannot say, such as bytes."""
_KEPT = (
    frozenset({"type", "description", "default", "enum", "examples", "required"})
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_LONGEST_DEFAULT = 1_000
_LARGEST_INLINED = 20_000
"""Characters; a schema that would be larger with its references opened keeps them."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class ArgumentsSchema(GenerateJsonSchema):
    """pydantic's generator with enums that remember their class and named tuples as objects."""

    # Without a warning for each default that JSON cannot say; it is left out.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012
    seen: dict[int, Any]
    """The Enum classes and Literals met so far, by id; set by a subclass for one schema."""

    def enum_schema(self, schema: Any) -> JsonSchema:
        """Members by value where JSON has these values, else by name; flags as a list of names."""
        kind: type[Enum] = schema["cls"]
        if not kind.__members__:
            raise NoFormError(kind)
        self.seen[id(kind)] = kind
        names = {"enum": list(kind.__members__), "type": "string", ENUM: id(kind)}
        if issubclass(kind, Flag):
            return {"type": "array", "items": names, ENUM: id(kind)}
        if not all(_is_scalar(member.value) for member in kind):
            return names
        return {**super().enum_schema(schema), ENUM: id(kind)}

    def literal_schema(self, schema: Any) -> JsonSchema:
        """The values, as text where JSON has none of their kind."""
        made = super().literal_schema(schema)
        expected = cast("list[Any]", schema["expected"])
        if all(value is None or type(value) in (str, int, bool) for value in expected):
            return made
        self.seen[id(expected)] = expected
        return {**made, LITERAL: id(expected)}

    def named_tuple_schema(self, schema: Any) -> JsonSchema:
        """A named tuple as an object: a model that sees names does not mix up the order."""
        fields = cast("list[dict[str, Any]]", schema["fields"])
        properties = {field["name"]: self.generate_inner(field["schema"]) for field in fields}
        made: JsonSchema = {"type": "object", "properties": properties}
        required = [f["name"] for f in fields if f["schema"]["type"] != "default"]
        return {**made, "required": required, "additionalProperties": False}

    def arguments_schema(self, schema: Any) -> JsonSchema:
        """What older releases of pydantic make of a named tuple."""
        made = self.kw_arguments_schema(schema["arguments_schema"], schema.get("var_kwargs_schema"))
        return {**made, "additionalProperties": False}


def _is_scalar(value: Any) -> bool:
    plain = value is None or isinstance(value, str | int | float)
    return plain and not (isinstance(value, float) and not math.isfinite(value))


def default_of(value: Any) -> Any:
    """A default as short JSON; KeyError when it has no such form and is better left out."""
    if isinstance(value, Flag):
        return [member.name for member in value]
    if isinstance(value, Enum):
        if not _is_scalar(value.value) or not all(_is_scalar(m.value) for m in type(value)):
            return value.name
        value = value.value
    if isinstance(value, set | frozenset):
        # Their order changes from one process to the next.
        value = sorted(cast("set[Any]", value), key=repr)
    try:
        plain: Any = pydantic_core.to_jsonable_python(value)
        if _is_json(plain) and len(dump_json(plain)) <= _LONGEST_DEFAULT:
            return plain
    except Exception:  # Whatever the default's own methods raise.
        pass
    raise KeyError("default")


def cleaned(schema: JsonSchema) -> JsonSchema:
    """A schema as models are shown it; its `$defs` hold only types that hold themselves."""
    defs = cast("JsonSchema", schema.get("$defs", {}))
    cleaner = _Cleaner(defs, opened=True)
    out = cleaner.node(schema)
    if len(dump_json(out)) > _LARGEST_INLINED and defs:
        cleaner = _Cleaner(defs, opened=False)
        out = cleaner.node(schema)
    kept = cleaner.definitions()
    return {**out, "$defs": kept} if kept else out


class _Cleaner:
    def __init__(self, defs: JsonSchema, *, opened: bool) -> None:
        self._defs = defs
        self._kept = {name for name in defs if not opened or name in _reached(name, defs)}
        self._used: dict[str, None] = {}

    def definitions(self) -> JsonSchema:
        """What is still referred to, and what that refers to."""
        out: JsonSchema = {}
        while waiting := [name for name in self._used if name not in out]:
            for name in waiting:
                out[name] = self.node(self._defs[name])
        return {name: out[name] for name in sorted(out)}

    def node(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        node = cast("JsonSchema", node)
        if "$ref" in node:
            return self._reference(node)
        inner = cast("list[JsonSchema]", node.get("allOf", ()))
        if len(inner) == 1:
            return self.node({**inner[0], **{k: v for k, v in node.items() if k != "allOf"}})
        out: JsonSchema = {}
        for key, value in node.items():
            self._keyword(key, value, out)
        if "prefixItems" in node:
            self._in_order(node["prefixItems"], out)
        if out.get("type") == "object" and "additionalProperties" not in out:
            out.setdefault("properties", {})
        return out

    def _reference(self, node: JsonSchema) -> JsonSchema:
        name = str(node["$ref"]).removeprefix("#/$defs/")
        beside = self.node({key: value for key, value in node.items() if key != "$ref"})
        if name not in self._kept and name in self._defs:
            return {**self.node(self._defs[name]), **beside}
        self._used[name] = None
        ref = {"$ref": f"#/$defs/{name}"}
        # No wire promises to read what stands beside a reference.
        return {"anyOf": [ref], **beside} if beside else ref

    def _keyword(self, key: str, value: Any, out: JsonSchema) -> None:
        if key == "properties":
            out[key] = {name: self.node(item) for name, item in value.items()}
        elif key == "patternProperties":
            out["additionalProperties"] = self.node(next(iter(value.values()), True))
        elif key in ("anyOf", "oneOf"):
            items = _distinct([self.node(item) for item in value])
            out.update({"anyOf": items} if len(items) > 1 else items[0])
        elif key in ("items", "additionalProperties"):
            out[key] = self.node(value)
        elif key == "propertyNames":
            words = type_words(opened(value, {"$defs": self._defs}), {"$defs": self._defs})
            out["description"] = _joined(out.get("description"), f"Keys: {words or 'any'}.")
        elif key == "const":
            out["enum"] = [value]
        elif key == "format":
            out.update({key: value} if value in _FORMATS else {})
        elif key == "pattern":
            # Look-around is in no wire's dialect.
            out.update({} if "(?=" in value or "(?!" in value or "(?<" in value else {key: value})
        elif key == "description":
            out[key] = _joined(str(value), out.get(key))
        elif key in _KEPT and _is_json(value) and (key, value) != ("required", []):
            out[key] = value

    def _in_order(self, items: list[Any], out: JsonSchema) -> None:
        inner = [self.node(item) for item in items]
        distinct = _distinct(inner)
        out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        if len(distinct) > 1:
            schema = {"$defs": self._defs}
            words = (type_words(opened(item, schema), schema) or "anything" for item in items)
            text = f"In this order: {', '.join(words)}."
            out["description"] = _joined(out.get("description"), text)


def _reached(start: str, defs: JsonSchema) -> set[str]:
    """The definitions that one refers to, over any number of others."""
    found: set[str] = set()
    waiting = [defs[start]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            node = cast("JsonSchema", node)
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            if name in defs and name not in found:
                found.add(name)
                waiting.append(defs[name])
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))
    return found


def _distinct(items: list[Any]) -> list[Any]:
    return [item for i, item in enumerate(items) if item not in items[:i]]


def _is_json(value: Any) -> bool:
    try:
        # Encoded, because a lone surrogate is no text on any wire.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _joined(*texts: Any) -> str:
    return " ".join(str(text) for text in texts if text)


def wire_keys(names: Iterable[str]) -> dict[str, str]:
    """The property that stands for each parameter: its name, where all wires take that."""
    names = list(names)
    taken = {name for name in names if _KEY.fullmatch(name)}
    keys: dict[str, str] = {}
    for i, name in enumerate(names):
        key = name
        if name not in taken:
            plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
            key = re.sub(r"[^A-Za-z0-9_]", "", plain)[:60]
            if not _KEY.fullmatch(key) or key in taken or not key.strip("_"):
                key = f"arg{i + 1}"
            while key in taken:
                key += "_"
            taken.add(key)
        keys[name] = key
    return keys


def opened(node: Any, schema: JsonSchema) -> JsonSchema:
    """The node that a reference stands for, else the node itself."""
    node = json_object(node) or {}
    for _ in range(8):
        target = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if not target:
            break
        node = cast("JsonSchema", schema.get("$defs", {}).get(target, {}))
    return node


def branches(node: JsonSchema, schema: JsonSchema) -> list[JsonSchema]:
    """The members of a union, opened; the node alone when it is none."""
    inner = cast("list[Any]", node.get("anyOf") or node.get("oneOf") or ())
    return [b for item in inner for b in branches(opened(item, schema), schema)] or [node]


def type_words(node: JsonSchema, schema: JsonSchema, depth: int = 3) -> str:
    """What a value should be, in a few words, as far as the schema says so at hand."""
    if "const" in node or "enum" in node:
        values = cast("list[Any]", node.get("enum", [node.get("const")]))
        return "one of " + listed(repr(item) for item in values)
    if depth == 0:
        return str(node.get("type", ""))
    options = branches(node, schema)
    if len(options) > 1:
        words = dict.fromkeys(type_words(item, schema, depth - 1) for item in options)
        return " or ".join(word for word in words if word)
    node = options[0]
    kind = str(node.get("type", ""))
    if kind == "object" and node.get("properties"):
        return f"object with {listed(node['properties'])}"
    if kind == "array":
        inner = type_words(opened(node.get("items"), schema), schema, depth - 1)
        return f"array of {inner}" if inner else kind
    known = node.get("format") in _FORMATS
    return str(node["format"]) if kind in ("string", "") and known else kind


_SAMPLES: dict[str, Any] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T10:30:00Z",
    "time": "10:30:00",
    "duration": "PT1H30M",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "string": "text",
}


def sample(node: JsonSchema, schema: JsonSchema, depth: int = 3) -> Any:
    """A value that fits the schema, as an example for a model."""
    node = branches(node, schema)[0]
    for key in ("examples", "enum"):
        if node.get(key):
            return node[key][0]
    if "const" in node:
        return node["const"]
    kind = str(node.get("type", ""))
    if kind == "object":
        properties = cast("JsonSchema", node.get("properties", {})) if depth else {}
        needed = node.get("required") or list(properties)[:1]
        return {
            name: sample(opened(properties[name], schema), schema, depth - 1)
            for name in needed
            if name in properties
        }
    if kind == "array":
        items = cast("list[Any]", node.get("prefixItems") or [node.get("items")])
        return [sample(opened(i, schema), schema, depth - 1) for i in items] if depth else []
    if kind in ("integer", "number") and "minimum" in node:
        return node["minimum"]
    return _SAMPLES.get(str(node.get("format")), _SAMPLES.get(kind, "text"))
