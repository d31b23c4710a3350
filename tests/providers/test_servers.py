"""A server is one row: what each row makes of a request, and that no fact stands elsewhere."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

import pytest
from servers.model_server import ModelServer
from test_provider_lookup import with_other_package
from wires.other_package.otherwire import OtherWire

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ProviderConfig, ToolSpec
from nbagent.contracts.secret_names import is_secret_name
from nbagent.providers import servers
from nbagent.providers.catalogue import find_provider, provider_names
from nbagent.providers.client import WireClient
from nbagent.providers.keys import KeyHeader
from nbagent.providers.server_row import Server
from nbagent.providers.server_wires import chat_wires
from nbagent.providers.servers import SERVERS
from nbagent.providers.wires.chat_profiles import Profile

KEY = "sk-0123456789abcdef"
AWS = {"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": KEY}
GCP = {"GOOGLE_CLOUD_PROJECT": "my-project-1", "GOOGLE_CLOUD_LOCATION": "europe-west4"}
VERTEX = "aiplatform.googleapis.com/v1/projects/my-project-1/locations"
ABSENT: Any = object()
ASKED: dict[str, Any] = {
    "messages": (Message.of("user", "Hi."),),
    "tools": (ToolSpec(name="look"),),
    "max_tokens": 9,
    "reasoning": "none",
}


def request_of(provider: str, environ: dict[str, str], **more: Any) -> tuple[str, dict[str, Any]]:
    """URL and body of a streamed request at the provider's own server. Nothing is sent."""

    async def encode() -> tuple[str, dict[str, Any]]:
        row = find_provider(provider)
        client = row.open(row.resolve(ProviderConfig(), environ))
        assert isinstance(client, WireClient)
        sent = client.wire_request(ChatRequest(model="m", **{**ASKED, **more}), stream=True)
        await client.close()
        return sent.url, json.loads(sent.body)

    return asyncio.run(encode())


USAGE = {"stream_options": {"include_usage": True}}
NEW_LIMIT = {"max_completion_tokens": 9, "max_tokens": ABSENT}
OLD_LIMIT = {"max_tokens": 9, "max_completion_tokens": ABSENT}
OFF = {"thinking": {"type": "disabled"}, "reasoning_effort": ABSENT}
# provider: environment, URL, fields of the body.
ROWS: dict[str, tuple[dict[str, str], str, dict[str, Any]]] = {
    "xai": ({}, "https://api.x.ai/v1", {**NEW_LIMIT, "reasoning_effort": "none", **USAGE}),
    "together": (
        {},
        "https://api.together.xyz/v1",
        {**OLD_LIMIT, "reasoning": {"enabled": False}, "reasoning_effort": ABSENT},
    ),
    "fireworks": (
        {},
        "https://api.fireworks.ai/inference/v1",
        {**OLD_LIMIT, "reasoning_effort": "none"},
    ),
    "cerebras": ({}, "https://api.cerebras.ai/v1", {**NEW_LIMIT, "reasoning_effort": "none"}),
    "moonshot": ({}, "https://api.moonshot.ai/v1", {**NEW_LIMIT, **OFF, "tool_choice": "auto"}),
    "zai": (
        {},
        "https://api.z.ai/api/paas/v4",
        {**OLD_LIMIT, **OFF, "tool_choice": ABSENT, "stream_options": ABSENT},
    ),
    "huggingface": ({}, "https://router.huggingface.co/v1", {**OLD_LIMIT, **USAGE}),
    "bedrock": (AWS, "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", NEW_LIMIT),
    "vertex": (
        GCP,
        f"https://europe-west4-{VERTEX}/europe-west4/endpoints/openapi",
        {**OLD_LIMIT, "reasoning_effort": "none"},
    ),
}


@pytest.mark.parametrize("provider", ROWS)
def test_a_row_decides_where_and_how_its_server_is_asked(provider: str) -> None:
    environ, base_url, fields = ROWS[provider]
    url, body = request_of(provider, environ)
    assert url == f"{base_url}/chat/completions"
    assert {name: body.get(name, ABSENT) for name in fields} == fields


# provider, request, fields of the body.
FORCED = {"tool_choice": "look"}
SCHEMA: dict[str, Any] = {"output_schema": {"type": "object"}, "tools": ()}
CHOICES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Kimi refuses a forced tool while it thinks": (
        *("moonshot", {**FORCED, "reasoning": None}),
        {"thinking": {"type": "disabled"}},
    ),
    "Kimi thinks as it likes": ("moonshot", {"reasoning": None}, {"thinking": ABSENT}),
    "GLM knows auto only": ("zai", FORCED, {"tool_choice": ABSENT}),
    "GLM gets no tools if none may be called": ("zai", {"tool_choice": "none"}, {"tools": ABSENT}),
    "GLM gets a schema in words": ("zai", SCHEMA, {"response_format": {"type": "json_object"}}),
    "Together takes an effort": (
        *("together", {"reasoning": "high"}),
        {"reasoning_effort": "high", "reasoning": ABSENT},
    ),
}


@pytest.mark.parametrize(("provider", "request_fields", "fields"), CHOICES.values(), ids=CHOICES)
def test_a_quirk_of_a_row_holds(
    provider: str, request_fields: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = request_of(provider, {}, **request_fields)[1]
    assert {name: body.get(name, ABSENT) for name in fields} == fields


@pytest.mark.parametrize(
    "row", [row for row in SERVERS if row.default_base_url and row.domain], ids=lambda row: row.name
)
def test_any_provider_has_the_quirks_of_a_known_server(row: Any) -> None:
    for name in ("openai", "openai-compatible", "openai-responses"):
        generic = next(other for other in SERVERS if other.name == name)
        at_home = f"https://api.{row.domain}/x"
        assert generic.quirks_for(at_home) == row.quirks_for(at_home)
        assert generic.quirks_for(f"https://{row.domain}.example/x") == Profile()


# A new row, as somebody adds it to the table

ACME = Server(
    name="acme",
    wires=chat_wires,
    default_base_url="https://api.acme.example/llm/v2",
    domain="acme.example",
    key_variables=("ACME_API_KEY",),
    base_url_variables=("ACME_BASE_URL",),
    key_header=KeyHeader("X-Acme-Key", ""),
)
TALK = Server(
    name="talk",
    wires=lambda row, config: [OtherWire()],
    default_base_url="https://api.talk.example/llm/v2",
)
DEFAULTS = {"bedrock": "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1"}
BARE_HOSTS: dict[str, tuple[Server, str]] = {
    row.name: (row, url)
    for row in (*SERVERS, ACME, TALK)
    if (url := row.default_base_url or DEFAULTS.get(row.name))
}


def sent_url(row: Server, base_url: str) -> str:
    """URL of a request with this base URL. Nothing is sent."""

    async def encode() -> str:
        client = row.open(ProviderConfig(base_url=base_url))
        assert isinstance(client, WireClient)
        request = ChatRequest(model="m", messages=ASKED["messages"])
        url = client.wire_request(request, stream=True).url
        await client.close()
        return url

    return asyncio.run(encode())


@pytest.mark.parametrize(("row", "default"), BARE_HOSTS.values(), ids=BARE_HOSTS)
def test_a_bare_host_gets_the_path_of_the_default_server(row: Server, default: str) -> None:
    parts = urlsplit(default)
    assert sent_url(row, f"{parts.scheme}://{parts.netloc}") == sent_url(row, default)
    proxy = "https://proxy.example.org"
    if row.row_at is None:
        assert urlsplit(sent_url(row, proxy)).path == urlsplit(sent_url(row, default)).path
    assert sent_url(row, f"{proxy}/own").startswith(f"{proxy}/own")


# base URL: the URL of a chat under `openai-compatible`.
BARE_ELSEWHERE = {
    "https://api.deepseek.com": "/chat/completions",
    "https://api.groq.com": "/openai/v1/chat/completions",
    "https://generativelanguage.googleapis.com": "/v1beta/openai/chat/completions",
    "https://r.openai.azure.com": "/openai/v1/chat/completions",
    "http://127.0.0.1:11434": "/v1/chat/completions",
    "https://unknown.example": "/v1/chat/completions",
}


@pytest.mark.parametrize("base_url", BARE_ELSEWHERE)
def test_a_bare_host_of_a_known_server_gets_its_path_under_another_provider(base_url: str) -> None:
    generic = servers.built_in_server("openai-compatible")
    assert sent_url(generic, base_url) == base_url + BARE_ELSEWHERE[base_url]


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SERVERS", (*SERVERS, ACME))


AZURE = servers.built_in_server("azure").key_header
# provider, base URL: the key header of the row; None: that of the wire.
HEADERS: dict[str, tuple[str, str, KeyHeader | None]] = {
    "at home": ("openai-compatible", "https://api.acme.example/llm/v2", ACME.key_header),
    "under another": ("openai-responses", "https://api.acme.example", ACME.key_header),
    "its other servers": ("openai", "https://eu.acme.example/llm/v2", ACME.key_header),
    "a longer host": ("openai-compatible", "https://acme.example.org/v1", None),
    "a name that ends so": ("openai-compatible", "https://notacme.example/v1", None),
    "a row of its own": ("deepseek", "https://api.acme.example/llm/v2", None),
    "azure": ("openai", "https://r.openai.azure.com/openai/v1", AZURE),
    "azure elsewhere": ("azure", "https://gateway.example/openai/v1", AZURE),
    "a machine at azure": ("openai", "https://vm.westeurope.cloudapp.azure.com/v1", None),
    "unknown": ("openai-compatible", "http://127.0.0.1:1/v1", None),
}


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(("provider", "base_url", "header"), HEADERS.values(), ids=HEADERS)
def test_the_key_header_follows_the_row_of_the_host(
    provider: str, base_url: str, header: KeyHeader | None
) -> None:
    assert servers.built_in_server(provider).key_header_for(base_url) == header


@pytest.mark.usefixtures("acme")
def test_a_key_is_sent_in_the_header_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "sk-of-acme-0123456789")
    with ModelServer(["Yes."] * 2) as server:
        monkeypatch.setenv("HTTP_PROXY", server.origin)
        url = "http://api.acme.example/llm/v2"
        for key in (KEY, ""):
            monkeypatch.setenv("LLM_API_KEY", key)
            agent = nbagent.Agent("openai-compatible:m", base_url=url)
            assert agent.run("Hello?").text == "Yes."
    with_key, without = (request.headers for request in server.requests)
    assert (with_key["x-acme-key"], "authorization" in with_key) == (KEY, False)
    # The laws of keys are unchanged: no key of a variable goes to a row by its domain.
    assert not {"x-acme-key", "authorization"} & without.keys()


# provider, environment: the URL, or words of the error.
TEMPLATES: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "second variable": (
        *("bedrock", {"AWS_DEFAULT_REGION": "us-gov-west-1"}, {}),
        "https://bedrock-runtime.us-gov-west-1.amazonaws.com/openai/v1",
    ),
    "its own URL": (
        *("bedrock", {**AWS, "AWS_BEDROCK_BASE_URL": " http://127.0.0.1:1/v1 "}, {}),
        "http://127.0.0.1:1/v1",
    ),
    "a URL of the call": (
        *("bedrock", AWS, {"base_url": "http://127.0.0.1:2/v1"}),
        "http://127.0.0.1:2/v1",
    ),
    "no region": ("bedrock", {"AWS_REGION": " "}, {}, "set AWS_REGION or AWS_DEFAULT_REGION"),
    "a host as region": (
        *("bedrock", {"AWS_REGION": "x.evil.example/"}, {}),
        "cannot be the region of bedrock",
    ),
    "a name and password as region": (
        *("bedrock", {"AWS_REGION": "a:b@evil.example"}, {}),
        "cannot be the region",
    ),
    "no project": (
        *("vertex", {"GOOGLE_CLOUD_LOCATION": "global"}, {}),
        "needs a project: set GOOGLE_CLOUD_PROJECT",
    ),
    "no location": (
        *("vertex", {"GOOGLE_CLOUD_PROJECT": "p"}, {}),
        "set GOOGLE_CLOUD_LOCATION",
    ),
    "the global location": (
        *("vertex", {**GCP, "GOOGLE_CLOUD_LOCATION": "global"}, {}),
        f"https://{VERTEX}/global/endpoints/openapi",
    ),
    "a project that is called global": (
        *("vertex", {**GCP, "GOOGLE_CLOUD_PROJECT": "global"}, {}),
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/global/locations/europe-west4"
        "/endpoints/openapi",
    ),
    "the project of the call": (
        *("vertex", {**GCP, "GOOGLE_CLOUD_PROJECT": "other"}, {"project_id": "my-project-1"}),
        f"https://europe-west4-{VERTEX}/europe-west4/endpoints/openapi",
    ),
    "a path as project": (
        *("vertex", {**GCP, "GOOGLE_CLOUD_PROJECT": "p/../../q"}, {}),
        "cannot be the project",
    ),
}


@pytest.mark.parametrize(
    ("provider", "environ", "config", "expected"), TEMPLATES.values(), ids=TEMPLATES
)
def test_a_templated_url_is_filled_or_refused(
    provider: str, environ: dict[str, str], config: dict[str, Any], expected: str
) -> None:
    row = find_provider(provider)
    if expected.startswith("http"):
        assert row.resolve(ProviderConfig(**config), environ).base_url == expected
    else:
        with pytest.raises(UsageError, match=expected):
            row.resolve(ProviderConfig(**config), environ)


MANTLE = "https://bedrock-mantle.eu-west-1.api.aws/openai/v1"
TOKEN = {"VERTEX_API_KEY": KEY}
# provider, environment, base URL: True if the provider's key goes there.
KEYS: dict[str, tuple[str, dict[str, str], str | None, bool]] = {
    "bedrock at home": ("bedrock", AWS, None, True),
    "bedrock elsewhere": (
        "bedrock", AWS, "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", True),
    "bedrock's other server": ("bedrock", AWS, MANTLE, True),
    "somebody's bucket": ("bedrock", AWS, "https://evil.s3.amazonaws.com", False),
    "somebody's bucket of such a name": (
        "bedrock", AWS, "https://bedrock-runtime.x.s3.amazonaws.com", False),
    "a longer host": (
        "bedrock", AWS, "https://bedrock-runtime.eu-west-1.amazonaws.com.evil.example", False),
    "a host before it": (
        "bedrock", AWS, "https://evil.bedrock-runtime.eu-west-1.amazonaws.com", False),
    "without TLS": ("bedrock", AWS, "http://bedrock-runtime.eu-west-1.amazonaws.com", False),
    "vertex at home": ("vertex", {**GCP, **TOKEN}, None, True),
    "vertex, global": ("vertex", TOKEN, f"https://{VERTEX}/global/endpoints/openapi", True),
    "another of Google's": ("vertex", TOKEN, "https://storage.googleapis.com", False),
    "together's newer host": (
        "together", {"TOGETHER_API_KEY": KEY}, "https://api.together.ai/v1", True),
    "a name that ends so": (
        "together", {"TOGETHER_API_KEY": KEY}, "https://evil-api.together.ai", False),
    "blanks around it": ("zai", {"ZAI_API_KEY": KEY}, " https://api.z.ai/api/paas/v4\n", True),
    "hugging face's router": ("huggingface", {"HF_TOKEN": KEY}, None, True),
    "a space of hugging face": (
        "huggingface", {"HF_TOKEN": KEY}, "https://evil.hf.space/v1", False),
    "a page of hugging face": ("huggingface", {"HF_TOKEN": KEY}, "https://huggingface.co", False),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "environ", "base_url", "goes"), KEYS.values(), ids=KEYS)
def test_the_key_of_a_row_goes_to_its_servers_only(
    provider: str, environ: dict[str, str], base_url: str | None, goes: bool
) -> None:
    config = find_provider(provider).resolve(ProviderConfig(base_url=base_url), environ)
    assert bool(config.key) is goes
    assert config.base_url == (config.base_url or "").strip()


def test_every_row_is_listed_and_has_a_secret_key_variable() -> None:
    names = {row.name for row in SERVERS}
    assert names < set(provider_names())
    listed: Any = nbagent.models()
    assert names < set(listed["provider"])
    for row in SERVERS:
        assert all(is_secret_name(variable) for variable in row.key_variables)
        assert row.wires(row, ProviderConfig(base_url=row.default_base_url))
    readme = Path(servers.__file__).parents[2].joinpath("README.md").read_text("utf-8")
    missing = ", ".join(f"`{row.name}:`" for row in SERVERS if f"`{row.name}:`" not in readme)
    assert not missing, f"add {missing} to the table of providers in README.md"


@pytest.mark.parametrize("around", [" {} ", "\t{}", "{}\n", "\n {}\r\n"])
def test_blanks_around_a_base_url_do_no_harm(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(["Yes."] * 5) as server:
        url = around.format(server.url)
        assert nbagent.Agent("openai:m", base_url=url).run("Option?").text == "Yes."
        nbagent.configure(base_url=url)
        assert nbagent.Agent("openai:m").run("Configured?").text == "Yes."
        nbagent.configure(base_url=None)
        for variable in ("OPENAI_BASE_URL", "NBAGENT_BASE_URL"):
            monkeypatch.setenv(variable, url)
            assert nbagent.Agent("openai:m").run("Environment?").text == "Yes."
            monkeypatch.delenv(variable)

        async def ask() -> str:
            client = nbagent.client("openai:m", base_url=url)
            return (await client.chat("Client?")).message.text

        assert asyncio.run(ask()) == "Yes."


# Whether a schema binds

# provider, base URL: with tools, without.
BINDS: dict[tuple[str, str], tuple[bool, bool]] = {
    ("openai", "https://api.openai.com/v1"): (True, True),
    ("openai", "http://127.0.0.1:1/v1"): (False, True),
    ("openai", "https://api.z.ai/api/paas/v4"): (False, False),
    ("openai-responses", "https://api.openai.com/v1"): (True, True),
    ("openai-responses", "https://r.openai.azure.com/openai/v1"): (True, True),
    ("openai-responses", "http://127.0.0.1:8080/v1"): (False, False),
    ("openai-responses", "https://openrouter.ai/api/v1"): (False, False),
    ("moonshot", "https://api.moonshot.ai/v1"): (False, True),
    ("anthropic", "http://127.0.0.1:1"): (False, False),
    ("deepseek", "https://api.deepseek.com"): (False, False),
}


class City(TypedDict):
    name: str


@pytest.mark.parametrize(("provider", "base_url"), BINDS)
def test_the_server_decides_whether_a_schema_binds_else_a_final_tool_does(
    provider: str, base_url: str
) -> None:
    for tools, binds in zip(("fs", "none"), BINDS[provider, base_url], strict=True):
        agent = nbagent.Agent(f"{provider}:gpt-5.4", base_url=base_url, tools=tools, output=City)
        names = {tool.name for tool in agent.dry_run("Which?").request.tools}
        assert ("final_answer" in names) is not binds


# A row of another package

ASK_THE_ROW = """
import nbagent
from nbagent.providers.catalogue import find_provider
agent = nbagent.Agent(model="rowserver:m", tools="none", retries=0, max_tokens=9, reasoning="none")
run = agent.run("Hello?")
print(run.text, run.error and run.error.code, find_provider("rowserver").telemetry_name, sep="|")
print(*nbagent.models("rowserver").id)
"""


def test_another_package_adds_a_server_as_one_row() -> None:
    with ModelServer(["Hello yourself."]) as server:
        place = {"ROWSERVER_URL": server.url, "ROWSERVER_TOKEN": KEY}
        answered, listed = with_other_package(ASK_THE_ROW, **place)
    assert answered == "Hello yourself.|None|row.server"
    assert "rowserver:" in listed
    asked = server.requests[0]
    assert (asked.headers["x-row-token"], "authorization" in asked.headers) == (
        f"Token {KEY}",
        False,
    )
    fields = ("max_completion_tokens", "thinking", "max_tokens", "stream_options")
    assert [asked.body.get(name) for name in fields] == [9, {"type": "disabled"}, None, None]


# Facts of one vendor stand in its row or its wire

ROOT = Path(servers.__file__).parents[1]
VENDORS = re.compile(
    r"azure|anthropic|claude|gemini|deepseek|openrouter|groq|mistral|ollama|vllm|lm_?studio"
    r"|llama_?cpp|xai\b|x_ai|together(?:_|\.xyz)|fireworks|cerebras|moonshot|kimi|\bzai|z_ai|glm"
    r"|hugging_?face|bedrock|vertex|openai|\bgpt",
    re.I,
)
HOMES = ("providers/servers.py", "providers/server_wires.py", "providers/server_batches.py")
ALLOWED = {
    "providers/wires/": "its wire",
    "providers/batches/": "its batch API",
    "providers/local/": "the package xllamacpp and the hub, from which local: loads its files",
    "providers/http_errors.py": "names of headers that a vendor sends with an error",
    "providers/rate_limits.py": "names of headers that a vendor sends with a limit",
    "providers/wait_times.py": "names of headers that a vendor sends with a limit",
    "export/": "the format of OpenAI's fine-tuning files",
    "notebook/": "examples in the help",
    "frames.py": "an example in an error",
    "run.py": "an example in an error",
    "session/run_notices.py": "examples of free providers in an error",
    "settings/sources.py": "the provider of a bare model name",
    "settings/types.py": "beginnings of keys, and headers that hold no secret",
    "contracts/": "names that say secret, and placeholders that are no keys",
    "files/names.py": "files that hold secrets",
    "tools/": "folders of skills that clients share; a form that other clients write",
}


_WORDS = ("NAME", "STRING", "FSTRING_MIDDLE")
"""Kinds of tokens; an f-string is one STRING up to Python 3.11."""


def words_of_code(path: Path) -> Iterator[str]:
    """Names and texts of a file, without its comments and docstrings."""
    text = path.read_text("utf-8")
    if not VENDORS.search(text):
        return
    documented = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    with path.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            if tokenize.tok_name[token.type] in _WORDS and token.start not in documented:
                yield token.string


def test_no_fact_of_a_vendor_stands_outside_its_row_and_its_wire() -> None:
    places: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name not in HOMES and (
            found := {word for word in words_of_code(path) if VENDORS.search(word)}
        ):
            places[name] = found
    unknown = {name: found for name, found in places.items() if not name.startswith((*ALLOWED,))}
    assert not unknown, f"bring these facts to a row of providers/servers.py: {unknown}"
    unused = [start for start in ALLOWED if not any(name.startswith(start) for name in places)]
    assert not unused, f"no longer needed in ALLOWED: {unused}"
