"""What can stand where a person is typing: models, tools, runs, sessions, settings, as far as
they are known here and now.

Asks nobody who could keep a person waiting. What fails is left out: a broken store, a namespace
that raises, settings that do not fit.
"""

from __future__ import annotations

import os
import re
import sys
import types
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from nbagent.notebook.completion_place import Typing
from nbagent.notebook.line_words import is_typable
from nbagent.notebook.model_lists import known_models
from nbagent.notebook.option_table import BY_FLAG, COMMANDS, OPTIONS, Line
from nbagent.settings import Settings, effective, project_folder, store_home
from nbagent.tools.base import host_words

_RECENT = 100
_IDS = 15
_ID_DIGITS = 8
_STEPS = ("step*.md", "step*/step*.md", "workflow.graph.json")
_NUMBERED = re.compile(r"offline:script-\d+")


@dataclass(frozen=True, slots=True)
class Known:
    """One thing that can be typed."""

    text: str
    kind: str
    """`option`, `model`, `tool`, `run`, …: front ends show it beside the text."""


def known_for(typing: Typing, namespace: Mapping[str, Any]) -> list[Known]:
    """What fits, best first: what begins as typed, else what has the typed letters in it."""
    fits = (one for one in _all(typing, namespace) if one.kind == "option" or is_typable(one.text))
    found = list(dict.fromkeys(fits))
    typed = typing.text.lower()
    if typing.what == "options":
        typed = typing.fragment.lower()
    begin = [one for one in found if one.text.lower().startswith(typed)]
    if begin or not typed.strip("-"):
        return begin
    return [one for one in found if typed.strip("-") in one.text.lower()]


def _all(typing: Typing, namespace: Mapping[str, Any]) -> Iterator[Known]:
    match typing.what:
        case "options":
            yield from _options(typing)
        case "commands":
            yield from (Known(command.name, "command") for command in COMMANDS)
        case "value" | "value or options":
            yield from _values_of(typing.option, namespace, typing.names)
            if typing.what == "value or options":
                yield from _options(typing)
        case "argument":
            yield from _arguments(typing, namespace)
        case "python" | "free":
            return


def _options(typing: Typing) -> Iterator[Known]:
    command = typing.command
    for option in OPTIONS:
        taken = command is None or option.name in command.options
        if taken and (option.many or option.name not in typing.given):
            yield Known(option.flags[-1], "option")
    if typing.fragment.startswith("-") and not typing.fragment.startswith("--"):
        yield from (Known(f, "option") for f in BY_FLAG if f == typing.fragment)


def _values_of(
    name: str, namespace: Mapping[str, Any], names: tuple[str, ...] = ()
) -> Iterator[Known]:
    """Values of one option; `names` stand in its list already."""
    row = {**Settings.rows(), **Line.rows()}.get(name)
    yield from (Known(word, "value") for word in (row.words if row else ()))
    of: dict[str, Callable[[], Iterable[Known]]] = {
        "model": models,
        "base_url": _servers,
        "key_variable": lambda: (
            Known(variable, "variable")
            for variable in sorted(os.environ)
            if variable.upper().endswith(("_KEY", "_TOKEN"))
        ),
        "tools": lambda: _tools(namespace, names),
        "tool_choice": lambda: (Known(tool, "tool") for tool in _tool_names(namespace)),
        "session": _sessions,
        "continue_run": _runs,
        "into": lambda: _holders(namespace),
        "output": lambda: (
            Known(name, "class")
            for name, value in list(namespace.items())
            if isinstance(value, type) and not name.startswith("_")
        ),
    }
    if name in of:
        yield from of[name]()


def _arguments(typing: Typing, namespace: Mapping[str, Any]) -> Iterator[Known]:
    argument = typing.command.argument if typing.command else ""
    if typing.setting is not None:
        yield from _values_of(typing.setting, namespace)
    elif "NAME=VALUE" in argument:
        names = (name for name in Settings.rows() if name not in typing.names)
        yield from (Known(f"{name}=", "setting") for name in names)
    elif "RUN" in argument:
        yield from _runs()
        if typing.command is not None and typing.command.options and not typing.fragment:
            yield from _options(typing)
    elif "PROVIDER" in argument:
        yield from (Known(name, "provider") for name in _providers())
    elif "PACKAGE" in argument:
        yield from (Known(name, "package") for name in package_names())
    elif "COMMAND" in argument:
        yield from (Known(command.name, "command") for command in COMMANDS)
        yield from (Known(option.flags[-1], "option") for option in OPTIONS)
    elif word := re.fullmatch(r"\[([a-z]+)\]", argument):
        yield Known(word[1], "value")


def package_names() -> list[str]:
    """The packages of the project's folder; a skill is one if it has steps."""
    folder = project_folder()
    found = {path.parent.name for path in folder.glob("*/workflow.md")}
    for skill in folder.glob("*/SKILL.md"):
        if any(any(skill.parent.glob(it)) for it in _STEPS):
            found.add(skill.parent.name)
    packed = (path for path in folder.glob("*.bmad") if path.is_file())
    return sorted([*found, *(path.name for path in packed if zipfile.is_zipfile(path))])


def models() -> Iterator[Known]:
    """Ids that are known without asking, then the prefixes of all providers.

    Without the scripts that nobody gave a name to: a test makes hundreds.
    """
    offline = sys.modules.get("nbagent.providers.offline")
    scripts = list(offline.scripts.values()) if offline else []
    named = [script.model_id for script in scripts if script.is_named]
    found = [*(run.model for run in _recent()), *named]
    with suppress(Exception):
        found = [effective().model or "", *found, *known_models()]
    for name in _providers():
        with suppress(Exception):  # of an installed package
            default = import_module("nbagent.providers.registry").find_provider(name).default_model
            found.append(f"{name}:{default}" if default else "")
    for model in (*found, "offline:demo"):
        if model and (model in named or not _NUMBERED.fullmatch(model)):
            yield Known(model, "model")
    yield from (Known(f"{name}:", "provider") for name in _providers())


def _providers() -> tuple[str, ...]:
    with suppress(Exception):
        return import_module("nbagent.providers.registry").provider_names()
    return ("offline", "openai")


def _servers() -> Iterator[Known]:
    with suppress(Exception):
        if (url := effective().base_url) is not None:
            yield Known(url, "server")
    for variable in ("LLM_BASE_URL", "OPENAI_BASE_URL"):
        if url := os.environ.get(variable, "").strip():
            yield Known(url, "server")
    yield Known("http://localhost:11434/v1", "server")
    yield Known("http://localhost:8000/v1", "server")


def _tools(namespace: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Known]:
    found = [name for name in _tool_names(namespace) if name not in names]
    yield from (Known(name, "tool") for name in found)
    if not names:
        yield from (Known(word, "value") for word in ("all", "none"))
    yield from (Known(word, "tools") for word in _host_words() if word not in names)


def _host_words() -> Iterator[str]:
    with suppress(Exception):
        yield from (word for word in host_words() if word != "mcp")  # It needs a name behind it.
    servers = sys.modules.get("nbagent.tools.mcp")
    if servers is not None:
        yield from (f"mcp:{name}" for name in servers.known_servers())


def _tool_names(namespace: Mapping[str, Any]) -> Iterator[str]:
    """The marked tools first, then every function of the person's."""
    with suppress(Exception):
        # Nothing is marked as long as the room of tools was not needed.
        if "nbagent.tools.function_tool" in sys.modules:
            yield from import_module("nbagent.tools.function_tool").namespace_tools(namespace)
    for name, value in list(namespace.items()):
        # What IPython puts there (its own `open`) is not meant.
        if type(value) is types.FunctionType and not name.startswith("_"):
            home = str(value.__globals__.get("__name__", ""))
            if not home.startswith("IPython"):
                yield name


def _holders(namespace: Mapping[str, Any]) -> Iterator[Known]:
    """The variables that hold a run."""
    handles = sys.modules.get("nbagent.run")
    if handles is None:
        return
    for name, value in list(namespace.items()):
        if type(value) is handles.Run and not name.startswith("_"):
            yield Known(name, "run")


def _runs() -> Iterator[Known]:
    recent = _recent()
    if not recent:
        return
    yield Known("last", "run")
    for run in recent:
        if run.name:
            # `last` is the last run, whatever the name of another one is.
            by_name = is_typable(run.name) and run.name.strip() != "last"
            yield Known(run.name if by_name else run.id[:_ID_DIGITS], "run")
    yield from (Known(run.id[:_ID_DIGITS], "run") for run in recent[:_IDS])


def _sessions() -> Iterator[Known]:
    with suppress(Exception):
        yield Known(effective().session, "session")
    yield from (Known(run.session, "session") for run in _recent())


def _recent() -> list[Any]:
    """The newest runs."""
    with suppress(Exception):
        if "nbagent.session.stores" in sys.modules or (store_home() / "runs.sqlite").is_file():
            store = import_module("nbagent.session.stores").store_at(store_home())
            return store.runs(limit=_RECENT)
    return []
