"""What a reader sees of the page before doing anything, with and without JavaScript."""

from collections.abc import Iterator

import pytest

from icrbench.report.leaderboard import Table
from icrbench.report.page.ranking import ranking
from page_setup import Driver, browser, find, needs_chromium, page, resize, store, table, texts

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from selenium.webdriver.common.by import By

__all__ = ["browser", "page", "store", "table"]  # fixtures

pytestmark = needs_chromium


@pytest.fixture
def still(page: Driver) -> Iterator[Driver]:
    """The page without JavaScript."""
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.refresh()
    yield page
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_ranking_is_in_sight_without_scrolling(page: Driver, table: Table, width: int, height: int) -> None:
    resize(page, width, height)
    lines = page.find_elements(By.CSS_SELECTOR, ".verdict[data-table='0'] .ranking tbody tr")
    assert len(lines) == len(ranking(table))
    for place, line in zip(ranking(table), lines, strict=True):
        name, *numbers = texts_of(line)
        assert name.split()[-1] == place.name.split()[-1]
        assert numbers[0] == f"{place.mean}\n{place.interval}"
        assert numbers[1].startswith(place.gain) or place.number is None
        assert numbers[2] == f"{place.fit}\n{place.prompt}"
        assert line.rect["y"] + line.rect["height"] <= height
        assert line.rect["x"] >= 0
        assert line.rect["x"] + line.rect["width"] <= width


def texts_of(line: object) -> list[str]:
    return [cell.text for cell in line.find_elements(By.CSS_SELECTOR, "th, td")]  # type: ignore[attr-defined]


def test_words_are_folded_and_name_their_cautions(page: Driver) -> None:
    assert not find(page, ".verdict dl").is_displayed()
    summary = find(page, ".verdict summary")
    assert summary.text.startswith("In words, with 1 caution")
    summary.click()
    assert find(page, ".verdict dl").is_displayed()
    assert "missing or failed cells" in find(page, ".verdict .beware").text


def test_a_name_in_the_ranking_opens_its_method(page: Driver) -> None:
    find(page, ".ranking [data-label=icr] button").click()
    assert find(page, "dialog h2").text == "icr"


def test_without_script_there_are_rankings_and_no_idle_controls(still: Driver, table: Table) -> None:
    assert texts_of(find(still, ".ranking tbody tr"))[1].startswith(ranking(table)[0].mean)
    controls = still.find_elements(By.CSS_SELECTOR, "button, select, input, form, [role=button]")
    assert [control.get_attribute("outerHTML") for control in controls if control.is_displayed()] == []
    links = still.find_elements(By.CSS_SELECTOR, "a[href^='#']")
    targets = [str(link.get_attribute("href")).rpartition("#")[2] for link in links if link.is_displayed()]
    assert set(targets) == {"help"}
    assert find(still, "#help").is_displayed()
    assert "need JavaScript" in find(still, "body").text


def test_with_script_they_are_there(page: Driver) -> None:
    assert find(page, "#theme").is_displayed()
    assert find(page, "#filters").is_displayed()
    assert "All numbers of this comparison" in texts(page, ".verdict a")
