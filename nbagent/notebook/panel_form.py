"""The panel's form: translates its fields to options of a run, and a run's options back.

Knows no widget. The fields are rows of `settings.options`, which checks them as those of a cell.
"""

from __future__ import annotations

import base64
import binascii
import math
import mimetypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.messages import FilePart, Part
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact, register_environment
from nbagent.session.tool_hosts import all_host_names
from nbagent.settings.options import Option, RunOptions
from nbagent.settings.sources import current_settings
from nbagent.settings.types import NumberCheck, Tools, switch
from nbagent.shown.images import encoded_image, load_pillow
from nbagent.shown.values import to_prompt_parts
from nbagent.tools.functions.host import FunctionHost
from nbagent.tools.hosts import host_module
from nbagent.tools.tool_names import FUNCTION_HOST
from nbagent.view.text_format import one_line, sanitize_value

FIELDS = (
    *("model", "system", "temperature", "max_tokens", "reasoning"),
    *("max_turns", "max_total_tokens", "max_cost_usd", "base_url", "session", "template"),
    *("workflow", "document", "agent", "autopilot"),
)
_INHERITED = ("model", "session", "workflow", "document", "agent", "autopilot")
"""Empty fields that use the conversation's value; other empty fields use the settings."""
_FIRST_RUN_ONLY = ("workflow", "document")
"""Fields for the first run of a conversation; later runs inherit them."""
_LABELS = {"base_url": "Server", "max_cost_usd": "Max cost (USD)"}
_HELP = {"template": "evaluate {{ expression }} in a prompt; off sends it as typed"}
"""Help of fields whose option is described by its flag that switches it off."""
_EMPTY_MEANS = {
    **dict.fromkeys(("temperature", "max_tokens", "reasoning"), "model's own"),
    **dict.fromkeys(("max_turns", "max_total_tokens", "max_cost_usd"), "no limit"),
    "base_url": "provider's own",
    "session": "the notebook's",
    "agent": "none",
    "workflow": "folder or zip",
    "document": "file or id",
}
"""Shown in an empty field."""
HOSTS = {
    "fs": "files of the project: read, search, list; writing needs approval",
    "skills": "skills of the project and your own, and their scripts",
    "notebook": "variables of this notebook; running code needs approval",
}
"""Tool hosts that can be ticked even if no setting names them."""
MAX_FILE_BYTES, MAX_FILES_BYTES = 7_000_000, 20_000_000
"""Limit of one attachment, which must fit into a message of 10 MiB as base64, and of all."""
_MAX_FILES = 50
_FILE_NAME_CHARS = 120
_MAX_FIELD_CHARS = 20_000
"""Characters of one field."""


def without_keys(text: object) -> str:
    """Hide the environment's keys in typed text. Keys set since the start are registered first."""
    register_environment()
    return redact(str(text))


class Form:
    """Values of the fields, ticked tools, and attached files."""

    def __init__(self) -> None:
        """Fill the form from the settings."""
        self._values = _default_values()
        self._offered: dict[str, str] = {}
        """Tools that can be ticked: name → description."""
        self._tools = current_settings().tools
        self._attached: dict[str, tuple[int, tuple[Part, ...]]] = {}

    @staticmethod
    def fields() -> list[dict[str, Any]]:
        """Describe each field for the page: its kind, label, help, and range or choices."""
        return [_field(name, RunOptions.row(name)) for name in FIELDS]

    def state(self) -> dict[str, Any]:
        """Return the present values for the page, without keys."""
        ticked = self._ticked(self._tools)
        tools = [[name, about, name in ticked] for name, about in self._offered.items()]
        attached = [[name, size] for name, (size, _) in self._attached.items()]
        values = {"values": dict(self._values), "defaults": _default_values()}
        return {**values, "tools": tools, "attached": attached}

    def set(self, name: str, text: str) -> None:
        """Set a field; `tools` are the ticked names, separated by commas."""
        if name in self._values:
            self._values[name] = without_keys(text[:_MAX_FIELD_CHARS])
        elif name == "tools":
            ticked = tuple(tool for tool in self._offered if tool in text.split(","))
            usual = current_settings().tools
            # Equal ticks follow the settings: a tool defined later is then ticked too.
            self._tools = usual if ticked == self._ticked(usual) else ticked or "none"

    def problem(self, name: str) -> str:
        """Return why the value of a field is not valid; else an empty text."""
        text = self._values.get(name, "").strip()
        try:
            RunOptions.row(name).checked(text or None, label(name))
        except UsageError as error:
            return error.message
        return ""

    def attach(self, name: str, data: str) -> None:
        """Attach a file in base64.

        Raises:
            UsageError: it is too large or not valid.
        """
        # The name goes to the model too: a line end in it could begin a text of its own.
        name = one_line(sanitize_value(without_keys(name)), _FILE_NAME_CHARS) or "file"
        if len(data) * 3 // 4 > MAX_FILE_BYTES:  # before decoding, which would copy it
            raise UsageError(
                f"{name} is larger than {MAX_FILE_BYTES:,} bytes; attach a smaller file"
            )
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{name} did not arrive complete; attach it again") from None
        if len(self._attached) >= _MAX_FILES and name not in self._attached:
            raise UsageError(f"{name}: {_MAX_FILES} files are attached already; remove some")
        others = sum(size for other, (size, _) in self._attached.items() if other != name)
        if len(content) + others > MAX_FILES_BYTES:
            raise UsageError(
                f"{name}: more than {MAX_FILES_BYTES:,} bytes are attached; remove some"
            )
        self._attached[name] = len(content), _parts_of(name, content)

    def detach(self, name: str | None = None) -> None:
        """Remove a file; without a name, all files."""
        for attached_name in [*self._attached] if name is None else [name]:
            self._attached.pop(attached_name, None)

    def attached(self) -> list[Part]:
        """Return the attached files as parts of a prompt."""
        return [part for _, parts in self._attached.values() for part in parts]

    def options(self, parent: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """Return the options, and names of the parent's options that are not inherited.

        Raises:
            UsageError: a field is not valid.
        """
        settings, values = current_settings(), dict[str, Any]()
        for name in FIELDS:
            text = self._values[name]
            if parent is not None and (
                # An unchanged model is inherited together with the parent's server.
                name in _FIRST_RUN_ONLY or (name == "model" and text.strip() == parent.model)
            ):
                continue
            value = RunOptions.row(name).checked(text, label(name)) if text.strip() else None
            # A value that equals the setting is no choice for this run: the setting applies.
            if value is not None and value != getattr(settings, name, None):
                values[name] = value
        # An empty system prompt is a choice; the other fields mean "as in the settings" then.
        if not self._values["system"] and settings.system:
            values["system"] = ""
        if self._tools != settings.tools:
            values["tools"] = self._ticked(self._tools) or "none"
        shown = [name for name in (*FIELDS, "tools") if name not in _INHERITED]
        return RunOptions(**values), tuple(name for name in shown if name not in values)

    def _ticked(self, chosen: Tools | None) -> tuple[str, ...]:
        """Names that a choice of tools ticks."""
        if chosen == "all":
            return tuple(self._offered)
        names = _tool_names(chosen)
        takes_own = chosen is None or FUNCTION_HOST in names
        return tuple(
            name for name in self._offered if name in names or (takes_own and _is_function(name))
        )

    def update_tools(self, namespace: Mapping[str, Any]) -> None:
        """Update the list of tools from the notebook; new ones are ticked as the settings choose.

        Raises:
            UsageError: two tools have one name.
        """
        usual, before = current_settings().tools, self._offered
        offered = _function_tools(namespace, None)
        offered |= {word: about for word, about in HOSTS.items() if word not in offered}
        for name in (*_tool_names(usual), *_tool_names(self._tools)):
            if name in offered or name == FUNCTION_HOST:
                continue
            if name not in namespace and host_module(name):
                offered[name] = ""
            else:
                with suppress(NbagentError):  # the function was deleted from the notebook
                    offered |= _function_tools(namespace, (name,))
        self._offered = offered
        if self._tools != usual and before and self._tools != "all":
            new = [name for name in self._ticked(usual) if name not in before]
            self._tools = (*self._ticked(self._tools), *new) or "none"

    def fill(self, run: RunRecord, namespace: Mapping[str, Any]) -> None:
        """Fill the form with the options of a run, to continue it."""
        usual = _default_values()
        recorded = {**run.options, "document": run.workflow and run.workflow.document}
        self._values = {name: _text(recorded.get(name)) or usual[name] for name in FIELDS}
        self._values |= {"model": run.model, "session": run.session}
        if recorded.get("system") is not None:
            self._values["system"] = str(recorded["system"])
        tools = recorded.get("tools")
        self.update_tools(namespace)  # first, so that tools newer than the run are not ticked
        self._tools = tuple(cast("list[str]", tools)) if isinstance(tools, list) else tools
        self.update_tools(namespace)


def label(name: str) -> str:
    """Return the label of a field, mostly the name of its option."""
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _field(name: str, row: Option[Any]) -> dict[str, Any]:
    common = {"name": name, "label": label(name), "help": _HELP.get(name, row.help)}
    common["hint"] = _EMPTY_MEANS.get(name, "")
    if isinstance(row.check, NumberCheck):
        low, high = f"{row.check.low:g}", row.check.high
        limits = {"min": low, "max": f"{high:g}" if math.isfinite(high) else ""}
        return {**common, **limits, "kind": "number", "step": "1" if row.check.whole else "any"}
    if row.check is switch:
        return {**common, "kind": "switch"}
    if row.choices:
        # A number of tokens is valid too.
        return {**common, "kind": "choice", "choices": list(row.choices)}
    return {**common, "kind": "text"}


def _default_values() -> dict[str, str]:
    settings = current_settings()
    return {name: _text(getattr(settings, name, None)) for name in FIELDS}


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off"}.get(cast("bool", value), "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts_of(name: str, data: bytes) -> tuple[Part, ...]:
    """Convert a file to parts of a prompt: an image, a text with its name, else a file."""
    load_pillow()  # makes a large picture smaller
    image = encoded_image(data, name)
    if isinstance(image, str):
        raise UsageError(image)
    if image is not None:
        return (image,)
    try:
        shown = to_prompt_parts(f"\n\nFile {name}:\n{data.decode('utf-8')}\n")
        return tuple(part.model_copy(update={"name": name}) for part in shown)
    except UnicodeDecodeError:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return (FilePart(name=name, media_type=kind, data=base64.b64encode(data).decode()),)


def _tool_names(chosen: Tools | None) -> tuple[str, ...]:
    """Return the names in a choice of tools, without the notebook's own functions."""
    if chosen == "all":
        return all_host_names()
    return chosen if isinstance(chosen, tuple) else ()


def _is_function(name: str) -> bool:
    return name not in HOSTS and ":" not in name


def _function_tools(namespace: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, str]:
    host = FunctionHost((), namespace=lambda: namespace, names=names)
    return {spec.name: next(iter(spec.description.strip().splitlines()), "") for spec in host.specs}
