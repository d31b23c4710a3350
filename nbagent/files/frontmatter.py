"""Front matter: the YAML between two lines of `---` at the start of a Markdown file.

Owns reading it (also leniently, as others write it) and changing single keys of it so that every
other byte of the file stays. Keys that are changed keep their comment.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NamedTuple, NoReturn, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError

_BLOCK = re.compile(
    r"(?P<head>\ufeff?(?:[ \t]*\r?\n){0,1000}+---[ \t]*(?P<eol>\r?\n))"
    r"(?P<yaml>(?:(?!(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)).*(?:\n|\Z)){0,100000}?)"
    r"(?P<tail>(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z))"
)
_LARGEST_CHARS = 100_000
_MOST_MARKS = 8_000
"""Line ends, commas, colons and brackets: reading so many takes the library about a second."""
_MOST_MERGES = 50
_MOST_VALUES = 50_000
_DEEPEST = 40
_PLAIN_LINE = re.compile(r"(?P<key>[A-Za-z_][\w.-]*):[ \t]+(?P<value>\S.*?)[ \t]*")
_BOOLEANS = frozenset({"yes", "no", "on", "off", "y", "n"})
_BEGINS_SPECIAL = tuple("\"'[{|>&*!%@`#")


class FrontMatter(NamedTuple):
    """A text in its two pieces."""

    mapping: dict[str, Any]
    """JSON values; empty when there is no front matter."""
    body: str
    warnings: tuple[str, ...] = ()


def read_frontmatter(text: str, *, lenient: bool = False) -> FrontMatter:
    """Split a text into its front matter and the rest.

    Args:
        text: of a whole file.
        lenient: mend what many files have wrong (unquoted colons, tabs, keys given twice) and say
            so in `warnings`.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, it cannot be read.
    """
    block = _block(text)
    if block is None:
        return FrontMatter({}, text)
    source, body = block["yaml"], text[block.end() :]
    try:
        return FrontMatter(_mapping(source), body)
    except ToolError as error:
        if not lenient:
            raise
        first = error
    mended, warnings = _mended(source)
    try:
        return FrontMatter(_mapping(mended, twice=True), body, tuple(warnings) or (first.message,))
    except ToolError:
        raise first from None


def update_frontmatter(text: str, changes: Mapping[str, Any]) -> str:
    """The text with keys of its front matter set, or deleted where the value is None.

    Whole values are set; what stands in nested objects is not merged. A text without front matter
    gets one.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, what is there cannot be read.
    """
    block = _block(text)
    if block is None:
        eol = "\r\n" if "\r\n" in text else "\n"
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        given = {key: value for key, value in changes.items() if value is not None}
        if not given:
            return text
        made = _dumped(given).replace("\n", eol)
        return f"{mark}---{eol}{made}---{eol}{text.removeprefix(mark)}"
    eol = block["eol"]
    source = block["yaml"].replace("\r\n", "\n")
    wanted = {**_mapping(source), **changes}
    for key, value in changes.items():
        if value is None:
            del wanted[key]
    new = _changed(source, changes)
    if not _means(new, wanted):
        # A form that cannot be changed by the line (a flow mapping, an anchor used elsewhere).
        new = _changed_as_a_whole(source, changes)
        if not _means(new, wanted):
            _fail("it has a form in which single keys cannot be changed; ask the person")
    start, end = block.span("yaml")
    return text[:start] + new.replace("\n", eol) + text[end:]


def _block(text: str) -> re.Match[str] | None:
    block = _BLOCK.match(text)
    if block is None:
        opened = re.match(
            r"\ufeff?(?:[ \t]*\r?\n){0,1000}+---[ \t]*\r?\n(?=[A-Za-z_][\w-]*:)", text
        )
        if opened is not None:
            _fail("the line --- that ends it is missing")
        return None
    if len(block["yaml"]) > _LARGEST_CHARS:
        _fail(f"it is longer than {_LARGEST_CHARS:,} characters")
    marks = sum(map(block["yaml"].count, "\n,:[{"))
    if marks > _MOST_MARKS or block["yaml"].count("<<") > _MOST_MERGES:
        _fail("it holds too many values")
    return block


def _mapping(source: str, *, twice: bool = False) -> dict[str, Any]:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = twice
    found = _guarded(lambda: yaml.load(source))
    if found is None:
        return {}
    if not isinstance(found, dict):
        _fail("it is no list of 'key: value' lines")
    plain = _Plain()
    items = cast("dict[Any, Any]", found).items()
    return {str(key): plain.value(value, 0) for key, value in items}


class _Plain:
    """YAML values as JSON values. Counts them: aliases make a small text a huge value."""

    def __init__(self) -> None:
        self._seen = 0

    def value(self, given: Any, depth: int) -> Any:
        self._seen += 1
        if self._seen > _MOST_VALUES or depth > _DEEPEST:
            _fail("it holds too many values, or too deep ones")
        if isinstance(given, datetime | date):
            return given.isoformat()
        if isinstance(given, dict):
            items = cast("dict[Any, Any]", given).items()
            return {str(key): self.value(value, depth + 1) for key, value in items}
        if isinstance(given, list | tuple | set):
            return [self.value(value, depth + 1) for value in cast("list[Any]", given)]
        if isinstance(given, bytes):
            return given.decode("latin-1")
        if given is None or isinstance(given, str | bool | int | float):
            return given
        return str(given)


def _guarded(work: Any) -> Any:
    """Run the YAML library; whatever it raises is about the text."""
    try:
        return work()
    except ToolError:
        raise
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 2}" if mark is not None else ""
        problem = str(getattr(error, "problem", "") or "").split("\n")[0]
        _fail(f"it is not YAML{where}: {problem or 'it cannot be read'}")
    except (ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        _fail(f"it is not YAML that can be read ({type(error).__name__})")


def _fail(why: str) -> NoReturn:
    raise ToolError(
        f"the front matter cannot be used: {why}; correct it with fs.apply_patch",
        code="E_INVALID_FRONTMATTER",
    )


def _mended(source: str) -> tuple[str, list[str]]:
    """The YAML with what is most often wrong put right, and what that was."""
    lines: list[str] = []
    warnings: list[str] = []
    for number, line in enumerate(source.replace("\r\n", "\n").split("\n"), 2):
        if line.startswith("\t"):
            line = line.expandtabs(2)
            warnings.append(f"line {number} is indented with a tab")
        match = _PLAIN_LINE.fullmatch(line)
        if match is not None and not match["value"].startswith(_BEGINS_SPECIAL):
            value = match["value"]
            if ": " in value or value.endswith(":") or " #" in value:
                line = f"{match['key']}: {json.dumps(value, ensure_ascii=False)}"
                warnings.append(f"line {number}: the value of {match['key']!r} should be quoted")
        elif match is not None and _is_broken(line):
            line = f"{match['key']}: {json.dumps(match['value'], ensure_ascii=False)}"
            warnings.append(f"line {number}: the value of {match['key']!r} should be quoted")
        lines.append(line)
    return "\n".join(lines), warnings


def _is_broken(line: str) -> bool:
    if line.rstrip().endswith(("|", ">", "|-", ">-", "|+", ">+")):
        return False
    try:
        _mapping(line)
    except ToolError:
        return True
    return False


def _writer(source: str) -> Any:
    """A round-trip YAML that indents lists as the text does."""
    dash = re.search(r"^[\w\"'][^\n]*:[ \t]*\n(?P<dash> *)- ", source, re.MULTILINE)
    offset = len(dash["dash"]) if dash else 2
    yaml: Any = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16  # Lines are not wrapped anew.
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _quoted(value: Any) -> Any:
    """A value with the texts quoted that readers of the older YAML take for true or false."""
    if isinstance(value, str):
        return DoubleQuotedScalarString(value) if value.casefold() in _BOOLEANS else value
    if type(value) is dict:
        items = cast("dict[str, Any]", value).items()
        return {key: _quoted(inner) for key, inner in items}
    if type(value) is list:
        return [_quoted(inner) for inner in cast("list[Any]", value)]
    return value


def _dumped(value: object, source: str = "") -> str:
    out = io.StringIO()
    _guarded(lambda: _writer(source).dump(_quoted(value), out))
    return out.getvalue()


def _changed(source: str, changes: Mapping[str, Any]) -> str:
    """Only the lines of the changed keys made anew; '' when that cannot be done."""
    found: Any = _guarded(lambda: _writer(source).load(source))
    if found is None:
        found = {}
    if json_object(found) is None or (found and found.fa.flow_style()):
        return ""
    lines = source.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    starts = {key: int(found.lc.key(key)[0]) for key in found} if found else {}
    ends = sorted({*starts.values(), len(lines)})
    chunks: list[tuple[int, int, list[str]]] = []
    added: list[str] = []
    for key, value in changes.items():
        if key not in starts:
            if value is not None:
                added += _dumped({key: value}, source).splitlines()
            continue
        start = starts[key]
        end = _without_trailing(lines, start, ends[ends.index(start) + 1])
        made = [] if value is None else _one_key(found, key, value, source)
        chunks.append((start, end, made))
    for start, end, made in sorted(chunks, reverse=True):
        lines[start:end] = made
    return "".join(f"{line}\n" for line in [*lines, *added])


def _without_trailing(lines: list[str], start: int, end: int) -> int:
    """Where a key's lines end, without the comments and blanks before the next key."""
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    return end


def _one_key(found: Any, key: str, value: Any, source: str) -> list[str]:
    """The lines of a key with its new value, and the comment that stood behind the old one."""
    made = _dumped({key: value}, source).splitlines()
    tokens: Any = found.ca.items.get(key)
    comment = tokens[2].value.split("\n")[0].strip() if tokens and tokens[2] else ""
    if comment.startswith("#") and len(made) == 1:
        made[0] += f"  {comment}"
    return made


def _changed_as_a_whole(source: str, changes: Mapping[str, Any]) -> str:
    """All of it written anew by the library; comments and order stay, spacing may not."""
    yaml = _writer(source)
    found: Any = _guarded(lambda: yaml.load(source))
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return _dumped(found, source)


def _means(source: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return _mapping(source) == _json(wanted)
    except ToolError:
        return False


def _json(value: Any) -> Any:
    plain = _Plain()
    return {key: plain.value(item, 0) for key, item in value.items()}
