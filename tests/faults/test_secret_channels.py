"""A canary key and many further secrets: in no channel that leaves nbagent, as it is or encoded.

The server, the tools and the person's own words all bring them in; every channel is read as a
whole, and has to hold a word that shows that it was read.
"""

# nbformat's and nbconvert's functions have no complete types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import nbformat
import pytest
from kernels import LiveKernel, clean_environment
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter
from planted_secrets import ENVIRONMENT, EVERYTHING
from planted_secrets import leaks as planted_leaks
from secret_world import CHANNELS
from servers.loopback import Visit
from servers.mcp_door import hand
from servers.model_server import ModelServer, Reply, Step

KEY = "sk-canary/Q7+zz&01=23456789abcdefXYZ"
_HERE = Path(__file__).parent
_SECRETS = {**ENVIRONMENT, "LLM_API_KEY": KEY}
XMODES = ("Plain", "Context", "Verbose", "Minimal", "Docs")


def forms(key: str) -> list[str]:
    """The key as it is, and as others may have encoded it."""
    raw = key.encode()
    coded = [base64.b64encode(b"\0" * shift + raw).decode()[4:-4] for shift in range(3)]
    return [
        key,
        quote(key, safe=""),
        quote_plus(key),
        quote(key),
        json.dumps(key)[1:-1],
        key.replace("&", "&amp;"),
        key.replace("&", "\\u0026"),
        raw.hex(),
        raw.hex().upper(),
        raw.hex(" "),
        "".join(f"\\u{ord(c):04x}" for c in key),
        "".join(f"\\u{ord(c):04X}" for c in key),
        "".join(f"\\\\u{ord(c):04x}" for c in key),
        *(base64.b32encode(b"\0" * n + raw).decode()[8:-8] for n in range(5)),
        key[::-1],
        *coded,
        *(code.replace("+", "-").replace("/", "_") for code in coded),
        *(key[i : i + 12] for i in range(len(key) - 11)),
    ]


def leaks(text: str) -> list[str]:
    return [form for form in forms(KEY) if form in text]


def in_pieces() -> Reply:
    text = f"It is {KEY}, and {EVERYTHING}."
    return Reply(text=text, reasoning=text, deltas=200)


def script() -> list[Step]:
    """A conversation in which the server says the key wherever it can."""
    asks = Reply(
        calls=[("leaky", {"what": f"is it {KEY}?"}), ("failing", {"what": KEY}), (KEY, {})]
    )
    return [asks, in_pieces()]


def by_hand() -> Reply:
    """Calls that bring the key from a file, a script, a variable and a server, and write it."""
    return Reply(
        calls=[
            ("fs__read", {"path": "@desk/leak.txt"}),
            ("fs__search", {"query": "It is", "path": "@desk"}),
            ("fs__write", {"path": f"@desk/{KEY[:5]}.txt", "content": KEY}),
            ("run_python_script", {"skill_name": "teller", "script": "tell.py", "args": [KEY]}),
            ("nb__inspect", {"name": "note"}),
            ("nb__variables", {}),
            ("nb__run", {"code": "print(note); display(note); note"}),
            ("hand__environment", {}),
            ("hand__echo", {"text": KEY}),
        ]
    )


def refused() -> Reply:
    return Reply(status=401, error={"error": {"message": f"Incorrect API key provided: {KEY}"}})


SETUP = """
import sys; sys.path[:0] = [{place!r}, {above!r}]
import nbagent, secret_world as world
from secret_world import leaky, failing, displaying
world.listen()
%load_ext nbagent
"""


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every channel and all that went through it."""
    folder = tmp_path_factory.mktemp("channels")
    with ModelServer() as server, ModelServer() as elsewhere:
        with closing(LiveKernel(folder, **_SECRETS)) as kernel:
            found = in_a_kernel(kernel, server, elsewhere, folder)
        found |= in_a_notebook(server, folder)
        found["what a script prints"] = in_a_script(server, folder)
        found |= seen_by(server.requests)
        found["requests to a redirect's target"] = f"requests: {elsewhere.requests!r}"
    return found


def in_a_kernel(
    kernel: LiveKernel, server: ModelServer, elsewhere: ModelServer, folder: Path
) -> dict[str, str]:
    shown: list[object] = []

    def cell(code: str, *, fails: bool = False) -> str:
        one = kernel.run(code, stdin=True, fails=fails)
        shown.append(one.messages)
        return json.dumps(one.messages, ensure_ascii=False)

    options = f"--model openai:m --base-url {server.url}"
    cell(SETUP.format(place=str(_HERE), above=str(_HERE.parent)))
    server.then(*script())
    found = {
        "a cell that is answered": cell(f"%%agent {options}\nSay {{{{ world.all_secrets() }}}}!")
    }
    for mode in XMODES:
        server.then(refused())
        cell(f"%xmode {mode}")
        found[f"a traceback, %xmode {mode}"] = cell(f"%%agent {options}\nGo.", fails=True)
    server.then(refused())
    cell("%xmode Verbose")
    raised = f"world.agent({server.url!r}).run('Go.').raise_for_error()"
    found["a verbose traceback of Python"] = cell(raised, fails=True)
    server.then(Reply(status=307, error="x", headers={"Location": elsewhere.url + "/x"}))
    cell(f"%%agent {options}\nGo.", fails=True)
    server.then(by_hand(), in_pieces())
    cell(f"note = world.secret(); world.use_hands({server.url!r}, {str(folder)!r}, {hand()!r})")
    server.then(*script(), refused())
    cell(
        f"run = world.agent({server.url!r}).run(world.all_secrets(), on_event=world.EVENTS.append)"
    )
    cell(f"failed = world.agent({server.url!r}).run('Go.')")
    server.then(*script())
    cell(f"world.record_in_cassette({server.url!r}, {str(folder)!r})")
    cell("world.remember_objects()")
    server.then(*script())
    server.models.append(f"{KEY} {EVERYTHING}")
    cell(f"await world.ask_client({server.url!r})")
    cell("world.have_judged()")
    server.then(in_pieces())
    cell(f"world.send_to_workers({server.url!r})")
    cell(f"world.collect({str(folder)!r}, failed, run)")
    server.then(Reply(calls=[("displaying", {})]), in_pieces())
    found["displays of a tool"] = cell(f"%%agent {options} --tools displaying\nShow it.")
    # Only now: what a person configures is kept in memory as it is.
    cell("nbagent.configure(base_url='http://127.0.0.1:1/' + world.secret())")
    commands = ("doctor", "config", "tools", "models", "show last", "runs", "help")
    found["answers of %agent"] = "".join(cell(f"%agent {name}") for name in commands)
    found["messages to the front end"] = json.dumps(shown, ensure_ascii=False)
    return found | {name: (folder / name).read_text("utf-8") for name in CHANNELS}


def in_a_notebook(server: ModelServer, folder: Path) -> dict[str, str]:
    """A saved notebook, and what nbconvert makes of it."""
    server.then(*script(), refused())
    ask = f"%%agent --model openai:m --base-url {server.url}\nSay {{{{ world.all_secrets() }}}}!"
    sources = [SETUP.format(place=str(_HERE), above=str(_HERE.parent)), ask, ask]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    environment = clean_environment(folder, **_SECRETS)
    client = NotebookClient(notebook, allow_errors=True, timeout=60)
    client.execute(env=environment)
    return {
        "a saved notebook": nbformat.writes(notebook),
        "nbconvert's HTML": HTMLExporter().from_notebook_node(notebook)[0],
        "nbconvert's Markdown": MarkdownExporter().from_notebook_node(notebook)[0],
    }


def _with_tests() -> str:
    """Let a process of its own import the tests' support."""
    return os.pathsep.join([str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def in_a_script(server: ModelServer, folder: Path) -> str:
    server.then(*script(), refused())
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("secret_world.py"), server.url],
        env=clean_environment(folder, **_SECRETS, PYTHONPATH=_with_tests()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, "the second run fails and raises"
    return done.stdout + done.stderr


def seen_by(requests: list[Visit]) -> dict[str, str]:
    """Text that the server got, without the one header for the key."""
    assert all(leaks(request.headers["authorization"]) for request in requests)
    bare = [
        (request.method, request.path, {**request.headers, "authorization": ""})
        for request in requests
    ]
    return {
        "request lines and headers": repr(bare),
        "what the model is sent": repr([request.body for request in requests]),
    }


WORDS = {
    "a cell that is answered": "leaky",
    **{f"a traceback, %xmode {mode}": "LLM_AUTH_FAILED" for mode in XMODES},
    "a verbose traceback of Python": "LLM_AUTH_FAILED",
    "answers of %agent": "LLM_API_KEY",
    "displays of a tool": "<i>",
    "messages to the front end": "comm_open",
    "a saved notebook": "leaky",
    "nbconvert's HTML": "leaky",
    "nbconvert's Markdown": "leaky",
    "what a script prints": "Traceback",
    "requests to a redirect's target": "requests: []",
    "request lines and headers": "/v1/chat/completions",
    "what the model is sent": "[redacted]",
    **{name: word for name, (word, _) in CHANNELS.items()},
}


@pytest.mark.parametrize("channel", WORDS)
def test_the_key_is_not_in(channel: str, channels: dict[str, str]) -> None:
    text = channels[channel]
    assert WORDS[channel] in text, "the channel was read"
    assert leaks(text) == []
    assert planted_leaks(text) == []
