"""`%%agent --over df`: run the prompt of a cell for each row of a DataFrame.

Translates the options of the line; the batch itself is in `lab`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbagent.agent import Agent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_hint
from nbagent.notebook.line import BATCH_OPTIONS, Line
from nbagent.notebook.prompt_names import own_names
from nbagent.settings.options import BatchOptions, RunOptions

if TYPE_CHECKING:
    from nbagent.lab.batch import Batch

_SINGLE_RUN_FLAGS = {"continue_run": "--continue", "fork": "--fork", "to": "--to", "raw": "--raw"}
"""Options for a single run."""


def is_batch(options: Line) -> bool:
    """True if a line starts a batch.

    Raises:
        UsageError: its options exclude each other.
    """
    option_values = options.explicit
    if options.over is None:
        if alone := [name for name in BATCH_OPTIONS if name in option_values]:
            flag = Line.rows()[alone[0]].flags[-1]
            raise UsageError(f"{flag} needs a DataFrame; name it with --over NAME")
        return False
    if single_run_flags := [
        flag for name, flag in _SINGLE_RUN_FLAGS.items() if name in option_values
    ]:
        raise UsageError(
            f"{single_run_flags[0]} is for one run and --over for a batch; remove one of them"
        )
    return True


def create_batch(options: Line, run_options: RunOptions, template: str, shell: Any) -> Batch:
    """Create the batch of a cell without starting it.

    Args:
        options: the options of the line.
        run_options: the options that each run gets.
        template: the prompt, filled for each row.
        shell: the IPython shell with the notebook's variables.

    Raises:
        UsageError: an option is not valid.
    """
    names = {**shell.user_global_ns, **shell.user_ns}
    # These two name and limit the whole batch, not each of its runs.
    shared = {k: v for k, v in run_options.explicit.items() if k not in ("name", "max_cost_usd")}
    return Agent(**shared).map(
        _variable(names, options.over or "", "--over"),
        template,
        key=options.row_key,
        executor=options.executor,
        vary=_axes(options.vary or (), names),
        name=run_options.name,
        max_cost_usd=run_options.max_cost_usd,
        score=[_variable(names, name, "--score") for name in options.score or ()],
        start=False,
        names={**names, **own_names(shell, template)},
        **{
            name: options.explicit[name] for name in BatchOptions.rows() if name in options.explicit
        },
    )


def _variable(names: dict[str, Any], name: str, flag: str) -> Any:
    if name not in names:
        hint = nearest_hint(name, names) or "; define it first"
        raise UsageError(f"{flag} {name}: the notebook has no variable {name!r}{hint}")
    return names[name]


def _axes(texts: tuple[str, ...], names: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parse `--vary` texts: axis → label → value."""
    axes: dict[str, dict[str, Any]] = {}
    for text in texts:
        axis, _, values = text.partition("=")
        if axis in axes:
            raise UsageError(f"--vary {axis} is on the line twice; write {axis}=A,B once")
        labels = [word for part in values.split(",") if (word := part.strip())]
        if len(set(labels)) < len(labels):
            raise UsageError(f"--vary {text}: a value is listed twice; keep one of them")
        axes[axis] = {label: _value(axis, label, names) for label in labels}
    return axes


def _value(axis: str, label: str, names: dict[str, Any]) -> Any:
    """Resolve a label: the text or list in a variable of this name, else the label itself."""
    value = names.get(label) if axis != "model" else None
    if isinstance(value, str | list | tuple):
        return value
    if axis in ("system", "prompt") and label.isidentifier():
        hint = nearest_hint(label, (key for key, text in names.items() if isinstance(text, str)))
        raise UsageError(f"--vary {axis}: the notebook has no text in a variable {label!r}{hint}")
    row = RunOptions.rows().get(axis)
    return (
        label
        if row is None
        else row.checked((label,) if row.repeatable else label, f"--vary {axis}")
    )
