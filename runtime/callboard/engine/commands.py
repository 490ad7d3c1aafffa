"""First records of a session; the user's messages and commands as envelopes; the list of stored sessions."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from callboard import __version__
from callboard.core.decoding import read_event, read_value, with_version
from callboard.core.keys import (
    agent_key,
    by_beginning,
    journal,
    one_by_id,
    queue_key,
    session_key,
    session_of,
    short_id,
)
from callboard.core.messaging.envelopes import PLAIN_PROMPT, PromptExtras, envelope_write
from callboard.core.utf8 import storable
from callboard.engine.recall import recall, spec_digest, spec_key
from callboard.ports.store import Commit, Fence, Put, Row, Store, Write
from callboard.ports.store_reading import records_of, rows_of
from callboard.types.agent_spec import AgentSpec, ModelChoice, ModelLimits
from callboard.types.choices import unknown
from callboard.types.errors import SessionUnreadable, UsageError
from callboard.types.events import AgentStarted
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Envelope, Json, QueuedSession, SessionRow

_LONGEST_NAME = 200
"""Most characters of a session's name."""
SERVES = "serve"
"""Key in `SessionRow.settings` that is true for the session that `callboard serve` keeps for schedule files."""
DETACHED = "detached"
"""Key in `SessionRow.settings` that is true for a session that serving hosts run whenever it has work."""
PLACEMENT = "placement"
"""Key in `SessionRow.settings` of the labels that a serving host of the session must have."""
LEAD_ENDED = "the lead of this session has ended: start a new session"
"""Reason why the session takes no more prompts."""
Action = Literal[
    "interrupt", "stop", "compact", "undo", "new", "budget", "model", "mode", "asking", "limits", "thinking"
]


async def create_session(
    store: Store,
    row: SessionRow,
    lead: AgentSpec,
    *,
    fence: Fence | None,
    first: Envelope | None = None,
    also: Sequence[Write] = (),
) -> None:
    """Create the session, its lead, the lead's spec and the first prompt in one commit.

    With one commit no session loses its first prompt. `also`: further writes of the commit. Raises `Conflict` if the
    session exists.
    """
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
    mail = [] if first is None else [envelope_write(row.id, first)]
    await store.commit(
        Put(session_key(row.id), row.encode(), expected=0),
        Put(agent_key(row.id, lead.name), agent.encode(), expected=0),
        Put(spec_key(row.id, digest), lead.encode()),
        *mail,
        *also,
        fence=fence,
    )


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """All sessions of a store."""

    rows: tuple[SessionRow, ...]
    """Sessions that this version can read, newest first. A damaged row is replaced by one made from the journal."""
    unreadable: Mapping[str, SessionUnreadable]
    """Sessions that this version cannot read, by id."""
    began: Mapping[str, float]
    """Start times of the unreadable sessions, as far as their rows state them."""
    rebuilt: frozenset[str]
    """Sessions whose row is no longer in the store."""


async def sessions_of(store: Store) -> Sequence[SessionRow]:
    """Return the sessions of a store that this version can read, newest first."""
    return (await stored_sessions(store)).rows


async def stored_sessions(store: Store) -> StoredSessions:
    """Return all sessions of a store, including unreadable ones."""
    rows = list[SessionRow]()
    ids = dict[str, None]()
    unreadable = dict[str, SessionUnreadable]()
    began = dict[str, float]()
    for row in await rows_of(store, "s/"):
        ids[session_of(row.key)] = None
        if row.key.count("/") == 1:
            try:
                rows.append(read_session(row))
            except SessionUnreadable as wrong:
                unreadable[wrong.session] = wrong
                match = re.search(rb'"created_at": ?([0-9.]+)', row.value or b"")
                began[wrong.session] = float(match[1]) if match else math.inf
    lost = frozenset(ids) - {row.id for row in rows} - unreadable.keys()
    rows += [await _rebuilt(store, session) for session in sorted(lost)]
    return StoredSessions(tuple(sorted(rows, key=lambda row: -row.created_at)), unreadable, began, lost)


def read_session(row: Row) -> SessionRow:
    """Return the row of a session. Raises `SessionUnreadable`, which names the version that wrote it."""
    try:
        return read_value(SessionRow, row.value or b"", row.key)
    except SessionUnreadable as wrong:
        raise with_version(wrong, row.value, __version__) from wrong


@contextmanager
def naming_version(row: SessionRow) -> Generator[None]:
    """Add the version that wrote the session, if its row states it, to a `SessionUnreadable` of the block."""
    try:
        yield
    except SessionUnreadable as wrong:
        raise with_version(wrong, row.encode(), __version__) from wrong


async def _rebuilt(store: Store, session: str) -> SessionRow:
    """Return a row for the session, made from the journal of its first lead."""
    row = SessionRow(id=session, workspace="", created_at=0.0, prompt="(its row was damaged)")
    first = next(iter(await records_of(store, journal(session, "lead", 1), 0, 1)), None)
    if first is None:
        return row
    event = read_event(first.data, journal(session, "lead", 1), first.seq)
    if not isinstance(event, AgentStarted):
        return row.model_copy(update={"created_at": event.at})
    model = event.spec.model
    return row.model_copy(update={"created_at": event.at, "model": model, "settings": {"model": model}})


async def find_session(store: Store, prefix: str | None, *, files: bool = False) -> SessionRow:
    """Return the session with this id, unique prefix of an id, or unique name.

    Without one: the newest that is not the session of schedule files; with `files`, also that session, if it is the
    only one. Raises `UsageError`, and `SessionUnreadable` for a session that a newer Callboard wrote.
    """
    stored = await stored_sessions(store)
    rows = stored.rows
    if not rows and not stored.unreadable:
        raise UsageError("there is no session in this workspace yet: start one with `callboard run`")
    if prefix is None:
        newest = max(stored.began, key=lambda session: stored.began[session], default="")
        if newest and stored.began[newest] > max((row.created_at for row in rows), default=0.0):
            raise stored.unreadable[newest]  # an older session must not be taken for the newest
        own = next((row for row in rows if not row.settings.get(SERVES)), rows[0] if files else None)
        if own is None:
            message = f"the only session here, {rows[0].id}, holds schedules that `callboard serve` fires"
            raise UsageError(f"{message}: name it with --session, or start one of yours with `callboard run`")
        return own
    by_id = {row.id: row for row in rows}
    name = " ".join(prefix.split())[:_LONGEST_NAME]
    if name and not by_beginning([*by_id, *stored.unreadable], prefix):
        ids = [row.id for row in rows if row.prompt == name]
        if len(ids) == 1:
            return by_id[ids[0]]
        if ids:
            raise UsageError(f"{len(ids)} sessions of this workspace have the name {name!r}: choose {', '.join(ids)}")
    session = one_by_id("session", [*by_id, *stored.unreadable], prefix, where="of this workspace")
    if session in stored.unreadable:
        raise stored.unreadable[session]
    return by_id[session]


async def send_note(
    store: Store, session: str, text: str, *, now: float, nonce: str, commit: Commit | None = None
) -> None:
    """Send the lead a note that it reads at its next step or with the next prompt. A note begins no turn.

    `commit`: that of the caller, if not the store's.
    """
    row = await _recipient(store, session, "lead")
    note = prompt_envelope(session, text, now=now, nonce=nonce)
    note = note.model_copy(update={"incarnation": row.incarnation, "mode": "queue"})
    await (commit or store.commit)(envelope_write(session, note))


async def send_prompt(
    store: Store,
    session: str,
    text: str,
    *,
    to: str,
    now: float,
    nonce: str,
    extras: PromptExtras = PLAIN_PROMPT,
    commit: Commit | None = None,
) -> str:
    """Send a prompt of the user to an agent and return the id of the envelope.

    `nonce`: unique for each prompt. `commit`: that of the caller, if not the store's. Raises `UsageError` for an
    unknown agent, and for a lead that has ended for good.
    """
    row = await _recipient(store, session, to)
    # The next life of a lead that begins a fresh conversation reads the mail of the one that ends.
    if row.kind == "lead" and row.life == "stopped":
        state = await recall(store, session, row.name, row.incarnation)
        if not state.lifecycle.renew:
            raise UsageError(LEAD_ENDED)
    # To an agent at work the prompt is about that work, not a new piece of work that would need its own plan.
    assigns = row.kind != "lead" and row.life not in ("starting", "working", "waiting")
    metadata: Json = {**extras.metadata(), **({"assignment": True} if assigns else {})}
    envelope = prompt_envelope(session, text, now=now, nonce=nonce).model_copy(
        update={
            "id": short_id("env", session, to, nonce),
            "recipient": to,
            "incarnation": row.incarnation,
            "metadata": metadata,
        }
    )
    await (commit or store.commit)(envelope_write(session, envelope), *await queueing_if_detached(store, session, now))
    return envelope.id


async def queueing_if_detached(store: Store, session: str, now: float) -> Sequence[Write]:
    """Return the write by which a detached session gets a host for a prompt or an answer; none for another session.

    It is also written while the session has a host, which may be about to leave: the changed row keeps it.
    """
    row = await store.get(session_key(session))
    settings = read_value(SessionRow, row.value, row.key).settings if row is not None and row.value is not None else {}
    return [queue_write(session, settings, now)] if settings.get(DETACHED) else []


def queue_write(session: str, settings: Json, now: float) -> Write:
    """Return the write by which a session gets a serving host. `settings`: those of its row."""
    return Put(queue_key(session), QueuedSession(since=now, placement=settings.get(PLACEMENT) or {}).encode())


def prompt_envelope(session: str, text: str, *, now: float, nonce: str) -> Envelope:
    """Return the envelope of the user's prompt to the first lead of a session."""
    return Envelope(
        id=short_id("env", session, "lead", nonce),
        sender="person",
        recipient="lead",
        incarnation=1,
        type="prompt",
        content=storable(text),
        cause="person",
        sent_at=now,
    )


def with_prompt(row: SessionRow, text: str) -> SessionRow:
    """Return the session's row with the beginning of the user's first prompt, for lists."""
    return row if row.prompt else row.model_copy(update={"prompt": storable(" ".join(text.split())[:_LONGEST_NAME])})


@dataclass(frozen=True)
class AgentCommand:
    """Command of the user to the runtime of an agent."""

    action: Action
    to: str = "lead"
    text: str = ""
    """Argument of the command. `compact`: content to keep. `undo`: journal positions of the edits, separated by blanks.
    `new`: not empty to carry over a summary. `budget`: the raised limits, as JSON. `model`: a `ModelChoice`, as JSON.
    `mode`: a permission mode. `thinking`: a `ThinkingChoice`, as JSON, or nothing. `asking`: seconds that requests
    wait; 0: no one can answer. `limits`: the changed limits of a turn, as JSON."""


def model_command(
    name: str,
    limits: ModelLimits,
    to: str = "lead",
    *,
    plan_name: str | None = None,
    plan_limits: ModelLimits | None = None,
) -> AgentCommand:
    """Return the command that switches an agent to this model from its next call on.

    `plan_name`: model in plan mode; None: the same one.
    """
    choice = ModelChoice(name=name, limits=limits, plan_name=plan_name, plan_limits=plan_limits)
    return AgentCommand("model", to, choice.model_dump_json())


async def send_command(
    store: Store, session: str, command: AgentCommand, *, now: float, nonce: str, commit: Commit | None = None
) -> str:
    """Send a command of the user to the runtime of an agent and return the id of the envelope.

    The command takes effect when it is received. The model never sees it. `commit`: that of the caller, if not the
    store's.
    """
    row = await _recipient(store, session, command.to)
    envelope = Envelope(
        id=short_id("env", session, command.to, command.action, nonce),
        sender="person",
        recipient=command.to,
        incarnation=row.incarnation,
        type="command",
        content=storable(command.text),
        cause="person",
        metadata={"action": command.action},
        sent_at=now,
    )
    await (commit or store.commit)(envelope_write(session, envelope))
    return envelope.id


async def _recipient(store: Store, session: str, name: str) -> AgentRow:
    row = await store.get(agent_key(session, name))
    if row is None or row.value is None:
        team = [agent_row.key.rsplit("/", 1)[1] for agent_row in await rows_of(store, agent_key(session, ""))]
        raise UsageError(unknown("agent", name, team, where=f"in session {session}"))
    return read_value(AgentRow, row.value, row.key)
