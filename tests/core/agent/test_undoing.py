"""An edit taken back: when the command is taken up, what its record changes, and what is left alone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life, facts
from tests.core.agent.decisions import prompted, step
from tests.core.agent.test_decide_context import long

from callboard.core.agent.decide import MODEL, decide
from callboard.core.context.view.undo import is_spared, spared_after
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import Edit, Placed, Restored, SummaryWanted


def commanded(life: Life, words: str) -> Life:
    return life.mailed(words, type="command", metadata={"action": "undo"})


def restoring(message: int, last: int) -> Edit:
    placed = Placed(data={"type": "text", "text": "as it was"}, source="person", compactable=False)
    standing = (Restored(id=message, role="user", blocks=(placed,)),)
    return Edit(kind="restored", message=message, last=last, blocks=(placed,), messages=standing)


def undone(life: Life, *undoes: int, edits: tuple[Edit, ...] = (), **fields: Any) -> Life:
    revision = life.state.context.conversation.revision
    given: dict[str, Any] = {"stage": "undo", "trigger": "manual", "revision": revision, **fields}
    return life.on(ev.ContextEdited, undoes=undoes, edits=edits, **given)


def test_the_command_waits_for_the_call_that_was_sent_the_view_as_it_is() -> None:
    life = commanded(prompted().asked(), "4 7")
    assert life.state.compaction.undo == ((4, 7),)
    assert life.state.inbox.mail == ()
    assert isinstance(step(life, running=frozenset({MODEL})), st.Wait)
    assert step(life.said("done")) == st.Undo((4, 7))


def test_it_is_taken_up_while_tools_run_and_while_a_plan_waits() -> None:
    life = commanded(prompted().called("bash"), "4")
    assert step(life) == st.Undo((4,))
    assert step(commanded(Life.begun(), "4")) == st.Undo((4,))


@pytest.mark.parametrize("words", ["", "the last one", "-3", "x4"])
def test_a_command_that_names_no_edit_changes_nothing(words: str) -> None:
    assert commanded(prompted(), words).state.compaction.undo == ()


def test_each_command_is_answered_by_its_own_record() -> None:
    life = commanded(commanded(prompted(), "4"), "7 4 7")
    assert life.state.compaction.undo == ((4,), (7, 4))
    life = undone(life, 4, why="it does not fit")
    assert life.state.compaction.undo == ((7, 4),)
    assert life.state.context.conversation.revision == 0
    assert undone(life, 7, 4).state.compaction.undo == ()


def test_a_refusal_leaves_stages_and_other_wishes_as_they_are() -> None:
    life = commanded(prompted().on(ev.CompactAsked, focus="paths", by="person"), "4")
    life = undone(life.on(ev.ContextEdited, stage="summarize_all", revision=0), 4, why="no")
    assert life.state.compaction.focus == "paths"
    assert life.state.compaction.tried == {("summarize_all", 0)}


def test_what_was_taken_back_is_not_summarised_again_while_it_fits() -> None:
    life = long(pipeline=({"stage": "summarize_all", "params": {"over": 0.5}},))
    budget = life.state.context.conversation.tokens + 10_000
    roomy = {"context_limit": budget}
    spec = life.state.me.model_copy(update=roomy)
    fits = life.on(ev.SpecChanged, spec=spec)
    assert isinstance(step(fits), st.SummarizeView)
    messages = [message.id for message in life.state.context.conversation.messages]
    taken_back = undone(fits, 4, edits=(restoring(messages[0], messages[0]),))
    assert taken_back.state.compaction.spared == ((messages[0], messages[0]),)
    assert isinstance(step(taken_back), st.AskModel)
    forced = taken_back.on(
        ev.SpecChanged, spec=spec.model_copy(update={"context_limit": life.state.context.conversation.tokens * 2 // 3})
    )
    assert isinstance(step(forced), st.SummarizeView)


def test_all_that_an_undo_brings_back_is_spared_and_not_only_the_place_where_it_stood_folded() -> None:
    placed = Placed(data={"type": "text", "text": "as it was"}, source="person")
    back = tuple(Restored(id=n, role="user", blocks=(placed,)) for n in (5, 20, 60))
    edit = Edit(kind="restored", message=5, last=5, messages=back)
    event = ev.ContextEdited(at=1.0, stage="undo", revision=0, undoes=(4,), edits=(edit,))
    assert is_spared([Edit(kind="snipped", message=30, last=40)], spared_after((), event))


def test_a_fold_over_it_ends_the_sparing_and_one_beside_it_does_not() -> None:
    event = ev.ContextEdited(at=1.0, stage="undo", revision=0, undoes=(4,), edits=(restoring(5, 9),))
    spared = spared_after((), event)
    folded = ev.ContextEdited(
        at=1.0, stage="summarize_all", revision=0, edits=(Edit(kind="summarised", message=10, last=12),)
    )
    assert spared_after(spared, folded) == ((5, 9),)
    over = folded.model_copy(update={"edits": (Edit(kind="summarised", message=0, last=5),)})
    assert spared_after(spared, over) == ()


def test_clearing_a_result_elsewhere_is_no_fold() -> None:
    cleared = [Edit(kind="cleared", message=6, last=6, block=0, text="[gone]")]
    assert not is_spared(cleared, ((5, 9),))
    wanted = SummaryWanted(stage="summarize_all", trigger="auto", message=1, last=5)
    assert is_spared(wanted, ((5, 9),))
    assert not is_spared(wanted, ())


def test_compactions_are_counted_by_stage_and_trigger_and_an_undo_is_none() -> None:
    edit = Edit(kind="summarised", message=5, last=6)
    life = long()
    for trigger in ("auto", "auto", "manual"):
        revision = life.state.context.conversation.revision
        life = life.on(ev.ContextEdited, stage="summarize_all", trigger=trigger, revision=revision, edits=(edit,))
    life = undone(life, 9, edits=(restoring(5, 5),))
    assert life.state.compaction.by_stage == {"summarize_all/auto": 2, "summarize_all/manual": 1}
    assert decide(life.state, facts()) is not None
