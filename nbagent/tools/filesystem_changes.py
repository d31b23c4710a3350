"""What a call of `fs.write` or `fs.apply_patch` means: its form, its conditions, its picture.

Owns what is said to the model and shown to the person about a change. Changing is `files`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import PreviewPiece
from nbagent.contracts.secrets import redact
from nbagent.files import patching
from nbagent.files.frontmatter import update_frontmatter
from nbagent.files.mounts import FilePlace, Mounts
from nbagent.files.names import plain_text, visible

ABSENT = "absent"
"""Instead of a hash, where there is no file yet."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The one form that a call of `fs.apply_patch` takes."""

    change: Callable[[str | None], str]
    """New text from old; None: there is no file."""


def patch_of(
    old_text: Any = None, new_text: Any = None, diff: Any = None, front_matter: Any = None
) -> Patch:
    """The form that was given.

    Raises:
        ToolError: none, or more than one.
    """
    given = [
        name
        for name, value in (
            ("oldText and newText", old_text if old_text is not None else new_text),
            ("diff", diff),
            ("updateFrontmatter", front_matter),
        )
        if value is not None
    ]
    if len(given) != 1 or (old_text is None) != (new_text is None):
        raise ToolError(
            "give one of the three: oldText and newText, or diff, or updateFrontmatter",
            code="E_INVALID_ARGUMENTS",
        )
    if diff is not None:
        text = plain_text(diff)
        return Patch(lambda old: patching.apply_diff(old, text))
    if front_matter is not None:
        changes = cast("dict[str, Any]", front_matter)
        return Patch(lambda old: update_frontmatter(_there(old), changes))
    before, after = plain_text(old_text), plain_text(new_text)
    return Patch(lambda old: patching.replace_once(_there(old), before, after))


def _there(old: str | None) -> str:
    if old is None:
        raise ToolError(
            "there is no such file to be patched; look with fs.list, or make it with fs.write",
            code="ENOENT",
        )
    return old


def patched(patch: Patch, old: bytes | None, place: FilePlace) -> bytes:
    if old is not None and b"\0" in old[:8_192]:
        raise ToolError(
            f"{visible(place.text)} is binary and cannot be patched; write it with a program",
            code="E_PRECONDITION_FAILED",
        )
    return patching.to_bytes(patch.change(None if old is None else patching.to_text(old)))


def bound_to(mounts: Mounts, place: FilePlace, sha: str | None) -> str:
    """What an approval of a change binds to: the mount's folder, and the file as it is."""
    return sha256_hex(f"{mounts.identity(place.mount)} {sha or ABSENT}")


def expecting(
    mounts: Mounts, place: FilePlace, if_match: str | None, approved: str
) -> Callable[[str | None], None] | None:
    """What checks the file's hash before it is changed; None when nobody named one."""
    wanted = (if_match or "").strip().lower().removeprefix("sha256:")
    if not wanted and not approved:
        return None

    def check(sha: str | None) -> None:
        now = f"it has {sha} now" if sha else "there is no such file"
        if wanted and sha != wanted:
            raise ToolError(
                f"{visible(place.text)} is not as ifMatchSha256 says: {now}; read it again",
                code="E_PRECONDITION_FAILED",
                details={"sha256": sha},
            )
        if approved and bound_to(mounts, place, sha) != approved:
            raise ToolError(
                f"{visible(place.text)} changed after the person had approved this; call again",
                code="E_PRECONDITION_FAILED",
                details={"sha256": sha},
            )

    return check


def change_piece(place: FilePlace, old: bytes | None, new: bytes, sha: str | None) -> PreviewPiece:
    """The change for a person: a whole diff, or sizes and hashes where it is no text."""
    try:
        if sha is not None and old is None:
            raise ValueError("larger than may be read")
        before, after = (old or b"").decode("utf-8"), new.decode("utf-8")
        if "\0" in before:
            raise ValueError("binary")
    except ValueError:
        size = "many" if old is None else f"{len(old):,}"
        text = f"old: {size} bytes, SHA-256 {sha}\nnew: {len(new):,} bytes, SHA-256 "
        return PreviewPiece(place.text, text + patching.sha_of(new), "text")
    made = patching.diff_of(before, after, place.text)
    return PreviewPiece(place.text, redact(made) or "(no change)", "diff")
