"""The `mcpServers` file that many programs share: `.mcp.json` of a project, and the person's own.

Owns reading it, `${VARIABLE}` and what is said about a bad one. Nothing is started here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact
from nbagent.tools.mcp.description import Description, described, note_value

PROJECT_FILE = ".mcp.json"
_MOST_BYTES = 1_000_000
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http")


def places(project: Path) -> tuple[Path, ...]:
    """The files that are looked into for a name, the nearest first."""
    return project / PROJECT_FILE, Path.home() / ".config" / "nbagent" / "mcp.json"


def names_in(path: Path) -> tuple[str, ...]:
    """The names of the servers in a file."""
    return tuple(_entries(path))


def read_servers(path: Path, only: str | None = None) -> list[Description]:
    """The servers of a file, or the one of a name (none: an empty list).

    Raises:
        UsageError: it cannot be read or is wrong in a place, which the message names.
    """
    found: list[Description] = []
    for name, entry in _entries(path).items():
        if only is None or name == only:
            found += _server(path, name, entry)
    return found


def _entries(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is no file of MCP servers: it has over {_MOST_BYTES:,} bytes")
        whole = json_object(json.loads(path.read_text("utf-8-sig")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give another file") from None
    except (ValueError, RecursionError) as error:
        place = ""
        if isinstance(error, json.JSONDecodeError):
            place = f", line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(f"{path} is no JSON{place}; correct it") from None
    key = "servers" if whole and "mcpServers" not in whole and "servers" in whole else "mcpServers"
    entries = json_object((whole or {}).get(key))
    if entries is None:
        raise UsageError(
            f'{path} names no MCP servers; it should read {{"mcpServers": {{"name": '
            '{"command": "…", "args": […]}}}'
        )
    return entries


def _server(path: Path, name: str, entry: Any) -> list[Description]:
    place = f"mcpServers.{name}"
    fields = json_object(entry)
    if fields is None:
        raise _wrong(path, place, "must be an object with command or url")
    if fields.get("disabled") is True:
        return []
    kind = fields.get("type", fields.get("transport"))
    if kind == "sse":
        raise _wrong(path, place, "is of type sse, which the protocol gave up; use type http")
    if kind not in (None, "stdio", *_HTTP):
        raise _wrong(path, f"{place}.type", "must be stdio or http")
    reader = _Reader(path, place, fields)
    web = "url" in fields and (kind in _HTTP or "command" not in fields)
    cwd = reader.text("cwd")
    try:
        made = described(
            name,
            command=None if web else reader.text("command"),
            args=() if web else reader.texts("args"),
            env=reader.mapping("env"),
            cwd=None if cwd is None else path.parent / Path(cwd).expanduser(),
            url=reader.text("url") if web else None,
            headers=reader.mapping("headers"),
            source=str(path),
        )
    except UsageError as error:
        raise UsageError(f"{path}, {place}: {error.message}") from None
    return [made]


def _wrong(path: Path, place: str, what: str) -> UsageError:
    return UsageError(redact(f"{path}, {place}: {what}; correct the file"))


class _Reader:
    """Takes the fields of one entry, variables filled in."""

    def __init__(self, path: Path, place: str, fields: Mapping[str, Any]) -> None:
        self._path, self._place, self._fields = path, place, fields

    def text(self, key: str) -> str | None:
        if self._fields.get(key) is None:
            return None
        return self._filled(self._fields[key], f"{self._place}.{key}")

    def texts(self, key: str) -> list[str]:
        given: Any = self._fields.get(key, [])
        if not isinstance(given, list):
            raise _wrong(self._path, f"{self._place}.{key}", "must be a list of texts")
        items = enumerate(cast("list[Any]", given))
        return [self._filled(item, f"{self._place}.{key}[{i}]") for i, item in items]

    def mapping(self, key: str) -> dict[str, str]:
        given = json_object(self._fields.get(key, {}))
        if given is None:
            raise _wrong(self._path, f"{self._place}.{key}", "must be an object of texts")
        return {name: self._filled(v, f"{self._place}.{key}.{name}") for name, v in given.items()}

    def _filled(self, value: Any, place: str) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise _wrong(self._path, place, "must be a text")
        return _VARIABLE.sub(self._variable(place), value)

    def _variable(self, place: str) -> Callable[[re.Match[str]], str]:
        def fill(match: re.Match[str]) -> str:
            name, instead = match[1], match[2]
            found = os.environ.get(name) or instead
            if found is None:
                what = f"needs the variable {name}, which is not set; set it"
                raise UsageError(f"{self._path}, {place}: {what} before the kernel starts")
            note_value(name, found)
            return found

        return fill
