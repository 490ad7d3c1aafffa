"""A signed-in tab of a real Chromium, for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.web.page_process import PageProcess

from callboard.adapters.processes import tool_ancestry

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT = 60_000
"""Milliseconds to wait for what takes one second on an idle machine."""
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net/tcp"),
    pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process"),
]

LATE_REPLIES = """() => {
    const real = window.fetch;
    window.fetch = async (...request) => {
        const response = await real(...request);
        if (request[1]?.method === "POST") await new Promise((done) => setTimeout(done, 1000));
        return response;
    };
}"""
"""Script that holds the reply to a form back for a second, so that the update of the page comes first."""


@contextmanager
def opened_chromium() -> Iterator[Any]:
    """Start Chromium. While it runs, this thread has a running event loop, and can start no other."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A signed-in tab that fails its test for an error of a script or a refused resource."""

    def __init__(self, chromium: Any, page: PageProcess, **options: Any) -> None:
        self.context = chromium.new_context(**options)
        self.context.set_default_timeout(LIMIT)
        self.address = page.address
        self.errors: list[str] = []
        self.tab = self.open()
        self.tab.goto(f"{page.address}/#{page.token}")
        self.tab.wait_for_url("**/waiting")

    def open(self) -> Any:
        """Open another tab of the same browser."""
        tab = self.context.new_page()
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        return tab

    def show(self, path: str) -> None:
        """Open a screen, and wait until it follows, if it does."""
        self.tab.goto(self.address + path)
        if self.tab.locator("#live").count():
            self.tab.locator("#live.on").wait_for()

    def close(self) -> None:
        self.context.close()
        assert not self.errors, self.errors
