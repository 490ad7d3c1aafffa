"""Repair of a session after damage, before its agents start, by the process that has taken it over.

A damaged row of an agent is made from its journal. With `--carry`, a lead whose journal lacks records begins a new life
with what came before them. All other losses are only reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.agent.state import AgentState
from callboard.core.decoding import in_words
from callboard.core.keys import agent_key, journal
from callboard.engine.recall import recall_readable, spec_digest
from callboard.engine.runtime import Host
from callboard.engine.team.renew import renew_past_damage
from callboard.ports.store import Put
from callboard.types.records import AgentRow


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair. `renewed`: the lead has a new incarnation."""

    notes: tuple[str, ...] = ()
    renewed: bool = False


async def repair(host: Host, damaged: Sequence[str], *, carry: bool) -> Repaired:
    """Repair a session. `damaged`: the keys of its rows that were set aside. Raises the exceptions of
    `Store.commit`."""
    notes = list[str]()
    names = {key.rpartition("/")[2] for key in damaged if key.startswith(agent_key(host.session, ""))}
    for name in sorted({*names, "lead"}):
        if host.board.agent(name) is None and await _row_again(host, name):
            notes.append(f"the row of {name} was damaged and is made again from its journal")
    for key in damaged:
        kind = key.split("/")[2] if key.count("/") > 1 else ""
        if kind in ("task", "request", "schedule", "rule") and await host.ports.store.get(key) is None:
            notes.append(f"{in_words(key)} was damaged and is lost: add it again if it is needed")
    lost = await renew_past_damage(host) if carry else ""
    return Repaired((*notes, *([lost] if lost else [])), bool(lost))


async def _row_again(host: Host, name: str) -> bool:
    """Write the row of an agent's newest life from its journal. Return False if it has none."""
    store = host.ports.store
    life = 0
    while await store.last(journal(host.session, name, life + 1)):
        life += 1
    if not life:
        return False
    state = (await recall_readable(store, host.session, name, life)).state
    if state.spec is None:
        return False
    await host.commit(Put(agent_key(host.session, name), _row(state).encode(), expected=0))
    return True


def _row(state: AgentState) -> AgentRow:
    spec = state.me
    ended = state.ended
    return AgentRow(
        name=spec.name,
        incarnation=state.incarnation,
        kind=spec.kind,
        role=spec.role,
        agent_type=spec.agent_type,
        parent=None if spec.kind == "lead" else "lead",
        spec=spec_digest(spec),
        life="idle" if ended is None else "stopped",
        created_at=state.began_at,
        since=state.began_at,
        outcome="" if ended is None else ended.outcome,
    )
