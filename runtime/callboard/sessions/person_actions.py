"""Actions reserved for a person: answers, messages, commands, orders, schedules, tasks and session rules.

Every front end and the Python API write through this module; `tests/test_architecture.py` checks it. A process that an
agent's tool started is refused here, because an agent must not approve its own actions. Answers, rules and messages are
announced to the host (`vouching.py`). One exception: such a process may prompt and command a session that it hosts
itself (`hosted`), because it acts as the person of that session: it can host only a session that a tool's process began
(`prepare.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.core.keys import refusals, rule_key, schedule_key, task_key
from callboard.core.messaging.envelopes import PLAIN_PROMPT, PromptExtras
from callboard.engine.commands import AgentCommand, queueing_if_detached, send_command, send_note, send_prompt
from callboard.engine.team.admin_orders import AdminOrder, give_order
from callboard.ports.environment import Answer
from callboard.ports.store import Append, Commit, Delete, Fence, Put, Store, Write
from callboard.sessions.vouching import NotAccepted, announce
from callboard.types.errors import ToolRefused, UsageError
from callboard.types.records import RefusedRequest, SessionRule, Task
from callboard.types.schedules import Schedule


def announcing_commit(store: Store, session: str, fence: Fence | None = None) -> Commit:
    """Return a commit that first announces its writes to the host of the session, if that host checks them.

    It raises `NotAccepted` if the host does not accept them.
    """

    async def commit(*writes: Write) -> tuple[int, ...]:
        await announce(store, session, writes)
        return await store.commit(*writes, fence=fence)

    return commit


async def answer_as_person(
    store: Store, session: str, request_id: str, answer: Answer, *, now: float, fence: Fence | None = None
) -> str | None:
    """Answer a request.

    Returns None if the answer is accepted, otherwise the reason. Raises `UsageError` inside a tool's process.
    """
    refuse_inside_tool("Answering a request")
    from callboard.engine.approvals.requests import answer_request

    commit = announcing_commit(store, session, fence)
    try:
        refused = await answer_request(store, session, request_id, answer, now=now, commit=commit)
    except NotAccepted as unseen:
        return str(unseen)
    if refused is None and fence is None and (queue := await queueing_if_detached(store, session, now)):
        await store.commit(*queue)  # the agent may have ended its turn, and reads the answer as mail
    return refused


async def say_as_person(
    store: Store,
    session: str,
    text: str,
    *,
    to: str,
    now: float,
    nonce: str = "",
    hosted: bool = False,
    extras: PromptExtras = PLAIN_PROMPT,
) -> None:
    """Send a person's prompt to an agent. Raises `UsageError` inside a tool's process, and for an unknown agent.

    `nonce`: calls with an equal nonce send one envelope; without it, each call sends a new one. `hosted`: this process
    hosts the session.
    """
    if not hosted:
        refuse_inside_tool("Speaking as the person")
    nonce = nonce or secrets.token_hex(8)
    await send_prompt(
        store, session, text, to=to, now=now, nonce=nonce, extras=extras, commit=announcing_commit(store, session)
    )


async def note_as_person(store: Store, session: str, text: str, *, now: float) -> None:
    """Send the lead a text that it reads with the next prompt or at its next step, without waking it.

    Raises as `say_as_person` does.
    """
    refuse_inside_tool("Speaking as the person")
    await send_note(store, session, text, now=now, nonce=secrets.token_hex(8), commit=announcing_commit(store, session))


async def command_as_person(
    store: Store, session: str, command: AgentCommand, *, now: float, hosted: bool = False
) -> str:
    """Send a person's command to the runtime of an agent; return the envelope's id. Raises as `say_as_person` does."""
    if not hosted:
        refuse_inside_tool(f"The command `{command.action}` to an agent")
    nonce = secrets.token_hex(8)
    return await send_command(store, session, command, now=now, nonce=nonce, commit=announcing_commit(store, session))


async def order_as_person(store: Store, session: str, order: AdminOrder, *, now: float) -> None:
    """Have the supervisor act on one life of an agent. Raises `UsageError` inside a tool's process."""
    refuse_inside_tool(f"The order `{order.what}` to an agent")
    await give_order(store, session, order, now=now, nonce=secrets.token_hex(8))


async def write_schedule_as_person(
    store: Store,
    session: str,
    schedule: Schedule,
    *,
    expected: int,
    fence: Fence | None = None,
    hosted: bool = False,
) -> None:
    """Write a schedule's row. `expected`: the revision that it replaces, 0 for a new one; `hosted` as for prompts.

    Raises `Conflict` if the row has changed, and `UsageError` inside a tool's process.
    """
    if not hosted:
        refuse_inside_tool("Changing a schedule")
    await store.commit(Put(schedule_key(session, schedule.id), schedule.encode(), expected=expected), fence=fence)


async def fire_as_person(store: Store, session: str, schedule: Schedule, *, now: float) -> str:
    """Fire a schedule now; return the id of the fire. Raises `UsageError` inside a tool's process."""
    refuse_inside_tool("Running a schedule")
    from callboard.engine.scheduling.fire import fire_by_hand

    return await fire_by_hand(store, session, schedule, now=now, nonce=secrets.token_hex(8))


async def write_task_as_person(store: Store, session: str, task: Task, *notices: Write, expected: int) -> None:
    """Write a task's row, with notices to agents in the same commit. Raises as `write_schedule_as_person` does."""
    refuse_inside_tool("Changing a task")
    await store.commit(Put(task_key(session, task.id), task.encode(), expected=expected), *notices)


async def write_rule_as_person(store: Store, session: str, rule: SessionRule, *, expected: int) -> None:
    """Write a session rule's row. Raises as `write_schedule_as_person` does."""
    refuse_inside_tool("Changing a session rule")
    await announcing_commit(store, session)(Put(rule_key(session, rule.id), rule.encode(), expected=expected))


async def write_links_as_person(store: Store, *changes: Put | Delete) -> None:
    """Write and remove rows of answer links. Raises `UsageError` inside a tool's process."""
    refuse_inside_tool("Making or revoking an answer link")
    await store.commit(*changes)


async def record_refusal(store: Store, session: str, refused: RefusedRequest) -> None:
    """Add a request that an agent's process sent in place of the person to the policy log of a session."""
    await store.commit(Append(refusals(session), refused.encode()))


@contextmanager
def as_person() -> Generator[None]:
    """Convert a rule's refusal of a tool call (`ToolRefused`) into a `UsageError` for a person."""
    try:
        yield
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused
