"""Front matter: the YAML between two lines of `---` at the start of a Markdown file.

Reads it leniently or strictly, and changes it in place; `frontmatter_splice` finds the places.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import date
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    LiteralScalarString,
    SingleQuotedScalarString,
)
from ruamel.yaml.tokens import AliasToken

from nbagent.contracts.errors import ToolError
from nbagent.files.frontmatter_operations import Operation, Verb, read_operations
from nbagent.files.frontmatter_splice import (
    Dump,
    Unspliceable,
    keeps_rest,
    read_tree,
    same,
    splice,
)

T = TypeVar("T")

_BLOCK = re.compile(
    r"\ufeff?\s*---[ \t]*(?P<eol>\r?\n)(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)"
)
_UNCLOSED_BLOCK = re.compile(r"\ufeff?\s*---[ \t]*\r?\n(?=[A-Za-z_][\w-]*:)")
_MAX_CHARS = 100_000
_MAX_MARKS = 8_000
"""Line ends, commas, colons and brackets: the library reads this number in about a second."""
_MAX_DEPTH = 50
"""Brackets within brackets: the library takes seconds for thousands of them."""
_DEEP_LIST = re.compile(rf"(?:[-?][ \t]+){{{_MAX_DEPTH + 1}}}")
_MAX_LINE_CHARS = 2_000
"""A longer line is not tried again in quotes."""
_MAX_ALIASES = 20
"""With many of them a small text is a huge value."""
_ALIAS = re.compile(r"\*\w")
_OLD_BOOLEANS = frozenset({"yes", "no", "on", "off", "y", "n"})
_OLD_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
"""A time such as 1:30 is the number 90 in older YAML."""
_ODD_BREAK = re.compile("[\x85\u2028\u2029]")
"""Line ends of older YAML, which the library loses outside of double quotes."""
_QUOTES: dict[str, Callable[[str], str]] = {
    '"': DoubleQuotedScalarString,
    "'": SingleQuotedScalarString,
    "|": LiteralScalarString,
    ">": FoldedScalarString,
}
_LINE = re.compile(
    r"(?P<start>[ \t]*(?:-[ \t]+)*[A-Za-z_][\w.-]*:[ \t]+|[ \t]*(?:-[ \t]+)+)(?P<value>\S.*)"
)
"""`key: value`, `- value`, `- key: value`."""
_ODD_VALUE = re.compile(r"[@`{\[%&*!'\"|>\d]|.*:(?:[ \t]|$)")
"""Values that may be invalid YAML without quotes."""
_MEANT_AS_TEXT = re.compile(r"[@%`*]|\{[^{}]*\}|\{\{[^{}]*\}\}|[^\"'\[{].*:(?:[ \t]|$)")
"""Values that strict reading puts in quotes, too; an unclosed quote or bracket is an error."""
_OPENED_VALUE = re.compile("quoted scalar|flow")
"""Words in the library's error about an unclosed quote or bracket."""
_BLOCK_TEXT = re.compile(r".*(?:[:-]|^)[ \t]+[|>][+-]?\d?[+-]?[ \t]*(?:#.*)?\r?")


class FrontMatter(NamedTuple):
    """A text, split into front matter and body."""

    mapping: dict[str, Any]
    """JSON values; empty when there is no front matter."""
    body: str
    warnings: tuple[str, ...] = ()
    lines: Mapping[str, int] = MappingProxyType({})
    """Line in the file, from 1, of each key and list entry, such as `critical_actions.0.load`; of
    strict reading only."""


def read_frontmatter(text: str, *, strict: bool = False) -> FrontMatter:
    """Split the text of a file into its front matter and the rest.

    Texts that need quotes, such as those with a colon, are read as meant, with a note in
    `warnings`.

    Args:
        text: the whole file.
        strict: refuse aliases, anchors and tags, and return the line of each key.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, it cannot be read. `details["problems"]` is a list of
            `[line, problem]`; the line is None if it concerns the whole.
    """
    block = _block(text)
    if block is None:
        return FrontMatter({}, text)
    source, body = block["yaml"], text[block.end() :]
    first_line = text.count("\n", 0, block.start("yaml")) + 1
    return _read(source, body, first_line, strict=strict)


def read_yaml(text: str) -> FrontMatter:
    """Read a whole file of YAML as strict front matter; its body is empty."""
    source = text.removeprefix("\ufeff")
    _check_size(source)
    return _read(source, "", 1, strict=True)


def _read(source: str, body: str, first_line: int, *, strict: bool) -> FrontMatter:
    def front_matter(source: str, *warnings: str) -> FrontMatter:
        lines = _key_lines(source, first_line) if strict else MappingProxyType[str, int]({})
        return FrontMatter(_mapping(source, first_line), body, warnings, lines)

    try:
        return front_matter(source)
    except ToolError as first:
        try:
            return front_matter(_quote_values(source, strict=strict), first.message)
        except ToolError as second:
            # Strict reading reports only problems that quotes do not repair.
            raise (second if strict else first) from None


def update_frontmatter(text: str, update: Mapping[str, Any]) -> str:
    """Apply the operations of an update; return the text. See `frontmatter_operations`.

    A text without front matter gets one.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, the front matter cannot be read or changed so;
            `E_SCHEMA_VALIDATION`, the update is not valid for it.
    """
    operations = read_operations(update)

    def change(there: Any) -> None:
        for operation in operations:
            if not operation.is_empty:
                _apply_operation(there, operation)

    return edit_frontmatter(text, change)


def _apply_operation(there: Any, operation: Operation) -> None:
    key, verb, value = operation
    now = there.get(key)
    if verb == "append":
        append_items(there, key, operation.items)
    elif verb == "set" and isinstance(value, Mapping):
        if not isinstance(now, dict):
            there[key] = {}
        set_names(there, key, cast("Mapping[str, Any]", value))
    else:
        if value is not None:
            _check_replacement(key, verb, now)
        _set_key(there, key, value)


def _check_replacement(key: str, verb: Verb, now: Any) -> None:
    """Refuse a value that would replace what was most likely to be added to."""
    if isinstance(now, list) and verb == "value":
        _fail_schema(f'{key!r} is a list; write {{"append": […]}}, or {{"set": […]}} to replace it')
    if isinstance(now, dict):
        _fail_schema(
            f'{key!r} is an object; write {{"set": {{"name": value}}}} to set its names '
            "(null deletes one)"
        )


def set_names(there: Any, key: str, values: Mapping[str, Any]) -> None:
    """Set names within the object of a key, in an edit; null deletes. The other names stay."""
    for name, value in values.items():
        _set_key(there[key], name, value)


def append_items(there: Any, key: str, items: list[Any]) -> None:
    """Append items to the list of a key, in an edit; a key without a value gets a list."""
    now = there.get(key)
    if now is None:
        there[key] = settable(items)
    elif isinstance(now, list):
        there[key] += settable(items)
    else:
        _fail_schema(f'{key!r} is no list, so nothing can be appended; write {{"set": …}}')


def _set_key(there: Any, key: str, value: Any) -> None:
    there[key] = settable(value)
    if value is None:  # after it was set: it may be missing, which is no error
        del there[key]


def _fail_schema(why: str) -> NoReturn:
    raise ToolError(why, code="E_SCHEMA_VALIDATION")


def edit_frontmatter(text: str, edit: Callable[[Any], None]) -> str:
    """Change the front matter in place by `edit`; return the text.

    `edit` is called with the values. Only the lines of values that it changes are written anew:
    comments, order, quotes and line ends of the rest stay.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, the front matter cannot be read or changed so.
    """
    block = _block(text)
    if block is None:
        eol = "\r\n" if "\r\n" in text else "\n"
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        made = _apply_edit("", edit, eol)
        return f"{mark}---{eol}{made}---{eol}{text.removeprefix(mark)}" if made else text
    start, end = block.span("yaml")
    return text[:start] + _apply_edit(block["yaml"], edit, block["eol"]) + text[end:]


def settable(value: Any) -> Any:
    """Prepare a JSON value: texts that older YAML reads as true, false or a number get quotes."""
    if isinstance(value, str):
        is_odd = value.casefold() in _OLD_BOOLEANS or _OLD_NUMBER.fullmatch(value)
        is_odd = is_odd or _ODD_BREAK.search(value)
        return DoubleQuotedScalarString(value) if is_odd else value
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return {key: settable(item) for key, item in pairs}
    return (
        [settable(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value
    )


def _apply_edit(source: str, edit: Callable[[Any], None], eol: str = "\n") -> str:
    """The YAML after the edit; every other character of it stays."""
    before = _mapping(source)
    there = deepcopy(before)
    edit(there)
    try:
        wanted = json.loads(json.dumps(there))
        _check_numbers(before, wanted)
        if same(before, wanted):
            return source
        tree = read_tree(source, _events(source))
        new = splice(source, tree, before, wanted, _dump(source))
        new = new if source else new.replace("\n", eol)
        _check_size(new)
        changed = read_tree(new, _events(new))
        is_right = same(_mapping(new), wanted)
        if is_right and tree and changed:
            is_right = keeps_rest(tree, changed, before, wanted)
    except (Unspliceable, ValueError, TypeError):
        is_right, new = False, source
    if not is_right:
        why = "it has a form in which it cannot be changed so; write its lines"
        _fail((None, f"{why} with oldText and newText"))
    return new


def _check_numbers(before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ValueError if a changed value has a number that JSON does not have."""
    for key, value in wanted.items():
        if key not in before or not same(before[key], value):
            json.dumps(value, allow_nan=False)


def _dump(source: str) -> Dump:
    """Writers of YAML: lists are indented as in the text."""
    dash = re.search(r"^[\w\"'][^\r\n]*:[ \t]*(?:#.*)?\r?\n(?P<dash> *)- ", source, re.MULTILINE)
    offset = len(dash["dash"]) if dash else 2

    def write(value: Any, *, flow: bool = False) -> str:
        yaml: Any = YAML()
        yaml.width = 1 << 20  # Keep long lines as they are.
        yaml.default_flow_style = flow
        yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
        out = io.StringIO()
        yaml.dump(value, out)
        return out.getvalue()

    def block(values: Mapping[str, Any], style: str) -> str:
        return write({key: _styled(value, style) for key, value in values.items()})

    def flow(value: Any, style: str) -> str:
        plain = json.dumps(value, ensure_ascii=False)
        if "null" in plain or "\\n" in plain:  # the library leaves it empty, or breaks the line
            return plain
        if isinstance(value, dict | list):
            return write(settable(value), flow=True).rstrip("\n")
        return write([_styled(value, style)], flow=True).rstrip("\n")[1:-1]

    def is_text(key: str) -> bool:
        yaml: Any = YAML(typ="safe", pure=True)
        return isinstance(_call_yaml(lambda: yaml.load(key)), str)

    return Dump(block, flow, is_text)


def _styled(value: Any, style: str) -> Any:
    """Prepare a value for the library; a text keeps the quotes that it had."""
    quoted = _QUOTES.get(style)
    if quoted is None or not isinstance(value, str) or _ODD_BREAK.search(value):
        return settable(value)
    return quoted(value)


def _block(text: str) -> re.Match[str] | None:
    block = _BLOCK.match(text[: 2 * _MAX_CHARS])
    if block is None:
        if _UNCLOSED_BLOCK.match(text):
            _fail((None, "the line --- that ends it is missing, or is too far away"))
        return None
    _check_size(block["yaml"])
    return block


def _check_size(source: str) -> None:
    if len(source) > _MAX_CHARS or sum(map(source.count, "\n,:[{")) > _MAX_MARKS:
        _fail((None, "it is too long, or holds too many values"))
    depth = 0
    for bracket in re.findall(r"[\[{}\]]", source):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _MAX_DEPTH:
            break
    if depth > _MAX_DEPTH or _DEEP_LIST.search(source):
        _fail((None, f"more than {_MAX_DEPTH} brackets or lists are open within each other"))


def _mapping(source: str, first_line: int = 2) -> dict[str, Any]:
    """The YAML as JSON values."""
    yaml: Any = YAML(typ="safe", pure=True)

    def load() -> Any:
        # A star is mostly an emphasis of Markdown: the library says what is an alias.
        if len(_ALIAS.findall(source)) > _MAX_ALIASES:
            tokens: Any = yaml.scan(source)
            if sum(isinstance(token, AliasToken) for token in tokens) > _MAX_ALIASES:
                raise ValueError("too many aliases")
        there = yaml.load(source)
        return json.loads(json.dumps({} if there is None else there, default=_plain))

    mapping = _call_yaml(load, first_line)
    if not isinstance(mapping, dict):
        _fail((None, "it is no list of 'key: value' lines"))
    return cast("dict[str, Any]", mapping)


def _plain(value: object) -> object:
    """Convert YAML values that JSON does not have."""
    if isinstance(value, set):
        return list(cast("set[object]", value))
    return value.isoformat() if isinstance(value, date) else str(value)


def _events(source: str, first_line: int = 2) -> list[Any]:
    """Parse events of the YAML; no value is built yet."""
    yaml: Any = YAML(typ="safe", pure=True)
    return _call_yaml(lambda: list(yaml.parse(source)), first_line)


def _has_anchor(event: Any) -> bool:
    return getattr(event, "anchor", None) is not None


def _key_lines(source: str, first_line: int) -> dict[str, int]:
    """Lines of keys and entries; strict reading raises all its problems at once."""
    anchors = filter(_has_anchor, _events(source, first_line))
    why = "aliases and anchors of YAML are not read here; write the value out, or put it in quotes"
    problems: list[tuple[int, str]] = [(event.start_mark.line, why) for event in anchors]
    yaml: Any = YAML(typ="safe", pure=True)
    lines: dict[str, int] = {}

    def walk() -> None:
        for path, line in _key_positions(yaml.compose(source), ""):
            if path in lines:
                problems.append((line, f"the key {path!r} stands here a second time"))
            lines.setdefault(path, line + first_line)

    if not problems:
        _call_yaml(walk, first_line)
    if problems:
        _fail(*((line + first_line, why) for line, why in problems))
    return lines


def _key_positions(node: Any, above: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, MappingNode):
        for key, value in cast("list[tuple[Any, Any]]", node.value):  # pyright: ignore[reportUnknownMemberType]
            path = f"{above}{key.value}"
            yield path, key.start_mark.line
            yield from _key_positions(value, f"{path}.")
    elif isinstance(node, SequenceNode):
        for number, value in enumerate(cast("list[Any]", node.value)):  # pyright: ignore[reportUnknownMemberType]
            yield f"{above}{number}", value.start_mark.line
            yield from _key_positions(value, f"{above}{number}.")


def _call_yaml(work: Callable[[], T], first_line: int = 2) -> T:
    """Call the YAML library; every exception of it becomes a problem of the text."""
    try:
        return work()
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", "") or "").split("\n")[0]
        context = str(getattr(error, "context", "") or "")
        if _OPENED_VALUE.search(context):
            # Name the line of its start; the library notices the missing end many lines later.
            mark = getattr(error, "context_mark", None)
            problem = (
                f"what begins here with a quote or bracket has no end, or an odd one: {problem}"
            )
        line = None if mark is None else mark.line + first_line
        _fail((line, f"it is not YAML: {problem or 'it cannot be read'}"))
    except (ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        _fail((None, f"it is not YAML that can be read ({type(error).__name__})"))


def _fail(*problems: tuple[int | None, str]) -> NoReturn:
    text = "; ".join(f"at line {line}: {why}" if line else why for line, why in problems)
    raise ToolError(
        f"the front matter cannot be used: {text}; correct it with fs.apply_patch",
        code="E_INVALID_FRONTMATTER",
        details={"problems": [[line, why] for line, why in problems]},
    )


def _quote_values(source: str, *, strict: bool) -> str:
    """Put values of single lines in quotes where they are not valid YAML without."""
    lines: list[str] = []
    text_indent: int | None = None  # Indent of a block of text, which stays as it is.
    for line in source.split("\n"):
        indent = len(line) - len(line.lstrip())
        if text_indent is not None and line.strip() and indent <= text_indent:
            text_indent = None
        may_lack = text_indent is None and len(line) <= _MAX_LINE_CHARS
        match = _LINE.fullmatch(line) if may_lack else None
        value = match["value"].rstrip() if match else ""
        if match is not None and not _is_yaml(value, strict=strict):
            line = match["start"] + json.dumps(value, ensure_ascii=False)
        elif text_indent is None and _BLOCK_TEXT.fullmatch(line):
            text_indent = indent
        lines.append(line)
    return "\n".join(lines)


def _is_yaml(value: str, *, strict: bool) -> bool:
    """True if the text is valid as the value of a key; a real alias does not lack quotes."""
    if not _ODD_VALUE.match(value) or (strict and not _MEANT_AS_TEXT.match(value)):
        return True
    try:
        events = _events(f"x: {value}")
        if strict or any(map(_has_anchor, events)):
            return True
        return bool(_mapping(f"x: {value}"))
    except ToolError:
        return False
