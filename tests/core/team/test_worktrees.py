"""The record of worktrees as a table, names, and the rule by which an agent's folder changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.agent.agent_states import Life

from callboard.core.agent.rules.worktree import MOVE, prepare_folder, worktree_in_use, worktree_to_use
from callboard.core.agent.state import Facts
from callboard.core.team.worktrees import check_name, confirmed_losses, fold, free_name, loss_words
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.records import Task
from callboard.types.worktrees import WorktreeNoted

SPEC = AgentSpec(name="alice", kind="teammate", agent_type="teammate", model="m")


def noted(act: str, call: str = "", **fields: Any) -> WorktreeNoted:
    return WorktreeNoted.model_validate({"at": 1.0, "act": act, "name": "one", "by": "lead", "call": call, **fields})


@pytest.mark.parametrize(
    ("acts", "standing"),
    [
        (["making"], "making"),
        (["making", "made"], "ready"),
        (["making", "undone"], None),
        (["making", "made", "kept", "saved"], "ready"),
        (["making", "made", "merging"], "merging"),
        (["making", "made", "merging", "merged"], "ready"),
        (["making", "made", "merging", "undone"], "ready"),
        (["making", "made", "merging", "undone", "joining"], "joining"),
        (["making", "made", "joining", "joined"], "ready"),
        (["making", "made", "removing"], "removing"),
        (["making", "made", "removing", "undone"], "ready"),
        (["making", "made", "removing", "removed"], None),
        (["removed"], None),
    ],
)
def test_a_worktree_stands_as_its_record_says(acts: list[str], standing: str | None) -> None:
    tree = fold([noted(act) for act in acts]).there.get("one")
    assert (tree.standing if tree else None) == standing
    assert tree is None or (tree.intent is None) == (standing == "ready")


def test_one_that_was_made_anew_from_its_branch_is_not_forgotten_when_that_is_taken_back() -> None:
    again = [noted("making"), noted("made"), noted("making", tip="12"), noted("undone")]
    assert fold(again).there["one"].standing == "ready"


def test_what_a_call_came_to_is_known_for_ever() -> None:
    known = fold([noted("making", "c1"), noted("made", "c1"), noted("removing", "c2"), noted("removed", "c2")])
    assert {call: note.act for call, note in known.done.items()} == {"c1": "made", "c2": "removed"}
    assert known.gone["one"].act == "removed"


def test_a_free_name_is_the_next_number() -> None:
    known = fold([noted("making", "c1"), noted("made", "c1")])
    assert free_name("two", "c2", known, ()) == "two"
    assert free_name("one", "c2", known, ()) == "one-2"
    assert free_name("ONE", "c2", known, ["wt/one-2", "main"]) == "ONE-3"
    assert free_name("two", "c1", known, ()) == "one", "the call has made one already"
    check_name(free_name("x" * 64, "c2", fold([noted("making", name="x" * 64)]), ()))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "9"])
def test_names_that_fit(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a..b", "a.lock", "A.LOCK", "a.", "-a", "a b", "a\n", "x" * 65])
def test_names_that_do_not(name: str) -> None:
    with pytest.raises(ToolRefused):
        check_name(name)


def test_a_person_agrees_to_the_lines_that_he_read() -> None:
    lines = ("changed: a b.txt", "unmerged: 12 - fix")
    assert confirmed_losses("it throws away work" + loss_words(lines, "wt/one")) == lines
    assert confirmed_losses("it throws away work" + loss_words((), "wt/one")) == ()


# The folder


def test_a_held_tasks_worktree_counts_before_its_own() -> None:
    mine = SPEC.model_copy(update={"worktree": "own"})
    rows = {
        "t1": Task(id="t1", subject="x", owner="alice", worktree="first"),
        "t2": Task(id="t2", subject="x", owner="alice"),
        "t3": Task(id="t3", subject="x", owner="bob", worktree="his"),
    }
    assert worktree_to_use(mine, (), rows.get) == "own"
    assert worktree_to_use(mine, ("t2", "t3", "t4"), rows.get) == "own"
    assert worktree_to_use(mine, ("t1", "t2"), rows.get) == "first"
    assert worktree_in_use(SPEC.model_copy(update={"folder": "/data/worktrees/one"})) == "one"
    assert worktree_in_use(SPEC) == ""


def moved(life: Life, folder: str = "", **facts: Any) -> st.Step | None:
    spec = life.state.me.model_copy(update={"folder": folder})
    return prepare_folder(
        replace(life.state, identity=replace(life.state.identity, spec=spec)), Facts(now=100.0, **facts)
    )


def test_it_moves_between_replies_and_looks_once_a_turn() -> None:
    life = Life.begun().prompted("go")
    tree = "/data/worktrees/one"
    assert moved(life, worktree=None) is None
    assert moved(life, worktree="") is None
    assert moved(life, worktree="one") == st.EnterFolder("one")
    assert moved(life, tree, worktree="one") == st.EnterFolder("one"), "not looked at yet in this turn"
    assert moved(life, tree, worktree="one", settled=True) is None
    assert moved(life, tree, worktree="", settled=True) == st.EnterFolder("")
    assert moved(life, tree, worktree="two", settled=True) == st.EnterFolder("two")
    assert moved(life, worktree="one", running=frozenset({MOVE})) == st.Wait(None, "worktree")


def test_it_never_moves_while_a_call_is_open_or_a_reply_is_awaited() -> None:
    tree = "/data/worktrees/one"
    for life in (Life.begun().prompted("go").asked(), Life.begun().prompted("go").called("bash")):
        assert moved(life, worktree="one") is None
        assert moved(life, tree, worktree="two", settled=True) is None
        assert moved(life, tree, worktree="two") == st.EnterFolder("one"), "where it is may be looked at"


def test_between_turns_nobody_looks() -> None:
    assert moved(Life.begun(), worktree="one") is None
