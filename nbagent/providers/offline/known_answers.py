"""How the demo model tells what came back from nbagent's own tools: a sentence, and a part of it.

Only quotes what is in the results. Which calls are made is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.providers.offline.answers import cell, table
from nbagent.providers.offline.known_plan import field_of, list_of, rows_of
from nbagent.providers.offline.results import Made

_QUOTED_CHARS = 1_200
_QUOTED_LINES = 30
_MOST_ROWS = 30
_MOST_MATCHES = 12
_SUMMARY_SENTENCES = 4
_SUMMARISES = re.compile(r"\b(?:summari[sz]e|summary|sum up|in short)\b", re.I)
_COUNTS = re.compile(r"\bhow\s+(?:many\s+(lines|words|characters)|(?:long|large|big))\b", re.I)
_LAST_LINES = re.compile(r"\blast\s+(\d+)?\s*lines?\b", re.I)
_REASON = re.compile(r"^(?:denied|the person denied this call)[:;]?\s*", re.I)
_KEEPS_OUT = ("E_DENIED", "E_SANDBOX_VIOLATION")


def told(one: Made, prompt: str) -> str:
    """A result in words."""
    return _TELLERS[one.name](one, prompt)


def gist(one: Made, prompt: str) -> str:
    """The part of a result that is worth writing to a file."""
    if one.name == "fs.read":
        text = _content(one.data)
        if _SUMMARISES.search(prompt):
            return f"# Summary of {_shown_path(one)}\n\n{summary(text)}\n"
        return text if text.endswith("\n") else f"{text}\n"
    if one.name in ("run_python_script", "nb.run"):
        printed = str(field_of(one.data, "stdout") or "")
        value = field_of(one.data, "value")
        return printed or f"{value if isinstance(value, str) else dump_json(value).decode()}\n"
    return f"{told(one, prompt)}\n"


def failed(one: Made) -> str:
    """What went wrong, in a sentence; of a refusal, that it was one and that it ends there."""
    message = str(one.error.get("message") or one.error.get("code") or "it did not say why")
    message = message.strip().rstrip(".")
    if one.error.get("code") == "E_DENIED":
        reason = _REASON.sub("", message)
        why = f" ({reason})" if reason else ""
        return f"I was not allowed to {_doing(one)}{why}. I leave it at that."
    if one.error.get("code") in _KEEPS_OUT:
        return f"I may not {_doing(one)}: {message}."
    return f"I could not {_doing(one)}: {message}."


_DOINGS: Mapping[str, str] = {
    "fs.read": "read `{path}`",
    "fs.list": "list `{path}`",
    "fs.search": "search for “{query}”",
    "fs.write": "write `{path}`",
    "fs.apply_patch": "change `{path}`",
    "list_skills": "list the skills",
    "get_skill": "read the skill `{skill_name}`",
    "run_python_script": "run the script of the skill `{skill_name}`",
    "nb.variables": "list the variables",
    "nb.inspect": "look at `{name}`",
    "nb.run": "run that code",
    "nb.set": "set `{name}`",
}


def _doing(one: Made) -> str:
    text = _DOINGS.get(one.name, f"call `{one.name}`")
    for name in ("path", "query", "skill_name", "name"):
        text = text.replace("{" + name + "}", str(one.arguments.get(name, "")))
    return text


def _content(data: Any) -> str:
    return str(field_of(data, "content") or field_of(data, "contentPreview") or "")


def _shown_path(one: Made) -> str:
    return str(field_of(one.data, "path") or one.arguments.get("path", ""))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's' if noun[-1] != 'h' else 'es'}"


def quoted(text: str) -> str:
    """A text in a fence, a long one in part."""
    lines = text.rstrip("\n").split("\n")
    kept = "\n".join(lines[:_QUOTED_LINES])
    kept = kept if len(kept) <= _QUOTED_CHARS else f"{kept[:_QUOTED_CHARS]} …"
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", kept) or [""]))
    left = len(lines) - kept.count("\n") - 1
    more = f"\n\n… and {_plural(left, 'more line')}" if left > 0 else ""
    return f"{fence}\n{kept}\n{fence}{more}"


def summary(text: str) -> str:
    """The heading and the first sentence of each paragraph; no more than a few."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = re.sub(r"```.*?(?:```|\Z)", "", text, flags=re.S)
    titles = re.findall(r"^#{1,6}\s+(.+)$", text, re.M)
    picked: list[str] = []
    for block in re.split(r"\n\s*\n", re.sub(r"^#{1,6}\s.*$", "", text, flags=re.M)):
        plain = " ".join(block.split()).lstrip("-*> ")
        first = re.match(r".{1,300}?[.!?](?=\s|$)|.{1,300}", plain)
        if first is not None and first.group().strip():
            picked.append(first.group().strip())
    said = " ".join(one if one[-1] in ".!?:" else f"{one}." for one in picked[:_SUMMARY_SENTENCES])
    return f"{titles[0].strip()}: {said}" if titles and said else said or "".join(titles[:1])


def _read(one: Made, prompt: str) -> str:
    text, path = _content(one.data), _shown_path(one)
    size = field_of(one.data, "bytes")
    sized = f" ({_plural(size, 'byte')})" if isinstance(size, int) else ""
    hint = field_of(one.data, "hint")
    if counted := _COUNTS.search(prompt):
        lines = text.count("\n") + (not text.endswith("\n") and bool(text))
        counts = {"words": len(text.split()), "characters": len(text), "lines": lines}
        noun = (counted[1] or "lines").lower()
        part = " in the part that I read" if field_of(one.data, "truncated") else ""
        return f"`{path}` has **{_plural(counts[noun], noun[:-1])}**{part}{sized}."
    if not text:
        return f"`{path}` is empty."
    if _SUMMARISES.search(prompt):
        return f"`{path}` in short (taken by rule: its first sentences): {summary(text)}"
    if last := _LAST_LINES.search(prompt):
        wanted = int(last[1] or 1)
        text = "\n".join(text.rstrip("\n").split("\n")[-wanted:])
    more = f"\n\n({hint})" if hint else ""
    return f"`{path}`{sized} says:\n\n{quoted(text)}{more}"


def _list(one: Made, prompt: str) -> str:
    entries = rows_of(one.data, "entries", "entriesPreview")
    path, glob = _shown_path(one), one.arguments.get("glob")
    fitting = f" that fits `{glob}`" if glob else ""
    if not entries:
        return f"There is nothing in `{path}`{fitting}."
    folders = sum(1 for entry in entries if entry.get("kind") == "folder")
    counts = [
        _plural(number, noun)
        for number, noun in ((len(entries) - folders, "file"), (folders, "folder"))
        if number
    ]
    one_only = len(entries) == 1
    fitting = f" that {'fits' if one_only else 'fit'} `{glob}`" if glob else ""
    verb = "is" if one_only else "are"
    lines = [_entry(entry) for entry in entries[:_MOST_ROWS]]
    if len(entries) > _MOST_ROWS:
        lines.append(f"- … and {len(entries) - _MOST_ROWS} more")
    hint = field_of(one.data, "hint")
    more = f"\n\n({hint})" if hint else ""
    return (
        f"In `{path}` there {verb} {' and '.join(counts)}{fitting}:\n\n" + "\n".join(lines) + more
    )


def _entry(entry: Mapping[str, Any]) -> str:
    if entry.get("kind") == "folder":
        return f"- `{entry.get('name')}/`"
    size = entry.get("bytes")
    return f"- `{entry.get('name')}`" + (f", {_plural(size, 'byte')}" if type(size) is int else "")


def _search(one: Made, prompt: str) -> str:
    matches = rows_of(one.data, "matches")
    stats = json_object(field_of(one.data, "stats")) or {}
    query = str(one.arguments.get("query", ""))
    what = f"“{query}”"
    if one.arguments.get("regex"):
        name = re.search(r"\)\\s\+([\w.\\]+?)\\b", query)
        what = f"the definition of `{name[1].replace(chr(92), '')}`" if name else f"`{query}`"
    where = one.arguments.get("glob") or one.arguments.get("path")
    inside = f" in `{where}`" if where else ""
    if not matches:
        scanned = stats.get("filesScanned")
        of = f" I searched {_plural(scanned, 'file')}." if type(scanned) is int else ""
        return f"I found no {what}{inside}.{of}"
    files = len({match.get("path") for match in matches})
    lines = [
        f"- `{match.get('path')}`, line {match.get('line')}: `{_one_line(match.get('text'))}`"
        for match in matches[:_MOST_MATCHES]
    ]
    if len(matches) > _MOST_MATCHES:
        lines.append(f"- … and {len(matches) - _MOST_MATCHES} more")
    hint = field_of(one.data, "hint")
    more = f"\n\n({hint})" if hint else ""
    found = f"I found {what}{inside} at {_plural(len(matches), 'place')}"
    return f"{found} in {_plural(files, 'file')}:\n\n" + "\n".join(lines) + more


def _one_line(text: object) -> str:
    line = " ".join(str(text).replace("`", "'").split())
    return line if len(line) <= 160 else f"{line[:160]}…"


def _written(one: Made, prompt: str) -> str:
    size = field_of(one.data, "bytesWritten")
    sized = f"{_plural(size, 'byte')} " if type(size) is int else ""
    return f"I wrote {sized}to `{_shown_path(one)}`."


def _patched(one: Made, prompt: str) -> str:
    old, new = str(one.arguments.get("oldText", "")), str(one.arguments.get("newText", ""))
    change = f"replaced “{old}” with “{new}” in" if new else f"deleted “{old}” from"
    return f"I {change} `{_shown_path(one)}`."


def _skills(one: Made, prompt: str) -> str:
    skills = rows_of(one.data, "skills")
    if not skills:
        return "There are no skills here."
    verb = "is" if len(skills) == 1 else "are"
    lines = [f"- `{s.get('name')}`: {_one_line(s.get('description'))}" for s in skills[:_MOST_ROWS]]
    return f"There {verb} {_plural(len(skills), 'skill')}:\n\n" + "\n".join(lines)


def _skill(one: Made, prompt: str) -> str:
    name = field_of(one.data, "skill_name") or one.arguments.get("skill_name")
    files = [str(f.get("path") or f.get("name")) for f in rows_of(one.data, "files")]
    listed = f"\n\nIts files: {', '.join(f'`{file}`' for file in files[:20])}." if files else ""
    text = str(field_of(one.data, "documentation") or "")
    return f"The skill `{name}` says:\n\n{quoted(text)}{listed}"


def _script(one: Made, prompt: str) -> str:
    data = json_object(one.data) or {}
    name = f"`{one.arguments.get('script')}` of the skill `{one.arguments.get('skill_name')}`"
    stdout, stderr = str(data.get("stdout") or ""), str(data.get("stderr") or "")
    if data.get("timed_out"):
        said = f"{name} did not end in time and was stopped."
    elif data.get("returncode"):
        said = f"{name} ended with code {data['returncode']}."
    else:
        said = f"{name} ran ({data.get('isolation') or 'unknown'} isolation) and printed:"
        said = said if stdout else f"{name} ran and printed nothing."
    blocks = [said, quoted(stdout) if stdout else ""]
    if stderr and (data.get("returncode") or data.get("timed_out")):
        blocks.append(f"Its errors:\n\n{quoted(stderr)}")
    files = [f"`{file.get('path') or file.get('name')}`" for file in rows_of(data, "files")]
    if files:
        blocks.append(f"It made {', '.join(files)}.")
    return "\n\n".join(block for block in blocks if block)


def _variables(one: Made, prompt: str) -> str:
    variables = rows_of(one.data, "variables")
    only = re.search(r"\bdata\s*frames\b", prompt, re.I)
    if only:
        variables = [row for row in variables if "DataFrame" in str(row.get("type"))]
    noun = "DataFrame" if only else "variable"
    others = [
        f"{kind}: {', '.join(f'`{name}`' for name in _names(field_of(one.data, kind)))}"
        for kind in ("functions", "classes", "modules")
        if not only and field_of(one.data, kind)
    ]
    more = f"\n\nAlso {'; '.join(others)}." if others else ""
    if not variables:
        pattern = one.arguments.get("pattern")
        fitting = f" that fits `{pattern}`" if pattern else ""
        return f"The notebook has no {noun}{fitting}.{more}"
    rows = [
        [f"`{row.get('name')}`", str(row.get("type", "")), _size(row), _value(row)]
        for row in variables[:_MOST_ROWS]
    ]
    shown = table(["name", "type", "size", "value"], rows)
    left = f"\n\n… and {len(variables) - _MOST_ROWS} more" if len(variables) > _MOST_ROWS else ""
    return f"The notebook has {_plural(len(variables), noun)}:\n\n{shown}{left}{more}"


def _names(listed: Any) -> list[str]:
    return [str(name) for name in list_of(listed)[:20]]


def _size(row: Mapping[str, Any]) -> str:
    if shape := list_of(row.get("shape")):
        return " × ".join(map(str, shape))
    return cell(row.get("length")) if row.get("length") is not None else ""


def _value(row: Mapping[str, Any]) -> str:
    if row.get("hidden"):
        return f"({row['hidden']})"
    return f"`{_one_line(row['value'])}`" if row.get("value") is not None else ""


def _inspected(one: Made, prompt: str) -> str:
    data = json_object(one.data) or {}
    name, kind = one.arguments.get("name"), data.get("type", "value")
    columns = rows_of(data, "columns")
    shape = list_of(data.get("shape"))
    if columns and len(shape) == 2:
        rows, wide = shape
        listed = ", ".join(f"`{c.get('name')}` ({c.get('dtype')})" for c in columns[:20])
        said = f"`{name}` is a DataFrame of {cell(rows)} rows and {cell(wide)} columns: {listed}."
    else:
        sized = f" of {size}" if (size := _size(data)) and kind not in ("int", "float") else ""
        said = f"`{name}` is of type `{kind}`{sized}."
    blocks = [said]
    for key, title in _DETAILS:
        value = data.get(key)
        if value is None or (key == "describe" and not _describes(prompt)):
            continue
        text = value if isinstance(value, str) else dump_json(value).decode("utf-8", "replace")
        short = "\n" not in text and len(text) <= 120
        blocks.append(f"{title}: `{text}`" if short else f"{title}:\n\n{quoted(text)}")
    missing = json_object(data.get("missing"))
    if missing:
        told = ", ".join(f"`{column}` {count}" for column, count in missing.items())
        blocks.append(f"Missing values: {told}.")
    return "\n\n".join(blocks)


_DETAILS = (
    ("head", "Its first rows"),
    ("text", "It holds"),
    ("describe", "Statistics"),
    ("value", "Its value"),
    ("signature", "Signature"),
    ("docstring", "Docstring"),
    ("source", "Source"),
)


def _describes(prompt: str) -> bool:
    return bool(re.search(r"\b(?:describe|statistic|mean|summari|std|max|min)", prompt, re.I))


def _ran(one: Made, prompt: str) -> str:
    data = json_object(one.data) or {}
    code = str(one.arguments.get("code", ""))
    name = f"`{code}`" if "\n" not in code and len(code) <= 80 and "`" not in code else "The code"
    blocks: list[str] = []
    value = data.get("value")
    if value is not None:
        text = value if isinstance(value, str) else dump_json(value).decode("utf-8", "replace")
        short = "\n" not in text and len(text) <= 120
        blocks.append(f"{name} gives **{text}**." if short else f"{name} gives:\n\n{quoted(text)}")
    if data.get("stdout"):
        blocks.append(f"It printed:\n\n{quoted(str(data['stdout']))}")
    for key, title in (("displayed", "It displayed"), ("images", "It drew")):
        if shown := list_of(data.get(key)):
            blocks.append(f"{title}: {'; '.join(map(_one_line, shown))}.")
    if data.get("stderr"):
        blocks.append(f"On stderr:\n\n{quoted(str(data['stderr']))}")
    return "\n\n".join(blocks) or f"{name} ran and gave no value."


def _set(one: Made, prompt: str) -> str:
    now = json_object(field_of(one.data, "now")) or {}
    value = now.get("value")
    if value is None:
        value = dump_json(one.arguments.get("value")).decode("utf-8", "replace")
    return f"`{one.arguments.get('name')}` is now `{_one_line(value)}` ({now.get('type', 'set')})."


_TELLERS: Mapping[str, Callable[[Made, str], str]] = {
    "fs.read": _read,
    "fs.list": _list,
    "fs.search": _search,
    "fs.write": _written,
    "fs.apply_patch": _patched,
    "list_skills": _skills,
    "get_skill": _skill,
    "run_python_script": _script,
    "nb.variables": _variables,
    "nb.inspect": _inspected,
    "nb.run": _ran,
    "nb.set": _set,
}
