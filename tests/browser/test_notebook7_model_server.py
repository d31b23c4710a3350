"""The quickstart's first cells in Notebook 7, against a model server on loopback."""

from __future__ import annotations

import json
from typing import Any

from jupyter_apps import Server, opened
from playwright.sync_api import Browser
from servers.model_server import ModelServer, Reply
from test_lab_quickstart import QUICKSTART


def first_cells(url: str) -> list[str]:
    """The cells up to the second prompt, with the model of a server."""
    cells = json.loads(QUICKSTART.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    last = next(n for n, source in enumerate(sources) if source.startswith("%%agent --continue"))
    model = f"%%agent --model openai:little --base-url {url}"
    return [source.replace("%%agent", model, 1) for source in sources[: last + 1]]


def test_the_first_cells_run_against_a_real_server(chromium: Browser, server: Server) -> None:
    calls = [("population", {"city": "Oslo"}), ("population", {"city": "Bergen"})]
    answers = [
        Reply(reasoning="Two calls will do.", calls=calls, between_s=0.01),
        Reply(text="**Oslo** is larger: 717,710 against 291,940.", between_s=0.02),
        Reply(text="By 425,770 people.", between_s=0.02),
    ]
    with ModelServer(answers) as models:
        cells = first_cells(models.url)
        name = server.write("served.ipynb", cells)
        with opened(chromium, server, name, "notebook") as notebook:
            notebook.run(*range(len(cells)))
            assert [notebook.error(n) for n in range(len(cells))] == [""] * len(cells)
            asked, went_on = (n for n, source in enumerate(cells) if source.startswith("%%agent"))
            run = notebook.output(asked).locator(".nba-run")
            assert run.locator(".nba-chip").inner_text() == "openai:little"
            assert run.locator(".nba-offline").count() == 0
            assert run.locator(".nba-answer").inner_text() == (
                "Oslo is larger: 717,710 against 291,940."
            )
            turn = run.locator(".nba-turn").first
            turn.locator("summary").first.click()
            assert turn.locator(".nba-think").inner_text() == "Two calls will do."
            assert turn.locator(".nba-card").count() == 2
            assert "By 425,770 people." in notebook.text(went_on)
            assert notebook.console == []
    sent: list[Any] = models.bodies
    assert [body["model"] for body in sent] == ["little"] * 3
    assert [message["role"] for message in sent[2]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert sent[2]["messages"][-1]["content"] == "And by how much?"
