"""Typed entries are kept whole, newest first, from several processes, and never block the prompt line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from callboard.cli.repl import draft
from callboard.cli.repl.draft import LONGEST, MOST, KeptHistory, entries

ENTRIES = some.lists(some.text(min_size=1, max_size=30).filter(str.strip), max_size=8)


@given(ENTRIES)
def test_entries_come_back_as_they_were(typed: list[str]) -> None:
    data = b"".join(json.dumps(one).encode() + b"\n" for one in typed)
    assert entries(data) == typed


def test_an_entry_of_several_lines_stays_one_and_the_newest_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    first, second = KeptHistory(file), KeptHistory(file)
    first.store_string("one\ntwo\n\nthree")
    second.store_string("你好 👋")
    assert list(KeptHistory(file).load_history_strings()) == ["你好 👋", "one\ntwo\n\nthree"]
    assert os.stat(file).st_mode & 0o777 == 0o600


def test_what_is_no_entry_is_passed_over(tmp_path: Path) -> None:
    assert entries(b'cut"\n"whole"\n{"a": 1}\n\xff\n""\n"last', cut=True) == ["whole"]


def test_a_huge_paste_is_not_kept_and_old_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "history.jsonl"
    kept = KeptHistory(file)
    kept.store_string("x" * (LONGEST + 1))
    assert not file.exists()
    assert len(entries(b'"a"\n' * (MOST + 5))) == MOST
    for at in range(100):
        kept.store_string(f"entry {at}")
    monkeypatch.setattr(draft, "_READ", 200)
    assert next(iter(KeptHistory(file).load_history_strings())) == "entry 99"
    assert file.stat().st_size <= 200


def test_a_file_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path / "gone" / "history.jsonl")
    kept.store_string("hello")
    assert list(kept.load_history_strings()) == []
