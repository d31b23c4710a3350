"""Servers whose wires lack something, or yield what no parser yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from nbagent.contracts.model import ChatRequest
from nbagent.providers.answer.wire_deltas import Progress, WireDelta
from nbagent.providers.server_row import Server
from nbagent.providers.wires.base import Parser, Wire
from otherwire import OtherParser, OtherWire


class StrangeParser(OtherParser):
    """Yields texts that are no deltas."""

    def read_event(self, name: bytes, data: Any) -> Iterator[WireDelta]:
        yield cast("WireDelta", "say")


class StrangeWire(OtherWire):
    """Its parser is wrong."""

    def parser(self, request: ChatRequest, progress: Progress) -> Parser:
        return StrangeParser(request, progress)


class PathlessWire(OtherWire):
    """It has neither a path nor endpoints."""

    path = Wire.path


def server(name: str, wire: Callable[[], Any]) -> Server:
    return Server(
        name=name,
        wires=lambda row, config: [wire()],
        default_base_url="http://127.0.0.1:9/v1",
        base_url_variables=("OTHERWIRE_URL",),
        default_model="x",
        needs_key=False,
    )


STRANGE = server("strangewire", StrangeWire)
PATHLESS = server("pathlesswire", PathlessWire)
ABSTRACT = server("abstractwire", cast("Any", Wire))
