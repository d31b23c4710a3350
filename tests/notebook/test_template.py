"""`{{ expression }}` in a prompt: what is evaluated, what stays as typed, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from magic_shell import MagicShell

import nbagent
from nbagent import offline, open_run

NAMES = """
city, n = "Oslo", 3
row = {"a": {"b": 1}}
braces = "{{ city }} and {{"
class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no text")
def fail():
    raise Broken
async def later():
    return 1
"""


@pytest.fixture
def named(shell: MagicShell) -> MagicShell:
    """A shell with names, and a model that is asked nothing of interest."""
    model = offline.script(["Fine."] * 99)
    shell.cell(NAMES, f"%agent config model={model.model_id} tools=none")
    return shell


EVALUATED: dict[str, str] = {
    "one { } and } {city} $x ${y} %s {\n  a": "one { } and } {city} $x ${y} %s {\n  a",
    "Is {{ city }} larger?\n\n": "Is Oslo larger?\n",
    "{{ city }} {x} $y {{ city[:2] }}": "Oslo {x} $y Os",
    "{{ '{{' }} x }}": "{{ x }}",
    "{{ braces }}": "{{ city }} and {{",
    "{{ f'{city}}}' }}": "Oslo}",
    "{{\n  city\n    .upper()\n}}": "OSLO",
    '{{ {"a": {"b": 1}} }} end {{ {"c": 2}}}': '{"a":{"b":1}} end {"c":2}',
    "{{ [n for n in range(n)] }} {{ (n := 4) }} {{ n }}": "[0,1,2] 4 4",
    "{{ 'word ' * 100_000 }}": "word " * 100_000,
}


@pytest.mark.parametrize("template", EVALUATED)
def test_expression_is_replaced_by_its_value(named: MagicShell, template: str) -> None:
    run = named.agent("--quiet", template)
    assert run.record.prompt == EVALUATED[template]
    assert run.record.template == (template.removesuffix("\n") if "{{" in template else None)
    assert [part.type for part in run.messages[-2].content] == ["text"]


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
    "{{ fail() }}": ("{{ fail() }} failed: Broken",),
    "{{ \\frac{a}{b} " + "x_{i_{j}} " * 5000: ("looks like LaTeX",),
    "{{ _error }}": ("no cell of this notebook has failed",),
    "{{ _cells[10**6] }}": ("IndexError",),
}


@pytest.mark.parametrize("template", REFUSED, ids=lambda template: ascii(template)[:40])
def test_unusable_expression_is_refused_with_a_message_that_helps(
    named: MagicShell, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr("nbagent.notebook.prompt_names._last_error", None)
    monkeypatch.delattr("sys.last_value", raising=False)
    message = named.refused("%%agent", template).message
    assert [words for words in REFUSED[template] if words not in message] == [], message


def test_nothing_is_evaluated_when_a_later_expression_is_no_python(named: MagicShell) -> None:
    named.cell("seen = []")
    named.refused("%%agent", "{{ seen.append(1) }} {{ a b }}")
    assert named.user_ns["seen"] == []


def test_last_error_is_the_exception_of_a_cell_with_the_lines_that_led_to_it(
    named: MagicShell, tmp_path: Path
) -> None:
    key = "sk-0123456789abcdefABCDEF"
    with pytest.raises(FileNotFoundError):
        named.cell(
            f"API_KEY = {key!r}",
            "def look(name):",
            f"    open({str(tmp_path / 'data')!r} + '/' + name)",
            "",
            "look('a.csv' + API_KEY)",
        )
    assert "failed" in named.refused("%%agent", "{{ citys }}").message
    run = named.agent("--quiet", "Why?\n{{ _error }}")
    said = run.record.prompt
    assert said.startswith("Why?\nFileNotFoundError: [Errno 2] No such file or directory:")
    assert "'@project/data/a.csv[redacted]'" in said
    assert "line 5, in <module>" in said
    assert "-> 3     open('@project/data' + '/' + name)" in said
    assert str(tmp_path) not in said
    changed = named.agent("--quiet", "{{ _error.swapcase() }}").record.prompt
    assert key not in said
    assert key.swapcase() not in changed
    with pytest.raises(SyntaxError):
        named.cell("1 +")
    assert "SyntaxError: invalid syntax" in named.agent("--quiet", "{{ _error }}").record.prompt
    with pytest.raises(RecursionError):
        # IPython formats each frame in 20 ms; a hundred are as long a traceback as a thousand.
        named.cell(
            "import sys",
            "def f(n):",
            "    return f('x' * 5000)",
            "most = sys.getrecursionlimit()",
            "sys.setrecursionlimit(len(__import__('inspect').stack(0)) + 100)",
            "try:",
            "    f(1)",
            "finally:",
            "    sys.setrecursionlimit(most)",
        )
    assert len(named.agent("--quiet", "{{ _error }}").record.prompt) < 4_100


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("file:///srv/secret/a.txt", "…/a.txt"),
        ("//server/share/x.csv", "…/x.csv"),
        ("C:\\Users\\bob\\k.txt", "…/k.txt"),
        ("{home}/x y/z", "~/x y/z"),
        ("{home}", "~"),
        ("https://a.b/c/d", "https://a.b/c/d"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_cells_name_no_folder_of_this_machine(named: MagicShell, path: str, shown: str) -> None:
    history: Any = named.history_manager
    history.outputs.clear()  # IPython keeps those of another shell of this process
    named.cell(f"# {path.format(home=os.path.expanduser('~'))}")
    assert named.agent("--quiet", "{{ _cells[-1] }}").record.prompt.endswith(f"# {shown}")


def test_cells_before_give_their_sources_and_outputs_within_a_budget(named: MagicShell) -> None:
    history: Any = named.history_manager
    history.outputs.clear()  # IPython keeps those of another shell of this process
    named.cell("print('printed')", "n + 1")
    named.cell("# quiet")
    said = named.agent("--quiet", "{{ _cells[-2:] }}").record.prompt
    count: int = named.execution_count
    first, second = f"[{count - 3}]:", f"[{count - 2}]:"
    assert said == (
        f"In{first}\nprint('printed')\nn + 1\nOut{first}\nprinted\n4\n\nIn{second}\n# quiet"
    )
    last = named.agent("--quiet", "{{ _cells[-1] }}").record.prompt
    assert last.endswith("%%agent --quiet\n{{ _cells[-2:] }}")
    for _ in range(9):
        named.cell(f"{'x' * 9000!r};")
    sizes = named.agent("--quiet", "{{ len(_cells[-1]) }} {{ len(_cells[:]) }}").record.prompt
    assert sizes in ("4000 19999", "4000 20000")


def test_names_of_a_prompt_are_not_the_notebooks_unless_it_has_them(named: MagicShell) -> None:
    named.agent("--quiet", "{{ len(_cells) > 1 }}")
    assert {"_cells", "_error"}.isdisjoint(named.user_ns)
    named.cell("_error, _cells = 'mine', 'too'")
    assert named.agent("--quiet", "{{ _error + _cells }}").record.prompt == "minetoo"


JINJA, GITHUB = "looks like Jinja", "looks like GitHub Actions"
PASTED: dict[str, str] = {
    # The names that other languages use are not defined here, their forms are no Python.
    "{% for c in cities %}- {{ c }}\n{% endfor %}": JINJA,
    "{%- if x -%}a{%- endif -%}": JINJA,
    "Dear {% include 'name.html' %},": JINJA,
    "{% csrf_token %}": JINJA,
    "{% set d = {'a': {'b': 1}} %}": JINJA,
    "{% if n % 2 == 0 %}even{% endif %}": JINJA,
    "{% for c in cities %}{{ c d }}{% endfor %}": JINJA,
    "{{ user.name | upper }}": JINJA,
    "{{ user.name|upper }}": JINJA,
    "{{ city | title }}": JINJA,
    "{{ row | list }}": JINJA,
    "{{ city | shout }}": JINJA,
    '{{ city | default("x") }}': JINJA,
    "{{ city | trim | join(', ') }}": JINJA,
    '{{ when | date: "%Y" }}': JINJA,
    "{{ x is defined }}": JINJA,
    "{{- city -}}": JINJA,
    "{{ loop.index }}": JINJA,
    "run: ${{ secrets.TOKEN }}": GITHUB,
    "${{ env.NAME }} and ${{ matrix.os }}": GITHUB,
    "if: ${{ github.ref == 'main' && success() }}": GITHUB,
    "{{#if x}}a{{/if}}": "looks like Mustache",
    "{{> header}}": "looks like Mustache",
    "{{{ html }}}": "looks like Mustache",
    "{{ .Values.image }}": "looks like a Go template",
    "{{ range .Items }}{{ end }}": "looks like a Go template",
    "x^{{k}}": "looks like LaTeX",
    "\\frac{{a}}{{b}}": "looks like LaTeX",
    "\\sum_{{i}} x": "looks like LaTeX",
}


@pytest.mark.parametrize("template", PASTED)
def test_template_of_another_language_is_one_error_and_is_sent_as_typed_on_request(
    named: MagicShell, template: str
) -> None:
    message = named.refused("%%agent", template).message
    assert PASTED[template] in message
    assert "add --no-template" in message
    assert named.agent("--quiet --no-template", template).record.prompt == template


PYTHON: dict[str, str] = {
    # What looks like another language, and is Python or plain text.
    "costs ${{ n }}": "costs $3",
    "{{ {1} | {2} }}": "[1,2]",
    "{{ True | False }}": "true",
    "{{-n}}": "-3",
    "100{% of it %}": "100{% of it %}",
    "\\newcommand{\\x}{% if wide\n a%}": "\\newcommand{\\x}{% if wide\n a%}",
    "{{ city if n else 0 }}": "Oslo",
    "file_{{ city }}.txt": "file_Oslo.txt",
    "{{ 2 + 2 }}": "4",
    "{{ 'a text' }}": "a text",
    "{{'{{'}}": "{{",
    "{{ '{% if x %}' }}": "{% if x %}",
    "{{ [i for i in range(2)] }}": "[0,1]",
}


@pytest.mark.parametrize("template", PYTHON)
def test_what_only_looks_like_another_language_is_evaluated_without_a_warning(
    named: MagicShell, template: str
) -> None:
    run = named.agent("--quiet", template)
    assert run.record.prompt == PYTHON[template]
    assert not [text for text in run.record.notices if "--no-template" in text]


MISTYPED = ("{{ citys }}", "costs ${{ price }}", "file_{{ nmae }}", '{{ {"a": citys} }}')


@pytest.mark.parametrize("template", MISTYPED)
def test_a_mistyped_name_is_said_to_be_undefined_and_not_to_be_another_language(
    named: MagicShell, template: str
) -> None:
    message = named.refused("%%agent", template).message
    assert "is not defined" in message
    assert "add --no-template" in message
    assert "looks like" not in message


LITERALS: dict[str, tuple[str, str]] = {
    "x^{{2}}": ("x^2", "{{ 2 }}"),
    "x^{{ 2 }}": ("x^2", "{{ 2 }}"),
    "10^{{-3}}": ("10^-3", "{{ -3 }}"),
    "x^{{1/2}}": ("x^0.5", "{{ 1/2 }}"),
    "\\frac{{1}}{{3}}": ("\\frac13", "{{ 1 }}, {{ 3 }}"),
    "first {{0}}": ("first 0", "{{ 0 }}"),
    "{{1,2}}": ("[1,2]", "{{ 1,2 }}"),
    'say {{"name"}}': ("say name", '{{ "name" }}'),
    "{{{1}}}": ("[1]", "{{ {1} }}"),
    "{{1}} {{2}} {{3}} {{4}} {{5}}": ("1 2 3 4 5", "{{ 1 }}, {{ 2 }}, {{ 3 }} and 2 more"),
}


@pytest.mark.parametrize("template", LITERALS)
def test_value_without_a_name_is_put_in_with_a_warning(named: MagicShell, template: str) -> None:
    run = named.agent("--quiet", template)
    prompt, expressions = LITERALS[template]
    assert run.record.prompt == prompt
    (notice,) = [text for text in run.record.notices if "--no-template" in text]
    assert notice.startswith(f"{expressions}: no name is in the braces")
    assert named.agent("--quiet --no-template", template).record.prompt == template


def test_a_run_and_what_shows_itself_are_put_in_as_their_text(named: MagicShell) -> None:
    named.agent("--quiet --into first", "Hello?")
    named.cell("from IPython.display import HTML, JSON", "import polars as pl")
    said = named.agent("--quiet", "{{ first }} {{ HTML('<b>x</b>') }} {{ JSON({'a': 1}) }}")
    assert said.record.prompt == 'Fine. x {"a":1}'
    table = named.agent("--quiet", "{{ pl.DataFrame({'n': [n]}) }}").record.prompt
    assert table == "DataFrame (polars): 1 row × 1 column\ndtypes: n Int64\n| n |\n| --- |\n| 3 |"
    around = named.agent("--quiet", "In {{ pl.DataFrame({'n': [n]}) }} is n.\nAnd {{ n }} too.")
    assert around.record.prompt == f"In {table}\n is n.\nAnd 3 too."


def test_a_question_on_one_line_is_sent_as_typed_on_request(named: MagicShell) -> None:
    question = r"What is \frac{{a}}{b}?"
    advice = named.refused(f"%agent {question}").message
    assert "add --no-template after %%agent or %agent" in advice
    named.cell(f"%agent --no-template {question}")
    assert nbagent.open_run("last").record.prompt == question
    assert "no command" in named.refused("%agent --no-template Tols").message


def test_templates_are_turned_off_by_a_setting_for_cells_and_batches(named: MagicShell) -> None:
    named.cell(
        "%agent config template=false", "import pandas as pd", "df = pd.DataFrame({'n': [1]})"
    )
    assert named.agent("--quiet", "x^{{2}} {{ n }}").record.prompt == "x^{{2}} {{ n }}"
    named.cell("%%agent --quiet --over df --into batch\nx^{{2}} {{ n }}")
    (run,) = named.user_ns["batch"].frame().run_id.tolist()
    assert open_run(run).record.prompt == "x^{{2}} {{ n }}"


def test_a_batch_names_a_value_without_a_name_and_refuses_jinja(named: MagicShell) -> None:
    named.cell("import pandas as pd", "df = pd.DataFrame({'n': [1]})")
    named.cell("%%agent --quiet --over df --into batch\nx^{{2}} {{ n }}")
    assert "{{ 2 }}: no name is in the braces" in str(named.user_ns["batch"].progress)
    message = named.refused("%%agent --over df", "{{ n | shout }}").message
    assert "looks like Jinja" in message
