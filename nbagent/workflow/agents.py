"""Agents: their files, read and checked, and where they are looked for without a package.

Owns the three forms of such a file (Markdown, YAML, SKILL.md), what may stand in one, and loading
what an agent wants to have read before everything else. What a model is told of it is
`composer`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, product
from pathlib import Path, PurePosixPath
from typing import Any, cast

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.policy import call_pattern
from nbagent.files.frontmatter import FrontMatter, read_frontmatter, read_yaml
from nbagent.files.names import path_parts, visible
from nbagent.files.opening import failure
from nbagent.settings import project_folder
from nbagent.shown.texts import without_folders
from nbagent.workflow.graph import Action, AgentSpec, Fault, PackageError
from nbagent.workflow.variables import Marks, UnknownMark, bad_values, is_line, person_values

FOLDERS = (".nbagent/agents", ".agents/agents")
_SKILL = "SKILL.md"
_ENDINGS = (".md", ".yaml", ".yml")
_MOST_FILES = 200
_MOST_BYTES = 200_000
_LINE_CHARS = 200
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_LOAD = re.compile(r"load:\s*(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_KEYS = ("id", "name", "title", "model", "tools", "critical_actions", "variables")
_OF_SKILLS = frozenset({"description", "license", "compatibility", "metadata", "allowed-tools"})
"""Keys that other programs read; https://agentskills.io/specification"""
_FILE_CHARS, _ALL_CHARS = 40_000, 120_000


def is_id(text: str) -> bool:
    """Whether a text can name an agent or a step."""
    return _ID.fullmatch(text) is not None


def read_agent(text: str, file: str, *, marks: Marks, faults: list[Fault]) -> AgentSpec | None:
    """Read the text of an agent's file; its ending says which form it has.

    None when something is wrong with it, which is in `faults` then, each fault with its line.
    """
    if not text.strip():
        faults.append(Fault(file, None, "it is empty; describe the agent"))
        return None
    if len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        faults.append(Fault(file, None, f"it has more than {_MOST_BYTES:,} bytes; shorten it"))
        return None
    try:
        matter = read_yaml(text) if _is_yaml(file) else read_frontmatter(text, strict=True)
    except ToolError as error:
        problems: list[Any] = error.details.get("problems") or [(None, error.message)]
        faults += [Fault(file, line, str(problem)) for line, problem in problems]
        return None
    read = _AgentFile(file, matter, marks)
    spec = read.spec()
    faults += sorted(read.faults, key=lambda fault: fault.line or 0)
    return None if read.faults else spec


def _is_yaml(file: str) -> bool:
    return file.endswith((".yaml", ".yml"))


class _AgentFile:
    """The keys of one file; what is wrong with one becomes a fault with its line."""

    def __init__(self, file: str, matter: FrontMatter, marks: Marks) -> None:
        self.file, self.marks, self.lines = file, marks, matter.lines
        self.fields, self.body = matter.mapping, matter.body
        self.faults: list[Fault] = []
        self.unfilled: list[str] = []
        self.is_skill = PurePosixPath(file).name == _SKILL
        # As BMAD writes its agents, with a menu and more that is not for us.
        agent = _mapping(self.fields.get("agent"))
        self.is_bmad = _is_yaml(file) and "metadata" in agent
        if self.is_bmad:
            self.fields = {**_mapping(agent["metadata"]), **agent}

    def spec(self) -> AgentSpec:
        """What stands in it; of use only while there is no fault."""
        self._check_keys()
        self.fields = {key: value for key, value in self.fields.items() if value is not None}
        self.marks = self.marks.with_config(self._variables())
        agent_id, persona = self._id(), self._prose(self._persona())
        return AgentSpec(
            id=agent_id,
            name=self._line("name") or agent_id,
            title=self._line("title") or self._description(),
            model=self._line("model") or None,
            tools=self._tools(),
            actions=self._actions(),
            persona=persona,
            unfilled=tuple(dict.fromkeys(self.unfilled)),
            file=self.file,
        )

    def _wrong(self, key: str, why: str) -> None:
        written = (key, f"agent.{key}", f"agent.metadata.{key}") if self.is_bmad else (key,)
        line = next((self.lines[it] for it in written if it in self.lines), None)
        self.faults.append(Fault(self.file, line, why))

    def _prose(self, text: str) -> str:
        filled, left = self.marks.prose(text)
        self.unfilled += left
        return filled

    def _check_keys(self) -> None:
        known = [*_KEYS, "persona"] if _is_yaml(self.file) else _KEYS
        for key in () if self.is_skill or self.is_bmad else self.fields:
            if key not in known and key not in _OF_SKILLS:
                self._wrong(key, f"there is no key {_cut(key)!r}; there are {', '.join(known)}")

    def _line(self, key: str) -> str:
        """A text of one line; empty when it is not there."""
        value = self.fields.get(key, "")
        if value != "" and not (isinstance(value, str) and is_line(value, _LINE_CHARS)):
            most = f"write at most {_LINE_CHARS} characters"
            self._wrong(key, f"{key} is not one printable line of text; {most}")
        return str(value).strip()

    def _description(self) -> str:
        """Of skills: it says for long when they are of use, in several lines."""
        text = _cut(" ".join(str(self.fields.get("description", "")).split()))
        if text and not is_line(text):
            self._wrong("description", "description holds invisible characters; take them out")
        return text

    def _id(self) -> str:
        path = PurePosixPath(self.file)
        given: Any = self.fields.get("id", path.parent.name if self.is_skill else path.stem)
        if self.is_bmad and isinstance(given, str) and "/" in given:
            given = PurePosixPath(given).stem  # There it is a path.
        if not isinstance(given, str) or not is_id(given):
            why = "is no id; write at most 80 letters, digits, _ . or - that begin with one of both"
            self._wrong("id", f"{_cut(str(given))!r} {why}")
        return str(given)

    def _variables(self) -> dict[str, str]:
        given: Any = self.fields.get("variables")
        if not isinstance(given, dict | None):
            self._wrong("variables", "variables are 'name: value' lines; write them so")
        values = {name: _as_text(value) for name, value in _mapping(given).items()}
        for name, why in bad_values(values).items():
            self._wrong(f"variables.{name}", why)
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def _persona(self) -> str:
        if not _is_yaml(self.file):
            return self.body.replace("\r\n", "\n").strip()
        given: Any = self.fields.get("persona", "")
        lines = _persona_lines(_mapping(given)) if isinstance(given, dict) else [_as_text(given)]
        texts = [line for line in lines if isinstance(line, str)]
        if len(texts) < len(lines):
            self._wrong("persona", "persona is a text, or 'name: text' lines; write it so")
        return "\n".join(texts).strip()

    def _tools(self) -> tuple[str, ...] | None:
        given: Any = self.fields.get("tools")
        if given is None:
            return None
        if isinstance(given, str):
            given = re.split(r"[,\s]+", given.strip()) if given.strip() else []
        if not isinstance(given, list):
            self._wrong("tools", "tools is a list of names or patterns; write [fs.read, fs.search]")
            return None
        for number, text in enumerate(cast("list[Any]", given)):
            if not _is_pattern(text):
                key = f"tools.{number}" if f"tools.{number}" in self.lines else "tools"
                what = "write a tool (fs.read), a glob (fs.*) or a host (mcp:git)"
                self._wrong(key, f"{_cut(str(text))!r} is no pattern of tools; {what}")
        return tuple(map(str, cast("list[Any]", given)))

    def _actions(self) -> tuple[Action, ...]:
        given: Any = self.fields.get("critical_actions", [])
        if not isinstance(given, list):
            self._wrong("critical_actions", "critical_actions is a list; begin each with '- '")
            return ()
        actions: list[Action] = []
        for number, item in enumerate(cast("list[Any]", given)):
            key = f"critical_actions.{number}"
            fields = _mapping(item)
            text = item if isinstance(item, str) else _one_pair(fields)
            if list(fields) == ["load"]:
                actions.append(Action(load=self._loaded(f"{key}.load", fields["load"])))
            elif text is None:
                self._wrong(key, "an action is 'load: PATH' or a text that is a rule; write one")
            elif written := _LOAD.fullmatch(text.strip()):
                actions.append(Action(load=self._loaded(key, written["path"])))
            elif text.strip():
                actions.append(Action(rule=self._prose(text.strip())))
        return tuple(actions)

    def _loaded(self, key: str, path: object) -> str:
        """A path to load, its marks filled in; without a mount it is below `@project`."""
        if not isinstance(path, str) or not is_line(path):
            why = "the path to load is not one printable line; write one path, in quotes"
            self._wrong(key, why)
            return ""
        try:
            parts = path_parts(self.marks.path(path.strip()))
        except UnknownMark as error:
            why = f"{error} in a critical action; give it in the config, or write the path out"
            self._wrong(key, why)
            return ""
        except ToolError as error:
            self._wrong(key, error.message)
            return ""
        parts = parts if parts and parts[0].startswith("@") else ("@project", *parts)
        if len(parts) < 2:
            self._wrong(key, f"{path!r} is no file; write a path below a mount")
        return "/".join(parts)


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _one_pair(fields: Mapping[str, Any]) -> str | None:
    """What YAML takes for a key and its value, and was meant as a text: `Note: be brief`."""
    pairs = [f"{key}: {value}" for key, value in fields.items() if isinstance(value, str)]
    return pairs[0] if len(fields) == len(pairs) == 1 else None


def _as_text(value: Any) -> Any:
    """Numbers and switches as they are written; others as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _cut(text: str) -> str:
    return text if len(text) <= _LINE_CHARS else text[: _LINE_CHARS - 1] + "…"


def _is_pattern(text: object) -> bool:
    """Whether it names tools, whatever their arguments."""
    if not isinstance(text, str) or not is_line(text, _LINE_CHARS):
        return False
    try:
        return not call_pattern(text).where and "(" not in text
    except UsageError:
        return False


def _persona_lines(fields: Mapping[str, Any]) -> list[Any]:
    """A persona in several keys as lines: `Role: …`; what is no text or list of texts stays."""
    lines: list[Any] = []
    for key, value in fields.items():
        label = key.replace("_", " ").strip().capitalize()
        text = _as_text(value)
        if isinstance(value, list):
            items = cast("list[Any]", value)
            lines += [f"{label}:", *(f"- {it}" if isinstance(it, str) else it for it in items)]
        else:
            lines.append(f"{label}: {text.strip()}" if isinstance(text, str) else value)
    return lines


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

    `name` is an id, looked for in `.nbagent/agents/` and `.agents/agents/` of the project, then of
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
    text = _read(file, shown, faults)
    spec = None if text is None else read_agent(text, shown, marks=marks, faults=faults)
    if spec is None:
        raise PackageError(f"the agent {visible(name)!r}", tuple(faults))
    return spec


def _file_of(name: str, found: Mapping[str, Path]) -> Path:
    """The file of an agent by the name of the file, else by the id in it."""
    if name in found:
        return found[name]
    own_id = re.compile(rf"^ *id: *[\"']?{re.escape(name)}[\"']? *\r?$", re.MULTILINE)
    for path in found.values() if is_id(name) else ():
        # What stands above the persona.
        if own_id.search((_read(path, "", []) or "").partition("\n---")[0]):
            return path
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
            data = opened.read(_MOST_BYTES + 1)
        return data.decode("utf-8-sig", "replace" if len(data) > _MOST_BYTES else "strict")
    except OSError as error:
        faults.append(Fault(shown, None, failure(error, shown).message))
    except UnicodeDecodeError:
        faults.append(Fault(shown, None, "it is not UTF-8 text; save it so"))
    return None


def critical_context(agent: AgentSpec, read: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """Read the files that an agent loads before everything else: pairs of a path and its content.

    `read` gives the content of a path with its mount; a ToolError where it cannot.

    Raises:
        PackageError: files that cannot be read, or are too long; all of them at once.
    """
    contents: dict[str, str] = {}
    faults: list[Fault] = []
    for path in dict.fromkeys(action.load for action in agent.actions if action.load):
        try:
            content = read(path)
        except ToolError as error:
            faults.append(Fault(agent.file, None, f"'load: {path}' failed: {error.message}"))
            continue
        contents[path] = content
        if len(content) > _FILE_CHARS:
            faults.append(Fault(agent.file, None, _too_long(f"'load: {path}'", content)))
    whole = "".join(contents.values())
    if len(whole) > _ALL_CHARS:
        faults.append(Fault(agent.file, None, _too_long("all that it loads together", whole)))
    if faults:
        raise PackageError(f"nothing was sent: the agent {agent.id!r}", tuple(faults))
    return tuple(contents.items())


def _too_long(what: str, content: str) -> str:
    return (
        f"{what} has {len(content):,} characters (at most {_FILE_CHARS:,} each and {_ALL_CHARS:,} "
        "together); write a rule instead that says to search it and to read windows"
    )
