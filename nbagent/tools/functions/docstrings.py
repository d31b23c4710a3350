"""Docstrings of tools: the description, and a text for each parameter.

Owns the forms in which people describe parameters: sections of Google, NumPy and Markdown, and
fields of Sphinx, epytext and JSDoc. A text goes to the parameter that it names; any other line of a
section stays in the description as it was written. Other sections (Returns, …) are read by griffe.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MAX_CHARS = 4_000
_TITLE = (
    r"(?:(?:keyword|other|optional|required|function|tool|input)\s+)*"
    r"(?:args?|arguments?|params?|parameters?|kwargs|inputs)"
)
_HEADER = re.compile(
    rf"\s*(?:[:*_]{{0,2}}{_TITLE}\s*[*_]{{0,2}}\s*[:：][*_]{{0,2}}|#{{1,6}}\s+{_TITLE}\s*[:：]?"
    rf"|\*\*{_TITLE}\*\*)\s*",
    re.IGNORECASE,
)
_BARE_HEADER = re.compile(rf"\s*{_TITLE}\s*:?\s*", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,}|~{3,})\s*")
_OTHER_SECTION = re.compile(r"\s*(?:[A-Z][\w ]{2,30}[:：]|#{1,6}\s.*|\*\*[\w ]+:?\*\*:?)\s*")
_BULLET = r"(?:[-+*•–]\s+|\(?\d+[.)]\s+)?"
_NAMES = r"[^\W\d]\w*(?:\s*(?:,|/|\band\b)\s*[\\*`]*[^\W\d]\w*)*"
_TYPE = r"(?:\((?:[^()]|\([^()]*\))*\)|\[(?:[^\[\]]|\[[^\[\]]*\])*\]|\{[^{}]*\}|<[^<>]*>)"
_ENTRY = re.compile(
    rf"\s*(?P<bullet>{_BULLET})[\\`'\"*]{{0,4}}(?P<names>{_NAMES})[`'\"*]{{0,3}}\s*{_TYPE}?[`'\"*]*"
    r"(?:\s*(?P<mark>[:：]|=>|->|→|–|—)[`'\"*]*\s*|\s+--?\s+|\s*$)(?P<text>.*)"
)
"""One described parameter: `a: text`, `- a (int) : text`, `**a** – text`, `a : int`, `a`."""
_NUMPY_TYPE = re.compile(
    r"(?:(?:any|array(?:[-_]like)?|bool(?:ean)?|bytes|callable|datetime|dict(?:ionary)?|float|function"
    r"|int(?:eger)?|iterable|list|mapping|(?:np\.|numpy\.)?ndarray|none|number|object|sequence|set"
    r"|str(?:ing)?|tuple|optional|default)\b|[{'\"\d`:]).*(?<![.!?])",
    re.IGNORECASE,
)
"""A type by its first word, such as `int, optional` or `{'a', 'b'}`; it is no sentence."""
_NAMED_TYPE = re.compile(
    r"(?=[A-Za-z])[\w.\[\]]+(?:(?:\s+or\s+|\s*\|\s*|,\s*)[\w.\[\]]+)*(?<![.!?])"
)
"""Names of types, such as `pd.DataFrame or Path, optional`."""
_LIKE_ENTRY = re.compile(r"\s*(?:\S+\s+){0,2}\S+\s*(?:[:：]|\s--?\s)")
_FIELDS = (
    re.compile(
        r"\s*:(?:param|parameter|arg|argument|key|keyword|kwarg)\s+"
        r"(?:[^:]*[\s*\\])?(?P<name>[^\W\d]\w*)\s*:(?P<text>.*)",
        re.IGNORECASE,
    ),
    re.compile(
        r"\s*[@\\](?:param|arg|keyword)\s+(?:\{[^{}]*\}\s*)?\[?\*{0,2}(?P<name>[^\W\d]\w*)"
        r"(?:=[^\]]*)?\]?\s*(?:[:：–—-]\s*)?(?P<text>.*)",
        re.IGNORECASE,
    ),
)
_TYPE_FIELD = re.compile(r"\s*[:@](?:kw)?type\s+\*{0,2}(?P<name>\w+)\s*:.*", re.IGNORECASE)
_ANY_FIELD = re.compile(r"\s*[:@]\w+\b")
_MORE_SECTIONS = re.compile(r"^[ \t]*(?:[\w ]+:[ \t]*$|-{3,}[ \t]*$|:\w+)", re.MULTILINE)


def parse_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and a text for each of the named parameters.

    Sections for programmers (Raises, See also, …) are dropped if a parameter is described. If none
    is, the whole text is the description.
    """
    text = inspect.cleandoc(text)
    split = _SplitDocstring(text.splitlines(), names)
    if not split.texts:
        return text[:_MAX_CHARS], {}
    pieces = [
        piece.text if piece.is_raw else _without_programmer_sections(piece.text, split.style)
        for piece in split.pieces()
    ]
    description = "\n\n".join(piece.strip() for piece in pieces if piece.strip())
    return description[:_MAX_CHARS], split.texts


class _Piece(NamedTuple):
    """Consecutive lines that describe no parameter."""

    text: str
    is_raw: bool
    """True for the rest of a section of parameters, which griffe would drop."""


@dataclass(slots=True)
class _Block:
    """Lines of one entry: its first line and the lines that continue it."""

    lines: list[str] = field(default_factory=list[str])
    names: tuple[str, ...] = ()
    """Parameters that it describes."""

    @property
    def is_raw(self) -> bool:
        return not self.names and any(line.strip() for line in self.lines)


class _SplitDocstring:
    """The lines of a docstring, split into texts of parameters and all other lines."""

    def __init__(self, lines: Sequence[str], names: Collection[str]) -> None:
        self.texts: dict[str, str] = {}
        """Texts by parameter."""
        self.style = ""
        """Style of the first description of a parameter, as griffe calls it."""
        self._lines, self._names = lines, names
        self._rest: list[tuple[str, bool]] = []
        index = 0
        while index < len(lines):
            index = self._read_fields(index) or self._read_section(index) or self._add_line(index)

    def pieces(self) -> list[_Piece]:
        """The lines that describe no parameter, joined."""
        pieces: list[_Piece] = []
        for line, is_raw in self._rest:
            if pieces and pieces[-1].is_raw is is_raw:
                line = f"{pieces.pop().text}\n{line}"
            pieces.append(_Piece(line, is_raw))
        return pieces

    def _add_line(self, index: int) -> int:
        self._rest.append((self._lines[index], False))
        return index + 1

    def _read_fields(self, index: int) -> int:
        """Read one field, such as `:param a: text`; return the index behind it, 0 for no field."""
        line = self._lines[index]
        match = next((match for form in _FIELDS if (match := form.fullmatch(line))), None)
        if match is None:
            typed = _TYPE_FIELD.fullmatch(line)
            return index + 1 if typed and typed["name"] in self.texts else 0
        end = index + 1
        while end < len(self._lines) and _continues_field(self._lines, end, _indent(line)):
            end += 1
        body = self._lines[index + 1 : end]
        if not self._describe((match["name"],), [match["text"], *body], "sphinx"):
            self._rest += [(other, True) for other in self._lines[index:end]]
        return end

    def _read_section(self, index: int) -> int:
        """Read one section of parameters; return the index behind it, 0 for none."""
        start = _section_start(self._lines, index)
        if not start or _is_in_example(self._lines, index):
            return 0
        is_numpy = start == index + 2
        end = self._section_end(start, _indent(self._lines[index]))
        blocks = list(self._blocks(self._lines[start:end], is_numpy))
        raw = [line for block in blocks if block.is_raw for line in block.lines]
        if raw:
            header = self._lines[index:start]
            self._rest += [(line, True) for line in (*header, *raw)]
        return end

    def _section_end(self, start: int, indent: int) -> int:
        """Index behind the last line of a section whose header has this indentation."""
        lines = self._lines
        first = next((line for line in lines[start:] if line.strip()), "")
        is_flat = _indent(first) <= indent and bool(self._fitting(first))
        for index in range(start, len(lines)):
            line = lines[index]
            if not line.strip() or _indent(line) > indent:
                continue
            was_blank = index > start and not lines[index - 1].strip()
            is_other = _is_other_section(lines, index) and not self._fitting(line)
            if not is_flat or is_other or (was_blank and not _ENTRY.fullmatch(line)):
                return index
        return len(lines)

    def _blocks(self, lines: Sequence[str], is_numpy: bool) -> Iterator[_Block]:
        """Yield the entries of a section; those that fit have put their texts to the parameters."""
        base = next((_indent(line) for line in lines if line.strip()), 0)
        groups: list[list[str]] = []
        for line in lines:
            previous = groups[-1] if groups else [""]
            continues = not line.strip() or _indent(line) > base
            is_broken = _breaks_off(previous[-1]) and not _LIKE_ENTRY.match(line)
            if groups and (continues or (is_broken and self._fitting(previous[0]))):
                previous.append(line)
            else:
                groups.append([line])
        for group in groups:
            names = self._fitting(group[0])
            match = _ENTRY.fullmatch(group[0])
            if match is not None and names:
                text = _entry_text(match, group[1:], is_numpy)
                names = (
                    names if self._describe(names, text, "numpy" if is_numpy else "google") else ()
                )
            yield _Block(group, names)

    def _fitting(self, line: str) -> tuple[str, ...]:
        """Parameters that the first line of an entry names."""
        match = _ENTRY.fullmatch(line)
        named = re.findall(r"\w+", match["names"]) if match else ()
        return tuple(name for name in named if name in self._names)

    def _describe(self, names: Sequence[str], lines: Sequence[str], style: str) -> bool:
        """Put a text to parameters; False if one is unknown or has a text already."""
        if not all(name in self._names and not self.texts.get(name) for name in names):
            return False
        self.style = self.style or style
        self.texts.update(dict.fromkeys(names, " ".join(" ".join(lines).split())))
        return True


def _breaks_off(line: str) -> bool:
    """True if a line ends inside a sentence; the next one continues it without an indentation."""
    return bool(line.strip()) and not line.rstrip().endswith((".", "!", "?", ":"))


def _entry_text(match: re.Match[str], more: Sequence[str], is_numpy: bool) -> list[str]:
    """Text of an entry. In NumPy's form the first line has the type, and the text is below."""
    first = match["text"].strip()
    has_text_below = any(line.strip() for line in more)
    # In doubt it is kept as text: a type in a text does no harm.
    is_type = _NUMPY_TYPE.fullmatch(first) or (has_text_below and _NAMED_TYPE.fullmatch(first))
    return [*more] if is_numpy and is_type and not match["bullet"] else [first, *more]


def _section_start(lines: Sequence[str], index: int) -> int:
    """Index of the first line below a header of parameters; 0 if the line is no header."""
    below = lines[index + 1] if index + 1 < len(lines) else ""
    if _BARE_HEADER.fullmatch(lines[index]) and _UNDERLINE.fullmatch(below):
        return index + 2
    if _HEADER.fullmatch(lines[index]):
        return index + 1
    is_title = _BARE_HEADER.fullmatch(lines[index]) and lines[index].strip()[:1].isupper()
    return index + 1 if is_title and _indent(below) > _indent(lines[index]) else 0


def _is_in_example(lines: Sequence[str], index: int) -> bool:
    """True if an indented header belongs to another section, such as an example."""
    indent = _indent(lines[index])
    outer = (line for line in reversed(lines[:index]) if line.strip() and _indent(line) < indent)
    return next(outer, "").rstrip().endswith((":", "::"))


def _is_other_section(lines: Sequence[str], index: int) -> bool:
    below = lines[index + 1] if index + 1 < len(lines) else ""
    has_line = bool(_UNDERLINE.fullmatch(below)) and bool(below.strip())
    return has_line or bool(
        _OTHER_SECTION.fullmatch(lines[index]) or _ANY_FIELD.match(lines[index])
    )


def _continues_field(lines: Sequence[str], index: int, indent: int) -> bool:
    line = lines[index]
    if not line.strip():  # A further paragraph is indented.
        below = next((other for other in lines[index:] if other.strip()), "")
        return _indent(below) > indent
    is_after_blank = not lines[index - 1].strip()
    return _indent(line) > indent or not (is_after_blank or _is_other_section(lines, index))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_programmer_sections(text: str, style: str) -> str:
    """Write the results, examples and notes of a text for a model; drop the other sections."""
    if not _MORE_SECTIONS.search(text):
        return re.sub(r"\n{3,}", "\n\n", text)
    # For griffe these are classes of Python's warnings, as below `Warns:`.
    text = re.sub(r"^([ \t]*)Warnings:[ \t]*$", r"\1Warning:", text, flags=re.MULTILINE)
    # Late: 115 ms, and most docstrings in notebooks have no further sections.
    import griffe

    kind: Any = style
    with griffe.logger.disable():
        # An empty first line: the indentation of the others would be measured without the first.
        docstring = griffe.Docstring("\n" + text.strip("\n"))
        sections = griffe.parse(docstring, kind, warnings=False)
    pieces: list[str] = []
    for section in sections:
        value: Any = section.value
        match section.kind.value:
            case "text":
                pieces.append(value)
            case "returns" | "yields":
                texts = [_result_text(entry) for entry in value]
                title = section.kind.value.capitalize()
                pieces += [f"{title}: " + "; ".join(filter(None, texts))] if any(texts) else []
            case "admonition":
                pieces.append(f"{section.title or 'Note'}: {value.description}")
            case "examples":
                pieces.append("Examples:\n" + "\n".join(str(example) for _, example in value))
            case _:
                pass
    return "\n\n".join(piece.strip() for piece in pieces if piece.strip())


def _result_text(entry: Any) -> str:
    """Text of one result; some people write a sentence where griffe reads the type."""
    text = " ".join(entry.description.split())
    in_place_of_type = str(entry.annotation or "")
    return text if text or not in_place_of_type.endswith((".", "!", "?")) else in_place_of_type
