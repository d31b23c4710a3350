"""Images and files on the Chat Completions wire: in prompts, and out of tool results."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from engine.laws import check_run
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.chat import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from nbagent.providers.openai.request import Dialect, HistoryEncoder, Toolset

RED = ImagePart(data="UkVE", alt="red")
BLUE = ImagePart(data="QkxVRQ==", media_type="image/jpeg")
PDF = FilePart(name="a.pdf", media_type="application/pdf", data="UERG")
DIALECT = Dialect.of("http://h:1/v1")


def encoded(*messages: Message) -> list[Any]:
    return json.loads(HistoryEncoder(DIALECT, "m", Toolset(())).encode("", messages))


def user(*parts: Part) -> Message:
    return Message(role="user", content=parts)


def asked(*ids: str) -> Message:
    calls = [ToolCall(id=id, name="fs.read", arguments={}, arguments_raw="{}") for id in ids]
    return Message(role="assistant", tool_calls=tuple(calls))


def result(id: str, *parts: Part) -> Message:
    text = TextPart(text='{"ok":true,"data":"[image 1: red]"}')
    return Message(role="tool", tool_call_id=id, name="fs.read", content=(text, *parts))


def image(part: ImagePart) -> dict[str, Any]:
    url = part.url or f"data:{part.media_type};base64,{part.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def label(id: str) -> dict[str, str]:
    return {"type": "text", "text": f"Given back by fs__read (call {id}):"}


def test_a_prompt_of_plain_text_is_a_text() -> None:
    assert encoded(user(TextPart(text="a"), TextPart(text="b")))[0]["content"] == "ab"


def test_images_of_a_prompt_stand_where_they_were_put() -> None:
    far = ImagePart(url="https://example.org/a.png")
    (sent,) = encoded(user(TextPart(text="Left:"), RED, TextPart(text="right:"), BLUE, far))
    texts = [{"type": "text", "text": text} for text in ("Left:", "right:")]
    assert sent["content"] == [texts[0], image(RED), texts[1], image(BLUE), image(far)]


def test_a_text_file_is_text_and_another_file_is_a_file() -> None:
    data = base64.b64encode("a;b\nü;1".encode()).decode()
    table = FilePart(name="t.csv", media_type="text/csv; charset=utf-8", data=data)
    broken = FilePart(name="x.txt", media_type="text/plain", data="/w==")
    (sent,) = encoded(user(table, PDF, broken))
    assert sent["content"] == [
        {"type": "text", "text": "File t.csv:\na;b\nü;1"},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,UERG"},
        },
        {"type": "file", "file": {"filename": "x.txt", "file_data": "data:text/plain;base64,/w=="}},
    ]


def test_images_of_tool_results_follow_all_tool_messages_of_the_turn() -> None:
    sent = encoded(
        user(TextPart(text="Go.")),
        asked("c1", "c2", "c3"),
        result("c1", RED),
        result("c2"),
        result("c3", BLUE, PDF),
        Message.of("assistant", "Nice."),
        user(TextPart(text="And?")),
    )
    roles = [message["role"] for message in sent]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "user", "assistant", "user"]
    assert [message["tool_call_id"] for message in sent[2:5]] == ["c1", "c2", "c3"]
    for message in sent[2:5]:
        assert json.loads(message["content"]) == {"ok": True, "data": "[image 1: red]"}
    attached = sent[5]["content"]
    assert attached[:4] == [label("c1"), image(RED), label("c3"), image(BLUE)]
    assert attached[4]["type"] == "file"


def test_each_turn_has_its_own_images_behind_its_results() -> None:
    sent = encoded(asked("c1"), result("c1", RED), asked("c2"), result("c2", BLUE))
    assert [message["role"] for message in sent] == ["assistant", "tool", "user"] * 2
    assert sent[2]["content"][1] == image(RED)
    assert sent[5]["content"][1] == image(BLUE)


def test_a_result_without_images_has_no_message_behind_it() -> None:
    assert len(encoded(asked("c1"), result("c1"), user(TextPart(text="So?")))) == 3


def test_a_run_with_pictures_keeps_its_history_and_extends_its_requests() -> None:
    def draw(colour: str) -> Any:
        """Draw."""
        return RED if colour == "red" else "no picture"

    calls = [("draw", {"colour": "red"}), ("draw", {"colour": "green"})]
    with ModelServer([Reply(calls=calls), Reply(calls=calls[:1]), "Pretty.", "Yes."]) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[draw])
        run = check_run(agent.run("Go."))
        assert run.ok, run.error
        check_run(run.resume("Really?"))
    kept = [message.role for message in run.record.messages]
    assert kept == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    bodies = server.bodies
    for earlier, later in pairwise(bodies):
        assert json.dumps(later["messages"]).startswith(json.dumps(earlier["messages"])[:-1])
    roles = [message["role"] for message in bodies[2]["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    assert json.dumps(bodies[-1]).count("data:image/png;base64,UkVE") == 2


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_model_without_eyes_ends_the_run_with_one_line_and_the_next_goes_on(status: int) -> None:
    def draw() -> Any:
        """Draw."""
        return RED

    error = {"error": {"message": "No endpoints found that support image input"}}
    refused = Reply(status=status, error=error)
    with ModelServer([Reply(calls=[("draw", {})]), refused, "I see."]) as server:
        agent = nbagent.Agent("openai:blind", base_url=server.url, tools=[draw])
        run = check_run(agent.run("Go."))
        assert run.error
        assert run.error.code == "LLM_HTTP_ERROR"
        assert run.error.message.startswith("blind takes no images or files here; go on with")
        assert "\n" not in run.error.message
        assert len(server.bodies) == 2
        assert check_run(run.resume()).text == "I see."
