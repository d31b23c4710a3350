"""Workarounds: what was learnt for one model on one server, remembered by the process and applied.

`refusals` learns them from a server's errors; the client asks once more and shows the notice. A
parameter is a top-level key of the request's JSON, or `holder.key` inside one of the objects that
hold parameters of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.providers.address import origin
from nbagent.providers.wires.message_changes import MessageChange

WHOLE_ANSWER, WHOLE_WITH_TOOLS, STREAM_ONLY = "whole answer", "whole answer with tools", "stream"
"""Names of the workarounds that every wire has: the answer comes whole, or only as a stream."""
_NESTED_PARAMS = ("generationConfig", "options", "output_config", "reasoning", "text")


@dataclass(frozen=True, slots=True)
class Workaround:
    """Changed behaviour for one model, learnt from a refusal."""

    notice: str
    """One sentence for the person, without its full stop; empty in `NO_CURE`."""
    name: str = ""
    """A behaviour: of the client, or one of `Wire.workarounds`."""
    dropped: tuple[tuple[str, bytes | None], ...] = ()
    """Parameters to leave out, each with the refused value as JSON; None: any value."""
    renamed: tuple[str, str] | None = None
    change: MessageChange | None = None
    undone: MessageChange | None = None
    """An earlier change that the server refuses, too. It is not tried again."""


NO_CURE = Workaround("")
"""The words are a refusal, but everything known was tried: asking again would not help."""


@dataclass(slots=True)
class ModelWorkarounds:
    """Workarounds of one model on one server."""

    names: frozenset[str] = frozenset()
    """Names of the changed behaviours in use."""
    changes: tuple[MessageChange, ...] = ()
    """Changes of messages in use."""
    refused: frozenset[MessageChange] = frozenset()
    """Changes that the server refused, too."""
    notices: tuple[str, ...] = ()
    """What was learnt, in sentences."""
    dropped: frozenset[tuple[str, bytes | None]] = frozenset()
    renamed: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def for_model(base_url: str, model: str) -> ModelWorkarounds:
        """Return what this process has learnt about this model."""
        return _by_model.setdefault((base_url, model), ModelWorkarounds())

    def snapshot(self) -> ModelWorkarounds:
        """Return a copy: other runs may learn while an attempt is under way."""
        names, changes, refused = self.names, self.changes, self.refused
        return ModelWorkarounds(
            names, changes, refused, self.notices, self.dropped, dict(self.renamed)
        )

    def remember(self, workaround: Workaround) -> None:
        """Use a workaround from now on."""
        if workaround.name:
            self.names |= {workaround.name}
        self.dropped |= set(workaround.dropped)
        if workaround.renamed:
            self.renamed.update([workaround.renamed])
        if workaround.undone:
            self.refused |= {workaround.undone}
            self.changes = tuple(change for change in self.changes if change != workaround.undone)
        if workaround.change and workaround.change not in self.changes:
            self.changes = (*self.changes, workaround.change)
        if workaround.notice not in self.notices:
            self.notices = (*self.notices, workaround.notice)

    def streams(self, wanted: bool, *, has_tools: bool) -> bool:
        """True if the answer of a request is asked for as a stream."""
        if WHOLE_ANSWER in self.names or (has_tools and WHOLE_WITH_TOOLS in self.names):
            return False
        return wanted or STREAM_ONLY in self.names

    def change_params(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Change the parameters in place; return the names that are left out."""
        omitted: list[str] = []
        for name, twin in self.renamed.items():
            if name in params:
                params[twin] = params.pop(name)
        for name, value in flat_parameters(params).items():
            if {(name, None), (name, dump_json(value))} & self.dropped:
                holder, _, key = name.rpartition(".")
                # A new object: the old one belongs to the caller.
                inner = json_object(params.get(holder)) or {}
                if rest := {k: v for k, v in inner.items() if k != key}:
                    params[holder] = rest
                else:
                    params.pop(holder or name)
                omitted.append(name)
        return tuple(sorted(omitted))


def flat_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """List the parameters by name; those inside an object as `object.key`."""
    parameters: dict[str, Any] = {}
    for name, value in params.items():
        if name in _NESTED_PARAMS and (inner := json_object(value)):
            parameters.update({f"{name}.{key}": inner_value for key, inner_value in inner.items()})
        else:
            parameters[name] = value
    return parameters


def learnt_workarounds() -> list[tuple[str, str, str]]:
    """List what this process has learnt: server, model and sentence."""
    return [
        (origin(base_url) or "", model, notice)
        for (base_url, model), workarounds in _by_model.items()
        for notice in workarounds.notices
    ]


def forget_workarounds() -> None:
    """Forget all workarounds of this process."""
    _by_model.clear()


_by_model: dict[tuple[str, str], ModelWorkarounds] = {}
