"""The lexical gate: which names may reach the disk at all, and which look like secrets.

Looks at text only. What stands behind a name is `opening`'s matter.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from fnmatch import translate
from functools import lru_cache
from typing import Any, cast

from nbagent.contracts.errors import ToolError

Parts = tuple[str, ...]
"""A path below a mount, in pieces; the empty tuple is the mount itself."""

MOST_BYTES = 255
"""Of one name, on all common file systems."""
_MOST_PARTS = 64
_MOST_CHARS = 4_096
_PLAIN = re.compile(
    r"(?!(?:[Cc][Oo][NnMm]|[PpAaNn][RrUu][NnXxLl]|[Ll][Pp][Tt]))"
    r"[A-Za-z0-9_+=@,()-][A-Za-z0-9_+=@,() .-]{0,99}(?<![. ])"
)
"""Names that need no closer look."""
_RESERVED = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE
)
_SHORT_NAME = re.compile(r".*~\d")
_HIDDEN_KINDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

SECRET_NAMES = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_*", ".netrc", "_netrc"),
    *("credentials", "credentials.json", ".git-credentials", ".pgpass", ".pypirc", ".htpasswd"),
)
"""Files that are not read, written or searched unless a policy allows them by name."""
_SECRETS = re.compile("|".join(translate(pattern) for pattern in SECRET_NAMES))
_EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist"})


def path_parts(path: object) -> Parts:
    """The pieces of a relative path; `.` and empty pieces are left out.

    Raises:
        ToolError: `E_SANDBOX_VIOLATION`, the name could mean something else than it says.
    """
    if not isinstance(path, str):
        raise refused(repr(path)[:80], "a path is a text")
    return _checked(path)


@lru_cache(maxsize=4_096)
def _checked(path: str) -> Parts:
    if len(path) > _MOST_CHARS:
        raise refused(path[:60] + "…", f"it is longer than {_MOST_CHARS} characters")
    if path.startswith("/"):
        raise refused(path, "it is absolute; name it below a mount, such as @project/notes.md")
    parts = tuple(piece for piece in path.split("/") if piece not in ("", "."))
    if len(parts) > _MOST_PARTS:
        raise refused(path[:60] + "…", f"it is deeper than {_MOST_PARTS} folders")
    for piece in parts:
        if not _PLAIN.fullmatch(piece):
            why = _why_not(piece)
            if why:
                raise refused(path, why)
    return parts


def _why_not(piece: str) -> str:
    """Why a name is refused; empty when it is fine."""
    if piece == "..":
        return "'..' leads out of its folder; write the path from the mount down"
    if "\\" in piece or ":" in piece:
        return "'\\' and ':' mean something on other systems; separate folders with '/'"
    if any(unicodedata.category(char) in _HIDDEN_KINDS for char in piece):
        return "it holds a control or invisible character; write the name without it"
    if piece[-1] in ". " or piece[0] == " " or piece != piece.strip():
        return "a name ends in a dot or begins or ends in a space; write it without"
    if _RESERVED.fullmatch(piece):
        return f"{piece!r} is a device on some systems; choose another name"
    if sys.platform == "win32" and _SHORT_NAME.match(piece):
        return "'~' and a digit may be the short form of another name; write the long one"
    if any(char in piece for char in '*?"<>|') and sys.platform == "win32":
        return "it holds a character that no name here has; choose another name"
    if len(piece.encode("utf-8")) > MOST_BYTES:
        return f"a name is longer than {MOST_BYTES} bytes; choose a shorter one"
    return ""


def is_nameable(name: str) -> bool:
    """Whether a file of this name can be named in a path."""
    return _PLAIN.fullmatch(name) is not None or not _why_not(name)


def refused(path: str, why: str) -> ToolError:
    """The error for a path that is not followed."""
    return ToolError(
        f"the path {visible(path)} is refused: {why}",
        code="E_SANDBOX_VIOLATION",
    )


def visible(path: str) -> str:
    """A path as one line of plain text, whatever is in it."""
    text = path if len(path) <= 300 else path[:300] + "…"
    return "".join(
        f"⟦U+{ord(char):04X}⟧" if unicodedata.category(char) in _HIDDEN_KINDS else char
        for char in text
    )


def looks_secret(name: str) -> bool:
    """Whether a file of this name most likely holds a key or a password."""
    # Two names that a file system may take for one have one answer.
    folded = name if name.isascii() else unicodedata.normalize("NFKC", name)
    folded = folded.casefold()
    return _SECRETS.match(folded) is not None and folded not in _EXAMPLES


def names_secret(glob: str) -> bool:
    """Whether a pattern names such a file on purpose: `@project/.env`, `*.pem`, but not `*`."""
    last = glob.rpartition("/")[2]
    named = looks_secret(last) or looks_secret(last.lstrip("*"))
    return named and last.strip("*?.") != ""


def plain_text(value: object) -> str:
    """An argument as text; lone surrogates cannot be written to any file.

    Raises:
        ToolError: `E_INVALID_ARGUMENTS`.
    """
    text = cast("Any", value)
    try:
        text.encode("utf-8")
    except (UnicodeEncodeError, AttributeError):
        raise ToolError(
            "the text holds half of a character pair (a lone surrogate); write whole characters",
            code="E_INVALID_ARGUMENTS",
        ) from None
    return text
