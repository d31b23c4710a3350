"""A batch that is asked again and again: its table, its models, and what they were asked."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

import nbagent
from nbagent import offline
from nbagent.contracts.model import ChatRequest
from nbagent.providers.offline import Script, StepLike

TABLE: Any = pd.DataFrame({"n": range(12)})
FEW: Any = TABLE.head(3)
JUDGED = '{"reason":"r","ok":true}'
asked: list[str] = []
"""Prompt of each request of the present test, but for those to judges."""


def answer(request: ChatRequest) -> StepLike:
    asked.append(request.messages[0].text)
    return f"a:{asked[-1]}"


def slow(request: ChatRequest) -> StepLike:
    return offline.step(text=str(answer(request)), wait_ms=40)


def calls(n: int) -> Callable[[ChatRequest], StepLike]:
    """A model that calls `note` n times before it answers."""

    def call_or_answer(request: ChatRequest) -> StepLike:
        answer(request)
        done = sum(message.role == "assistant" for message in request.messages)
        return offline.call("note", text=str(done)) if done < n else "done"

    return call_or_answer


@nbagent.tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def script(says: Any = answer, name: str = "m", first: Sequence[StepLike] = ()) -> Script:
    return offline.script([*first, *[says] * 2_000], name=name)


def agent(says: Any = answer, **options: Any) -> Any:
    model = says if isinstance(says, Script) else script(says)
    given: dict[str, Any] = {"model": model, "tools": "none", "quiet": True, **options}
    return nbagent.Agent(**given)


def ask(table: Any = FEW, says: Any = answer, template: str = "{{ n }}", **how: Any) -> Any:
    """A batch at work, always the same one."""
    return agent(says).map(table, template, **{"name": "b", **how})


def scorer(function: Any, name: str = "exact", version: int = 1) -> Any:
    return nbagent.scorer(name=name, version=version)(function)


def runs() -> Any:
    return nbagent.runs(batch="b")


def until(is_so: Callable[[], object], *, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.002)
