"""`offline:demo`: a model made of rules. It chooses tools by words and answers about tables.

The same request always gives the same answer. `tool_choice` plans calls, `call_results` writes
about their results, `table_answers` about tables in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nbagent.contracts.canonical import json_object
from nbagent.contracts.messages import (
    ANSWER_BY_CALL,
    CONTINUE_PROMPT,
    FINAL_ANSWER,
    Message,
    TextPart,
)
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.offline.call_results import (
    PlannedCall,
    call_with_result,
    comparison,
    long_text,
    results_text,
)
from nbagent.providers.offline.plain_answers import plain_answer, repeated_text, sum_answer
from nbagent.providers.offline.stream import ScriptedAnswer, call
from nbagent.providers.offline.table_answers import table_answer, table_help
from nbagent.providers.offline.tool_choice import Conversation, last_calls, plan_calls
from nbagent.providers.offline.typed_answers import typed_answer
from nbagent.providers.offline.typed_prompt import TypedPrompt, read_prompt
from nbagent.providers.offline.understanding import CANNOT
from nbagent.providers.wires.tool_schemas import wire_schema

_MAX_ATTEMPTS = 3
"""Most times that a stopped call is made for one prompt."""
_AGAIN = re.compile(r"\b(?:again|now|latest|retry|nochmals?|noch einmal|erneut)\b", re.IGNORECASE)
_CONTINUE = re.compile(
    r"\W*(?:(?:please|bitte|ok(?:ay)?|yes|ja),? )?(?:(?:please )?continue|go (?:on|ahead)"
    r"|carry on|resume|proceed|again|(?:try|do|run|call) (?:it |that |this )?(?:once )?"
    r"(?:again|more)"
    r"|retry|repeat(?: (?:it|that))?|once more|weiter|mach weiter|weitermachen"
    r"|(?:versuch\w* es )?(?:nochmals?|noch ?mal|noch einmal)|yes|ja)(?:,? (?:please|bitte))?\W*",
    re.IGNORECASE,
)


def demo_answer(request: ChatRequest) -> ScriptedAnswer:
    """Answer a request by the rules: calls, a text, or the call that gives the final answer."""
    messages, answered_text = list(request.messages), ""
    while messages and messages[-1].typed_text == CONTINUE_PROMPT:
        messages.pop()
        while messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            answered_text = messages.pop().text + answered_text
    step = _with_final_answer(request.model_copy(update={"messages": tuple(messages)}))
    if not (answered_text and step.text.startswith(answered_text)):
        return step
    return replace(step, text=step.text[len(answered_text) :] or "That was the whole answer.")


def _with_final_answer(request: ChatRequest) -> ScriptedAnswer:
    final = next((tool for tool in request.tools if tool.name == FINAL_ANSWER), None)
    if final is None:
        return _rule_answer(request)
    others = tuple(tool for tool in request.tools if tool is not final)
    step = _rule_answer(request.model_copy(update={"tools": others}))
    if step.calls:
        return step
    talk = _read(request.messages)
    facts = [
        {**made.used, **(json_object(made.data) or {made.tool: made.data})}
        for made in talk.now or talk.earlier
        if made.ok and made.tool != FINAL_ANSWER
    ]
    schema = wire_schema(final.parameters, inline=True)
    answer = typed_answer(schema, facts, talk.prompt.text, step.text)
    if answer is None:
        text = "I cannot give the typed answer: its values are not in a result or in the prompt."
        return ScriptedAnswer(reasoning=step.reasoning, text=f"{text}\n\n{step.text}")
    return ScriptedAnswer(reasoning=step.reasoning, calls=[call(FINAL_ANSWER, answer)])


def _rule_answer(request: ChatRequest) -> ScriptedAnswer:
    talk = _read(request.messages)
    tools = {tool.name: tool for tool in request.tools if request.tool_choice != "none"}
    if request.tool_choice in tools:
        tools = {request.tool_choice: tools[request.tool_choice]}
    if stopped := _stopped_calls(talk.now, tools):
        return _call_step(stopped, "A call was stopped, so I make it again.")
    plan = plan_calls(talk, tools, forced=request.tool_choice in {"required", *tools})
    is_fresh = talk.asks_again or _AGAIN.search(talk.prompt.text)
    reusable = talk.earlier if plan.reuses and not is_fresh else []
    known = {made.key: made for made in [*reusable, *talk.now]}
    new = {made.key: made for made in plan.planned if made.key not in known}
    if new and not talk.now:
        return _call_step(list(new.values()), plan.why)
    results = [known[made.key] for made in plan.planned if made.key in known] or talk.now
    if not results and _compares_earlier(talk):
        results = last_calls(talk.earlier)
    if results:
        return ScriptedAnswer(reasoning=plan.why, text=results_text(talk.prompt.text, results))
    text = (
        plain_answer(talk.prompt.text)
        or _about_table(talk, plan.note)
        or sum_answer(talk.prompt.text)
        or repeated_text(talk.prompt.text)
        or _attached_files(request)
    )
    return ScriptedAnswer(
        reasoning=plan.why, text=text or _introduction(talk, tools.values(), plan.note)
    )


def _about_table(talk: Conversation, note: str) -> str:
    answer = table_answer(talk.prompt, talk.before)
    rules = "" if answer.startswith(CANNOT) else _BY_RULES
    return "\n\n".join(filter(None, [note, answer, rules])) if answer else ""


_BY_RULES = "_Computed from the table in the prompt by the rules of offline:demo, not by a model._"


def _call_step(planned: Sequence[PlannedCall], why: str) -> ScriptedAnswer:
    return ScriptedAnswer(
        reasoning=why, calls=[call(made.tool, made.arguments) for made in planned]
    )


def _stopped_calls(now: Sequence[PlannedCall], tools: dict[str, ToolSpec]) -> list[PlannedCall]:
    """Return the calls whose last attempt was stopped, unless they were stopped too often."""
    last = {made.key: made for made in now}
    return [
        made
        for key, made in last.items()
        if made.code == "E_INTERRUPTED"
        and made.tool in tools
        and sum(other.key == key for other in now) < _MAX_ATTEMPTS
    ]


def _compares_earlier(talk: Conversation) -> bool:
    calls = last_calls(talk.earlier)
    return not talk.prompt.tables and bool(comparison(talk.prompt.text, calls))


def _read(messages: Sequence[Message]) -> Conversation:
    """Read the prompts and the calls. `again` and `continue` stand for the prompt before."""
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    prompts: list[TypedPrompt] = []
    now: list[PlannedCall] = []
    earlier: list[PlannedCall] = []
    asks_again = False
    for message in messages:
        if message.role == "user":
            if message.typed_text.endswith(ANSWER_BY_CALL):
                continue  # It asks for the typed answer to the prompt before.
            earlier += [made for made in now if made.ok]
            now = []
            prompt = read_prompt(message)
            is_continuing = bool(prompts and _CONTINUE.fullmatch(prompt.text))
            asks_again = is_continuing and bool(_AGAIN.search(prompt.text))
            if not is_continuing:
                prompts.append(prompt)
        for tool_call in message.tool_calls:
            now.append(call_with_result(tool_call, results.get(tool_call.id, "")))
    last = prompts.pop() if prompts else TypedPrompt()
    return Conversation(last, now, earlier, prompts, asks_again)


def _attached_files(request: ChatRequest) -> str:
    """Return the beginning of the text files attached to the last prompt."""
    last = [message.content for message in request.messages if message.role == "user"][-1:]
    files = [part for part in last[0] if isinstance(part, TextPart) and part.name] if last else []
    return "\n\n".join(f"Attached is `{file.name}`:\n\n{long_text(file.text)}" for file in files)


_ASKS_WHO = re.compile(
    r"\A\W*(?:hi|hello|hey|hallo|guten \w+|good (?:morning|evening|day)|thanks?|danke)\b"
    r"|\b(?:what can you|who are you|what are you|help|which tools|what tools|was kannst du"
    r"|wer bist du|hilfe)\b",
    re.IGNORECASE,
)


def _introduction(talk: Conversation, tools: Iterable[ToolSpec], note: str) -> str:
    """Say that this is a stand-in, why it cannot answer, and what it needs."""
    tables = [table for table in talk.prompt.tables if table.columns]
    names = ", ".join(f"`{tool.name}`" for tool in list(tools)[:8])
    usage = (
        f"The tools here: {names}. Use words of a tool's name and give its arguments as names,"
        " numbers or quoted text, or write the call itself in backticks."
        if names
        else "There is no tool here; name some with `--tools`."
    )
    about = note or (table_help(tables) if tables else "No rule of mine fits your words.")
    if not note and _ASKS_WHO.search(talk.prompt.text):
        about = "My answers follow rules for words."
    return (
        f"I am `offline:demo`, a rule-based stand-in and not a language model. {about}\n\n"
        f"{usage} I can also compute, count, answer simple questions"
        " about a table in the prompt, or write a long text.\n\nFor a language model choose one"
        " with `--model PROVIDER:MODEL`; `%agent models` lists what can be asked here."
    )
