"""The skills host: `list_skills`, `get_skill`, `run_python_script`.

Owns what a model may do with a skill and what a person sees before a script runs. Where skills lie
and how they are read is `skill_folders`'; how a script is kept apart is `sandbox`'s.
"""

from __future__ import annotations

import asyncio
import platform
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import Field

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms, sha256_hex, sha_of
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.policy import CallPreview, PreviewPiece, Ruling, ToolPolicy
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult
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
from nbagent.tools.skill_folders import FoundSkills, Skill, find_skills

HOST = "skills"
_LIST, _GET, _RUN = _ALL = ("list_skills", "get_skill", "run_python_script")
_PAGE_CHARS = 30_000
_SCRIPT_BYTES = 1_000_000
_RESULT_CHARS = 600_000
"""The output's own limit is smaller; this one only catches what is mostly escapes."""
_STOP_S = 0.9
"""How long a stopped script is waited for; the engine waits a second for this."""
_PATH = re.compile(r"[^\n\r\0]{1,300}")
_FILE_LIKE = re.compile(r"[\w./-]+\.(py|sh|bash|js|ts|rb|pl)")


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """The host of the skills tools that were named; where there is no skill it offers none.

    Raises:
        UsageError: there is no such tool, or a folder that was given is not there.
    """
    names = [tool for word in order.words for tool in (_ALL if word == HOST else (word,))]
    for name in names:
        if name not in _ALL:
            raise unknown_name(name, (HOST, *_ALL))
    found = order.skills or find_skills(order.project)
    return [SkillHost(found, names, policy=order.policy, mounts=order.mounts)]


class SkillHost(MethodHost):
    """The skills of one run.

    Args:
        found: the skills, and what was wrong with some.
        names: the tools to offer.
        policy: limits and isolation.
        mounts: where `@state` is among them, the files that scripts make are kept there.
    """

    def __init__(
        self,
        found: FoundSkills,
        names: Sequence[str] = _ALL,
        *,
        policy: ToolPolicy,
        mounts: Mapping[str, Any],
    ) -> None:
        self.warnings = found.warnings
        """For the person: what is not as the format wants it, and what was skipped."""
        self._skills = {skill.name: skill for skill in found.skills}
        self._policy = policy
        state: Any = mounts.get(STATE)
        self._state: Path | None = state.root if isinstance(state, Mount) else None
        functions = {
            _LIST: self.list_skills,
            _GET: self.get_skill,
            _RUN: self.run_python_script,
        }
        offered = [
            _tool(function, name, self._ruling(name))
            for name, function in functions.items()
            if name in names and self._skills
        ]
        super().__init__(HOST, offered)

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call; of a script, read what would run.

        Raises:
            ToolError: there is no such tool or skill, or the script would not run.
        """
        tool, bound = self._checked(call)
        if call.name != _RUN:
            return tool.prepared(bound)
        # It reads files, and the first look at the isolation runs a script of its own.
        script = await asyncio.to_thread(self.run_python_script, context, **bound.values)
        return PreparedCall(
            spec=tool.spec, arguments=bound.plain, preview=script.preview, run=script.run
        )

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

    def run_python_script(
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
    ) -> _Script:
        """Run Python in a skill's folder, kept apart from the notebook, and wait for its end.

        The notebook's packages can be imported; its variables are not there. Files are written to
        the folder os.environ["OUTPUT_DIR"]; the result names them.
        """
        # The model reads the lines above. This prepares the script; what it gives is run later.
        skill, limits = self._skill(skill_name), self._policy.limits
        source, path = _source_of(skill, script)
        missing = missing_for(source.decode("utf-8", "replace"))
        if missing:
            raise ToolError(f"the script was not run: {missing}", code="E_PRECONDITION_FAILED")
        level = isolation_level(self._policy.isolation)
        call = f"{context.run_id[:8]}-{context.turn_id}-{context.tool_call_id}"
        kept = re.sub(r"[^A-Za-z0-9_-]", "_", call)[:80]
        longest = limits.script_timeout_s
        order = ScriptOrder(
            text=source,
            file=skill.root / path if path else None,
            args=tuple(args or ()),
            cwd=skill.root,
            keep_to=self._state / "scripts" / kept if self._state else None,
            limits=ScriptLimits(
                timeout_s=min(timeout or longest, longest),
                memory_bytes=limits.script_memory_bytes,
                disk_bytes=limits.script_disk_bytes,
                output_bytes=limits.script_output_bytes,
            ),
            isolation=level.name,
            on_output=lambda line: context.progress(line, None),
        )
        cut = f"the timeout was cut to the longest allowed: {longest:g} s"
        notes = [cut] if timeout is not None and timeout > longest else []
        where = f"{STATE}/scripts/{kept}/" if self._state else ""
        return _Script(skill, path, order, level, where, notes)

    # --- behind them ----------------------------------------------------------------------------

    def _ruling(self, name: str) -> Ruling:
        """What happens to a call by default; the first time, the isolation is tried."""
        if name != _RUN or not self._skills:
            return "allow"
        try:
            return "allow" if isolation_level(self._policy.isolation).is_isolated else "ask"
        except NbagentError:
            return "ask"  # Each call says why it is not run.

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


def _tool(function: Callable[..., Any], name: str, ruling: Ruling) -> FunctionTool:
    return method_tool(
        function, name=name, host=HOST, ruling=ruling, max_result_chars=_RESULT_CHARS
    )


# --- a script ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Script:
    """A script as it was read, ready to run."""

    skill: Skill
    path: str
    """Its file in the skill; empty when the text was given."""
    order: ScriptOrder
    level: ActiveIsolation
    where: str
    """Where the model finds its files; empty where they are thrown away."""
    notes: list[str]

    @property
    def preview(self) -> CallPreview:
        """What a person is shown: all of it. Allowed by itself where it is kept apart."""
        source, skill = cast("bytes", self.order.text), self.skill
        label = f"{skill.name}/{self.path}" if self.path else f"Python in {skill.name}"
        apart = self.level.is_isolated
        pieces = [PreviewPiece(label, source.decode("utf-8", "replace"), "code")]
        if self.order.args:
            pieces.append(PreviewPiece("arguments", "\n".join(self.order.args)))
        pieces.append(PreviewPiece("isolation", f"{self.level.name}: {self.level.why}"))
        how = "kept apart" if apart else "NOT kept apart from your files"
        # What lies beside it is bound too where it could reach the machine.
        beside = [] if apart else skill.fingerprint()
        return CallPreview(
            ruling="allow" if apart else "ask",
            firm=not apart,
            why=f"run {label}, {how} ({self.level.name})",
            pieces=tuple(pieces),
            binds=sha_of([sha256_hex(source), self.level.name, str(skill.root), beside]),
        )

    async def run(self, context: ToolContext) -> ToolOutcome:
        """Run it in a worker thread; where this is cancelled, end it and wait for its end."""
        stop, began_ms = CancelToken(), monotonic_ms()
        work = asyncio.ensure_future(
            context.runner.run_sync(
                lambda: run_script(self.order, stop=stop),
                where="worker",
                interruptible=False,
                label=_RUN,
            )
        )
        try:
            ended, place = await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait((work,), timeout=_STOP_S)
            raise
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        return ToolOutcome(
            result=ToolResult(ok=True, data=self._shown(ended)),
            ran_in=place,
            started_at_ms=began_ms,
            isolation=ended.isolation,
        )

    def _shown(self, ended: ScriptResult) -> dict[str, Any]:
        """What the model reads of it."""
        unkept = "its files were not kept: there is no @state here"
        left = [unkept] if ended.files and not self.where else []
        notes = [*self.notes, *ended.notes, *left]
        return {
            "skill_name": self.skill.name,
            "stdout": ended.stdout,
            "stderr": ended.stderr,
            "returncode": ended.returncode,
            "timed_out": ended.timed_out,
            "duration_ms": ended.duration_ms,
            "isolation": ended.isolation,
            "files": [{"path": self.where + it.name, "bytes": it.size_bytes} for it in ended.files],
            **({"ended_by": ended.ended_by} if ended.ended_by else {}),
            **({"notes": notes} if notes else {}),
        }


def _source_of(skill: Skill, script: str) -> tuple[bytes, str]:
    """The file of the skill that is named, and its path; or else the text itself."""
    path = script.strip().removeprefix("./")
    if _PATH.fullmatch(path) and skill.has(path):
        source = skill.read(path, most_bytes=_SCRIPT_BYTES)
        if not path.endswith(".py") and b"python" not in source.partition(b"\n")[0]:
            raise ToolError(f"{path} is no Python script", code="E_INVALID_ARGUMENTS")
        return source, path
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
    return source, ""


# --- what a script says that it needs (PEP 723) --------------------------------------------------
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/

_BLOCK = re.compile(r"(?m)^# /// script[ \t]*\r?$\s(?P<text>(^#(| .*)\r?$\s)+)^# ///[ \t]*\r?$")


def missing_for(script: str) -> str:
    """What a script needs and is not here, in one sentence; empty when nothing is missing."""
    blocks = [match["text"] for match in _BLOCK.finditer(script)]
    if not blocks:
        return ""
    try:
        if len(blocks) > 1:
            raise ValueError("there are several blocks; keep one")
        lines = (line.removeprefix("#").removeprefix(" ") for line in blocks[0].splitlines())
        needs: dict[str, Any] = tomllib.loads("\n".join(lines))
        dependencies: object = needs.get("dependencies", [])
        if not isinstance(dependencies, list):
            raise ValueError("dependencies is no list")
        python = SpecifierSet(str(needs.get("requires-python", "")))
        texts = [str(text) for text in cast("list[object]", dependencies)]
        wanted = [(text, Requirement(text)) for text in texts]
    except ValueError as error:
        return f"its inline metadata cannot be read: {error}"
    missing = [(text, there) for text, need in wanted if (there := _unmet(need)) is not None]
    pieces: list[str] = []
    if not python.contains(platform.python_version(), prereleases=True):
        pieces.append(f"it wants Python {python}, this is {platform.python_version()}")
    if missing:
        shown = ", ".join(
            f"{text} ({there} is installed)" if there else text for text, there in missing
        )
        install = " ".join(f'"{text}"' for text, _ in missing)
        pieces.append(
            f"packages are missing: {shown}; ask the person to run %pip install {install}"
        )
    return "; ".join(pieces)


def _unmet(need: Requirement) -> str | None:
    """The version that is there instead, empty for none; None where the requirement is met."""
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    try:
        there = metadata.version(need.name)
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    return None if need.specifier.contains(there, prereleases=True) else there


# --- texts --------------------------------------------------------------------------------------


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
