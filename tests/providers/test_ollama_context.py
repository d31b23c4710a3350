"""Ollama cuts what is too long for the context of a loaded model, and says nothing: we say it."""

from __future__ import annotations

from typing import Any

import pytest
from servers.hostile_server import whole
from servers.loopback import Loopback, Visit

import nbagent

ANSWER = {"model": "qwen3", "message": {"role": "assistant", "content": "Yes."}, "done": True}
LOADED = {"models": [{"model": "qwen3:latest", "context_length": 8192}]}
TOO_LONG = {"error": "the input length exceeds the context length"}
LONG = "word " * 10_000
"""About 12,500 tokens."""


class OllamaServer(Loopback):
    """Answers `/api/chat` and lists its loaded models."""

    def __init__(self, loaded: Any = LOADED, answer: Any = ANSWER, status: str = "200 OK") -> None:
        super().__init__()
        self._loaded, self._answer, self._status = loaded, answer, status
        self.paths: list[str] = []

    async def answer(self, visit: Visit) -> None:
        self.paths.append(visit.path)
        if visit.path == "/api/ps":
            return await visit.send(whole(self._loaded))
        return await visit.send(whole(self._answer, status=self._status))


def notes(server: OllamaServer, prompt: str, **options: Any) -> tuple[nbagent.Run, str]:
    """Run a prompt; return the run and its notices."""
    with server:
        agent = nbagent.Agent(model="ollama:qwen3", base_url=server.origin, tools=[], **options)
        run = agent.run(prompt)
    return run, " ".join(note for turn in run.turns for note in turn.notices)


CASES: dict[str, tuple[str, dict[str, Any], Any, str, int]] = {
    "cut": (LONG, {}, LOADED, "about 12,5", 1),
    "fits": ("word " * 5000, {}, LOADED, "", 1),
    "short, so it is not asked": ("Hello?", {}, LOADED, "", 0),
    "set, so it is not asked": (LONG, {"extra_body": {"num_ctx": 9000}}, LOADED, "of 9,000", 0),
    "set among the options": (LONG, {"extra_body": {"options": {"num_ctx": 32_768}}}, 0, "", 0),
    "another model is loaded": (LONG, {}, {"models": [{"model": "gemma3"}]}, "", 1),
    "no such list": (LONG, {}, "404 page not found", "", 1),
    "odd list": (LONG, {}, {"models": [{"model": "qwen3", "context_length": "many"}]}, "", 1),
}


@pytest.mark.parametrize(
    ("prompt", "options", "loaded", "note", "asked"), CASES.values(), ids=CASES
)
def test_a_request_that_the_server_cuts_is_a_notice(
    prompt: str, options: dict[str, Any], loaded: Any, note: str, asked: int
) -> None:
    server = OllamaServer(loaded)
    run, said = notes(server, prompt, **options)
    assert run.text == "Yes."
    assert server.paths.count("/api/ps") == asked
    assert (note in said) if note else not said
    assert ("without an error" in said) == bool(note)


def test_a_refused_request_is_explained_with_the_context_in_use() -> None:
    run, _ = notes(OllamaServer(answer=TOO_LONG, status="400 Bad Request"), LONG)
    assert run.error is not None
    assert run.error.code == "LLM_CONTEXT_OVERFLOW"
    assert run.error.details["context_tokens"] == 8192
    assert "it takes 8,192" in run.error.message
