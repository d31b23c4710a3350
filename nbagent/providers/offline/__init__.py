"""`nbagent.offline` and the provider of this name: models without network, key or server.

`script([...])` is a model that answers what it was told to, for tests and demos; `offline:demo`
follows visible rules (`demo`; in a workflow those of `workflow`). Owns the steps of a script, their
order, and a recorded run as such steps: the model that answers like it, and a test's source. How a
step is played is in `stream`.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, get_args

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ErrorInfo, ModelCode, ModelError, UsageError, error_from_info
from nbagent.contracts.messages import redacted
from nbagent.contracts.model import ChatRequest, ModelInfo, ProviderConfig
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.providers.offline.demo import demo_answer
from nbagent.providers.offline.stream import OfflineModel, ScriptedAnswer, call
from nbagent.providers.offline.walk import is_workflow, workflow_answer
from nbagent.providers.provider import Provider

__all__ = [
    "PROVIDER",
    "OfflineClient",
    "Script",
    "ScriptedAnswer",
    "call",
    "calls",
    "cut",
    "delay",
    "error",
    "reasoning",
    "replay",
    "script",
    "step",
    "text",
]

DEMO = "demo"
DELAY_VARIABLE = "NBAGENT_OFFLINE_DELAY_MS"
"""Environment variable: whole milliseconds before each piece that `offline:demo` streams."""
_DELAY_MS = 15.0
StepLike = str | ScriptedAnswer | Callable[[ChatRequest], "str | ScriptedAnswer"]
"""A text, a step, or a function of the request that gives one of them."""


step = ScriptedAnswer
"""Combines text, reasoning and calls in one answer."""


def text(answer: str = "", *, pieces: Sequence[str] | None = None) -> ScriptedAnswer:
    """An answer of text; `pieces` says how it is streamed."""
    return ScriptedAnswer(text=answer, pieces=pieces)


def reasoning(thought: str, answer: str = "") -> ScriptedAnswer:
    """What the model thinks aloud, and what it says then."""
    return ScriptedAnswer(reasoning=thought, text=answer)


def calls(made: Sequence[ScriptedAnswer]) -> ScriptedAnswer:
    """Several tool calls in one answer: `calls([call("a", x=1), call("a", x=2)])`."""
    return ScriptedAnswer(calls=made)


def error(
    code: ModelCode,
    message: str = "the script says so",
    *,
    retry_after_s: float | None = None,
    retries: int = 0,
    status: int | None = None,
) -> ScriptedAnswer:
    """A failure of the provider, after `retries` visible notices of a retry."""
    if code not in get_args(ModelCode):
        raise UsageError(f"{code!r} is no code; take one of {', '.join(get_args(ModelCode))}")
    failure = ModelError(message, code=code, status=status, retry_after_s=retry_after_s)
    return ScriptedAnswer(error=failure, retries=retries)


def cut(text_so_far: str = "", *, calls: Sequence[ScriptedAnswer] = ()) -> ScriptedAnswer:
    """A stream that breaks after this text and before the last character of these calls."""
    message = "the stream broke off before the answer was whole; try again."
    failure = ModelError(message, code="LLM_BAD_RESPONSE", retryable=True)
    return ScriptedAnswer(text=text_so_far, calls=calls, error=failure)


def delay(seconds: float) -> ScriptedAnswer:
    """Wait before the next step. Takes no request by itself."""
    return ScriptedAnswer(wait_ms=seconds * 1000, only_waits=True)


class Script(OfflineModel):
    """A model that plays its steps, one for each request, and keeps what it was sent.

    Made by `script`. It is a client of its own (`Agent(model=script)`), and is found by
    `model_id` (`%%agent --model offline:NAME`). Any thread may use it.
    """

    def __init__(
        self, steps: Sequence[StepLike], *, name: str | None = None, delay_ms: float = 0.0
    ) -> None:
        self.name = name or f"script-{next(_numbers)}"
        self.is_named = name is not None
        """Whether a person gave the name."""
        self.delay_ms = delay_ms
        self.requests: list[ChatRequest] = []
        """Every request so far, in order, the ones after the last step too."""
        self._steps = tuple(steps)
        self._used = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Found by its name in the process that it comes to, and plays from its first step there.
        return _from_pickle, (self._steps, self.name, self.is_named, self.delay_ms)

    def __repr__(self) -> str:
        return f"<Script {self.model_id}: {self._used} of {len(self._steps)} steps used>"

    @property
    def model_id(self) -> str:
        """The id under which the magics find it."""
        return f"offline:{self.name}"

    def assert_complete(self) -> None:
        """Fail when steps were left over; the message names them."""
        steps = [f"step {n}: {to_python(entry)}" for n, entry in enumerate(self._steps, 1)]
        if left := steps[self._used :]:
            raise AssertionError(
                f"{self.model_id} was asked {len(self.requests)} times and has"
                f" {len(left)} of {len(self._steps)} steps left: {'; '.join(left)}"
            )

    async def list_models(self) -> list[ModelInfo]:
        """Itself."""
        return [ModelInfo(id=self.name, capabilities=("tools", "reasoning"))]

    def answer(self, request: ChatRequest) -> ScriptedAnswer:
        """The next step, the waits before it added."""
        waited_ms = 0.0
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            for entry in self._steps[self._used :]:
                self._used += 1
                if not (isinstance(entry, ScriptedAnswer) and entry.only_waits):
                    break
                waited_ms += entry.wait_ms
            else:
                raise ModelError(
                    f"{self.model_id} has no step for request {number}: its script has"
                    f" {len(self._steps)} steps; add one, or find out why it was asked again.",
                    code="LLM_BAD_RESPONSE",
                )
        scripted = cast("object", entry(request) if callable(entry) else entry)
        scripted = ScriptedAnswer(text=scripted) if isinstance(scripted, str) else scripted
        if not isinstance(scripted, ScriptedAnswer):
            raise TypeError(f"a step's function gave {scripted!r}, which is no text and no step")
        delay_ms = self.delay_ms if scripted.delay_ms is None else scripted.delay_ms
        waited_ms += scripted.wait_ms
        return replace(scripted, wait_ms=waited_ms, delay_ms=delay_ms, place=str(number))


scripts: dict[str, Script] = {}
"""All scripts by their names, in the order in which they were made."""
_numbers = itertools.count(1)


def script(steps: Sequence[StepLike], *, name: str | None = None, delay_ms: float = 0.0) -> Script:
    """A model that answers with these steps, one for each request.

    Example:
        ```python
        model = offline.script([offline.call("population", city="Oslo"), "Oslo has many."])
        run = nbagent.Agent(model=model, tools=[population]).run("How many live in Oslo?")
        assert model.requests[1].messages[-1].role == "tool"
        model.assert_complete()
        ```

    Args:
        steps: texts, what `text`, `reasoning`, `call`, `calls`, `step`, `error`, `cut` and `delay`
            give, or functions of the request that give one of these.
        name: for `--model offline:NAME`; `script-1`, `script-2`, … without. A name used again
            means the newer script.
        delay_ms: between two pieces of a stream.
    """
    if name is not None and not re.fullmatch(r"(?!demo$)[^\s:]+", name):
        raise UsageError(
            f"{name!r} cannot name a script; use a word without spaces and colons, not 'demo'."
        )
    for position, entry in enumerate(cast("Sequence[object]", steps), 1):
        if not (isinstance(entry, str | ScriptedAnswer) or callable(entry)):
            raise UsageError(
                f"step {position} of a script is {entry!r}; use a text, what nbagent.offline.step,"
                " call, calls, error, cut or delay give, or a function of the request."
            )
    new_script = Script(steps, name=name, delay_ms=delay_ms)
    scripts[new_script.name] = new_script
    return new_script


def _from_pickle(steps: Sequence[StepLike], name: str, is_named: bool, delay_ms: float) -> Script:
    new_script = scripts[name] = Script(steps, name=name, delay_ms=delay_ms)
    new_script.is_named = is_named
    return new_script


def to_python(scripted: StepLike) -> str:
    """A step as Python, in the shortest form that says it."""
    if not isinstance(scripted, ScriptedAnswer):
        return repr(scripted) if isinstance(scripted, str) else "a function of the request"
    if scripted.only_waits:
        return f"offline.delay({scripted.wait_ms / 1000:g})"
    text = scripted.text if scripted.pieces is None else "".join(scripted.pieces)
    fields = {
        "text": text,
        "reasoning": scripted.reasoning,
        "finish_reason": scripted.finish_reason,
    }
    parts = {name: repr(value) for name, value in fields.items() if value}
    calls: list[str] = []
    for tool_call in scripted.tool_calls:
        arguments = (
            f"raw={tool_call.arguments_raw!r}"
            if tool_call.arguments is None
            else repr(tool_call.arguments)
        )
        calls.append(f"offline.call({tool_call.name!r}, {arguments})")
    if calls:
        parts["calls"] = f"[{', '.join(calls)}]"
    if scripted.failure:
        parts["error"] = f"offline.error({scripted.failure.code!r}, {scripted.failure.message!r})"
    match list(parts):
        case [] | ["text"]:
            return repr(text)
        case ["calls"] if len(calls) == 1:
            return calls[0]
        case ["error"]:
            return parts["error"]
        case _:
            return (
                f"offline.step({', '.join(f'{name}={source}' for name, source in parts.items())})"
            )


class HasRecord(Protocol):
    """A run, live or out of the store."""

    @property
    def record(self) -> RunRecord: ...


def replay(run: HasRecord) -> Script:
    """The model of a run as a script: the same texts, reasoning, calls and errors in its order.

    Tools run anew and approvals are asked anew: `Agent(model=nbagent.offline.replay(run), …)`.
    """
    record = redacted(run.record)
    return script([_scripted_answer(turn) for turn in record.turns], name=f"replay-{record.id[:8]}")


def _scripted_answer(turn: EngineTurn) -> ScriptedAnswer:
    failure = None
    if turn.response is None or turn.response.finish_reason == "error":
        failure = error_from_info(turn.error or ErrorInfo("UNKNOWN", "no answer was kept"))
        if not isinstance(failure, ModelError):
            # A person's stop cannot be played again: the stream breaks where it was.
            failure = ModelError(failure.message, code="LLM_BAD_RESPONSE")
    if turn.response is None:
        return ScriptedAnswer(error=failure)
    message = turn.response.message
    tool_calls = list(message.tool_calls)
    if failure and tool_calls:
        # A stream that breaks loses the last character of its last call.
        raw = tool_calls[-1].arguments_raw + "}"
        tool_calls[-1] = tool_calls[-1].model_copy(update={"arguments_raw": raw})
    usual = "tool_calls" if tool_calls else "stop"
    finish = turn.response.finish_reason
    return ScriptedAnswer(
        text=message.text,
        reasoning=message.reasoning or "",
        calls=tool_calls,
        finish_reason=None if failure or finish == usual else finish,
        error=failure,
    )


def test_source(record: RunRecord) -> str:
    """The text of a pytest function that plays the run's model and expects its answer."""
    record = redacted(record)
    called = [run.tool_name for turn in record.turns for run in turn.tool_runs]
    known = {spec.name for tools in record.toolsets.values() for spec in tools}
    # A function goes by itself: its name alone is found in a notebook only.
    named = [name for name in dict.fromkeys(called) if name in known]
    tools = ", ".join(name if name.isidentifier() else repr(name) for name in named)
    name = "_".join(re.findall(r"[a-z0-9]+", record.prompt.lower())[:8]) or record.id[:8]
    steps = "".join(f"        {to_python(_scripted_answer(turn))},\n" for turn in record.turns)
    prompt, limit = record.prompt or "Go on.", record.limits.max_turns
    return (
        "import nbagent\nfrom nbagent import offline\n\n\n"
        f"def test_{name}(tools=None):\n"
        f'    """As in run {record.id}. Its functions stand in this file, or are given."""\n'
        f"    tools = tools or {f'[{tools}]' if tools else repr('none')}\n"
        f"    model = offline.script([\n{steps}    ])\n"
        f"    agent = nbagent.Agent(model=model, tools=tools, max_turns={limit}, quiet=True)\n"
        f"    run = agent.run({prompt!r})\n"
        f"    assert run.text == {record.text!r}\n"
        f"    called = [it.tool_name for turn in run.turns for it in turn.tool_runs]\n"
        f"    assert called == {called!r}\n"
        "    model.assert_complete()\n"
    )


class OfflineClient(OfflineModel):
    """Answers for `offline:` models. Keeps no state: what it says depends on the request."""

    def __init__(self, config: ProviderConfig) -> None:
        self.timeout_s = config.timeout_s

    async def list_models(self) -> list[ModelInfo]:
        """The demo and the scripts that were made in this process."""
        named = (DEMO, *scripts)
        return [ModelInfo(id=name, capabilities=("tools", "reasoning")) for name in named]

    def answer(self, request: ChatRequest) -> ScriptedAnswer:
        """What the demo or the named script says."""
        if request.model in scripts:
            return scripts[request.model].answer(request)
        if request.model != DEMO:
            known = ", ".join(f"offline:{name}" for name in (DEMO, *scripts))
            raise ModelError(
                f"there is no model offline:{request.model}; there are {known}, and a script is"
                " there once nbagent.offline.script([...]) has run.",
                code="LLM_HTTP_ERROR",
                status=404,
            )
        # The place in the conversation makes ids unique in it, and the same when asked again.
        user_text = "".join(message.text for message in request.messages if message.role == "user")
        call_prefix = sha256_hex(f"{len(request.messages)}/{user_text}")[:12]
        delay_text = os.environ.get(DELAY_VARIABLE, "")
        delay_ms = float(delay_text) if delay_text.isdecimal() else _DELAY_MS
        step = workflow_answer(request) if is_workflow(request) else demo_answer(request)
        return replace(step, place=call_prefix, delay_ms=delay_ms)


PROVIDER = Provider(name="offline", open=OfflineClient, default_model=DEMO, needs_key=False)
