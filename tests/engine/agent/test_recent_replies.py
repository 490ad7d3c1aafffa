"""Lines of a transcript from an agent's own messages: offered only where the journal would give the same ones."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.agent.agent_states import Life, done
from tests.engine.context.test_summaries import prompted

from callboard.core.context.view.conversation import Conversation
from callboard.core.context.view.transcript import Origin
from callboard.core.keys import journal
from callboard.core.reports.transcript_pages import TranscriptProgress, next_lines
from callboard.engine import transcripts
from callboard.engine.agent_runtime import RecentReplies
from callboard.engine.recall import numbered_events, unedited_messages
from callboard.testing import ScriptedModel, World, say
from callboard.types import events as ev
from callboard.types.messages import Edit, Placed

STEPS = ("prompt", "say", "pause", "call", "clear", "drop", "write", "write", "restart")


def edited(life: Life, kind: str) -> Life:
    """A stage shortens one message: the result of a call, or any message but the newest two."""
    conversation: Conversation = life.state.context.conversation
    messages = conversation.messages
    results = [message for message in messages if message.blocks[0].data.get("type") == "tool_result"]
    if kind == "clear" and results:
        edit = Edit(kind="cleared", message=results[-1].id, last=results[-1].id, block=0, text="[cleared]")
    elif kind == "drop" and len(messages) > 3 and messages[0].role == "user" and not results:
        edit = Edit(kind="dropped", message=messages[0].id, last=messages[0].id)
    else:
        return life
    return life.on(ev.ContextEdited, stage="any", revision=conversation.revision, edits=(edit,))


def ended(life: Life) -> Life:
    assert life.state.turn is not None
    return life.on(ev.TurnEnded, turn=life.state.turn.id, reason="end", text="")


def took(recent: RecentReplies, before: Life, life: Life) -> None:
    """Note the events between two moments, one by one, as a session does."""
    for event in life.events[len(before.events) :]:
        before = before.again(event)
        recent.add((event,), before.state)


def after(life: Life, step: str, number: int) -> Life:
    waiting = life.state.context.wants_reply
    match step:
        case "prompt" if life.state.turn is None:
            return life.prompted(f"prompt {number}")
        case "say" if waiting:
            life = life.said(f"text {number}")
            return ended(life)
        case "pause" if waiting:
            return life.said(f"paused {number}", "pause_turn")
        case "call" if waiting:
            return done(life.called("read_file"), "c1").on(ev.ResultsMerged)
        case "clear" | "drop":
            return edited(life, step)
        case _:
            return life


@settings(max_examples=400)
@example(["prompt", "call", "clear", "write"])
@example(["prompt", "call", "write", "clear", "write", "say", "write"])
@given(st.lists(st.sampled_from(STEPS), min_size=4, max_size=40))
def test_the_agents_own_messages_are_offered_only_where_they_equal_the_journals(steps: list[str]) -> None:
    life = Life.begun()
    recent, written = RecentReplies.of(life.state), TranscriptProgress()
    lines: list[bytes] = []
    for number, step in enumerate(steps):
        if step == "restart":  # another process, which knows the journal only
            recent, written, lines = RecentReplies.of(life.state), TranscriptProgress(), []
        if step != "write":
            before, life = life, after(life, step, number)
            took(recent, before, life)
            continue
        newest = written.bare.context.conversation.messages.last
        every = unedited_messages(enumerate(life.events, 1))
        from_journal = tuple(one for one in every if newest is None or one.id >= newest.id)
        own = recent.next_messages(written, life.state)
        if own is not None:
            assert tuple(own) == from_journal
        replies = {one: event for one, event in _replies(life).items() if own is None or one in recent.replies}
        first = written.lines
        written, more = next_lines(written, life.state, from_journal, replies=replies, origin=Origin())
        lines[first:] = more
        recent.drop_written(written)
    written, whole = next_lines(
        TranscriptProgress(),
        life.state,
        unedited_messages(enumerate(life.events, 1)),
        replies=_replies(life),
        origin=Origin(),
    )
    assert lines == whole[: len(lines)]


def _replies(life: Life) -> dict[int, ev.ModelReplied]:
    replies: dict[int, ev.ModelReplied] = {}
    told = Life()
    for event in life.events:
        told = told.again(event)
        last = told.state.context.conversation.messages.last
        if isinstance(event, ev.ModelReplied) and last is not None:
            replies[last.id] = event
    return replies


def test_with_too_many_replies_the_journal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.engine.agent_runtime._MOST_REPLIES", 2)
    life = Life.begun()
    recent = RecentReplies.of(life.state)
    for number in range(3):
        before, life = life, ended(life.prompted(f"{number}").said("yes"))
        took(recent, before, life)
    assert recent.next_messages(TranscriptProgress(), life.state) is None
    assert len(recent.replies) <= 2


@pytest.mark.anyio
async def test_no_line_comes_from_a_decision_that_the_journal_does_not_have_yet() -> None:
    world = World(ScriptedModel({"lead": [say("Done.")]}), spec={"pipeline": ()})
    async with world.session() as team:
        await prompted(team)
        agent = team.team.agent("lead")
        assert agent is not None
        await transcripts.write(agent)
        block = Placed(data={"type": "text", "text": "later"}, source="hook")

        async def flush() -> None:
            """Stand for decisions that are noted while the transcript waits for its turn."""

        agent.flush = flush
        await agent.note(ev.InjectionsDelivered(at=1.0, blocks=(block,)))
        assert not agent.is_flushed
        await transcripts.write(agent)
        last = (await numbered_events(world.store, journal("s1", "lead", 1)))[-1][0]
        assert agent.written.bare.seq == last
        del agent.flush
