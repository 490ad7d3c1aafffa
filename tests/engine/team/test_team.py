"""Lead, teammates and subagents together: mail, waking, the plan gate, the board, shutdown, crashes."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, Person
from tests.engine.team.team_world import spawn, team_world

from callboard.core.keys import request_key
from callboard.engine.approvals.requests import answer_request
from callboard.engine.operations import receive
from callboard.ports.environment import Answer
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Store
from callboard.testing import AllowAll, ScriptedModel, fault, say, use
from callboard.types.records import AgentRow, Envelope, Request

pytestmark = pytest.mark.anyio


async def test_a_teammates_result_wakes_an_idle_lead() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", "count the files")), say("waiting"), say("alice says three")],
            "alice": [use("report", {"status": "done", "result": "three files"})],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("how many files?")
        await team.quiet()
        assert team.state("lead").turns.last_text == "alice says three"
        last = [r for r in model.requests if r.agent == "lead"][-1]
        assert b"three files" in last.messages[-1]
        assert team.state("alice").work.reported == "three files"


async def test_a_teammate_that_fails_tells_the_lead_why() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice")), say("waiting"), say("alas")],
            "alice": [fault("invalid", status=400, message="bad request")],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        last = [r for r in model.requests if r.agent == "lead"][-1]
        assert b'type=\\"error\\"' in last.messages[-1]
        assert b"bad request" in last.messages[-1]


async def test_a_teammate_that_just_ends_its_turn_has_its_last_words_sent_as_its_result() -> None:
    model = ScriptedModel(
        {"lead": [use(*spawn("alice")), say("waiting"), say("thanks")], "alice": [say("All done, I think.")]}
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "thanks"
        assert b"All done, I think." in [r for r in model.requests if r.agent == "lead"][-1].messages[-1]


async def test_a_subagents_final_text_is_the_result_of_its_call() -> None:
    def find(request: ModelRequest) -> Reply:
        return say("it is in retry.py")

    model = ScriptedModel(
        {"lead": [use("task", {"description": "find", "prompt": "find it", "agent_type": "explore"}), say("found")]},
        end="it is in retry.py",
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "found"
        assert b"it is in retry.py" in [r for r in model.requests if r.agent == "lead"][-1].messages[-1]


async def test_many_subagents_of_one_reply_run_at_once() -> None:
    calls = [("task", {"description": "d", "prompt": f"p{n}", "agent_type": "explore"}) for n in range(40)]
    model = ScriptedModel({"lead": [use(*calls[0], *calls[1:]), say("all back")]}, delay=10)
    world = team_world(model)
    async with world.session() as team:
        begun = world.clock.now()
        if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
            await team.prompt("go")
            await team.quiet()
            assert team.state("lead").turns.last_text == "all back"
            assert world.clock.now() - begun < 60


class Reviewer(Person):
    """Rejects the first plan, approves the second."""

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        if len(self.asked) == 1:
            return Answer("rejected", "person", "name the files")
        return Answer("approved", "person", "good")


async def test_a_rejected_plan_stays_closed_and_a_revised_one_opens() -> None:
    touch, person = Echo(name="write_file", effect="reconcile"), Reviewer(None)
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [
                use("write_file", {"text": "too early"}),
                use("submit_plan", {"plan": "change things"}, ("write_file", {"text": "in the same reply"})),
                use("write_file", {"text": "after a rejection"}),
                use("submit_plan", {"plan": "change a.py and b.py"}),
                use("write_file", {"text": "approved"}),
                use("report", {"status": "done", "result": "changed"}),
            ],
        }
    )
    async with team_world(model, touch, approvers=[person]).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert touch.ran == [{"text": "approved"}]
        assert [r.payload["plan"] for r in person.asked] == ["change things", "change a.py and b.py"]
        sent = b"\n".join([r for r in model.requests if r.agent == "alice"][-1].messages)
        assert b"a plan must be approved first" in sent
        assert b"Not run: waiting for plan approval" in sent
        assert b"name the files" in sent
        assert team.state("alice").work.gate.gate == "required", "the next assignment needs a plan of its own"


async def test_mail_that_comes_while_a_plan_waits_is_kept_and_read_after_the_answer() -> None:
    asked, go = anyio.Event(), anyio.Event()

    class Slow(Person):
        async def answer(self, request: Request) -> Answer | None:
            asked.set()
            await go.wait()
            return Answer("approved", "person")

    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [
                use("submit_plan", {"plan": "the plan"}),
                use("report", {"status": "done", "result": "did it"}),
            ],
        }
    )
    async with team_world(model, approvers=[Slow(None)]).session() as team:
        await team.prompt("go")
        await asked.wait()
        calls = len([r for r in model.requests if r.agent == "alice"])
        await team.prompt("by the way, hurry", to="alice")
        while not team.state("alice").inbox.mail:
            await anyio.sleep(0)
        assert len([r for r in model.requests if r.agent == "alice"]) == calls, "no model call while a plan waits"
        go.set()
        await team.quiet()
        second = [r for r in model.requests if r.agent == "alice"][calls]
        assert b"by the way, hurry" in second.messages[-1]
        assert b"plan-decision" in second.messages[-1]


async def test_an_idle_teammate_claims_the_next_ready_task_and_dependencies_hold() -> None:
    def depend(request: ModelRequest) -> Reply:
        text = request.messages[-1].decode()
        first = text[text.index("task_") :][:17]
        return use("create_task", {"subject": "do the second", "blocked_by": [first]})

    model = ScriptedModel(
        {
            "lead": [use("create_task", {"subject": "do the first"}), depend, use(*spawn("alice", "help")), say("ok")],
            "alice": [
                use("report", {"status": "done", "result": "ready to help"}),
                use("send_message", {"to": "lead", "content": "Which way?"}),
                say("I wait"),
            ],
        }
    )
    async with team_world(model, Echo(name="write_file")).session() as team:
        await team.prompt("go")
        await team.quiet()
        held = [task.subject for task in team.team.runtime.rows.tasks() if task.owner == "alice"]
        assert held == ["do the first"]
        assert dict(team.state("alice").work.tasks) != {}


async def test_a_teammate_that_stops_at_a_limit_gives_its_task_back() -> None:
    model = ScriptedModel(
        {
            "lead": [use("create_task", {"subject": "the work"}), use(*spawn("alice", "help")), say("w"), say("hm")],
            "alice": [use("report", {"status": "done", "result": "here"}), *[use("list_tasks") for _ in range(9)]],
        }
    )
    world = team_world(model, Echo(name="write_file"), spec={"limits": {"steps": 4}})
    async with world.session() as team:
        await team.prompt("go")
        with anyio.move_on_after(30):
            await team.quiet()
        told = b"\n".join([r for r in model.requests if r.agent == "lead"][-1].messages)
        assert b"stopped at a limit" in told
        attempts = [task.attempts for task in team.team.runtime.rows.tasks()]
        assert attempts[0] <= 3, "a task that nobody can finish is not claimed for ever"


async def test_shutdown_is_a_handshake_and_a_dead_owners_task_comes_free() -> None:
    def stop(request: ModelRequest) -> Reply:
        return use("request_shutdown", {"teammate": "alice"})

    model = ScriptedModel(
        {
            "lead": [
                use("create_task", {"subject": "the work"}),
                use(*spawn("alice", "help")),
                say("waiting"),
                stop,
                say("bye"),
                say("she is gone"),
            ],
            "alice": [use("report", {"status": "done", "result": "here"}), say("working on it")],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        row = team.team.runtime.rows.agent("alice")
        assert row is not None
        assert row[0].life == "stopped"
        assert [task.owner for task in team.team.runtime.rows.tasks()] == [None]
        kinds = [r.kind + " " + r.status for r in team.team.runtime.rows.requests()]
        assert kinds == ["shutdown approved"]


async def test_a_new_alice_never_reads_the_old_ones_mail() -> None:
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice", "first life")),
                say("w"),
                use("request_shutdown", {"teammate": "alice"}),
                say("w"),
                use(*spawn("alice", "second life")),
                say("w"),
            ],
            "alice": [
                use("report", {"status": "done", "result": "one"}),
                use("report", {"status": "done", "result": "two"}),
            ],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        row = team.team.runtime.rows.agent("alice")
        assert row is not None
        assert row[0].incarnation == 2
        seen = b"\n".join([r for r in model.requests if r.agent == "alice"][-1].messages)
        assert b"second life" in seen
        assert b"first life" not in seen


async def test_a_chain_of_messages_that_changes_nothing_stops() -> None:
    def ping(to: str) -> list[Reply]:
        return [use("send_message", {"to": to, "content": "your turn"}) if n % 2 == 0 else say("ok") for n in range(60)]

    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice"), spawn("bob")), *[say("hm") for _ in range(40)]],
            "alice": ping("bob"),
            "bob": ping("alice"),
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(model.requests) < 80


async def test_permission_of_a_teammate_is_asked_of_the_person_and_not_of_the_lead() -> None:
    touch, person = Echo(name="write_file", effect="unknown"), Person(Answer("approved", "person"))
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice")), say("waiting"), say("done")],
            "alice": [use("write_file", {"text": "x"}), use("report", {"status": "done", "result": "touched"})],
        }
    )
    world = team_world(model, touch, approvers=[person], judge=AllowAll(ask=["write_file"]))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert [r.may_answer for r in person.asked] == [("person", "policy")]
        assert touch.ran == [{"text": "x"}]


async def test_a_shutdown_that_is_refused_while_it_is_taken_in_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal lands after the row was looked at, before the receipt is recorded (seed 1064 of the team of six)."""
    told: list[str | None] = []
    admit = receive.admit

    async def admit_then_refuse(
        store: Store, session: str, recipient: AgentRow, envelope: Envelope, *, now: float, void: str
    ) -> receive.Admission:
        admission = await admit(store, session, recipient, envelope, now=now, void=void)
        if envelope.type == "shutdown_request" and not told and envelope.request_id:
            no, runtime = Answer("rejected", "alice", "not done yet"), team.team.runtime
            told.append(await answer_request(store, session, envelope.request_id, no, now=runtime.clock.now()))
            await runtime.refresh(request_key(session, envelope.request_id))  # the board is ahead of what was judged
        return admission

    monkeypatch.setattr(receive, "admit", admit_then_refuse)
    work = [use("report", {"status": "done", "result": "here"}), say("still at it"), say("and on")]
    stop = use("request_shutdown", {"teammate": "alice"})
    model = ScriptedModel(
        {"lead": [use(*spawn("alice", "help")), say("w"), stop, say("w"), say("she stays")], "alice": work}
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert told == [None], "her answer counts"
        assert [request.status for request in team.team.runtime.rows.requests()] == ["rejected"]
        row = team.team.runtime.rows.agent("alice")
        assert row is not None
        assert row[0].life == "idle"
        assert team.state("alice").lifecycle.stop_request is None
