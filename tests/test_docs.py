"""The pages are true where a machine can tell: links lead somewhere, and what the code points to stands there."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from tests.test_architecture import RUNTIME, short, sources

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted((ROOT / "runtime" / "callboard").rglob("AGENTS.md"))]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *GUIDES, *sorted(DOCS.rglob("*.md"))]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
POINTER = re.compile(r"docs/([\w/-]+\.md)(?:`?, \"([^\"]+)\")?")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@functools.cache
def links() -> Sequence[tuple[Path, str]]:
    """Return the pages with the target of each link within the project."""
    found: list[tuple[Path, str]] = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += [(page, target) for target in LINK.findall(text) if "://" not in target]
    return found


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


# Decisions and the changelog may name a file of their time.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md" and "decisions" not in page.parts]
EXAMPLES = {"FILE.py", "stages/my_module.py", "../types/errors.py"}
"""Paths that stand for a file of the reader, or that are relative to their page."""


def test_modules_that_are_named_exist() -> None:
    missing = set[str]()
    for path in (*CURRENT, *RUNTIME):
        text = path.read_text("utf-8")
        files = set(re.findall(r"`([\w./-]+\.py)`", text)) - EXAMPLES
        missing |= {f"{short(path)}: {name}" for name in files if name not in _endings()}
        modules = set(re.findall(r"`(callboard(?:\.[a-z_]\w*)+)", text)) - {"callboard.db", "callboard.db.damaged"}
        missing |= {f"{short(path)}: {name}" for name in modules if not _is_module(name.split("."))}
    assert missing == set()


@functools.cache
def _endings() -> frozenset[str]:
    """Return each path of a Python file of the project, from each of its folders on."""
    files = [*RUNTIME, *sources("tests", "bench")]
    parts = [path.relative_to(ROOT).parts for path in files]
    return frozenset("/".join(path[start:]) for path in parts for start in range(len(path)))


def _is_module(parts: list[str]) -> bool:
    """Whether these parts begin with a module of the package; what follows may be a name in it."""
    return any(
        "/".join(["runtime", *parts[:end]]) + ending in _endings()
        for end in range(2, len(parts) + 1)
        for ending in (".py", "/__init__.py")
    )


def test_the_themes_of_the_design_page_exist() -> None:
    """Its table names folders and modules of `core/` and `engine/`, without `.py`."""
    rows = (
        (DOCS / "design.md").read_text("utf-8").partition("| theme | `core/` | `engine/` |")[2].strip().split("\n\n")[0]
    )
    missing = set[str]()
    for row in rows.splitlines()[1:]:
        for layer, cell in zip(("core", "engine"), row.strip("| ").split(" | ")[1:], strict=False):
            folder = ROOT / "runtime" / "callboard" / layer
            for name in re.findall(r"`([\w/*]+)`", cell):
                pattern = name.rstrip("/") if name.endswith("/") else f"{name}.py"
                missing |= set() if any(folder.rglob(pattern)) else {f"{layer}: {name}"}
    assert missing == set()


def test_what_a_module_points_to_is_there() -> None:
    for path in RUNTIME:
        for name, section in POINTER.findall(path.read_text("utf-8")):
            page = DOCS / name
            assert page.is_file(), f"{short(path)}: {name}"
            assert not section or section in page.read_text("utf-8"), f'{short(path)}: {name} has no "{section}"'


def test_decisions_are_numbered_without_a_gap_and_say_the_four_things() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text("utf-8")
        assert [word for word in ("Status:", "## Context", "## Decision", "## Consequences") if word not in text] == []
