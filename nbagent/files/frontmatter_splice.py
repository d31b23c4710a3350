"""Changes of YAML in place: only what changes is written anew, every other character stays.

Works on the parse events of the library, whose marks say where each value stands. Imports no YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

_COLON = re.compile(r"[ \t]*:")
_DASH = re.compile(r"(?:\s|#[^\r\n]*[\r\n])*-")
_BREAK = re.compile(r"\r\n|\n|\r")
_REST_OF_LINE = re.compile(r"[^\r\n]*")
_COMMENT = re.compile(r"(?:[ \t]+#.*)?[ \t]*")
_TEXT_HEADER = re.compile(r"[^\r\n]*?[|>][-+\d]*(?P<comment>[ \t]+#[^\r\n]*)?")


class Unspliceable(Exception):
    """The YAML has a form in which a value cannot be changed in place."""


class Node(NamedTuple):
    """A value or key, as it stands in the text."""

    kind: str
    """`scalar`, `mapping`, `sequence` or `alias`."""
    head: tuple[Any, ...]
    """Its characters as YAML reads them, tag and anchor: equal if it is the same value."""
    start: int
    end: int
    """Where it ends: comments and blank lines behind it are not part of it."""
    style: str
    """`"`, `'`, `|`, `>`, `flow`, or empty."""
    children: tuple[Node, ...] = ()
    """Items, or keys and values in turn."""

    @property
    def pairs(self) -> list[tuple[Node, Node]]:
        """Keys and values of a mapping."""
        return list(zip(self.children[::2], self.children[1::2], strict=True))

    @property
    def entries(self) -> dict[str, tuple[Node, Node]]:
        """Keys and values by the text of the key."""
        return {key.head[0]: (key, value) for key, value in self.pairs if key.kind == "scalar"}


class Dump(NamedTuple):
    """Writers of YAML, which the caller has from its library."""

    block: Callable[[Mapping[str, Any], str], str]
    """Write a mapping; a text gets the given style."""
    flow: Callable[[Any, str], str]
    """Write a value for the inside of brackets."""
    is_text: Callable[[str], bool]
    """True if the YAML of a key is a text, and no number or truth value."""


def same(a: Any, b: Any) -> bool:
    """True if two JSON values are the same; 1, 1.0 and true are not."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def read_tree(source: str, events: Iterable[Any]) -> Node | None:
    """Return the tree of the parse events of a text; None if it has no value."""
    steps = iter(events)
    for event in steps:
        if not type(event).__name__.startswith(("Stream", "Document")):
            return _node(source, event, steps, 0, "")
    return None


def _node(source: str, event: Any, steps: Iterator[Any], before: int, role: str) -> Node:
    """Read one value; `before` is where the last one ends, `role` is `value` or `item`."""
    name = type(event).__name__.removesuffix("Event").removesuffix("Start").lower()
    start, end = event.start_mark.index, event.end_mark.index
    tag, anchor = str(getattr(event, "tag", None)), getattr(event, "anchor", None)
    if name in ("mapping", "sequence"):
        return _collection(source, event, steps, name)
    text, style = getattr(event, "value", None), getattr(event, "style", None) or ""
    if name == "scalar" and start == end:
        # The mark of an absent value is behind the comments that follow.
        there = (_DASH if role == "item" else _COLON).match(source, before) if role else None
        start = end = there.end() if there else start
    elif style in ("|", ">"):
        end = _end_of_text(source, start, end)
    is_plain = name == "scalar" and bool(event.implicit[0])
    return Node(name, (text, is_plain, tag, anchor), start, end, style)


def _collection(source: str, event: Any, steps: Iterator[Any], name: str) -> Node:
    start = end = event.start_mark.index
    children: list[Node] = []
    for inner in steps:
        if type(inner).__name__ in ("MappingEndEvent", "SequenceEndEvent"):
            if inner.end_mark.index > inner.start_mark.index:
                end = inner.end_mark.index
            break
        role = "item" if name == "sequence" else "value" if len(children) % 2 else ""
        children.append(_node(source, inner, steps, end, role))
        end = children[-1].end
    style = "flow" if event.flow_style else ""
    return Node(name, (str(event.tag), event.anchor), start, end, style, tuple(children))


def _end_of_text(source: str, start: int, end: int) -> int:
    """Return the end of a block of text, without the last line end."""
    header = _TEXT_HEADER.match(source, start)
    text = source[start:end]
    if header and "+" in header[0].partition("#")[0]:  # its blank lines are part of it
        last = text.rstrip(" \t")
        return start + len(last) - (2 if last.endswith("\r\n") else last.endswith(("\n", "\r")))
    return start + len(text.rstrip())


def keeps_rest(old: Node, new: Node, before: Any, wanted: Any) -> bool:
    """True if all that an update does not ask for is written in the same characters."""
    if same(before, wanted):
        return _tokens(old) == _tokens(new)
    if isinstance(before, dict) and isinstance(wanted, dict):
        if not old.kind == new.kind == "mapping" or old.head != new.head:
            return False
        now, later = cast("dict[str, Any]", before), cast("dict[str, Any]", wanted)
        there = new.entries
        return all(
            name in there
            and there[name][0].head == key.head
            and keeps_rest(node, there[name][1], now[name], later[name])
            for name, (key, node) in old.entries.items()
            if name in now and name in later
        ) and _merged(old) == _merged(new)
    if _is_longer(before, wanted):
        pairs = zip(old.children, new.children, strict=False)
        is_list = old.kind == new.kind == "sequence" and old.head == new.head
        return is_list and all(_tokens(a) == _tokens(b) for a, b in pairs)
    return True


def _tokens(node: Node) -> tuple[Any, ...]:
    return (node.kind, node.head, *map(_tokens, node.children))


def _merged(node: Node) -> list[tuple[Any, ...]]:
    return [_tokens(value) for name, (_, value) in node.entries.items() if name == "<<"]


def _is_longer(before: Any, wanted: Any) -> bool:
    """True if a list has items of its own, and gets further ones."""
    if not (isinstance(before, list) and isinstance(wanted, list)):
        return False
    now, later = cast("list[Any]", before), cast("list[Any]", wanted)
    return 0 < len(now) <= len(later) and same(now, later[: len(now)])


def splice(
    source: str, tree: Node | None, before: dict[str, Any], wanted: dict[str, Any], dump: Dump
) -> str:
    """Return the text with the wanted values; `before` are the values of the text.

    Raises:
        Unspliceable: a changed value has an odd form.
    """
    work = _Splice(source, dump)
    if tree is None:
        work.insert_lines(len(source), dump.block(wanted, ""), 0)
    elif tree.kind == "mapping":
        work.change_mapping(tree, before, wanted, is_top=True)
    else:
        raise Unspliceable
    return work.result()


class _Splice:
    """Edits of one text, collected and then applied."""

    def __init__(self, source: str, dump: Dump) -> None:
        self._source = source
        self._dump = dump
        self._edits: list[tuple[int, int, str]] = []

    def result(self) -> str:
        parts: list[str] = []
        at = 0
        for start, end, text in sorted(self._edits, key=lambda edit: edit[:2]):
            parts += self._source[at:start], text
            at = end
        return "".join((*parts, self._source[at:]))

    def change_mapping(
        self, node: Node, before: dict[str, Any], wanted: dict[str, Any], *, is_top: bool = False
    ) -> None:
        """Change, delete and add names of a mapping."""
        names = node.entries
        is_flow = node.style == "flow"
        added = {name: value for name, value in wanted.items() if name not in before}
        for name, now in before.items():
            if name in wanted and same(now, wanted[name]):
                continue
            if name not in names and "<<" in names and name in wanted:
                added[name] = wanted[name]  # overrides a merged name
            elif not self._is_own_text(node, name):
                raise Unspliceable
            elif name in wanted:
                self._change_value(node, *names[name], now, wanted[name])
            elif is_flow:
                self._delete_in_brackets(node, name, wanted)
            else:
                self._delete_lines(*names[name])
        if added and is_flow:
            self._add_in_brackets(node, wanted, added)
        elif added:
            end = self._line_end(node.children[-1].end) if not is_top else len(self._source)
            self.insert_lines(end, self._dump.block(added, ""), self._column(node))

    def insert_lines(self, at: int, lines: str, column: int) -> None:
        """Insert lines at the start of a line, in the line end of the text above."""
        eol = self._eol(at)
        if at and self._source[at - 1] not in "\r\n":
            raise Unspliceable
        self._edit(at, at, _indented(lines, column).replace("\n", eol))

    def _change_value(self, above: Node, key: Node, node: Node, now: Any, wanted: Any) -> None:
        n_edits = len(self._edits)
        try:
            if _is_longer(now, wanted) and node.kind == "sequence" and node.children:
                self._append(node, cast("list[Any]", wanted)[len(now) :])
                return
            if isinstance(now, dict) and isinstance(wanted, dict) and node.kind == "mapping":
                later = cast("dict[str, Any]", wanted)
                if any(name in later or name == "<<" for name in node.entries):
                    self.change_mapping(node, cast("dict[str, Any]", now), later)
                    return
        except Unspliceable:
            del self._edits[n_edits:]
        if above.style != "flow":
            self._rewrite(key, node, wanted)
        elif node.start == node.end:
            raise Unspliceable
        else:
            self._edit(node.start, node.end, self._dump.flow(wanted, node.style))

    def _append(self, node: Node, items: list[Any]) -> None:
        last = node.children[-1]
        if node.style == "flow":
            text = "".join(f", {self._dump.flow(item, '')}" for item in items)
            self._edit(last.end, last.end, text)
            return
        if self._source[node.start] != "-":  # an anchor or a tag stands before the list
            raise Unspliceable
        _, _, lines = self._dump.block({"k": items}, "").partition("\n")
        margin = len(lines) - len(lines.lstrip(" "))
        lines = re.sub(rf"^ {{{margin}}}", "", lines, flags=re.MULTILINE)
        column = node.start - self._line_start(node.start)
        self.insert_lines(self._line_end(last.end), lines, column)

    def _rewrite(self, key: Node, node: Node, wanted: Any) -> None:
        """Write the value of a key anew; the comment on its line stays."""
        colon = _COLON.match(self._source, key.end)
        if colon is None:
            raise Unspliceable
        start, end = colon.end(), node.end
        first_line = self._rest(start)
        if node.start == node.end or node.start > start + len(first_line):
            comment = first_line
            end = max(end, start + len(first_line))
        elif node.style in ("|", ">"):
            header = _TEXT_HEADER.match(self._source, node.start)
            comment = (header and header["comment"]) or ""
        else:
            comment = self._rest(end)
        end += len(self._rest(end))
        if not _COMMENT.fullmatch(comment):
            raise Unspliceable
        new = self._dump.block({"k": wanted}, node.style)[2:].removesuffix("\n")
        column = key.start - self._line_start(key.start)
        first, newline, more = new.partition("\n")
        if not newline or first.lstrip()[:1] in ("", "|", ">"):
            first += comment
        else:  # a quoted text of several lines
            more += comment
        eol = self._eol(self._line_end(key.end))
        self._edit(start, end, f"{first}{newline}{_indented(more, column)}".replace("\n", eol))

    def _delete_lines(self, key: Node, value: Node) -> None:
        start = self._line_start(key.start)
        if self._source[start : key.start].strip(" ") or not _COLON.match(self._source, key.end):
            raise Unspliceable
        self._edit(start, self._line_end(value.end), "")

    def _delete_in_brackets(self, node: Node, name: str, wanted: dict[str, Any]) -> None:
        pairs = node.pairs
        at = next(n for n, (key, _) in enumerate(pairs) if key.head[0] == name)
        if any(key.head[0] in wanted for key, _ in pairs[:at]):
            self._edit(pairs[at - 1][1].end, pairs[at][1].end, "")
        elif at + 1 < len(pairs):
            self._edit(pairs[at][0].start, pairs[at + 1][0].start, "")
        else:
            self._edit(pairs[at][0].start, pairs[at][1].end, "")

    def _add_in_brackets(self, node: Node, wanted: dict[str, Any], added: dict[str, Any]) -> None:
        text = self._dump.flow(added, "")[1:-1]
        if any(key.head[0] in wanted for key, _ in node.pairs):
            self._edit(node.children[-1].end, node.children[-1].end, f", {text}")
        elif node.children:
            raise Unspliceable
        else:
            self._edit(node.end - 1, node.end - 1, text)

    def _is_own_text(self, node: Node, name: str) -> bool:
        keys = [key for key, _ in node.pairs if key.kind == "scalar" and key.head[0] == name]
        return len(keys) == 1 and self._dump.is_text(self._source[keys[0].start : keys[0].end])

    def _column(self, node: Node) -> int:
        start = node.children[0].start if node.children else 0
        line = self._source[self._line_start(start) : start]
        return len(line) - len(line.lstrip(" "))

    def _line_start(self, at: int) -> int:
        return max(self._source.rfind("\n", 0, at), self._source.rfind("\r", 0, at)) + 1

    def _line_end(self, at: int) -> int:
        """Return the start of the next line."""
        match = _BREAK.search(self._source, at)
        return match.end() if match else len(self._source)

    def _eol(self, at: int) -> str:
        """Return the line end just before a place."""
        match = re.search(r"(?:\r\n|\n|\r)\Z", self._source[max(0, at - 2) : at])
        return match[0] if match else "\n"

    def _rest(self, at: int) -> str:
        match = _REST_OF_LINE.match(self._source, at)
        return match[0] if match else ""

    def _edit(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))


def _indented(lines: str, column: int) -> str:
    return re.sub(r"^(?=[^\n])", " " * column, lines, flags=re.MULTILINE)
