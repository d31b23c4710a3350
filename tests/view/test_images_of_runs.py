"""Images in answers of a run: handle, store, frames, exports, live and stored picture, history."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from image_files import in_base64, png
from PIL import Image

import nbagent
from nbagent import offline
from nbagent.contracts import events
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import Script, call, cut, image, script, step
from nbagent.run import Run
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.view.live import LivePicture
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import picture
from nbagent.view.terminal import PlainPrinter, run_text
from nbagent.view.value_nodes import value_node

SQUARE = png(40, 30)
LABEL = "PNG picture, 40×30 px"
SOURCE = f"data:image/png;base64,{in_base64(SQUARE)}"
SMALL = ImagePart(data=in_base64(png()), alt="small")


def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


def shown_by(value: Any) -> str:
    """HTML of a value's own display."""
    return value._repr_html_()


def bundle_of(value: Any) -> dict[str, str]:
    """Forms of a value's own display."""
    return value._repr_mimebundle_()


def run_of(*steps: Any, prompt: str = "Draw.", told: list[events.Event] | None = None) -> Run:
    model = script(steps)
    agent = nbagent.Agent(model=model, tools=[shout], quiet=True)
    run = agent.run(prompt, on_event=None if told is None else told.append)
    return check_run(run, model)


def test_a_run_has_the_images_of_its_answers_and_so_has_the_run_that_is_opened_again() -> None:
    run = run_of(step(text="A sketch.", images=[SMALL], calls=[call("shout", text="x")]),
                 image(SQUARE, "Here it is."))  # fmt: skip
    assert (run.text, run.ok) == ("Here it is.", True)
    assert [part.content for part in run.images] == [png(), SQUARE]
    assert [part.alt for part in run.turns[1].images] == [LABEL]
    assert nbagent.open_run(run.id).images == run.images
    frame: Any = nbagent.messages()
    assert [*frame.loc[frame["role"] == "assistant", "has_image"]] == [True, True]
    assert not frame.loc[frame["role"] != "assistant", "has_image"].any()


def test_an_image_alone_is_an_answer() -> None:
    run = run_of(image(SQUARE))
    assert (run.text, run.stop_reason, len(run.images)) == ("", "answered", 1)
    assert run.messages[-1].content == run.images
    for shown in (text_of(picture(run.record)), run_text(run.record)):
        assert "no text" not in shown
        assert "1 image" in shown
    assert SOURCE in html(picture(run.record))
    assert "[image: 40 × 30 px, 1 kB]" in run_text(run.record)
    assert "Copy answer" not in html(picture(run.record)), "there is no text to copy"


def test_the_next_request_holds_the_image_and_so_does_a_fork() -> None:
    model = script([image(SQUARE, "One."), "Two.", "Three."])
    run = nbagent.Agent(model=model, quiet=True).run("Draw.")
    child = check_run(run.resume("And now?"))
    assert model.requests[1].messages[1].images == (*run.images,)
    assert (child.text, child.images) == ("Two.", ())
    fork = child.fork("C02", "Other words.")
    assert model.requests[2].messages[1].images == (*run.images,)
    assert fork.messages[1].images == (*run.images,)


def test_the_live_picture_becomes_the_stored_one() -> None:
    told: list[events.Event] = []
    run = run_of(step(text="A.", images=[SMALL], calls=[call("shout", text="x")]),
                 image(SQUARE, "Here."), told=told)  # fmt: skip
    started = next(event for event in told if isinstance(event, events.RunStarted))
    live, written = LivePicture(started.run, clock=lambda: 0.0), list[str]()
    printer = PlainPrinter(written.append)
    last: Any = None
    for event in told:
        live.update(event)
        last = live.draw_changes()
        printer.handle(event)
    stored = nbagent.open_run(run.id).record
    assert last == [["done", picture(stored)]]
    assert live.record() == stored
    assert html(picture(stored)).count("<img") == 2
    assert f"C02  [image: {LABEL}" in "".join(written)


def test_texts_and_images_stand_in_the_order_in_which_they_came() -> None:
    run = run_of("x")
    content = (TextPart(text="First **a**."), SMALL, TextPart(text="Then b."), SMALL)
    turn = run.turns[0]
    assert turn.response
    message = Message(role="assistant", content=content)
    response = turn.response.model_copy(update={"message": message})
    record = run.record.model_copy(
        update={"turns": (turn.model_copy(update={"response": response}),)}
    )
    drawn = html(picture(record))
    places = [drawn.index("First <strong"), drawn.index("<img"), drawn.rindex("Then b."),
              drawn.rindex("<img")]  # fmt: skip
    assert places == sorted(places)


def test_every_export_has_the_image_or_says_that_it_is_there(tmp_path: Path) -> None:
    run = run_of(image(SQUARE, "Here it is."))
    assert f"({SOURCE})" in run.export("md")
    page = run.export("html", tmp_path / "run.html")
    assert page.count(f'src="{SOURCE}"') == 1
    assert "<script" not in page
    lines = [json.loads(line) for line in run.export("jsonl").splitlines()]
    parts = [line["content"] for line in lines if line["type"] == "message"][1]
    assert (parts[1]["type"], parts[1]["data"]) == ("image", in_base64(SQUARE))
    example = json.loads(run.export("openai"))["messages"][-1]["content"]
    assert example == f"Here it is.\n\n[image: {LABEL}; not repeated here]"
    assert in_base64(SQUARE) in run.export("otel", content=True)
    assert in_base64(SQUARE) not in run.export("otel")
    assert from_notebook_json(json.loads(json.dumps(to_notebook_json(run.record)))) == run.record


def test_a_run_is_played_again_with_its_images() -> None:
    run = run_of(image(SQUARE, "Here."))
    again = nbagent.Agent(model=offline.replay(run), quiet=True).run("Draw.")
    assert again.images == run.images
    names: dict[str, Any] = {}
    exec(run.to_script(), names)
    names["test_draw"]()


def test_what_came_before_a_cut_is_kept() -> None:
    broken = cut("Here")
    run = run_of(step(text="Here", images=[SMALL], error=broken.error))
    assert (run.phase, run.text, run.images) == ("Failed", "Here", (SMALL,))


HOSTILE: dict[str, ImagePart] = {
    "SVG": ImagePart(media_type="image/svg+xml", data=in_base64(b"<svg onload=alert(1)>"), alt="v"),
    "page that is named PNG": ImagePart(data=in_base64(b"<script>alert(1)</script>"), alt="v"),
    "quotes in the data": ImagePart(data='x" onerror="alert(1)', alt="v"),
    "quotes in the media type": ImagePart(media_type='image/png" onerror="alert(1)', data="AA=="),
    "mark-up in the name": ImagePart(data="AAAA", alt="<img src=x onerror=alert(1)>"),
    "address": ImagePart(url="https://example.org/spy.png"),
    "address of a script": ImagePart(url="javascript:alert(1)"),
    "too many pixels": ImagePart(data=in_base64(png(1)[:16] + b"\xff" * 8 + png(1)[24:]), alt="v"),
    "4 MB": ImagePart(data=in_base64(png()[:-16] + b"\0" * 4_000_000 + png()[-16:]), alt="v"),
}


@pytest.mark.parametrize("part", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_image_is_a_line_of_text_in_every_form(part: ImagePart) -> None:
    run = run_of(step(text="Here.", images=[part]))
    forms = [html(picture(run.record)), run.export("html"), shown_by(run.images)]
    forms.append(html(value_node(run.messages[-1]) or ""))
    forms.append(shown_by(run.answer))
    for shown in forms:
        assert "<img" not in shown
        assert "<script" not in shown
        assert "<svg" not in shown
        assert "image" in shown
        assert ("run.images has it" in shown) == bool(part.data)
    for name, data in bundle_of(part).items():
        assert name in ("text/plain", "image/png")
        assert '"' not in data or name == "text/plain"
    assert len(repr(run.images)) < 400
    RunRecord.model_validate_json(run.record.model_dump_json())


def test_the_answer_and_the_images_show_themselves() -> None:
    run = run_of(image(SQUARE, "Here."))
    for value in (run.answer, run.images):
        assert shown_by(value).count(SOURCE) == 1
    assert bundle_of(run.images[0])["image/png"] == in_base64(SQUARE)
    assert repr(run.images[0]) == f"<ImagePart '{LABEL}', {len(SQUARE)} bytes>"
    empty = run_of("No.").images
    assert (empty, len(empty)) == ((), 0)


@pytest.mark.parametrize("value", [b"no image", b"<svg/>", "text", 7, SQUARE[:40]])
def test_a_script_answers_with_images_only(value: object) -> None:
    with pytest.raises(UsageError, match="is no image; give the bytes of a PNG"):
        image(value)


def test_a_figure_and_an_image_part_are_images_of_a_script() -> None:
    drawn = image(Image.new("RGB", (8, 8), "red"))
    assert [part.media_type for part in drawn.images] == ["image/png"]
    assert image(SMALL).images == (SMALL,)
    assert base64.b64decode(SMALL.data or "") == SMALL.content


def test_a_stream_of_the_client_has_the_image_as_a_chunk() -> None:
    model = Script([image(SQUARE, "Here.")], name="drawing")
    offline.scripts["drawing"] = model

    async def chunks() -> list[ImagePart]:
        async with nbagent.client("offline:drawing") as client:
            return [chunk.image async for chunk in client.chat_stream("x") if chunk.image]

    assert [part.content for part in asyncio.run(chunks())] == [SQUARE]
