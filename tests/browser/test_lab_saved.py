"""Saved notebooks show their runs: opened again in three ways, exported, and hostile."""

from __future__ import annotations

import json

import pytest
from jupyter_apps import Notebook, Server, opened
from notebook_tools import AREA
from payloads import AUDIT, PAYLOADS
from playwright.sync_api import Browser
from stage import PROBE, asked_by, until_handlers_ran

HOSTILE = " ".join(
    PAYLOADS[name] for name in ("script", "img remote", "svg onload", "image markdown", "form")
)
SETUP = f"""
%load_ext nbagent
import nbagent
from nbagent import offline

hostile = {HOSTILE!r}
payloads = {[text[:600] for text in PAYLOADS.values()]!a}
packs = [payloads[i:i + 3] for i in range(0, len(payloads), 3)]

{AREA}

@nbagent.tool
def echo(text: str) -> str:
    "Say it again."
    return text

offline.script([offline.call("area", city="Oslo"), "Oslo has **454.1** km²."], name="good")
@nbagent.tool
def picture() -> list:
    "A small picture."
    import PIL.Image
    return PIL.Image.new("RGB", (32, 16), "red")

def ask(pack):
    joined = "\\n\\n".join(pack)
    sent = [text.encode("utf-8", "replace").decode() for text in pack]
    calls = [offline.call("echo", text=sent[0])]
    calls += [offline.call(text, dict([(text, text)])) for text in sent[1:]]
    return offline.step(reasoning=joined, text=joined, calls=calls)

offline.script([*map(ask, packs), hostile], name="hostile")
drawing = offline.step(text="I draw.", calls=[offline.call("picture")])
offline.script([drawing, "Red."], name="draws")
said = "\\n".join(payloads[-12:] + payloads[:40])
offline.script([offline.error("LLM_AUTH_FAILED", said)], name="fails")
"""
GOOD, BAD, DRAWS, FAILS, FORMS = 1, 2, 3, 4, 5
CELLS = [
    SETUP,
    "%%agent --model offline:good --tools area\nHow large is Oslo?",
    "%%agent --model offline:hostile --tools echo --max-turns 45 --into hostile_run\n"
    "Repeat {{ hostile }}",
    "%%agent --model offline:draws --tools picture\nDraw",
    "%%agent --model offline:fails --tools none\nFail {{ payloads[0] }}",
    """from nbagent.view.terminal import run_text
display({"text/plain": run_text(hostile_run.record)}, raw=True)""",
]


@pytest.fixture(scope="module")
def saved(chromium: Browser, server: Server) -> str:
    """The name of a notebook that was run in JupyterLab and saved; nothing hostile ran live."""
    name = server.write("saved", CELLS)
    with opened(chromium, server, name) as notebook:
        asked = asked_by(notebook.page)
        notebook.run(0, GOOD)
        notebook.start(BAD)
        # Whatever the run shows while it goes on is unfolded at once.
        notebook.page.evaluate(_UNFOLDS_ALWAYS, BAD)
        notebook.wait(BAD)
        assert notebook.page.evaluate("() => nbt.unfolded") > 20
        notebook.run(DRAWS, FAILS, FORMS)
        assert "LLM_AUTH_FAILED" in notebook.error(FAILS)
        assert notebook.error(BAD) == notebook.error(DRAWS) == notebook.error(FORMS) == ""
        notebook.output(BAD).locator(".nba-answer").wait_for()
        nothing_ran(notebook)
        assert asked == []
        assert "widget-view" not in json.dumps(notebook.save())
    return name


_UNFOLDS_ALWAYS = """
n => {
  const area = nbt.cells()[n].outputArea.node;
  nbt.unfolded = 0;
  new MutationObserver(() => {
    for (const one of area.querySelectorAll("details:not([open])")) {
      one.open = true;
      nbt.unfolded += 1;
    }
  }).observe(area, { childList: true, subtree: true });
}
"""


def nothing_ran(notebook: Notebook) -> None:
    """No text became code, a node, TeX, a question or a request, in any output."""
    page = notebook.page
    page.evaluate("document.querySelectorAll('.nba-run details').forEach((d) => { d.open = true })")
    until_handlers_ran(page)
    found = page.evaluate(AUDIT, ".jp-OutputArea-nowhere")
    assert (found["bad"], found["stray"], found["pwned"]) == ([], [], "undefined")
    assert found["runs"] == 4
    assert page.locator(".nba-run .MathJax, .nba-run mjx-container").count() == 0
    # In plain text JupyterLab makes links of its own, also of what only looks like a path.
    links = page.locator(":is(.nba-run, .jp-RenderedMarkdown) a[href]")
    schemes = links.evaluate_all("all => all.map((a) => a.protocol)")
    assert set(schemes) <= {"http:", "https:", "mailto:"}
    ours = (notebook.server.url, "data:", "blob:")
    asked = {url for url in notebook.requests if not url.startswith(ours)}
    assert asked <= {PROBE}
    assert page.locator(".jp-Dialog").count() == 0


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("trusted", marks=pytest.mark.proof),
        "untrusted",
        pytest.param("trusted, without a kernel", marks=pytest.mark.proof),
    ],
)
def test_opened_again_it_reads_well_and_runs_nothing(
    how: str, saved: str, chromium: Browser, server: Server
) -> None:
    name = saved
    if how != "trusted":
        # Not the file that this server signed: as one that came by mail, from another machine.
        document = server.read(saved)
        # No kernel of this server speaks its language, so the app asks for one.
        document["metadata"] = {"kernelspec": {"name": "not-here", "display_name": "not here"}}
        name = server.write_document("saved", document)
    if how == "trusted, without a kernel":
        server.trust(name)
    with opened(chromium, server, name, kernel=how == "trusted") as notebook:
        if how != "trusted":
            notebook.go_without_kernel()
        asked = asked_by(notebook.page)
        trusted = notebook.page.evaluate("() => nbt.cells().map((cell) => cell.model.trusted)")
        assert trusted == [how != "untrusted"] * len(CELLS)
        good = notebook.output(GOOD)
        assert "Answered" in good.inner_text()
        assert 'area(city="Oslo") → 454.1' in good.inner_text()
        assert good.locator(".nba-answer").inner_text() == "Oslo has 454.1 km²."
        assert not good.locator(".nba-card").is_visible()
        for turn in good.locator(".nba-turn").all():
            turn.locator("summary").first.click()
            turn.locator(".nba-request summary").click()
        assert "454.1" in good.locator(".nba-card").inner_text()
        assert "How large is Oslo?" in good.locator(".nba-request").first.inner_text()
        shown = notebook.output(BAD).locator(".nba-run")
        assert "<script>window.__pwned=1</script>" in shown.locator(".nba-answer").inner_text()
        # A price is no formula: nothing between two `$` was typeset.
        assert "it costs $5 and not $6" in (shown.text_content() or "")
        nothing_ran(notebook)
        assert asked == []
        image = notebook.output(DRAWS).locator(".nba-run").locator("img")
        assert image.evaluate("async (i) => { await i.decode(); return i.naturalWidth; }") == 32
        assert "32 × 16 px" in notebook.text(DRAWS)
        assert "LLM_AUTH_FAILED" in notebook.output(FAILS).inner_text()
        assert notebook.page.locator(".nba-do:visible").count() == 0
