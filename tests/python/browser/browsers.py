"""A headless Chromium, driven by Selenium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Browser", "browser", "missing"]

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
    "--disable-lcd-text", "--window-size=1600,1200",
)  # fmt: skip


def _programs() -> dict[str, str | None]:
    names = ("chromium", "chromium-browser", "google-chrome")
    return {
        "chromium": next(filter(None, map(shutil.which, names)), None),
        "chromedriver": shutil.which("chromedriver"),
    }


def missing() -> str:
    """The programs and packages that are not installed, as text; "" if all are."""
    lacking = [name for name, path in _programs().items() if path is None]
    try:
        import selenium.webdriver  # noqa: F401
    except ImportError:
        lacking.append("selenium")
    if not lacking:
        return ""
    return f"{', '.join(lacking)} not installed (Debian: chromium chromium-driver; pip: selenium)"


class Browser:
    """One page at a time."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.dark = False

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def open(self, path: Path, width: int = 1000, dark: bool = False, height: int = 900, touch: bool = False) -> None:
        self.dark = dark
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height)
        self.cdp("Emulation.setTouchEmulationEnabled", enabled=touch, maxTouchPoints=1)
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def resize(self, width: int, height: int = 900) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Waits until the page has handled scrolling, drawn, and run its timers."""
        self.driver.execute_async_script(
            "const done = arguments[0];requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 120)));"
        )

    def messages(self) -> list[str]:
        return [m["message"] for m in self.driver.get_log("browser")]

    def loaded(self, page: Path) -> list[str]:
        """The other URLs that the page has requested."""
        found = []
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            about = event["params"]
            if event["method"] == "Network.requestWillBeSent" and about["documentURL"].startswith(page.as_uri()):
                found.append(about["request"]["url"])  # other contexts belong to the browser
        assert page.as_uri() in found, "the browser's log has no requests"
        return [url for url in found if not url.startswith((page.as_uri(), "data:"))]


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts the browser, and ends it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    programs = _programs()
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
