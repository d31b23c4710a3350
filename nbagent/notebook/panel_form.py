"""What the panel's form says: its fields to the options of a run, and a run's options back.

Knows no widget. Its fields are rows of the table of options, checked there as they are for a cell.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import FilePart, Part
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact, register_environment
from nbagent.session.tool_hosts import words_of_all
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import effective
from nbagent.settings.types import Tools
from nbagent.shown.images import encoded_image
from nbagent.shown.values import shown_in_prompt
from nbagent.tools.functions.host import FunctionHost
from nbagent.tools.hosts import host_of
from nbagent.tools.tool_names import OWN

FIELDS = (
    *("model", "system", "temperature", "max_tokens", "reasoning"),
    *("max_turns", "max_total_tokens", "max_cost_usd", "base_url", "session"),
    *("workflow", "document", "agent", "autopilot"),
)
_GOES_ON = ("model", "session", "workflow", "document", "agent", "autopilot")
"""Left empty, the conversation's own; of the others the settings then hold."""
_AT_FIRST = ("workflow", "document")
"""A conversation that is there has its own."""
_LABELS = {"base_url": "Server", "max_cost_usd": "Max cost (USD)"}
HOSTS = {
    "fs": "files of the project: read, search, list; writing asks first",
    "skills": "skills of the project and your own, and their scripts",
    "notebook": "variables of this notebook; running code asks first",
}
"""Hosts that can be ticked although no setting names them."""
FILE_BYTES, FILES_BYTES = 7_000_000, 20_000_000
"""Of one attachment, which has to fit into one message of 10 MiB, and of all."""
_CHARS = 20_000
"""Of one field."""


def filtered(text: object) -> str:
    """What a person typed, without the keys of the environment, also those of this moment."""
    register_environment()
    return redact(str(text))


class Form:
    """What stands in the fields, which tools are ticked, what is attached."""

    def __init__(self) -> None:
        """Begin as the settings say."""
        self._values = _usual()
        self._offered: dict[str, str] = {}
        """What can be ticked: names, and what each does."""
        self._tools = effective().tools
        self._attached: dict[str, tuple[int, tuple[Part, ...]]] = {}

    @staticmethod
    def fields() -> list[dict[str, str]]:
        """For the page: the name, label, value's form and help of each field."""
        rows = [(name, RunOptions.row(name)) for name in FIELDS]
        return [
            {"name": name, "label": label(name), "hint": row.metavar, "help": row.help}
            for name, row in rows
        ]

    def state(self) -> dict[str, Any]:
        """For the page: what it says now, without any key."""
        ticked = self._ticked(self._tools)
        tools = [[name, about, name in ticked] for name, about in self._offered.items()]
        attached = [[name, size] for name, (size, _) in self._attached.items()]
        return {"values": dict(self._values), "tools": tools, "attached": attached}

    def set(self, name: str, text: str) -> None:
        """A field was changed; `tools` are the ticked names with commas between."""
        if name in self._values:
            self._values[name] = filtered(text[:_CHARS])
        elif name == "tools":
            ticked = tuple(tool for tool in self._offered if tool in text.split(","))
            usual = effective().tools
            self._tools = usual if ticked == self._ticked(usual) else ticked or "none"

    def attach(self, name: str, data: str) -> None:
        """Take a file. Raises UsageError where it is too large or no file."""
        name = filtered(name[:200]) or "file"
        if len(data) * 3 // 4 > FILE_BYTES:
            raise UsageError(f"{name} is larger than {FILE_BYTES:,} bytes; attach less of it")
        try:
            found = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{name} did not arrive whole; attach it again") from None
        others = sum(size for other, (size, _) in self._attached.items() if other != name)
        if len(found) + others > FILES_BYTES:
            raise UsageError(f"{name}: more than {FILES_BYTES:,} bytes are attached; remove some")
        self._attached[name] = len(found), _parts_of(name, found)

    def detach(self, name: str | None = None) -> None:
        """Take a file out again; without a name, all."""
        for one in [*self._attached] if name is None else [name]:
            self._attached.pop(one, None)

    def attached(self) -> list[Part]:
        """The files as a prompt carries them."""
        return [part for _, parts in self._attached.values() for part in parts]

    def options(self, parent: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """The options, and which of the parent's do not go on. Raises UsageError."""
        settings, given = effective(), dict[str, Any]()
        for name in FIELDS:
            text = self._values[name]
            if parent is not None and (
                # The parent's own model goes on with the server that it was asked at.
                name in _AT_FIRST or (name == "model" and text.strip() == parent.model)
            ):
                continue
            value = RunOptions.row(name).checked(text, label(name)) if text.strip() else None
            if value is not None and value != getattr(settings, name, None):
                given[name] = value
        if not self._values["system"] and settings.system:
            given["system"] = ""
        if self._tools != settings.tools:
            given["tools"] = self._ticked(self._tools) or "none"
        shown = [name for name in (*FIELDS, "tools") if name not in _GOES_ON]
        return RunOptions(**given), tuple(name for name in shown if name not in given)

    def _ticked(self, chosen: Tools | None) -> tuple[str, ...]:
        """What a choice (of the settings, of a run, of the person) ticks."""
        if chosen == "all":
            return tuple(self._offered)
        names = _names(chosen)
        takes_own = chosen is None or OWN in names
        return tuple(
            name for name in self._offered if name in names or (takes_own and _is_function(name))
        )

    def offer(self, namespace: Mapping[str, Any]) -> None:
        """List the notebook's tools as they are now; new ones are ticked as the settings say.

        Raises:
            UsageError: two tools have one name.
        """
        usual, before = effective().tools, self._offered
        found = _listed(namespace, None)
        found |= {word: about for word, about in HOSTS.items() if word not in found}
        for name in (*_names(usual), *_names(self._tools)):
            if name in found or name == OWN:
                continue
            if name not in namespace and host_of(name):
                found[name] = ""
            else:
                with suppress(NbagentError):  # it is gone from the notebook
                    found |= _listed(namespace, (name,))
        self._offered = found
        if self._tools != usual and before and self._tools != "all":
            new = [name for name in self._ticked(usual) if name not in before]
            self._tools = (*self._ticked(self._tools), *new) or "none"

    def fill(self, run: RunRecord, namespace: Mapping[str, Any]) -> None:
        """Say what a run was asked with, to go on with it."""
        usual, kept = _usual(), run.options
        self._values = {name: _text(kept.get(name)) or usual[name] for name in FIELDS}
        self._values |= {"model": run.model, "session": run.session}
        if kept.get("system") is not None:
            self._values["system"] = str(kept["system"])
        tools = kept.get("tools")
        self.offer(namespace)  # what is new since then is not the run's
        self._tools = tuple(cast("list[str]", tools)) if isinstance(tools, list) else tools
        self.offer(namespace)


def label(name: str) -> str:
    """What a field is called: mostly as its option."""
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _usual() -> dict[str, str]:
    settings = effective()
    return {name: _text(getattr(settings, name, None)) for name in FIELDS}


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off"}.get(cast("bool", value), "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts_of(name: str, data: bytes) -> tuple[Part, ...]:
    """A file as a prompt carries it: an image, a text with its name, else the file."""
    with suppress(ImportError):
        import_module("PIL.Image")  # makes a large picture smaller
    image = encoded_image(data, name)
    if isinstance(image, str):
        raise UsageError(image)
    if image is not None:
        return (image,)
    try:
        shown = shown_in_prompt(f"\n\nFile {name}:\n{data.decode('utf-8')}\n")
        return tuple(part.model_copy(update={"name": name}) for part in shown)
    except UnicodeDecodeError:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return (FilePart(name=name, media_type=kind, data=base64.b64encode(data).decode()),)


def _names(chosen: Tools | None) -> tuple[str, ...]:
    """The names that a choice of tools has beside the notebook's own functions."""
    if chosen == "all":
        return words_of_all()
    return chosen if isinstance(chosen, tuple) else ()


def _is_function(name: str) -> bool:
    return name not in HOSTS and ":" not in name


def _listed(namespace: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, str]:
    host = FunctionHost((), namespace=lambda: namespace, names=names)
    return {it.name: next(iter(it.description.strip().splitlines()), "") for it in host.specs}
