"""However a teammate's turn or life ends, its lead gets one typed report of it: from the teammate, else the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import spawn, team_world

from callboard.core.keys import mailbox
from callboard.engine.team.admin_orders import AdminOrder, give_order
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.testing import HostedSession, ScriptedModel, fault, say, use
from callboard.types.hook_answers import Halt, PreToolUse
from callboard.types.records import Envelope, Fault, Json

pytestmark = pytest.mark.anyio

LOOK = use("list_tasks", text="I look.")
REPORTS = {"result", "error", "idle_notification"}


async def nothing(team: HostedSession) -> None:
    """It ends by itself."""


async def interrupt(team: HostedSession) -> None:
    await team.command("interrupt", to="alice")


async def stop(team: HostedSession) -> None:
    await team.command("stop", to="alice")


async def kill(team: HostedSession) -> None:
    order = AdminOrder("kill", "alice", 1, "enough")
    await give_order(team.world.store, team.id, order, now=team.world.clock.now(), nonce="1")


@dataclass(frozen=True)
class End:
    """What alice does with her assignment, what is done to her, and what her lead is told: type, status, words."""

    told: tuple[str, str, str]
    alice: Sequence[Reply | Fault] = ()
    act: Callable[[HostedSession], Awaitable[None]] = nothing
    hangs: bool = False
    """She looks at the board, and her second call takes until it is cancelled."""
    crashes: bool = False
    halts: bool = False
    spec: Json = field(default_factory=dict[str, object])


def report(status: str) -> Reply:
    return use("report", {"status": status, "result": f"it is {status}"})


ENDS = {
    "done": End(("result", "done", "it is done"), [report("done")]),
    "cannot be done": End(("result", "failed", "it is failed"), [report("failed")]),
    "blocked": End(("result", "blocked", "it is blocked"), [report("blocked")]),
    "without a report": End(("result", "done", "All is counted."), [say("All is counted.")]),
    "without a word": End(("result", "done", "without a word"), [say("")]),
    "failed": End(("error", "failed", "no such model"), [fault("not_found", message="no such model")]),
    "refused": End(("error", "failed", "could not continue"), [say("", "refusal")]),
    "limit": End(("error", "limit", "step"), [LOOK] * 9, spec={"limits": {"steps": 2}}),
    "budget": End(("error", "limit", "I look."), [LOOK] * 9, spec={"budget": {"steps": 2}}),
    "interrupted": End(("idle_notification", "interrupted", "has not reported"), act=interrupt, hangs=True),
    "halted": End(("error", "interrupted", "halted by a hook"), [LOOK], halts=True),
    "stopped": End(("error", "stopped", "ended without a report"), act=stop, hangs=True),
    "killed": End(("error", "stopped", "ended without a report"), act=kill, hangs=True),
    "crashed": End(("error", "crashed", "is parked"), crashes=True),
}


class Model(ScriptedModel):
    """Alice's calls hang, or raise what is a bug of ours."""

    def __init__(self, end: End) -> None:
        lead = [use(*spawn("alice", "count the files")), *[say("I see")] * 9]
        super().__init__({"lead": lead, "alice": [LOOK] if end.hangs else list(end.alice)})
        self._end_of_alice, self.begun = end, anyio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.agent == "alice":
            hangs = self._end_of_alice.hangs and request.ordinal == 2
            if hangs or not self._end_of_alice.hangs:
                self.begun.set()
            if self._end_of_alice.crashes:
                raise ZeroDivisionError("a bug in Callboard")
            if hangs:
                await anyio.sleep_forever()
        return await super().complete(request, on_delta)


async def no_looking(event: PreToolUse) -> Halt | None:
    return Halt("no more") if event.call.name == "list_tasks" else None


@pytest.mark.slow(keep=10)
@pytest.mark.parametrize("how", ENDS)
async def test_the_lead_gets_one_typed_report_however_a_teammate_ends(how: str) -> None:
    end = ENDS[how]
    model = Model(end)
    world = team_world(model, Echo(name="write_file"))
    own = world.spec_of
    changed = end.spec
    world.spec_of = lambda kind, name, parent: own(kind, name, parent).model_validate(
        {**own(kind, name, parent).model_dump(), **(changed if name == "alice" else {})}
    )
    if end.halts:
        world.hooks.add("PreToolUse", no_looking)
    async with world.session() as team:
        await team.prompt("how many files are there?")
        await model.begun.wait()
        await end.act(team)
        await team.quiet()
        records = await world.store.read(mailbox("s1", "lead", 1))
        mail = [Envelope.model_validate_json(record.data) for record in records]
        reports = [one for one in mail if one.sender == "alice" and one.type in REPORTS]
        assert [(one.type, one.metadata.get("status")) for one in reports] == [end.told[:2]]
        (told,) = reports
        assert end.told[2] in told.content
        assert told.mode == ("queue" if how == "interrupted" else "wake")
        if how != "crashed":
            (assignment,) = [one for one in await _mail_of_alice(team) if one.metadata.get("assignment")]
            assert told.reply_to in (assignment.id, None if how == "interrupted" else assignment.id)
            assert told.caused_by in (assignment.id, "")


async def _mail_of_alice(team: HostedSession) -> list[Envelope]:
    records = await team.world.store.read(mailbox("s1", "alice", 1))
    return [Envelope.model_validate_json(record.data) for record in records]


async def test_a_teammate_that_a_hook_halts_gives_its_task_back() -> None:
    """Nobody would continue it. It is open again, or has failed after as many attempts as any task."""
    model = ScriptedModel(
        {
            "lead": [use("create_task", {"subject": "the work"}), use(*spawn("alice", "help")), say("w"), say("hm")],
            "alice": [use("report", {"status": "done", "result": "here"}), *[use("list_tasks") for _ in range(9)]],
        }
    )
    world = team_world(model, Echo(name="write_file"))
    world.hooks.add("PreToolUse", no_looking)
    async with world.session() as team:
        await team.prompt("go")
        with anyio.move_on_after(30):
            await team.quiet()
        (task,) = team.team.runtime.rows.tasks()
        state = team.team.state("alice")
        assert state is not None
        assert state.work.tasks == {}
        assert task.status in ("pending", "failed")
        assert "halted by a hook before it was done: " in (task.result or "")
