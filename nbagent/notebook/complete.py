"""Tab on the lines of `%%agent` and `%agent`, and in `{{ expressions }}` of a prompt.

Owns the place in IPython's completer (matcher API v2), what is being typed there, and what is
known to fit. Asks no server. Everywhere else, and whatever fails here, IPython goes on alone.
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
from importlib import import_module
from typing import Any

from IPython.core.completer import (
    IPCompleter,
    SimpleCompletion,
    context_matcher,
    provisionalcompleter,
    rectify_completions,
)

from nbagent.export.cell import quoted
from nbagent.notebook.line import (
    BY_FLAG,
    COMMANDS,
    QUOTES,
    Command,
    Line,
    options_of,
    words_of,
)
from nbagent.settings.options import Settings
from nbagent.settings.sources import effective, project_folder, store_home

IDENTIFIER = "nbagent.agent_matcher"
_PRIORITY = 200
"""Above IPython's own (0 to 100), so that its matchers are not even asked."""
_RECENT = 100
_IDS = 15
_AXES = ("model", "system", "prompt", "tools", "temperature", "reasoning", "max_turns")
"""What is usually varied."""
_STEPS = ("step*.md", "step*/step*.md", "workflow.graph.json")

Known = tuple[str, str]
"""A text that fits, and its kind (`option`, `model`, `run`, …), which front ends show beside it."""
Names = Mapping[str, Any]
Offer = tuple[str, Iterable[Known]]
"""What is being typed, up to the cursor, and what is known to fit there."""


def register(ipython: Any) -> None:
    """Let Tab complete our lines in this IPython; once, however often the extension is loaded."""
    unregister(ipython)
    completer = getattr(ipython, "Completer", None)
    if completer is not None:
        # Its type knows the two ways to write a matcher, but no plain function as one of them.
        as_matcher: Any = context_matcher(identifier=IDENTIFIER, priority=_PRIORITY)
        completer.custom_matchers.append(as_matcher(lambda context: _match(ipython, context)))


def unregister(ipython: Any) -> None:
    """Take it back."""
    matchers = getattr(getattr(ipython, "Completer", None), "custom_matchers", [])
    ours = [one for one in matchers if getattr(one, "matcher_identifier", "") == IDENTIFIER]
    for one in ours:
        matchers.remove(one)


def _match(ipython: Any, context: Any) -> dict[str, Any]:
    try:
        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        lines[-1] = lines[-1][: context.cursor_position]
        found = _typed("\n".join(lines), ipython.user_ns)
        if isinstance(found, str):
            return _python(ipython, found)
        if found is not None:
            return _answer(_fitting(*found) or _Silence(), found[0])
    except Exception:
        # A traceback in the middle of typing helps nobody.
        logging.getLogger("nbagent").debug("no completion", exc_info=True)
    return {"completions": []}


class _Silence:
    """No completions, and yet an answer: nothing is known here, and Python's names do not fit.

    IPython lets a matcher silence the others only when it found something.
    """

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[SimpleCompletion]:
        return iter(())


def _answer(completions: Any, fragment: str) -> dict[str, Any]:
    how = {"matched_fragment": fragment, "suppress": True, "ordered": True}
    return {"completions": completions, **how}


def _fitting(fragment: str, known: Iterable[Known]) -> list[SimpleCompletion]:
    """What fits, best first: what begins as typed, else what has the typed letters in it."""
    words = words_of(fragment)
    typed = words[-1].text.lower() if words else ""
    quote = fragment[:1] if fragment.startswith(tuple(QUOTES)) else ""
    fits = (one for one in known if one[1] == "option" or is_typable(one[0]))
    known = list(dict.fromkeys(fits))
    found = [one for one in known if one[0].lower().startswith(typed)]
    if not found and typed.strip("-"):
        found = [one for one in known if typed.strip("-") in one[0].lower()]
    return [
        SimpleCompletion(text if kind in ("option", "setting") else quoted(text, quote), type=kind)
        for text, kind in found
    ]


def _python(ipython: Any, expression: str) -> dict[str, Any]:
    """What IPython completes of an expression alone."""
    # Not the person's own completer: it is at work now, and keeps what it works at.
    completer = IPCompleter(
        shell=ipython,
        namespace=ipython.user_ns,
        global_namespace=ipython.user_global_ns,
        parent=ipython,
    )
    completer.use_jedi = ipython.Completer.use_jedi
    with provisionalcompleter():
        found = list(completer.completions(expression, len(expression)))
        found = list(rectify_completions(expression, found))
    kept = [one for one in found if not one.text.startswith("%")]
    start = kept[0].start if kept else len(expression)
    names = [SimpleCompletion(one.text, type=one.type) for one in kept]
    return _answer(names, expression[start:])


# What is being typed

_CELL = re.compile(r"(?:\s*%%(?!agent\b)\w.*\n)*\s*%%agent(?=\s)(.*)(\n[^\0]*)?")
"""A cell of `%%agent`, also below `%%time`: its options, and its prompt if that has begun."""


def _typed(before: str, names: Names) -> Offer | str | None:
    """What is typed in a cell: an offer, an expression in a prompt, or nothing of ours.

    Args:
        before: the cell up to the cursor.
    """
    before = re.sub(r"(?<!\\)\\\n", " ", before)  # lines that go on
    if not (cell := _CELL.match(before)):
        command = re.match(r"\s*%agent\s(.*)", before.rpartition("\n")[2])
        return _of_command(command[1], names) if command else None
    options, prompt = cell.groups()
    if prompt is None:
        return _of_options(options, names)
    _, opens, expression = prompt.rpartition("{{")
    return expression.lstrip() if opens and "}}" not in expression else None


def _split(before: str) -> tuple[list[str], str]:
    """The finished words, and what is typed of the next one."""
    words = words_of(before)
    texts = [word.text for word in words]
    if not words or words[-1].end < len(before):
        return texts, ""
    return texts[:-1], before[words[-1].start :]


def _of_options(before: str, names: Names, command: Command | None = None) -> Offer:
    words, fragment = _split(before)
    given: set[str] = set()
    waiting = None
    for word in words:
        flag, equals, _ = word.partition("=")
        option = BY_FLAG.get(flag)
        # Another word is the value of the option before.
        waiting = option if option and option.metavar and not equals else None
        given |= {option.name} if option else set()
    flag, equals, value = fragment.partition("=")
    if equals and flag in BY_FLAG:
        return _value(BY_FLAG[flag].name, value, names)
    flags = [
        (fragment if fragment in option.flags else option.flags[-1], "option")
        for option in options_of(command)
        if option.many or option.name not in given
    ]
    if waiting is None or fragment.startswith("-"):
        return fragment, flags
    fragment, known = _value(waiting.name, fragment, names)
    return fragment, [*known, *(flags if waiting.bare and not fragment else ())]


def _value(name: str, fragment: str, names: Names) -> Offer:
    """The value of an option or a setting; of a list the last name."""
    row = {**Settings.rows(), **Line.rows()}.get(name)
    known: list[Known] = [(word, "value") for word in (row.words if row else ())]
    if name == "vary":
        return _axis(fragment, names)
    if name != "tools":
        return fragment, [*known, *_VALUES.get(name, lambda names: ())(names)]
    *before, fragment = fragment.split(",")
    taken = [word.strip().strip(QUOTES) for word in before]
    found = [one for one in _tools(names) if one[0] not in taken]
    return fragment.lstrip(), [one for one in found if not (taken and one[1] == "value")]


def _axis(fragment: str, names: Names) -> Offer:
    """An option, and its values: `model=a,b`."""
    axis, equals, values = fragment.partition("=")
    if not equals:
        return fragment, [(f"{one}=", "setting") for one in _AXES]
    *before, last = values.split(",")
    offered, known = _value(axis, last, names)
    if axis in ("system", "prompt"):
        known = ((name, "text") for name in _held(names, lambda value: type(value) is str))
    return offered, [one for one in known if one[0] not in before]


def _of_command(before: str, names: Names) -> Offer | None:
    words, fragment = _split(before)
    if not words:
        return fragment, [(name, "command") for name in COMMANDS]
    command = COMMANDS.get(words[0])
    if command is None:
        return None
    if command.name == "config":
        name, equals, value = fragment.partition("=")
        set_already = [word.partition("=")[0] for word in words]
        settings = [(f"{n}=", "setting") for n in Settings.rows() if n not in set_already]
        return _value(name, value, names) if equals else (fragment, settings)
    options = _of_options(before.lstrip()[len(words[0]) :], names, command)
    takes = command.usage.split()[1:]
    # What its usage says of this word; with "…" the same for each.
    place = takes[0] if "…" in takes else "".join(takes[len(words) - 1 : len(words)])
    known = [(word, "value") for word in command.words if word in place]
    for word, values in _ARGUMENTS.items():
        known += values(names) if word in place else []
    if fragment.startswith("-") or not known:
        return options
    return fragment, [*known, *(() if fragment else options[1])]


def is_typable(text: str) -> bool:
    """Whether it can stand on a line as one value, and reads there as what it is."""
    if not text.strip() or unicodedata.category(text[0]) == "Pd":
        return False  # Behind a dash of any kind an option is looked for, also in quotes.
    joiners = "\u200c\u200d"  # Invisible, and yet a part of words in Persian, Hindi and emoji.
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return all(c in joiners or unicodedata.category(c) not in unseen for c in text)


# What is known. What fails is left out: a broken store, settings that do not fit.


def package_names() -> list[str]:
    """The packages of the project's folder; a skill is one if it has steps."""
    folder = project_folder()
    found = {path.parent.name for path in folder.glob("*/workflow.md")}
    for skill in folder.glob("*/SKILL.md"):
        if any(any(skill.parent.glob(it)) for it in _STEPS):
            found.add(skill.parent.name)
    packed = (path for path in folder.glob("*.bmad") if path.is_file())
    return sorted([*found, *(path.name for path in packed if zipfile.is_zipfile(path))])


def _models(names: Names) -> Iterator[Known]:
    """What was asked or listed before, named scripts, and what each provider asks by itself."""
    offline: Any = sys.modules.get("nbagent.providers.offline")
    clients: Any = sys.modules.get("nbagent.session.models")
    scripts = list(offline.scripts.values()) if offline else []
    # Without the scripts that nobody gave a name to: a test makes hundreds.
    hidden = {script.model_id for script in scripts if not script.is_named}
    found = [run.model for run in _recent() if not re.fullmatch(r"offline:script-\d+", run.model)]
    found += [script.model_id for script in scripts if script.is_named]
    with suppress(Exception):
        found.insert(0, effective().model or "")
    for listed in clients.listed_ids.values() if clients else ():
        found += listed
    for name in _providers():
        with suppress(Exception):  # of an installed package
            default = import_module("nbagent.providers.registry").find_provider(name).default_model
            found.append(f"{name}:{default}" if default else "")
    yield from ((model, "model") for model in (*found, "offline:demo") if model not in hidden)
    yield from ((f"{name}:", "provider") for name in _providers())


def _providers() -> tuple[str, ...]:
    with suppress(Exception):
        return import_module("nbagent.providers.registry").provider_names()
    return ("offline", "openai")


def _tools(names: Names) -> Iterator[Known]:
    yield from ((name, "tool") for name in _functions(names))
    yield from (("all", "value"), ("none", "value"))
    with suppress(Exception):
        words = import_module("nbagent.tools.hosts").host_words()
        yield from ((word, "tools") for word in words if word != "mcp")  # It needs a name.
    servers: Any = sys.modules.get("nbagent.tools.mcp")
    yield from ((f"mcp:{name}", "tools") for name in (servers.known_servers() if servers else ()))


def _functions(names: Names) -> Iterator[str]:
    """The marked tools first, then every function of the person's."""
    with suppress(Exception):
        # Nothing is marked as long as the room of tools was not needed.
        if "nbagent.tools.functions.definition" in sys.modules:
            yield from import_module("nbagent.tools.functions.definition").namespace_tools(names)
    for name, value in list(names.items()):
        # What IPython puts there (its own `open`) is not meant.
        mine = type(value) is types.FunctionType and not name.startswith("_")
        if mine and not str(value.__globals__.get("__name__")).startswith("IPython"):
            yield name


def _held(names: Names, fits: Callable[[Any], bool]) -> Iterator[str]:
    """The variables whose values fit."""
    for name, value in list(names.items()):
        if not name.startswith("_") and fits(value):
            yield name


def _tables(names: Names) -> Iterator[str]:
    """The variables that hold a DataFrame."""
    pandas: Any = sys.modules.get("pandas")
    yield from _held(names, lambda value: pandas and isinstance(value, pandas.DataFrame))


def _columns(names: Names) -> Iterator[Known]:
    """The columns of the notebook's tables."""
    for name in _tables(names):
        yield from ((str(column), "column") for column in names[name].columns)


def _holders(names: Names) -> Iterator[Known]:
    """The variables that hold a run."""
    handles: Any = sys.modules.get("nbagent.run")
    for name, value in list(names.items()):
        if handles and type(value) is handles.Run and not name.startswith("_"):
            yield name, "run"


def _runs(names: Names) -> Iterator[Known]:
    recent, held = _recent(), list(_holders(names))
    yield from [("last", "run")] if recent else ()
    yield from held
    # These come before the name of another run.
    taken = {"last", *(name for name, _ in held)}
    for run in recent:
        if run.name:
            by_name = is_typable(run.name) and run.name.strip() not in taken
            yield (run.name if by_name else run.id[:8]), "run"
    yield from ((run.id[:8], "run") for run in recent[:_IDS])


def _sessions(names: Names) -> Iterator[Known]:
    with suppress(Exception):
        yield effective().session, "session"
    yield from ((run.session, "session") for run in _recent())


def _recent() -> list[Any]:
    """The newest runs."""
    with suppress(Exception):
        if "nbagent.session.stores" in sys.modules or (store_home() / "runs.sqlite").is_file():
            store = import_module("nbagent.session.stores").store_at(store_home())
            return store.runs(limit=_RECENT)
    return []


_VALUES: dict[str, Callable[[Names], Iterable[Known]]] = {
    "model": _models,
    "base_url": lambda names: [(f"http://localhost:{port}/v1", "server") for port in (11434, 8000)],
    "key_variable": lambda names: (
        (variable, "variable")
        for variable in sorted(os.environ)
        if variable.upper().endswith(("_KEY", "_TOKEN"))
    ),
    "tool_choice": lambda names: ((tool, "tool") for tool in _functions(names)),
    "session": _sessions,
    "continue_run": _runs,
    "into": _holders,
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
"""By option, what its value can be beside the words of its row."""
_ARGUMENTS: dict[str, Callable[[Names], Iterable[Known]]] = {
    "RUN": _runs,
    "FORMAT": lambda names: ((word, "format") for word in import_module("nbagent.run").FORMATS),
    "PROVIDER": lambda names: ((name, "provider") for name in _providers()),
    "PACKAGE": _VALUES["workflow"],
    "COMMAND": lambda names: [
        *((name, "command") for name in COMMANDS),
        *((option.flags[-1], "option") for option in options_of(None)),
    ],
    "NAMES": _tools,
}
"""By the word in a command's usage, what its argument can be."""
