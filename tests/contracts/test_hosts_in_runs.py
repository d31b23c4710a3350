"""Every tool host in a run: schemas, JSON results, typed errors, stops, policy.

Parametrised over every host that `tools.base` can find, and the notebook's functions.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from code_shell import runs_code
from contracts.tool_host_cases import CASES, HostCase
from engine.laws import check_run
from frontends import StandIn
from legal_schema import check_legal

import nbagent
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import CODES
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import ToolRun
from nbagent.providers.offline import call, script
from nbagent.session.frontend import use_frontend
from nbagent.tools.hosts import host_module, host_names
from nbagent.tools.mcp.server import McpServer

HOSTS = {host_module(word) for word in host_names()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setattr("nbagent.session.tool_hosts.project_folder", lambda: folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, project: Path) -> Iterator[HostCase]:
    made = CASES[request.param](project)
    runs = runs_code(made.namespace) if made.namespace else None
    use_frontend(StandIn(made.namespace, run_code=runs))
    yield made
    use_frontend(None)
    for tool in made.tools:
        if isinstance(tool, McpServer):
            tool.close()


def ran(
    case: HostCase, name: str, arguments: dict[str, Any], *, allowed: bool = True, **options: Any
) -> tuple[nbagent.Run, ToolRun]:
    """A run in which the model makes one call, and that call's run."""
    model = script([call(name, **arguments), "Done."])
    agent = nbagent.Agent(
        model=model, tools=case.tools, on_approval=_agree if allowed else None, **case.options
    )
    run = check_run(agent.run("Go.", **options), model)
    (tool_run,) = run.turns[0].tool_runs
    assert run.text == "Done."
    assert tool_run.result is not None
    place = Path(os.environ["HOME"]).parent  # The project is there as well.
    assert str(place) not in tool_run.result.to_json().decode()
    return run, tool_run


def _agree(question: nbagent.Question) -> bool:
    return True


def code_of(it: ToolRun) -> str:
    assert it.result is not None
    assert it.result.error is not None, it.result
    assert len(it.result.error.message) > 10
    return it.result.error.code


def specs_of(run: nbagent.Run) -> list[ToolSpec]:
    return [spec for tools in run.record.toolsets.values() for spec in tools]


def test_every_host_that_can_be_found_has_a_case() -> None:
    assert set(CASES) - {"functions"} == HOSTS


def test_schemas_are_legal_on_every_wire_and_definitions_have_a_hash(case: HostCase) -> None:
    model = script(["Hello."])
    run = check_run(nbagent.Agent(model=model, tools=case.tools).run("Go."), model)
    specs = specs_of(run)
    assert case.names <= {spec.name for spec in specs}
    for spec in specs:
        check_legal(spec)
        assert spec.description
        assert spec.traits.host == case.host
        assert spec.traits.sha


def test_a_call_gives_json_and_is_kept(case: HostCase) -> None:
    run, it = ran(case, *case.good)
    assert it.result is not None
    assert it.result.ok, it.result
    assert case.gives(json.loads(it.result.to_json())["data"])
    assert it.tool_sha == next(s.traits.sha for s in specs_of(run) if s.name == it.tool_name)
    assert it.ran_in is not None
    assert nbagent.open_run(run.id).record == run.record
    assert nbagent.tool_runs().iloc[-1]["tool_name"] == it.tool_name


def test_what_goes_wrong_is_a_typed_error_that_says_something(case: HostCase) -> None:
    for what, (name, arguments, code) in case.wrong.items():
        _, it = ran(case, name, arguments)
        assert (code_of(it), code in CODES) == (code, True), what


def test_a_stop_ends_a_call_at_once(case: HostCase) -> None:
    if case.slow is None:
        return
    name, arguments = case.slow
    model = script([call(name, **arguments), "Done."])
    agent = nbagent.Agent(model=model, tools=case.tools, on_approval=_agree, **case.options)
    began: list[float] = []

    def stop_soon(event: nbagent.events.Event) -> None:
        if isinstance(event, nbagent.events.ToolCallStarted):
            began.append(time.monotonic())
            threading.Timer(0.4, run.stop).start()

    run = agent.start("Go.", on_event=stop_soon)
    run.wait()
    took = time.monotonic() - began[0]
    (it,) = run.turns[0].tool_runs
    assert run.stop_reason == "stopped"
    assert (code_of(it), took < 15) == ("E_INTERRUPTED", True)


@pytest.mark.parametrize("kind", ["deny", "deny some calls", "ask nobody"])
def test_a_rule_refuses_a_call_and_a_host_that_is_denied_is_not_shown(
    case: HostCase, kind: str
) -> None:
    name, arguments = case.good
    rule = f"{name}({next(iter(arguments))}=*)" if kind == "deny some calls" else case.host
    nbagent.configure(**{kind.partition(" ")[0]: [rule]})
    run, it = ran(case, name, arguments, allowed=False)
    by = "nobody" if kind == "ask nobody" else "policy"
    assert (code_of(it), it.approval, it.approved_by) == ("E_DENIED", "denied", by)
    assert bool(specs_of(run)) == (" " in kind)
    assert kind != "deny some calls" or rule in str(it.result)


@pytest.mark.parametrize("scope", ["all", "outside", "none"])
def test_the_calls_of_a_run_are_audited_as_far_as_the_setting_says(
    case: HostCase, scope: str
) -> None:
    if scope != "all":
        nbagent.configure(audit=scope)
    run, _ = ran(case, *case.good)
    log = Path(os.environ["NBAGENT_HOME"]) / "audit.jsonl"
    is_audited = {"all": True, "outside": case.acts_outside, "none": False}[scope]
    assert log.exists() == is_audited
    if not is_audited:
        return
    report = nbagent.verify_audit()
    assert report, report
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    calls = [line for line in lines if line["kind"] == "call"]
    assert [line["tool"] for line in calls] == [case.good[0]]
    assert (calls[0]["host"], calls[0]["run"], calls[0]["turn"]) == (case.host, run.id, "C01")
    # What the model was given can be held against the log.
    (given,) = [message.text for message in run.messages if message.role == "tool"]
    assert calls[0]["result_sha"] == sha_of(json.loads(given))
