"""Finds the document and the package of a workflow run on this machine and in its store.

Owns the choice of both, and the adaptation of a document to a new run. The rules for its content
are in `state` and `updates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from nbagent.contracts.canonical import is_run_id
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.ports import RunStore
from nbagent.contracts.records import EngineTurn, RunRecord, RunSummary
from nbagent.files.names import path_parts
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import project_folder, to_path
from nbagent.store.home import writing_folder
from nbagent.workflow.composer import WorkflowRun
from nbagent.workflow.document import Document, forget_documents, open_document, read_document_file
from nbagent.workflow.graph import Package
from nbagent.workflow.package import load_package
from nbagent.workflow.prompts import DirectiveKind
from nbagent.workflow.state import State, new_document, read_origin, read_state, with_package

PROJECT_PREFIX = "@project/"
_HOME = "$NBAGENT_HOME"
"""Start of the shown path of a document whose store is outside of the project."""
_MAX_PATH_CHARS = 4_000
_MAX_RUNS = 10_000
"""Most runs of one document that are searched."""


def open_workflow_run(
    settings: Settings,
    options: RunOptions,
    call_options: RunOptions,
    *,
    run_id: str,
    kind: DirectiveKind,
    parent: RunRecord | None,
    fork: EngineTurn | None,
    store: RunStore,
) -> WorkflowRun:
    """Prepare the workflow of a run, with its document as it will be at the start. Writes nothing.

    Args:
        options: all options of the run; `call_options`: those of this call alone.
        parent: the run that it continues; `fork`: the parent's turn that it repeats.

    Raises:
        UsageError: it cannot be used; lists all problems at once.
    """
    if options.output is not None or options.tools == "none" or settings.replay_tools:
        raise UsageError(
            "a workflow cannot be used with output=…, --tools none, or replayed tool results, "
            "which would not change its document; remove that option"
        )
    document, data, origin, moment = Document(writing_folder(), run_id), None, None, None
    on_disk = None
    try:
        if options.document:
            origin, data, on_store = _find_document(options.document)
            if fork is not None:
                moment, data = fork.started_at, origin.version_at(fork.started_at)
            elif (branch := _find_branch(parent, origin, data, store)) is not None:
                moment, data = branch
            if moment is None:
                document, on_disk = origin, on_store
        package = _find_package(options, call_options, data, store)
        if data is None:
            fresh = new_document(package, run_id, _package_reference(package)).encode()
        else:
            fresh = _adapt_document(data, package, call_options, document.run_id)
            # A document from outside the store is written into it, also unchanged.
            fresh = data if fresh is None and on_disk is None else fresh
        workflow_run = WorkflowRun(
            package=package,
            document=document,
            shown_path=display_path(document.path),
            on_disk=on_disk,
            kind=kind,
            autopilot=bool(options.autopilot),
            own_system=settings.system,
            new_data=fresh,
            fork_source=(origin, moment) if origin and moment else None,
        )
        if workflow_run.refresh().workflow_id != package.id:
            raise UsageError(
                f"the document belongs to the workflow {workflow_run.state.workflow_id}, but the "
                f"package is {package.id}; name the package of the document"
            )
    except ToolError as error:
        raise UsageError(
            f"{display_path(document.path)}: {error.message}", code=error.code
        ) from None
    return workflow_run


def _find_branch(
    parent: RunRecord | None, document: Document, data: bytes, store: RunStore
) -> tuple[datetime, bytes] | None:
    """Find the version of a document at the end of `parent`, if later runs changed it since.

    Returns the start time of the next run and the version that it found; None if the document is
    unchanged.
    """
    after = _next_run(parent, document.run_id, store) if parent else None
    if after is None or after.phase == "Running":
        return None
    version = document.version_after(after.started_at)
    if version is None:
        raise UsageError(
            "other runs have continued this document, and its version before them is not saved; "
            "continue the last of them, or the document: "
            f"%agent resume {display_path(document.path)}"
        )
    return None if version == data else (after.started_at, version)


def _next_run(parent: RunRecord, document_id: str, store: RunStore) -> RunSummary | None:
    """Return the first run on a document that began after this one."""
    runs = store.runs(limit=_MAX_RUNS, document=document_id)
    return next((run for run in reversed(runs) if run.started_at > parent.started_at), None)


def _find_document(reference: str) -> tuple[Document, bytes, bytes | None]:
    """Find a document by its file, or by the id in a record.

    Returns the document, its content, and the store's content of it (None if it is from elsewhere).
    """
    if reference.endswith(".md"):
        file = _to_path(reference)
        data = read_document_file(file)
        document, stored = open_document(file, data, writing_folder())
        return document, data, stored
    document = Document(writing_folder(), reference)
    try:
        data = document.read() if is_run_id(reference) else None
    except ToolError as error:
        raise UsageError(
            f"{display_path(document.path)}: {error.message}", code=error.code
        ) from None
    if data is None:
        raise UsageError(
            f"there is no document {reference[:80]!r}, so the workflow cannot be continued"
        )
    return document, data, data


def _find_package(
    options: RunOptions, call_options: RunOptions, data: bytes | None, store: RunStore
) -> Package:
    """Load the package that the options name, else the one that the document names."""
    package_path = options.workflow
    # An inherited path may be gone; a path that this call names must exist.
    if data is not None and (
        package_path is None or not (call_options.workflow or _to_path(package_path).exists())
    ):
        package_path = _package_path_of(data, store)
    assert package_path is not None
    package = load_package(_to_path(package_path), values=placeholder_values(options))
    project, home = project_folder().resolve(), writing_folder().resolve()
    if project.is_relative_to(package.root) or home.is_relative_to(package.root):
        raise UsageError(
            f"the project or the store is inside the package {package.id}, which is read only; put "
            "the package into a separate folder"
        )
    if project.is_relative_to(home):
        raise UsageError(
            "the store (NBAGENT_HOME) contains the project, so tools could change it; set "
            "NBAGENT_HOME to a separate folder"
        )
    if options.agent is None:
        return package
    if options.agent not in package.agents:
        hint = nearest_or_all(options.agent, package.agents, "it has") or "; it has none"
        raise UsageError(f"the package {package.id} has no agent {options.agent!r}{hint}")
    return replace(package, agent=options.agent)


def _package_path_of(data: bytes, store: RunStore) -> str:
    """Find the package of a document: by the path in it, or by the record of its first run."""
    run_id, path, _ = read_origin(data)
    below = path.removeprefix(PROJECT_PREFIX)
    with suppress(ToolError):  # the document may name a path that leaves the project
        package_path = (
            "/".join(path_parts(below)) if below != path else _recorded_package(run_id, store)
        )
        if package_path and _to_path(package_path).exists():
            return package_path
    raise UsageError(
        f"the package {path} of this document is not there; say where it is: "
        "%agent resume DOCUMENT.md --workflow PACKAGE"
    )


def _to_path(path: str) -> Path:
    """Resolve a path that a person named. Raises UsageError if it is not valid."""
    if not path.isprintable() or len(path) > _MAX_PATH_CHARS:
        raise UsageError(f"{path[:80]!r} is not a path; name a folder or a file")
    return project_folder() / to_path(path.replace(_HOME, str(writing_folder()), 1), "path")


def _recorded_package(run_id: str, store: RunStore) -> str | None:
    """Return the package's path from the workflow's first run, if the store still has that run."""
    try:
        # Another owner's record does not choose a package: the person names it.
        return None if store.is_foreign(run_id) else store.load(run_id).options.get("workflow")
    except UsageError:
        return None


def _package_reference(package: Package) -> str:
    """Return a package's name for the document, without paths of this machine."""
    project = project_folder().resolve()
    if package.path.resolve().is_relative_to(project):
        return PROJECT_PREFIX + package.path.resolve().relative_to(project).as_posix()
    return package.path.name


def _adapt_document(
    data: bytes, package: Package, call_options: RunOptions, run_id: str
) -> bytes | None:
    """Change a document for this run: another version of the package, or the id of a fork.

    None if no change is needed.
    """
    before, _, sha256 = read_origin(data)
    if sha256 == package.sha256 and before == run_id:
        return None
    if sha256 != package.sha256 and call_options.workflow is None:
        raise UsageError(
            f"the package {package.id} has changed since the last run on this document; review "
            "the changes, then accept them by naming the package: --workflow "
            f"{_package_reference(package).removeprefix(PROJECT_PREFIX)}"
        )
    # A document may hold bytes that are not UTF-8: they are written back unchanged.
    text = data.decode("utf-8", "surrogateescape")
    changed = with_package(text, package, _package_reference(package), run_id)
    return changed.encode("utf-8", "surrogateescape")


def open_recorded_workflow(record: RunRecord, store: RunStore) -> WorkflowRun | None:
    """Open the workflow of a run that is over; None if it had none."""
    if record.workflow is None or record.workflow.document is None:
        return None
    names = () if store.is_foreign(record.id) else ("workflow", "variables")
    options = RunOptions(**{name: record.options.get(name) for name in names})
    document, data, _ = _find_document(record.workflow.document)
    workflow_run = WorkflowRun(
        package=_find_package(options, RunOptions(), data, store),
        document=document,
        on_disk=data,
        kind="resume",
        autopilot=False,
        own_system=None,
    )
    workflow_run.refresh()
    return workflow_run


def load_package_and_state(ref: str, store: RunStore) -> tuple[Package, State | None, str]:
    """Load a package, its state, and the document's path: by a document's file, else by the last
    run of the package.

    Raises:
        PackageError: the package cannot be used.
        UsageError: the document cannot be used.
    """
    file = _to_path(ref)
    try:
        if ref.endswith(".md"):
            data = read_document_file(file)
            package = _find_package(RunOptions(), RunOptions(), data, store)
            return package, read_state(data, package.graph), ref
        package = load_package(file)
        last = [run.workflow for run in store.runs(limit=1, workflow=package.id)]
        document_id = last[0].document if last and last[0] else None
        document = Document(writing_folder(), document_id or "none")
        file, data = document.path, document.read()
        if data is None or read_origin(data)[2] != package.sha256:
            return package, None, ""
        return package, read_state(data, package.graph), display_path(file)
    except ToolError as error:
        raise UsageError(f"{display_path(file)}: {error.message}", code=error.code) from None


def forget_state(run_ids: Sequence[str], store: RunStore) -> None:
    """Delete the documents of deleted runs, except those that other runs still use."""
    unused = [run_id for run_id in run_ids if not store.runs(limit=1, document=run_id)]
    forget_documents(unused, writing_folder())


def last_run_id(document: str, store: RunStore) -> str:
    """Return the newest run on a document's file. Raises UsageError if there is none."""
    runs = store.runs(limit=1, document=_find_document(document)[0].run_id)
    if not runs:
        raise UsageError(f"the store has no run of {document}; resume it without --with-history")
    return runs[0].id


def display_path(document: Path) -> str:
    """Format the path of a document as a person would type it, without folders of this machine."""
    project, home = project_folder(), writing_folder()
    if document.is_relative_to(project):
        return document.relative_to(project).as_posix()
    return f"{_HOME}/{document.relative_to(home).as_posix()}"


def placeholder_values(options: RunOptions) -> Mapping[str, str]:
    """Return the person's values of placeholders."""
    pairs = (text.partition("=") for text in options.variables or ())
    return {name.strip(): value.strip() for name, _, value in pairs}
