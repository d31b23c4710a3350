"""The `fs.*` tools: read, list, search, write and patch files below the mounts.

Owns the tools' arguments, what a call would do (`look`), and which files are kept from the model
by their names. How the disk is touched is `files`'.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import CallPreview, ToolPolicy, call_pattern
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.files import patching
from nbagent.files.mounts import STATE, FilePlace, Mounts
from nbagent.files.names import looks_secret, names_secret, plain_text, visible
from nbagent.files.searching import Order, search
from nbagent.files.writing import (
    LARGEST_CHANGED_BYTES,
    change_file,
    check_target,
    is_there,
    read_at,
    sha_at,
    too_large_to_patch,
    write_file,
)
from nbagent.tools.arguments import Bound
from nbagent.tools.base import HostOrder, unknown_name
from nbagent.tools.filesystem_changes import bound_to, change_piece, expecting, patch_of, patched
from nbagent.tools.filesystem_reading import list_folder, read, search_answer
from nbagent.tools.filesystem_rules import ALIASES, HOST, Rules, check_allowed
from nbagent.tools.function_host import MethodHost
from nbagent.tools.function_tool import FunctionTool, method_tool

_WRITING = ("fs.write", "fs.apply_patch")
_RESULT_CHARS = 300_000
"""The answers have their own limits; this one only catches what is mostly escapes."""
_MOST_MATCHES = 1_000
_MOST_CONTEXT = 20
_MOST_DEPTH = 20
_cancel: ContextVar[CancelToken | None] = ContextVar("nbagent_fs_cancel", default=None)
"""Of the call that runs: what may not be interrupted need not wait for others either."""

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
    mounts = order.mounts
    if not isinstance(mounts, Mounts):
        mounts = Mounts(mounts.values()) if mounts else Mounts.of(order.project)
    tools = FileTools(mounts, order.policy, Rules(order.forbids, order.words))
    chosen: dict[str, FunctionTool] = {}
    for word in order.words:
        if word == HOST:
            chosen.update(tools.all)
        elif word in ALIASES:
            chosen[word] = _alias(tools.all[ALIASES[word]], word)
        elif word in tools.all:
            chosen[word] = tools.all[word]
        else:
            raise unknown_name(word, (HOST, *tools.all, *ALIASES))
    return [FileHost(tools, list(chosen.values()))]


def _alias(tool: FunctionTool, name: str) -> FunctionTool:
    renamed = tool.renamed(name)
    traits = renamed.spec.traits.model_copy(update={"alias_of": tool.name})
    return replace(renamed, spec=renamed.spec.model_copy(update={"traits": traits}))


class FileTools:
    """The functions behind the tools. Synchronous ones run in a worker thread.

    Args:
        mounts: of the run.
        policy: limits, and which secrets are allowed by name.
        rules: what is kept from lists and searches.
    """

    def __init__(self, mounts: Mounts, policy: ToolPolicy, rules: Rules) -> None:
        self.mounts = mounts
        self._policy = policy
        self._rules = rules
        self._limits = policy.limits
        self.all = {tool.name: tool for tool in self._made()}

    def _made(self) -> list[FunctionTool]:
        def made(function: Callable[..., Any], name: str, *, writes: bool = False) -> FunctionTool:
            return method_tool(
                function,
                name=name,
                host=HOST,
                ruling="ask" if writes else "allow",
                interruptible=not writes,
                max_result_chars=_RESULT_CHARS,
            )

        return [
            made(self.read, "fs.read"),
            self._with_mounts(made(self.list, "fs.list")),
            made(self.search, "fs.search"),
            made(self.write, "fs.write", writes=True),
            made(self.apply_patch, "fs.apply_patch", writes=True),
        ]

    def _with_mounts(self, tool: FunctionTool) -> FunctionTool:
        """The tool with a word about the mounts that there are: nothing else tells the model."""
        words = {"ro": "read only", "rw": "read and write"}
        there = ", ".join(f"{mount.name} ({words[mount.mode]})" for mount in self.mounts.values())
        description = f"{tool.spec.description}\n\nThe mounts are: {there}."
        spec = tool.spec.model_copy(update={"description": description})
        return replace(tool, spec=spec)

    def read(
        self,
        context: ToolContext,
        path: PathArg,
        offset: int | None = None,
        limit: int | None = None,
        encoding: str = "utf-8",
    ) -> dict[str, Any] | ToolResult:
        """Read a text file, or look at a picture.

        Read narrowly: find the place with fs.search, then give offset and limit. A long answer is
        cut and says how to go on. Gives path, bytes, sha256, truncated and content.

        Args:
            context: filled in.
            path: the file.
            offset: the first line, from 1. With base64: the first byte, from 0.
            limit: how many lines; with base64, how many bytes.
            encoding: utf-8, utf-16, latin-1, cp1252, or base64 for the bytes themselves.
        """
        place = self.mounts.place(path)
        self.check_secret("fs.read", place)
        self._check_approved(place, context)
        return read(
            self.mounts,
            place,
            offset=offset,
            limit=limit,
            encoding=encoding,
            max_bytes=self._limits.max_read_bytes,
        )

    def list(
        self,
        context: ToolContext,
        path: PathArg = "@project",
        glob: str | None = None,
        depth: int = 1,
    ) -> dict[str, Any]:
        """List what is in a folder.

        Args:
            context: filled in.
            path: the folder.
            glob: only names that fit, such as "*.py" (at any depth) or "src/**/*.{md,txt}".
            depth: how many levels of folders. Folders that .gitignore names are not gone into.
        """
        place = self.mounts.place(path)
        self._check_approved(place, context)
        forbids = self._rules.about("fs.list", {"glob": glob, "depth": depth})
        check_allowed(self.mounts, place, forbids)
        return list_folder(
            self.mounts,
            place,
            forbids=forbids,
            glob=plain_text(glob) if glob else None,
            depth=min(max(depth, 1), _MOST_DEPTH),
            timeout_s=self._limits.search_timeout_s,
        )

    async def search(
        self,
        run: ToolContext,
        query: str,
        path: PathArg = "@project",
        glob: str | None = None,
        regex: bool = False,
        context: int = 0,
        maxMatches: int = 100,
    ) -> dict[str, Any]:
        """Find lines in text files. Files that .gitignore names and binary ones are left out.

        Args:
            run: filled in.
            query: the words as they stand in one line, upper and lower case told apart; with
                regex, a regular expression (RE2: no look-around; "(?i)" ignores case).
            path: a folder or a file.
            glob: only files that fit, such as "*.py" or "!tests/".
            regex: take the query as a regular expression.
            context: lines to show before and after each match.
            maxMatches: how many lines at most.
        """
        place = self.mounts.place(path)
        self.check_secret("fs.search", place)
        self._check_approved(place, run)
        given: dict[str, Any] = {"query": query, "glob": glob, "regex": regex}
        given |= {"context": context, "maxMatches": maxMatches}
        forbids = self._rules.about("fs.search", given)
        check_allowed(self.mounts, place, forbids)
        stopped = threading.Event()
        order = Order(
            query=plain_text(query),
            regex=regex,
            glob=plain_text(glob) if glob else None,
            context=min(max(context, 0), _MOST_CONTEXT),
            max_matches=min(max(maxMatches, 1), _MOST_MATCHES),
            timeout_s=self._limits.search_timeout_s,
            stopped=stopped.is_set,
            allows=lambda found: self._may_see("fs.search", found),
            forbids=forbids,
        )
        try:
            found = await asyncio.to_thread(search, self.mounts, place, order)
        finally:
            # A stop cancels this and not the thread, which looks here.
            stopped.set()
        return search_answer(found)

    def write(
        self, context: ToolContext, path: PathArg, content: str, ifMatchSha256: IfMatch = None
    ) -> dict[str, Any]:
        """Write a whole text file, and the folders it needs. To change a part, use fs.apply_patch.

        Args:
            context: filled in.
            path: the file.
            content: all of the new text.
            ifMatchSha256: from fs.read.
        """
        place = self.mounts.place(path)
        self.check_secret("fs.write", place)
        data = self._checked_size(plain_text(content).encode("utf-8"), place)
        check = expecting(self.mounts, place, ifMatchSha256, context.approved)
        written = write_file(self.mounts, place, data, check=check, stopped=_stopped())
        before = {} if written.sha_before is None else {"sha256Before": written.sha_before}
        return {
            "path": place.text,
            "bytesWritten": written.size_bytes,
            **before,
            "sha256After": written.sha_after,
        }

    def apply_patch(
        self,
        context: ToolContext,
        path: PathArg,
        oldText: str | None = None,
        newText: str | None = None,
        diff: str | None = None,
        updateFrontmatter: dict[str, Any] | None = None,
        ifMatchSha256: IfMatch = None,
    ) -> dict[str, Any]:
        """Change a part of a text file, in one of three forms.

        Give oldText and newText, or diff, or updateFrontmatter.

        Args:
            context: filled in.
            path: the file.
            oldText: a piece of the file, exactly as it stands there, once.
            newText: what comes in its place; empty deletes it.
            diff: a unified diff of this one file.
            updateFrontmatter: keys of the YAML front matter and their new values; null deletes.
            ifMatchSha256: from fs.read.
        """
        place = self.mounts.place(path)
        self.check_secret("fs.apply_patch", place)
        patch = patch_of(oldText, newText, diff, updateFrontmatter)
        check = expecting(self.mounts, place, ifMatchSha256, context.approved)

        def change(old: bytes | None) -> bytes:
            if check is not None:
                check(None if old is None else patching.sha_of(old))
            return self._checked_size(patched(patch, old, place), place)

        written = change_file(
            self.mounts, place, change, max_read_bytes=self._most_patched, stopped=_stopped()
        )
        return {
            "path": place.text,
            "sha256Before": written.sha_before,
            "sha256After": written.sha_after,
        }

    def look_at_change(self, name: str, arguments: dict[str, Any]) -> CallPreview:
        """What a write or a patch would do to the file as it is now.

        Raises:
            ToolError: it would be refused.
        """
        place = self.mounts.place(arguments["path"])
        self.check_secret(name, place)
        check_target(self.mounts, place)
        told, others = self.told(place, arguments)
        old = read_at(self.mounts, place, most=self._most_patched)
        if old is None and name != "fs.write" and is_there(self.mounts, place):
            raise too_large_to_patch(place, self._most_patched)
        sha = sha_at(self.mounts, place) if old is None else patching.sha_of(old)
        check = expecting(self.mounts, place, arguments.get("ifMatchSha256"), "")
        if check is not None:
            check(sha)
        if name == "fs.write":
            new = self._checked_size(plain_text(arguments["content"]).encode("utf-8"), place)
        else:
            forms = ("oldText", "newText", "diff", "updateFrontmatter")
            patch = patch_of(*(arguments.get(form) for form in forms))
            new = self._checked_size(patched(patch, old, place), place)
        verb = "create" if sha is None else "change"
        why = f"{verb} {visible(place.text)} ({len(new):,} bytes)"
        seen = CallPreview(
            why=why,
            binds=bound_to(self.mounts, place, sha),
            arguments=told,
            other_arguments=others,
        )
        if place.mount.name == STATE:
            return seen
        return replace(seen, ruling="ask", pieces=(change_piece(place, old, new, sha),))

    def look_at_read(self, arguments: dict[str, Any]) -> CallPreview:
        """What a read, a list or a search is about; bound to the folder that the mount is now.

        Raises:
            ToolError: it would be refused.
        """
        place = self.mounts.place(arguments["path"])
        told, others = self.told(place, arguments)
        binds = self.mounts.identity(place.mount)
        return CallPreview(binds=binds, arguments=told, other_arguments=others)

    def told(
        self, place: FilePlace, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
        """The arguments in their one form, and in those that name the same path otherwise."""
        first, *others = ({**arguments, "path": form} for form in self.mounts.forms(place))
        return first, tuple(others)

    @property
    def _most_patched(self) -> int:
        return min(self._limits.max_read_bytes, LARGEST_CHANGED_BYTES)

    def _check_approved(self, place: FilePlace, context: ToolContext) -> None:
        """Refuse when the mount is another folder than the one that was approved."""
        if context.approved and context.approved != self.mounts.identity(place.mount):
            raise ToolError(
                f"{place.mount.name} became another folder after the person had approved this; "
                "call again",
                code="E_PRECONDITION_FAILED",
            )

    def check_secret(self, tool: str, place: FilePlace) -> None:
        """Refuse what most likely holds keys, unless a policy allows it by its name.

        Raises:
            ToolError: `E_DENIED`.
        """
        if not self._may_see(tool, place.text):
            raise ToolError(
                f"{visible(place.text)} most likely holds keys or passwords and is kept from you; "
                f"the person can allow it by name: {tool}(path={visible(place.text)})",
                code="E_DENIED",
            )

    def _may_see(self, tool: str, path: str) -> bool:
        if not looks_secret(path.rpartition("/")[2]):
            return True
        for text in self._policy.allow:
            pattern = call_pattern(text)
            globs = [glob for name, glob in pattern.where if name == "path" and names_secret(glob)]
            if pattern.fits_tool(tool, HOST) and any(_fits_path(path, glob) for glob in globs):
                return True
        return False

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


def _stopped() -> Callable[[], bool]:
    """Says whether a stop has come for the call that runs here."""
    cancel = _cancel.get()
    return lambda: cancel is not None and cancel.is_set


def _fits_path(path: str, glob: str) -> bool:
    return fnmatchcase(path, glob) or fnmatchcase(path, f"@project/{glob}")


class FileHost(MethodHost):
    """Runs the `fs` tools that a run has."""

    def __init__(self, tools: FileTools, chosen: Sequence[FunctionTool]) -> None:
        super().__init__(HOST, chosen)
        self._files = tools

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call; its errors name mounts and no folder of the host."""
        try:
            return await super().prepare(call, context)
        except ToolError as error:
            message = self._files.mounts.hide_roots(error.message)
            raise ToolError(message, code=error.code, details=error.details) from error

    async def run_tool(self, tool: FunctionTool, bound: Bound, context: ToolContext) -> ToolOutcome:
        """Run one call; its errors name mounts and no folder of the host."""
        token = _cancel.set(context.cancel)
        try:
            outcome = await super().run_tool(tool, bound, context)
        finally:
            _cancel.reset(token)
        error = outcome.result.error
        if error is None:
            return outcome
        named = type(error)(error.code, self._files.mounts.hide_roots(error.message), error.details)
        result = outcome.result.model_copy(update={"error": named})
        return replace(outcome, result=result)

    async def look(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        """Reads are allowed; a write to `@state`, too; any other one is asked, with a diff."""
        name = ALIASES.get(name, name)
        if name in _WRITING:
            return await asyncio.to_thread(self._files.look_at_change, name, arguments)
        return await asyncio.to_thread(self._files.look_at_read, arguments)
