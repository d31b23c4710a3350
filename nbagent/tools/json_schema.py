"""A JSON Schema as models are shown it: in the subset that every wire takes, and within bounds.

Owns the one walker, for what pydantic makes of our own hints and for what a stranger's server sends
(`reference/providers.md` 2.7): references opened but where a type holds itself, `anyOf` only, no
`const`, no `prefixItems`, plain JSON. What does not fit is left open. No call is checked with it: a
pattern of a stranger's making could hang the check.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.secrets import redact_cut
from nbagent.shown import clean, cut_middle

JsonSchema = dict[str, Any]
_MOST_NODES = 2_000
_DEEPEST = 20
_LARGEST_CHARS = 20_000
_ATTEMPTS = ((True, 1_000), (False, 1_000), (False, 160), (False, 0))
"""Whether references are opened, and the characters of a description; the next ones when the whole
is too large."""
_MOST_PROPERTIES = 200
_MOST_CHOICES = 500
_NAME_CHARS = 100
_VALUE_CHARS = 500
_PATTERN_CHARS = 200
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class LegalSchema:
    """A schema as the model is shown it."""

    schema: JsonSchema
    keys: Mapping[str, str]
    """The tool's own name of each parameter, by the name that the model is shown."""


def legal_schema(schema: object) -> LegalSchema:
    """The root as an object with legal names, all in it within bounds."""
    made = LegalSchema({}, {})
    for opened, description_chars in _ATTEMPTS:
        walker = _Walker(schema, opened=opened, description_chars=description_chars)
        made = walker.root()
        if not (walker.has_cut and opened) and len(dump_json(made.schema)) <= _LARGEST_CHARS:
            return made
    # Names of parameters are worth more than what is inside them.
    properties = cast("dict[str, JsonSchema]", made.schema["properties"])
    bare = {name: _bare(node) for name, node in properties.items()}
    out: JsonSchema = {**made.schema, "properties": bare}
    out.pop("$defs", None)
    if len(dump_json(out)) > _LARGEST_CHARS:
        out = {"type": "object", "properties": {}}
    return LegalSchema(out, made.keys)


def visible(text: str, budget_chars: int) -> str:
    """The text without control, direction and invisible characters, within a budget."""
    text = _ESCAPE.sub("", clean(text[: 4 * budget_chars + 1_000]))
    if not text.isascii() or not text.isprintable():
        # Control, format (directions, zero width, tags), surrogate, private use, unassigned.
        hidden = {c for c in text if c not in "\n\t" and unicodedata.category(c)[0] == "C"}
        text = text.translate(dict.fromkeys(map(ord, hidden)))
    return redact_cut(cut_middle(text.strip(), budget_chars))


def ascii_name(name: str) -> str:
    """The name in ASCII letters, digits and `_`, as far as it can be written so."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    return re.sub(r"[^A-Za-z0-9_]", "", plain)[:60]


def wire_keys(names: Iterable[str]) -> dict[str, str]:
    """The property that stands for each parameter: its name, where all wires take that."""
    names = list(names)
    taken = {name for name in names if _KEY.fullmatch(name)}
    keys: dict[str, str] = {}
    for i, name in enumerate(names):
        key = name
        if name not in taken:
            key = ascii_name(name)
            if not _KEY.fullmatch(key) or key in taken or not key.strip("_"):
                key = f"arg{i + 1}"
            while key in taken:
                key += "_"
            taken.add(key)
        keys[name] = key
    return keys


class _Walker:
    """One walk over one schema."""

    def __init__(self, schema: object, *, opened: bool, description_chars: int) -> None:
        self._whole: JsonSchema = json_object(schema) or {}
        self._opened = opened
        self._description_chars = description_chars
        self._left = _MOST_NODES
        self.has_cut = False
        """Something was left open for want of nodes or depth."""
        self._open: list[str] = ["#"]
        """References that are being followed."""
        self._kept: dict[str, str] = {}
        """The name under `$defs` of each reference that stays one."""

    def root(self) -> LegalSchema:
        """The whole schema. The members of a union at its root are shown as one object."""
        root = self._merged(self._whole, [])
        properties: dict[str, Any] = {}
        required: set[str] | None = None
        for branch in [root, *_objects(root.get("anyOf")), *_objects(root.get("oneOf"))]:
            if branch is not root:
                branch = self._merged(branch, [])
                needed = _names(branch.get("required"))
                required = needed if required is None else required & needed
            for name, item in (json_object(branch.get("properties")) or {}).items():
                properties.setdefault(name, item)
        needed = _names(root.get("required")) | (required or set())
        named = list(properties)[:_MOST_PROPERTIES]
        keys = wire_keys(named)
        out: JsonSchema = {"type": "object", "properties": {}}
        for name in named:
            node = self.node(properties[name], 1)
            if keys[name] != name:
                texts = (visible(name, _NAME_CHARS), node.get("description"))
                node["description"] = ": ".join(text for text in texts if text) or "Has no name."
            out["properties"][keys[name]] = node
        if listed := [keys[name] for name in named if name in needed]:
            out["required"] = listed
        self._further_keys(root, out, 1)
        if definitions := self._definitions():
            out["$defs"] = definitions
        return LegalSchema(out, {ours: theirs for theirs, ours in keys.items()})

    def node(self, given: object, depth: int) -> JsonSchema:
        """One node, made legal."""
        self._left -= 1
        source = json_object(given)
        if source is None:
            return {}
        if self._left < 0 or depth > _DEEPEST:
            self.has_cut = True
            return {}
        reference = str(source.get("$ref", ""))
        if reference and (reference in self._open or not self._opened):
            return self._reference(reference, source)
        followed: list[str] = []
        merged = self._merged(source, followed)
        before = len(self._open)
        self._open += followed
        out = self._filled(merged, depth)
        del self._open[before:]
        return out

    def _reference(self, reference: str, source: JsonSchema) -> JsonSchema:
        out: JsonSchema = {}
        self._text(source, out)
        self._values(source, out)
        if self._target(reference) is None:
            return out
        if reference not in self._kept:
            name = ascii_name(reference.rsplit("/", 1)[-1]) or "root"
            while name in self._kept.values():
                name += "_"
            self._kept[reference] = name
        ref = {"$ref": f"#/$defs/{self._kept[reference]}"}
        # No wire promises to read what stands beside a reference.
        return {"anyOf": [ref], **out} if out else ref

    def _definitions(self) -> JsonSchema:
        """What is still referred to, and what that refers to."""
        out: JsonSchema = {}
        while waiting := [it for it in self._kept if self._kept[it] not in out]:
            for reference in waiting:
                self._open = [reference]
                target = self._merged(self._target(reference) or {}, [])
                out[self._kept[reference]] = self._filled(target, 1) if self._left > 0 else {}
        return {name: out[name] for name in sorted(out)}

    def _merged(self, node: JsonSchema, followed: list[str]) -> JsonSchema:
        """The node with its reference and its `allOf` taken in, one level.

        A reference that is being followed already is left open, as are those in `followed`, to
        which each one met is added.
        """
        for _ in range(8):
            if "$ref" in node:
                reference = str(node["$ref"])
                seen = reference in self._open or reference in followed
                followed.append(reference)
                target = (None if seen else self._target(reference)) or {}
                node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
            elif isinstance(node.get("allOf"), list):
                rest = {k: v for k, v in node.items() if k != "allOf"}
                node = _joined([*_objects(node["allOf"]), rest])
            else:
                return node
        return {k: v for k, v in node.items() if k not in ("$ref", "allOf")}

    def _target(self, reference: str) -> JsonSchema | None:
        """What a reference within the schema names. Nothing is ever fetched."""
        if reference == "#":
            return self._whole
        if not reference.startswith("#/"):
            return None
        found: Any = self._whole
        for step in reference[2:].split("/")[:20]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = (json_object(found) or {}).get(step)
        return json_object(found)

    def _filled(self, node: JsonSchema, depth: int) -> JsonSchema:
        out: JsonSchema = {}
        self._text(node, out)
        options = _objects(node.get("anyOf")) or _objects(node.get("oneOf"))
        kinds = node.get("type")
        if isinstance(kinds, list):
            several_given = [it for it in cast("list[Any]", kinds) if isinstance(it, str)]
            several = [kind for kind in several_given if kind in _TYPES]
            rest = {k: v for k, v in node.items() if k not in ("type", "description")}
            options = options or [{**rest, "type": kind} for kind in several]
        if options:
            self._values(node, out)
            made = _distinct([self.node(option, depth + 1) for option in options])
            return {**made[0], **out} if len(made) == 1 else {**out, "anyOf": made}
        kind = kinds if isinstance(kinds, str) and kinds in _TYPES else _guessed(node)
        if kind is not None:
            out["type"] = kind
        self._values(node, out)
        _bounds(node, out, kind)
        if kind == "object":
            self._object(node, out, depth)
        elif kind == "array":
            self._array(node, out, depth)
        return out

    def _text(self, node: JsonSchema, out: JsonSchema) -> None:
        said = node.get("description")
        text = visible(said, self._description_chars) if isinstance(said, str) else ""
        if text and self._description_chars:
            out["description"] = text

    def _values(self, node: JsonSchema, out: JsonSchema) -> None:
        choices: Any = node.get("enum", [node["const"]] if "const" in node else None)
        if choices and isinstance(choices, list) and _is_plain(cast("Any", choices)):
            out["enum"] = _distinct(cast("list[Any]", choices))
        if "default" in node and _is_plain(node["default"]):
            out["default"] = node["default"]
        examples = node.get("examples")
        if isinstance(examples, list) and _is_plain(cast("Any", examples)):
            out["examples"] = examples

    def _object(self, node: JsonSchema, out: JsonSchema, depth: int) -> None:
        properties = json_object(node.get("properties")) or {}
        named = [name for name in properties if name == visible(name, _NAME_CHARS)]
        named = named[:_MOST_PROPERTIES]
        if properties or "additionalProperties" not in node:
            made = {name: self.node(properties[name], depth + 1) for name in named}
            out["properties"] = made
        needed = _names(node.get("required"))
        if listed := [name for name in named if name in needed]:
            out["required"] = listed
        self._further_keys(node, out, depth)

    def _further_keys(self, node: JsonSchema, out: JsonSchema, depth: int) -> None:
        by_pattern = json_object(node.get("patternProperties")) or {}
        further = node.get("additionalProperties", next(iter(by_pattern.values()), None))
        if isinstance(further, bool):
            out["additionalProperties"] = further
        elif isinstance(further, dict):
            made = self.node(cast("JsonSchema", further), depth + 1)
            out["additionalProperties"] = made
        if keys := self.node(node.get("propertyNames"), depth + 1).get("enum"):
            _add_text(out, f"Keys: {', '.join(map(repr, keys))}.")

    def _array(self, node: JsonSchema, out: JsonSchema, depth: int) -> None:
        in_order = _objects(node.get("prefixItems"))
        items = in_order or _objects(node.get("items"))
        if not items:
            out["items"] = self.node(node.get("items"), depth + 1)
            return
        made = [self.node(item, depth + 1) for item in items]
        distinct = _distinct(made)
        out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        if in_order and len(distinct) > 1:
            words = (str(item.get("type", "anything")) for item in made)
            _add_text(out, f"In this order: {', '.join(words)}.")


def _add_text(out: JsonSchema, text: str) -> None:
    out["description"] = f"{out['description']} {text}" if "description" in out else text


def _bare(node: JsonSchema) -> JsonSchema:
    kind = node.get("type")
    kept: JsonSchema = {"type": kind} if kind else {}
    return {**kept, "items": {}} if kind == "array" else kept


def _objects(value: object) -> list[JsonSchema]:
    items = cast("list[Any]", value)[:_MOST_CHOICES] if isinstance(value, list) else []
    return [cast("JsonSchema", item) for item in items if isinstance(item, dict)]


def _names(value: object) -> set[str]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return {item for item in items if isinstance(item, str)}


def _joined(parts: list[JsonSchema]) -> JsonSchema:
    """What `allOf` says together, as far as one object can say it."""
    out: JsonSchema = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties" and isinstance(out.get(key), dict) and isinstance(value, dict):
                out[key] = {**out[key], **cast("JsonSchema", value)}
            elif key == "required" and isinstance(out.get(key), list):
                out[key] = [*out[key], *sorted(_names(value))]
            else:
                out[key] = value
    return out


def _guessed(node: JsonSchema) -> str | None:
    if "properties" in node:
        return "object"
    return "array" if "items" in node or "prefixItems" in node else None


def _bounds(node: JsonSchema, out: JsonSchema, kind: str | None) -> None:
    for key in _NUMBERS if kind in ("number", "integer") else ():
        value = node.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
            # Not positive, it would be no schema.
            out.update({key: value} if key != "multipleOf" or value > 0 else {})
    for key in _COUNTS:
        value = node.get(key)
        fits = key.endswith("Items") == (kind == "array") and kind in ("string", "array")
        if fits and type(value) is int and 0 <= value < 2**31:
            out[key] = value
    if kind != "string":
        return
    if str(node.get("format")) in _FORMATS:
        out["format"] = str(node["format"])
    pattern = node.get("pattern")
    # Look-around is in no wire's dialect.
    if isinstance(pattern, str) and "(?" not in pattern:
        try:
            re.compile(pattern[: _PATTERN_CHARS + 1])
        except (re.error, RecursionError, OverflowError):
            return
        if pattern == visible(pattern, _PATTERN_CHARS):
            out["pattern"] = pattern


def _is_finite(value: float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**53


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether it is short, plain JSON that shows nothing hidden."""
    if isinstance(value, str):
        return value.strip() == visible(value, _VALUE_CHARS)
    if isinstance(value, list | dict):
        items = cast("list[Any]", value)
        if isinstance(value, dict):
            items = [it for pair in cast("JsonSchema", value).items() for it in pair]
        return (
            depth > 0
            and len(items) <= _MOST_CHOICES
            and all(_is_plain(it, depth - 1) for it in items)
        )
    return value is None or isinstance(value, bool) or _is_finite(value)


def _distinct(items: list[Any]) -> list[Any]:
    seen: dict[bytes, Any] = {}
    for item in items:
        seen.setdefault(dump_json(item), item)
    return list(seen.values())
