"""A person's own stages: asked like any other; whatever they do, the view keeps its laws and the agent lives on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.decisions import step
from tests.core.agent.test_decide_context import long
from tests.core.context.context_histories import Session
from tests.core.context.context_stages import began, worked

from callboard.core.context.pipeline import StageCall, check_pipeline, next_stage
from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.custom import StageRefusal, ask_own
from callboard.core.context.view.conversation import Conversation
from callboard.core.context.view.messages import is_result
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.agent_spec import StageSpec
from callboard.types.messages import Edit, OwnStage, Placed

NAME = "mine:shorten"


def clear_first(view: Conversation, budget: int, now: float, text: str = "gone") -> list[Edit]:
    """What a person may write: the oldest result goes."""
    found = (message for message in view.messages if any(is_result(block) for block in message.blocks))
    oldest = next(found, None)
    return [Edit(kind="cleared", message=oldest.id, last=oldest.id, block=0, text=text)] if oldest else []


def asked(stage: OwnStage | None, session: Session, **params: Any) -> list[Edit] | StageRefusal:
    return ask_own(stage, session.view, 10_000, Situation(now=7.0, folder="/out"), params=params)


def why(stage: OwnStage | None, session: Session | None = None) -> str:
    found = asked(stage, session or worked())
    assert isinstance(found, StageRefusal)
    return found.reason


def returning(value: object) -> OwnStage:
    def stage(view: Conversation, budget: int, now: float) -> object:
        return value

    return stage


def test_it_gets_the_view_the_budget_the_time_and_its_parameters() -> None:
    session, heard = worked(), list[object]()

    def stage(view: Conversation, budget: int, now: float, **params: object) -> None:
        heard.extend((view, budget, now, params))

    assert asked(stage, session, keep=3) == []
    assert heard == [session.view, 10_000, 7.0, {"keep": 3}]


def test_its_edits_are_made() -> None:
    session = worked()
    found = asked(clear_first, session, text="(was here)")
    assert isinstance(found, list)
    session.edit(found)
    assert session.faults == []
    assert "(was here)" in str(session.view.messages[2])


def failing(view: Conversation, budget: int, now: float) -> list[Edit]:
    raise KeyError("nope" * 200)


def test_an_exception_is_told_and_goes_no_further() -> None:
    assert why(failing).startswith("KeyError: 'nopenope")
    assert len(why(failing)) <= 300
    assert "unexpected keyword argument" in getattr(asked(failing, worked(), keep=3), "reason", "")
    assert "no such callable was loaded" in why(None)


def test_what_is_no_list_of_edits_is_refused() -> None:
    for value in (5, "edits", [1], {"kind": "cleared"}, clear_first):
        assert "not a list of edits" in why(returning(value)), value
    assert asked(returning(None), worked()) == asked(returning(()), worked()) == []


def fold(view: Conversation, first: int, last: int, kind: Any = "snipped", text: str = "x") -> list[Edit]:
    """An edit that folds the messages at these places."""
    blocks = (Placed(data={"type": "text", "text": text}, source="compactor"),)
    return [Edit(kind=kind, message=view.messages[first].id, last=view.messages[last].id, blocks=blocks)]


def broken(view: Conversation) -> dict[str, list[Edit]]:
    """Edits that must not be made, and what is told of them."""
    return {
        "a call without its result": fold(view, 2, 4),
        "a pinned block is gone": fold(view, 0, 2),
        "the newest user message is not whole": fold(view, 11, 12),
        "an empty text block": fold(view, 1, 2, text=" "),
        "the view is larger": fold(view, 1, 2, text="long " * 9_000),
        "do not make the view smaller": [Edit(kind="cleared", message=9_999, last=9_999, block=0)],
        "they do not make the view smaller": clear_first(view, 1, 1.0, "y " * 2_000),
        "only an undo restores": [Edit(kind="restored", message=1, last=2)],
    }


def test_edits_that_break_a_law_never_reach_the_view() -> None:
    session = worked()
    for told, edits in broken(session.view).items():
        assert told.removeprefix("they ") in why(returning(edits), session)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "/out/../etc/passwd", "/output/x"])
def test_it_persists_in_the_agents_own_folder_only(path: str) -> None:
    session = worked()
    place = session.view.messages[2].id
    edit = Edit(kind="persisted", message=place, last=place, block=0, text="short", path=path)
    assert "may persist in /out only" in why(returning([edit]), session)
    assert asked(returning([edit.model_copy(update={"path": "/out/x.txt"})]), session) != []


# In the pipeline


def pipeline_call(session: Session, stage: OwnStage | None, *more: str, **changed: Any) -> StageCall | None:
    given: dict[str, Any] = {"now": 0.0, "folder": "/out", "own": {NAME: stage} if stage else {}, **changed}
    specs = [StageSpec(stage=name) for name in (NAME, *more)]
    return next_stage(specs, session.view, 5_000, Situation(**given))


def test_a_stage_that_fails_counts_as_tried_and_the_next_one_is_asked() -> None:
    session = worked()
    first = pipeline_call(session, failing, "clear_old_results")
    assert first is not None
    assert (first.stage, first.edits, first.why[:8]) == (NAME, (), "KeyError")
    second = pipeline_call(session, failing, "clear_old_results", tried=frozenset({(NAME, 0)}))
    assert second is not None
    assert second.stage == "clear_old_results"
    again = pipeline_call(session.edit(second.edits), failing, tried=frozenset({(NAME, 0)}))
    assert again is not None
    assert again.why


def test_its_name_is_checked_when_it_is_loaded_and_not_before() -> None:
    assert check_pipeline([StageSpec(stage=NAME, params={"anything": 1})]) == []
    assert pipeline_call(Session(), failing) is None
    assert getattr(pipeline_call(began(), None), "why", "").startswith("no such callable")


def test_the_person_is_told_once_however_often_it_fails() -> None:
    life = long(pipeline=({"stage": NAME},))
    told: list[str] = []
    for number in range(3):
        found = step(life, stages={NAME: failing})
        assert isinstance(found, st.EditView)
        assert (found.stage, found.edits) == (NAME, ())
        told.append(found.why)
        life = life.on(ev.ContextEdited, stage=NAME, revision=number, why=found.why)
        assert step(life, stages={NAME: failing}) != found, "it counts as tried"
        cleared = clear_first(life.state.context.conversation, 1, 1.0, f"view {number}")
        life = life.on(ev.ContextEdited, stage="clear_old_results", revision=number, edits=cleared)
    assert [bool(one) for one in told] == [True, False, False]


def test_a_block_is_not_named_after_an_edit_that_replaces_messages() -> None:
    session = worked()
    first, second = session.view.messages[0].id, session.view.messages[1].id
    fold = Edit(kind="dropped", message=first, last=second, blocks=())
    hide = Edit(kind="cleared", message=session.view.messages[2].id, last=session.view.messages[2].id, block=0, text="")
    assert why(returning([fold, hide])) == (
        "its 'cleared' edit names a block after an edit that replaces messages: put it before that one"
    )
