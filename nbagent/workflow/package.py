"""A package: its folder or zip becomes one checked value, or an error with all its faults.

Owns what stands in `workflow.md` and `SKILL.md`, which agents there are, and the order of the
checks. The files are `unpacking`'s, the graph is `graph_file`'s and `steps`'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from nbagent.settings.sources import to_path, project_folder, store_home
from nbagent.workflow.agents import read_agent, unknown_agent
from nbagent.workflow.fields import Fields, read_matter
from nbagent.workflow.graph import AgentSpec, Problem, Graph, Package
from nbagent.workflow.graph_file import GRAPH_FILE, Location, check_graph, read_graph
from nbagent.workflow.placeholders import Placeholders, person_values, read_values
from nbagent.workflow.source import MAIN_FILES, Source, read_source, package_error
from nbagent.workflow.steps import graph_of_steps, to_id

_CONFIG = "config.yaml"
_KEYS = ("id", "name", "agents", "agent", "entry", "variables", "config")
_MIN_SIMILARITY = 0.72
"""`entrie` is like `entry`; `main_config` is a key of BMAD and not like `config`."""
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
        path: its folder or its zip; a relative one begins at the project's folder.
        values: the person's values for marks such as `{communication_language}`.
        cache: where zips are unpacked; the store's own folder unless said.

    Raises:
        PackageError: it cannot be used; all that is wrong, with file and line.
        UsageError: one of `values` is not one printable line.
    """
    checked_values = person_values(values)
    project = project_folder()
    package_path = Path(os.path.normpath(project / to_path(path, "path")))
    if not str(package_path).removeprefix(str(project)).isprintable():
        raise package_error(package_path, "its path is not one printable line; rename the folder or the file")
    source = read_source(package_path, store_home() / "packages" if cache is None else cache)
    problems: list[Problem] = []
    package = _PackageReader(source, checked_values, problems).package()
    if package is None or problems:
        problems.sort(key=lambda fault: (fault.file, fault.line or 0))
        raise package_error(package_path, *dict.fromkeys(problems))
    return package


class _PackageReader:
    """One package while it is read; what is wrong becomes a fault."""

    def __init__(self, source: Source, values: Mapping[str, str], problems: list[Problem]) -> None:
        self.source, self.problems = source, problems
        self.file = next(file for file in MAIN_FILES if file in {*source.files, *source.links})
        self.template = source.text(self.file, problems) or ""
        self.matter = read_matter(self.template, self.file, problems)
        self.fields = Fields(self.file, self.matter.mapping, self.matter.lines, problems)
        self.placeholders = Placeholders(values, self._config())
        self.notes = [f"{self.file}: {warning}" for warning in self.matter.warnings]

    def package(self) -> Package | None:
        """The package; None, or of no use, where there are faults."""
        package_id = self.fields.id("id", to_id(self.source.name))
        self.fields.mapping("variables")
        agents, agent = self._agents()
        graph = self._graph(agents)
        if ".mcp.json" in self.source.files:
            self.notes.append("its .mcp.json is not read: servers are the person's to choose")
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
        """Packages from elsewhere have keys of their own, so these are no faults."""
        for key in (name for name in self.fields.values if name not in _KEYS):
            for similar in get_close_matches(key, _KEYS, 1, _MIN_SIMILARITY):
                location = f"{self.file}:{self.fields.line_of(key)}"
                self.notes.append(f"{location}: unknown key {key!r}; did you mean {similar!r}?")

    def _config(self) -> dict[str, str]:
        """The package's own values: of its `config.yaml`, and of the front matter, which win."""
        text = self.source.text(_CONFIG, self.problems) if _CONFIG in self.source.files else None
        # Such a file may hold more than values for marks.
        values, _ = read_values(read_matter(text or "", _CONFIG, self.problems).mapping)
        return values | self.fields.texts("config")

    def _ids(self, key: str) -> dict[str, str]:
        """The ids in a list or a text, each with its key in the front matter."""
        value = self.fields.values.get(key, [])
        if isinstance(value, str):
            return {value: key}
        items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) for item in items):
            self.fields.add_problem(key, f"{key} is an id, or a list of ids; write one in quotes")
            return {}
        return {item: f"{key}.{number}" for number, item in enumerate(items)}

    def _agents(self) -> tuple[dict[str, AgentSpec], str | None]:
        """The agents of the package, those listed where some are, and which one is the default."""
        specs: dict[str, AgentSpec] = {}
        for file in filter(_AGENT.fullmatch, sorted({*self.source.files, *self.source.links})):
            text = self.source.text(file, self.problems)
            spec = read_agent(text, file, placeholders=self.placeholders, problems=self.problems, source=self.source)
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
            read = read_graph(self.source, placeholders=self.placeholders, agents=agents, problems=self.problems)
            if read is None:
                return None
            nodes, edges = read
        else:
            nodes, edges, notes = graph_of_steps(self.source, self.problems)
            if not nodes:
                return None
            self.notes += notes
            entry = entry or nodes[0][0].id
        return check_graph(nodes, edges, entry=entry, entry_location=location, problems=self.problems)

    def _step_texts(self, graph: Graph) -> list[str]:
        files = dict.fromkeys(node.step_file for node in graph.nodes.values())
        there = (file for file in files if file in self.source.files)
        return [self.source.text(file, self.problems) or "" for file in there]

    def _values(self, prose: str) -> dict[str, str]:
        """What is given for marks, and of those that always have a value the ones in use."""
        used = [name for name in _FIXED_PLACEHOLDERS if f"{{{name}}}" in prose]
        names = dict.fromkeys([*self.placeholders.config, *self.placeholders.values, *used])
        return {name: self.placeholders.fill_text(f"{{{name}}}")[0] for name in names}
