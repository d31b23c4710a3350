"""Paths of this machine in texts for a model: under a mount its name, elsewhere the last part.

The border is the outcome of a call; texts that a person reads keep their paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress

from nbagent.shown.texts import without_folders

_START = r"(?<![\w.~@/\\:-])"
_QUOTED = re.compile(rf"{_START}(?P<quote>['\"])(?P<path>(?:/|[A-Za-z]:[\\/])[^'\"\n]+)(?P=quote)")
_BARE = re.compile(
    rf"{_START}(?:file://)?(?P<path>(?:/|[A-Za-z]:[\\/])[^\s'\"<>|*?(){{}}\[\],;:]+)"
)
_PART = r"[^\s'\"<>|*?\\/:,;(){}\[\]]+"
_WINDOWS = (
    rf"(?:[A-Z]:\\{{1,2}}(?={_PART}\\)"
    rf"|\\\\(?=\w[\w.$-]+\\\w)"
    rf"|\\{{4}}(?=\w[\w.$-]+\\\\\w))"
)
"""The start of a path of Windows, with a drive or a server; in a repr with double backslashes."""
_WINDOWS_QUOTED = re.compile(rf"{_START}(?P<quote>['\"]){_WINDOWS}(?P<path>[^'\"\n]+)(?P=quote)")
_WINDOWS_BARE = re.compile(rf"{_START}{_WINDOWS}(?P<path>{_PART}(?:\\{{1,2}}{_PART})*)")
_SEPARATORS = re.compile(r"[\\/]+")


def with_mount_names(text: str, folders: Mapping[str, str]) -> str:
    """Write the paths in a text as a model knows them: `@project/x`, or only `x`.

    Args:
        text: a message, such as that of an OSError.
        folders: folders of this machine and the names of their mounts.
    """
    if os.sep not in text and "\\" not in text:
        return text
    # The deepest first: one mount may lie inside another one. The working folder is none of them.
    for folder in sorted(folders, key=len, reverse=True):
        text = _named(text, folder, folders[folder])
    with suppress(OSError):  # the working folder may be deleted
        text = _named(text, os.getcwd(), ".")
    text = _QUOTED.sub(
        lambda match: f"{match['quote']}{_last(match['path'])}{match['quote']}", text
    )
    text = _BARE.sub(lambda match: _last(match["path"], match[0]), text)
    # Also of another machine, which is in the error of a server or a share.
    text = _WINDOWS_QUOTED.sub(
        lambda match: f"{match['quote']}{_pieces(match['path'])[-1]}{match['quote']}", text
    )
    return without_folders(_WINDOWS_BARE.sub(lambda match: _pieces(match["path"])[-1], text))


def _named(text: str, folder: str, name: str) -> str:
    """Write a name in place of a folder, at the start of paths."""
    if len(folder) < 2:  # every path starts with `/`
        return text
    forms = "|".join(
        {re.escape(folder), re.escape(folder.replace("\\", "\\\\"))}
    )  # the second: in a repr
    return re.sub(rf"{_START}(?:file://)?(?:{forms})(?=[\\/'\"\s:,;)\]>]|$)", lambda _: name, text)


def _last(path: str, written: str = "") -> str:
    """Return the last part of a path of this machine; others (of a web address) stay."""
    pieces = _pieces(path)
    top = path[:3] if path[1:2] == ":" else f"/{pieces[0]}" if pieces else ""
    if len(pieces) < 2 or not os.path.isdir(top):
        return written or path
    return pieces[-1]


def _pieces(path: str) -> list[str]:
    return [piece for piece in _SEPARATORS.split(path) if piece]
