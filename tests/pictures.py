"""A browser for tests, and the pictures of pages in the documentation.

A test that opens a page also looks whether a picture of it shows something. `make pictures` runs these tests so that
they write the pictures to docs/, too.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver

ROOT = Path(__file__).resolve().parents[1]
WRITES = bool(os.environ.get("MIRRORLAKE_TEST_PICTURES"))
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
LEAST_COLOURS, LEAST_SHARE = 20, 0.02  # of a picture that shows something: its colours, and all but the commonest one
MOST_BYTES = 100_000


@contextmanager
def chromium(profile: Path) -> Iterator[WebDriver]:
    """Runs a browser for the length of a block."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def take_picture(browser: WebDriver, name: str = "") -> None:
    """Takes a picture of what the window shows, asserts that it is not blank, and writes it if that was asked for.

    Args:
        browser: shows the page.
        name: of the picture in docs/, without its ending; empty if it is not for there.
    """
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    assert_shows_something(picture)
    if WRITES and name:
        file = ROOT / f"docs/{name}.png"
        picture.quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
        assert file.stat().st_size < MOST_BYTES, f"{file} has {file.stat().st_size} bytes"


def assert_shows_something(picture: Image.Image) -> None:
    """Asserts that a picture has many colours, and that one of them does not fill it."""
    counts = sorted(count for count, _ in picture.getcolors(1 << 24) or ())
    share = 1 - counts[-1] / sum(counts)
    assert len(counts) >= LEAST_COLOURS, f"the picture has {len(counts)} colours"
    assert share >= LEAST_SHARE, f"the picture is blank but for {share:.1%}"
