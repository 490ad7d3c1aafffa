"""A state as bytes and back; what another version wrote, or what is damaged, is passed over."""

from __future__ import annotations

import pytest
from tests.core.agent_states import Life, done

from callboard.core.apply import fold
from callboard.core.snapshot import dump, load
from callboard.words import events as ev


def worked() -> Life:
    life = done(Life.begun(plan_required=True).prompted("go").called("bash", "read_file"), "c1", "c2")
    return life.on(ev.ResultsMerged).called("bash").mailed("more").on(ev.FileSeen, path="a", digest="1", changed=True)


def test_a_state_comes_back_as_it_was_and_can_be_folded_on() -> None:
    life = worked()
    found = load(dump(life.state))
    assert found == life.state
    more = Life(life.state, life.events).on(ev.Interrupted)
    assert fold(more.events[-1:], found) == more.state


@pytest.mark.parametrize("what", ["another shape", "cut short", "not even text", "nothing", "a wrong type"])
def test_what_this_version_did_not_write_is_passed_over(what: str) -> None:
    whole = dump(worked().state)
    shape, _, body = whole.partition(b"\n")
    damaged = {
        "another shape": b"0123456789abcdef\n" + body,
        "cut short": whole[:-9],
        "not even text": b"\xff\xfe",
        "nothing": b"",
        "a wrong type": shape + b'\n{"seq": "many"}',
    }[what]
    assert load(damaged) is None
