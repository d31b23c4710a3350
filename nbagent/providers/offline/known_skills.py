"""What a prompt wants of the skills: to see which there are, to read one, to run its script."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from nbagent.providers.offline.known_plan import Ask, Plan, Step, field_of, rows_of
from nbagent.providers.offline.words import stems, words

_USED = re.compile(
    r"\b(?:use|apply)\s+(?:the\s+)?(?P<n>[a-z0-9]+(?:-[a-z0-9]+)+)\b(?!\s+skill)", re.I
)
_SPOKEN = re.compile(rf"\bskills?\b|{_USED.pattern}", re.I)
_WHICH = re.compile(
    r"\b(?:which|what|list|show|how\s+many|any)\b(?:\s+\w+){0,4}?\s+skills\b|\bskills\b.*\bthere\b",
    re.I,
)
_RUN = re.compile(r"\b(?:use|run|apply|execute|start|with|try|let)\b", re.I)
_NAMED = re.compile(r"\bskill\s+(?:called\s+|named\s+)?(?P<n>‹q\d+›|[\w-]+)", re.I)
_NAMED_BEFORE = re.compile(r"(?P<n>‹q\d+›|[\w-]+)\s+skill\b", re.I)
_NO_NAMES = frozenset(
    words(
        "is are do does on to for with in of the a an that which what this my your any and or "
        "it can about has have some there say says"
    )
)
_ARGUMENT_CHARS = 19_000
"""The host takes at most 20,000 of all arguments."""
_LIST = Step("list_skills", {})


def skills_plan(ask: Ask) -> Plan | None:
    """What the prompt wants of the skills; None when it speaks of none."""
    if not _SPOKEN.search(ask.reading.text) or not ask.has("list_skills"):
        return None
    plan = _plan(ask)
    return replace(plan, sure=True)


def _plan(ask: Ask) -> Plan:
    named = _name(ask)
    if _WHICH.search(ask.reading.text) and named is None:
        return Plan(ask.open(_LIST))
    listed = ask.result(_LIST)
    if listed is None or not listed.ok:
        return Plan((_LIST,)) if listed is None else Plan()
    skills = rows_of(listed.data, "skills")
    name = _meant(named, skills) if named else _fitting(ask.prompt, skills)
    if name is None:
        there = ", ".join(f"`{one.get('name')}`" for one in skills) or "none"
        asked = f"There is no skill `{named}`." if named else "Say which skill you mean."
        return Plan(text=f"{asked} The skills here: {there}.")
    get = Step("get_skill", {"skill_name": name})
    got = ask.result(get)
    if got is None and ask.has("get_skill"):
        return Plan((get,))
    if got is None or not got.ok or not _RUN.search(ask.reading.text):
        return Plan()
    return _run(ask, name, got.data) if ask.has("run_python_script") else Plan()


def _name(ask: Ask) -> str | None:
    """The skill that the prompt names."""
    for pattern in (_NAMED, _NAMED_BEFORE, _USED):
        for match in pattern.finditer(ask.reading.text):
            name = ask.reading.whole(match["n"])
            if name.lower() not in _NO_NAMES:
                return name
    return None


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _meant(named: str, skills: list[dict[str, Any]]) -> str | None:
    for one in skills:
        if _plain(one.get("name")) == _plain(named):
            return str(one.get("name"))
    return None


def _fitting(prompt: str, skills: list[dict[str, Any]]) -> str | None:
    """The skill whose words the prompt shares most; the only one when there is one."""
    if len(skills) == 1:
        return str(skills[0].get("name"))
    spoken = set(stems(prompt))
    scored = [
        (len(spoken & set(stems(f"{one.get('name')} {one.get('description')}"))), -i)
        for i, one in enumerate(skills)
    ]
    best, place = max(scored, default=(0, 0))
    return str(skills[-place].get("name")) if best else None


def _run(ask: Ask, name: str, skill: Any) -> Plan:
    """Run the script, with the file or the text that the prompt gives."""
    files = [str(one.get("path") or one.get("name")) for one in rows_of(skill, "files")]
    script = _script(ask, files, str(field_of(skill, "documentation") or ""))
    if script is None:
        return Plan()
    arguments: dict[str, Any] = {"skill_name": name, "script": script}
    args: list[str] = []
    note = ""
    for path in ask.reading.paths:
        if path == script or script.endswith(f"/{path}"):
            continue
        if path in files or not ask.has("fs.read"):
            args.append(path)
            if path not in files:
                note = (
                    f"The script was given the name `{path}`, not the file: it is kept apart from"
                    " the project. With the tools `skills,fs` I can read the file for it."
                )
            continue
        # A script is kept apart from the project: it is given the text of the file.
        read = Step("fs.read", {"path": path})
        found = ask.result(read)
        if found is None:
            return Plan((read,))
        text = field_of(found.data, "content") or field_of(found.data, "contentPreview") or ""
        args.append(str(text)[:_ARGUMENT_CHARS])
    args += [one for one in ask.reading.quotes if _plain(one) != _plain(name)]
    if args:
        arguments["args"] = args
    return Plan(ask.open(Step("run_python_script", arguments)), note=note)


def _script(ask: Ask, files: list[str], documentation: str) -> str | None:
    """The script that the prompt names, else the one that the instructions name first."""
    scripts = [one for one in files if one.endswith(".py")]
    for path in ask.reading.paths:
        for one in scripts:
            if one == path or one.endswith(f"/{path}"):
                return one
    told = [(documentation.find(one), one) for one in scripts if one in documentation]
    return min(told)[1] if told else next(iter(scripts), None)
