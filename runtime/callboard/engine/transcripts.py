"""Transcripts of agents for compactions and hooks, and the size of a compaction in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from callboard.core.agent.apply import apply, apply_behind_hole
from callboard.core.agent.rules.compaction import room, transcript_path
from callboard.core.agent.state import AgentState
from callboard.core.context.summary.request import restore_missing
from callboard.core.context.view.conversation import size
from callboard.core.context.view.transcript import Origin
from callboard.core.decoding import read_event
from callboard.core.keys import journal
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.reports.context import edit_reason, rewritten
from callboard.core.reports.transcript_pages import TranscriptProgress, next_lines
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.recall import PAGE, numbered_events, unedited_messages
from callboard.ports.store import Record
from callboard.ports.store_reading import records_of
from callboard.types.events import ContextEdited, ModelReplied
from callboard.types.messages import StateBlock, ViewMessage


async def write(agent: AgentRuntime) -> str:
    """Append new entries to the agent's transcript and return its path.

    The lines are made from the agent's own messages. If an edit changed these, or this process has not seen all events
    since the last lines, the journal is read in pages and folded outside the event loop. The first call after a resume
    reads the whole journal and skips the lines that the file already has.
    """
    await agent.flush()
    state = agent.state
    services = agent.runtime.services
    folders = services.archive.folders(state.me)
    path = transcript_path(state, str(folders.transcripts))
    origin = Origin(state.identity.session, agent.name, state.identity.incarnation, state.me.kind, str(folders.root))
    stream = journal(agent.runtime.session, agent.name, agent.row.incarnation)
    async with agent.transcribing:
        recent = agent.recent_replies
        known = recent.next_messages(agent.written, agent.state) if agent.is_flushed else None
        if known is not None and agent.written.bare.seq < agent.state.seq:
            work = partial(next_lines, agent.written, agent.state, known, replies=dict(recent.replies), origin=origin)
            await _extend(agent, path, work)
        while agent.written.bare.seq < state.seq:
            records = await records_of(services.store, stream, agent.written.bare.seq, PAGE)
            if not records:
                break
            await _extend(agent, path, partial(_page, agent.written, stream, records, origin))
    return path


async def _extend(
    agent: AgentRuntime, path: str, work: Callable[[], tuple[TranscriptProgress, Sequence[bytes]]]
) -> None:
    agent.written = await agent.runtime.services.archive.extend(path, agent.written.lines, work)
    agent.recent_replies.drop_written(agent.written)


def _page(
    written: TranscriptProgress, stream: str, records: Sequence[Record], origin: Origin
) -> tuple[TranscriptProgress, list[bytes]]:
    """Fold records. Return the new position, and the lines of the messages that are now complete.

    The first line belongs to the message that was the newest before, and may already be in the file.
    """
    bare = written.bare
    holes = written.holes
    replies = dict[int, ModelReplied]()
    for record in records:
        event = read_event(record.data, stream, record.seq)
        if isinstance(event, ContextEdited):
            event = event.model_copy(update={"edits": ()})
        holes += record.seq != bare.seq + 1
        bare = apply_behind_hole(bare, record.seq, event) if holes else apply(bare, event)
        newest = bare.context.conversation.messages.last
        if isinstance(event, ModelReplied) and event.blocks and newest is not None and newest.role == "assistant":
            replies[newest.id] = event
    return next_lines(written, bare, bare.context.conversation.messages, replies=replies, origin=origin, holes=holes)


async def history_of(agent: AgentRuntime, state: AgentState) -> Sequence[ViewMessage]:
    """Return the whole conversation up to this state, folded outside the event loop."""
    services = agent.runtime.services
    events = await numbered_events(
        services.store, journal(state.identity.session, state.me.name, state.identity.incarnation)
    )
    return await services.archive.aside(lambda: unedited_messages(event for event in events if event[0] <= state.seq))


def with_measurements(state: AgentState, event: ContextEdited) -> ContextEdited:
    """Return the event with its measurements.

    The measurements are the tokens before and after the event, its reason, and the part of the cache that becomes
    invalid.
    """
    spec = state.me
    before = state.context.conversation
    after = apply(state, event).context.conversation
    limits = spec.limits_of(model_in_use(state.model.recovery, spec))
    update = {
        "tokens_before": size(before),
        "tokens_after": size(after),
        "why": edit_reason(
            event, before, room(state), state.compaction.summary.focus if state.compaction.summary else ""
        ),
        "rewritten": rewritten(event, before, after, cache=state.costs.cache, ttl=limits.cache_ttl),
    }
    return event.model_copy(update=update)


def checked_edit(agent: AgentRuntime, event: ContextEdited, block: StateBlock | None = None) -> ContextEdited:
    """Return the measured event with necessary items restored; without edits if nothing would be saved.

    `block`: the runtime's state, if it was computed for the edits.
    """
    state = agent.state
    if event.edits:
        edits, names = restore_missing(
            state.context.conversation, event.edits, block or agent.runtime.state_block(state), state.work.tasks
        )
        event = event.model_copy(update={"edits": edits, "repaired": names if edits else ()})
    return with_measurements(state, event)
