"""Costs on the page: columns of the table, and accuracy drawn against them."""

import pytest

from icrbench.report.leaderboard import Table
from icrbench.report.page.costs import costs
from icrbench.store.store import Store
from page_setup import (
    Driver,
    browser,
    button,
    find,
    methods,
    needs_chromium,
    page,
    press,
    resize,
    soon,
    store,
    table,
    texts,
)
from records import record

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

__all__ = ["browser", "page", "store", "table"]  # fixtures

DOTS = "#table-0 .scatter .point"


def test_costs_are_means_in_their_units() -> None:
    one = record(more={"seconds_fit": 1.0, "fit_peak_bytes": 2**20, "cached_parameters": 7, "prompt_tokens": 80})
    two = record(more={"seconds_fit": 2.0, "fit_peak_bytes": 2**21, "cached_parameters": 9, "prompt_tokens": 100})
    found = costs([one, two, record(error="no result")])
    assert found == {
        "fit_seconds": (1.5, "1.5"),
        "fit_peak_bytes": (2.0, "2"),  # the larger
        "cached_parameters": (8.0, "8"),
        "prompt_tokens": (45.0, "45"),  # 180 over the 4 rows of both
        "milliseconds_a_row": (500.0, "500"),
    }  # nothing of tokens, which no record says
    assert costs([record(error="no result")]) == {}


def labels_of(page: Driver) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((dot) => dot.getAttribute('aria-label'))"
    found: list[str] = page.execute_script(script, DOTS)
    return found


@needs_chromium
def test_the_table_has_costs_and_sorts_by_them(page: Driver, table: Table) -> None:
    button(page, "Fit, s").click()
    by_label = table.group.by_label()
    expected = sorted(costs(by_label[row.label])["fit_seconds"][0] for row in table.rows)
    place = texts(page, "#table-0 .scores thead tr:last-child th").index("Fit, s↑")
    shown = [
        float(line.find_elements(By.TAG_NAME, "td")[place].text)
        for line in page.find_elements(By.CSS_SELECTOR, "#table-0 .scores tbody tr")
    ]
    assert shown == [round(value, 1) for value in expected]
    button(page, "Fit, s").click()
    assert methods(page)[0] == "M2IV-style"  # the dearest


@needs_chromium
def test_a_dot_for_each_method_with_an_average(page: Driver, table: Table) -> None:
    means = {row.name: row.scores["average"].mean for row in table.rows if row.scores["average"].mean is not None}
    labels = labels_of(page)
    assert {label.split(": Accuracy")[0] for label in labels} == means.keys()
    for name, mean in means.items():
        (label,) = [label for label in labels if label.startswith(f"{name}: ")]
        assert f"Accuracy {100 * mean:.1f} (" in label
    # Nobody is better for less than the method with the best average; some are both worse and dearer.
    ahead = [str(dot.get_attribute("aria-label")) for dot in page.find_elements(By.CSS_SELECTOR, f"{DOTS}.ahead")]
    assert any(label.startswith("icr: ") for label in ahead)
    assert not any(label.startswith("M2IV-style: ") for label in ahead)


@needs_chromium
def test_dots_lie_where_their_numbers_are(page: Driver) -> None:
    def places() -> dict[str, tuple[float, float]]:
        found = {}
        for dot in page.find_elements(By.CSS_SELECTOR, DOTS):
            name = str(dot.get_attribute("aria-label")).split(": ")[0]
            circle = dot.find_element(By.CSS_SELECTOR, ".dot")
            found[name] = (float(str(circle.get_attribute("cx"))), float(str(circle.get_attribute("cy"))))
        return found

    by_seconds = places()
    assert by_seconds["zero_shot"][0] < by_seconds["icr"][0] < by_seconds["icv:rank=4"][0] < by_seconds["M2IV-style"][0]
    assert by_seconds["icr"][1] < by_seconds["M2IV-style"][1] < by_seconds["zero_shot"][1]  # higher up is better
    Select(find(page, "#table-0 .panel:last-child select")).select_by_visible_text("Prompt, tokens")
    soon(page, lambda: places() != by_seconds)
    by_prompt = places()
    assert by_prompt["M2IV-style"][0] < by_prompt["zero_shot"][0]
    assert by_prompt["icr"][1] == by_seconds["icr"][1]


@needs_chromium
def test_names_appear_on_pointing_and_by_keyboard(page: Driver) -> None:
    tip = find(page, "#table-0 .tip")
    assert not tip.is_displayed()
    dots = page.find_elements(By.CSS_SELECTOR, DOTS)
    ActionChains(page).move_to_element(dots[2]).perform()
    assert tip.text.split("\n")[0] == labels_of(page)[2].split(": ")[0]
    ActionChains(page).move_to_element(find(page, "h1")).perform()
    assert not tip.is_displayed()
    page.execute_script("arguments[0].focus()", dots[0])
    press(page, Keys.ARROW_RIGHT)
    assert page.switch_to.active_element == dots[1]
    assert tip.text.split("\n")[0] == labels_of(page)[1].split(": ")[0]
    assert [dot.get_attribute("tabindex") for dot in dots].count("0") == 1  # one stop of the Tab key
    press(page, Keys.ENTER)
    assert find(page, "dialog h2").text == labels_of(page)[1].split(": ")[0]
    press(page, Keys.ESCAPE)
    assert page.switch_to.active_element == dots[1]


@needs_chromium
def test_the_plot_follows_task_metric_and_width(page: Driver) -> None:
    Select(find(page, "#table-0 .panel select")).select_by_visible_text("CB")
    soon(page, lambda: any("Accuracy 28.6" in label for label in labels_of(page)))  # 20 of 70
    Select(find(page, "[name=metric]")).select_by_value("brier")
    soon(page, lambda: "Brier score against cost" in texts(page, "#table-0 h3"))
    assert all("Brier score" in label for label in labels_of(page))
    resize(page, 390, 844)
    soon(page, lambda: find(page, "#table-0 .scatter svg").rect["width"] < 360)


@needs_chromium
def test_heads_of_tables_stay_in_sight(page: Driver, store: Store) -> None:
    resize(page, 1280, 300)  # so that the table scrolls in its frame
    frame = find(page, "#table-0 .scroll")
    page.execute_script("arguments[0].scrollIntoView(); arguments[0].scrollTop = 150", frame)
    assert page.execute_script("return arguments[0].scrollTop", frame) > 100
    head = find(page, "#table-0 .scores thead")
    top = "return arguments[0].getBoundingClientRect().top"
    assert abs(page.execute_script(top, head) - page.execute_script(top, frame)) <= 2
