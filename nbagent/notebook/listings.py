"""What `%agent tools`, `models`, `workflow` and `config` print: plain text, made from values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nbagent.contracts.chat import ModelInfo, ToolSpec
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import ToolContext
from nbagent.notebook.known_values import package_names
from nbagent.runtime import Courier, engine_loop
from nbagent.session.approval import Rules, granted
from nbagent.session.clients import listings
from nbagent.session.frontend import frontend
from nbagent.session.hosts import tools_of
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions, Settings, effective, origins
from nbagent.settings.checks import Tools
from nbagent.tools.base import HostSet, host_words
from nbagent.view.words import one_line, visible
from nbagent.workflow.listing import workflow_text


def tools_text(names: Tools | None, given: RunOptions | None = None) -> str:
    """The tools that a model is given, their parameters, and what happens when it calls them.

    Args:
        names: as after `--tools`; None: what a cell gives that names none.
        given: mounts, skills and a policy, as a cell's line gives them.
    """
    settings, namespace = effective(), frontend().namespace
    wanted = settings.tools if names is None else names
    options = (given or RunOptions()).changed(tools=wanted)
    hosts, rules = tools_of(
        options.tools, None, options=options, settings=settings, namespace=namespace
    )
    context = ToolContext(run_id="", session="", runner=Courier())
    host = HostSet(hosts, hides=rules.hiding)
    listing = host.tools(context)
    specs = asyncio.run_coroutine_threadsafe(listing, engine_loop()).result()
    lines = [line for spec in specs for line in _tool_lines(spec, rules)]
    lines += [
        f"{spec.name}  [not shown to the model: {rule}]"
        for spec in host.offered
        if (rule := rules.hiding(spec))
    ]
    lines = lines or [_none_of(host.host_names)]
    lines += [f"note: {text}" for text in host.warnings]
    lines += _more_hosts(names)
    return "\n".join(lines + _rules(rules))


def _none_of(hosts: Sequence[str]) -> str:
    if "skills" in hosts:
        return (
            "no skills were found in .agents/skills, .claude/skills and .nbagent/skills of the "
            "project and your home; give a folder with --skills DIR"
        )
    return (
        "no tools: put @nbagent.tool above a function and run its cell, "
        "or name any function with --tools"
    )


def _more_hosts(names: Tools | None) -> list[str]:
    if names is not None:
        return []
    words = ", ".join(word if word != "mcp" else "mcp:NAME" for word in host_words())
    return ["", f"Others, when a cell names them: --tools {words}; %agent tools NAME lists one."]


def _rules(rules: Rules) -> list[str]:
    said = ", ".join(f"{kind}={text}" for kind, text in rules.policy.rules)
    return ["", f"Rules that hold: {said}"] if said else []


def _tool_lines(spec: ToolSpec, rules: Rules) -> list[str]:
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", [])
    arguments = ", ".join(
        f"{name}: {_type(schema)}{'' if name in required else ' = …'}"
        for name, schema in properties.items()
    )
    marks = [*_happens(spec, rules)]
    marks += [] if spec.traits.interruptible else ["finishes before a stop"]
    about = spec.description.strip().splitlines()
    tail = f"  [{', '.join(marks)}]" if marks else ""
    return [f"{spec.name}({arguments}){tail}", *(f"    {line}" for line in about[:1])]


def _happens(spec: ToolSpec, rules: Rules) -> list[str]:
    """What happens at a call, where it is not simply allowed, and which rule says so."""
    verdict = rules.says(spec, CallPreview(ruling=spec.traits.ruling))
    words = {"allow": "allowed", "ask": "asks first", "deny": "denied"}[verdict.ruling]
    if verdict.rule:
        return [f"{words}: {verdict.why}"]
    special = rules.about_some_calls(spec)
    told = [] if verdict.ruling == "allow" else [words]
    return [*told, *(f"some calls: {text}" for text in special)]


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_type(one) for one in schema["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "null") or "null"
    return str(schema.get("type") or ("choice" if "enum" in schema else "any"))


def models_text(provider: str | None, given: RunOptions | None = None) -> str:
    """The models of one provider, or what can be asked from here now."""
    lines: list[str] = []
    for found in listings(provider, given):
        models = found.models if found.reachable else ()
        lines += [_model_line(found.provider, model) for model in models]
        lines += [f"{found.provider}: {one_line(visible(found.why), 300)}"] if found.why else []
    return "\n".join(lines)


def _model_line(provider: str, model: ModelInfo) -> str:
    facts = [f"{model.context_length:,} tokens"] if model.context_length else []
    facts += list(model.capabilities)
    name = one_line(visible(model.id), 200)
    return f"{provider}:{name}" + (f"  ({', '.join(facts)})" if facts else "")


def runs_text(limit: int) -> str:
    """The last runs, newest first: how to call each, how it ended, what it was asked."""
    found = current_store().runs(limit=limit)
    if not found:
        return "no runs yet: run a cell with %%agent"
    rows = [
        (
            run.id[:8],
            one_line(visible(run.name or ""), 24),
            run.started_at.astimezone().strftime("%d %b %H:%M"),
            run.stop_reason or run.phase,
            visible(run.model),
            one_line(visible(run.prompt), 48),
        )
        for run in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    used = [i for i in range(6) if widths[i]]
    return "\n".join("  ".join(f"{row[i]:<{widths[i]}}" for i in used).rstrip() for row in rows)


def package_text(ref: str) -> str:
    """A package and how far its last run has come, or a document has; without a name, the packages
    that are here. PackageError: it cannot be used."""
    if not ref:
        names = ", ".join(map(visible, package_names()))
        names = names or "none: no folder with workflow.md or a skill's steps, and no .bmad file"
        return f"packages in this folder: {names}\n%agent workflow PACKAGE shows one"
    # Late: most notebooks have no workflow.
    from nbagent.session.documents import seen_from

    package, state, file = seen_from(ref)
    if state is None:
        return workflow_text(package)
    text = workflow_text(
        package, current=state.node, completed=state.completed, variables=state.variables
    )
    return f"{text}\n\nState\n  {file}"


def approvals_text() -> str:
    """What was allowed for a session: the tool, which calls of it, by whom and when."""
    lines = [
        f"{one.at.astimezone():%H:%M:%S}  {one.tool}"
        f"({one_line(visible(one.call), 120) if one.call else 'every call'})"
        f"  session {one_line(visible(one.session), 40)!r}, by {_WHO[one.by]}"
        for one in list(granted.values())
    ]
    if not lines:
        return "nothing is allowed for a session; a question's answer 'session' does that"
    return "\n".join([*lines, "", "%agent approvals clear takes all of it back"])


_WHO = {"person": "you", "callback": "on_approval"}


def settings_text() -> str:
    """Every setting, its value and where it came from."""
    table = Settings.rows()
    rows = [
        (name, "not set" if o.value is None else repr(table[name].shown(o.value)), o.source)
        for name, o in origins().items()
    ]
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    lines = "\n".join(f"{a:<{first}}  {b:<{second}}  {c}" for a, b, c in rows)
    return f"{lines}\n\n%agent config NAME=VALUE sets one for this kernel, NAME= takes it back"
