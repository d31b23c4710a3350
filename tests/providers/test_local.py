"""`local:` models: llama.cpp's own server with a tiny model, and downloads from a loopback hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import jsonschema
import psutil
import pytest
from engine.laws import check_run
from servers.loopback import Loopback, Visit
from servers.tiny_gguf import write_tiny_gguf

import nbagent
from nbagent.contracts.errors import ModelError, NbagentError
from nbagent.contracts.events import Event, TextDelta, ToolCallDelta
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ProviderConfig
from nbagent.providers import local
from nbagent.providers.local import LocalClient, ServerProcess, cached_file, pull, serve

T = TypeVar("T")
FILE = "owner/tiny-GGUF/tiny.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub(Loopback):
    """Serves `/OWNER/REPO/resolve/main/FILE` with ranges, as the hub does for large files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files
        self.refusal: tuple[int, str] | None = None
        """Status and X-Error-Code of every answer."""
        self.headers: dict[str, str] = {}
        """Of every answer, in place of the usual ones."""
        self.cut_after: int | None = None
        """The next body ends after so many bytes, once."""
        self.asked: list[tuple[str, str | None]] = []
        """Method and Range of every request."""

    async def answer(self, visit: Visit) -> None:
        """Answer one request; the connection ends with it."""
        asked = visit.headers.get("range")
        self.asked.append((visit.method, asked))
        data = self.files.get(visit.path.strip("/").replace("/resolve/main/", "/"))
        status, code = self.refusal or ((200, "") if data is not None else (404, "EntryNotFound"))
        body = data if data is not None and status == 200 else b""
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and body else 0
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
            "X-Linked-Size": str(len(body)),
            **({"X-Error-Code": code} if code else {}),
            **self.headers,
            "Content-Length": str(len(body) - first),
            **({"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"} if first else {}),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {206 if first else status} X"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        await visit.send("\r\n".join([*lines, "", ""]).encode())
        if visit.method == "GET":
            last, self.cut_after = self.cut_after, None
            await visit.send(body[first:last])


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(autouse=True)
def servers_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """More would wait for each other, spinning, on a machine that is busy with other tests."""
    monkeypatch.setenv(local.PARAMS_VARIABLE, '{"cpuparams.n_threads": 1}')
    yield
    for server in running_servers():
        server.stop()


@pytest.fixture
def hub(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    import huggingface_hub

    monkeypatch.delenv("HF_TOKEN", raising=False)
    # The package reads the variable of its cache when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with ModelHub({FILE: tiny_model.read_bytes()}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.origin)
        yield running
    huggingface_hub.close_session()


@nbagent.tool
def population(city: str) -> int:
    """People living in a city."""
    return len(city)


def ask(model: Path | str, text: str = "hi", **more: Any) -> ChatRequest:
    more = {"temperature": 0.0, "max_tokens": 300} | more
    return ChatRequest(model=str(model), messages=(Message.of("user", text),), **more)


def with_client(work: Callable[[LocalClient], Awaitable[T]], **config: Any) -> T:
    async def go() -> T:
        client = LocalClient(ProviderConfig(**config))
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(go())


def running_servers() -> list[ServerProcess]:
    return [server for server in local.servers.values() if server.alive]


def only_server() -> ServerProcess:
    [server] = running_servers()
    return server


def test_a_run_costs_nothing_and_the_next_one_uses_the_same_server(tiny_model: Path) -> None:
    agent = nbagent.Agent(model=f"local:{tiny_model}", tools=[population])
    first = agent.run("How many?", tool_choice="population", temperature=0)
    assert first.turns[0].tool_runs
    assert (first.stop_reason, first.cost_usd) == ("answered", 0.0)
    assert first.turns[0].notices == ("loading tiny.gguf (3.2 MB)",)
    pid = only_server().process.pid
    second = agent.run("How many?", tool_choice="population", temperature=0)
    assert second.turns[0].notices == ()
    assert (second.text, only_server().process.pid) == (first.text, pid)


def test_schema_is_answered_with_valid_json_and_models_are_listed_with_their_context(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
    properties = {"name": {"type": "string"}, "n": numbers, "kind": {"enum": ["a", "b"]}}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": ["name", "n", "kind"], "additionalProperties": False}
    monkeypatch.setenv(local.PARAMS_VARIABLE, '{"n_ctx": 1024, "cpuparams.n_threads": 1}')

    async def work(client: LocalClient) -> None:
        assert await client.list_models() == []
        answer = await client.chat(ask(tiny_model, output_schema=schema, temperature=1.0))
        jsonschema.validate(json.loads(answer.message.text), schema)
        [model] = await client.list_models()
        assert (model.id, model.context_length) == (str(tiny_model), 1024)

    with_client(work)
    assert running_servers() == []


def test_killed_server_is_said_once_and_started_anew(tiny_model: Path) -> None:
    async def work(client: LocalClient) -> None:
        chunks = client.chat_stream(ask(tiny_model, max_tokens=7000))
        async for chunk in chunks:
            if chunk.content:
                os.kill(only_server().process.pid, signal.SIGKILL)
                break
        with pytest.raises(ModelError, match=r"lost its server.*exit code -9.*processing task"):
            async for _ in chunks:
                pass
        assert (await client.chat(ask(tiny_model, max_tokens=3))).message.text

    with_client(work, extra_body={"ignore_eos": True})


PARENT = """
import os, sys, time, nbagent
from nbagent.providers.local import servers
run = nbagent.Agent(model="local:" + sys.argv[1]).run("hi", max_tokens=3)
[server] = servers.values()
print(server.process.pid, flush=True)
if sys.argv[2] == "killed":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["killed", "left"])
def test_server_ends_with_the_kernel(tiny_model: Path, end: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tiny_model), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        server = psutil.Process(int(parent.stdout.readline()))
        if end == "killed":
            parent.kill()
    assert parent.returncode == (-signal.SIGKILL if end == "killed" else 0)
    # Where nobody waits for an orphan it stays as a zombie.
    end_s = time.monotonic() + 10
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_server_ends_with_the_kernel_also_while_it_loads(tmp_path: Path) -> None:
    never_read = tmp_path / "model.gguf"
    os.mkfifo(never_read)
    command = [sys.executable, "-I", serve.__file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin
        assert child.stderr
        order: dict[str, Any] = {"path": str(never_read), "key": "k", "packages": []}
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()
        assert any(b"loading model" in line for line in child.stderr)
        child.stdin.close()
        try:
            child.wait(10)
        finally:
            child.kill()


def test_server_has_no_key_of_this_process_and_asks_for_its_own(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-person")

    async def work(client: LocalClient) -> None:
        await client.chat(ask(tiny_model))
        server = only_server()
        child = psutil.Process(server.process.pid)
        assert not {"OPENAI_API_KEY", "HOME"} & set(child.environ())
        assert os.getpgid(child.pid) == child.pid  # interrupts of the kernel pass it by
        assert server.key.reveal() not in " ".join(child.cmdline()) + str(child.environ())
        [address] = {one.laddr for one in child.net_connections() if one.status == "LISTEN"}
        assert address.ip == "127.0.0.1"
        with pytest.raises(HTTPError, match="401"):
            await asyncio.to_thread(urlopen, f"http://127.0.0.1:{address.port}/v1/models")

    with_client(work)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("n_ctx=5", "could not be loaded .*JSONDecodeError.* check .* NBAGENT_LOCAL_PARAMS"),
        ("missing.gguf", "is not a file; name a GGUF file"),
        ("text.gguf", "could not be loaded "),
        ("cut.gguf", "could not be loaded .*(?:corrupted or incomplete|failed to load model)"),
        ("hf:owner/../x.gguf", "is not a model file of the hub"),
        ("hf:owner/repo", "is not a model file of the hub; write OWNER/REPO/FILE.gguf"),
        ("hf:owner/repo/absent.gguf", "run %agent pull owner/repo/absent.gguf"),
    ],
)
def test_file_that_cannot_be_served_is_refused(
    name: str, says: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "cut.gguf").write_bytes(tiny_model.read_bytes()[:100_000])
    if "n_ctx" in name:  # Not the file is wrong, but the parameters of the server.
        monkeypatch.setenv(local.PARAMS_VARIABLE, name)
        name = str(tiny_model)
    run = nbagent.Agent(model=f"local:{name}").run("hi")
    assert run.error is not None
    assert run.error.code == "LLM_HTTP_ERROR"
    with pytest.raises(NbagentError, match=says):
        run.raise_for_error()


def test_server_of_somebody_else_and_a_missing_package_are_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="leave out the base URL"):
        with_client(lambda c: c.chat(ask(tiny_model)), base_url="http://127.0.0.1:1/v1")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install xllamacpp huggingface_hub"):
        with_client(lambda c: c.chat(ask(tiny_model)))
    with pytest.raises(ModelError, match=r"pip install xllamacpp huggingface_hub"):
        pull(FILE, print)


def test_model_is_downloaded_once_and_then_asked(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    assert pull(f"hf:{FILE}", told.append) == f"local:hf:{FILE}"
    assert told[0] == "downloading tiny.gguf (3.2 MB) from owner/tiny-GGUF"
    assert [method for method, _ in hub.asked].count("GET") == 1
    assert nbagent.Agent(model=f"local:hf:{FILE}").run("hi", max_tokens=3).text
    [model] = with_client(lambda c: c.list_models())
    assert model.id == f"hf:{FILE}"
    assert pull(f"local:hf:{FILE}", told.append) == f"local:hf:{FILE}"
    assert [line.partition(":")[0] for line in told[1:]] == ["downloaded", "already here"]
    assert [method for method, _ in hub.asked].count("GET") == 1
    # Without a network what is here is found, and another one is refused at once.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert pull(FILE, told.append) == f"local:hf:{FILE}"
    assert told[-1] == f"already here: --model local:hf:{FILE}"
    with pytest.raises(ModelError, match=r"was not downloaded: .*refused\. Check the name"):
        pull("owner/tiny-GGUF/other.gguf", told.append)
    assert "thrown while requesting" not in capfd.readouterr().err


def test_download_that_was_cut_goes_on_where_it_ended(
    hub: ModelHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TQDM_POSITION", "-1")  # a bar also where there is no terminal
    # The package writes pieces of 10 MiB; what it had of the next one is asked for again.
    hub.files[FILE] = b"GGUF" + os.urandom(25_000_000)
    hub.cut_after = 12_000_000
    pull(FILE, print)
    asked = [part for method, part in hub.asked if method == "GET"]
    assert asked == [None, f"bytes={10 * 2**20}-"]
    shown = capsys.readouterr().err
    assert "100%" in shown
    assert "Error while" not in shown
    assert cached_file(FILE).read_bytes() == hub.files[FILE]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"refusal": (404, "EntryNotFound")}, "Entry Not Found"),
        ({"refusal": (503, "")}, "503"),
        ({"headers": {"ETag": '"../../above"'}}, "names its content '../../above', which is no"),
        ({"headers": {"X-Linked-ETag": '".."'}}, r"names its content '\.\.', which is not a hash"),
        ({"headers": {"X-Repo-Commit": "../../above"}}, "names its content '../../above'"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value),
)
def test_download_that_cannot_be_is_refused_before_it_begins(
    hub: ModelHub, answer: dict[str, Any], says: str, tmp_path: Path, capfd: Any
) -> None:
    for name, value in answer.items():
        setattr(hub, name, value)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ModelError, match=says):
        pull(FILE, print)
    assert not any(method == "GET" for method, _ in hub.asked)
    assert (sorted(tmp_path.rglob("*")), capfd.readouterr()) == (before, ("", ""))


# The three endpoints of the same server.


@pytest.fixture(scope="module")
def own_server(tiny_model: Path) -> Iterator[local.ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(local.PARAMS_VARIABLE, '{"cpuparams.n_threads": 1}')
        server = local.ServerProcess(tiny_model)
    yield server
    server.stop()


@pytest.mark.parametrize("provider", ["llamacpp", "openai-responses", "anthropic"])
def test_conversation_with_tools_goes_over_each_endpoint(
    provider: str, own_server: local.ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_SERVER", own_server.key.reveal())
    where: dict[str, Any] = {"base_url": f"{asyncio.run(own_server.started(60))}/v1"}
    where["key_variable"] = "KEY_OF_THE_SERVER"
    agent = nbagent.Agent(f"{provider}:tiny", tools=[population], max_tokens=300, **where)
    events: list[Event] = []
    run = agent.run("How many?", tool_choice="population", temperature=0, on_event=events.append)
    check_run(run.raise_for_error())
    [tool_run] = run.turns[0].tool_runs
    assert tool_run.result is not None
    city: str = (tool_run.args or {})["city"]
    assert (tool_run.result.data, run.stop_reason) == (len(city), "answered")
    arguments = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert tool_run.args == json.loads(arguments)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == run.text != ""
    second = check_run(run.resume("And now?").raise_for_error())
    assert (second.stop_reason, bool(second.text)) == ("answered", True)
    asked = [turn.response.usage for turn in (*run.turns, *second.turns) if turn.response]
    prompts = [usage.prompt_tokens for usage in asked if usage]
    assert 0 < prompts[0] < prompts[1] < prompts[2]


class Place(TypedDict):
    city: str


@pytest.mark.parametrize("provider", ["llamacpp", "openai-responses", "anthropic"])
def test_an_answer_fits_its_schema_at_each_endpoint(
    provider: str, own_server: local.ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_SERVER", own_server.key.reveal())
    where: dict[str, Any] = {"base_url": f"{asyncio.run(own_server.started(60))}/v1"}
    where["key_variable"] = "KEY_OF_THE_SERVER"
    agent = nbagent.Agent(f"{provider}:tiny", output=Place, tools="none", max_tokens=300, **where)
    # The model of the tests answers at random. Only the endpoint that binds a schema needs no call.
    binds = provider == "llamacpp"
    run = agent.run("Which?", temperature=0, tool_choice=None if binds else "final_answer")
    assert isinstance(check_run(run.raise_for_error()).output["city"], str)
    assert bool(run.turns[0].tool_runs) is not binds
