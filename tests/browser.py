"""
A browser for tests: chromium without a window, driven through selenium.

selenium, because it speaks the W3C's WebDriver protocol to the driver that a distribution ships with its
browser, in Debian `chromium` and `chromium-driver`, and so fetches nothing itself. Playwright wants browsers
that it has built and downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Told to whatever page comes next, before anything of its own runs.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => violations.push(event.violatedDirective));
"""


class Browser:
    """
    One tab, and what it asked for and refused.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.command("Page.addScriptToEvaluateOnNewDocument", source=WATCH)

    def command(self, name: str, **parameters: Any) -> Any:
        """Give a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def open(self, file: Path, *, width: int = 1280, scheme: str = "light", media: str = "screen") -> None:
        """Open a file as a screen of some width shows it, or as it is printed."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)
        self.driver.get_log("performance")
        self.driver.get("about:blank")
        self.driver.get(file.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """Find elements."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        """Find an element."""
        return self.driver.find_element("css selector", selector)

    def requests(self) -> list[str]:
        """Return what was asked for since the last page was opened, the page itself apart."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        # Told of as requests too, these have never left.
        refused = {
            entry["params"]["requestId"]
            for entry in entries
            if entry["method"] == "Network.loadingFailed" and entry["params"].get("blockedReason") == "csp"
        }
        asked = [
            (entry["params"]["requestId"], entry["params"]["request"]["url"])
            for entry in entries
            if entry["method"] == "Network.requestWillBeSent"
        ]
        own = {self.driver.current_url.partition("#")[0], "about:blank"}
        return [url for number, url in asked if number not in refused and url.partition("#")[0] not in own]

    def violations(self) -> list[str]:
        """Return what the page's policy has refused."""
        return self.run("return violations")


@contextmanager
def started() -> Generator[Browser]:
    """
    Start a browser, or skip the test where there is none.
    """
    why = "the browser's driver library is not installed"
    webdriver = pytest.importorskip("selenium.webdriver", reason=why)
    common = pytest.importorskip("selenium.common", reason=why)
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(f"there is no {'chromium' if program is None else 'chromedriver'} on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    if os.geteuid() == 0:
        # The sandbox refuses to run as root, as tests in a container do.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    try:
        running = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    except common.WebDriverException as error:
        # Containers may forbid what a browser needs.
        pytest.skip(f"chromium does not start: {(error.msg or '').partition(chr(10))[0]}")
    running.set_page_load_timeout(60)
    try:
        yield Browser(running)
    finally:
        running.quit()
