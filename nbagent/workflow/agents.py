"""Files of agents: reads, checks and finds them.

Owns the three forms of such a file (Markdown, YAML, SKILL.md), their keys, and the loading of files
that an agent needs before everything else. The texts for the model are in `composer`.

A file of a project or a package is a stranger's. The person who names its agent chooses its texts
and nothing else: `tools` only hides tools of the run, `model` counts only if the person allowed it
(`session.project_trust`) and for the provider in use, `load:` reads what `fs.read` may read without
a question, and no key of a file names a server, key, header, mount or rule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path, PurePosixPath
from typing import Any, cast

from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.nearest import nearest_name, nearest_or_all
from nbagent.files.names import visible
from nbagent.files.opening import failure
from nbagent.settings.sources import project_folder
from nbagent.shown.texts import without_folders
from nbagent.workflow.fields import LINE_CHARS, YAML_ENDINGS, Fields, is_id, read_matter
from nbagent.workflow.graph import Action, AgentSpec, PackageError, Problem
from nbagent.workflow.placeholders import Placeholders, is_single_line, person_values
from nbagent.workflow.source import MAX_TEXT_BYTES, Source, decode_text

# nbagent's own folder wins over `.agents`, which other programs for agents read, too.
FOLDERS = (".nbagent/agents", ".agents/agents")
_SKILL = "SKILL.md"
_ENDINGS = (".md", *YAML_ENDINGS)
_MAX_FILES = 200
_LOAD = re.compile(r"load:\s*(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_KEYS = ("id", "name", "title", "model", "tools", "critical_actions", "variables")
_SKILL_KEYS = frozenset({"description", "license", "compatibility", "metadata", "allowed-tools"})
"""Keys that other programs read, so they are no misspellings here. Specified in
https://agentskills.io/specification"""
_PATCH_TOOL = "fs.apply_patch"
_MAX_LOADED_CHARS = 120_000
"""Size of all files together that critical actions load: they are sent with every request."""


def read_agent(
    text: str | None,
    file: str,
    *,
    placeholders: Placeholders,
    problems: list[Problem],
    source: Source | None = None,
) -> AgentSpec:
    """Read the text of an agent's file. The result is valid only if no problem was added.

    Args:
        text: None if it could not be read; the problem is reported already.
        file: its ending determines its form.
        placeholders: values of placeholders.
        problems: receives all problems, with their lines.
        source: the package of the agent; None for an agent alone.
    """
    if text is not None and not text.strip():
        problems.append(Problem(file, None, "it is empty; describe the agent"))
    matter = read_matter(text or "", file, problems)
    fields = Fields(file, matter.mapping, matter.lines, problems)
    path = PurePosixPath(file)
    is_skill, is_yaml = path.name == _SKILL, file.endswith(YAML_ENDINGS)
    if not is_skill:
        fields.check_keys((*_KEYS, "persona") if is_yaml else _KEYS, _SKILL_KEYS)
    persona_text: Any = fields.values.get("persona", "") if is_yaml else matter.body
    if not isinstance(persona_text, str):
        fields.add_problem("persona", "persona is a text; write it after 'persona: |'")
    placeholders = placeholders.with_config(fields.texts("variables"))
    agent_id = fields.id("id", path.parent.name if is_skill else path.stem)
    persona, unfilled = placeholders.fill_text(str(persona_text).replace("\r\n", "\n").strip())
    actions, unfilled_in_rules = _actions(fields, placeholders, source)
    # The description of a skill may have several lines.
    description = " ".join(str(fields.values.get("description", "")).split())
    return AgentSpec(
        id=agent_id,
        name=fields.line("name") or agent_id,
        title=fields.line("title") or visible(description)[:LINE_CHARS],
        model=fields.line("model") or None,
        tools=_tools(fields, source),
        actions=actions,
        persona=persona,
        unfilled=tuple(dict.fromkeys((*unfilled, *unfilled_in_rules))),
        file=file,
    )


def _tools(fields: Fields, source: Source | None) -> tuple[str, ...] | None:
    tools: Any = fields.values.get("tools")
    if isinstance(tools, str):
        tools = re.findall(r"[^,\s]+", tools)
    if not isinstance(tools, list | None):
        fields.add_problem(
            "tools", "tools is a list of names or patterns; write [fs.read, fs.search]"
        )
        tools = None
    if tools is None:
        return None
    patterns = cast("list[Any]", tools)
    for number, text in enumerate(patterns):
        if not _is_pattern(text):
            why = "is not a pattern for tools; write a tool (fs.read), a glob (fs.*), a host (mcp)"
            fields.add_problem(f"tools.{number}", f"{visible(repr(text))} {why}")
    valid_patterns = [text for text in patterns if _is_pattern(text)]
    if source is not None and not any(
        call_pattern(pattern).matches_tool(_PATCH_TOOL, "fs") for pattern in valid_patterns
    ):
        fields.add_problem(
            "tools", f"its tools leave out {_PATCH_TOOL}, so it could end no step; add it"
        )
    return tuple(map(str, patterns))


def _is_pattern(text: object) -> bool:
    """True if a text is a pattern of tools, without arguments."""
    if not isinstance(text, str) or not is_single_line(text, LINE_CHARS):
        return False
    try:
        return not call_pattern(text).conditions and "(" not in text
    except UsageError:
        return False


def _actions(
    fields: Fields, placeholders: Placeholders, source: Source | None
) -> tuple[tuple[Action, ...], list[str]]:
    """Read the critical actions; return them and the placeholders without a value in rules."""
    items: Any = fields.values.get("critical_actions", [])
    if not isinstance(items, list):
        fields.add_problem("critical_actions", "critical_actions is a list; begin each with '- '")
        return (), []
    actions: list[Action] = []
    unfilled: list[str] = []
    for number, item in enumerate(cast("list[Any]", items)):
        key = f"critical_actions.{number}"
        text = _action_text(item)
        if text is None:
            fields.add_problem(key, "an action is 'load: PATH' or a text that is a rule; write one")
        elif written := _LOAD.fullmatch(text):
            actions.append(
                Action(load=fields.path(key, written["path"], placeholders, source=source))
            )
        elif line := " ".join(text.split()):
            rule, rule_unfilled = placeholders.fill_text(line)
            if not is_single_line(rule, MAX_TEXT_BYTES):
                fields.add_problem(key, "a rule holds control characters; write it without them")
            actions.append(Action(rule=rule))
            unfilled += rule_unfilled
    return tuple(actions), unfilled


def _action_text(item: Any) -> str | None:
    """Return an action as text. YAML parses `load: PATH` or `Note: be brief` as key and value."""
    pairs = [*(json_object(item) or {}).items()]
    if len(pairs) == 1 and isinstance(pairs[0][1], str):
        return f"{pairs[0][0]}: {pairs[0][1]}".strip()
    return item.strip() if isinstance(item, str) else None


def unknown_agent(name: str, known: Collection[str]) -> str:
    """Describe the problem that a package names an agent that it does not have."""
    hint = nearest_or_all(name, known, "there are:") or "; there are: none; write agents/"
    return f"there is no agent {name!r}{hint}"


def find_agents(project: Path) -> dict[str, Path]:
    """Find the files of agents by name, in the project, then in the home folder; the first wins.

    The name of `NAME.md`, `NAME.yaml` and `NAME/SKILL.md` is NAME. Links that lead out of the
    folder are ignored: they could show a model any file of the machine.
    """
    files: dict[str, Path] = {}
    for name, path in islice(_agent_files(project), _MAX_FILES):
        files.setdefault(name, path)
    return dict(sorted(files.items()))


def _agent_files(project: Path) -> Iterator[tuple[str, Path]]:
    bases = [Path(os.path.realpath(base)) for base in (project, Path.home())]
    for base, name in product(dict.fromkeys(bases), FOLDERS):
        folder = Path(os.path.realpath(base / name))
        names: list[str] = []
        with suppress(OSError):  # Usually it does not exist.
            names = sorted(os.listdir(folder)) if folder.is_relative_to(base) else []
        for path in (folder / name for name in names):
            stem = path.stem if path.suffix in _ENDINGS else path.name
            file = Path(os.path.realpath(path / _SKILL if os.path.isdir(path) else path))
            # Checked after links are resolved: the target decides.
            is_agent = (
                file.suffix in _ENDINGS and os.path.isfile(file) and file.is_relative_to(folder)
            )
            if is_agent and is_id(stem) and stem.casefold() != "readme":
                yield stem, file


def load_agent(
    name: str, *, values: Mapping[str, str] | None = None, project: Path | None = None
) -> AgentSpec:
    """Load an agent without a workflow; `values` are the values of its placeholders.

    `name` is the name of a file in `.nbagent/agents/` or `.agents/agents/` of the project, then of
    the home folder; or a path that ends in `.md`, `.yaml` or `.yml`.

    Raises:
        UsageError: there is no such agent; the message lists the existing ones.
        PackageError: its file cannot be used; has all its problems.
    """
    base = Path(os.path.realpath(project or project_folder()))
    placeholders = Placeholders(person_values(values), bundle="")
    file = base / os.path.expanduser(name)
    if not name.endswith(_ENDINGS) or not os.path.isfile(file):
        file = _file_of(name, find_agents(base))
    inside = file.is_relative_to(base)
    shown = file.relative_to(base).as_posix() if inside else without_folders(str(file))
    problems: list[Problem] = []
    spec = read_agent(
        _read(file, shown, problems), shown, placeholders=placeholders, problems=problems
    )
    if problems:
        # Nothing will be loaded, so missing files would be reported only at the next attempt.
        for path in (action.load for action in spec.actions if action.load.startswith("@project/")):
            if not os.path.lexists(base / path.removeprefix("@project/")):
                problems.append(
                    Problem(shown, None, f"'load: {path}' failed: there is no such file")
                )
        problems.sort(key=lambda fault: fault.line or 0)
        raise PackageError(f"the agent {visible(name)!r}", tuple(problems))
    return replace(spec, is_own=_is_own(file))


def _is_own(file: Path) -> bool:
    """True if a file is in the home folder's folders of agents."""
    real, home = Path(os.path.realpath(file)), Path.home()
    return any(real.is_relative_to(os.path.realpath(home / folder)) for folder in FOLDERS)


def _file_of(name: str, files: Mapping[str, Path]) -> Path:
    if name in files:
        return files[name]
    folders = (
        f"{' or '.join(f'{folder}/' for folder in FOLDERS)} of the project or of your home folder"
    )
    known = f"there are {', '.join(files)}; put" if files else "and there are none; put"
    known = f"did you mean {near!r}? Else put" if (near := nearest_name(name, files)) else known
    raise UsageError(
        f"there is no agent {visible(name)!r}; {known} NAME.md, NAME.yaml or NAME/SKILL.md "
        f"into {folders}, or write the path of a file"
    )


def _read(path: Path, shown: str, problems: list[Problem]) -> str | None:
    """Read the text of a file; add a problem and return None if it cannot be read."""
    try:
        with path.open("rb") as opened:
            # One byte more than allowed, so that a longer file is reported and not cut.
            return decode_text(opened.read(MAX_TEXT_BYTES + 1), shown, problems)
    except OSError as error:
        problems.append(Problem(shown, None, failure(error, shown).message))
        return None


def critical_context(agent: AgentSpec, read: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """Read the files that an agent loads before everything else; return pairs of path and content.

    `read` returns the content of a path with its mount; raises ToolError if it cannot, or if the
    file is too long.

    Raises:
        PackageError: some files cannot be read, or are too long together; lists all of them.
    """
    contents: dict[str, str] = {}
    problems: list[Problem] = []
    for path in dict.fromkeys(action.load for action in agent.actions if action.load):
        try:
            contents[path] = read(path)
        except ToolError as error:
            problems.append(Problem(agent.file, None, f"'load: {path}' failed: {error.message}"))
    n_chars = sum(map(len, contents.values()))
    if n_chars > _MAX_LOADED_CHARS:
        why = f"it loads {n_chars:,} characters (at most {_MAX_LOADED_CHARS:,}); write a rule"
        problems.append(Problem(agent.file, None, f"{why} that says to search and to read windows"))
    if problems:
        raise PackageError(f"nothing was sent: the agent {agent.id!r}", tuple(problems))
    return tuple(contents.items())
