"""The `fs.*` tools: read, list, search, write and patch files below the mounts.

Owns the arguments, the plan of each call and the files that are hidden from the model. Access to
the disk is in `files`, the form of the answers in `filesystem_answers`.
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
from nbagent.files.mounts import STATE, MountedPath, Mounts
from nbagent.files.names import Parts, looks_secret, names_secret, visible
from nbagent.files.searching import SearchQuery
from nbagent.files.walking import Hides
from nbagent.files.writing import FileState
from nbagent.tools.filesystem_answers import list_folder, read_file, search_files
from nbagent.tools.functions.definition import ToolDefinition, define_method
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.host_config import HostConfig

HOST = "fs"
_PREVIEWED_ARGUMENTS = ("path", "content", "oldText", "newText", "diff", "operation", "update")
"""Arguments of a change that its preview shows in another form."""

PathArg = Annotated[
    str, Field(description="Below a mount: @project/notes/a.md. Without a mount: in @project.")
]
IfMatch = Annotated[
    str | None,
    Field(description="SHA-256 that the file must still have (from fs.read), else nothing is done"),
]


def open_hosts(config: HostConfig) -> Sequence[ToolHost]:
    return [FileHost(config)]


_WRITE_TOOLS = ("fs.write", "fs.apply_patch")


@dataclass(frozen=True, slots=True)
class _CallPlan:
    """A call that was checked: its preview for the person and the work to do."""

    location: MountedPath
    preview: CallPreview
    work: Callable[[ToolContext, threading.Event], ToolResult]
    """Runs the call in a worker thread; the event is set when nobody waits for it any more."""


class FileHost(MethodHost):
    """The `fs` tools of one run. Its tool methods return plans; `prepare` turns them into calls."""

    def __init__(self, config: HostConfig) -> None:
        self._mounts = cast("Mounts", config.mounts)
        self._policy = config.policy
        self._limits = config.policy.limits
        self._is_denied = config.is_denied
        self._guard = config.guard
        self._plans: dict[str, Callable[..., _CallPlan]] = {
            "fs.read": self.read,
            "fs.list": self.list,
            "fs.search": self.search,
            "fs.write": self.write,
            "fs.apply_patch": self.apply_patch,
        }
        super().__init__(HOST, self._define_tools(), config.names, (HOST,))

    def _define_tools(self) -> list[ToolDefinition]:
        tools = [
            # Not interruptible: a stop waits for a write, so that its effect is known.
            define_method(plan, name=name, host=HOST, ruling="ask", interruptible=False)
            if name in _WRITE_TOOLS
            else define_method(plan, name=name, host=HOST)
            for name, plan in self._plans.items()
        ]
        # The model learns the names of the mounts from this description of fs.list only.
        mode_texts = {"ro": "read only", "rw": "read and write"}
        mounts = ", ".join(
            f"{mount.name} ({mode_texts[mount.mode]})" for mount in self._mounts.values()
        )
        description = f"{tools[1].spec.description}\n\nThe mounts are: {mounts}."
        spec = tools[1].spec.model_copy(update={"description": description})
        tools[1] = replace(tools[1], spec=spec)
        return tools

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Read the file or folder of a call and plan the call; raise ToolError if it is refused."""
        tool, bound = self._check_call(call)
        _check_encodable(bound.json_values)
        plan: _CallPlan = await asyncio.to_thread(self._plans[tool.name], **bound.values)

        async def run(context: ToolContext) -> ToolOutcome:
            stopped, began_ms = threading.Event(), monotonic_ms()
            try:
                result = await asyncio.to_thread(plan.work, context, stopped)
            except ToolError as error:
                result = ToolResult.failure(error.info)
            finally:
                stopped.set()  # A stop cancels this task, not its thread: the thread checks this.
            return ToolOutcome(
                result=result, ran_in="worker thread", started_at_ms=began_ms, notes=bound.notes
            )

        path = self._mounts.canonical_path(plan.location.mount, plan.location.parts)
        arguments = {**bound.json_values, "path": path}
        return PreparedCall(spec=tool.spec, arguments=arguments, preview=plan.preview, run=run)

    def read(
        self,
        path: PathArg,
        offset: Annotated[int | None, Field(ge=1)] = None,
        limit: Annotated[int | None, Field(ge=1)] = None,
        encoding: Literal["utf-8", "utf-16", "latin-1", "cp1252"] = "utf-8",
    ) -> _CallPlan:
        """Read a text file, or look at a picture.

        Read narrowly: find the place with fs.search, then give offset and limit. A long answer is
        cut and says how to go on. Gives path, bytes, sha256, truncated and content.

        Args:
            path: the file.
            offset: the first line, from 1.
            limit: how many lines.
            encoding: of the file.
        """
        location, max_bytes = self._locate("fs.read", path), self._limits.max_read_bytes
        # A hint names only tools that the model has.
        advice = ", or find the place with fs.search" if "fs.search" in self._tools else ""
        return _read_plan(
            location,
            lambda _: read_file(
                location, offset, limit, encoding, max_bytes=max_bytes, search_advice=advice
            ),
        )

    def list(
        self,
        path: PathArg = "@project",
        glob: str | None = None,
        depth: Annotated[int, Field(ge=1, le=20)] = 1,
        sizes: bool = False,
    ) -> _CallPlan:
        """List what is in a folder; the names of folders end in a slash.

        Args:
            path: the folder.
            glob: only names that fit, such as "*.py,*.md" (at any depth) or "src/**/*.txt".
            depth: how many levels of folders. Folders that .gitignore names are not gone into.
            sizes: give the bytes of each file, too.
        """
        location = self._locate("fs.list", path, folder=True)
        hides = self._hidden_filter(
            location, ("fs.list", {"glob": glob, "depth": depth, "sizes": sizes})
        )
        time_s = self._limits.search_timeout_s
        return _read_plan(
            location,
            lambda _: list_folder(
                location, glob=glob, depth=depth, sizes=sizes, timeout_s=time_s, hides=hides
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
    ) -> _CallPlan:
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
        location = self._locate("fs.search", path)
        arguments: dict[str, Any] = {"query": query, "glob": glob, "regex": regex}
        arguments |= {"context": context, "maxMatches": maxMatches}
        search_query = SearchQuery(
            query=query,
            regex=regex,
            glob=glob,
            context=context,
            max_matches=maxMatches,
            timeout_s=self._limits.search_timeout_s,
            allows=lambda path: self._may_see("fs.search", path),
            # A search shows the text of files, so rules about fs.read count as well.
            hides=self._hidden_filter(location, ("fs.search", arguments), ("fs.read", {})),
        )
        return _read_plan(
            location,
            lambda stopped: search_files(location, replace(search_query, stopped=stopped.is_set)),
        )

    def write(self, path: PathArg, content: str, ifMatchSha256: IfMatch = None) -> _CallPlan:
        """Write a whole text file, and the folders it needs. To change a part, use fs.apply_patch.

        Args:
            path: the file.
            content: all of the new text.
            ifMatchSha256: from fs.read.
        """
        data = content.encode("utf-8")
        return self._plan_change("fs.write", path, lambda old: data, ifMatchSha256)

    def apply_patch(
        self,
        path: PathArg,
        oldText: str | None = None,
        newText: str | None = None,
        diff: str | None = None,
        operation: Literal["updateFrontmatter"] | None = None,
        update: dict[str, Any] | None = None,
        ifMatchSha256: IfMatch = None,
    ) -> _CallPlan:
        """Change a part of a text file, in one of three forms.

        Give oldText and newText, or diff, or operation "updateFrontmatter" and update.

        Args:
            path: the file.
            oldText: a piece of the file, exactly as it stands there, once.
            newText: what comes in its place; empty deletes it.
            diff: a unified diff of this one file.
            operation: "updateFrontmatter" changes keys of the YAML front matter.
            update: for each key {"set": value} or {"append": [items]}; null deletes. An object in
                "set" sets its names and keeps the others of that key. A bare value sets plain keys.
            ifMatchSha256: from fs.read.
        """

        def patched(old: bytes | None) -> bytes:
            text = None if old is None else patching.to_text(old)
            match (oldText, newText, diff, update):
                case (str(), str(), None, None):
                    return patching.to_bytes(
                        patching.replace_once(_existing_text(text), oldText, newText)
                    )
                case (None, None, str(), None):
                    return patching.to_bytes(patching.apply_diff(text, diff))
                case (None, None, None, dict()):
                    return patching.to_bytes(update_frontmatter(_existing_text(text), update))
                case _:
                    why = "oldText and newText, or diff, or operation and update"
                    raise ToolError(f"give one of the three: {why}", code="E_INVALID_ARGUMENTS")

        is_update = (oldText, newText, diff) == (None, None, None)
        return self._plan_change(
            "fs.apply_patch", path, patched, ifMatchSha256, update if is_update else None
        )

    def _plan_change(
        self,
        tool: str,
        path: str,
        make: Callable[[bytes | None], bytes],
        if_match: str | None,
        update: Mapping[str, Any] | None = None,
    ) -> _CallPlan:
        """Plan to replace a file by the content that `make` computes from the old one."""
        location, guard = self._locate(tool, path), self._guard
        self._mounts.check_writable(location)
        guarded = guard is not None and guard.guards(location.mount.root.joinpath(*location.parts))
        # casefold: some file systems ignore case in names.
        if any(part.casefold().startswith(writing.TEMPORARY) for part in location.parts):
            raise _refusal(location, "has a name that is reserved for temporary files", "E_DENIED")
        details: dict[str, Any] = {}

        def new_content(state: FileState) -> bytes:
            if if_match and state.sha != if_match.strip().lower():
                now = f"it has {state.sha} now" if state.sha else "there is no such file"
                why = f"is not as ifMatchSha256 says: {now}; read it again"
                raise _refusal(location, why, "E_PRECONDITION_FAILED", sha256=state.sha)
            if guard is not None and guarded:
                data, new_details = guard.change(state.data, update, self._file_exists)
                # `writing.replace` may call this again, with newer content.
                details.clear()
                details.update(new_details)
            else:
                data = make(state.data)
            max_bytes = self._limits.max_write_bytes
            if len(data) > max_bytes:
                why = f"would have {len(data):,} bytes, over the limit of {max_bytes:,} "
                why += "(max_write_bytes); write less, or ask the person to raise it with "
                why += "nbagent.configure(max_write_bytes=…)"
                raise _refusal(location, why, "E_WRITE_LIMIT", bytes=len(data), maxBytes=max_bytes)
            return data

        state = writing.read_state(location)
        new = new_content(state)

        def work(context: ToolContext, stopped: threading.Event) -> ToolResult:
            def recheck(now: FileState) -> bytes:
                if now.sha == state.sha:
                    return new
                if context.approved:
                    why = "changed after this was approved; call again"
                    raise _refusal(location, why, "E_PRECONDITION_FAILED", sha256=now.sha)
                # Another call of the same response changed the file first. Nobody approved this
                # one by its preview, so it is computed again from the new content.
                return new_content(now)

            before, data = writing.replace(location, recheck)
            answer: dict[str, Any] = {"path": location.text}
            if tool == "fs.write":
                answer["bytesWritten"] = len(data)
            if tool != "fs.write" or before.sha is not None:
                answer["sha256Before"] = before.sha
            answer["sha256After"] = writing.sha_of_bytes(data)
            return ToolResult(ok=True, data={**answer, **details})

        return _CallPlan(location, self._preview_change(location, state, new), work)

    def _preview_change(self, location: MountedPath, state: FileState, new: bytes) -> CallPreview:
        verb = "change" if state.sha else "create"
        canonical = self._mounts.canonical_path(location.mount, location.parts)
        return CallPreview(
            # `@state` belongs to nbagent, so a change there needs no question.
            ruling="allow" if location.mount.name == STATE else "ask",
            why=f"{verb} {visible(location.text)} ({len(new):,} bytes)",
            # The person saw a diff from this content: a yes is for no other one.
            approval_key=sha256_hex(f"{location.identity} {state.sha or 'absent'}"),
            pieces=(_change_preview(location, state, new),),
            # For the session a yes is for the file: its content is another one after each write.
            session_scope="this file",
            session_file=visible(canonical),
            session_key=sha256_hex(f"{location.identity} {canonical}"),
        )

    def _file_exists(self, path: str) -> bool:
        """True if a path names a file that the model may see."""
        try:
            location = self._locate("fs.read", path)
            os.close(location.root.open_file(location.parts))
        except (ToolError, OSError):
            return False
        return True

    def _locate(self, tool: str, path: str, *, folder: bool = False) -> MountedPath:
        """Locate the path of a call; raise ToolError if its name suggests keys or passwords."""
        location = self._mounts.locate(path)
        if not self._may_see(tool, f"{location.text}/" if folder else location.text):
            why = "most likely holds keys or passwords and is kept from you"
            rule = f"{tool}(path={visible(location.text)})"
            raise _refusal(location, f"{why}; the person can allow it by name: {rule}", "E_DENIED")
        return location

    def _may_see(self, tool: str, path: str) -> bool:
        if not looks_secret(path):
            return True
        location = self._mounts.locate(path)
        canonical = self._mounts.canonical_path(location.mount, location.parts)
        for text in self._policy.allow:
            pattern = call_pattern(text)
            paths = [as_glob(text) for name, text in pattern.conditions if name == "path"]
            # A rule such as `path=*` is not meant for files with keys.
            globs = filter(names_secret, paths)
            allowed_globs = [resolved for glob in globs for resolved in self._mounts.resolve(glob)]
            if pattern.matches_tool(tool, HOST) and any(
                fnmatchcase(canonical, allowed) for allowed in allowed_globs
            ):
                return True
        return False

    def _hidden_filter(self, location: MountedPath, *calls: tuple[str, Mapping[str, Any]]) -> Hides:
        """Return a filter for walks: it hides nbagent's own files and paths that rules deny.

        Args:
            location: the file or folder where the walk starts.
            calls: tools and arguments; a path is hidden if a rule denies it to one of them.

        Raises:
            ToolError: a rule denies the start itself.
        """
        reserved = self._mounts.reserved_paths
        # A walk asks for all names of one folder before it goes to the next.
        canonical = lru_cache(maxsize=1)(partial(self._mounts.canonical_path, location.mount))

        def forbidden(path: str) -> bool:
            return any(
                self._is_denied(tool, HOST, {**arguments, "path": path})
                for tool, arguments in calls
            )

        def hides(parts: Parts, name: str) -> bool:
            path = f"{canonical(parts)}/{name}"
            return path.casefold() in reserved or forbidden(path)

        if forbidden(canonical(location.parts)):
            raise _refusal(location, "is hidden from you by a rule; ask the person", "E_DENIED")
        return hides


def _check_encodable(arguments: Mapping[str, Any]) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ToolError(
            "the text contains half of a character (a lone surrogate); write whole characters",
            code="E_INVALID_ARGUMENTS",
        ) from None


def _refusal(location: MountedPath, why: str, code: ErrorCode, **details: Any) -> ToolError:
    return ToolError(f"{visible(location.text)} {why}", code=code, details=details)


def _read_plan(location: MountedPath, read: Callable[[threading.Event], ToolResult]) -> _CallPlan:
    """Plan a call that changes nothing. Its approval is valid for the mount's present folder."""
    return _CallPlan(
        location,
        CallPreview(approval_key=location.identity),
        lambda context, stopped: read(stopped),
    )


def _existing_text(old: str | None) -> str:
    if old is None:
        raise ToolError(
            "there is no such file to patch; look with fs.list, or create it with fs.write",
            code="ENOENT",
        )
    return old


def _change_preview(location: MountedPath, state: FileState, new: bytes) -> PreviewPiece:
    """Show a change to the person: the new file, the diff, or sizes and hashes of binary data."""
    old = state.data or b""
    try:
        # UnicodeDecodeError is a ValueError, too: both mean binary data.
        if b"\0" in old:
            raise ValueError
        text = new.decode("utf-8")
        if not state.sha:
            return PreviewPiece(
                f"new file {location.text}", text or "(empty)", "code", _PREVIEWED_ARGUMENTS
            )
        diff = patching.diff_of(old.decode("utf-8"), text, location.text)
        return PreviewPiece(
            f"change of {location.text}", diff or "(no change)", "diff", _PREVIEWED_ARGUMENTS
        )
    except ValueError:
        text = f"old: {len(old):,} bytes, SHA-256 {state.sha}\n"
        text += f"new: {len(new):,} bytes, SHA-256 {writing.sha_of_bytes(new)}"
        return PreviewPiece(location.text, text, "text")
