"""Agents: their files, read and checked, and where they are looked for without a package.

Owns the three forms of such a file (Markdown, YAML, SKILL.md), what may stand in one, and loading
what an agent wants to have read before everything else. What a model is told of it is
`composer`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice, product
from pathlib import Path, PurePosixPath
from typing import Any, cast

from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.names import visible
from nbagent.files.opening import failure
from nbagent.settings.sources import project_folder
from nbagent.shown.texts import without_folders
from nbagent.workflow.fields import LINE_CHARS, YAML_ENDINGS, Fields, is_id, read_matter
from nbagent.workflow.graph import Action, AgentSpec, Fault, PackageError
from nbagent.workflow.placeholders import Marks, is_line, person_values
from nbagent.workflow.source import MOST_TEXT_BYTES, Source, text_of

FOLDERS = (".nbagent/agents", ".agents/agents")
_SKILL = "SKILL.md"
_ENDINGS = (".md", *YAML_ENDINGS)
_MOST_FILES = 200
_LOAD = re.compile(r"load:\s*(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_KEYS = ("id", "name", "title", "model", "tools", "critical_actions", "variables")
_OF_SKILLS = frozenset({"description", "license", "compatibility", "metadata", "allowed-tools"})
"""Keys that other programs read; https://agentskills.io/specification"""
_PATCH_TOOL = "fs.apply_patch"
_MOST_LOADED_CHARS = 120_000
"""Of all files that critical actions load, together."""


def read_agent(
    text: str | None, file: str, *, marks: Marks, faults: list[Fault], source: Source | None = None
) -> AgentSpec:
    """Read the text of an agent's file; of use only where nothing was added to `faults`.

    Args:
        text: None where it could not be read, which is a fault already.
        file: its ending says which form it has.
        marks: what marks stand for.
        faults: gets all that is wrong, with its line.
        source: the package that it is an agent of.
    """
    if text is not None and not text.strip():
        faults.append(Fault(file, None, "it is empty; describe the agent"))
    matter = read_matter(text or "", file, faults)
    fields = Fields(file, matter.mapping, matter.lines, faults)
    path = PurePosixPath(file)
    is_skill, is_yaml = path.name == _SKILL, file.endswith(YAML_ENDINGS)
    if not is_skill:
        fields.check_keys((*_KEYS, "persona") if is_yaml else _KEYS, _OF_SKILLS)
    given: Any = fields.values.get("persona", "") if is_yaml else matter.body
    if not isinstance(given, str):
        fields.wrong("persona", "persona is a text; write it after 'persona: |'")
    marks = marks.with_config(fields.texts("variables"))
    agent_id = fields.id("id", path.parent.name if is_skill else path.stem)
    persona, left = marks.prose(str(given).replace("\r\n", "\n").strip())
    actions, left_in_rules = _actions(fields, marks, source)
    # That of a skill may have several lines.
    description = " ".join(str(fields.values.get("description", "")).split())
    return AgentSpec(
        id=agent_id,
        name=fields.line("name") or agent_id,
        title=fields.line("title") or visible(description)[:LINE_CHARS],
        model=fields.line("model") or None,
        tools=_tools(fields, source),
        actions=actions,
        persona=persona,
        unfilled=tuple(dict.fromkeys((*left, *left_in_rules))),
        file=file,
    )


def _tools(fields: Fields, source: Source | None) -> tuple[str, ...] | None:
    given: Any = fields.values.get("tools")
    if isinstance(given, str):
        given = re.findall(r"[^,\s]+", given)
    if not isinstance(given, list | None):
        fields.wrong("tools", "tools is a list of names or patterns; write [fs.read, fs.search]")
        given = None
    if given is None:
        return None
    patterns = cast("list[Any]", given)
    for number, text in enumerate(patterns):
        if not _is_pattern(text):
            why = "is no pattern of tools; write a tool (fs.read), a glob (fs.*), a host (mcp:git)"
            fields.wrong(f"tools.{number}", f"{visible(repr(text))} {why}")
    named = [text for text in patterns if _is_pattern(text)]
    if source is not None and not any(
        call_pattern(it).matches_tool(_PATCH_TOOL, "fs") for it in named
    ):
        fields.wrong("tools", f"its tools leave out {_PATCH_TOOL}, so it could end no step; add it")
    return tuple(map(str, patterns))


def _is_pattern(text: object) -> bool:
    """Whether it names tools, whatever their arguments."""
    if not isinstance(text, str) or not is_line(text, LINE_CHARS):
        return False
    try:
        return not call_pattern(text).conditions and "(" not in text
    except UsageError:
        return False


def _actions(
    fields: Fields, marks: Marks, source: Source | None
) -> tuple[tuple[Action, ...], list[str]]:
    """What it does first, and the marks in its rules that nothing gives a value for."""
    given: Any = fields.values.get("critical_actions", [])
    if not isinstance(given, list):
        fields.wrong("critical_actions", "critical_actions is a list; begin each with '- '")
        return (), []
    actions: list[Action] = []
    unfilled: list[str] = []
    for number, item in enumerate(cast("list[Any]", given)):
        key = f"critical_actions.{number}"
        text = _action_text(item)
        if text is None:
            fields.wrong(key, "an action is 'load: PATH' or a text that is a rule; write one")
        elif written := _LOAD.fullmatch(text):
            actions.append(Action(load=fields.path(key, written["path"], marks, source=source)))
        elif line := " ".join(text.split()):
            rule, left = marks.prose(line)
            if not is_line(rule, MOST_TEXT_BYTES):
                fields.wrong(key, "a rule holds control characters; write it without them")
            actions.append(Action(rule=rule))
            unfilled += left
    return tuple(actions), unfilled


def _action_text(item: Any) -> str | None:
    """`load: PATH` and `Note: be brief` are a key and its value for YAML, and meant as a text."""
    pairs = [*(json_object(item) or {}).items()]
    if len(pairs) == 1 and isinstance(pairs[0][1], str):
        return f"{pairs[0][0]}: {pairs[0][1]}".strip()
    return item.strip() if isinstance(item, str) else None


def unknown_agent(name: str, there: Collection[str]) -> str:
    """What is wrong where a package names an agent that it does not have."""
    return f"there is no agent {name!r}; there are: {', '.join(there) or 'none; write agents/'}"


def find_agents(project: Path) -> dict[str, Path]:
    """The files of agents by name, in the project and then in the home folder; the first wins.

    Of a `NAME.md`, a `NAME.yaml` and a `NAME/SKILL.md` in one folder the name is NAME. What a link
    leads out of that folder to is not there.
    """
    found: dict[str, Path] = {}
    for name, path in islice(_agent_files(project), _MOST_FILES):
        found.setdefault(name, path)
    return dict(sorted(found.items()))


def _agent_files(project: Path) -> Iterator[tuple[str, Path]]:
    bases = [Path(os.path.realpath(base)) for base in (project, Path.home())]
    for base, name in product(dict.fromkeys(bases), FOLDERS):
        folder = Path(os.path.realpath(base / name))
        names: list[str] = []
        with suppress(OSError):  # Mostly it is not there.
            names = sorted(os.listdir(folder)) if folder.is_relative_to(base) else []
        for path in (folder / name for name in names):
            stem = path.stem if path.suffix in _ENDINGS else path.name
            file = Path(os.path.realpath(path / _SKILL if os.path.isdir(path) else path))
            fits = file.suffix in _ENDINGS and os.path.isfile(file) and file.is_relative_to(folder)
            if fits and is_id(stem) and stem.casefold() != "readme":
                yield stem, file


def load_agent(
    name: str, *, values: Mapping[str, str] | None = None, project: Path | None = None
) -> AgentSpec:
    """Load an agent without a workflow; `values` are what marks in it stand for.

    `name` is that of a file in `.nbagent/agents/` and `.agents/agents/` of the project, then of
    the home folder; or a path that ends in `.md`, `.yaml` or `.yml`.

    Raises:
        UsageError: there is no such agent; it lists those that are there.
        PackageError: its file cannot be used; all that is wrong with it.
    """
    base = Path(os.path.realpath(project or project_folder()))
    marks = Marks(person_values(values), bundle="")
    file = base / os.path.expanduser(name)
    if not name.endswith(_ENDINGS) or not os.path.isfile(file):
        file = _file_of(name, find_agents(base))
    inside = file.is_relative_to(base)
    shown = file.relative_to(base).as_posix() if inside else without_folders(str(file))
    faults: list[Fault] = []
    spec = read_agent(_read(file, shown, faults), shown, marks=marks, faults=faults)
    if faults:
        # Nothing will be read, so what is missing would be said only the next time.
        for path in (it.load for it in spec.actions if it.load.startswith("@project/")):
            if not os.path.lexists(base / path.removeprefix("@project/")):
                faults.append(Fault(shown, None, f"'load: {path}' failed: there is no such file"))
        faults.sort(key=lambda fault: fault.line or 0)
        raise PackageError(f"the agent {visible(name)!r}", tuple(faults))
    return spec


def _file_of(name: str, found: Mapping[str, Path]) -> Path:
    if name in found:
        return found[name]
    places = f"{' or '.join(f'{it}/' for it in FOLDERS)} of the project or of your home folder"
    there = f"there are {', '.join(found)}" if found else "and there are none"
    raise UsageError(
        f"there is no agent {visible(name)!r}; {there}; put NAME.md, NAME.yaml or NAME/SKILL.md "
        f"into {places}, or write the path of a file"
    )


def _read(path: Path, shown: str, faults: list[Fault]) -> str | None:
    """The text of a file; None, with a fault, where it cannot be read."""
    try:
        with path.open("rb") as opened:
            return text_of(opened.read(MOST_TEXT_BYTES + 1), shown, faults)
    except OSError as error:
        faults.append(Fault(shown, None, failure(error, shown).message))
        return None


def critical_context(agent: AgentSpec, read: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """Read the files that an agent loads before everything else: pairs of a path and its content.

    `read` gives the content of a path with its mount; a ToolError where it cannot, or where the
    file is too long.

    Raises:
        PackageError: files that cannot be read, or are too long together; all of them at once.
    """
    contents: dict[str, str] = {}
    faults: list[Fault] = []
    for path in dict.fromkeys(action.load for action in agent.actions if action.load):
        try:
            contents[path] = read(path)
        except ToolError as error:
            faults.append(Fault(agent.file, None, f"'load: {path}' failed: {error.message}"))
    n_chars = sum(map(len, contents.values()))
    if n_chars > _MOST_LOADED_CHARS:
        why = f"it loads {n_chars:,} characters (at most {_MOST_LOADED_CHARS:,}); write a rule"
        faults.append(Fault(agent.file, None, f"{why} that says to search and to read windows"))
    if faults:
        raise PackageError(f"nothing was sent: the agent {agent.id!r}", tuple(faults))
    return tuple(contents.items())
