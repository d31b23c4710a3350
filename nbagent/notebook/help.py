"""What `%agent help` says: the options and commands that `line` declares, and examples."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import wrap
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.notebook.line import BY_FLAG, COMMANDS, Command, options_of
from nbagent.settings.options import Option, Settings
from nbagent.view.listing import Listing


def help_of(topic: str = "") -> Listing:
    """The options and commands with examples, or what there is to say of one of them.

    Raises:
        UsageError: there is no such command or option; the message names the nearest one.
    """
    topic = topic.strip().removeprefix("%agent ").strip()
    if topic in ("", "%%agent", "%agent", "agent"):
        return _everything()
    settings = Settings.rows()
    found = [_command_help(COMMANDS[topic])] if topic in COMMANDS else []
    # `tools` is both, and so is `help`, of which one is enough.
    flags = (f for f in (topic, f"--{topic}") if f in BY_FLAG and topic != "help")
    options = {BY_FLAG[flag].name: BY_FLAG[flag] for flag in flags}
    options |= {topic: settings[topic]} if topic in settings else {}
    found += [_option_help(option) for option in options.values()]
    if not found:
        near = get_close_matches(topic, [*COMMANDS, *BY_FLAG], 1, 0.4)
        nearest = f"; the nearest is {near[0]!r}" if near else ""
        raise UsageError(f"no command or option {topic!r}{nearest}. All of them: %agent help")
    return found[0] if len(found) == 1 else Listing(parts=found)


_NOTES = """\
In the prompt, {{ expression }} is evaluated in the notebook, {{ _error }} is the last exception,
{{ _cells[-3:] }} are the three cells before; two literal braces are written {{ '{{' }}.
Values with spaces stand in quotes: --system 'Be brief.' A value that starts with a dash is
attached: --system=-x  A line that ends in \\ continues on the next one.
No temperature is sent unless you set one. Keys are read from the environment only
(--key-variable). %agent help NAME also explains what %agent config lists."""
_EXAMPLES = """\
%%agent --model offline:demo --tools population --into first
Which of {{ cities }} is larger?

%%agent --continue --max-turns 5
And by how much?

%%agent -m openai:gpt-5.4 --base-url http://localhost:8000/v1 --temperature 0
%%agent --over df --vary model=openai:gpt-5.4,openai:gpt-5.4-mini --repeat 5 --into batch
Double {{ n }}.

%%agent --continue --dry-run
%%agent --model openai:gpt-5.4 --to cell
%agent Which of these cities is larger?
%agent show last
%agent resume --max-turns 40
%agent config model=offline:demo
%agent help resume"""


def _everything() -> Listing:
    commands = [(c.usage, c.about.partition(". ")[0]) for c in COMMANDS.values()]
    return Listing(
        title="%%agent [options]: ask a model; the prompt stands on the next lines",
        rows=[(option.usage, option.help) for option in options_of(None)],
        parts=[
            Listing(title="Prompts and values", notes=[_NOTES]),
            Listing(title="%agent COMMAND, or %agent and a question in one line", rows=commands),
            Listing(title="Examples", notes=[_EXAMPLES]),
        ],
    )


def _command_help(command: Command) -> Listing:
    options = [(option.usage, option.help) for option in options_of(command)]
    parts = [Listing(title="Options", rows=options)] if options else []
    parts += [Listing(title="Examples", notes=command.examples)] if command.examples else []
    return Listing(title=f"%agent {command.usage}", notes=wrap(command.about, 96), parts=parts)


def _option_help(option: Option[Any]) -> Listing:
    takers = [None, *COMMANDS.values()] if option.name != "help" else [None]
    of = [f"%agent {c.name}" if c else "%%agent" for c in takers if option in options_of(c)]
    notes = [option.help]
    notes += ["It may stand several times."] if option.many and of else []
    notes += [f"Also with {', '.join(of[1:])}."] if of[1:] else []
    if option.name in Settings.rows():
        notes.append(f"For all runs: %agent config {option.name}=…, or {option.variables[-1]}")
    title = f"{of[0]} {option.usage}" if of else f"%agent config {option.name}=…"
    return Listing(title=title, notes=notes)
