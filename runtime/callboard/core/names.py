"""The names of streams and keys in the store, and the ids that people see. One place, so that nobody spells them twice.

s/<session>                      SessionRow
s/<session>/agent/<name>         AgentRow            s/<session>/task/<id>       Task
s/<session>/request/<id>         Request             s/<session>/schedule/<id>   Schedule
s/<session>/rule/<id>            SessionRule
j/<session>/<name>.<inc>         an agent's journal (stream)
m/<session>/<name>.<inc>         its mailbox (stream)
snap/<session>/<name>.<inc>      the newest snapshot of its state
dead/<session>/<name>.<inc>      how far the mailbox of a life that is over was seen to
host/<session>                   HostRow
fires/<session>/<schedule>/<time>  Fire, the history of a schedule
serving/<pid>                    HostRow of a `callboard serve`
w/<session>/<id>                 WorkflowRow, and the journal of the workflow (stream): WorkflowNoted
worktrees                        what was done to git worktrees (stream)
orders/<session>                 the number of the newest order that the supervisor has carried out
rate/<key digest>/<model>        RateNotice          rate/<key digest>/          RateNotice of the key itself
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from callboard.words.errors import UsageError

MAILBOXES = "m/"
"""How the names of mailboxes begin."""
WORKTREES = "worktrees"
"""The stream of what was done to git worktrees, of all sessions of the workspace."""
END_FIRE = "end_fire"
"""The command that takes a fire of a schedule out of an agent's mail, or interrupts the turn that it began; its content
says which."""
DATABASE = "callboard.db"
"""The file of a workspace's store, in its state folder."""


_NAMED = 8
"""Ids that a refusal names, of those that were possible."""


def one_by_id(kind: str, ids: Iterable[str], wanted: str, *, where: str = "", offered: Iterable[str] = ()) -> str:
    """The id that `wanted` is, or else the only one that begins so, with or without the `task_` or `req_` before it.

    `kind`, `where`: `session`, `of this workspace`. `offered`: the ids to name when none fits; empty: all. Raises
    `UsageError`, which names those that fit, or those there are.
    """
    known = list(ids)
    fitting = by_beginning(known, wanted)
    if len(fitting) == 1:
        return fitting[0]
    of = f" {where}" if where else ""
    if fitting:
        raise UsageError(f"{wanted!r} fits {len(fitting)} {kind}s{of}: {_some(fitting)}")
    there = list(offered) or known
    raise UsageError(f"{wanted!r} is no {kind}{of}; {f'there are: {_some(there)}' if there else 'there are none'}")


def by_beginning(ids: Iterable[str], wanted: str) -> list[str]:
    """The ids that `wanted` may stand for: the id itself, or else all that begin so. An empty one stands for none."""
    known = list(ids)
    if wanted in known:
        return [wanted]
    return [one for one in known if wanted and (one.startswith(wanted) or one.partition("_")[2].startswith(wanted))]


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{', '.join(ids[:_NAMED])}{more}"


def workspace_folder(root: PurePath) -> str:
    """The name of the folders in which we keep what belongs to a workspace, by its resolved path."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", root.name)[:40] or "root"
    return f"{name}-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"


def session_key(session: str) -> str:
    return f"s/{session}"


def agent_key(session: str, name: str) -> str:
    return f"s/{session}/agent/{name}"


def task_key(session: str, task_id: str) -> str:
    return f"s/{session}/task/{task_id}"


def request_key(session: str, request_id: str) -> str:
    return f"s/{session}/request/{request_id}"


def schedule_key(session: str, schedule_id: str) -> str:
    return f"s/{session}/schedule/{schedule_id}"


def fires_prefix(session: str = "", schedule_id: str = "") -> str:
    """The history of a session's schedules, or of one; without a session: of all."""
    return "fires/" + "".join(f"{one}/" for one in (session, schedule_id) if one)


def fire_key(session: str, schedule_id: str, fire_id: str) -> str:
    """One fire: keys of a schedule sort by the time of the slot, which ends the id."""
    return fires_prefix(session, schedule_id) + fire_id.rpartition(f"{schedule_id}:")[2]


def rule_key(session: str, rule_id: str) -> str:
    return f"s/{session}/rule/{rule_id}"


def rows_prefix(session: str) -> str:
    """All rows of a session: agents, tasks, requests, schedules, session rules."""
    return f"s/{session}/"


def journal(session: str, name: str, incarnation: int) -> str:
    return f"j/{session}/{name}.{incarnation}"


def workflow_key(session: str, workflow: str = "") -> str:
    """A workflow of a session: its row, and its journal. Without one: how the keys of all begin."""
    return f"w/{session}/{workflow}"


def snapshot_key(session: str, name: str, incarnation: int) -> str:
    """The newest snapshot of an agent's state."""
    return f"snap/{session}/{name}.{incarnation}"


def mailbox(session: str, name: str, incarnation: int) -> str:
    return f"{MAILBOXES}{session}/{name}.{incarnation}"


def dead_key(session: str, name: str, incarnation: int) -> str:
    """How far the mailbox of a life that is over was seen to."""
    return f"dead/{session}/{name}.{incarnation}"


def orders_key(session: str) -> str:
    """How far the supervisor has carried out what stands in its mailbox."""
    return f"orders/{session}"


def rate_key(key: str, model: str) -> str:
    """What is known of an API key's rate, by the key's digest; an empty model: of the key itself."""
    return f"rate/{key}/{model}"


def host_key(session: str) -> str:
    """What the process that hosts a session says of itself (`HostRow`)."""
    return f"host/{session}"


def host_lease(session: str) -> str:
    """The lease of the process that hosts a session."""
    return f"host-{session}"


def serving_key(pid: int | str = "") -> str:
    """What a `callboard serve` says of itself (`HostRow`); without a pid: how the keys of all begin."""
    return f"serving/{pid}"


def short_id(prefix: str, *origin: object) -> str:
    """`req_`, `task_`, `cron_` ... + 12 base32 characters, from what caused it: the same cause has the same id."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in origin).encode()).digest()
    return f"{prefix}_{base64.b32encode(digest[:8]).decode().lower()[:12]}"


def call_id(session: str, name: str, incarnation: int, ordinal: int, index: int) -> str:
    """A tool call by the number of its model call in the journal and its place in the reply, never by the provider's
    id alone. Not by the journal position: mail that comes earlier or later must not change it (a replay)."""
    return short_id("call", session, name, incarnation, ordinal, index)


def request_envelope_id(request_id: str, to: str) -> str:
    """The envelope that puts a request to an agent: what its answer replies to."""
    return short_id("env", request_id, to)


def subagent_suffix(call: str) -> str:
    """How the name of the subagent of a call ends: the same call is always the same subagent."""
    return f"-{short_id('sub', call)[4:]}"


def claim_envelope_id(task_id: str, attempts: int, name: str) -> str:
    """The envelope in which an agent tells itself of the task that it took from the board, its `attempts`-th taker."""
    return short_id("env", "claim", task_id, attempts, name)
