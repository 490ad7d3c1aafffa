"""Tool calls, commands, decisions, and answers of a recorded run are replayed without any effect."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from callboard.adapters.models.cassette.format import Placeholders
from callboard.adapters.models.cassette.mail_order import DeliveryOrder, DeliveryRecorder
from callboard.adapters.models.cassette.recorder import Cassette, Recording
from callboard.adapters.models.cassette.tool_results import RecordedTool, ReplayedStoreTool, ReplayedTool, as_listed
from callboard.adapters.models.cassette.wrappers import (
    ReplayedApprover,
    ReplayedLauncher,
    TapedArchive,
    TapedJudge,
    TapedSurroundings,
)
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.tools.control import SubagentTool
from callboard.core.agent.state import Delivery
from callboard.core.approvals.plans import AnswerDetails
from callboard.core.context.reminders import ReminderFacts
from callboard.ports.environment import PermissionQuery
from callboard.ports.store import Put, Write
from callboard.ports.tool import AGENT_TYPES, CallContext, Folders, ToolOutcome, ToolSpec
from callboard.testing import AllowAll, MemoryArchive
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.messages import StateBlock
from callboard.types.records import Envelope, Json, Request, Todo, ToolCall

pytestmark = pytest.mark.anyio

HERE = Placeholders({"workspace": "/home/ada/work", "session": "s1"})
THERE = Placeholders({"workspace": "/srv/copy", "session": "s1"})


@dataclass
class Probe:
    """Tool that counts its runs."""

    effect: Any = "unknown"
    writes: tuple[Write, ...] = ()
    refuses: str = ""
    says: str = "now"
    ran: list[str] = field(default_factory=list[str])

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("probe", "", {"type": "object"}, self.effect)

    def key(self, given: Json, folders: Folders) -> str:
        return "k"

    async def prepare(self, given: Json, context: CallContext) -> Json:
        self.ran.append("prepare")
        return {"mark": 1}

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        self.ran.append("run")
        if self.refuses:
            raise ToolRefused(self.refuses)
        todos = ev.TodosSet(at=1.0, todos=(Todo(content="in /home/ada/work"),))
        return ToolOutcome(self.says, writes=self.writes, events=(todos,), data={"n": 1})

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        self.ran.append("repair")
        return await self.run(given, context)


class CassetteRun:
    """One cassette: recorded with `course`, then opened by `replay`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "c"
        self.recording = Recording(self.path, HERE, {"model": "m", "session": "s1"})
        self.course = DeliveryRecorder(self.recording)
        self.clock = SystemClock()
        self.played: list[DeliveryOrder] = []

    def saw(self, kind: type[Any], agent: str = "lead", **fields: Any) -> None:
        self.course.on_event(agent, 1, kind(at=1.0, **fields))

    def finished(self, call: str, text: str, *, is_error: bool = False, effect: str = "unknown") -> None:
        self.saw(ev.ToolStarted, call=call, effect=effect)
        self.saw(ev.ToolFinished, call=call, content=({"type": "text", "text": text},), is_error=is_error)

    def replay(self, patience: float = 20.0) -> tuple[Cassette, DeliveryOrder]:
        self.recording.close()
        cassette = Cassette(self.path, THERE)
        self.played.append(DeliveryOrder(cassette, self.clock, patience))
        return cassette, self.played[-1]


@pytest.fixture
def tapes(tmp_path: Path) -> Generator[CassetteRun]:
    made = CassetteRun(tmp_path)
    yield made
    made.recording.close()
    for course in made.played:
        course.close()


def context(call: str = "call_a") -> CallContext:
    """Return a context with only a call id, which is all that a replay uses."""
    return cast("CallContext", SimpleNamespace(call=call))


async def test_a_recorded_tool_runs_and_a_replayed_one_does_not(tapes: CassetteRun) -> None:
    real = RecordedTool(Probe(), tapes.recording)
    assert await real.prepare({}, context()) == {"mark": 1}
    assert (await real.run({}, context())).content == "now"
    tapes.finished("call_a", "in /home/ada/work")
    cassette, _ = tapes.replay()
    probe = Probe()
    again = ReplayedTool(probe, cassette)
    assert await again.prepare({}, context()) == {}
    assert await again.repair({}, {}, context()) is None
    outcome = await again.run({}, context())
    assert outcome.content == [{"type": "text", "text": "in /srv/copy"}]
    assert outcome.events == (ev.TodosSet(at=1.0, todos=(Todo(content="in /srv/copy"),)),)
    assert probe.ran == []
    assert (again.spec.name, again.key({}, Folders(Path("/w"), Path("/r"), Path("/t")))) == ("probe", "k")


async def test_a_repaired_call_is_kept_with_what_it_changed(tapes: CassetteRun) -> None:
    await RecordedTool(Probe(), tapes.recording).repair({}, {}, context())
    tapes.finished("call_a", "repaired")
    cassette, _ = tapes.replay()
    assert len((await ReplayedTool(Probe(), cassette).run({}, context())).events) == 1


async def test_a_call_that_was_not_recorded_is_an_error_result(tapes: CassetteRun) -> None:
    cassette, _ = tapes.replay()
    outcome = await ReplayedTool(Probe(), cassette).run({}, context("call_other"))
    assert outcome.is_error
    assert "holds no result of this call" in str(outcome.content)


async def test_a_tool_of_the_store_writes_again_and_says_what_it_said(tapes: CassetteRun) -> None:
    tapes.finished("call_a", "alice is idle", effect="store")
    cassette, course = tapes.replay()
    probe = Probe("store", (Put("k", b"v"),), says="alice is working")
    outcome = await ReplayedStoreTool(probe, cassette, course).run({}, context())
    assert outcome.writes == (Put("k", b"v"),)
    assert outcome.content == [{"type": "text", "text": "alice is idle"}]


async def test_a_refusal_of_a_tool_of_the_store_is_said_as_it_was(tapes: CassetteRun) -> None:
    tapes.finished("call_a", "refused then", is_error=True, effect="store")
    tapes.finished("call_b", "it was fine then", effect="store")
    cassette, course = tapes.replay(patience=0)
    tool = ReplayedStoreTool(Probe("store", refuses="refused now"), cassette, course)
    assert (await tool.run({}, context())).content == [{"type": "text", "text": "refused then"}]
    with pytest.raises(ToolRefused, match="refused now"):
        await tool.run({}, context("call_b"))


async def test_the_board_changes_in_its_recorded_order(tapes: CassetteRun) -> None:
    tapes.finished("call_a", "first", effect="store")
    tapes.finished("call_b", "second", effect="store")
    cassette, course = tapes.replay()
    order: list[str] = []

    async def run(call: str) -> None:
        await ReplayedStoreTool(Probe("store"), cassette, course).run({}, context(call))
        order.append(call)
        course.on_event("lead", 1, ev.ToolFinished(at=1.0, call=call, content=()))

    async with anyio.create_task_group() as group:
        group.start_soon(run, "call_b")
        await anyio.wait_all_tasks_blocked()
        assert order == []
        group.start_soon(run, "call_a")
    assert order == ["call_a", "call_b"]


async def test_a_check_of_a_task_ends_as_it_did_and_in_its_turn(tapes: CassetteRun) -> None:
    check = {"exit_code": 2, "output": "1 failed in /home/ada/work"}
    tapes.finished("call_a", "first", effect="store")
    tapes.saw(ev.ToolStarted, call="call_b", effect="attach")
    tapes.saw(ev.ToolFinished, call="call_b", content=(), data={"task_id": "t1", "check": check})
    cassette, course = tapes.replay()
    ended = await ReplayedLauncher(cassette, course).run(
        "make test", Path(), timeout=1.0, keep=Path("/results/call_b.out")
    )
    assert (ended.exit_code, ended.output, ended.timed_out) == (2, "1 failed in /srv/copy", False)
    with anyio.move_on_after(0.05) as waited:
        await course.turn_of("call_b")
    assert waited.cancelled_caught, "the earlier change to the board has not been replayed yet"
    course.on_event("lead", 1, ev.ToolFinished(at=1.0, call="call_a", content=()))
    await course.turn_of("call_b")


async def test_nothing_is_started_or_ended_in_a_replay(tapes: CassetteRun) -> None:
    began: Json = {"id": "bg_1", "command": "x", "pid": 1, "started": 1.0, "output": "/home/ada/work/bg_1.out"}
    tapes.saw(ev.BackgroundStarted, **began)
    tapes.saw(ev.BackgroundEnded, id="bg_1", status="failed", exit_code=3)
    cassette, course = tapes.replay()
    launcher = ReplayedLauncher(cassette, course)
    assert await launcher.wait(1, 1.0, Path("/srv/copy/bg_1.out")) == 3
    assert await launcher.wait(1, 1.0, Path("/srv/copy/other.out")) is None
    assert not await launcher.end(1, 1.0)
    for start in (launcher.run("x", Path(), timeout=1.0, keep=Path()), launcher.start("x", Path(), Path())):
        with pytest.raises(ToolRefused):
            await start


async def test_a_command_that_was_stopped_ends_when_it_is_stopped_again(tapes: CassetteRun) -> None:
    tapes.saw(ev.BackgroundStarted, id="bg_1", command="x", pid=1, started=1.0, output="/o/bg_1.out")
    tapes.saw(ev.BackgroundEnded, id="bg_1", status="stopped")
    cassette, course = tapes.replay()
    launcher = ReplayedLauncher(cassette, course)
    async with anyio.create_task_group() as group:
        group.start_soon(launcher.wait, 1, 1.0, Path("/o/bg_1.out"))
        await anyio.wait_all_tasks_blocked()
        course.on_event("lead", 1, ev.BackgroundEnded(at=1.0, id="bg_1", status="stopped"))


async def test_tails_and_rulings_come_from_the_cassette(tapes: CassetteRun) -> None:
    call, spec = ToolCall(id="call_a", use_id="u", name="probe", input={}), cast("AgentSpec", None)
    archive, folders = MemoryArchive(), cast("Any", None)
    said = await TapedArchive(archive, tapes.recording).ends_of("/home/ada/work/x")
    query = PermissionQuery(call=call, tool=Probe().spec, spec=spec, folders=folders, authority="lead")
    then = await TapedJudge(AllowAll(deny=["probe"]), tapes.recording).judge(query)
    cassette, _ = tapes.replay()
    assert await TapedArchive(archive, cassette).ends_of("/srv/copy/x") == said
    assert await TapedJudge(AllowAll(), cassette).judge(query) == then
    other = replace(query, call=call.model_copy(update={"id": "call_b"}))
    assert (await TapedJudge(AllowAll(), cassette).judge(other)).decision == "allow"


@pytest.mark.parametrize(("by", "answers"), [("person", True), ("policy", True), ("lead", False)])
async def test_people_and_policies_answer_as_they_did(tapes: CassetteRun, by: str, answers: bool) -> None:
    bell: Json = {"id": "env_1", "sender": by, "recipient": "alice", "type": "plan_approval_response", "content": "no"}
    envelope = Envelope.model_validate({**bell, "request_id": "req_1", "metadata": {"status": "rejected"}})
    tapes.saw(ev.EnvelopeReceived, "alice", envelope=envelope)
    cassette, course = tapes.replay()
    given = await ReplayedApprover(cassette, course).answer(Request(id="req_1", kind="plan", asked_by="alice"))
    assert (given is not None) == answers
    if given is not None:
        assert (given.status, given.by, given.reason) == ("rejected", by, "no")


async def test_an_option_and_an_edited_text_are_said_again(tapes: CassetteRun) -> None:
    bell: Json = {"id": "env_1", "sender": "person", "recipient": "alice", "type": "plan_approval_response"}
    word = {"status": "approved", "option": 2, "plan": "in /home/ada/work"}
    envelope = Envelope.model_validate({**bell, "request_id": "req_1", "metadata": word})
    tapes.saw(ev.EnvelopeReceived, "alice", envelope=envelope)
    cassette, course = tapes.replay()
    given = await ReplayedApprover(cassette, course).answer(Request(id="req_1", kind="plan", asked_by="alice"))
    assert given is not None
    assert given.word == AnswerDetails(2, "in /srv/copy")


async def test_a_commit_that_was_looked_up_is_found_again(tapes: CassetteRun) -> None:
    class Repository:
        async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
            return ReminderFacts(datetime.fromtimestamp(now, UTC))

        async def commit(self, folder: str, why: str) -> str:
            return f"{why} in {folder}"

    recorded = TapedSurroundings(Repository(), tapes.recording)
    assert await recorded.commit("/a", "call_1") == "call_1 in /a"
    cassette, _ = tapes.replay()
    replayed = TapedSurroundings(Repository(), cassette)
    assert await replayed.commit("/b", "call_1") == "call_1 in /a"
    assert await replayed.commit("/b", "call_2") == "call_2 in /b", "a fact that was not recorded is looked up now"
    assert (await replayed.look(AgentSpec(name="a", kind="lead", agent_type="l", model="m"), 0.0)).git is None


async def test_what_nobody_answered_is_refused_at_last(tapes: CassetteRun) -> None:
    cassette, course = tapes.replay(patience=0)
    given = await ReplayedApprover(cassette, course).answer(Request(id="req_9", kind="plan", asked_by="alice"))
    assert given is not None
    assert given.status == "rejected"


def test_the_course_knows_what_was_delivered_before_which_call(tapes: CassetteRun) -> None:
    tapes.saw(ev.TurnBegan, turn="t", cause="env_1")
    tapes.saw(ev.EnvelopesDelivered, ids=("env_1",), blocks=())
    tapes.saw(ev.EnvelopesDelivered, ids=("env_2", "env_3"), blocks=())
    tapes.saw(ev.ModelCalled, ordinal=1, attempt=1, model="m", max_tokens=1)
    tapes.saw(ev.EnvelopesDelivered, ids=("env_4",), blocks=())
    _, course = tapes.replay()
    first = course.expected("lead", 1, 0, 0)
    assert first is not None
    assert first.deliveries == (Delivery(("env_1",), True), Delivery(("env_2", "env_3"), False))
    later = [course.expected("lead", 1, asked, heard) for asked, heard in ((0, 1), (1, 0), (2, 0))]
    assert [one.deliveries if one else None for one in later] == [
        (Delivery(("env_2", "env_3"), False),),
        (Delivery(("env_4",), False),),
        (),
    ]
    assert tapes.course.expected("lead", 1, 0, 0) is None, "nothing is prescribed while recording"


def test_other_mail_than_recorded_ends_the_prescription(tapes: CassetteRun) -> None:
    tapes.saw(ev.EnvelopesDelivered, ids=("env_1",), blocks=())
    _, course = tapes.replay()
    course.on_event("lead", 1, ev.EnvelopesDelivered(at=1.0, ids=("env_2",), blocks=()))
    assert course.expected("lead", 1, 0, 1) is None


def test_what_was_waited_for_in_vain_is_prescribed_no_longer(tapes: CassetteRun) -> None:
    _, course = tapes.replay(patience=0)
    course.on_event("lead", 1, ev.EnvelopeReceived(at=1.0, envelope=_note("env_1")))
    assert course.expected("lead", 1, 0, 0) is not None, "nobody waited for a silence that mail ended"
    course.on_event("lead", 1, ev.TurnBegan(at=1.0, turn="t", cause="env_1"))
    assert course.expected("lead", 1, 0, 0) is None


def _note(name: str) -> Envelope:
    return Envelope(id=name, sender="alice", recipient="lead", type="message")


async def test_what_a_schedule_sent_comes_again_before_its_call(tapes: CassetteRun) -> None:
    sent: Json = {"id": "schedule:c:1", "sender": "schedule", "recipient": "lead", "type": "scheduled", "seq": 4}
    tapes.saw(ev.ModelCalled, ordinal=1, attempt=1, model="m", max_tokens=1)
    tapes.saw(ev.EnvelopeReceived, envelope=Envelope.model_validate(sent))
    tapes.saw(ev.EnvelopesDelivered, ids=("schedule:c:1",), blocks=())
    _, course = tapes.replay()
    assert course.outside.statistics().current_buffer_used == 0
    course.on_event("lead", 1, ev.ModelCalled(at=1.0, ordinal=1, attempt=1, model="m", max_tokens=1))
    assert (course.outside.receive_nowait().id, course.outside.statistics().current_buffer_used) == ("schedule:c:1", 0)


def test_what_the_runtime_knew_at_a_compaction_is_known_again(tapes: CassetteRun) -> None:
    then, now = StateBlock(teammates=("alice: idle",)), StateBlock(teammates=("alice: working",))
    assert tapes.course.known_state("lead", 1, 0, then) == then
    _, course = tapes.replay()
    assert course.known_state("lead", 1, 0, now) == then
    assert course.known_state("lead", 1, 1, now) == now


def test_a_tool_is_listed_as_recorded_except_for_the_agent_types() -> None:
    spec = ToolSpec("task", f"Now.{AGENT_TYPES}- new: one", {"type": "object", "required": ["a"]}, "attach")
    listing: Json = {"name": "task", "description": f"Then.{AGENT_TYPES}- old: one", "input_schema": {"type": "object"}}
    tool = as_listed(SubagentTool(spec), listing)
    assert tool.spec.description == f"Then.{AGENT_TYPES}- new: one"
    assert tool.spec.input_schema == {"type": "object"}
    assert as_listed(SubagentTool(spec), {"description": "Now.", "input_schema": spec.input_schema}).spec is spec
