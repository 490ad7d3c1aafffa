"""Rules of checkpoints: their times, the names of their branches, their messages, and failures of a push. Pure.

An agent whose session continues on another host reads by name what it lost (`loss_reminder`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from callboard.core.checkpoints.address import without_credentials
from callboard.core.context.reminders import displayed_name
from callboard.core.utf8 import storable
from callboard.types import events as ev
from callboard.types.checkpoints import CheckpointPolicy
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

LARGEST = 50_000_000
"""Most bytes of a file in a checkpoint. Hosts of git refuse larger files (100 MB on GitHub)."""
_ROOT = "callboard"
_NAMED = 100
"""Most names in a list of a record."""
PushProblem = Literal["", "diverged", "refused", "credentials", "unreachable"]


def is_due(policy: CheckpointPolicy, event: ev.Event) -> bool:
    """Return True if a checkpoint follows this event of an agent."""
    if policy == "step" and isinstance(event, ev.ResultsMerged):
        return True
    return policy != "off" and isinstance(event, ev.TurnEnded)


def session_branches(session: str) -> str:
    """Return the beginning of the names of a session's branches: `callboard/SESSION`."""
    return f"{_ROOT}/{safe_part(session)}"


def branch_name(session: str, tree: str) -> str:
    """Return the branch for the checkpoints of a working tree. `tree`: a worktree; empty: the workspace."""
    return f"{session_branches(session)}/{f'wt/{safe_part(tree)}' if tree else 'workspace'}"


def local_ref(session: str, tree: str) -> str:
    """Return the reference in the local repository. It is no branch, so that `git branch` does not list it."""
    return f"refs/callboard/checkpoints/{branch_name(session, tree).removeprefix(f'{_ROOT}/')}"


def safe_part(name: str) -> str:
    """Return the name as one part of a reference or a path. A changed name gets a digest, which keeps it unique."""
    reduced = re.sub(r"\.\.+|^\.|\.$|\.lock$|[^A-Za-z0-9._-]", "-", name)[:100]
    return (
        reduced if reduced == name else f"{reduced}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


_HEAD = "Callboard-Head: "
_BRANCH = "Callboard-Branch: "


@dataclass(frozen=True, slots=True)
class CheckpointCommit:
    """Facts that the commit of a checkpoint states."""

    tree: str
    """Object of git's with the files."""
    head: str = ""
    """Commit that was checked out; empty: there was none yet."""
    branch: str = ""
    """Branch that was checked out; empty: none was."""


def commit_message(session: str, tree: str, *, head: str, branch: str, left_out: Sequence[str] = ()) -> str:
    """Return the message of a checkpoint's commit. `tree`: a worktree; empty: the workspace."""
    place = f"the worktree {tree}" if tree else "the workspace"
    lines = [f"Checkpoint of {place}", "", f"Callboard-Session: {session}"]
    lines += [f"Callboard-Left-Out: {' '.join(name.split())}" for name in left_out]
    lines += [f"{_BRANCH}{branch}"] if branch else []
    lines += [f"{_HEAD}{head}"] if head else []
    return "\n".join(lines) + "\n"


def read_commit(text: str) -> CheckpointCommit:
    """Return the facts in a checkpoint's commit, as `git cat-file commit` prints it."""
    header, _, message = text.partition("\n\n")
    lines = message.splitlines()
    return CheckpointCommit(_rest("tree ", header.splitlines()), _rest(_HEAD, lines), _rest(_BRANCH, lines))


def _rest(start: str, lines: Sequence[str]) -> str:
    """Return the rest of the last line with this beginning. Names of files cannot make a later one."""
    return next((line.removeprefix(start) for line in reversed(lines) if line.startswith(start)), "")


def short_list(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first names, and the number of the others, for a record of limited size.

    Bytes of a name that are not UTF-8 are shown as `?`: a record cannot contain them.
    """
    listed = list(map(storable, names[:_NAMED]))
    return (*listed, f"{len(names) - _NAMED:,} more") if len(names) > _NAMED else tuple(listed)


@dataclass(frozen=True, slots=True)
class PushEnd:
    """Result of a push. `problem` empty: the remote has the checkpoint."""

    problem: PushProblem = ""
    text: str = ""
    """The failure, and what a person can do about it."""


_DIVERGED = ("non-fast-forward", "fetch first", "[rejected]")
_REFUSED = ("remote rejected", "hook declined", "protected branch", "GH006", "GH008", "not allowed", "denied to")
_UNKNOWN = ("Authentication failed", "could not read Username", "could not read Password", "Permission denied")
_UNKNOWN_ALSO = ("publickey", "Host key verification failed", "HTTP 401", "HTTP 403", "error: 401", "error: 403")


def push_end(code: int | None, output: str, branch: str) -> PushEnd:
    """Return the result of `git push --porcelain`. `code` None: it was ended after its time limit."""
    if code == 0:
        return PushEnd()
    output_text = " ".join(without_credentials(output).split())[-400:]
    if code is None:
        output_text = output_text or "it took too long"
    if any(mark in output for mark in _REFUSED):
        advice = f"allow pushes to branches {_ROOT}/*, or set checkpoint: off"
        return PushEnd(
            "refused", f"the remote refused the branch {branch}: {output_text}. To continue on other hosts, {advice}"
        )
    if any(mark in output for mark in _DIVERGED):
        advice = "Nothing was overwritten. Rename or delete that branch of the remote"
        return PushEnd(
            "diverged", f"the branch {branch} of the remote has commits that are not this session's. {advice}"
        )
    if any(mark in output for mark in (*_UNKNOWN, *_UNKNOWN_ALSO)):
        advice = "Check that `git push` to it works in a terminal without a question"
        return PushEnd("credentials", f"the remote does not accept your credentials: {output_text}. {advice}")
    advice = "Check workspace_remote and the network"
    return PushEnd("unreachable", f"the remote could not be reached: {output_text}. {advice}")


# Losses of agents whose session continues on another host

_RESULT = late_pattern(r"<persisted-output>(?:\\n|\n)Full output: (.+?)(?:\\n|\n)Preview:")
"""File of a large result, in a text or in its JSON form."""
_SHOWN = 40
"""Most names of one kind in a reminder."""


@dataclass(frozen=True, slots=True)
class HostLosses:
    """Losses of an agent by the move from another host. Paths of the workspace are relative to it."""

    changes: tuple[str, ...] = ()
    """Files that were changed after the last checkpoint that could be fetched."""
    commands: tuple[str, ...] = ()
    """Commands that ran after it. What they changed is not known."""
    left_out: tuple[str, ...] = ()
    """Files that checkpoints leave out, each with the reason."""
    ignored: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Files outside the workspace that the agent changed."""
    servers: tuple[str, ...] = ()
    """MCP servers that were processes of that host."""
    results: tuple[str, ...] = ()
    """Files with large results that the agent's conversation names."""

    def __bool__(self) -> bool:
        return any((self.changes, self.commands, self.left_out, self.ignored, self.outside, self.servers, self.results))


def relocate_path(path: str, folders: Mapping[str, str]) -> str:
    """Return a path of another host as it is here; empty if it is in none of the folders.

    `folders`: folder there -> the same folder here. A folder may be inside another one.
    """
    for before in sorted(folders, key=len, reverse=True):
        if path == before or path.startswith(f"{before}/"):
            return folders[before] + path.removeprefix(before)
    return ""


def work_after(events: Iterable[ev.Event], at: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that an agent's tools changed after a time, and the commands that it ran.

    Commands that were running, in the foreground or in the background, are left out: other lines report them.
    """
    commands: dict[str, str] = {}
    files: dict[str, None] = {}
    ran: dict[str, None] = {}
    for event in events:
        if isinstance(event, ev.ModelReplied):
            calls = (call for call in event.calls if call.name == "bash")
            commands |= {call.id: str(call.input.get("command", "")) for call in calls}
        elif isinstance(event, ev.ToolFinished) and event.at > at:
            data = event.data
            if event.call in commands and "output" in data:  # in the background
                continue
            if event.call in commands:
                ran[commands[event.call]] = None
            elif not event.is_error and {"path", "before", "after"} <= data.keys() and data["before"] != data["after"]:
                files[str(data["path"])] = None
    return tuple(files), tuple(ran)


def results_in_files(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the files with whole results that texts of a conversation name, oldest first."""
    return tuple(dict.fromkeys(match[1] for text in texts for match in _RESULT.finditer(text)))


def loss_lines(losses: HostLosses) -> list[str]:
    """Return a line for each kind of loss."""
    unknown = "not run again; what they changed in files is not here, and what else they did is unknown"
    kinds = (
        ("Changes after the last checkpoint, which are not here", losses.changes),
        (f"Commands after the last checkpoint, {unknown}", losses.commands),
        ("Files that checkpoints leave out", losses.left_out),
        ("Files that git ignores, which are not here", losses.ignored),
        ("Files outside the workspace that you changed, which are not here", losses.outside),
        ("Files with whole results, which are not here", losses.results),
        ("MCP servers that were processes of that host, and begin anew here", losses.servers),
    )
    return [f"- {title}: {_names(names)}" for title, names in kinds if names]


def loss_reminder(losses: HostLosses, *, before: str, now: str) -> str:
    """Return the reminder for an agent that continues on another host; empty if it has nothing to know.

    `before`, `now`: the folders of its workspace there and here; `before` empty: the agent has seen no path of it.
    """
    moved = f"Your workspace is {now} now. It was {before}: paths that begin with that are beneath {now} now."
    lines = loss_lines(losses)
    if not lines:
        return moved if before else ""
    head = "The runtime stopped on another host, and this session continues here from its last checkpoint."
    last = "Look at what is here before you do any of it again."
    return "\n".join([head, *([moved] if before else []), *lines, last])


def _names(names: Sequence[str]) -> str:
    listed = ", ".join(map(displayed_name, names[:_SHOWN]))
    return listed + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
