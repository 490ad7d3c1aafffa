"""Who waits in vain: against a search by brute force over random graphs, and what an agent waits for, as a table."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.agent.agent_states import Life

from callboard.core.team.waits import BOARD, NOBODY, Graph, WaitEdge, deadlocks, stuck, waits_of
from callboard.types import events as ev
from callboard.types.records import Request, RequestKind, Task, ToolCall

SOAK = int(os.environ.get("SOAK", "1"))
NAMES = ("a", "b", "c", "d", "person", "gone")


def wait(who: str, *needs: str, key: str = "") -> WaitEdge:
    """`needs`: each a string of names, any one of which meets it."""
    return WaitEdge(
        who, tuple(frozenset(need.split("|")) for need in needs), "a word", key or f"{who}-{'-'.join(needs)}"
    )


def can_go_on(graph: Graph, gone: set[str], who: str) -> bool:
    """By brute force: is there any order in which agents act, one after the other, until this one does?"""
    names = [name for name in NAMES if name not in gone]
    starts = frozenset(name for name in names if not graph.get(name))
    states, seen = [starts], {starts}
    while states:
        acted = states.pop()
        if who in acted:
            return True
        for name in names:
            if name in acted:
                continue
            if any(all(need & acted for need in one.needs) for one in graph[name]):
                more = acted | {name}
                if more not in seen:
                    seen.add(more)
                    states.append(more)
    return False


needs = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3), min_size=1, max_size=2)
waits = st.lists(needs, max_size=2)
graphs = st.fixed_dictionaries(dict.fromkeys(NAMES[:4], waits)).map(
    lambda found: {
        who: [WaitEdge(who, tuple(need), "a word", f"{who}{number}") for number, need in enumerate(several)]
        for who, several in found.items()
    }
)


@settings(max_examples=200, deadline=None)
@given(graphs)
def test_who_is_stuck_is_who_no_order_of_acting_sets_going(graph: dict[str, list[WaitEdge]]) -> None:
    assert stuck(graph, {"gone"}) == {who for who in NAMES[:4] if not can_go_on(graph, {"gone"}, who)}


@pytest.mark.soak
@settings(max_examples=5_000 * SOAK, deadline=None)
@given(graphs)
def test_who_is_stuck_over_many_graphs(graph: dict[str, list[WaitEdge]]) -> None:
    assert stuck(graph, {"gone"}) == {who for who in NAMES[:4] if not can_go_on(graph, {"gone"}, who)}
    told_well(graph)


def told_well(graph: dict[str, list[WaitEdge]]) -> None:
    """Every deadlock is one, and whoever is stuck comes to one that is told."""
    left, found = stuck(graph, {"gone"}), deadlocks(graph, {"gone"})
    assert bool(left) == bool(found)
    for one in found:
        assert set(one.names) <= left
        if one.gone:
            assert not one.waits[0].names & left
            continue
        for step, to in zip(one.waits, (*one.names[1:], one.names[0]), strict=True):
            assert to in step.names
            assert step in graph[step.who]
        assert len(set(one.names)) == len(one.names)
    named = {name for one in found for name in one.names}
    for who in left:
        assert named & reached(graph, left, who)
    assert len({one.id for one in found}) == len(found)


def reached(graph: dict[str, list[WaitEdge]], left: frozenset[str], who: str) -> set[str]:
    met, todo = {who}, [who]
    while todo:
        for name in {name for one in graph[todo.pop()] for name in one.names if name in left} - met:
            met.add(name)
            todo.append(name)
    return met


@settings(max_examples=200, deadline=None)
@given(graphs)
def test_every_deadlock_is_told_once_and_nothing_else_is(graph: dict[str, list[WaitEdge]]) -> None:
    told_well(graph)


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        ({"a": [wait("a", "b")], "b": [wait("b", "a")]}, [("a", "b")]),
        ({"a": [wait("a", "b")], "b": [wait("b", "c")], "c": [wait("c", "a")]}, [("a", "b", "c")]),
        ({"a": [wait("a", "a")]}, [("a",)]),
        ({"a": [wait("a", "b")], "b": [wait("b", "a|person")]}, []),
        ({"a": [wait("a", "b"), wait("a", "person")], "b": [wait("b", "a")]}, []),
        ({"a": [wait("a", "b", "person")], "b": [wait("b", "a")]}, [("a", "b")]),
        ({"a": [wait("a", "gone")], "b": [wait("b", "a")]}, [("a",)]),
        ({"a": [wait("a", "gone|person")]}, []),
        (
            {"a": [wait("a", "b")], "b": [wait("b", "a")], "c": [wait("c", "d")], "d": [wait("d", "c")]},
            [("a", "b"), ("c", "d")],
        ),
        ({"a": [wait("a", "b")], "b": []}, []),
    ],
)
def test_circles_and_those_who_wait_for_the_gone(
    graph: dict[str, list[WaitEdge]], names: list[tuple[str, ...]]
) -> None:
    assert [one.names for one in deadlocks(graph, {"gone"})] == names


def test_a_deadlock_is_named() -> None:
    ring = {"bob": [WaitEdge("bob", (frozenset({"amy"}),), "a reply to its message env_2", "env_2")]}
    ring["amy"] = [WaitEdge("amy", (frozenset({"bob"}),), "an answer to its plan req_1", "req_1")]
    (found,) = deadlocks(ring, set())
    assert found.text() == (
        "amy waits for bob: an answer to its plan req_1; bob waits for amy: a reply to its message env_2. "
        "None of them can continue before another does."
    )
    (vain,) = deadlocks({"bob": ring["bob"]}, {"amy"})
    assert vain.text() == "bob waits in vain for a reply to its message env_2: amy will not act again."
    never = WaitEdge("bob", (frozenset({NOBODY}),), "what task_1 waits for", "task_1")
    (lost,) = deadlocks({"bob": [never]}, {NOBODY})
    assert lost.text() == "bob waits in vain for what task_1 waits for: nobody will act on that again."
    assert len({found.id, vain.id, lost.id}) == 3
    assert deadlocks(dict(reversed(ring.items())), set())[0].id == found.id


# What an agent waits for.


def asked(id: str, kind: RequestKind, **more: Any) -> Request:
    return Request.model_validate({"id": id, "kind": kind, "asked_by": "alice", "may_answer": ("person",), **more})


def idle(kind: str = "teammate", **spec: Any) -> Life:
    life = Life.begun(kind, **spec).prompted("go")
    return life.asked().replied({"type": "text", "text": "well"}).on(ev.TurnEnded, turn="turn_0", reason="end")


def wrote(life: Life, to: str, call: str = "call_1") -> Life:
    """It has sent a message, and ended its turn."""
    calls = (ToolCall(id=call, use_id="u", name="send_message", input={"to": to, "content": "?"}),)
    life = life.mailed("again", sender="lead", type="message").turned().delivered().asked().replied(calls=calls)
    life = life.on(ev.ToolFinished, call=call, content=(), data={"to": to})
    life = life.on(ev.ToolSettled, call=call).on(ev.ResultsMerged)
    return life.on(ev.TurnEnded, turn="turn_1", reason="end")


def holding(life: Life, task: str = "task_1") -> Life:
    return life.on(ev.TaskHeld, task=task, subject="work")


def found(life: Life, *requests: Request, tasks: tuple[Task, ...] = ()) -> list[tuple[str, set[str]]]:
    made = waits_of(life.state, requests, {task.id: task for task in tasks})
    assert all(one.who == "alice" for one in made)
    return [(one.key, set(one.names)) for one in made]


def test_who_is_at_work_or_has_mail_or_was_never_set_going_waits_for_nothing() -> None:
    question = asked("req_1", "question")
    assert found(Life.begun(), question) == []
    assert found(Life.begun().prompted("go"), question) == []
    assert found(idle().mailed("more"), question) == []
    assert found(idle().on(ev.StopAsked, by="person"), question) == []
    assert waits_of(Life().state, [question], {}) == ()


def test_an_idle_agent_waits_for_whoever_may_answer_what_it_asked() -> None:
    question, another = asked("req_1", "question"), asked("req_2", "question", asked_by="bob")
    stop = asked("req_3", "shutdown", may_answer=("bob",))
    old = asked("req_4", "question", incarnation=2)
    over = asked("req_5", "question", status="answered")
    assert found(idle(), question, another, stop, old, over) == [("req_1", {"person"}), ("req_3", {"bob"})]
    assert found(idle(), asked("req_1", "question", may_answer=("alice",))) == [("req_1", {NOBODY})]


def test_a_plan_that_waits_keeps_its_author_from_everything_else() -> None:
    life = holding(wrote(idle(), "bob")).on(ev.GateSet, gate="pending", request_id="req_1", digest="d")
    plan = asked("req_1", "plan", may_answer=("lead", "policy"))
    assert found(life, plan, asked("req_2", "question")) == [("req_1", {"lead", "policy"})]
    assert found(life) == []


@pytest.mark.parametrize(("stages", "waits"), [(("asking", "asking"), 2), (("asking", "proposed"), 0)])
def test_calls_that_all_wait_for_a_permission_keep_it_and_one_that_goes_on_does_not(
    stages: tuple[str, ...], waits: int
) -> None:
    calls = tuple(ToolCall(id=f"call_{n}", use_id=f"u{n}", name="bash", input={}) for n in range(len(stages)))
    life = Life.begun().prompted("go").asked().replied(calls=calls)
    for number, stage in enumerate(stages):
        if stage == "asking":
            life = life.on(ev.ApprovalNeeded, call=f"call_{number}", request_id=f"req_{number}")
    rows = [asked(f"req_{n}", "permission", may_answer=("person", "lead", "policy")) for n in range(len(stages))]
    assert found(life, *rows) == [(f"req_{n}", {"person", "policy"}) for n in range(waits)]


def test_who_has_work_in_its_hands_waits_for_the_reply_to_its_message_and_who_has_not_does_not() -> None:
    life = wrote(idle(), "bob")
    assert found(life) == []
    ((key, names),) = found(holding(life))
    assert (key.startswith("env_"), names) == (True, {"bob"})
    assert [names for _, names in found(wrote(idle("lead", name="alice"), "bob"))] == [{"bob"}]


ANSWERS = {
    "it says so": {"reply_to": "mine"},
    "it had read mine": {"metadata": {"read": "mine"}},
    "a report": {"type": "result"},
    "an error": {"type": "error"},
}


@pytest.mark.parametrize("how", [*ANSWERS, "it crossed mine", "of somebody else"])
def test_a_message_is_answered_by_what_was_written_after_it_was_read(how: str) -> None:
    life = holding(wrote(idle(), "bob"))
    ((mine, _),) = found(life)
    fields = {"type": "message", "sender": "bob", **ANSWERS.get(how, {})}
    fields = {
        name: ({"read": mine} if name == "metadata" else mine if value == "mine" else value)
        for name, value in fields.items()
    }
    if how == "of somebody else":
        fields = {"type": "message", "sender": "carol", "metadata": {"read": mine}}
    life = life.mailed("so", **fields).turned().delivered().on(ev.TurnEnded, turn="turn_2", reason="end")
    assert bool(found(life)) == (how not in ANSWERS)
    sender = str(fields["sender"])
    assert (sender in life.state.waits.read) == (fields["type"] == "message")


def test_a_dead_letter_ends_the_wait_for_its_reply_and_an_answer_of_its_own_ends_what_it_owes() -> None:
    life = holding(wrote(idle(), "bob"))
    ((mine, _),) = found(life)
    dead = life.mailed("bob has ended", sender="runtime", type="dead_letter", reply_to=mine)
    assert found(dead.turned().delivered().on(ev.TurnEnded, turn="turn_2", reason="end")) == []
    owes = Life.begun().mailed("?", sender="bob", type="message").turned().delivered()
    owes = owes.on(ev.TurnEnded, turn="turn_0", reason="end")
    assert dict(owes.state.waits.read) == {"bob": "env_1"}
    assert "bob" not in wrote(owes, "bob").state.waits.read


@pytest.mark.parametrize(
    ("fields", "doer"),
    [
        ({"status": "in_progress", "owner": "bob"}, "bob"),
        ({"status": "pending"}, BOARD),
        ({"status": "pending", "reserved_for": "carol"}, "carol"),
        ({"status": "failed"}, NOBODY),
        ({"status": "cancelled"}, NOBODY),
    ],
)
def test_a_task_in_its_hands_waits_for_all_that_it_was_put_behind(fields: dict[str, Any], doer: str) -> None:
    done, other = (
        Task(id="task_d", subject="d", status="completed"),
        Task.model_validate({"id": "task_o", "subject": "o", **fields}),
    )
    mine = Task(id="task_1", subject="work", status="in_progress", owner="alice", blocked_by=("task_d", "task_o"))
    assert found(holding(idle()), tasks=(mine, other, done)) == [("task_1", {doer})]
    assert found(holding(idle()), tasks=(mine.model_copy(update={"blocked_by": ("task_d",)}), done)) == []
    unknown = mine.model_copy(update={"blocked_by": ("task_x",)})
    assert found(holding(idle()), tasks=(unknown,)) == [("task_1", {NOBODY})]
    assert found(holding(idle()), tasks=()) == []


def test_the_brute_force_search_itself_tells_a_circle_from_a_chain() -> None:
    for back in ("a", "person"):
        graph = {"a": [wait("a", "b")], "b": [wait("b", back)], "c": [], "d": []}
        assert can_go_on(graph, set(), "a") == (back == "person")
