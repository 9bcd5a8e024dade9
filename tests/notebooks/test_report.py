"""The report as users get it: one file, opened in a browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mirrorlake.demo.page import PROVEN, proof_section, story_page
from mirrorlake.ledger.store import Ledger
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from tests.empty_ledger import ledger_in
from tests.pictures import WRITES, chromium, take_picture
from tests.report_ledger import HOURS, UNTIL, fill_report
from tests.world import PROCESS_S

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("lag", "throughput", "stages", "freshness", "gates", "verified")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def ledger(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Returns the tables of an example day of two flows."""
    return fill_report(ledger_in(spark, "report", tmp_path_factory.mktemp("report")))


@pytest.fixture(scope="module")
def page(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the report of the example day, by the command that the README names."""
    directory = tmp_path_factory.mktemp("page")
    made = subprocess.run(
        [
            "make",
            "report",
            f"WAREHOUSE={ledger.warehouse}",
            f"SCHEMA={ledger.schema}",
            f"HOURS={HOURS}",
            f"UNTIL={UNTIL}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    assert "made .local/report.html" in made.stdout
    return (ROOT / ".local/report.html").rename(directory / "report.html")


def script(browser: WebDriver, text: str) -> Any:
    return browser.execute_script(f"return {text}")


def test_the_report_says_how_every_flow_is(browser: WebDriver, page: Path) -> None:
    browser.set_window_size(960, 1_043)
    browser.get(page.as_uri())
    take_picture(browser, "report")
    well, unwell = (
        next(card for card in browser.find_elements(By.CSS_SELECTOR, ".mirrorlake-card") if name in card.text)
        for name in ("west → east", "north → south")
    )
    assert "No problems." in well.text
    assert "146 evaluated, 0 failed" in well.text
    assert "2026-11-20 13:59:30, all records" in well.text
    assert "A gate failed in 1 of 146 evaluations; 1 anomaly, 1,250 records lost." in unwell.text
    assert "2026-11-20 09:58:00" in unwell.text, "the last commit before the first record that is not verified"
    assert "worry" in unwell.get_attribute("class").split()
    assert "worry" not in well.get_attribute("class").split()
    assert "deleted on the source before they were mirrored" in browser.find_element(By.ID, "cell-id=anomalies").text


@pytest.mark.parametrize("width", [1280, 420])
def test_every_picture_is_seen_and_nothing_sticks_out(browser: WebDriver, page: Path, width: int) -> None:
    browser.set_window_size(width, 900)
    browser.get(page.as_uri())
    for name in FIGURES:
        (image,) = browser.find_elements(By.CSS_SELECTOR, f"#cell-id\\={name} img")
        seen = script(
            browser,
            "(image => [image.complete, image.naturalWidth, image.clientWidth, "
            f"image.alt])(document.querySelectorAll('#cell-id\\\\={name} img')[0])",
        )
        is_complete, natural_width, shown_width, alt = seen
        assert is_complete
        assert natural_width > 1_000
        assert 200 < shown_width <= width
        assert len(alt) > 20
        assert image.is_displayed()
    assert script(browser, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_page_needs_nothing_from_elsewhere_and_has_no_errors(browser: WebDriver, page: Path) -> None:
    browser.get_log("performance")
    browser.get(page.as_uri())
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    }
    assert page.as_uri() in asked
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_no_code_is_shown(browser: WebDriver, page: Path) -> None:
    browser.get(page.as_uri())
    text = browser.find_element(By.TAG_NAME, "body").text
    assert "import" not in text
    assert '"problems"' not in text, "the result is for the job"


OFFSETS = {"upstream": 1_500, "downstream": 1_400, "unread": 12, "again": 0, "skipped": 0}


@pytest.fixture(scope="module")
def demo_page(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the page of the demo from the example day, with a group that went wrong."""
    moves = [
        {"group": "<b>billing", "partition": "orders-0", **OFFSETS},
        {"group": "fraud", "partition": "orders-1", **OFFSETS, "again": 1},
    ]
    compared = pd.DataFrame([["orders", 0, 2, 0, 0, 0, 0, None]], columns=PROVEN)
    proof = proof_section("verified to <now>, 2 records, 0 differences", compared, passed=True)
    path = tmp_path_factory.mktemp("demo") / "demo.html"
    path.write_text(story_page(ledger, "west->east", moves, proof))
    return path


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_of_the_demo_is_small_needs_nothing_else_and_says_whether_a_group_went_wrong(
    browser: WebDriver, demo_page: Path, width: int
) -> None:
    assert demo_page.stat().st_size < 400_000
    browser.set_window_size(width, 900)
    browser.get(demo_page.as_uri())
    body = browser.find_element(By.TAG_NAME, "body").text
    assert "2 positions moved, 1 wrong." in body
    assert "<b>billing" in body
    assert "verified to <now>, 2 records, 0 differences" in body
    assert "orders 0 2 0 0 0 0 -" in body
    assert "west → east" in body
    pictures = script(browser, "[...document.images].map(one => one.complete && one.naturalWidth > 500 && !!one.alt)")
    assert pictures == [True] * 3
    assert "2 s before the end" in body, "the figures show the time in which the jobs were at work, and no other"
    titles = script(browser, "[...document.querySelectorAll('h2')].map(one => one.innerText)")
    assert titles == ["Groups before and after", "The proof", "The map", "Lag", "Throughput", "The gate"]
    assert "expectations, evaluated" in body
    assert "never" not in body, "the verification is within the period, although it ends after the jobs"
    assert script(browser, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    others = "performance.getEntriesByType('resource').filter(one => !one.name.startsWith('data:')).length"
    assert script(browser, others) == 0
    take_picture(browser)


@pytest.mark.skipif(not WRITES, reason="takes a picture for the documentation: make pictures")
def test_a_picture_of_the_page_of_the_demo(browser: WebDriver, ledger: Ledger, tmp_path: Path) -> None:
    moves = [{"group": group, "partition": f"orders-{at}", **OFFSETS} for at, group in enumerate(("billing", "fraud"))]
    compared = pd.DataFrame([["orders", 0, 9_412, 0, 0, 0, 0, 0], ["orders", 1, 9_377, 0, 0, 0, 0, 0]], columns=PROVEN)
    proof = proof_section("verified to 13:59:30, 18,789 records, 0 differences", compared, passed=True)
    path = tmp_path / "demo.html"
    path.write_text(story_page(ledger, "west->east", moves, proof, hours=str(HOURS), until=str(UNTIL)))
    browser.set_window_size(1_000, 1_031)
    browser.get(path.as_uri())
    take_picture(browser, "demo")
