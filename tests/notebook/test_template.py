"""`{{ expression }}` in a prompt: what is evaluated, what stays as typed, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.contracts.chat import TextPart
from nbagent.contracts.errors import UsageError
from nbagent.notebook.template import Rendered, render


async def _later() -> int:
    return 1


NAMES: dict[str, Any] = {
    "city": "Oslo",
    "cities": ["Oslo", "Bergen"],
    "row": {"a": {"b": 1}},
    "braces": "{{ city }} and {{",
    "n": 3,
    "later": _later,
}


def rendered(template: str) -> Rendered:
    return render(template, lambda source: eval(source, dict(NAMES)))


EVALUATED: dict[str, tuple[str, tuple[str, ...]]] = {
    # Text without double braces stays as typed.
    **{text: (text, ()) for text in ("", "one { brace } and } {city} $x ${y} %s {\n  a\n\n")},
    "Is {{ city }} larger?\n": ("Is Oslo larger?\n", ("city",)),
    "{{ city }} {x} $y {{ city[:2] }}": ("Oslo {x} $y Os", ("city", "city[:2]")),
    "{{ '{{' }} x }}": ("{{ x }}", ("'{{'",)),
    "{{ braces }}": ("{{ city }} and {{", ("braces",)),
    "{{ f'{city}}}' }}": ("Oslo}", ("f'{city}}}'",)),
    "{{\n  city\n    .upper()\n}}": ("OSLO", ("city\n    .upper()",)),
    '{{ {"a": {"b": 1}} }} end {{ {"c": 2}}}': (
        '{"a":{"b":1}} end {"c":2}',
        ('{"a": {"b": 1}}', '{"c": 2}'),
    ),
}


@pytest.mark.parametrize("template", EVALUATED)
def test_expression_is_replaced_by_its_value(template: str) -> None:
    result = rendered(template)
    assert (result.prompt, result.expressions) == EVALUATED[template]
    assert result.parts == ((TextPart(text=result.prompt),) if result.prompt else ())


REFUSED: dict[str, tuple[str, ...]] = {
    "Which of {{ citys }}?": ("{{ citys }}", "NameError", "'citys'", "{{ '{{' }}", "Nothing was"),
    "{{ row['x'] }}": ("{{ row['x'] }}", "KeyError", "'x'"),
    "text {{ city": ("{{ city", "no closing", "{{ '{{' }}"),
    "{{ }}": ("empty", "{{ '{{' }}"),
    "{{ a b }}": ("{{ a b }}", "not a Python expression", "{{ '{{' }}"),
    "{{ x = 1 }}": ("{{ x = 1 }}", "statement"),
    "{{ await f() }}": ("{{ await f() }}", "await it in a cell above"),
    "{{ later() }}": ("a value of type 'coroutine'", "await it in a cell above"),
    "{{ [x async for x in y] }}": ("await it in a cell above",),
    "{{ %time city }}": ("%time city", "no magics"),
    "{{ a\0b }}": ("not a Python expression",),
}


@pytest.mark.parametrize("template", REFUSED, ids=repr)
def test_unusable_expression_is_refused_with_a_message_that_helps(template: str) -> None:
    with pytest.raises(UsageError) as caught:
        rendered(template)
    for fragment in REFUSED[template]:
        assert fragment in caught.value.message


def test_nothing_is_evaluated_when_a_later_expression_is_no_python() -> None:
    seen: list[str] = []
    with pytest.raises(UsageError):
        render("{{ city }} {{ a b }}", seen.append)
    assert seen == []


def test_odd_texts_are_refused_quickly_and_warn_of_nothing() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail(source: str) -> object:
        raise Broken

    with pytest.raises(UsageError, match="Broken"):
        render("{{ city }}", fail)
    assert render(r"{{ '\d' }}", lambda source: "kept").prompt == "kept"
    long = "word " * 100_000
    assert render("{{ text }}", {"text": long}.get).prompt == long
    with pytest.raises(UsageError, match="not a Python expression"):
        rendered("{{ \\frac{a}{b} " + "x_{i_{j}} " * 5000)
