"""Makes a graph from the names and links of step files, for packages without a graph file.

`steps/step-01-begin.md`, `step-02-…` follow each other by number. Other step files
(`step-01b-continue.md`, `step-e-01-check.md`) are attached to the steps whose text links to them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePosixPath

from nbagent.contracts.errors import ToolError
from nbagent.files.names import path_parts
from nbagent.workflow.graph import Edge, Node, Problem
from nbagent.workflow.graph_file import GRAPH_FILE, LocatedEdge, LocatedNode, Location
from nbagent.workflow.source import Source

_STEP = re.compile(
    r"(?:(?P<folder>step[^/]*)/)?step[-_]?(?P<number>\d{1,6})?(?P<more>[^/]*)\.md", re.IGNORECASE
)
_STEP_REFERENCE = re.compile(r"(?<![\w.-])step[\w.-]{0,200}\.md\b", re.IGNORECASE)
"""Name of a step file in a text: in a Markdown link, in backticks or plain."""
_FOLDER_BEFORE = re.compile(r"([\w.-]+)/$")


def graph_of_steps(
    source: Source, problems: list[Problem]
) -> tuple[list[LocatedNode], list[LocatedEdge], tuple[str, ...]]:
    """Make nodes and edges from the numbers of the steps, and notes for the person."""
    files = sorted(filter(_STEP.fullmatch, source.files))
    main_path = _numbered_files(files)
    if not main_path:
        why = f"there is neither {GRAPH_FILE} nor steps/step-01-….md; write one of them"
        problems.append(Problem("", None, why))
        return [], [], ()
    for file in files:
        try:
            path_parts(file)
        except ToolError as error:
            problems.append(Problem(file, None, f"{error.message}; rename this step"))
    texts = {file: source.text(file, problems) or "" for file in files}
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(PurePosixPath(file).name, []).append(file)
    links = {file: _links(file, texts[file], by_name) for file in files}
    edge_labels: dict[str, dict[str, str]] = {
        file: {following: "next"} for file, following in pairwise(main_path)
    }
    numbers = {file: number for number, file in enumerate(main_path)}
    queue = deque(pairwise(main_path))
    while queue:
        file, following = queue.popleft()
        for other in links[file]:
            if other in numbers:
                continue  # the order of numbered steps is that of their numbers
            edge_labels[file][other] = "see"
            if other not in edge_labels:
                queue.append((other, following))
            # Without a link back it leads to the next step: else it would be a dead end.
            targets = [target for target in links[other] if target in numbers] or [following]
            edge_labels.setdefault(other, {}).update(dict.fromkeys(targets, "next"))
    reached = [*main_path, *(file for file in files if file in edge_labels and file not in numbers)]
    ids = _ids(reached)
    nodes = [
        (Node(id=ids[file], step_file=file, terminal=file == main_path[-1]), Location(file))
        for file in reached
    ]
    edges = [
        (Edge(source=ids[file], target=ids[target], label=label), Location(file))
        for file in reached
        for target, label in edge_labels.get(file, {}).items()
    ]
    shown = " → ".join(ids[file] for file in main_path)
    notes = [f"there is no {GRAPH_FILE}; the graph was made from the numbers of the steps: {shown}"]
    for file in files:
        if file not in ids:
            notes.append(f"{file} is not a step of the graph: no step before the last links to it")
    return nodes, edges, tuple(notes)


def _numbered_files(files: list[str]) -> list[str]:
    """Return the files with plain numbers, in order, of the preferred folder."""
    by_folder: dict[str, list[tuple[int, str]]] = {}
    for file in files:
        step = _STEP.fullmatch(file)
        if step and step["number"] and not step["more"][:1].isalnum():
            by_folder.setdefault(step["folder"] or ".", []).append((int(step["number"]), file))
    if not by_folder:
        return []
    # `steps` is preferred to the package's folder, and this to `steps-c` and the like.
    folder = min(by_folder, key=lambda name: (name != "steps", name != ".", name))
    return [file for _, file in sorted(by_folder[folder])]


def _links(file: str, text: str, by_name: Mapping[str, list[str]]) -> list[str]:
    """Return the other step files that a text names, each once, in order."""
    folder = PurePosixPath(file).parent
    linked: dict[str, None] = {}
    for match in _STEP_REFERENCE.finditer(text):
        before = _FOLDER_BEFORE.search(text[max(0, match.start() - 200) : match.start()])
        written = before[1] if before else ""
        # If several files have this name: the one whose folder is written, else the nearest.
        candidates = sorted(
            map(PurePosixPath, by_name.get(match[0], ())),
            key=lambda path: (path.parent.name != written, path.parent != folder),
        )
        if candidates and str(candidates[0]) != file:
            linked[str(candidates[0])] = None
    return list(linked)


def _ids(files: list[str]) -> Mapping[str, str]:
    """Make an id from each file's name without suffix; with its folder if the name is taken."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for file in files:
        path = PurePosixPath(file)
        stem = to_id(path.stem)
        ids[file] = to_id(f"{path.parent.name}.{path.stem}") if stem in taken else stem
        taken.add(ids[file])
    return ids


def to_id(name: str) -> str:
    """Convert a name to an id: `My package` → `My-package`; empty if no character is allowed."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:80]
