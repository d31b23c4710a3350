"""The page over all cases in a browser: live from a kernel, and as one file without one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from case_stage import (
    OBSERVE,
    VARIANTS,
    LiveStage,
    Source,
    case,
    cases,
    file_of,
    keys,
    open_file,
    score,
    words,
)
from payloads import PAYLOADS
from pixels import contrasts, too_low
from playwright.sync_api import Browser, Page, expect
from stage import OVERFLOWS, asked_by, until_handlers_ran
from test_contrast_and_axe import axe_violations

from nbagent.contracts.case_results import CaseResult, ToolUse
from nbagent.view.compare import text_diff

MAX_FILE_BYTES = 5_000_000
COUNT = ".nba-shown"


@pytest.fixture(params=[pytest.param("live", marks=pytest.mark.proof), "file"])
def shown(request: pytest.FixtureRequest, page: Page, tmp_path: Path) -> LiveStage | None:
    """Twelve rows in two variants, from a kernel and from a file."""
    if request.param == "live":
        return LiveStage(page, Source(cases(12)))
    open_file(page, file_of(cases(12), tmp_path), 24)
    return None


def focused_row(page: Page) -> str:
    return page.evaluate("document.activeElement.closest('.nba-unfold')?.textContent ?? ''")


def test_keys_move_through_a_file_at_once(page: Page, tmp_path: Path) -> None:
    open_file(page, file_of(cases(12), tmp_path), 24)
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.closest('.nba-unfold')?.ariaExpanded === 'true'")


def test_rows_are_filtered_by_words_choices_and_values(shown: Any, page: Page) -> None:
    expect(page.locator(COUNT)).to_have_text("24 of 24 cases")
    page.get_by_label("Filter the rows by words").fill("ROW-1 answer 1")
    expect(page.locator(COUNT)).to_contain_text("6 of 24 cases")
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Filter by verdict").select_option("wrong")
    expect(page.locator(COUNT)).to_contain_text("4 of 24 cases: verdict = wrong")
    assert keys(page) == ["row-0", "row-3", "row-6", "row-9"]
    page.get_by_role("button", name="Show all").click()
    search = page.get_by_label("Filter the rows by words")
    for text, n in [
        ("city:city-9 prompt:terse", 0),
        ("prompt:terse verdict:right", 11),
        ("cost>0.0115", 2),
        ("cost<0.0015 exact=no", 1),
        ("lang:de", 12),
        ("expected:c9", 2),
        ("nosuch:oslo", 0),
    ]:
        search.fill(text)
        expect(page.locator(COUNT)).to_contain_text(f"{n} of 24 cases")
    expect(page.locator(COUNT)).to_contain_text(
        "column:value, column=value and cost>0 in one column"
    )
    expect(page.locator(COUNT)).to_contain_text("lang")
    page.get_by_role("button", name="Show all").click()
    page.locator("tr.nba-case .nba-pick", has_text="area").first.click()
    expect(page.locator(COUNT)).to_contain_text("12 of 24 cases: tools = area")


def test_a_column_sorts_both_ways_and_empty_cells_come_last(shown: Any, page: Page) -> None:
    head = page.locator("th[data-field=score1]")
    page.get_by_role("button", name="time").click()
    page.get_by_role("button", name="time").click()
    assert keys(page)[0] == "row-11"
    page.get_by_role("button", name="exact").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    values = page.locator("tr.nba-case td:nth-child(5)").all_text_contents()
    assert [*dict.fromkeys(values)] == ["no", "yes", ""]


def test_keys_walk_through_the_failures_of_one_variant(shown: Any, page: Page) -> None:
    page.get_by_label("Filter by prompt").select_option(VARIANTS[1])
    page.get_by_label("Filter the rows by words").press("ArrowDown")
    assert focused_row(page) == "row-0"
    walked: list[str] = []
    for key in ("n", "n", "n", "p", "j", "k", "End", "Home"):
        page.keyboard.press(key)
        walked.append(focused_row(page))
    assert walked == ["row-3", "row-6", "row-9", "row-6", "row-7", "row-6", "row-11", "row-0"]
    page.keyboard.press("/")
    expect(page.get_by_label("Filter the rows by words")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused_row(page) == "row-0"


def test_a_row_unfolds_its_run_and_its_scores(shown: LiveStage | None, page: Page) -> None:
    page.locator(".nba-unfold").nth(2).click()
    if shown:
        shown.answer()
    opened = page.locator(".nba-opened")
    expect(opened).to_contain_text("city 1")
    expect(opened).to_contain_text(words(12, 1))
    expect(opened).to_contain_text(
        "the whole run 002" if shown else 'population {"city": "Oslo"} → 709'
    )
    expect(opened).to_contain_text("the whole run 002" if shown else "E_TIMEOUT: too slow")
    expect(page.locator(".nba-unfold").nth(2)).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Enter")
    expect(opened).to_have_count(0)


def test_two_variants_are_compared_side_by_side(shown: Any, page: Page) -> None:
    page.get_by_label("Compare").select_option(label=VARIANTS[0])
    page.get_by_label("with").select_option(label=VARIANTS[1])
    expect(page.locator(COUNT)).to_have_text("12 of 12 pairs · 1 better, 4 worse")
    expect(page.locator(".nba-labelled")).to_have_text(f"labels the left side: {VARIANTS[0]}")
    expect(page.locator(".nba-legend-diff")).to_have_text("promptAnswer briefly.Answer at length.")
    assert page.locator(".nba-legend-diff :is(ins, del)").all_text_contents() != []
    page.get_by_label("only changed verdicts").check()
    expect(page.locator(COUNT)).to_have_text("5 of 12 pairs · 1 better, 4 worse")
    verdicts = page.locator(".nba-pair td:nth-child(2)").all_text_contents()
    assert verdicts == ["right → wrong", "right → wrong", "failed → right", *["right → wrong"] * 2]
    first = page.locator(".nba-pair").first
    assert first.locator("del").count() > 0
    assert first.locator("ins").count() > 0
    page.get_by_label("Compare").select_option(label="–")
    expect(page.locator(COUNT)).to_have_text("24 of 24 cases")


ALIKE = f"Be careful with refunds, {'please ' * 20}"


def alike(n: int, side: str) -> CaseResult:
    """A case whose key, label and answer differ from those of others only at their ends."""
    return case(
        n,
        row_key=f"https://example.com/{'tickets/' * 12}{n}",
        labels={"effort": "low", "system": ALIKE + side},
        run_id=f"{n}{side}",
        text=f"{words(110, n)} granted to {'both' if n else side}",
        cost_usd=(0.3, 0.25, 1.5, 0.00004, 0.0012)[n],
        tools=tuple(ToolUse(name=f"tool{m}", calls=1) for m in range(9 if n else 1)),
        scores=(score("judge", -float(n)),),
    )


@pytest.mark.parametrize("is_live", [pytest.param(True, marks=pytest.mark.proof), False])
def test_what_is_alike_at_its_beginning_is_not_mixed_up(
    is_live: bool, page: Page, tmp_path: Path
) -> None:
    results = [alike(n, side) for n in range(5) for side in ("brief", "kind")]
    if is_live:
        LiveStage(page, Source(results))
    else:
        open_file(page, file_of(results, tmp_path), 10)
    for column, rows in {"cost": "34102", "judge": "43210"}.items():
        page.get_by_role("button", name=column, exact=True).click()
        assert "".join(key[-1] for key in keys(page)[::2]) == rows
    page.get_by_label("Filter by tools").select_option("tool8")
    expect(page.locator(COUNT)).to_contain_text("8 of 10 cases: tools = tool8")
    expect(page.locator("tr.nba-case").first).to_contain_text("+3 more")
    page.get_by_role("button", name="Show all").click()
    options = page.get_by_label("Filter by system").locator("option").all_text_contents()
    assert [option.split()[-1] for option in options] == ["all", "brief", "kind"]
    page.locator("[data-field=left]").select_option(index=1)
    page.locator("[data-field=right]").select_option(index=2)
    expect(page.locator(COUNT)).to_contain_text("5 of 5 pairs")
    pairs = page.locator(".nba-pair").all_text_contents()
    same = [("characters that are shown" in pair, pair.endswith("(the same)")) for pair in pairs]
    assert same == [(False, True)] * 4 + [(True, False)]
    page.get_by_label("Filter the rows by words").fill("tickets")
    expect(page.locator(COUNT)).to_contain_text("600 characters" if is_live else "in the texts of")


def test_a_kernels_page_stores_labels_by_keys(page: Page) -> None:
    stage = LiveStage(page, Source(cases(3)))
    page.locator(".nba-unfold").nth(1).focus()
    page.keyboard.press("r")
    page.keyboard.type("too long 3")
    page.keyboard.press("Enter")
    for key in ("4", "9", "2"):  # the next row follows a label
        page.keyboard.press(key)
    stage.answer()
    assert stage.source.labels == [("0" * 15 + "1", 4.0, "too long 3"), ("0" * 15 + "2", 2.0, None)]
    expect(page.locator("tr.nba-case").nth(1).locator("td").nth(3)).to_have_text("4")
    expect(page.locator(".nba-said")).to_have_text(
        f"Stored: review = 2 for row row-1 · {VARIANTS[0]}"
    )
    page.get_by_label("Filter by review").select_option("4")
    assert keys(page) == ["row-0"]


def test_a_file_keeps_labels_and_exports_them_for_the_batch(page: Page, tmp_path: Path) -> None:
    address = file_of(cases(3), tmp_path, scale=0, by="anna")
    open_file(page, address, 6)
    page.locator(".nba-unfold").nth(1).focus()
    for key in ("y", "x", "5"):
        page.keyboard.press(key)
    expect(page.locator(".nba-said")).to_contain_text(
        f"no for row row-1 · {VARIANTS[0]}. 2 labelled"
    )
    open_file(page, address, 6)  # the browser has kept them
    with page.expect_download() as download:
        page.get_by_role("button", name="Export labels").click()
    content = json.loads(download.value.path().read_text("utf-8"))
    labels = [(label["run_id"][-1], label["value"]) for label in content["labels"]]
    assert (content["batch"], content["name"], content["by"]) == ("refunds", "review", "anna")
    assert content["scale"] == 0
    assert labels == [("1", True), ("2", False)]
    assert page.get_by_label("Labels as JSON").input_value() == download.value.path().read_text()


def test_a_live_page_gets_changed_rows_only_and_moves_nothing(page: Page) -> None:
    results = [case(n, status="missing", run_id="", text="", scores=()) for n in range(6)]
    stage = LiveStage(page, Source(results))
    page.locator(".nba-unfold").nth(2).focus()
    done = case(4)
    stage.source.score_names = ("exact", "judge")
    stage.live.updates.flush()
    stage.sent.clear()
    stage.source.present[4] = done
    stage.live.updates.flush()
    keys_sent = [op[1] for message in stage.sent for op in message["ops"]]
    assert keys_sent == ["4", "head"]
    expect(page.locator("tr.nba-case").nth(4)).to_contain_text("Answer 4")
    expect(page.locator(".nba-facts")).to_contain_text("1 right")
    assert keys(page) == [f"row-{n}" for n in range(6)]
    stage.source.change(2, status="ok", text="later")
    page.locator(".nba-unfold").nth(2).focus()
    stage.live.updates.flush()
    assert focused_row(page) == "row-2"


def test_a_redrawn_page_keeps_what_the_person_chose(page: Page) -> None:
    stage = LiveStage(page, Source(cases(6)))
    page.get_by_label("Filter the rows by words").fill("row-2")
    page.get_by_role("button", name="time").click()
    more = (*stage.source.present[0].scores, score("tone", "kind", "m:j"))
    stage.source.change(0, scores=more)
    stage.live.updates.flush()
    expect(page.locator("th", has_text="tone")).to_have_count(1)
    expect(page.get_by_label("Filter the rows by words")).to_have_value("row-2")
    expect(page.locator("th[data-field=time]")).to_have_attribute("aria-sort", "ascending")
    assert keys(page) == ["row-2", "row-2"]


def test_a_blind_page_names_no_variant(page: Page, tmp_path: Path) -> None:
    results = [case(n, variant, prompt=f"{variant} {n}") for n in range(3) for variant in VARIANTS]
    open_file(page, file_of(results, tmp_path, is_blind=True), 6)
    page.locator(".nba-unfold").first.click()
    content = page.content()
    assert all(name not in content for name in (*VARIANTS, "exact", "$0.00"))


def test_the_words_that_differ_are_those_of_a_comparison(page: Page, tmp_path: Path) -> None:
    open_file(page, file_of(cases(1), tmp_path), 2)
    for before, after in [
        ("It costs 5.20 now.", "It costs 5.30 now, again."),
        ("", "new"),
        ("same", "same"),
        ("a b c d", "d c b a"),
    ]:
        pieces = page.evaluate("([a, b]) => wordDiff(a, b)", [before, after])
        assert "".join(text for op, text in pieces if op != "+") == before
        assert "".join(text for op, text in pieces if op != "-") == after
        assert len(pieces) <= len(text_diff(before, after)) + 2


def hostile(n: int, text: str) -> CaseResult:
    return case(
        n,
        labels={text[:200]: text},
        row_key=f"{n} {text}",
        cells={text: text},
        prompt=text,
        text=text,
        why=text,
        tools=(ToolUse(name=text, calls=1),) * 9,
        scores=tuple(score(text[:300] or "x", text or "x", text or "x", text) for _ in range(9)),
    )


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
def test_hostile_texts_stay_texts_in_a_file(
    chromium: Browser, tmp_path: Path, has_scripts: bool
) -> None:
    results = [hostile(n, text) for n, text in enumerate(PAYLOADS.values())]
    address = file_of(results, tmp_path)
    context = chromium.new_context(java_script_enabled=has_scripts)
    try:
        page = context.new_page()
        seen = asked_by(page)
        page.on("request", lambda request: seen.append(request.url))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.goto(address)
        if has_scripts:
            expect(page.locator("tr.nba-case")).to_have_count(len(results))
            page.evaluate("for (const one of document.querySelectorAll('.nba-unfold')) one.click()")
            until_handlers_ran(page)
            assert page.evaluate("typeof window.__pwned") == "undefined"
            expect(page.locator(".nba-opened").first).to_contain_text(PAYLOADS["script"])
        else:
            expect(page.locator("main")).to_contain_text("needs its script to filter")
            expect(page.locator("main")).to_contain_text("more cases; batch.frame() has all")
        assert {url for url in seen if not url.startswith(("file:", "http://probe.test"))} == set()
        assert page.locator("img, iframe, form, svg, link, base").count() == 0
    finally:
        context.close()


def test_each_case_takes_at_most_four_kilobytes_and_what_is_left_out_is_said(
    tmp_path: Path,
) -> None:
    long = dict.fromkeys(("prompt", "text", "why", "row_key"), "<\u202e😀" * 3_000)
    results = [hostile(n, text) for n, text in enumerate(PAYLOADS.values())]
    results += [case(n, **long) for n in range(30)]
    path = tmp_path / "cases.html"
    file_of(results, tmp_path)
    data = path.read_text("utf-8").split('<script type="application/json" class="nba-')[1:]
    n_bytes = sum(len(block.split("</script>")[0].encode()) for block in data)
    assert n_bytes <= 4_000 * len(results)
    assert "A case takes at most 4.0 kB here: longer texts are cut" in path.read_text("utf-8")


LOOKS = [(theme, width) for theme in ("light", "dark") for width in (700, 1400)]


def looks(page: Page, theme: Any, width: int, address: str) -> Iterator[Page]:
    """Show a file in a theme and a width: with an unfolded row, then with two variants."""
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 2_400})
    open_file(page, address, 24)
    page.locator(".nba-unfold").nth(1).click()
    yield page
    page.get_by_label("Compare").select_option("0")
    page.get_by_label("with").select_option("1")
    yield page


@pytest.mark.proof
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_each_text_stands_out_and_none_reaches_over_the_edge(
    page: Page, tmp_path: Path, theme: str, width: int
) -> None:
    for shown in looks(page, theme, width, file_of(cases(12), tmp_path)):
        root = shown.locator(".nba-cases")
        measured = contrasts(shown, root)
        assert len(measured) > 20
        assert too_low(measured) == []
        assert root.evaluate(OVERFLOWS, ["*", ".nba-long"]) == []


@pytest.mark.proof
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_axe_finds_nothing(page: Page, tmp_path: Path, theme: str, width: int) -> None:
    for shown in looks(page, theme, width, file_of(cases(12), tmp_path)):
        assert axe_violations(shown, ".nba-cases") == []


@pytest.mark.proof
@pytest.mark.timed
@pytest.mark.parametrize(("n_rows", "n_shown"), [(500, 1_000), (5_000, None)])
def test_a_thousand_cases_open_in_two_seconds_without_a_long_task(
    chromium: Browser, tmp_path: Path, figures: list[str], n_rows: int, n_shown: int | None
) -> None:
    address = file_of(cases(n_rows), tmp_path)
    size = (tmp_path / "cases.html").stat().st_size
    assert size <= MAX_FILE_BYTES
    # The best of three: other work on the machine is no fault of the page.
    attempts = [opened_and_used(chromium, address, n_shown) for _ in range(3)]
    opened_s, longest = min(attempts)[0], min(longest for _, longest in attempts)
    figures.append(
        f"{2 * n_rows:,} cases in a file: {size / 1e6:.1f} MB, {opened_s:.2f} s until its rows, "
        f"longest task {longest:.0f} ms"
    )
    assert opened_s <= 2
    assert longest <= 100


def opened_and_used(chromium: Browser, address: str, n_shown: int | None) -> tuple[float, float]:
    """Open a file and use it; return the seconds to its rows and the longest task in ms."""
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.add_init_script(OBSERVE)
    begin = time.perf_counter()
    page.goto(address)
    page.locator("tr.nba-case").nth(20).wait_for()
    opened_s = time.perf_counter() - begin
    if n_shown:
        expect(page.locator("tr.nba-case")).to_have_count(n_shown)
    else:
        expect(page.locator(".nba-foot")).to_contain_text("left out, since the file would be too")
    page.locator("[data-field=search]").press_sequentially("row-7 oslo", delay=20)
    page.locator("[data-do=all]").click()
    page.locator("th[data-field=cost] button").click()
    page.keyboard.press("n")
    longest = page.evaluate("longest")
    page.close()
    return opened_s, longest
