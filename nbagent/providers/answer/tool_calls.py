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


@dataclass(slots=True)
class _Draft:
    """A tool call that is still arriving."""

    position: int | None = None
    """Index among the calls; None while it has neither a name nor arguments."""
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    parse_attempts: int = 0
    """How many times its arguments were parsed to see if they are complete."""
    joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def raw(self) -> str:
        return "".join(self.pieces)

    def starts_second_object(self, arguments: str) -> bool:
        """True if a fragment opens an object although the arguments are complete already."""
        self.parse_attempts += 1
        if self.parse_attempts > _MAX_PARSE_ATTEMPTS or not arguments.lstrip().startswith("{"):
            return False
        raw = self.raw()
        return raw.rstrip().endswith("}") and parse_arguments(raw) is not None


class ToolCallAssembler:
    """Tool calls of one answer.

    Servers stream calls differently: the same `index` for all parallel calls, no index, no id, the
    name in every fragment, whole calls. The rules in `add` read all of them.
    """

    def __init__(self, names: WireNames) -> None:
        self._names = names
        self._by_key: dict[object, _Draft] = {}
        self._count = 0
        self._calls: list[_Draft] = []
        """Calls in order, without the empty entries that some gateways write."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, part: CallPart) -> CallDelta | None:
        """Add a call or a fragment of one; return the part to show, None if there is none."""
        key, id, name, arguments = part.key, part.id, part.name, part.arguments
        draft = self._by_key.get(key)
        if draft is not None and draft.name:
            second_object = bool(name) and draft.starts_second_object(arguments)
            if second_object and id and (id, arguments) == (draft.id, draft.raw()):
                return None  # A repeat of the whole call with the same id.
            if id and draft.id:
                # Some servers send parallel calls with the same index, old gateways two calls with
                # the same id.
                is_other = id != draft.id or second_object
            else:
                # Without an id: a name with no index, another name, or a second whole object begins
                # a
                # new call. A repeated name alone does not: some servers send it in each fragment.
                is_other = bool(name) and (key is None or name != draft.name or second_object)
            draft = None if is_other else draft
        draft = draft or self._new_draft(key)
        draft.id = draft.id or fix_surrogates(id)
        is_named = bool(name) and not draft.name
        draft.name = draft.name or fix_surrogates(name)
        draft.extra.update(part.extra or {})
        if not is_named and not arguments:
            return None
        arguments = draft.joiner.feed(arguments)
        draft.pieces.append(arguments)
        if draft.position is None:
            draft.position = len(self._calls)
            self._calls.append(draft)
        shown = self._names.from_wire(draft.name) if is_named else None
        return CallDelta(draft.position, draft.id or None, shown, arguments)

    def replace(self, key: object, arguments: str) -> CallCorrected | None:
        """Replace the fragments of a call by its whole arguments; None if they are the same."""
        draft = self._by_key.get(key)
        arguments = fix_surrogates(arguments)
        if draft is None or draft.position is None or draft.raw() == arguments:
            return None
        draft.pieces[:], draft.joiner = [arguments], SurrogateJoiner()
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
