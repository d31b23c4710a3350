"""A tool's JSON Schema as parameters, and how well a value of a prompt suits one of them.

Reads schemas; puts nothing together. That is `arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nbagent.contracts.chat import ToolSpec
from nbagent.providers.offline.words import Candidate, stem, stems, words

_ID = frozenset(words("id key ref reference uuid sku token code number identifier"))
HERE = "."
"""The folder that a server runs in, where a repository is asked for and none is named."""
_REPOSITORY = frozenset(words("repo repository"))
_FOLDERS = frozenset(words("path dir directory folder root"))
_CODES = frozenset(words("currency country language airport unit from to base quote"))
KINDS: tuple[tuple[frozenset[str], dict[str, float]], ...] = (
    (frozenset(("path", "file", "filename", "folder", "directory")), {"path": 3, "quoted": 2}),
    (frozenset(("url", "uri", "link", "website")), {"url": 3, "quoted": 1}),
    (frozenset(("email", "mail", "recipient")), {"email": 3, "name": 1, "quoted": 1}),
    (
        frozenset(("date", "day", "when", "deadline", "month", "datetime", "time")),
        {"date": 3, "quoted": 1},
    ),
    (
        frozenset(("expression", "formula", "expr", "calculation", "equation")),
        {"expression": 3, "quoted": 2, "number": 1},
    ),
    (frozenset(("code", "sql", "script", "command", "source")), {"quoted": 3}),
    (
        frozenset(
            ("text", "message", "body", "content", "sentence", "string", "phrase", "note", "words")
        ),
        {"quoted": 3},
    ),
    (
        frozenset(("query", "q", "question", "topic", "search", "keyword", "keywords", "term")),
        {"quoted": 3},
    ),
)
_ANY_TEXT = {"quoted": 3, "name": 3, "identifier": 2, "words": 1.5, "path": 1, "url": 1, "email": 1}
FREE_TEXT = KINDS[-2][0] | KINDS[-1][0] | {"prompt", "input", "title", "subject"}
_ROLES: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (
        frozenset(words("from origin source start departure sender base")),
        frozenset(("from",)),
    ),
    (
        frozenset(words("to destination target end arrival recipient into")),
        frozenset(("to", "into")),
    ),
    (
        frozenset(words("in city place location country town region area")),
        frozenset(("in", "at", "near")),
    ),
    (frozenset(words("date day when time")), frozenset(("on", "at", "by"))),
    (frozenset(words("topic subject about")), frozenset(("about",))),
    (frozenset(words("author artist by")), frozenset(("by",))),
    (frozenset(words("name title label")), frozenset(("named", "called"))),
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool, or the items of a list."""

    name: str
    type: str
    required: bool = False
    choices: tuple[Any, ...] = ()
    words: frozenset[str] = frozenset()
    hints: frozenset[str] = frozenset()
    """Stems of its name and description."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    items: Parameter | None = None

    @property
    def is_id(self) -> bool:
        """Whether it wants an identifier rather than a name."""
        return bool(self.words & _ID) and not self.words & _CODES and self.type != "number"

    @property
    def is_zone(self) -> bool:
        """Whether it wants a time zone by its IANA name."""
        return "timezone" in self.words and "iana" in self.hints

    @property
    def is_repository(self) -> bool:
        """Whether it wants the folder of a repository."""
        return bool(self.words & _REPOSITORY and self.words & _FOLDERS)


def from_server(name: str) -> bool:
    """Whether a tool's name is that of an MCP server's tool: `git__status`."""
    return "__" in name.strip("_")


def parameters_of(tool: ToolSpec) -> list[Parameter]:
    """The parameters of a tool, in the order of its schema."""
    return _properties(tool.parameters, tool.parameters)


def _properties(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Parameter]:
    properties = _mapping(schema.get("properties"))
    required = schema.get("required") or ()
    return [
        _parameter(name, _mapping(one), root, required=name in required)
        for name, one in properties.items()
    ]


def _parameter(
    name: str, schema: Mapping[str, Any], root: Mapping[str, Any], *, required: bool = False
) -> Parameter:
    hints = frozenset(stems(f"{name} {schema.get('description', '')}"))
    schema = _resolved(schema, root)
    hints |= frozenset(stems(str(schema.get("description", ""))))
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in cast("list[Any]", kind) if one != "null"), None)
    choices = (schema["const"],) if "const" in schema else tuple(schema.get("enum") or ())
    if kind is None:
        kind = "object" if "properties" in schema else "string"
    items = None
    if kind == "array":
        items = _parameter(name, _mapping(schema.get("items")), root)
    return Parameter(
        name=name,
        type=str(kind),
        required=required,
        choices=tuple(choice for choice in choices if choice is not None),
        words=frozenset(words(name)) | frozenset(word.rstrip("s") for word in words(name)),
        hints=hints,
        schema=schema,
        items=items,
    )


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow `$ref`; of a union take the first member that is not null."""
    ref: Any
    union: Any
    for _ in range(8):
        if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
            target: Any = root
            for step in ref[2:].split("/"):
                target = _mapping(target).get(step)
            schema = _mapping(target)
            continue
        union = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if not isinstance(union, list):
            break
        members = [_mapping(one) for one in cast("list[Any]", union)]
        schema = next((one for one in members if one.get("type") != "null"), _mapping(None))
    return schema


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def chosen(parameter: Parameter, prompt: str) -> list[Any]:
    """The listed values that the prompt names, in the prompt's order."""
    low, bag = (
        prompt.lower(),
        [(m.start(), stem(m.group())) for m in re.finditer(r"[^\W_]+", prompt)],
    )
    at: list[tuple[int, Any]] = []
    for choice in parameter.choices:
        text = str(choice).lower()
        match = re.search(rf"(?<!\w){re.escape(text).replace('_', '[ _-]')}(?!\w)", low)
        if match:
            at.append((match.start(), choice))
            continue
        wanted = stem(text)
        position = next((start for start, one in bag if one == wanted), None)
        if position is not None:
            at.append((position, choice))
    return [choice for _, choice in sorted(at, key=lambda pair: pair[0])]


def preference(parameter: Parameter) -> Mapping[str, float]:
    """How well each kind of candidate suits a parameter that takes text."""
    if parameter.schema.get("format") in ("date", "date-time", "time"):
        return {"date": 3, "quoted": 1}
    if parameter.schema.get("format") in ("uri", "url"):
        return {"url": 3, "quoted": 1}
    if parameter.schema.get("format") == "email":
        return {"email": 3, "quoted": 1}
    if parameter.type != "string":
        return {}
    for names, preferred in KINDS:
        if parameter.words & names and not (parameter.words & _CODES and "code" in parameter.words):
            return preferred
    if parameter.is_id:
        return {"identifier": 3, "number": 2, "quoted": 2}
    return _ANY_TEXT


def suited(parameter: Parameter, one: Candidate) -> tuple[Any, float] | None:
    """The candidate as a value of this parameter and how well it suits; None when it does not."""
    if parameter.choices:
        return None
    if parameter.type in ("integer", "number"):
        number = _number(one) if one.kind == "number" else None
        if number is None or (parameter.type == "integer" and number != int(number)):
            return None
        low, high = parameter.schema.get("minimum"), parameter.schema.get("maximum")
        if (low is not None and number < low) or (high is not None and number > high):
            return None
        return (int(number) if number == int(number) else number), 2.0
    if parameter.type != "string":
        return None
    suits = preference(parameter).get(one.kind, 0.0)
    if parameter.is_id and one.kind == "name" and one.text.isupper():
        suits = 1.0
    pattern = parameter.schema.get("pattern")
    if suits and isinstance(pattern, str) and not _matches(pattern, one.text):
        return None
    return (one.text, suits) if suits else None


def plain(parameter: Parameter, one: Candidate) -> Any:
    value = suited(parameter, one)
    return value[0] if value else None


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text[:200]) is not None
    except re.error:
        return True


_SCALES = {"k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9}


def _number(one: Candidate) -> float | int | None:
    text = one.text.replace(",", "")
    try:
        value: float | int = int(text) if re.fullmatch(r"[-+]?\d{1,30}", text) else float(text)
    except ValueError:
        return None
    scale = _SCALES.get(one.after, 1)
    return value * scale if scale != 1 else value


def role_of(parameter: Parameter, one: Candidate, others: Sequence[Parameter]) -> float:
    """How strongly the words around a candidate speak for this parameter, or against it."""
    near = {stem(one.before), stem(one.after)} - {""}
    own = set(stems(parameter.name))
    if near & own or (one.kind == "number" and stem(one.after) in parameter.hints):
        return 4.0
    mine = prepositions(parameter)
    if one.before in mine and one.kind != "number":
        return 3.0
    theirs = [other for other in others if other.name != parameter.name]
    if any(near & set(stems(other.name)) for other in theirs):
        return -2.0
    if one.kind != "number" and any(one.before in prepositions(other) for other in theirs):
        return -2.0
    return 0.0


def prepositions(parameter: Parameter) -> frozenset[str]:
    """The words that stand before its values."""
    found: set[str] = set()
    for names, prepositions in _ROLES:
        if parameter.words & names:
            found |= prepositions
    return frozenset(found)
