"""The pages are true where a machine can tell: links lead somewhere, and what the code points to stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_architecture import RUNTIME, short

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
POINTER = re.compile(r"docs/([\w/-]+\.md)(?:`?, \"([^\"]+)\")?")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in LINK.findall(text):
            if "://" not in target:
                yield page, target


def test_every_link_leads_somewhere() -> None:
    lost = []
    for page, target in links():
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            lost.append(f"{short(page)}: {target}")
    assert lost == []


def test_the_readme_and_the_index_list_every_page() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    decisions = {page.name for page in (DOCS / "decisions").glob("*.md")}
    listed = {page: {target.split("/")[-1] for who, target in links() if who == page} for page in PAGES}
    assert pages - listed[ROOT / "README.md"] == set()
    assert (pages | decisions) - listed[DOCS / "README.md"] == set()


@pytest.mark.parametrize("path", [path for path in RUNTIME if "docs/" in path.read_text("utf-8")], ids=short)
def test_what_a_module_points_to_is_there(path: Path) -> None:
    for name, section in POINTER.findall(path.read_text("utf-8")):
        page = DOCS / name
        assert page.is_file(), name
        assert not section or section in page.read_text("utf-8"), f'{name} has no "{section}"'


def test_decisions_are_numbered_without_a_gap_and_say_the_four_things() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text("utf-8")
        assert [word for word in ("Status:", "## Context", "## Decision", "## Consequences") if word not in text] == []
