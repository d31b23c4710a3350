"""What the panel's form says: texts and ticks to plain options, and a run's options back to texts.

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

from nbagent.contracts.chat import FilePart, Part
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact, register_environment
from nbagent.session.clients import Listing
from nbagent.session.hosts import words_of_all
from nbagent.settings import RunOptions, effective
from nbagent.settings.checks import Tools
from nbagent.shown import shown_in_prompt
from nbagent.shown.pictures import encoded_image
from nbagent.tools.base import OWN, host_of
from nbagent.tools.function_tool import FunctionHost
from nbagent.view.node import Node, h
from nbagent.view.words import visible

FIELDS = (
    *("model", "system", "temperature", "max_tokens", "reasoning"),
    *("max_turns", "max_total_tokens", "max_cost_usd", "base_url", "session"),
    *("workflow", "document", "agent", "autopilot"),
)
_GOES_ON = ("model", "session", "workflow", "document", "agent", "autopilot")
"""Left empty, the conversation's own; of the others the settings then hold."""
_AT_FIRST = ("workflow", "document")
"""A conversation that is there has its own."""
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


_MODELS = 200
"""Of one provider's list."""


class Form:
    """What stands in the fields, which tools are ticked, what is attached."""

    def __init__(self) -> None:
        """Begin as the settings say."""
        self.values = _usual()
        self.tools: dict[str, str] = {}
        """What can be ticked: names, and what each does."""
        self.unticked: frozenset[str] = frozenset()
        self.attached: dict[str, tuple[Part, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._extra: tuple[str, ...] = ()

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
        ticks = [[n, about, n not in self.unticked] for n, about in self.tools.items()]
        attached = [[name, self._sizes[name]] for name in self.attached]
        return {"values": dict(self.values), "tools": ticks, "attached": attached}

    def set(self, name: str, text: str) -> None:
        """A field was changed."""
        if name in self.values:
            self.values[name] = filtered(text[:_CHARS])

    def tick(self, name: str, on: bool) -> None:
        """A tool was ticked, or no longer is."""
        self.unticked = self.unticked - {name} if on else self.unticked | {name}

    def attach(self, name: str, data: str) -> None:
        """Take a file. Raises UsageError where it is too large or no file."""
        name = filtered(name[:200]) or "file"
        if len(data) * 3 // 4 > FILE_BYTES:
            raise UsageError(f"{name} is larger than {FILE_BYTES:,} bytes; attach less of it")
        try:
            found = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{name} did not arrive whole; attach it again") from None
        if len(found) + sum(self._sizes[it] for it in self.attached) > FILES_BYTES:
            raise UsageError(f"{name}: more than {FILES_BYTES:,} bytes are attached; remove some")
        self._sizes[name] = len(found)
        self.attached[name] = _parts_of(name, found)

    def detach(self, name: str) -> None:
        """Take a file out again."""
        self.attached.pop(name, None)

    def detach_all(self) -> None:
        """The files went out."""
        self.attached.clear()

    def options(self, parent: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """The options, and which of the parent's do not go on. Raises UsageError."""
        settings, given = effective(), dict[str, Any]()
        for name in FIELDS:
            text = self.values[name]
            if parent is not None and (
                # The parent's own model goes on with the server that it was asked at.
                name in _AT_FIRST or (name == "model" and text.strip() == parent.model)
            ):
                continue
            value = RunOptions.row(name).checked(text, label(name)) if text.strip() else None
            if value is not None and value != getattr(settings, name, None):
                given[name] = value
        if not self.values["system"] and settings.system:
            given["system"] = ""
        if (tools := self._chosen(settings.tools)) is not None:
            given["tools"] = tools
        shown = [name for name in (*FIELDS, "tools") if name not in _GOES_ON]
        return RunOptions(**given), tuple(name for name in shown if name not in given)

    def _chosen(self, usual: Tools | None) -> Tools | None:
        ticked = tuple(name for name in self.tools if name not in self.unticked)
        whole = tuple(self.tools) if usual == "all" else _functions(self.tools)
        if not self.tools or (ticked == whole and usual in (None, "all")):
            return None
        return ticked or "none"

    def offer(self, namespace: Mapping[str, Any]) -> None:
        """List the notebook's tools as they are now; new ones are ticked as the settings say.

        Raises:
            UsageError: two tools have one name.
        """
        usual, before = effective().tools, {*self.tools}
        found = _listed(namespace, None)
        found |= {word: about for word, about in HOSTS.items() if word not in found}
        for name in (*_words(usual), *self._extra):
            if name in found or name == OWN:
                continue
            if name not in namespace and host_of(name):
                found[name] = ""
            else:
                with suppress(NbagentError):  # it is gone from the notebook
                    found |= _listed(namespace, (name,))
        self.tools = found
        self.unticked |= _left_out(found, usual) - before

    def fill(self, run: RunRecord, namespace: Mapping[str, Any]) -> None:
        """Say what a run was asked with, to go on with it."""
        usual, kept = _usual(), run.options
        self.values = {name: _text(kept.get(name)) or usual[name] for name in FIELDS}
        self.values |= {"model": run.model, "session": run.session}
        if kept.get("system") is not None:
            self.values["system"] = str(kept["system"])
        tools = kept.get("tools")
        chosen: Tools | None = tuple(cast("list[str]", tools)) if isinstance(tools, list) else tools
        self._extra = _words(chosen)
        self.offer(namespace)
        self.unticked = _left_out(self.tools, chosen)


def label(name: str) -> str:
    """What a field is called: as its option on a line."""
    row = RunOptions.row(name)
    words = row.flags[-1].removeprefix("--") if row.usage else name
    unit = " (USD)" if row.metavar == "USD" else ""
    return words.replace("-", " ").replace("_", " ").capitalize() + unit


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


def _words(chosen: Tools | None) -> tuple[str, ...]:
    """The names that a choice of tools has beside the notebook's own functions."""
    if chosen == "all":
        return words_of_all()
    return chosen if isinstance(chosen, tuple) else ()


def _left_out(offered: Mapping[str, str], chosen: Tools | None) -> frozenset[str]:
    """The tools that a choice (of the settings, of a run) leaves out."""
    if chosen == "all":
        return frozenset()
    kept = _words(chosen)
    if chosen is None or OWN in kept:
        kept += _functions(offered)
    return frozenset(name for name in offered if name not in kept)


def _functions(names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in HOSTS and ":" not in name)


def _listed(namespace: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, str]:
    host = FunctionHost((), namespace=lambda: namespace, names=names)
    return {it.name: next(iter(it.description.strip().splitlines()), "") for it in host.specs}


def setter(field: str, value: str, words: str) -> Node:
    """A button that writes a value into a field."""
    return h("button", "", words, type="button", data_do="set", data_field=field, value=value)


def models_row(listing: Listing) -> Node:
    """A provider, and its models as buttons; or what keeps it from being asked."""
    name = listing.provider
    shown = [setter("model", f"{name}:{model.id}", model.id) for model in listing.models[:_MODELS]]
    if not listing.reachable:
        return h("div", "nba-off", h("strong", "", name), " ", visible(listing.why))
    more = h("button", "", "List all", type="button", data_do="models", value=name)
    return h("div", "", h("strong", "", name), " ", *shown, more if len(shown) < 2 else None)
