"""Move of a session to another host: its agents get the new paths, and learn what they lost.

Called once, before the agents run. One commit has the records of all agents together with the rows of the checkpoints
(`writes`), so that a host that dies in between leaves a session that has not moved.

An agent that lost nothing gets no text, so its next request is the same as on the host before, except for paths: its
system prompt is composed again. A reminder names the new path only if its conversation shows the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from callboard.core.agent.state import AgentState
from callboard.core.checkpoints.rules import HostLosses, loss_reminder, relocate_path, results_in_files, work_after
from callboard.core.keys import journal
from callboard.engine.recall import numbered_events, recall_readable
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Append, Write
from callboard.types import events as ev
from callboard.types.checkpoints import CheckpointRow
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection
from callboard.types.records import AgentRow, compact

_NEWEST = 5_000
"""Number of records that are searched for changes after the last checkpoint."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Move of the folders of a session, each by its worktree; an empty name: the workspace."""

    before: Mapping[str, CheckpointRow]
    """Newest checkpoints, as the previous host left them."""
    restored: Mapping[str, str]
    """Commits of the checkpoints whose files are here."""
    folders: Mapping[str, str]
    """Folders here."""

    @property
    def relocation(self) -> dict[str, str]:
        """Return the folder here for each folder there."""
        return {row.folder: self.folders[tree] for tree, row in self.before.items() if tree in self.folders}


async def note_move(runtime: SessionRuntime, moves: Moves | None, writes: Sequence[Write]) -> None:
    """Commit `writes`, and the records of all agents about the move. `moves` None: the session stays where it was."""
    records: list[Write] = []
    for row in runtime.rows.agents() if moves is not None else ():
        if moves is not None and row.life != "stopped":
            stream = journal(runtime.session, row.name, row.incarnation)
            records += [Append(stream, event.encode()) for event in await _events(runtime, moves, row, stream)]
    await runtime.commit(*writes, *records)


async def _events(runtime: SessionRuntime, moves: Moves, row: AgentRow, stream: str) -> list[ev.Event]:
    recalled = await recall_readable(runtime.services.store, runtime.session, row.name, row.incarnation)
    state = recalled.state
    if recalled.lost is not None or state.identity.spec is None:
        return []  # it has not begun, or cannot continue
    now = runtime.clock.now()
    events = list(_paths(state, moves, now))
    newest = await numbered_events(runtime.services.store, stream, max(0, state.seq - _NEWEST))
    losses = _losses(state, moves, [event for _, event in newest])
    old_root = moves.before[""].folder
    text = loss_reminder(losses, before=old_root if _shows(state, old_root) else "", now=moves.folders[""])
    if text:
        events.append(ev.InjectionQueued(at=now, injection=Injection(kind="system-reminder", text=text, key="moved")))
    return events


def _paths(state: AgentState, moves: Moves, now: float) -> Iterator[ev.Event]:
    """Yield the records that give an agent its folder and its known files under their new paths."""
    spec = state.me
    folder = relocate_path(spec.folder, moves.relocation) if spec.folder else ""
    if folder and folder != spec.folder:
        yield ev.SpecChanged(at=now, spec=spec.model_copy(update={"folder": folder}))
    for path, digest in state.work.files.items():
        if new_path := relocate_path(path, moves.relocation):
            yield ev.FileSeen(at=now, path=new_path, digest=digest, changed=path in state.work.changed)


def _losses(state: AgentState, moves: Moves, events: Sequence[ev.Event]) -> HostLosses:
    own = PurePosixPath(state.me.folder).name if state.me.folder else ""
    rows = [row for tree, row in moves.before.items() if tree in ("", own)]
    row = moves.before.get(own) or moves.before[""]
    files, commands = work_after(events, row.at)
    missing = [name for row in rows if moves.restored.get(row.tree, "") != row.commit for name in row.unpushed]
    folders = {row.folder: "" for row in moves.before.values()}
    earlier = {folder: "" for row in moves.before.values() for folder in row.earlier}
    changes = [*missing, *(relocate_path(path, folders).lstrip("/") for path in files if relocate_path(path, folders))]
    return HostLosses(
        changes=tuple(dict.fromkeys(changes)),
        commands=commands,
        left_out=_distinct(row.left_out for row in rows),
        ignored=_distinct(row.ignored for row in rows),
        outside=tuple(path for path in state.work.changed if not relocate_path(path, {**folders, **earlier})),
        servers=moves.before[""].servers,
        results=results_in_files(
            message.wire.decode(errors="replace") for message in state.context.conversation.messages
        ),
    )


def _distinct(lists: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in lists for name in names))


def _shows(state: AgentState, folder: str) -> bool:
    """Return True if an agent's conversation contains the path of a folder."""
    sought = compact(folder)[1:-1].encode("utf-8", "replace")
    return any(sought in message.wire for message in state.context.conversation.messages)
