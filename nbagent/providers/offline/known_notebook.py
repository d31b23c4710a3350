"""What a prompt wants of the notebook: its variables, a look at one, a value set, code run."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import Any

from nbagent.contracts.canonical import dump_json, load_json
from nbagent.providers.offline.known_plan import Ask, Plan, Step, rows_of
from nbagent.providers.offline.words import words

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[[^\]\n]{1,60}\])*"
_PATH = re.compile(_NAME)
_RUN = re.compile(r"\b(?:run|execute|evaluate|eval|try)\b", re.I)
_GIVES = re.compile(r"\b(?:what|compute|calculate|give|result|print|show|plot|draw)\b", re.I)
_PLOT = re.compile(r"\b(?:plot|draw|chart|visuali[sz]e|histogram)\b", re.I)
_RUN_WHAT = re.compile(r"\b(?:run|execute)\b\s+(?:this|the|some|my|that)?\s*(?:code|cell)\b", re.I)
_SET = re.compile(
    rf"\b(?:set|assign|let)\s+(?:the\s+)?(?:variable\s+)?(?P<q>[`'\"]?)(?P<n>{_NAME})(?P=q)\s*"
    r"(?:to|=|be)\s*(?P<v>.+)",
    re.I | re.S,
)
_ASSIGN = re.compile(
    rf"\bassign\s+(?P<v>.+?)\s+to\s+(?:the\s+)?(?:variable\s+)?[`'\"]?(?P<n>{_NAME})\b", re.I | re.S
)
_VARIABLES = re.compile(
    r"\bvariables\b|\b(?:which|list(?:\s+(?:the|all|my))*)\s+(?:names|dataframes|objects)\b"
    r"|\bwhat(?:'s|\s+is)\s+in\s+(?:the|this|my)\s+(?:notebook|namespace|memory|kernel)\b",
    re.I,
)
_LIKE = re.compile(
    r"\b(?P<how>start(?:s|ing)?\s+with|begin(?:s|ning)?\s+with|called|named|like|containing)\s+"
    r"[`'\"]?(?P<n>[\w*?]+)",
    re.I,
)
_KIND = (
    r"(?:(?i:dataframe|data\s+frame|variable|series|function)"
    r"|(?i:the|my|this)\s+(?i:array|list|dict(?:ionary)?|class|object|figure|table|module|tensor"
    r"|model))"
)
_BY_KIND = re.compile(rf"\b{_KIND}\s+(?:called\s+|named\s+)?[`'\"]?(?P<n>{_NAME})")
_OF_FILES = re.compile(
    r"\b(?:where|search|find|grep|replace|change|write|save|delete|files?|folder)\b", re.I
)
_LOOK = re.compile(
    r"(?i:\b(?:what(?:'s|\s+is|\s+are|\s+does)|describe|inspect|show|print|display|look\s+at"
    r"|explain|see|examine|summari[sz]e|head|tail|columns|rows|shape|size|length|type|types|dtypes"
    r"|value|values|statistics|docstring|source|signature|contents?|how\s+many\s+(?:rows|columns"
    r"|items|elements)|how\s+(?:long|large|big))\b)"
    r"(?P<between>(?:\s+(?i:me|the|a|in|inside|of|is|are|does|do|has|have|at|for|first|last|rows"
    r"|columns|head|shape|type|value|docstring|source|code|contents?|variable))*)\s+"
    rf"[`'\"]?(?P<n>{_NAME})[`'\"]?"
    r"(?=\s*(?:$|[?!,;]|\.(?:\s|$)|(?i:\s+(?:have|has|look|contain|do|hold|please|and)\b)))",
)
_NEVER_SET = frozenset(words("it this that the a an me us"))
_NO_NAMES = frozenset(
    words(
        "me the a an it this that there in of is are i you we here there data dataframe "
        "variable variables notebook file files project result them everything all time "
        "happening next name names and or new your my our his her their up going wrong "
        "possible weather help love"
    )
)


def notebook_plan(ask: Ask) -> Plan | None:
    """What the prompt wants of the notebook; None when it wants nothing of it."""
    for rule in (_set, _run, _code_needed, _variables, _inspect):
        plan = rule(ask)
        if plan is not None:
            return plan
    return None


def _code_needed(ask: Ask) -> Plan | None:
    """What is said when something is to be run or drawn and there is no code for it."""
    if not ask.has("nb.run") or ask.reading.code is not None:
        return None
    if not (_PLOT.search(ask.reading.text) or _RUN_WHAT.search(ask.reading.text)):
        return None
    return Plan(
        text="I can run code here, and I cannot write it: I am a demo of rules. Give me the Python"
        " in backticks or in a fenced block, such as ``Run `df.plot()` ``, and I run it with"
        " `nb.run` once you agree."
    )


def _set(ask: Ask) -> Plan | None:
    if not ask.has("nb.set") or ask.reading.paths:
        return None
    match = _ASSIGN.search(ask.prompt) or _SET.search(ask.prompt)
    if match is None or not match["n"].isidentifier() or match["n"].lower() in _NEVER_SET:
        return None
    step = Step("nb.set", {"name": match["n"], "value": _value(match["v"])})
    return Plan(ask.open(step), claims=(match["n"],))


def _value(text: str) -> Any:
    """The JSON value, the Python literal or the text that a person wrote."""
    text = text.strip()
    for one in (text, text.rstrip(".!; ")):
        one = one.strip("`").strip()
        try:
            return load_json(one)
        except (ValueError, RecursionError):
            pass
        try:
            value: Any = ast.literal_eval(one)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        # As JSON it is what the tool takes: a tuple is a list there, a set is nothing.
        with suppress(TypeError, ValueError):
            return load_json(dump_json(value))
    return text.rstrip(".!; ").strip("`'\"“”")


def _run(ask: Ask) -> Plan | None:
    code = ask.reading.code
    if not ask.has("nb.run") or not code:
        return None
    said = re.sub(r"‹\w+›|\W", "", ask.reading.text)
    wants = bool(_RUN.search(ask.reading.text)) or not said
    if not wants and (_PATH.fullmatch(code) or _OF_FILES.search(ask.reading.text)):
        return None
    if not wants and not _GIVES.search(ask.reading.text):
        return None
    return Plan(ask.open(Step("nb.run", {"code": code})), sure=True, claims=(code,))


def _variables(ask: Ask) -> Plan | None:
    named = _VARIABLES.search(ask.prompt) and not ask.reading.paths
    if not ask.has("nb.variables") or not named:
        return None
    arguments: dict[str, Any] = {}
    if match := _LIKE.search(ask.prompt):
        starts = match["how"].lower().startswith(("start", "begin"))
        arguments["pattern"] = f"{match['n'].rstrip('*?')}*" if starts else match["n"].rstrip("?")
    return Plan(ask.open(Step("nb.variables", arguments)), sure=True)


def _inspect(ask: Ask) -> Plan | None:
    if not ask.has("nb.inspect") or _OF_FILES.search(ask.reading.text):
        return None
    names = _names(ask)
    if names:
        steps = [Step("nb.inspect", {"name": name}) for name in names]
        return Plan(ask.open(*steps), claims=tuple(names))
    if not re.search(r"\b(?:the|my)\s+(?:dataframe|data\s+frame)\b", ask.prompt, re.I):
        return None
    return _only_frame(ask) if ask.has("nb.variables") else None


def _names(ask: Ask) -> list[str]:
    names: list[str] = []
    text = ask.prompt
    for path in ask.reading.paths:
        # `notes.md` is a file, whatever else it looks like.
        text = text.replace(path, "‹p›")
    for pattern in (_BY_KIND, _LOOK):
        for match in pattern.finditer(text):
            name = match["n"]
            if name.lower() not in _NO_NAMES:
                names.append(name)
        if names:
            break
    if ask.reading.code and _PATH.fullmatch(ask.reading.code) and not names:
        names.append(ask.reading.code)
    return list(dict.fromkeys(names))


def _only_frame(ask: Ask) -> Plan:
    """`the DataFrame` without a name: the only one that there is."""
    look = Step("nb.variables", {})
    found = ask.result(look)
    if found is None or not found.ok:
        return Plan(ask.open(look), sure=True)
    rows = rows_of(found.data, "variables")
    frames = [str(one["name"]) for one in rows if "DataFrame" in str(one.get("type"))]
    if len(frames) != 1:
        there = ", ".join(f"`{one}`" for one in frames) or "none"
        return Plan(text=f"Say which DataFrame you mean; there are: {there}.", sure=True)
    return Plan(ask.open(Step("nb.inspect", {"name": frames[0]})), sure=True)
