"""Rules: what they allow, ask and deny, and what they mean by the arguments they name."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from frontends import StandIn
from session.approval_stage import Asked, Shifting, delete, done, look, only, ran

import nbagent
from nbagent.contracts.approval import CallPreview
from nbagent.contracts.built_in_hosts import BUILT_IN_TOOLS, SKILL_TOOLS
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ToolSpec, ToolTraits
from nbagent.contracts.policy import ToolPolicy
from nbagent.notebook import reports
from nbagent.providers.offline import call, calls, script
from nbagent.session.approval import PolicyRules, tighten_policy
from nbagent.session.frontend import use_frontend


def test_rules_of_the_settings_allow_ask_and_deny() -> None:
    nbagent.configure(allow="delete(path=tmp/*)", ask=["look"], deny="delete(path=tmp/keep*)")
    paths = [("delete", "tmp/a"), ("delete", "tmp/keep"), ("delete", "b"), ("look", "b")]
    run, _ = ran(calls([call(name, path=path) for name, path in paths]))
    runs = run.turns[0].tool_runs
    assert [it.approval for it in runs] == [None, "denied", "denied", "denied"]
    assert [it.approved_by for it in runs] == [None, "policy", "nobody", "nobody"]
    assert done == ["tmp/a"]
    assert "tmp/keep" in runs[1].result.error.message
    nbagent.configure(allow=None, ask=None, deny="delete")
    run, model = ran(call("delete", path="a"))
    assert [tool.name for tool in model.requests[0].tools] == ["look"]
    assert only(run).result.error.code == "E_DENIED"


def test_an_agent_may_tighten_and_never_loosen() -> None:
    policy = ToolPolicy(deny=["look(path=secret*)"], ask=["look"])
    both = calls([call("look", path="secrets"), call("look", path="a")])
    run, _ = ran(both, policy=policy, answer=Asked(True))
    assert [it.approval for it in run.turns[0].tool_runs] == ["denied", "allowed"]
    child = run.resume("Again.", model=script([call("look", path="secrets"), "Done."]))
    assert only(child).approved_by == "policy"
    with pytest.raises(UsageError, match="only tighten"):
        ran(call("look", path="a"), policy=ToolPolicy(allow=["delete"]))
    nbagent.configure(deny="delete")
    _, model = ran("Hello.", policy=ToolPolicy(ask=["delete"]))
    assert [tool.name for tool in model.requests[0].tools] == ["look"]


def test_the_stricter_limits_and_isolation_hold() -> None:
    def policy(isolation: Any, read: int) -> ToolPolicy:
        return ToolPolicy(isolation=isolation, limits=nbagent.ToolLimits(max_read_bytes=read))

    for mine, agents in ("landlock", "process"), ("auto", "process"), ("process", "landlock"):
        both = tighten_policy(policy(mine, 10), policy(agents, 100))
        assert both.isolation == ("auto" if mine == "auto" else "landlock")
        assert both.limits.max_read_bytes == 10
        assert tighten_policy(policy(mine, 100), policy(agents, 10)).limits == both.limits


def test_an_edited_call_is_judged_anew() -> None:
    nbagent.configure(deny="delete(path=/etc/*)")
    run, _ = ran(call("delete", path="a"), answer=Asked({"path": "/etc/passwd"}))
    assert (only(run).approval, only(run).approved_by, done) == ("denied", "policy", [])


def test_a_firm_question_is_asked_whatever_the_settings_allow() -> None:
    nbagent.configure(allow="shift")
    for firm, by, ok in (True, "nobody", False), (False, None, True):
        host = Shifting(["one"], CallPreview(ruling="ask", minimum=firm, why="asks"))
        run, _ = ran(call("shift"), tools=[host])
        assert (only(run).approved_by, only(run).result.ok) == (by, ok)


def test_a_rule_that_asks_does_not_loosen_what_a_host_denies() -> None:
    host = Shifting(["one"], CallPreview(ruling="deny", why="never"))
    run, _ = ran(call("shift"), tools=[host], policy=ToolPolicy(ask=["*"]), answer=Asked(True))
    assert (only(run).approval, only(run).approved_by) == ("denied", "policy")


def test_a_question_names_the_rule_that_asks() -> None:
    asked = Asked(True)
    host = Shifting(["one"], CallPreview(why="it shifts"))
    ran(call("shift"), tools=[host], policy=ToolPolicy(ask=["shift"]), answer=asked)
    assert [it.why for it in asked.questions] == ["it shifts; your rule ask='shift'"]


@pytest.mark.parametrize("path", ["x", "@a/x"])
def test_rules_that_forbid_hold_for_every_form_of_a_call(path: str) -> None:
    nbagent.configure(deny=[f"shift(path={path})"])
    host = Shifting(["one"], CallPreview(), form={"path": "@a/x"})
    run, _ = ran(call("shift", path="x"), tools=[host])
    assert only(run).approved_by == "policy"


@pytest.mark.parametrize("rule", ["mcp", "mcp:*", "mcp:git", "mcp:g*", "git__*"])
def test_a_rule_may_name_a_server_in_many_ways(rule: str) -> None:
    spec = ToolSpec(name="git__log", traits=ToolTraits(host="mcp:git"))
    assert PolicyRules(ToolPolicy(deny=[rule])).hidden_reason(spec)


def line_of(tool: str, text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(tool))


def test_the_listing_says_what_happens_at_a_call_and_why() -> None:
    use_frontend(StandIn({"delete": delete, "look": look}))
    nbagent.configure(ask="look", deny="delete(path=/etc/*)")
    said = str(reports.tools())
    assert "needs approval: ask='look'" in line_of("look(path: string)", said)
    delete_line = line_of("delete(path: string)", said)
    assert "needs approval; some calls: deny=delete(path=/etc/*)" in delete_line
    assert "Rules: " in said


HOLD: list[tuple[str, dict[str, Any]]] = [
    ('erase(tags=["prod"])', {"tags": ["prod"]}),
    ('erase(tags=["prod"])', {"tags": [" PROD"]}),
    ('erase(tags=["a", "b"], n=5)', {"tags": ["a", "b"], "n": 5}),
    ("erase(tags=*prod*)", {"tags": ["dev", "Prod"]}),
    ('erase(where={"b": 1, "a": "x, y"})', {"where": {"a": "x, y", "b": 1}}),
    ("erase(path=A b.md, n=5)", {"path": "a b.md", "n": 5}),
    ('erase(path="prod")', {"path": "prod"}),
    ("erase(path=usual)", {}),
    ("erase(n=5)", {"n": 5}),
    ("erase(price=100)", {}),
    ("erase(price=1e2)", {"price": "100"}),
    ("erase(price=100.*)", {}),
    ("erase(paid=100)", {"paid": "100.00"}),
    ('erase(owners=["me"])', {}),
    ("erase(day=2026-01-01)", {}),
    ("erase(note=null)", {}),
]
MISS: list[tuple[str, dict[str, Any]]] = [
    ('erase(tags=["prod"])', {"tags": ["prod", "dev"]}),
    ("erase(path=prod, n=5)", {"path": "prod", "n": 6}),
    ("erase(path=prod)", {"n": 5}),
    ("erase(n=true)", {"n": 1}),
    ("erase(where=1)", {"where": {"a": 1}}),
]


class Stage(Enum):
    PROD = "prod"


@nbagent.tool(ask=True)
def erase(
    tags: list[str] = [],  # noqa: B006
    where: dict[str, Any] = {},  # noqa: B006
    path: str = "usual",
    n: int = 0,
    price: float = 100.0,
    paid: Decimal = Decimal(0),
    stage: Stage = Stage.PROD,
    owners: tuple[str, ...] = ("me",),
    day: date = date(2026, 1, 1),
    note: str | None = None,
) -> str:
    """Erase something."""
    return "gone"


def denied(arguments: dict[str, Any], answer: Any = None, **rules: Any) -> bool:
    nbagent.configure(**rules)
    run, _ = ran(calls([call("erase", **arguments)]), tools=[erase], answer=answer)
    error = only(run).result.error
    return error is not None and error.code == "E_DENIED"


@pytest.mark.parametrize(("rule", "arguments"), HOLD)
def test_a_rule_holds_as_it_is_written(rule: str, arguments: dict[str, Any]) -> None:
    assert denied(arguments, deny=[rule], answer=Asked(True))


@pytest.mark.parametrize(("rule", "arguments"), MISS)
def test_a_rule_is_about_no_other_call(rule: str, arguments: dict[str, Any]) -> None:
    assert not denied(arguments, deny=[rule], answer=Asked(True))


def test_what_is_allowed_is_allowed_as_it_is_written_alone() -> None:
    assert not denied({"path": "prod"}, allow="erase(path=prod)")
    assert denied({"path": "Prod"}, allow="erase(path=prod)")
    assert not denied({"n": 5}, allow="erase(n=5.0)")
    assert not denied({"path": "a*"}, allow='erase(path="a*")')
    assert denied({"path": "ab"}, allow='erase(path="a*")')
    assert denied({"path": "1e2"}, allow="erase(path=100)")


OUTSIDE = [("fs.read", "/etc/*"), ("fs", "../x"), ("filesystem", "a/../*"), ("fs.*", '"C:/x"')]
ODD: list[dict[str, Any]] = [
    *({"deny": [rule]} for rule in ("", "a b", "f(path)", "f(", "(path=a)", "f(=x)", "f(n=1, b)")),
    *({"deny": [rule]} for rule in (5, ["a"], "f(path='a')", "f(tags=['a'])", "f(at={'a': 1})")),
    *({"ask": [f"{rule}(path={path})"]} for rule, path in OUTSIDE),
    {"limits": None},
    {"limits": {"max_read_bytes": 1}},
    {"isolation": "bogus"},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_an_odd_policy_is_one_clear_error(odd: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match="pattern for calls" if {"deny", "ask"} & odd.keys() else "is not valid"
    ):
        ToolPolicy(**odd)


@pytest.mark.parametrize("value", ["x", None, float("nan"), -1, 0, True])
def test_an_odd_limit_is_one_clear_error(value: Any) -> None:
    with pytest.raises(UsageError, match="max_read_bytes"):
        nbagent.ToolLimits(max_read_bytes=value)


SLIPS: dict[str, tuple[str, str]] = {
    "a letter too few": ("delte", "'delete'"),
    "letters in another order": ("loko", "'look'"),
    "other capitals": ("Delete", "'delete'"),
    "a built-in tool that is not switched on": ("fs.wirte", "'fs.write'"),
    "with arguments": ("fs.wirte(path=@project/*)", "'fs.write'"),
    "a tool without its host": ("write", "'fs.write'"),
    "a host": ("skils", "'skills'"),
    "an argument": ("delete(pth=tmp/*)", "'path'"),
}


@pytest.mark.parametrize(("rule", "meant"), SLIPS.values(), ids=list(SLIPS))
def test_a_misspelt_rule_is_refused_or_said(rule: str, meant: str) -> None:
    """Refused among a run's own options, a notice where it comes from the settings."""
    for own in ToolPolicy(deny=[rule]), ToolPolicy(ask=[rule]):
        with pytest.raises(UsageError, match=f"did you mean {meant}"):
            ran(call("delete", path="a"), policy=own)
    assert done == []
    for name in "allow", "ask", "deny":
        nbagent.configure(**{"allow": None, "ask": None, "deny": None, name: [rule]})
        run, _ = ran("Hello.")
        assert [it for it in run.record.notices if meant in it and f"{name}=" in it]


@pytest.mark.parametrize(
    "rule",
    [
        *("fs", "fs.write", "filesystem", "nb.run", "skills", "run_python_script", "functions"),
        *("delete*", "del?te", "mcp", "mcp:git", "mcp:gti", "git__delte", "set_look", "look_2"),
        *("delete_all", "erase", "fs.write(path=@project/*)", "delete(path=delte)"),
    ],
)
def test_a_rule_for_a_tool_of_another_run_is_no_slip(rule: str) -> None:
    nbagent.configure(deny=[rule])
    run, _ = ran("Hello.", policy=ToolPolicy(deny=[rule]))
    assert not [it for it in run.record.notices if "did you mean" in it]


def test_a_misspelt_rule_of_a_parent_is_said() -> None:
    use_frontend(StandIn({}))
    run, _ = ran("Hello.", tools=[look], policy=ToolPolicy(deny=["delte"]))
    child = run.resume("Again.", model=script(["Done."]), tools=[look, delete])
    assert [it for it in child.record.notices if "did you mean 'delete'" in it]


def test_all_built_in_tools_are_known_by_name() -> None:
    names = {str(row[0]).partition("(")[0] for row in reports.tools(("fs", "notebook")).rows}
    assert names == {*BUILT_IN_TOOLS} - {*SKILL_TOOLS}
