"""Parts of the watch of folders by a kernel queue that need no queue, and bells without `eventfd`.

With a queue (macOS, BSD), `test_folder_watch.py` runs the whole.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from callboard.adapters.system.bells import Bell
from callboard.adapters.system.kqueue_folders import WatchedFolder, changed_names, listing_of


def is_rung(bell: Bell) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


@pytest.mark.parametrize("eventfd", [True, False])
def test_a_bell_is_rung_until_it_is_silenced(monkeypatch: pytest.MonkeyPatch, eventfd: bool) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)
    bell = Bell()
    assert not is_rung(bell)
    for _ in range(20_000):  # more than a pipe holds
        bell.ring()
    assert is_rung(bell)
    bell.clear()
    assert not is_rung(bell)
    bell.close()


def test_names_that_appear_go_or_change_are_found(tmp_path: Path) -> None:
    for name in ("same", "grown", "gone", "replaced"):
        (tmp_path / name).write_text("x")
    before = listing_of(str(tmp_path))
    assert before is not None
    (tmp_path / "grown").write_text("xx")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").mkdir()
    (tmp_path / "other").write_text("x")
    (tmp_path / "other").rename(tmp_path / "replaced")
    after = listing_of(str(tmp_path))
    assert after is not None
    assert changed_names(before, after) == {"grown", "gone", "new", "replaced"}
    assert changed_names(after, after) == set()
    assert listing_of(str(tmp_path / "nowhere")) is None


def test_a_bell_rings_for_its_names_alone_and_when_the_folder_goes() -> None:
    folder = WatchedFolder({"a": (1, 1, 1)})
    everything, one, other = Bell(), Bell(), Bell()
    folder.ring_for(everything, None)
    folder.ring_for(one, "a")
    folder.ring_for(one, "b")
    folder.ring_for(other, "c")
    assert folder.wants_file("z")
    assert folder.update({"a": (1, 2, 1)}) == {everything, one}
    assert folder.update({"a": (1, 2, 1)}) == set()
    assert folder.update({"a": (1, 2, 1), "z": (2, 1, 1)}) == {everything}
    assert folder.update(None) == {everything, one, other}
    for bell in (everything, one, other):
        bell.close()
