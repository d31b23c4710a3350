"""`nbagent.offline` and the provider of this name: models without network, key or server.

`script([...])` is a model with fixed answers, for tests and demos; `offline:demo` follows visible
rules (`demo`), in a workflow those of `workflow_walk`, as `offline:walk` does. Owns the steps of a
script and their order, and turns a recorded run into a script or the source of a test. `stream`
plays a step.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, get_args

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ErrorInfo, ModelCode, ModelError, UsageError, error_from_info
from nbagent.contracts.messages import ImagePart, redacted
from nbagent.contracts.model import ChatRequest, ModelInfo, ProviderConfig
from nbagent.contracts.nearest import FEW_NAMES, name_list, nearest_hint
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.providers.offline.demo import demo_answer
from nbagent.providers.offline.stream import OfflineModel, ScriptedAnswer, call
from nbagent.providers.offline.workflow_walk import is_workflow, workflow_answer
from nbagent.providers.provider import Provider
from nbagent.shown.images import encoded_image, to_image

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
    "image",
    "reasoning",
    "replay",
    "script",
    "step",
    "text",
]

DEMO = "demo"
WALK = "walk"
_NO_WORKFLOW = (
    "I am `offline:walk`, a rule-based stand-in that follows the steps of a workflow, and this is"
    " no workflow. Start one with `%%agent --workflow PACKAGE --model offline:walk`, or choose"
    " `offline:demo` or a language model for a prompt."
)
DELAY_VARIABLE = "NBAGENT_OFFLINE_DELAY_MS"
"""Environment variable: whole milliseconds before each piece that `offline:demo` streams."""
_DELAY_MS = 15.0
AnswerFunction = Callable[[ChatRequest], "str | ScriptedAnswer"]
StepLike = str | ScriptedAnswer | AnswerFunction
Steps = Sequence[StepLike] | AnswerFunction
"""A text, a step, or a function that takes the request and returns one of them."""


step = ScriptedAnswer
"""One answer with text, reasoning and calls."""


def text(answer: str = "", *, pieces: Sequence[str] | None = None) -> ScriptedAnswer:
    """Answer with a text; `pieces` are its chunks in a stream."""
    return ScriptedAnswer(text=answer, pieces=pieces)


def image(picture: object, answer: str = "") -> ScriptedAnswer:
    """Answer with a text and an image: bytes of a PNG, JPEG, GIF or WebP file, or a figure."""
    part = picture if isinstance(picture, ImagePart) else to_image(picture)
    if part is None and isinstance(picture, bytes):
        part = encoded_image(picture)
    if not isinstance(part, ImagePart):
        raise UsageError(
            part
            or f"a {type(picture).__name__} is no image; give the bytes of a PNG, JPEG, GIF or "
            "WebP file, an ImagePart, or a figure"
        )
    return ScriptedAnswer(text=answer, images=(part,))


def reasoning(thought: str, answer: str = "") -> ScriptedAnswer:
    """Answer with reasoning and a text."""
    return ScriptedAnswer(reasoning=thought, text=answer)


def calls(made: Sequence[ScriptedAnswer]) -> ScriptedAnswer:
    """Answer with several tool calls: `calls([call("a", x=1), call("a", x=2)])`."""
    return ScriptedAnswer(calls=made)


def error(
    code: ModelCode,
    message: str = "the script says so",
    *,
    retry_after_s: float | None = None,
    retries: int = 0,
    status: int | None = None,
) -> ScriptedAnswer:
    """Fail as a provider does, after `retries` notices of a retry."""
    if code not in get_args(ModelCode):
        raise UsageError(
            f"{code!r} is not an error code; use one of {', '.join(get_args(ModelCode))}"
        )
    failure = ModelError(message, code=code, status=status, retry_after_s=retry_after_s)
    return ScriptedAnswer(error=failure, retries=retries)


def cut(text_so_far: str = "", *, calls: Sequence[ScriptedAnswer] = ()) -> ScriptedAnswer:
    """Break the stream after this text and before the last character of these calls."""
    message = "the stream was cut before the answer was complete; try again."
    failure = ModelError(message, code="LLM_BAD_RESPONSE", retryable=True)
    return ScriptedAnswer(text=text_so_far, calls=calls, error=failure)


def delay(seconds: float) -> ScriptedAnswer:
    """Wait before the next step. It answers no request itself."""
    return ScriptedAnswer(wait_ms=seconds * 1000, only_waits=True)


class Script(OfflineModel):
    """A model that plays its steps, one per request, and records the requests.

    Made by `script`. It is a client of its own (`Agent(model=script)`), and is found by
    `model_id` (`%%agent --model offline:NAME`). Any thread may use it.
    """

    def __init__(self, steps: Steps, *, name: str | None = None, delay_ms: float = 0.0) -> None:
        self.name = name or f"script-{next(_numbers)}"
        self.is_named = name is not None
        """True if a person chose the name."""
        self.delay_ms = delay_ms
        self.requests: list[ChatRequest] = []
        """All requests so far, in order, also those after the last step."""
        self._function = steps if callable(steps) else None
        """Answers each request; None if there are steps."""
        self._steps: tuple[StepLike, ...] = () if callable(steps) else tuple(steps)
        self._used = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process it is registered under its name and starts with its first step.
        steps = self._function or self._steps
        return _from_pickle, (steps, self.name, self.is_named, self.delay_ms)

    def __repr__(self) -> str:
        if self._function is not None:
            return f"<Script {self.model_id}: a function, {len(self.requests)} requests>"
        return f"<Script {self.model_id}: {self._used} of {len(self._steps)} steps used>"

    @property
    def model_id(self) -> str:
        """Model id for `--model`."""
        return f"offline:{self.name}"

    def assert_complete(self) -> None:
        """Raise AssertionError if steps are left; the message lists them."""
        steps = [f"step {n}: {to_python(entry)}" for n, entry in enumerate(self._steps, 1)]
        if left := steps[self._used :]:
            raise AssertionError(
                f"{self.model_id} was asked {len(self.requests)} times and has"
                f" {len(left)} of {len(self._steps)} steps left: {'; '.join(left)}"
            )

    async def list_models(self) -> list[ModelInfo]:
        """List this script."""
        return [ModelInfo(id=self.name, capabilities=("tools", "reasoning"))]

    def answer(self, request: ChatRequest) -> ScriptedAnswer:
        """Return the next step, with the waits before it added."""
        waited_ms = 0.0
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            left = self._steps[self._used :] if self._function is None else [self._function]
            for entry in left:
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
            raise TypeError(
                f"a step's function returned {scripted!r}; it must return a text or a step"
            )
        delay_ms = self.delay_ms if scripted.delay_ms is None else scripted.delay_ms
        waited_ms += scripted.wait_ms
        return replace(scripted, wait_ms=waited_ms, delay_ms=delay_ms, place=str(number))


scripts: dict[str, Script] = {}
"""All scripts of this process by name, in the order of creation."""
_numbers = itertools.count(1)


def script(steps: Steps, *, name: str | None = None, delay_ms: float = 0.0) -> Script:
    """Create a model that answers with these steps, one per request, or always by a function.

    Example:
        ```python
        model = offline.script([offline.call("population", city="Oslo"), "Oslo has many."])
        run = nbagent.Agent(model=model, tools=[population]).run("How many live in Oslo?")
        assert model.requests[1].messages[-1].role == "tool"
        model.assert_complete()
        ```

    Args:
        steps: texts, results of `text`, `image`, `reasoning`, `call`, `calls`, `step`, `error`,
            `cut` and `delay`, or functions that take the request and return one of these. One
            function alone answers every request, for example those of a batch.
        name: for `--model offline:NAME`; `script-1`, `script-2`, … without. A name used again
            means the newer script.
        delay_ms: wait between two pieces of a stream.
    """
    if name is not None and not re.fullmatch(r"(?!(?:demo|walk)$)[^\s:]+", name):
        raise UsageError(
            f"{name!r} cannot name a script; use a word without spaces and colons, not 'demo'"
            " or 'walk'."
        )
    listed: Any = [steps] if callable(steps) else steps
    if isinstance(listed, str | ScriptedAnswer) or not isinstance(listed, Iterable):
        raise UsageError(f"a script of {listed!r}: give a list of steps, or one function")
    for position, entry in enumerate(cast("Iterable[object]", listed), 1):
        if not (isinstance(entry, str | ScriptedAnswer) or callable(entry)):
            raise UsageError(
                f"step {position} of a script is {entry!r}; use a text, a result of"
                " nbagent.offline.step, call, calls, error, cut or delay, or a function of the"
                " request."
            )
    new_script = Script(steps, name=name, delay_ms=delay_ms)
    scripts[new_script.name] = new_script
    return new_script


def _from_pickle(steps: Steps, name: str, is_named: bool, delay_ms: float) -> Script:
    new_script = scripts[name] = Script(steps, name=name, delay_ms=delay_ms)
    new_script.is_named = is_named
    return new_script


def to_python(scripted: StepLike) -> str:
    """Write a step as Python, in its shortest form."""
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
    if scripted.images:
        parts["images"] = f"[{', '.join(map(_image_source, scripted.images))}]"
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


def _image_source(part: ImagePart) -> str:
    source = f"url={part.url!r}" if part.url else f"data={part.data!r}"
    return f"nbagent.ImagePart(media_type={part.media_type!r}, alt={part.alt!r}, {source})"


class HasRecord(Protocol):
    """A run, live or from the store."""

    @property
    def record(self) -> RunRecord: ...


def replay(run: HasRecord) -> Script:
    """Create a script from a run: the same texts, reasoning, calls and errors in order.

    Tools run again and approvals are asked again: `Agent(model=nbagent.offline.replay(run), …)`.
    """
    record = redacted(run.record)
    return script([_scripted_answer(turn) for turn in record.turns], name=f"replay-{record.id[:8]}")


def _scripted_answer(turn: EngineTurn) -> ScriptedAnswer:
    failure = None
    if turn.response is None or turn.response.finish_reason == "error":
        failure = error_from_info(turn.error or ErrorInfo("UNKNOWN", "no answer was kept"))
        if not isinstance(failure, ModelError):
            # A script cannot stop like a person: the stream breaks at this point instead.
            failure = ModelError(failure.message, code="LLM_BAD_RESPONSE")
    if turn.response is None:
        return ScriptedAnswer(error=failure)
    message = turn.response.message
    tool_calls = list(message.tool_calls)
    if failure and tool_calls:
        # `cut` drops the last character of the last call, so add one.
        raw = tool_calls[-1].arguments_raw + "}"
        tool_calls[-1] = tool_calls[-1].model_copy(update={"arguments_raw": raw})
    usual = "tool_calls" if tool_calls else "stop"
    finish = turn.response.finish_reason
    return ScriptedAnswer(
        text=message.text,
        reasoning=message.reasoning or "",
        images=message.images,
        calls=tool_calls,
        finish_reason=None if failure or finish == usual else finish,
        error=failure,
    )


def test_source(record: RunRecord) -> str:
    """Write a pytest function that plays the run's model and expects its answer."""
    record = redacted(record)
    called = [run.tool_name for turn in record.turns for run in turn.tool_runs]
    known = {spec.name for tools in record.toolsets.values() for spec in tools}
    # The function itself, not its name: only a notebook finds a tool by its name.
    named = [name for name in dict.fromkeys(called) if name in known]
    tools = ", ".join(name if name.isidentifier() else repr(name) for name in named)
    name = "_".join(re.findall(r"[a-z0-9]+", record.prompt.lower())[:8]) or record.id[:8]
    steps = "".join(f"        {to_python(_scripted_answer(turn))},\n" for turn in record.turns)
    prompt, limit = record.prompt or "Go on.", record.limits.max_turns
    return (
        "import nbagent\nfrom nbagent import offline\n\n\n"
        f"def test_{name}(tools=None):\n"
        f'    """As in run {record.id}. Define its functions in this file, or pass them."""\n'
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
    """Answers for `offline:` models. It has no state: an answer depends only on the request."""

    def __init__(self, config: ProviderConfig) -> None:
        self.timeout_s = config.timeout_s

    async def list_models(self) -> list[ModelInfo]:
        """List the demo, the walker of workflows and the scripts of this process."""
        usual = ("tools", "reasoning")
        walker = ("tools", "follows the steps of a workflow by rules")
        return [
            ModelInfo(id=DEMO, capabilities=usual),
            ModelInfo(id=WALK, capabilities=walker),
            *(ModelInfo(id=name, capabilities=usual) for name in scripts),
        ]

    def answer(self, request: ChatRequest) -> ScriptedAnswer:
        """Answer as the demo or the named script."""
        if request.model in scripts:
            return scripts[request.model].answer(request)
        if missing := missing_model(request.model):
            raise ModelError(missing, code="LLM_HTTP_ERROR", status=404)
        # Call ids from the position in the conversation: unique in it, and equal in a repeat.
        user_text = "".join(message.text for message in request.messages if message.role == "user")
        call_prefix = sha256_hex(f"{len(request.messages)}/{user_text}")[:12]
        delay_text = os.environ.get(DELAY_VARIABLE, "")
        delay_ms = float(delay_text) if delay_text.isdecimal() else _DELAY_MS
        if is_workflow(request):
            step = workflow_answer(request)
        elif request.model == WALK:
            step = ScriptedAnswer(text=_NO_WORKFLOW)
        else:
            step = demo_answer(request)
        return replace(step, place=call_prefix, delay_ms=delay_ms)


def missing_model(name: str) -> str:
    """Say why there is no offline model of this name; empty if there is one."""
    if name in (DEMO, WALK, *scripts):
        return ""
    known = [f"offline:{known_name}" for known_name in (DEMO, WALK, *scripts)]
    return (
        f"there is no model offline:{name}; there are {name_list(known, FEW_NAMES)}. A script "
        "exists after nbagent.offline.script([...]) has run in this process"
        f"{nearest_hint(f'offline:{name}', known)}"
    )


PROVIDER = Provider(
    name="offline",
    open=OfflineClient,
    default_model=DEMO,
    needs_key=False,
    is_free=True,
    missing_model=missing_model,
)
