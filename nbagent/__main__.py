"""`python -m nbagent COMMAND`: doctor, trust, stored runs and saved notebooks in a shell."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import NbagentError, UsageError, describe_error
from nbagent.contracts.secrets import register_environment
from nbagent.export.formats import FORMATS
from nbagent.files.notebook_file import ODD, without_records
from nbagent.view.advice import without_magics
from nbagent.view.text_format import pluralize, sanitize_value


def main(arguments: list[str] | None = None) -> int:
    """Run the command of a shell; return the exit code."""
    options = _parser().parse_args(arguments)
    register_environment()
    try:
        text = options.do(options)
    except NbagentError as error:
        print(_advice(str(error)), file=sys.stderr)
        return getattr(options, "error_code", 1)
    except BrokenPipeError:  # `… | head`
        # Python writes the rest at exit, which would fail once more, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(text, int):
        return text
    if text:
        print(text)
    return 0


def _leave_out_working_folder() -> None:
    """Keep modules of the working folder, which may be a stranger's, from being imported."""
    # `-m` puts it first on the path. Not if nbagent itself is there: a checkout is the person's.
    here, ours = os.getcwd(), Path(__file__).resolve().parents[1]
    if sys.path and os.path.realpath(sys.path[0]) == here != str(ours):
        del sys.path[0]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m nbagent",
        description="Look at the runs of a project.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: Any, about: str) -> ArgumentParser:
        made = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        made.set_defaults(do=do)
        return made

    command("doctor", _doctor, "check versions, model, keys and store")
    runs = command("runs", _runs, "the last runs")
    runs.add_argument("number", nargs="?", type=int, default=10, help="how many (10)")
    show = command("show", _show, "a run as text")
    export = command("export", _export, "a run as a file")
    which = "its name, the start of its id, or last"
    show.add_argument("run", nargs="?", default="last", help=which)
    export.add_argument("run", help=which)
    export.add_argument("--format", choices=tuple(FORMATS), default="md", help="file format (md)")
    export.add_argument("-o", "--output", metavar="FILE", help="file to write; default: stdout")
    trust = command("trust", _trust, "show what this folder would decide, and ask about it")
    trust.add_argument("--revoke", action="store_true", help="take back what you allowed here")
    _add_check(command("check", _check, "check a batch: exit code 0 passed, 1 failed, 2 error"))
    about = "drop the records of runs and batches from saved notebooks; their views stay"
    strip = command("strip", _strip, about)
    strip.add_argument("file", nargs="*", help="a notebook (.ipynb) to change")
    about = "filter of git: read a notebook from stdin, write it to stdout"
    strip.add_argument("--filter", action="store_true", help=about)
    about = "the patterns with which nbval compares outputs of runs (--nbval-sanitize-with FILE)"
    nbval = command("nbval-config", _nbval_config, about)
    nbval.add_argument("-o", "--output", metavar="FILE", help="file to write; default: stdout")
    return parser


def _add_check(check: ArgumentParser) -> None:
    """Add the options of `check`, which are those of `batch.check`."""
    check.set_defaults(error_code=2)
    check.epilog = (
        "gate.py defines batch = agent.map(...), and may define the arguments of batch.check: "
        "check = {'min': {'exact': 0.9}, 'not_worse_than': 'baseline.json'}. Options of the "
        "command win. Without --min, --max or a baseline only failures and costs are checked, "
        "and no score."
    )
    target = "name of a batch, gate.py (it is run), a notebook or a baseline (they are only read)"
    check.add_argument("target", help=target)
    limit: dict[str, Any] = {"action": "append", "default": [], "metavar": "SCORE=NUMBER"}
    check.add_argument("--min", **limit, help="least mean of a score; repeatable")
    check.add_argument("--max", **limit, help="greatest mean of a score; repeatable")
    baseline = "baseline.json, the name of a batch, or last"
    check.add_argument("--not-worse-than", "--baseline", metavar="BASELINE", help=baseline)
    check.add_argument("--max-worse", type=int, metavar="N", help="rows that may be worse")
    failed = "cases that may be without an answer (0); 0.05 is a share"
    check.add_argument("--max-failed", metavar="N", help=failed)
    check.add_argument("--max-cost-usd", type=float, metavar="USD", help="cost of all cases")
    only = "check only the cases with this label; repeatable, an axis each"
    check.add_argument("--only", action="append", default=[], metavar="AXIS=LABEL", help=only)
    check.add_argument("--batch", metavar="NAME", help="the batch of a notebook that has several")
    check.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    markdown = "write Markdown, for $GITHUB_STEP_SUMMARY; - writes it to stdout"
    check.add_argument("--markdown", metavar="FILE", help=markdown)


# Each command imports its modules late: `strip` needs almost none of them.


def _doctor(options: Namespace) -> str:
    from nbagent.notebook.reports import doctor

    return without_magics(str(doctor()))


def _trust(options: Namespace) -> str:
    from nbagent.session.trust_question import ask_for_trust, revoke_trust

    if options.revoke:
        return _advice(revoke_trust())
    return _advice(ask_for_trust(lambda text: print(_advice(text), flush=True)))


def _advice(text: str) -> str:
    return without_magics(sanitize_value(text))


def _runs(options: Namespace) -> str:
    from nbagent.notebook.reports import runs

    listing = runs(min(max(options.number, 1), 9999))
    # Not the rows: they have the prompts.
    return str(replace(listing, notes=[*map(without_magics, listing.notes)]))


def _show(options: Namespace) -> str:
    from nbagent.view.terminal import run_text

    record = _run(options.run).record
    handle = f'nbagent.open_run("{record.id[:8]}")'
    return run_text(record, advise=partial(without_magics, run=handle))


def _export(options: Namespace) -> str | None:
    text = _run(options.run).export(options.format)
    if options.output is None:
        text = text.removesuffix("\n")
        # Only a terminal obeys control characters in a model's text; a file gets the exact text.
        return sanitize_value(text) if sys.stdout.isatty() else text
    _write(Path(options.output), text)
    return None


def _check(options: Namespace) -> int:
    from nbagent.lab.gate_file import check_gate, command_labels, command_options

    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        # A forge's pipe on Windows may not be able to write `≥`.
        stdout.reconfigure(errors="replace")
    required, only = command_options(vars(options)), command_labels(options.only)
    result = check_gate(options.target, required, options.batch, only)
    if options.junit:
        _write(Path(options.junit), result.junit())
    if options.markdown and options.markdown != "-":
        _write(Path(options.markdown), result.markdown())
    is_piped = options.markdown == "-"
    print(result, file=sys.stderr if is_piped else sys.stdout)
    if is_piped:
        print(result.markdown())
    return 0 if result else 1


def _run(ref: str) -> Any:
    from nbagent.run import open_run

    return open_run(ref)


def _nbval_config(options: Namespace) -> str | None:
    from importlib.resources import files

    text = files("nbagent.notebook").joinpath("nbval.cfg").read_text("utf-8")
    if options.output is None:
        return text.removesuffix("\n")
    _write(Path(options.output), text)
    return None


def _strip(options: Namespace) -> None:
    if options.filter == bool(options.file):
        raise UsageError("strip needs the notebooks to change, or --filter and none: strip a.ipynb")
    if options.filter:
        data, warning = filter_notebook(sys.stdin.buffer.read())
        if warning:
            print(sanitize_value(warning), file=sys.stderr)
        sys.stdout.buffer.write(data)
        return
    failed: list[str] = []
    for name in options.file:
        try:
            print(sanitize_value(strip_notebook(name)))
        except UsageError as error:
            failed.append(error.message)
    if failed:
        raise UsageError("\n".join(failed))


def filter_notebook(data: bytes) -> tuple[bytes, str]:
    """Drop the records of runs from a notebook; anything else is returned as it is.

    Returns:
        The notebook, and a warning if it may still hold records. No error: git would refuse to add
        a file if its filter failed.
    """
    try:
        made = without_records(data)
    except (ValueError, RecursionError) as error:
        reason = describe_error(error).partition("\n")[0]
        why = f"records not removed: the input is not a readable notebook ({reason})"
        return data, why if data.strip() else ""
    return made.data, f"records not removed: {ODD}" if made.n_odd else ""


def strip_notebook(name: str) -> str:
    """Drop the records of runs from a saved notebook; return a summary of the changes.

    Raises:
        UsageError: it cannot be read or written, or is not a notebook.
    """
    # The target of a link: os.replace would put a file in the place of the link. And it asks only
    # for rights on the folder, so it would replace a read-only file, too.
    file = Path(os.path.realpath(name))
    if file.exists() and not (file.is_file() and file.stat().st_mode & stat.S_IWUSR):
        raise UsageError(f"{name} is not a writable file; nothing was changed")
    try:
        made = without_records(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not a readable notebook ({describe_error(error)})") from None
    if made.n_odd and not made.n_dropped:
        raise UsageError(f"{name} is not a readable notebook ({ODD})")
    if not made.n_dropped:
        return f"{name}: no records of runs; nothing was changed"
    _write(file, made.data)
    outputs = pluralize(made.n_dropped, "output")
    odd = f"; records are not removed where {ODD}" if made.n_odd else ""
    return f"{name}: dropped the records of {outputs}; the views stay{odd}"


def _write(file: Path, text: str | bytes) -> None:
    """Replace a file atomically, keeping its permissions."""
    try:
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            # UTF-8 cannot encode a lone surrogate; its escape is valid in JSON.
            data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            if file.exists():
                shutil.copymode(file, temporary)
            else:
                os.chmod(temporary, 0o644)  # mkstemp makes it private
            os.replace(temporary, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"{file.name} cannot be written ({describe_error(error)})") from None


if __name__ == "__main__":
    _leave_out_working_folder()
    sys.exit(main())
