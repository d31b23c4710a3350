"""The skills host: `list_skills`, `get_skill`, `run_python_script`.

Owns what a model may do with a skill and what a person sees before a script runs. Where skills lie
and how they are read is `skill_folders`'; how a script is kept apart is `sandbox`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import sha256_hex, sha_of
from nbagent.contracts.chat import ToolSpec
from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import CallPreview, PreviewPiece, Ruling, ToolPolicy
from nbagent.contracts.ports import ToolContext, ToolHost
from nbagent.files.mounts import STATE, Mount
from nbagent.sandbox import (
    ActiveIsolation,
    ScriptLimits,
    ScriptOrder,
    ScriptResult,
    isolation_level,
    run_script,
)
from nbagent.tools.base import HostOrder, listed, nearest, unknown_name
from nbagent.tools.function_host import MethodHost
from nbagent.tools.function_tool import FunctionTool, method_tool
from nbagent.tools.script_needs import needs_of
from nbagent.tools.skill_folders import FoundSkills, Skill, find_skills, skill_mounts

HOST = "skills"
_LIST, _GET, _RUN = "list_skills", "get_skill", "run_python_script"
_PAGE_CHARS = 30_000
_SCRIPT_BYTES = 1_000_000
_MOST_ARGS, _ARG_CHARS = 100, 20_000
_RESULT_CHARS = 600_000
"""The output's own limit is smaller; this one only catches what is mostly escapes."""
_STOP_S = 2.0
_PATH = re.compile(r"[^\n\r\0]{1,300}")
_FILE_LIKE = re.compile(r"[\w./-]+\.(py|sh|bash|js|ts|rb|pl)")


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """The host of the skills tools that were named; where there is no skill it offers none.

    Raises:
        UsageError: there is no such tool, or a folder that was given is not there.
    """
    found = find_skills(order.project, order.skills)
    host = SkillHost(found, policy=order.policy, mounts=order.mounts)
    names = [tool for word in order.words for tool in (_ALL if word == HOST else (word,))]
    for name in names:
        if name not in _ALL:
            raise unknown_name(name, (HOST, *_ALL))
    host.keep(names)
    return [host]


_ALL = (_LIST, _GET, _RUN)


@dataclass(frozen=True, slots=True)
class _Script:
    """A script as it is now."""

    skill: Skill
    source: bytes
    path: str = ""
    """Its file in the skill; empty when the text was given."""

    @property
    def text(self) -> str:
        """For people."""
        return self.source.decode("utf-8", "replace")


class SkillHost(MethodHost):
    """The skills of one run.

    Args:
        found: the skills, and what was wrong with some.
        policy: limits and isolation.
        mounts: where `@state` is among them, the files that scripts make are kept there.
    """

    def __init__(
        self,
        found: FoundSkills,
        *,
        policy: ToolPolicy | None = None,
        mounts: Mapping[str, Any] | None = None,
    ) -> None:
        self._found = found
        self._skills = {skill.name: skill for skill in found.skills}
        self._policy = policy or ToolPolicy()
        state: Any = (mounts or {}).get(STATE)
        self._state: Path | None = state.root if isinstance(state, Mount) else None
        super().__init__(HOST, [])
        self.keep(_ALL)

    def keep(self, names: Sequence[str]) -> None:
        """Offer these tools only."""
        made = {
            _LIST: lambda: _tool(self.list_skills, _LIST),
            _GET: lambda: _tool(self.get_skill, _GET),
            _RUN: lambda: _tool(self.run_python_script, _RUN, self._ruling()),
        }
        self._tools = {name: made[name]() for name in _ALL if name in names}

    def _ruling(self) -> Ruling:
        """What happens to a script by default; the first time, the isolation is tried."""
        if not self._skills:
            return "ask"
        return "allow" if isolation_level(self._policy.isolation).is_isolated else "ask"

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills, by name."""
        return self._found.skills

    @property
    def warnings(self) -> tuple[str, ...]:
        """For the person: what is not as the format wants it, and what was skipped."""
        return self._found.warnings

    def skill_mounts(self) -> tuple[Mount, ...]:
        """Their folders for the file tools, read only."""
        return skill_mounts(self._found.skills)

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """Its tools; none where there is no skill."""
        return await super().tools(context) if self._skills else []

    # --- the tools ------------------------------------------------------------------------------

    def list_skills(self) -> dict[str, Any]:
        """List the skills: instructions and scripts for special tasks. Look before such a task."""
        listing = [{"name": s.name, "description": s.description} for s in self._skills.values()]
        return {"skills": listing}

    def get_skill(
        self,
        skill_name: Annotated[str, Field(description="A name that list_skills gave.")],
        file: Annotated[
            str | None, Field(description="A further file of the skill; without it, its SKILL.md.")
        ] = None,
        offset: Annotated[
            int, Field(ge=0, description="Where to go on in a long text: next_offset.")
        ] = 0,
    ) -> dict[str, Any]:
        """Read a skill's instructions and the list of its files, or one of these files."""
        skill = self._skill(skill_name)
        if file is not None:
            data = skill.read(file, most_bytes=self._policy.limits.max_read_bytes)
            return {"skill_name": skill.name, "file": file, **_page(_as_text(data, file), offset)}
        files, more = skill.files()
        page = _page(skill.body, offset, key="documentation")
        found = {"skill_name": skill.name, **page, "files": list(files)}
        if skill.compatibility:
            found["compatibility"] = skill.compatibility
        if more:
            found["more_files"] = True
        return found

    async def run_python_script(
        self,
        context: ToolContext,
        skill_name: Annotated[str, Field(description="A name that list_skills gave.")],
        script: Annotated[
            str,
            Field(description="A script file of the skill (scripts/make.py), or Python code."),
        ],
        args: Annotated[
            list[str] | None, Field(description="Command line arguments of the script.")
        ] = None,
        timeout: Annotated[
            float | None, Field(gt=0, description="Seconds; the longest allowed by default.")
        ] = None,
    ) -> dict[str, Any]:
        """Run Python in a skill's folder, kept apart from the notebook, and wait for its end.

        The notebook's packages can be imported; its variables are not there. Files are written to
        the folder os.environ["OUTPUT_DIR"]; the result names them.
        """
        found = self._script(skill_name, script)
        # The first look at the level runs a script of its own.
        level = await asyncio.to_thread(isolation_level, self._policy.isolation)
        if context.approved and context.approved != await asyncio.to_thread(_binds, found, level):
            raise ToolError(
                "the script changed after it was approved; call it again to have it looked at",
                code="E_PRECONDITION_FAILED",
            )
        missing = needs_of(found.text)
        if missing.text:
            raise ToolError(
                f"the script was not run: {missing.text}",
                code="E_PRECONDITION_FAILED",
                details={"missing": list(missing.packages)},
            )
        keep_to = self._keep_to(context)
        order = ScriptOrder(
            text=found.source,
            file=found.skill.root / found.path if found.path else None,
            args=_checked_args(args or []),
            cwd=found.skill.root,
            keep_to=keep_to,
            limits=self._limits(timeout),
            isolation=level.name,
            on_output=lambda line: context.progress(line, None),
        )
        result = await _ran(order, context)
        told = _told(found.skill, result, self._state, keep_to)
        if timeout is not None and timeout > order.limits.timeout_s:
            longest = f"the timeout was cut to the longest allowed: {order.limits.timeout_s:g} s"
            told["notes"] = [longest, *told.get("notes", [])]
        return told

    # --- before a call --------------------------------------------------------------------------

    async def look(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        """Reading is allowed; a script too, where isolation is active. A person sees all of it."""
        if name != _RUN:
            return CallPreview(arguments=arguments)
        found = self._script(arguments["skill_name"], arguments["script"])
        level = await asyncio.to_thread(isolation_level, self._policy.isolation)
        label = (
            f"{found.skill.name}/{found.path}" if found.path else f"Python in {found.skill.name}"
        )
        pieces = [
            PreviewPiece(label, found.text, "code"),
            PreviewPiece("isolation", f"{level.name}: {level.why}"),
        ]
        given: Any = arguments.get("args")
        if given:
            pieces.insert(1, PreviewPiece("arguments", "\n".join(map(str, given))))
        _checked_args(given or [])
        missing = needs_of(found.text).text
        if missing:
            pieces.append(PreviewPiece("it will not run", missing))
        apart = "kept apart" if level.is_isolated else "NOT kept apart from your files"
        return CallPreview(
            ruling="allow" if level.is_isolated else "ask",
            firm=not level.is_isolated,
            why=f"run {label}, {apart} ({level.name})",
            pieces=tuple(pieces),
            binds=await asyncio.to_thread(_binds, found, level),
            arguments=arguments,
        )

    # --- behind them ----------------------------------------------------------------------------

    def _skill(self, name: str) -> Skill:
        skill = self._skills.get(name.strip())
        if skill is not None:
            return skill
        close = nearest(name, self._skills)
        meant = f"; did you mean {close!r}?" if close else ""
        raise ToolError(
            f"there is no skill {name[:100]!r}{meant} There are: {listed(self._skills)}",
            code="ENOENT",
        )

    def _script(self, skill_name: str, script: str) -> _Script:
        """The file of the skill if there is one of this name; else the text itself."""
        skill = self._skill(skill_name)
        path = script.strip().removeprefix("./")
        if _PATH.fullmatch(path) and skill.has(path):
            source = skill.read(path, most_bytes=_SCRIPT_BYTES)
            if not path.endswith(".py") and b"python" not in source.partition(b"\n")[0]:
                raise ToolError(f"{path} is no Python script", code="E_INVALID_ARGUMENTS")
            return _Script(skill, source, path)
        if _FILE_LIKE.fullmatch(path):
            scripts = [name for name in skill.files()[0] if name.endswith(".py")]
            there = f"; its scripts are: {listed(scripts)}" if scripts else "; it has no scripts"
            raise ToolError(f"{skill.name} has no file {path}{there}", code="ENOENT")
        source = script.encode("utf-8", "surrogatepass")
        if not path:
            raise ToolError("the script is empty; write Python code", code="E_INVALID_ARGUMENTS")
        if len(source) > _SCRIPT_BYTES:
            raise ToolError(
                f"the script has more than {_SCRIPT_BYTES:,} bytes; write a shorter one",
                code="E_WRITE_LIMIT",
            )
        return _Script(skill, source)

    def _limits(self, timeout: float | None) -> ScriptLimits:
        limits = self._policy.limits
        return ScriptLimits(
            timeout_s=min(timeout or limits.script_timeout_s, limits.script_timeout_s),
            memory_bytes=limits.script_memory_bytes,
            output_bytes=limits.script_output_bytes,
        )

    def _keep_to(self, context: ToolContext) -> Path | None:
        """A fresh folder below `@state` for what the script makes."""
        if self._state is None:
            return None
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{context.run_id[:8]}-{context.tool_call_id}")[:80]
        folder = self._state / "scripts" / plain
        number = 1
        while folder.exists():
            number += 1
            folder = folder.with_name(f"{plain}-{number}")
        return folder


def _tool(function: Any, name: str, ruling: Ruling = "allow") -> FunctionTool:
    return method_tool(
        function,
        name=name,
        host=HOST,
        ruling=ruling,
        max_result_chars=_RESULT_CHARS,
    )


def _binds(script: _Script, level: ActiveIsolation) -> str:
    """Hash of the script, of where it lies, and of what beside it could reach the machine."""
    skill = script.skill
    files = [] if level.is_isolated else skill.fingerprint()
    return sha_of([sha256_hex(script.source), level.name, str(skill.root), files])


def _checked_args(args: list[str]) -> tuple[str, ...]:
    if len(args) > _MOST_ARGS or sum(map(len, args)) > _ARG_CHARS:
        raise ToolError(
            f"there are more than {_MOST_ARGS} arguments or {_ARG_CHARS:,} characters in them; put "
            "them in the script",
            code="E_INVALID_ARGUMENTS",
        )
    for number, text in enumerate(args, 1):
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise ToolError(
                f"argument {number} holds a NUL or half of a surrogate pair, which no program can "
                "be given; write it without",
                code="E_INVALID_ARGUMENTS",
            )
    return tuple(args)


async def _ran(order: ScriptOrder, context: ToolContext) -> ScriptResult:
    """Run it in a worker thread; a stop ends it at once and waits for its end."""
    token = CancelToken()
    work = asyncio.ensure_future(
        context.runner.run_sync(
            lambda: run_script(order, cancel=token),
            where="worker",
            interruptible=False,
            cancel=token,
            label=_RUN,
        )
    )
    try:
        return (await asyncio.shield(work))[0]
    except asyncio.CancelledError:
        token.set()
        with suppress(Exception):
            await asyncio.wait_for(work, _STOP_S)
        raise


def _told(
    skill: Skill, result: ScriptResult, state: Path | None, kept: Path | None
) -> dict[str, Any]:
    where = f"{STATE}/{kept.relative_to(state).as_posix()}/" if kept and state else ""
    told: dict[str, Any] = {
        "skill_name": skill.name,
        "stdout": _without_places(result.stdout, result.places),
        "stderr": _without_places(result.stderr, result.places),
        "returncode": result.returncode,
        "timed_out": result.timed_out,
        "duration_ms": result.duration_ms,
        "isolation": result.isolation,
        "files": [
            {"path": f"{where}{file.name}", "bytes": file.size_bytes} for file in result.files
        ],
    }
    notes = list(result.notes)
    if result.files and not where:
        notes.append("its files were not kept: there is no @state here")
    if result.ended_by:
        told["ended_by"] = result.ended_by
    if notes:
        told["notes"] = notes
    return told


def _without_places(text: str, places: tuple[tuple[str, str], ...]) -> str:
    """Folders of this machine under names that say nothing of it."""
    for path, name in sorted(places, key=lambda place: -len(place[0])):
        if len(path) > 1 and path in text:
            whole = rf"(?<!\w){re.escape(path)}(?![\w-])"
            text = re.sub(whole, lambda _: name, text)  # noqa: B023
    return text


def _as_text(data: bytes, file: str) -> str:
    if b"\0" in data[:8192]:
        raise ToolError(
            f"{file} is no text ({len(data):,} bytes); use it in a script",
            code="E_INVALID_ARGUMENTS",
        )
    return data.decode("utf-8-sig", "replace")


def _page(text: str, offset: int, *, key: str = "text") -> dict[str, Any]:
    """A piece of a text, cut at the end of a line where there is one."""
    if offset and offset >= len(text):
        raise ToolError(
            f"offset {offset} is past the end: the text has {len(text)} characters",
            code="E_INVALID_ARGUMENTS",
        )
    end = min(offset + _PAGE_CHARS, len(text))
    if end < len(text):
        line_end = text.rfind("\n", offset + _PAGE_CHARS // 2, end)
        end = line_end + 1 if line_end > 0 else end
    piece: dict[str, Any] = {key: text[offset:end]}
    if end < len(text):
        piece |= {
            "truncated": True,
            "next_offset": end,
            "hint": f"{len(text) - end:,} characters follow; go on with offset={end}",
        }
    return piece
