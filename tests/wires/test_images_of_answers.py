"""Images in answers and audio in prompts on every wire: which are kept, what goes back, limits."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from image_files import in_base64, png
from servers.dialects import ANTHROPIC, CHAT, GOOGLE, OLLAMA, RESPONSES, completion, delta
from servers.player import Play
from wires import anthropic_cases, chat_cases, google_cases, ollama_cases, responses_cases
from wires.chat_requests import called, result, user
from wires.harness import JSON, AnswerCase, WireSetup, World, ask, asked_next, matches
from wires.sdk_types import OFFICIAL

from nbagent.contracts.corrections import AnswerRestarted
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import FilePart, ImagePart, Message, TextPart
from nbagent.contracts.model import ChatResponse

PNG = in_base64(png())
JPEG = in_base64(b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x03\x00\x04" + b"\0" * 20 + b"\xff\xd9")
GIF = in_base64(b"GIF89a\x04\x00\x03\x00" + b"\0" * 9 + b";")
WEBP = in_base64(b"RIFF\x16\0\0\0WEBPVP8X" + b"\0" * 8 + b"\x03\0\0\x02\0\0")
LABEL = "PNG picture, 4×3 px"
IN_WORDS = f"[image: {LABEL}; not repeated here]"
SIGNED: JSON = {"thoughtSignature": "QUJD"}
DUMMY = {"thoughtSignature": "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="}

Parts = list[str | tuple[str, str]]
"""Texts, and images as data and media type."""


def _chat_parts(parts: Parts) -> list[JSON]:
    return [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": f"data:{part[1]};base64,{part[0]}"}}
        for part in parts
    ]  # fmt: skip


def chat(parts: Parts) -> tuple[bytes, Any]:
    """Images beside the text, as OpenRouter sends them."""
    events: list[Any] = []
    for made in _chat_parts(parts):
        fields: JSON = (
            {"content": made["text"]} if "text" in made else {"content": "", "images": [made]}
        )
        events.append(delta(**fields))
    text = "".join(part for part in parts if isinstance(part, str))
    images = [made for made in _chat_parts(parts) if "text" not in made]
    return CHAT.stream(*events, delta("stop")), completion(text, images=images)


def chat_texts(parts: Parts) -> tuple[bytes, Any]:
    """Images beside the text as plain data URLs."""
    text = "".join(part for part in parts if isinstance(part, str))
    images = [f"data:{part[1]};base64,{part[0]}" for part in parts if not isinstance(part, str)]
    events = [delta(content=text), delta(content="", images=images), delta("stop")]
    return CHAT.stream(*events), completion(text, images=images)


def chat_list(parts: Parts) -> tuple[bytes, Any]:
    """Images among the parts of the content."""
    events = [delta(content=[made]) for made in _chat_parts(parts)]
    body = completion(None)
    body["choices"][0]["message"]["content"] = _chat_parts(parts)
    return CHAT.stream(*events, delta("stop")), body


def google(parts: Parts) -> tuple[bytes, Any]:
    made: list[JSON] = [
        {"text": part} if isinstance(part, str)
        else {"inlineData": {"mimeType": part[1], "data": part[0]}, **SIGNED}
        for part in parts
    ]  # fmt: skip
    events = [GOOGLE.chunk(part) for part in made]
    return GOOGLE.stream(*events, GOOGLE.chunk(end="STOP")), GOOGLE.chunk(*made, end="STOP")


def responses(parts: Parts) -> tuple[bytes, Any]:
    items = [
        RESPONSES.message(part, id=f"msg_{n}") if isinstance(part, str)
        else {"type": "image_generation_call", "id": f"ig_{n}", "status": "completed",
              "result": part[0], "revised_prompt": "A square."}
        for n, part in enumerate(parts)
    ]  # fmt: skip
    stream = RESPONSES.stream(*RESPONSES.events(*items), RESPONSES.last(*items))
    return stream, RESPONSES.response(*items)


def anthropic(parts: Parts) -> tuple[bytes, Any]:
    blocks: list[JSON] = [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image",
              "source": {"type": "base64", "media_type": part[1], "data": part[0]}}
        for part in parts
    ]  # fmt: skip
    return ANTHROPIC.stream(*ANTHROPIC.events(*blocks)), ANTHROPIC.message(*blocks)


def ollama(parts: Parts) -> tuple[bytes, Any]:
    lines = [
        {"role": "assistant", "content": part} if isinstance(part, str)
        else {"role": "assistant", "content": "", "images": [part[0]]}
        for part in parts
    ]  # fmt: skip
    text = "".join(part for part in parts if isinstance(part, str))
    images = [part[0] for part in parts if not isinstance(part, str)]
    stream = OLLAMA.stream(*map(OLLAMA.line, lines), OLLAMA.last())
    return stream, OLLAMA.last({"content": text, "images": images})


@dataclass(frozen=True)
class Server:
    """A wire, how it sends parts of an answer, and what goes back to it for "See: " and one."""

    wire: WireSetup
    send: Callable[[Parts], tuple[bytes, Any]]
    back: list[Any]


_WORDS = [..., {"role": "assistant", "content": f"See: \n\n{IN_WORDS}"}]
INLINE = {"inlineData": {"mimeType": "image/png", "data": PNG}}
SERVERS = {
    "chat": Server(chat_cases.WIRE, chat, _WORDS),
    "chat, plain texts": Server(chat_cases.WIRE, chat_texts, _WORDS),
    "chat, content": Server(chat_cases.WIRE, chat_list, _WORDS),
    "google": Server(
        google_cases.WIRE,
        google,
        [..., {"role": "model", "parts": [{"text": "See: "}, {**INLINE, **SIGNED}]}],
    ),
    "responses": Server(
        responses_cases.WIRE,
        responses,
        [..., {"type": "message", "id": "msg_0"},
         {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG}],
    ),
    "anthropic": Server(
        anthropic_cases.WIRE,
        anthropic,
        [..., {"role": "assistant",
               "content": [{"type": "text", "text": f"See: \n\n{IN_WORDS}"}]}],
    ),
    "ollama": Server(ollama_cases.WIRE, ollama, _WORDS),
}  # fmt: skip
every_server = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)


def answer_of(
    world: World, server: Server, parts: Parts, *, stream: bool
) -> tuple[ChatResponse, list[str], list[ImagePart]]:
    """The response, its notices and its streamed images."""
    streamed, body = server.send(parts)
    case = AnswerCase("image", stream=streamed, body=json.dumps(body).encode())
    chunks, answer = world.answer(server.wire, case, stream=stream)
    assert isinstance(answer, ChatResponse), f"an error: {answer}"
    notices = [chunk.notice.text for chunk in chunks if chunk.notice]
    return answer, notices, [chunk.image for chunk in chunks if chunk.image]


@every_server
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_image_of_an_answer_is_kept_at_its_place_and_goes_back_as_the_server_takes_it(
    world: World, server: Server, stream: bool
) -> None:
    answer, notices, streamed = answer_of(
        world, server, ["See: ", (PNG, "image/png")], stream=stream
    )
    kept = ImagePart(media_type="image/png", data=PNG, alt=LABEL)
    assert answer.message.content == (TextPart(text="See: "), kept)
    assert (answer.finish_reason, notices) == ("stop", [])
    assert not stream or streamed == [kept]
    assert PNG not in json.dumps(answer.message.raw), "stored once"
    request = asked_next(ask(), answer)
    request = request.model_copy(update={"messages": (*request.messages, user(TextPart(text="?")))})
    _, body = world.wire_request(server.wire, request)
    matches([*server.back, ...], body[server.wire.conversation])
    assert server.wire.name not in OFFICIAL or OFFICIAL[server.wire.name](body) == ""


@every_server
def test_an_image_alone_is_an_answer_and_is_named_to_every_other_model(
    world: World, server: Server
) -> None:
    answer, _, _ = answer_of(world, server, [(PNG, "image/png")], stream=True)
    assert answer.message.content == (ImagePart(media_type="image/png", data=PNG, alt=LABEL),)
    assert answer.finish_reason == "stop"
    for other in SERVERS.values():
        if other.wire is server.wire:
            continue
        request = asked_next(ask(), answer)
        _, body = world.wire_request(other.wire, request)
        sent = json.dumps(body, ensure_ascii=False)
        assert (IN_WORDS in sent, PNG in sent) == (True, False)
        assert other.wire.name not in OFFICIAL or OFFICIAL[other.wire.name](body) == ""


KEPT = {
    "JPEG that is named PNG": (JPEG, "image/png", "image/jpeg"),
    "GIF": (GIF, "image/gif", "image/gif"),
    "WebP": (WEBP, "image/webp", "image/webp"),
    "base64 in lines": (f"{PNG[:60]}\n{PNG[60:]}\n", "image/png", ""),
    "base64 for URLs, without its end": (
        PNG.translate(str.maketrans("+/", "-_")).rstrip("="), "image/png", ""),
}  # fmt: skip
"""Data and media type as they are sent, and the media type that is kept."""


@every_server
@pytest.mark.parametrize(("data", "named", "kept"), KEPT.values(), ids=KEPT)
def test_the_bytes_say_what_an_image_is(
    world: World, server: Server, data: str, named: str, kept: str
) -> None:
    answer, notices, _ = answer_of(world, server, ["a", (data, named)], stream=True)
    (image,) = answer.message.images
    assert image.media_type == (kept or "image/png")
    assert image.content == base64.b64decode(JPEG if kept == "image/jpeg" else {
        "image/gif": GIF, "image/webp": WEBP}.get(kept, PNG))  # fmt: skip
    assert notices == []


NO_FILE = "no complete PNG, JPEG, GIF or WebP file"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
LEFT_OUT: dict[str, tuple[str, str, str]] = {
    "SVG": (in_base64(SVG), "image/svg+xml", NO_FILE),
    "SVG that is named PNG": (in_base64(SVG), "image/png", NO_FILE),
    "page that is named PNG": (in_base64(b"<!DOCTYPE html><script>"), "image/png", NO_FILE),
    "program that is named PNG": (in_base64(b"MZ\x90\x00" * 20), "image/png", NO_FILE),
    "half a PNG": (in_base64(png()[:60]), "image/png", NO_FILE),
    "nothing but the start of a PNG": (in_base64(b"\x89PNG\r\n\x1a\n"), "image/png", NO_FILE),
    "broken base64": (f"{PNG[:40]}!!{PNG[40:]}", "image/png", "not valid base64"),
    "base64 with a length that none has": (f"{PNG.rstrip('=')}AAAAA"[:41], "image/png", "base64"),
}
"""Data, media type, and words of the notice."""


@every_server
@pytest.mark.parametrize(("data", "named", "words"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_no_image_is_left_out_with_one_notice_and_the_text_stays(
    world: World, server: Server, data: str, named: str, words: str
) -> None:
    parts: Parts = ["before ", (data, named), (data, named), "behind"]
    answer, notices, streamed = answer_of(world, server, parts, stream=True)
    assert answer.message.text.split() == ["before", "behind"]
    assert (answer.message.images, streamed, answer.finish_reason) == ((), [], "stop")
    (notice,) = notices
    assert words in notice
    assert data not in json.dumps(answer.model_dump(mode="json")), "not stored in another form"


NUMBERED = ("google", "responses")
"""Servers to which an image goes back at its place, by its number in the message."""


@pytest.mark.parametrize("name", NUMBERED)
def test_an_image_goes_back_at_its_place_behind_one_that_is_left_out_and_one_that_is_repeated(
    world: World, name: str
) -> None:
    server = SERVERS[name]
    sent: Parts = [(in_base64(SVG), "image/svg+xml"), (PNG, "image/png"), (PNG, "image/png")]
    answer, _, streamed = answer_of(
        world, server, [*sent, "and ", (JPEG, "image/jpeg")], stream=True
    )
    assert [image.data for image in streamed] == [PNG, JPEG]
    assert answer.message.images == tuple(streamed)
    _, body = world.wire_request(server.wire, asked_next(ask(), answer))
    conversation = json.dumps(body[server.wire.conversation])
    assert conversation.index(PNG) < conversation.index("and ") < conversation.index(JPEG)
    assert not {"imageNumber", "image_number"} & set(conversation.split('"')), "of the record only"


def test_an_answer_that_begins_again_has_only_the_images_of_its_second_beginning(
    world: World,
) -> None:
    void, _ = anthropic(["Half ", (PNG, "image/png")])
    whole, _ = anthropic(["Whole ", (JPEG, "image/jpeg")])
    begun, _, _ = void.rpartition(b"event: message_delta")
    case = AnswerCase("image", stream=begun + whole, body=b"")
    chunks, answer = world.answer(anthropic_cases.WIRE, case, stream=True)
    assert isinstance(answer, ChatResponse), f"an error: {answer}"
    images = [image.data for image in answer.message.images]
    assert (answer.message.text, images) == ("Whole ", [JPEG])
    assert [chunk.correction for chunk in chunks if chunk.correction] == [AnswerRestarted()]


@every_server
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_image_of_60_mb_costs_a_notice_and_no_text(
    world: World, server: Server, stream: bool
) -> None:
    huge = PNG[:40] + "A" * 80_000_000
    parts: Parts = ["before ", (huge, "image/png"), "behind"]
    if server.send is responses:
        # The last event repeats all items: more than any answer may have on the connection.
        parts = parts if not stream else ["before ", (huge[:60_000_000], "image/png"), "behind"]
    answer, notices, _ = answer_of(world, server, parts, stream=stream)
    assert answer.message.text.split() == ["before", "behind"]
    assert answer.message.images == ()
    assert stream is False or ["more than 10 MB" in text for text in notices] == [True]
    assert len(answer.model_dump_json()) < 100_000


def test_the_same_image_twice_is_one_and_more_than_sixteen_are_said(world: World) -> None:
    twice: Parts = [(PNG, "image/png"), (PNG, "image/png")]
    answer, _, streamed = answer_of(world, SERVERS["chat"], twice, stream=True)
    assert (len(answer.message.images), len(streamed)) == (1, 1)
    many: Parts = [(in_base64(png(n)), "image/png") for n in range(1, 20)]
    answer, notices, _ = answer_of(world, SERVERS["google"], many, stream=True)
    assert len(answer.message.images) == 16
    assert notices == ["The answer has more than 16 images; the others are left out."]


GEMINI_ONLY: dict[str, tuple[JSON, int, str]] = {
    "a draft among the thoughts": ({**INLINE, "thought": True}, 0, ""),
    "speech": (
        {"inlineData": {"mimeType": "audio/L16;rate=24000", "data": "AAAA"}},
        0,
        "audio/L16",
    ),
    "an address": (
        {"fileData": {"mimeType": "image/png", "fileUri": "https://x.org/a.png"}},
        1,
        "",
    ),
}


@pytest.mark.parametrize(("part", "images", "words"), GEMINI_ONLY.values(), ids=GEMINI_ONLY)
def test_other_files_of_gemini_are_left_out_and_addresses_are_not_loaded(
    world: World, part: JSON, images: int, words: str
) -> None:
    stream = GOOGLE.stream(
        GOOGLE.chunk({"text": "x"}), GOOGLE.chunk(part), GOOGLE.chunk(end="STOP")
    )
    chunks, answer = world.answer(google_cases.WIRE, AnswerCase("f", stream=stream), stream=True)
    assert isinstance(answer, ChatResponse)
    notices = [chunk.notice.text for chunk in chunks if chunk.notice]
    assert (answer.message.text, len(answer.message.images)) == ("x", images)
    assert [words in text for text in notices] == ([True] if words else [])
    assert len(world.player.asked) == 1


def test_an_image_goes_to_another_model_of_the_same_server_without_its_signature(
    world: World,
) -> None:
    answer, _, _ = answer_of(world, SERVERS["google"], ["See: ", (PNG, "image/png")], stream=True)
    request = asked_next(ask(), answer)
    for model, signature in (("gemini-2.5-flash", {}), ("gemini-3-pro-image", DUMMY)):
        _, body = world.wire_request(google_cases.WIRE, request.model_copy(update={"model": model}))
        sent = body["contents"][1]["parts"]
        assert sent == [{"text": "See: "}, {**INLINE, **signature}]


@pytest.mark.parametrize("number", [-1, 7, "0", None, True])
def test_a_number_of_an_image_that_is_not_there_is_sent_as_nothing(
    world: World, number: Any
) -> None:
    answer, _, _ = answer_of(world, SERVERS["google"], ["See: ", (PNG, "image/png")], stream=True)
    raw = json.loads(json.dumps(answer.message.raw))
    raw["parts"][1]["imageNumber"] = number
    message = answer.message.model_copy(update={"raw": raw})
    request = ask(messages=(Message.of("user", "hi"), message))
    _, body = world.wire_request(google_cases.WIRE, request)
    assert body["contents"][1]["parts"] == [{"text": "See: "}]


# The other direction: images and recordings of the person.

WIRES = {server.wire.name: server.wire for server in SERVERS.values()}
every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
REFUSED: dict[str, tuple[ImagePart, str]] = {
    "60 MB": (ImagePart(data="A" * 80_000_000, alt="sea"), "'sea' has 60 MB, and at most 20"),
    "page": (ImagePart(data=in_base64(b" <!DOCTYPE html>")), "is no image"),
    "SVG": (ImagePart(data=in_base64(SVG), media_type="image/svg+xml"), "is no image"),
    "program": (ImagePart(data=in_base64(b"\x7fELF\x02")), "is no image"),
    "broken base64": (ImagePart(data="A"), "not base64"),
}


@every_wire
@pytest.mark.parametrize(("part", "words"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_no_image_is_refused_before_anything_is_sent(
    world: World, wire: WireSetup, part: ImagePart, words: str
) -> None:
    world.player.play([Play(b"{}")])
    for message in (user(part), result("c1", part)):
        with pytest.raises(ModelError, match=words) as caught:
            world.chat(wire, ask(messages=(Message.of("user", "hi"), called("c1"), message)))
        assert (caught.value.code, len(caught.value.message) < 400) == ("LLM_HTTP_ERROR", True)
    assert world.player.asked == []


@every_wire
def test_an_image_of_a_person_gets_the_media_type_of_its_bytes(
    world: World, wire: WireSetup
) -> None:
    _, body = world.wire_request(wire, ask(messages=(user(ImagePart(data=JPEG)),)))
    sent = json.dumps(body)
    assert JPEG in sent
    assert "image/png" not in sent


WAV = FilePart(name="a.wav", media_type="audio/x-wav", data=in_base64(b"RIFF\x24\0\0\0WAVEfmt "))
MP3 = FilePart(name="a.mp3", media_type="audio/mpeg", data=in_base64(b"ID3\x04\0\0"))
UNNAMED = FilePart(name="a", data=in_base64(b"\xff\xfb\x90\x00" * 4))
OGG = FilePart(name="a.ogg", media_type="audio/ogg; codecs=opus", data=in_base64(b"OggS\0"))
NO_AUDIO = "takes no audio, so '{0}' was not sent; Gemini models .* openai:gpt-audio"
CHAT_AUDIO = {
    "WAV": (WAV, "wav"),
    "MP3": (MP3, "mp3"),
    "MP3 without a media type": (UNNAMED, "mp3"),
    "MP3 that is called WAV": (MP3.model_copy(update={"media_type": "audio/wav"}), "mp3"),
}


@pytest.mark.parametrize(("part", "form"), CHAT_AUDIO.values(), ids=CHAT_AUDIO)
def test_audio_goes_to_chat_as_input_audio(world: World, part: FilePart, form: str) -> None:
    _, body = world.wire_request(WIRES["chat"], ask(messages=(user(part),)))
    sent = {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    assert body["messages"][0]["content"] == [sent]
    assert OFFICIAL["chat"](body) == "" if "chat" in OFFICIAL else True


@pytest.mark.parametrize(
    ("part", "named"), [(WAV, "audio/x-wav"), (OGG, OGG.media_type), (UNNAMED, "audio/mp3")]
)
def test_audio_goes_to_gemini_as_inline_data(world: World, part: FilePart, named: str) -> None:
    _, body = world.wire_request(WIRES["google"], ask(messages=(user(part),)))
    assert body["contents"][0]["parts"] == [{"inlineData": {"mimeType": named, "data": part.data}}]


NOT_TAKEN = [
    *((name, part, NO_AUDIO.format(part.name))
      for name in ("responses", "anthropic", "ollama") for part in (WAV, UNNAMED, OGG)),
    ("chat", OGG, "as WAV or MP3, and 'a.ogg' is audio/ogg; convert it, or give it to a Gemini"),
    *(("chat", WAV.model_copy(update={"data": in_base64(data), "media_type": media_type}), words)
      for media_type in ("audio/wav", "audio/mpeg")
      for data, words in ((b"OggS\0\2", "audio/ogg"), (b"fLaC\0", "audio/flac"),
                          (b"FORM\0\0\0\1AIFF", "audio/aiff"), (b"junk", "audio/unknown"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part", "words"), NOT_TAKEN)
def test_audio_that_a_wire_does_not_take_is_one_clear_error(
    world: World, name: str, part: FilePart, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        world.wire_request(WIRES[name], ask(messages=(user(part),)))


@every_wire
def test_a_file_that_is_no_audio_goes_as_before(world: World, wire: WireSetup) -> None:
    pdf = FilePart(name="a.pdf", media_type="application/pdf", data=in_base64(b"\xff\xfb%PDF"))
    if wire.name == "ollama":
        with pytest.raises(ModelError, match=r"does not accept the file 'a\.pdf'"):
            world.wire_request(wire, ask(messages=(user(pdf),)))
        return
    _, body = world.wire_request(wire, ask(messages=(user(pdf),)))
    assert "input_audio" not in json.dumps(body)
    assert pdf.data in json.dumps(body)
