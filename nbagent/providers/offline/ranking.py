"""How much a prompt speaks of each tool, by the words of names, descriptions and parameters.

Owns the scores. What is called, and with what, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbagent.contracts.chat import ToolSpec
from nbagent.providers.offline.schema import parameters_of
from nbagent.providers.offline.words import GENERIC_VERBS, abbreviates, related, stem, stems, words

ENOUGH = 1.0
"""The score from which a tool is taken as asked for: one word of its description."""
GENERIC = frozenset(stem(word) for word in GENERIC_VERBS)
"""Stems of verbs that any tool may have: `get`, `show`, `read`."""
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W_]+)?")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tool and how much the prompt speaks of it."""

    tool: ToolSpec
    score: float
    matched: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    """Stems of the tool's name that stand in the prompt."""
    anchor: int = 0
    """Where the prompt names it first."""
    anchor_end: int = 0


def rank(tools: Sequence[ToolSpec], prompt: str) -> list[Ranked]:
    """Score each tool by the words that it shares with a prompt; the best one first."""
    spoken = {stem(m.group()): m.start() for m in reversed(_words_of(prompt))}
    telling = {stem(m.group()) for m in _words_of(prompt) if stems(m.group())}
    vocabulary = [_vocabulary(tool) for tool in tools]
    ranked: list[Ranked] = []
    for tool, weights in zip(tools, vocabulary, strict=True):
        score, matched, anchors = 0.0, list[str](), list[tuple[bool, int, int]]()
        named = name_stems(tool)
        for one, at in spoken.items():
            if one not in telling and one not in named:
                continue
            weight = _weight(one, weights)
            if weight:
                shared = sum(1 for other in vocabulary if one in other)
                score += weight / max(shared, 1) ** 0.5
                matched.append(_word_at(prompt, at))
                if one in named or weight >= 1.0:
                    anchors.append((one not in named, at, at + len(_word_at(prompt, at))))
        hit = frozenset(named & set(spoken))
        # A word of the name says better where the prompt speaks of it than one of the description.
        _, *anchor = min(anchors, default=(True, 0, 0))
        ranked.append(Ranked(tool, round(score, 3), tuple(matched), hit, *anchor))
    return sorted(ranked, key=lambda one: -one.score)


def _word_at(text: str, at: int) -> str:
    match = _WORD.match(text, at)
    return match.group() if match else ""


def _words_of(text: str) -> list[re.Match[str]]:
    return list(_WORD.finditer(text))


def name_stems(tool: ToolSpec) -> set[str]:
    """The telling words of a tool's name; all of them when none tells much."""
    return set(stems(tool.name)) or {stem(word) for word in words(tool.name)}


def _vocabulary(tool: ToolSpec) -> dict[str, float]:
    """The stems that speak for a tool, with their weights."""
    weights: dict[str, float] = {}
    for parameter in parameters_of(tool):
        for one in parameter.hints:
            weights[one] = max(weights.get(one, 0), 0.75)
        for one in stems(parameter.name):
            weights[one] = max(weights.get(one, 0), 1.0)
        for choice in parameter.choices:
            for one in stems(str(choice)):
                weights[one] = max(weights.get(one, 0), 0.75)
    for one in stems(tool.description):
        weights[one] = max(weights.get(one, 0), 1.0)
    for one in [*name_stems(tool), *stems(tool.display_name)]:
        weights[one] = 1.0 if one in GENERIC else 3.0
    return {one: w * 0.6 if one in GENERIC and w < 1 else w for one, w in weights.items()}


def _weight(one: str, weights: Mapping[str, float]) -> float:
    if one in weights:
        return weights[one]
    alike = [w for other, w in weights.items() if _alike(one, other)]
    return max(alike, default=0.0) / 2


def _alike(one: str, other: str) -> bool:
    return related(one, other) or (min(len(one), len(other)) >= 4 and abbreviates(one, other))


def near(one: str, other: str) -> bool:
    return related(one, other) or abbreviates(one, other)


def distinct(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The best tool, and others that are named by words of their own."""
    taken = [ranked[0]]
    for one in ranked[1:]:
        telling = {s for s in one.named if s not in GENERIC}
        others = frozenset[str]().union(*(other.named for other in taken))
        if one.score >= min(0.6 * ranked[0].score, 2.0) and telling - others:
            taken.append(one)
    return taken
