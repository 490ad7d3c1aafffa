"""What is still open when a run ends, in lines for a person and rows for programs."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life

from callboard.core.team.open_work import SHOWN, DeniedCall, OpenWork, StoppedCommand, open_agents, open_tasks
from callboard.types import events as ev
from callboard.types.records import AgentLife, AgentRow, Request, Task


def ended(reason: str, why: str = "") -> Life:
    return Life.begun().prompted("go").on(ev.TurnEnded, turn="turn_0", reason=reason, why=why)


OWING = Life.begun().mailed("do it", type="message", metadata={"assignment": True}).turned().delivered()


@pytest.mark.parametrize(
    ("life", "told", "state"),
    [
        ("idle", ended("end"), ""),
        ("idle", ended("interrupted"), ""),
        ("stopped", ended("limit", "steps"), ""),
        ("idle", ended("limit", "stuck: bash"), "stopped at a limit"),
        ("idle", ended("failed", "no model"), "could not continue"),
        ("idle", OWING.on(ev.TurnEnded, turn="turn_0", reason="end"), "owes a report"),
        ("crashed", None, "crashed"),
        ("waiting", ended("end"), "waiting"),
    ],
)
def test_an_agent_is_open_while_it_is_not_done(life: AgentLife, told: Life | None, state: str) -> None:
    row = AgentRow(name="alice", kind="teammate", life=life, waiting_for="plan req_1" if life == "waiting" else "")
    found = open_agents(
        [(row, told.state if told else None), (AgentRow(name="lead", kind="lead", life="working"), None)]
    )
    assert [one.state for one in found] == ([state] if state else [])
    stopped = state in ("stopped at a limit", "could not continue")
    assert OpenWork(agents=found).reason() == (found[0].line() if stopped else ""), "a run beside it fails"


def test_each_kind_is_a_line_and_long_lists_are_counted() -> None:
    tasks = [Task(id=f"t{n}", subject="the work", status="pending", created_at=n) for n in range(SHOWN + 2)]
    tasks += [Task(id="done", subject="x", status="completed"), Task(id="gone", subject="x", status="cancelled")]
    tasks += [
        Task(id="bad", subject="x", status="failed"),
        Task(id="now", subject="x", status="in_progress", owner="bob"),
    ]
    work = OpenWork(
        open_tasks(tasks),
        (Request(id="req_1", kind="plan", asked_by="bob", subject="the plan"),),
        worktrees=("parser: unmerged commits: 2",),
        denied=(DeniedCall("bob", "bash", "bash sudo id", "never"),),
        stopped=(StoppedCommand("bg_1", "bob", "make\n  serve"),),
    )
    assert work.tasks[0].id == "now"
    assert work.reason() == f"{SHOWN + 4} tasks are not finished: now, t0, t1, t2, t3 and 4 more"
    assert work.lines() == [
        "now [in progress, bob] x",
        *[f"t{n} [pending] the work" for n in range(SHOWN - 1)],
        "and 4 more",
        "req_1 waits for an answer (plan of bob): the plan",
        "worktree parser: unmerged commits: 2",
        "bg_1 of bob still ran, and was stopped: make serve",
    ]
    assert {kind: len(rows) for kind, rows in work.fields().items()} == {
        "tasks": SHOWN + 4,
        "requests": 1,
        "agents": 0,
        "worktrees": 1,
        "denied_calls": 1,
        "stopped_commands": 1,
    }


def test_nothing_open_is_nothing_to_say() -> None:
    assert not OpenWork()
    assert (OpenWork().lines(), OpenWork().reason()) == ([], "")
