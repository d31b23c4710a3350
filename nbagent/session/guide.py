"""What leads a run: the workflow or the agent that its options name, and the document.

What a package or a document is, is `workflow`'s; this finds them and brings them together with the
run's tools and rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nbagent.archive.store import Store
from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import ToolSpec
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.files.names import path_parts
from nbagent.runtime import Courier
from nbagent.session.approval import Rules
from nbagent.session.hosts import Folders, mounts_of, resolving
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions, Settings, path_of, project_folder, store_home
from nbagent.tools.base import HostOrder
from nbagent.tools.filesystem import FileHost
from nbagent.workflow.agents import critical_context, load_agent
from nbagent.workflow.composer import Flow, Intent, hides, system_text
from nbagent.workflow.document import Document, document_of, forget_documents, read_named
from nbagent.workflow.graph import AgentSpec, Package
from nbagent.workflow.package import load_package
from nbagent.workflow.state import (
    State,
    is_run_id,
    new_document,
    of_other_package,
    origin_of,
    read_state,
)

_IN_PROJECT = "@project/"
_MOST_CHARS = 4_000
_MOST_RUNS = 10_000
"""Are looked through for the last one of a document."""


@dataclass(frozen=True, slots=True)
class Guide:
    """What leads a run beside the person's words: a workflow, or an agent alone."""

    options: RunOptions
    settings: Settings
    flow: Flow | None
    alone: AgentSpec | None
    """The agent of a run without a workflow."""

    @property
    def agent(self) -> AgentSpec | None:
        """The one that is active when the run begins."""
        return self.flow.agent() if self.flow else self.alone

    @property
    def agent_id(self) -> str | None:
        return self.agent.id if self.agent else None

    @property
    def folders(self) -> Folders | None:
        """What the file tools need of a workflow."""
        if self.flow is None:
            return None
        package, document = self.flow.package, self.flow.document
        return Folders(package=package.root, state=document.folder, guard=self.flow.guard)

    def model_on(self, provider: str) -> str | None:
        """The model that the agent asks for, where it is one of the server that is asked anyway."""
        if self.agent is None or not self.agent.model:
            return None
        name = self.agent.model
        model = name if ":" in name else f"{provider}:{name}"
        return model if model.partition(":")[0] == provider else None

    def hiding(self, rules: Rules) -> Callable[[ToolSpec], str]:
        """Why the model is not shown a tool: a rule, or the agent of the moment has none such."""
        if self.flow is not None:
            self.flow.read = _reader(self, rules)
        return lambda spec: rules.hiding(spec) or hides(self.agent, spec)

    def system_prompt(self, own: str | None, rules: Rules) -> str:
        """That of an agent without a workflow."""
        assert self.alone is not None
        context = critical_context(self.alone, _reader(self, rules))
        return system_text(self.alone, context, own, tools=False)

    def notices(self, parent: RunRecord | None, last: EngineTurn | None = None) -> list[str]:
        """What the person should know before the first request; `last`: the turn before it."""
        if self.flow is None:
            alone = [self.alone] if self.alone and parent is None else []
            return [*_unfilled(alone[0].unfilled if alone else ()), *_actions(alone)]
        document = self.flow.document
        where = [f"The state of this workflow is {_near(document.path)}."]
        if self.flow.forked is not None:
            was = _near(self.flow.forked[0].path)
            where = [
                f"{where[0]} It is a copy of {was} as it stood then; @project is as it is now."
            ]
        if parent is not None:
            here = where if self.flow.forked else []
            return [*here, *(_cut_moves(last, self.flow) if last else ())]
        package = self.flow.package
        paths = {path: path.removeprefix(_IN_PROJECT) for path in self.flow.state.artifacts}
        gone = [path for path, below in paths.items() if not (project_folder() / below).exists()]
        lines = (
            [f"{', '.join(gone)} of the document: not here; a step may need it."] if gone else []
        )
        lines += [f"{package.name}: {note}" for note in package.notes]
        marks = [*package.unfilled, *(m for a in package.agents.values() for m in a.unfilled)]
        return [*where, *lines, *_unfilled(marks), *_actions(package.agents.values())]


def _near(path: Path) -> str:
    """A path as a person types it here."""
    here = project_folder()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)


def _unfilled(marks: Iterable[str]) -> list[str]:
    listed = ", ".join(dict.fromkeys(marks))
    return [f"nothing gives a value for {listed}; --var NAME=VALUE does"] if listed else []


def guide_of(
    asked: Settings,
    options: RunOptions,
    said: RunOptions,
    *,
    run_id: str,
    intent: Intent,
    parent: RunRecord | None,
    fork: EngineTurn | None,
    store: Store,
) -> Guide:
    """The workflow or the agent that the options of a run name.

    Args:
        options: all that holds for the run; `said`: what this call itself says.
        parent: the run that it goes on from; `fork`: its turn that is asked anew.

    Raises:
        UsageError: it cannot be used; all that is wrong is said at once.
    """
    if not (options.workflow or options.document):
        values = values_of(options)
        agent = load_agent(options.agent or "", values=values, project=project_folder())
        return Guide(options, asked, None, agent)
    if options.output is not None or options.tools == "none" or asked.replay_tools:
        raise UsageError(
            "a workflow takes no output=…, no --tools none, and no replayed tool results, which "
            "would move nothing; leave it out"
        )
    document, data, origin, moment = Document(store_home(), run_id), None, None, None
    on_disk = None
    try:
        if options.document:
            origin, data, there = _document(options.document)
            moment = fork.started_at if fork else _branches(parent, origin, store)
            if moment is None:
                document, on_disk = origin, there
            else:
                data = origin.as_of(moment)
        package = _package(options, said, data, store)
        if data is None:
            fresh = new_document(package, run_id, _written(package)).encode()
        else:
            fresh = _fitting(data, package, said, document.run_id)
            fresh = data if fresh is None and on_disk is None else fresh
        flow = Flow(
            package=package,
            document=document,
            on_disk=on_disk,
            intent=intent,
            autopilot=bool(options.autopilot),
            own_system=asked.system,
            fresh=fresh,
            forked=(origin, moment) if origin and moment else None,
        )
        flow.look()
    except ToolError as error:
        raise UsageError(f"{document.path}: {error.message}", code=error.code) from None
    return Guide(options, asked, flow, None)


def _branches(parent: RunRecord | None, document: Document, store: Store) -> datetime | None:
    """When a run ended after which others have gone on with the document: this is a branch then."""
    if parent is None or _last_run(document.run_id, store) == parent.id:
        return None
    return parent.ended_at


def _document(given: str) -> tuple[Document, bytes, bytes | None]:
    """The document that is named by its file, or by the id that a record has.

    Also what it says, and what the store has of it, which is nothing where it is from elsewhere.
    """
    if given.endswith(".md"):
        file = _at(given)
        data = read_named(file)
        document, there = document_of(file, data, store_home())
        return document, data, there
    document = Document(store_home(), given)
    data = document.read() if is_run_id(given) else None
    if data is None:
        raise UsageError(f"there is no document {given}; the workflow cannot go on without one")
    return document, data, data


def _package(options: RunOptions, said: RunOptions, data: bytes | None, store: Store) -> Package:
    """The package that is named, else the one that the document names."""
    given = options.workflow
    if data is not None and (given is None or not (said.workflow or _at(given).exists())):
        given = _package_of(data, store)
    assert given is not None
    package = load_package(_at(given), values=values_of(options))
    if project_folder().resolve().is_relative_to(package.root):
        raise UsageError(
            f"the package {package.id} is the folder of the project, which a workflow writes into; "
            "put it into a folder of its own"
        )
    if options.agent is None:
        return package
    if options.agent not in package.agents:
        there = ", ".join(package.agents) or "none"
        raise UsageError(f"the package {package.id} has no agent {options.agent!r}; it has {there}")
    return replace(package, agent=options.agent)


def _package_of(data: bytes, store: Store) -> str:
    """Where the package of a document is: by what it says, or by the run that began it."""
    run_id, path, _ = origin_of(data)
    below = path.removeprefix(_IN_PROJECT)
    with suppress(ToolError):  # a path that leads elsewhere
        given = "/".join(path_parts(below)) if below != path else _where_it_was(run_id, store)
        if given and _at(given).exists():
            return given
    raise UsageError(
        f"the package {path} of this document is not there; say where it is: "
        "%agent resume DOCUMENT.md --workflow PACKAGE"
    )


def _at(given: str) -> Path:
    """A path that a person named; UsageError where it can be none."""
    if not given.isprintable() or len(given) > _MOST_CHARS:
        raise UsageError(f"{given[:80]!r} is no path; name a folder or a file")
    return project_folder() / path_of(given, "path")


def _where_it_was(run_id: str, store: Store) -> str | None:
    """Where the package lay when the workflow began, if the store still has that run."""
    try:
        return store.load(run_id).options.get("workflow")
    except UsageError:
        return None


def _written(package: Package) -> str:
    """A package as the document names it: no path of this machine stands in it."""
    project = project_folder().resolve()
    if package.path.resolve().is_relative_to(project):
        return _IN_PROJECT + package.path.resolve().relative_to(project).as_posix()
    return package.path.name


def _fitting(data: bytes, package: Package, said: RunOptions, run_id: str) -> bytes | None:
    """The document where it has to change for this run: another package, or a fork's own id."""
    before, _, sha256 = origin_of(data)
    if sha256 == package.sha256 and before == run_id:
        return None
    if sha256 != package.sha256 and said.workflow is None:
        raise UsageError(
            f"the package {package.id} has changed since this document was last worked on; look "
            "at what changed, and go on with it as it is now by naming it: --workflow "
            f"{_written(package).removeprefix(_IN_PROJECT)}"
        )
    text = data.decode("utf-8", "surrogateescape")
    changed = of_other_package(text, package, _written(package), run_id)
    return changed.encode("utf-8", "surrogateescape")


def flow_of_record(record: RunRecord, store: Store) -> Flow | None:
    """The workflow of a run that is over; None where it had none."""
    options = RunOptions(
        **{name: record.options.get(name) for name in ("workflow", "document", "variables")}
    )
    if options.document is None:
        return None
    document, data, _ = _document(options.document)
    flow = Flow(
        package=_package(options, RunOptions(), data, store),
        document=document,
        on_disk=data,
        intent="resume",
        autopilot=False,
        own_system=None,
    )
    flow.look()
    return flow


def seen_from(ref: str) -> tuple[Package, State | None, str]:
    """A package, how far it has come, and where that stands: by a document's file, else by the
    last run of the package.

    Raises:
        PackageError: it cannot be used.
        UsageError: the document cannot be.
    """
    store = current_store()
    file = _at(ref)
    try:
        if ref.endswith(".md"):
            data = read_named(file)
            package = _package(RunOptions(), RunOptions(), data, store)
            return package, read_state(data, package.graph), ref
        package = load_package(file)
        runs = store.runs(limit=_MOST_RUNS)
        ids = (run.options.get("document") for run in runs if run.workflow == package.id)
        document = Document(store_home(), next(filter(None, ids), ""))
        file, data = document.path, document.read()
        if data is None or origin_of(data)[2] != package.sha256:
            return package, None, ""
        return package, read_state(data, package.graph), _near(file)
    except ToolError as error:
        raise UsageError(f"{_near(file)}: {error.message}", code=error.code) from None


def forget_state(run_ids: Sequence[str], store: Store) -> None:
    """Delete the documents of forgotten runs, but those that another run still goes on with."""
    kept = {run.options.get("document") for run in store.runs(limit=_MOST_RUNS)}
    forget_documents((run_id for run_id in run_ids if run_id not in kept), store_home())


def _cut_moves(turn: EngineTurn, flow: Flow) -> list[str]:
    """Whether the moves that their process did not outlive were made, as the document says."""
    said: list[str] = []
    for run in turn.tool_runs:
        update = json_object((run.args or {}).get("update")) or {}
        is_cut = run.result and run.result.error and run.result.error.code == "E_INTERRUPTED"
        target = update.get("currentNodeId.set")
        if is_cut and run.started_at and target in list(flow.package.graph.nodes):
            made = (*flow.state.completed[-1:], flow.state.node) == (turn.node, target)
            word = "made" if made else "not made"
            said.append(f"{turn.node} → {target} was cut off; as the document says, it was {word}")
    return said


def last_run_of(document: str) -> str:
    """The newest run over a document that is named by its file; UsageError where there is none."""
    found = _last_run(_document(document)[0].run_id, current_store())
    if found is None:
        raise UsageError(f"the store has no run of {document}; resume it without --with-history")
    return found


def _last_run(document_id: str, store: Store) -> str | None:
    runs = store.runs(limit=_MOST_RUNS)
    return next((run.id for run in runs if run.options.get("document") == document_id), None)


def values_of(options: RunOptions) -> Mapping[str, str]:
    """What the person's marks stand for."""
    pairs = (text.partition("=") for text in options.variables or ())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _reader(guide: Guide, rules: Rules) -> Callable[[str], str]:
    """Reads files for critical actions, as far as a model could by `fs.read` without a question."""

    def read(path: str) -> str:
        mounts = mounts_of(guide.options, guide.settings, guide.folders)
        order = HostOrder(
            words=("fs.read",), project=project_folder(), mounts=mounts, policy=rules.policy
        )
        place = mounts.place(path)
        form = {"path": mounts.form(place.mount, place.parts)}
        hit = rules.policy.says("fs.read", "fs", form, resolving(mounts))
        if hit is not None and hit.ruling != "allow":
            raise ToolError(f"the policy keeps {path} from being read: {hit.why}", code="E_DENIED")
        context = ToolContext(run_id="", session="", runner=Courier())
        result = FileHost(order).read(path).work(context, threading.Event())
        said: Any = result.data
        if result.attachments or said["truncated"]:
            raise ToolError(f"{path} is too long, or no text", code="E_READ_LIMIT")
        return said["content"]

    return read


def _actions(agents: Iterable[AgentSpec]) -> list[str]:
    """What agents do before everything else, for the person: a line for each agent."""
    lines: list[str] = []
    for agent in agents:
        loads = ", ".join(action.load for action in agent.actions if action.load)
        rules = "; ".join(action.rule for action in agent.actions if action.rule)
        told = [f"reads {loads}" if loads else "", f"keeps to: {rules}" if rules else ""]
        if any(told):
            lines.append(f"{agent.name}, before its first request: {'; '.join(filter(None, told))}")
    return lines
