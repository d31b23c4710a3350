"""Front matter: the YAML between two lines of `---` at the start of a Markdown file.

Owns reading it (also leniently, as others write it) and changing single keys of it so that every
other line of the file stays. Keys that are changed keep their comment.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple, NoReturn, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from nbagent.contracts.errors import ToolError

_BLOCK = re.compile(
    r"(?P<head>\ufeff?(?:[ \t]*\r?\n){0,1000}+---[ \t]*(?P<eol>\r?\n))"
    r"(?P<yaml>(?:(?!(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)).*(?:\n|\Z)){0,100000}?)"
    r"(?P<tail>(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z))"
)
_OPENED = re.compile(r"\ufeff?(?:[ \t]*\r?\n){0,1000}+---[ \t]*\r?\n(?=[A-Za-z_][\w-]*:)")
_LARGEST_CHARS = 100_000
_MOST_MARKS = 8_000
"""Line ends, commas, colons and brackets: reading so many takes the library about a second."""
_MOST_MERGES = 50
_MOST_VALUES = 50_000
_DEEPEST = 40
_PLAIN_LINE = re.compile(r"(?P<key>[A-Za-z_][\w.-]*):[ \t]+(?P<value>\S.*?)[ \t]*")


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
        ToolError: `E_INVALID_FRONTMATTER`, what is there cannot be read, or not be changed so.
    """
    block = _block(text)
    if block is None:
        eol = "\r\n" if "\r\n" in text else "\n"
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        made = _changed("", changes).replace("\n", eol)
        return f"{mark}---{eol}{made}---{eol}{text.removeprefix(mark)}" if made else text
    source = block["yaml"].replace("\r\n", "\n")
    start, end = block.span("yaml")
    return text[:start] + _changed(source, changes).replace("\n", block["eol"]) + text[end:]


def _changed(source: str, changes: Mapping[str, Any]) -> str:
    """The YAML with the lines of the changed keys made anew, and all others as they are."""
    wanted = {**_mapping(source), **changes}
    yaml: Any = YAML()
    yaml.width = 1 << 16  # Lines are not wrapped anew.
    # Lists are indented as in the text.
    dash = re.search(r"^[\w\"'][^\n]*:[ \t]*\n(?P<dash> *)- ", source, re.MULTILINE)
    offset = len(dash["dash"]) if dash else 2
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    found: Any = _guarded(lambda: yaml.load(source)) or {}
    lines = source.splitlines(keepends=True)
    starts = {key: int(found.lc.key(key)[0]) for key in found} if found else {}
    # From the last to the first: what is before keeps its place.
    for key, value in sorted(changes.items(), key=lambda it: -starts.get(it[0], -1)):
        start = starts.get(key, len(lines))
        end = min((it for it in starts.values() if it > start), default=len(lines))
        while end > start + 1 and (lines[end - 1].isspace() or lines[end - 1].startswith("#")):
            end -= 1  # A comment before the next key is about that one.
        made = [] if value is None else _dumped(yaml, key, value)
        comment = found.ca.items.get(key) if key in starts else None
        if len(made) == 1 and comment and comment[2]:
            made[0] = f"{made[0].rstrip()}  {comment[2].value.strip().partition(chr(10))[0]}\n"
        lines[start:end] = made
    new = "".join(lines)
    wanted = {key: value for key, value in wanted.items() if changes.get(key, "") is not None}
    try:
        same = _mapping(new) == wanted
    except ToolError:
        same = False
    if not same:
        # An object in braces, an anchor that is used elsewhere.
        _fail("it has a form in which single keys cannot be changed; write its lines")
    return new


def _dumped(yaml: Any, key: str, value: Any) -> list[str]:
    # What readers of the older YAML take for true or false.
    odd = isinstance(value, str) and value.casefold() in ("yes", "no", "on", "off", "y", "n")
    out = io.StringIO()
    _guarded(lambda: yaml.dump({key: DoubleQuotedScalarString(value) if odd else value}, out))
    return out.getvalue().splitlines(keepends=True)


def _block(text: str) -> re.Match[str] | None:
    block = _BLOCK.match(text)
    if block is None:
        if _OPENED.match(text):
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
        if isinstance(given, date):
            return given.isoformat()
        if isinstance(given, dict):
            items = cast("dict[Any, Any]", given).items()
            return {str(key): self.value(value, depth + 1) for key, value in items}
        if isinstance(given, list | tuple | set):
            return [self.value(value, depth + 1) for value in cast("list[Any]", given)]
        if given is None or isinstance(given, str | bool | int | float):
            return given
        return given.decode("latin-1") if isinstance(given, bytes) else str(given)


def _guarded(work: Callable[[], Any]) -> Any:
    """Run the YAML library; whatever it raises is about the text."""
    try:
        return work()
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
        if match is not None and not _is_right(match["value"]):
            line = f"{match['key']}: {json.dumps(match['value'], ensure_ascii=False)}"
            warnings.append(f"line {number}: the value of {match['key']!r} should be quoted")
        lines.append(line)
    return "\n".join(lines), warnings


def _is_right(value: str) -> bool:
    """Whether a value of one line means what it seems to."""
    if value[0] in "\"'[{|>&*!%@`#":
        if value in ("|", ">", "|-", ">-", "|+", ">+"):
            return True
        try:
            _mapping(f"key: {value}")
        except ToolError:
            return False
        return True
    return not (": " in value or value.endswith(":") or " #" in value)
