"""The skills host: `list_skills`, `get_skill`, `run_python_script`.

Owns the tools and the question to the person before a script runs. Finding and reading skills is in
`skill_folders`, isolation of scripts in `sandbox`.
"""

from __future__ import annotations

import asyncio
import platform
import re
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, Field

from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import dump_json, monotonic_ms, sha256_hex, sha_of
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.nearest import name_list, nearest_name
from nbagent.contracts.policy import Ruling
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.files.mounts import STATE, without_dots
from nbagent.sandbox.process import ScriptJob, ScriptLimits
from nbagent.sandbox.script import ActiveIsolation, ScriptResult, isolation_level, run_script
from nbagent.tools.functions.definition import define_method, method_tool
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.host_config import HostConfig
from nbagent.tools.skill_files import SkillFile, copy_files, hash_files
from nbagent.tools.skill_folders import SKILL_FILE, FoundSkills, Skill, find_skills

HOST = "skills"
_RUN_TOOL = "run_python_script"
_MAX_SCRIPT_BYTES = 1_000_000
_STOP_WAIT_S = 0.9
"""Wait for the end of a stopped script. The engine gives a stopped tool 1 s, so this is shorter."""

_PAGE_CHARS = 20_000
"""Most characters of one answer: as JSON it stays below the limit of a result."""
_PAGE_JSON_CHARS = 41_000
_FILES_CHARS = 8_000
"""Most characters of the list of a skill's files."""

SkillName = Annotated[str, Field(description="A name that list_skills gave.")]

Offset = Annotated[int, Field(ge=0, description="Where to go on: next_offset of a long answer.")]


def open_hosts(config: HostConfig) -> Sequence[ToolHost]:
    """Open the host of the skills tools; it lists none if there is no skill."""
    return [SkillHost(config)]


class SkillHost(MethodHost):
    """The skills of one run. Files that scripts create are stored in `@state`."""

    def __init__(self, config: HostConfig) -> None:
        search: FoundSkills = config.skills or find_skills(config.project)
        self.warnings = search.warnings
        """For the person: skipped skills and violations of the format."""
        self._skills = {skill.name: skill for skill in search.skills}
        self._policy = config.policy
        self._state: Path = config.mounts[STATE].root
        ruling: Ruling = "ask"
        with suppress(NbagentError):  # Each call reports the reason itself.
            # The first time, this tests the isolation by running a script.
            if self._skills and isolation_level(self._policy.isolation).is_isolated:
                ruling = "allow"
        tools = [
            method_tool(self.list_skills, name="list_skills", host=HOST),
            method_tool(self.get_skill, name="get_skill", host=HOST),
            define_method(self.run_python_script, name=_RUN_TOOL, host=HOST, ruling=ruling),
        ]
        super().__init__(HOST, tools, config.names, (HOST,))
        # Only after the check of names: a misspelt one is an error without skills, too.
        self._tools = self._tools if self._skills else {}

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call. Read the script that would run; raise ToolError if it cannot run."""
        if call.name != _RUN_TOOL:
            return await super().prepare(call, context)
        tool, bound = self._check_call(call)
        # In a thread: it reads files, and the first test of the isolation runs a script.
        script = await asyncio.to_thread(self.run_python_script, context, **bound.values)
        # Rules see the path as `get_skill` lists it, however the model spelled it.
        arguments = {**bound.json_values, "script": script.path or bound.json_values["script"]}
        return PreparedCall(
            spec=tool.spec, arguments=arguments, preview=script.preview, run=script.run
        )

    def list_skills(self, offset: Offset = 0) -> dict[str, Any]:
        """List the skills: instructions and scripts for special tasks. Look before such a task."""
        listing = [{"name": s.name, "description": s.description} for s in self._skills.values()]
        sizes = (len(skill["name"]) + len(skill["description"]) for skill in listing[offset:])
        end = offset + _n_within(sizes, _PAGE_CHARS)
        return {"skills": listing[offset:end], **_next_page("skills", offset, end, len(listing))}

    def get_skill(
        self,
        skill_name: SkillName,
        file: Annotated[
            Annotated[str, AfterValidator(without_dots)] | None,
            Field(description="A further file of the skill; without it, its SKILL.md."),
        ] = None,
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """Read a skill's instructions and the list of its files, or one of these files."""
        skill = self._skill(skill_name)
        if file is None:
            return {
                "skill_name": skill.name,
                "documentation": skill.body[offset : _page_end(skill.body, offset)],
                **_next_page("characters", offset, _page_end(skill.body, offset), len(skill.body)),
                **(_listed_files(skill) if not offset else {}),
            }
        max_bytes = self._policy.limits.max_read_bytes
        if file.casefold() == SKILL_FILE.casefold() and file not in skill.files():
            file = skill.file  # Some are named `skill.md`.
        data = skill.read(file, max_bytes=max_bytes, limit="max_read_bytes")
        if b"\0" in data[:8192]:
            why = f"{file} is no text ({len(data):,} bytes); use it in a script"
            raise ToolError(why, code="E_INVALID_ARGUMENTS")
        text = data.decode("utf-8-sig", "replace")
        end = _page_end(text, offset)
        page = _next_page("characters", offset, end, len(text))
        return {"skill_name": skill.name, "file": file, "text": text[offset:end], **page}

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
    ) -> _ScriptCall:
        """Run Python in a skill's folder, kept apart from the notebook, and wait for its end.

        The notebook's packages can be imported; its variables are not there. Files are written to
        the folder os.environ["OUTPUT_DIR"]; the result names them.
        """
        # The docstring is for the model. This only prepares the script; `_ScriptCall` runs it.
        skill, limits = self._skill(skill_name), self._policy.limits
        source, path = _script_source(skill, script)
        missing = missing_requirements(source.decode("utf-8", "replace"))
        if missing:
            raise ToolError(f"the script was not run: {missing}", code="E_PRECONDITION_FAILED")
        level = isolation_level(self._policy.isolation)
        call = f"{context.run_id[:8]}-{context.turn_id}-{context.tool_call_id}"
        folder_name = re.sub(r"[^A-Za-z0-9_-]", "_", call)[:80]
        max_s = limits.script_timeout_s
        job = ScriptJob(
            text=source,
            file=skill.root / path if path else None,
            args=tuple(args or ()),
            cwd=skill.root,
            keep_to=self._state / "scripts" / folder_name,
            limits=ScriptLimits(
                timeout_s=min(timeout or max_s, max_s),
                memory_bytes=limits.script_memory_bytes,
                disk_bytes=limits.script_disk_bytes,
                output_bytes=limits.script_output_bytes,
            ),
            isolation=level.name,
        )
        files = hash_files(skill.root, max_bytes=limits.script_disk_bytes)
        return _ScriptCall(skill, job, level, path, files)

    def _skill(self, name: str) -> Skill:
        skill = self._skills.get(name.strip())
        if skill is None:
            there = name_list(self._skills)
            near = nearest_name(name, self._skills)
            hint = f" (did you mean {near!r}?)" if near else ""
            raise ToolError(
                f"there is no skill {name[:100]!r}{hint}; there are: {there}", code="ENOENT"
            )
        return skill


@dataclass(frozen=True, slots=True)
class _ScriptCall:
    """A script that was read and is ready to run."""

    skill: Skill
    job: ScriptJob
    level: ActiveIsolation
    path: str
    """Below the skill's folder; empty for code that the model wrote."""
    files: tuple[SkillFile, ...]
    """The skill's files when the script was read; the script can import or read them."""

    @property
    def preview(self) -> CallPreview:
        """Show the whole script to the person. An isolated script needs no approval."""
        source, skill = cast("bytes", self.job.text), self.skill
        label = f"{skill.name}/{self.path}" if self.path else f"code in {skill.name}"
        apart = self.level.is_isolated
        code = source.decode("utf-8", "replace")
        pieces = [PreviewPiece(label, code, "code", ("skill_name", "script"))]
        others = [file for file in self.files if file.name not in (self.path, skill.file)]
        if others:
            # Code first: it runs when the script imports it.
            lines = "\n".join(f.line for f in sorted(others, key=lambda file: not file.is_code))
            pieces.append(PreviewPiece("files that it can import or read", lines))
        pieces.append(PreviewPiece("isolation", f"{self.level.name}: {self.level.why}"))
        how = "isolated" if apart else "NOT isolated from your files"
        return CallPreview(
            ruling="allow" if apart else "ask",
            minimum=not apart,
            why=f"run {label}, {how} ({self.level.name})",
            pieces=tuple(pieces),
            approval_key=sha_of(
                [
                    sha256_hex(source),
                    self.level.name,
                    str(skill.root),
                    [file.key for file in self.files],
                ]
            ),
        )

    async def run(self, context: ToolContext) -> ToolOutcome:
        """Run it in a worker thread; if cancelled, end the script and wait for its end."""
        stop, began_ms = CancelToken(), monotonic_ms()

        def run() -> ScriptResult:
            files = self.files if context.approved else None
            max_bytes = self.job.limits.disk_bytes
            fill = partial(copy_files, self.skill.root, files=files, max_bytes=max_bytes)
            return run_script(replace(self.job, fill=fill), stop=stop)

        # Not interruptible, and shielded: a stop goes to the script, whose end is waited for.
        work = asyncio.ensure_future(
            context.runner.run(run, where="worker thread", interruptible=False, label=_RUN_TOOL)
        )
        try:
            result, ran_in = await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait((work,), timeout=_STOP_WAIT_S)
            raise
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        return ToolOutcome(
            result=ToolResult(ok=True, data=self._result_data(result)),
            ran_in=ran_in,
            started_at_ms=began_ms,
            isolation=result.isolation,
        )

    def _result_data(self, result: ScriptResult) -> dict[str, Any]:
        """Result data for the model."""
        where = f"{STATE}/scripts/{cast('Path', self.job.keep_to).name}/"
        files = [{"path": where + file.name, "bytes": file.size_bytes} for file in result.files]
        return {
            "skill_name": self.skill.name,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "returncode": result.returncode,
            "timed_out": result.timed_out,
            "duration_ms": result.duration_ms,
            "isolation": result.isolation,
            "files": files,
            **({"ended_by": result.ended_by} if result.ended_by else {}),
            **({"notes": list(result.notes)} if result.notes else {}),
        }


def _page_end(text: str, offset: int) -> int:
    """Return where the page of a text ends: at the end of a line if there is one."""
    if offset > len(text):
        why = f"offset is {offset:,}, and the text has {len(text):,} characters; use a smaller one"
        raise ToolError(why, code="E_INVALID_ARGUMENTS")
    page = dump_json(text[offset : offset + _PAGE_CHARS]).decode()
    # In JSON a control character takes six characters.
    n_chars = _PAGE_CHARS if len(page) <= _PAGE_JSON_CHARS else _PAGE_CHARS // 3
    end = min(offset + n_chars, len(text))
    line_end = text.rfind("\n", offset, end) + 1
    return line_end if end < len(text) and line_end > offset else end


def _next_page(unit: str, offset: int, end: int, total: int) -> dict[str, Any]:
    """Return the fields that say how to read on; none if everything was given."""
    if end >= total:
        return {}
    hint = f"{unit} {offset + 1:,} to {end:,} of {total:,}; continue with offset={end}"
    return {"truncated": True, "next_offset": end, "hint": hint}


def _n_within(sizes: Iterable[int], budget: int) -> int:
    """Return how many items fit into a budget, one at least."""
    n = 0
    for size in sizes:
        budget -= size
        if n and budget < 0:
            break
        n += 1
    return n


def _listed_files(skill: Skill) -> dict[str, Any]:
    files = skill.files()
    n = _n_within(map(len, files), _FILES_CHARS)
    if n == len(files):
        return {"files": files}
    note = f"{len(files) - n:,} more files are not listed; a script can list its folder"
    return {"files": files[:n], "files_note": note}


def _script_source(skill: Skill, script: str) -> tuple[bytes, str]:
    """Return the source and path of a file that the text names; else the text itself and ""."""
    path = without_dots(script)
    if not path:
        raise ToolError("the script is empty; write Python code", code="E_INVALID_ARGUMENTS")
    # A line that starts with a mount (`@project/…`) is not valid Python, so it must be a path.
    if (path.endswith(".py") or path.startswith("@")) and "\n" not in path:
        try:
            return skill.read(path, max_bytes=_MAX_SCRIPT_BYTES), path
        except ToolError as error:
            there = name_list(name for name in skill.files() if name.endswith(".py")) or "none"
            why = f"{error.message}; the scripts of {skill.name} are: {there}"
            raise ToolError(why, code=error.code) from None
    source = script.encode("utf-8", "surrogatepass")
    if len(source) > _MAX_SCRIPT_BYTES:
        raise ToolError(
            f"the script has more than {_MAX_SCRIPT_BYTES:,} bytes, the fixed limit; write a "
            "shorter one",
            code="E_WRITE_LIMIT",
        )
    return source, ""


# Inline metadata of a script, PEP 723:
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/
_METADATA_BLOCK = re.compile(
    r"(?m)^# /// script[ \t]*\r?$\s(?P<text>(^#(| .*)\r?$\s)+)^# ///[ \t]*\r?$"
)


def missing_requirements(script: str) -> str:
    """Describe missing requirements of a script in one sentence; empty if nothing is missing."""
    block = _METADATA_BLOCK.search(script)
    if block is None:
        return ""
    try:
        lines = (line.removeprefix("#").removeprefix(" ") for line in block["text"].splitlines())
        needs: dict[str, Any] = tomllib.loads("\n".join(lines))
        python = SpecifierSet(str(needs.get("requires-python", "")))
        dependencies: object = needs.get("dependencies", [])
        if not isinstance(dependencies, list):
            raise ValueError("dependencies is not a list")
        wanted = [str(text) for text in cast("list[object]", dependencies)]
        missing = [text for text in wanted if not _is_installed(Requirement(text))]
    except ValueError as error:
        return f"its inline metadata cannot be read: {error}"
    if not python.contains(platform.python_version(), prereleases=True):
        return f"it needs Python {python}, this is {platform.python_version()}"
    if not missing:
        return ""
    install = " ".join(f'"{text}"' for text in missing)
    return f"packages are missing or too old; ask the person to run %pip install {install}"


def _is_installed(need: Requirement) -> bool:
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return True
    try:
        # An installed pre-release counts: the person chose it.
        return need.specifier.contains(metadata.version(need.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
