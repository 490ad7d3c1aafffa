"""All screens of a finished demo in a real Chromium: on a phone, without scripts, by keyboard, and for axe-core."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.npm_packages import npm_folder
from tests.web.browser_tab import MARKS, Tab, opened_chromium
from tests.web.demo_page import demo_page, screens
from tests.web.page_process import PageProcess

pytestmark = MARKS
AXE = "4.14.1"
LACKING = ("session", "agent", "changes", "schedules", "schedule", "cost", "policy", "new", "hosts")
"""Screens with no test of their own by keyboard and without scripts."""
REACHED = """
() => {
  const shown = (element) => element.checkVisibility() && element.tabIndex >= 0;
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary")].filter(shown);
  window.numbers = new Map(all.map((element, number) => [element, number]));
  return all.map((element) => element.outerHTML.slice(0, 120));
}
"""
"""Number what the keyboard has to reach, and return it."""
FOCUSED = """
() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [window.numbers.get(element) ?? -1, outlined];
}
"""
"""Return the number of what has the focus, and whether that shows."""
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


@pytest.mark.parametrize("name", LACKING)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    demo: tuple[PageProcess, str], tabs: dict[str, Tab], name: str
) -> None:
    tab = tabs["dark"].tab
    tabs["dark"].show(screens(demo[1])[name])
    tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    controls = tab.evaluate(REACHED)
    assert controls
    left = set(range(len(controls)))
    for _ in range(2 * len(controls) + 20):  # parts that scroll take the focus, too
        if not left:
            break
        tab.keyboard.press("Tab")
        number, outlined = tab.evaluate(FOCUSED)
        assert outlined or number < 0, controls[number]
        left.discard(number)
    assert [controls[number] for number in left] == []


KEYS = {
    "agent": ("textarea[name=text]", "Use slate.", "form[aria-label='Send a message'] button", "Sent"),
    "schedule": ("form[aria-label=Resume] button", "", "form[aria-label=Resume] button", "It fires again."),
}
"""Field, text, button, and answer of one action of a screen."""


@pytest.mark.parametrize("name", KEYS)
def test_the_keyboard_alone_acts(demo: tuple[PageProcess, str], tabs: dict[str, Tab], name: str) -> None:
    field, text, button, answer = KEYS[name]
    tab = tabs["light"].tab
    tabs["light"].show(screens(demo[1])[name])
    move_to(tab, field)
    if text:
        tab.keyboard.type(text)
        move_to(tab, button)
    tab.keyboard.press("Enter")
    tab.locator("#reply", has_text=answer).wait_for()


def move_to(tab: Any, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(500):
        if tab.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        tab.keyboard.press("Tab")
    raise AssertionError(f"the focus never reaches {selector}")


@pytest.fixture(scope="module")
def plain(demo: tuple[PageProcess, str], chromium: Any, tabs: dict[str, Tab]) -> Iterator[Any]:
    """Return a signed-in tab without JavaScript."""
    page, _ = demo
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(page.address)
    tab.get_by_label("Token").fill(page.token)
    tab.get_by_role("button", name="Sign in").click()
    page.token = page.next_token()
    yield tab
    context.close()


@pytest.mark.parametrize("name", LACKING)
def test_a_screen_reads_the_same_without_scripts(
    demo: tuple[PageProcess, str], tabs: dict[str, Tab], plain: Any, name: str
) -> None:
    page, session = demo
    path = screens(session)[name]
    tabs["light"].show(path)
    plain.goto(page.address + path)
    heads = "h1, h2, h3, th, dt, summary, button, label > span"
    texts = plain.locator(heads).all_text_contents()
    assert texts == tabs["light"].tab.locator(heads).all_text_contents()
    assert plain.locator("time", has_text=re.compile(r"^\s*$")).count() == 0, "each time has a text"
    assert plain.locator("#live.on").count() == 0, "it does not claim to follow"
