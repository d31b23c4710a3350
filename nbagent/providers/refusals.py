"""Refusals: the rules that lead from a server's words to a workaround; nothing is remembered here.

`refused_names` finds the field that the words name; `workarounds` remembers what was learnt.

One table of rules, `_RULES`: the wording, what looks alike and is not meant, and what is done. No
list of models is kept: which model refuses what changes every month. What a request is about
(messages, model, tools and images) is never left out: its refusal is an error that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object, load_json
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, TextPart
from nbagent.contracts.model import ChatRequest
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.refused_names import (
    concerns_messages,
    param_positions,
    refused_field,
    refused_params,
)
from nbagent.providers.wires.encoding import is_audio
from nbagent.providers.wires.message_changes import (
    ADDABLE_FIELDS,
    REASONING_FIELDS,
    SYSTEM_AS_USER,
    FieldPath,
    MessageChange,
    field_paths,
    is_optional,
)
from nbagent.providers.workarounds import (
    NO_CURE,
    STREAM_ONLY,
    WHOLE_ANSWER,
    WHOLE_WITH_TOOLS,
    ModelWorkarounds,
    Workaround,
    flat_parameters,
)

MAX_WORKAROUNDS = 3
"""Workarounds in one request. A server that then refuses still more has the last word."""
_OTHER_NAMES = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Servers refuse single values of these ("effort xhigh is not supported"): only that value is left
# out afterwards.
_REFUSED_BY_VALUE = re.compile(
    r"(?:.+\.)?(?:(?:reasoning_)?effort|think(?:ing(?:Config)?)?|tool(?:_choice|Config)"
    r"|(?:response_)?format|reasoning)"
)
_STATUSES = frozenset({None, 400, 404, 422, 501})
_ALL_STATUSES = _STATUSES | {405, 415, 500, 502}
"""Chat templates fail with 500, and gateways pass on a refusal as 500 or 502."""
_SUPPORT_VERBS = r"support|accept|take|allow|enabl|handle|process"
_TOOL_WORDS = r"['`]?(?:tools|tool[ -]?(?:use|calls?|calling)|function[ -]?call(?:s|ing)?)\b['`]?"
_NOT_DONE = r"(?:(?:is|are|be)(?:n't | (?:\w+ )?not (?:yet )?| (?:\w+ )?un)|not (?:yet )?|un)"
_POSSIBLE = r"(?:support|allow|avail|enabl|permit|implement|compatib|possib|accept)"

REFUSED = re.compile(
    r"unsupport|n[o']t support|unrecogni[sz]ed|not recogni[sz]ed|unknown|unexpected|not expected"
    r"|extra_forbidden|forbidden|extra inputs|extra fields|additional propert|cannot find field"
    r"|no such (?:field|property|parameter|argument)|not permitted|not allowed|disallowed"
    r"|n[o']t accept|unavailable|deprecated|may (?:only|not) be|no endpoints found that support"
    r"|must be verified|(?:must|should|can|may)(?: ?not|n't) (?:(?:both )?be (?:set|present|sent"
    r"|included|provided|specified|passed|used|combined)|have|contain|include)\b|incompatible with"
    r"|n[o']t enabled|only works in thinking"
    r"|not valid (?:for|with|on) th|(?:parameter|param|argument)\W{1,3}[\w.]+\W{0,2} is (?:invalid"
    r"|not valid|illegal)\b(?!\W{0,2} ?(?:value|because|must|should|since|as|it)\b|[:,(])"
    r"|invalid field|only \S{1,20} (?:is|are) (?:allowed|supported"
    r"|accepted)|supported values|must be one of|should be ['\"]|不支持|不允许",
    re.I,
)
_FIELD_REFUSED = re.compile(
    rf"{REFUSED.pattern}|(?:invalid|illegal|bad) (?:field|key|property|attribute)"
    r"|not (?:a )?(?:valid|known|recogni[sz]ed|defined)|does not exist|allowed propert|is illegal"
    r"|please (?:remove|omit|drop)|failed to parse field|invalid type|mismatch|not of type"
    r"|valid (?:string|list|array)",
    re.I,
)
"""Also words that refuse a parameter's value: nobody chose the values of these fields."""
_PARAM_REFUSED = re.compile(
    r"unexpected keyword argument|extra inputs are not permitted|(?:unsupported|unknown) parameter"
    r"|does(?: not|n't) support parameter",
    re.I,
)
"""Words about nothing else, so that the status may be that of an outage."""
_OTHER_UNKNOWN = re.compile(
    r"unknown (?:model|tool|function)|model\b.{0,60}(?:does not exist|not found|is unknown)",
    re.I,
)
_MISSING = re.compile(
    r"missing|required|requires|passed back|sent back|absent|got null|null, expected|is null"
    r"|must (?:be (?:provided|passed|sent|included|present|set|returned|non-?null|a string)"
    r"|include|contain|have|carry)"
    r"|(?:must|should|can|may)(?: ?not|n't) be (?:null|none|empty|omitted|blank|absent)"
    r"|not (?:provided|passed|included|present|found in)|lacks?\b|none is not|valid string"
    r"|without|\bneeds\b|mandatory|omitted|KeyError|has no attribute|expected field|缺少"
    r"|should be (?:provided|passed|sent|included|present|set|returned)|(?:found|got) none"
    r"|must be a string|should be a string|string or an? (?:array|list)",
    re.I,
)
_EMPTY_CONTENT = re.compile(
    r"(?:text|content|message)\b.{0,60}(?:\bempty|blank|non-?empty|at least 1 char|min_?length)",
    re.I,
)
_STREAM = r"(?:(?<!up)(?<!down)(?<!bit)(?<!live)stream|\bSSE\b)"
_NO_STREAM = re.compile(
    rf"{_STREAM}(?:ing|ed)?\b[^.;]{{0,60}}?(?:{_NOT_DONE}{_POSSIBLE}|disabled)"
    rf"|{_STREAM}(?:ing)?['\"`]?:?(?: parameter| mode| option)? (?:must|should|has to|needs to)"
    r" (?:be (?:set to )?['\"`]?(?:false|disabled|off)|not be (?:set to )?['\"`]?true)"
    r"|(?:not|n't|cannot|can't|unable to) (?:support|use|allow|handle|accept|do|combin|work|be"
    r" used|be combined|call|avail|compatib|enabl|permit|possib|implement)"
    rf"[^.;]{{0,60}}{_STREAM}"
    r"|(?:cannot|can't) stream (?:\w+ )?(?:tool|function)|endpoints found that support stream"
    rf"|unsupported[^.;]{{0,40}}{_STREAM}|incompatible with (?:the )?['\"`]?stream"
    r"|verified to stream|(?:does|do|can)(?: ?not|n't) stream(?:[.,;!]|$)|不支持(?:流式|stream)"
    r"|流式[^。]{0,12}不(?:支持|可用)|stream\w*\W{1,3}and \W?(?:tools?|functions?)\b"
    r"[^.;]{0,20} (?:together|same time)|(?:tools?|functions?)\W{1,3}and \W?stream\w*[^.;]{0,20}"
    r" (?:together|same time)"
    r"|(?:tools?|calls?|calling|functions?) and stream\w* (?:are|is) mutually exclusive"
    r"|stream\w* and (?:tools?|functions?)[^.;]{0,20} mutually exclusive"
    r"|(?:set|use|pass|with|when|if|requires?|needs?|only)\W{1,3}stream(?:ing)?\W{0,3}"
    r"(?:=|:|to be|to)?\W{0,2}false|(?:disable|turn off|without) (?:the )?stream"
    r"|(?:only|use|try|requires?) (?:\w+ ){0,3}non-?stream",
    re.I,
)
_OTHER_STREAM_WORDS = re.compile(
    r"stream_?options|only supports? (?:the )?stream|interrupt|abort|timed? ?out|disconnect|closed"
    r"|reset by|broken|before (?:the )?stream|mid-?stream|\b(?:error|fail\w*|exception|problem)"
    r" (?:\w+ )?(?:(?:while|during|in|to) (?:the )?)?stream|try again|temporar|retry"
    r"|(?:audio|video|image|byte|file|data|input|output) stream\b",
    re.I,
)
_STREAM_ONLY = re.compile(
    r"only supports? (?:the )?stream|only stream(?:ing)? (?:mode|requests?|is|calls?)"
    r"|stream(?:ing)?['\"`]?(?: parameter| mode)? (?:must|should|has to|needs to) be (?:set to )?"
    r"['\"`]?(?:true|enabled|on\b)"
    r"|(?:set|use|enable|requires?|with)\W{1,3}stream(?:ing)?\W{0,3}(?:=|:|to)?\W{0,2}true"
    rf"|non-?stream\w*[^.;]{{0,40}}{_NOT_DONE}{_POSSIBLE}|not support non-?stream"
    r"|stream(?:ing)? is (?:required|mandatory)|enable the stream parameter"
    r"|only stream\W{0,3}true|[仅只]支持流式"
    # DashScope, of its models that think unless a whole answer is asked for.
    r"|must be (?:set to )?false for non-?stream",
    re.I,
)
_WITH_TOOLS = re.compile(rf"{_TOOL_WORDS}|\bfunctions?\b", re.I)
_RESPONSES_ONLY = re.compile(r"v1/responses")
_ALTERNATION = re.compile(
    r"(?:roles?|messages?|turns?)\b.{0,80}(?:must|should|have to) (?:be )?alternat"
    r"|unexpected role 'user' after role 'tool'",
    re.I,
)
_SYSTEM = r"(?:system|developer)[ _]?(?:roles?|messages?|prompts?|instructions?)"
_NO_SYSTEM = re.compile(
    rf"\b{_SYSTEM}\b[^.;]{{0,60}}{_NOT_DONE}{_POSSIBLE}\w*+(?! to\b)|only user and assistant roles"
    rf"|(?:n[o']t|un) ?(?:{_SUPPORT_VERBS})\w* (?:the |a )?(?:{_SYSTEM}|['\"`](?:system|developer))"
    r"|(?:invalid|unknown|unsupported) role\W{1,3}(?:system|developer)\b"
    r"|\brole\W{1,3}(?:system|developer)\W{0,2} (?:role )?is (?:not|un)",
    re.I,
)
_BOTH_BESIDE_CALL = re.compile(
    r"both\W+(?:content|text)\W.{0,20}(?:thinking|reasoning)"
    r"|both\W+(?:thinking|reasoning).{0,20}\Wcontent"
    r"|(?:content|text)\b.{0,20}\b(?:thinking|reasoning\w*)\b.{0,60}"
    r"(?:together|at the same time|not both|simultaneous|mutually exclusive)"
    r"|(?:thinking|reasoning\w*)\b.{0,20}\b(?:content|text)\b.{0,60}"
    r"(?:together|at the same time|not both|simultaneous|mutually exclusive)"
    r"|content must be (?:empty|null|omitted)[^.]{0,40}(?:thinking|reasoning|tool_?calls)"
    r"|tool_?calls\b.{0,20}(?:must|should|can)(?: ?not|n't) (?:have|contain|include)\W+content\b"
    r"|only one of\W+content\W.{0,20}tool_?calls"
    r"|(?:thinking|reasoning\w*) must be (?:empty|null|omitted)[^.]{0,60}content"
    r"|only one of\W+content\W.{0,20}(?:thinking|reasoning)"
    r"|only one of\W+(?:thinking|reasoning).{0,20}content"
    # Mistral's validation: "must have either content or tool_calls, but not both".
    r"|both\W+content and tool_?calls|content or tool_?calls\b.{0,20}not both",
    re.I,
)
_BOUND_THINKING = re.compile("bound to a different conversation")
_REPLAY_REFUSED = re.compile(
    rf"{_BOUND_THINKING.pattern}|invalid .?signature|thinking.? blocks\b.{{0,80}}cannot be modified"
    # OpenAI: invalid_encrypted_content, "could not be verified"; Gemini: "Corrupted thought
    # signature"; compatible servers of Messages: unknown variant `thinking`.
    r"|invalid_encrypted_content|encrypted content .{0,80}(?:verified|decrypt|parsed)"
    r"|(?:corrupted|invalid) thought.?signature|thought.?signature is (?:not valid|invalid)"
    r"|unknown (?:variant|content block type)\W{1,3}(?:redacted_)?thinking"
    r"|thinking.? blocks? (?:is|are) not (?:supported|allowed)|item with id .{0,90} not found"
    r"|item .{0,90}type .?reasoning.{0,40}(?:without|not)",
    re.I | re.S,
)
_THINKING_DEMANDED = re.compile(
    r"content\W{0,4}thinking\W.{0,40}must be passed back"
    r"|thinking blocks?.{0,40}(?:missing|required)",
    re.I,
)
_IMAGE_WORDS = r"images?|image_url|multi-?modal|vision"
_NO_IMAGES = re.compile(
    rf"(?:no[tn]?|n't|un|only|endpoints found that)\W*(?:{_SUPPORT_VERBS})\w*"
    rf".{{0,40}}(?:{_IMAGE_WORDS})"
    rf"|(?:{_IMAGE_WORDS})[^.]{{0,60}}(?:(?:not|only) (?:{_SUPPORT_VERBS})|unsupported)"
    r"|not a (?:multi-?modal|vision)|at most 0 image|unknown variant .?image_url"
    r"|content must be a string|mmproj|required for image input",
    re.I,
)
_AUDIO_WORDS = r"input_audio|audio"
_NO_AUDIO = re.compile(
    rf"(?:no[tn]?|n't|un|only|endpoints found that)\W*(?:{_SUPPORT_VERBS})\w*"
    rf".{{0,40}}(?:{_AUDIO_WORDS})"
    rf"|(?:{_AUDIO_WORDS})[^.]{{0,60}}(?:(?:not|only) (?:{_SUPPORT_VERBS})|unsupported)"
    r"|(?:unknown|unsupported|invalid|unexpected) (?:variant|type|value|part|content)\b.{0,20}"
    r"(?:input_audio|\baudio)\b|content must be a string",
    re.I,
)
_BAD_IMAGE = re.compile(r"format|size|too large|resolution|media.?type|mime|corrupt|decode", re.I)
_NO_TOOLS = re.compile(
    rf"(?:not|n't) (?:{_SUPPORT_VERBS})\w* (?:the )?(?:{_TOOL_WORDS})"
    rf"|endpoints found that support (?:{_TOOL_WORDS})"
    rf"|(?:{_TOOL_WORDS}) (?:is|are) (?:not|un)\w*|tools? (?:param )?requires? --jinja"
    r"|--enable-auto-tool-choice|only user and assistant roles"
    r"|(?:invalid|unknown|unsupported) role\W{1,3}tool\b|\brole\W{1,3}tool\W{0,2} is (?:not|un)",
    re.I,
)


@dataclass(frozen=True)
class Refusal:
    """Error of one attempt, with what was sent in it."""

    error: ModelError
    request: ChatRequest
    params: Mapping[str, Any]
    """Body without messages and tools."""
    body: bytes
    messages_field: str
    """Field of the body that holds the messages."""
    streamed: bool
    in_use: ModelWorkarounds
    """Workarounds of this attempt."""
    available: frozenset[str]
    """Names of the workarounds that its wire has."""

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """Messages as they were sent."""
        # Decoded here, because few errors are refusals, and a body may be large.
        with suppress(ValueError, RecursionError):
            return objects_in((json_object(load_json(self.body)) or {}).get(self.messages_field))
        return []

    @cached_property
    def fields(self) -> frozenset[FieldPath]:
        """Paths of the fields that were sent in messages."""
        return field_paths(self.messages)


@dataclass(frozen=True, slots=True)
class Rule:
    """Refusals of one kind, and the workaround for them."""

    wording: re.Pattern[str]
    learn: Callable[[Refusal], Workaround | None]
    """Returns None if the refusal is of another kind after all."""
    unless: re.Pattern[str] | None = None
    """Words of other refusals that look alike."""
    statuses: frozenset[int | None] = _ALL_STATUSES

    def matches(self, error: ModelError) -> bool:
        """True if the error has the wording and a status of this kind."""
        # An error object inside a 200 answer may have no status.
        code = "LLM_HTTP_ERROR" if error.status else "LLM_BAD_RESPONSE"
        if error.code != code or error.status not in self.statuses:
            return False
        text = _server_words(error)
        return bool(self.wording.search(text)) and not (self.unless and self.unless.search(text))


def find_workaround(refusal: Refusal) -> Workaround | None:
    """Find the workaround for a refusal: `NO_CURE` if none is left, None for other errors.

    Each one changes something that the attempt still sent, so the attempts end.
    """
    for rule in _RULES:
        if rule.matches(refusal.error) and (workaround := rule.learn(refusal)):
            return workaround
    return None


def explain_refusal(error: ModelError, request: ChatRequest) -> None:
    """Reword the error if the server accepts no images or no tools; a retry would not help."""
    code = "LLM_HTTP_ERROR" if error.status else "LLM_BAD_RESPONSE"
    if error.code != code or error.status not in _ALL_STATUSES:
        return
    server_text = error.server_text
    parts = (part for message in request.messages for part in message.content)
    others = [part for part in parts if not isinstance(part, TextPart)]
    audio = any(isinstance(part, FilePart) and is_audio(part) for part in others)
    is_bad = _BAD_IMAGE.search(server_text)
    tools_refused = error.details.get("param") == "tools" and REFUSED.search(_server_words(error))
    no_tools = _NO_TOOLS.search(server_text) and not _NO_STREAM.search(server_text)
    if audio and _NO_AUDIO.search(server_text) and not is_bad:
        advice = "accepts no audio here; use a model that does, or leave it out"
    elif others and _NO_IMAGES.search(server_text) and not is_bad:
        advice = "accepts no images or files here; use a model that does, or leave them out"
    elif request.tools and (tools_refused or no_tools):
        advice = "accepts no tools here; choose another model, or send none (--tools none)"
    else:
        return
    error.message = f"{request.model} {advice}. The server said: {server_text}"
    error.retryable = False


def make_final(error: ModelError) -> None:
    """Make a refusal final: repeating it would not help, also if its status is of an outage."""
    if error.retryable:
        error.retryable = False
        error.message = (
            f"the provider refused the request (HTTP {error.status}): {error.server_text} "
            "Correct the request, or choose another model."
        )


def _server_words(error: ModelError) -> str:
    """All words of a refusal. Some servers write the sentence into `param`."""
    return f"{error.details.get('code')} {error.server_text} {error.details.get('param') or ''}"


def _behaviour(refusal: Refusal, name: str, notice: str) -> Workaround:
    is_new = name in refusal.available and name not in refusal.in_use.names
    return Workaround(notice, name) if is_new else NO_CURE


def _responses_endpoint(refusal: Refusal) -> Workaround | None:
    error = refusal.error
    # OpenAI refuses function tools with reasoning on Chat Completions: status 400, param
    # `reasoning_effort`, and a text that names /v1/responses (reported from gpt-5.2 on; always
    # from gpt-5.5 on, where reasoning is the default).
    by_effort = "reasoning_effort" in f"{error.server_text} {error.details.get('param')}"
    only_there = by_effort or "only supported in v1/responses" in error.server_text
    if "responses" not in refusal.available or not only_there:
        return None
    model = refusal.request.model
    notice = f"{model} is asked at /v1/responses: it accepts such a request only there"
    return _behaviour(refusal, "responses", notice)


def _alternating_turns(refusal: Refusal) -> Workaround | None:
    if "turns" not in refusal.available:
        return None
    if "turns" in refusal.in_use.names and (moved := _system_as_user(refusal)):
        return moved  # Templates of Mistral and Gemma count the system text as a turn.
    notice = "a short answer was put between messages: this model needs alternating roles"
    return _behaviour(refusal, "turns", notice)


def _system_as_user(refusal: Refusal) -> Workaround | None:
    request = refusal.request
    is_sent = request.system_prompt or any(message.role == "system" for message in request.messages)
    if not is_sent or SYSTEM_AS_USER in refusal.in_use.names:
        return None
    notice = "the system text was put before the user's first words: this model has no system role"
    return Workaround(notice, SYSTEM_AS_USER)


def _drop_bound_thinking(refusal: Refusal) -> Workaround | None:
    # `drop_block` drops only blocks that do not match; it is not possible with thinking off.
    is_possible = "drop_block" in refusal.available - refusal.in_use.names
    if not is_possible or refusal.request.reasoning == "none":
        return None
    notice = "earlier thinking is left out where the conversation before it has changed"
    return _behaviour(refusal, "drop_block", notice)


def _leave_out_thinking(refusal: Refusal) -> Workaround | None:
    if "no_replay" not in refusal.available:
        return None
    notice = "earlier thinking is left out: the server refuses it"
    return _behaviour(refusal, "no_replay", notice)


def _add_thinking(refusal: Refusal) -> Workaround | None:
    if "add_thinking" not in refusal.available:
        return None
    notice = "earlier answers that call tools are sent with thinking: the server demands it"
    return _behaviour(refusal, "add_thinking", notice)


def _whole_answer(refusal: Refusal) -> Workaround | None:
    if not refusal.streamed:
        return None
    with_tools = bool(refusal.request.tools and _WITH_TOOLS.search(_server_words(refusal.error)))
    name, condition = (WHOLE_WITH_TOOLS, " with tools") if with_tools else (WHOLE_ANSWER, "")
    return Workaround(
        f"stream=true was left out: the server refuses it{condition} for this model, so the answer "
        "comes whole",
        name,
    )


def _stream_only(refusal: Refusal) -> Workaround | None:
    if refusal.streamed:
        return None
    is_new = not refusal.in_use.names & {STREAM_ONLY, WHOLE_ANSWER, WHOLE_WITH_TOOLS}
    notice = "the answer was asked for as a stream: the server gives this model's only so"
    return Workaround(notice, STREAM_ONLY) if is_new else NO_CURE


def _either_beside_calls(refusal: Refusal) -> Workaround | None:
    """Leave out the text beside calls: a template shows one of the two, and tools need the other.

    If the server needs the text, leave out the reasoning.
    """
    calling = [fields for fields in refusal.messages if fields.get("tool_calls")]
    for path in (("content",), *REASONING_FIELDS):
        change = MessageChange("omit", path, beside_calls=True)
        is_sent = any(fields.get(path[0]) for fields in calling)
        if is_sent and change not in {*refusal.in_use.changes, *refusal.in_use.refused}:
            name = f"{refusal.messages_field}.{path[0]}"
            notice = f"{name} was left out beside tool calls: the server refuses both together"
            return Workaround(notice, change=change)
    return NO_CURE


def _missing_field(refusal: Refusal) -> Workaround | None:
    if (path := refused_field(refusal.error, ADDABLE_FIELDS)) is None:
        return None
    in_use, name = refusal.in_use, path[0]
    for change in in_use.changes:
        if change.action == "omit" and change.path == path:
            return Workaround(f"{name} is sent again: the server demands it", undone=change)
    is_refused = path in refusal.fields and REFUSED.search(_server_words(refusal.error))
    if is_refused or not _is_missing(refusal, path):
        was_added = any(change.action == "add" and change.path == path for change in in_use.changes)
        return NO_CURE if was_added and not is_refused else None
    role = "results of tools" if name in ("name", "tool_name") else "earlier answers"
    scopes = (True, False) if path in REASONING_FIELDS else (False,)
    for beside_calls in scopes:
        change = MessageChange("add", path, beside_calls)
        if change not in {*in_use.changes, *in_use.refused}:
            where = f"{role} that call tools" if beside_calls else role
            notice = f"{name} was added to {where}: the server demands it for this model"
            return Workaround(notice, change=change)
    return NO_CURE


def _is_missing(refusal: Refusal, path: FieldPath) -> bool:
    """True if a message that could have the field was sent without it, or with null."""
    role = "tool" if path in {("name",), ("tool_name",)} else "assistant"
    return any(
        fields.get("role") == role and fields.get(path[0]) is None for fields in refusal.messages
    )


def _refused_field(refusal: Refusal) -> Workaround | None:
    error = refusal.error
    if (path := refused_field(error, list(filter(is_optional, refusal.fields)))) is None:
        return None
    if path[-1] == "thought":
        # Without its mark a thought would be read as the answer.
        return _leave_out_thinking(refusal)
    positions = param_positions(error, flat_parameters(refusal.params))
    if positions and not concerns_messages(error):
        # "tool_choice is not supported with `name`": the first name is the refused one.
        named_at = error.server_text.find(path[-1])
        if min(positions.values()) <= named_at:
            return None
    changes = refusal.in_use.changes
    added = [change for change in changes if change.action == "add" and change.path == path]
    change = MessageChange("omit", path)
    if change in refusal.in_use.refused:
        return NO_CURE
    name = ".".join((refusal.messages_field, *path))
    notice = f"{name} was left out: the server refuses it for this model"
    return Workaround(notice, change=change, undone=added[0] if added else None)


def _empty_content(refusal: Refusal) -> Workaround | None:
    calling = [fields for fields in refusal.messages if fields.get("tool_calls")]
    if not any(fields.get("content") == "" for fields in calling):
        return None
    change = MessageChange("null", ("content",))
    if change in {*refusal.in_use.changes, *refusal.in_use.refused}:
        return NO_CURE
    notice = "empty content beside tool calls is sent as null: the server refuses an empty text"
    return Workaround(notice, change=change)


def _refused_param(refusal: Refusal) -> Workaround | None:
    if concerns_messages(refusal.error):
        return None
    sent = flat_parameters(refusal.params)
    if not (names := refused_params(refusal.error, sent)):
        return None
    if names == ["stream"]:
        return _whole_answer(refusal)
    names = [name for name in names if name != "stream"]
    twin, renamed = _OTHER_NAMES.get(names[0]), refusal.in_use.renamed
    if twin and twin not in sent and names[0] not in renamed.values():
        notice = f"{names[0]} is sent as {twin}: the server refused it under the first name"
        return Workaround(notice, renamed=(names[0], twin))
    shown = ", ".join(_name_and_value(name, sent[name]) for name in names)
    return Workaround(
        f"{shown} was left out: the server refuses it for this model",
        dropped=tuple(
            (name, dump_json(sent[name]) if _REFUSED_BY_VALUE.fullmatch(name) else None)
            for name in names
        ),
    )


def _name_and_value(name: str, value: object) -> str:
    """Write a parameter for the notice; a long or nested value is left out."""
    text = dump_json(value).decode()
    return name if isinstance(value, dict | list) or len(text) > 80 else f"{name}={text}"


_RULES = (
    Rule(_RESPONSES_ONLY, _responses_endpoint, statuses=_STATUSES),
    Rule(_ALTERNATION, _alternating_turns),
    Rule(_NO_SYSTEM, _system_as_user),
    Rule(_BOUND_THINKING, _drop_bound_thinking, statuses=frozenset({400})),
    Rule(_REPLAY_REFUSED, _leave_out_thinking, statuses=frozenset({400, 422})),
    Rule(_THINKING_DEMANDED, _add_thinking),
    Rule(_STREAM_ONLY, _stream_only),
    Rule(_NO_STREAM, _whole_answer, unless=_OTHER_STREAM_WORDS),
    Rule(_BOTH_BESIDE_CALL, _either_beside_calls),
    Rule(_MISSING, _missing_field),
    Rule(_FIELD_REFUSED, _refused_field, unless=_OTHER_UNKNOWN),
    Rule(_EMPTY_CONTENT, _empty_content),
    Rule(REFUSED, _refused_param, statuses=_STATUSES),
    Rule(_PARAM_REFUSED, _refused_param),
)
"""In this order: an exact refusal before the general ones."""
