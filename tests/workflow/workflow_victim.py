"""A process that walks a workflow and is killed with SIGKILL: at a write of its document, or ever.

Run as a script it forks one victim for each line `PROJECT HOME WAY KILL` of its stdin, so that
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
from nbagent.settings.sources import fresh_settings

PACKAGE = "table-review"
LASTS_S = 0.7
"""About as long as the whole workflow takes."""
AT_RANDOM, NEVER = "random", "never"
"""Besides: `before N` and `after N`, at the write of the document of that number."""
ANEW, DOCUMENT, RESUME = "anew", "document", "resume"
"""How the victim begins, or goes on."""


def die_at_a_write(moment: str, number: int) -> None:
    """Die just before or just after the document is replaced for this time."""
    plain = os.replace

    def replace(*args: Any, **more: Any) -> None:
        nonlocal number
        number -= args[1] == "workflow.md"
        if not number and moment == "after":
            plain(*args, **more)
        if not number:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(*args, **more)

    os.replace = replace


def allow(question: nbagent.Question) -> bool:
    """Yes to all."""
    return True


def walk(project: str, home: str, way: str) -> None:
    """Begin the workflow, or go on with it, to its end."""
    os.environ.update(NBAGENT_HOME=home, NBAGENT_OFFLINE_DELAY_MS="0")
    os.chdir(project)
    options: dict[str, Any] = {"autopilot": True, "max_turns": 500, "max_requests": 500}
    agent = nbagent.Agent("offline:demo", quiet=True, on_approval=allow)
    with fresh_settings():
        if way == ANEW:
            run = agent.run("Review the table.", workflow=PACKAGE, **options)
        elif way == DOCUMENT:
            run = agent.run(document=str(document_in(Path(home))), **options)
        else:
            run = nbagent.open_run("last").resume(on_approval=allow)
    assert run.stop_reason == "workflow_complete", (run.phase, run.stop_reason, run.error, run.text)


def document_in(home: Path) -> Path | None:
    """The document of the one workflow that a home has; None while it is not there yet."""
    return next(home.glob("state/*/workflow.md"), None)


def main() -> None:
    """Fork a victim for each line; say how it ended: a negative signal, or an exit code."""
    for name in ("nbagent.session.workflow_setup", "nbagent.providers.offline.workflow_walk"):
        import_module(name)
    for line in sys.stdin:
        project, home, way, kill = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if " " in kill:
                    die_at_a_write(kill.partition(" ")[0], int(kill.partition(" ")[2]))
                walk(project, home, way)
                code = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        if kill == AT_RANDOM:
            time.sleep(random.uniform(0, LASTS_S))
            os.kill(pid, signal.SIGKILL)  # It is not waited for yet, so the id is its own.
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
