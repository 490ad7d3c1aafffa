"""`economic`: when it clears, what it keeps, what it counts, and that it never loses more than one edit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.context.context_histories import Session, call, result, said

from callboard.core.context.cache.cost import edit_price, prices_of, step_price
from callboard.core.context.cache.rereads import (
    LONGEST_GAP,
    MOST_GONE,
    MOST_USED,
    RemovedContent,
    after_calls,
    after_edits,
    steps_to_keep,
)
from callboard.core.context.cache.tracker import CacheState, EditCycle, after_edit, after_reply
from callboard.core.context.stage_input import Batch, Situation
from callboard.core.context.stages.economic import Moment, economic
from callboard.core.context.stages.results import persisted_mark
from callboard.core.context.view.conversation import apply_edits
from callboard.core.context.view.messages import result_text
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Edit, SummaryWanted
from callboard.types.records import Json, ToolCall

LIMITS = ModelLimits(price_input=1.0, price_write=1.25, price_read=0.1, price_output=5.0, cache_minimum=0)
NO_SUMMARY = {"max_tokens": 10**9}
SOAK = int(os.environ.get("SOAK", "1"))


def at(steps: int, *, cold: bool = False, **more: Any) -> Situation:
    """A moment: ids and times of a `Session` are small, so that 100 is just after its last message."""
    given: Json = {"limits": LIMITS, "cache": CacheState(used_at=90.0), "steps": steps, "cycle": EditCycle(), **more}
    return Situation(now=10_000.0 if cold else 100.0, folder="/out", **given)


def talk(steps: int, size: int = 8_000) -> Session:
    session = Session().user(said("go"))
    for _ in range(steps):
        session.step("x" * size)
    return session


def reading(session: Session, path: str, size: int = 8_000, name: str = "read_file") -> Session:
    use_id = f"toolu_{session.seq}"
    session.reply(call(use_id, name, path=path))
    return session.user(result(use_id, "y" * size))


def ask(session: Session, situation: Situation, budget: int = 100_000, **params: Any) -> list[Edit]:
    found = economic(session.view, budget, situation, {**NO_SUMMARY, **params})
    assert not isinstance(found, SummaryWanted)
    return list(found or ())


def cleared(session: Session, edits: Sequence[Edit]) -> list[int]:
    """Indexes of the messages that edits clear."""
    found = [session.view.messages.find(edit.message) for edit in edits]
    return sorted(index for index in found if index is not None)


def test_nothing_is_cleared_before_it_pays_and_much_at_once_when_it_does() -> None:
    done: list[tuple[int, int]] = []
    for steps in range(1, 25):
        edits = ask(talk(steps), at(steps))
        done += [(steps, len(edits))] if edits else []
    assert done, "it never clears"
    first, count = done[0]
    assert first > 3
    assert count >= 2


def test_a_cold_cache_makes_an_edit_free_and_it_says_so() -> None:
    session = talk(4)
    assert ask(session, at(4)) == []
    found = economic(session.view, 100_000, at(4, cold=True), NO_SUMMARY)
    assert isinstance(found, Batch)
    assert "cold" in found.why


def test_an_edit_that_has_not_paid_for_itself_is_followed_by_none() -> None:
    session = talk(20)
    assert ask(session, at(20))
    assert ask(session, at(20, cycle=EditCycle(owed=1.0, freed=10))) == []
    assert ask(session, at(20, cycle=EditCycle(owed=1.0, freed=10), cold=True))


def test_over_the_budget_it_does_not_wait() -> None:
    session = talk(4)
    assert ask(session, at(4, cycle=EditCycle(owed=99_999.0)), budget=1_000)


@pytest.mark.parametrize(
    "limits",
    [ModelLimits(price_read=0.0), ModelLimits(cache_minimum=10**6)],
    ids=["free reading", "smaller than is cached"],
)
def test_where_nothing_can_be_won_nothing_is_done(limits: ModelLimits) -> None:
    assert ask(talk(30), at(30, limits=limits)) == []


def test_what_the_model_has_not_answered_and_the_newest_steps_are_never_cleared() -> None:
    session = talk(20)
    for situation in (at(20), at(20, cold=True)):
        for budget in (100_000, 1_000):
            gone = cleared(session, ask(session, situation, budget))
            assert gone
            assert max(gone) < len(session.view.messages) - 4
    alone = Session().user(said("go")).step("x" * 80_000)
    assert ask(alone, at(1, cold=True), 1_000, newest=0, keep=0) == []


def test_the_path_of_a_persisted_result_outlives_its_clearing() -> None:
    session = Session().user(said("go")).step(persisted_mark("/out/1.txt", "z" * 2_000))
    for _ in range(20):
        session.step("x" * 8_000)
    edits = ask(session, at(21, cold=True))
    assert edits[-1].path == "/out/1.txt"
    assert edits[-1].text == (
        "[Previous: used bash. Result cleared; ask again only if you need it. Full output: /out/1.txt]"
    )
    assert edits[0].text == "[Previous: used bash. Result cleared; ask again only if you need it.]"


def test_what_was_cleared_is_not_cleared_again() -> None:
    session = talk(20)
    session.edit(ask(session, at(20, cold=True)))
    assert session.faults == []
    assert ask(session, at(20, cold=True)) == []


def test_files_in_use_are_kept_and_those_of_before_go() -> None:
    session = reading(reading(Session().user(said("go")), "old.py"), "used.py")
    for _ in range(20):
        session.step("x" * 8_000)
    used = RemovedContent(used={"old.py": 1, "used.py": 19})
    gone = cleared(session, ask(session, at(22, cold=True, forgotten=used)))
    assert 2 in gone
    assert 4 not in gone


def test_a_summary_is_wanted_when_calls_and_words_are_what_is_held() -> None:
    session = Session().user(said("go"))
    for number in range(80):
        session.reply(call(f"toolu_{number}", "bash", command="y" * 2_000))
        session.user(result(f"toolu_{number}", "ok"))
    found = economic(session.view, 180_000, at(80), {})
    assert isinstance(found, SummaryWanted)
    assert "clearing leaves" in found.why
    assert found.last < session.view.messages[-2].id
    failed = at(80, summaries_failed=1)
    assert economic(session.view, 180_000, failed, {}) is None


def calling(name: str, **given: Any) -> ToolCall:
    return ToolCall(id="c", use_id="u", name=name, input=given)


def forgotten_after(*asked: tuple[str, Json]) -> tuple[Session, RemovedContent]:
    """All these calls were made, and their results cleared."""
    session, known = Session().user(said("go")), RemovedContent()
    for step, (name, asking) in enumerate(asked, start=1):
        known = after_calls(known, [calling(name, **asking)], step)
        session.reply(call(f"toolu_{step}", name, **asking)).user(result(f"toolu_{step}", "x" * 4_000))
    users = [one for one in session.view.messages if one.role == "user"][1:]
    edits = [Edit(kind="cleared", message=one.id, last=one.id, block=0, text="[gone]") for one in users]
    return session, after_edits(known, session.view.messages, edits, len(asked))


@pytest.mark.parametrize(
    ("first", "then", "again"),
    [
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "a.py"}), True),
        (("read_file", {"path": "./b/../a.py"}), ("read_file", {"path": "a.py"}), True),
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "b.py"}), False),
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "a.py", "offset": 10, "limit": 5}), True),
        (
            ("read_file", {"path": "a.py", "offset": 0, "limit": 10}),
            ("read_file", {"path": "a.py", "offset": 10, "limit": 5}),
            False,
        ),
        (("bash", {"command": "ls", "description": "look"}), ("bash", {"command": "ls"}), True),
        (("bash", {"command": "ls"}), ("bash", {"command": "ls -l"}), False),
        (("edit_file", {"path": "a.py", "old_text": "a"}), ("edit_file", {"path": "a.py", "old_text": "a"}), False),
    ],
)
def test_what_is_asked_for_again_after_it_was_taken_away_is_a_re_read(
    first: tuple[str, Json], then: tuple[str, Json], again: bool
) -> None:
    _, known = forgotten_after(first)
    after = after_calls(known, [calling(then[0], **then[1])], 30)
    assert after.rereads == int(again)
    assert (after.reread_tokens > 1_000) is again
    once_more = after_calls(after, [calling(then[0], **then[1])], 31)
    assert once_more.rereads == int(again), "what was brought back is there again"


def test_a_command_run_again_after_a_file_was_changed_is_no_re_read() -> None:
    _, known = forgotten_after(("bash", {"command": "pytest"}))
    known = after_calls(known, [calling("edit_file", path="a.py")], 5)
    assert after_calls(known, [calling("bash", command="pytest")], 6).rereads == 0


def test_a_summary_takes_its_results_away_too() -> None:
    session, _ = forgotten_after(("read_file", {"path": "a.py"}), ("bash", {"command": "ls"}))
    messages = session.view.messages
    fold = Edit(kind="summarised", message=messages[0].id, last=messages[-1].id)
    known = after_edits(RemovedContent(), messages, [fold], 2)
    assert [note.what for note in known.gone] == ["read_file a.py", 'bash {"command":"ls"}']


def test_the_books_are_bounded() -> None:
    _, known = forgotten_after(*(("read_file", {"path": f"{n}.py"}) for n in range(MOST_GONE + 20)))
    assert len(known.gone) == MOST_GONE
    assert len(known.used) == MOST_USED
    known = after_calls(known, [calling("read_file", path=f"{MOST_GONE + 19}.py")], 10_000)
    assert len(known.gaps) == LONGEST_GAP + 1
    assert len(after_calls(known, [calling("bash", command="x" * 10_000)], 10_001).gone) <= MOST_GONE


def test_re_reads_lengthen_the_time_that_files_are_kept() -> None:
    gaps = tuple(1 if gap in (9, 12, 20) else 0 for gap in range(LONGEST_GAP + 1))
    assert steps_to_keep(RemovedContent(gaps=gaps), 7, 1.5) == 12
    assert steps_to_keep(RemovedContent(), 7, 1.0) == 7
    view = talk(3).view
    few = Moment(view, 1, at(100, forgotten=RemovedContent(gaps=gaps, rereads=1)), {"keep": 7})
    many = Moment(view, 1, at(10, forgotten=RemovedContent(gaps=gaps, rereads=3)), {"keep": 7})
    assert few.keep == 7
    assert many.keep > few.keep


@given(st.lists(st.integers(200, 24_000), min_size=1, max_size=60))
@settings(max_examples=25 * SOAK, deadline=None)
def test_it_never_costs_more_than_doing_nothing_by_more_than_one_edit(sizes: list[int]) -> None:
    """After any number of steps: the session may end right after an edit, and what that cost is all that is lost."""
    prices, session, cycle = prices_of(LIMITS), Session().user(said("go")), EditCycle()
    ours = bare = 0.0
    dearest, hit, whole = 0.0, 0, session.view.tokens
    bare_hit = 0
    for step, size in enumerate(sizes):
        before = session.view.messages
        edits = ask(session, replace(at(step), cycle=cycle), budget=10**7)
        if edits:
            first = min(edit.message for edit in edits)
            session.view = apply_edits(session.view, edits)
            start, _ = session.view.messages.span(first, first)
            behind = sum(message.tokens for message in session.view.messages[start:])
            price = edit_price(prices, behind, warm=True)
            dearest = max(dearest, price)
            cycle = after_edit(cycle, before, session.view.messages, edits=edits, cost=(price, step))
            hit = min(hit, session.view.tokens - behind)
        ours += step_price(prices, session.view.tokens, hit)
        bare += step_price(prices, whole, bare_hit)
        assert ours <= bare + dearest + 1e-6
        cycle = after_reply(cycle, session.view.messages, LIMITS)
        hit, bare_hit, grown = session.view.tokens, whole, session.view.tokens
        session.step("z" * size)
        whole += session.view.tokens - grown
    assert result_text(session.view.messages[-1].blocks[0]).startswith("z")
