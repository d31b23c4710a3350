"""What `%agent help`, `%%agent --help`, `%%agent?` and `%agent?` say, made from the tables."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.notebook.option_table import BY_FLAG, COMMANDS, OPTIONS, Command
from nbagent.settings import Option, Settings

_WIDTH = 96


def help_text(topic: str = "") -> str:
    """The options and commands with examples, or what there is to say of one of them.

    Raises:
        UsageError: there is no such command or option; the message names the nearest one.
    """
    topic = topic.strip()
    if not topic or topic in ("%%agent", "%agent", "agent"):
        return _everything()
    settings = Settings.rows()
    named = topic.removeprefix("%agent ").strip()
    found = ["\n".join(_command_help(command)) for command in COMMANDS if command.name == named]
    # `tools` is both, and so is `help`, of which one is enough.
    flags = (f for f in (topic, f"--{topic}") if f in BY_FLAG and topic != "help")
    options = {BY_FLAG[flag].name: BY_FLAG[flag] for flag in flags}
    options |= {topic: settings[topic]} if topic in settings else {}
    found += ["\n".join(_option_help(option)) for option in options.values()]
    if found:
        return "\n\n".join(found)
    names = [*(command.name for command in COMMANDS), *BY_FLAG]
    near = get_close_matches(topic, names, 1, 0.4)
    raise UsageError(
        f"there is no command and no option {topic!r}"
        f"{f'; the nearest is {near[0]!r}' if near else ''}. All of them: %agent help"
    )


def _everything() -> str:
    commands = [(f"{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS]
    return "\n".join(
        [
            "%%agent [options]          ask a model; the prompt stands on the next lines",
            "",
            *_table([(option.usage, option.help) for option in OPTIONS]),
            "",
            "In the prompt, {{ expression }} is evaluated in the notebook; for two literal braces",
            "write {{ '{{' }}. Quote values with spaces: --system 'Be brief.' A value that starts",
            "with a dash is attached: --system=-x  A line that ends in \\ goes on in the next one.",
            "",
            "%agent COMMAND",
            "",
            *_table(commands),
            "",
            "No temperature is sent unless you set one. A request has 600 s, its retries included;",
            "--timeout changes that. Keys are read from the environment only (--key-variable).",
            "%agent help NAME also explains what %agent config lists.",
            "",
            "Examples",
            "  %%agent --model offline:demo --tools population --into first",
            "  Which of {{ cities }} is larger?",
            "",
            "  %%agent --continue --max-turns 5",
            "  And by how much?",
            "",
            "  %%agent -m openai:gpt-5.4 --base-url http://localhost:8000/v1 --temperature 0",
            "  %%agent --continue --dry-run",
            "  %agent show last",
            "  %agent resume --max-turns 40",
            "  %agent config model=offline:demo",
            "  %agent help resume",
        ]
    )


def _command_help(command: Command) -> Iterator[str]:
    yield f"%agent {command.name} {command.argument}".rstrip()
    yield ""
    yield from _wrapped(f"{command.help}. {command.more}".rstrip())
    if command.options:
        rows = [(o.usage, o.help) for o in OPTIONS if o.name in command.options]
        yield from ("", "Options", *_table(rows))
    if command.examples:
        yield from ("", "Examples", *(f"  {example}" for example in command.examples))


def _option_help(option: Option[Any]) -> Iterator[str]:
    yield f"%%agent {option.usage}" if option.usage else f"%agent config {option.name}=…"
    yield ""
    facts = [option.help]
    facts += ["may stand several times"] if option.many and option.usage else []
    taken = [command.name for command in COMMANDS if option.name in command.options]
    facts += [f"also with %agent {name}" for name in taken if option.name != "help"]
    yield f"  {'; '.join(facts)}"
    if option.name in Settings.rows():
        yield f"  Set for all: %agent config {option.name}=…, or {option.variables[-1]}"


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = min(max(len(left) for left, _ in rows), 24)
    for left, right in rows:
        if len(left) > width:
            yield f"  {left}"
            left = ""
        yield f"  {left:<{width}}  {right}"


def _wrapped(text: str) -> Iterator[str]:
    line = " "
    for word in text.split():
        if len(line) + len(word) + 1 > _WIDTH:
            yield line
            line = " "
        line += f" {word}"
    yield line
