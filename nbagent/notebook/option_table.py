"""The line of `%%agent` and the commands of `%agent`, as data.

Options of a run are rows of `settings.table`; here are those of a cell alone, and the commands.
What a line is read into, what is completed and what the help says come from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbagent.contracts.policy import ToolPolicy
from nbagent.settings import Option, RunOptions, Settings, checks
from nbagent.settings.table import Switch


class Line(RunOptions):
    """What stood on the line of `%%agent`. None = not given."""

    __slots__ = ()

    ask = Settings.ask
    deny = Settings.deny
    continue_run = Option[str | None](
        "-c, --continue [RUN]",
        "go on with a run: its name or id; the last one without",
        checks.text,
        bare="last",
    )
    with_history = Switch(
        "--with-history", "after `resume DOCUMENT.md`: go on with the conversation, too"
    )
    into = Option[str | None]("--into NAME", "put the run into this variable", checks.variable_name)
    dry_run = Switch("--dry-run", "show what would be sent, and send nothing")
    help = Switch("-h, --help", "show this")

    def run_options(self) -> RunOptions:
        """What is for the run."""
        known = RunOptions.rows()
        given = {name: value for name, value in self.given.items() if name in known}
        if self.ask or self.deny:
            given["policy"] = ToolPolicy(ask=self.ask or (), deny=self.deny or ())
        return RunOptions(**given)


OPTIONS: tuple[Option[Any], ...] = tuple(row for row in Line.rows().values() if row.usage)
"""What can stand on the line."""
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `%agent`."""

    name: str
    argument: str
    """What follows it; in brackets when it may be left out. `RUN`, `PROVIDER`, `PACKAGE`,
    `NAME=VALUE` and `COMMAND` are completed."""
    help: str
    more: str = ""
    """What `%agent help COMMAND` adds."""
    examples: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """The options of `%%agent` (by name) that it takes after its argument."""


_RESUME_OPTIONS = tuple(o.name for o in OPTIONS if o.name not in ("session", "continue_run"))

COMMANDS: tuple[Command, ...] = (
    Command(
        "tools",
        "[NAMES] [options]",
        "the tools that a model is given, and what happens at a call",
        "NAMES as after --tools; without them, what a cell without --tools gives. Rules come from "
        "%agent config (allow=, ask=, deny=) and from --ask and --deny.",
        ("%agent tools fs,skills", "%agent config allow='fs.write(path=@project/out/*)'"),
        ("mounts", "skills", "ask", "deny"),
    ),
    Command(
        "approvals",
        "[clear]",
        "the calls that were allowed for the session",
        "clear takes all of it back: such calls are asked about again. What is allowed ends with "
        "the kernel.",
        ("%agent approvals clear",),
    ),
    Command(
        "models",
        "[PROVIDER [options]]",
        "the models that can be asked",
        "Asks the servers; what they list is completed after --model from then on.",
        ("%agent models openai", "%agent models vllm --base-url http://localhost:9000/v1"),
        ("base_url", "key_variable", "timeout_s"),
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
        "[RUN | DOCUMENT.md]",
        "go on with a run that paused or failed, or with a document",
        "What the run was asked with goes on, unless an option says otherwise. To add words, write "
        "%%agent --continue with the words on the next lines. A document goes on without the "
        "conversation before, on any machine that has the package.",
        (
            "%agent resume last --max-turns 40 --trim tool-results",
            "%agent resume .nbagent/state/3fa81c0299b1d0e4/workflow.md",
        ),
        _RESUME_OPTIONS,
    ),
    Command(
        "workflow",
        "[PACKAGE]",
        "a package: its agents, its steps, and how far a workflow has come",
        "PACKAGE is a folder with workflow.md or SKILL.md, or a zip of one (.bmad); what is wrong "
        "with it is listed with file and line. A path that ends in .md is the document of a "
        "workflow at work. Without PACKAGE, the packages of this folder are named.",
        ("%agent workflow story-flow", "%agent workflow .nbagent/state/3fa81c02/workflow.md"),
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
