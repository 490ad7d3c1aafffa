"""Resume of `fanout.py`, in the workspace of a session: `python bench/resume_side.py`.

Prints as JSON the length of the journal of the newest session's lead, and the seconds to restore the lead's state: from
the newest snapshot, as a resume does; by folding the whole journal; and, as the baseline, to decode the same records
from memory with `json.loads`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import anyio

from callboard.core.agent.state import AgentState
from callboard.core.keys import journal
from callboard.engine.commands import find_session
from callboard.engine.recall import fold_journal, recall
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.settings import Settings


async def main() -> None:
    store = await open_store(find_places(Path.cwd()), Settings(durability="process"), log_notice)
    row = await find_session(store, None)
    began = time.perf_counter()
    resumed = await recall(store, row.id, "lead", 1)
    seconds = time.perf_counter() - began
    stream = journal(row.id, "lead", 1)
    began = time.perf_counter()
    folded, _ = await fold_journal(store, stream, AgentState())
    whole = time.perf_counter() - began
    assert folded == resumed, "the snapshot and the whole journal lead to different states"
    records = [record.data for record in await store.read(stream)]
    began = time.perf_counter()
    for record in records:
        json.loads(record)
    told = {"events": len(records), "resume": seconds, "fold": whole, "json": time.perf_counter() - began}
    await store.aclose()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    anyio.run(main)
