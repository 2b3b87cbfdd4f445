"""The command and its page in a browser, beside a run in progress."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboards import HOSTILE, cut_config, edit

SERVER = "import typer; from fedkin.cli import dashing; typer.run(dashing.dashboard)"


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """The command as a user starts it; it ends in good order at Ctrl-C."""
    args = [sys.executable, "-c", SERVER, str(root), "--port", "0"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, process.communicate(timeout=5)
        yield found.group(0)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=20)
        assert (process.returncode, said, errors) == (0, "ended\n", "")
    finally:
        process.kill()
        process.communicate()


def test_it_ends_in_good_order_as_soon_as_it_has_said_its_address(address: str) -> None:
    assert address


@pytest.fixture
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page is tried in a browser with selenium")
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium with chromedriver here to try the page in")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service

    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)
    return value


@pytest.mark.slow
def test_a_run_in_progress_is_followed_in_a_browser(root: Path, address: str, browser: Any, tmp_path: Path) -> None:
    shutil.copytree(root / "deep/good", root / HOSTILE)
    edit(root / HOSTILE / "config.json", lambda c: c["clients"].__setitem__(0, HOSTILE))
    cut_config(Path(shutil.copytree(root / "deep/good", root / "damaged")))
    artefacts = [tmp_path, *([Path(os.environ["FEDKIN_ARTEFACTS"])] if os.environ.get("FEDKIN_ARTEFACTS") else [])]

    def js(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    def keep(name: str) -> None:
        for width in (1400, 700):
            browser.set_window_size(width, 1000)
            time.sleep(1)
            browser.set_window_size(width, js("document.documentElement.scrollHeight") + 200)
            time.sleep(1)
            assert js("document.documentElement.scrollWidth") <= width, "the page is no wider than its window"
            charts = "[...document.querySelectorAll('.chart')]"
            assert js(f"{charts}.every(c => c.scrollHeight <= c.clientHeight + 1)"), "charts stay in their places"
            for folder in artefacts:
                folder.mkdir(parents=True, exist_ok=True)
                assert browser.save_screenshot(str(folder / f"dashboard-{name}-{width}.png"))

    args = ["run", "spfl", "--data", "digits", "--clients", "8", "--rounds", "200", "--workers", "1"]
    run = subprocess.Popen(
        [sys.executable, "-m", "fedkin", *args, "--out", str(root / "going")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        browser.set_window_size(1400, 1000)
        browser.get(f"{address}/#run=deep/good")  # an address says what is chosen
        row = "document.querySelector('tr[data-run=going]')"
        until(lambda: js(f"{row} !== null"), "the run to appear")
        js(f"{row}.click()")
        points = "(document.getElementById('curves').data ?? []).find(t => t.name === 'going')?.x.length ?? 0"
        before = until(lambda: js(points), "its first round")
        until(lambda: js(points) > before, "its curve to grow")
        until(lambda: "running" in js(f"{row}.textContent"), "its state")
        until(lambda: js("document.getElementById('focus').value") == "going", "its details")
        cells = "(document.getElementById('kin').calcdata ?? []).map(t => [t[0].z.length, t[0].z[0].length])"
        shown = until(lambda: js(cells), "the heat maps")
        assert len(shown) >= 2
        assert shown == [[8, 8]] * len(shown)
        assert js("document.querySelectorAll('#kin .heatmaplayer image').length") == len(shown)
        assert js("document.querySelectorAll('#people-table tbody tr').length") == 8
        js("document.querySelector('#people-table th:nth-child(2) button').click()")
        column = js("[...document.querySelectorAll('#people-table tbody td:nth-child(2)')].map(c => +c.textContent)")
        assert column == sorted(column, reverse=True)
        keep("going")
    finally:
        run.kill()
        run.wait()

    # Hostile names are text in tables and charts; what is damaged is told.
    js(f"[...document.querySelectorAll('#runs tbody tr')].find(r => r.dataset.run === '{HOSTILE}').click()")
    until(lambda: HOSTILE in js("document.getElementById('people-table').textContent"), "the hostile client")
    until(lambda: HOSTILE in js("document.getElementById('curves').textContent"), "the hostile curve")
    assert js("document.querySelectorAll('img, main script').length") == 0
    assert "not valid JSON" in js("document.querySelector('tr[data-run=damaged]').textContent")
    # An earlier round on the slider changes what the map shows.
    steps = js("document.getElementById('kin').layout.sliders?.[0].steps.length ?? 0")
    assert steps > 1
    newest = js("JSON.stringify(document.getElementById('kin').calcdata[0][0].z)")
    js("document.querySelector('#kin .slider-rail-touch-rect').scrollIntoView()")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    rail = browser.find_element(By.CSS_SELECTOR, "#kin .slider-rail-touch-rect")
    ActionChains(browser).move_to_element_with_offset(rail, -rail.size["width"] // 2 + 5, 0).click().perform()
    until(lambda: js("JSON.stringify(document.getElementById('kin').calcdata[0][0].z)") != newest, "an earlier round")
    # Search leaves what fits.
    js("(s => { s.value = 'damaged'; s.dispatchEvent(new Event('input')); })(document.getElementById('search'))")
    assert js("[...document.querySelectorAll('#runs tbody tr')].map(r => r.dataset.run)") == ["damaged"]
    js("(s => { s.value = ''; s.dispatchEvent(new Event('input')); })(document.getElementById('search'))")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    keep("dark")
    # What plotly would like in style attributes is refused, and that is all that is wrong.
    for entry in browser.get_log("browser"):
        assert "inline style" in entry["message"], entry
