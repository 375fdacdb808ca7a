"""The leaderboard page as a person meets it: Chromium without a window, mouse, keyboard, a phone's width."""

from importlib import metadata
from pathlib import Path

import pytest

from icrbench.report import write_report
from icrbench.report.by_metric import by_metric
from icrbench.report.leaderboard import Table
from icrbench.report.verdict import verdict
from icrbench.store.store import Store
from page_setup import (
    EVIL,
    Driver,
    browser,
    button,
    fill,
    find,
    methods,
    needs_chromium,
    page,
    prefer,
    press,
    resize,
    soon,
    store,
    table,
    texts,
)

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

__all__ = ["browser", "page", "store", "table"]  # fixtures

pytestmark = needs_chromium
AXE = Path(str(metadata.distribution("axe-playwright-python").locate_file("axe_playwright_python/axe.min.js")))


def test_verdict_comes_first_and_labels_are_text(page: Driver, table: Table) -> None:
    headings = texts(page, "h1, h2, h3")
    assert headings[:2] == ["icrbench Leaderboard", "Ranking"]
    assert headings[2] == verdict(table).headline
    assert len(page.find_elements(By.CSS_SELECTOR, "img")) == 0
    assert EVIL in methods(page)
    assert any("<img src=x" in text for text in texts(page, "#table-0 .failed li"))


def test_every_number_has_its_interval(page: Driver, table: Table) -> None:
    rows = page.find_elements(By.CSS_SELECTOR, "#table-0 .scores tbody tr")
    assert len(rows) == len(table.rows)
    for row, line in zip(table.rows, rows, strict=True):
        average, *_ = line.find_elements(By.TAG_NAME, "td")
        others = line.find_elements(By.TAG_NAME, "td")[-len(row.scores) + 1 :]  # behind collapse and costs
        for column, cell in zip(table.columns, (*others, average), strict=True):
            score = row.scores[column.name]
            if score.mean is None or score.interval is None:
                assert cell.text.startswith(("failed (1)", "incomplete"))
                continue
            assert find(cell, ".value").text == f"{100 * score.mean:.1f}"
            ends = f"{100 * score.interval.low:.1f}–{100 * score.interval.high:.1f}"
            assert find(cell, ".ci").text == ends
            assert find(cell, ".ci").is_displayed()


def test_the_ranking_is_seen_first_and_bold_means_best(page: Driver, table: Table) -> None:
    assert texts(page, "#table-0 thead button")[:3] == ["Method", "Average", "Collapse"]
    assert texts(page, "#table-0 .group")[:2] == ["All 4 tasks", "Cost"]
    resize(page, 390, 844)
    right = "return document.querySelector('#table-0 .scores tbody td .value').getBoundingClientRect().right"
    assert page.execute_script(right) < 390
    weights = """return [...document.querySelectorAll('#table-0 .scores .value')]
        .map((value) => [value.classList.contains('best'), Number(getComputedStyle(value).fontWeight) >= 600])"""
    assert all(best == bold for best, bold in page.execute_script(weights))


def test_calibrated_answers_stand_beside_and_by_themselves(page: Driver) -> None:
    assert "Average, bc" in texts(page, "#table-1 .scores thead th")
    assert "Average, bc" not in texts(page, "#table-0 .scores thead th")
    Select(find(page, "[name=calibrate]")).select_by_value("bc")
    soon(page, lambda: "needs a prior" in find(page, "#table-0").text)
    assert set(texts(page, "#table-1 .scores .value")) == {"100.0"}
    assert "calibrated by bc" in find(page, "#table-1 caption").text
    page.execute_script("document.querySelectorAll('#table-1 .scores tbody th button')[1].click()")
    assert "Calibrated" in texts(page, "dialog h3")
    assert "1 43 % (100 %)" in find(page, "dialog").text  # 30 of 70 are the second option, and all should be


def test_another_metric(page: Driver, table: Table) -> None:
    Select(find(page, "[name=metric]")).select_by_value("label_bias")
    soon(page, lambda: "Label bias" in texts(page, "#table-0 h3"))
    made = by_metric(table, "label_bias")
    averages = [row.scores["average"].mean for row in made.rows]
    shown = texts(page, "#table-0 .scores tbody td:first-of-type")
    assert shown == ["incomplete" if mean is None else f"{100 * mean:.1f}" for mean in averages]
    assert not find(page, "[name=view]").is_enabled()
    assert "no interval and no test" in find(page, "#table-0").text


def test_times_say_why_they_do_not_compare(page: Driver) -> None:
    page.execute_script("document.querySelector('#table-0 .scores tbody th button').click()")
    assert "Do not compare methods by these times" in find(page, "dialog").text


def test_our_own_form_is_called_so(page: Driver) -> None:
    assert "M2IV-style" in methods(page)
    assert "m2iv" not in methods(page)


def test_a_dialog_says_what_its_method_is_and_leads_to_the_paper(page: Driver) -> None:
    find(page, ".ranking [data-label=icr] button").click()
    assert "attention logits steered by a query-conditioned router" in find(page, "dialog .about").text
    link = find(page, "dialog .about a")
    assert link.get_attribute("href") == "https://arxiv.org/abs/2509.22854"
    assert link.text == "arXiv 2509.22854"


def test_sorting_by_click(page: Driver, table: Table) -> None:
    means = {row.label: row.scores["trec"].mean or 0 for row in table.rows}
    shown = {("M2IV-style" if label == "m2iv" else label): mean for label, mean in means.items()}
    button(page, "TREC").click()
    head = button(page, "TREC").find_element(By.XPATH, "..")
    assert head.get_attribute("aria-sort") == "descending"
    assert [shown[name] for name in methods(page)] == sorted(shown.values(), reverse=True)
    button(page, "TREC").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [shown[name] for name in methods(page)] == sorted(shown.values())
    assert len(page.find_elements(By.CSS_SELECTOR, "#table-0 [aria-sort]")) == 1
    button(page, "CB").click()
    assert methods(page)[-1] == EVIL  # a failed cell is last whichever way
    button(page, "CB").click()
    assert methods(page)[-1] == EVIL


def test_sorting_by_keyboard_keeps_the_focus(page: Driver) -> None:
    page.execute_script("arguments[0].focus()", button(page, "Method"))
    press(page, Keys.ENTER)
    assert methods(page) == sorted(methods(page), key=str.lower)
    assert page.switch_to.active_element.text.startswith("Method")
    press(page, Keys.SPACE)
    assert methods(page) == sorted(methods(page), key=str.lower, reverse=True)
    assert "Sorted by Method, descending" in find(page, "#status").text


def test_filters(page: Driver) -> None:
    find(page, "[name=method]").send_keys("RANK")
    soon(page, lambda: methods(page) == ["icv:rank=4"])
    soon(page, lambda: len(page.find_elements(By.CSS_SELECTOR, "#tables section")) == 1)
    assert [one.is_displayed() for one in page.find_elements(By.CSS_SELECTOR, ".verdict")] == [True, False]
    find(page, "[name=method]").clear()
    find(page, "[name=method]").send_keys("nothing like it")
    soon(page, lambda: find(page, "#status").text.startswith("Nothing fits"))
    find(page, "[name=method]").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    soon(page, lambda: len(methods(page)) == 5)
    Select(find(page, "[name=role]")).select_by_value("near_ood")
    soon(page, lambda: "SST-2" not in texts(page, "#table-0 thead button"))
    assert texts(page, "#table-0 thead button") == ["Method", "Average", "MR", "Average"]
    assert texts(page, "#table-0 .group") == ["All 4 tasks", "Near out-of-domain"]
    soon(page, lambda: find(page, "#status").text.startswith("2 comparisons of 2"))


def test_differences_with_marks_that_need_no_colour(page: Driver, table: Table) -> None:
    page.execute_script("document.querySelector('[name=view][value=d]').click()")
    place = [row.label for row in table.rows].index("icr")
    score = table.rows[place].scores["sst2"]
    assert score.versus is not None
    line = page.find_elements(By.CSS_SELECTOR, "#table-0 .scores tbody tr")[place]
    soon(page, lambda: find(page, "#table-0 caption").text.startswith("Difference to zero-shot"))
    line = page.find_elements(By.CSS_SELECTOR, "#table-0 .scores tbody tr")[place]
    cell = line.find_elements(By.TAG_NAME, "td")[1 - len(table.columns)]  # behind average, collapse and costs
    assert find(cell, ".value").text == f"+{100 * score.versus.difference:.1f}"
    assert find(cell, ".mark").text == "▲"
    assert "not noise" in (find(cell, ".sr").get_attribute("textContent") or "")


def test_plot_shows_any_column(page: Driver, table: Table) -> None:
    lines = texts(page, "#table-0 .forest li:not(.axis)")
    versus = next(row for row in table.rows if row.label == "icr").scores["average"].versus
    assert versus is not None
    assert any(line.startswith("icr\n") and f"+{100 * versus.difference:.1f}" in line for line in lines)
    Select(find(page, "#table-0 .sub select")).select_by_visible_text("CB")
    assert any("−2.9" in line for line in texts(page, "#table-0 .forest li:not(.axis)"))  # 20 against 22 of 70
    assert "Not drawn" in find(page, "#table-0").text  # the failed cell is named, not left out in silence


def test_details_open_close_and_give_the_focus_back(page: Driver) -> None:
    opener = page.find_elements(By.CSS_SELECTOR, "#table-0 .scores tbody th button")[1]
    page.execute_script("arguments[0].focus()", opener)
    press(page, Keys.ENTER)
    dialog = find(page, "dialog")
    assert dialog.is_displayed()
    assert find(dialog, "h2").text == opener.text
    assert page.execute_script("return document.querySelector('dialog').contains(document.activeElement)")
    assert "Cached parameters" in dialog.text
    press(page, Keys.ESCAPE)
    assert not dialog.is_displayed()
    assert page.switch_to.active_element == opener
    press(page, Keys.ENTER)
    find(dialog, "header button").click()
    assert not dialog.is_displayed()
    assert page.switch_to.active_element == opener


def test_the_keyboard_reaches_everything(page: Driver) -> None:
    page.execute_script("document.activeElement.blur()")
    press(page, Keys.TAB)
    assert page.switch_to.active_element.text == "Skip to the results"
    assert page.switch_to.active_element.rect["x"] >= 0  # on screen once it has the focus
    press(page, Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "main"
    reached = set()
    for _ in range(120):
        press(page, Keys.TAB)
        kind = "return document.activeElement.getAttribute('name') || document.activeElement.getAttribute('class')"
        reached.add(page.execute_script(kind))
        if "which" in reached:
            break
    assert {"role", "method", "view", "link", "scroll", "a", "b", "which"} <= reached


def test_the_top_leads_to_the_single_examples(page: Driver) -> None:
    link = find(page, "#to-examples")
    assert link.is_displayed()
    assert link.get_attribute("href").endswith("#examples")  # type: ignore[union-attr]
    assert find(page, "#examples").is_displayed()


def test_examples_agree_with_the_store(page: Driver, store: Store, table: Table) -> None:
    Select(find(page, "#pair [name=task]")).select_by_visible_text("TREC")
    Select(find(page, "#pair [name=a]")).select_by_visible_text("icv:rank=4, seed 0")
    Select(find(page, "#pair [name=b]")).select_by_visible_text("icr, seed 1")
    keys = {
        (record["cell"]["label"], record["cell"]["seed"]): record["key"]
        for _, record in table.group.records
        if record["cell"]["task"] == "trec"
    }
    one, other = (store.examples(keys[cell])["correct"] for cell in (("icv:rank=4", 0), ("icr", 1)))
    expected = [(one & other).sum(), (one & ~other).sum(), (~one & other).sum(), (~one & ~other).sum()]
    assert all(expected)
    assert texts(page, ".mcnemar td") == [str(number) for number in expected]
    assert len(texts(page, ".rows tbody tr")) == min(20, expected[1] + expected[2])
    Select(find(page, "[name=which]")).select_by_value("both")
    ids = store.examples(keys["icr", 1])["example_id"]
    assert f"{ids[0]} is row 0 of the test data" in find(page, ".rows caption").text
    wanted = list(ids[one & other])
    while find(page, ".more .button").is_displayed():
        page.execute_script("arguments[0].click()", find(page, ".more .button"))
    assert texts(page, ".rows tbody th") == wanted
    assert texts(page, ".rows tbody .logits span")[:2] == ["A 0.00", "B 1.50"]


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_sideways(page: Driver, width: int) -> None:
    resize(page, width, 800)
    page_width = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    inner, outer = page.execute_script(page_width)
    assert inner <= outer <= width
    page.execute_script("document.querySelector('#table-0 .scores tbody th button').click()")
    dialog = find(page, "dialog")
    assert page.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", dialog)
    assert dialog.rect["width"] <= width


def test_themes(page: Driver) -> None:
    def ground() -> str:
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    seen = []
    for scheme in ("light", "dark"):
        prefer(page, "prefers-color-scheme", scheme)
        seen.append(ground())
    assert seen[0] != seen[1]
    Select(find(page, "#theme")).select_by_value("light")
    assert ground() == seen[0]
    page.refresh()
    assert ground() == seen[0]  # the choice is kept
    Select(find(page, "#theme")).select_by_value("")
    assert ground() == seen[1]


def test_moves_nothing_for_those_who_ask(page: Driver) -> None:
    for value, expected in (("no-preference", "smooth"), ("reduce", "auto")):
        prefer(page, "prefers-reduced-motion", value)
        assert page.execute_script("return getComputedStyle(document.documentElement).scrollBehavior") == expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_axe_finds_nothing(page: Driver, width: int, scheme: str) -> None:
    resize(page, width, 900)
    prefer(page, "prefers-color-scheme", scheme)
    page.execute_script(AXE.read_text("utf-8"))
    run = "const done = arguments[0]; axe.run(document).then((found) => done(found.violations.map((v) => v.help)))"
    page.execute_script("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.execute_async_script(run) == []
    page.execute_script("document.querySelector('#table-0 .scores tbody th button').click()")
    assert page.execute_async_script(run) == []


def test_variants_are_drawn_against_the_plain_method(browser: Driver, tmp_path: Path) -> None:
    long = "icr:alpha=uniform:basis=random:domains=agnews+csqa+trec:gamma=uniform"
    for place, label in enumerate(("zero_shot", "icv", "icr", long)):
        fill(Store(tmp_path), label, None if label == "zero_shot" else 0, [30 + 5 * place] * 4, 0)
    write_report(tmp_path, tmp_path)
    resize(browser, 390, 844)
    browser.get((tmp_path / "leaderboard.html").as_uri())
    assert find(browser, "#table-0 h3").text == "How far from zero-shot?"
    assert find(browser, "#table-1 h3").text == "How far from icr?"
    lines = texts(browser, "#table-1 .forest li:not(.axis)")
    assert [line.split("\n")[0] for line in lines] == [long, "zero_shot"]
    names = browser.find_elements(By.CSS_SELECTOR, "#table-1 tbody th button")
    browser.execute_script("arguments[0].click()", next(name for name in names if name.text == long))
    dialog = find(browser, "dialog")
    assert find(dialog, "h2").text == long
    assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", dialog)
