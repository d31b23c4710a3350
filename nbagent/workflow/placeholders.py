"""Placeholders in texts of packages and agents: `{project-root}`, `{config:KEY}`, `{date}`.

Owns their syntax and values: strict in paths that the runtime loads, lenient in prose. Callers
report placeholders without a value.
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

# `${HOME}` is a shell variable: prose keeps it, a path with it is an error.
_PLACEHOLDER = re.compile(
    r"(?<!\{)(?:\{(?P<name>[^\W\d][\w:.-]{0,79})\}"
    r"|\{\{ *(?P<double>[^\W\d][\w:. -]{0,79})\}\})(?!\})"
)
_NAME = re.compile(r"[^\W\d][\w.-]{0,79}")
# A person who reads the text would not see them, but the model would.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Some scripts need them within words, and emoji between their parts.
_JOINERS = frozenset("\u200c\u200d")
_VALUE_CHARS = 1_000


class UnknownPlaceholder(ValueError):
    """A path contains a placeholder without a value.

    Attributes:
        placeholder: as it is written, `{output_folder}`.
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(f"nothing gives a value for {placeholder}")
        self.placeholder = placeholder


def is_single_line(text: str, max_chars: int = _VALUE_CHARS) -> bool:
    """True if a text is one line without invisible characters, and not empty."""
    if not text.strip() or len(text) > max_chars:
        return False
    return all(char in _JOINERS or category(char) not in _HIDDEN for char in text)


def read_values(pairs: Mapping[Any, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Check values of placeholders; return the valid ones, and a problem for each invalid one.

    Numbers and booleans are converted to text; a name without a value is left out.
    """
    values: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for name, value in pairs.items():
        text = str(value).lower() if isinstance(value, bool | int | float) else value
        if not _NAME.fullmatch(str(name)):
            invalid[name] = f"{str(name)[:80]!r} cannot name a value; use letters, digits, _ or -"
        elif isinstance(text, str) and is_single_line(text):
            values[name] = text
        elif text is not None:
            advice = f"write a text of at most {_VALUE_CHARS:,} characters"
            invalid[name] = f"the value of {name!r} is not one printable line; {advice}"
    return values, invalid


def person_values(values_by_name: Mapping[str, str] | None) -> dict[str, str]:
    """Check a person's values of placeholders. Raises UsageError."""
    values, invalid = read_values(values_by_name or {})
    if invalid:
        raise UsageError("; ".join(invalid.values()))
    return values


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Values of placeholders."""

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """The person's."""
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    """The package's. They may contain placeholders of folders and `{date}`, no others."""
    _: KW_ONLY
    today: date | None = None
    bundle: str = "@pkg"
    """The package's folder; empty if there is none."""

    def with_config(self, more: Mapping[str, str]) -> Placeholders:
        """Copy with more values of the package; they override the existing ones."""
        return replace(self, config={**self.config, **more})

    def fill_path(self, text: str) -> str:
        """Fill in a path that the runtime loads. The package's values come first: a person's text
        must not redirect which files are loaded.

        Raises:
            UnknownPlaceholder: one has no value, or is in double braces.
        """

        def fill(match: re.Match[str]) -> str:
            name = match["name"]
            value = self._value(name, (self.config, self.values)) if name else None
            if value is None or text[: match.start()].endswith("$"):
                raise UnknownPlaceholder(match[0])
            if nested := _PLACEHOLDER.search(value):
                raise UnknownPlaceholder(nested[0])
            return value

        return _PLACEHOLDER.sub(fill, text)

    def fill_text(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Fill in known placeholders, the person's values first; also return the others, once."""
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
        """Return a placeholder's value. Inside a value only fixed placeholders are filled, once: no
        recursion, and a value cannot pull in another value."""
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
        """Return placeholders whose values cannot be overridden."""
        return {
            "project-root": "@project",
            "bundle-root": self.bundle or None,
            "skill-root": self.bundle or None,
            "date": (self.today or date.today()).isoformat(),
        }


def _login() -> str | None:
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # A container may have no user name.
        return None
    return name if is_single_line(name, 80) else None
