"""What a server does not take: parameters, left out from then on per server and model.

Only remembers, applies and words it; the adapter tells the person (`dropped_params`, a notice).
Messages, model, tools and images are never left out: their refusal is an error that says so.
"""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ChatRequest, TextPart
from nbagent.contracts.errors import ModelError
from nbagent.providers.failures import said_in

_ALWAYS_SENT = frozenset({"model", "messages", "tools"})
_REFUSED = re.compile(
    r"unsupport|not support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|extra inputs"
    r"|extra fields|not permitted|not allowed|not accept|unavailable|deprecated"
    r"|no endpoints found that support|must be verified",
    re.I,
)
_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"}
)
_STATUSES = frozenset({400, 404, 422, 501})
_TWINS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_BY_VALUE = frozenset({"reasoning_effort", "reasoning", "tool_choice", "response_format"})
"""Refused for one value, not as such."""
_WORDS = frozenset({"n", "stop", "stream", "user", "seed", "store", "metadata", "reasoning"})
"""Ordinary words: in a sentence they name a parameter only in quotes."""
_OF_OURS = frozenset({"stream", "stream_options"})
_LOCATIONS = re.compile(r"'loc': [\[(](?:'body', )?'(\w+)'")
"""Where FastAPI and pydantic say which field they mean."""
_MOST_KNOWN = 256
_TURNS = re.compile(r"roles must alternate|unexpected role 'user' after role 'tool'", re.I)
"""Chat templates of Mistral and Gemma: what the person says has to follow an answer."""

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
        self._dropped: set[str] = set()
        self._dropped_values: set[tuple[str, bytes]] = set()
        self._renamed: dict[str, str] = {}
        self._no_effort_with_tools = False
        self.wants_turns = False
        """A short answer has to stand before each message of the person."""

    @staticmethod
    def of(base_url: str, model: str) -> Refusals:
        """What this process has learnt about this model."""
        key = (base_url, model)
        if key not in _known and len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        return _known.setdefault(key, Refusals())

    def apply(self, params: dict[str, Any], *, tools: bool) -> tuple[str, ...]:
        """Change the parameters in place; returns the names that are not sent as asked."""
        changed: list[str] = []
        for name, twin in self._renamed.items():
            if name in params:
                params[twin] = params.pop(name)
        for name in list(params):
            if name in self._dropped or (name, dump_json(params[name])) in self._dropped_values:
                del params[name]
                changed.append(name)
        if "stream" in changed:
            # Options of a stream without one are refused, too.
            params.pop("stream_options", None)
        if self._no_effort_with_tools and tools and params.get("reasoning_effort") != "none":
            params["reasoning_effort"] = "none"
            changed.append("reasoning_effort")
        return tuple(sorted(changed))

    def learn(self, error: ModelError, params: dict[str, Any], *, tools: bool) -> str | None:
        """Draw a lesson from a refusal: what will be done differently, or None if there is none.

        A lesson takes a parameter away or renames it once, so there are only so many.

        Args:
            params: what was sent, after `apply`.
        """
        if not self.wants_turns and _TURNS.search(error.message):
            self.wants_turns = True
            return "a short answer was put between messages: this model takes them only in turns"
        if not _is_refusal(error):
            return None
        names = _named(error, params)
        if "reasoning_effort" in names and tools and _is_effort_rule(error):
            if params.get("reasoning_effort") == "none":
                return None
            self._no_effort_with_tools = True
            return "reasoning_effort was set to none: this model takes tools only without reasoning"
        refused = error.details.get("code") in _CODES or _REFUSED.search(said_in(error))
        name = next((name for name in names if name in params), None)
        if name is None or name in _ALWAYS_SENT or not refused:
            return None
        twin = _TWINS.get(name)
        if twin and twin not in params and name not in self._renamed.values():
            self._renamed[name] = twin
            return f"{name} is sent as {twin}: the server refused it under the first name"
        value = dump_json(params[name])
        if name in _BY_VALUE:
            self._dropped_values.add((name, value))
        else:
            self._dropped.add(name)
        shown = "" if name in _OF_OURS else f"={value[:80].decode('utf-8', 'replace')}"
        return f"{name}{shown} was left out: the server refuses it for this model"


def plain_refusal(error: ModelError, request: ChatRequest) -> ModelError:
    """The same error in plain words when the server takes no images or no tools."""
    if not (_is_refusal(error) or error.status in (415, 500)):
        return error
    said = said_in(error)
    if _has_attachments(request) and _NO_IMAGES.search(said) and not _BAD_IMAGE.search(said):
        text = (
            f"{request.model} takes no images or files here; go on with a model that does"
            " (--model), or leave them out."
        )
    elif request.tools and _is_effort_rule(error):
        text = (
            f"{request.model} takes tools only at /v1/responses, which openai: does not speak;"
            " choose another model, or send no tools (--tools none)."
        )
    elif request.tools and (_NO_TOOLS.search(said) or _names_tools(error)):
        text = (
            f"{request.model} takes no tools here; choose a model that can call tools, or send"
            " none (--tools none)."
        )
    else:
        return error
    return ModelError(
        f"{text} The server said: {said}",
        code=error.code,
        details=error.details,
        status=error.status,
        request_id=error.request_id,
    )


def _is_refusal(error: ModelError) -> bool:
    if error.status is None:
        return error.code == "LLM_BAD_RESPONSE"  # An error object in a 200 without a status.
    return error.status in _STATUSES and error.code == "LLM_HTTP_ERROR"


def _named(error: ModelError, params: dict[str, Any]) -> list[str]:
    """The parameters that a refusal is about, as far as it says."""
    param = re.split(r"[.\[]", str(error.details.get("param") or ""))[0]
    if param:
        return [param]
    if located := _LOCATIONS.findall(error.message):
        return located
    said = said_in(error)
    names = sorted(params.keys() - _ALWAYS_SENT, key=len, reverse=True)
    return [name for name in names if re.search(_mention(name), said)]


def _mention(name: str) -> str:
    if name in _WORDS:
        return rf"['\"`]{re.escape(name)}['\"`]"
    return rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])"


def _is_effort_rule(error: ModelError) -> bool:
    # OpenAI, gpt-5.5 and later: 400, param reasoning_effort, "use /v1/responses instead".
    return "/v1/responses" in error.message and "reasoning_effort" in (
        f"{error.message} {error.details.get('param')}"
    )


def _names_tools(error: ModelError) -> bool:
    return error.details.get("param") == "tools" and (
        error.details.get("code") in _CODES or bool(_REFUSED.search(said_in(error)))
    )


def _has_attachments(request: ChatRequest) -> bool:
    return any(
        not isinstance(part, TextPart) for message in request.messages for part in message.content
    )


_known: dict[tuple[str, str], Refusals] = {}
