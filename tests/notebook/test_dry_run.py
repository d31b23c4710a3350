"""`--dry-run`: what is shown is what the same cell sends then, and nothing happens before."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from IPython.utils.capture import capture_output
from magic_shell import TOOLS, MagicShell
from PIL import Image
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent import offline
from nbagent.agent import Agent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import ImagePart, TextPart


def dry(shell: MagicShell, *lines: str) -> dict[str, str]:
    with capture_output() as captured:
        shell.cell(*lines)
    (shown,) = captured.outputs
    assert (captured.stdout, captured.stderr) == ("", "")
    return shown.data


def body_of(shown: dict[str, str]) -> Any:
    """The request as JSON, as a person reads it in the picture."""
    return json.loads(unescape(re.findall(r"<pre>(.*?)</pre>", shown["text/html"], re.DOTALL)[-1]))


SAME = {
    "tools": ("", "Of Oslo?"),
    "forced tool": ("--tools area,population --tool-choice area", "Of Oslo?"),
    "system prompt": ("--tools none --system 'Be brief: ½ – \"so\".'", "Hello?\n\nYou?"),
    "sampling": ("--temperature 0.5 --top-p 0.9 --max-tokens 7 --stop-seq A --stop-seq B", "Hi"),
    "in one piece": ("--no-stream --tools none", "Hello?"),
    "value": ("--tools none", "Is {{ 6 * 7 }} {even}? $x {{ '</pre><script>' }}"),
    "picture": ("--tools none", "What is {{ picture }} there?"),
    "options go on below": ("--tools none \\\n --temperature 1", "Hello?"),
}


@pytest.mark.parametrize("what", SAME)
def test_dry_run_shows_what_the_same_cell_sends(shell: MagicShell, what: str) -> None:
    line, prompt = SAME[what]
    shell.cell(TOOLS)
    shell.user_ns["picture"] = Image.new("RGB", (2, 2), "teal")
    with ModelServer() as server:
        cell = f"%%agent -m openai:little --base-url {server.url} {line}"
        shown = dry(shell, cell.replace("%%agent", "%%agent --dry-run", 1), prompt)
        assert server.requests == []
        shell.cell(cell, prompt)
        assert body_of(shown) == server.bodies[0]
        assert bool(server.bodies[0].get("stream")) == ("--no-stream" not in line)
        size = server.requests[0].headers["content-length"]
    assert f"{int(size):,} bytes" in shown["text/plain"]
    assert f"{server.url}/chat/completions, without a key" in shown["text/plain"]


def test_dry_run_of_what_goes_on_shows_the_conversation_and_changes_nothing(
    shell: MagicShell,
) -> None:
    shell.cell(TOOLS)
    with ModelServer() as server:
        run = shell.agent(f"-m openai:little --base-url {server.url} --into kept", "Of Oslo?")
        before = (len(nbagent.runs()), len(nbagent.messages()), len(server.requests))
        shown = dry(shell, "%%agent --continue --into kept --dry-run", "And of Bergen?")
        assert (len(nbagent.runs()), len(nbagent.messages()), len(server.requests)) == before
        assert shell.user_ns["_run"] is shell.user_ns["kept"] is run
        assert nbagent.open_run("last").id == run.id
        assert f"continues run {run.id[:8]} (4 messages of it): turn C03" in shown["text/plain"]
        shell.cell("%%agent --continue", "And of Bergen?")
        assert body_of(shown) == server.bodies[before[2]]
        roles = [message["role"] for message in body_of(shown)["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        shell.agent(f"-m openai:little --base-url {server.url} --max-turns 1", "Of Oslo?")
        shown = dry(shell, "%agent resume last --temperature 0 --dry-run")
        shell.cell("%agent resume last --temperature 0")
        assert body_of(shown) == server.bodies[-1]
        assert body_of(shown)["temperature"] == 0


def refusal(code: str, message: str, **more: str) -> Reply:
    """A server that cannot take a request as it is."""
    error = {"message": message, "type": "invalid_request_error", "code": code, **more}
    return Reply(status=400, error={"error": error})


def test_dry_run_leaves_out_what_the_server_refused_before(shell: MagicShell) -> None:
    said = "Unsupported parameter: 'temperature' is not supported with this model."
    refused = refusal("unsupported_parameter", said, param="temperature")
    with ModelServer([refused, "Hello.", "Hello."]) as server:
        line = f"-m openai:stern --base-url {server.url} --tools none --temperature 1"
        shell.agent(line)
        shown = dry(shell, f"%%agent {line} --dry-run", "Hello?")
        shell.agent(line)
        assert body_of(shown) == server.bodies[-1]
    assert "temperature" not in body_of(shown)
    assert "left out" in shown["text/plain"]


def test_dry_run_works_without_a_key_and_plays_no_step_of_an_offline_model(
    shell: MagicShell,
) -> None:
    shown = dry(shell, "%%agent -m openai:gpt-5.4 --dry-run", "Hello?")
    assert "https://api.openai.com/v1/chat/completions, NO KEY IS SET" in shown["text/plain"]
    assert "OPENAI_API_KEY or LLM_API_KEY" in shown["text/plain"]
    assert body_of(shown)["messages"] == [{"role": "user", "content": "Hello?"}]
    assert shell.refused("%%agent -m openai:gpt-5.4", "Hello?").code == "LLM_AUTH_FAILED"
    shell.cell(TOOLS)
    model = offline.script(["Hello."])
    shown = dry(shell, f"%%agent -m {model.model_id} --dry-run --quiet", "Hello?")
    assert model.requests == []
    assert "answers inside this process" in shown["text/plain"]
    assert "tool population" in shown["text/plain"]
    assert len(nbagent.runs()) == 0


def test_dry_run_hides_keys_and_shows_text_as_text(
    shell: MagicShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "sk-canary-0123456789abcdef"
    monkeypatch.setenv("LLM_API_KEY", canary)
    shell.user_ns["canary"] = canary
    shell.cell("@nbagent.tool", "def leak(x: int) -> int:", f"    'Uses {canary}.'")
    prompt = "{{ canary }} <img src=x onerror=alert(1)> \u202e {{ '\\x1b[31m' }} $x$"
    shown = dry(shell, "%%agent -m openai:gpt-5.4 --dry-run", prompt)
    agent = Agent("openai:gpt-5.4", tools=[shell.user_ns["leak"]])
    value = agent.dry_run(f"Is it {canary}?")
    for text in (*shown.values(), str(value), repr(value), json.dumps(value.body)):
        assert canary not in text
        assert "[redacted]" in text or text == repr(value)
    assert "with the key of the environment" in shown["text/plain"]
    assert "<img" not in shown["text/html"]
    assert "⟦U+202E⟧" in shown["text/html"]
    assert "\x1b" not in shown["text/plain"] + shown["text/html"]


def test_agent_gives_the_same_as_a_value() -> None:
    def area(city: str) -> float:
        "Area of a city."
        raise AssertionError("a dry run ran a tool")

    with ModelServer() as server:
        agent = Agent("openai:little", base_url=server.url, tools=[area], system="Be brief.")
        value = agent.dry_run("Of Oslo?", temperature=0)
        assert server.requests == []
        assert [message.text for message in value.request.messages] == ["Of Oslo?"]
        assert [tool.name for tool in value.request.tools] == ["area"]
        assert value.request.system_prompt.startswith("Be brief.\n\n")
        assert (value.body["temperature"], value.stream, value.turn_id) == (0, True, "C01")
        with pytest.raises(AttributeError):
            value.url = "other"  # pyright: ignore[reportAttributeAccessIssue]
        run = agent.run("Of Oslo?", temperature=0, max_turns=1)
        assert value.body == server.bodies[0]
        assert value.request == run.request_of("C01")
    image = nbagent.Message(
        role="user", content=(TextPart(text="Look"), ImagePart(url="https://x.test/a.png"))
    )
    again = agent.dry_run("What is it?", messages=[image])
    assert "[image: https://x.test/a.png]" in str(again)
    with pytest.raises(UsageError, match="the prompt is empty"):
        agent.dry_run(" ")


def test_dry_run_shows_old_results_as_short_as_they_are_sent(shell: MagicShell) -> None:
    shell.cell(
        "@nbagent.tool", "def read() -> str:", "    'A long text.'", "    return 'x ' * 9000"
    )
    calls = [Reply(calls=[("read", {})]), Reply(calls=[("read", {})])]
    said = "This model's maximum context length is 3000 tokens."
    refused = refusal("context_length_exceeded", said)
    with ModelServer([*calls, "Read.", refused, "Shorter.", "Again."]) as server:
        line = f"-m openai:small --base-url {server.url} --trim tool-results"
        shell.agent(line, "Read it twice.")
        shell.cell("%%agent --continue", "And now?")
        shown = dry(shell, "%%agent --continue --dry-run", "And then?")
        shell.cell("%%agent --continue", "And then?")
        assert body_of(shown) == server.bodies[-1]
    assert '"trimmed":"200 of 18,000 ' in shown["text/plain"]


@pytest.mark.parametrize("model", ["google:m", "openai:m", "openai-responses:m", "anthropic:m"])
def test_dry_run_shows_no_conversation_and_no_base64_as_parameters(
    shell: MagicShell, model: str
) -> None:
    shell.user_ns["picture"] = Image.effect_noise((64, 64), 90)
    line = f"%%agent --dry-run --tools none --model {model} --base-url http://127.0.0.1:9/v1"
    shown = dry(shell, line, "What is {{ picture }} there?")
    texts = shown["text/plain"] + json.dumps(body_of(shown))
    assert not re.search(r"[A-Za-z0-9+/]{201}", texts)
    facts = re.sub(r"(?s)<details.*", "", shown["text/html"])
    assert "What is" not in facts
