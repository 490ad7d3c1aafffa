"""Pictures of the screens for `docs/images/`, from the demo.

Run `PYTHONPATH=. .venv/bin/python tests/web/pictures.py` to take them anew; with a folder as argument, all screens at
both sizes, light and dark, are put there instead.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.web.browser_tab import Tab, opened_chromium
from tests.web.demo_page import demo_page, screens
from tests.web.page_process import PageProcess

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
SHOWN = (
    ("waiting", "dark", PHONE),
    ("session", "light", DESK),
    ("worktree", "light", DESK),
)
"""Pictures in the docs: screen, color scheme, size."""


def take(page: PageProcess, paths: Mapping[str, str], into: Path, only: frozenset[tuple[str, str, int]]) -> None:
    """Take a picture of each screen. `only`: those to take; empty: all."""
    with opened_chromium() as chromium:
        for scheme, size in itertools.product(("light", "dark"), (DESK, PHONE)):
            tab = Tab(chromium, page, viewport=size, color_scheme=scheme)
            page.token = page.next_token()
            names = [name for name in paths if not only or (name, scheme, size["width"]) in only]
            for name in names:
                tab.show(paths[name])
                file = f"web-{name}.png" if only else f"{name}-{size['width']}-{scheme}.png"
                tab.tab.screenshot(path=str(into / file), full_page=not only)
            tab.close()


def main() -> None:
    """Take the pictures."""
    with tempfile.TemporaryDirectory() as folder, demo_page(Path(folder)) as (page, session):
        wanted_all = len(sys.argv) > 1
        into = Path(sys.argv[1]) if wanted_all else IMAGES
        into.mkdir(exist_ok=True, parents=True)
        only = frozenset() if wanted_all else frozenset((name, scheme, size["width"]) for name, scheme, size in SHOWN)
        take(page, screens(session), into, only)


if __name__ == "__main__":
    main()
