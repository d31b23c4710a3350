"""What a server does not take: parameters, left out from then on per server and model.

Only remembers, applies and words it; the exchange tells the person (`dropped_params`, a notice).
A parameter is a top-level key of the request's JSON, or `holder.key` inside one of the objects
that hold parameters of their own. What a request is about (messages, model, tools and images) is
never left out: its refusal is an error that says so.
"""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import TextPart
from nbagent.contracts.model import ChatRequest

_HOLDERS = ("generationConfig", "options", "output_config", "reasoning", "text")
_ALWAYS_SENT = re.compile(
    r"model|messages|tools|input|contents|system|(?:system_?)?instructions?", re.I
)
_TWINS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Refused for one value, not as such.
_BY_VALUE = re.compile(
    r"(?:.+\.)?(?:(?:reasoning_)?effort|think(?:ing(?:Config)?)?|tool(?:_choice|Config)"
    r"|(?:response_)?format|reasoning)"
)
# In a sentence these words name a parameter only in quotes.
_ORDINARY = re.compile(
    r"n|stop|stream|user|seed|store|metadata|reasoning|think(?:ing)?|text|format|options|include"
    r"|effort|summary"
)
_THINKING = re.compile(r"\bthink(?:ing)?\b", re.I)
_OF_THINKING = ("think", "thinking", "generationConfig.thinkingConfig")
_REFUSED = re.compile(
    r"unsupport|not support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|extra inputs"
    r"|extra fields|not permitted|not allowed|not accept|unavailable|deprecated|may (?:only|not) be"
    r"|no endpoints found that support|must be verified",
    re.I,
)
_STATUSES = frozenset({None, 400, 404, 422, 501})
_CAN = r"support|accept|take|allow|enabl|handle|process"
_IMAGE_WORDS = r"images?|image_url|multi-?modal|vision"
_NO_IMAGES = re.compile(
    rf"(?:no[tn]?|n't|un|only|endpoints found that)\W*(?:{_CAN})\w*.{{0,40}}(?:{_IMAGE_WORDS})"
    rf"|(?:{_IMAGE_WORDS})[^.]{{0,60}}(?:(?:not|only) (?:{_CAN})|unsupported)"
    r"|not a (?:multi-?modal|vision)|at most 0 image|unknown variant .?image_url"
    r"|content must be a string|mmproj|required for image input",
    re.I,
)
_BAD_IMAGE = re.compile(r"format|size|too large|resolution|media.?type|mime|corrupt|decode", re.I)
_TOOL_WORDS = r"['`]?(?:tools|tool[ -]?(?:use|calls?|calling)|function[ -]?call(?:s|ing)?)\b['`]?"
_NO_TOOLS = re.compile(
    rf"(?:not|n't) (?:{_CAN})\w* (?:the )?(?:{_TOOL_WORDS})"
    rf"|endpoints found that support (?:{_TOOL_WORDS})"
    rf"|(?:{_TOOL_WORDS}) (?:is|are) (?:not|un)\w*|tools? (?:param )?requires? --jinja"
    r"|--enable-auto-tool-choice",
    re.I,
)


class Refusals:
    """What one model on one server does not take."""

    def __init__(self) -> None:
        # Parameters, with the refused value or None for any.
        self._dropped: set[tuple[str, bytes | None]] = set()
        self._renamed: dict[str, str] = {}
        self.flags: frozenset[str] = frozenset()
        """What a wire does differently for this model, see `Wire.lesson`."""

    @staticmethod
    def of(base_url: str, model: str) -> Refusals:
        """What this process has learnt about this model."""
        return _known.setdefault((base_url, model), Refusals())

    def apply(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Change the parameters in place; returns the names that are not sent as asked."""
        changed: list[str] = []
        for name, twin in self._renamed.items():
            if name in params:
                params[twin] = params.pop(name)
        for name, value in _parameters(params).items():
            if {(name, None), (name, dump_json(value))} & self._dropped:
                holder, _, key = name.rpartition(".")
                # A new object: the one that was asked with belongs to the caller.
                inner = json_object(params.get(holder)) or {}
                if rest := {k: v for k, v in inner.items() if k != key}:
                    params[holder] = rest
                else:
                    params.pop(holder or name)
                changed.append(name)
        if "stream" in changed:
            params.pop("stream_options", None)  # Refused without a stream.
        return tuple(sorted(changed))

    def learn(self, error: ModelError, params: dict[str, Any]) -> str | None:
        """What will be done differently after a refusal of what was sent; None if nothing.

        Each takes a parameter away or renames it once, so there are only so many.
        """
        if not (_is_refusal(error) and _is_refused(error)):
            return None
        sent = _parameters(params)
        names = [name for name in _named(error, sent) if not _ALWAYS_SENT.fullmatch(name)]
        if not names:
            return None
        twin = _TWINS.get(names[0])
        if twin and twin not in sent and names[0] not in self._renamed.values():
            self._renamed[names[0]] = twin
            return f"{names[0]} is sent as {twin}: the server refused it under the first name"
        for name in names:
            self._dropped.add((name, dump_json(sent[name]) if _BY_VALUE.fullmatch(name) else None))
        shown = ", ".join(f"{name}={dump_json(sent[name]).decode()[:80]}" for name in names)
        return f"{shown} was left out: the server refuses it for this model"


def needs_responses(error: ModelError) -> bool:
    """Whether OpenAI takes such a request only at `/v1/responses`."""
    if not _is_refusal(error) or "v1/responses" not in error.server_text:
        return False
    # gpt-5.5 and later: 400, param reasoning_effort, "use /v1/responses instead".
    by_effort = "reasoning_effort" in f"{error.server_text} {error.details.get('param')}"
    return "only supported in v1/responses" in error.server_text or by_effort


def reword(error: ModelError, request: ChatRequest) -> None:
    """Say it in plain words when the server takes no images or no tools: no retry helps."""
    if not (_is_refusal(error) or error.status in (415, 500)):
        return
    said = error.server_text
    parts = (part for message in request.messages for part in message.content)
    files = not all(isinstance(part, TextPart) for part in parts)
    tools_refused = error.details.get("param") == "tools" and _is_refused(error)
    if files and _NO_IMAGES.search(said) and not _BAD_IMAGE.search(said):
        advice = "takes no images or files here; go on with a model that does, or leave them out"
    elif request.tools and (tools_refused or _NO_TOOLS.search(said)):
        advice = "takes no tools here; choose another model, or send none (--tools none)"
    else:
        return
    error.message = f"{request.model} {advice}. The server said: {said}"
    error.retryable = False


def _parameters(params: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        if name in _HOLDERS and (inner := json_object(value)):
            found.update({f"{name}.{key}": one for key, one in inner.items()})
        else:
            found[name] = value
    return found


def _named(error: ModelError, sent: dict[str, Any]) -> list[str]:
    """The parameters that a refusal is about, as far as it says; several are all of a holder."""
    if param := _plain(str(error.details.get("param") or "")):
        names = [name for name in sent if f"{param}.".startswith(f"{_plain(name)}.")]
        names = names or [name for name in sent if _plain(name).startswith(f"{param}.")]
        return names or [name for name in sent if _plain(name).endswith(f".{param}")]
    said = error.server_text
    # "Not for this model" is not about the parameter of that name.
    about = [name for name in sent if name != "model"]
    places = {name: found.start() for name in about if (found := re.search(_mention(name), said))}
    if places:
        # The first one: behind it may stand what to send instead.
        return [min(places, key=lambda name: places[name])]
    return [name for name in _OF_THINKING if name in sent] if _THINKING.search(said) else []


def _plain(path: str) -> str:
    """A path without indices, in the one spelling for `maxTokens` and `max_tokens`."""
    return re.sub(r"\[\w*\]|_", "", path).lower()


def _mention(name: str) -> str:
    word = name.rpartition(".")[2]
    if _ORDINARY.fullmatch(word):
        quoted = rf"['\"`](?:{re.escape(name)}|{word})['\"`]"
        # A path (`thinking.type.enabled`) is no word of a sentence.
        path = rf"(?<![\w.]){re.escape(name)}" + (r"\b" if "." in name else r"\.[a-z]")
        return rf"{quoted}|{path}"
    return rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"


def _is_refusal(error: ModelError) -> bool:
    # An error object in a 200 may have no status.
    code = "LLM_HTTP_ERROR" if error.status else "LLM_BAD_RESPONSE"
    return error.status in _STATUSES and error.code == code


def _is_refused(error: ModelError) -> bool:
    return bool(_REFUSED.search(f"{error.details.get('code')} {error.server_text}"))


_known: dict[tuple[str, str], Refusals] = {}


def forget_refusals() -> None:
    """Forget what servers refused."""
    _known.clear()
