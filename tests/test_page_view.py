"""What a reader makes of the page: a view that a link keeps, files of it, models side by side."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from icrbench.report import write_report
from icrbench.report.leaderboard import Table
from icrbench.report.text.numbers import tenths
from icrbench.store.store import Store
from page_setup import (
    EVIL,
    Driver,
    browser,
    fill,
    find,
    methods,
    needs_chromium,
    page,
    press,
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


def view(page: Driver) -> dict[str, str]:
    """What the address says."""
    return {name: value for name, (value,) in parse_qs(page.current_url.partition("#")[2]).items()}


def test_a_link_reproduces_the_view(page: Driver) -> None:
    assert "#" not in page.current_url
    Select(find(page, "[name=calibrate]")).select_by_value("bc")
    page.execute_script("document.querySelector('[name=view][value=d]').click()")
    find(page, "[name=method]").send_keys("ic")
    soon(page, lambda: len(texts(page, "#table-1 .scores tbody tr")) == 1)
    titles = page.find_elements(By.CSS_SELECTOR, "#table-1 thead button")
    page.execute_script("arguments[0].click()", next(title for title in titles if title.text == "TREC"))
    Select(find(page, "#table-1 .panel select")).select_by_visible_text("SST-2")
    page.execute_script("document.querySelector('#table-1 .scores tbody th button').click()")
    expected = {"calibrate": "bc", "view": "d", "method": "ic", "sort": "-trec", "column": "sst2", "open": "1 icr"}
    assert view(page) == expected
    link, seen = page.current_url, texts(page, ".verdicts, #tables, dialog")
    page.get("about:blank")
    page.get(link)
    soon(page, lambda: find(page, "dialog").is_displayed())
    assert texts(page, ".verdicts, #tables, dialog") == seen
    assert find(page, "[name=method]").get_attribute("value") == "ic"
    press(page, Keys.ESCAPE)
    soon(page, lambda: "open" not in view(page))
    assert find(page, "#table-1 [aria-sort]").text.startswith("TREC")


def test_a_link_followed_on_the_page_changes_the_view(page: Driver) -> None:
    page.execute_script("location.hash = 'role=near_ood'")
    soon(page, lambda: texts(page, "#table-0 thead button") == ["Method", "Average", "MR", "Average"])
    assert Select(find(page, "[name=role]")).first_selected_option.text == "Near out-of-domain"
    page.execute_script("location.hash = 'open=' + encodeURIComponent(arguments[0])", f"0 {EVIL}")
    soon(page, lambda: find(page, "dialog").is_displayed())
    assert find(page, "dialog h2").text == EVIL


def test_a_link_with_what_is_not_there_shows_the_usual(page: Driver) -> None:
    seen = find(page, "#tables").text
    page.execute_script("location.hash = arguments[0]", "metric=none&role=x&view=e&cost=y&column=z&open=9%20icr&more=1")
    soon(page, lambda: "more" not in page.current_url)
    assert find(page, "#tables").text == seen
    assert not find(page, "dialog").is_displayed()


def test_places_on_the_page_keep_the_view(page: Driver) -> None:
    Select(find(page, "[name=role]")).select_by_value("id")
    soon(page, lambda: view(page) == {"role": "id", "column": "id"})
    find(page, ".jump [href='#help']").click()
    soon(page, lambda: find(page, "#help dl").is_displayed())
    assert view(page) == {"role": "id", "column": "id"}


def saved(page: Driver, folder: Path, name: str) -> str:
    """Press a button and wait for its file."""
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    find(page, f"#{name}").click()
    file = folder / f"leaderboard-shown.{name}"
    soon(page, file.exists)
    soon(page, lambda: file.stat().st_size > 0)
    return file.read_text("utf-8")


def number(text: str) -> float | None:
    return float(text) if text else None


def test_what_is_shown_is_saved(page: Driver, table: Table, tmp_path: Path) -> None:
    lines = list(csv.DictReader(saved(page, tmp_path, "csv").splitlines()))
    found: list[dict[str, Any]] = json.loads(saved(page, tmp_path, "json"))
    assert len(lines) == len(found) == len(table.rows) * len(table.columns) + 2 * 3  # and the smaller comparison
    own = {(line["comparison"], line["method"], line["column"]): line for line in lines}
    for row in table.rows:
        for column in table.columns:
            line, score = own[table.title, row.label, column.name], row.scores[column.name]
            assert number(line["value"]) == (None if score.mean is None else tenths(score.mean))
            assert number(line["difference"]) == (score.versus and tenths(score.versus.difference))
            assert line["status"] == score.status
    for line, entry in zip(lines, found, strict=True):
        known = {name: str(value).lower() if isinstance(value, bool) else value for name, value in entry.items()}
        assert {name for name, text in line.items() if text} == known.keys()
        assert all(line[name] == value or float(line[name]) == value for name, value in known.items())
    Select(find(page, "[name=metric]")).select_by_value("mcc")
    find(page, "[name=method]").send_keys("icr")
    soon(page, lambda: methods(page) == ["icr"])
    (tmp_path / "leaderboard-shown.csv").unlink()
    lines = list(csv.DictReader(saved(page, tmp_path, "csv").splitlines()))
    assert {(line["method"], line["metric"]) for line in lines} == {("icr", "mcc")}


@pytest.fixture
def models(browser: Driver, tmp_path: Path) -> Iterator[Driver]:
    results = Store(tmp_path / "results")
    for model, shift in (("small", 0), ("large", 10)):
        for label, right in (("zero_shot", 20), ("icr", 40), ("icv", 30 + 2 * shift)):
            fill(results, label, None if label == "zero_shot" else 0, [right + shift] * 4, shift, model=model)
    fill(results, "lora", 0, [35] * 4, 0, model="small")
    fill(results, "zero_shot", None, [20], 0, model="small", limit=50)
    fill(results, "zero_shot", None, [20, 20], 0, model="large", limit=50)
    write_report(results.folder, results.folder)
    browser.get((results.folder / "leaderboard.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


def test_models_stand_side_by_side(models: Driver) -> None:
    def shown() -> dict[str, list[str]]:
        lines = models.find_elements(By.CSS_SELECTOR, "#models-0 tbody tr")
        return {
            find(line, "th").text: [cell.text.split("\n")[0] for cell in line.find_elements(By.TAG_NAME, "td")]
            for line in lines
        }

    assert texts(models, "#models-0 thead th") == ["Method", "large", "small"]
    assert find(models, "#to-models").is_displayed()
    found = shown()
    assert {name: [text.rstrip("▲") for text in line] for name, line in found.items()} == {
        "zero_shot": ["42.9", "28.6"],
        "icv": ["85.7", "42.9"],
        "icr": ["71.4", "57.1"],
        "lora": ["—", "50.0"],
    }
    assert all(text for text in texts(models, "#models-0 td .ci"))
    assert texts(models, "#models-0 .best") == ["85.7", "57.1"]
    assert ["different tasks" in caption for caption in texts(models, "#models caption")] == [False, True]
    models.execute_script("document.querySelector('#models-0 thead th:last-child button').click()")
    assert list(shown()) == ["icr", "lora", "icv", "zero_shot"]
    models.execute_script("document.querySelector('[name=view][value=d]').click()")
    soon(models, lambda: shown()["icr"][1].startswith("+28.6"))
    Select(find(models, "[name=model]")).select_by_visible_text("small")
    soon(models, lambda: not models.find_elements(By.CSS_SELECTOR, "#models section"))
    assert not find(models, "#to-models").is_displayed()
