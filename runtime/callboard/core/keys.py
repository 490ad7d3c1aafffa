"""Names of streams and keys in the store, and the ids that people see. All are defined here, to avoid repetition.

s/<session>                      SessionRow
s/<session>/agent/<name>         AgentRow            s/<session>/task/<id>       Task
s/<session>/request/<id>         Request             s/<session>/schedule/<id>   Schedule
s/<session>/rule/<id>            SessionRule
j/<session>/<name>.<inc>         an agent's journal (stream)
m/<session>/<name>.<inc>         its mailbox (stream)
snap/<session>/<name>.<inc>      the newest snapshot of its state
dead/<session>/<name>.<inc>      position up to which the mailbox of an ended life was processed
host/<session>                   HostRow
fires/<session>/<schedule>/<time>  Fire, the history of a schedule
serving/<pid>                    HostRow of a `callboard serve`
queue/<session>                  QueuedSession
drain/<process>                  a person's order to a `callboard serve`: hand its sessions over
w/<session>/<id>                 WorkflowRow, and the journal of the workflow (stream): WorkflowNoted
worktrees                        operations on git worktrees (stream)
checkpoint/<session>/<tree>      CheckpointRow; without a tree: the workspace
refused/<session>                requests to the web page that an agent's process sent (stream): RefusedRequest
link/<sha256 of its secret>      AnswerLink
orders/<session>                 the number of the newest order that the supervisor has carried out
removed/<session>                RemovedSession, until everything of it is gone
rate/<key digest>/<model>        RateNotice          rate/<key digest>/          RateNotice of the key itself
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern

UUID_PATTERN = late_pattern(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""Text of a UUID; match it whole."""
MAILBOXES = "m/"
"""Prefix of the names of mailboxes."""
LINKS = "link/"
"""Prefix of the keys of answer links."""
RATES = "rate/"
"""Prefix of the keys of rate limit notices of API keys."""
WORKTREES = "worktrees"
"""Stream of operations on git worktrees, of all sessions of the workspace."""
END_FIRE = "end_fire"
"""Command that removes a fire of a schedule from an agent's mail, or interrupts the turn that it began. The content
names the fire."""
DATABASE = "callboard.db"
"""The file of a workspace's store, in its state folder."""


_OF_SESSIONS = ("s", "j", "m", "snap", "dead", "host", "fires", "w", "orders", "refused", "queue", "checkpoint")
"""First parts of the names of keys and streams of sessions."""
_NAMED = 8
"""Maximum number of possible ids listed in an error."""


def one_by_id(kind: str, ids: Iterable[str], prefix: str, *, where: str = "", offered: Iterable[str] = ()) -> str:
    """Return the id equal to `prefix`, or else the only one that begins with it.

    The prefix may lack the leading `task_` or `req_`. `kind`, `where`: `session`, `of this workspace`. `offered`: the
    ids to list if none matches; empty: all. Raises `UsageError`, which lists the matching ids, or the existing ones.
    """
    all_ids = list(ids)
    fitting = by_beginning(all_ids, prefix)
    if len(fitting) == 1:
        return fitting[0]
    of = f" {where}" if where else ""
    if fitting:
        raise UsageError(f"{prefix!r} fits {len(fitting)} {kind}s{of}: {_some(fitting)}")
    choices = list(offered) or all_ids
    raise UsageError(f"unknown {kind} {prefix!r}{of}: {f'choose {_some(choices)}' if choices else 'there are none'}")


def by_beginning(ids: Iterable[str], prefix: str) -> list[str]:
    """Return the ids that `prefix` may mean: the id itself, or else all that begin with it.

    An empty prefix matches none.
    """
    all_ids = list(ids)
    if prefix in all_ids:
        return [prefix]
    return [
        candidate
        for candidate in all_ids
        if prefix and (candidate.startswith(prefix) or candidate.partition("_")[2].startswith(prefix))
    ]


def _some(ids: Sequence[str]) -> str:
    overflow = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{', '.join(ids[:_NAMED])}{overflow}"


def workspace_folder(root: PurePath) -> str:
    """Return the name of the folders for data of a workspace, from its resolved path."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", root.name)[:40] or "root"
    return f"{name}-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"


def session_key(session: str) -> str:
    """Return the key of a session's row."""
    return f"s/{session}"


def agent_key(session: str, name: str) -> str:
    """Return the key of an agent's row."""
    return f"s/{session}/agent/{name}"


def task_key(session: str, task_id: str) -> str:
    """Return the key of a task's row."""
    return f"s/{session}/task/{task_id}"


def request_key(session: str, request_id: str) -> str:
    """Return the key of a request's row."""
    return f"s/{session}/request/{request_id}"


def schedule_key(session: str, schedule_id: str) -> str:
    """Return the key of a schedule's row."""
    return f"s/{session}/schedule/{schedule_id}"


def fires_prefix(session: str = "", schedule_id: str = "") -> str:
    """Return the key prefix of the history of a session's schedules, or of one schedule; without a session: of all."""
    return "fires/" + "".join(f"{part}/" for part in (session, schedule_id) if part)


def fire_key(session: str, schedule_id: str, fire_id: str) -> str:
    """Return the key of one fire. Keys of a schedule sort by the time of the slot, which ends the id."""
    return fires_prefix(session, schedule_id) + fire_id.rpartition(f"{schedule_id}:")[2]


def session_of(name: str) -> str:
    """Return the session that a key or a stream belongs to; empty if it belongs to none."""
    parts = name.partition("#")[0].split("/")
    return parts[1] if parts[0] in _OF_SESSIONS and len(parts) > 1 else ""


def refusals(session: str) -> str:
    """Return the stream of requests to the web page that were refused because an agent's process sent them."""
    return f"refused/{session}"


def rule_key(session: str, rule_id: str) -> str:
    """Return the key of a session rule's row."""
    return f"s/{session}/rule/{rule_id}"


def rows_prefix(session: str) -> str:
    """Return the key prefix of all rows of a session: agents, tasks, requests, schedules, session rules."""
    return f"s/{session}/"


def journal(session: str, name: str, incarnation: int) -> str:
    """Return the name of the journal of one incarnation of an agent."""
    return f"j/{session}/{name}.{incarnation}"


def workflow_key(session: str, workflow: str = "") -> str:
    """Return the key of a workflow's row and the name of its journal.

    Without a workflow: the prefix of all such keys of the session.
    """
    return f"w/{session}/{workflow}"


def snapshot_key(session: str, name: str, incarnation: int) -> str:
    """Return the key of the newest snapshot of an agent's state."""
    return f"snap/{session}/{name}.{incarnation}"


def mailbox(session: str, name: str, incarnation: int) -> str:
    """Return the name of the mailbox of one incarnation of an agent."""
    return f"{MAILBOXES}{session}/{name}.{incarnation}"


def dead_key(session: str, name: str, incarnation: int) -> str:
    """Return the key of the position in the mailbox of an ended life."""
    return f"dead/{session}/{name}.{incarnation}"


def checkpoint_key(session: str, tree: str = "") -> str:
    """Return the key of the newest checkpoint of a worktree of a session; without a tree: of its workspace.

    The keys of all trees of the session begin with that of the workspace.
    """
    return f"checkpoint/{session}/{tree}"


def orders_key(session: str) -> str:
    """Return the key of the number of the newest order that the supervisor has carried out."""
    return f"orders/{session}"


def rate_key(key: str, model: str) -> str:
    """Return the store key of an API key's rate notice, by the API key's digest.

    An empty model: the notice of the API key itself.
    """
    return f"{RATES}{key}/{model}"


def names_of(session: str) -> tuple[str, ...]:
    """Return the names of all keys and streams of a session. A name that ends with `/` is a prefix."""
    return tuple(f"{part}/{session}{end}" for part in _OF_SESSIONS for end in ("", "/"))


def removed_key(session: str = "") -> str:
    """Return the key of the `RemovedSession` of a session; without a session, the prefix of all such keys."""
    return f"removed/{session}"


def link_key(secret: str) -> str:
    """Return the key of an answer link, which only its secret leads to."""
    return LINKS + hashlib.sha256(secret.encode()).hexdigest()


def host_key(session: str) -> str:
    """Return the key of the `HostRow` of the process that hosts a session."""
    return f"host/{session}"


def screen_leases(session: str) -> tuple[str, ...]:
    """Return the leases of attached screens: each screen holds one of them while it can ask a person."""
    return tuple(f"screen/{session}/{place}" for place in range(8))


def host_lease(session: str) -> str:
    """Return the lease of the process that hosts a session."""
    return f"host-{session}"


def live_purpose(session: str) -> str:
    """Return the part of a socket's name that identifies the live text of a session."""
    return short_id("live", session)


def vouch_purpose(session: str) -> str:
    """Return the part of a socket's name that identifies the announcements of answers to a session."""
    return short_id("answers", session)


def serving_key(pid: int | str = "") -> str:
    """Return the key of the `HostRow` of a `callboard serve`; without a pid, the prefix of all such keys."""
    return f"serving/{pid}"


def queue_key(session: str = "") -> str:
    """Return the key of the `QueuedSession` of a session; without a session, the prefix of all such keys."""
    return f"queue/{session}"


def drain_key(machine: str = "", pid: int = 0, started: float = 0.0) -> str:
    """Return the key of the order to drain a process; without a machine, the prefix of all such keys."""
    return f"drain/{machine}:{pid}:{started:g}" if machine else "drain/"


def host_name(machine: str, pid: int) -> str:
    """Return the name of a process among the hosts of a store: `build1:4711`."""
    return f"{machine}:{pid}"


def short_id(prefix: str, *origin: object) -> str:
    """Return an id such as `req_...`, `task_...` or `cron_...`, derived from its origin.

    The prefix is followed by 12 base32 characters. The same origin gives the same id.
    """
    digest = hashlib.sha256("\x1f".join(map(str, origin)).encode()).digest()
    return f"{prefix}_{base64.b32encode(digest[:8]).decode().lower()[:12]}"


def call_id(session: str, name: str, *, incarnation: int, ordinal: int, index: int) -> str:
    """Return the id of a tool call from the number of its model call in the journal and its index in the reply.

    The id never depends on the provider's id alone. The journal position is not used, because mail that comes earlier
    or later (in a replay) must not change the id.
    """
    return short_id("call", session, name, incarnation, ordinal, index)


def request_envelope_id(request_id: str, to: str) -> str:
    """Return the id of the envelope that delivers a request to an agent; the answer replies to this id."""
    return short_id("env", request_id, to)


def subagent_suffix(call: str) -> str:
    """Return the suffix for the name of a call's subagent. It is always the same for the same call."""
    return f"-{short_id('sub', call)[4:]}"


def claim_envelope_id(task_id: str, attempts: int, name: str) -> str:
    """Return the id of the envelope in which an agent notifies itself of a task that it claimed from the board.

    `attempts`: the agent is the task's `attempts`-th claimer.
    """
    return short_id("env", "claim", task_id, attempts, name)


def count_words(count: int, noun: str) -> str:
    """Return `1 task`, `2 tasks`, `1,000 tasks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
