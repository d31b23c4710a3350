"""Draws the README's pictures: the quickstart's first run in JupyterLab, light and dark.

    python tests/browser/pictures.py [FOLDER]

writes run-view-light.png and run-view-dark.png to notebooks/images, or to FOLDER. They are made
by hand and looked at before they are committed; no test compares pixels.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from jupyter_apps import Notebook, Server, opened
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

_ROOT = Path(__file__).parents[2]
_QUICKSTART = _ROOT / "notebooks" / "quickstart.ipynb"
_FIRST_RUN = 3
"""The code cell, from 0."""
_MARGIN_PX = 12


def draw(browser: Browser, server: Server, theme: str) -> bytes:
    """A PNG of the first run with its first turn unfolded."""
    name = f"picture-{theme}.ipynb"
    shutil.copy(_QUICKSTART, server.folder / name)
    word = "Light" if theme == "light" else "Dark"
    server.setting("@jupyterlab/apputils-extension:themes", {"theme": f"JupyterLab {word}"})
    with opened(browser, server, name, dark=theme == "dark", size=(1240, 1100)) as notebook:
        notebook.run(*range(_FIRST_RUN + 1))
        return _shot(notebook)


def _shot(notebook: Notebook) -> bytes:
    run = notebook.output(_FIRST_RUN).locator(".nba-run")
    run.locator(".nba-turn summary").first.click()
    run.evaluate("node => node.scrollIntoView({ block: 'center' })")
    shot = Image.open(io.BytesIO(run.screenshot())).convert("RGB")
    # The frame has the page's colour: that outside of the round corner.
    framed = Image.new("RGB", (shot.width + 2 * _MARGIN_PX, shot.height + 2 * _MARGIN_PX))
    framed.paste(shot.crop((0, 0, 1, 1)).resize(framed.size))
    framed.paste(shot, (_MARGIN_PX, _MARGIN_PX))
    small = io.BytesIO()
    framed.save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    """Draw both."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "notebooks" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    server = Server().wait_until_up()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            for theme in ("light", "dark"):
                file = folder / f"run-view-{theme}.png"
                file.write_bytes(draw(browser, server, theme))
                print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
            browser.close()
    finally:
        server.close()


if __name__ == "__main__":
    main()
