"""The demo model's way with nbagent's own tools: files, skills, the notebook.

Owns when their rules hold and how a prompt with two parts is taken (`… and write it to out.md`).
What one prompt wants of one host is in `known_files`, `known_skills`, `known_notebook`; tools of
any other kind, MCP servers' among them, are `rules`'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nbagent.contracts.chat import ChatRequest, Message, ToolSpec
from nbagent.providers.offline.known_answers import failed, gist, told
from nbagent.providers.offline.known_files import files_plan
from nbagent.providers.offline.known_notebook import notebook_plan
from nbagent.providers.offline.known_plan import Ask, Plan, known_as
from nbagent.providers.offline.known_skills import skills_plan
from nbagent.providers.offline.known_words import Reading, read_prompt
from nbagent.providers.offline.results import Made, read_conversation

_MOST_CHARS = 4_000
_TO_FILE = r"(?:to|into|in|as)\s+(?:(?:a|the|new|file|called|named)\s+)*(?P<path>‹p\d+›)"
_IT = (
    r"(?:it|them|that|this|these|everything|all)?"
    r"|(?:the|a|an|its|your)\s+(?:\w+\s+)?"
    r"(?:summary|result|results|answer|list|text|content|contents|output|matches|lines|table"
    r"|numbers?|values?|story|poem|essay|report)"
)
_THEN_WRITE = re.compile(
    r"(?P<first>.+?)[,;.]?\s+(?:and\s+then|and|then|&)\s+(?:please\s+)?(?:write|save|store|put)\s+"
    rf"(?:{_IT})\s*{_TO_FILE}",
    re.I | re.S,
)
_WRITE_WHAT = re.compile(
    rf"\b(?:write|save|store|put)\s+(?P<first>(?:the|a|an)\s+[^‹]+?(?:‹p\d+›)?)\s+{_TO_FILE}",
    re.I | re.S,
)
_WRITE_IT = re.compile(rf"\b(?:write|save|store|put)\s+(?:{_IT})\s+{_TO_FILE}", re.I)
_SUMMARY_OF = re.compile(
    r"(?:a|the)\s+(?:short\s+|brief\s+)?summary\s+of\s+(?P<of>.+)", re.I | re.S
)
_IT_AGAIN = re.compile(
    r"\b(?:in|to|of|from|summari[sz]e|read|show|open|is|does)\s+(?P<it>it|the\s+file|(?:this|that)"
    r"\s+file)\b(?!\s+(?:in|on|at)\b)",
    re.I,
)


def known_tools(tools: Sequence[ToolSpec]) -> dict[str, str]:
    """nbagent's own tools among these: by their known names, the names that they have here."""
    named: dict[str, str] = {}
    for tool in tools:
        if (known := known_as(tool)) is not None:
            named.setdefault(known, tool.name)
    return named


@dataclass(frozen=True, slots=True)
class Known:
    """What the known tools have to do with a request."""

    ask: Ask
    plan: Plan | None

    @property
    def failures(self) -> list[Made]:
        """Their calls that failed."""
        return [one for one in self.ask.made if not one.ok]

    @property
    def text(self) -> str:
        """What came back, in words; what failed, too."""
        blocks = [failed(one) for one in self.failures]
        if blocks or self.plan is None or not self.plan.text:
            good = [one for one in self.ask.made if one.ok]
            blocks = [told(one, self.ask.prompt) for one in _last(good)] + blocks
            blocks += [self.plan.note] if self.plan is not None and self.plan.note else []
        else:
            blocks = [self.plan.text]
        return "\n\n".join(dict.fromkeys(blocks))

    @property
    def gist(self) -> str:
        """What may be written to a file."""
        good = _last([one for one in self.ask.made if one.ok])
        if self.failures or (self.plan is not None and self.plan.text):
            return ""
        return "\n".join(gist(one, self.ask.prompt) for one in good)


def _last(made: Sequence[Made]) -> list[Made]:
    """The results of the last turn: those before it only led to them."""
    turn = max((one.turn for one in made), default=0)
    return [one for one in made if one.turn == turn]


def known_for(request: ChatRequest, tools: Sequence[ToolSpec]) -> Known:
    """Look for a plan; there is none where the prompt wants nothing of these tools."""
    conversation = read_conversation(request.messages)
    offered = known_tools(tools)
    back = {here: known for known, here in offered.items()}

    def renamed(made: Sequence[Made]) -> list[Made]:
        return [replace(one, name=back[one.name]) for one in made if one.name in back]

    now = conversation[-1]
    earlier = [one for exchange in conversation[:-1] for one in renamed(exchange.made)]
    reading = _with_it(read_prompt(now.prompt), earlier)
    ask = Ask(now.prompt[:_MOST_CHARS], reading, offered, renamed(now.made), earlier)
    if not offered:
        return Known(ask, None)
    for rules in (skills_plan, notebook_plan, files_plan):
        plan = rules(ask)
        if plan is not None:
            return Known(ask, plan)
    return Known(ask, None)


def _with_it(reading: Reading, earlier: Sequence[Made]) -> Reading:
    """`Summarise it`: the file of which the conversation spoke last."""
    paths = [one.arguments["path"] for one in earlier if one.ok and "path" in one.arguments]
    match = _IT_AGAIN.search(reading.text) if paths and not reading.paths else None
    if match is not None:
        mark = reading.put("p", str(paths[-1]))
        reading.text = f"{reading.text[: match.start('it')]}{mark}{reading.text[match.end('it') :]}"
    return reading


@dataclass(frozen=True, slots=True)
class Saving:
    """A prompt that wants something done and its result written to a file."""

    first: ChatRequest | None
    """What has to be done first, as a request of its own; None: the last answer is meant."""
    path: str
    tool: str
    last_answer: str = ""
    literal: bool = False
    """The words themselves may be meant, if nothing can be made of them."""


def saving(request: ChatRequest) -> Saving | None:
    """The two parts of a prompt that ends in writing a file; None for any other."""
    tool = known_tools(request.tools).get("fs.write")
    if tool is None or request.tool_choice not in (None, "auto", "required"):
        return None
    prompt = read_conversation(request.messages)[-1].prompt
    reading = read_prompt(prompt)
    literal = False
    if match := _THEN_WRITE.search(reading.text):
        first = reading.typed(match["first"])
    elif (match := _WRITE_IT.search(reading.text)) is not None:
        said = [m.text for m in request.messages if m.role == "assistant" and not m.tool_calls]
        before = said[-1] if said else ""
        return Saving(None, reading.whole(match["path"]), tool, before) if before else None
    elif match := _WRITE_WHAT.search(reading.text):
        summed = _SUMMARY_OF.fullmatch(match["first"])
        first = reading.typed(f"Summarise {summed['of']}" if summed else match["first"])
        literal = summed is None
    else:
        return None
    path = reading.whole(match["path"])
    inner = _of_first(request, first, tool)
    return Saving(inner, path, tool, literal=literal)


def _of_first(request: ChatRequest, prompt: str, tool: str) -> ChatRequest:
    """The request as if only the first part had been asked, and nothing been written."""
    messages = [kept for one in request.messages if (kept := _without(one, tool)) is not None]
    place = max(i for i, message in enumerate(messages) if message.role == "user")
    messages[place] = Message.of("user", prompt)
    kept = tuple(one for one in request.tools if one.name != tool)
    return request.model_copy(update={"messages": tuple(messages), "tools": kept})


def _without(message: Message, tool: str) -> Message | None:
    """The message without calls and results of a tool; None when nothing is left of it."""
    if message.role == "tool":
        return None if message.name == tool else message
    if not any(one.name == tool for one in message.tool_calls):
        return message
    calls = tuple(one for one in message.tool_calls if one.name != tool)
    return message.model_copy(update={"tool_calls": calls}) if calls else None


def saved_text(made: Made) -> str:
    """What became of the writing."""
    one = replace(made, name="fs.write")
    return told(one, "") if one.ok else failed(one)
