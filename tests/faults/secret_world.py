"""Runs in a kernel: makes every trouble that could bring a key out, and writes down each channel.

`collect` is called in a cell after the troubles; the test reads the files that it writes.
"""

# pandas' and ipywidgets' methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
import gc
import io
import logging
import os
import pickle
import sys
import traceback
import warnings
from base64 import b32encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from planted_secrets import EVERYTHING

import nbagent
from nbagent import offline
from nbagent.export.formats import FORMATS
from nbagent.providers import catalogue
from nbagent.providers.catalogue import find_provider
from nbagent.session.stores import current_store

LOG = io.StringIO()
WARNED: list[str] = []
EVENTS: list[Any] = []
QUESTIONS: list[nbagent.Question] = []
HANDS: list[nbagent.Run] = []
CASSETTES: list[Path] = []
JUDGED: list[Any] = []
"""Requests to a judge."""
CLIENT: list[Any] = []
"""Answers that `nbagent.client` brought."""
REMEMBERED: list[str] = []
SENT: list[bytes] = []
"""Arguments of the tasks for workers."""
RUNS: list[nbagent.Run] = []
"""A failed run and an answered one."""
_SKILL = """---
name: teller
description: Tells everything.
---
Run tell.py.
"""
_TELL = """import os, sys
print(dict(os.environ), open(__file__).read())
try:
    print(open(f"/proc/{os.getppid()}/environ").read())
except OSError as error:
    print(error)
"""


def listen() -> None:
    """Keep every line of every logger and every warning from now on."""
    logging.basicConfig(stream=LOG, level=logging.DEBUG, force=True)
    warnings.simplefilter("always")

    def note(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        WARNED.append(f"{category.__name__}: {message} ({filename}:{lineno})")

    warnings.showwarning = note


def secret() -> str:
    """The key, as a person's own code may read it."""
    return os.environ["LLM_API_KEY"]


def all_secrets() -> str:
    """The key and all other secrets, in one text."""
    return f"{secret()} | {EVERYTHING}"


@nbagent.tool
def leaky(what: str) -> dict[str, Any]:
    """Tell more than it should."""
    raw = secret().encode()
    coded = [raw.hex(), raw.hex().upper(), *(b32encode(b" " * n + raw).decode() for n in range(5))]
    escaped = "".join(f"\\u{ord(c):04x}" for c in secret())
    environment = dict(os.environ)
    return {"what": what, "environment": environment, "bytes": raw, "coded": [*coded, escaped]}


@nbagent.tool
def failing(what: str) -> str:
    """Fail and quote the key, and all other secrets."""
    raise PermissionError(f"refused for {what}: {secret()}") from ValueError(EVERYTHING)


@nbagent.tool
def displaying() -> str:
    """Display all secrets as HTML."""
    from IPython.display import HTML, display

    display(HTML(f"<i>{all_secrets()}</i>"))
    return "Shown."


def agent(url: str, **options: Any) -> nbagent.Agent:
    """An agent that asks the test's server."""
    return nbagent.Agent("openai:m", base_url=url, tools=[leaky, failing], **options)


def use_hands(url: str, folder: str, server: list[str]) -> None:
    """A run whose files, scripts, variables and servers all try to tell the key."""
    desk = Path(folder, "desk")
    skill = desk / "skills" / "teller"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(_SKILL, "utf-8")
    (skill / "tell.py").write_text(_TELL, "utf-8")
    (desk / "leak.txt").write_text(f"It is {secret()}.", "utf-8")

    def agree(question: nbagent.Question) -> bool:
        QUESTIONS.append(question)
        return True

    hand = nbagent.mcp("hand", command=server)
    given = nbagent.Agent(
        "openai:m",
        base_url=url,
        tools=["fs", "skills", "notebook", hand],
        on_approval=agree,
        mounts=[f"desk={desk}:rw"],
        skills=[str(desk / "skills")],
    )
    run = given.run("Go.", on_event=EVENTS.append)
    failed = [it.result for it in run.turns[0].tool_runs if it.result is None or not it.result.ok]
    assert not failed, failed
    HANDS.append(run)
    hand.close()


def record_in_cassette(url: str, folder: str) -> None:
    """A run whose answers are recorded."""
    CASSETTES.append(Path(folder, "recorded.jsonl"))
    recorded = agent(url, cache="auto", cassette=str(CASSETTES[0]))
    recorded.run(f"Record it: {all_secrets()}").raise_for_error()


async def ask_client(url: str) -> None:
    """A client alone: a whole answer, a streamed one, and the list of models."""
    client = nbagent.client("openai:m", base_url=url)
    request = nbagent.ChatRequest(messages=(nbagent.Message.of("user", "Go."),))
    CLIENT.append(await client.chat(request))
    CLIENT.extend([chunk async for chunk in client.chat_stream(request)])
    CLIENT.append(await client.list_models())


def have_judged() -> None:
    """A batch whose rows, answers and judge's material are full of secrets."""
    text = all_secrets()
    verdict = offline.call("final_answer", reason=text, ok=True)
    model = offline.script([verdict], name="judge")
    judge = nbagent.judge("The answer says what `wanted` says.", model=model)
    table: Any = pd.DataFrame([{"n": text, "wanted": text}])
    asked = nbagent.Agent(offline.script([f"It is {text}"]), tools="none")
    asked.map(table, "Say {{ n }}", name="judged", score=judge).wait()
    JUDGED.extend(model.requests)


def send_to_workers(url: str) -> None:
    """A batch on workers in this process; everything that the client submits is kept."""
    from distributed import Client

    kind: Any = Client
    plain: dict[str, Any] = {"submit": kind.submit, "run": kind.run}

    def note(name: str) -> Callable[..., Any]:
        def sends(client: Any, *args: Any, **options: Any) -> Any:
            SENT.append(pickle.dumps(args) + repr((args, options)).encode())
            return plain[name](client, *args, **options)

        return sends

    # On the class: nbagent opens a client of its own.
    kind.submit, kind.run = note("submit"), note("run")
    table: Any = pd.DataFrame([{"n": all_secrets()}])
    with kind(processes=False, n_workers=1, dashboard_address=None) as client:
        asked = nbagent.Agent("openai:m", base_url=url, tools="none")
        asked.map(table, "Send {{ n }}", name="sent", executor=client).wait()


def remember_objects() -> None:
    """Read the objects in memory now: later a batch keeps its rows as the person gave them."""
    REMEMBERED.append(_objects())


def _exports() -> str:
    """Each format of an answered run, and the one with messages in spans."""
    texts = [RUNS[1].export(name) for name in FORMATS]
    return "".join([*texts, RUNS[1].export("otel", content=True)])


def _json(run: nbagent.Run) -> str:
    return run.record.model_dump_json()


def _text_of(make: Callable[[], object]) -> str:
    try:
        return f"made: {make()!r}"
    except Exception as error:
        return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


def _whole_tracebacks(run: nbagent.Run) -> str:
    """A failure with the local variables of every frame, its causes and its contexts."""
    try:
        run.raise_for_error()
    except nbagent.NbagentError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        chain = (error, error.__cause__, error.__context__)
        return "".join(told.format()) + repr([(e, vars(e)) for e in chain if e is not None])
    raise AssertionError("the run did not fail")


def _objects() -> str:
    """The reprs of everything of nbagent's in memory, but for the filter, which has to know."""
    gc.collect()  # What nobody reaches any more goes now or later, as the collector likes.
    reprs: list[str] = []
    for thing in gc.get_objects():
        place = str(type(thing).__module__)
        if place.startswith("nbagent.") and place != "nbagent.contracts.secrets":
            try:
                reprs.append(repr(thing))
                reprs.append(repr(vars(thing)))
            except Exception as error:
                reprs.append(type(error).__name__)
    return "\n".join(reprs)


def _widgets() -> str:
    """State of all open widgets, as a notebook saves it."""
    import ipywidgets

    return repr(ipywidgets.Widget.get_manager_state())


def _handles() -> str:
    held = [[it, it.record, it.error, it.messages, str(it), it.text] for it in RUNS]
    return repr(held)


def _frames() -> str:
    made = (nbagent.runs(), nbagent.turns(), nbagent.tool_runs(), nbagent.messages())
    return "".join(frame.to_csv() for frame in made)


def _home(name: str = "") -> Path:
    return Path(os.environ["NBAGENT_HOME"], name)


def _files() -> str:
    return "".join(f.read_bytes().decode("latin-1") for f in _home().rglob("*") if f.is_file())


def _raised(**options: Any) -> str:
    """Error text if an agent cannot be made or its run fails."""
    given: dict[str, Any] = {"model": "openai:m", **options}
    return _text_of(lambda: nbagent.Agent(**given).run("Go.").raise_for_error())


CHANNELS: dict[str, tuple[str, Callable[[], str]]] = {
    "log lines": ("DEBUG", LOG.getvalue),
    "warnings": ("(control)", lambda: "\n".join(["(control)", *WARNED])),
    "reprs of handles and records": ("RunRecord", _handles),
    "records as JSON": ('"messages"', lambda: "".join(map(_json, RUNS))),
    "pickles": ("nbagent", lambda: repr([pickle.dumps(run.record) for run in RUNS])),
    "copies": ("RunRecord", lambda: repr(copy.deepcopy([run.record for run in RUNS]))),
    "events": ("TextDelta", lambda: repr(EVENTS)),
    "requests rebuilt": (
        "ChatRequest",
        lambda: repr([run.request_of(turn.id) for run in RUNS for turn in run.turns]),
    ),
    "tracebacks with locals": ("LLM_AUTH_FAILED", lambda: _whole_tracebacks(RUNS[0])),
    "objects in memory": ("nbagent", lambda: REMEMBERED[0]),
    "widget states": ("state", _widgets),
    "frames": ("leaky", _frames),
    "refused options": ("temperature", lambda: _raised(temperature=secret())),
    "refused settings": (
        "LLM_API_KEY",
        lambda: _text_of(lambda: nbagent.configure(api_key=secret())),
    ),
    "refused models": ("provider", lambda: _raised(model=f"{secret()}:m")),
    "refused base URLs": (
        "LLM_API_KEY",
        lambda: _raised(base_url=f"http://{quote(secret(), safe='')}@127.0.0.1:1"),
    ),
    "unreachable servers": ("LLM_HTTP_ERROR", lambda: _raised(base_url="http://127.0.0.1:1/v1")),
    "unknown runs": ("no run", lambda: _text_of(lambda: nbagent.open_run(secret()))),
    "questions": ("Question(", lambda: repr(QUESTIONS)),
    "what hands brought": ("PYTHON", lambda: _json(HANDS[0])),
    "audit log": ('"kind"', lambda: _home("audit.jsonl").read_text("utf-8")),
    "store files": ("leaky", _files),
    "exports": ("leaky", _exports),
    "a cassette": ('"key"', lambda: CASSETTES[0].read_text("utf-8")),
    "judge prompts": ("Judge the answer", lambda: repr(JUDGED)),
    "what workers are sent": ("Send", lambda: b"".join(SENT).decode("latin-1")),
    "what a client brings": ("ModelInfo", lambda: repr(CLIENT)),
    "refused names of tools": (
        "name=",
        lambda: _text_of(lambda: nbagent.tool(name=secret())(leaky)),
    ),
    "store warnings": ("None", lambda: repr(current_store().warning)),
    "providers": ("SERVERS", lambda: repr(find_provider("openai")) + repr(vars(catalogue))),
}
"""Channels of this process: a word that each contains, and a function that reads it."""


def collect(folder: str, failed: nbagent.Run, run: nbagent.Run) -> None:
    """Write what each channel of this process holds into a file of its own."""
    RUNS.extend((failed, run))
    for name, (_, read) in CHANNELS.items():
        Path(folder, name).write_text(read(), "utf-8", errors="surrogatepass")


if __name__ == "__main__":
    listen()
    asked = agent(sys.argv[1], echo=True)
    print(repr(asked.run(f"Say it: {all_secrets()}")))
    asked.run("Go.").raise_for_error()
