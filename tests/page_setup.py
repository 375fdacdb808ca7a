"""What the tests of the page in a browser share: a results folder, Chromium without a window, and ways to look."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from calibration_setup import priors_of
from icrbench.report import write_report
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.store.priors import write_priors
from icrbench.store.store import Store
from records import TASKS, add

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: apt-get install chromium chromium-driver"
)
N = 70
EVIL = 'icv:domains=<script>document.title="taken"</script>"&'
COUNTS = {
    "zero_shot": [35, 28, 38, 22],
    "icr": [56, 36, 52, 20],
    "icv:rank=4": [52, 40, 52, 24],
    "m2iv": [40, 30, 40, 22],
}

Driver = webdriver.Chrome


def spread(correct: int, shift: int) -> list[bool]:
    """Which rows are right differs between methods, so that all four cells of their table hold something."""
    return [(number + shift) % N < correct for number in range(N)]


def fill(store: Store, label: str, seed: int | None, counts: Sequence[int], shift: int, **more: object) -> None:
    for task, count in zip(TASKS, counts, strict=False):
        add(store, task, label, seed, spread(count, shift), **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("page") / "results")
    for place, (label, counts) in enumerate(COUNTS.items()):
        more = {"seconds_fit": 10.0 * place, "fit_tokens": 10**place, "prompt_tokens": N * (40 - place)}
        fill(store, label, None if label == "zero_shot" else 0, counts, 5 * place, more=more)
    fill(store, "icr", 1, [57, 36, 50, 20], 5)
    fill(store, EVIL, 0, [40, 30, 40], 3)
    add(store, "cb", EVIL, 0, spread(1, 0), error="<img src=x onerror='document.title=1'> & out of memory")
    fill(store, "zero_shot", None, [20, 16], 0, limit=50)
    fill(store, "icr", 0, [30, 20], 0, limit=50)
    for made in store.records():
        if made["data"]["limit"] == 50:  # corrected for this prior every answer is the second option, which is right
            write_priors(store.folder, made["key"], priors_of({"bc": [[5.0, 0.0]]}))
    return store


@pytest.fixture(scope="module")
def table(store: Store) -> Table:
    return leaderboards(store)[0]


@pytest.fixture(scope="module")
def browser(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-prefers-reduced-motion",  # or clicks would have to wait until scrolling has ended
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    write_report(store.folder, store.folder)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER or ""))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(browser: Driver, store: Store) -> Iterator[Driver]:
    """The page, freshly loaded on a desk; afterwards nothing may stand in the console."""
    resize(browser, 1280, 900)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get("about:blank")  # or a page that differs in its fragment alone would not be loaded again
    browser.get((store.folder / "leaderboard.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []
    assert browser.title == "icrbench leaderboard"


def resize(browser: Driver, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: Driver, name: str, value: str) -> None:
    """Set what the reader prefers, as a media feature."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": name, "value": value}]})


def find(page: Any, selector: str) -> WebElement:
    found: WebElement = page.find_element(By.CSS_SELECTOR, selector)
    return found


def texts(page: Driver, selector: str) -> list[str]:
    """In one step, so that nothing is replaced in between."""
    script = "return [...document.querySelectorAll(arguments[0])].map((element) => element.innerText.trim())"
    found: list[str] = page.execute_script(script, selector)
    return found


def soon(page: Driver, condition: Callable[[], bool]) -> None:
    WebDriverWait(page, 20).until(lambda _: condition())


def methods(page: Driver) -> list[str]:
    return texts(page, "#table-0 .scores tbody th button")


def button(page: Driver, title: str) -> WebElement:
    buttons = page.find_elements(By.CSS_SELECTOR, "#table-0 .scores thead button")
    return next(one for one in buttons if one.text.rstrip("↑↓").strip() == title)


def press(page: Driver, key: str) -> None:
    page.switch_to.active_element.send_keys(key)
