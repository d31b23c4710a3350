"""Parameters that a server refuses: learn them from its errors, leave them out afterwards.

Remembers per server and model, and words the notices; the client sends the request again and
shows the notice. No list of models is kept: which model refuses what changes every month.
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

_NESTED_PARAMS = ("generationConfig", "options", "output_config", "reasoning", "text")
_ALWAYS_SENT = re.compile(
    r"model|messages|tools|input|contents|system|(?:system_?)?instructions?", re.I
)
_OTHER_NAMES = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Servers refuse single values of these ("effort xhigh is not supported"): only that value is left
# out afterwards.
_REFUSED_BY_VALUE = re.compile(
    r"(?:.+\.)?(?:(?:reasoning_)?effort|think(?:ing(?:Config)?)?|tool(?:_choice|Config)"
    r"|(?:response_)?format|reasoning)"
)
# Ordinary words: in an error message they name the parameter only if they are quoted.
_COMMON_WORDS = re.compile(
    r"n|stop|stream|user|seed|store|metadata|reasoning|think(?:ing)?|text|format|options|include"
    r"|effort|summary"
)
_THINKING = re.compile(r"\bthink(?:ing)?\b", re.I)
_THINKING_PARAMS = ("think", "thinking", "generationConfig.thinkingConfig")
_REFUSED = re.compile(
    r"unsupport|not support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|extra inputs"
    r"|extra fields|not permitted|not allowed|not accept|unavailable|deprecated|may (?:only|not) be"
    r"|no endpoints found that support|must be verified",
    re.I,
)
_REFUSAL_STATUSES = frozenset({None, 400, 404, 422, 501})
_SUPPORT_VERBS = r"support|accept|take|allow|enabl|handle|process"
_IMAGE_WORDS = r"images?|image_url|multi-?modal|vision"
_NO_IMAGES = re.compile(
    rf"(?:no[tn]?|n't|un|only|endpoints found that)\W*(?:{_SUPPORT_VERBS})\w*"
    rf".{{0,40}}(?:{_IMAGE_WORDS})"
    rf"|(?:{_IMAGE_WORDS})[^.]{{0,60}}(?:(?:not|only) (?:{_SUPPORT_VERBS})|unsupported)"
    r"|not a (?:multi-?modal|vision)|at most 0 image|unknown variant .?image_url"
    r"|content must be a string|mmproj|required for image input",
    re.I,
)
_BAD_IMAGE = re.compile(r"format|size|too large|resolution|media.?type|mime|corrupt|decode", re.I)
_TOOL_WORDS = r"['`]?(?:tools|tool[ -]?(?:use|calls?|calling)|function[ -]?call(?:s|ing)?)\b['`]?"
_NO_TOOLS = re.compile(
    rf"(?:not|n't) (?:{_SUPPORT_VERBS})\w* (?:the )?(?:{_TOOL_WORDS})"
    rf"|endpoints found that support (?:{_TOOL_WORDS})"
    rf"|(?:{_TOOL_WORDS}) (?:is|are) (?:not|un)\w*|tools? (?:param )?requires? --jinja"
    r"|--enable-auto-tool-choice",
    re.I,
)


class UnsupportedParams:
    """Parameters that one model on one server refuses."""

    def __init__(self) -> None:
        # (parameter, refused value as JSON); None as the value means any value.
        self._dropped: set[tuple[str, bytes | None]] = set()
        self._renamed: dict[str, str] = {}
        self.workarounds: frozenset[str] = frozenset()
        """Names of the workarounds in use for this model, see `Wire.workaround_for`."""

    @staticmethod
    def for_model(base_url: str, model: str) -> UnsupportedParams:
        """Return what this process has learnt about this model."""
        return _by_model.setdefault((base_url, model), UnsupportedParams())

    def apply(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Change the parameters in place; return the names that are left out."""
        changed: list[str] = []
        for name, twin in self._renamed.items():
            if name in params:
                params[twin] = params.pop(name)
        for name, value in _flat_parameters(params).items():
            if {(name, None), (name, dump_json(value))} & self._dropped:
                holder, _, key = name.rpartition(".")
                # A new object: the old one belongs to the caller.
                inner = json_object(params.get(holder)) or {}
                if rest := {k: v for k, v in inner.items() if k != key}:
                    params[holder] = rest
                else:
                    params.pop(holder or name)
                changed.append(name)
        if "stream" in changed:
            # OpenAI refuses stream_options in a request without stream.
            params.pop("stream_options", None)
        return tuple(sorted(changed))

    def learn(self, error: ModelError, params: dict[str, Any]) -> str | None:
        """Learn from a refusal of the sent parameters; return a notice, None if nothing was learnt.

        Each call drops or renames a parameter that was still sent, so the retries end.
        """
        if not (_has_refusal_status(error) and _says_unsupported(error)):
            return None
        sent = _flat_parameters(params)
        names = [name for name in _refused_names(error, sent) if not _ALWAYS_SENT.fullmatch(name)]
        if not names:
            return None
        twin = _OTHER_NAMES.get(names[0])
        if twin and twin not in sent and names[0] not in self._renamed.values():
            self._renamed[names[0]] = twin
            return f"{names[0]} is sent as {twin}: the server refused it under the first name"
        for name in names:
            self._dropped.add(
                (name, dump_json(sent[name]) if _REFUSED_BY_VALUE.fullmatch(name) else None)
            )
        shown = ", ".join(f"{name}={dump_json(sent[name]).decode()[:80]}" for name in names)
        return f"{shown} was left out: the server refuses it for this model"


def needs_responses_api(error: ModelError) -> bool:
    """True if OpenAI accepts this request only at `/v1/responses`."""
    if not _has_refusal_status(error) or "v1/responses" not in error.server_text:
        return False
    # OpenAI refuses function tools with reasoning on Chat Completions: status 400, param
    # `reasoning_effort`, and a text that names /v1/responses (reported from gpt-5.2 on; always
    # from gpt-5.5 on, where reasoning is the default).
    by_effort = "reasoning_effort" in f"{error.server_text} {error.details.get('param')}"
    return "only supported in v1/responses" in error.server_text or by_effort


def explain_refusal(error: ModelError, request: ChatRequest) -> None:
    """Reword the error if the server accepts no images or no tools; a retry would not help."""
    if not (_has_refusal_status(error) or error.status in (415, 500)):
        return
    server_text = error.server_text
    parts = (part for message in request.messages for part in message.content)
    files = not all(isinstance(part, TextPart) for part in parts)
    tools_refused = error.details.get("param") == "tools" and _says_unsupported(error)
    if files and _NO_IMAGES.search(server_text) and not _BAD_IMAGE.search(server_text):
        advice = "accepts no images or files here; use a model that does, or leave them out"
    elif request.tools and (tools_refused or _NO_TOOLS.search(server_text)):
        advice = "accepts no tools here; choose another model, or send none (--tools none)"
    else:
        return
    error.message = f"{request.model} {advice}. The server said: {server_text}"
    error.retryable = False


def _flat_parameters(params: dict[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, value in params.items():
        if name in _NESTED_PARAMS and (inner := json_object(value)):
            parameters.update({f"{name}.{key}": inner_value for key, inner_value in inner.items()})
        else:
            parameters[name] = value
    return parameters


def _refused_names(error: ModelError, sent: dict[str, Any]) -> list[str]:
    """Names of the refused parameters; all keys of an object if only the object is named."""
    if param := _normalized_path(str(error.details.get("param") or "")):
        names = [name for name in sent if f"{param}.".startswith(f"{_normalized_path(name)}.")]
        names = names or [name for name in sent if _normalized_path(name).startswith(f"{param}.")]
        return names or [name for name in sent if _normalized_path(name).endswith(f".{param}")]
    server_text = error.server_text
    # "Not supported for this model" does not mean the parameter `model`.
    about = [name for name in sent if name != "model"]
    places = {
        name: match.start()
        for name in about
        if (match := re.search(_mention_pattern(name), server_text))
    }
    if places:
        # The first name: a later one may be the advice ("use max_completion_tokens instead").
        return [min(places, key=lambda name: places[name])]
    return (
        [name for name in _THINKING_PARAMS if name in sent] if _THINKING.search(server_text) else []
    )


def _normalized_path(path: str) -> str:
    """Path without indices and underscores in lower case: `maxTokens` equals `max_tokens`."""
    return re.sub(r"\[\w*\]|_", "", path).lower()


def _mention_pattern(name: str) -> str:
    word = name.rpartition(".")[2]
    if _COMMON_WORDS.fullmatch(word):
        quoted = rf"['\"`](?:{re.escape(name)}|{word})['\"`]"
        # A path (`thinking.type.enabled`) is not an ordinary word, so it needs no quotes.
        path = rf"(?<![\w.]){re.escape(name)}" + (r"\b" if "." in name else r"\.[a-z]")
        return rf"{quoted}|{path}"
    return rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"


def _has_refusal_status(error: ModelError) -> bool:
    # An error object inside a 200 answer may have no status.
    code = "LLM_HTTP_ERROR" if error.status else "LLM_BAD_RESPONSE"
    return error.status in _REFUSAL_STATUSES and error.code == code


def _says_unsupported(error: ModelError) -> bool:
    return bool(_REFUSED.search(f"{error.details.get('code')} {error.server_text}"))


_by_model: dict[tuple[str, str], UnsupportedParams] = {}


def forget_unsupported_params() -> None:
    """Forget all refused parameters of this process."""
    _by_model.clear()
