"""Assemble the tool calls of an answer from whole calls or fragments of any server.

Keeps the model's own text; the engine decides if a call is valid.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.corrections import CallCorrected
from nbagent.contracts.deltas import CallEnd
from nbagent.contracts.messages import parse_arguments
from nbagent.contracts.model import CallDelta
from nbagent.providers.answer.wire_deltas import CallPart
from nbagent.providers.transport.sse import bad_response, fix_surrogates
from nbagent.providers.wires.tool_names import WireNames

_MAX_CALLS = 512
_MAX_PIECES = 4_096
"""Pieces of arguments that are kept apart; small texts take 20 times their size."""
_MAX_PARSE_ATTEMPTS = 64
"""Parse an unfinished call at most this often; unlimited parsing would be quadratic."""


class SurrogateJoiner:
    """Joins a surrogate pair that a server splits into two pieces."""

    __slots__ = ("_first_half",)

    def __init__(self) -> None:
        self._first_half = ""

    def feed(self, piece: str) -> str:
        """Return the complete characters; a first half at the end waits for the next piece."""
        if piece.isascii() and not self._first_half:
            return piece
        text, self._first_half = self._first_half + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._first_half = text[:-1], text[-1]
        return fix_surrogates(text)

    def flush(self) -> str:
        """Return U+FFFD if a first half is left, else nothing."""
        first_half, self._first_half = self._first_half, ""
        return "\ufffd" if first_half else ""


_NOTHING = ("null", '""', "[]")
"""Arguments of a tool without parameters, beside an empty object."""


@dataclass(slots=True)
class _Draft:
    """A tool call that is still arriving."""

    position: int | None = None
    """Index among the calls; None while it has neither a name nor arguments."""
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    n_chars: int = 0
    sends_all: bool = False
    """Each piece has all arguments so far."""
    parse_attempts: int = 0
    """How many times its arguments were parsed to see if they are complete."""
    joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def raw(self) -> str:
        return "".join(self.pieces)

    def add(self, piece: str) -> None:
        """Add a piece of the arguments."""
        if not piece:
            return
        self.pieces.append(piece)
        self.n_chars += len(piece)
        if len(self.pieces) > _MAX_PIECES:
            self.pieces[:] = [self.raw()]

    def replace(self, arguments: str) -> None:
        """Replace all pieces of the arguments."""
        self.pieces[:], self.n_chars = [arguments], len(arguments)

    @property
    def is_object_begun(self) -> bool:
        """True if its arguments begin as an object."""
        return next(filter(None, self.pieces), "").lstrip().startswith("{")

    def rest_of(self, arguments: str) -> str:
        """Return what arguments add that repeat all pieces so far, else the arguments.

        Some servers send all arguments so far in each piece. An object continues with its own
        beginning only where a value may follow.
        """
        may_repeat = 0 < self.n_chars <= len(arguments) and self.is_object_begun
        if not (may_repeat and arguments.startswith(raw := self.raw())):
            return arguments
        if raw.rstrip().endswith((":", ",", "[")) and not self.sends_all:
            return arguments
        self.sends_all |= len(arguments) > len(raw)
        return arguments[len(raw) :]

    def is_complete(self) -> bool:
        """True if its arguments are a whole object, or nothing, which some servers begin with."""
        self.parse_attempts += 1
        if self.parse_attempts > _MAX_PARSE_ATTEMPTS:
            return False
        raw = self.raw().strip()
        return raw in _NOTHING or (raw.endswith("}") and parse_arguments(raw) is not None)


class ToolCallAssembler:
    """Tool calls of one answer.

    Servers stream calls differently: the same `index` for all parallel calls, no index, no id, the
    name in every fragment, whole calls. The rules in `add` read all of them.
    """

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._by_key: dict[object, _Draft] = {}
        self._by_id: dict[tuple[object, str], _Draft] = {}
        """By key and id: some servers send parallel calls in turns under one index."""
        self._count = 0
        self._calls: list[_Draft] = []
        """Calls in order, without the empty entries that some gateways write."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, part: CallPart) -> list[CallDelta | CallCorrected]:
        """Add a call or a fragment of one; return what is new of it."""
        draft, arguments = self._draft_of(part), part.arguments
        if draft is None or not draft.name:
            return self._extend(draft or self._new_draft(part.key), part, arguments)
        opens = arguments.lstrip().startswith("{") or arguments.strip() in _NOTHING
        begun = opens and draft.is_complete()
        if begun and self._is_same_call(draft, part):
            return self._extend_again(draft, part)
        if self._is_other_call(draft, part, opens=opens, begun=begun):
            return self._extend(self._new_draft(part.key), part, arguments)
        if opens and not begun:
            arguments = draft.rest_of(arguments)
        return [*self._complete_name(draft, part), *self._extend(draft, part, arguments)]

    def _draft_of(self, part: CallPart) -> _Draft | None:
        """Return the call that a part may belong to; None if it begins one."""
        draft = self._by_key.get(part.key)
        if draft is None and part.id and part.name and parse_arguments(part.arguments):
            same = part.id, part.name, part.arguments
            draft = next((d for d in self._calls if (d.id, d.name, d.raw()) == same), None)
        elif draft is not None and part.id and draft.id != part.id:
            draft = self._by_id.get((part.key, part.id), draft)
        if draft is not None:
            self._by_key[part.key] = draft
        return draft

    def _is_same_call(self, draft: _Draft, part: CallPart) -> bool:
        """True if arguments that follow complete ones belong to the same call.

        Servers send `{}` or null before the arguments, or all arguments a second time.
        """
        if not part.name:
            return True
        if part.id and draft.id and part.id != draft.id:
            return False
        # With its name it may be another call, but not after an empty object, or if it is equal.
        if part.name != draft.name or (part.key is None and not part.id):
            return False
        if _are_equal(part.arguments, draft.raw()):
            return bool(part.id) or not _is_empty(part.arguments)
        return _is_empty(draft.raw())

    def _is_other_call(self, draft: _Draft, part: CallPart, *, opens: bool, begun: bool) -> bool:
        """True if a fragment with the key of a call begins another one."""
        if part.id and draft.id and part.id != draft.id:
            # Some servers send parallel calls with the same index, others a new id with each
            # fragment of one call.
            if not part.name:
                return not part.arguments and draft.is_complete()
            continues = bool(part.arguments.strip()) and not opens and part.name == draft.name
            return not (continues and draft.is_object_begun and not draft.is_complete())
        if part.id and draft.id:
            return begun and bool(part.name)  # Old gateways send two calls with the same id.
        if not part.name or self._joined_name(draft, part.name):
            return False
        # Without an id: a name with no index, another name, or a second whole object begins a new
        # call. A repeated name alone does not: some servers send it in each fragment.
        return part.key is None or part.name != draft.name or begun

    def _joined_name(self, draft: _Draft, name: str) -> str:
        """Return the name of a call whose name comes in pieces; empty if this is none.

        The pieces together are an offered tool's name or begin one. If each piece is one alone,
        the whole name counts; a name that is repeated is no piece.
        """
        names, joined = self._names, draft.name + name
        if any(draft.pieces):  # The name comes before the arguments.
            return ""
        if names.is_offered(draft.name) and (draft.name == name or names.is_offered(name)):
            return joined if name != draft.name and names.is_offered(joined) else ""
        if names.is_offered(joined):
            return joined
        if names.is_offered(name):
            return name if name.startswith(draft.name) else ""
        return joined if names.begins_offered(joined) else ""

    def _complete_name(self, draft: _Draft, part: CallPart) -> Iterator[CallCorrected]:
        name = self._joined_name(draft, part.name) if part.name else ""
        if name and draft.position is not None:
            draft.name = fix_surrogates(name)
            yield CallCorrected(draft.position, name=self._names.from_wire(draft.name))

    def _extend_again(self, draft: _Draft, part: CallPart) -> list[CallDelta | CallCorrected]:
        """Replace complete arguments by those that begin now; an empty object replaces none."""
        if _is_empty(part.arguments) or _are_equal(part.arguments, draft.raw()):
            return self._extend(draft, part, "")
        assert draft.position is not None
        draft.replace(draft.joiner.feed(part.arguments))
        return [
            *self._extend(draft, part, ""),
            CallCorrected(draft.position, arguments=draft.pieces[0]),
        ]

    def _extend(
        self, draft: _Draft, part: CallPart, arguments: str
    ) -> list[CallDelta | CallCorrected]:
        draft.id = draft.id or fix_surrogates(part.id)
        is_named = bool(part.name) and not draft.name
        draft.name = draft.name or fix_surrogates(part.name)
        draft.extra.update(part.extra or {})
        if part.id and draft.id == part.id:
            self._by_id[part.key, part.id] = draft
        if not is_named and not arguments:
            return []
        arguments = draft.joiner.feed(arguments)
        draft.add(arguments)
        if draft.position is None:
            draft.position = len(self._calls)
            self._calls.append(draft)
        shown = self._names.from_wire(draft.name) if is_named else None
        return [CallDelta(draft.position, draft.id or None, shown, arguments)]

    def replace(self, key: object, arguments: str) -> CallCorrected | None:
        """Replace the fragments of a call by its whole arguments; None if they are the same."""
        draft = self._by_key.get(key)
        arguments = fix_surrogates(arguments)
        if draft is None or draft.position is None or draft.raw() == arguments:
            return None
        draft.replace(arguments)
        draft.joiner = SurrogateJoiner()
        return CallCorrected(draft.position, arguments=arguments)

    def end(self) -> Iterator[CallDelta | CallEnd]:
        """Yield the ends of all calls, each with an id of its own: results are matched by it."""
        ids: set[str] = set()
        seen_calls: set[tuple[str, str, str]] = set()
        for index, draft in enumerate(self._calls):
            if rest := draft.joiner.flush():
                draft.pieces.append(rest)
                yield CallDelta(index, arguments=rest)
            same = draft.id, draft.name, draft.raw()
            if draft.id and same in seen_calls:
                # A repeat of the same call runs once.
                yield CallEnd(index, draft.id, is_repeat=True)
                continue
            seen_calls.add(same)
            call_id = wanted = draft.id or f"call_{secrets.token_hex(12)}"
            n = 1
            while call_id in ids:
                n += 1
                call_id = f"{wanted}_{n}"
            ids.add(call_id)
            yield CallEnd(index, call_id, fix_surrogates(draft.extra) or None)

    def _new_draft(self, key: object) -> _Draft:
        self._count += 1
        if self._count > _MAX_CALLS:
            raise bad_response(f"more than {_MAX_CALLS} tool calls are in it")
        # A fragment without a key continues the last call.
        draft = self._by_key[key] = self._by_key[None] = _Draft()
        return draft


def _are_equal(arguments: str, others: str) -> bool:
    """True for the same text, or the same object in other spacing."""
    if arguments == others:
        return True
    parsed = parse_arguments(arguments)
    return parsed is not None and parsed == parse_arguments(others)


def _is_empty(arguments: str) -> bool:
    """True for an object without fields, or null."""
    return "".join(arguments.split()) in ("{}", *_NOTHING)
