"""Makes what nbagent keeps on disk, one of each kind, and reads such material; standalone.

`older_material/` was made by it with the code of commit f63caa8, whose names are older:

    PYTHONPATH=CHECKOUT_OF_f63caa8 python tests/store/make_older_material.py make FOLDER
    PYTHONPATH=CHECKOUT_OF_f63caa8 python tests/store/make_older_material.py read FOLDER FOLDER

It runs with that code and with today's, in a process of its own: it imports public names only, and
takes from `OLDER_NAMES` what an option is called. No model is asked but scripts and a server on
loopback. Ids, times and hashes differ each time; all else is the same.
"""

# pandas and nbformat say little about the types of their own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent import offline

OLDER_NAMES = {"max_requests": "ceiling", "max_repeated_failures": "loop_limit"}
"""The names that f63caa8 has for options."""
FRAMES = ("runs", "turns", "tool_runs", "messages", "transitions", "scores", "prompts")
STORE = "runs.sqlite"
NOTEBOOK = "shown.json"
"""Its name in the material: programs that tidy up notebooks would change one."""
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADU"
    "lEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
SECRET: dict[str, Any] = {"headers": {"X-Team": "a"}, "extra_body": {"seed": 1}}
"""Options whose values are not kept."""
LONG = "long result " * 50


def named(**options: Any) -> dict[str, Any]:
    """Options by the names that the nbagent at hand has for them."""
    known: dict[str, Any] = {}
    for name, value in options.items():
        try:
            nbagent.Agent(model="offline:demo", **{name: value})
        except nbagent.UsageError:
            name = OLDER_NAMES[name]
        known[name] = value
    return known


def user_message(*parts: dict[str, str]) -> nbagent.Message:
    """A message of the user with several parts."""
    return nbagent.Message.model_validate({"role": "user", "content": parts})


# The tools of its runs


@nbagent.tool
def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


@nbagent.tool
def fetch(page: str) -> str:
    """Fetch a page."""
    return f"{page}: {LONG}"


class Picture:
    """Shows itself as a picture."""

    def _repr_png_(self) -> bytes:
        import base64

        return base64.b64decode(PIXEL)


@nbagent.tool
def draw(shape: str) -> Picture:
    """Draw a shape."""
    return Picture()


@nbagent.tool(ask=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@nbagent.tool
async def lookup(city: str) -> str:
    """Look a city up."""
    return f"{city} is there"


@nbagent.tool
async def hang(seconds: int) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "over"


@dataclass
class City:
    """An answer with a type."""

    name: str
    people: int


# Runs of all kinds


def plain_runs() -> None:
    """Started, continued, forked, failed, resumed, paused, stopped."""
    two = offline.calls([offline.call("population", city=it) for it in ("Oslo", "Bergn")])
    first = offline.script(
        [
            offline.step(reasoning="Look both up.", calls=[two]),
            offline.step(text="Let me see.", calls=[offline.call("population", city="Bergen")]),
            "Oslo is larger.",
            "Two.",
            "The other way round.",
            "Once more.",
        ],
        name="first",
    )
    agent = nbagent.Agent(
        model=first,
        tools=[population],
        system="Be brief.",
        **named(max_requests=7, max_repeated_failures=2, max_turns=5),
        max_total_tokens=90_000,
        max_cost_usd=1.5,
        temperature=0.3,
        top_p=0.9,
        max_tokens=500,
        stop_sequences=["END"],
        reasoning="low",
        trim="tool-results",
        session="older",
        timeout_s=30,
        retries=1,
        **SECRET,
    )
    run = agent.run("Which is larger?", name="first", tags=["a", "b"], tool_choice="auto")
    run.resume("How many cities?", name="continued")
    run.fork(
        "C03",
        "And now?",
        edits={run.turns[0].tool_runs[1].tool_call_id: 5, "C02": "I look."},
        name="forked",
        temperature=0.0,
    )
    run.fork("C03", drop=["C02"], name="shorter")
    failing = offline.script(
        [
            offline.error("LLM_RATE_LIMITED", "slow down", retry_after_s=0.001, retries=1),
            "There.",
            *[offline.call("population", city="Nowhere")] * 2,
            offline.cut("Half of"),
        ],
        name="failing",
    )
    options: dict[str, Any] = {"model": failing, "tools": [population], "retries": 0}
    agent = nbagent.Agent(**options, **named(max_repeated_failures=2))
    agent.run("Hello?", name="failed").resume(name="resumed")
    agent.run("Circle.", name="circle")
    agent.run("Break off.", name="cut")
    calls = [offline.call("population", city=city) for city in ("Oslo", "Bergen")]
    steps = [*calls, "Enough.", offline.call("population", city="Oslo")]
    paused = offline.script(steps, name="paused")
    options = {"model": paused, "tools": [population]}
    nbagent.Agent(**options, **named(max_turns=1, max_requests=2)).run("All.", name="paused")
    nbagent.open_run("paused").resume(name="ended", model=paused, tools=[population])
    nbagent.open_run("ended").retry(
        2, name="answers", model=offline.script([calls[0]] * 2, name="answers")
    )


def stopped_run() -> None:
    """Stopped after the first piece of its text."""
    step = offline.step(text="Half a text", pieces=["Half", " a text"], delay_ms=400)
    begun = threading.Event()

    def on_event(event: nbagent.events.Event) -> None:
        if isinstance(event, nbagent.events.TextDelta):
            begun.set()

    model = offline.script([step], name="stopped")
    agent = nbagent.Agent(model=model, tools="none")
    run = agent.start("Write.", name="stopped", on_event=on_event)
    begun.wait(20)
    run.stop()
    run.wait()


def odd_runs() -> None:
    """With pictures, files, odd text, a type, and old results that were sent shortened."""
    shown = user_message(
        {"type": "text", "text": "Look at these."},
        {"type": "image", "data": PIXEL, "alt": "a dot"},
        {"type": "file", "name": "a.bin", "data": "AAEC"},
        {"type": "text", "text": "a,b\n1,2\n", "name": "a.csv"},
    )
    pictures = offline.script([offline.call("draw", shape="dot"), "A dot."], name="pictures")
    agent = nbagent.Agent(model=pictures, tools=[draw])
    agent.run("What is it?", messages=[shown], name="pictures")
    odd = offline.script([offline.call("lookup", city="nul \0, half \ud83d"), "Zürich ✓ \ud83d"])
    nbagent.Agent(model=odd, tools=[lookup]).run("nul \0 and half \ud83d", name="odd text")
    answer = offline.call("final_answer", name="Oslo", people=717_710)
    typed = offline.script([answer], name="typed")
    nbagent.Agent(model=typed, tools="none", output=City).run("Which?", name="typed")
    pages = [offline.call("fetch", page=page) for page in "ab"]
    refusal = offline.error("LLM_CONTEXT_OVERFLOW", "too long")
    trimmed = offline.script([*pages, refusal, "Both read."], name="trimmed")
    agent = nbagent.Agent(model=trimmed, tools=[fetch], trim="tool-results")
    agent.run("Read.", name="trimmed")


def decided_runs() -> None:
    """Calls that a person allowed, changed and denied, and tools of files, which are audited."""
    answers: dict[str, Any] = {
        "a": True,
        "b": {"path": "bb"},
        "c": "not this one",
        "d": "session",
        "@project/notes.txt": True,
    }

    def answer(question: nbagent.Question) -> Any:
        return answers[question.arguments["path"]]

    calls = [offline.call("delete", path=path) for path in "abcd"]
    again = offline.call("delete", path="d")
    decided = offline.script([*calls, again, "Done."], name="decided")
    nbagent.Agent(model=decided, tools=[delete], on_approval=answer).run("Go.", name="decided")
    files = offline.script(
        [
            offline.call("fs.write", path="@project/notes.txt", content="one\n"),
            offline.call("fs.read", path="@project/notes.txt"),
            offline.call("fs.read", path="@project/../outside.txt"),
            offline.call("fs.write", path="@project/closed.txt", content="x"),
            "Written.",
        ],
        name="files",
    )
    policy = nbagent.ToolPolicy(deny=("fs.write(path=@project/closed*)",))
    agent = nbagent.Agent(model=files, tools=["fs"], on_approval=answer, policy=policy)
    agent.run("Write.", name="files")


def package(folder: Path) -> None:
    """The files of a workflow with a branch."""
    (folder / "steps").mkdir(parents=True)
    (folder / "agents").mkdir()
    ways = {"draft": {"check": "next"}, "check": {"draft": "again", "done": "good"}, "done": {}}
    nodes: list[dict[str, Any]] = []
    for name, out in ways.items():
        (folder / "steps" / f"{name}.md").write_text(f"# {name}\n\nDo {name}.\n")
        nodes.append({"id": name, "stepFile": f"steps/{name}.md", "agentId": "mira"})
        nodes[-1] |= {} if out else {"terminal": True}
    edges = [
        {"from": node, "to": to, "label": label}
        for node, out in ways.items()
        for to, label in out.items()
    ]
    graph = json.dumps({"nodes": nodes, "edges": edges}, indent=1)
    (folder / "workflow.graph.json").write_text(graph + "\n")
    head = "---\nid: flow\nname: Older flow\nentry: draft\nagents: [mira]\n---\n"
    (folder / "workflow.md").write_text(f"{head}# Rules\n\nKeep it short.\n")
    mira = "---\nid: mira\nname: Mira\ntitle: writer\n---\nYou write about {topic}.\n"
    (folder / "agents" / "mira.md").write_text(mira)


def patch(update: dict[str, Any]) -> Any:
    """A call that changes the document of a workflow."""
    where = {"path": "@state/workflow.md", "operation": "updateFrontmatter"}
    return offline.call("fs.apply_patch", {**where, "update": update})


def move(here: str, there: str) -> Any:
    """A call that ends a step and moves to the next."""
    return patch({"stepsCompleted.append": here, "currentNodeId.set": there})


def workflow_run() -> None:
    """A move that is refused and one that is made."""
    steps = [move("draft", "done"), move("draft", "check"), "Is it good?"]
    script = offline.script(steps, name="workflow")
    options: dict[str, Any] = {"workflow": "flow", "variables": ["topic=birds"], "name": "workflow"}
    nbagent.Agent(model=script, on_approval=allow).run("Birds.", **options)


def allow(question: nbagent.Question) -> bool:
    """Answers every question."""
    return True


@nbagent.scorer
def exact(row: Any, run: nbagent.Run) -> bool:
    """Compare the answer with the number."""
    return run.text == str(row["n"])


@nbagent.scorer(name="length", version=3)
def length(row: Any, run: nbagent.Run) -> nbagent.Score:
    """Count the characters of the answer."""
    if row["n"] == 2:
        raise ValueError("two is odd")
    return nbagent.Score(len(run.text), "counted")


@nbagent.scorer
def size(row: Any, run: nbagent.Run) -> str:
    """A word for it."""
    return "small"


def batch(model: Any, judge: Any, **how: Any) -> Any:
    """Run the batch; the same call again finds its answers in the store."""
    policy = nbagent.ToolPolicy(deny=("delete",))
    agent = nbagent.Agent(
        model=model,
        tools=[population],
        quiet=True,
        policy=policy,
        variables=["a=b"],
        trim="tool-results",
        **named(max_requests=9, max_repeated_failures=2),
    )
    table = pd.DataFrame({"id": ["x", "y"], "n": [1, 2]})
    rubric = nbagent.judge("Is it a number?", model=judge, name="judged")
    given: dict[str, Any] = {
        "key": "id",
        "name": "numbers",
        "vary": {"temperature": [0.0, 0.5], "system": {"short": "Be brief."}},
        "score": [exact, length, size, rubric],
        "concurrency": 1,
    }
    return agent.map(table, "Say {{ n }}.", **{**given, **how}).wait()


def batch_runs() -> None:
    """Asked, scored by functions and a judge, and by a person."""
    verdict = offline.call("final_answer", reason="It is one.", ok=True)
    judge = offline.script([verdict] * 4, name="judge")
    batch(offline.script(["1", "1", "2", "two"], name="numbers"), judge)
    first = str(nbagent.runs(batch="numbers")["run_id"].iloc[0])
    nbagent.score(first, "liked", True, by="anna", reason="nice")
    nbagent.score(first, "stars", 4)
    nbagent.score(first, "mood", "calm", version=2)


# Recorded answers

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "another prompt": {"prompt": "And Oslo?"},
    "temperature": {"temperature": 0.0},
    "top_p": {"top_p": 0.5},
    "max_tokens": {"max_tokens": 64},
    "stop_sequences": {"stop_sequences": ["END", "STOP"]},
    "reasoning": {"reasoning": "high"},
    "tool_choice": {"tool_choice": "none"},
    "output": {"output": City},
    "system": {"system": "Be brief."},
    "extra_body": {"extra_body": {"seed": 7}},
    "no tools": {"tools": "none"},
    "other tools": {"tools": [lookup]},
    "picture": {"messages": [user_message({"type": "image", "data": PIXEL})]},
    "all": {
        "temperature": 1.0,
        "top_p": 0.25,
        "max_tokens": 99,
        "stop_sequences": ["X"],
        "reasoning": "low",
        "tool_choice": "required",
    },
}
"""Runs whose requests differ in one parameter each."""


def recorded(url: str, batch_name: str, **how: Any) -> dict[str, dict[str, Any]]:
    """Run all REQUESTS and a repeated one with the cassette; their summaries."""
    options: dict[str, Any] = {"base_url": url, "cassette": "answers.jsonl", **how}
    options["replay_tools"] = True
    summaries: dict[str, dict[str, Any]] = {}
    for name, more in REQUESTS.items():
        agent = nbagent.Agent("openai:little", tools=[population], **options)
        given: dict[str, Any] = {"prompt": "Who lives in Bergen?", **more}
        run = agent.run(**given, name=f"asked: {name}")
        summaries[name] = summary(run)
    agent = nbagent.Agent("openai:little", tools="none", **options)
    table = pd.DataFrame({"n": [1]})
    agent.map(table, "Say {{ n }}.", repeat=2, name=batch_name, concurrency=1).wait()
    for attempt, run_id in enumerate(nbagent.runs(batch=batch_name)["run_id"], 1):
        summaries[f"repeat {attempt}"] = summary(nbagent.open_run(run_id))
    return summaries


def summary(run: nbagent.Run) -> dict[str, Any]:
    """How a run ended, its text, its results, and where its answers came from."""
    sources = [turn.response.meta.source for turn in run.turns if turn.response]
    calls = [call for turn in run.turns for call in turn.tool_runs]
    results = [plain_result(call.result.data) for call in calls if call.result]
    error = run.error and run.error.code
    end = {"stop_reason": run.stop_reason, "error": error, "text": run.text}
    return {**end, "sources": sources, "results": results}


def plain_result(data: Any) -> Any:
    """The result of a call, without hashes of a document, in which a time stands."""
    if not isinstance(data, dict):
        return data
    fields: dict[str, Any] = data
    return {name: value for name, value in fields.items() if not name.startswith("sha256")}


numbers = count(1)


def answer(visit: Any) -> Reply:
    """Answer with a call of the last tool that is offered, then with a numbered text."""
    body: Any = visit.body
    if body["model"] == "strict" and "temperature" in body:
        error = {"message": "Unsupported parameter: 'temperature'", "param": "temperature"}
        return Reply(status=400, error={"error": {**error, "code": "unsupported_parameter"}})
    number = next(numbers)
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if "response_format" in body:
        return Reply(text='{"name": "Bergen", "people": 291940}')
    if body["messages"][-1]["role"] == "tool" or body.get("tool_choice") == "none" or not names:
        return Reply(text=f"Answer {number}.", reasoning="I think.")
    arguments = {"name": "Bergen", "people": 1} if "final_answer" in names else {"city": "Bergen"}
    return Reply(calls=[(names[-1], arguments)])


def recorded_runs() -> None:
    """Into a file of answers with the results of tools, and into the cache of the store."""
    with ModelServer([answer] * 200) as server:
        recorded(server.url, "repeated")
        for name in REQUESTS.keys() - {"plain", "output"}:  # small: the file has their answers
            nbagent.forget(f"asked: {name}")
        plain: dict[str, Any] = {"base_url": server.url, "tools": [population]}
        replayed: dict[str, Any] = {
            "cassette": "answers.jsonl",
            "cache": "replay",
            "replay_tools": True,
        }
        agent = nbagent.Agent("openai:little", **plain, **replayed)
        agent.run("Who lives in Bergen?", name="replayed")
        strict = nbagent.Agent("openai:strict", temperature=0.5)
        strict.run("Hello?", base_url=server.url, tools="none", name="strict")
        for _ in range(2):  # the second finds the answers of the first
            cached(server.url, "auto")


def cached(url: str, mode: str) -> nbagent.Run:
    """A run with the cache of the store."""
    agent = nbagent.Agent("openai:little", base_url=url, tools=[population], cache=mode)
    return agent.run("Who lives in Bergen?", name="cached")


# A saved notebook

CELLS = (
    "%load_ext nbagent\nimport nbagent\nfrom nbagent import offline\n"
    "from IPython.display import Image, display",
    f"import base64\nDOT = base64.b64decode({PIXEL!r})",
    "@nbagent.tool\ndef population(city: str) -> int:\n"
    '    """People living in a city."""\n    print("looking")\n    display(Image(data=DOT))\n'
    '    return {"Oslo": 717_710}[city]',
    "calls = [offline.call('population', city=city) for city in ('Oslo', 'Bergen')]\n"
    "model = offline.script([*calls, 'Oslo.', 'Again.', 'half \\ud83d', 'One.', 'Two.'], name='m')",
    "%%agent -m offline:m --max-turns 6 --tag kept --name shown\nWhich of {{ 1 + 1 }}?",
    "%%agent --continue\nAnd now?",
    "%%agent -m offline:m\nHalf.",
    "nbagent.open_run('shown').retry(2)",
)


def saved_notebook() -> None:
    """Run in a kernel of its own, whose store is another one."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(CELLS)
    ]
    client = NotebookClient(notebook, timeout=60, record_timing=False)
    with tempfile.TemporaryDirectory() as home:
        client.execute(env={**os.environ, "NBAGENT_HOME": home, "IPYTHONDIR": home})
    for cell in notebook.cells:
        for output in cell.outputs:
            # The pictures are no record; they would make it large.
            output.get("data", {}).pop("text/html", None)
    notebook.metadata["language_info"] = {"name": "python"}
    Path("shown.ipynb").write_text(nbformat.writes(notebook) + "\n", "utf-8")


# All of it


def dumped(home: Path) -> str:
    """The store as text, as if the process that wrote it were gone and had left no lease."""
    with closing(sqlite3.connect(":memory:")) as copy:
        with closing(sqlite3.connect(home / STORE)) as store:
            store.backup(copy)
        copy.execute("DELETE FROM leases")
        copy.execute("UPDATE runs SET lease_id = NULL")
        copy.commit()
        pragmas = (
            f"PRAGMA {it} = {pragma(copy, it)};" for it in ("application_id", "user_version")
        )
        return "\n".join([*pragmas, *copy.iterdump(), ""])


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """The number of a pragma."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def make(folder: Path) -> None:
    """Write all material into a folder, which begins as a project and its store."""
    project = begin(folder / "project")
    home = project / ".nbagent"
    package(project / "flow")
    plain_runs()
    stopped_run()
    odd_runs()
    decided_runs()
    workflow_run()
    batch_runs()
    recorded_runs()
    saved_notebook()
    two = offline.calls([offline.call("lookup", city="Oslo"), offline.call("hang", seconds=60)])
    script = offline.script([two], name="at-work")
    events: list[str] = []
    run = nbagent.Agent(model=script, tools=[lookup, hang]).start(
        "Look.", name="at work", on_event=lambda event: events.append(type(event).__name__)
    )
    until(lambda: "ToolCallFinished" in events and events.count("ToolCallStarted") == 2)
    (folder / "store.sql").write_text(dumped(home), "utf-8")
    run.stop()
    run.wait()
    (folder / "records.jsonl").write_text(exported(), "utf-8")
    for name in ("flow", "answers.jsonl"):
        shutil.move(project / name, folder / name)
    shutil.move(project / "shown.ipynb", folder / NOTEBOOK)
    left_out = (f"{STORE}*", "*.lock", ".gitignore")
    shutil.copytree(home, folder / "home", ignore=shutil.ignore_patterns(*left_out))
    os.chdir(folder)
    shutil.rmtree(project)


def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def exported() -> str:
    """Some runs as JSON Lines, one after the other."""
    names = ("first", "forked", "ended", "decided", "pictures", "odd text")
    return "".join(nbagent.open_run(name).export("jsonl") for name in names)


def begin(project: Path) -> Path:
    """Begin in a folder with nothing configured."""
    for name in [*os.environ]:
        if name.startswith(("LLM_", "OPENAI_", "NBAGENT_")):
            del os.environ[name]
    project.mkdir(parents=True, exist_ok=True)
    os.chdir(project)
    own = {"NBAGENT_OFFLINE_DELAY_MS": "0", "OPENAI_API_KEY": "never-sent-anywhere"}
    # An earlier store is a stranger's until the person takes it over, or trusts its folder.
    own["NBAGENT_TRUST"] = str(project)
    # What f63caa8, which has no such setting, always did: no runs with functions only.
    own["NBAGENT_AUDIT"] = "outside"
    os.environ.update(own, XDG_CONFIG_HOME=str(project / "none"), OLLAMA_HOST="127.0.0.1:1")
    return project


def restore(material: Path, project: Path) -> None:
    """Lay material into a project and its store."""
    home = project / ".nbagent"
    shutil.copytree(material / "home", home)
    shutil.copytree(material / "flow", project / "flow")
    shutil.copy(material / "answers.jsonl", project / "answers.jsonl")
    shutil.copy(material / NOTEBOOK, project / "shown.ipynb")
    with closing(sqlite3.connect(home / STORE)) as store:
        store.executescript((material / "store.sql").read_text("utf-8"))


# Reading


def rows(frame: Any) -> list[dict[str, Any]]:
    """The rows of a frame, without what is missing."""
    records: list[dict[str, Any]] = frame.to_dict("records")
    return [{name: simple(it) for name, it in row.items() if not pd.isna(it)} for row in records]


def simple(value: Any) -> Any:
    """A value of a frame as JSON; of a hash its start, so that the file stays small."""
    value = value.isoformat() if hasattr(value, "isoformat") else value
    value = value.item() if hasattr(value, "item") else value
    is_hash = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return value[:12] if is_hash else value


def read() -> dict[str, Any]:
    """Read everything through public names, in a project that holds the material."""
    notebook = nbagent.read_notebook("shown.ipynb")
    audit = nbagent.verify_audit()
    frames = {name: getattr(nbagent, name)() for name in FRAMES}
    first, last = nbagent.open_run("first"), notebook.open_run("last")
    return {
        "store": {name: rows(frame) for name, frame in frames.items()},
        "dtypes": {
            name: {column: str(kind) for column, kind in frame.dtypes.items()}
            for name, frame in frames.items()
        },
        "notebook": {name: rows(getattr(notebook, name)()) for name in FRAMES},
        "whole": rows(nbagent.messages(run="forked", whole=True)),
        "conversation": [message.text for message in first.messages],
        "sent": [message.text for message in first.request_of("C02").messages],
        "last of the notebook": [last.text, len(last.messages)],
        "audit": [bool(audit), audit.lines],
    }


def continue_runs(url: str) -> dict[str, Any]:
    """Continue, resume, fork and retry older runs; only scripts and recordings answer."""
    open_run = nbagent.open_run
    tools: dict[str, Any] = {"tools": [population, lookup, hang]}
    n_runs = len(nbagent.runs())
    first = open_run("first")
    call = first.turns[0].tool_runs[0].tool_call_id
    next_step = [move("check", "done"), patch({"stepsCompleted.append": "done"}), "All done."]
    unasked = offline.script([], name="numbers"), offline.script([], name="judge")
    again = batch(*unasked)
    results = {
        "batch": [len(nbagent.runs()) - n_runs, *(len(one.requests) for one in unasked)],
        "batch scores": len(nbagent.scores(batch=again.name)),
        "typed": vars(open_run("typed").output_as(City)),
        "continued": child(first.resume("More?", model=script_of("More."), **tools, **SECRET)),
        "forked": child(
            first.fork("C02", edits={call: 7}, model=script_of("Seven."), **tools, **SECRET)
        ),
        "paused": child(open_run("paused").resume(model=script_of("On."), **tools)),
        "answer": child(open_run("answers").resume(model=script_of("Taken."), **tools)),
        "failed": child(open_run("failed").resume(model=script_of("Now."), **tools)),
        "stopped": child(open_run("stopped").resume(model=script_of("Whole."), **tools)),
        "retried": [child(run) for run in open_run("circle").retry(2, model=script_of("A.", "A."))],
        "interrupted": child(open_run("at work").resume(model=script_of("There."), **tools)),
        "workflow": child(
            open_run("workflow").resume(
                "Yes.", model=script_of(*next_step), on_approval=allow, autopilot=True
            )
        ),
        "cached": summary(cached(url, "replay")),
        "recorded": recorded(url, "again", cache="replay"),
        "forgotten": len(nbagent.forget("shorter")),
    }
    audit = nbagent.verify_audit()
    return {**results, "audit": [bool(audit), audit.lines]}


def script_of(*steps: Any) -> Any:
    """A scripted model with these answers."""
    return offline.script(list(steps), name="now")


def child(run: nbagent.Run) -> dict[str, Any]:
    """The summary of a new run, with its options and limits as the store holds them."""
    sql = "SELECT kind, doc FROM runs WHERE run_id = ?"
    with closing(sqlite3.connect(Path(".nbagent") / STORE)) as store:
        kind, doc = store.execute(sql, (run.id,)).fetchone()
    kept = {name: value for name, value in json.loads(doc).items() if name in ("options", "limits")}
    kept.get("options", {}).pop("document", None)  # an id
    return {**summary(run), "kind": kind, **kept}


def server_of(answers: Path) -> str:
    """The URL of the server whose answers were recorded."""
    line = json.loads(answers.read_text("utf-8").partition("\n")[0])
    return f"{line['request']['server']}/v1"


def lines(value: Any, depth: int = 0) -> str:
    """JSON with a line for each row, so that a change of one is seen."""
    if depth > 3 or not value or not isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, dict):
        pairs = (f"{json.dumps(k)}: {lines(it, depth + 1)}" for k, it in sorted(value.items()))
        return "{\n" + ",\n".join(pairs) + "\n}"
    return "[\n" + ",\n".join(lines(it, depth + 1) for it in value) + "\n]"


def main(command: str, folder: Path, *target: str) -> None:
    """`make FOLDER` makes material, `read FOLDER TARGET` writes what is read in it."""
    material = folder.absolute()
    if command == "make":
        make(material)
        return
    read_into = Path(target[0]).absolute()
    with tempfile.TemporaryDirectory() as place:
        project = begin(Path(place) / "project")
        restore(material, project)
        readings = {"read": read()}
        (read_into / "records.jsonl").write_text(exported(), "utf-8")
        readings["continued runs"] = continue_runs(server_of(material / "answers.jsonl"))
        os.chdir(read_into)
    (read_into / "expected.json").write_text(lines(readings) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
