"""What `%agent doctor`, `tools`, `models`, `runs`, `approvals`, `workflow` and `config` answer.

Each is a `Listing`. They read only, but for `compact`; keys are named, never shown. What cannot be
found out is said in its row.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from textwrap import dedent
from typing import Any

import nbagent
from nbagent.contracts.approval import CallPreview
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.tools import ToolContext
from nbagent.notebook import kernel
from nbagent.notebook.complete import package_names
from nbagent.providers.catalogue import find_provider, provider_names
from nbagent.providers.default_model import choose_model, qualified
from nbagent.runtime import Courier, engine_loop
from nbagent.sandbox.script import isolation_level
from nbagent.session.active import at_work
from nbagent.session.approval import Rules, granted
from nbagent.session.frontend import frontend
from nbagent.session.models import listings
from nbagent.session.stores import current_store
from nbagent.session.tool_hosts import tools_of
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import effective, origins, store_home
from nbagent.settings.types import Tools
from nbagent.store.audit import FILE_NAME as AUDIT_FILE
from nbagent.store.audit import verify_audit
from nbagent.tools.hosts import HostSet, host_words
from nbagent.view import labels
from nbagent.view.listing import Listing
from nbagent.view.words import began, one_line, things, visible
from nbagent.workflow.summary import workflow_text

_WORTH_BYTES = 100_000
"""Less empty space than this is not worth an offer."""
_PACKAGES = (
    *("ipython", "ipykernel", "jupyterlab", "notebook", "ipywidgets", "anywidget", "httpx2"),
    *("pydantic", "pandas", "orjson", "nest-asyncio2"),
)
_WHO = {"person": "you", "callback": "on_approval"}
Row = tuple[str, ...]


def doctor() -> Listing:
    """Versions, kernel, model, keys, files, store: one fact a row."""
    frontend()  # in a kernel this opens the ways for clicks, as the first run would
    rows: list[Row] = [
        ("nbagent", nbagent.__version__),
        ("python", f"{platform.python_version()} on {platform.system()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        *kernel.kernel_facts().items(),
    ]
    for facts in (_model, _keys, _files, _store):
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


def _model() -> Iterator[Row]:
    """What a cell without --model asks, and why."""
    settings = effective()
    if settings.model is not None:
        model, why = qualified(settings.model), f"set by {origins()['model'].source}"
    else:
        choice = choose_model(os.environ, settings.base_url)
        model, why = choice.model_id, choice.why
    yield "model", f"{model} ({why}); another with %%agent --model PROVIDER:MODEL"
    if settings.base_url is not None:
        yield "server", settings.base_url


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
    """What tools may use here, and how scripts are isolated."""
    settings = effective()
    found = isolation_level(settings.isolation)
    mounts = ["@project (the folder where the kernel began)", *settings.mounts]
    yield "files", ", ".join(mounts)
    yield "scripts", f"isolation {found.name}: {found.why}"
    if rules := ", ".join(f"{kind}={text}" for kind, text in settings.policy.rules):
        yield "rules", rules


def _store() -> Iterator[Row]:
    store = current_store()
    kept = [things(n, name[:-1].replace("_", " ")) for name, n in store.counts().items()]
    size, empty = store.database.sizes()
    place = store_home() if store.path is not None else "in memory only"
    yield "store", f"{place}: {', '.join(kept)}, {_megabytes(size)}"
    if store.path is not None and empty >= _WORTH_BYTES:
        yield "compact", f"{_megabytes(empty)} of it are empty; `%agent doctor compact` frees them"
    elif store.path is not None:
        yield "compact", "nothing to free; nbagent.forget(run) deletes runs"
    for file in store.database.earlier():
        yield "earlier runs", f"{file} (of an earlier nbagent)"
    if store.warning:
        yield "warning", store.warning
    if store.path is not None and (store.path.parent / AUDIT_FILE).exists():
        found = verify_audit(store.path.parent)
        whole = "whole" if found else f"NOT WHOLE: {found.why}"
        yield "audit", f"{things(found.lines, 'line')}, {whole}"


def compact() -> str:
    """Free the store's empty space, and say how much it was.

    Raises:
        UsageError: a run is at work here, or nothing is kept on disk.
        StoreError: another kernel uses the store.
    """
    if at_work():
        raise UsageError("a run is running; stop it or wait for its end, then compact the store")
    store = current_store()
    if store.path is None:
        raise UsageError("the store is in memory only; there is nothing to compact")
    before = store.database.sizes()[0]
    store.database.compact()
    after = store.database.sizes()[0]
    return f"the store takes {_megabytes(after)} now ({_megabytes(before)} before)"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def tools(names: Tools | None = None, given: RunOptions | None = None) -> Listing:
    """The tools that a model is given, their parameters, and what happens when it calls them.

    Args:
        names: as after `--tools`; None: what a cell gives that names none.
        given: mounts, skills and a policy, as a cell's line gives them.
    """
    settings, namespace = effective(), frontend().namespace
    options = (given or RunOptions()).changed(tools=settings.tools if names is None else names)
    hosts, rules = tools_of(
        options.tools, None, options=options, settings=settings, namespace=namespace
    )
    host = HostSet(hosts, hides=rules.hiding)
    listing = host.tools(ToolContext(run_id="", session="", runner=Courier()))
    specs = asyncio.run_coroutine_threadsafe(listing, engine_loop()).result()
    rows = [_tool_row(spec, rules) for spec in specs]
    for spec in host.offered:
        if rule := rules.hiding(spec):
            rows.append((spec.name, f"not shown to the model: {rule}", ""))
    notes = [f"note: {text}" for text in host.warnings]
    if not rows and "skills" in host.host_names:
        notes.append(
            "no skills were found in .agents/skills, .claude/skills and .nbagent/skills of the "
            "project and your home; give a folder with --skills DIR"
        )
    elif not rows:
        notes.append(
            "no tools: put @nbagent.tool above a function and run its cell, or name any function "
            "with --tools"
        )
    if names is None:
        words = ", ".join(word if word != "mcp" else "mcp:NAME" for word in host_words())
        notes.append(f"Others: --tools {words}; %agent tools NAME lists one.")
    if said := ", ".join(f"{kind}={text}" for kind, text in rules.policy.rules):
        notes.append(f"Rules that hold: {said}")
    return Listing(heads=("tool", "at a call", "about"), rows=rows, notes=notes)


def _tool_row(spec: ToolSpec, rules: Rules) -> Row:
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", [])
    arguments = ", ".join(
        f"{name}: {_type(schema)}{'' if name in required else ' = …'}"
        for name, schema in properties.items()
    )
    marks = [_happens(spec, rules)]
    marks += [] if spec.traits.interruptible else ["finishes before a stop"]
    about = spec.description.strip().partition("\n")[0]
    return f"{spec.name}({arguments})", "; ".join(marks), about


def _happens(spec: ToolSpec, rules: Rules) -> str:
    """What happens at a call, and which rule says so."""
    verdict = rules.says(spec, CallPreview(ruling=spec.traits.ruling))
    words = {"allow": "allowed", "ask": "asks first", "deny": "denied"}[verdict.ruling]
    if verdict.rule:
        return f"{words}: {verdict.why}"
    special = rules.about_some_calls(spec)
    return "; ".join([words, *(f"some calls: {text}" for text in special)])


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_type(one) for one in schema["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "null") or "null"
    return str(schema.get("type") or ("choice" if "enum" in schema else "any"))


def models(provider: str | None = None, given: RunOptions | None = None) -> Listing:
    """The models of one provider, or what can be asked from here now."""
    rows: list[Row] = []
    others: list[Row] = []
    for found in listings(provider, given):
        for model in found.models if found.reachable else ():
            tokens = f"{model.context_length:,} tokens" if model.context_length else ""
            name = one_line(visible(model.id), 200)
            rows.append((f"{found.provider}:{name}", tokens, ", ".join(model.capabilities)))
        if found.why:
            others.append((found.provider, one_line(visible(found.why), 300)))
    parts = [Listing(heads=("provider", "what is missing"), rows=others)] if others else []
    return Listing(heads=("model", "context", "can"), rows=rows, parts=parts)


def runs(limit: int) -> Listing:
    """The last runs, newest first: how to call each, how it ended, what it was asked."""
    rows = [
        (
            run.id[:8],
            one_line(run.name or "", 24),
            began(run.started_at),
            labels.status_of(run).word,
            run.model,
            one_line(run.prompt, 48),
        )
        for run in current_store().runs(limit=limit)
    ]
    notes = () if rows else ("no runs yet: run a cell with %%agent",)
    heads = ("run", "name", "began", "state", "model", "prompt")
    return Listing(heads=heads, rows=rows, notes=notes)


def workflow(ref: str) -> Listing:
    """A package and how far its last run has come, or a document has; without a name, the packages
    that are here. PackageError: it cannot be used."""
    if not ref:
        names = ", ".join(package_names())
        names = names or "none: no folder with workflow.md or a skill's steps, and no .bmad file"
        said = f"packages in this folder: {names}"
        return Listing(notes=[said, "%agent workflow PACKAGE shows one"])
    # Late: most notebooks have no workflow.
    package, state, file = import_module("nbagent.workflow.locate").seen_from(ref)
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
    """What was allowed for a session: the tool, which calls of it, by whom and when."""
    rows = [
        (
            f"{one.at.astimezone():%H:%M:%S}",
            f"{one.tool}({one_line(one.call, 120) if one.call else 'every call'})",
            repr(one_line(one.session, 40)),
            _WHO[one.by],
        )
        for one in list(granted.values())
    ]
    if not rows:
        return Listing(notes=["nothing is allowed for a session; the answer 'session' does that"])
    heads = ("time", "calls", "session", "by")
    return Listing(heads=heads, rows=rows, notes=["%agent approvals clear revokes all of them"])


def config() -> Listing:
    """Every setting, its value and where it came from."""
    table = Settings.rows()
    rows = [
        (name, "not set" if o.value is None else repr(table[name].shown(o.value)), o.source)
        for name, o in origins().items()
    ]
    note = "%agent config NAME=VALUE sets one for this kernel, NAME= takes it back"
    return Listing(heads=("setting", "value", "set by"), rows=rows, notes=[note])
