"""Output of `%agent help`: the options and commands that `line` declares, and examples."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_hint
from nbagent.notebook.line import BATCH_OPTIONS, COMMANDS, OPTION_BY_FLAG, Command, Line, options_of
from nbagent.settings.options import Option, Settings
from nbagent.view.listing import Listing


@dataclass(frozen=True, slots=True)
class _Topic:
    """One page of the help: options and commands that are used together."""

    title: str
    options: tuple[str, ...] = ()
    """Names of options, in the order of the page."""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines below the options."""


_BASICS = _Topic(
    "%%agent [options]: ask a model; the prompt is on the next lines",
    (
        *("model", "tools", "system", "continue_run", "into", "output", "max_turns"),
        *("max_cost_usd", "dry_run", "help"),
    ),
    ("tools", "models", "show", "resume", "stop", "config", "trust", "doctor", "help"),
)
"""What everybody needs."""
_SPECIAL = {
    "tools": _Topic(
        "Tools, files and approvals",
        ("tools", "tool_choice", "mounts", "skills", "ask", "deny", "replay_tools"),
        ("tools", "approvals"),
    ),
    "batches": _Topic(
        "Many rows: a prompt for each row of a DataFrame",
        ("over", *BATCH_OPTIONS),
        notes=(
            "--into batch puts the batch into a variable; nbagent.batch(NAME) opens it later.",
            "batch.page() shows all cases, batch.frame() has a row for each, with its scores;",
            "batch.compare() compares the variants; batch.review() lets you score the answers.",
        ),
    ),
    "models": _Topic(
        "Models and servers",
        (
            *("model", "base_url", "key_variable", "timeout_s", "temperature", "top_p"),
            *("max_tokens", "stop_sequences", "reasoning", "stream", "cache", "cassette"),
        ),
        ("models", "pull"),
    ),
    "workflow": _Topic(
        "Workflows and agents",
        ("workflow", "agent", "autopilot", "variables"),
        ("workflow",),
    ),
}
_OPTIONS_ELSEWHERE = {name for topic in _SPECIAL.values() for name in topic.options}
_COMMANDS_ELSEWHERE = {name for topic in _SPECIAL.values() for name in topic.commands}
TOPICS = {
    **_SPECIAL,
    # Everything else: an option or command that is new needs no line here to be found.
    "running": _Topic(
        "Running, continuing and comparing",
        tuple(row.name for row in options_of(None) if row.name not in _OPTIONS_ELSEWHERE),
        tuple(name for name in COMMANDS if name not in _COMMANDS_ELSEWHERE),
    ),
}


def help_of(topic: str = "") -> Listing:
    """The help of a topic, a command or an option; without one, what everybody needs.

    Raises:
        UsageError: there is no such topic, command or option; the message names the nearest one.
    """
    topic = topic.strip().removeprefix("%agent ").strip()
    if topic in ("", "%%agent", "%agent"):
        return _basics()
    if topic == "all":
        return _everything()
    settings = Settings.rows()
    parts = [_command_help(COMMANDS[topic])] if topic in COMMANDS else []
    # `tools` is both, and so is `help`, of which one is enough.
    flags = (f for f in (topic, f"--{topic}") if f in OPTION_BY_FLAG and topic != "help")
    options = {OPTION_BY_FLAG[flag].name: OPTION_BY_FLAG[flag] for flag in flags}
    options |= {topic: settings[topic]} if topic in settings else {}
    parts += [_option_help(option) for option in options.values()]
    if topic in TOPICS:
        parts.append(_topic_help(TOPICS[topic]))
    if not parts:
        nearest = nearest_hint(topic, [*COMMANDS, *TOPICS])
        nearest = nearest or nearest_hint(topic, [*OPTION_BY_FLAG, *settings]) or "."
        raise UsageError(f"no command or option {topic!r}{nearest} All of them: %agent help all")
    return parts[0] if len(parts) == 1 else Listing(parts=parts)


_NOTES = """\
In the prompt, {{ expression }} is evaluated in the notebook, {{ _error }} is the last exception,
{{ _cells[-3:] }} are the previous three cells; write {{ '{{' }} for two literal braces.
Put values with spaces in quotes: --system 'Be brief.' If a value starts with a dash, write
--flag=-value. A line that ends in \\ continues on the next one.
No temperature is sent unless you set one. Keys are read from the environment only
(--key-variable). %agent help NAME also explains what %agent config lists."""
_EXAMPLES = """\
%%agent --model offline:demo --tools population --into first
Which of {{ cities }} is larger?

%%agent --continue --max-turns 5
And by how much?

%agent Which of these cities is larger?
%agent resume --max-turns 40
%agent config model=offline:demo"""
_MORE_EXAMPLES = """\
%%agent -m openai:gpt-5.4 --base-url http://localhost:8000/v1 --temperature 0
%%agent --over df --vary model=openai:gpt-5.4,openai:gpt-5.4-mini --repeat 5 --into batch
Double {{ n }}.

%%agent --continue --dry-run
%%agent --model openai:gpt-5.4 --to cell
%agent show last
%agent help resume"""


_COMMANDS_TITLE = "%agent COMMAND, or %agent and a question in one line"


def _basics() -> Listing:
    return Listing(
        title=_BASICS.title,
        rows=_option_rows(_BASICS),
        parts=[
            Listing(title=_COMMANDS_TITLE, rows=_command_rows(_BASICS.commands)),
            Listing(
                title="More",
                notes=[f"%agent help TOPIC, where TOPIC is {', '.join(TOPICS)} or all"],
            ),
            Listing(title="Examples", notes=[_EXAMPLES]),
        ],
    )


def _everything() -> Listing:
    return Listing(
        title=_BASICS.title,
        rows=[(option.usage, option.help) for option in options_of(None)],
        parts=[
            Listing(title="Prompts and values", notes=[_NOTES]),
            Listing(title=_COMMANDS_TITLE, rows=_command_rows(tuple(COMMANDS))),
            Listing(title="Examples", notes=[f"{_EXAMPLES}\n\n{_MORE_EXAMPLES}"]),
        ],
    )


def _topic_help(topic: _Topic) -> Listing:
    commands = _command_rows(topic.commands)
    parts = [Listing(title="%agent COMMAND", rows=commands)] if commands else []
    return Listing(title=topic.title, rows=_option_rows(topic), notes=topic.notes, parts=parts)


def _option_rows(topic: _Topic) -> list[tuple[str, str]]:
    rows = Line.rows()
    return [(rows[name].usage, rows[name].help) for name in topic.options]


def _command_rows(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each command with the first sentence of its help."""
    return [(COMMANDS[name].usage, COMMANDS[name].about.partition(". ")[0]) for name in names]


def _command_help(command: Command) -> Listing:
    options = [(option.usage, option.help) for option in options_of(command)]
    parts = [Listing(title="Options", rows=options)] if options else []
    parts += [Listing(title="Examples", notes=command.examples)] if command.examples else []
    return Listing(title=f"%agent {command.usage}", notes=wrap(command.about, 96), parts=parts)


def _option_help(option: Option[Any]) -> Listing:
    takers = [None, *COMMANDS.values()] if option.name != "help" else [None]
    of = [f"%agent {c.name}" if c else "%%agent" for c in takers if option in options_of(c)]
    notes = [option.help]
    notes += ["You can use it several times."] if option.repeatable and of else []
    notes += [f"Also with {', '.join(of[1:])}."] if of[1:] else []
    if option.name in Settings.rows():
        notes.append(f"For all runs: %agent config {option.name}=…, or {option.variables[-1]}")
    title = f"{of[0]} {option.usage}" if of else f"%agent config {option.name}=…"
    return Listing(title=title, notes=notes)
