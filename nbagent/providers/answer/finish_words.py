"""One reader of finish words for all wires: why a server says that its answer ended.

One table, not one per wire: a gateway passes on the words of the server behind it. Words are from
the references of OpenAI, Anthropic, Google, Ollama, Bedrock, Cohere, Mistral, Z.AI, watsonx, TGI,
vLLM, SGLang and llama.cpp.
"""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.model import FinishReason
from nbagent.providers.answer.wire_deltas import Finish

PAUSES = frozenset({"pause_turn", "compaction"})
"""The server paused its own work (Anthropic); it continues when the answer is sent back."""
_NO_WORDS = frozenset({"", "null", "none", "not_finished", "unfinished", "in_progress"})
"""Words of an answer that is still coming: DashScope writes the text "null" in each chunk."""
_CAPITAL_ERRORS = re.compile(r"\w*(?:LANGUAGE|OTHER|NO_IMAGE)\w*")
"""Google's words, in capitals only: gateways say `other` for an unknown reason."""
_WORDS: dict[FinishReason, str] = {
    "stop": r"stop(?:ped)?|stop_(?:sequence|token|word|string|str|id)s?|eos|eos_token(?:_id)?|eot"
    r"|eom|eog|end|ended|end_turn|end_?of_?(?:turn|text|sequence|stream|message|output)|im_end"
    r"|eot_id|s|turn_(?:complete|end|done|over)|true"
    r"|done|completed?|finish(?:ed)?|success|succeeded|ok|normal|natural|word|final"
    r"|pause_turn|compaction|load|unload",
    "length": r"limit|error_limit|continuation|incomplete",
    "tool_calls": r"tool_calls?|function_calls?|tool_use|function|requires_action",
    "content_filter": r"refusal|refused",
    "error": r"time_limit|missing_\w+|too_many_tool_calls|unexpected_tool_call",
}
_PARTS: dict[FinishReason, str] = {
    # First: a word such as `ERROR_TOXIC` (Cohere) is a filter's.
    "content_filter": r"filter|guard|safety|unsafe|moderat|(?<!in)sensitiv|block|prohibit|censor"
    r"|recitation|spii|model_armor|escalation|pup_limited|toxic|harm|polic(?:y|ies)|refus|flagged"
    r"|nsfw|jailbreak|abus|violat|violen|illegal_content|illicit|inspection|inappropriate|risk_control|copyright|(?:^|_)(?:hate|pii)(?:_|$)",
    "error": r"error|fail|abort|cancel|malformed|time_?out|timed_out|terminated|exception"
    r"|insufficient|interrupt|rate_limit|overload|preempt|crash|died|killed|repetition"
    r"|out_of_memory|(?:^|_)oom(?:_|$)",
    "length": r"length|max(?:imum)?_?(?:\w+_)?tokens?|too_long|max_(?:len|output|new)|tokens?_limit"
    r"|output_limit|limit_(?:reached|exceeded)|context_(?:window|limit|size)|truncat|budget|[nm]_predict",
}
"""Parts of words whose meaning is clear, although the word is in no reference."""


def finish_reason(word: str) -> FinishReason | None:
    """Translate a server's finish word; None for an unknown word."""
    if _CAPITAL_ERRORS.fullmatch(word):
        return "error"
    plain = _plain(word)
    for reason, pattern in _WORDS.items():
        if re.fullmatch(pattern, plain):
            return reason
    for reason, pattern in _PARTS.items():
        if re.search(pattern, plain):
            return reason
    return None


def read_finish(value: Any) -> Finish | None:
    """Read a server's finish field; None while the answer is still coming."""
    holder = json_object(value)
    if holder is not None:  # SGLang: `{"type": "stop", "matched": 2}`.
        value = holder.get("type")
    if not value or _plain(str(value)) in _NO_WORDS:
        return None
    word = str(value)
    return Finish(finish_reason(word), word)


def _plain(word: str) -> str:
    """Return a word in small letters with underscores: `contentFilter`, `content-filter`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word[:200])
    plain = re.sub(r"[^a-z0-9]+", "_", split.lower()).strip("_")
    return re.sub(r"^(?:finish|stop)_reason_|^reason_", "", plain)
