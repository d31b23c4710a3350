"""What a prompt wants of the file tools: write, replace, search, list or read.

Each rule looks at a prompt and gives the calls that it asks for, or None. What came back is told
by `known_answers`.
"""

from __future__ import annotations

import re
from typing import Any

from nbagent.providers.offline.known_plan import Ask, Plan, Step, field_of, rows_of
from nbagent.providers.offline.known_words import Reading, is_folder
from nbagent.providers.offline.words import words

PROJECT = "@project"
_DEEP = 5
"""Levels of folders in which a pattern of names is looked for."""
_P = r"‹p\d+›"
_FILE = rf"(?:(?:a|the|my|new|file|called|named)\s+)*(?P<path>{_P})"
_WRITE = re.compile(
    rf"\b(?:write|save|put|store)\b\s*(?P<what>.+?)\s+(?:to|into|in|as)\s+{_FILE}", re.I | re.S
)
_CREATE = re.compile(
    rf"\b(?:create|make|write)\b\s+{_FILE}\s+(?:with|containing|that\s+says|saying)\s+"
    r"(?:(?:the|contents?|text|words?|lines?|of)\b\s*)*:?\s*(?P<what>.+)",
    re.I | re.S,
)
_REPLACE = re.compile(
    r"\b(?:replace|change|substitute|rename|correct)\b\s+(?:the\s+(?:word|text|line)\s+)?"
    rf"(?P<old>.+?)\s+(?:with|by|to|into)\s+(?P<new>.+?)\s+(?:in|inside|of)\s+{_FILE}",
    re.I | re.S,
)
_REPLACE_IN = re.compile(
    rf"\bin\s+{_FILE},?\s+(?:please\s+)?(?:replace|change|substitute|rename|correct)\b\s+"
    r"(?:the\s+(?:word|text|line)\s+)?(?P<old>.+?)\s+(?:with|by|to|into)\s+(?P<new>.+)",
    re.I | re.S,
)
_DELETE = re.compile(
    rf"\b(?:delete|remove)\b\s+(?P<old>‹q\d+›)\s+(?:from|in)\s+{_FILE}", re.I | re.S
)
_DEFINED = re.compile(
    r"\bwhere\s+(?:is|are|was|were|do|does|did)\s+(?:we\s+|the\s+)?"
    r"(?:(?:function|class|variable|constant|method|name)\s+)?(?P<q>‹q\d+›|[\w.]+)\s+"
    r"(?:being\s+)?(?P<how>defined|declared|implemented|used|called|imported|mentioned|set)\b",
    re.I,
)
_FILES_WITH = re.compile(
    r"\b(?:which|what)\s+(?:of\s+the\s+)?(?:\w+\s+|‹[pg]\d+›\s+)?files?\b.*?\s"
    r"(?:mention|contain|use|import|include|speak\s+of|talk\s+about)s?\s+"
    r"(?P<q>.+)",
    re.I | re.S,
)
_MENTIONS = re.compile(
    rf"\b(?:does|do|is|are)\s+(?:the\s+)?(?:file\s+)?(?P<where>{_P})\s+"
    r"(?:mention|contain|include|use|import|speak\s+of)s?\s+(?P<q>.+)"
    r"|\b(?:does|do|is)\s+(?:the\s+(?:word|text)\s+)?(?P<q2>‹q\d+›|[\w-]+)\s+"
    rf"(?:occur|appear|stand|mentioned|used)\w*\s+in\s+(?P<where2>{_P})",
    re.I | re.S,
)
_SEARCH = re.compile(r"\b(?:search|grep|look)\b(?P<where>[^?!]*?)\s+for\s+(?P<q>.+)", re.I | re.S)
_FIND = re.compile(
    r"\b(?:find|locate|grep)\b\s+(?:(?:all|every|each|the)\s+)*"
    r"(?:lines?\s+(?:with|that\s+contain|containing)\s+"
    r"|(?:occurrences?|mentions?|uses?|places?)\s+of\s+|(?:word|text|string)\s+)?(?P<q>.+)",
    re.I | re.S,
)
_TAIL = re.compile(
    r"\s+(?:in|inside|under|within|of|from|among)\s+(?:(?:all|the|any|my|this|of)\s+)*"
    r"(?P<where>‹[pg]\d+›(?:\s+files?)?|\w+\s+(?:files?|folder|directory)"
    r"|(?:project|files?|code|repository|repo|folder|notebooks?))\s*(?:folder|directory)?\W*$",
    re.I,
)
_FILE_WORDS = re.compile(r"\b(?:files?|folders?|director(?:y|ies)|notebooks)\b", re.I)
_LIST = re.compile(
    r"\b(?:which|what|list|show|see|find|give|how\s+many|are\s+there|display)\b[^.?!]*?"
    r"\b(?:files?|folders?|director(?:y|ies)|subfolders?|notebooks)\b"
    rf"|^\s*(?:ls|dir)\b|\b(?:list|what(?:'s|\s+is)\s+in(?:side)?)\s+(?:{_P}|the\s+project)",
    re.I,
)
_WHERE = re.compile(rf"\bwhere\s+is\s+(?:(?:the|my|file)\s+)*(?P<path>{_P})\s*[?.!]*\s*$", re.I)
_FOLDER = re.compile(
    r"\b(?:in|inside|of|under|below|from|ls|list)\s+(?:the\s+)?"
    r"(?:(?:folder|directory)\s+)?(?P<name>[\w-]+)(?:\s+(?:folder|directory))?\s*(?:$|[.?!,])",
    re.I,
)
_NOT_FOLDERS = frozenset(
    words(
        "project folder directory repository repo here there it this that files file current "
        "working notebook root them all me detail"
    )
)
_BARE = re.compile(
    r"\b(?P<name>README|LICEN[SC]E|CHANGELOG|CONTRIBUTING|Makefile|Dockerfile)\b"
    r"|\bthe\s+(?P<low>readme|licen[sc]e|changelog)\b"
)
_READING = re.compile(
    r"\b(?:read|open|show|print|cat|display|view|summari[sz]e|summary|describe|explain|quote|what"
    r"|what's|contents?|lines?|says?|tell|words|check|load|count|look|see|get)\b",
    re.I,
)
_FIRST_LINES = re.compile(r"\bfirst\s+(\d+|\w+)?\s*lines?\b", re.I)
_LINES = re.compile(r"\blines?\s+(\d+)(?:\s*(?:to|until|and|through|-|–)\s*(\d+))?", re.I)
_NUMBERS = {
    word: i for i, word in enumerate(words("one two three four five six seven eight nine ten"), 1)
}


def files_plan(ask: Ask) -> Plan | None:
    """What the prompt wants of the file tools; None when it wants nothing of them."""
    for rule in (_write, _replace, _search, _list, _read):
        plan = rule(ask)
        if plan is not None:
            return plan
    return None


def _step(ask: Ask, tool: str, **arguments: Any) -> Plan:
    return Plan(ask.open(Step(tool, arguments)), claims=tuple(map(str, arguments.values())))


def _write(ask: Ask) -> Plan | None:
    if not ask.has("fs.write"):
        return None
    read = ask.reading
    match = _CREATE.search(read.text) or _WRITE.search(read.text)
    if match is None:
        return None
    content = said(read, match["what"])
    return _step(ask, "fs.write", path=read.whole(match["path"]), content=content)


def said(read: Reading, text: str) -> str:
    """What a person wants to have written: the quotation in it, else its words."""
    quoted = re.findall(r"‹q\d+›", text)
    return read.aside[quoted[0]] if quoted else read.whole(text).strip().strip(":").strip()


def _replace(ask: Ask) -> Plan | None:
    if not ask.has("fs.apply_patch"):
        return None
    read = ask.reading
    match = _REPLACE.search(read.text) or _REPLACE_IN.search(read.text)
    new = ""
    if match is not None:
        new = said(read, match["new"])
        if "‹q" not in match["new"]:
            new = new.rstrip(".!? ")
    elif (match := _DELETE.search(read.text)) is None:
        return None
    path, old = read.whole(match["path"]), said(read, match["old"])
    return _step(ask, "fs.apply_patch", path=path, oldText=old, newText=new)


def _search(ask: Ask) -> Plan | None:
    if not ask.has("fs.search"):
        return None
    read = ask.reading
    if match := _DEFINED.search(read.text):
        return _defined(ask, read.whole(match["q"]), match["how"].lower())
    if match := _MENTIONS.search(read.text):
        query = _query(read, match["q"] or match["q2"])
        return _step(
            ask, "fs.search", query=query, **_scope(read, match["where"] or match["where2"])
        )
    where = ""
    match = _FILES_WITH.search(read.text)
    if match is None and (match := _SEARCH.search(read.text)) is not None:
        where = match["where"]
    if match is None and (match := _FIND.search(read.text)) is None:
        return None
    wanted, tail = match["q"], _TAIL.search(match["q"])
    if tail is not None:
        wanted, where = wanted[: tail.start()], where or tail["where"]
    query = _query(read, wanted)
    if not query or (_FILE_WORDS.search(wanted) and "‹q" not in wanted):
        return None
    return _step(ask, "fs.search", query=query, **_scope(read, where))


def _query(read: Reading, text: str) -> str:
    """The words to look for; `TODOs` are found as `TODO`."""
    if "‹q" in text:
        return said(read, text)
    query = said(read, text).strip(" .?!,;")
    return query[:-1] if re.fullmatch(r"[A-Z]{2,}s", query) else query


def _scope(read: Reading, where: str) -> dict[str, str]:
    """Where to search: a path, a pattern of names, or nothing."""
    paths = [read.aside[one] for one in re.findall(_P, where)]
    if paths and not re.fullmatch(r"\.\w{1,8}", paths[0]):
        return {"path": paths[0]}
    if read.glob is not None:
        return {"glob": read.glob}
    folder = re.search(r"(\w[\w-]*)\s+(?:folder|directory)", where, re.I)
    if folder and folder[1].lower() not in _NOT_FOLDERS:
        return {"path": folder[1]}
    return {}


def _defined(ask: Ask, name: str, how: str) -> Plan:
    plain = Step("fs.search", {"query": name})
    if how not in ("defined", "declared", "implemented"):
        return Plan(ask.open(plain), sure=True, claims=(name,))
    word = re.escape(name)
    pattern = rf"\b(def|class|function)\s+{word}\b|^\s*{word}\s*(:[^=]+)?=[^=]"
    exact = Step("fs.search", {"query": pattern, "regex": True})
    found = ask.result(exact)
    if found is None or not found.ok or rows_of(found.data, "matches"):
        return Plan(ask.open(exact), sure=True, claims=(name,))
    return Plan(ask.open(plain), sure=True, claims=(name,))


def _list(ask: Ask) -> Plan | None:
    read = ask.reading
    if not ask.has("fs.list"):
        return None
    if match := _WHERE.search(read.text):
        name = read.whole(match["path"]).rpartition("/")[2]
        step = Step("fs.list", {"path": PROJECT, "glob": name, "depth": _DEEP})
        return Plan(ask.open(step), claims=(name,))
    if not _LIST.search(read.text):
        return None
    paths = [one for one in read.paths if not re.fullmatch(r"\.\w{1,8}", one)]
    if paths and not is_folder(paths[0]) and not re.search(r"\b(?:folder|directory)\b", read.text):
        return None
    folder = _FOLDER.search(read.text)
    path, glob = PROJECT, read.glob
    if paths:
        path = paths[0]
    elif folder and folder["name"].lower() not in _NOT_FOLDERS:
        path = folder["name"]
    elif named := re.search(r"\b([\w-]+)\s+(?:folder|directory)\b", read.text, re.I):
        known = named[1].lower() in _NOT_FOLDERS | {"the", "a", "which", "what", "every", "each"}
        path = PROJECT if known else named[1]
    if glob is None and re.search(
        r"\b(?:which|how\s+many|what|list|show)\s+(?:\w+\s+)?notebooks\b", read.text, re.I
    ):
        glob = "*.ipynb"
    arguments: dict[str, Any] = {"path": path}
    if glob is not None:
        # `*.py` is asked of all folders, not only of the first one.
        arguments |= {"glob": glob, "depth": _DEEP}
    return Plan(ask.open(Step("fs.list", arguments)), claims=(path,) if path != PROJECT else ())


def _read(ask: Ask) -> Plan | None:
    if not ask.has("fs.read"):
        return None
    read = ask.reading
    paths = list(dict.fromkeys(read.paths))
    reads = re.search(r"\b(?:read|cat|open)\b", read.text, re.I)
    sure = [one for one in paths if one.endswith("/") or one.count("/") == 0]
    folders = [one for one in paths if is_folder(one) and (one in sure or not reads)]
    files = [one for one in paths if one not in folders]
    if not files and (bare := _BARE.search(read.text)) is not None and ask.has("fs.list"):
        return _read_bare(ask, bare["name"] or bare["low"].upper())
    alone = re.sub(rf"{_P}|\W", "", read.text) == ""
    if not paths or not (_READING.search(read.text) or alone):
        return None
    part = _part(read.text)
    steps = [Step("fs.read", {"path": one, **part}) for one in files]
    if ask.has("fs.list"):
        steps += [Step("fs.list", {"path": one}) for one in folders]
    return Plan(ask.open(*steps), claims=tuple(paths)) if steps else None


def _read_bare(ask: Ask, name: str) -> Plan:
    """`the README`: look which file that is, then read it."""
    look = Step("fs.list", {"path": PROJECT, "glob": f"{name}*"})
    found = ask.result(look)
    if found is None or not found.ok:
        return Plan(ask.open(look), claims=(name,))
    entries = rows_of(found.data, "entries", "entriesPreview")
    names = [str(one["name"]) for one in entries if one.get("kind", "file") == "file"]
    if not names:
        return Plan(text=f"There is no file `{name}` in `{field_of(found.data, 'path')}`.")
    return Plan(ask.open(Step("fs.read", {"path": names[0], **_part(ask.reading.text)})))


def _part(text: str) -> dict[str, int]:
    """The lines that are asked for."""
    if match := _FIRST_LINES.search(text):
        told = (match[1] or "one").lower()
        count = int(told) if told.isdecimal() else _NUMBERS.get(told, 1)
        return {"limit": max(count, 1)}
    if match := _LINES.search(text):
        first, last = int(match[1]), int(match[2] or match[1])
        return {"offset": max(first, 1), "limit": max(last - first + 1, 1)}
    return {}
