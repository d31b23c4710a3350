"""Draws the README's pictures in JupyterLab, light and dark: a run, the panel, a question.

    python tests/browser/pictures.py [FOLDER]

writes run-view-light.png, panel-light.png, question-light.png and their dark forms to
notebooks/images, or to FOLDER.
They are made by hand and looked at before they are committed; no test compares pixels.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Locator, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from jupyter_apps import Notebook, Server, opened

_ROOT = Path(__file__).parents[2]
_NOTEBOOKS = _ROOT / "notebooks"
_FIRST_RUN = 3
"""The code cell of the quickstart, from 0."""
_PANEL = 2
"""The code cell of the panel's notebook."""
_DESK, _QUESTION = 1, 6
"""The code cells of the tools' notebook that make the desk, and in which a call needs approval."""
_MARGIN_PX = 12


def draw(browser: Browser, server: Server, source: str, theme: str) -> bytes:
    """A PNG of what a notebook is there to show."""
    name = f"{source}-{theme}/{source}.ipynb"
    (server.folder / name).parent.mkdir()
    shutil.copy(_NOTEBOOKS / f"{source}.ipynb", server.folder / name)
    word = "Light" if theme == "light" else "Dark"
    server.setting("@jupyterlab/apputils-extension:themes", {"theme": f"JupyterLab {word}"})
    with opened(browser, server, name, dark=theme == "dark", size=(1240, 1100)) as notebook:
        shown = {"panel": _panel, "quickstart": _first_run, "tools": _question}[source]
        return _framed(shown(notebook))


def _first_run(notebook: Notebook) -> Locator:
    """The first run with its first turn unfolded."""
    notebook.run(*range(_FIRST_RUN + 1))
    run = notebook.output(_FIRST_RUN).locator(".nba-run")
    run.locator(".nba-turn summary").first.click()
    return run


def _panel(notebook: Notebook) -> Locator:
    """The panel after one prompt, with the next one typed."""
    notebook.run(*range(_PANEL + 1))
    panel = notebook.output(_PANEL).locator(".nba-panel")
    box = panel.get_by_role("textbox", name="Prompt", exact=True)
    box.click()
    notebook.page.keyboard.type("Which of Oslo and Bergen is larger?")
    notebook.page.keyboard.press("Control+Enter")
    panel.locator(".nba-phase:has-text('Answered')").wait_for()
    notebook.page.keyboard.type("And by how much?")
    notebook.page.wait_for_timeout(1500)
    return panel


def _question(notebook: Notebook) -> Locator:
    notebook.run(0, _DESK)
    notebook.start(_QUESTION)
    run = notebook.output(_QUESTION).locator(".nba-run")
    run.get_by_role("button", name="Allow once").wait_for()
    notebook.page.wait_for_timeout(1000)
    return run


def _framed(shown: Locator) -> bytes:
    shown.evaluate("node => node.scrollIntoView({ block: 'center' })")
    shot = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    # The frame has the page's colour: that outside of the round corner.
    framed = Image.new("RGB", (shot.width + 2 * _MARGIN_PX, shot.height + 2 * _MARGIN_PX))
    framed.paste(shot.crop((0, 0, 1, 1)).resize(framed.size))
    framed.paste(shot, (_MARGIN_PX, _MARGIN_PX))
    small = io.BytesIO()
    framed.save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "notebooks" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    server = Server(delay_ms=None).wait_until_up()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            pictures = {"quickstart": "run-view", "panel": "panel", "tools": "question"}
            for source, picture in pictures.items():
                for theme in ("light", "dark"):
                    file = folder / f"{picture}-{theme}.png"
                    file.write_bytes(draw(browser, server, source, theme))
                    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
            browser.close()
    finally:
        server.close()


if __name__ == "__main__":
    main()
