"""Says how a budget of reasoning tokens was sent to a server that takes no such number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.model import ChatRequest

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


def budget_notice(request: ChatRequest, encode: Callable[[ChatRequest], Mapping[str, Any]]) -> str:
    """Describe what was sent instead of a budget; empty if the number itself was sent.

    Found by comparing the parameters with those of the same request without reasoning, so that no
    wire has to report what it does.

    Args:
        request: the request of the person.
        encode: returns the wire's parameters of a request.
    """
    budget = request.reasoning or ""
    if not budget.isdecimal():
        return ""
    without = set(_leaves(encode(request.model_copy(update={"reasoning": None}))))
    sent = [leaf for leaf in _leaves(encode(request)) if leaf not in without]
    if any(value == repr(int(budget)) for _, value in sent):
        return ""
    words = [leaf for leaf in sent if leaf[1].strip("'").lower() in _EFFORTS]
    shown = ", ".join(f"{path}={value}" for path, value in words or sent) or "nothing"
    return (
        f"reasoning={budget} is a number of tokens, which this model does not take as it is: "
        f"{shown} was sent"
    )


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the repr of each value of nested objects."""
    for key, item in value.items():
        inner = json_object(item)
        if inner is None:
            yield f"{path}{key}", repr(item)
        else:
            yield from _leaves(inner, f"{path}{key}.")
