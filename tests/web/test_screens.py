"""All screens of a finished demo in a real Chromium: on a phone, without scripts, by keyboard, and for axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.npm_packages import npm_folder
from tests.web.browser_tab import MARKS, Tab, opened_chromium
from tests.web.demo_page import demo_page, screens
from tests.web.page_process import PageProcess

pytestmark = MARKS
AXE = "4.14.1"
PHONE = {"width": 360, "height": 740}
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PageProcess, str]]:
    with demo_page(tmp_path_factory.mktemp("demo")) as served:
        yield served


@pytest.fixture(scope="module")
def chromium(demo: tuple[PageProcess, str]) -> Iterator[Any]:
    with opened_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def tabs(demo: tuple[PageProcess, str], chromium: Any) -> Iterator[dict[str, Tab]]:
    """One signed-in browser for each color scheme."""
    page, _ = demo
    opened: dict[str, Tab] = {}
    for scheme in SCHEMES:
        opened[scheme] = Tab(chromium, page, color_scheme=scheme, viewport=PHONE)
        page.token = page.next_token()
    yield opened
    for tab in opened.values():
        tab.close()


def test_every_screen_fits_a_phone_and_follows(demo: tuple[PageProcess, str], tabs: dict[str, Tab]) -> None:
    _, session = demo
    tab = tabs["light"].tab
    for name, path in screens(session).items():
        tabs["light"].show(path)
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"], name
        assert tab.locator("h1").count() == 1, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_no_serious_violation(demo: tuple[PageProcess, str], tabs: dict[str, Tab], scheme: str) -> None:
    _, session = demo
    script = (npm_folder("axe", f"axe-core@{AXE}") / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    tab = tabs[scheme].tab
    violations_found: list[str] = []
    for width in (1280, PHONE["width"]):
        tab.set_viewport_size({"width": width, "height": 800})
        for name, path in screens(session).items():
            tabs[scheme].show(path)
            tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
            tab.evaluate(script)
            violations = tab.evaluate("axe.run().then((done) => done.violations)")
            violations_found += [
                f"{name} at {width}: {each['id']}: {each['nodes'][0]['html']}: {each['nodes'][0]['failureSummary']}"
                for each in violations
                if each["impact"] in ("serious", "critical")
            ]
    assert violations_found == []
