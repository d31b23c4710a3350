"""The panel in a plain page, with a stub of the kernel: fields, drawers, files, lists, sizes."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from stage import CONTRAST, OVERFLOWS, load_views

from nbagent.notebook.page_module import stylesheet
from nbagent.notebook.panel_form import FIELDS, Form
from nbagent.view.node import Node, h

Message = dict[str, Any]
STATE: dict[str, Any] = {
    "working": "",
    "can_continue": False,
    "goes_on": False,
    "waits": False,
    "beside": False,
    "notice": "",
    "status": "",
    "error": "",
    "totals": "",
    "usual": "offline:demo",
    "values": dict.fromkeys(FIELDS, "") | {"max_turns": "20", "template": "on"},
    "defaults": dict.fromkeys(FIELDS, "") | {"max_turns": "20", "template": "on"},
    "tools": [["population", "People living in a city.", True], ["fs", "files", False]],
    "attached": [],
}
DROP = """
([root, files]) => {
  const data = new DataTransfer();
  for (const [name, size] of files) data.items.add(new File([new Uint8Array(size)], name));
  const say = (kind) => root.querySelector("textarea").dispatchEvent(new DragEvent(kind,
    { bubbles: true, cancelable: true, dataTransfer: data }));
  say("dragover");
  const seen = root.classList.contains("nba-dropping");
  say("drop");
  return [seen, root.classList.contains("nba-dropping")];
}
"""
PASTE = """
([root, kinds]) => {
  const data = new DataTransfer();
  if (kinds.includes("text")) data.setData("text/plain", "a\\tb");
  data.items.add(new File([new Uint8Array(9)], "image.png", { type: "image/png" }));
  return !root.querySelector("[data-field=prompt]").dispatchEvent(new ClipboardEvent("paste",
    { bubbles: true, cancelable: true, clipboardData: data }));
}
"""


class PanelPage:
    """Views of the panel in a page: each model stands for one browser page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.failures: list[str] = []
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        load_views(page, "panel.js")
        page.evaluate(
            "css => { document.head.appendChild(document.createElement('style'))"
            ".textContent = css; window.stubs = []; }",
            stylesheet("panel.css"),
        )

    def open(self, **state: Any) -> Locator:
        """Show a panel of a model of its own."""
        given = {"kind": "panel", "fields": Form.fields(), "exports": [["md", "Markdown"]]}
        self.page.evaluate(
            "given => { stubs.push(begin(given, document.body.appendChild("
            "document.createElement('div')))) }",
            {**given, "state": {**STATE, **state}},
        )
        return self.page.locator(".nba-panel").last

    def hear(self, message: Message, *, nth: int = 0) -> None:
        """Send a message of the kernel."""
        self.page.evaluate("([nth, m]) => stubs[nth].hear(m)", [nth, message])

    def show(self, *pictures: Node, nth: int = 0, **state: Any) -> None:
        """Send the conversation and the state."""
        more = {"draft": "", "more": 0, "page": "", "state": {**STATE, **state}}
        self.hear({"kind": "thread", "pictures": [*pictures], **more}, nth=nth)

    def sent(self, kind: str, *, nth: int = 0) -> list[Message]:
        said = self.page.evaluate("nth => stubs[nth].model.sent", nth)
        return [message for message in said if message["kind"] == kind]

    def wait_for(self, kind: str, n: int, *, nth: int = 0) -> list[Message]:
        """Wait until the page has sent so many messages of a kind."""
        self.page.wait_for_function(
            "([nth, kind, n]) => stubs[nth].model.sent.filter((m) => m.kind === kind).length >= n",
            arg=[nth, kind, n],
        )
        return self.sent(kind, nth=nth)


@pytest.fixture
def stage(page: Page) -> PanelPage:
    return PanelPage(page)


def run_node(run: str, words: str, *, is_live: bool = False) -> Node:
    since = {"data_since": ""} if is_live else {}
    head = h("div", "nba-top", **since)
    return h("div", "nba-run", head, h("blockquote", "nba-prompt", words), data_run=run)


def opener(root: Locator, key: str) -> Locator:
    return root.locator(f".nba-opener-{key}")


def test_fields_are_of_the_kind_of_their_value(stage: PanelPage) -> None:
    root = stage.open()
    opener(root, "options").click()
    temperature = root.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_have_attribute("max", "2")
    temperature.fill("0.5")
    temperature.press("Tab")
    root.get_by_role("checkbox", name="Template").uncheck()
    reasoning = root.get_by_role("combobox", name="Reasoning")
    reasoning.select_option("high")
    reasoning.select_option("number of tokens…")
    tokens = root.get_by_role("spinbutton", name="Reasoning: tokens")
    expect(tokens).to_be_focused()
    tokens.fill("4096")
    tokens.press("Tab")
    fields = [(m["name"], m["value"]) for m in stage.wait_for("field", 4)]
    expected = [("temperature", "0.5"), ("template", "off"), ("reasoning", "high")]
    assert fields == [*expected, ("reasoning", "4096")]
    stage.show(values={**STATE["values"], "reasoning": "2048", "template": "off"})
    expect(tokens).to_have_value("2048")
    expect(reasoning).to_have_value("#")
    stage.show(values={**STATE["values"], "reasoning": "low"})
    expect(tokens).to_be_hidden()
    expect(opener(root, "options")).to_contain_text("reasoning low")
    assert stage.failures == []


def test_a_drawer_moves_no_button_and_escape_closes_it(stage: PanelPage) -> None:
    root = stage.open()
    box = root.locator(".nba-box")
    for key in ("models", "tools", "system", "options", "packages"):
        button = opener(root, key)
        before = button.bounding_box()
        button.click()
        assert button.bounding_box() == before
        expect(box.locator(".nba-drawer:visible")).to_have_count(1)
        expect(button).to_have_attribute("aria-expanded", "true")
    prompt = root.get_by_role("textbox", name="Prompt", exact=True).bounding_box()
    drawer = box.locator(".nba-drawer:visible").bounding_box()
    assert drawer is not None
    assert prompt is not None
    assert drawer["y"] < prompt["y"], "the settings are above the prompt"
    root.get_by_label("Document").press("Escape")
    expect(box.locator(".nba-drawer:visible")).to_have_count(0)
    expect(opener(root, "packages")).to_be_focused()


def test_a_dropped_file_is_announced_and_attached(stage: PanelPage) -> None:
    root = stage.open()
    files = [[f"{n}.txt", 3] for n in range(60)]
    handle = root.element_handle()
    assert stage.page.evaluate(DROP, [handle, files]) == [True, False]
    names = {message["name"] for message in stage.wait_for("attach", 60)}
    assert names == {name for name, _ in files}
    chips = [[f"{n}-{'long' * 30}.txt", 3] for n in range(50)]
    stage.show(attached=chips)
    assert root.evaluate(OVERFLOWS, [".nba-chip", ".nba-view"]) == []
    shown = root.locator(".nba-chips").bounding_box()
    assert shown is not None
    assert shown["height"] <= 121, "many files scroll"
    assert stage.page.evaluate(DROP, [handle, [["big.bin", 8_000_000], ["n" * 9_000, 3]]])
    expect(root.get_by_role("alert")).to_contain_text("big.bin: larger than 7 MB")
    last = stage.wait_for("attach", 61)[-1]
    assert last["name"] == "n" * 200
    assert len(stage.sent("attach")) == 61


def test_pasted_images_are_numbered_and_text_stays_text(stage: PanelPage) -> None:
    root = stage.open(attached=[["image.png", 9]])
    handle = root.element_handle()
    assert stage.page.evaluate(PASTE, [handle, ["image"]]) is True
    assert stage.wait_for("attach", 1)[0]["name"] == "image-2.png"
    assert stage.page.evaluate(PASTE, [handle, ["image", "text"]]) is False
    assert len(stage.sent("attach")) == 1


def rows_node(*names: str) -> Node:
    rows = [
        h("button", "nba-open", name, type="button", data_do="open", value=name) for name in names
    ]
    return h("div", "nba-rows", *rows)


def test_an_open_list_follows_the_runs_but_not_under_the_mouse(stage: PanelPage) -> None:
    root = stage.open()
    opener(root, "runs").click()
    stage.wait_for("list", 1)
    stage.hear({"kind": "list", "key": "runs", "page": "", "node": rows_node("one", "two")})
    stage.hear({"kind": "lists"})
    assert len(stage.wait_for("list", 2)) == 2, "the list is asked for again"
    root.get_by_role("button", name="two").hover()
    stage.hear({"kind": "lists"})
    stage.page.evaluate("() => new Promise(requestAnimationFrame)")
    assert len(stage.sent("list")) == 2
    opener(root, "runs").hover()
    assert len(stage.wait_for("list", 3)) == 3, "it follows when the mouse has left"
    opener(root, "runs").click()
    stage.hear({"kind": "lists"})
    assert len(stage.sent("list")) == 3, "a closed list is silent"


def test_the_runs_to_export_follow_the_conversation(stage: PanelPage) -> None:
    root = stage.open()
    opener(root, "export").click()
    button = root.get_by_role("button", name="Markdown")
    expect(button).to_be_disabled()
    expect(root.get_by_text("Nothing to export yet")).to_be_visible()
    stage.show(run_node("r1", "First?", is_live=True), working="r1")
    expect(button).to_be_disabled()
    stage.hear({"run": "r1", "ops": [["done", run_node("r1", "First?")]]})
    chosen = root.get_by_role("combobox", name="Run to export")
    expect(chosen).to_have_value("r1")
    stage.hear({"run": "r2", "ops": [["done", run_node("r2", "Second?")]]})
    expect(chosen.locator("option")).to_have_text(["Second?", "First?"])
    expect(chosen).to_have_value("r1")
    button.click()
    assert stage.wait_for("export", 1)[0]["run"] == "r1"


def test_two_thousand_models_are_filtered_by_the_typed_name(stage: PanelPage) -> None:
    root = stage.open()
    opener(root, "models").click()
    names = [f"vendor-{n}/model" for n in range(2_000)]
    buttons = [
        h("button", "", name, type="button", data_do="set", data_field="model", value=f"hub:{name}")
        for name in names
    ]
    node = h("div", "nba-rows", h("div", "", h("strong", "", "hub"), " ", *buttons))
    stage.hear({"kind": "list", "key": "models", "page": "", "node": node})
    shown = root.locator('[data-key="models/list"] button:visible')
    expect(shown).to_have_count(2_000)
    root.get_by_label("Model", exact=True).fill("VENDOR-199")
    expect(shown).to_have_count(11)
    root.get_by_role("button", name="vendor-1990/model").click()
    assert stage.wait_for("field", 1)[-1]["value"] == "hub:vendor-1990/model"


def test_two_pages_of_one_panel_type_at_once(stage: PanelPage) -> None:
    first, second = stage.open(), stage.open()
    boxes = [root.get_by_role("textbox", name="Prompt", exact=True) for root in (first, second)]
    first = stage.page.locator(".nba-panel").first
    boxes[0] = first.get_by_role("textbox", name="Prompt", exact=True)
    boxes[0].fill("of the first")
    boxes[1].fill("of the second")
    boxes[1].press("Control+Enter")
    (asked,) = stage.wait_for("send", 1, nth=1)
    for nth in (0, 1):
        stage.hear({"kind": "taken", "id": asked["id"], "prompt": "of the second"}, nth=nth)
    expect(boxes[0]).to_have_value("of the first")
    expect(boxes[1]).to_have_value("")


def test_a_draft_of_a_megabyte_is_sent_once_and_not_at_each_key(stage: PanelPage) -> None:
    root = stage.open()
    box = root.get_by_role("textbox", name="Prompt", exact=True)
    box.fill("word " * 200_000)
    box.press("End")
    for key in "abc":
        box.press(key)
    box.press("Control+Enter")
    (asked,) = stage.wait_for("send", 1)
    assert len(asked["prompt"]) == 1_000_003
    assert len(stage.sent("draft")) == 0


def test_where_nothing_can_open_at_the_right_the_panel_stays_and_says_so(stage: PanelPage) -> None:
    root = stage.open(beside=True)
    hint = "This front end cannot show the panel at the right"
    expect(root.locator(".nba-hint")).to_contain_text(hint)
    expect(root.get_by_role("textbox", name="Prompt", exact=True)).to_be_visible()


def test_a_view_at_the_right_makes_the_others_one_line(stage: PanelPage) -> None:
    root = stage.open()
    stage.show(run_node("r1", "Hello?"))
    stage.page.evaluate(
        """() => {
          const el = document.createElement("div");
          el.className = "jupyterlab-sidecar";
          document.body.append(el);
          stubs[0].end2 = stubs[0].render(el);
          stubs[0].model.state = { ...stubs[0].model.state, beside: true };
          stubs[0].change("state");
        }"""
    )
    first, beside = (stage.page.locator(".nba-panel").nth(n) for n in (0, 1))
    expect(first).to_have_text("The panel is open at the right. Show it here", use_inner_text=True)
    expect(first.locator("[data-run]")).to_have_count(0)
    expect(beside.get_by_role("textbox", name="Prompt", exact=True)).to_be_visible()
    root.page.get_by_role("button", name="Show it here").click()
    stage.wait_for("below", 1)
    stage.page.evaluate("() => stubs[0].end2()")
    expect(first.get_by_role("textbox", name="Prompt", exact=True)).to_be_visible()
    assert stage.failures == []


SIZES = [320, 700]
THEMES = {"light": ("#fff", "#1c1c1e"), "dark": ("#15171a", "#e8e8ea")}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", SIZES)
def test_all_fits_in_a_narrow_page_and_has_contrast(
    stage: PanelPage, width: int, theme: str
) -> None:
    stage.page.set_viewport_size({"width": width, "height": 900})
    ground, text = THEMES[theme]
    stage.page.evaluate(
        """([theme, ground, text]) => {
          document.body.dataset.jpThemeLight = String(theme === "light");
          document.body.style.cssText = `background: ${ground}; --jp-layout-color1: ${ground};
            --jp-ui-font-color1: ${text}`;
        }""",
        [theme, ground, text],
    )
    state: Message = {"attached": [["a-file-with-a-long-name.txt", 5]], "totals": "3 runs"}
    root = stage.open(**state)
    turn = h("details", "nba-turn", h("summary", "", "a turn"))
    stage.show(h("div", "nba-run", turn, data_run="r1"), **state)
    for key in ("export", "options"):
        opener(root, key).click()
    assert root.evaluate(OVERFLOWS, ["*", "option"]) == []
    texts = root.evaluate(CONTRAST)["texts"]
    assert {name: ratio for name, ratio in texts.items() if ratio < 4.5} == {}


def test_the_buttons_of_the_head_stay_on_one_line_at_700(stage: PanelPage) -> None:
    stage.page.set_viewport_size({"width": 700, "height": 900})
    totals = "12 runs · 34 turns · 1,234,567 tokens · $12.3456 · 12 min 34 s"
    head = stage.open(totals=totals).locator(".nba-panel-head")
    tops = head.locator("button").evaluate_all(
        "nodes => nodes.map((node) => Math.round(node.getBoundingClientRect().top))"
    )
    assert len(tops) == 5
    assert len({*tops}) == 1
    assert totals in head.inner_text()
