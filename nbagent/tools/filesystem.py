"""The `fs.*` tools: read, list, search, write and patch files below the mounts.

Owns the tools' arguments, what a call would do, and which files are kept from the model. How the
disk is touched is `files`', how answers look is `filesystem_answers`'.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, cast

from pydantic import Field

from nbagent.contracts.canonical import monotonic_ms, sha256_hex
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.policy import CallPreview, PreviewPiece, call_pattern
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.files import patching, writing
from nbagent.files.frontmatter import update_frontmatter
from nbagent.files.mounts import STATE, FilePlace, Mounts
from nbagent.files.names import looks_secret, names_secret, plain_text, visible
from nbagent.files.searching import Order
from nbagent.files.writing import FileState
from nbagent.tools.base import HostOrder, unknown_name
from nbagent.tools.filesystem_answers import Hidden, list_folder, read_file, search_files
from nbagent.tools.function_host import MethodHost
from nbagent.tools.function_tool import FunctionTool, method_tool

HOST = "fs"
_MOST_MATCHES = 1_000
_MOST_CONTEXT = 20
_MOST_DEPTH = 20

PathArg = Annotated[
    str, Field(description="Below a mount: @project/notes/a.md. Without a mount: in @project.")
]
IfMatch = Annotated[
    str | None,
    Field(description="SHA-256 that the file must still have (from fs.read), else nothing is done"),
]


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """The host of the `fs` tools that were named.

    Raises:
        UsageError: there is no such tool.
    """
    return [FileHost(order)]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call would do."""

    place: FilePlace
    preview: CallPreview
    work: Callable[[ToolContext, threading.Event], dict[str, Any] | ToolResult]
    """Does it, in a worker thread; the event says that nobody waits for it any more."""


class FileHost(MethodHost):
    """Plans and runs calls of the `fs` tools that a run has."""

    def __init__(self, order: HostOrder) -> None:
        mounts = order.mounts
        if not isinstance(mounts, Mounts):
            mounts = Mounts(mounts.values()) if mounts else Mounts.of(order.project)
        self._mounts = mounts
        self._policy = order.policy
        self._limits = order.policy.limits
        self._forbids = order.forbids
        made = self._made()
        for word in order.words:
            if word not in (HOST, *made):
                raise unknown_name(word, (HOST, *made))
        named = [tool for name, tool in made.items() if {HOST, name} & set(order.words)]
        super().__init__(HOST, named)

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Look at what the call is about, and plan what it does to it.

        Raises:
            ToolError: it would be refused.
        """
        tool, bound = self._checked(call)
        plan: _Plan = await asyncio.to_thread(tool.target, **bound.values)

        async def run(context: ToolContext) -> ToolOutcome:
            outcome = await _run(plan, call.name, context)
            return replace(outcome, tool_sha=tool.sha, notes=bound.notes)

        arguments = {**bound.plain, "path": self._mounts.form(plan.place)}
        return PreparedCall(spec=tool.spec, arguments=arguments, preview=plan.preview, run=run)

    def _made(self) -> dict[str, FunctionTool]:
        def made(plan: Callable[..., _Plan], name: str, *, writes: bool = False) -> FunctionTool:
            ruling = "ask" if writes else "allow"
            return method_tool(
                plan, name=name, host=HOST, ruling=ruling, interruptible=not writes, threaded=False
            )

        tools = (
            made(self.read, "fs.read"),
            self._with_mounts(made(self.list, "fs.list")),
            made(self.search, "fs.search"),
            made(self.write, "fs.write", writes=True),
            made(self.apply_patch, "fs.apply_patch", writes=True),
        )
        return {tool.name: tool for tool in tools}

    def _with_mounts(self, tool: FunctionTool) -> FunctionTool:
        """The tool with a word about the mounts that there are: nothing else tells the model."""
        words = {"ro": "read only", "rw": "read and write"}
        there = ", ".join(f"{mount.name} ({words[mount.mode]})" for mount in self._mounts.values())
        description = f"{tool.spec.description}\n\nThe mounts are: {there}."
        return replace(tool, spec=tool.spec.model_copy(update={"description": description}))

    def read(
        self,
        path: PathArg,
        offset: int | None = None,
        limit: int | None = None,
        encoding: str = "utf-8",
    ) -> _Plan:
        """Read a text file, or look at a picture.

        Read narrowly: find the place with fs.search, then give offset and limit. A long answer is
        cut and says how to go on. Gives path, bytes, sha256, truncated and content.

        Args:
            path: the file.
            offset: the first line, from 1. With base64: the first byte, from 0.
            limit: how many lines; with base64, how many bytes.
            encoding: utf-8, utf-16, latin-1, cp1252, or base64 for the bytes themselves.
        """
        place, most = self._place("fs.read", path), self._limits.max_read_bytes
        return _looking(
            place, lambda stopped: read_file(place, offset, limit, encoding, max_bytes=most)
        )

    def list(
        self,
        path: PathArg = "@project",
        glob: str | None = None,
        depth: int = 1,
        sizes: bool = False,
    ) -> _Plan:
        """List what is in a folder; the names of folders end in a slash.

        Args:
            path: the folder.
            glob: only names that fit, such as "*.py" (at any depth) or "src/**/*.{md,txt}".
            depth: how many levels of folders. Folders that .gitignore names are not gone into.
            sizes: give the bytes of each file, too.
        """
        place = self._place("fs.list", path, folder=True)
        given = {"glob": glob, "depth": depth, "sizes": sizes}
        hidden = Hidden(self._mounts, place, self._forbidden(place, ("fs.list", given)))
        return _looking(
            place,
            lambda stopped: list_folder(
                place,
                glob=plain_text(glob) if glob else None,
                depth=min(max(depth, 1), _MOST_DEPTH),
                sizes=sizes,
                timeout_s=self._limits.search_timeout_s,
                hidden=hidden,
            ),
        )

    def search(
        self,
        query: str,
        path: PathArg = "@project",
        glob: str | None = None,
        regex: bool = False,
        context: int = 0,
        maxMatches: int = 100,
    ) -> _Plan:
        """Find lines in text files. Files that .gitignore names and binary ones are left out.

        Args:
            query: the words as they stand in one line, upper and lower case told apart; with
                regex, a regular expression (RE2: no look-around; "(?i)" ignores case).
            path: a folder or a file.
            glob: only files that fit, such as "*.py" or "!tests/".
            regex: take the query as a regular expression.
            context: lines to show before and after each match.
            maxMatches: how many lines at most.
        """
        place = self._place("fs.search", path)
        given: dict[str, Any] = {"query": query, "glob": glob, "regex": regex}
        given |= {"context": context, "maxMatches": maxMatches}
        # It shows what is in files.
        forbidden = self._forbidden(place, ("fs.search", given), ("fs.read", {}))
        hidden = Hidden(self._mounts, place, forbidden)
        order = Order(
            query=plain_text(query),
            regex=regex,
            glob=plain_text(glob) if glob else None,
            context=min(max(context, 0), _MOST_CONTEXT),
            max_matches=min(max(maxMatches, 1), _MOST_MATCHES),
            timeout_s=self._limits.search_timeout_s,
            allows=lambda path: self._may_see("fs.search", path),
            hides=hidden,
        )
        return _looking(
            place,
            lambda stopped: search_files(place, replace(order, stopped=stopped.is_set), hidden),
        )

    def write(self, path: PathArg, content: str, ifMatchSha256: IfMatch = None) -> _Plan:
        """Write a whole text file, and the folders it needs. To change a part, use fs.apply_patch.

        Args:
            path: the file.
            content: all of the new text.
            ifMatchSha256: from fs.read.
        """
        place = self._place("fs.write", path)
        data = plain_text(content).encode("utf-8")
        return self._changing(place, lambda state: data, ifMatchSha256, with_size=True)

    def apply_patch(
        self,
        path: PathArg,
        oldText: str | None = None,
        newText: str | None = None,
        diff: str | None = None,
        updateFrontmatter: dict[str, Any] | None = None,
        ifMatchSha256: IfMatch = None,
    ) -> _Plan:
        """Change a part of a text file, in one of three forms.

        Give oldText and newText, or diff, or updateFrontmatter.

        Args:
            path: the file.
            oldText: a piece of the file, exactly as it stands there, once.
            newText: what comes in its place; empty deletes it.
            diff: a unified diff of this one file.
            updateFrontmatter: keys of the YAML front matter and their new values; null deletes.
            ifMatchSha256: from fs.read.
        """
        place = self._place("fs.apply_patch", path)
        patch = _patch_of(oldText, newText, diff, updateFrontmatter)
        most = self._limits.max_read_bytes
        return self._changing(
            place, lambda state: _patched(patch, state.data, place, most), ifMatchSha256
        )

    def _changing(
        self,
        place: FilePlace,
        make: Callable[[FileState], bytes],
        if_match: str | None,
        *,
        with_size: bool = False,
    ) -> _Plan:
        """The plan to replace a file by what is made of it."""
        self._mounts.check_writable(place)

        def planned(state: FileState) -> bytes:
            _check_match(state, if_match, place)
            return self._checked_size(make(state), place)

        state = writing.read_state(place)
        new = planned(state)

        def work(context: ToolContext, stopped: threading.Event) -> dict[str, Any]:
            def again(now: FileState) -> bytes:
                if now.sha == state.sha:
                    return new
                if context.approved:
                    raise ToolError(
                        f"{visible(place.text)} changed after this was approved; call again",
                        code="E_PRECONDITION_FAILED",
                        details={"sha256": now.sha},
                    )
                # Another call of the same response was faster, and nobody was shown anything.
                return planned(now)

            before, data = writing.replace(place, again)
            answer: dict[str, Any] = {"path": place.text}
            answer |= {"bytesWritten": len(data)} if with_size else {}
            answer |= {} if with_size and before.sha is None else {"sha256Before": before.sha}
            return {**answer, "sha256After": writing.sha_of_bytes(data)}

        preview = CallPreview(
            ruling="allow" if place.mount.name == STATE else "ask",
            why=f"{'change' if state.sha else 'create'} {visible(place.text)} ({len(new):,} bytes)",
            binds=sha256_hex(f"{place.identity} {state.sha or 'absent'}"),
            pieces=(_change_piece(place, state, new, self._limits.max_read_bytes),),
        )
        return _Plan(place, preview, work)

    def _place(self, tool: str, path: str, *, folder: bool = False) -> FilePlace:
        """Where a call is about, unless its name says that it most likely holds keys."""
        place = self._mounts.place(path)
        if not self._may_see(tool, f"{place.text}/" if folder else place.text):
            raise ToolError(
                f"{visible(place.text)} most likely holds keys or passwords and is kept from you; "
                f"the person can allow it by name: {tool}(path={visible(place.text)})",
                code="E_DENIED",
            )
        return place

    def _may_see(self, tool: str, path: str) -> bool:
        if not looks_secret(path):
            return True
        form = self._mounts.form(self._mounts.place(path))
        for text in self._policy.allow:
            pattern = call_pattern(text)
            globs = [glob for name, glob in pattern.where if name == "path" and names_secret(glob)]
            resolved = [it for glob in globs for it in self._mounts.resolve(glob)]
            if pattern.fits_tool(tool, HOST) and any(fnmatchcase(form, it) for it in resolved):
                return True
        return False

    def _forbidden(
        self, place: FilePlace, *asked: tuple[str, Mapping[str, Any]]
    ) -> Callable[[str], bool]:
        """Says of each path that a call comes by whether a rule keeps it from the model.

        Raises:
            ToolError: it keeps back what the call begins with.
        """
        forbids = self._forbids

        def forbidden(path: str) -> bool:
            return any(forbids(tool, HOST, {**given, "path": path}) for tool, given in asked)

        if forbidden(self._mounts.form(place)):
            raise ToolError(
                f"a rule of the person keeps {visible(place.text)} from you; ask the person",
                code="E_DENIED",
            )
        return forbidden

    def _checked_size(self, data: bytes, place: FilePlace) -> bytes:
        most = self._limits.max_write_bytes
        if len(data) > most:
            raise ToolError(
                f"{visible(place.text)} would have {len(data):,} bytes, and {most:,} may be "
                "written; write less, or several files",
                code="E_WRITE_LIMIT",
                details={"bytes": len(data), "maxBytes": most},
            )
        return data


def _looking(
    place: FilePlace, look: Callable[[threading.Event], dict[str, Any] | ToolResult]
) -> _Plan:
    """A plan that changes nothing; bound to the folder that the mount is now."""
    return _Plan(place, CallPreview(binds=place.identity), lambda context, stopped: look(stopped))


async def _run(plan: _Plan, name: str, context: ToolContext) -> ToolOutcome:
    stopped, began_ms = threading.Event(), monotonic_ms()
    try:
        given = await asyncio.to_thread(plan.work, context, stopped)
        result = given if isinstance(given, ToolResult) else ToolResult(ok=True, data=given)
    except ToolError as error:
        result = ToolResult.failure(error.info)
    except Exception as error:
        # Not its words: they may name folders of the host.
        text = f"{name} could not be run: {type(error).__name__}"
        result = ToolResult.failure(ErrorInfo("E_INTERNAL", text))
    finally:
        # A stop cancels this and not the thread, which looks here.
        stopped.set()
    return ToolOutcome(result=result, ran_in="worker thread", started_at_ms=began_ms)


_Patch = Callable[[str | None], str]
"""New text from old; None: there is no file."""


def _patch_of(old_text: Any, new_text: Any, diff: Any, front_matter: Any) -> _Patch:
    given = [it for it in (old_text, diff, front_matter) if it is not None]
    if len(given) != 1 or (old_text is None) != (new_text is None):
        raise ToolError(
            "give one of the three: oldText and newText, or diff, or updateFrontmatter",
            code="E_INVALID_ARGUMENTS",
        )
    if diff is not None:
        text = plain_text(diff)
        return lambda old: patching.apply_diff(old, text)
    if front_matter is not None:
        changes = cast("dict[str, Any]", front_matter)
        return lambda old: update_frontmatter(_there(old), changes)
    before, after = plain_text(old_text), plain_text(new_text)
    return lambda old: patching.replace_once(_there(old), before, after)


def _there(old: str | None) -> str:
    if old is None:
        raise ToolError(
            "there is no such file to be patched; look with fs.list, or make it with fs.write",
            code="ENOENT",
        )
    return old


def _patched(patch: _Patch, old: bytes | None, place: FilePlace, most: int) -> bytes:
    if old is not None and len(old) > most:
        raise ToolError(
            f"{visible(place.text)} has more than the {most:,} bytes that may be read, so it is "
            "not patched; ask the person to raise the limit",
            code="E_READ_LIMIT",
        )
    if old is not None and b"\0" in old[:8_192]:
        raise ToolError(
            f"{visible(place.text)} is binary and cannot be patched; write it with a program",
            code="E_PRECONDITION_FAILED",
        )
    return patching.to_bytes(patch(None if old is None else patching.to_text(old)))


def _check_match(state: FileState, if_match: str | None, place: FilePlace) -> None:
    wanted = (if_match or "").strip().lower().removeprefix("sha256:")
    if wanted and state.sha != wanted:
        now = f"it has {state.sha} now" if state.sha else "there is no such file"
        raise ToolError(
            f"{visible(place.text)} is not as ifMatchSha256 says: {now}; read it again",
            code="E_PRECONDITION_FAILED",
            details={"sha256": state.sha},
        )


def _change_piece(place: FilePlace, state: FileState, new: bytes, most: int) -> PreviewPiece:
    """The change for a person: a whole diff, or sizes and hashes where it is no text."""
    old = state.data or b""
    try:
        before, after = old.decode("utf-8"), new.decode("utf-8")
    except UnicodeDecodeError:
        before, after = "\0", ""
    if "\0" in before or len(old) > most:
        text = f"old: {len(old):,} bytes, SHA-256 {state.sha}\n"
        text += f"new: {len(new):,} bytes, SHA-256 {writing.sha_of_bytes(new)}"
        return PreviewPiece(place.text, text, "text")
    made = patching.diff_of(before, after, place.text)
    return PreviewPiece(place.text, made or "(no change)", "diff")
