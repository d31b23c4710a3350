"""How the demo model puts results into words: tables and lists in Markdown, and comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, cast

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.providers.offline.compare import Figure, figure, formatted, verdicts, wants_order
from nbagent.providers.offline.compare import asks_to_compare as asks_to_compare
from nbagent.providers.offline.results import Made
from nbagent.providers.offline.schema import HERE, from_server
from nbagent.providers.offline.words import related, stem, stems, words

_MOST_ROWS = 20
_LONGEST = 1_500
_ALIKE = 0.75
_PLAIN_KEYS = frozenset(words("id year zip code number phone port pin version isbn"))


def answer(prompt: str, results: Sequence[Made], note: str = "") -> str:
    """State the results, compare them where the prompt asks for it, and say what failed."""
    good = [one for one in results if one.ok]
    failed = [one for one in results if not one.ok and not _mended(one, good)]
    figures = _figures(prompt, good)
    blocks = verdicts(prompt, figures)
    if wants_order(prompt) and len(figures) > 1 and len(figures) == len(good):
        order = {one.label: one.value for one in figures}
        labelled = [(order[_label(one, good)], one) for one in good]
        down = wants_order(prompt) == "down"
        good = [one for _, one in sorted(labelled, key=lambda pair: pair[0], reverse=down)]
    for name in dict.fromkeys(one.name for one in good):
        blocks.append(_shown(name, [one for one in good if one.name == name]))
    blocks += [_failure(one) for one in failed]
    if note:
        blocks.append(note)
    return "\n\n".join(block for block in blocks if block)


def _mended(failed: Made, good: Sequence[Made]) -> bool:
    """Whether a second try with nearly the same arguments worked: the failure is no news then."""
    said = dump_json(failed.arguments).decode()
    return any(
        one.name == failed.name
        and one.turn > failed.turn
        and SequenceMatcher(None, said, dump_json(one.arguments).decode()).ratio() > _ALIKE
        for one in good
    )


def _failure(one: Made) -> str:
    said = one.error.get("message") or one.error.get("code") or "it did not say why"
    if one.error.get("code") == "E_DENIED":
        called = f"`{one.name}`{_in_brackets(one.arguments)}"
        return f"I was not allowed to call {called}: {said}. I leave it at that."
    return f"`{one.name}`{_in_brackets(one.arguments)} failed: {said}"


def _in_brackets(arguments: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name}: {cell(value)}" for name, value in arguments.items())
    return f" ({listed})" if listed else ""


def _varying(results: Sequence[Made]) -> list[str]:
    """The arguments in which results of one tool differ; all of them when there is one result."""
    names = list(dict.fromkeys(name for one in results for name in one.arguments))
    if len(results) == 1:
        return names
    different = [
        name for name in names if len({dump_json(one.arguments.get(name)) for one in results}) > 1
    ]
    return different or names


def _label(one: Made, results: Sequence[Made]) -> str:
    same = [other for other in results if other.name == one.name]
    told = [cell(one.arguments.get(name)) for name in _varying(same) if name in one.arguments]
    return ", ".join(told) or one.name


def _shown(name: str, results: Sequence[Made]) -> str:
    if len(results) == 1:
        return _shown_alone(results[0])
    columns = _varying(results)
    rows = [json_object(one.data) for one in results]
    flat = [row for row in rows if row is not None and all(map(_is_scalar, row.values()))]
    if len(flat) == len(results):
        keys = list(dict.fromkeys(key for row in flat for key in row if key not in columns))
        body = [[cell(row.get(key), key) for key in keys] for row in flat]
    else:
        keys = [name]
        body = [[cell(one.data)] for one in results]
    told = [[cell(one.arguments.get(column)) for column in columns] for one in results]
    return table([*columns, *keys], [a + b for a, b in zip(told, body, strict=True)])


def _shown_alone(one: Made) -> str:
    data = one.data
    values = list(one.arguments.values())
    if len(values) == 1 and _is_scalar(values[0]) and values[0] != HERE:
        head, source = f"**{cell(values[0])}**", f" (`{one.name}`)"
    else:
        head, source = f"`{one.name}`{_in_brackets(one.arguments)}", ""
    if data is None:
        return f"{head}: done{source}."
    if _is_scalar(data) and "\n" not in str(data) and len(str(data)) <= 200:
        shown = cell(data)
        return f"{head}: {f'**{shown}**' if isinstance(data, int | float) else shown}{source}"
    # Servers answer in objects of objects; a list of lines is easier to read than JSON.
    return f"{head}{source}:\n\n{_shown_data(data, nested=from_server(one.name))}"


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the objects inside beside the others, as `source.timezone`."""
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        inner = json_object(value)
        flat |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return flat


def _shown_data(data: Any, *, nested: bool = False) -> str:
    if isinstance(data, str) and nested and "\n" in data and "```" not in data:
        return f"```\n{data if len(data) <= _LONGEST else f'{data[:_LONGEST]} … (cut)'}\n```"
    if isinstance(data, str):
        return data if len(data) <= _LONGEST else f"{data[:_LONGEST]} … (cut)"
    fields = json_object(data)
    if fields is not None and nested:
        fields = _flat(fields)
    if fields is not None and fields and all(map(_is_scalar, fields.values())):
        return "\n".join(f"- {key}: {cell(value, key)}" for key, value in fields.items())
    if isinstance(data, list):
        items = cast("list[Any]", data)
        more = f"\n\n… and {len(items) - _MOST_ROWS} more" if len(items) > _MOST_ROWS else ""
        if not items:
            return "nothing"
        if all(map(_is_scalar, items)):
            return "\n".join(f"- {cell(item)}" for item in items[:_MOST_ROWS]) + more
        rows = [row for item in items[:_MOST_ROWS] if (row := json_object(item)) is not None]
        if rows and len(rows) == len(items[:_MOST_ROWS]):
            keys = list(dict.fromkeys(key for row in rows for key in row))[:8]
            return table(keys, [[cell(row.get(key), key) for key in keys] for row in rows]) + more
    text = dump_json(data).decode("utf-8", "replace")
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … (cut)"
    return f"```json\n{cut}\n```"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of the first rows."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += [
        "| " + " | ".join(one.replace("|", "\\|").replace("\n", " ") for one in row) + " |"
        for row in rows[:_MOST_ROWS]
    ]
    return "\n".join(lines)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def cell(value: Any, key: str = "") -> str:
    """A value in few words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value) if set(words(key)) & _PLAIN_KEYS else formatted(value)
    if isinstance(value, list) and all(map(_is_scalar, cast("list[Any]", value))):
        return ", ".join(cell(item) for item in cast("list[Any]", value))
    text = value if isinstance(value, str) else dump_json(value).decode("utf-8", "replace")
    return text if len(text) <= 200 else f"{text[:200]}…"


def _figures(prompt: str, results: Sequence[Made]) -> list[Figure]:
    """The numbers that can be compared, each with what it belongs to."""
    if len(results) == 1:
        return _figures_inside(prompt, results[0].data)
    found: list[Figure] = []
    for one in results:
        value = _number_in(prompt, one.data)
        if value is not None:
            found.append(Figure(_label(one, results), value[0], value[1]))
    # Numbers of different tools measure different things.
    return found if len({one.name for one in results}) == 1 else []


def _figures_inside(prompt: str, data: Any) -> list[Figure]:
    """The numbers of one result that has several: a list of rows, or names with numbers."""
    if isinstance(data, list):
        found: list[Figure] = []
        for position, item in enumerate(cast("list[Any]", data), 1):
            row = json_object(item)
            value = _number_in(prompt, item)
            if value is None:
                continue
            names = [v for v in row.values() if isinstance(v, str)] if row is not None else []
            found.append(Figure(names[0] if names else f"no. {position}", value[0], value[1]))
        return found
    fields = json_object(data) or {}
    values = {key: value for key, one in fields.items() if (value := figure(one)) is not None}
    if len(values) > 1 and len(values) == len(fields):
        return [Figure(key, value[0], value[1]) for key, value in values.items()]
    return []


def _number_in(prompt: str, data: Any) -> tuple[Any, str] | None:
    """The number of one result; of several the one whose key the prompt speaks of."""
    fields = json_object(data)
    if fields is None:
        return figure(data)
    values = {key: value for key, one in fields.items() if (value := figure(one)) is not None}
    if not values:
        return None
    spoken = {stem(word) for word in re.findall(r"[^\W\d_]+", prompt)}

    def meant(key: str) -> float:
        own = stems(key)
        exact = sum(1.0 for one in own if one in spoken)
        near = sum(0.5 for one in own if any(related(one, other) for other in spoken))
        return exact + near - (2.0 if set(words(key)) & _PLAIN_KEYS else 0.0)

    return values[max(values, key=meant)]
