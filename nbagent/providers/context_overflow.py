"""Tell from a server's words whether a request is too long for the model, and read its sizes.

Most servers send status 400 without a code for it, and each has words of its own, so the rule is
about kinds of words: a context (or the tokens of a prompt) and an excess in one sentence, and
nothing that shows another limit (a rate, bytes, an image, a tool's description, a time). The
wordings of 40 servers and as many neighbours are in the tests; they are from documentation and
issues of OpenAI, Azure, Anthropic, Gemini, Vertex, Bedrock, Mistral, Cohere, xAI, Groq, Cerebras,
Together, Fireworks, DeepSeek, Moonshot, MiniMax, Z.AI, DashScope, Doubao, SiliconFlow, watsonx,
Cloudflare, GitHub, OpenRouter, vLLM, SGLang, TGI, llama.cpp, LM Studio, TabbyAPI and Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_TEXT_CHARS = 4_000
"""A server's words are read up to here: a hostile text must not cost seconds."""
_KINDS = re.compile(
    r"context_(?:length|window|size)_exceed|exceed_context|tokens?_limit_reached"
    r"|context_?window_?exceeded|context_overflow|prompt_too_long|input_too_long"
)
"""Codes and types that say it; a text beside them need not."""

# Words of a rule. A sentence ends at a full stop before a space; numbers and names hold others.
_GAP = r"(?:(?!\.\s).){0,90}?"
_CONTEXT = (
    r"(?:context[ _-]?(?:length|window|size|limit)|context (?:the )?overflow"
    r"|max(?:imum)?[ _](?:allowed )?(?:model|prompt|input|sequence|seq|position|context|message)"
    r"[ _](?:len(?:gth)?|size|tokens?|(?:token )?limit)"
    r"|context of \d|max_(?:model|seq|position)\w*|model(?:'s)? (?:(?:token|input|maximum|max) ?)*"
    r"(?:limit|max|tokens?)\b"
    r"|(?:input|prompt|context|total|model) tokens? limit|tokens? limit"
    r"|tokens? allowed|max(?:imum)? (?:number of )?(?:(?:input|prompt|total) )?tokens?)"
)
_EXCESS = (
    r"(?:exceed\w*|too (?:long|large|big|many)|(?:long|great|larg|bigg|high)er than|more than"
    r"|overflow\w*|must be <|no more than|only (?:supports|has|accepts|allows|handle)|surpass\w*"
    r"|not enough|[,;] (?:but )?(?:got|received|given) \d"
    r"|> ?(?:\d|context|max)|reduce|shorten|above|n[o']t fit|\bonly \d{3}"
    r"|reached|\bover (?:the|\d)|(?:less|fewer|smaller) than)"
)
_PROMPT = r"(?:prompts?|inputs?|messages?|conversation|chat history|history|context|query)"
_REQUEST = r"(?:requested|request|sequence|total|number of|estimated)"
_TOO_LONG = re.compile(
    rf"{_CONTEXT}{_GAP}{_EXCESS}|{_EXCESS}{_GAP}{_CONTEXT}"
    r"|(?:maximum (?:context|prompt|input|model) length|context (?:length|size|window)) (?:is|of)"
    r" (?:only )?[\d(]|maximum of \d[\d,]{0,10} (?:input |prompt )?tokens,? but \d"
    rf"|\b{_PROMPT} exceeds? (?:the )?max(?:imum)?(?: allowed)? length|context shift is disabled"
    r"|max_(?:model|seq)_len (?:is|=|of) ?\d|\bcontext (?:is |was )?exceeded"
    rf"|\btoken count\b{_GAP}{_EXCESS}"
    rf"|\b{_PROMPT}\b[^.]{{0,40}}too (?:long|large|big)"
    rf"|\b(?:{_PROMPT}|{_REQUEST})`?(?: \w+)? (?:tokens?|length|size)\b{_GAP}{_EXCESS}"
    rf"|\b(?:{_PROMPT}|request)\b{_GAP}(?:{_EXCESS}){_GAP}\d+ tokens"
    rf"|\b(?:{_PROMPT}|request)\b{_GAP}\d+ tokens{_GAP}(?:{_EXCESS})"
    rf"|\b{_PROMPT}\b[^.]{{0,30}}exceed[^.]{{0,30}}\bcontext\b|only supports[^.]{{0,20}}\d tokens"
    rf"|too many (?:\w+ )?tokens|request(?: body)? too large[^.]{{0,60}}\.? max size: \d+ tokens"
    r"|tokens in request more than|range of input length should be"
    r"|reduce (?:the )?(?:(?:length|size) of )?(?:the |your )(?:input )?"
    r"(?:messages|prompt|input|query)\b"
    r"|\b(?:tokens?|prompt|context) (?:number |count )?(?:limit|length) (?:is |was )?exceed"
    r"|context (?:window |length |size )?(?:is )?full\b|最大上下文长度(?:为|是) ?\d"
    r"|トークン数[^。]{0,8}(?:上限|制限)を超"
    r"|(?:输入|上下文|提示词|对话|token数?|prompt)[^。.]{0,16}(?:超过|超出|超长|超限|过长)",
    re.I | re.S,
)
# Other limits. Each would match a rule above.
_RATE = re.compile(
    r"per[ _-]?(?:min|sec|hour|day|week|month)|\b[TR]P[MDSH]\b|rate[ _-]?limit|too many requests"
    r"|throttl|quota|concurren|(?:wait|retry|again)[^.]{0,12} (?:before|in|after) |daily|weekly"
    r"|monthly|(?:account|plan|subscription|billing|credits?|balance|organization)\b",
    re.I,
)
_STRING = re.compile(
    r"(?:string|array) too (?:long|short)|expected an? (?:string|array)"
    r"|(?:description|name|title|schema|url|header|metadata|\bid|\bkey|\buser)s?\b['`\"\])]*"
    r"[^.]{0,60}(?:too (?:long|large)|exceed|longer than)"
    r"|logit_bias|\btoo many (?:tools|images|messages|files|functions)",
    re.I,
)
_MESSAGE_TEXT = re.compile(
    r"['\"`](?:messages|input|contents)(?:\[\d+\](?:\.(?:content|output|parts|text)[\w.\[\]]*)?)?"
    r"['\"`]: string too long",
    re.I,
)
"""OpenAI's words for a message with more characters than it reads at all."""
_TIME = re.compile(
    r"took too long|tokens processed|overloaded|queue|deadline exceeded|time[d ]?-?out|too small",
    re.I,
)
_BYTES = re.compile(
    r"\d ?(?:bytes|[KMG]i?B)\b|\bbytes\b|\b(?:image|file|pdf|document|attachment|audio|video|upload"
    r"|payload|entity|body|media|pages?|pixels?|dimensions?)s?\b",
    re.I,
)
_MENTIONS_TOKENS = re.compile(r"token|context", re.I)
# The length of the answer.
_MAX_TOKENS = (
    r"(?:max_(?:completion_|output_|new_)?tokens|max(?:imum)?_?output_?tokens|num_predict"
    r"|maximum tokens|(?:max(?:imum)? )?(?:output|completion) tokens?)"
)
_ANSWER_TOO_LONG = re.compile(
    rf"[`'\"]?\b{_MAX_TOKENS}\b[`'\"]?(?:(?!\.\s).){{0,60}}?"
    r"(?:too (?:large|big|high)|exceed|must be|should be|cannot be|(?:larg|great|high)er than|> ?\d"
    r"|at most|less than|valid range|supported range|invalid)"
    rf"|(?:range of|value (?:for|of)|invalid|lower|reduce|decrease) [`'\"]?\b{_MAX_TOKENS}"
    r"|at most \d+ (?:completion|output) tokens",
    re.I | re.S,
)
_INPUT_SIZE = re.compile(
    r"\b(?:input|prompt|message|request)s?\b[`'\"]?(?: has| have| contains)?(?: \w+)?"
    r" (?:tokens?|length|\d)|\d ?(?:input|prompt)\b|\d\)? (?:tokens )?in (?:the|your) "
    r"|number of input"
    r"|\d \+ \d|maximum context length|max_model_len|max_seq_len",
    re.I,
)
_JOINS = ("+", "and", "plus", "or decrease input length or")

_NUMBER = r"[\(\[]?(?<![\d,])(\d[\d,]{0,10}k?)(?!\d)(?!\.\d)"
_LINK = (
    r"(?:[\s:=`'\"(]|\b(?:is|of|only|the|for|this|model|models|limit|tokens?|was|up|to|at|most"
    r"|a|length|size|be)\b){1,10}"
)
_CONTEXT_TOKENS = (
    re.compile(rf"\[ ?\d+, ?{_NUMBER}", re.I),  # DashScope: "should be [1, 30720]".
    re.compile(
        r"(?:maximum (?:context|prompt|model|input|allowed input|sequence) length"
        r"|context (?:length|size|window(?: limit)?)"
        r"|max_(?:seq|model|num|input)_(?:len(?:gth)?|tokens)|model max"
        r"|max(?:imum)?(?: number of)?(?: input| prompt)? tokens?(?: allowed)?|tokens? allowed"
        r"|(?:total )?tokens? limit|configured limit|max size|while limit"
        r"|exceeds? (?:the )?limit of|the limit|model(?:'s)? limit"
        r"|supports|exceeds? the maximum(?: supported by this model)?|context of|model's max"
        r"|maximum allowed|max(?:imum)? (?:limit )?of|max limit)"
        rf"{_LINK}{_NUMBER}",
        re.I,
    ),
    re.compile(rf"{_NUMBER} (?:tokens )?allowed", re.I),
    re.compile(
        r"(?:>|must be <=|cannot exceed|model with|no more than|(?:less|fewer) than"
        rf"|less than or equal to|exceeds limit of)\s*{_NUMBER}",
        re.I,
    ),
)
_REQUEST_TOKENS = (
    re.compile(rf"{_NUMBER} (?:of text input|(?:tokens )?(?:in|from) (?:the|your) "
               r"(?:input )?(?:messages|prompt))", re.I),
    re.compile(rf"{_NUMBER} (?:(?:input|prompt) tokens|tokens requested)", re.I),
    re.compile(
        r"(?<!maximum )(?<!max )(?<!allowed )(?:resulted in|requested:?(?: about)?|too long:"
        r"|token count(?: of| is|:)?|request has"
        r"|(?:request|prompt) (?:contains|has)(?: at least)?|request|input|given:|received"
        r"|total length|context limit:|current length(?: is)?|max_total_tokens|requested tokens"
        r"|(?:number of )?input tokens(?: is|:)?|prompt \(length"
        r"|(?:prompt|input|sequence)[ _]length(?: of| is|:)?"
        r"|keep the first|initial prompt|prompt is|passed|prompt|got|total tokens)"
        rf"\s*{_NUMBER}",
        re.I,
    ),
    re.compile(rf"tokens? {_NUMBER}\)? exceed", re.I),
    re.compile(rf"{_NUMBER} tokens >", re.I),
)  # fmt: skip
_EXACT_FIELDS = (("request_tokens", "n_prompt_tokens"), ("context_tokens", "n_ctx"))
"""llama.cpp sends both numbers in fields of their own."""


def is_context_overflow(kinds: Sequence[str], message: str) -> bool:
    """True if an error says that the request is too long for the model.

    Args:
        kinds: codes and types of the error, in lower case.
        message: the server's words.
    """
    if any(map(_KINDS.search, kinds)):
        return True
    text = message[:_MAX_TEXT_CHARS]
    if _MESSAGE_TEXT.search(text):
        return True
    if any(other.search(text) for other in (_RATE, _STRING, _TIME)):
        return False
    if _BYTES.search(text) and not _MENTIONS_TOKENS.search(text):
        return False
    if is_answer_too_long(text):
        return bool(_INPUT_SIZE.search(text))
    return bool(_TOO_LONG.search(text))


def is_answer_too_long(message: str) -> bool:
    """True if the server blames the length of the answer (`max_tokens`), not that of the prompt."""
    text = message[:_MAX_TEXT_CHARS]
    for match in _ANSWER_TOO_LONG.finditer(text):
        before = text[: match.start()].rstrip(" `'\"(")
        # In a sum with the prompt it is not blamed alone.
        if not before.endswith(_JOINS):
            return True
    return False


def overflow_details(fault: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Details of an overflow: `request_tokens`, `context_tokens`, and `too_large` if it is blamed.

    Args:
        fault: fields of the error.
        message: the server's words.
    """
    text = message[:_MAX_TEXT_CHARS]
    sizes = {"request_tokens": _REQUEST_TOKENS, "context_tokens": _CONTEXT_TOKENS}
    details: dict[str, Any] = {}
    for name, patterns in sizes.items():
        match = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if match:
            details[name] = int(match[1].lower().replace(",", "").replace("k", "000"))
    for name, exact in _EXACT_FIELDS:
        if isinstance(fault.get(exact), int):
            details[name] = fault[exact]
    tokens, context = details.get("request_tokens"), details.get("context_tokens")
    if is_answer_too_long(text) and not (tokens and context and tokens >= context):
        details["too_large"] = "max_tokens"
    return details
