"""The `fs.*` tools: read, list, search, write and patch files below the mounts.

Owns the tools' arguments, what a call would do, and which files are kept from the model. How the
disk is touched is `files`', how answers look is `filesystem_answers`'.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.call_patterns import as_glob, call_pattern
from nbagent.contracts.canonical import monotonic_ms, sha256_hex
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.files import patching, writing
from nbagent.files.frontmatter import update_frontmatter
from nbagent.files.mounts import STATE, FilePlace, Mounts
from nbagent.files.names import Parts, looks_secret, names_secret, visible
from nbagent.files.searching import Order
from nbagent.files.walking import Hides
from nbagent.files.writing import FileState
from nbagent.tools.filesystem_answers import list_folder, read_file, search_files
from nbagent.tools.functions.definition import FunctionTool, method_tool
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.host_config import HostOrder

HOST = "fs"
_HELD = ("path", "content", "oldText", "newText", "diff", "operation", "update")
"""Arguments of a change that its preview shows."""

PathArg = Annotated[
    str, Field(description="Below a mount: @project/notes/a.md. Without a mount: in @project.")
]
IfMatch = Annotated[
    str | None,
    Field(description="SHA-256 that the file must still have (from fs.read), else nothing is done"),
]


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    return [FileHost(order)]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call would do."""

    place: FilePlace
    preview: CallPreview
    work: Callable[[ToolContext, threading.Event], ToolResult]
    """Does it, in a worker thread; the event says that nobody waits for it any more."""


class FileHost(MethodHost):
    """Plans and runs calls of the `fs` tools that a run has."""

    def __init__(self, order: HostOrder) -> None:
        self._mounts = cast("Mounts", order.mounts)
        self._policy = order.policy
        self._limits = order.policy.limits
        self._forbids = order.forbids
        self._guard = order.guard
        super().__init__(HOST, self._tools_here(), order.words, (HOST,))

    def _tools_here(self) -> list[FunctionTool]:
        looking = {"fs.read": self.read, "fs.list": self.list, "fs.search": self.search}
        changing = {"fs.write": self.write, "fs.apply_patch": self.apply_patch}
        tools = [method_tool(plan, name=name, host=HOST) for name, plan in looking.items()]
        tools += [
            method_tool(plan, name=name, host=HOST, ruling="ask", interruptible=False)
            for name, plan in changing.items()
        ]
        # Nothing else tells the model which mounts there are.
        words = {"ro": "read only", "rw": "read and write"}
        there = ", ".join(f"{mount.name} ({words[mount.mode]})" for mount in self._mounts.values())
        description = f"{tools[1].spec.description}\n\nThe mounts are: {there}."
        spec = tools[1].spec.model_copy(update={"description": description})
        tools[1] = replace(tools[1], spec=spec)
        return tools

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Look at what the call is about, and plan what it does; ToolError where it is refused."""
        tool, bound = self._checked(call)
        _check_encodable(bound.plain)
        plan: _Plan = await asyncio.to_thread(tool.target, **bound.values)

        async def run(context: ToolContext) -> ToolOutcome:
            stopped, began_ms = threading.Event(), monotonic_ms()
            try:
                result = await asyncio.to_thread(plan.work, context, stopped)
            except ToolError as error:
                result = ToolResult.failure(error.info)
            finally:
                stopped.set()  # A stop cancels this and not the thread, which looks here.
            return ToolOutcome(
                result=result, ran_in="worker thread", started_at_ms=began_ms, notes=bound.notes
            )

        path = self._mounts.form(plan.place.mount, plan.place.parts)
        arguments = {**bound.plain, "path": path}
        return PreparedCall(spec=tool.spec, arguments=arguments, preview=plan.preview, run=run)

    def read(
        self,
        path: PathArg,
        offset: Annotated[int | None, Field(ge=1)] = None,
        limit: Annotated[int | None, Field(ge=1)] = None,
        encoding: Literal["utf-8", "utf-16", "latin-1", "cp1252"] = "utf-8",
    ) -> _Plan:
        """Read a text file, or look at a picture.

        Read narrowly: find the place with fs.search, then give offset and limit. A long answer is
        cut and says how to go on. Gives path, bytes, sha256, truncated and content.

        Args:
            path: the file.
            offset: the first line, from 1.
            limit: how many lines.
            encoding: of the file.
        """
        place, most = self._place("fs.read", path), self._limits.max_read_bytes
        return _looking(place, lambda _: read_file(place, offset, limit, encoding, max_bytes=most))

    def list(
        self,
        path: PathArg = "@project",
        glob: str | None = None,
        depth: Annotated[int, Field(ge=1, le=20)] = 1,
        sizes: bool = False,
    ) -> _Plan:
        """List what is in a folder; the names of folders end in a slash.

        Args:
            path: the folder.
            glob: only names that fit, such as "*.py,*.md" (at any depth) or "src/**/*.txt".
            depth: how many levels of folders. Folders that .gitignore names are not gone into.
            sizes: give the bytes of each file, too.
        """
        place = self._place("fs.list", path, folder=True)
        hides = self._hiding(place, ("fs.list", {"glob": glob, "depth": depth, "sizes": sizes}))
        time_s = self._limits.search_timeout_s
        return _looking(
            place,
            lambda _: list_folder(
                place, glob=glob, depth=depth, sizes=sizes, timeout_s=time_s, hides=hides
            ),
        )

    def search(
        self,
        query: str,
        path: PathArg = "@project",
        glob: str | None = None,
        regex: bool = False,
        context: Annotated[int, Field(ge=0, le=20)] = 0,
        maxMatches: Annotated[int, Field(ge=1, le=1_000)] = 100,
    ) -> _Plan:
        """Find lines in text files. Files that .gitignore names and binary ones are left out.

        Args:
            query: the words as they stand in one line, upper and lower case told apart; with
                regex, a regular expression (RE2: no look-around; "(?i)" ignores case).
            path: a folder or a file.
            glob: only files that fit, such as "*.py,*.md" or "!tests/".
            regex: take the query as a regular expression.
            context: lines to show before and after each match.
            maxMatches: how many lines at most.
        """
        place = self._place("fs.search", path)
        given: dict[str, Any] = {"query": query, "glob": glob, "regex": regex}
        given |= {"context": context, "maxMatches": maxMatches}
        order = Order(
            query=query,
            regex=regex,
            glob=glob,
            context=context,
            max_matches=maxMatches,
            timeout_s=self._limits.search_timeout_s,
            allows=lambda path: self._may_see("fs.search", path),
            # It shows what is in files.
            hides=self._hiding(place, ("fs.search", given), ("fs.read", {})),
        )
        return _looking(
            place, lambda stopped: search_files(place, replace(order, stopped=stopped.is_set))
        )

    def write(self, path: PathArg, content: str, ifMatchSha256: IfMatch = None) -> _Plan:
        """Write a whole text file, and the folders it needs. To change a part, use fs.apply_patch.

        Args:
            path: the file.
            content: all of the new text.
            ifMatchSha256: from fs.read.
        """
        data = content.encode("utf-8")
        return self._changing("fs.write", path, lambda old: data, ifMatchSha256)

    def apply_patch(
        self,
        path: PathArg,
        oldText: str | None = None,
        newText: str | None = None,
        diff: str | None = None,
        operation: Literal["updateFrontmatter"] | None = None,
        update: dict[str, Any] | None = None,
        ifMatchSha256: IfMatch = None,
    ) -> _Plan:
        """Change a part of a text file, in one of three forms.

        Give oldText and newText, or diff, or operation "updateFrontmatter" and update.

        Args:
            path: the file.
            oldText: a piece of the file, exactly as it stands there, once.
            newText: what comes in its place; empty deletes it.
            diff: a unified diff of this one file.
            operation: "updateFrontmatter" changes keys of the YAML front matter.
            update: these keys and their new values; null deletes.
            ifMatchSha256: from fs.read.
        """

        def patched(old: bytes | None) -> bytes:
            text = None if old is None else patching.to_text(old)
            match (oldText, newText, diff, update):
                case (str(), str(), None, None):
                    return patching.to_bytes(patching.replace_once(_there(text), oldText, newText))
                case (None, None, str(), None):
                    return patching.to_bytes(patching.apply_diff(text, diff))
                case (None, None, None, dict()):
                    return patching.to_bytes(update_frontmatter(_there(text), update))
                case _:
                    why = "oldText and newText, or diff, or operation and update"
                    raise ToolError(f"give one of the three: {why}", code="E_INVALID_ARGUMENTS")

        is_update = (oldText, newText, diff) == (None, None, None)
        return self._changing(
            "fs.apply_patch", path, patched, ifMatchSha256, update if is_update else None
        )

    def _changing(
        self,
        tool: str,
        path: str,
        make: Callable[[bytes | None], bytes],
        if_match: str | None,
        update: Mapping[str, Any] | None = None,
    ) -> _Plan:
        """The plan to replace a file by what is made of it."""
        place, guard = self._place(tool, path), self._guard
        self._mounts.check_writable(place)
        guarded = guard is not None and guard.guards(place.mount.root.joinpath(*place.parts))
        if any(part.casefold().startswith(writing.TEMPORARY) for part in place.parts):
            raise _refused(place, "has a name that is kept for half-written files", "E_DENIED")
        more: dict[str, Any] = {}

        def planned(state: FileState) -> bytes:
            if if_match and state.sha != if_match.strip().lower():
                now = f"it has {state.sha} now" if state.sha else "there is no such file"
                why = f"is not as ifMatchSha256 says: {now}; read it again"
                raise _refused(place, why, "E_PRECONDITION_FAILED", sha256=state.sha)
            if guard is not None and guarded:
                data, said = guard.change(state.data, update, self._is_there)
                more.clear()
                more.update(said)
            else:
                data = make(state.data)
            most = self._limits.max_write_bytes
            if len(data) > most:
                why = f"would have {len(data):,} bytes, and {most:,} may be written; write less"
                raise _refused(place, why, "E_WRITE_LIMIT", bytes=len(data), maxBytes=most)
            return data

        state = writing.read_state(place)
        new = planned(state)

        def work(context: ToolContext, stopped: threading.Event) -> ToolResult:
            def again(now: FileState) -> bytes:
                if now.sha == state.sha:
                    return new
                if context.approved:
                    why = "changed after this was approved; call again"
                    raise _refused(place, why, "E_PRECONDITION_FAILED", sha256=now.sha)
                # Another call of the same response was faster, and nobody was shown anything.
                return planned(now)

            before, data = writing.replace(place, again)
            answer: dict[str, Any] = {"path": place.text}
            if tool == "fs.write":
                answer["bytesWritten"] = len(data)
            if tool != "fs.write" or before.sha is not None:
                answer["sha256Before"] = before.sha
            answer["sha256After"] = writing.sha_of_bytes(data)
            return ToolResult(ok=True, data={**answer, **more})

        preview = CallPreview(
            ruling="allow" if place.mount.name == STATE else "ask",
            why=f"{'change' if state.sha else 'create'} {visible(place.text)} ({len(new):,} bytes)",
            approval_key=sha256_hex(f"{place.identity} {state.sha or 'absent'}"),
            pieces=(_change_piece(place, state, new),),
        )
        return _Plan(place, preview, work)

    def _is_there(self, path: str) -> bool:
        """Whether a path names a file that the model may see."""
        try:
            place = self._place("fs.read", path)
            os.close(place.root.open_file(place.parts))
        except (ToolError, OSError):
            return False
        return True

    def _place(self, tool: str, path: str, *, folder: bool = False) -> FilePlace:
        """Where a call is about, unless its name says that it most likely holds keys."""
        place = self._mounts.place(path)
        if not self._may_see(tool, f"{place.text}/" if folder else place.text):
            why = "most likely holds keys or passwords and is kept from you"
            rule = f"{tool}(path={visible(place.text)})"
            raise _refused(place, f"{why}; the person can allow it by name: {rule}", "E_DENIED")
        return place

    def _may_see(self, tool: str, path: str) -> bool:
        if not looks_secret(path):
            return True
        place = self._mounts.place(path)
        form = self._mounts.form(place.mount, place.parts)
        for text in self._policy.allow:
            pattern = call_pattern(text)
            paths = [as_glob(text) for name, text in pattern.conditions if name == "path"]
            globs = filter(names_secret, paths)
            forms = [one for glob in globs for one in self._mounts.resolve(glob)]
            if pattern.matches_tool(tool, HOST) and any(fnmatchcase(form, one) for one in forms):
                return True
        return False

    def _hiding(self, place: FilePlace, *asked: tuple[str, Mapping[str, Any]]) -> Hides:
        """What a look at many files leaves out: what nbagent keeps, and what a rule denies to one
        of these calls; ToolError where a rule keeps back what the call begins with."""
        closed = self._mounts.closed_forms
        form = lru_cache(maxsize=1)(partial(self._mounts.form, place.mount))

        def forbidden(path: str) -> bool:
            return any(self._forbids(tool, HOST, {**given, "path": path}) for tool, given in asked)

        def hides(parts: Parts, name: str) -> bool:
            path = f"{form(parts)}/{name}"
            return path.casefold() in closed or forbidden(path)

        if forbidden(form(place.parts)):
            raise _refused(place, "is kept from you by a rule; ask the person", "E_DENIED")
        return hides


def _check_encodable(arguments: Mapping[str, Any]) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ToolError(
            "the text holds half of a character pair (a lone surrogate); write whole characters",
            code="E_INVALID_ARGUMENTS",
        ) from None


def _refused(place: FilePlace, why: str, code: ErrorCode, **details: Any) -> ToolError:
    return ToolError(f"{visible(place.text)} {why}", code=code, details=details)


def _looking(place: FilePlace, look: Callable[[threading.Event], ToolResult]) -> _Plan:
    """A plan that changes nothing; bound to the folder that the mount is now."""
    return _Plan(place, CallPreview(approval_key=place.identity), lambda context, stopped: look(stopped))


def _there(old: str | None) -> str:
    if old is None:
        raise ToolError(
            "there is no such file to be patched; look with fs.list, or make it with fs.write",
            code="ENOENT",
        )
    return old


def _change_piece(place: FilePlace, state: FileState, new: bytes) -> PreviewPiece:
    """The change for a person: a new file, a whole diff, or sizes and hashes of what is no text."""
    old = state.data or b""
    try:
        if b"\0" in old:
            raise ValueError
        text = new.decode("utf-8")
        if not state.sha:
            return PreviewPiece(f"new file {place.text}", text or "(empty)", "code", _HELD)
        made = patching.diff_of(old.decode("utf-8"), text, place.text)
        return PreviewPiece(f"change of {place.text}", made or "(no change)", "diff", _HELD)
    except ValueError:
        text = f"old: {len(old):,} bytes, SHA-256 {state.sha}\n"
        text += f"new: {len(new):,} bytes, SHA-256 {writing.sha_of_bytes(new)}"
        return PreviewPiece(place.text, text, "text")
