"""Completion on the lines of `%%agent` and `%agent`, and in `{{ expressions }}` of a prompt.

Owns the matcher in IPython's completer (API v2), the parsing of the typed line, and the known
values. Asks no server. Elsewhere, and if anything fails here, IPython completes alone.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import types
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    SimpleCompletion,
    context_matcher,
    provisionalcompleter,
    rectify_completions,
)

from nbagent.export.cell import quoted
from nbagent.export.formats import FORMATS
from nbagent.notebook.help import TOPICS
from nbagent.notebook.line import (
    COMMANDS,
    OPTION_BY_FLAG,
    QUOTES,
    Command,
    Line,
    options_of,
    split_words,
)
from nbagent.settings.options import Settings
from nbagent.settings.sources import current_settings, project_folder
from nbagent.store.home import writing_folder

IDENTIFIER = "nbagent.agent_matcher"
_PRIORITY = 200
"""Above IPython's own matchers (0 to 100), so that these are not called at all."""
_MAX_RECENT = 100
_MAX_IDS = 15
_COMMON_AXES = ("model", "system", "prompt", "tools", "temperature", "reasoning", "max_turns")
"""Options that are often varied."""
_STEP_FILES = ("step*.md", "step*/step*.md", "workflow.graph.json")

Completion = tuple[str, str]
"""A text and its kind (`option`, `model`, `run`, …), which front ends show beside it."""
Namespace = Mapping[str, Any]
Completions = tuple[str, Iterable[Completion]]
"""The typed fragment before the cursor, and the completions that are possible there."""


def register(ipython: Any) -> None:
    """Register the matcher in an IPython; once, even if the extension is loaded again."""
    unregister(ipython)
    completer = getattr(ipython, "Completer", None)
    if completer is not None:
        # Any: IPython's type for matchers does not accept a plain function.
        as_matcher: Any = context_matcher(identifier=IDENTIFIER, priority=_PRIORITY)
        completer.custom_matchers.append(as_matcher(lambda context: _match(ipython, context)))


def unregister(ipython: Any) -> None:
    """Unregister the matcher."""
    matchers = getattr(getattr(ipython, "Completer", None), "custom_matchers", [])
    ours = [one for one in matchers if getattr(one, "matcher_identifier", "") == IDENTIFIER]
    for matcher in ours:
        matchers.remove(matcher)


def _match(ipython: Any, context: Any) -> dict[str, Any]:
    try:
        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        lines[-1] = lines[-1][: context.cursor_position]
        typed = _parse_cursor("\n".join(lines), ipython.user_ns)
        if isinstance(typed, str):
            return _python_completions(ipython, typed)
        if typed is not None:
            return _matcher_result(_matching(*typed) or _NoCompletions(), typed[0])
    except Exception:
        # A traceback in the middle of typing helps nobody.
        logging.getLogger("nbagent").debug("no completion", exc_info=True)
    return {"completions": []}


class _NoCompletions:
    """An empty result that still suppresses IPython's completion of Python names.

    IPython lets a matcher suppress the others only if its result is not empty, so `len()` is 1.
    """

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[SimpleCompletion]:
        return iter(())


def _matcher_result(completions: Any, fragment: str) -> dict[str, Any]:
    how = {"matched_fragment": fragment, "suppress": True, "ordered": True}
    return {"completions": completions, **how}


def _matching(fragment: str, known: Iterable[Completion]) -> list[SimpleCompletion]:
    """Filter completions: those that start with the typed text, else those that contain it."""
    typed_words = split_words(fragment)
    typed = typed_words[-1].text.lower() if typed_words else ""
    quote = fragment[:1] if fragment.startswith(tuple(QUOTES)) else ""
    typable = (
        completion for completion in known if completion[1] == "option" or is_typable(completion[0])
    )
    known = list(dict.fromkeys(typable))
    matches = [completion for completion in known if completion[0].lower().startswith(typed)]
    if not matches and typed.strip("-"):
        matches = [completion for completion in known if typed.strip("-") in completion[0].lower()]
    return [
        SimpleCompletion(text if kind in ("option", "setting") else quoted(text, quote), type=kind)
        for text, kind in matches
    ]


def _python_completions(ipython: Any, expression: str) -> dict[str, Any]:
    """Let IPython complete an expression."""
    # A new completer: the person's own one is running now and is not reentrant.
    completer = IPCompleter(
        shell=ipython,
        namespace=ipython.user_ns,
        global_namespace=ipython.user_global_ns,
        parent=ipython,
    )
    completer.use_jedi = ipython.Completer.use_jedi
    with provisionalcompleter():
        all_completions = list(completer.completions(expression, len(expression)))
        all_completions = list(rectify_completions(expression, all_completions))
    completions = [
        completion for completion in all_completions if not completion.text.startswith("%")
    ]
    start = completions[0].start if completions else len(expression)
    names = [SimpleCompletion(completion.text, type=completion.type) for completion in completions]
    return _matcher_result(names, expression[start:])


# The typed line

_AGENT_CELL = re.compile(r"(?:\s*%%(?!agent\b)\w.*\n)*\s*%%agent(?=\s)(.*)(\n[^\0]*)?")
"""A cell of `%%agent`, also below `%%time`: its options, and its prompt if there is one yet."""


def _parse_cursor(before: str, names: Namespace) -> Completions | str | None:
    """Parse the text before the cursor.

    Args:
        before: the cell up to the cursor.
        names: the notebook's variables.

    Returns:
        Completions; a text if it is an expression in a prompt; None if the cell is not ours.
    """
    before = re.sub(r"(?<!\\)\\\n", " ", before)  # join continued lines
    if not (cell := _AGENT_CELL.match(before)):
        command = re.match(r"\s*%agent\s(.*)", before.rpartition("\n")[2])
        return _command_completions(command[1], names) if command else None
    options, prompt = cell.groups()
    if prompt is None:
        return _option_completions(options, names)
    _, opens, expression = prompt.rpartition("{{")
    return expression.lstrip() if opens and "}}" not in expression else None


def _split(before: str) -> tuple[list[str], str]:
    """Split into complete words and the typed part of the next one."""
    line_words = split_words(before)
    texts = [word.text for word in line_words]
    if not line_words or line_words[-1].end < len(before):
        return texts, ""
    return texts[:-1], before[line_words[-1].start :]


def _option_completions(
    before: str, names: Namespace, command: Command | None = None
) -> Completions:
    previous, fragment = _split(before)
    used: set[str] = set()
    waiting = None
    for word in previous:
        flag, equals, _ = word.partition("=")
        option = OPTION_BY_FLAG.get(flag)
        # Another word is the value of the option before.
        waiting = option if option and option.metavar and not equals else None
        used |= {option.name} if option else set()
    flag, equals, value = fragment.partition("=")
    if equals and flag in OPTION_BY_FLAG:
        return _value_completions(OPTION_BY_FLAG[flag].name, value, names)
    flags = [
        (fragment if fragment in option.flags else option.flags[-1], "option")
        for option in options_of(command)
        if option.repeatable or option.name not in used
    ]
    if waiting is None or fragment.startswith("-"):
        return fragment, flags
    fragment, known = _value_completions(waiting.name, fragment, names)
    return fragment, [*known, *(flags if waiting.flag_value and not fragment else ())]


def _value_completions(name: str, fragment: str, names: Namespace) -> Completions:
    """Complete the value of an option or a setting; in a list, its last name."""
    row = {**Settings.rows(), **Line.rows()}.get(name)
    known: list[Completion] = [(word, "value") for word in (row.choices if row else ())]
    if name == "vary":
        return _axis_completions(fragment, names)
    if name != "tools":
        return fragment, [*known, *_VALUES.get(name, lambda names: ())(names)]
    *before, fragment = fragment.split(",")
    taken = [word.strip().strip(QUOTES) for word in before]
    tools = [tool for tool in _tools(names) if tool[0] not in taken]
    return fragment.lstrip(), [tool for tool in tools if not (taken and tool[1] == "value")]


def _axis_completions(fragment: str, names: Namespace) -> Completions:
    """Complete an axis and its values: `model=a,b`."""
    axis, equals, values = fragment.partition("=")
    if not equals:
        return fragment, [(f"{axis_name}=", "setting") for axis_name in _COMMON_AXES]
    *before, last = values.split(",")
    offered, known = _value_completions(axis, last, names)
    if axis in ("system", "prompt"):
        known = ((name, "text") for name in _variables(names, lambda value: type(value) is str))
    return offered, [axis_name for axis_name in known if axis_name[0] not in before]


def _command_completions(before: str, names: Namespace) -> Completions | None:
    previous, fragment = _split(before)
    if not previous:
        return fragment, [(name, "command") for name in COMMANDS]
    command = COMMANDS.get(previous[0])
    if command is None:
        return None
    if command.name == "config":
        name, equals, value = fragment.partition("=")
        set_already = [word.partition("=")[0] for word in previous]
        settings = [(f"{n}=", "setting") for n in Settings.rows() if n not in set_already]
        return _value_completions(name, value, names) if equals else (fragment, settings)
    options = _option_completions(before.lstrip()[len(previous[0]) :], names, command)
    takes = command.usage.split()[1:]
    # The parameter in the usage; with "…" all arguments have the same one.
    parameter = takes[0] if "…" in takes else "".join(takes[len(previous) - 1 : len(previous)])
    known = [(word, "value") for word in command.subcommands if word in parameter]
    for word, values in _ARGUMENTS.items():
        known += values(names) if word in parameter else []
    if fragment.startswith("-") or not known:
        return options
    return fragment, [*known, *(() if fragment else options[1])]


def is_typable(text: str) -> bool:
    """True if a text can be typed on a line as one value and is visible there."""
    if not text.strip() or unicodedata.category(text[0]) == "Pd":
        return False  # a dash of any kind starts an option, also in quotes
    joiners = "\u200c\u200d"  # invisible, but part of words in Persian and Hindi and of emoji
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return all(c in joiners or unicodedata.category(c) not in unseen for c in text)


# Known values. Sources that fail are left out: a broken store, invalid settings.


def package_names() -> list[str]:
    """List the workflow packages of the project's folder. A skill is one if it has steps."""
    folder = project_folder()
    package_folders = {path.parent.name for path in folder.glob("*/workflow.md")}
    for skill in folder.glob("*/SKILL.md"):
        if any(any(skill.parent.glob(pattern)) for pattern in _STEP_FILES):
            package_folders.add(skill.parent.name)
    packed = (path for path in folder.glob("*.bmad") if path.is_file())
    return sorted([*package_folders, *(path.name for path in packed if zipfile.is_zipfile(path))])


def _models(names: Namespace) -> Iterator[Completion]:
    """Models used or listed before, named scripts, and default models of the providers."""
    named: list[str] = []
    hidden: set[str] = set()
    if "nbagent.providers.offline" in sys.modules:
        from nbagent.providers.offline import scripts

        # Without scripts that have no name of their own: tests create hundreds.
        hidden = {script.model_id for script in scripts.values() if not script.is_named}
        named = [script.model_id for script in scripts.values() if script.is_named]
    model_ids = [
        run.model for run in _recent_runs() if not re.fullmatch(r"offline:script-\d+", run.model)
    ]
    model_ids += named
    with suppress(Exception):
        model_ids.insert(0, current_settings().model or "")
    if "nbagent.session.models" in sys.modules:
        from nbagent.session.models import listed_models

        for provider_models in listed_models.values():
            model_ids += provider_models
    for name in _providers():
        with suppress(Exception):  # a provider of an installed package may fail
            from nbagent.providers.catalogue import find_provider

            default = find_provider(name).default_model
            model_ids.append(f"{name}:{default}" if default else "")
    yield from ((model, "model") for model in (*model_ids, "offline:demo") if model not in hidden)
    yield from ((f"{name}:", "provider") for name in _providers())


def _providers() -> tuple[str, ...]:
    with suppress(Exception):
        from nbagent.providers.catalogue import provider_names

        return provider_names()
    return ("offline", "openai")


def _tools(names: Namespace) -> Iterator[Completion]:
    yield from ((name, "tool") for name in _functions(names))
    yield from (("all", "value"), ("none", "value"))
    with suppress(Exception):
        from nbagent.tools.hosts import host_names

        # `mcp` alone is no host: it needs the name of a server.
        yield from ((name, "tools") for name in host_names() if name != "mcp")
    if "nbagent.tools.mcp.config" in sys.modules:
        from nbagent.tools.mcp.config import known_servers

        yield from ((f"mcp:{name}", "tools") for name in known_servers())


def _functions(names: Namespace) -> Iterator[str]:
    """Functions marked as tools first, then all other functions of the notebook."""
    with suppress(Exception):
        # Until the module of the decorator is imported, no function can be marked.
        if "nbagent.tools.functions.definition" in sys.modules:
            from nbagent.tools.functions.host import namespace_tools

            yield from namespace_tools(names)
    for name, value in list(names.items()):
        # IPython adds functions to the namespace too, such as its own `open`.
        mine = type(value) is types.FunctionType and not name.startswith("_")
        if mine and not str(value.__globals__.get("__name__")).startswith("IPython"):
            yield name


def _variables(names: Namespace, fits: Callable[[Any], bool]) -> Iterator[str]:
    """Names of variables whose value passes a test."""
    for name, value in list(names.items()):
        if not name.startswith("_") and fits(value):
            yield name


def _tables(names: Namespace) -> Iterator[str]:
    """Names of variables that hold a DataFrame."""
    pandas: Any = sys.modules.get("pandas")
    yield from _variables(
        names,
        lambda value: (pandas and isinstance(value, pandas.DataFrame)) or _is_foreign_table(value),
    )


def _is_foreign_table(value: Any) -> bool:
    """True for a table of another library, such as polars. Reads no data."""
    # Without its package no such value can exist, and the import would take time.
    if not {"polars", "pyarrow", "modin"} & sys.modules.keys():
        return False
    from nbagent.shown.foreign_frames import is_foreign

    return is_foreign(value) and hasattr(type(value), "columns") and hasattr(type(value), "shape")


def _columns(names: Namespace) -> Iterator[Completion]:
    """Columns of the notebook's DataFrames."""
    for name in _tables(names):
        table = names[name]
        # The columns of a table of pyarrow are its data.
        labels = table.column_names if hasattr(table, "column_names") else table.columns
        yield from ((str(column), "column") for column in labels)


def _run_variables(names: Namespace) -> Iterator[Completion]:
    """Variables that hold a run."""
    if "nbagent.run" not in sys.modules:
        return  # no run can exist yet, and the import would take time
    from nbagent.run import Run

    yield from ((name, "run") for name in _variables(names, lambda value: type(value) is Run))


def _runs(names: Namespace) -> Iterator[Completion]:
    recent, run_variables = _recent_runs(), list(_run_variables(names))
    yield from [("last", "run")] if recent else ()
    yield from run_variables
    # A variable wins over a run's name, so such a run is offered by its id.
    taken = {"last", *(name for name, _ in run_variables)}
    for run in recent:
        if run.name:
            by_name = is_typable(run.name) and run.name.strip() not in taken
            yield (run.name if by_name else run.id[:8]), "run"
    yield from ((run.id[:8], "run") for run in recent[:_MAX_IDS])


def _sessions(names: Namespace) -> Iterator[Completion]:
    with suppress(Exception):
        yield current_settings().session, "session"
    yield from ((run.session, "session") for run in _recent_runs())


def _recent_runs() -> list[Any]:
    """Return the newest runs; empty if there is no store yet, which must not be created here."""
    with suppress(Exception):
        if "nbagent.session.stores" in sys.modules or (writing_folder() / "runs.sqlite").is_file():
            from nbagent.session.stores import store_at

            store = store_at(writing_folder())
            return store.runs(limit=_MAX_RECENT)
    return []


_VALUES: dict[str, Callable[[Namespace], Iterable[Completion]]] = {
    "model": _models,
    # The usual ports of Ollama and of vLLM.
    "base_url": lambda names: [(f"http://localhost:{port}/v1", "server") for port in (11434, 8000)],
    "key_variable": lambda names: (
        (variable, "variable")
        for variable in sorted(os.environ)
        if variable.upper().endswith(("_KEY", "_TOKEN"))
    ),
    "tool_choice": lambda names: ((tool, "tool") for tool in _functions(names)),
    "session": _sessions,
    "continue_run": _runs,
    "into": _run_variables,
    "over": lambda names: ((name, "table") for name in _tables(names)),
    "row_key": _columns,
    "score": lambda names: ((name, "function") for name in _functions(names)),
    "workflow": lambda names: ((name, "package") for name in package_names()),
    "output": lambda names: (
        (name, "class")
        for name, value in list(names.items())
        if isinstance(value, type) and not name.startswith("_")
    ),
}
"""Further values of an option, besides the choices in its row."""
_ARGUMENTS: dict[str, Callable[[Namespace], Iterable[Completion]]] = {
    "RUN": _runs,
    "FORMAT": lambda names: ((word, "format") for word in FORMATS),
    "PROVIDER": lambda names: ((name, "provider") for name in _providers()),
    "PACKAGE": _VALUES["workflow"],
    "TOPIC": lambda names: [
        *((name, "topic") for name in (*TOPICS, "all")),
        *((name, "command") for name in COMMANDS if name not in TOPICS),
        *((option.flags[-1], "option") for option in options_of(None)),
    ],
    "NAMES": _tools,
}
"""Values of an argument, by its word in a command's usage."""
