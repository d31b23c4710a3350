"""What the demo model does next: which of the tools the prompt asks for, or the answer.

The arguments come from `arguments`, the words of the answer from `answers` and
`talk`. The same request always gives the same decision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ChatRequest, Message, ToolSpec
from nbagent.providers.offline.answers import answer, asks_to_compare
from nbagent.providers.offline.arguments import Filled, fill, forced_arguments
from nbagent.providers.offline.known_plan import Plan
from nbagent.providers.offline.known_tools import Saving, known_for, saved_text, saving
from nbagent.providers.offline.ranking import (
    ENOUGH,
    GENERIC,
    Ranked,
    distinct,
    name_stems,
    near,
    rank,
)
from nbagent.providers.offline.results import (
    Exchange,
    Made,
    call_key,
    read_conversation,
    values_for,
)
from nbagent.providers.offline.schema import Parameter, from_server, parameters_of, preference
from nbagent.providers.offline.talk import by_itself, introduction, long_text
from nbagent.providers.offline.words import (
    LISTING_VERBS,
    WRITING_VERBS,
    Candidate,
    candidates,
    stem,
    stems,
    words,
)

_MOST_CALLS = 24
_TIE = 0.7
_MOST_TURNS = 8
_FINAL_ERRORS = ("E_DENIED", "E_INTERRUPTED")
_CHANGING = WRITING_VERBS | set(words("commit reset checkout push merge rebase"))
_CHANGING_STEMS = frozenset(stem(word) for word in _CHANGING)
_GO_ON = re.compile(r"\b(go on|continue)\b.*\bwhere\b.*\b(stopped|ended|left)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that the demo model makes."""

    tool: str
    arguments: dict[str, Any]

    @property
    def key(self) -> bytes:
        """Equal for the same tool with the same arguments."""
        return call_key(self.tool, self.arguments)


@dataclass(frozen=True, slots=True)
class Decision:
    """Calls to make, or the text of the answer; and why."""

    reasoning: str
    calls: tuple[Wish, ...] = ()
    text: str = ""
    gist: str = ""
    """The part of an answer that may be written to a file; empty when it is none."""


def decide(request: ChatRequest) -> Decision:
    """Decide what to say to a request."""
    said = _cut_off(request.messages)
    if said is None:
        return _decided(request)
    before = request.model_copy(update={"messages": request.messages[:-2]})
    decision = _decided(before)
    if decision.text.startswith(said):
        rest = decision.text[len(said) :].lstrip()
        return replace(decision, text=rest, reasoning="The answer was cut off; here is its rest.")
    return decision


def _decided(request: ChatRequest) -> Decision:
    two = saving(request)
    decision = None if two is None else _saved(request, two)
    return decision or _Deciding(request).decision()


def _saved(request: ChatRequest, two: Saving) -> Decision | None:
    """First what the prompt asks for, then writing it; None when its words are to be written."""
    first = Decision("The last answer is meant.", gist=two.last_answer)
    if two.first is not None:
        deciding = _Deciding(two.first)
        if two.literal and not deciding.is_spoken_of:
            return None
        first = deciding.decision()
    if first.calls or not first.gist:
        return first
    write = Wish(two.tool, {"path": two.path, "content": first.gist})
    made = [one for one in read_conversation(request.messages)[-1].made if one.name == two.tool]
    if not made:
        return Decision("That is done; now it is written.", (write,))
    said = saved_text(made[-1])
    blocks = [first.text, said] if first.text else [said]
    return Decision("It is written, or it cannot be.", text="\n\n".join(blocks), gist=first.gist)


def _cut_off(messages: Sequence[Message]) -> str | None:
    """The part of an answer that the person asks to go on with; None when they ask something."""
    if len(messages) < 3 or messages[-1].role != "user" or messages[-2].role != "assistant":
        return None
    if messages[-2].tool_calls or not _GO_ON.search(messages[-1].text):
        return None
    return messages[-2].text


class _Deciding:
    def __init__(self, request: ChatRequest) -> None:
        conversation = read_conversation(request.messages)
        self.now: Exchange = conversation[-1]
        self.earlier = [one for exchange in conversation[:-1] for one in exchange.made]
        self.prompt = self.now.prompt
        self.choice = request.tool_choice or "auto"
        self.tools = () if self.choice == "none" else request.tools
        if self.choice in {tool.name for tool in request.tools}:
            self.tools = tuple(tool for tool in request.tools if tool.name == self.choice)
        self.known = known_for(request, self.tools if self.choice in ("auto", "required") else ())
        self.all_tools = self.tools
        own = self.known.ask.offered.values()
        if self.known.plan is not None or self.choice != "required":
            self.tools = tuple(tool for tool in self.tools if tool.name not in own)
        if self.known.plan is not None:
            others = [one for one in self.now.made if one.name not in own]
            self.now = replace(self.now, made=tuple(others))
        self.forced = bool(self.tools) and self.choice not in ("auto", "none") and not self.now.made
        self.specs: Mapping[str, ToolSpec] = {tool.name: tool for tool in request.tools}
        named = frozenset(stem(w) for tool in self.tools for w in words(tool.name))
        self.found = candidates(self.prompt, named)
        self.ranked = [one for one in rank(self.tools, self.prompt) if not _only_hinted(one)]
        self.missing: list[tuple[ToolSpec, tuple[Parameter, ...]]] = []

    @property
    def is_spoken_of(self) -> bool:
        """Whether the prompt's own words ask for something that can be done here."""
        best = self.ranked[0].score if self.ranked else 0.0
        return self.known.plan is not None or best >= ENOUGH or bool(long_text(self.prompt))

    def decision(self) -> Decision:
        """The calls that are still open, else the answer."""
        decision = None if self.known.plan is None else self._with_known(self.known.plan)
        return decision or self._with_others()

    def _with_known(self, plan: Plan) -> Decision | None:
        """What nbagent's own tools are asked for; None when the prompt means another tool."""
        spoken = [] if plan.sure else self._spoken_of(plan)
        if spoken and plan.text and not self.known.ask.made:
            return None
        own = self._planned(spoken)
        self.missing.clear()
        said = {str(value) for one in own for value in one.arguments.values()}
        if said & set(plan.claims):
            return None
        made = {one.key for one in self.now.made}
        calls = [Wish(self.known.ask.offered[one.tool], one.arguments) for one in plan.calls]
        calls += [one for one in own if one.key not in made]
        everything = [*self.known.ask.made, *self.now.made]
        turns = 1 + max((one.turn for one in everything), default=-1)
        if calls and all(one.ok for one in everything) and turns < _MOST_TURNS:
            listed = ", ".join(f"{one.tool}({dump_json(one.arguments).decode()})" for one in calls)
            lead = "The results so far lead on to" if everything else "The prompt asks for"
            return Decision(f"{lead} {listed}.", tuple(calls))
        told = [answer(self.prompt, self.now.made)] if self.now.made else []
        text = "\n\n".join(block for block in (*told, self.known.text) if block)
        gist = "\n\n".join(block for block in (*told, self.known.gist) if block)
        return Decision("All that was asked for is there, or cannot be.", text=text, gist=gist)

    def _spoken_of(self, plan: Plan) -> list[Ranked]:
        """Other tools whose names the prompt says outside of what the plan is about."""
        free = self.prompt
        for claim in plan.claims:
            free = free.replace(claim, " ")
        spoken = set(stems(free))
        return [one for one in self._wanted() if (one.named - GENERIC) & spoken]

    def _with_others(self) -> Decision:
        wanted = self._wanted()
        why = self._why(wanted)
        text = None if self.forced or self.now.made else by_itself(self.prompt, bool(wanted))
        if text is not None:
            return Decision(
                "No tool is needed: the rules can do this themselves.", text=text, gist=text
            )
        planned = self._planned(wanted)
        made = {one.key for one in self.now.made}
        known = self._known_already()
        new = [one for one in planned if one.key not in made and one.key not in known]
        new += self._second_try(made | {one.key for one in new})
        turns = 1 + max((one.turn for one in self.now.made), default=-1)
        denied = any(one.error.get("code") == "E_DENIED" for one in self.now.made)
        if new and not denied and len(made) < _MOST_CALLS and turns < _MOST_TURNS:
            return Decision(self._reasoning(why, new), tuple(new))
        return self._answered(planned, known, why)

    def _wanted(self) -> list[Ranked]:
        """The tools that the prompt asks for, in its order; none when it asks for none."""
        if self.forced:
            return self.ranked[:1]
        best = self.ranked[0].score if self.ranked else 0.0
        if best >= ENOUGH:
            return sorted(distinct(self._ties_settled()), key=lambda one: one.anchor)
        if asks_to_compare(self.prompt) and self.earlier and not self.found:
            return []
        sums = any(one.kind == "expression" for one in self.found)
        for one in self.ranked:
            if sums and any("expression" in preference(p) for p in parameters_of(one.tool)):
                return [one]
        last = next((one.name for one in reversed(self.earlier) if one.name in self.specs), None)
        for one in self.ranked:
            if one.tool.name == last and self.found:
                return [one]
        if by_itself(self.prompt, False) or long_text(self.prompt):
            return []
        # No word speaks for a tool; take the first one that the prompt's values fit.
        for one in self.ranked:
            filled = fill(one.tool, "", self.found)
            if filled.arguments and any(filled.arguments):
                return [one]
        return []

    def _ties_settled(self) -> list[Ranked]:
        """Of a server's tools that are meant nearly alike, that one first that takes most.

        `What time is it in Oslo?` does not convert, since it says no time of day.
        """
        first = self.ranked[0]
        near_first = [
            one
            for one in self.ranked
            if one.score >= _TIE * first.score and from_server(one.tool.name)
        ]
        if first not in near_first:
            return self.ranked
        taken: dict[str, int] = {}
        for one in near_first:
            # By the prompt alone: results must not make another tool the first.
            sets = fill(one.tool, self.prompt, self.found, anchor=one.anchor_end).arguments
            taken[one.tool.name] = max((len(arguments) for arguments in sets), default=-1)
        near_first.sort(key=lambda one: -taken[one.tool.name])
        return near_first + [one for one in self.ranked if one not in near_first]

    def _planned(self, wanted: Sequence[Ranked]) -> list[Wish]:
        planned: list[Wish] = []
        for position, one in enumerate(wanted):
            own = [c for c in self.found if _region(wanted, position, c)]
            planned += self._calls_of(one, own, depth=0)
        unique = {one.key: one for one in planned}
        return list(unique.values())

    def _calls_of(self, one: Ranked, own: Sequence[Candidate], *, depth: int) -> list[Wish]:
        """The calls of one tool; when an argument is missing, of a tool that may give it."""
        filled = self._filled(one, own)
        if not filled.arguments and len(own) < len(self.found):
            filled = self._filled(one, self.found)
        if filled.arguments:
            return [Wish(one.tool.name, arguments) for arguments in filled.arguments]
        if depth < 3:
            for provider in self._providers(one.tool, filled.missing):
                calls = self._calls_of(provider, self.found, depth=depth + 1)
                if calls:
                    return calls
        if self.forced:
            return [Wish(one.tool.name, forced_arguments(one.tool, self.prompt, self.found))]
        if depth == 0:
            self.missing.append((one.tool, filled.missing))
        return []

    def _filled(self, one: Ranked, own: Sequence[Candidate]) -> Filled:
        results = [*self.earlier, *self.now.made]
        if any(made.ok and made.name == one.tool.name for made in self.now.made):
            # Its own work is done; what came later must not start it again.
            first = next(made for made in self.now.made if made.name == one.tool.name)
            results = [m for m in results if m.turn < first.turn or m in self.earlier]
        return fill(
            one.tool,
            self.prompt,
            own,
            lambda parameter: values_for(parameter, one.tool, results, self.specs, self.prompt),
            anchor=one.anchor_end,
        )

    def _providers(self, tool: ToolSpec, missing: Sequence[Parameter]) -> list[Ranked]:
        """Other tools, those first whose words speak of what is missing."""
        needed = {s for parameter in missing for s in parameter.hints}
        subject = name_stems(tool) - GENERIC
        scored: list[tuple[float, Ranked]] = []
        for one in self.ranked:
            named = set(words(one.tool.name))
            if one.tool.name == tool.name or named & WRITING_VERBS:
                continue
            about = stems(one.tool.name) + stems(one.tool.description)
            shared = sum(
                1.0 if s in about else 0.5 if any(near(s, other) for other in about) else 0.0
                for s in needed
            )
            if named & LISTING_VERBS:
                # `list_notes` gives what `read_note` needs, whatever the parameter is called.
                shared += 0.5 * len(subject & set(about))
            if shared:
                scored.append((shared + 0.2 * one.score, one))
        return [one for _, one in sorted(scored, key=lambda pair: -pair[0])]

    def _known_already(self) -> dict[bytes, Made]:
        """Calls of earlier exchanges that need not be made again."""
        if re.search(r"\b(again|once more|refresh|repeat|retry|now|latest)\b", self.prompt, re.I):
            return {}
        return {one.key: one for one in self.earlier if one.ok}

    def _second_try(self, made: set[bytes]) -> list[Wish]:
        """For each failed call one other, with another argument or of another tool; only once."""
        failed = [one for one in self.now.made if not one.ok]
        if not failed or any(one.turn > failed[0].turn for one in self.now.made):
            return []
        tries: list[Wish] = []
        for one in failed:
            tries += self._other_call(one, made | {wish.key for wish in tries})
        return tries

    def _other_call(self, failed: Made, made: set[bytes]) -> list[Wish]:
        final = failed.error.get("code") in _FINAL_ERRORS or from_server(failed.name)
        if final or failed.name not in self.specs:
            return []
        for arguments in _other_arguments(failed, self.specs[failed.name], self.found):
            wish = Wish(failed.name, arguments)
            if wish.key not in made:
                return [wish]
        for one in self.ranked:
            if one.score < ENOUGH or one.tool.name == failed.name:
                continue
            for arguments in self._filled(one, self.found).arguments[:1]:
                wish = Wish(one.tool.name, arguments)
                if wish.key not in made:
                    return [wish]
        return []

    def _answered(self, planned: Sequence[Wish], known: Mapping[bytes, Made], why: str) -> Decision:
        if self.now.made and len(self.known.ask.made) == len(self.now.made):
            return Decision("All results are there.", text=self.known.text, gist=self.known.gist)
        results = list(self.now.made)
        results += [known[one.key] for one in planned if one.key in known]
        results = _all_meant(self.prompt, results, self.earlier)
        if results:
            reasoning = "All results are there: " if self.now.made else "Earlier results suffice: "
            named = ", ".join(dict.fromkeys(one.name for one in results))
            note = self._missing_note() if self.now.made else ""
            text = answer(self.prompt, results, note)
            gist = text if all(one.ok for one in results) else ""
            return Decision(reasoning + f"{len(results)} from {named}.", text=text, gist=gist)
        if (text := long_text(self.prompt)) is not None:
            return Decision("A long text is asked for; no tool is needed.", text=text, gist=text)
        return Decision(why, text=introduction(self.prompt, self.all_tools, self._missing_note()))

    def _missing_note(self) -> str:
        lines = [
            f"`{tool.name}` needs {', '.join(f'`{one.name}`' for one in missing)},"
            " and neither the prompt nor a result says it."
            for tool, missing in self.missing
            if tool.name not in {one.name for one in self.now.made}
        ]
        return "\n".join(lines)

    def _why(self, wanted: Sequence[Ranked]) -> str:
        if not self.tools:
            return "There is no tool to choose from."
        scores = ", ".join(
            f"{one.tool.name} {one.score:.1f}{_in_brackets(one.matched)}" for one in self.ranked[:4]
        )
        found = ", ".join(one.text for one in self.found) or "none"
        chosen = ", ".join(one.tool.name for one in wanted) or "no tool"
        return f"Words of the prompt against the tools: {scores}. Values: {found}. So: {chosen}."

    def _reasoning(self, why: str, new: Sequence[Wish]) -> str:
        failed = [one for one in self.now.made if not one.ok]
        listed = ", ".join(f"{one.tool}({dump_json(one.arguments).decode()})" for one in new)
        if failed:
            return f"{failed[0].name} failed; one more try: {listed}."
        if self.now.made:
            return f"The results so far lead on to {listed}."
        return f"{why} Calling {listed}."


def _in_brackets(listed: Sequence[str]) -> str:
    return f" ({', '.join(listed)})" if listed else ""


def _only_hinted(one: Ranked) -> bool:
    """Whether a server's tool would change something and the prompt does not say its name."""
    names = set(words(one.tool.name))
    return (
        from_server(one.tool.name) and bool(names & _CHANGING) and not one.named & _CHANGING_STEMS
    )


def _region(wanted: Sequence[Ranked], position: int, one: Candidate) -> bool:
    """Whether a value stands in the part of the prompt that speaks of this tool."""
    starts = [0, *(other.anchor for other in wanted[1:])]
    end = starts[position + 1] if position + 1 < len(starts) else None
    return starts[position] <= one.start and (end is None or one.start < end)


def _other_arguments(
    failed: Made, tool: ToolSpec, found: Sequence[Candidate]
) -> list[dict[str, Any]]:
    """Other arguments for a failed call: from its error's words, the prompt, another spelling."""
    said = (
        f"{failed.error.get('message', '')} {dump_json(failed.error.get('details') or '').decode()}"
    )
    offered = [
        a or b for a, b in re.findall(r"['\"`]([^'\"`\n]{1,80})['\"`]|([^\W_][\w.-]*)", said)
    ]
    tries: list[dict[str, Any]] = []
    for name, value in failed.arguments.items():
        if not isinstance(value, str):
            continue
        by_low = {one.lower().strip(".,"): one.strip(".,") for one in offered if one != value}
        by_low.pop(value.lower(), None) if by_low.get(value.lower()) == value else None
        near = get_close_matches(value.lower(), list(by_low), 1, 0.6)
        tries += [{**failed.arguments, name: by_low[one]} for one in near]
    required = [one for one in parameters_of(tool) if one.required]
    if len(required) == 1:
        for arguments in fill(tool, "", found).arguments:
            tries.append({**failed.arguments, **arguments})
    for name, value in failed.arguments.items():
        if isinstance(value, str) and value.title() != value and " " not in value.strip():
            tries.append({**failed.arguments, name: value.title()})
    return tries


def _all_meant(prompt: str, results: list[Made], earlier: Sequence[Made]) -> list[Made]:
    """Add earlier results when the prompt compares and has too little of its own to compare."""
    good = [one for one in results if one.ok]
    if not asks_to_compare(prompt) or len(good) > 1 or not earlier:
        return results
    if good and not re.search(r"\b(them|these|those|all|both|others?|than|and)\b", prompt, re.I):
        return results
    name = good[0].name if good else next((one.name for one in reversed(earlier) if one.ok), None)
    before = [one for one in earlier if one.ok and one.name == name]
    unique = {one.key: replace(one) for one in [*before, *results]}
    return list(unique.values())
