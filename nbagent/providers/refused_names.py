"""Refused names: which parameter or message field a server's words name; `refusals` decides on it.

Pure functions over the server's words and the names that were sent. Servers name a field by a
path (`messages.1.assistant.reasoning_content`, `body -> messages -> 1 -> reasoning_content`,
`contents[1].parts[0]`), by the error's `param`, or by a word in the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from nbagent.contracts.errors import ModelError
from nbagent.providers.wires.message_changes import FieldPath

_THINKING = re.compile(r"\bthink(?:ing)?\b", re.I)
_THINKING_PARAMS = ("think", "thinking", "generationConfig.thinkingConfig")
_NO_REASONING = re.compile(
    r"(?:not|n't|un) ?support\w*:? (?:\w+ )?(?:thinking|reasoning)\b"
    r"(?![ _](?:content|text|tokens?|summar|details|items?|signature|blocks?))"
    r"|\b(?:thinking|reasoning)(?: mode)? is (?:not |un)(?:support|avail|enabl|allow)",
    re.I,
)
_REASONING_PARAMS = ("reasoning_effort", "reasoning.effort", "reasoning", "enable_thinking")
"""On the wires whose parameter is not named after thinking."""
_LIST_GAP = re.compile(r"(?:[\s,;&/+'\"`\[\]()]|\b(?:and|or|nor|plus)\b)*")
"""What is between two names of one list."""
_TOGETHER = re.compile(
    r"\b(?:both|together|same time|combin\w+|mutually|simultan\w+|incompatib\w+|either|one of)\b",
    re.I,
)
"""Each of the parameters alone is accepted."""
_SUPPORTED_LIST = re.compile(
    r"(?<!un)(?<!not )(?:supported|allowed|accepted|valid|available|known|permitted)"
    r" (?:parameters|params|arguments|fields|options|properties|keys|names)\b(?! (?:is|are) not)"
    r"|parameters? (?:that )?(?:is|are) (?:supported|allowed|accepted)\b|expected one of"
    r"|\buse\b.{0,80}\binstead\b(?! of)",
    re.I,
)
"""The names behind it are advice."""
_CLAUSE = re.compile(r"(?P<path>[\w.\[\]]+): (?P<words>.+)")
# Ordinary words: in an error message they name the parameter only if they are quoted.
_COMMON_PARAMS = re.compile(
    r"n|stop|stream|user|seed|store|metadata|reasoning|think(?:ing)?|text|format|options|include"
    r"|effort|summary"
)
_MESSAGE_LISTS = frozenset({"messages", "contents", "input", "history"})
_NEVER_LEFT_OUT = _MESSAGE_LISTS | {
    *("model", "tools", "system", "systeminstruction", "systeminstructions", "instructions")
}
"""What a request is about, as `_normalized` writes it."""
_ARROW = re.compile(r"\s*(?:->|→|»)\s*")
_INDEX = re.compile(r"\[['\"]?(\w*)['\"]?\]")
_SLASH = re.compile(r"(?<=\w)/(?=\w)|#/")
_NAMED_AT = re.compile(r"(\w+)['\"`]? (?:at|in|on) ['\"`]([A-Za-z_]\w*(?:\.\w+)*)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_OF_MESSAGES = re.compile(r"messages?\b|\brole\b|function_?response|results?\b", re.I)
_PLAIN_PATH = re.compile(r"[\w.\[\]]+")


def refused_params(error: ModelError, sent: Collection[str]) -> list[str]:
    """Names of the refused parameters; all keys of an object if only the object is named."""
    param = str(error.details.get("param") or "")
    if path := _normalized(param) if _PLAIN_PATH.fullmatch(param) else "":
        if path.split(".")[0] in _NEVER_LEFT_OUT:
            return []
        names = [name for name in sent if f"{path}.".startswith(f"{_normalized(name)}.")]
        names = names or [name for name in sent if _normalized(name).startswith(f"{path}.")]
        names = names or [name for name in sent if _normalized(name).endswith(f".{path}")]
        # Cerebras writes "validation_error" there; a name is in the text, too.
        if names or _normalized(param.split(".")[-1]) in _normalized(error.server_text):
            others = _named_along(error, sent, names[0]) if len(names) == 1 else []
            return [*names, *others]
    positions = param_positions(error, sent)
    if positions:
        # The first name: a later one may be the advice ("use max_completion_tokens instead").
        first = min(positions, key=lambda name: positions[name])
        return [first, *_named_along(error, sent, first)]
    text = error.server_text
    names = [name for name in _THINKING_PARAMS if name in sent and _THINKING.search(text)]
    return names or [n for n in _REASONING_PARAMS if n in sent and _NO_REASONING.search(text)]


def _named_along(error: ModelError, sent: Collection[str], first: str) -> list[str]:
    """Names that the text refuses along with this one: of one list, or in the same words."""
    text = error.server_text
    clauses = [match for match in map(_CLAUSE.fullmatch, re.split(r";\s+", text)) if match]
    words = {c["words"].rstrip(".") for c in clauses if _is_path_of(c["path"], first)}
    paths = [c["path"] for c in clauses if c["words"].rstrip(".") in words]
    if len(paths) > 1:
        return [n for n in sent if n != first and any(_is_path_of(path, n) for path in paths)]
    if _TOGETHER.search(text):
        return []
    spans = sorted(_param_spans(error, sent).items(), key=lambda item: item[1])
    names: list[str] = []
    end = next((span[1] for name, span in spans if name == first), None)
    for name, span in spans:
        if end is None or span[0] < end or name == first:
            continue
        # Names that were not sent may be between two that were.
        gap = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b|\b(?:seed|stop|user|n)\b", "", text[end : span[0]])
        if not _LIST_GAP.fullmatch(gap):
            break
        names.append(name)
        end = span[1]
    return names


def _is_path_of(path: str, name: str) -> bool:
    """True if a path ends at this parameter."""
    return f".{_normalized(path)}".endswith(f".{_normalized(name)}")


def param_positions(error: ModelError, sent: Collection[str]) -> dict[str, int]:
    """Position in the server's text of each parameter that it names."""
    return {name: start for name, (start, _) in _param_spans(error, sent).items()}


def _param_spans(error: ModelError, sent: Collection[str]) -> dict[str, tuple[int, int]]:
    """Start and end in the server's text of each parameter that it names, without its advice."""
    advice = _SUPPORTED_LIST.search(error.server_text)
    text = error.server_text[: advice.start()] if advice else error.server_text
    return {
        name: match.span()
        for name in sent
        # "Not supported for this model" does not mean the parameter `model`.
        if _normalized(name) not in _NEVER_LEFT_OUT
        and (match := re.search(_param_pattern(name), text))
    }


def concerns_messages(error: ModelError) -> bool:
    """True if the refusal names a place in the messages."""
    param = _normalized(str(error.details.get("param") or ""))
    paths = [[param], *_dotted_paths(_text_with_param(error))]
    return any(_below_messages(path) is not None for path in paths)


def refused_field(error: ModelError, fields: Collection[FieldPath]) -> FieldPath | None:
    """Field of the messages that a refusal names, out of these; None if it names none."""
    text = _text_with_param(error)
    for dotted in _dotted_paths(text):
        names = _below_messages(dotted)
        if names and (path := _longest_below(names, fields)):
            return path
    positions = {
        path: match.start()
        for path in fields
        # Functions and models have names, too.
        if (path[-1] != "name" or _OF_MESSAGES.search(text))
        and (match := re.search(_field_pattern(path[-1]), text))
    }
    # Of two paths to the same name the shorter one: the field of the message itself.
    return min(positions, key=lambda path: (positions[path], len(path), path), default=None)


def _text_with_param(error: ModelError) -> str:
    """The server's words; some servers write a sentence into `param`, others the name."""
    param = str(error.details.get("param") or "")
    text = error.server_text
    return f"'{param}' {text}" if _PLAIN_PATH.fullmatch(param) else f"{text} {param}"


def _dotted_paths(text: str) -> list[list[str]]:
    """Paths in a text, each as its names, without positions in lists."""
    text = _SLASH.sub(".", _INDEX.sub(r".\1", _ARROW.sub(".", text)))
    # Gemini: Unknown name "id" at 'contents[1].parts[0].function_call'.
    text = _NAMED_AT.sub(r"\2.\1", text)
    return [
        [_normalized(name) for name in match.split(".") if not name.isdecimal()]
        for match in _DOTTED.findall(text)
    ]


def _below_messages(names: list[str]) -> list[str] | None:
    """Names of a path below the list of messages; None if the path does not go there."""
    for position, name in enumerate(names):
        if name in _MESSAGE_LISTS:
            return names[position + 1 :]
    return None


def _longest_below(names: list[str], fields: Iterable[FieldPath]) -> FieldPath | None:
    """The longest field whose path is in the names. Between them stand types (`assistant`)."""
    fitting = [
        path for path in fields if _is_subsequence([_normalized(name) for name in path], names)
    ]
    return max(fitting, key=lambda path: (len(path), path), default=None)


def _is_subsequence(part: list[str], whole: list[str]) -> bool:
    remaining = iter(whole)
    return all(name in remaining for name in part)


def _normalized(path: str) -> str:
    """Path without indices and underscores in lower case: `maxTokens` equals `max_tokens`."""
    return re.sub(r"\[\w*\]|_", "", path).lower()


def _param_pattern(name: str) -> str:
    word = name.rpartition(".")[2]
    if _COMMON_PARAMS.fullmatch(word):
        quoted = rf"['\"`](?:{re.escape(name)}|{word})['\"`]"
        # A path (`thinking.type.enabled`) is not an ordinary word, so it needs no quotes.
        path = rf"(?<![\w.]){re.escape(name)}" + (r"\b" if "." in name else r"\.[a-z]")
        # A holder's name is no ordinary word: `output_config`.
        holder = name.rpartition(".")[0]
        path += rf"|(?<![\w.]){holder}(?![\w.])" if "_" in holder else ""
        kinds = "(?:parameter|argument|option)"
        stated = rf"\b{word} {kinds}\b|\b{kinds}s?:? {word}\b(?!_)|: {word}\.?$"
        # pydantic: "stop: Extra inputs are not permitted".
        stated += rf"|(?<![\w.]){word}(?=: (?i:extra (?:inputs|fields)|(?:unknown|unsupported"
        stated += r"|unexpected) (?:field|param|key|prop|arg)))"
        return rf"{quoted}|{path}|{stated}"
    # Gateways write `toolChoice`, people "reasoning effort".
    snake = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", word)
    spelling = re.escape(snake).replace("_", "[_ ]?")
    return rf"(?i:(?<![A-Za-z0-9_]){spelling}(?![A-Za-z0-9_]))"


def _field_pattern(name: str) -> str:
    """Pattern of a field's name in a text; an ordinary word must be quoted or called a field."""
    snake = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    spellings = rf"(?:{re.escape(name)}|{re.escape(snake)})"
    if "_" in snake:
        if snake.startswith("reasoning_"):
            spellings = re.escape(snake).replace("_", "[_ ]?")
        return rf"(?i:(?<![A-Za-z0-9_]){spellings}(?![A-Za-z0-9_]))"
    # Groq, Cerebras: property 'name'; OpenAI: argument supplied: name; serde: field `name`.
    kinds = r"(?:property|field|key|argument|parameter|param|attribute|input)s?(?: supplied)?:?"
    stated = rf"\b{spellings} (?:field|property|key|attribute)\b"
    # "The model name is required", "reasoning is required": about no field of a message.
    if name not in ("name", "reasoning", "thinking"):
        stated += rf"|\b{spellings} (?:is (?:a )?(?:required|missing|null)|cannot be (?:null|none))"
    quoted = rf"['\"`]{spellings}['\"`]"
    return rf"{quoted}|\b{kinds} {spellings}\b(?!_)|(?:^|[;,] ){spellings}: |{stated}"
