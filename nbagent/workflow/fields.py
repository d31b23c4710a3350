"""Reads the keys of one front matter, node or edge; each invalid value becomes a problem.

Owns the definitions of an id, a line and a path for all files of a package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ToolError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.files.frontmatter import FrontMatter, read_frontmatter, read_yaml
from nbagent.files.names import path_parts, visible
from nbagent.workflow.graph import Problem
from nbagent.workflow.placeholders import (
    Placeholders,
    UnknownPlaceholder,
    is_single_line,
    read_values,
)
from nbagent.workflow.source import Source

LINE_CHARS = 200
YAML_ENDINGS = (".yaml", ".yml")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def is_id(text: str) -> bool:
    """True if a text can name a package, an agent or a step."""
    return _ID.fullmatch(text) is not None


def read_matter(text: str, file: str, problems: list[Problem]) -> FrontMatter:
    """Read the front matter of a file, or all of a YAML file; empty, with problems, if invalid."""
    try:
        is_yaml = file.endswith(YAML_ENDINGS)
        return read_yaml(text) if is_yaml else read_frontmatter(text, strict=True)
    except ToolError as error:
        reported: list[Any] = error.details.get("problems") or [(None, error.message)]
        problems += [Problem(file, line, str(why)) for line, why in reported]
        return FrontMatter({}, "")


class Fields:
    """The keys of one object in a file.

    Args:
        file: path below the package.
        values: JSON values by key; None for a key that was left empty.
        lines: the line of each key, as in `FrontMatter.lines`; or one line for all keys.
        problems: receives all problems.
    """

    def __init__(
        self,
        file: str,
        values: Mapping[str, Any],
        lines: Mapping[str, int] | int,
        problems: list[Problem],
    ) -> None:
        self.file, self.lines, self.problems = file, lines, problems
        self.values = {key: value for key, value in values.items() if value is not None}

    def line_of(self, key: str) -> int | None:
        if isinstance(self.lines, int):
            return self.lines
        return self.lines.get(key) or self.lines.get(key.partition(".")[0])

    def add_problem(self, key: str, why: str) -> None:
        self.problems.append(Problem(self.file, self.line_of(key), why))

    def check_keys(self, known: Collection[str], silent: Collection[str] = ()) -> None:
        """Add a problem for each unknown key. `silent` keys are allowed but not suggested."""
        for key in self.values:
            if key not in known and key not in silent:
                self.add_problem(
                    key, f"there is no key {visible(key)!r}{nearest_or_all(key, known)}"
                )

    def line(self, key: str, max_chars: int = LINE_CHARS) -> str:
        """Read a text of one line; empty if it is missing."""
        value = self.values.get(key, "")
        if value == "" or (isinstance(value, str) and is_single_line(value, max_chars)):
            return value.strip()
        limit = f"one printable line of at most {max_chars} characters"
        self.add_problem(key, f"{key} is not {limit}; write one, in quotes")
        return ""

    def id(self, key: str, default: str = "") -> str:
        """Read an id; empty, with a problem, if it is invalid."""
        value = self.values.get(key, default)
        if isinstance(value, str) and is_id(value):
            return value
        reason = f"{visible(repr(value))} is not an id" if value != "" else f"{key} is missing"
        self.add_problem(key, f"{reason}; write up to 80 letters, digits, _ . or -")
        return ""

    def mapping(self, key: str) -> dict[str, Any]:
        """Read an object; empty if it is missing."""
        value = json_object(self.values.get(key, {}))
        if value is None:
            self.add_problem(key, f"{key} is not a list of 'name: value' pairs; write one")
        return value or {}

    def texts(self, key: str) -> dict[str, str]:
        """Read values for placeholders."""
        values, invalid = read_values(self.mapping(key))
        for name, why in invalid.items():
            self.add_problem(f"{key}.{name}", why)
        return values

    def path(
        self,
        key: str,
        value: object,
        placeholders: Placeholders,
        *,
        mount: str = "@project",
        source: Source | None = None,
    ) -> str:
        """Read a path, with its mount and filled placeholders; empty, with a problem, if invalid.

        Args:
            key: key whose line is reported.
            value: the value in the file.
            placeholders: values of placeholders; each one in the path needs a value.
            mount: mount of a path that names none.
            source: the package in which a file of `@pkg` must exist; None: no check.
        """
        try:
            if not isinstance(value, str) or not is_single_line(value):
                raise ToolError("write it as one printable line of text, in quotes")
            parts = path_parts(placeholders.fill_path(value.strip()))
            parts = parts if parts and parts[0].startswith("@") else (mount, *parts)
            if len(parts) < 2:
                raise ToolError("write a path below a mount, such as @project/notes.md")
        except (ToolError, UnknownPlaceholder) as error:
            why = getattr(error, "message", f"{error}; give one in config, or write it out")
            self.add_problem(key, f"{visible(repr(value))} is not a path: {why}")
            return ""
        file = "/".join(parts[1:])
        if source is not None and parts[0] == "@pkg" and file not in source.files:
            self.add_problem(key, source.why_missing(file))
        return "/".join(parts)
