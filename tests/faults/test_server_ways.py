"""The way to a server: TLS with certificates made here, and proxies on loopback."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers.hostile_cases import sends
from servers.hostile_server import Fault, HostileServer, certificate, tls_of, whole
from servers.loopback import Visit

import nbagent

KEY = "sk-hostile-0123456789abcdefghij"
NAME = "models.example.org"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate for this machine and a made-up host, and one for another host."""
    folder = tmp_path_factory.mktemp("certificates")
    made = {
        "right": certificate(folder, NAME, "127.0.0.1"),
        "other": certificate(folder, "elsewhere.example.org"),
    }
    found = {name: path for name, path in made.items() if path is not None}
    if len(found) < len(made):
        pytest.skip("there is no openssl to make certificates with")
    return found


@pytest.fixture
def tls(certificates: dict[str, Path]) -> Iterator[HostileServer]:
    with HostileServer(tls=tls_of(certificates["right"])) as server:
        yield server


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    """A proxy that the environment names for everything."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with HostileServer() as server:
        address = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("HTTP_PROXY", address)
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.setenv("HTTPS_PROXY", address)
        yield server


CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API_KEY", KEY)
    for name in CERTIFICATE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def ask(base_url: str, **options: Any) -> nbagent.Run:
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=base_url)
    options.setdefault("timeout_s", 10)
    return agent.run("hi", **options)


def message(run: nbagent.Run, code: str = "LLM_HTTP_ERROR") -> str:
    """The error's words, when it is the right error."""
    assert run.error
    assert run.error.code == code, run.error
    assert run.error.message.isprintable()
    return run.error.message


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates_of_requests_and_of_curl_count_unless_ssl_cert_file_is_set(
    tls: HostileServer,
    certificates: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, str(certificates["right"]))
    assert ask(tls.url("it")).text == "fine"
    # The first of the four variables counts alone.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["other"]))
    assert "certificate" in message(ask(tls.url("it")))
    assert len(tls.visits["it"]) == 1


def test_a_certificate_counts_for_its_host_and_while_the_environment_trusts_it(
    tls: HostileServer, certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = message(ask(tls.url("it")))
    assert "self-signed" in said
    assert said.endswith("check it or SSL_CERT_FILE.")
    assert tls.visits == {}, "the key did not leave"
    # A person sets it in the notebook, after the first failure; nothing has to be restarted.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["right"]))
    assert ask(tls.url("it")).text == "fine"
    assert tls.visits["it"][0].headers.get("authorization") == f"Bearer {KEY}"
    monkeypatch.delenv("SSL_CERT_FILE")
    assert message(ask(tls.url("it"))), "taken back, it is not trusted any more"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["other"]))
    with HostileServer(tls=tls_of(certificates["other"])) as server:
        assert "not valid for '127.0.0.1'" in message(ask(server.url("it")))
        assert server.visits == {}
    said = message(ask(tls.url("it").replace("https:", "http:")))
    assert "try again" in said, "a server with TLS is asked without it"
    assert len(tls.visits["it"]) == 1


@pytest.mark.parametrize(
    ("answer", "open_s", "code", "says"),
    [
        (b"HTTP/1.1 400 X\r\n\r\n", 0, "LLM_HTTP_ERROR", "no secure connection"),
        (b"", 10, "LLM_TIMEOUT", ""),
        (b"", 0, "LLM_HTTP_ERROR", ""),
    ],
    ids=["plain", "silent", "cut"],
)
def test_a_handshake_that_fails_is_named_in_time(
    answer: bytes, open_s: float, code: str, says: str
) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(answer)
            await writer.drain()
            await reader.read(100)
        await asyncio.sleep(open_s)
        writer.close()

    server = HostileServer()
    server.meet = meet
    with server:
        timeout_s = 0.5 if open_s else 10
        run = ask(f"https://127.0.0.1:{server.port}/v1", timeout_s=timeout_s)
    assert says in message(run, code)
    assert not open_s or run.record.duration_ms < 4_000


# Proxies.


def tunnel_to(server: HostileServer) -> Fault:
    """Pass bytes on, as a proxy does after CONNECT."""

    async def serve(visit: Visit) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await visit.send(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def back() -> None:
            while data := await reader.read(65536):
                await visit.send(data)

        answering = asyncio.create_task(back())
        try:
            with suppress(OSError):
                while data := await visit.reader.read(65536):
                    writer.write(data)
        finally:
            answering.cancel()
            writer.close()

    return serve


def test_a_proxy_of_the_environment_carries_plain_requests(proxy: HostileServer) -> None:
    assert ask(f"http://{NAME}/v1").text == "fine"
    (visits,) = proxy.visits.values()
    assert visits[0].head.startswith(f"POST http://{NAME}/v1/chat/completions ")
    assert visits[0].headers.get("host") == NAME


def test_a_tunnel_through_a_proxy_shows_it_no_key(
    proxy: HostileServer,
    tls: HostileServer,
    certificates: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["right"]))
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret-pass@127.0.0.1:{proxy.port}")
    proxy.faults[f"{NAME}:443"] = tunnel_to(tls)
    assert [ask(f"https://{NAME}/v1").text for _ in range(2)] == ["fine", "fine"]
    (asked,) = proxy.visits[f"{NAME}:443"]
    assert asked.head.startswith(f"CONNECT {NAME}:443 ")
    assert asked.headers.get("authorization") is None
    assert KEY not in asked.head
    login = base64.b64encode(b"me:s3cret-pass").decode()
    assert asked.headers.get("proxy-authorization") == f"Basic {login}"
    seen = tls.visits["v1"][0]
    assert seen.headers.get("authorization") == f"Bearer {KEY}"
    assert seen.headers.get("proxy-authorization") is None


def refusal(status: str) -> Fault:
    return sends(whole(b"<html>", status, ["Location: http://127.0.0.1:1/"]))


BAD_PROXIES: dict[str, tuple[Fault, str]] = {
    "wants a password": (refusal("407 Proxy Authentication Required"), r"407.*HTTPS_PROXY\.$"),
    "nothing": (sends(), ""),
    "no TLS": (sends(b"HTTP/1.1 200 OK\r\n\r\n" * 2), ""),
    "silence": (Visit.silence, ""),
}


@pytest.mark.parametrize(("fault", "says"), BAD_PROXIES.values(), ids=BAD_PROXIES)
def test_a_proxy_that_refuses_or_misbehaves_gets_no_key(
    proxy: HostileServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, says: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret-pass@127.0.0.1:{proxy.port}")
    proxy.faults[f"{NAME}:443"] = fault
    silent = fault is Visit.silence
    run = ask(f"https://{NAME}/v1", timeout_s=0.5 if silent else 10)
    said = message(run, "LLM_TIMEOUT" if silent else "LLM_HTTP_ERROR")
    assert re.search(says, said)
    assert "s3cret" not in said
    assert not silent or run.record.duration_ms < 4_000
    assert all(KEY not in visit.head for visits in proxy.visits.values() for visit in visits)


LOGIN = "user:short7!"
ECHOES = {
    "the header": ("http", 403, LOGIN, "Proxy-Authorization: {value}"),
    "its value, cut": ("http", 403, "a:\u00e4", "I got {value:.12}…"),
    "JSON": ("http", 403, LOGIN, '{{"error": {{"message": "no", "code": "{value}"}}}}'),
    "decoded": ("http", 403, LOGIN, "{login} is unknown"),
    "decoded, and too short to be a secret": ("http", 407, "a:\u00e4", "{login} is unknown"),
    "short and in a tunnel": ("https", 407, "a:b", "{login} is unknown"),
}


@pytest.mark.parametrize(("scheme", "status", "login", "echo"), ECHOES.values(), ids=ECHOES)
def test_a_proxy_that_echoes_what_it_was_sent_shows_no_password(
    proxy: HostileServer, monkeypatch: pytest.MonkeyPatch,
    scheme: str, status: int, login: str, echo: str
) -> None:  # fmt: skip
    address = f"http://{quote(login, safe=':')}@127.0.0.1:{proxy.port}"
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, address)
    coded = base64.b64encode(login.encode()).decode()
    said = echo.format(value=f"Basic {coded}", login=login)
    sent: list[str | None] = []

    async def refuse(visit: Visit) -> None:
        sent.append(visit.headers.get("proxy-authorization"))
        words = f"{status} {said}".encode("ascii", "replace").decode()
        await visit.send(whole(said.encode(), words, [f"X-Request-Id: {coded}"]))

    for name in (f"{NAME}:443", "v1"):
        proxy.faults[name] = refuse
    run = ask(f"{scheme}://{NAME}/v1")
    assert set(sent) == {f"Basic {coded}"}
    error = message(run, "LLM_HTTP_ERROR" if status == 407 else "LLM_AUTH_FAILED")
    assert f"HTTP {status}" in error
    shown = run.record.model_dump_json() + error
    assert coded[:10].rstrip("=") not in shown
    assert login not in shown


def test_this_machine_and_a_host_in_no_proxy_are_asked_directly(
    proxy: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileServer() as server:
        for host in ("127.0.0.1", "localhost"):
            assert ask(server.url("it").replace("127.0.0.1", host)).text == "fine"
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        raise OSError("no network here")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setenv("NO_PROXY", "other.test,.example.org")
    message(ask(f"http://{NAME}/v1", timeout_s=1.5))
    assert set(asked) == {NAME}
    assert proxy.connections == 0
    # Set and taken back in a notebook, it counts from the next request on.
    monkeypatch.delenv("NO_PROXY")
    assert ask(f"http://{NAME}/v1").text == "fine"


UNUSABLE: dict[str, tuple[str, str, str]] = {
    "no proxy for HTTP": ("HTTPS_PROXY", "socks5://127.0.0.1:1080", "not an HTTP proxy"),
    "a port in words": ("HTTPS_PROXY", "http://127.0.0.1:port", "address is not valid"),
    "a broken host": ("HTTPS_PROXY", "http://me:s3cret-pass@[::1:80", "address is not valid"),
    "no file": ("SSL_CERT_FILE", "/nowhere/certificates.pem", "/nowhere/certificates.pem"),
    "no certificate": ("SSL_CERT_FILE", __file__, __file__),
    **{
        f"no file in {name}": (name, "/nowhere/company.pem", "/nowhere/company.pem")
        for name in CERTIFICATE_VARIABLES[1:]
    },
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_proxy_or_a_certificate_that_cannot_be_used_is_named(
    proxy: HostileServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    variable, value, says = UNUSABLE[what]
    monkeypatch.setenv(variable, value)
    said = message(ask(f"https://{NAME}/v1"))
    assert says in said
    is_certificate = variable in CERTIFICATE_VARIABLES
    assert said.endswith(f"correct {variable}." if is_certificate else "the server in NO_PROXY.")
    assert "s3cret" not in said
