"""The skills host: `list_skills`, `get_skill`, `run_python_script`.

Owns what a model may do with a skill and what a person sees before a script runs. Where skills lie
and how they are read is `skill_folders`'; how a script is kept apart is `sandbox`'s.
"""

from __future__ import annotations

import asyncio
import platform
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, Field

from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms, sha256_hex, sha_of
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.policy import Ruling
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.files.mounts import STATE, without_dots
from nbagent.sandbox.process import ScriptLimits, ScriptOrder
from nbagent.sandbox.script import ActiveIsolation, ScriptResult, isolation_level, run_script
from nbagent.tools.functions.definition import method_tool
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.host_config import HostOrder
from nbagent.tools.skill_folders import FoundSkills, Skill, find_skills
from nbagent.tools.tool_names import listed

HOST = "skills"
_RUN = "run_python_script"
_SCRIPT_BYTES = 1_000_000
_STOP_S = 0.9
"""How long a stopped script is waited for; the engine waits a second for this."""

SkillName = Annotated[str, Field(description="A name that list_skills gave.")]


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """The host of the skills tools that were named; where there is no skill it offers none."""
    return [SkillHost(order)]


class SkillHost(MethodHost):
    """The skills of one run. Files that scripts make are kept in `@state`."""

    def __init__(self, order: HostOrder) -> None:
        found: FoundSkills = order.skills or find_skills(order.project)
        self.warnings = found.warnings
        """For the person: what is not as the format wants it, and what was skipped."""
        self._skills = {skill.name: skill for skill in found.skills}
        self._policy = order.policy
        self._state: Path = order.mounts[STATE].root
        ruling: Ruling = "ask"
        with suppress(NbagentError):  # Each call says why it is not run.
            # The first time, the isolation is tried.
            if self._skills and isolation_level(self._policy.isolation).is_isolated:
                ruling = "allow"
        tools = [
            method_tool(self.list_skills, name="list_skills", host=HOST),
            method_tool(self.get_skill, name="get_skill", host=HOST),
            method_tool(self.run_python_script, name=_RUN, host=HOST, ruling=ruling),
        ]
        super().__init__(HOST, tools, order.words, (HOST,))
        self._tools = self._tools if self._skills else {}

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call; of a script, read what would run, or say (ToolError) why it would not."""
        tool, bound = self._checked(call)
        if call.name != _RUN:
            return tool.prepared(bound)
        # It reads files, and the first look at the isolation runs a script of its own.
        script = await asyncio.to_thread(self.run_python_script, context, **bound.values)
        # Rules are compared with the spelling of the skill's list.
        arguments = {**bound.plain, "script": script.path or bound.plain["script"]}
        return PreparedCall(
            spec=tool.spec, arguments=arguments, preview=script.preview, run=script.run
        )

    def list_skills(self) -> dict[str, Any]:
        """List the skills: instructions and scripts for special tasks. Look before such a task."""
        listing = [{"name": s.name, "description": s.description} for s in self._skills.values()]
        return {"skills": listing}

    def get_skill(
        self,
        skill_name: SkillName,
        file: Annotated[
            Annotated[str, AfterValidator(without_dots)] | None,
            Field(description="A further file of the skill; without it, its SKILL.md."),
        ] = None,
    ) -> dict[str, Any]:
        """Read a skill's instructions and the list of its files, or one of these files."""
        skill = self._skill(skill_name)
        if file is not None:
            data = skill.read(file, most_bytes=self._policy.limits.max_read_bytes)
            if b"\0" in data[:8192]:
                why = f"{file} is no text ({len(data):,} bytes); use it in a script"
                raise ToolError(why, code="E_INVALID_ARGUMENTS")
            text = data.decode("utf-8-sig", "replace")
            return {"skill_name": skill.name, "file": file, "text": text}
        return {"skill_name": skill.name, "documentation": skill.body, "files": skill.files()}

    def run_python_script(
        self,
        context: ToolContext,
        skill_name: SkillName,
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
        longest_s = limits.script_timeout_s
        order = ScriptOrder(
            text=source,
            file=skill.root / path if path else None,
            args=tuple(args or ()),
            cwd=skill.root,
            keep_to=self._state / "scripts" / kept,
            limits=ScriptLimits(
                timeout_s=min(timeout or longest_s, longest_s),
                memory_bytes=limits.script_memory_bytes,
                disk_bytes=limits.script_disk_bytes,
                output_bytes=limits.script_output_bytes,
            ),
            isolation=level.name,
        )
        return _Script(skill, order, level, path, skill.fingerprint())

    def _skill(self, name: str) -> Skill:
        skill = self._skills.get(name.strip())
        if skill is None:
            there = listed(self._skills)
            raise ToolError(f"there is no skill {name[:100]!r}; there are: {there}", code="ENOENT")
        return skill


@dataclass(frozen=True, slots=True)
class _Script:
    """A script as it was read, ready to run."""

    skill: Skill
    order: ScriptOrder
    level: ActiveIsolation
    path: str
    """Below the skill's folder; empty of code."""
    beside: list[list[object]]
    """The files of the skill, which it can import, as they were when it was read."""

    @property
    def preview(self) -> CallPreview:
        """What a person is shown: all of it. Allowed by itself where it is kept apart."""
        source, skill = cast("bytes", self.order.text), self.skill
        label = f"{skill.name}/{self.path}" if self.path else f"code in {skill.name}"
        apart = self.level.is_isolated
        code = source.decode("utf-8", "replace")
        pieces = [PreviewPiece(label, code, "code", ("skill_name", "script"))]
        pieces.append(PreviewPiece("isolation", f"{self.level.name}: {self.level.why}"))
        how = "kept apart" if apart else "NOT kept apart from your files"
        return CallPreview(
            ruling="allow" if apart else "ask",
            minimum=not apart,
            why=f"run {label}, {how} ({self.level.name})",
            pieces=tuple(pieces),
            approval_key=sha_of([sha256_hex(source), self.level.name, str(skill.root), self.beside]),
        )

    async def run(self, context: ToolContext) -> ToolOutcome:
        """Run it in a worker thread; where this is cancelled, end it and wait for its end."""
        stop, began_ms = CancelToken(), monotonic_ms()

        def run() -> ScriptResult:
            if context.approved and self.skill.fingerprint() != self.beside:
                why = "files of the skill changed after the script was approved; call it again"
                raise ToolError(why, code="E_PRECONDITION_FAILED")
            return run_script(self.order, stop=stop)

        work = asyncio.ensure_future(
            context.runner.run(run, where="worker thread", interruptible=False, label=_RUN)
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
        where = f"{STATE}/scripts/{cast('Path', self.order.keep_to).name}/"
        files = [{"path": where + file.name, "bytes": file.size_bytes} for file in ended.files]
        return {
            "skill_name": self.skill.name,
            "stdout": ended.stdout,
            "stderr": ended.stderr,
            "returncode": ended.returncode,
            "timed_out": ended.timed_out,
            "duration_ms": ended.duration_ms,
            "isolation": ended.isolation,
            "files": files,
            **({"ended_by": ended.ended_by} if ended.ended_by else {}),
            **({"notes": list(ended.notes)} if ended.notes else {}),
        }


def _source_of(skill: Skill, script: str) -> tuple[bytes, str]:
    """The file of the skill that one line names, and its path; else the text."""
    path = without_dots(script)
    if not path:
        raise ToolError("the script is empty; write Python code", code="E_INVALID_ARGUMENTS")
    # No code begins with a mount.
    if (path.endswith(".py") or path.startswith("@")) and "\n" not in path:
        try:
            return skill.read(path, most_bytes=_SCRIPT_BYTES), path
        except ToolError as error:
            there = listed(name for name in skill.files() if name.endswith(".py")) or "none"
            why = f"{error.message}; the scripts of {skill.name} are: {there}"
            raise ToolError(why, code=error.code) from None
    source = script.encode("utf-8", "surrogatepass")
    if len(source) > _SCRIPT_BYTES:
        raise ToolError(
            f"the script has more than {_SCRIPT_BYTES:,} bytes; write a shorter one",
            code="E_WRITE_LIMIT",
        )
    return source, ""


# What a script says that it needs (PEP 723):
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/
_BLOCK = re.compile(r"(?m)^# /// script[ \t]*\r?$\s(?P<text>(^#(| .*)\r?$\s)+)^# ///[ \t]*\r?$")


def missing_for(script: str) -> str:
    """What a script needs and is not here, in one sentence; empty when nothing is missing."""
    block = _BLOCK.search(script)
    if block is None:
        return ""
    try:
        lines = (line.removeprefix("#").removeprefix(" ") for line in block["text"].splitlines())
        needs: dict[str, Any] = tomllib.loads("\n".join(lines))
        python = SpecifierSet(str(needs.get("requires-python", "")))
        dependencies: object = needs.get("dependencies", [])
        if not isinstance(dependencies, list):
            raise ValueError("dependencies is no list")
        wanted = [str(text) for text in cast("list[object]", dependencies)]
        missing = [text for text in wanted if not _is_met(Requirement(text))]
    except ValueError as error:
        return f"its inline metadata cannot be read: {error}"
    if not python.contains(platform.python_version(), prereleases=True):
        return f"it wants Python {python}, this is {platform.python_version()}"
    if not missing:
        return ""
    install = " ".join(f'"{text}"' for text in missing)
    return f"packages are missing or too old; ask the person to run %pip install {install}"


def _is_met(need: Requirement) -> bool:
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return True
    try:
        return need.specifier.contains(metadata.version(need.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
