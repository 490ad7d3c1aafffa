"""A session's first records, and what a person does to it: words and commands as envelopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from callboard.core.bus.mail import sending
from callboard.core.names import agent_key, one_by_id, session_key, short_id
from callboard.engine.specs import spec_digest, spec_key
from callboard.ports.store import Fence, Put, Store, Write
from callboard.words.errors import UsageError
from callboard.words.specs import AgentSpec, ModelChoice, ModelLimits
from callboard.words.values import AgentRow, Envelope, Json, SessionRow

SERVES = "serve"
"""True in `SessionRow.settings` of the session that `callboard serve` keeps for schedule files."""
Action = Literal["interrupt", "stop", "compact", "undo", "new", "budget", "model", "mode", "asking"]


async def create_session(
    store: Store, row: SessionRow, lead: AgentSpec, fence: Fence | None, first: Envelope | None = None
) -> None:
    """The session, its lead and its lead's spec, and the person's first words to it, in one commit: there is never a
    session that was given work and does not know it. Raises `Conflict` when the session exists."""
    digest = spec_digest(lead)
    agent = AgentRow(
        name=lead.name,
        kind="lead",
        role=lead.role,
        agent_type=lead.agent_type,
        spec=digest,
        created_at=row.created_at,
        since=row.created_at,
    )
    words = [] if first is None else [sending(row.id, first)]
    await store.commit(
        Put(session_key(row.id), row.encode(), expected=0),
        Put(agent_key(row.id, lead.name), agent.encode(), expected=0),
        Put(spec_key(row.id, digest), lead.encode()),
        *words,
        fence=fence,
    )


async def sessions_of(store: Store) -> Sequence[SessionRow]:
    """All sessions of a store, newest first."""
    rows = [row for row in await store.keys("s/") if row.key.count("/") == 1 and row.value is not None]
    found = [SessionRow.model_validate_json(row.value or b"") for row in rows]
    return sorted(found, key=lambda one: -one.created_at)


async def find_session(store: Store, wanted: str | None) -> SessionRow:
    """The session of that id (or a beginning of it that only one has), or the newest but for the one of schedule
    files. Raises `UsageError`."""
    known = await sessions_of(store)
    if not known:
        raise UsageError("there is no session in this workspace yet: start one with `callboard run`")
    if wanted is None:
        own = next((one for one in known if not one.settings.get(SERVES)), None)
        if own is None:
            words = f"the only session here, {known[0].id}, is the one that `callboard serve` keeps for schedule files"
            raise UsageError(f"{words}: name it with --session, or start one of yours with `callboard run`")
        return own
    by_id = {one.id: one for one in known}
    return by_id[one_by_id("session", by_id, wanted, where="of this workspace")]


async def send_prompt(store: Store, session: str, text: str, *, to: str, now: float, nonce: str) -> str:
    """A person's words to an agent; the envelope's id. `nonce`: another one each time that a person says something."""
    row = await _recipient(store, session, to)
    # To one who is at work it is a word on that work: no new piece of work, which would need a plan of its own.
    assigns = row.kind != "lead" and row.life not in ("starting", "working", "waiting")
    metadata: Json = {"assignment": True} if assigns else {}
    envelope = prompt_envelope(session, text, now=now, nonce=nonce).model_copy(
        update={
            "id": short_id("env", session, to, nonce),
            "recipient": to,
            "incarnation": row.incarnation,
            "metadata": metadata,
        }
    )
    await store.commit(sending(session, envelope))
    return envelope.id


def prompt_envelope(session: str, text: str, *, now: float, nonce: str) -> Envelope:
    """A person's words to the first lead of a session."""
    return Envelope(
        id=short_id("env", session, "lead", nonce),
        sender="person",
        recipient="lead",
        incarnation=1,
        type="prompt",
        content=text,
        cause="person",
        sent_at=now,
    )


def named(row: SessionRow, text: str) -> SessionRow:
    """The session's row with the person's first words, for lists."""
    return row if row.prompt else row.model_copy(update={"prompt": " ".join(text.split())[:200]})


@dataclass(frozen=True)
class Command:
    """What a person tells the runtime of an agent to do."""

    action: Action
    to: str = "lead"
    text: str = ""
    """With `compact`: what to keep. With `undo`: the journal positions of the edits, with blanks between.
    With `new`: not empty if what matters is to be carried over. With `budget`: the raised limits, as JSON.
    With `model`: a `ModelChoice`, as JSON. With `mode`: a permission mode.
    With `asking`: the seconds that what it asks waits; 0: nobody is there to answer."""


def model_command(name: str, limits: ModelLimits, to: str = "lead") -> Command:
    """That this model is asked from the agent's next call on."""
    return Command("model", to, ModelChoice(name=name, limits=limits).model_dump_json())


async def send_command(store: Store, session: str, command: Command, *, now: float, nonce: str) -> str:
    """A person's command to the runtime of an agent: heeded at receipt, never shown to the model. The envelope's id."""
    row = await _recipient(store, session, command.to)
    envelope = Envelope(
        id=short_id("env", session, command.to, command.action, nonce),
        sender="person",
        recipient=command.to,
        incarnation=row.incarnation,
        type="command",
        content=command.text,
        cause="person",
        metadata={"action": command.action},
        sent_at=now,
    )
    await store.commit(sending(session, envelope))
    return envelope.id


async def _recipient(store: Store, session: str, name: str) -> AgentRow:
    row = await store.get(agent_key(session, name))
    if row is None or row.value is None:
        team = [one.key.rsplit("/", 1)[1] for one in await store.keys(agent_key(session, ""))]
        raise UsageError(f"there is no agent {name!r} in session {session}; there are: {', '.join(team) or 'none'}")
    return AgentRow.model_validate_json(row.value)


def mark_ended(row: SessionRow, revision: int, now: float, exit_code: int) -> Write:
    """The session's row once a run of it has ended; a resume continues it all the same."""
    ended = row.model_copy(update={"ended_at": now, "exit_code": exit_code})
    return Put(session_key(row.id), ended.encode(), expected=revision)
