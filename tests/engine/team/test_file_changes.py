"""The files that tools have changed since a message of the lead, whose order the clock does not decide."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import journal
from callboard.engine.team.renew import changes_since
from callboard.ports.store import Append
from callboard.types import events as ev
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio

SESSION = "s"
LATER, EARLIER = 7_200.0, 3_600.0
"""Times before and after the clock was set back."""


def prompt(at: float, name: str, *, caused_by: str = "", to: str = "lead") -> list[ev.Event]:
    sender = "person" if to == "lead" else "lead"
    mail = Envelope(
        id=f"env_{name}", sender=sender, recipient=to, type="prompt", caused_by=caused_by, metadata={"uuid": name}
    )
    received = ev.EnvelopeReceived(at=at, envelope=mail)
    return [received, ev.EnvelopesDelivered(at=at, ids=(mail.id,), blocks=())]


def write(at: float, path: str, before: str, after: str) -> ev.Event:
    data = {"path": path, "before": before, "after": after}
    return ev.ToolFinished(at=at, call=f"call_{path}_{at}", content=(), data=data)


async def changes(message: str, **journals: list[ev.Event]) -> Mapping[str, str]:
    store = MemoryStore()
    for name, events in journals.items():
        for place, event in enumerate(events):
            await store.commit(Append(journal(SESSION, name, 1), event.encode(), expected=place))
    return await changes_since(store, SESSION, list(journals), message)


async def test_the_order_of_the_leads_journal_decides_after_the_clock_was_set_back() -> None:
    lead = [
        *prompt(LATER, "one"),
        write(LATER + 1, "/a", "", "1"),
        *prompt(EARLIER, "two"),
        write(EARLIER + 1, "/a", "1", "2"),
        write(EARLIER + 1, "/b", "", "3"),
        *prompt(EARLIER + 2, "three"),
    ]
    assert await changes("three", lead=lead) == {}
    assert await changes("two", lead=lead) == {"/a": "1", "/b": ""}
    assert await changes("one", lead=lead) == {"/a": "", "/b": ""}


async def test_what_a_later_turn_of_the_lead_caused_is_later_at_any_time() -> None:
    lead = [*prompt(LATER, "one"), *prompt(LATER + 5, "two")]
    alice = [
        *prompt(LATER + 1, "assignment", caused_by="env_one", to="alice"),
        write(LATER + 2, "/a", "", "1"),
        *prompt(EARLIER, "more", caused_by="env_two", to="alice"),
        write(EARLIER + 1, "/a", "1", "2"),
    ]
    scout = [
        *prompt(EARLIER + 2, "look", caused_by="env_more", to="scout"),
        write(EARLIER + 3, "/b", "", "3"),
    ]
    assert await changes("two", lead=lead, alice=alice, scout=scout) == {"/a": "1", "/b": ""}
    assert await changes("one", lead=lead, alice=alice, scout=scout) == {"/a": "", "/b": ""}


async def test_the_first_content_of_a_file_that_two_agents_changed_is_no_agents_work() -> None:
    lead = [*prompt(LATER, "one"), write(LATER + 1, "/a", "0", "1")]
    alice = [*prompt(EARLIER, "then", caused_by="env_one", to="alice"), write(EARLIER + 1, "/a", "1", "2")]
    assert await changes("one", lead=lead, alice=alice) == {"/a": "0"}
