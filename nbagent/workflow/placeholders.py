"""Marks: `{project-root}`, `{config:KEY}`, `{date}` in what a package and its agents say.

Owns what a mark is and what it stands for: strict in paths that the runtime loads, lenient in
prose. Where a mark without a value is reported is its caller's.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import date
from typing import Any
from unicodedata import category

from nbagent.contracts.errors import UsageError

# In prose `${HOME}` belongs to a shell; in a path it would be no file.
_PLACEHOLDER = re.compile(
    r"(?<!\{)(?:\{(?P<name>[^\W\d][\w:.-]{0,79})\}"
    r"|\{\{ *(?P<double>[^\W\d][\w:. -]{0,79})\}\})(?!\})"
)
_NAME = re.compile(r"[^\W\d][\w.-]{0,79}")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Scripts need them within words, and emoji.
_JOINERS = frozenset("\u200c\u200d")
_VALUE_CHARS = 1_000


class UnknownPlaceholder(ValueError):
    """A path holds a mark that nothing gives a value for.

    Attributes:
        mark: as it is written, `{output_folder}`.
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(f"nothing gives a value for {placeholder}")
        self.placeholder = placeholder


def is_single_line(text: str, max_chars: int = _VALUE_CHARS) -> bool:
    """Whether a text is one line that a person sees whole, and not empty."""
    if not text.strip() or len(text) > max_chars:
        return False
    return all(char in _JOINERS or category(char) not in _HIDDEN for char in text)


def read_values(pairs: Mapping[Any, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Values for marks by name, and what is wrong with each that cannot be one, by its name.

    Numbers and switches are taken as they are written; a name without a value is left out.
    """
    values: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for name, value in pairs.items():
        text = str(value).lower() if isinstance(value, bool | int | float) else value
        if not _NAME.fullmatch(str(name)):
            invalid[name] = f"{str(name)[:80]!r} is no name for a value; use letters, digits, _ or -"
        elif isinstance(text, str) and is_single_line(text):
            values[name] = text
        elif text is not None:
            most = f"write a text of at most {_VALUE_CHARS:,} characters"
            invalid[name] = f"the value of {name!r} is not one printable line; {most}"
    return values, invalid


def person_values(values_by_name: Mapping[str, str] | None) -> dict[str, str]:
    """What a person gave for marks, checked; UsageError where it cannot be used."""
    values, invalid = read_values(values_by_name or {})
    if invalid:
        raise UsageError("; ".join(invalid.values()))
    return values


@dataclass(frozen=True, slots=True)
class Placeholders:
    """What marks stand for."""

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """The person's."""
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    """The package's own. Its values may hold the marks of folders and `{date}`, no others."""
    _: KW_ONLY
    today: date | None = None
    bundle: str = "@pkg"
    """The package's folder; empty where there is none."""

    def with_config(self, more: Mapping[str, str]) -> Placeholders:
        """The same with more values of the package; they win over those that are there."""
        return replace(self, config={**self.config, **more})

    def fill_path(self, text: str) -> str:
        """Fill in what the runtime loads itself; the package's own values come first.

        Raises:
            UnknownMark: one has no value, or stands in double braces.
        """

        def fill(match: re.Match[str]) -> str:
            name = match["name"]
            value = self._value(name, (self.config, self.values)) if name else None
            if value is None or text[: match.start()].endswith("$"):
                raise UnknownPlaceholder(match[0])
            if left := _PLACEHOLDER.search(value):
                raise UnknownPlaceholder(left[0])
            return value

        return _PLACEHOLDER.sub(fill, text)

    def fill_text(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Fill in what is known, the person's values first; also the marks that stay, each once."""
        unfilled: dict[str, None] = {}

        def fill(match: re.Match[str]) -> str:
            if match.start() and text[match.start() - 1] == "$":
                return match[0]
            name = match["name"] or match["double"].strip()
            value = self._value(name, (self.values, self.config))
            filled = match[0] if value is None else value
            unfilled.update(dict.fromkeys(mark[0] for mark in _PLACEHOLDER.finditer(filled)))
            return filled

        return _PLACEHOLDER.sub(fill, text), tuple(unfilled)

    def _value(self, name: str, sources: tuple[Mapping[str, str], ...]) -> str | None:
        """What a mark stands for. Marks in it are filled in once, and only those of folders."""
        fixed = self._fixed_values()
        if name in fixed:
            return fixed[name]
        if name.startswith("config:"):
            value = self.config.get(name.removeprefix("config:"))
        elif name == "user_name":
            value = self.values.get(name) or self.config.get(name) or _login()
        else:
            value = next((source[name] for source in sources if name in source), None)
        if value is None:
            return None
        return _PLACEHOLDER.sub(lambda match: fixed.get(match["name"]) or match[0], value)

    def _fixed_values(self) -> dict[str | None, str | None]:
        """Marks that nobody gives another value."""
        return {
            "project-root": "@project",
            "bundle-root": self.bundle or None,
            "skill-root": self.bundle or None,
            "date": (self.today or date.today()).isoformat(),
        }


def _login() -> str | None:
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # A container without a user's name.
        return None
    return name if is_single_line(name, 80) else None
