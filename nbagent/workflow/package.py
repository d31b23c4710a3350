"""Loads a package: its folder or zip becomes a checked value, or an error with all problems.

Owns the keys of `workflow.md` and `SKILL.md`, the choice of agents, and the order of the checks.
Files are read in `source`, graphs in `graph_file` and `steps`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.nearest import nearest_name
from nbagent.settings.sources import project_folder, to_path
from nbagent.store.home import writing_folder
from nbagent.workflow.agents import read_agent, unknown_agent
from nbagent.workflow.fields import Fields, read_matter
from nbagent.workflow.graph import AgentSpec, Graph, Package, Problem
from nbagent.workflow.graph_file import GRAPH_FILE, Location, check_graph, read_graph
from nbagent.workflow.placeholders import Placeholders, person_values, read_values
from nbagent.workflow.source import MAIN_FILES, Source, package_error, read_source
from nbagent.workflow.steps import graph_of_steps, to_id

_CONFIG = "config.yaml"
_KEYS = ("id", "name", "agents", "agent", "entry", "variables", "config")
_MIN_SIMILARITY = 0.72
"""`entrie` must match `entry`; `main_config`, a key of BMAD, must not match `config`."""
# A README in the folder describes the agents and is none.
_AGENT = re.compile(r"agents/([^/]+/SKILL\.md|(?!(?i:readme)\.)[^/]+\.(md|yaml|yml))")
_FIXED_PLACEHOLDERS = ("project-root", "bundle-root", "skill-root", "date", "user_name")


def load_package(
    path: str | os.PathLike[str],
    *,
    values: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> Package:
    """Read a package and check all of it.

    Args:
        path: its folder or zip; relative paths begin at the project's folder.
        values: the person's values for placeholders such as `{communication_language}`.
        cache: folder for unpacked zips; default: a folder of the store.

    Raises:
        PackageError: it cannot be used; lists all problems with file and line.
        UsageError: one of `values` is not one printable line.
    """
    checked_values = person_values(values)
    project = project_folder()
    package_path = Path(os.path.normpath(project / to_path(path, "path")))
    # Package paths appear in errors and records. The project's own path is not checked: it is not
    # shown.
    if not str(package_path).removeprefix(str(project)).isprintable():
        raise package_error(
            package_path, "its path is not one printable line; rename the folder or the file"
        )
    if package_path.is_relative_to(project) and not Path(
        os.path.realpath(package_path)
    ).is_relative_to(os.path.realpath(project)):
        why = "a link on its path leads out of the project; name the folder that it points to"
        raise package_error(package_path, why)
    source = read_source(package_path, writing_folder() / "packages" if cache is None else cache)
    problems: list[Problem] = []
    package = _PackageReader(source, checked_values, problems).package()
    if package is None or problems:
        problems.sort(key=lambda fault: (fault.file, fault.line or 0))
        raise package_error(package_path, *dict.fromkeys(problems))
    return package


class _PackageReader:
    """Reads one package and collects its problems."""

    def __init__(self, source: Source, values: Mapping[str, str], problems: list[Problem]) -> None:
        self.source, self.problems = source, problems
        self.file = next(file for file in MAIN_FILES if file in {*source.files, *source.links})
        self.template = source.text(self.file, problems) or ""
        self.matter = read_matter(self.template, self.file, problems)
        self.fields = Fields(self.file, self.matter.mapping, self.matter.lines, problems)
        self.placeholders = Placeholders(values, self._config())
        self.notes = [f"{self.file}: {warning}" for warning in self.matter.warnings]

    def package(self) -> Package | None:
        """Read the package. The result is valid only if no problem was added."""
        package_id = self.fields.id("id", to_id(self.source.name))
        self.fields.mapping("variables")
        agents, agent = self._agents()
        graph = self._graph(agents)
        if ".mcp.json" in self.source.files:
            # Servers are programs: a package must not start them without the person.
            self.notes.append("its .mcp.json is not read; choose servers yourself with --tools")
        if graph is None:
            return None
        self._note_misspelled_keys()
        prose = "\n".join([self.matter.body, *self._step_texts(graph)])
        return Package(
            id=package_id,
            name=self.fields.line("name") or package_id,
            path=self.source.path,
            root=self.source.root,
            sha256=self.source.sha256,
            graph=graph,
            graph_file=GRAPH_FILE if GRAPH_FILE in self.source.files else None,
            main_file=self.file,
            agents=agents,
            agent=agent,
            rules=self.placeholders.fill_text(self.matter.body)[0],
            template=self.template,
            values=self._values(prose),
            unfilled=self.placeholders.fill_text(prose)[1],
            notes=tuple(self.notes),
        )

    def _note_misspelled_keys(self) -> None:
        """Add notes about misspelled keys. No problems: packages of others have further keys."""
        for key in (name for name in self.fields.values if name not in _KEYS):
            if similar := nearest_name(key, _KEYS, similarity=_MIN_SIMILARITY):
                location = f"{self.file}:{self.fields.line_of(key)}"
                self.notes.append(f"{location}: unknown key {key!r}; did you mean {similar!r}?")

    def _config(self) -> dict[str, str]:
        """Read the package's values: from `config.yaml`, overridden by the front matter."""
        text = self.source.text(_CONFIG, self.problems) if _CONFIG in self.source.files else None
        # The file may contain more than values for placeholders, so invalid ones are no problem.
        values, _ = read_values(read_matter(text or "", _CONFIG, self.problems).mapping)
        return values | self.fields.texts("config")

    def _ids(self, key: str) -> dict[str, str]:
        """Read an id or a list of ids; return each with its key in the front matter."""
        value = self.fields.values.get(key, [])
        if isinstance(value, str):
            return {value: key}
        items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) for item in items):
            self.fields.add_problem(key, f"{key} is an id, or a list of ids; write one in quotes")
            return {}
        return {item: f"{key}.{number}" for number, item in enumerate(items)}

    def _agents(self) -> tuple[dict[str, AgentSpec], str | None]:
        """Read the agents of the package (those listed, if there is a list) and the default one."""
        specs: dict[str, AgentSpec] = {}
        for file in filter(_AGENT.fullmatch, sorted({*self.source.files, *self.source.links})):
            text = self.source.text(file, self.problems)
            spec = read_agent(
                text,
                file,
                placeholders=self.placeholders,
                problems=self.problems,
                source=self.source,
            )
            if spec.id in specs:
                why = f"the agent {spec.id!r} is in {specs[spec.id].file} too; rename one of them"
                self.problems.append(Problem(file, None, why))
            specs[spec.id] = spec
        listed, default = self._ids("agents"), self._ids("agent")
        for name, key in (*listed.items(), *default.items()):
            if name not in specs:
                self.fields.add_problem(key, unknown_agent(name, specs))
        chosen = [*listed, *default] if listed else [*specs]
        agents = {name: specs[name] for name in chosen if name in specs}
        only = [*agents] if listed or len(agents) == 1 else []
        return agents, next(iter([*default, *only]), None)

    def _graph(self, agents: Mapping[str, AgentSpec]) -> Graph | None:
        entries = self._ids("entry")
        location = Location(self.file, self.fields.line_of("entry"))
        if len(entries) > 1:
            why = f"there are {len(entries)} entries ({', '.join(entries)}); name one"
            self.fields.add_problem("entry", why)
        entry = next(iter(entries), None)
        if GRAPH_FILE in self.source.files or GRAPH_FILE in self.source.links:
            read = read_graph(
                self.source, placeholders=self.placeholders, agents=agents, problems=self.problems
            )
            if read is None:
                return None
            nodes, edges = read
        else:
            nodes, edges, notes = graph_of_steps(self.source, self.problems)
            if not nodes:
                return None
            self.notes += notes
            entry = entry or nodes[0][0].id
        return check_graph(
            nodes, edges, entry=entry, entry_location=location, problems=self.problems
        )

    def _step_texts(self, graph: Graph) -> list[str]:
        files = dict.fromkeys(node.step_file for node in graph.nodes.values())
        existing = (file for file in files if file in self.source.files)
        return [self.source.text(file, self.problems) or "" for file in existing]

    def _values(self, prose: str) -> dict[str, str]:
        """Return values of placeholders: those set, and the fixed ones that are used."""
        used = [name for name in _FIXED_PLACEHOLDERS if f"{{{name}}}" in prose]
        names = dict.fromkeys([*self.placeholders.config, *self.placeholders.values, *used])
        return {name: self.placeholders.fill_text(f"{{{name}}}")[0] for name in names}
