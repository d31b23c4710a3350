"""What a rule means by the arguments that it names: as they are written, and in any other case."""

from __future__ import annotations

from typing import Any

import pytest

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import ToolPolicy
from nbagent.providers.offline import call, calls, script

HOLD: list[tuple[str, dict[str, Any]]] = [
    ('delete(tags=["prod"])', {"tags": ["prod"]}),
    ('delete(tags=["prod"])', {"tags": [" PROD"]}),
    ('delete(tags=["a", "b"], n=5)', {"tags": ["a", "b"], "n": 5}),
    ("delete(tags=*prod*)", {"tags": ["dev", "Prod"]}),
    ('delete(where={"b": 1, "a": "x, y"})', {"where": {"a": "x, y", "b": 1}}),
    ("delete(path=prod)", {"path": " Prod\n"}),
    ("delete(path=A b.md, n=5)", {"path": "a b.md", "n": 5}),
    ('delete(path="prod")', {"path": "prod"}),
    ("delete(n=5)", {"n": 5}),
]
MISS: list[tuple[str, dict[str, Any]]] = [
    ('delete(tags=["prod"])', {"tags": ["dev"]}),
    ('delete(tags=["prod"])', {"tags": ["prod", "dev"]}),
    ("delete(path=prod, n=5)", {"path": "prod", "n": 6}),
    ("delete(path=prod)", {"n": 5}),
]


def denied(arguments: dict[str, Any], *, deny: str = "", allow: str = "") -> bool:
    @nbagent.tool(ask=True)
    def delete(tags: list[str] = [], where: dict[str, Any] = {}, path: str = "", n: int = 0) -> str:  # noqa: B006
        """Delete something."""
        return "gone"

    nbagent.configure(allow=allow or None)
    try:
        agent = nbagent.Agent(
            script([calls([call("delete", **arguments)]), "Done."]),
            tools=[delete],
            policy=ToolPolicy(deny=[deny] if deny else []),
            on_approval=None if allow else lambda question: True,
        )
        result = agent.run("Go.").turns[0].tool_runs[0].result
    finally:
        nbagent.configure(allow=None)
    assert result is not None
    return not result.ok and result.error is not None and result.error.code == "E_DENIED"


@pytest.mark.parametrize(("rule", "arguments"), HOLD)
def test_a_rule_holds_as_it_is_written(rule: str, arguments: dict[str, Any]) -> None:
    assert denied(arguments, deny=rule)


@pytest.mark.parametrize(("rule", "arguments"), MISS)
def test_a_rule_is_about_no_other_call(rule: str, arguments: dict[str, Any]) -> None:
    assert not denied(arguments, deny=rule)


def test_what_is_allowed_is_allowed_as_it_is_written_alone() -> None:
    assert not denied({"path": "prod"}, allow="delete(path=prod)")
    assert denied({"path": "Prod"}, allow="delete(path=prod)")


@pytest.mark.parametrize("rule", ["delete(a)", "delete(", "a b(c", "", "delete(n=1, b)", 5, ["a"]])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(UsageError, match="is no pattern for calls"):
        ToolPolicy(deny=[rule])
