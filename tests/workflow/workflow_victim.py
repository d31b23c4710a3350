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
from importlib import import_module
from pathlib import Path
from typing import Any

import nbagent
from nbagent.settings import begun_anew

PACKAGE = "table-review"
LASTS_S = 0.7
"""About as long as the whole workflow takes."""
AT_RANDOM, AT_A_CHANGE, NEVER = "random", "change", "never"
"""The moments of a kill: any, or soon after the document changed on the disk."""
BEFORE_A_MOVE, AFTER_A_MOVE = "before a move", "after a move"
"""Just before and just after the document is replaced by that of the second move."""
ANEW, DOCUMENT, RESUME, WORDS = "anew", "document", "resume", "words"
"""How the victim begins, or goes on."""
_AFTER_S = 0.006
"""From a change of the document until its result is stored, and a little more."""
_POLL_S = 0.0002
_PAID_ONCE = ("nbagent.session.guide", "nbagent.providers.offline.workflow")


def die_at_a_move(moment: str) -> None:
    """Die when the document is written for the third time."""
    plain, left = os.replace, 3

    def replace(*args: Any, **more: Any) -> None:
        nonlocal left
        left -= args[1] == "workflow.md"
        if not left and moment == AFTER_A_MOVE:
            plain(*args, **more)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(*args, **more)

    os.replace = replace


def allow(question: nbagent.Question) -> bool:
    """Yes to all."""
    return True


def walk(project: Path, home: Path, way: str) -> None:
    """Begin the workflow, or go on with it, to its end."""
    os.environ["NBAGENT_HOME"] = str(home)
    os.environ["NBAGENT_OFFLINE_DELAY_MS"] = "0"
    os.chdir(project)
    options: dict[str, Any] = {"autopilot": True, "max_turns": 500, "ceiling": 500}
    agent = nbagent.Agent("offline:demo", quiet=True, on_approval=allow)
    with begun_anew():
        if way == ANEW:
            run = agent.run("Review the table.", workflow=PACKAGE, **options)
        elif way == DOCUMENT:
            run = agent.run(document=str(document_in(home)), **options)
        else:
            words = "Go on, please." if way == WORDS else None
            run = nbagent.open_run("last").resume(words, on_approval=allow)
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
    for name in _PAID_ONCE:
        import_module(name)
    for line in sys.stdin:
        project, home, way, moment = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if moment in (BEFORE_A_MOVE, AFTER_A_MOVE):
                    die_at_a_move(moment)
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
