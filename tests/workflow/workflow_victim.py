"""A process that walks a workflow and is killed with SIGKILL from outside, at any moment.

Run as a script it forks one victim for each line `PROJECT HOME WAY MOMENT` of its stdin, so that
the imports are paid once, and says how each of them ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import nbagent
from nbagent.settings import begun_anew

PACKAGE = "table-review"
LASTS_S = 0.7
"""About as long as the whole workflow takes."""
AT_RANDOM, AT_A_CHANGE, NEVER = "random", "change", "never"
"""The moments of a kill: any, or soon after the document changed on the disk."""
ANEW, DOCUMENT, RESUME, WORDS = "anew", "document", "resume", "words"
"""How the victim begins, or goes on."""
_AFTER_S = 0.006
"""From a change of the document until its result is stored, and a little more."""
_POLL_S = 0.0002


def walk(project: Path, home: Path, way: str) -> None:
    """Begin the workflow, or go on with it, to its end."""
    os.environ["NBAGENT_HOME"] = str(home)
    os.environ["NBAGENT_OFFLINE_DELAY_MS"] = "0"
    os.chdir(project)
    options = {"autopilot": True, "max_turns": 500, "ceiling": 500}
    agent = nbagent.Agent("offline:demo", quiet=True, on_approval=lambda question: True)
    with begun_anew():
        if way == ANEW:
            run = agent.run("Review the table.", workflow=PACKAGE, **options)
        elif way == DOCUMENT:
            run = agent.run(document=str(document_in(home)), **options)
        else:
            words = "Go on, please." if way == WORDS else None
            run = nbagent.open_run("last").resume(words, on_approval=lambda question: True)
    assert run.stop_reason == "workflow_complete", (run.phase, run.stop_reason, run.error, run.text)


def document_in(home: Path) -> Path | None:
    """The document of the one workflow that a home has; None while it is not there yet."""
    return next(home.glob("state/*/workflow.md"), None)


def kill_in_time(pid: int, home: Path, moment: str) -> None:
    """Kill a victim, unless it ends before."""
    if moment == AT_RANDOM:
        time.sleep(random.uniform(0, LASTS_S))
    elif moment == AT_A_CHANGE:
        changes, seen = random.randrange(1, 6), _inode(home)
        until = time.monotonic() + LASTS_S
        while changes and time.monotonic() < until:
            time.sleep(_POLL_S)
            now = _inode(home)
            changes -= now != seen
            seen = now
        time.sleep(random.uniform(0, _AFTER_S))
    else:
        return
    os.kill(pid, signal.SIGKILL)  # It is not waited for yet, so the id is its own.


def _inode(home: Path) -> int:
    file = document_in(home)
    return file.stat().st_ino if file else 0


def main() -> None:
    """Fork a victim for each line; say how it ended: a negative signal, or an exit code."""
    # Paid once.
    import nbagent.archive.audit
    import nbagent.providers.offline.workflow
    import nbagent.session.guide  # noqa: F401

    for line in sys.stdin:
        project, home, way, moment = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                walk(Path(project), Path(home), way)
                code = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        kill_in_time(pid, Path(home), moment)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
