"""Front matter: the YAML between two lines of `---` at the start of a Markdown file.

Owns reading it as others write it, and changing single keys of it so that the comments and the
order of the others stay.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from nbagent.contracts.errors import ToolError

T = TypeVar("T")

_BLOCK = re.compile(
    r"\ufeff?\s*---[ \t]*(?P<eol>\r?\n)(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)"
)
_OPENED = re.compile(r"\ufeff?\s*---[ \t]*\r?\n(?=[A-Za-z_][\w-]*:)")
_LARGEST_CHARS = 100_000
_MOST_MARKS = 8_000
"""Line ends, commas, colons and brackets: reading so many takes the library about a second."""
_MOST_ALIASES = 20
"""With many of them a small text is a huge value."""
_ALIAS = re.compile(r"\*\w")
_OLD_BOOLEANS = frozenset({"yes", "no", "on", "off", "y", "n"})
_LINE = re.compile(r"(?P<key>[A-Za-z_][\w.-]*):[ \t]+(?P<value>\S.*?)\s*")


class FrontMatter(NamedTuple):
    """A text in its two pieces."""

    mapping: dict[str, Any]
    """JSON values; empty when there is no front matter."""
    body: str
    warnings: tuple[str, ...] = ()


def read_frontmatter(text: str) -> FrontMatter:
    """Split the text of a file into its front matter and the rest.

    Texts that should stand in quotes, as those with a colon, are taken as they are meant; it is
    said in `warnings`.

    Raises:
        ToolError: `E_INVALID_FRONTMATTER`, it cannot be read.
    """
    block = _block(text)
    if block is None:
        return FrontMatter({}, text)
    source, body = block["yaml"], text[block.end() :]
    try:
        return FrontMatter(_mapping(source), body)
    except ToolError as first:
        try:
            return FrontMatter(_mapping(_quoted(source)), body, (first.message,))
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
    start, end = block.span("yaml")
    new = _changed(block["yaml"].replace("\r\n", "\n"), changes)
    return text[:start] + new.replace("\n", block["eol"]) + text[end:]


def _changed(source: str, changes: Mapping[str, Any]) -> str:
    """The YAML with keys set or deleted; comments, order and quotes of the others stay."""
    wanted = {**_mapping(source), **changes}
    wanted = {key: value for key, value in wanted.items() if changes.get(key, "") is not None}
    yaml: Any = YAML()
    yaml.width = 1 << 16  # Lines are not wrapped anew.
    yaml.preserve_quotes = True
    # Lists are indented as in the text.
    dash = re.search(r"^[\w\"'][^\n]*:[ \t]*\n(?P<dash> *)- ", source, re.MULTILINE)
    offset = len(dash["dash"]) if dash else 2
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)

    def change() -> str:
        there: Any = yaml.load(source) or {}
        for key, value in changes.items():
            # What readers of the older YAML take for true or false is quoted.
            odd = isinstance(value, str) and value.casefold() in _OLD_BOOLEANS
            there[key] = DoubleQuotedScalarString(value) if odd else value
            if value is None:
                del there[key]
        out = io.StringIO()
        yaml.dump(there, out)
        return out.getvalue() if there else ""

    new = _guarded(change)
    if _mapping(new) != wanted:
        _fail("it has a form in which single keys cannot be changed; write its lines")
    return new


def _block(text: str) -> re.Match[str] | None:
    block = _BLOCK.match(text[: 2 * _LARGEST_CHARS])
    if block is None:
        if _OPENED.match(text):
            _fail("the line --- that ends it is missing, or is too far away")
        return None
    marks = sum(map(block["yaml"].count, "\n,:[{"))
    aliases = len(_ALIAS.findall(block["yaml"]))
    if len(block["yaml"]) > _LARGEST_CHARS or marks > _MOST_MARKS or aliases > _MOST_ALIASES:
        _fail("it is too long, or holds too many values")
    return block


def _mapping(source: str) -> dict[str, Any]:
    """The YAML as JSON values."""
    yaml: Any = YAML(typ="safe", pure=True)

    def load() -> Any:
        there = yaml.load(source)
        return json.loads(json.dumps({} if there is None else there, default=_plain))

    mapping = _guarded(load)
    if not isinstance(mapping, dict):
        _fail("it is no list of 'key: value' lines")
    return cast("dict[str, Any]", mapping)


def _plain(value: object) -> object:
    """What YAML has and JSON has not."""
    if isinstance(value, set):
        return list(cast("set[object]", value))
    return value.isoformat() if isinstance(value, date) else str(value)


def _guarded(work: Callable[[], T]) -> T:
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


def _quoted(source: str) -> str:
    """The YAML with the values of single lines in quotes where they are no YAML without."""
    lines: list[str] = []
    for line in source.split("\n"):
        plain = _LINE.fullmatch(line)
        if plain is not None:
            try:
                _mapping(line)
            except ToolError:
                line = f"{plain['key']}: {json.dumps(plain['value'], ensure_ascii=False)}"
        lines.append(line)
    return "\n".join(lines)
