"""What an agent knows of its files: a mapping that grows and never changes in place."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from callboard.core.frozen import PersistentMap


@given(st.lists(st.tuples(st.integers(0, 150).map(str), st.text(max_size=3)), max_size=400))
@settings(max_examples=100, deadline=None)
def test_it_is_a_dict_that_is_copied_for_each_entry(entries: list[tuple[str, str]]) -> None:
    keyed, plain = PersistentMap(), dict[str, str]()
    for key, value in entries:
        before, size = keyed, len(keyed)
        keyed = keyed.with_item(key, value)
        plain = {**plain, key: value}
        assert len(before) == size
        assert keyed[key] == value
        assert keyed == plain
    assert list(keyed.items()) == list(plain.items())
    assert len(keyed) == len(plain)
    assert "never" not in keyed
    assert repr(keyed) == f"Keyed({plain!r})"


def test_in_a_snapshot_it_is_an_object() -> None:
    keyed = PersistentMap()
    for number in range(200):
        keyed = keyed.with_item(f"f{number}", str(number))
    adapter = TypeAdapter(PersistentMap)
    data = adapter.dump_json(keyed)
    assert json.loads(data) == keyed
    assert adapter.validate_json(data) == keyed
