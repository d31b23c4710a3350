"""Agents: their files, read and checked, and where they are looked for without a package.

Owns the three forms of such a file (Markdown, YAML, SKILL.md), what may stand in one, and loading
what an agent wants to have read before everything else. What a model is told of it is
`composer`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, cast

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.policy import call_pattern
from nbagent.files.frontmatter import FrontMatter, read_frontmatter, read_yaml
from nbagent.files.names import path_parts, visible
from nbagent.files.opening import failure, open_root
from nbagent.files.writing import read_bytes
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
    """Read an agent; None when something was wrong with it, which is in `faults` then.

    Args:
        text: the whole file.
        file: its path, for people; its ending says which form it has.
        marks: what the marks in its persona and its actions stand for.
        faults: gets all that is wrong, each with its line.
    """
    before = len(faults)
    if not text.strip() or len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        why = f"it has more than {_MOST_BYTES:,} bytes; shorten it"
        faults.append(Fault(file, None, why if text.strip() else "it is empty; describe the agent"))
        return None
    try:
        matter = read_yaml(text) if _is_yaml(file) else read_frontmatter(text, strict=True)
    except ToolError as error:
        problems: list[Any] = error.details.get("problems") or [(None, error.message)]
        faults += [Fault(file, line, str(problem)) for line, problem in problems]
        return None
    spec = _AgentFile(file, matter, marks, faults).spec()
    faults[before:] = sorted(faults[before:], key=lambda fault: fault.line or 0)
    return spec if len(faults) == before else None


def _is_yaml(file: str) -> bool:
    return file.endswith((".yaml", ".yml"))


class _AgentFile:
    """The keys of one file; what is wrong with one becomes a fault with its line."""

    def __init__(self, file: str, matter: FrontMatter, marks: Marks, faults: list[Fault]) -> None:
        self.file, self.marks, self.faults = file, marks, faults
        self.fields, self.body, self.lines = matter.mapping, matter.body, matter.lines
        self.unfilled: list[str] = []
        self.is_skill = PurePosixPath(file).name == _SKILL
        agent: Any = self.fields.get("agent")
        self.is_foreign = _is_yaml(file) and "metadata" in _mapping(agent)
        """As BMAD writes its agents; it has a menu and more, which is not for us."""
        if self.is_foreign:
            self.fields = {**_mapping(agent["metadata"]), **_mapping(agent)}

    def spec(self) -> AgentSpec:
        """What stands in it; of use only while there is no fault."""
        self._check_keys()
        self.marks = self.marks.with_config(self._variables())
        agent_id = self._id()
        description = " ".join(str(self.fields.get("description") or "").split())
        persona = self._prose(self._persona())
        return AgentSpec(
            id=agent_id,
            name=self._line("name") or agent_id,
            title=self._line("title") or _cut(description),
            model=self._line("model") or None,
            tools=self._tools(),
            actions=self._actions(),
            persona=persona,
            unfilled=tuple(dict.fromkeys(self.unfilled)),
            file=self.file,
        )

    def _wrong(self, key: str, why: str) -> None:
        line = self.lines.get(key)
        if self.is_foreign and line is None:
            line = self.lines.get(f"agent.{key}", self.lines.get(f"agent.metadata.{key}"))
        self.faults.append(Fault(self.file, line, why))

    def _prose(self, text: str) -> str:
        filled, left = self.marks.prose(text)
        self.unfilled += left
        return filled

    def _check_keys(self) -> None:
        if self.is_skill or self.is_foreign:
            return
        known = [*_KEYS, "persona"] if _is_yaml(self.file) else _KEYS
        for key in self.fields:
            if key not in known and key not in _OF_SKILLS:
                why = f"an agent has no key {_cut(key)!r}; there are {', '.join(known)}"
                self._wrong(key, why)

    def _line(self, key: str) -> str:
        """A text of one line; empty when it is not there."""
        value = self.fields.get(key)
        if value is None:
            return ""
        if isinstance(value, str) and is_line(value, _LINE_CHARS):
            return value.strip()
        self._wrong(
            key, f"{key} is not one printable line of text; write at most {_LINE_CHARS} characters"
        )
        return ""

    def _id(self) -> str:
        path = PurePosixPath(self.file)
        given: Any = self.fields.get("id")
        if self.is_foreign and isinstance(given, str) and "/" in given:
            given = PurePosixPath(given).stem  # BMAD names its agents by a path.
        if given is None:
            given = path.parent.name if self.is_skill else path.stem
        if not isinstance(given, str) or not is_id(given):
            self._wrong(
                "id",
                f"{_cut(str(given))!r} is no id of an agent; write an id of up to 80 letters, "
                "digits, _ . or -",
            )
        return str(given)

    def _variables(self) -> dict[str, str]:
        given: Any = self.fields.get("variables")
        if not isinstance(given, dict | None):
            self._wrong("variables", "variables are 'name: value' lines; write them so")
        texts = {
            name: _text_of(value) if isinstance(value, str | int | float) else value
            for name, value in _mapping(given).items()
        }
        for name, why in bad_values(texts).items():
            self._wrong(f"variables.{name}", why)
        return {name: value for name, value in texts.items() if isinstance(value, str)}

    def _persona(self) -> str:
        if not _is_yaml(self.file):
            return self.body.replace("\r\n", "\n").strip()
        given: Any = self.fields.get("persona")
        lines = [given] if isinstance(given, str) else _persona_lines(_mapping(given))
        if lines is None or (given is not None and not isinstance(given, str | dict)):
            self._wrong("persona", "persona is a text, or 'name: text' lines; write it so")
        return "\n".join(lines or ()).strip()

    def _tools(self) -> tuple[str, ...] | None:
        given: Any = self.fields.get("tools")
        if given is None:
            return None
        if not isinstance(given, str | list):
            self._wrong("tools", "tools is a list of names or patterns; write [fs.read, fs.search]")
            return None
        texts = re.split(r"[,\s]+", given) if isinstance(given, str) else cast("list[Any]", given)
        texts = [text for text in texts if text != ""]
        for number, text in enumerate(texts):
            if not _is_pattern(text):
                self._wrong(
                    "tools" if isinstance(given, str) else f"tools.{number}",
                    f"{_cut(str(text))!r} is no pattern of tools; write a tool (fs.read), a glob "
                    "(fs.*) or a host (mcp:git)",
                )
        return tuple(map(str, texts))

    def _actions(self) -> tuple[Action, ...]:
        given: Any = self.fields.get("critical_actions")
        if given is None:
            return ()
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
            self._wrong(key, "the path to load is not one printable line; write one path")
            return ""
        try:
            filled = self.marks.path(path.strip())
            filled = filled if filled.startswith("@") else f"@project/{filled}"
            if len(path_parts(filled)) < 2:
                self._wrong(key, f"{_cut(filled)!r} is no file; write a path below a mount")
            return filled
        except UnknownMark as error:
            why = f"{error} in a critical action; give it in the config, or write the path out"
            self._wrong(key, why)
        except ToolError as error:
            self._wrong(key, error.message)
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _one_pair(fields: Mapping[str, Any]) -> str | None:
    """What YAML takes for a key and its value, and was meant as a text: `Note: be brief`."""
    pairs = [f"{key}: {value}" for key, value in fields.items() if isinstance(value, str)]
    return pairs[0] if len(fields) == len(pairs) == 1 else None


def _text_of(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


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


def _persona_lines(fields: Mapping[str, Any]) -> list[str] | None:
    """A persona in several keys as lines: `Role: …`; None where one is no text or list of texts."""
    lines: list[str] = []
    for key, value in fields.items():
        label = key.replace("_", " ").strip().capitalize()
        if isinstance(value, list):
            items = cast("list[Any]", value)
            lines += [f"{label}:", *(f"- {str(item).strip()}" for item in items)]
        elif isinstance(value, str | int | float):
            lines.append(f"{label}: {_text_of(value)}")
        elif value is not None:
            return None
    return lines


def find_agents(project: Path) -> dict[str, Path]:
    """The files of agents by name, in the project and then in the home folder; the first wins.

    Of a `NAME.md`, a `NAME.yaml` and a `NAME/SKILL.md` in one folder the name is NAME. What a link
    leads out of that folder to is not there.
    """
    found = (named for folder in _folders(project) for named in _agents_in(folder))
    kept: dict[str, Path] = {}
    for name, path in islice(found, _MOST_FILES):
        kept.setdefault(name, path)
    return dict(sorted(kept.items()))


def _folders(project: Path) -> Iterator[Path]:
    """Folders of agents that are there, links resolved."""
    for base in dict.fromkeys(Path(os.path.realpath(it)) for it in (project, Path.home())):
        for name in FOLDERS:
            folder = Path(os.path.realpath(base / name))
            if folder.is_dir() and folder.is_relative_to(base):
                yield folder


def _agents_in(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in sorted(os.listdir(folder)):
        path = folder / name
        stem = path.stem if path.suffix in _ENDINGS else name
        file = Path(os.path.realpath(path / _SKILL if path.is_dir() else path))
        fits = file.suffix in _ENDINGS and file.is_file() and file.is_relative_to(folder)
        if fits and is_id(stem) and stem.casefold() != "readme":
            yield stem, file


def load_agent(
    name: str, *, values: Mapping[str, str] | None = None, project: Path | None = None
) -> AgentSpec:
    """Load an agent without a workflow.

    Args:
        name: an id, looked for in `.nbagent/agents/` and `.agents/agents/` of the project, then of
            the home folder; or a path that ends in `.md`, `.yaml` or `.yml`.
        values: what marks such as `{communication_language}` stand for.
        project: the folder that `@project` is.

    Raises:
        UsageError: there is no such agent; it lists those that are there.
        PackageError: its file cannot be used; all that is wrong with it.
    """
    base = Path(os.path.realpath(project or project_folder()))
    marks = Marks(person_values(values), bundle="")
    file = _named_by_path(name, base) or _file_of(name, find_agents(base))
    inside = file.is_relative_to(base)
    shown = file.relative_to(base).as_posix() if inside else without_folders(str(file))
    faults: list[Fault] = []
    text = _read(file, shown, faults)
    spec = None if text is None else read_agent(text, shown, marks=marks, faults=faults)
    if spec is None:
        raise PackageError(f"the agent {visible(name)!r}", tuple(faults))
    return spec


def _named_by_path(name: str, base: Path) -> Path | None:
    # A name that is too long, `~nobody`, a zero byte.
    with suppress(OSError, RuntimeError, ValueError):
        file = base / Path(name).expanduser()
        return file if name.endswith(_ENDINGS) and file.is_file() else None
    return None


def _file_of(name: str, found: Mapping[str, Path]) -> Path:
    """The file of an agent by the name of the file, else by the id in it."""
    if name in found:
        return found[name]
    for path in found.values() if is_id(name) else ():
        text = _read(path, "", []) or ""
        spec = read_agent(text, path.name, marks=Marks(), faults=[]) if name in text else None
        if spec is not None and spec.id == name:
            return path
    places = f"{' or '.join(f'{it}/' for it in FOLDERS)} of the project or of your home folder"
    if not found:
        raise UsageError(
            f"there is no agent {visible(name)!r}, and no other; put NAME.md, NAME.yaml or "
            f"NAME/SKILL.md into {places}, or write the path of a file"
        )
    more = f" and {len(found) - 30} more" if len(found) > 30 else ""
    raise UsageError(
        f"there is no agent {visible(name)!r}; there are {', '.join(islice(found, 30))}{more}; "
        f"choose one of them, or put another into {places}"
    )


def _read(path: Path, shown: str, faults: list[Fault]) -> str | None:
    """The text of a file; None, with a fault, where it cannot be read."""
    real = Path(os.path.realpath(path))
    try:
        with closing(open_root(real.parent)) as folder:
            descriptor = folder.open_file((real.name,))
            try:
                data = read_bytes(descriptor, most=_MOST_BYTES + 1)
            finally:
                os.close(descriptor)
        return data.decode("utf-8-sig", "replace" if len(data) > _MOST_BYTES else "strict")
    except OSError as error:
        faults.append(Fault(shown, None, failure(error, shown).message))
    except UnicodeDecodeError:
        faults.append(Fault(shown, None, "it is not UTF-8 text; save it so"))
    return None


def critical_context(agent: AgentSpec, read: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """Read the files that an agent loads before everything else: pairs of a path and its content.

    Args:
        agent: whose actions they are.
        read: gives the content of a path with its mount; a ToolError where it cannot.

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
    if not faults and len(whole) > _ALL_CHARS:
        faults.append(Fault(agent.file, None, _too_long("all that it loads together", whole)))
    if faults:
        raise PackageError(f"nothing was sent: the agent {agent.id!r}", tuple(faults))
    return tuple(contents.items())


def _too_long(what: str, content: str) -> str:
    return (
        f"{what} has {len(content):,} characters (at most {_FILE_CHARS:,} each and {_ALL_CHARS:,} "
        "together); write a rule instead that says to search it and to read windows"
    )
