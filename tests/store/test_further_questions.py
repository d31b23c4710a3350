"""Further questions of analysts: one line of pandas each, over a history with known answers."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stories import Assembly, answer_with, tool_run

import nbagent
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatResponse, ResponseMeta, ToolSpec, Usage
from nbagent.contracts.records import Case, RunRecord, ScoreRecord, ToolRun
from nbagent.session.stores import current_store
from nbagent.store.batches import save_scores

frames: Any = nbagent

MONDAY = datetime(2026, 3, 2, 9, tzinfo=UTC)
GPT, CLAUDE = "openai:gpt-x", "anthropic:claude-x"
TOOLS = (ToolSpec(name="search", description="x" * 377, parameters={"type": "object"}),)
"""400 characters, so 100 tokens by the estimate."""


def call(name: str, chars: int = 0, ms: float = 10.0, error: str = "") -> ToolRun:
    value = ErrorInfo("E_TIMEOUT", error) if error else "y" * (chars - len('{"ok":true,"data":""}'))
    return tool_run(f"{name}{chars}{ms}", name, {"q": chars}, value, ms)


def turn(text: str, prompt: int, cached: int = 0, *calls: ToolRun, **fields: Any) -> dict[str, Any]:
    """Arguments for `Assembly.add_turn`."""
    response = ChatResponse(
        message=answer_with(text, calls),
        usage=Usage.of(prompt, 10, cached=cached),
        meta=ResponseMeta(),
    )
    return {"response": response, "runs": calls, "model_ms": 1.0, "cost_usd": 0.25, **fields}


def save(run_id: str, *turns: dict[str, Any], first_turn: int = 1, **fields: Any) -> RunRecord:
    base: dict[str, Any] = {"session": "a", "model": GPT, "prompt": "Go.", "started_at": MONDAY}
    base |= {"messages": (Message.of("user", "Go."),), **fields}
    made = Assembly(first_turn, id=run_id * 16, **base)
    for arguments in turns:
        common: dict[str, Any] = {"system": "Be brief.", "params": {}, "tools": TOOLS}
        made.add_turn(**{**common, "started_at": base["started_at"], **arguments})
    cost = sum(arguments["cost_usd"] for arguments in turns)
    run = made.end(cost_usd=cost, ended_at=base["started_at"]).run
    current_store().add(run)
    return run


@pytest.fixture(autouse=True)
def stored_runs() -> None:
    """Two conversations, one of them five runs deep, and a batch of two variants."""
    save(
        "1",
        turn("", 1000, 0, call("search", 4000), call("read", 400), ttft_ms=100.0),
        turn("", 2200, 1000, call("search", 6000), call("search", 400), ttft_ms=300.0),
        turn("The refund is paid.", 4000, 1500, ttft_ms=500.0),
    )
    retried: dict[str, Any] = {"attempts": 3, "retry_wait_ms": 1500.0}
    for i in range(5):
        save(
            "abcde"[i],
            turn(
                "A Refund." if i == 4 else "No.",
                500 + 100 * i,
                250,
                *([call("read", 0, 2000.0, "too slow")] if i == 2 else []),
                ttft_ms=50.0,
                **({**retried, "attempt_statuses": "429,503"} if i == 1 else {}),
                **(
                    {"attempts": 2, "retry_wait_ms": 250.0, "attempt_statuses": "429"}
                    if i == 3
                    else {}
                ),
            ),
            first_turn=i + 1,
            session="b",
            model=CLAUDE,
            parent_id="abcde"[i - 1] * 16 if i else None,
            kind="continue" if i else "start",
            started_at=MONDAY + timedelta(days=i),
        )
    scores: list[ScoreRecord] = []
    for i, letter in enumerate("6789"):
        variant = {"system": "long" if i % 2 else "short"}
        case = Case(batch="cases", row_key=f"r{i // 2}", variant=variant, sha=letter)
        save(letter, turn("42", 100, cost_usd=0.5 * (1 + i % 2)), case=case, session="batch")
        for person, right in (("exact", i != 0), ("strict", i == 3)):
            scores.append(
                ScoreRecord(
                    run_id=letter * 16, scorer=person, value=right, by="function", at=MONDAY
                )
            )
    save_scores(current_store(), scores)


def cost_per_right_answer() -> Any:
    joined = frames.scores(scorer="exact").merge(frames.runs()[["run_id", "cost_usd"]])
    sums = joined.groupby("variant")[["cost_usd", "value"]].sum()
    return (sums["cost_usd"] / sums["value"]).to_dict()


QUESTIONS: dict[str, tuple[Callable[[], Any], Any]] = {
    "which tool fills my prompts": (
        lambda: frames.tool_runs(session="a").groupby("tool_name")["result_tokens_est"].sum(),
        {"search": 2600, "read": 100},
    ),
    "which share of the prompt was cached, by model": (
        lambda: (
            frames.turns(session=["a", "b"])
            .groupby("model", observed=True)[["cached_tokens", "prompt_tokens"]]
            .sum()
            .pipe(lambda df: df["cached_tokens"] / df["prompt_tokens"])
            .round(3)
        ),
        {GPT: round(2500 / 7200, 3), CLAUDE: round(1250 / 3500, 3)},
    ),
    "which failures cost how much waiting": (
        lambda: frames.turns(attempts=(2, None)).groupby("attempt_statuses")["retry_wait_ms"].sum(),
        {"429,503": 1500.0, "429": 250.0},
    ),
    "which sessions go deeper than three": (
        lambda: frames.runs(depth=(4, None)).groupby("session", observed=True)["depth"].max(),
        {"b": 4},
    ),
    "what does a right answer cost, by variant": (
        cost_per_right_answer,
        {'{"system":"long"}': 1.0, '{"system":"short"}': 1.0},
    ),
    "how many tokens were sent again, by turn": (
        lambda: frames.turns(session="a").groupby("turn")["resent_tokens"].sum(),
        {1: 0, 2: 1000, 3: 2200},
    ),
    "which tokens were sent again and not read from a cache": (
        lambda: frames.turns(session="a").pipe(
            lambda df: (df["resent_tokens"] - df["cached_tokens"]).clip(lower=0).to_dict()
        ),
        {0: 0, 1: 0, 2: 700},
    ),
    "what do the tool definitions take of the first prompt": (
        lambda: frames.turns(session="a", turn=1).pipe(
            lambda df: (df["toolset_tokens_est"] / df["prompt_tokens"]).to_dict()
        ),
        {0: 0.1},
    ),
    "which answers of this week name a refund, and their cost": (
        lambda: (
            frames.runs(text="refund", since="2026-03-02", until="2026-03-09")
            .set_index("run_id")["cost_usd"]
            .to_dict()
        ),
        {"1" * 16: 0.75, "e" * 16: 0.25},
    ),
    "which slow calls failed": (
        lambda: (
            frames.tool_runs(duration_ms=(1000, None), ok=False)
            .groupby(["tool_name", "error"], observed=True)
            .size()
        ),
        {("read", "too slow"): 1},
    ),
    "how long until the first token, by model": (
        lambda: frames.turns(ttft_ms=(0, None)).groupby("model", observed=True)["ttft_ms"].median(),
        {GPT: 300.0, CLAUDE: 50.0},
    ),
    "on which cases do two scorers differ": (
        lambda: (
            frames.scores(batch="cases")
            .pivot_table(index="run_id", columns="scorer", values="value", observed=True)
            .query("exact != strict")
            .index.str[0]
            .tolist()
        ),
        ["7", "8"],
    ),
}


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.values(), ids=list(QUESTIONS))
def test_a_question_is_answered_by_one_line(question: Callable[[], Any], answer: Any) -> None:
    found = question()
    assert (found.to_dict() if hasattr(found, "to_dict") else found) == answer
