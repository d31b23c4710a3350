"""Which document and which package a workflow run has, as far as this machine and its store know.

What a document says and may become is `workflow`'s; here it is found, and made to fit a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from nbagent.contracts.canonical import is_run_id
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.files.names import path_parts
from nbagent.session.stores import current_store
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import path_of, project_folder, store_home
from nbagent.store.writer import Store
from nbagent.workflow.composer import Flow
from nbagent.workflow.document import Document, document_of, forget_documents, read_named
from nbagent.workflow.graph import Package
from nbagent.workflow.package import load_package
from nbagent.workflow.prompts import Intent
from nbagent.workflow.state import (
    State,
    new_document,
    of_other_package,
    origin_of,
    read_state,
)

IN_PROJECT = "@project/"
_HOME = "$NBAGENT_HOME"
"""Begins the path of a document in a store that lies elsewhere."""
_MOST_CHARS = 4_000
_MOST_RUNS = 10_000
"""Over one document are looked through."""


def flow_of(
    asked: Settings,
    options: RunOptions,
    said: RunOptions,
    *,
    run_id: str,
    intent: Intent,
    parent: RunRecord | None,
    fork: EngineTurn | None,
    store: Store,
) -> Flow:
    """The workflow of a run, its document as it will be when the run begins. Writes nothing.

    Args:
        options: all that holds for the run; `said`: what this call itself says.
        parent: the run that it goes on from; `fork`: its turn that is asked anew.

    Raises:
        UsageError: it cannot be used; all that is wrong is said at once.
    """
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
            if fork is not None:
                moment, data = fork.started_at, origin.as_of(fork.started_at)
            elif (branch := _branch(parent, origin, data, store)) is not None:
                moment, data = branch
            if moment is None:
                document, on_disk = origin, there
        package = _package(options, said, data, store)
        if data is None:
            fresh = new_document(package, run_id, _written(package)).encode()
        else:
            fresh = _fitting(data, package, said, document.run_id)
            fresh = data if fresh is None and on_disk is None else fresh
        flow = Flow(
            package=package,
            document=document,
            shown_path=near(document.path),
            on_disk=on_disk,
            intent=intent,
            autopilot=bool(options.autopilot),
            own_system=asked.system,
            fresh=fresh,
            forked=(origin, moment) if origin and moment else None,
        )
        if flow.look().workflow_id != package.id:
            raise UsageError(
                f"the document is of the workflow {flow.state.workflow_id}, and the package is "
                f"{package.id}; name the package of the document"
            )
    except ToolError as error:
        raise UsageError(f"{near(document.path)}: {error.message}", code=error.code) from None
    return flow


def _branch(
    parent: RunRecord | None, document: Document, data: bytes, store: Store
) -> tuple[datetime, bytes] | None:
    """Where others have gone on with the document of a run since: when, and what they found."""
    after = _next(parent, document.run_id, store) if parent else None
    if after is None or after.phase == "Running":
        return None
    left = document.left_at(after.started_at)
    if left is None:
        raise UsageError(
            "other runs have gone on with this document, and how it stood before is not kept; go "
            f"on with the last of them, or from the document: %agent resume {near(document.path)}"
        )
    return None if left == data else (after.started_at, left)


def _next(parent: RunRecord, document_id: str, store: Store) -> RunRecord | None:
    """The first run over a document that began after this one."""
    runs = store.runs(limit=_MOST_RUNS, document=document_id)
    return next((it for it in reversed(runs) if it.started_at > parent.started_at), None)


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
    try:
        data = document.read() if is_run_id(given) else None
    except ToolError as error:
        raise UsageError(f"{near(document.path)}: {error.message}", code=error.code) from None
    if data is None:
        raise UsageError(f"there is no document {given[:80]!r}; a workflow cannot go on without")
    return document, data, data


def _package(options: RunOptions, said: RunOptions, data: bytes | None, store: Store) -> Package:
    """The package that is named, else the one that the document names."""
    given = options.workflow
    if data is not None and (given is None or not (said.workflow or _at(given).exists())):
        given = _package_of(data, store)
    assert given is not None
    package = load_package(_at(given), values=values_of(options))
    project, home = project_folder().resolve(), store_home().resolve()
    if project.is_relative_to(package.root) or home.is_relative_to(package.root):
        raise UsageError(
            f"the project or the store lies in the package {package.id}, which is read only; put "
            "the package into a folder of its own"
        )
    if project.is_relative_to(home):
        raise UsageError(
            "the store (NBAGENT_HOME) is a folder around the project, where tools could change it; "
            "give it a folder of its own"
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
    below = path.removeprefix(IN_PROJECT)
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
    return project_folder() / path_of(given.replace(_HOME, str(store_home()), 1), "path")


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
        return IN_PROJECT + package.path.resolve().relative_to(project).as_posix()
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
            f"{_written(package).removeprefix(IN_PROJECT)}"
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
        last = store.runs(limit=1, workflow=package.id)
        document = Document(store_home(), last[0].options["document"] if last else "none")
        file, data = document.path, document.read()
        if data is None or origin_of(data)[2] != package.sha256:
            return package, None, ""
        return package, read_state(data, package.graph), near(file)
    except ToolError as error:
        raise UsageError(f"{near(file)}: {error.message}", code=error.code) from None


def forget_state(run_ids: Sequence[str], store: Store) -> None:
    """Delete the documents of forgotten runs, but those that another run still goes on with."""
    gone = [it for it in run_ids if not store.runs(limit=1, document=it)]
    forget_documents(gone, store_home())


def last_run_of(document: str) -> str:
    """The newest run over a document that is named by its file; UsageError where there is none."""
    found = current_store().runs(limit=1, document=_document(document)[0].run_id)
    if not found:
        raise UsageError(f"the store has no run of {document}; resume it without --with-history")
    return found[0].id


def near(document: Path) -> str:
    """The path of a document as a person types it; no folder of this machine stands in it."""
    here, home = project_folder(), store_home()
    if document.is_relative_to(here):
        return document.relative_to(here).as_posix()
    return f"{_HOME}/{document.relative_to(home).as_posix()}"


def values_of(options: RunOptions) -> Mapping[str, str]:
    """What the person's marks stand for."""
    pairs = (text.partition("=") for text in options.variables or ())
    return {name.strip(): value.strip() for name, _, value in pairs}
