"""The team's tools: reachable recipients, sent messages, new members, and shutdown requests."""

from __future__ import annotations

import pytest
from tests.adapters.tools.tool_world import NOON, SESSION, ToolWorld

from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.team import SHUTDOWN_SECONDS, team_tools
from callboard.core import keys as names
from callboard.core.approvals.requests import AnswerRefusal, answer
from callboard.types.errors import Conflict
from callboard.types.records import Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world() -> ToolWorld:
    world = ToolWorld(team_tools({"general": "anything", "explore": "look\n only"}), board_tools())
    await world.join("lead", "lead")
    await world.join("alice", role="writes the parser")
    await world.join("bob", life="idle")
    return world


# Messages


async def test_a_message_reaches_one_mailbox_and_wakes(world: ToolWorld) -> None:
    await world.run("send_message", "alice", to="lead", content="The grammar is ambiguous.")
    (mail,) = await world.mail("lead")
    assert (mail.sender, mail.type, mail.mode, mail.cause) == ("alice", "message", "wake", "teammate")
    assert mail.content == "The grammar is ambiguous."
    assert mail.depth == 3, "one more than in the turn that sent it"
    await world.run("send_message", to="bob", content="Go on.")
    assert (await world.mail("bob"))[0].cause == "lead"


async def test_a_long_message_is_sent_whole(world: ToolWorld) -> None:
    content = "line\n" * 20_000
    await world.run("send_message", to="alice", content=content)
    assert (await world.mail("alice"))[0].content == content


@pytest.mark.parametrize("to", ["carol", "Alice", "alice ", "../alice", "s1/alice", ""])
async def test_an_unknown_recipient_is_refused_with_the_team(world: ToolWorld, to: str) -> None:
    words = await world.refusal("send_message", to=to, content="hello")
    assert words == f"no agent {to!r} in the team; you can reach alice, bob"


async def test_reserved_names_say_which_tool_is_meant(world: ToolWorld) -> None:
    assert "use broadcast" in await world.refusal("send_message", to="all", content="hello")
    assert "ask_person" in await world.refusal("send_message", to="person", content="hello")


async def test_nobody_writes_to_himself_or_without_words(world: ToolWorld) -> None:
    assert "yourself" in await world.refusal("send_message", "alice", to="alice", content="hello")
    assert "empty" in await world.refusal("send_message", to="alice", content=" \n")


@pytest.mark.parametrize("life", ["stopped", "stopping"])
async def test_who_has_stopped_gets_no_mail_that_nobody_would_read(world: ToolWorld, life: str) -> None:
    await world.join("carol", life=life)
    assert f"carol is {life}" in await world.refusal("send_message", to="carol", content="hello")
    assert await world.mail("carol") == []


async def test_a_crashed_mate_gets_its_mail_and_the_sender_is_told(world: ToolWorld) -> None:
    await world.join("carol", life="crashed")
    sent = await world.run("send_message", to="carol", content="hello")
    assert "has crashed" in str(sent.content)
    assert len(await world.mail("carol")) == 1


async def test_a_message_goes_to_the_newest_life_of_a_name(world: ToolWorld) -> None:
    await world.join("alice", incarnation=3)
    await world.run("send_message", to="alice", content="hello")
    assert await world.mail("alice", 1) == []
    assert len(await world.mail("alice", 3)) == 1


async def test_a_subagent_is_not_in_the_team(world: ToolWorld) -> None:
    await world.join("explore-1", "subagent")
    assert "no agent 'explore-1'" in await world.refusal("send_message", to="explore-1", content="hello")
    assert "explore-1" not in str((await world.run("list_team")).content)


async def test_the_same_call_sends_once(world: ToolWorld) -> None:
    context = await world.context("lead", call="call_same")
    for _ in range(2):
        outcome = await world.tools["send_message"].run({"to": "alice", "content": "hello"}, context)
        await world.store.commit(*outcome.writes)
    assert len(await world.mail("alice")) == 1


async def test_a_broadcast_reaches_all_others_that_live_and_only_queues(world: ToolWorld) -> None:
    await world.join("carol", life="stopped")
    sent = await world.run("broadcast", "alice", content="The interface changed.")
    assert sent.content == "Sent to lead, bob."
    for name in ("lead", "bob"):
        (mail,) = await world.mail(name)
        assert (mail.type, mail.mode) == ("broadcast", "queue")
    assert await world.mail("carol") == await world.mail("alice") == []


async def test_a_broadcast_to_nobody_is_refused() -> None:
    world = ToolWorld(team_tools())
    await world.join("lead", "lead")
    assert await world.refusal("broadcast", content="hello") == "nobody else is in the team"
    assert (
        await world.refusal("send_message", to="x", content="hello") == "no agent 'x' in the team; you can reach nobody"
    )


async def test_mail_never_comes_as_the_result_of_check_inbox(world: ToolWorld) -> None:
    await world.run("send_message", "alice", to="lead", content="secret")
    assert "secret" not in str((await world.run("check_inbox")).content)


# The team


async def test_the_team_is_listed_with_what_each_does_and_holds(world: ToolWorld) -> None:
    await world.join("carol", life="waiting", waiting_for="plan req_x")
    task = str((await world.run("create_task", subject="Write the parser")).data["task_id"])
    await world.run("claim_task", "alice", task_id=task)
    listed = await world.run("list_team", "alice")
    assert str(listed.content).splitlines() == [
        "lead: lead [working]",
        "alice (you): writes the parser [working]",
        f"  {task} [in_progress, alice] Write the parser",
        "bob: teammate [idle]",
        "carol: teammate [waiting for plan req_x]",
    ]


async def test_a_teammate_joins_with_its_row_its_spec_and_its_assignment(world: ToolWorld) -> None:
    outcome = await world.run("spawn_teammate", name="carol", role="tests", prompt="Test it.", plan_required=True)
    found = (await world.rows()).agent("carol")
    assert found is not None
    assert (found[0].kind, found[0].role, found[0].parent) == ("teammate", "tests", "lead")
    assert [mail.content for mail in await world.mail("carol")] == ["Test it."]
    assert "no need to poll" in str(outcome.content)


async def test_a_teammate_has_the_tools_of_its_type_and_those_of_a_team() -> None:
    from callboard.adapters.tools.team import _as_teammate, _Spawn

    world = ToolWorld(team_tools())
    await world.join("lead", "lead")
    context = await world.context()
    given = _Spawn(name="carol", role="tests", prompt="Test it.", plan_required=True)
    writer = _as_teammate(world.types["general"], given, context)
    assert (writer.kind, writer.plan_required, writer.claims_tasks, writer.parent) == ("teammate", True, True, "lead")
    assert {"edit_file", "report", "submit_plan", "claim_task"} <= set(writer.tools)
    reader = _as_teammate(world.types["explore"], given, context)
    assert not reader.claims_tasks, "a reader would claim tasks that it cannot complete"


@pytest.mark.parametrize("name", ["../x", "Alice", "a b", "1st", "-a", "a" * 65, "", "a\n", "ä"])
async def test_a_name_that_is_none_is_refused(world: ToolWorld, name: str) -> None:
    assert "is not a name" in await world.refusal("spawn_teammate", name=name, role="r", prompt="p")


@pytest.mark.parametrize("name", ["lead", "all", "person", "board", "schedule", "runtime"])
async def test_a_reserved_name_is_refused(world: ToolWorld, name: str) -> None:
    assert "reserved" in await world.refusal("spawn_teammate", name=name, role="r", prompt="p")


async def test_a_name_that_lives_is_taken_and_one_that_stopped_begins_a_new_life(world: ToolWorld) -> None:
    assert "in the team already" in await world.refusal("spawn_teammate", name="alice", role="r", prompt="p")
    await world.join("carol", life="stopped")
    await world.store.commit()
    await world.run("send_message", to="bob", content="x")
    await world.run("spawn_teammate", name="carol", role="r", prompt="new life")
    assert await world.mail("carol", 1) == []
    assert [mail.content for mail in await world.mail("carol", 2)] == ["new life"]


async def test_two_spawns_of_one_name_at_once_make_one_teammate(world: ToolWorld) -> None:
    first = await world.preview("spawn_teammate", name="carol", role="r", prompt="p")
    second = await world.preview("spawn_teammate", name="carol", role="r", prompt="p")
    await world.store.commit(*first.writes)
    with pytest.raises(Conflict):
        await world.store.commit(*second.writes)


async def test_an_unknown_type_is_refused_with_those_there_are(world: ToolWorld) -> None:
    words = await world.refusal("spawn_teammate", name="carol", role="r", prompt="p", agent_type="wizard")
    assert words == "agent_type: no type wizard; there are explore, general, teammate"


async def test_a_task_is_the_new_teammates_own_in_the_commit_that_makes_it(world: ToolWorld) -> None:
    task = str((await world.run("create_task", subject="Parse", description="All five fields.")).data["task_id"])
    await world.join("carol", life="stopped")
    await world.run("spawn_teammate", name="carol", role="r", prompt="Begin.", task_id=task)
    rows = await world.rows()
    found = rows.task(task)
    assert found is not None
    assert (found[0].status, found[0].owner, found[0].owner_incarnation) == ("in_progress", "carol", 2)
    (mail,) = await world.mail("carol", 2)
    assert mail.content.startswith(f"Begin.\n\nYour task on the board: {task} Parse\nAll five fields.\n")


async def test_a_task_that_is_not_ready_makes_no_teammate(world: ToolWorld) -> None:
    task = str((await world.run("create_task", subject="Parse")).data["task_id"])
    await world.run("claim_task", "alice", task_id=task)
    words = await world.refusal("spawn_teammate", name="carol", role="r", prompt="p", task_id=task)
    assert "held by alice" in words
    assert "no task task_x" in await world.refusal(
        "spawn_teammate", name="carol", role="r", prompt="p", task_id="task_x"
    )
    assert (await world.rows()).agent("carol") is None


def test_the_model_reads_which_types_there_are_in_a_fixed_order() -> None:
    specs = {tool.spec.name: tool.spec for tool in team_tools({"b": "two\n lines", "a": "one"})}
    assert specs["spawn_teammate"].description.endswith("\n\nAgent types:\n- a: one\n- b: two lines")


# Shutdown


async def test_a_shutdown_is_asked_of_one_life_and_only_once(world: ToolWorld) -> None:
    asked = await world.run("request_shutdown", teammate="alice", reason="All done.")
    request_id = str(asked.data["request_id"])
    found = (await world.rows()).request(request_id)
    assert found is not None
    request = found[0]
    assert (request.kind, request.may_answer, request.status) == ("shutdown", ("alice",), "pending")
    assert request.payload["incarnation"] == 1
    assert request.expires_at == NOON + SHUTDOWN_SECONDS
    (mail,) = await world.mail("alice")
    assert (mail.type, mail.mode, mail.request_id) == ("shutdown_request", "wake", request_id)
    assert mail.content.startswith("You are asked to stop. The reason: All done.\n")
    assert request_id in await world.refusal("request_shutdown", teammate="alice")
    assert isinstance(answer(request, "shutdown", by="bob", status="approved", reason="", now=NOON), AnswerRefusal)
    assert isinstance(answer(request, "shutdown", by="alice", status="approved", reason="", now=NOON), Request)


async def test_a_shutdown_names_a_teammate(world: ToolWorld) -> None:
    assert "is yourself" in await world.refusal("request_shutdown", teammate="lead")
    assert "not a teammate" in await world.refusal("request_shutdown", "alice", teammate="lead")
    assert "no agent" in await world.refusal("request_shutdown", teammate="carol")
    assert names.request_key(SESSION, "x") not in {row.key for row in await world.store.keys("s/")}
