"""Output of `%agent doctor`, `tools`, `models`, `runs`, `approvals`, `workflow` and `config`.

Each is a `Listing`. Only `compact` and `drop_backup` change anything. Keys are named, never shown.
A fact that cannot be found out has the error in its row.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from textwrap import dedent
from typing import Any

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.schema_walk import property_schemas, union_members
from nbagent.contracts.tools import ToolContext
from nbagent.contracts.version import __version__
from nbagent.files.opening import remove_own_file
from nbagent.notebook import kernel
from nbagent.notebook.complete import package_names
from nbagent.notebook.installation import installation_problems
from nbagent.providers.catalogue import find_provider, provider_names
from nbagent.providers.default_model import choose_default_model, with_provider
from nbagent.providers.workarounds import learnt_workarounds
from nbagent.runtime import RunTask, engine_loop
from nbagent.sandbox.script import isolation_level
from nbagent.session.active_run import active_runs
from nbagent.session.approval import PolicyRules, session_grants
from nbagent.session.frontend import frontend
from nbagent.session.models import list_models
from nbagent.session.project_trust import ignored_text, project_file_facts
from nbagent.session.stores import current_store, has_store, store_to_read
from nbagent.session.tool_hosts import open_run_tools
from nbagent.session.trust_question import trust_line
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.project_file import PROJECT_FILE
from nbagent.settings.sources import (
    Origin,
    current_settings,
    project_file_error,
    setting_origins,
)
from nbagent.settings.types import Tools
from nbagent.store.audit import FILE_NAME as AUDIT_FILE
from nbagent.store.audit import verify_audit
from nbagent.store.home import current_home
from nbagent.tools.hosts import HostSet, host_names
from nbagent.view.listing import Listing
from nbagent.view.run_rows import run_row
from nbagent.view.text_format import one_line, pluralize, sanitize_value
from nbagent.workflow.summary import workflow_text

_MIN_FREEABLE_BYTES = 100_000
"""Smallest free space for which compacting is suggested."""
_PACKAGES = (
    *("ipython", "ipykernel", "jupyterlab", "notebook", "ipywidgets", "anywidget", "httpx2"),
    *("pydantic", "pandas", "orjson", "nest-asyncio2"),
)
_DECIDED_BY = {"person": "you", "callback": "on_approval"}
Row = tuple[str, ...]


def doctor() -> Listing:
    """List versions, kernel, model, keys, files and store, one fact per row."""
    frontend()  # in a kernel this installs the delivery of clicks, as the first run would
    rows: list[Row] = [
        ("nbagent", __version__),
        ("python", f"{platform.python_version()} on {platform.system()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        *kernel.kernel_facts().items(),
        *(("installation", problem) for problem in installation_problems()),
    ]
    for facts in (_model, _workarounds, _keys, _files, _project_file, _store):
        try:
            rows.extend(facts())
        except NbagentError as error:
            rows.append((facts.__name__.strip("_"), str(error)))
    return Listing(rows=rows)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _project_file() -> Iterator[Row]:
    """What the project's file sets and does not count."""
    for fact in project_file_facts():
        yield "project file", fact


def _model() -> Iterator[Row]:
    """The model of a cell without --model, and why."""
    without_project = bool(project_file_error())
    settings = current_settings(without_project=without_project)
    if settings.model is not None:
        origins = setting_origins(without_project=without_project)
        model, why = with_provider(settings.model), f"set by {origins['model'].source}"
    else:
        choice = choose_default_model(os.environ, settings.base_url)
        model, why = choice.model_id, choice.why
    yield "model", f"{model} ({why}); another with %%agent --model PROVIDER:MODEL"
    if settings.base_url is not None:
        yield "server", settings.base_url


def _workarounds() -> Iterator[Row]:
    """What this process has learnt from refusals of servers."""
    for server, model, notice in learnt_workarounds():
        yield "workaround", f"{model} at {server}: {notice}"


def _keys() -> Iterator[Row]:
    known: dict[str, None] = {}
    for name in provider_names():
        try:
            known |= dict.fromkeys(find_provider(name).key_variables)
        except NbagentError as error:  # of an installed package
            yield "provider", error.message
    present = [variable for variable in known if os.environ.get(variable, "").strip()]
    if present:
        yield "keys", f"{', '.join(present)} (set; the text is never shown)"
    else:
        yield "keys", f"none; {', '.join(known)} are read from the environment"


def _files() -> Iterator[Row]:
    """Mounts of tools, and the isolation of scripts."""
    settings = current_settings(without_project=bool(project_file_error()))
    isolation = isolation_level(settings.isolation)
    mounts = ["@project (the folder where the kernel started)", *settings.mounts]
    yield "files", ", ".join(mounts)
    yield "scripts", f"isolation {isolation.name}: {isolation.why}"
    if rules := ", ".join(f"{kind}={text}" for kind, text in settings.policy.rules):
        yield "rules", rules


def _store() -> Iterator[Row]:
    if not has_store():  # to look creates none
        yield "store", f"none yet: {current_home().folder}"
        yield "trust", trust_line()
        return
    store = current_store()
    counts = [pluralize(n, name[:-1].replace("_", " ")) for name, n in store.counts().items()]
    size, empty = store.database.sizes()
    location = store.path.parent if store.path is not None else "in memory only"
    yield "store", f"{location}: {', '.join(counts)}, {_megabytes(size)}"
    if store.path is not None and empty >= _MIN_FREEABLE_BYTES:
        yield "compact", f"{_megabytes(empty)} of it are empty; `%agent doctor compact` frees them"
    elif store.path is not None:
        yield "compact", "nothing to free; nbagent.forget(run) deletes runs"
    backups = store.database.backups()
    for file in backups:
        size_text = _megabytes(file.stat().st_size)
        yield "backup", f"{file}, {size_text}; `%agent doctor --drop-backup` deletes it"
    for file in store.database.earlier_stores():
        if file not in backups:
            yield (
                "earlier runs",
                f"{file} (too old to be read here; `sqlite3 {file.name}` reads it)",
            )
    yield "trust", trust_line()
    if work := store.pending_work():
        yield "upkeep", work
    if store.warning:
        yield "warning", store.warning
    if store.path is not None and (store.path.parent / AUDIT_FILE).exists():
        audit = verify_audit(store.path.parent)
        problem = f"BROKEN at line {audit.lines + 1:,}: {audit.why}"
        yield "audit", f"passed: {pluralize(audit.lines, 'line')}" if audit else problem


def compact() -> str:
    """Free the store's empty space and report the sizes.

    Raises:
        UsageError: a run is running here, or the store is in memory.
        StoreError: another kernel uses the store.
    """
    if active_runs():
        raise UsageError("a run is running; stop it or wait for its end, then compact the store")
    store = current_store()
    if store.path is None:
        raise UsageError("the store is in memory only; there is nothing to compact")
    before = store.database.sizes()[0]
    store.compact()
    after = store.database.sizes()[0]
    return f"the store takes {_megabytes(after)} now ({_megabytes(before)} before)"


def drop_backup() -> str:
    """Delete the backups of the store from before its migrations."""
    backups = current_store().database.backups()
    size = sum(file.stat().st_size for file in backups)
    for file in backups:
        remove_own_file(file)
    return f"deleted {pluralize(len(backups), 'backup')}, {_megabytes(size)}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def tools(names: Tools | None = None, run_options: RunOptions | None = None) -> Listing:
    """List the tools that a model gets, with parameters and the decision on their calls.

    Args:
        names: as after `--tools`; None: the tools of a cell without `--tools`.
        run_options: mounts, skills and a policy, as a cell's line gives them.
    """
    settings, namespace = current_settings(), frontend().namespace
    options = (run_options or RunOptions()).with_changes(
        tools=settings.tools if names is None else names
    )
    hosts, rules = open_run_tools(
        options.tools, None, options=options, settings=settings, namespace=namespace
    )
    host = HostSet(hosts, hidden_reason=rules.hidden_reason)
    listing = host.tools(ToolContext(run_id="", session="", runner=RunTask()))
    # On the engine's loop, to which the connections of MCP servers belong.
    specs = asyncio.run_coroutine_threadsafe(listing, engine_loop()).result()
    rows = [_tool_row(spec, rules) for spec in specs]
    for spec in host.all_specs:
        if rule := rules.hidden_reason(spec):
            rows.append((spec.name, f"not shown to the model: {rule}", ""))
    notes = [f"note: {text}" for text in host.warnings]
    if not rows and "skills" in host.host_names:
        notes.append(
            "no skills were found in .agents/skills, .claude/skills and .nbagent/skills of the "
            "project and your home; name a folder with --skills DIR"
        )
    elif not rows:
        notes.append(
            "no tools: put @nbagent.tool above a function and run its cell, or name any function "
            "with --tools"
        )
    if names is None:
        host_texts = ", ".join(word if word != "mcp" else "mcp:NAME" for word in host_names())
        notes.append(f"Others: --tools {host_texts}; %agent tools NAME lists one.")
    if rules_text := ", ".join(f"{kind}={text}" for kind, text in rules.policy.rules):
        notes.append(f"Rules: {rules_text}")
    return Listing(columns=("tool", "at a call", "about"), rows=rows, notes=notes)


def _tool_row(spec: ToolSpec, rules: PolicyRules) -> Row:
    properties = property_schemas(spec.parameters)
    required = spec.parameters.get("required", [])
    arguments = ", ".join(
        f"{name}: {_type(schema)}{'' if name in required else ' = …'}"
        for name, schema in properties.items()
    )
    marks = [_call_decision(spec, rules)]
    marks += [] if spec.traits.interruptible else ["finishes before a stop"]
    about = spec.description.strip().partition("\n")[0]
    return f"{spec.name}({arguments})", "; ".join(marks), about


def _call_decision(spec: ToolSpec, rules: PolicyRules) -> str:
    """Decision on a call, and the rule that makes it."""
    verdict = rules.decide(spec, CallPreview(ruling=spec.traits.ruling))
    words = {"allow": "allowed", "ask": "needs approval", "deny": "denied"}[verdict.ruling]
    if verdict.rule:
        return f"{words}: {verdict.why}"
    special = rules.conditional_rules(spec)
    return "; ".join([words, *(f"some calls: {text}" for text in special)])


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if members := union_members(schema):
        kinds = dict.fromkeys(_type(member) for member in members)
        return " or ".join(kind for kind in kinds if kind != "null") or "null"
    return str(schema.get("type") or ("choice" if "enum" in schema else "any"))


def models(provider: str | None = None, run_options: RunOptions | None = None) -> Listing:
    """List the models of one provider, or all models that are available now."""
    rows: list[Row] = []
    missing: list[Row] = []
    more: list[Row] = []
    for provider_models in list_models(provider, run_options):
        for model in provider_models.models if provider_models.reachable else ():
            tokens = f"{model.context_length:,} tokens" if model.context_length else ""
            name = one_line(sanitize_value(model.id), 200)
            rows.append(
                (f"{provider_models.provider}:{name}", tokens, ", ".join(model.capabilities))
            )
        if provider_models.why:
            why = one_line(sanitize_value(provider_models.why), 300)
            (more if provider_models.reachable else missing).append((provider_models.provider, why))
    tables = {"more models": more, "what is missing": missing}
    parts = [
        Listing(columns=("provider", head), rows=some) for head, some in tables.items() if some
    ]
    return Listing(columns=("model", "context", "can"), rows=rows, parts=parts)


def runs(limit: int) -> Listing:
    """List the last runs, newest first: id, name, start, state, model, prompt."""
    run_rows = map(run_row, store_to_read().runs(limit=limit))
    rows = [(row.id, row.name, row.when, row.word, row.model, row.prompt) for row in run_rows]
    notes = [] if rows else ["no runs yet: run a cell with %%agent"]
    if current_home().is_own and not has_store():
        notes.append("there is no store yet; the first run creates one")
    if not current_home().is_own:
        notes.append(f"note: {trust_line()}")
    heads = ("run", "name", "began", "state", "model", "prompt")
    return Listing(columns=heads, rows=rows, notes=notes)


def workflow(ref: str) -> Listing:
    """Show a package and the progress of its last run, or a document and its progress.

    Without a name, list the packages of this folder.

    Raises:
        PackageError: the package cannot be used.
    """
    if not ref:
        names = ", ".join(package_names())
        names = names or "none: no folder with workflow.md or a skill's steps, and no .bmad file"
        packages_text = f"packages in this folder: {names}"
        return Listing(notes=[packages_text, "%agent workflow PACKAGE shows one"])
    # Late: most notebooks use no workflow.
    from nbagent.workflow.locate import load_package_and_state

    package, state, file = load_package_and_state(ref, current_store())
    if state is None:
        text = workflow_text(package)
    else:
        text = workflow_text(
            package, current=state.node, completed=state.completed, variables=state.variables
        )
        text += f"\n\nState\n  {file}"
    sections = (section.partition("\n") for section in text.split("\n\n"))
    parts = [Listing(title=title, notes=[dedent(lines)]) for title, _, lines in sections]
    return Listing(parts=parts)


def approvals() -> Listing:
    """List the approvals for a session: time, calls, session, and who gave it."""
    rows = [
        (
            f"{approval.at.astimezone():%H:%M:%S}",
            f"{approval.tool}({one_line(approval.call, 120) if approval.call else 'every call'})",
            repr(one_line(approval.session, 40)),
            _DECIDED_BY[approval.decided_by],
        )
        for approval in list(session_grants.values())
    ]
    if not rows:
        return Listing(
            notes=[
                "no calls are allowed for a session; answer a question with 'session' to allow some"
            ]
        )
    heads = ("time", "calls", "session", "by")
    return Listing(columns=heads, rows=rows, notes=["%agent approvals clear revokes all of them"])


def config(changed: tuple[str, ...] = ()) -> Listing:
    """List settings, their values and sources: the changed ones; every one if none was changed."""
    table, error = Settings.rows(), project_file_error()
    rows = [
        (name, "not set" if o.value is None else repr(table[name].redacted(o.value)), _set_by(o))
        for name, o in setting_origins(without_project=bool(error)).items()
        if not changed or name in changed
    ]
    notes = ["%agent config NAME=VALUE sets one for this kernel, NAME= resets it"]
    if changed:
        notes = [f"%agent config {changed[0]}= resets it; %agent config lists all settings"]
    if not_used := f"no run starts: {error}" if error else ignored_text():
        notes.append(f"note: {not_used}")
    return Listing(columns=("setting", "value", "set by"), rows=rows, notes=notes)


def _set_by(origin: Origin) -> str:
    """The source of a setting, and the project's value that is left out."""
    item = origin.not_allowed
    # The word of the help and the notes; a library's `configure()` sets the same layer.
    source = re.sub(r"^configure\b", "this kernel", origin.source)
    if item is None:
        return source
    return f"{source}; not allowed: {one_line(item.text, 120)} of {PROJECT_FILE}"
