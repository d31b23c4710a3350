"""The view's modules: real ES modules on their own, and one module when they are joined."""

from __future__ import annotations

import re
from importlib.resources import files

from playwright.sync_api import Browser, Route
from stories import drawn

from nbagent.notebook import live_source
from nbagent.notebook.live_state import state_for_front_end
from nbagent.notebook.view_state import view_of

_FOLDER = files("nbagent.notebook").joinpath("live")
_DRAW = """
async ([address, state]) => {
  const model = { state, get: (k) => model[k], send() {}, on() {}, off() {} };
  const widget = (await import(address)).default();
  widget.initialize({ model });
  const el = document.body.appendChild(document.createElement("div"));
  widget.render({ model, el });
  for (const turn of el.querySelectorAll(".nba-turn > summary")) turn.click();
  return el.innerHTML;
}
"""


def _source(name: str) -> str:
    return _FOLDER.joinpath(f"{name}.js").read_text("utf-8")


def test_what_is_sent_has_one_export_and_nothing_to_import_or_evaluate() -> None:
    joined = live_source.joined()
    assert re.findall(r"\bexport\b.{10}", joined) == ["export default()"]
    assert re.findall(r"\bimport\b", joined) == []
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "eval(",
        "Function(",
        "document.write",
    ):
        assert word not in joined
    assert len(joined) < 27_000


def test_modules_and_the_joined_module_draw_the_same(chromium: Browser) -> None:
    def serve(route: Route) -> None:
        name = route.request.url.rpartition("/")[2].removesuffix(".js")
        body = live_source.joined() if name == "joined" else _source(name) if name else ""
        kind = "text/javascript" if name else "text/html"
        route.fulfill(body=body or "<!doctype html><body>", content_type=kind)

    page = chromium.new_page()
    page.route("**/*", serve)
    page.goto("http://localhost/")
    state = state_for_front_end(view_of(drawn().run))
    drawings = [
        page.evaluate(_DRAW, [f"http://localhost/{name}.js", state])
        for name in ("widget", "joined")
    ]
    assert drawings[0] == drawings[1]
    assert "nba-card" in drawings[0]
    page.close()
