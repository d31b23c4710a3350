"""What a script says that it needs (PEP 723), compared with what is installed here.

https://packaging.python.org/en/latest/specifications/inline-script-metadata/
"""

from __future__ import annotations

import platform
import re
import tomllib
from dataclasses import dataclass
from importlib import metadata
from typing import Any, cast

_BLOCK = re.compile(r"(?m)^# /// script[ \t]*\r?$\s(?P<text>(^#(| .*)\r?$\s)+)^# ///[ \t]*\r?$")
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class ScriptNeeds:
    """What is missing."""

    packages: tuple[str, ...] = ()
    """As the script wrote them, and what is there instead: `pandas>=9 (2.2.3 is installed)`."""
    install: str = ""
    """What a person types in the notebook."""
    python: str = ""
    """The versions of Python that it wants, where this is none of them."""
    problem: str = ""
    """Why its needs cannot be read."""

    @property
    def text(self) -> str:
        """All of it in one sentence; empty when nothing is missing."""
        if self.problem:
            return f"its inline metadata cannot be read: {self.problem}"
        pieces: list[str] = []
        if self.python:
            pieces.append(f"it wants Python {self.python}, this is {platform.python_version()}")
        if self.packages:
            pieces.append(
                f"packages are missing: {', '.join(self.packages)}; ask the person to run "
                f"{self.install}"
            )
        return "; ".join(pieces)


def needs_of(script: str) -> ScriptNeeds:
    """What a script needs and is not there; nothing when it says nothing."""
    blocks = list(_BLOCK.finditer(script))
    if not blocks:
        return ScriptNeeds()
    if len(blocks) > 1:
        return ScriptNeeds(problem="there are several blocks; keep one")
    lines = (line.removeprefix("#") for line in blocks[0]["text"].splitlines())
    try:
        found: dict[str, Any] = tomllib.loads("\n".join(line.removeprefix(" ") for line in lines))
    except tomllib.TOMLDecodeError as error:
        return ScriptNeeds(problem=f"it is not TOML ({error})")
    wanted: object = found.get("dependencies", [])
    if not isinstance(wanted, list):
        return ScriptNeeds(problem="dependencies is no list")
    texts = [str(item) for item in cast("list[object]", wanted)]
    missing = {text: told for text in texts if (told := _missing(text))}
    return ScriptNeeds(
        packages=tuple(missing.values()),
        install="%pip install " + " ".join(f'"{text}"' for text in missing) if missing else "",
        python=_python(found.get("requires-python")),
    )


def _missing(text: str) -> str:
    """How a requirement is not met; empty when it is."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return _missing_by_name(text)
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return f"{text[:100]!r} (no requirement)"
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    there = _installed(wanted.name)
    if there is None:
        return text
    if wanted.specifier.contains(there, prereleases=True):
        return ""
    return f"{text} ({there} is installed)"


def _missing_by_name(text: str) -> str:
    # Without `packaging` versions are not compared.
    match = _NAME.match(text)
    if match is None:
        return f"{text[:100]!r} (no requirement)"
    return "" if _installed(match["name"]) is not None else text


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _python(wanted: object) -> str:
    if not isinstance(wanted, str):
        return ""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return ""
    try:
        fits = SpecifierSet(wanted).contains(platform.python_version(), prereleases=True)
    except InvalidSpecifier:
        return ""
    return "" if fits else wanted
