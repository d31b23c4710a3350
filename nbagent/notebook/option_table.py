"""The options of `%%agent` and the commands of `%agent`, as data.

What a line is read into, what is completed and what the help says all come from here. Adding an
option or a command begins with a row in one of the two tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbagent.settings.checks import TRIMS

Kind = Literal["text", "choice", "tools", "int", "float", "seconds", "name", "run", "flag"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of `%%agent`."""

    flags: tuple[str, ...]
    dest: str
    """The field of `MagicOptions` that it fills."""
    kind: Kind = "text"
    metavar: str = ""
    help: str = ""
    low: float | None = None
    """Smallest value allowed."""
    high: float | None = None
    repeatable: bool = False
    default: str | None = None
    """What the option without its value stands for; None when the value must be there."""
    choices: tuple[str, ...] = ()
    """All values that there are."""


OPTIONS: tuple[Option, ...] = (
    Option(("-m", "--model"), "model", metavar="PROVIDER:MODEL", help="the model to ask"),
    Option(
        ("--base-url",),
        "base_url",
        metavar="URL",
        help="the server to ask, instead of the provider's own",
    ),
    Option(("--system",), "system", metavar="TEXT", help="the system prompt"),
    Option(
        ("-t", "--tools"),
        "tools",
        "tools",
        "A,B | none | all",
        "functions, fs, skills, notebook, mcp:NAME (default: your functions)",
    ),
    Option(
        ("--tool-choice",),
        "tool_choice",
        metavar="auto | none | required | TOOL",
        help="whether the first answer must use a tool",
    ),
    Option(("--max-turns",), "max_turns", "int", "N", "pause after so many turns", low=1),
    Option(("--temperature",), "temperature", "float", "0–2", "sampling temperature", 0, 2),
    Option(("--top-p",), "top_p", "float", "0–1", "nucleus sampling", 0, 1),
    Option(("--max-tokens",), "max_tokens", "int", "N", "most tokens of one answer", low=1),
    Option(
        ("--stop-seq",),
        "stop_sequences",
        metavar="TEXT",
        help="end the answer before this text",
        repeatable=True,
    ),
    Option(("--timeout",), "timeout_s", "seconds", "SECONDS", "longest time for one request"),
    Option(
        ("--trim",),
        "trim",
        "choice",
        "tool-results | none",
        "shorten old tool results once a request was too large",
        choices=TRIMS,
    ),
    Option(
        ("--mount",),
        "mounts",
        metavar="NAME=PATH[:ro|rw]",
        help="a folder that file tools may use, beside @project",
        repeatable=True,
    ),
    Option(
        ("--skills",),
        "skills",
        metavar="DIR",
        help="a folder of skills, beside the project's own",
        repeatable=True,
    ),
    Option(
        ("--ask",),
        "ask",
        metavar="CALLS",
        help="calls that you want to be asked about: fs.write, 'fs.*', mcp:git",
        repeatable=True,
    ),
    Option(
        ("--deny",),
        "deny",
        metavar="CALLS",
        help="calls that are refused: 'fs.write(path=@project/docs/*)'",
        repeatable=True,
    ),
    Option(
        ("--session",),
        "session",
        metavar="NAME",
        help="the run's session; with --continue: go on with its last run",
    ),
    Option(
        ("-c", "--continue"),
        "continue_run",
        "run",
        "[RUN]",
        "go on with a run: its name or id; the last one without",
        default="last",
    ),
    Option(("--into",), "into", "name", "NAME", "put the run into this variable"),
    Option(("--name",), "name", metavar="TEXT", help="a name for the run"),
    Option(("--tag",), "tags", metavar="TEXT", help="a tag for the run", repeatable=True),
    Option(("--raw",), "raw", "flag", help="print the text of the answer, and no view"),
    Option(("--no-stream",), "no_stream", "flag", help="ask for the answer in one piece"),
    Option(("--quiet",), "quiet", "flag", help="show nothing but errors"),
    Option(("--dry-run",), "dry_run", "flag", help="show what would be sent, and send nothing"),
    Option(("-h", "--help"), "help", "flag", help="show this"),
)
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}


@dataclass(frozen=True, slots=True, kw_only=True)
class MagicOptions:
    """What stood on the line of `%%agent`. None = not given."""

    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: tuple[str, ...] | Literal["none", "all"] | None = None
    tool_choice: str | None = None
    max_turns: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    timeout_s: float | None = None
    trim: str | None = None
    mounts: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    ask: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None
    session: str | None = None
    continue_run: str | None = None
    """`last` when `--continue` had no value."""
    into: str | None = None
    name: str | None = None
    tags: tuple[str, ...] | None = None
    raw: bool | None = None
    no_stream: bool | None = None
    quiet: bool | None = None
    dry_run: bool | None = None
    help: bool | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `%agent`."""

    name: str
    argument: str
    """What follows it; in brackets when it may be left out. `RUN`, `PROVIDER`, `NAME=VALUE` and
    `COMMAND` are completed."""
    help: str
    more: str = ""
    """What `%agent help COMMAND` adds."""
    examples: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """The options of `%%agent` (by their `dest`) that it takes after its argument."""


_RESUME_OPTIONS = (
    *("model", "base_url", "system", "tools", "tool_choice", "max_turns", "temperature", "top_p"),
    *("max_tokens", "stop_sequences", "timeout_s", "trim", "into", "name", "tags", "raw"),
    *("mounts", "skills", "ask", "deny"),
    *("no_stream", "quiet", "dry_run", "help"),
)

COMMANDS: tuple[Command, ...] = (
    Command(
        "tools",
        "[NAMES] [options]",
        "the tools that a model is given, and what happens at a call",
        "NAMES as after --tools; without them, what a cell without --tools gives. Rules come from "
        "%agent config (allow=, ask=, deny=, hide=) and from --ask and --deny.",
        ("%agent tools fs,skills", "%agent config allow='fs.write(path=@project/out/*)'"),
        ("mounts", "skills", "ask", "deny"),
    ),
    Command(
        "models",
        "[PROVIDER]",
        "the models that can be asked",
        "Asks the servers; what they list is completed after --model from then on.",
        ("%agent models openai",),
    ),
    Command(
        "pull",
        "[FILE]",
        "download a model file for local:, from the Hugging Face hub",
        "FILE is OWNER/REPO/NAME.gguf; without it, three small models are named. Needs pip install "
        "'nbagent[local]'. HF_ENDPOINT, HF_HOME and HF_TOKEN of the environment are obeyed.",
        ("%agent pull ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf",),
    ),
    Command(
        "runs",
        "[N]",
        "the last runs: name, id, state, model, prompt",
        "10 without a number. nbagent.runs() gives all of them as a DataFrame.",
        ("%agent runs 5",),
    ),
    Command(
        "show",
        "[RUN]",
        "show a run again: its name, the start of its id, or last",
        examples=("%agent show last",),
    ),
    Command(
        "resume",
        "[RUN]",
        "go on with a run that stopped, failed or paused",
        "What the run was asked with goes on, unless an option says otherwise. To add words, write "
        "%%agent --continue with the words on the next lines.",
        ("%agent resume", "%agent resume last --max-turns 40 --trim tool-results"),
        _RESUME_OPTIONS,
    ),
    Command("stop", "", "stop the run that is at work"),
    Command(
        "config",
        "[NAME=VALUE …]",
        "see or set defaults for this notebook",
        "NAME= takes a value back. Options on the line of %%agent win over these.",
        ("%agent config model=offline:demo max_turns=5", "%agent config system='Be brief.'"),
    ),
    Command("panel", "", "a panel to ask from, below this cell: also while the kernel is idle"),
    Command(
        "forget",
        "RUN [--children]",
        "delete a run and its texts from the store and the open page",
        "--children deletes the runs that go on from it too. What a notebook has saved stays in it "
        "until the output of the cell is cleared.",
        ("%agent forget 3fa81c02",),
    ),
    Command(
        "doctor",
        "[compact]",
        "what was found: versions, kernel, keys, store",
        "compact gives the space back that deleted runs have left in the store.",
        ("%agent doctor compact",),
    ),
    Command(
        "help",
        "[COMMAND]",
        "the options and commands",
        "Also for one option: %agent help --tools",
        ("%agent help resume",),
    ),
)
