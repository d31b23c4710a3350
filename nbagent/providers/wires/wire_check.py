"""Check the wires of a client: the author of a wire reads what is missing and what to write.

`abc` names missing methods when a wire is created; here are the facts that no method holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ChatRequest
from nbagent.providers.wires.base import Wire

_OWN_PACKAGE = __name__.partition(".")[0]
_ALWAYS_SENT = frozenset({"model", "messages"})


def check_wires(wires: Sequence[object]) -> None:
    """Check that a client can use these wires.

    Raises:
        UsageError: there is none, or the first fault of one, with what to write instead.
    """
    if not wires:
        raise UsageError("a server needs a wire; write wires=lambda row, config: [MyWire()].")
    for wire in wires:
        if fault := next(_faults(wire), ""):
            kind = wire if isinstance(wire, type) else type(wire)
            raise UsageError(f"the wire {kind.__module__}.{kind.__qualname__} {fault}.")


def other_package(wire: Wire) -> str:
    """Return the package of a wire that is not nbagent's own; empty for our own wires."""
    package = type(wire).__module__.partition(".")[0]
    return "" if package == _OWN_PACKAGE else package


def _faults(wire: Any) -> Iterator[str]:
    """Yield all that a client could not use, each with what to write."""
    if isinstance(wire, type):
        yield f"is a class; write {wire.__name__}()"
    elif not isinstance(wire, Wire):
        yield "is no Wire; write a subclass of nbagent.providers.wires.base.Wire"
    else:
        yield from _missing_facts(wire)
        yield from _path_faults(wire)
        yield from _field_faults(wire)


def _missing_facts(wire: Wire) -> Iterator[str]:
    if not getattr(wire, "name", ""):
        yield 'has no name; write name = "mywire"'
    if not callable(getattr(wire, "parser", None)):
        yield "has no parser; write parser = MyParser, a subclass of Parser"


def _path_faults(wire: Wire) -> Iterator[str]:
    paths: Any = wire.endpoint_paths
    has_own_path = type(wire).path is not Wire.path
    if isinstance(paths, str) or not all(str(path).startswith("/") for path in paths):
        yield f'has endpoint_paths = {paths!r}; write a tuple of paths: ("/chat",)'
    elif not paths and not has_own_path:
        yield 'has no path; write endpoint_paths = ("/chat",), or a method `path`'


def _field_faults(wire: Wire) -> Iterator[str]:
    names: Any = wire.unsupported_fields
    fields = ChatRequest.model_fields
    if isinstance(names, str):
        yield f"has unsupported_fields = {names!r}; write frozenset({{{names!r}}})"
    elif unknown := sorted(set(names) - fields.keys()):
        options = ", ".join(name for name in fields if name not in _ALWAYS_SENT)
        yield (
            f"has unsupported_fields that no request has ({', '.join(map(repr, unknown))}); write"
            f" some of {options}"
        )
    elif always := sorted(_ALWAYS_SENT & set(names)):
        yield f"must send {' and '.join(always)}; remove it from unsupported_fields"
