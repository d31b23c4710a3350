"""`nbagent.models()`: what can be asked now. No other machine is asked, and nobody waits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from servers.hostile_cases import drips, sends
from servers.hostile_server import HostileServer, whole
from servers.loopback import Visit
from servers.model_server import ModelServer

import nbagent
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.notebook import reports

KEY = "sk-canary-0123456789abcdef"
COLUMNS = {
    "id": "string",
    "provider": "category",
    "context_length": "Int64",
    "capabilities": "string",
    "reachable": "boolean",
    "reason": "string",
}


def listed(provider: str | None = None, **options: Any) -> dict[str, dict[str, Any]]:
    """The rows by their id; by `provider:` where a provider names no model."""
    frame: Any = nbagent.models(provider, **options)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == COLUMNS
    frame["id"] = frame["id"].fillna(frame["provider"].astype("string") + ":")
    return {row.pop("id"): row for row in frame.to_dict("records")}


def test_the_doctor_names_the_variables_of_every_row() -> None:
    doctor = str(reports.doctor())
    for name in ("XAI_API_KEY", "ZAI_API_KEY", "HF_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"):
        assert name in doctor


def test_what_can_be_asked_is_the_offline_model_and_who_has_a_key_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = listed()
    assert (found["offline:demo"]["reachable"], found["offline:demo"]["reason"]) == (True, "")
    assert "tools" in found["offline:demo"]["capabilities"]
    others = [name for name, row in found.items() if row["provider"] != "offline"]
    assert [name for name in others if found[name]["reachable"]] == ["local:"]
    assert all(found[name]["reason"] for name in others)
    assert found["openai:gpt-5.4"]["reason"].startswith("no key; set OPENAI_API_KEY")
    assert found["ollama:"]["reason"] == "no server at http://127.0.0.1:1"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)  # any connection but to loopback fails a test
    assert listed()["openai:gpt-5.4"]["reachable"] is True
    assert KEY not in str(listed())


VARIABLES = {
    "OLLAMA_HOST": "ollama",
    "LMSTUDIO_BASE_URL": "lmstudio",
    "VLLM_BASE_URL": "vllm",
    "LLAMACPP_BASE_URL": "llamacpp",
    "LLM_BASE_URL": "openai",
}


@pytest.mark.parametrize("variable", VARIABLES)
def test_servers_of_this_machine_are_found_and_told_no_key(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = VARIABLES[variable]
    monkeypatch.setenv("LLM_API_KEY", KEY)
    models = [
        {"id": "large", "max_model_len": 32_768},
        {"id": "gguf", "meta": {"n_ctx": 4096}},
        {"id": "odd", "context_length": "many", "meta": 7},
        {"id": "half \ud800"},
    ]
    with ModelServer(models=models) as server:
        url = server.url.removesuffix("/v1") if variable == "OLLAMA_HOST" else server.url
        monkeypatch.setenv(variable, url)
        found = listed()
        assert all("authorization" not in one.headers for one in server.requests)
    sizes = {name: found[f"{provider}:{name}"]["context_length"] for name in ("large", "gguf")}
    assert sizes == {"large": 32_768, "gguf": 4096}
    assert found[f"{provider}:odd"]["reachable"] is True
    assert f"{provider}:half \ufffd" in found
    monkeypatch.setenv(variable, f"{url}/ä")
    after = listed()
    assert f"{provider}:large" not in after, "it is gone, and that is seen at once"


def test_a_loaded_model_of_ollama_is_listed_with_the_context_that_it_really_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = [{"id": f"{name}:latest", "max_model_len": 40_960} for name in ("qwen3", "gemma3")]
    with ModelServer(models=models) as server:
        server.loaded = [{"model": "qwen3:latest", "context_length": 4096}, {"model": 3}, "x"]
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        found = listed()
    sizes = {name: found[f"ollama:{name}:latest"]["context_length"] for name in ("qwen3", "gemma3")}
    assert sizes == {"qwen3": 4096, "gemma3": 40_960}


@pytest.mark.timed
def test_servers_that_do_not_answer_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    nbagent.models()  # loads pandas
    faults = {"silent": Visit.silence, "drips": drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n")}
    with HostileServer(faults) as slow, ModelServer(models=["little"]) as little:
        for name in ("LMSTUDIO", "VLLM", "LLAMACPP", "LLM"):
            url = slow.url("drips" if name == "VLLM" else "silent")
            monkeypatch.setenv(f"{name}_BASE_URL", url)
        monkeypatch.setenv("OLLAMA_HOST", little.url.removesuffix("/v1"))
        began = time.monotonic()
        found = listed()
        took = time.monotonic() - began
    assert slow.visits.keys() == faults.keys()
    assert found["ollama:little"]["reachable"] is True
    assert took < 0.3 + 1.0, "a second for a busy machine"


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"data": [{"name": 1}]}', b"[1]", b""])
def test_another_program_on_a_usual_port_is_no_model_server(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileServer({"it": sends(whole(body))}) as other:
        monkeypatch.setenv("VLLM_BASE_URL", other.url("it"))
        found = listed()
    assert len(other.visits["it"]) == 1
    assert [name for name, row in found.items() if row["provider"] == "vllm"] == ["vllm:"]


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000/v1", "https://llm.example.org/v1", "::x"])
def test_only_this_machine_is_looked_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LMSTUDIO", "VLLM", "LLAMACPP"):
        monkeypatch.setenv(f"{name}_BASE_URL", url)
    monkeypatch.setenv("OLLAMA_HOST", url)
    found = listed()  # a connection elsewhere fails the test
    assert "offline:demo" in found
    assert not [name for name in found if name.startswith(("vllm:m", "ollama:m"))]


def test_a_provider_that_is_named_is_asked_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ModelServer(models=["a", "b"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        found = listed("openai")
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    assert list(found) == ["openai:a", "openai:b"]
    with ModelServer(models=["c"]) as other:
        options: dict[str, Any] = {"base_url": other.url, "headers": {"X-T": "a"}}
        assert list(listed("openai-compatible", **options)) == ["openai-compatible:c"]
        assert other.requests[-1].headers["x-t"] == "a"
        assert "authorization" not in other.requests[-1].headers
    with pytest.raises(ModelError, match="LLM_HTTP_ERROR"):
        nbagent.models("openai")
    assert "openai:a" not in listed(), "that server is gone"
    monkeypatch.delenv("OPENAI_BASE_URL")
    found = listed()
    assert "openai:a" not in found, "another server listed it"
    assert found["openai:gpt-5.4"]["reachable"] is True


def test_what_cannot_be_asked_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match=r"openai needs a key: set OPENAI_API_KEY or LLM_API_KEY"):
        nbagent.models("openai")
    with pytest.raises(UsageError, match="there is no provider 'opnai'"):
        nbagent.models("opnai")
    with pytest.raises(UsageError, match="options need a provider"):
        nbagent.models(base_url="http://127.0.0.1:1/v1")
    assert next(iter(listed("offline"))) == "offline:demo"
